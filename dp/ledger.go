package dp

import (
	"cmp"
	"slices"
)

// Charge is a cost that all records at the offsets [First, End) of a log pay. End < 0 means that the range has no end.
type Charge struct {
	// Log distinguishes logs: equal offsets in different logs are different records. Still, the records of two logs may
	// belong to the same people, so the charges of two logs add up.
	Log        uint64
	First, End int64
	Cost       Cost
}

// Charged returns the largest cost that any record pays, stated for the given adjacency. Charges that cover the same
// position add up; charges of disjoint ranges of a log do not. The largest costs of all logs add up. Costs can be
// incomparable, for example one with more Gaussians and one with more sketch rows. Then Charged returns the cost with
// the largest ε at δ. Without charges it returns the empty cost.
//
// Privacy: disjoint ranges of public positions compose in parallel, overlapping ranges sequentially. The result is a
// guarantee if the charges were chosen without looking at releases.
//
// Often later charges do depend on earlier releases. Then the result only says what was spent. The guarantee is then a
// limit that was fixed before the first release and is enforced at every charge. For Gaussians a limit on μ works (Σμ²
// ≤ μ_max²). A separate limit on every field works too (on μ, and at most K_max rows of γ ≥ γ_min). For a limit on (ε,
// δ) no proof is known, because Gaussians and sketches can be traded against each other after seeing releases: use
// [Cost.WithinReserve].
// Cost: O(n²) for n charges, and one conversion to ε for each cost that no other one covers.
// Errors: a charge whose cost cannot be stated for the adjacency; δ outside (0, 1).
func Charged(charges []Charge, adjacency Adjacency, delta float64) (Cost, error) {
	if err := checkEpsDelta(0, delta); err != nil {
		return Cost{}, err
	}
	worst, err := MostCharged(charges, adjacency)
	if err != nil {
		return Cost{}, err
	}
	return Parallel(delta, worst...)
}

// MostCharged adds up the costs that records pay, as [Charged] does, and returns those that no other one covers. If all
// returned costs are within a limit, so is the cost of every record. Without charges it returns the empty cost.
//
// Cost: O(n²) for n charges.
// Errors: a charge whose cost cannot be stated for the adjacency.
func MostCharged(charges []Charge, adjacency Adjacency) ([]Cost, error) {
	logs := map[uint64][]Charge{}
	for _, c := range charges {
		var err error
		if c.Cost, err = c.Cost.In(adjacency); err != nil {
			return nil, err
		}
		logs[c.Log] = append(logs[c.Log], c)
	}
	worst := []Cost{{Adjacency: adjacency}}
	for _, log := range sortedKeys(logs) {
		positions := maximal(totals(logs[log]))
		if len(positions) == 0 {
			continue
		}
		var next []Cost
		for _, a := range worst {
			for _, b := range positions {
				next = append(next, Compose(a, b))
			}
		}
		worst = maximal(next)
		if len(worst) > most {
			worst = []Cost{join(worst)}
		}
	}
	return worst, nil
}

// most is the largest number of incomparable costs that MostCharged returns. If there are more, it returns one cost
// that covers them all, which is still an upper bound.
const most = 256

// totals returns the cost at each position where a range begins. No other position pays more.
func totals(charges []Charge) []Cost {
	var all []Cost
	for _, at := range charges {
		var here []Cost
		for _, c := range charges {
			if c.First <= at.First && (c.End < 0 || at.First < c.End) {
				here = append(here, c.Cost)
			}
		}
		if len(here) > 0 {
			all = append(all, Compose(here...))
		}
	}
	return all
}

// join returns the smallest cost that covers all of `costs`. It is not minimal in its terms: it has the terms of all of
// them.
func join(costs []Cost) Cost {
	c := Cost{Adjacency: costs[0].Adjacency}
	for _, k := range costs {
		c.Mu, c.BadDelta = max(c.Mu, k.Mu), max(c.BadDelta, k.BadDelta)
		if k.Rows > 0 {
			if c.Rows == 0 || k.Gamma < c.Gamma {
				c.Gamma = k.Gamma
			}
			c.Rows = max(c.Rows, k.Rows)
		}
		c.Terms = append(c.Terms, k.Terms...)
	}
	c.Terms = merge(c.Terms)
	return c
}

func sortedKeys[V any](m map[uint64]V) []uint64 {
	keys := make([]uint64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cmp.Compare)
	return keys
}
