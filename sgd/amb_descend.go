package sgd

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/newton"
)

// descend ends a gradient step of b slots.
func (e *AMB) descend(n dp.Noise, b uint64) {
	e.used = e.zeta
	if e.cfg.Clip == "track" {
		count := e.gradients.inside*e.plan.Unit + e.nulls*e.plan.Null
		row := n.Row("ambssgd/clip", []int64{count})
		part := float64(count+dp.RoundAt(row, 0, e.plan.CountNoise)) / float64(float64(e.plan.Unit)*float64(b))
		part = min(max(part, 0), 1)
		e.setZeta(float64(e.zeta*newton.Exp(float64(-e.cfg.Kappa*(part-e.cfg.ThresholdQuantile)))), false)
	}

	sum := e.gradients.integers()
	row := n.Row("ambssgd/grad", sum)
	r, predicted := 1.0, []float64(nil)
	if e.shaped {
		r, predicted = e.shaper.Predict(e.predict), e.predict
	}
	dp.RoundRow(e.noise, row, []float64{e.plan.GradientNoise}, predicted, r)
	e.shaper.Push(e.noise)

	step := float64(e.plan.rate(e.cfg.Eta0, b)*e.used) / float64(float64(b)*e.plan.One)
	next := e.mean // scratch
	var square float64
	for j, w := range e.w {
		next[j] = w - float64(step*float64(sum[j]+e.noise[j]))
		square += float64(next[j] * next[j])
	}
	if !(square <= math.MaxFloat64) {
		return // out of range: keep the last iterate
	}
	if norm := math.Sqrt(square); e.plan.Radius > 0 && norm > e.plan.Radius {
		for j := range next {
			next[j] = float64(next[j] * (e.plan.Radius / norm))
		}
	}
	copy(e.w, next)
}

// restart discards the averages. New ones begin with the next iterate.
func (e *AMB) restart() {
	e.began = e.iteration - 1
	e.average.reset()
	e.drift.reset()
	if e.batches != nil {
		e.batches.reset()
	}
}
