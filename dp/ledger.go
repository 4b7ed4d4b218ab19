package dp

import (
	"cmp"
	"slices"
)

// Charge is what the records at some positions of a log pay: Cost, for the
// offsets [First, End) of one log. End < 0 means without end.
type Charge struct {
	First, End int64
	Cost       Cost
}

// Charged returns the largest cost that any position pays, stated for the given
// adjacency: charges that cover a position add up, those of disjoint ranges do
// not. Charges of other logs must not be among them.
//
// Privacy: parallel composition over disjoint ranges of public positions,
// sequential composition, also adaptive, where ranges meet.
// Cost: O(n²) for n charges.
func Charged(charges []Charge, adjacency Adjacency) Cost {
	worst := Cost{Adjacency: adjacency}
	for _, at := range charges {
		// The sum changes only where a range begins.
		var here []Cost
		for _, c := range charges {
			if c.First <= at.First && (c.End < 0 || at.First < c.End) {
				here = append(here, c.Cost.In(adjacency))
			}
		}
		// A fixed order, so that the sum does not depend on that of the
		// charges.
		slices.SortFunc(here, func(a, b Cost) int { return cmp.Compare(a.Mu, b.Mu) })
		if sum := Compose(here...); sum.Mu > worst.Mu {
			worst = sum
		}
	}
	return worst
}
