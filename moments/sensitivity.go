package moments

import (
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
)

// JointSensitivity returns the ℓ₂ sensitivity of (C₁X, √λ·C₂(X∘X)) to one record of norm at most clip, in the unit of a
// record:
//
//	s² = max_i ζ²·(α_i²·r(λζ²β_i²/α_i²))
//
// with α_i and β_i the norms of column i of C₁ and C₂, given in `first` and `second`. λ has the unit 1/x². C₁ and C₂
// may be any lower triangular matrices, and inputs may depend on earlier outputs.
//
// Privacy: a record contributes to one column, so s is exact: the maximum is attained by a record in the column with
// the largest term.
// Source: as for calibration.SquaresSensitivity. The paper requires decreasing column norms; only exactness needs them.
//
// An estimator calibrates by [Joint], which gives the same for equal columns. This function is for the reproduction of
// the paper.
func JointSensitivity(first, second []float64, lambda, clip float64, d int, adjacency dp.Adjacency) float64 {
	var s2 float64
	for i, a := range first {
		s2 = max(s2, support(a*a, lambda*clip*clip*second[i]*second[i], d, adjacency))
	}
	return clip * math.Sqrt(s2)
}

// support returns sup a‖x−y‖² + b‖xxᵀ−yyᵀ‖²_F over pairs of neighbouring records in the unit
// ball of ℝᵈ: a·r(b/a).
func support(a, b float64, d int, adjacency dp.Adjacency) float64 {
	switch {
	case a != 0:
		return a * calibration.SquaresSensitivity(b/a, d, adjacency)
	case d >= 2 && adjacency == dp.Replace:
		return 2 * b
	}
	return b
}

// ParticipationSensitivity returns an upper bound on the ℓ₂ sensitivity of (C₁X, √λ·C₂(X∘X)) to all records of one
// person. The person contributes to the given steps (from 0) in both of two neighbouring streams:
//
//	s² ≤ Σ_{i∈π} sup R¹_i‖x−y‖² + λR²_i‖xxᵀ−yyᵀ‖²_F,   R_i = Σ_{j∈π} |CᵀC|_ij
//
// `first` and `second` are the matrices, by row, over the full horizon, because two columns overlap in all rows after
// the later one. If several patterns of steps are possible, take the largest bound. For one step the result is the
// exact sensitivity to a single record.
//
// Source: docs/theory/moments.md.
func ParticipationSensitivity(first, second [][]float64, steps []int, lambda, clip float64, d int,
	adjacency dp.Adjacency) float64 {
	overlap := func(c [][]float64, i int) (sum float64) {
		for _, j := range steps {
			var g float64
			for _, row := range c {
				g += row[i] * row[j]
			}
			sum += math.Abs(g)
		}
		return sum
	}
	var s2 float64
	for _, i := range steps {
		s2 += support(overlap(first, i), lambda*clip*clip*overlap(second, i), d, adjacency)
	}
	return clip * math.Sqrt(s2)
}

// Noise is the result of a calibration: it holds the standard deviations of one step's independent draws, before they
// are correlated.
type Noise struct {
	Lambda      float64 // weight of the second moment, 1/x²
	Sensitivity float64 // joint ℓ₂ sensitivity, x
	First       float64 // deviation of every entry of the first moment, x
	Diagonal    float64 // deviation of a diagonal entry of the second moment, x²
	OffDiagonal float64 // deviation of any other entry of the second moment, x²
}

func spread(lambda, sensitivity, mu float64) Noise {
	tau := sensitivity / mu
	return Noise{
		Lambda:      lambda,
		Sensitivity: sensitivity,
		First:       tau,
		Diagonal:    tau / math.Sqrt(lambda),
		OffDiagonal: tau / math.Sqrt(2*lambda),
	}
}

// chooseNu returns the ν that minimises (K₁ + K₂/ν)·r(ν), where K₁ and K₂ are
// the weighted squared errors of first and second moments at r = ν = 1:
//
//	zero-out √(K₂/K₁);  replace, d ≥ 2: (1 + √(1 + 16K₂/K₁))/4, at least ½
//	replace, d = 1: 2/(κ(2−κ)) for κ = √(K₁/K₂) < 2√5 − 4, else ν*
//
// Source: docs/theory/moments.md.
func chooseNu(k1, k2 float64, d int, adjacency dp.Adjacency) float64 {
	switch {
	case adjacency == dp.ZeroOut:
		return math.Sqrt(k2 / k1)
	case d >= 2:
		return (1 + math.Sqrt(1+16*k2/k1)) / 4
	}
	kappa := math.Sqrt(k1 / k2)
	if kappa >= 2*math.Sqrt(5)-4 {
		return calibration.FreeSquares(1)
	}
	return max(calibration.FreeSquares(1), 2/(kappa*(2-kappa)))
}

// nuForInflation returns the largest ν at which the variance of the first moment is at most inflation times its
// variance without a second moment. For inflation φ, that is r(ν) = 4φ under replacement, and 1 + ν = φ under zero-out.
//
// Errors: an inflation below 1. Under zero-out an inflation of 1 is also an error, because there the second moment is
// never free.
func nuForInflation(inflation float64, d int, adjacency dp.Adjacency) (float64, error) {
	if !(inflation >= 1) || math.IsInf(inflation, 0) {
		return 0, fmt.Errorf("inflation is %g, must be at least 1 and finite", inflation)
	}
	switch {
	case adjacency == dp.ZeroOut:
		if inflation == 1 {
			return 0, fmt.Errorf("inflation is 1, must be larger under adjacency \"zero-out\", where a second moment " +
				"is never free")
		}
		return inflation - 1, nil
	case d >= 2:
		return ((2*inflation - 1) + 2*math.Sqrt(inflation*(inflation-1))) / 2, nil
	}
	lo, hi := calibration.FreeSquares(1), 8*inflation // r(ν) > ν for d = 1
	for range 100 {
		if mid := (lo + hi) / 2; calibration.SquaresSensitivity(mid, 1, adjacency) <= 4*inflation {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, nil
}
