// Package newton has the parts that the two private Newton solvers (one for windows, one online) share: the noisy
// histogram of squared norms and the numbers computed from it, the noisy Gram matrix of clipped rows, and the linear
// map that whitens by this matrix.
//
// A null row is not counted. The caller adds it, as zeros, only to the positions of the Gram matrix. Everything except
// the releases of histogram and matrix is post-processing.
//
// The arithmetic gives the same bits on every machine: operations are not fused, and of package math it uses only
// square roots and functions that move bits.
package newton

import "math"

// Exp returns eˣ to within an ulp, and +Inf and 0 beyond the range of float64. It uses the same operations on every
// machine. math.Exp is assembly on some machines, with different last bits. A clip norm with different last bits would
// quantise the next record differently. The method comes from FreeBSD's e_exp.c.
func Exp(x float64) float64 {
	const (
		ln2High = 6.93147180369123816490e-01
		ln2Low  = 1.90821492927058770002e-10
		p1      = 1.66666666666666657415e-01
		p2      = -2.77777777770155933842e-03
		p3      = 6.61375632143793436117e-05
		p4      = -1.65339022054652515390e-06
		p5      = 4.13813679705723846039e-08
	)
	switch {
	case x != x || x > 1000:
		return x + math.Inf(1)
	case x < -1000:
		return 0
	}
	k := math.Floor(float64(x*math.Log2E) + 0.5)
	high, low := x-float64(k*ln2High), float64(k*ln2Low)
	r := high - low
	t := float64(r * r)
	c := r - float64(t*(p1+float64(t*(p2+float64(t*(p3+float64(t*(p4+float64(t*p5)))))))))
	y := 1 - ((low - float64(r*c)/(2-c)) - high)
	return math.Ldexp(y, int(k))
}

// Log returns ln x for normal, finite x > 0, to 4·10⁻¹⁶ relative to itself or to ln 2.
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

// Pow returns xᵃ, for x as in Log.
func Pow(x, a float64) float64 { return Exp(float64(a * Log(x))) }

// Clip returns the number in [lo, hi] that is nearest to x.
func Clip(x, lo, hi float64) float64 { return min(max(x, lo), hi) }

// Stein returns max(0, 1 − noise/square), the factor by which a noisy vector is shortened. square is the vector's
// squared norm, and noise approximates the squared norm of its noise. For the zero vector Stein returns 0.
func Stein(noise, square float64) float64 {
	if square == 0 {
		return 0
	}
	return max(0, 1-noise/square)
}
