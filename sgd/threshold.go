package sgd

import (
	"errors"
	"math"
	"math/bits"

	"streamdp/dp"
)

// ladder is the set of values that a private search can return:
// γ_i = top·2^(i−rungs), i = 0 … rungs.
type ladder struct {
	top   float64
	rungs int
}

func (l ladder) rung(i int) float64 { return math.Ldexp(l.top, i-l.rungs) }

// index returns the smallest i with u ≤ γ_i, rungs+1 where there is none.
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

// histogram counts records by rung: bins 0 … rungs, then those above the top,
// then null records. It is all that a search keeps of the records.
type histogram []int64

func (l ladder) histogram() histogram { return make(histogram, l.rungs+3) }

func (h histogram) nulls() *int64 { return &h[len(h)-1] }

// counting is how counts become integers: unit lattice steps a record, null a
// null record, noise of deviation sd steps.
//
// Privacy: a count moves by at most unit between neighbours, for 0 ≤ null ≤ unit.
type counting struct {
	unit, null int64
	sd         float64
}

// scan releases the first rung up to which at least threshold records lie: it
// asks the rungs but the last in turn and returns the first whose noisy count
// reaches the threshold, the last if none does.
//
// Privacy: at most rungs counts of sensitivity unit, each with noise of deviation
// sd: μ = unit·√rungs/sd, under both adjacencies.
// Source: Varshney, Thakurta, Jain (2022), "(Nearly) Optimal Private Linear
// Regression for Sub-Gaussian Data via Adaptive Clipping", DP-STAT, which asks
// one count too many. Null records count as 0.
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

// bisect is scan by binary search: rungs+1 answers in ⌈log₂(rungs+1)⌉ counts.
//
// Privacy: μ = unit·√searches/sd.
func (l ladder) bisect(h histogram, c counting, threshold float64, row dp.Row) int {
	rung, _ := l.locate(h, c, threshold, row)
	return rung
}

// locate is bisect that also returns Σ((count − threshold)/sd)² over the noisy counts:
// for null records, each of them a threshold's part of a record, a χ² of that many
// degrees.
func (l ladder) locate(h histogram, c counting, threshold float64, row dp.Row) (rung int, far float64) {
	low, high := 0, l.rungs
	for i := 0; low < high; i++ {
		middle := (low + high) / 2
		count := h.upTo(middle)*c.unit + *h.nulls()*c.null + dp.RoundAt(row, i, c.sd)
		if reached(count, c, threshold) {
			high = middle
		} else {
			low = middle + 1
		}
		z := (float64(count) - float64(threshold*float64(c.unit))) / c.sd
		far += float64(z * z)
	}
	return low, far
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

// StatLaw returns the probabilities with which a private search for the scale of
// values returns rung 0 … rungs of the ladder top·2^(i−rungs), for thresholds and
// noise deviations sd in records. method is "scan" or "bisect"; values of NaN are
// null records, which add null to a count of bisect.
func StatLaw(method string, values []float64, rungs int, top, threshold, null, sd float64) ([]float64, error) {
	if method != "scan" && method != "bisect" {
		return nil, errors.New("method must be \"scan\" or \"bisect\"")
	}
	if !(rungs >= 1 && rungs <= maxRungs && positive(top) && positive(sd)) {
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

// maxRungs bounds a ladder: 2^±500 is the range of lattices and scales.
const maxRungs = 10000
