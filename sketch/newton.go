package sketch

import (
	"errors"
	"fmt"
	"math"

	"streamdp/dp"
	"streamdp/internal/clipgrad"
	"streamdp/internal/newton"
)

// Shares of μ² that newton spends on its three kinds of releases.
const (
	histShare = 0.06
	gramShare = 0.12
	stepShare = 0.82
)

// newtonSolver solves least squares over a window by noisy gradient steps in the
// space that one noisy Gram matrix whitens, with a clip norm that follows the data.
//
// For rows x_i, ‖x_i‖ ≤ 1, targets |y_i| ≤ 1 and S = 1 under zero-out, 2 under
// replace, it releases
//
//	hist   #{i: 2^−(j+1) < ‖x_i‖² ≤ 2^−j}, j = 0…23
//	gram   G̃ = Σ x̄_i x̄_iᵀ + noise, x̄ = x clipped to norm R, which follows from hist
//	steps  t = 0…T−1, with z = Wx, r = y − zᵀu_t, a = |r|·‖z‖ and W of [newton.Whiten]:
//	       g_t = Σ z_i r_i min(1, ζ_t/a_i) + (Sζ_t/m_t)·N(0, I_d)
//	       q_t = #{i: x_i ≠ 0, a_i ≤ cζ_t} + (S/(w m_t))·N(0, 1)
//	       u_{t+1} = u_t + g_t,  ζ_{t+1} = min(cap, ζ_t exp(−0.4(clip(q_t/n̂, 0, 1) − 0.53)))
//
// and returns θ = κWū for the mean ū of u_{t+1}, t ≥ t₀, and a James–Stein factor κ.
// T, t₀, c, R, W and κ follow from the releases.
//
// Privacy: every release is a Gaussian mechanism on a lattice, so the whole is
// μ-Gaussian-private, exactly, under either adjacency; hist, gram and steps spend
// 0.06, 0.12 and 0.82 of μ². The count is free ([clipgrad.CountWeight]). R bounds
// the rows of the Gram matrix only, so it biases nothing.
// Cost: O(nd² + d³ + Tnd) time on all processors, T ≤ 100 passes; n numbers and
// O(d²) beside the window, which it overwrites.
// Errors: an iterate that is not finite, which no window leads to.
// Source: ours; docs/theory/sketch.md.
type newtonSolver struct {
	mu        float64
	adjacency dp.Adjacency
	bits      int

	trace newtonTrace // of the last window
}

// newNewton returns the solver for the budget μ, windows of at most rows rows of dim
// features.
//
// Errors: a budget so large or so small that a lattice does not fit.
func newNewton(mu float64, a dp.Adjacency, bits, rows, dim int) (*newtonSolver, error) {
	s := &newtonSolver{mu: mu, adjacency: a, bits: bits}
	var errs []error
	// R² only moves the Gram matrix's lattices, but for the root of an odd power.
	for _, squared := range []float64{1, 0.5} {
		_, err := newton.NewGram(dim, squared, s.part(gramShare), a, bits)
		errs = append(errs, err)
	}
	sd := newton.HistogramSD(s.part(histShare), a)
	if !(14*math.Ldexp(sd, bits-4) < 1<<51) || math.Ldexp(float64(rows), bits-4) >= 1<<62 {
		errs = append(errs, fmt.Errorf("mu is %g, too small for a histogram of %d rows", mu, rows))
	}
	for _, m := range []float64{s.rate(40, 100, 0), s.rate(2, 6, 0), s.rate(2, 6, 2)} { // the least and the largest
		_, err := stepLattice(a.Factor()/m, rows, bits)
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// part returns the μ of a share of μ².
func (s *newtonSolver) part(share float64) float64 { return s.mu * math.Sqrt(share) }

// rate returns m_t: two fifths of the steps' budget for those before t₀, the rest for
// those that are averaged.
func (s *newtonSolver) rate(start, steps, t int) float64 {
	if t < start {
		return s.part(stepShare) * math.Sqrt(0.4/float64(start))
	}
	return s.part(stepShare) * math.Sqrt(0.6/float64(steps-start))
}

// newtonTrace is what newton chose on its way; public, as it follows from releases.
type newtonTrace struct {
	valid, squared, ridge, trace float64 // n̂, R², ρ, tr
	steps, start                 int     // T, t₀
	counted                      float64 // c
	first, last                  float64 // ζ₀ and ζ_{T−1}
	shrink                       float64 // κ
}

// solve returns θ. It overwrites the window's rows.
func (s *newtonSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	s.trace = newtonTrace{}
	t := &s.trace
	n, d := float64(w.Len()), w.dim
	size := float64(d)

	// Histogram of norms, and how far to clip for the Gram matrix.
	var hist newton.Histogram
	var parts [segments]newton.Histogram
	null := make([]bool, w.Len())
	eachSegment(w.Len(), func(part, lo, hi int) {
		for i := lo; i < hi; i++ {
			null[i] = !parts[part].Add(w.row(i))
		}
	})
	for i := range parts {
		hist.Merge(&parts[i])
	}
	norms := hist.Release(noise, "newton/hist", newton.HistogramSD(s.part(histShare), s.adjacency), s.bits)
	t.valid = norms.Valid(n)
	unit := math.Sqrt(s.adjacency.Factor()) / s.part(gramShare) // s_G at R = 1
	squared, missed := norms.Radius(t.valid, 1.35*math.Sqrt(size)*unit, 0.25)
	t.squared = squared

	// The Gram matrix, and the space that it whitens.
	gram, err := newton.NewGram(d, squared, s.part(gramShare), s.adjacency, s.bits)
	if err != nil {
		return nil, 0, err
	}
	gram.AddRows(w.x)
	upper, err := gram.Release(noise, "newton/gram")
	if err != nil {
		return nil, 0, err
	}
	t.trace = norms.Trace(squared, t.valid, missed) / 2
	t.ridge = min(float64(1.35*gram.SD*math.Sqrt(size))+missed/4, t.trace)
	white := newton.Whiten(upper, d, t.ridge, t.trace)
	eachSegment(w.Len(), func(_, lo, hi int) { white.ApplyRows(w.x[lo*d : hi*d]) })
	rows := clipgrad.ByNorm(w.x, w.y, null, d, s.bits)

	// The schedule. ν is the number of records for each standard deviation of noise
	// in a coordinate.
	factor := s.adjacency.Factor()
	nu := t.valid * s.mu / (size * factor)
	t.counted = newton.Clip(1.25*newton.Pow(nu, -0.35), 0.2, 0.65)
	t.steps = int(min(max(32, min(100, 5*math.Sqrt(nu))), max(6, float64(2*nu*nu))))
	t.start = 2 * t.steps / 5
	weight := clipgrad.CountWeight(s.adjacency, t.counted)
	spread := math.Sqrt(max(white.Signal(), 0.05) / t.valid)
	zeta, limit := 0.075*spread/t.counted, 0.5*spread/t.counted
	t.first = zeta

	// Steps. sds keeps the noise of each for the shrinkage.
	u, mean := make([]float64, d), make([]float64, d)
	sum, rounded := make([]int64, d), make([]int64, d)
	count, countNoise := make([]int64, 1), make([]int64, 1)
	sds := make([]float64, t.steps)
	for step := range t.steps {
		m := s.rate(t.start, t.steps, step)
		out, err := stepLattice(factor/m, w.Len(), s.bits)
		if err != nil {
			return nil, 0, err
		}
		sd := clipgrad.Sensitivity(s.adjacency, d, out) / m
		count[0] = rows.Sum(sum, u, zeta, t.counted, out) << (s.bits - 4)
		dp.RoundRow(rounded, noise.Row(numbered("newton/grad", step), sum), []float64{math.Ldexp(sd, out)}, nil, 1)
		dp.RoundRow(countNoise, noise.Row(numbered("newton/count", step), count), []float64{math.Ldexp(sd/weight, s.bits-4)}, nil, 1)
		for j, k := range sum {
			u[j] += float64(zeta * math.Ldexp(float64(k+rounded[j]), -out))
			if step >= t.start {
				mean[j] += u[j]
			}
		}
		sds[step] = float64(zeta * sd)
		t.last = zeta
		q := math.Ldexp(float64(count[0]+countNoise[0]), 4-s.bits)
		zeta = min(limit, float64(zeta*newton.Exp(float64(-0.4*(newton.Clip(q/t.valid, 0, 1)-0.53)))))
	}
	for j := range mean {
		mean[j] /= float64(t.steps - t.start)
	}

	t.shrink = shrinkage(white, mean, sds, t.start)
	theta = make([]float64, d)
	white.Apply(theta, mean)
	for j := range theta {
		theta[j] *= t.shrink
	}
	if !finite(theta) {
		return nil, 0, errFailed
	}
	return theta, 0, nil
}

// shrinkage returns κ = max(0, 1 − 0.7·Σh·var/Σh·(Vᵀū)²), the factor by which noise
// of the variance that the steps left in ū would have been too long:
//
//	var_i = Σ_t ((S_{T−t} − S_{max(t₀−t, 0)})_i/(T−t₀) · sd_t)²,  S_k = Σ_{j<k} p_i^j,  p_i = 1 − 0.8h_i
//
// as u moves by a share of about 0.8h_i of its distance in each step.
func shrinkage(white *newton.Whitening, mean, sds []float64, start int) float64 {
	steps := len(sds)
	along := make([]float64, len(mean))
	white.Rotate(along, mean)
	var noise, signal float64
	geometric := make([]float64, steps+1)
	for i, h := range white.Share {
		p, power := 1-float64(0.8*h), 1.0
		for k := range steps {
			geometric[k+1] = geometric[k] + power
			power = float64(power * p)
		}
		var variance float64
		for t, sd := range sds {
			x := (geometric[steps-t] - geometric[max(start-t, 0)]) / float64(steps-start) * sd
			variance += float64(x * x)
		}
		noise += float64(h * variance)
		signal += float64(h * float64(along[i]*along[i]))
	}
	if signal == 0 {
		return 0
	}
	return max(0, 1-float64(0.7*noise)/signal)
}

// errFailed says no more than that there is no solution: why is not public.
var errFailed = errors.New("no solution was found")

// numbered returns the name of iteration i's noise array.
func numbered(array string, i int) string { return fmt.Sprintf("%s/%d", array, i) }
