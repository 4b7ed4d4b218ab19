package calibration

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/matfact"
)

// NarrowGrowth is the largest factor by which narrow states may increase the noise. If they would increase it more, an
// estimator keeps wide states.
const NarrowGrowth = 1 + 0x1p-12

// Narrow replaces the factorizations that can have states of 64 bits by those, see matfact.Narrow, and reports whether
// there are any. sd holds the largest deviation, in lattice units, of the arrays that each factorization is used for.
//
// The caller must calibrate noise to the returned factorizations, and must not use them if the records of persons are
// protected.
func Narrow(factors []matfact.Factorization, sd []float64) (_ []matfact.Factorization, some bool) {
	narrow := make([]matfact.Factorization, len(factors))
	for i, f := range factors {
		narrow[i] = f
		if n := matfact.Narrow(f, sd[i]); n != nil {
			narrow[i], some = n, true
		}
	}
	return narrow, some
}

// GrowthOf returns the largest factor by which narrow states may increase the noise of a configuration whose kept plan
// has these factorizations. If one of them is narrow, there is no limit, because the plan charges the noise that it
// states. If all are wide, the factor is 0.
func GrowthOf(kept ...*matfact.Stored) float64 {
	if slices.ContainsFunc(kept, IsNarrow) {
		return math.Inf(1)
	}
	return 0
}

// IsNarrow reports whether a kept factorization, nil for none, has a narrow state.
func IsNarrow(s *matfact.Stored) bool { return s != nil && s.Fraction != 0 }
