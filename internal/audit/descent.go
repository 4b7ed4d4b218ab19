package audit

import (
	"math"

	"streamdp/dp"
)

// Descent describes regression by clipped gradient steps, with searches of the
// clip norm, arrays ambssgd/stat, whose noise is on answers about a histogram, and
// noisy counts, ambssgd/clip, beside the gradients' sums, ambssgd/grad.
type Descent struct {
	Mechanism
	// Closed is the number of steps that the mechanism has closed. Runs begin
	// with the next one.
	Closed uint64
	Mu     float64
	C      Matrix // of the gradients
	// Standard deviations of the independent draws, in lattice units; 0 where
	// there is no such array.
	Search, Count, Gradient float64
	// Scan says that searches ask rung after rung; else they bisect.
	Scan  bool
	Rungs int
	// Threshold is the count that a search looks for, in records; Unit and Null
	// are the lattice units of a record and a null record.
	Threshold  float64
	Unit, Null int64

	array string // of the searches; "": ambssgd/stat
}

// Subject returns the mechanism in the form that is audited. Clip norms follow
// from releases, and what a search is asked from its answers, so it is for
// Coupling.
func (d Descent) Subject() *Subject {
	d.array = "ambssgd/stat"
	l := &listener{Descent: d}
	return &Subject{
		Mechanism: l, Mu: d.Mu,
		Array: func(name string, _ uint64) (Array, bool) {
			switch name {
			case "ambssgd/stat":
				return Array{Deviations: []float64{d.Search}, Signal: l.question}, d.Search > 0
			case "ambssgd/clip":
				return Array{Deviations: []float64{d.Count}}, d.Count > 0
			case "ambssgd/grad":
				return Array{Deviations: []float64{d.Gradient}, C: d.C}, true
			}
			return Array{}, false
		},
	}
}

// listener hears what a search draws, and so knows what it asks.
type listener struct {
	Descent
	drawn []float64 // by the search of the open step
}

func (l *listener) Range(t uint64) (first, end uint64) { return l.Mechanism.Range(t + l.Closed) }

func (l *listener) Close(n dp.Noise) (*dp.Release, error) {
	return l.Mechanism.Close(noiseFunc(func(array string, hidden []int64) dp.Row {
		row := n.Row(array, hidden)
		if array == l.array {
			l.drawn = l.drawn[:0]
			return heard{row, l}
		}
		return row
	}))
}

type heard struct {
	dp.Row
	l *listener
}

func (h heard) At(j int) float64 {
	z := h.Row.At(j)
	if j == len(h.l.drawn) {
		h.l.drawn = append(h.l.drawn, z)
	}
	return z
}

// question returns the count that a search asks for after the answers it had, of
// bins by rung, those above all rungs, and null records.
func (l *listener) question(j int, bins []int64) int64 {
	count := func(rung int) (sum int64) {
		for i, n := range bins[:len(bins)-1] {
			if i <= rung {
				sum += n * l.Unit
			}
		}
		return sum
	}
	if l.Scan {
		return count(j)
	}
	low, high := 0, l.Rungs
	for i := 0; ; i++ {
		middle := (low + high) / 2
		c := count(middle) + bins[len(bins)-1]*l.Null
		if i == j {
			return c
		}
		if float64(c)+math.Floor(l.drawn[i]*l.Search+0.5) >= l.Threshold*float64(l.Unit) {
			high = middle
		} else {
			low = middle + 1
		}
	}
}
