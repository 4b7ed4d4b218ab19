package calibration

import (
	"cmp"
	"errors"
	"math"
	"reflect"

	"github.com/streamdp/streamdp/matfact"
)

// ErrForeign means that a kept plan does not belong to the configuration. A plan decides how much noise is drawn, so a
// plan from another source must be refused.
var ErrForeign = errors.New("the epoch's plan does not belong to this configuration")

// LastBits is a relative difference. If two processors compute a plan from the same factorizations, no number in it
// differs by more. It is less than the margins of a plan.
const LastBits = 0x1p-42

// Optimum is the largest relative difference between the errors of factorizations that the optimisers of two processors
// find.
const Optimum = 1e-6

// Near reports whether a and b differ by at most tolerance·b.
func Near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) }

// Factor compares a kept factorization with the one of the configuration.
type Factor struct {
	Kept, Fresh *matfact.Stored
	Own, Best   matfact.Factorization // built from Kept and from Fresh
	Workload    matfact.Workload
	At          uint64 // the step whose error is compared
	// OwnNorm and BestNorm are the norms of their columns to which noise is calibrated; 0: ColNorm.
	OwnNorm, BestNorm float64
}

// SameKind reports whether a and b are both nil, or both factorizations of one kind, both with narrow states or both
// without. It does not compare the number of fractional bits. That number is a rounded logarithm of optimised numbers,
// so it may differ by one on another processor.
func SameKind(a, b *matfact.Stored) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Kind == b.Kind && IsNarrow(a) == IsNarrow(b))
}

// Same reports whether the kept factorization equals the fresh one, or could come from another processor's optimiser,
// which finds different numbers that are equally good. Both must be of the same kind.
func (f *Factor) Same() bool {
	if f.Kept == nil {
		return true
	}
	deviation := func(c matfact.Factorization, norm float64) float64 {
		return cmp.Or(norm, c.ColNorm()) * math.Sqrt(c.RowVar(f.Workload, f.At))
	}
	tolerance := Optimum
	switch f.Kept.Kind {
	case "blt":
	case "banded":
		// The optimum is flat, so the search may end at another point with almost the same error.
		tolerance = 1e-3
	case "dense":
		deviation = func(c matfact.Factorization, _ float64) float64 { return matfact.RMSE(c, f.Workload, c.Horizon()) }
	default:
		return reflect.DeepEqual(f.Kept, f.Fresh)
	}
	return Near(deviation(f.Own, f.OwnNorm), deviation(f.Best, f.BestNorm), tolerance)
}
