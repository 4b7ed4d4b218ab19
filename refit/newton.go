package refit

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/clipgrad"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// newtonShares are the shares of μ² that newton spends on its releases. There are two sets of shares: one for windows
// without a constant, one for windows with a constant and a centring.
type newtonShares struct{ hist, gram, steps float64 }

var (
	plainShares   = newtonShares{hist: 0.06, gram: 0.12, steps: 0.82}
	centredShares = newtonShares{hist: 0.05, gram: 0.11, steps: 0.74}
)

// newtonSolver solves least squares over a window by noisy gradient steps. A noisy Gram matrix whitens the space of the
// steps, and the clip norm adapts to the data.
//
// For rows x_i, ‖x_i‖ ≤ 1, targets |y_i| ≤ 1 and S = 1 under zero-out, 2 under
// replace, it releases
//
//	hist   #{i: 2^−(j+1) < ‖x_i‖² ≤ 2^−j}, j = 0…23
//	gram   G̃ = Σ x̄_i x̄_iᵀ + noise, x̄ = x clipped to norm R, which follows from hist
//	steps  t = 0…T−1, with z = Wx, r = y − zᵀu_t, a = |r|·‖z‖ and W of [newton.Whiten]:
//	       g_t = Σ z_i r_i min(1, ζ_t/a_i) + (Sζ_t/m_t)·N(0, I)
//	       q_t = #{i: not null, a_i ≤ cζ_t} + (S/(w m_t))·N(0, 1)
//	       u_{t+1} = u_t + g_t,  ζ_{t+1} = min(cap, ζ_t exp(−0.4(clip(q_t/n̂, 0, 1) − 0.53)))
//
// and returns θ = κWū, where ū is a mean of u_{t+1} over t ≥ t₀ and κ is a James–Stein factor. T, t₀, c, R, W and κ are
// functions of the releases.
//
// With an intercept, the last number of a row is a constant, which is 0 only in null rows, and the bound ‖x_i‖ ≤ 1 is
// on the other numbers. Rows and targets are centred first, see [centring]. Then a row is z = (Wx, w_c), w_c =
// √(0.6/n̂), so norms and matrix do not contain the constant. The constant has its own factor κ_c, and the last entry
// of θ is y₀ + κ_c·w_c·ū_D − βᵀm. Without an intercept a row of zeros is null.
//
// Privacy: every release is a Gaussian mechanism on a lattice, so all together are exactly μ-Gaussian private, under
// either adjacency. hist, gram and steps cost 0.06, 0.12 and 0.82 of μ². With an intercept they cost 0.05, 0.11 and
// 0.74, and the centring costs 0.1. The count costs nothing ([clipgrad.CountWeight]). R bounds only the rows of the
// Gram matrix, so it causes no bias.
// Cost: O(nd² + d³ + Tnd) time on all processors, T ≤ 100 passes; memory for n numbers and O(d²) numbers in addition to
// the window, which it overwrites.
// Errors: an iterate is not finite; no window leads to that.
// Source: ours; docs/theory/refit.md.
type newtonSolver struct {
	mu        float64
	adjacency dp.Adjacency
	bits      int
	shares    newtonShares
	centring  *centring // nil without an intercept

	trace newtonTrace // choices for the last window
}

// newNewton returns the solver for the budget μ and windows of at most the given number of rows. dim is the number of
// features, including the constant of an intercept.
//
// Errors: no lattice fits the budget, which is too large or too small.
func newNewton(mu float64, a dp.Adjacency, bits, rows, dim int, intercept bool) (*newtonSolver, error) {
	s := &newtonSolver{mu: mu, adjacency: a, bits: bits, shares: plainShares}
	var errs []error
	if intercept {
		var err error
		s.shares = centredShares
		s.centring, err = newCentring(mu, a, bits, rows)
		errs = append(errs, err)
	}
	// R² is a power of two and only shifts the Gram matrix's lattices. An even and an odd power differ, because the
	// root of an odd power is irrational. So two values suffice.
	for _, squared := range []float64{1, 0.5} {
		_, err := newton.NewGram(s.features(dim), squared, s.part(s.shares.gram), a, bits)
		errs = append(errs, err)
	}
	sd := newton.HistogramSD(s.part(s.shares.hist), a)
	if !(dp.MaxDraw*math.Ldexp(sd, bits-4) < 1<<51) || math.Ldexp(float64(rows), bits-4) >= 1<<62 {
		errs = append(errs, fmt.Errorf("mu is %g, too small for a histogram of %d rows", mu, rows))
	}
	for _, m := range []float64{s.rate(40, 100, 0), s.rate(2, 6, 0), s.rate(2, 6,
		2)} { // the smallest and the largest rates
		_, err := stepLattice(a.Factor()/m, rows, bits)
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// features returns the number of features of a row of dim numbers, without the constant.
func (s *newtonSolver) features(dim int) int {
	if s.centring != nil {
		return dim - 1
	}
	return dim
}

// part returns the μ that belongs to a share of μ².
func (s *newtonSolver) part(share float64) float64 { return s.mu * math.Sqrt(share) }

// rate returns m_t. The steps before t₀ get two fifths of the steps' budget; the steps that are averaged get the rest.
func (s *newtonSolver) rate(start, steps, t int) float64 {
	if t < start {
		return s.part(s.shares.steps) * math.Sqrt(0.4/float64(start))
	}
	return s.part(s.shares.steps) * math.Sqrt(0.6/float64(steps-start))
}

// newtonTrace holds the choices that newton made. The choices are public, because they are functions of releases.
type newtonTrace struct {
	centres
	valid, squared, ridge, trace float64 // n̂, R², ρ, tr
	signal                       float64 // Σh
	steps, start                 int     // T, t₀
	counted                      float64 // c
	first, last                  float64 // ζ₀ and ζ_{T−1}
	shrink, constant             float64 // κ, κ_c
	errors                       *solutionErrors
}

// constantSignal is the h of the constant: the share of its distance to the optimum that a step covers.
const constantSignal = 0.6

// solve returns θ. It overwrites the window's rows.
func (s *newtonSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	s.trace = newtonTrace{}
	t := &s.trace
	n, dim := float64(w.Len()), w.dim
	d := s.features(dim)
	null := make([]bool, w.Len())
	eachSegment(w.Len(), func(_, lo, hi int) {
		for i := lo; i < hi; i++ {
			if s.centring != nil {
				null[i] = w.row(i)[d] == 0
			} else {
				null[i] = zero(w.row(i))
			}
		}
	})
	if s.centring != nil {
		t.centres = s.centring.centre(w, null, noise)
	}

	// The histogram of norms, and the norm to which rows are clipped for the Gram matrix.
	norms := countNorms(w, d, null).Release(noise, "newton/hist",
		newton.HistogramSD(s.part(s.shares.hist), s.adjacency), s.bits)
	t.valid = norms.Valid(n)
	unit := math.Sqrt(s.adjacency.Factor()) / s.part(s.shares.gram) // s_G at R = 1
	squared, missed := norms.Radius(t.valid, 1.35*math.Sqrt(float64(d))*unit, 0.25)
	t.squared = squared

	// The Gram matrix, and the whitening that follows from it.
	gram, err := newton.NewGram(d, squared, s.part(s.shares.gram), s.adjacency, s.bits)
	if err != nil {
		return nil, 0, err
	}
	gram.Once = w.exact
	gram.AddRows(w.x, dim)
	upper, err := gram.Release(noise, "newton/gram")
	if err != nil {
		return nil, 0, err
	}
	t.trace = norms.Trace(squared, t.valid, missed)
	if s.centring == nil {
		t.trace /= 2
	}
	t.ridge = min(float64(1.35*gram.SD*math.Sqrt(float64(d)))+missed/4, t.trace)
	white := newton.Whiten(upper, d, t.ridge, t.trace)
	t.signal = white.Signal()
	constant := 0.0 // w_c
	if s.centring != nil {
		constant = math.Sqrt(constantSignal / t.valid)
		t.signal += constantSignal
	}
	eachSegment(w.Len(), func(_, lo, hi int) {
		white.ApplyRows(w.x[lo*dim:hi*dim], dim)
		for i := lo; i < hi && s.centring != nil; i++ {
			if !null[i] {
				w.row(i)[d] = constant
			}
		}
	})
	rows := clipgrad.ByNorm(w.x, w.y, null, dim, s.bits)
	if w.exact {
		rows.RoundOnce()
	}

	// The steps. sds holds the noise of each step, for the shrinkage; weights holds each step's weight in the mean.
	factor := s.adjacency.Factor()
	zeta, limit := s.schedule(float64(dim))
	t.first = zeta
	weight := clipgrad.CountWeight(s.adjacency, t.counted)
	u, mean := make([]float64, dim), make([]float64, dim)
	sum, rounded := make([]int64, dim), make([]int64, dim)
	count, countNoise := make([]int64, 1), make([]int64, 1)
	sds, weights, total := make([]float64, t.steps), make([]float64, t.steps), 0.0
	var late scatter
	for step := range t.steps {
		m := s.rate(t.start, t.steps, step)
		out, err := stepLattice(factor/m, w.Len(), s.bits)
		if err != nil {
			return nil, 0, err
		}
		sd := clipgrad.Sensitivity(s.adjacency, dim, out) / m
		count[0] = rows.Sum(sum, u, zeta, t.counted, out) << (s.bits - 4)
		dp.RoundRow(rounded, noise.Row(numbered("newton/grad", step), sum), []float64{math.Ldexp(sd, out)}, nil, 1)
		dp.RoundRow(countNoise, noise.Row(numbered("newton/count", step), count),
			[]float64{math.Ldexp(sd/weight, s.bits-4)}, nil, 1)
		if step >= t.start {
			weights[step] = 1
			if s.centring != nil { // late steps with small clip norms get more weight
				weights[step] = 1 / float64(zeta*zeta)
			}
			total += weights[step]
		}
		for j, k := range sum {
			u[j] += float64(zeta * math.Ldexp(float64(k+rounded[j]), -out))
			mean[j] += float64(weights[step] * u[j])
		}
		sds[step] = float64(zeta * sd)
		t.last = zeta
		q := math.Ldexp(float64(count[0]+countNoise[0]), 4-s.bits)
		if step >= t.start {
			late.add(zeta, q)
		}
		zeta = min(limit, float64(zeta*newton.Exp(float64(-0.4*(newton.Clip(q/t.valid, 0, 1)-0.53)))))
	}
	for j := range mean {
		mean[j] /= total
	}

	for i := range weights {
		weights[i] /= total
	}
	theta, err = s.solution(white, mean, sds, weights, constant)
	if err == nil {
		t.errors = s.errors(white, mean, sds, weights, &late, constant)
	}
	return theta, 0, err
}

// schedule chooses the steps for rows of dim numbers. It returns the first clip norm and the largest one. records is
// the number of valid records divided by the standard deviation of the noise. nu is records divided by the number of
// coordinates.
func (s *newtonSolver) schedule(dim float64) (zeta, limit float64) {
	t, factor := &s.trace, s.adjacency.Factor()
	nu := t.valid * s.mu / (dim * factor)
	t.counted = newton.Clip(1.25*newton.Pow(nu, -0.35), 0.2, 0.65)
	if s.centring == nil {
		t.steps = int(min(max(32, min(100, 5*math.Sqrt(nu))), max(6, float64(2*nu*nu))))
	} else {
		records := t.valid * s.mu / factor
		least := min(10, max(6, float64(2.5*records)))
		t.steps = int(min(100, max(40, 5*math.Sqrt(nu)), max(least, float64(1.75*records)/max(1, t.signal))))
	}
	t.start = 2 * t.steps / 5
	spread := math.Sqrt(max(t.signal, 0.05) / t.valid)
	return 0.075 * spread / t.counted, 0.5 * spread / t.counted
}

// solution returns θ for the mean ū of the iterates. It takes into account the variance that the noise of the steps
// leaves in each coordinate of ū.
func (s *newtonSolver) solution(white *newton.Whitening, mean, sds, weights []float64,
	constant float64) (theta []float64, err error) {
	t := &s.trace
	d := len(white.Share)
	along := make([]float64, d)
	white.Rotate(along, mean[:d])
	variance := func(h float64) float64 { return weightedVariance(h, sds, weights) }
	if s.centring == nil {
		variance = func(h float64) float64 { return meanVariance(h, sds, t.start) }
	}
	var noise, signal float64
	for i, h := range white.Share {
		noise += float64(h * variance(h))
		signal += float64(h * float64(along[i]*along[i]))
	}
	t.shrink = newton.Stein(float64(0.7*noise), signal)
	theta = make([]float64, len(mean))
	white.Apply(theta[:d], mean[:d])
	for j := range d {
		theta[j] *= t.shrink
	}
	if s.centring != nil {
		last := mean[d]
		t.constant = newton.Stein(float64(0.7*variance(constantSignal)), float64(last*last))
		theta[d] = t.target + float64(t.constant*float64(constant*last))
		for j, m := range t.mean {
			theta[d] -= float64(theta[j] * m)
		}
	}
	if !vector.Finite(theta) {
		return nil, errFailed
	}
	return theta, nil
}

// meanVariance returns the variance in the plain mean of the iterates from start on that comes from noise of standard
// deviation sd_t in step t:
//
//	Σ_t ((S_{T−t} − S_{max(t₀−t, 0)})/(T−t₀) · sd_t)²,  S_k = Σ_{j<k} p^j,  p = 1 − 0.8h
//
// The formula holds because each step moves u by about a share 0.8h of its remaining distance.
func meanVariance(h float64, sds []float64, start int) (variance float64) {
	steps := len(sds)
	geometric := make([]float64, steps+1)
	p, power := 1-float64(0.8*h), 1.0
	for k := range steps {
		geometric[k+1] = geometric[k] + power
		power = float64(power * p)
	}
	for t, sd := range sds {
		x := (geometric[steps-t] - geometric[max(start-t, 0)]) / float64(steps-start) * sd
		variance += float64(x * x)
	}
	return variance
}

// weightedVariance is meanVariance for a mean with the weights ω_t. It is the sum of (c_t·sd_t)², c_t = p·c_{t+1} +
// ω_t.
func weightedVariance(h float64, sds, weights []float64) (variance float64) {
	p, c := 1-float64(0.8*h), 0.0
	for t := len(sds) - 1; t >= 0; t-- {
		c = float64(p*c) + weights[t]
		x := c * sds[t]
		variance += float64(x * x)
	}
	return variance
}

// countNorms counts the rows that are not null, by the squared norm of their first d numbers.
func countNorms(w *Data, d int, null []bool) *newton.Histogram {
	var parts [segments]newton.Histogram
	eachSegment(w.Len(), func(part, lo, hi int) {
		for i := lo; i < hi; i++ {
			if !null[i] {
				parts[part].Add(w.row(i)[:d])
			}
		}
	})
	for i := 1; i < segments; i++ {
		parts[0].Merge(&parts[i])
	}
	return &parts[0]
}

// zero reports whether all of x are 0.
func zero(x []float64) bool {
	for _, v := range x {
		if v != 0 {
			return false
		}
	}
	return true
}

// errFailed says that there is no solution. It does not say why, because the reason is not public.
var errFailed = errors.New("no solution was found")

// numbered returns the name of the noise array of iteration i.
func numbered(array string, i int) string { return fmt.Sprintf("%s/%d", array, i) }
