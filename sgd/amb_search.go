package sgd

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/ladder"
)

// countInSearch adds a record to the histogram of a search.
func (e *AMB) countInSearch(r, square float64) {
	u := math.Abs(r)
	if e.cfg.Value == "gradnorm" {
		u *= math.Sqrt(square)
	}
	if math.IsInf(u, 0) {
		e.nulls++
		return
	}
	e.histogram[e.ladder.Index(u)]++
}

// ErrDiverged is returned by Close if the clip norm has stayed near its upper bound for 64 steps: the iterates diverge,
// or most gradients exceed that bound. It depends on released numbers only.
var ErrDiverged = errors.New("the regression diverges: the clip norm has been near its upper bound for " +
	"64 steps; raise curvature or batch, or scale the columns down")

const ceilingMost = 64

// search ends a step that searches for the clip norm.
func (e *AMB) search(n dp.Noise) {
	*e.histogram.Nulls() = e.nulls
	row := n.Row("ambssgd/stat", e.histogram)
	find := e.ladder.Bisect
	if e.cfg.Clip == "scan" {
		find = e.ladder.Scan
	}
	rung := find(e.histogram, ladder.Counting{Unit: e.plan.Unit, Null: e.plan.Null, SD: e.plan.SearchNoise},
		e.plan.Threshold, row)
	e.setZeta(float64(e.plan.Multiplier*e.ladder.Rung(rung)), rung == e.ladder.Rungs)
}

// nearCeiling is the fraction of the upper bound from which a clip norm counts as being at the bound. It is less than 1
// because the noise of counts moves the clip norm.
const nearCeiling = 0x1p-8

// setZeta sets the clip norm of the next gradient step. top says that the search stopped at its largest value. Then the
// right clip norm may be larger.
func (e *AMB) setZeta(zeta float64, top bool) {
	e.zeta = min(max(zeta, e.plan.ZetaLow), e.plan.ZetaHigh)
	if top || e.zeta >= e.plan.ZetaHigh*nearCeiling {
		e.ceiling++
	} else {
		e.ceiling = 0
	}
}
