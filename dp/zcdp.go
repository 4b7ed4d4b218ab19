package dp

import (
	"fmt"
	"math"
)

// ZCDP is the parameter ρ of zero-concentrated differential privacy: the mechanism's Rényi divergence of order α is at
// most αρ, for every α > 1. A Gaussian mechanism has ρ = μ²/2.
//
// ρ is stated for one adjacency relation, and the results of all methods hold for that relation. Conversions fail if ρ
// is negative, NaN or infinite, or δ is outside (0, 1).
//
// Use ZCDP to calibrate as a paper does. For a new calibration use [Mu]: with its exact curve a Gaussian mechanism
// needs less noise for the same ε and δ.
type ZCDP float64

// Simple returns the ε that papers quote, ρ + 2√(ρ log 1/δ), rounded up.
//
// Source: Bun and Steinke (2016), Proposition 1.3.
func (rho ZCDP) Simple(delta float64) (float64, error) {
	if err := rho.check(delta); err != nil {
		return 0, err
	}
	r, l := float64(rho), -math.Log(delta)
	return (r + 2*math.Sqrt(r*l)) * (1 + eightRoundings), nil
}

// Tight returns the best ε that follows from ρ alone, rounded up. It converts the curve αρ at its best order. The
// result is below that of Simple.
//
// Source: Canonne, Kamath and Steinke (2020), Proposition 12.
func (rho ZCDP) Tight(delta float64) (float64, error) {
	if err := rho.check(delta); err != nil {
		return 0, err
	}
	if rho == 0 {
		return 0, nil
	}
	return Curve{{Kind: KindGaussian, Count: 1, Mu: rho.mu()}}.Epsilon(delta)
}

// Exact returns the exact ε, rounded up, of the Gaussian mechanism with μ = √(2ρ). The result is below that of Tight.
//
// Privacy: the result holds only if every composed mechanism is Gaussian. For any other mechanism use Tight, because ρ
// bounds its Rényi divergences but not its exact curve.
func (rho ZCDP) Exact(delta float64) (float64, error) {
	if err := rho.check(delta); err != nil {
		return 0, err
	}
	return Epsilon(delta, rho.mu())
}

// RhoSimple is the inverse of Simple. It returns the ρ for which Simple returns ε, rounded down:
//
//	ρ = (√(L+ε) − √L)²,  L = log 1/δ
//
// For a Gaussian mechanism, Mu(ε, δ)²/2 may be larger.
//
// Errors: ε negative, NaN or infinite; δ outside (0, 1).
func RhoSimple(eps, delta float64) (ZCDP, error) {
	if err := checkEpsDelta(eps, delta); err != nil {
		return 0, err
	}
	l := -math.Log(delta)
	root := eps / (math.Sqrt(l+eps) + math.Sqrt(l)) // √(L+ε) − √L without cancellation
	return ZCDP(root * root * (1 - eightRoundings)), nil
}

// mu returns √(2ρ), rounded up.
func (rho ZCDP) mu() float64 { return math.Sqrt(2*float64(rho)) * (1 + 0x1p-52) }

func (rho ZCDP) check(delta float64) error {
	if !(rho >= 0) || math.IsInf(float64(rho), 0) {
		return fmt.Errorf("rho is %g, must be finite and at least 0", float64(rho))
	}
	return checkEpsDelta(0, delta)
}
