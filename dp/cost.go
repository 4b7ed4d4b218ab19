package dp

import "math"

// Cost is what one record pays for everything that a mechanism releases over
// an epoch, in the mechanism's adjacency.
type Cost struct {
	// Adjacency is the relation that the other fields are stated for.
	Adjacency Adjacency `json:"adjacency"`
	// Mu is the ratio of sensitivity to noise of the Gaussian part.
	Mu float64 `json:"mu"`
}

// Compose returns the cost of a record that pays all of costs, also where a
// later mechanism was chosen in view of an earlier one's releases:
// μ = √Σμ_i², rounded up. The costs must be stated for one adjacency.
func Compose(costs ...Cost) Cost {
	var c Cost
	var sum float64
	for i, k := range costs {
		if i > 0 && k.Adjacency != c.Adjacency {
			panic("dp: costs of two adjacencies composed without conversion")
		}
		c.Adjacency = k.Adjacency
		sum += k.Mu * k.Mu
	}
	if len(costs) == 1 {
		return costs[0]
	}
	if sum > 0 {
		c.Mu = math.Sqrt(sum) * (1 + float64(len(costs)+2)*0x1p-53)
	}
	return c
}

// Epsilon returns the ε that the cost guarantees at δ, rounded up.
func (c Cost) Epsilon(delta float64) (float64, error) { return Epsilon(delta, c.Mu) }

// In returns the cost stated for another adjacency: a replacement is two steps
// of zeroing, so ZeroOut → Replace doubles μ; the zero record is a record, so
// Replace → ZeroOut changes nothing.
func (c Cost) In(a Adjacency) Cost {
	if c.Adjacency == ZeroOut && a == Replace {
		c.Mu *= 2
	}
	c.Adjacency = a
	return c
}
