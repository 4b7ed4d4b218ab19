// Package vector has the sums and tests of vectors that the estimators share.
//
// Releases depend on these sums, so each function gives the same bits on every machine: no product is fused with an
// addition, and the order of the additions is fixed. Dot2 and Dot4 add in different orders, so they differ in last
// bits. An estimator that has made a release must not replace one by the other.
package vector

import "math"

// Finite reports whether all of x are numbers: no NaN and no infinity.
func Finite(x []float64) bool {
	for _, v := range x {
		if v-v != 0 { // true if v is NaN or infinite
			return false
		}
	}
	return true
}

// Positive reports whether x is a number above 0.
func Positive(x float64) bool { return x > 0 && !math.IsInf(x, 0) }

// Dot2 returns ⟨x, y⟩ as the sum of two sums, over even and over odd coordinates.
func Dot2(x, y []float64) float64 {
	y = y[:len(x)]
	var even, odd float64
	for len(x) >= 2 {
		even += float64(x[0] * y[0])
		odd += float64(x[1] * y[1])
		x, y = x[2:], y[2:]
	}
	if len(x) == 1 {
		even += float64(x[0] * y[0])
	}
	return even + odd
}

// Dot4 returns ⟨w, x⟩ in four interleaved sums. w may be longer than x.
func Dot4(w, x []float64) float64 {
	n := len(x)
	w = w[:n]
	var d0, d1, d2, d3 float64
	i := 0
	for ; i+3 < n; i += 4 {
		d0 += float64(w[i] * x[i])
		d1 += float64(w[i+1] * x[i+1])
		d2 += float64(w[i+2] * x[i+2])
		d3 += float64(w[i+3] * x[i+3])
	}
	for ; i < n; i++ {
		d0 += float64(w[i] * x[i])
	}
	return (d0 + d1) + (d2 + d3)
}

// DotSquare returns ⟨w, x⟩ and ‖x‖², each in the order of Dot2. w may be longer than x.
func DotSquare(w, x []float64) (dot, square float64) {
	n := len(x)
	w = w[:n]
	var d0, d1, s0, s1 float64
	i := 0
	for ; i+1 < n; i += 2 {
		x0, x1 := x[i], x[i+1]
		d0 += float64(w[i] * x0)
		s0 += float64(x0 * x0)
		d1 += float64(w[i+1] * x1)
		s1 += float64(x1 * x1)
	}
	if i < n {
		d0 += float64(w[i] * x[i])
		s0 += float64(x[i] * x[i])
	}
	return d0 + d1, s0 + s1
}

// Axpy adds a·x to dst.
func Axpy(dst []float64, a float64, x []float64) {
	dst = dst[:len(x)]
	for j, v := range x {
		dst[j] += float64(a * v)
	}
}

// Shorten scales a vector of finite numbers to a norm of at most bound, up to rounding.
func Shorten(x []float64, bound float64) {
	largest := 0.0
	for _, v := range x {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return
	}
	// Divide by the largest entry first, so that no square overflows.
	var square float64
	for _, v := range x {
		v /= largest
		square += float64(v * v)
	}
	if norm := math.Sqrt(square); norm > bound/largest {
		for j, v := range x {
			x[j] = float64(v / largest * (bound / norm))
		}
	}
}
