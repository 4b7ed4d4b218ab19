package refit

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
)

// Accounting names the way in which the noise is computed from (ε, δ).
type Accounting string

const (
	// Exact uses the exact curve of all releases together. It does not exist for fast-ihm, whose sketches are sketches
	// of a fast transform.
	Exact Accounting = "exact"
	// RDP adds up the Rényi curves of all releases and converts the sum once.
	RDP Accounting = "rdp"
	// Analytic, for AdaSSP, gives each release a third of ε and δ, exactly calibrated.
	Analytic Accounting = "analytic"
	// Paper is the calibration of the method's paper, for reproduction. It splits ε and δ among the releases, and
	// spends much less than (ε, δ) allow.
	Paper Accounting = "paper"
)

// sketchNoise is the noise of a method with Gaussian sketches.
type sketchNoise struct {
	// Gamma is a lower bound that all eigenvalues of XᵀX + η²I must satisfy, in units of the squared bound on the norm
	// of rows.
	Gamma float64
	// Sigma is the standard deviation of a gradient's noise in each coordinate, for residuals clipped to 1. 0 means
	// that there are no gradients.
	Sigma float64
	// Test is the standard deviation of the noise on λ_min, in units of the squared bound on the norm of rows. The
	// noisy λ_min is lowered by Tau standard deviations (for Laplace noise: scales) to make it a lower bound. 0 means
	// no test, and η² = γ.
	Test, Tau float64
	// Cost is the cost for a record.
	Cost dp.Cost
}

// calibrateIHM returns the noise of iterative Hessian mixing with T iterations of sketches of k rows. The releases are
// T·k rows of sketches at γ, T gradients of sensitivity S (1 or 2) at σ, and with a test of λ_min one Gaussian release
// of sensitivity 1 at γ/√k.
//
// With exact and rdp, γ is the smallest one at which all releases together are (ε, δ)-private. share is the part of the
// budget that sketches and test get, measured at small Rényi orders; it fixes σ for each γ:
//
//	share : 1−share = (k/γ²)(TS/4 + ½[test]) : TS²/(2σ²)
//
// The test may fail with probability δ/100 (exact) or δ/2 (rdp). paper halves ε and divides δ by four, as the source
// does.
//
// Errors: share is outside (0, 1); ε or δ is missing; acc is paper, under replace or where the claim of the paper does
// not hold.
// Source: Lev et al., "Near-Optimal Private Linear Regression via Iterative Hessian Mixing", Section 3 and Appendix C,
// for paper; docs/theory/refit.md.
func calibrateIHM(acc Accounting, p dp.Params, k, iterations int, share float64, test bool) (sketchNoise, error) {
	if err := checkParams(p); err != nil {
		return sketchNoise{}, err
	}
	if !(share > 0 && share < 1) {
		return sketchNoise{}, fmt.Errorf("share is %g, must be in (0, 1)", share)
	}
	if k < 1 || iterations < 1 {
		return sketchNoise{}, fmt.Errorf("there are %d iterations with sketches of %d rows, both numbers must be at "+
			"least 1", iterations, k)
	}
	t, rows := float64(iterations), float64(k)
	at := func(gamma, sigma float64, bad float64) sketchNoise {
		n := sketchNoise{Gamma: gamma, Sigma: sigma}
		mus := []dp.Cost{{Adjacency: p.Adjacency, Rows: k * iterations, Gamma: gamma, BadDelta: bad},
			{Adjacency: p.Adjacency, Mu: p.Adjacency.Factor() * math.Sqrt(t) / sigma}}
		if test {
			n.Test = gamma / math.Sqrt(rows)
			mus = append(mus, dp.Cost{Adjacency: p.Adjacency, Mu: 1 / n.Test})
		}
		n.Cost = dp.Compose(mus...)
		return n
	}
	if acc == Paper {
		delta := p.Delta / 4
		gamma, err := leastGamma(1, func(gamma float64) (bool, error) {
			spent := classical(delta, rows, gamma)
			return sketchWithin(p, k*iterations, gamma, p.Epsilon/2-spent, delta)
		})
		if err != nil {
			return sketchNoise{}, err
		}
		sigma, err := dp.Sigma(p.Epsilon/2, delta, math.Sqrt(t))
		if err != nil {
			return sketchNoise{}, err
		}
		return at(gamma, sigma, 0).paper(p, test, gaussianTau(4, min(p.Delta, utility(p))))
	}
	bad, tau, err := tail(acc, p, test)
	if err != nil {
		return sketchNoise{}, err
	}
	s := p.Adjacency.Factor()
	spent := t * s / 4 // in units of k/γ²
	if test {
		spent += 0.5
	}
	tied := func(gamma float64) sketchNoise {
		sigma := s * gamma * math.Sqrt(t*share/(2*spent*rows*(1-share)))
		n := at(gamma, sigma, bad)
		n.Tau = tau
		return n
	}
	gamma, err := leastGamma(1, func(gamma float64) (bool, error) { return within(acc, p, tied(gamma).Cost) })
	return tied(gamma), err
}

// calibrateMixing returns the noise of linear mixing: one sketch of k rows, and before it the test of λ_min at γ/√k.
// Sigma is 0. acc has the same values as for [calibrateIHM]; paper gives each of the three parts a third of δ.
//
// Errors: as [calibrateIHM].
// Source: the same paper, Section 2.
func calibrateMixing(acc Accounting, p dp.Params, k int) (sketchNoise, error) {
	if err := checkParams(p); err != nil {
		return sketchNoise{}, err
	}
	if k < 1 {
		return sketchNoise{}, fmt.Errorf("a sketch has %d rows, must have at least 1", k)
	}
	rows := float64(k)
	at := func(gamma, bad float64) sketchNoise {
		test := gamma / math.Sqrt(rows)
		return sketchNoise{Gamma: gamma, Test: test, Cost: dp.Cost{
			Adjacency: p.Adjacency, Mu: 1 / test, Rows: k, Gamma: gamma, BadDelta: bad,
		}}
	}
	if acc == Paper {
		gamma, err := leastGamma(1, func(gamma float64) (bool, error) {
			spent := classical(p.Delta/3, rows, gamma)
			return sketchWithin(p, k, gamma, p.Epsilon-spent, p.Delta/3)
		})
		if err != nil {
			return sketchNoise{}, err
		}
		return at(gamma, 0).paper(p, true, gaussianTau(3, min(p.Delta, 1.5*utility(p))))
	}
	bad, tau, err := tail(acc, p, true)
	if err != nil {
		return sketchNoise{}, err
	}
	gamma, err := leastGamma(1, func(gamma float64) (bool, error) { return within(acc, p, at(gamma, bad).Cost) })
	n := at(gamma, bad)
	n.Tau = tau
	return n, err
}

// dynamicRows returns the largest number of rows k̃ ≥ k of a sketch without noise with which the test at γ/√k and the
// sketch together are still (ε, δ)-private. It assumes that the test showed λ_min ≥ λ ≥ γ.
//
// Privacy: k̃ depends on the private λ. So test and sketch must each be private alone, and their ε and δ are added up,
// as in the paper's calibration. The guarantee is (ε, δ) itself, because no single cost covers every k̃. To calibrate
// the test together with each fixed k̃ would not suffice: the choice of k̃ depends on how much privacy the test has
// already lost.
// Errors: acc is not paper.
// Source: as [calibrateMixing], Algorithm 5. Here λ is in units of the squared bound on the norm of rows; the paper
// compares it without units.
func dynamicRows(acc Accounting, p dp.Params, n sketchNoise, k int, lambda float64) (int, error) {
	if acc != Paper {
		return 0, fmt.Errorf("accounting is %q, must be %q if the number of rows depends on a release", acc, Paper)
	}
	spent := classical(p.Delta/3, float64(k), n.Gamma)
	if exact, err := dp.Epsilon(p.Delta/3, 1/n.Test); err != nil || !(exact <= spent) {
		return 0, errors.Join(err,
			fmt.Errorf("under the paper's calibration, the test of λ_min would cost more than epsilon, which is %g",
				spent))
	}
	allowed := func(rows int) (bool, error) { return sketchWithin(p, rows, lambda, p.Epsilon-spent, p.Delta/3) }
	lo, hi := k, 2*k
	for {
		ok, err := allowed(hi)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		if lo, hi = hi, 2*hi; hi > 1<<40 {
			return lo, nil
		}
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		ok, err := allowed(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, nil
}

// paper completes the calibration of the method's paper. It refuses a calibration that is not (ε, δ)-private, because
// the papers' Gaussian formula is proven only for ε ≤ 1.
func (n sketchNoise) paper(p dp.Params, test bool, tau float64) (sketchNoise, error) {
	if p.Adjacency != dp.ZeroOut {
		return sketchNoise{}, errPaper
	}
	if test {
		n.Tau = tau
		n.Cost.BadDelta = upperTail(tau)
	}
	if ok, err := n.Cost.Within(p.Epsilon, p.Delta); err != nil || !ok {
		return sketchNoise{}, errors.Join(err,
			fmt.Errorf("the paper's calibration cannot reach (epsilon, delta) = (%g, %g)", p.Epsilon, p.Delta))
	}
	return n, nil
}

var errPaper = errors.New("the paper's calibration is for the adjacency zero-out only")

// classical returns √(2 log(1.25/δ))/s for the noise multiplier s = γ/√k.
func classical(delta, rows, gamma float64) float64 {
	return math.Sqrt(2*math.Log(1.25/delta)) * math.Sqrt(rows) / gamma
}

// utility returns ϱ, the probability with which the papers' error bounds may fail.
func utility(p dp.Params) float64 { return p.Delta / 10 }

// sketchRows returns the number of rows of a sketch of d features for T iterations, as in the
// sources: max(⌊6d⌋, ⌊6 log(4T/ϱ)⌋), ϱ = δ/10.
func sketchRows(d, iterations int, delta float64) int {
	return max(6*d, int(6*math.Log(4*float64(iterations)/(delta/10))))
}

// mixingRows returns the number of rows for linear mixing: ⌊2.5 max(d, log(2/ϱ))⌋, ϱ = δ/10.
func mixingRows(d int, delta float64) int {
	return int(2.5 * max(float64(d), math.Log(2/(delta/10))))
}

// gaussianTau returns √(2 log(parts/δ)), the number of standard deviations by which the papers lower λ_min.
func gaussianTau(parts, delta float64) float64 { return math.Sqrt(2 * math.Log(parts/delta)) }

// checkParams refuses parameters without ε and δ.
func checkParams(p dp.Params) error {
	if p.Mu != 0 {
		return errors.New("a solver with sketches needs epsilon and delta, not mu")
	}
	if !(p.Epsilon > 0) {
		return fmt.Errorf("epsilon is %g, must be positive", p.Epsilon)
	}
	_, err := p.Budget()
	return err
}

// tail returns bad, the probability with which a test of λ_min may fail, and the τ that belongs to it.
func tail(acc Accounting, p dp.Params, test bool) (bad, tau float64, err error) {
	switch {
	case acc != Exact && acc != RDP:
		return 0, 0, fmt.Errorf("accounting is %q, must be %q, %q or %q", acc, Exact, RDP, Paper)
	case !test:
		return 0, 0, nil
	case acc == RDP:
		bad = p.Delta / 2
	default:
		bad = p.Delta / 100
	}
	return bad, upperQuantile(bad), nil
}

// within reports whether a cost is (ε, δ)-private by the given accounting.
func within(acc Accounting, p dp.Params, c dp.Cost) (bool, error) {
	if acc == Exact {
		return c.Within(p.Epsilon, p.Delta)
	}
	eps, err := c.Curve().Epsilon(p.Delta - c.BadDelta)
	return eps <= p.Epsilon, err
}

// sketchWithin reports whether the sketch rows alone are (ε, δ)-private, by their Rényi curve.
func sketchWithin(p dp.Params, rows int, gamma, eps, delta float64) (bool, error) {
	if !(eps > 0) {
		return false, nil
	}
	spent, err := dp.Cost{Adjacency: p.Adjacency, Rows: rows, Gamma: gamma}.Curve().Epsilon(delta)
	return spent <= eps, err
}

// leastGamma returns the smallest allowed γ above lower, rounded up by at most 10⁻¹³ of it. The caller must ensure that
// if some γ is allowed, all larger ones are allowed too.
func leastGamma(lower float64, allowed func(gamma float64) (bool, error)) (float64, error) {
	hi := 4.0
	for {
		ok, err := allowed(hi)
		if err != nil {
			return 0, err
		}
		if ok {
			break
		}
		if lower, hi = hi, 2*hi; hi > 1e30 {
			return 0, errors.New("no noise gives this epsilon and delta: raise them")
		}
	}
	for hi-lower > 1e-13*hi {
		mid := lower + (hi-lower)/2
		if hi > 2*lower {
			mid = math.Sqrt(lower * hi)
		}
		if mid <= lower || mid >= hi {
			break
		}
		ok, err := allowed(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			hi = mid
		} else {
			lower = mid
		}
	}
	return hi, nil
}

// upperTail returns P(Z > z), rounded up.
func upperTail(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 * (1 + 1e-12) }

// upperQuantile returns the smallest z with P(Z > z) ≤ p, or a little more, for p ≤ ½.
func upperQuantile(p float64) float64 {
	lo, hi := 0.0, 39.0
	for range 100 {
		if mid := lo + (hi-lo)/2; upperTail(mid) <= p {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}
