package chart

import (
	"errors"
	"math"
)

// axis maps numbers to positions on a page.
type axis struct {
	log       bool
	low, high float64
	from, to  float64 // positions of low and high on the page
	ticks     []tick
}

func newAxis(log bool) *axis { return &axis{log: log, low: math.Inf(1), high: math.Inf(-1)} }

// include widens the axis to contain v.
func (a *axis) include(v float64) error {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return errors.New("not a finite number")
	case a.log && v <= 0:
		return errors.New("has no logarithm")
	}
	a.low, a.high = min(a.low, v), max(a.high, v)
	return nil
}

// mark sets the axis' ticks. It first widens an axis of length 0.
func (a *axis) mark() {
	switch {
	case a.low > a.high:
		a.low, a.high = 1, 2
	case a.low == a.high && a.log:
		a.low, a.high = a.low/2, a.high*2
	case a.low == a.high:
		a.low, a.high = a.low-1, a.high+1
	}
	if a.log {
		a.ticks = decades(a.low, a.high)
	} else {
		a.ticks = linear(a.low, a.high)
	}
}

// place returns the place of a number on the page.
func (a *axis) place(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}
