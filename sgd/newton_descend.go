package sgd

import (
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// The rule by which ζ follows the norms of the gradients.
const (
	countedPart  = 0.27 // share of ζ below which a gradient is counted
	countedShare = 0.53 // share of the records that are counted when ζ is right
	gain         = 0.7
	few          = 0.4 // with a smaller share of slots that hold records, steps become smaller
	zetaLeast    = 0x1p-40
	zetaMost     = 0x1p32
)

// descend ends a gradient step of b slots.
func (e *Newton) descend(n dp.Noise, b float64) error {
	p := &e.plan
	e.flush()
	e.used = e.zeta
	unit := float64(p.Unit)
	counts := []int64{e.gradients.inside * p.Unit, e.nulls * p.Unit}
	row := n.Row("newton/count", counts)
	counted := float64(counts[0]+dp.RoundAt(row, 0, p.CountNoise)) / unit
	nulls := float64(counts[1]+dp.RoundAt(row, 1, p.NullNoise)) / unit

	sum := e.gradients.integers()
	e.draw(n, sum)
	u := e.total
	for j, k := range sum {
		u[j] = float64(float64(k+e.noise[j]) * (e.zeta / p.One))
	}

	e.iteration++
	there := e.seen.observe(b, b-nulls, p.NullNoise/unit)
	switch {
	case there && !e.believed && e.tries < triesMost:
		e.tries++
		e.repeats++
		e.forget()
		return nil
	case !there:
		e.gram.Drop()
		return nil
	}
	e.believed, e.tries = true, 0
	rate, gain, share := p.rate(e.epoch), float64(gain), e.seen.share()
	if share >= few {
		nulls = newton.Clip(nulls, 0, b)
	} else {
		// With few records the noise hides them, so take smaller steps, which average over more records. Do not clip
		// the count of nulls then: its bias would exceed the number of records.
		rate *= float64(share / few * (share / few))
		gain *= share / few
	}

	// The blocks take W⁻¹u, in the space of the features. wander takes y = w + Wu/b.
	e.white.Unapply(e.whole, u)
	e.blocks.add(e.done/p.stretch(e.epoch), b, e.w, e.whole)
	e.white.Apply(e.mean, u)
	for j, v := range e.mean {
		v /= b
		e.mean[j] = e.w[j] + v
		e.w[j] += float64(rate * v)
	}
	e.project(e.w)

	part := newton.Clip((counted+float64(countedShare*nulls))/b, 0, 1)
	e.zeta = newton.Clip(float64(e.zeta*newton.Exp(float64(-gain*(part-countedShare)))), zetaLeast, zetaMost)

	e.done++
	e.gram.Seal()
	for j, c := range e.norms {
		e.hist[j] += c
	}
	drifted := e.wander.observe(e.mean, e.white)
	// While an epoch has too few clip norms for a median, only a rise too large to be chance counts as a jump.
	early := len(e.jump.recent) < recentLeast && e.before > 0 && e.zeta > 8*e.before
	switch jumped := e.jump.observe(e.zeta) || early; {
	case !vector.Finite(e.w) || e.zeta == zetaMost || jumped && e.unsettled:
		e.abandon()
		return nil
	case jumped:
		recent := e.recent(false)
		if len(recent) == 0 && e.epoch > 0 {
			recent = e.recent(true)
		}
		if len(recent) > 0 {
			recent.estimate(e.w, e.white, nil)
			e.project(e.w)
		}
		e.restart()
		return nil
	case drifted != nil:
		copy(e.w, drifted)
		e.project(e.w)
		e.wander.reset()
		e.blocks.reset()
		e.drifts++
	}
	if e.done == p.steps(e.epoch) {
		return e.end(n)
	}
	return nil
}

// draw draws the noise of a step's gradients, correlated with the noise of earlier steps, into e.noise. hidden are the
// integers that the noise will hide.
func (e *Newton) draw(n dp.Noise, hidden []int64) {
	row := n.Row("newton/grad", hidden)
	r := e.shaper.Predict(e.predict)
	dp.RoundRow(e.noise, row, []float64{e.plan.GradientNoise}, e.predict, r)
	e.shaper.Push(e.noise)
}

// drawn returns the number of steps that have used a column of C.
func (e *Newton) drawn() uint64 {
	if e.plan.Person != nil {
		return e.step
	}
	return e.iteration
}

// project shortens the features' coefficients of w to the radius, if the plan has one.
func (e *Newton) project(w []float64) {
	if *e.cfg.Intercept {
		w = w[:len(w)-1]
	}
	if e.plan.Radius > 0 {
		vector.Shorten(w, e.plan.Radius*e.cfg.ClipX)
	}
}
