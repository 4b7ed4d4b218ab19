package calibration

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// SquaresSensitivity returns r(ν), the squared joint sensitivity of a vector in the unit ball of ℝᵈ and its squares at
// relative weight ν:
//
//	r(ν) = sup ‖x−y‖² + ν‖xxᵀ−yyᵀ‖²_F   over neighbouring x, y
//
//	zero-out: 1 + ν                              (y = 0)
//	replace, d ≥ 2: 4 for ν ≤ ½, else 2 + 2ν + 1/(2ν)
//	replace, d = 1: 4 for ν ≤ (11+5√5)/8, else (3−q)²(νq+1+ν)/8, q = √(1−2/ν)
//
// It is the same for the squares of the entries alone, x∘x, as for the matrix xxᵀ.
//
// Privacy: exact; one pair attains it.
// Source: Kalinin, Upadhyay, Lampert, "Continual Release Moment Estimation with Differential Privacy", Lemma 3.5 and
// Theorem 4.3; the zero-out form is ours. See docs/theory/moments.md.
func SquaresSensitivity(nu float64, d int, a dp.Adjacency) float64 {
	switch {
	case a == dp.ZeroOut:
		return 1 + nu
	case nu <= FreeSquares(d):
		return 4
	case d >= 2:
		return 2 + 2*nu + 1/(2*nu)
	}
	q := math.Sqrt(1 - 2/nu)
	return (3 - q) * (3 - q) * (float64(nu*q) + 1 + nu) / 8
}

// FreeSquares returns ν*, the largest weight at which the squares are free under replacement: releasing a vector in ℝᵈ
// with its squares costs no more than releasing the vector alone, r(ν*) = 4 = r(0).
func FreeSquares(d int) float64 {
	if d == 1 {
		return (11 + 5*math.Sqrt(5)) / 8
	}
	return 0.5
}
