package core

import (
	"math"
	"math/bits"
)

// ChargedTo returns the offset after the last record of h steps that begin at base. It returns −1 if h is 0 (no end),
// if steps are by the clock (any size), or if the end may lie beyond the largest offset. For example, with h = 10 steps
// of 100 slots from base 5 it returns 1005.
//
// For a large h, Range(h) may overflow 64 bits and return a small number. An epoch charged only up to that offset would
// continue uncharged. ChargedTo therefore first checks that h times the longest step does not overflow. The longest
// step is among the first two and the last two. Its length is right even if Range overflows, because it is a difference
// of two results.
func ChargedTo(mech *Mechanism, h uint64, base int64) int64 {
	if h == 0 || mech.clocked {
		return -1
	}
	if a, ok := mech.Estimator.(adaptive); ok {
		if end := a.Longest(h); end <= uint64(math.MaxInt64-base) {
			return base + int64(end)
		}
		return -1
	}
	var longest, last uint64
	for _, t := range []uint64{1, 2, h - 1, h} {
		if t > 0 && t <= h {
			first, end := mech.Range(t)
			longest, last = max(longest, end-first), end
		}
	}
	if hi, lo := bits.Mul64(h, longest); hi > 0 || lo > uint64(math.MaxInt64-base) {
		return -1
	}
	return base + int64(last)
}

// EndsAtLeast returns a lower bound of the offset at which step t ends in one partition of an epoch. The epoch reads
// that partition from offset base on. EndsAtLeast returns −1 if the bound exceeds the largest offset. The bound is
// exact if the slots of steps do not depend on releases. Otherwise it counts one slot per step, or none if steps are by
// the clock. EndsAtLeast is safe for concurrent use.
func EndsAtLeast(mech *Mechanism, t uint64, partitions int, base int64) int64 {
	if mech.clocked {
		return base
	}
	if _, ok := mech.Estimator.(adaptive); !ok {
		return share(ChargedTo(mech, t, 0), partitions, base)
	}
	if t > uint64(math.MaxInt64-base) {
		return -1
	}
	return base + int64(t)
}
