package dp

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"gonum.org/v1/gonum/integrate/quad"
)

// slack is the margin, relative and absolute, of every comparison with log δ. It is larger than the error of LogDelta
// (10⁻¹⁴, docs/theory/dp.md). So a mechanism that passes the comparison is private in exact arithmetic too.
const slack = 1e-13

// LogDelta returns log δ(ε, μ), the exact privacy profile of the Gaussian mechanism with sensitivity-to-noise ratio μ:
//
//	δ(ε, μ) = Q(ε/μ − μ/2) − e^ε Q(ε/μ + μ/2)
//
// for any real ε and μ > 0. It works with logarithms throughout. So it is accurate down to δ = 10⁻³⁰⁰ and below, where
// the difference of the two terms would lose all digits.
//
// Privacy: the curve holds for both directions of either adjacency relation. It depends on the relation only through μ
// = sensitivity/σ.
// Cost: at most 128 evaluations of the integrand.
// Source: Balle and Wang (2018), Theorem 8; the branches are derived in docs/theory/dp.md.
func LogDelta(eps, mu float64) float64 {
	if !(mu > 0) || math.IsNaN(eps) {
		return math.NaN()
	}
	a, b := eps/mu-mu/2, eps/mu+mu/2
	logPhi := -a*a/2 - logSqrt2Pi // log φ(a) = ε + log φ(b)
	switch {
	case a < -1:
		// δ is not small: compute its complement, a sum of positive terms.
		var t float64 // e^ε Q(b)
		if b < 5 {
			t = math.Exp(eps) * math.Erfc(b/math.Sqrt2) / 2
		} else {
			t = math.Exp(logPhi + math.Log(mills(b)))
		}
		return math.Log1p(-(math.Erfc(-a/math.Sqrt2)/2 + t))
	case mu > 1:
		return logPhi + math.Log(mills(a)-mills(b))
	}
	// δ = φ(a) ∫₀^∞ exp(−at − t²/2) (1 − exp(−μt)) dt, which needs no difference of nearly equal numbers.
	top := -a + math.Sqrt(a*a+84)
	if a > 0 {
		top = 84 / (a + math.Sqrt(a*a+84))
	}
	nodes, weights := legendre64()
	var sum float64
	for panel := range 2 {
		for i, x := range nodes {
			t := (float64(panel) + x) * top / 2
			sum += weights[i] * math.Exp(-a*t-t*t/2) * -math.Expm1(-mu*t)
		}
	}
	return logPhi + math.Log(sum*top/2)
}

const logSqrt2Pi = 0.91893853320467274178

// mills returns Mills' ratio Q(x)/φ(x).
func mills(x float64) float64 {
	if x < 5 {
		return math.Sqrt(math.Pi/2) * math.Exp(x*x/2) * math.Erfc(x/math.Sqrt2)
	}
	t := x
	for k := 60.0; k >= 1; k-- {
		t = x + k/t
	}
	return 1 / t
}

// legendre64 returns the nodes and weights of the 64-point Gauss–Legendre rule
// on [0, 1].
var legendre64 = sync.OnceValues(func() (x, w []float64) {
	x, w = make([]float64, 64), make([]float64, 64)
	quad.Legendre{}.FixedLocations(x, w, 0, 1)
	return x, w
})

// Mu returns the largest μ for which the Gaussian mechanism is (ε, δ)-private,
// rounded down: δ(ε, Mu(ε, δ)) ≤ δ.
//
// Errors: ε negative, NaN or infinite; δ outside (0, 1). No Gaussian mechanism
// is (ε, 0)-private.
func Mu(eps, delta float64) (float64, error) {
	if err := checkEpsDelta(eps, delta); err != nil {
		return 0, err
	}
	target := math.Log(delta)
	target -= slack * (1 - target)
	private := func(mu float64) bool { return LogDelta(eps, mu) <= target }

	// e^lo is the larger of two lower bounds on μ: one by concentrated privacy, one from δ(ε, μ) ≤ δ(0, μ) ≤ μ/√(2π).
	root := math.Sqrt(-math.Log(delta))
	lo := math.Log(max(math.Sqrt2*(eps/(math.Sqrt(root*root+eps)+root)), 2.5*delta) * (1 - 1e-9))
	for !private(math.Exp(lo)) {
		lo -= 1e-9
	}
	hi := lo + 0.5
	for private(math.Exp(hi)) {
		lo, hi = hi, hi+0.5
	}
	for range 100 {
		mid := lo + (hi-lo)/2
		if mid <= lo || mid >= hi {
			break
		}
		if private(math.Exp(mid)) {
			lo = mid
		} else {
			hi = mid
		}
	}
	mu := math.Exp(lo)
	for !private(mu) {
		mu = math.Nextafter(mu, 0)
	}
	return mu, nil
}

// Sigma returns the smallest noise standard deviation for which a Gaussian
// mechanism of the given ℓ₂ sensitivity is (ε, δ)-private, rounded up.
func Sigma(eps, delta, sensitivity float64) (float64, error) {
	if !(sensitivity > 0) || math.IsInf(sensitivity, 0) {
		return 0, fmt.Errorf("sensitivity is %g, must be positive and finite", sensitivity)
	}
	mu, err := Mu(eps, delta)
	if err != nil {
		return 0, err
	}
	return math.Nextafter(sensitivity/mu, math.Inf(1)), nil
}

// Epsilon returns the smallest ε ≥ 0 for which the Gaussian mechanism with
// ratio μ is (ε, δ)-private, rounded up.
//
// Errors: μ negative, NaN or infinite; δ outside (0, 1).
func Epsilon(delta, mu float64) (float64, error) {
	if err := checkEpsDelta(0, delta); err != nil {
		return 0, err
	}
	if !(mu >= 0) || math.IsInf(mu, 0) {
		return 0, fmt.Errorf("mu is %g, must be finite and at least 0", mu)
	}
	if mu == 0 {
		return 0, nil
	}
	target := math.Log(delta)
	target -= slack * (1 - target)
	private := func(eps float64) bool { return LogDelta(eps, mu) <= target }
	if private(0) {
		return 0, nil
	}
	lo, hi := 0.0, (mu*mu/2+mu*math.Sqrt(-2*math.Log(delta)))*(1+1e-9)
	for !private(hi) {
		hi *= 1 + 1e-9
	}
	for range 2000 {
		mid := lo + (hi-lo)/2
		if mid <= lo || mid >= hi || hi-lo <= 1e-16*hi {
			break
		}
		if private(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, nil
}

func checkEpsDelta(eps, delta float64) error {
	var errs []error
	if !(eps >= 0) || math.IsInf(eps, 0) {
		errs = append(errs, fmt.Errorf("epsilon is %g, must be finite and at least 0", eps))
	}
	if !(delta > 0 && delta < 1) {
		errs = append(errs, fmt.Errorf("delta is %g, must be in (0, 1)", delta))
	}
	return errors.Join(errs...)
}
