// Package ladder searches privately for a scale: for the first number top·2^(i−rungs) that is an upper bound on the
// values of enough records. A search reads noisy counts of a histogram, in turn or by bisection, and uses nothing else
// of the records.
package ladder

import (
	"math"
	"math/bits"

	"github.com/streamdp/streamdp/dp"
)

// Ladder is the set of values that a private search can return:
// γ_i = Top·2^(i−Rungs), i = 0 … Rungs.
type Ladder struct {
	Top   float64
	Rungs int
}

// Rung returns γ_i.
func (l Ladder) Rung(i int) float64 { return math.Ldexp(l.Top, i-l.Rungs) }

// Index returns the smallest i with u ≤ γ_i, or Rungs+1 if there is none.
func (l Ladder) Index(u float64) int {
	ratio := u / l.Top
	switch {
	case ratio > 1:
		return l.Rungs + 1
	case ratio <= 0: // also true if the quotient underflows to 0
		return 0
	}
	fraction, e := math.Frexp(ratio)
	if fraction == 0.5 { // a power of two
		e--
	}
	return max(e+l.Rungs, 0)
}

// Searches returns the number of counts that a binary search among the rungs reads.
func (l Ladder) Searches() int { return bits.Len(uint(l.Rungs)) }

// Histogram counts records by rung. It has bins 0 … Rungs, then a bin for records above the top, then a bin for null
// records. A search keeps nothing else of the records.
type Histogram []int64

// Histogram returns an empty histogram of the ladder.
func (l Ladder) Histogram() Histogram { return make(Histogram, l.Rungs+3) }

// Nulls returns the bin of the null records.
func (h Histogram) Nulls() *int64 { return &h[len(h)-1] }

// Counting says how counts become integers: a record counts as Unit lattice steps, a null record as Null lattice steps,
// and the noise has a standard deviation of SD lattice steps.
//
// Privacy: a count differs by at most Unit between neighbours, for 0 ≤ Null ≤ Unit.
type Counting struct {
	Unit, Null int64
	SD         float64
}

// Scan returns a private estimate of the first rung such that at least `threshold` records are at or below it. It
// compares the noisy counts of all rungs except the last, in turn, and returns the first rung whose count reaches the
// threshold, or the last rung if none does.
//
// Privacy: at most Rungs counts of sensitivity Unit, each with noise of standard deviation SD: μ = Unit·√Rungs/SD,
// under both adjacencies.
// Source: Varshney, Thakurta, Jain (2022), "(Nearly) Optimal Private Linear Regression for Sub-Gaussian Data via
// Adaptive Clipping", DP-STAT. DP-STAT reads one count more than needed, and counts null records as 0.
func (l Ladder) Scan(h Histogram, c Counting, threshold float64, row dp.Row) int {
	var count int64
	for i := range l.Rungs {
		count += h[i]
		if reached(count*c.Unit+dp.RoundAt(row, i, c.SD), c, threshold) {
			return i
		}
	}
	return l.Rungs
}

// Bisect does what Scan does, but by binary search: it reads ⌈log₂(Rungs+1)⌉ counts to find one of Rungs+1 rungs.
//
// Privacy: μ = Unit·√Searches/SD.
func (l Ladder) Bisect(h Histogram, c Counting, threshold float64, row dp.Row) int {
	return l.Locate(h, c, threshold, row).Place
}

// Locate does what Bisect does, and also returns the noisy counts and their distance from the threshold.
func (l Ladder) Locate(h Histogram, c Counting, threshold float64, row dp.Row) Found {
	return h.Search(l.Rungs+1, h.UpTo, c, threshold, row, 0)
}

// Found is the result of a binary search.
type Found struct {
	Place int
	// Far is Σ((count − threshold)/SD)² over the noisy counts. Suppose that all records are null records, and Null is
	// such that every count equals the threshold. Then Far is distributed as χ² with one degree of freedom for each
	// count.
	Far float64
	// Answers are the noisy counts.
	Answers []Answer
}

// Answer is a noisy count, in lattice steps, of the records up to a place.
type Answer struct {
	Place int
	Count float64
}

// Search finds by bisection the first place such that at least `threshold` records are at or below it. places is the
// number of places. The first `asked` draws of row are already used; Search uses the draws after them.
func (h Histogram) Search(places int, records func(place int) int64, c Counting, threshold float64, row dp.Row,
	asked int) Found {
	low, high := 0, places-1
	var f Found
	for i := asked; low < high; i++ {
		middle := (low + high) / 2
		count := records(middle)*c.Unit + *h.Nulls()*c.Null + dp.RoundAt(row, i, c.SD)
		if reached(count, c, threshold) {
			high = middle
		} else {
			low = middle + 1
		}
		z := (float64(count) - float64(threshold*float64(c.Unit))) / c.SD
		f.Far += float64(z * z)
		f.Answers = append(f.Answers, Answer{middle, float64(count)})
	}
	f.Place = low
	return f
}

// UpTo returns the number of records up to a rung, without noise.
func (h Histogram) UpTo(rung int) int64 {
	var count int64
	for _, n := range h[:rung+1] {
		count += n
	}
	return count
}

func reached(count int64, c Counting, threshold float64) bool {
	return float64(count) >= float64(threshold*float64(c.Unit))
}

// MaxRungs is the largest number of rungs. More are never needed, because lattices and scales range over 2^±500.
const MaxRungs = 10000
