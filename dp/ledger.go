package dp

import (
	"cmp"
	"slices"
)

// Charge is what the records at some positions of a log pay: Cost, for the
// offsets [First, End). End < 0 means without end.
type Charge struct {
	// Log tells apart logs whose offsets do not name the same records. What
	// different logs hold may be the same people's, so their charges add up.
	Log        uint64
	First, End int64
	Cost       Cost
}

// Charged returns the largest cost that any record pays, stated for the given
// adjacency: charges that cover a position add up, those of disjoint ranges of a
// log do not, and the worst of every log add up. Where several positions are the
// worst in different respects, it is the one with the largest ε at δ. Without
// charges it is the empty cost.
//
// Privacy: parallel composition over disjoint ranges of public positions,
// sequential composition where ranges meet. That is a guarantee if the charges
// were chosen without looking at releases. Where ranges or parameters of later
// charges follow from earlier releases, adaptive composition covers what one
// position pays only up to a bound that was fixed before: the guarantee is the
// limit that is enforced at every opening, and the sum so far is a log entry. A
// limit is such a bound if it orders all costs that are admitted: in μ alone
// (Gaussians: Σμ² ≤ μ_max²), or in every field by itself (ΣK ≤ K_max rows of
// γ ≥ γ_min besides), because what is left over can then be filled with
// mechanisms that read nothing. An (ε, δ) over which Gaussians and sketches
// trade against each other in view of releases is not known to be one:
// [Cost.WithinReserve] is what enforces a limit.
// Cost: O(n²) for n charges; a conversion to ε for each of the positions that
// are the worst in some respect.
// Errors: a charge that can't be stated for the adjacency; δ outside (0, 1).
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

// MostCharged returns the costs that records pay as [Charged] adds them, those alone
// that no other one covers: what records pay is within a limit if all of these are.
// Without charges it is the empty cost.
//
// Cost: O(n²) for n charges.
// Errors: a charge that can't be stated for the adjacency.
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

// most is how many incomparable costs MostCharged keeps apart. Beyond it takes a
// cost that covers them all: an upper bound still.
const most = 256

// totals returns what is paid at each position where a range begins: elsewhere a
// position pays no more.
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

// join returns the least cost that covers all of costs, but for terms, of which
// it takes all.
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
