package audit

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
)

// Descent describes regression by clipped gradient steps. Its arrays are: searches of the clip
// norm, ambssgd/stat, whose noise is on answers about a histogram; noisy counts, ambssgd/clip;
// and the sums of gradients, ambssgd/grad.
type Descent struct {
	Mechanism
	// Closed is the number of steps that the mechanism has closed. Runs begin
	// with the next one.
	Closed uint64
	Mu     float64
	C      Matrix // of the gradients
	// Standard deviations of the independent draws, in lattice units; 0 for an array that
	// does not exist.
	Search, Count, Gradient float64
	// Scan says that searches ask one rung after another; otherwise they bisect.
	Scan  bool
	Rungs int
	// Threshold is the count that a search looks for, in records; Unit and Null
	// are the lattice units of a record and a null record.
	Threshold  float64
	Unit, Null int64
	// Released is as in a Subject.
	Released func(b []byte) []byte

	arrays []string // of the searches; nil: ambssgd/stat
}

// Subject returns the mechanism in the form that is audited. Clip norms depend on
// releases, and the questions of a search on its answers, so it is for Coupling.
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

// listener sees the draws of a search, and so knows its questions.
type listener struct {
	Descent
	drawn []float64 // by the search of the open step
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

// question returns the count that a search asks for after its answers so far. bins counts the
// records by rung; then come those above all rungs, and null records.
func (l *listener) question(j int, bins []int64) int64 {
	if l.Scan {
		return l.count(bins, j)
	}
	c, _ := l.bisect(bins, l.Rungs, 0, j, l.Search, func(rung int) int { return rung })
	return c
}

// count returns how many lattice units the records up to bin last are.
func (l *listener) count(bins []int64, last int) (sum int64) {
	for i, n := range bins[:len(bins)-1] {
		if i <= last {
			sum += n * l.Unit
		}
	}
	return sum
}

// bisect follows a search among places 0 … top, from the draw of number asked on; ends
// has the last bin of each place. It returns the count of draw j or, if j comes later,
// the place that was found.
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
