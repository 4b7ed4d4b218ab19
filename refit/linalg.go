package refit

import (
	"math"

	"github.com/streamdp/streamdp/internal/vector"
)

// Matrices in this file are d×d, row-major. No multiplication is fused with an addition, so results have the same bits
// on every machine.

// cholesky replaces the symmetric matrix a, given by its lower triangle, by L with a = LLᵀ, and clears the rest. It
// reports whether a is positive definite.
func cholesky(a []float64, d int) bool {
	for i := range d {
		ri := a[i*d:][:d]
		for j := range i + 1 {
			rj := a[j*d:][:d]
			sum := ri[j] - vector.Dot2(ri[:j], rj[:j])
			if i > j {
				ri[j] = sum / rj[j]
				continue
			}
			if !(sum > 0) || math.IsInf(sum, 1) {
				return false
			}
			ri[j] = math.Sqrt(sum)
		}
		clear(ri[i+1:])
	}
	return true
}

// forward replaces x by L⁻¹x.
func forward(l, x []float64) {
	d := len(x)
	for i := range x {
		row := l[i*d:][:i+1]
		x[i] = (x[i] - vector.Dot2(row[:i], x[:i])) / row[i]
	}
}

// backward replaces x by L⁻ᵀx.
func backward(l, x []float64) {
	d := len(x)
	for i := d - 1; i >= 0; i-- {
		row := l[i*d:][:i+1]
		x[i] /= row[i]
		for j, v := range row[:i] {
			x[j] -= float64(v * x[i])
		}
	}
}

// lowerProduct returns the product LA of two lower triangular matrices.
func lowerProduct(l, a []float64, d int) []float64 {
	m := make([]float64, d*d)
	for i := range d {
		dst := m[i*d:][:i+1]
		for k, v := range l[i*d:][:i+1] {
			for j, w := range a[k*d:][:k+1] {
				dst[j] += float64(v * w)
			}
		}
	}
	return m
}

// addSquare adds MMᵀ to a, for a lower triangular M.
func addSquare(a, m []float64, d int) {
	for i := range d {
		for j := range i + 1 {
			v := vector.Dot2(m[i*d:][:j+1], m[j*d:][:j+1])
			a[i*d+j] += v
			if i > j {
				a[j*d+i] += v
			}
		}
	}
}

// full returns the symmetric matrix with the given upper triangle, stored row by row, plus ridge·I.
func full(upper []float64, d int, ridge float64) []float64 {
	a := make([]float64, d*d)
	n := 0
	for i := range d {
		for j := i; j < d; j++ {
			a[i*d+j], a[j*d+i] = upper[n], upper[n]
			n++
		}
		a[i*d+i] += ridge
	}
	return a
}
