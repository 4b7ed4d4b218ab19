package calibration

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/matfact"
)

// NarrowGrowth is the largest factor by which narrow states may increase the noise. If they would increase it more, an
// estimator keeps wide states.
const NarrowGrowth = 1 + 0x1p-12

// Narrow replaces each factorization that can have a state of 64 bits by its narrow form, see matfact.Narrow, and
// reports whether it replaced any. For each factorization, sd holds the largest deviation, in lattice units, of the
// arrays that use it.
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

// GrowthOf returns the largest factor by which narrow states may increase the noise, if the kept plan has these
// factorizations. If one of them is narrow, there is no limit, because the plan charges the noise that it states. If
// all are wide, the result is 0, so that the states stay wide.
func GrowthOf(kept ...*matfact.Stored) float64 {
	if slices.ContainsFunc(kept, IsNarrow) {
		return math.Inf(1)
	}
	return 0
}

// IsNarrow reports whether a kept factorization has a narrow state. It is false for nil.
func IsNarrow(s *matfact.Stored) bool { return s != nil && s.Fraction != 0 }
