package moments

import (
	"errors"
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/eigen"
)

// errEigen means that an eigenvalue iteration does not converge, or that a number is not finite.
var errEigen = errors.New("the eigenvalues do not converge")

// ProjectPSD returns the matrix nearest to M, in Frobenius norm, whose eigenvalues are at least floor: M = QΛQᵀ becomes
// Q·max(Λ, floor)·Qᵀ. upper is the upper triangle of M, row by row. The result has the same form.
//
// The result is at least as close as M to every matrix with such eigenvalues, in particular to the true matrix if its
// eigenvalues are at least floor. The estimate gains a bias and loses variance, so the standard errors of M are not
// those of the result. As a function of a release it costs no budget.
// Cost: O(d³).
func ProjectPSD(upper []float64, d int, floor float64) ([]float64, error) {
	return project(upper, d, func(values []float64) {
		for i, v := range values {
			values[i] = max(v, floor)
		}
	})
}

// ProjectMoment returns the nearest positive semidefinite matrix with a trace of at most limit. If rows have norm at
// most ζ, and the weights add up to A, their true second moment is such a matrix for limit = ζ²A. Everything else is as
// for ProjectPSD.
func ProjectMoment(upper []float64, d int, limit float64) ([]float64, error) {
	return project(upper, d, func(values []float64) {
		var trace float64
		for i, v := range values {
			values[i] = max(v, 0)
			trace += values[i]
		}
		if trace > limit {
			simplex(values, limit)
		}
	})
}

// ProjectBall shortens x to norm at most radius, in place. The result is the nearest vector in the ball; means and sums
// of rows of bounded norm are in such a ball.
func ProjectBall(x []float64, radius float64) {
	var sum float64
	for _, v := range x {
		sum += float64(v * v)
	}
	if norm := math.Sqrt(sum); norm > radius {
		for i := range x {
			x[i] *= radius / norm
		}
	}
}

// project computes the eigenvalues of a symmetric matrix, changes them, and returns the matrix with the changed
// eigenvalues and the same eigenvectors.
func project(upper []float64, d int, change func(values []float64)) ([]float64, error) {
	q := make([]float64, d*d)
	n := 0
	for i := range d {
		for j := i; j < d; j++ {
			q[j*d+i] = upper[n]
			n++
		}
	}
	values, ok := eigen.Symmetric(q, d)
	if !ok {
		return nil, errEigen
	}
	change(values)
	out := make([]float64, len(upper))
	for k, v := range values {
		if v == 0 {
			continue
		}
		vector, rest := q[k*d:(k+1)*d], out
		for i, x := range vector {
			x *= v
			row := rest[:d-i]
			rest = rest[d-i:]
			for j, y := range vector[i:] {
				row[j] += float64(x * y)
			}
		}
	}
	return out, nil
}

// simplex replaces x ≥ 0 by the nearest vector ≥ 0 with sum total: max(x − θ, 0) for some θ.
func simplex(x []float64, total float64) {
	sorted := slices.Sorted(slices.Values(x))
	slices.Reverse(sorted)
	var sum, theta float64
	for i, v := range sorted {
		sum += v
		t := (sum - total) / float64(i+1)
		if v <= t {
			break
		}
		theta = t
	}
	for i, v := range x {
		x[i] = max(v-theta, 0)
	}
}
