package calibration

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/matfact"
)

// NarrowGrowth is the largest factor by which narrow states may increase the noise. Where they
// would do more, an estimator keeps wide ones.
const NarrowGrowth = 1 + 0x1p-12

// Narrow returns factorizations with states of 64 bits for those that can have one, see
// matfact.Narrow, and whether there is any. sd holds the largest deviation, in lattice units, of
// the arrays that each of them shapes.
//
// The caller must calibrate noise to what is returned, and must not use it where the rows of
// persons are protected.
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

// GrowthOf returns the largest factor by which narrow states may increase the noise of a
// configuration whose kept plan has these factorizations: any where one is narrow, as its noise
// is charged as it is, and 0 for wide states.
func GrowthOf(kept ...*matfact.Stored) float64 {
	if slices.ContainsFunc(kept, IsNarrow) {
		return math.Inf(1)
	}
	return 0
}

// IsNarrow reports whether a kept factorization, nil for none, has a narrow state.
func IsNarrow(s *matfact.Stored) bool { return s != nil && s.Fraction != 0 }
