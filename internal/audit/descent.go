package audit

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
)

// Descent describes regression by clipped gradient steps. It has three arrays: ambssgd/stat for searches of the clip
// norm, whose noise is on answers about a histogram; ambssgd/clip for noisy counts; and ambssgd/grad for sums of
// gradients.
type Descent struct {
	Mechanism
	// Closed is the number of steps that the mechanism has closed. Runs begin
	// with the next one.
	Closed uint64
	Mu     float64
	C      Matrix // correlates the gradients' noise
	// Search, Count and Gradient are the standard deviations of the independent draws of the three arrays, in lattice
	// units; 0 for a missing array.
	Search, Count, Gradient float64
	// Scan is true if searches ask about one rung after another; otherwise they bisect.
	Scan  bool
	Rungs int
	// Threshold is the count that a search looks for, in records; Unit and Null
	// are the lattice units of a record and a null record.
	Threshold  float64
	Unit, Null int64
	// Released is like Subject.Released.
	Released func(b []byte) []byte

	arrays []string // names of the searches' arrays; nil: ambssgd/stat
}

// Subject returns the mechanism in the form that Coupling audits. Other audits do not apply, because clip norms depend
// on releases, and the questions of a search depend on its earlier answers.
func (d Descent) Subject() *Subject {
	d.arrays = []string{"ambssgd/stat"}
	l := &listener{Descent: d}
	return &Subject{
		Mechanism: l, Mu: d.Mu, Released: d.Released,
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

// listener sees the draws of a search, and computes from them the questions that the search asks.
type listener struct {
	Descent
	drawn []float64 // the draws so far of the search in the open step
}

func (l *listener) Range(t uint64) (first, end uint64) { return l.Mechanism.Range(t + l.Closed) }

func (l *listener) Close(n dp.Noise) (*dp.Release, error) {
	return l.Mechanism.Close(noiseFunc(func(array string, hidden []int64) dp.Row {
		row := n.Row(array, hidden)
		if slices.Contains(l.arrays, array) {
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

// question returns the count that a search asks for in draw j, given its answers so far. bins holds the number of
// records of each rung, then the number above all rungs, then the number of null records.
func (l *listener) question(j int, bins []int64) int64 {
	if l.Scan {
		return l.count(bins, j)
	}
	c, _ := l.bisect(bins, l.Rungs, 0, j, l.Search, func(rung int) int { return rung })
	return c
}

// count returns the number of records in the bins up to last, in lattice units.
func (l *listener) count(bins []int64, last int) (sum int64) {
	for i, n := range bins[:len(bins)-1] {
		if i <= last {
			sum += n * l.Unit
		}
	}
	return sum
}

// bisect simulates a search by bisection among places 0 … top. asked is the number of the search's first draw; end
// returns the last bin of a place. If draw j belongs to the search, bisect returns the count that draw j asks for; if j
// comes later, it returns the place that the search found.
func (l *listener) bisect(bins []int64, top, asked, j int, sd float64, end func(place int) int) (c int64, place int) {
	low, high := 0, top
	for i := asked; low < high; i++ {
		middle := (low + high) / 2
		c = l.count(bins, end(middle)) + bins[len(bins)-1]*l.Null
		if i == j {
			return c, 0
		}
		if float64(c)+math.Floor(l.drawn[i]*sd+0.5) >= l.Threshold*float64(l.Unit) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return c, low
}
