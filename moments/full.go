package moments

import (
	"math"
	"sort"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
)

// fullCount is a coordinate of the mechanism that counts the rows that are not shortened. A row whose norm is b times
// the clip norm adds √κ·ζ·h(b), where h falls from 1 to 0. Short rows do not use all of the joint sensitivity, and the
// count uses the rest:
//
//	h(b) = min(1, √(slack(b)/κ)), 0 for shortened rows,   κ = 0.1·r(ν)
//
//	slack(b) = (1−b²) + ν(1−b⁴)            zero-out; replace, ν > ½, d ≥ 2; persons
//	           (1−b)(3+b) − ν(1−b²)²       replace, ν ≤ ½, d ≥ 2
//
// Then the squared sensitivity of rows, squares and h together is r(ν), the same as for rows and squares alone, so the
// count costs nothing. With one column under replace, nothing is left for the count. There h is 1 or 0, κ = 0.02·r(ν),
// and the squared sensitivity is r(ν) + κ.
//
// Source: docs/theory/moments.md, §10.
type fullCount struct {
	weight float64 // κ, in units of ζ²
	nu     float64
	near   bool   // replace and ν ≤ ½: the farthest neighbours are opposite
	plain  bool   // one column under replace: h is 1 or 0, and κ is charged
	border uint64 // rows of at least this squared norm may have been shortened
	whole  uint64 // h is 1 for rows with a smaller squared norm
	top    uint64 // K²
	one    float64
}

// These are the weights of the count, in units of r(ν).
const (
	fullWeight  = 0.1
	plainWeight = 0.02
)

// fullCount returns the count of rows that are not shortened, with its unit and weight before rounding to a lattice.
func (c *Config) fullCount(method string, nu float64, adjacency dp.Adjacency) fullCount {
	nu = c.firstNu(method, nu)
	f := fullCount{nu: nu, weight: fullWeight}
	if adjacency == dp.Replace && !c.personal() {
		f.plain = len(c.Columns) == 1
		f.near = nu <= calibration.FreeSquares(len(c.Columns))
	}
	if f.plain {
		f.weight = plainWeight
	}
	f.weight *= calibration.SquaresSensitivity(nu, c.dimension(), adjacency)
	return f
}

// charge adds the cost of the count to t.
func (f *fullCount) charge(t Tradeoff) Tradeoff {
	if f.plain {
		t.Square += f.weight
	}
	return t
}

// on sets the limits in f for rows of d columns on the lattice l. exp is the exponent of the count's lattice step.
func (f *fullCount) on(l dp.Lattice, d, exp int) {
	// After rounding, a shortened row may be up to √d lattice steps shorter than the ball's radius.
	border := max(0, l.K-int64(math.Ceil(math.Sqrt(float64(d))))-1)
	f.border, f.top, f.one = uint64(border)*uint64(border), uint64(l.K)*uint64(l.K), math.Ldexp(1, -exp)
	// h does not rise with the norm. Where h is less than 1, it falls by more than its rounding errors within a
	// millionth of K².
	f.whole = f.border
	if !f.plain {
		short := sort.Search(int(f.border), func(square int) bool { return f.share(f.room(uint64(square))) < 1 })
		f.whole = uint64(max(0, short-int(f.top>>20)))
	}
}

// room returns 1 − b² for a squared norm in lattice units.
func (f *fullCount) room(square uint64) float64 { return float64(f.top-square) / float64(f.top) }

// of returns h of a row with this squared norm, in lattice steps of the count. h is rounded down, so that it falls as
// the norm grows and stays below √(slack/κ).
func (f *fullCount) of(square uint64) int64 {
	switch {
	case square < f.whole:
		return int64(f.one)
	case square >= f.border:
		return 0
	}
	return int64(float64(f.one * f.share(f.room(square))))
}

// share returns h for 1 − b² = room.
func (f *fullCount) share(room float64) float64 {
	if f.plain {
		return 1
	}
	var slack float64
	if f.near {
		b := math.Sqrt(1 - room)
		slack = float64(room/(1+b)*(3+b)) - float64(float64(f.nu*room)*room)
	} else {
		slack = float64(room * (1 + float64(f.nu*(2-room))))
	}
	// The relative rounding error is a few times 2⁻⁵³, because no term is much larger than slack.
	slack *= (1 - 0x1p-44) / f.weight
	if slack >= 1 {
		return 1
	}
	return math.Sqrt(max(0, slack))
}

// norm returns h(b) for a row whose norm is b times the clip norm.
func (f *fullCount) norm(b float64) float64 {
	if !(b < 1) {
		return 0
	}
	return f.share((1 - b) * (1 + b))
}
