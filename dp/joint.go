package dp

import (
	"errors"
	"fmt"
	"math"
)

// jointDelta returns δ(ε), rounded up. It is for the adaptive composition of Gaussian mechanisms, of total ratio μ,
// with K rows of dense Gaussian sketches. It is the exact curve of the worst case, not a bound by Rényi divergences:
//
//	δ(ε) = E[δ_Gauss(ε − L(R), μ)],  R ~ χ²_K,  L(r) = (K/2)log v + (r/2)(1/v − 1)
//
// Under ZeroOut the result is the larger of two values: v = 1 − 1/γ (a record is removed) and v = 1 + 1/γ (a record is
// added). Under Replace there are K rows of both kinds at once, with the loss L_{1−1/γ}(R₁) + L_{1+1/γ}(R₂), R₁ and R₂
// independent.
//
// Privacy: it holds for rows x with ‖x‖ ≤ 1, sketch rows from N(0, XᵀX + η²I) with no eigenvalue of XᵀX + η²I below γ,
// and μ stated for the same adjacency. For rows with different γ, pass the number of all rows and the least γ. Cost:
// 16–300 evaluations of an integrand, 2–30 µs; some ms for fewer than 8 rows with almost no Gaussian noise. Accuracy:
// the result is never below δ(ε). Its relative error is below 10⁻¹⁰, down to δ = 10⁻³⁰⁰. Without Gaussians the error is
// below 10⁻⁹, or below 10⁻¹³√K for more than 10⁶ rows. For fewer than 8 rows with almost no Gaussian noise the error is
// below 2·10⁻⁷ (for one row 2·10⁻⁵) if γ ≥ 1.1, and below 1 % for smaller γ.
// Errors: ε negative, NaN or infinite; μ negative, NaN or above 10⁶; rows negative; γ not above 1 although there are
// rows; no adjacency.
// Source: docs/theory/accounting.md, which derives the dominating pairs and the integral.
func jointDelta(eps, mu float64, rows int, gamma float64, a Adjacency) (float64, error) {
	j, err := newJoint(mu, rows, gamma, a)
	if err = errors.Join(checkEpsDelta(eps, 0.5), err); err != nil {
		return 0, err
	}
	return expUp(j.logDelta(eps)), nil
}

// jointEpsilon returns the smallest ε ≥ 0 with jointDelta(ε) ≤ δ, rounded up.
//
// Cost: 10–20 evaluations of jointDelta.
// Errors: δ outside (0, 1), otherwise as jointDelta.
func jointEpsilon(delta, mu float64, rows int, gamma float64, a Adjacency) (float64, error) {
	j, err := newJoint(mu, rows, gamma, a)
	if err = errors.Join(checkEpsDelta(0, delta), err); err != nil {
		return 0, err
	}
	if rows == 0 {
		return Epsilon(delta, mu)
	}
	bound, err := rowCurve(mu, rows, gamma, a).Epsilon(delta)
	if err != nil {
		return 0, err
	}
	return j.epsilon(delta, bound), nil
}

// joint is a composition of Gaussians and sketch rows under one adjacency.
type joint []pair

func newJoint(mu float64, rows int, gamma float64, a Adjacency) (joint, error) {
	var errs []error
	if !(mu >= 0 && mu <= maxMu) {
		errs = append(errs, fmt.Errorf("mu is %g, must be in [0, %g]", mu, float64(maxMu)))
	}
	if rows < 0 || rows > maxCount {
		errs = append(errs, fmt.Errorf("rows is %d, must be 0 to 2^53", rows))
	}
	if rows != 0 {
		if err := checkGamma(gamma); err != nil {
			errs = append(errs, err)
		}
	}
	if !a.Valid() {
		errs = append(errs, errors.New("adjacency is not set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	k := float64(rows)
	gamma = min(gamma, 1e100) // a bound with a smaller γ also holds for a larger one
	switch {
	case rows == 0:
		return joint{{mu: mu}}, nil
	case a == Replace:
		return joint{{mu, k, k, gamma}}, nil
	}
	return joint{{mu, k, 0, gamma}, {mu, 0, k, gamma}}, nil
}

// logDelta returns an upper bound of log δ(ε).
func (j joint) logDelta(eps float64) float64 {
	l := math.Inf(-1)
	for _, p := range j {
		l = max(l, p.logDelta(eps))
	}
	return l
}

// epsilon returns the least ε ≥ 0 with δ(ε) ≤ δ, rounded up. hi is an ε known to satisfy this, from which the search
// goes down.
func (j joint) epsilon(delta, hi float64) float64 {
	target := math.Log(delta) * (1 + 0x1p-52)
	above := func(eps float64) float64 { return j.logDelta(eps) - target }
	lo, fLo := 0.0, above(0)
	if fLo <= 0 {
		return 0
	}
	fHi := above(hi)
	for more := 1e-9; !(fHi <= 0); more *= 2 { // rounding may have made hi slightly too small
		lo, fLo, hi = hi, fHi, max(hi*(1+more), 1e-300)
		fHi = above(hi)
	}
	// This is the rule of false position, Illinois variant, with a bisection at every fourth step. δ(hi) ≤ δ holds
	// throughout.
	const tol = 1e-13
	side := 0
	for i := 0; hi-lo > tol*hi; i++ {
		mid := lo + (hi-lo)/2
		if x := lo + (hi-lo)*fLo/(fLo-fHi); i%4 != 3 && x > lo {
			mid = min(max(x, lo+tol/2*hi), hi-tol/2*hi)
		}
		if f := above(mid); f <= 0 {
			hi, fHi = mid, f
			if side == -1 {
				fLo /= 2
			}
			side = -1
		} else {
			lo, fLo = mid, f
			if side == 1 {
				fHi /= 2
			}
			side = 1
		}
	}
	return hi
}

// pair is the dominating pair P, Q of a composition: a Gaussian N(0, 1) against
// N(μ, 1), rows N(0, 1) against N(0, 1−1/γ) (removed) and rows N(0, 1) against
// N(0, 1+1/γ) (added), all independent.
type pair struct {
	mu             float64
	removed, added float64
	gamma          float64
}

// logDelta returns an upper bound of log δ(ε), where δ(ε) = sup_A P(A) − e^ε Q(A), for every real ε. [pair.invert] says
// how tight the bound is.
func (p pair) logDelta(eps float64) float64 {
	rows := p.removed + p.added
	if p.mu > 0 {
		p.mu = max(p.mu, 1e-50) // a bound with a larger μ also holds for a smaller one
	}
	switch {
	case rows == 0 && p.mu == 0:
		if eps >= 0 {
			return math.Inf(-1)
		}
		return math.Log(-math.Expm1(eps))
	case eps > 1e50:
		return -1e30 // an upper bound: no loss comes close to ε
	case rows == 0:
		l := LogDelta(eps, p.mu)
		return min(0, l+slack/4*(1-l))
	case p.mu == 0 && (p.removed == 0 || p.added == 0):
		if d, sharp := rowsDelta(eps, rows, p.gamma, p.added == 0); sharp {
			return math.Log(d) + eightRoundings
		}
	}
	return p.invert(eps)
}

// invert computes logDelta by Laplace inversion. With L = log dP/dQ, and F as in [exponent],
//
//	δ(ε) = E_P[(1 − e^{ε−L})₊] = (1/2πi) ∫ e^{F(s)} ds
//
// over the vertical line through the minimum s₀ of F, where |e^F| is largest on the line. The sum of e^F over the
// points s₀ + inh, times h/2π, is Σ_k e^{2πks₀/h}·δ(ε + 2πk/h). That sum is never below δ(ε), and h is chosen such that
// the terms with k ≠ 0 are small. invert cuts the sum at |n| = N. Then it adds a bound on the rest and a bound on the
// rounding errors.
//
// Source: Abate and Whitt (1992) for the method; derivation and errors in docs/theory/accounting.md.
func (p pair) invert(eps float64) float64 {
	f := exponent{
		removed: p.removed / 2, added: p.added / 2, variance: p.mu * p.mu, eps: eps,
		a: p.gamma - 1, b: p.gamma + 1,
		c: p.removed/2*math.Log1p(-1/p.gamma) + p.added/2*math.Log1p(1/p.gamma),
	}
	if f.removed == 0 && f.variance == 0 && eps >= f.c {
		return math.Inf(-1) // the loss is always below c
	}
	if f.certain() {
		return 0
	}
	s0, d := f.saddle()
	top, size := f.at(s0, d)
	if l := top + math.Log(s0) + eightRoundings*size; l < -1000 {
		return l // δ ≤ E[e^{s(L−ε)}]/(1+s), which no float64 can hold
	}
	h := f.step(s0, d, top)
	l := top + math.Log(h/math.Pi*f.sum(s0, d, h)) + eightRoundings*(size+8)
	if math.IsNaN(l) {
		return 0
	}
	return min(0, l)
}

// exponent is F(s) = κ(s) − sε − log s(s+1), convex for real s from 0 to the end of κ's domain, with
//
//	κ(s) = log E_P[e^{sL}] = μ²s(1+s)/2 + cs − (K₁/2)log(1 − s/a) − (K₂/2)log(1 + s/b)
//	a = γ−1,  b = γ+1,  c = (K₁/2)log(1−1/γ) + (K₂/2)log(1+1/γ)
//
// The methods take both s and d = a − s, because d may be too small to be computed from a and s.
type exponent struct {
	removed, added float64 // K₁/2, K₂/2
	variance       float64 // μ²
	a, b, c, eps   float64
}

// at returns F(s), and the sum of the magnitudes of its terms, which bounds the rounding error.
func (f *exponent) at(s, d float64) (value, size float64) {
	rise, pole := f.variance*s*(1+s)/2, math.Log(s)+math.Log1p(s)
	value = rise + s*(f.c-f.eps) - pole
	size = rise + s*(math.Abs(f.c)+math.Abs(f.eps)) + math.Abs(math.Log(s)) + math.Log1p(s)
	if f.removed > 0 {
		// log(d/a) is computed from s if s is small. Computed from d, it would have a large error there, multiplied by
		// K₁.
		l := f.removed * math.Log1p(-s/f.a)
		if s > d {
			l = f.removed * math.Log(d/f.a)
		}
		value, size = value-l, size-l+f.removed*(s/d)
	}
	if f.added > 0 {
		l := f.added * math.Log1p(s/f.b)
		value, size = value-l, size+l+f.added*(s/f.b)
	}
	return value, size
}

// certain reports whether 1 − δ < e⁻²⁸. Then the pole at 0 is too close to the line. It uses 1 − δ ≤ E[e^{s(L−ε)}] for
// −1 < s < 0.
func (f *exponent) certain() bool {
	for _, s := range [...]float64{-0.5, -0.25, -0.75, -0.1} {
		if f.variance*s*(1+s)/2+s*(f.c-f.eps)-f.removed*math.Log1p(-s/f.a)-f.added*math.Log1p(s/f.b) < -28 {
			return true
		}
	}
	return false
}

// saddle returns an approximation of the s that minimises F, and d = a − s. It computes the smaller of s and d, and
// derives the other from it, so that both belong to the same point.
func (f *exponent) saddle() (s, d float64) {
	at := func(z float64) (s, d float64) {
		if f.removed == 0 {
			return z, 1
		}
		if z < 1 {
			s = f.a * (z / (1 + z))
			return s, f.a - s
		}
		d = f.a / (1 + z)
		return f.a - d, d
	}
	rising := func(z float64) bool {
		s, d := at(z)
		return f.variance*(0.5+s)+(f.c-f.eps)-1/s-1/(1+s)+f.removed/d-f.added/(f.b+s) >= 0
	}
	lo, hi := 1e-130, 1e15
	for f.removed == 0 && !rising(hi) {
		hi *= 1e15
	}
	for range 60 {
		if mid := math.Sqrt(lo) * math.Sqrt(hi); rising(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return at(lo)
}

// step returns an h for which each term with k ≠ 0 is less than e⁻³³ times the term with k = 0. For k < 0 this follows
// from δ ≤ 1, for k > 0 from the bound that another vertical line gives.
func (f *exponent) step(s0, d, top float64) float64 {
	curvature := f.variance + 1/(s0*s0) + 1/((1+s0)*(1+s0)) + f.added/((f.b+s0)*(f.b+s0))
	if f.removed > 0 {
		curvature += f.removed / (d * d)
	}
	width := 1 / math.Sqrt(curvature)
	delta := top + math.Log(width/2.5) // approximately log δ
	left := 2 * math.Pi * s0 / (33 + max(0, -delta))
	var right float64
	for _, n := range [...]float64{1, 2, 4, 8, 16, 32, 64} {
		step, rest := n*width, d-n*width
		if f.removed > 0 && rest < d/(2*n) {
			rest = d / (2 * n)
			step = d - rest
		}
		v, _ := f.at(s0+step, rest)
		right = max(right, 2*math.Pi*step/(33+max(0, v-delta+math.Log(s0+step))))
	}
	return min(left, right)
}

// sum returns Σ_{n≥1} Re e^{F(s₀+inh)−F(s₀)} + ½, rounded up.
func (f *exponent) sum(s0, d, h float64) float64 {
	sum, rounding, tail := 0.5, 4.0, math.Inf(1)
	e, scale := f.b+s0, s0*(1+s0)
	linear := f.c - f.eps + f.variance*(0.5+s0)
	chord := 2 * math.Abs(math.Sin(h*linear/2))
	if chord < 1e-6 {
		chord = 0
	}
	const most = 1 << 17
	for n := 1.0; n <= most && tail > sum*max(0x1p-38, 0x1p-54*n*n); n++ {
		y := n * h
		fall, phase, turns := f.variance*y*y/2, y*linear, 0.0
		around := y * (math.Abs(f.c) + math.Abs(f.eps) + f.variance*(0.5+s0))
		if f.removed > 0 {
			g := y / d
			turn := math.Atan(g)
			fall += f.removed / 2 * math.Log1p(g*g)
			phase += f.removed * turn
			around += f.removed * turn
			turns += f.removed * (math.Pi/2 - turn)
		}
		if f.added > 0 {
			g := y / e
			turn := math.Atan(g)
			fall += f.added / 2 * math.Log1p(g*g)
			phase -= f.added * turn
			around += f.added * turn
			turns += f.added * (math.Pi/2 - turn)
		}
		// 1/(s(s+1)), divided by its value at s₀, is 1/(re + i·im).
		sin, cos := math.Sincos(phase)
		re, im := 1-y*(y/scale), y*(1/s0+1/(1+s0))
		norm := math.Hypot(re, im)
		decay := math.Exp(-fall)
		sum += decay / norm * (cos*(re/norm) + sin*(im/norm))
		rounding += decay/norm*(8+around+fall) + math.Abs(sum)/8
		// Bound the rest in two ways. One uses that the terms fall faster than 1/n². The other uses that each term is
		// turned from the one before by a constant angle, except for `turns` in all.
		tail = min(decay*(scale/y/y)*n, 1.001*decay/norm*(2+2*math.Hypot(1, s0/y)+turns)/chord)
	}
	return sum + tail + eightRoundings*rounding
}
