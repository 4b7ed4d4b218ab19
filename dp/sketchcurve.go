package dp

import (
	"math"

	"gonum.org/v1/gonum/mathext"
)

// sketchDelta returns δ(ε), rounded up, of a dense Gaussian sketch alone: K rows drawn from N(0, XᵀX + η²I). It is the
// exact curve of the worst data set:
//
//	removal:  S(t) − e^ε S(t/v),  v = 1 − 1/γ,  t = 2(ε − (K/2)log v)/(1/v − 1)
//	addition: F(t) − e^ε F(t/w),  w = 1 + 1/γ,  t = 2((K/2)log w − ε)/(1 − 1/w)
//
// δ(ε) is the larger of the two. F is the distribution function of χ²_K, and S = 1 − F. If these differences are not
// accurate, sketchDelta uses the integral of [jointDelta], which is also exact.
//
// Privacy: under ZeroOut it holds for rows x with ‖x‖ ≤ 1 and data sets whose XᵀX + η²I has no eigenvalue below γ. For
// Replace use jointDelta.
// Cost: four incomplete gamma functions.
// Errors: ε negative, NaN or infinite; rows negative; γ not above 1.
// Source: docs/theory/accounting.md.
func sketchDelta(eps float64, rows int, gamma float64) (float64, error) {
	return jointDelta(eps, 0, rows, gamma, ZeroOut)
}

// sketchEpsilon returns the smallest ε ≥ 0 with sketchDelta(ε) ≤ δ, rounded up.
//
// Errors: δ outside (0, 1); rows negative; γ not above 1.
func sketchEpsilon(delta float64, rows int, gamma float64) (float64, error) {
	return jointEpsilon(delta, 0, rows, gamma, ZeroOut)
}

// gammaError bounds the relative error of gonum's regularised incomplete gamma functions, including the error of their
// arguments. It holds for K ≤ gammaRows and probabilities of at least gammaLeast; the largest error found was 4·10⁻¹³.
// Outside this range the errors are larger. From 10⁷ rows on the results are wrong by factors, because the functions
// end their sums too early.
const (
	gammaError = 2e-12
	gammaRows  = 200_000
	gammaLeast = 1e-85
)

// rowsDelta returns an upper bound on δ(ε) of K rows, removed or added, by incomplete gamma functions. ε may be any
// real number. sharp reports whether the bound is within 10⁻⁹ of δ; if it is false, delta is meaningless.
func rowsDelta(eps, rows, gamma float64, removed bool) (delta float64, sharp bool) {
	tail, t, s := mathext.GammaIncRegComp, 0.0, 0.0
	if removed {
		t = eps - rows/2*math.Log1p(-1/gamma)
		s = gamma - 1
	} else {
		tail = mathext.GammaIncReg
		t = rows/2*math.Log1p(1/gamma) - eps
		s = gamma + 1
	}
	if t <= 0 {
		if removed { // the loss is always above ε
			return min(1, -math.Expm1(eps)*(1+eightRoundings)), true
		}
		return 0, true // the loss is never above ε
	}
	// gonum's argument is t/2.
	p, q := tail(rows/2, t*s), tail(rows/2, t*gamma)
	known := rows <= gammaRows && min(p, q) >= gammaLeast
	q *= math.Exp(eps)
	delta = p - q
	slack := gammaError * (p + q)
	return min(1, max(0, delta)+slack), known && slack < 1e-9*delta
}
