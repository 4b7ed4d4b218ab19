// Package newton holds what the private Newton solvers share, the batch one and the
// online one: the noisy histogram of squared norms and what follows from it, the
// noisy Gram matrix of clipped rows, and the space that it whitens.
//
// Rows have norm at most 1. A null row, all zeros, is no row: it is in no bin and
// adds nothing. Everything here but the two releases is post-processing of them.
//
// Its arithmetic gives the same bits on every machine: no fused operation, no
// function of package math but square roots and moves of bits.
package newton

import "math"

// Exp returns eˣ to 4·10⁻¹⁶, +Inf and 0 beyond the range of float64.
func Exp(x float64) float64 {
	if !(x < 710) {
		return x * math.Inf(1) // NaN for NaN
	}
	if x < -745 {
		return 0
	}
	const ln2Hi, ln2Lo = 6.93147180369123816490e-01, 1.90821492927058770002e-10
	k := math.Floor(float64(x*math.Log2E) + 0.5)
	r := (x - float64(k*ln2Hi)) - float64(k*ln2Lo) // |r| ≤ 0.35
	sum := 1.0
	for n := 17.0; n >= 1; n-- {
		sum = 1 + float64(r*sum)/n
	}
	return math.Ldexp(sum, int(k))
}

// Log returns ln x for x > 0, normal and finite, to 4·10⁻¹⁶ of itself or of ln 2.
func Log(x float64) float64 {
	f, e := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f, e = 2*f, e-1
	}
	// ln f = 2 artanh r, r = (f−1)/(f+1), |r| ≤ 0.172.
	r := (f - 1) / (f + 1)
	s, sum := float64(r*r), 0.0
	for k := 25.0; k >= 1; k -= 2 {
		sum = float64(sum*s) + 1/k
	}
	return float64(2*r*sum) + float64(float64(e)*math.Ln2)
}

// Pow returns xᵃ for x as in Log.
func Pow(x, a float64) float64 { return Exp(float64(a * Log(x))) }

// Clip returns the number of [lo, hi] that is nearest to x.
func Clip(x, lo, hi float64) float64 { return min(max(x, lo), hi) }
