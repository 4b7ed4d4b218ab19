package sgd

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mathext"
)

// Expect returns the outlook after iteration ≥ 1 gradient steps. It ignores the first 3/eta0 steps or so, in which the
// iterate approaches its target.
//
// Source: the noise of an average of clipped iterates is the noise of the gradient sums, divided by the curvature that
// clipping leaves; docs/theory/sgd.md.
func (e *AMB) Expect(iteration uint64) Outlook {
	d := float64(len(e.w))
	size, zeta, curvature := clippedMoments(len(e.w), e.cfg.ThresholdQuantile)
	v := noiseShape(e.plan.Factorization, e.factor.ColNorm())
	noise := e.plan.GradientNoise / e.factor.ColNorm() / e.plan.One * zeta

	f := e.cfg.Tail
	if iteration < young {
		f = 0.5
	}
	first := uint64(0)
	for p := uint64(1); float64(p) <= f*float64(iteration); p *= 2 {
		first = p
	}
	// Σ 1/b and Σ 1/b² over the steps averaged, by ranges of equal batches.
	var one, two float64
	for n := first; n < iteration; {
		b := e.batch(n)
		last := n + 1
		for step := uint64(1); last < iteration && e.batch(last) == b; step *= 2 {
			for last+step > iteration || e.batch(last+step-1) != b {
				step /= 2
			}
			last += step
		}
		one += float64(last-n) / float64(b)
		two += float64(last-n) / float64(b) / float64(b)
		n = last
	}
	steps := float64(iteration - first)
	scale := 1 / (2 * steps * steps * curvature * curvature)
	return Outlook{
		Iteration: iteration,
		Slots:     e.slots(iteration) + e.before(iteration),
		Sampling:  size * d * one * scale,
		Privacy:   noise * noise * v.average * d * two * scale,
	}
}

// Pace says whether the steps of a regression suit features of a guessed condition number.
type Pace struct {
	// Condition is the guess: the largest eigenvalue of the features' second moment divided
	// by the smallest one that matters.
	Condition float64 `json:"condition"`
	// Batch and Search are the numbers of slots of a step and of a search. StepSize is η of the first steps.
	Batch    uint64  `json:"batch"`
	Search   uint64  `json:"search"`
	StepSize float64 `json:"step_size"`
	// Least is the batch size below which iterates diverge. Advised is the batch size that a configured 0 would choose.
	Least   uint64 `json:"least_batch"`
	Advised uint64 `json:"advised_batch"`
	// Settling is the number of steps after which the coefficient along the smallest eigenvalue has gone 95 % of its
	// way, provided that Curvature is the largest eigenvalue. It accounts for the share of the curvature that clipping
	// leaves.
	Settling uint64 `json:"settling_steps"`
}

// Pace returns how the steps suit features of the given condition number, at least 1. Above 1 the result is a rule of
// thumb: it assumes that the noise that a direction tolerates grows as the square root of its eigenvalue.
func (e *AMB) Pace(condition float64) Pace {
	p := &e.plan
	least, want := p.sizes(&e.cfg, p.single(), e.params.Adjacency.Factor(), e.factor.ColNorm(), condition)
	rate := p.rate(e.cfg.Eta0, p.Batch)
	_, _, left := clippedMoments(len(e.w), e.cfg.ThresholdQuantile)
	return Pace{
		Condition: condition, Batch: p.Batch, Search: p.Search, StepSize: rate,
		Least: uint64(math.Ceil(least)), Advised: uint64(math.Ceil(want)),
		Settling: uint64(math.Ceil(3 * condition / (rate * p.Curvature * left))),
	}
}

// before returns the number of slots of the searches before the end of gradient step n.
func (e *AMB) before(n uint64) uint64 {
	switch e.cfg.Clip {
	case "track":
		return e.plan.Search
	case "bisect", "scan":
		return n * e.plan.Search
	}
	return 0
}

// clippedMoments takes x ~ N(0, I) in d dimensions, r ~ N(0, 1) and v = |r|‖x‖. It returns the clip norm ζ at the
// q-quantile of v, size = E min(v, ζ)²/d, and the curvature E[1{v ≤ ζ}‖x‖²]/d that clipping leaves.
func clippedMoments(d int, q float64) (size, zeta, curvature float64) {
	// Values of ‖x‖ at the middles of equally likely parts.
	const parts = 400
	norms := make([]float64, parts)
	for i := range norms {
		norms[i] = math.Sqrt(2 * mathext.GammaIncRegInv(float64(d)/2, (float64(i)+0.5)/parts))
	}
	inside := func(zeta float64) (p float64) {
		for _, s := range norms {
			p += math.Erf(zeta/s/math.Sqrt2) / parts
		}
		return p
	}
	low, high := 0.0, 1.0
	for inside(high) < q {
		high *= 2
	}
	for range 60 {
		if zeta = (low + high) / 2; inside(zeta) < q {
			low = zeta
		} else {
			high = zeta
		}
	}
	for _, s := range norms {
		c := zeta / s
		within := math.Erf(c / math.Sqrt2)
		// E min(|r|, c)² = P(|r| ≤ c) − 2cφ(c) + c²P(|r| > c)
		square := within - 2*c*math.Exp(-c*c/2)/math.Sqrt(2*math.Pi) + c*c*(1-within)
		size += s * s * square / parts / float64(d)
		curvature += s * s * within / parts / float64(d)
	}
	return size, zeta, curvature
}

// Warnings describes settings that are valid but probably a mistake.
func (e *AMB) Warnings() []string {
	var all []string
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	c, alpha := &e.cfg, 1/e.plan.single()
	if c.Curvature == 0 {
		warn(
			"curvature is not set: the square of the largest norm, %.3g, is used. That is usually 10 to 3000 times "+
				"too large, and then the coefficients barely move. Set curvature to the largest eigenvalue of the "+
				"features' second moment",
			e.plan.Curvature)
	}
	if c.Clip == "scan" {
		warn(
			"clip \"scan\" is the published search: it overshoots, and it fails in small batches. Use \"track\" or " +
				"\"bisect\"")
	}
	if c.Clip != "fixed" && c.Clip != "scan" && c.ThresholdQuantile > 0.95 {
		warn("threshold_quantile %g is too near to 1: the clip norm can only grow", c.ThresholdQuantile)
	}
	if least := 12 * c.Kappa * alpha / math.Sqrt(c.Fraction); c.Clip == "track" && float64(e.plan.Batch) < least*0.99 {
		warn(
			"batches of %d slots are too small: the noise of the count moves the clip norm by more than a tenth in "+
				"each step. Use at least %.0f", e.plan.Batch, math.Ceil(least))
	}
	if c.Growth == "double" && *c.Restart {
		warn("growth \"double\" is for data that do not change, restart is for data that do: use only one of them")
	}
	return all
}
