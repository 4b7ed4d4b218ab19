package sgd

import (
	"errors"
	"math"
	"math/bits"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// ladder is the set of values that a private search can return:
// γ_i = top·2^(i−rungs), i = 0 … rungs.
type ladder struct {
	top   float64
	rungs int
}

func (l ladder) rung(i int) float64 { return math.Ldexp(l.top, i-l.rungs) }

// index returns the smallest i with u ≤ γ_i, rungs+1 if there is none.
func (l ladder) index(u float64) int {
	ratio := u / l.top
	switch {
	case ratio > 1:
		return l.rungs + 1
	case ratio <= 0: // also where the quotient is below all float64
		return 0
	}
	fraction, e := math.Frexp(ratio)
	if fraction == 0.5 { // a power of two
		e--
	}
	return max(e+l.rungs, 0)
}

// searches counts the questions of a binary search among the rungs.
func (l ladder) searches() int { return bits.Len(uint(l.rungs)) }

// histogram counts records by rung: bins 0 … rungs, then those above the top, then null records.
// A search keeps nothing else of the records.
type histogram []int64

func (l ladder) histogram() histogram { return make(histogram, l.rungs+3) }

func (h histogram) nulls() *int64 { return &h[len(h)-1] }

// counting says how counts become integers: a record is unit lattice steps, a null record null
// lattice steps, and the noise has a standard deviation of sd steps.
//
// Privacy: a count moves by at most unit between neighbours, for 0 ≤ null ≤ unit.
type counting struct {
	unit, null int64
	sd         float64
}

// scan releases the first rung with at least threshold records up to it. It asks the rungs, all
// but the last, in turn. It returns the first one whose noisy count reaches the threshold, the
// last rung if none does.
//
// Privacy: at most rungs counts of sensitivity unit, each with noise of standard deviation sd:
// μ = unit·√rungs/sd, under both adjacencies.
// Source: Varshney, Thakurta, Jain (2022), "(Nearly) Optimal Private Linear Regression for
// Sub-Gaussian Data via Adaptive Clipping", DP-STAT, which asks for one count more than needed.
// Null records count as 0.
func (l ladder) scan(h histogram, c counting, threshold float64, row dp.Row) int {
	var count int64
	for i := range l.rungs {
		count += h[i]
		if reached(count*c.unit+dp.RoundAt(row, i, c.sd), c, threshold) {
			return i
		}
	}
	return l.rungs
}

// bisect does the same as scan by binary search: rungs+1 answers in ⌈log₂(rungs+1)⌉ counts.
//
// Privacy: μ = unit·√searches/sd.
func (l ladder) bisect(h histogram, c counting, threshold float64, row dp.Row) int {
	return l.locate(h, c, threshold, row).place
}

// locate is bisect, and also returns what else its counts say.
func (l ladder) locate(h histogram, c counting, threshold float64, row dp.Row) found {
	return h.search(l.rungs+1, h.upTo, c, threshold, row, 0)
}

// found is what a binary search finds.
type found struct {
	place int
	// far is Σ((count − threshold)/sd)² over the noisy counts. With null records alone, each
	// counted as the threshold's share of a record, it is χ² with as many degrees of freedom
	// as counts.
	far float64
	// counts are the noisy ones.
	counts []upTo
}

// upTo is a noisy count, in lattice steps, of the records up to a place.
type upTo struct {
	place int
	count float64
}

// search bisects among so many places for the first one with at least threshold records up to
// it. It uses the draws of row from the one after asked on.
func (h histogram) search(places int, records func(place int) int64, c counting, threshold float64, row dp.Row, asked int) found {
	low, high := 0, places-1
	var f found
	for i := asked; low < high; i++ {
		middle := (low + high) / 2
		count := records(middle)*c.unit + *h.nulls()*c.null + dp.RoundAt(row, i, c.sd)
		if reached(count, c, threshold) {
			high = middle
		} else {
			low = middle + 1
		}
		z := (float64(count) - float64(threshold*float64(c.unit))) / c.sd
		f.far += float64(z * z)
		f.counts = append(f.counts, upTo{middle, float64(count)})
	}
	f.place = low
	return f
}

func (h histogram) upTo(rung int) int64 {
	var count int64
	for _, n := range h[:rung+1] {
		count += n
	}
	return count
}

func reached(count int64, c counting, threshold float64) bool {
	return float64(count) >= float64(threshold*float64(c.unit))
}

// statLaw returns the distribution of a private search for the scale of values: the
// probabilities of rung 0 … rungs of the ladder top·2^(i−rungs). Thresholds and noise deviations
// sd are in records. method is "scan" or "bisect". Values of NaN are null records, which add null
// to a count of bisect.
func statLaw(method string, values []float64, rungs int, top, threshold, null, sd float64) ([]float64, error) {
	if method != "scan" && method != "bisect" {
		return nil, errors.New("method must be \"scan\" or \"bisect\"")
	}
	if !(rungs >= 1 && rungs <= maxRungs && vector.Positive(top) && vector.Positive(sd)) {
		return nil, errors.New("rungs, top and sd must be positive")
	}
	l := ladder{top, rungs}
	counts := make([]float64, rungs+1)
	for _, u := range values {
		if math.IsNaN(u) {
			if method == "bisect" {
				for i := range counts {
					counts[i] += null
				}
			}
			continue
		}
		for i := l.index(u); i <= rungs; i++ {
			counts[i]++
		}
	}
	reach := func(i int) float64 { return math.Erfc((threshold-counts[i])/sd/math.Sqrt2) / 2 }
	law := make([]float64, rungs+1)
	if method == "scan" {
		rest := 1.0
		for i := range rungs {
			law[i] = rest * reach(i)
			rest *= 1 - reach(i)
		}
		law[rungs] = rest
		return law, nil
	}
	var walk func(low, high int, p float64)
	walk = func(low, high int, p float64) {
		if low == high {
			law[low] += p
			return
		}
		middle := (low + high) / 2
		walk(low, middle, p*reach(middle))
		walk(middle+1, high, p*math.Erfc((counts[middle]-threshold)/sd/math.Sqrt2)/2)
	}
	walk(0, rungs, 1)
	return law, nil
}

// maxRungs is the largest number of rungs: lattices and scales range over 2^±500.
const maxRungs = 10000
