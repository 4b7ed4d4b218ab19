package sgd

import (
	"math"
)

// dotSquare returns ⟨w, x⟩ and ‖x‖², each as a sum over even and one over odd
// coordinates.
func dotSquare(w, x []float64) (dot, square float64) {
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

// dot returns ⟨w, x⟩ in four interleaved sums.
func dot(w, x []float64) float64 {
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

// shorten scales a vector of finite numbers to a norm of at most bound.
func shorten(x []float64, bound float64) {
	largest := 0.0
	for _, v := range x {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return
	}
	// By the largest first, so that no square overflows.
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

// finite reports whether all of x are numbers.
func finite(x []float64) bool {
	for _, v := range x {
		if v-v != 0 { // NaN for NaN and the infinities
			return false
		}
	}
	return true
}
