package sgd

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/internal/newton"
)

// Opened returns public numbers of the open step, which follow from earlier releases. quantile is the quantile that the
// step searches for, 0 in a gradient step. slots is its number of slots. squared is R² in units of the squared bound:
// the squared norm to which the rows of the open epoch's matrix are shortened.
func (e *Newton) Opened() (quantile float64, slots uint64, squared float64) {
	switch e.phase {
	case searchNorm:
		quantile = normQuantile
	case searchMedian:
		quantile = 0.5
	case searchScale:
		quantile = e.scaleQuantile()
	}
	return quantile, e.size(), e.squared
}

// EpochSteps returns the number of steps of the open epoch. Its last step releases the epoch's histogram and matrix.
func (e *Newton) EpochSteps() uint64 { return e.plan.steps(e.epoch) }

// scaleQuantile returns the share of the records at which the search for the norm of the gradients stops.
func (e *Newton) scaleQuantile() float64 {
	if e.mode {
		return modeQuantile
	}
	return scaleQuantile
}

// These ladders hold the candidate values of two searches: for ‖x‖², and for |r|‖x‖ (|r|‖s‖ with an intercept).
var (
	normLadder  = ladder.Ladder{Top: 1, Rungs: 32}
	scaleLadder = ladder.Ladder{Top: 0x1p16, Rungs: 32}
)

// These are the shares of the records at which the searches stop.
const (
	normQuantile  = 0.75
	scaleQuantile = 0.6
	// modeQuantile replaces scaleQuantile if the median is a mode. Many residuals are then nearly 0, and a clip norm
	// chosen by them would hide all others. The counts of a search have noise of 1/15 of the slots, so 0.8 is three
	// deviations away from all records.
	modeQuantile = 0.8
)

// A search is believed if its counts are far from the threshold. farEnough is the limit for the sum of squares of six
// distances, in standard deviations of the noise: null records alone exceed it once in 2·10⁶ searches. A search that is
// not believed is repeated as soon as there certainly are records. The repeated search takes up to searchMost times as
// many slots, according to the share of slots with records. After triesMost repetitions the result is believed.
const (
	farEnough  = 40
	searchMost = 16
	triesMost  = 7
)

// find ends a search.
func (e *Newton) find(n dp.Noise) {
	p := &e.plan
	if p.Person != nil {
		// Searches take columns of C too, because a person's separation counts all steps.
		e.draw(n, make([]int64, len(e.w)))
	}
	if e.phase == searchMedian {
		median, mode := e.findMedian(n)
		e.w[len(e.w)-1] += median / e.constant
		e.mode = mode && !e.asPublished
		e.phase = searchScale
		return
	}
	*e.search.Nulls() = e.nulls
	row := n.Row("newton/boot", e.search)
	ask := func(l ladder.Ladder, null int64, quantile float64) (found float64, believed bool) {
		f := l.Locate(e.search, ladder.Counting{Unit: p.Unit, Null: null, SD: p.SearchNoise},
			quantile*float64(e.size()), row)
		if believed = f.Far >= farEnough || e.mode; !believed && e.tries < triesMost {
			return 1, false
		}
		return l.Rung(f.Place), believed
	}
	if e.phase == searchNorm {
		e.squared, e.believed = ask(normLadder, p.NullNorm, normQuantile)
		e.phase = searchScale
		if last := len(e.w) - 1; *e.cfg.Intercept {
			e.constant = constantFor(e.squared)
			e.w[last] /= e.constant
			e.phase = searchMedian
		}
		return
	}
	quantile := e.scaleQuantile()
	scale, believed := ask(scaleLadder, int64(math.Floor(quantile*float64(p.Unit)+0.5)), quantile)
	e.mode = false
	if e.believed = e.believed && believed; e.believed {
		e.tries = 0
	} else {
		e.seen = presence{}
	}
	norm := math.Sqrt(2 * e.squared)
	e.zeta = scale / norm
	e.white = newton.Uniform(len(e.w), norm)
	e.signal = 0.5
	e.phase = descent
	e.begin()
}
