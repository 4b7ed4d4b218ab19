package refit

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/gram"
	"github.com/streamdp/streamdp/internal/newton"
)

// fastNoise is the noise of fast-ihm, whose sketches are sketches of a fast transform.
type fastNoise struct {
	// Gamma is a lower bound that all eigenvalues of (ZᵀZ + η²I)/C² must satisfy, C² = 1 + 2m̂.
	Gamma float64
	// Sigma is the standard deviation of a gradient's noise, for residuals clipped to 1.
	Sigma float64
	// Omega is the scale of the Laplace noise on m̂ and λ_min, in units of their sensitivities. m̂ is raised and λ_min
	// is lowered by Tau scales to make them bounds.
	Omega, Tau float64
	// Cost is the cost for a record.
	Cost dp.Cost
}

// leastFast is a lower limit for γ: the curve of FastMix rows exists only above it.
const leastFast = 1.2072

// calibrateFast returns the noise of fast iterative Hessian mixing with T iterations of sketches of k rows, based on at
// most T fast transforms. The releases are two Laplace releases for each transform, T·k rows at γ, and T gradients.
//
// With rdp, γ is the smallest one at which the sum of the curves is (ε, δ)-private. At small Rényi orders, a third of
// the budget goes to the Laplace releases. The sketches get the given share of the rest. With probability at most δ/2
// one of the Laplace releases is not a bound. paper gives a third of ε and δ to each part.
//
// Privacy: for zero-out only.
// Errors: as [calibrateIHM]; acc is exact, for which there is no curve.
// Source: "The Fast Mixing Mechanism for Differential Privacy", Appendix E.2, with
// the curve of its Appendix C instead of the bound that follows from it.
func calibrateFast(acc Accounting, p dp.Params, k, iterations, transforms int, share float64) (fastNoise, error) {
	if err := checkParams(p); err != nil {
		return fastNoise{}, err
	}
	if p.Adjacency != dp.ZeroOut {
		return fastNoise{}, errors.New("sketches of sketches have a guarantee only under adjacency \"zero-out\"")
	}
	if k < 1 || iterations < 1 || transforms < 1 || transforms > iterations {
		return fastNoise{},
			fmt.Errorf("there are %d iterations with %d rows each and %d transforms: all three must be at least 1, "+
				"and transforms at most the number of iterations", iterations, k, transforms)
	}
	rows, t, tests := float64(k), float64(iterations), float64(transforms)
	at := func(gamma, sigma, omega, tau float64) fastNoise {
		return fastNoise{Gamma: gamma, Sigma: sigma, Omega: omega, Tau: tau, Cost: dp.Cost{
			Adjacency: p.Adjacency, Mu: math.Sqrt(t) / sigma, BadDelta: tests * math.Exp(-tau) * (1 + 1e-12),
			Terms: []dp.Term{
				{Kind: dp.KindFastMixRow, Count: k * iterations, Gamma: gamma},
				{Kind: dp.KindLaplace, Count: 2 * transforms, Scale: omega},
			},
		}}
	}
	switch acc {
	case Paper:
		curve := func(gamma float64) dp.Curve {
			return dp.Curve{{Kind: dp.KindFastMixRow, Count: k * iterations, Gamma: gamma}}
		}
		gamma, err := leastGamma(leastFast, func(gamma float64) (bool, error) {
			spent, err := curve(gamma).Epsilon(p.Delta / 3)
			return spent <= p.Epsilon/3, err
		})
		if err != nil {
			return fastNoise{}, err
		}
		sigma, err := dp.Sigma(p.Epsilon/3, p.Delta/3, math.Sqrt(t))
		return at(gamma, sigma, 6*tests/p.Epsilon, laplaceTau(3*tests, p.Delta)), err
	case RDP:
	default:
		return fastNoise{}, fmt.Errorf("accounting is %q, must be %q or %q for sketches of sketches", acc, RDP, Paper)
	}
	if !(share > 0 && share < 1) {
		return fastNoise{}, fmt.Errorf("share is %g, must be in (0, 1)", share)
	}
	tau := laplaceTau(2*tests, p.Delta)
	tied := func(gamma float64) fastNoise {
		// Coefficients of α: 3kT/(8γ²) for sketches, T/(2σ²) for gradients, 1/ω² per transform for tests.
		sketches := 3 * rows * t / (8 * gamma * gamma)
		rest := sketches / share
		return at(gamma, math.Sqrt(t/(2*rest*(1-share))), math.Sqrt(tests/(rest/2)), tau)
	}
	gamma, err := leastGamma(leastFast, func(gamma float64) (bool, error) { return within(RDP, p, tied(gamma).Cost) })
	return tied(gamma), err
}

// laplaceTau returns log(parts/δ). A Laplace variable exceeds it with probability δ/(2·parts).
func laplaceTau(parts, delta float64) float64 { return math.Log(parts / delta) }

// FastMixEpsilon returns the ε of one FastMix sketch of k rows at δ:
//
//	2/ω + min_α [k·r(α; γ) + conv(α, δ/3)]
//
// for τ ≥ log(3/(2δ)), where r is the curve of a FastMix row. It is Theorem 1 of the source without its simplification,
// and is always below that bound.
//
// Errors: γ is at most 1.2072; δ is outside (0, 1); ω or k is not positive.
//
// For reproduction only: [Solve] and [New] compute the noise by their own accounting.
func FastMixEpsilon(omega, gamma float64, k int, delta float64) (float64, error) {
	if !(omega > 0) {
		return 0, fmt.Errorf("omega is %g, must be positive", omega)
	}
	eps, err := (dp.Curve{{Kind: dp.KindFastMixRow, Count: k, Gamma: gamma}}).Epsilon(delta / 3)
	return 2/omega + eps, err
}

// fastLevels holds the noisy bounds from which a sketch of a sketch is calibrated.
type fastLevels struct {
	distortion float64 // m̃ ≥ m̂
	lambda     float64 // λ̃ ≤ λ_min(ZᵀZ)
	square     float64 // η̃²
}

// levels combines m̂, λ̂ = λ_min(ZᵀZ) and the coherence Δ̂ with Laplace draws of scale 1:
//
//	m̃ = max(0, m̂ + ωΔ̂(τ − z₁)),  λ̃ = max(0, λ̂ − ω(1+2m̃)(τ − z₂)),
//	η̃² = max(0, γ(1+2m̃) − λ̃)
//
// When a row of norm 1 becomes null, m̂ moves by at most Δ̂. λ̂ moves by at most 1 + 2m̂, with the m̂ of either
// neighbour. minus releases x − scale·z, where the array supplies z.
func (n *fastNoise) levels(m, coherence, lambda float64,
	minus func(array string, x, scale float64) (float64, error)) (l fastLevels, err error) {
	scale := n.Omega * coherence
	noisy, err := minus("mhat", m, scale)
	if err != nil {
		return l, err
	}
	l.distortion = max(0, noisy+float64(scale*n.Tau))
	norm := 1 + 2*l.distortion
	scale = n.Omega * norm
	if noisy, err = minus("lambda", -lambda, scale); err != nil {
		return l, err
	}
	l.lambda = max(0, -noisy-float64(scale*n.Tau))
	l.square = max(0, float64(n.Gamma*norm)-l.lambda)
	return l, nil
}

// laplace returns z ~ Lap(0, 1) from a word. Bit 63 gives the sign; the other bits give a uniform p, and |z| = −log p.
func laplace(word uint64) float64 {
	p := math.Ldexp(float64(word<<1|1)/2, -63) // (m + ½)·2⁻⁶³
	z := -newton.Log(min(p, 1))
	if word>>63 == 1 {
		return -z
	}
	return z
}

// releaseLaplace returns x − scale·z on a lattice. The sensitivity of x is scale/ω, and computing x is off by at most
// err. Rounding and err add to the sensitivity, so they also raise the scale. The caller moves the result by τ times
// the original scale. So releaseLaplace raises the result by τ times the increase of the scale: then the total is τ
// times the actual scale.
//
// Privacy: as a Laplace mechanism whose scale is ω times the sensitivity, except that the draw is computed in float64.
func releaseLaplace(n dp.Noise, array string, x, err, scale, omega, tau float64, bits int) (float64, error) {
	if scale == 0 { // x does not depend on the data
		return err, nil
	}
	_, e := math.Frexp(min(scale, scale/omega))
	exp := e - 1 - bits
	step := math.Ldexp(1, exp)
	more := (2*err + step) * omega * dp.RoundUp
	scale *= 1 + more/scale
	if !(math.Ldexp(45*scale, -exp) < 1<<61) {
		return 0, errFailed
	}
	k := nearest(x, exp)
	z := laplace(n.Row(array, []int64{k}).Word(0))
	w := math.Floor(-math.Ldexp(scale*z, -exp) + 0.5)
	return math.Ldexp(float64(k+int64(w)), exp) + step + err + float64(more*tau*dp.RoundUp), nil
}

// fastSolver is fast iterative Hessian mixing: [ihmSolver] with sketches X̃ = S_G·Z + η̃ξ of a fast transform Z = SX of
// k₂ rows. There is one transform for all iterations, or one for each.
//
// Privacy: as for [calibrateFast], under zero-out, while all bounds hold; the probability that one fails is part of δ.
// Iterations may have different noise levels, because the budget includes the releases that determine the levels.
// Cost: two Walsh–Hadamard transforms of n×d numbers for each transform; O(T(nd + k₂d²)).
// Errors: [errFailed], with at most the probability that a bound fails.
// Source: "The Fast Mixing Mechanism for Differential Privacy", Algorithms 1–3.
// Deviations: rows are padded with zeros; the source discards rows. m̂ is taken over real rows. The second sketch is
// drawn as a Wishart matrix. There is no maximum over noise levels.
type fastSolver struct {
	ihmSolver
	fast       fastNoise
	transforms int
	sampled    int // k₂
}

func (s *fastSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	d, bits := w.dim, s.params.Bits()
	type level struct {
		l      []float64
		hidden []int64
	}
	levels := make([]level, s.transforms)
	for t := range levels {
		k2 := min(s.sampled, padded(w.Len()))
		transform := drawSRHT(w.Len(), k2, noise.Row(numbered("fast-ihm/srht", t), nil))
		z, m := transform.apply(w.x, d)
		sum := gram.NewSum(d)
		sum.Add(z)
		upper := sum.Upper()
		// A row of Z may be much longer than 1, but Σ‖z‖² ≤ ‖S‖²·n, and ‖S‖² ≤ N/k₂.
		errs := map[string]float64{"mhat": eigenError(k2+w.Len(), d, 1),
			"lambda": eigenError((transform.padded/k2+1)*w.Len(), d, 1)}
		found, failed := s.fast.levels(m, transform.coherence(), leastEigenvalue(upper, d),
			func(array string, x, scale float64) (float64, error) {
				return releaseLaplace(noise, numbered("fast-ihm/"+array, t), x, errs[array], scale, s.fast.Omega,
					s.fast.Tau, bits)
			})
		if failed != nil {
			return nil, 0, failed
		}
		eta = max(eta, math.Sqrt(found.square))
		levels[t].l = full(upper, d, found.square)
		levels[t].hidden = bitsOf(levels[t].l)
		if !cholesky(levels[t].l, d) {
			return nil, 0, errFailed
		}
	}
	gradient, err := s.byRows(w, "fast-ihm/grad")
	if err != nil {
		return nil, 0, err
	}
	i := iteration{steps: s.iterations}
	i.gradient = func(t int, theta []float64) ([]float64, error) { return gradient(noise, t, theta) }
	i.sketch = s.wishartSketches("fast-ihm", d, noise, func(t int) ([]float64, []int64) {
		l := levels[min(t, len(levels)-1)]
		return l.l, l.hidden
	})
	if theta, err = i.run(d); err != nil {
		return nil, 0, err
	}
	roundPublic(theta)
	return theta, eta, nil
}
