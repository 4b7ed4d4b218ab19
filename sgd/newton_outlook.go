package sgd

import (
	"fmt"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/matfact"
)

// UsefulSteps is the number of gradient steps before which the estimate of a [Newton] is not yet useful: it knows the
// space of the features only by a first guess.
const UsefulSteps = 30

// Course describes the progress of a [Newton] after some gradient steps. It assumes a stream that gives no reason to
// repeat a search or to restart.
type Course struct {
	Iteration uint64 `json:"iteration"`
	Slots     uint64 `json:"slots"`
	Epoch     int    `json:"epoch"` // epoch of the last step
	Batch     uint64 `json:"batch"` // number of slots of the last step
}

// Course returns the estimator's progress after the given number of gradient steps.
func (p *NewtonPlan) Course(iteration uint64) Course {
	c := Course{Iteration: iteration, Slots: p.Searches() * p.Search, Batch: p.batch(0)}
	for k := 0; iteration > 0; k++ {
		n := min(iteration, p.steps(k))
		c.Epoch, c.Batch = k, p.batch(k)
		c.Slots += n * p.batch(k)
		iteration -= n
	}
	return c
}

// within returns the number of gradient steps that fit the given number of slots.
func (p *NewtonPlan) within(slots uint64) (steps uint64) {
	if slots < p.Searches()*p.Search {
		return 0
	}
	slots -= p.Searches() * p.Search
	for k := 0; ; k++ {
		n := min(p.steps(k), slots/p.batch(k))
		steps += n
		slots -= n * p.batch(k)
		if n < p.steps(k) {
			return steps
		}
	}
}

// Expect returns the outlook after the given number of slots of a stream without drift: the parts of the estimate's
// expected excess risk ½E(⟨x, θ̂⟩−⟨x, w*⟩)², divided by the variance of the residuals, for Gaussian features and
// residuals. The features may have any second moment, because they are whitened. Expect ignores three effects: the
// larger errors of the first steps (all steps up to [UsefulSteps]), the noise in the matrix, and the improvement by the
// estimate's gains.
//
// Source: the estimate is a Newton step by the gradient sums of its epochs, so it has their noise; docs/theory/sgd.md.
func (e *Newton) Expect(slots uint64) Outlook {
	p, d := &e.plan, float64(len(e.w))
	o := Outlook{Iteration: p.within(slots)}
	if o.Iteration == 0 {
		return o
	}
	last := p.Course(o.Iteration)
	o.Slots = last.Slots
	// Number of steps of the epochs that the estimate uses, and their slots.
	most := 2
	if last.Epoch >= 5 {
		most = 3
	}
	begin := uint64(0)
	for k := range max(last.Epoch+1-most, 0) {
		begin += p.steps(k)
	}
	first := p.Course(begin)
	steps, total := int(o.Iteration-begin), float64(last.Slots-first.Slots)

	_, zeta, _ := clippedMoments(len(e.w), countedShare)
	zeta /= countedPart
	noise := p.GradientNoise / p.One * zeta
	o.Sampling = d / (2 * total)
	o.Privacy = noise * noise * d * windowNoise(e.factor.Stored().Bands, steps) / (2 * total * total)
	return o
}

// windowNoise returns the variance of the sum of n successive entries of a long sequence C⁻¹Z with banded C⁻¹, divided
// by the variance of an entry of Z.
func windowNoise(bands []matfact.Fixed, n int) float64 {
	// sums[k] = r_0 + … + r_{k−1}, where r = (1, −m_1, −m_2, …) are the entries of C⁻¹ on its diagonals.
	width := len(bands) + 1
	sums := make([]float64, width+1)
	sums[1] = 1
	for k, m := range bands {
		sums[k+2] = sums[k+1] - float64(m)*0x1p-64
	}
	at := func(k int) float64 { return sums[min(max(k, 0), width)] }
	var v float64
	for i := 1 - width; i < n; i++ { // i is the index of a draw of Z
		s := at(n-i) - at(-i)
		if same := n - width - i; i >= 0 && same > 0 { // number of draws whose bands all fall into the window
			v += s * s * float64(same)
			i += same - 1
			continue
		}
		v += s * s
	}
	return v
}

// Warnings describes settings that are valid but probably a mistake.
func (e *Newton) Warnings() []string {
	var all []string
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	d, factor := float64(len(e.w)), e.params.Adjacency.Factor()
	if h := e.cfg.LastStep(); h > 0 && h < UsefulSteps+2 {
		warn("the horizon of %d steps is too short: the estimate becomes useful after %d gradient steps", h,
			UsefulSteps)
	}
	if need := d * factor / e.plan.Mu; need > 50 {
		warn(
			"%d features at this budget need steps of up to %d slots. If the features are nearly uncorrelated and "+
				"similar in size, and their curvature is known, method \"amb\" learns faster", len(e.w),
			e.plan.batch(len(e.plan.Batch)))
	}
	return all
}

// Sample returns a release of the largest form: it has every value, all zeros.
func (e *Newton) Sample() *dp.Release { return e.cfg.sample() }

// Sizes returns upper bounds on the memory and state that the estimator needs, in bytes.
func (e *Newton) Sizes() dp.Sizes {
	d, kept := int64(len(e.w)), int64(epochsMost*stretchesMost)
	upper := d * (d + 1) / 2
	bands := int64(len(e.plan.Factorization.Bands))
	state := 8 * (64 + recentMost + newton.Bins + 2*kept + // header, jump, histogram, headers of blocks
		d*(2+3+2+2*kept+bands) + d*d + 2*upper) // iterate, centre, wander, √H, h, blocks, noise; V; two matrices
	release := int64(0)
	for _, v := range e.Sample().Values {
		release += 8 * int64(len(v.Data)+len(v.SE))
	}
	// W, two sums of the matrix that are not in the state, four rows and their whitened copies, scratch. The end of an
	// epoch needs three more matrices.
	peak := state + release + 8*int64(len(e.search)+len(e.residuals)) + 8*(d*d+2*upper+8*d+20*d) + 8*(3*d*d+2*upper)
	return dp.Sizes{State: state, Release: release, Peak: peak}
}
