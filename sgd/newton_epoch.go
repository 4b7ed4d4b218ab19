package sgd

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/newton"
)

// begin starts an epoch.
func (e *Newton) begin() {
	e.done = 0
	e.gram, _ = e.plan.gram(e.squared, e.epoch) // cannot fail: resolveNewton tried all norms
	clear(e.hist[:])
	e.jump = jump{factor: e.plan.jump(e.epoch)}
	e.wander.begin()
	e.blocks.begin()
}

// end closes an epoch with its releases.
func (e *Newton) end(n dp.Noise) error {
	p, d := &e.plan, float64(len(e.w))
	slots := float64(p.steps(e.epoch) * p.batch(e.epoch))
	norms := e.hist.Release(n, "newton/hist", float64(p.HistogramNoise*p.fewer(e.epoch)), e.params.Bits())
	upper, err := e.gram.Release(n, "newton/gram")
	if err != nil {
		return err
	}
	e.before = 0
	if len(e.jump.recent) >= recentLeast {
		e.before = median(e.jump.recent)
	}
	// Skip an epoch without records: it teaches nothing, and its R², the smallest possible, would give it the largest
	// weight.
	if !norms.Empty() {
		root := slots / e.gram.SD
		weight := float64(root * root)
		for i, v := range upper {
			e.matrix[i] += float64(weight * (v / slots))
		}
		e.weight += weight
		missed := norms.Missed(e.squared)
		e.missed += float64(weight * (missed / slots))

		valid := norms.Valid(slots)
		trace := norms.Trace(e.squared, valid, missed)
		there := valid
		if share := e.seen.share(); share < few {
			// With few rows the histogram overestimates their number. Rows would then be shortened so much that the
			// noise of the matrix hides them.
			there = min(valid, float64(slots*share))
		}
		squared, _ := norms.Radius(there, float64(p.RadiusNoise*p.fewer(e.epoch)), 0.5)
		if *e.cfg.Intercept {
			e.recentre(upper, valid, squared)
			trace += float64(valid * float64(e.constant*e.constant))
		}
		e.squared = squared
		trace /= slots
		ridge := min(float64(1.35*math.Sqrt(d/e.weight))+float64(0.25*e.missed)/e.weight, trace)
		scaled := make([]float64, len(e.matrix))
		for i, v := range e.matrix {
			scaled[i] = v / e.weight
		}
		e.white = newton.Whiten(scaled, len(e.w), ridge, trace)
		signal := max(e.white.Signal()*slots/valid, 0.05)
		e.zeta = newton.Clip(float64(e.zeta*math.Sqrt(signal/e.signal)), zetaLeast, zetaMost)
		e.before = float64(e.before * math.Sqrt(signal/e.signal))
		e.signal = signal
	}
	if e.epoch >= 3 {
		e.unsettled = false
	}
	e.epoch++
	e.begin()
	return nil
}

// sinceRestart returns the number of gradient steps since the last hard restart.
func (e *Newton) sinceRestart() uint64 {
	steps := e.done
	for k := range e.epoch {
		steps += e.plan.steps(k)
	}
	return steps
}
