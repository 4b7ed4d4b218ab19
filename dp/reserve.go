package dp

import (
	"errors"
	"fmt"
)

// Reserve returns the part of a limit (ε, δ) that has to be set aside for sketches and terms before the first release:
//
//	m copies of c without their Gaussian part, m the largest number (at most 1024)
//	whose composition is within (ε, δ)
//
// Without the reserve, a program could replace Gaussians by sketches after seeing releases, and no proof is known that
// (ε, δ) still holds then. If c is Gaussian, nothing has to be set aside: the result is the empty cost, in c's
// adjacency.
//
// Cost: some twenty evaluations of δ.
// Errors: c itself is not within (ε, δ); the errors of [Cost.Within].
func Reserve(c Cost, eps, delta float64) (Cost, error) {
	none := Cost{Adjacency: c.Adjacency}
	if c.gaussian() {
		return none, nil
	}
	copies := func(m int) Cost {
		all := make([]Cost, m)
		for i := range all {
			all[i] = c
		}
		return Compose(all...)
	}
	low, high := 0, 1 // `low` copies are within the limit
	for ; high <= 1024; high *= 2 {
		ok, err := copies(high).Within(eps, delta)
		if err != nil {
			return none, err
		}
		if !ok {
			break
		}
		low = high
	}
	if low == 0 {
		return none, fmt.Errorf("the limit (%g, %g) is below a single charge", eps, delta)
	}
	for high = min(high, 1025); high-low > 1; {
		middle := (low + high) / 2
		ok, err := copies(middle).Within(eps, delta)
		if err != nil {
			return none, err
		}
		if ok {
			low = middle
		} else {
			high = middle
		}
	}
	c = copies(low)
	// If the limit allows it, leave a margin for rounding, because the same costs may be added in another order.
	roomy := c
	roomy.BadDelta *= RoundUp
	ok, err := roomy.Within(eps, delta)
	if err != nil {
		return none, err
	}
	if ok {
		c = roomy
	}
	c.Mu = 0
	return c, nil
}

// gaussian reports whether the cost consists of μ alone.
func (c Cost) gaussian() bool { return c.Rows == 0 && len(c.Terms) == 0 && c.BadDelta == 0 }

// WithinReserve reports whether the cost is within (ε, δ) if `reserved` is set aside for its part that is not Gaussian.
// Two conditions must hold: `reserved` covers that part, field by field; and `reserved` together with the Gaussian part
// is within (ε, δ).
//
// Privacy: a limit enforced in this way also holds for charges that were chosen after seeing releases, if `reserved`
// was fixed before the first release. The reason: mechanisms that read no data can fill up every admitted cost to one
// fixed cost, which consists of `reserved` and the rest of μ. That cost is within (ε, δ).
// Errors: those of [Cost.Within]; two different adjacencies.
func (c Cost) WithinReserve(reserved Cost, eps, delta float64) (bool, error) {
	if c.Adjacency != reserved.Adjacency {
		return false, errors.New("the cost and the reserve are stated for different adjacencies")
	}
	gauss := Cost{Adjacency: c.Adjacency, Mu: c.Mu}
	c.Mu = 0
	if !reserved.Covers(c) {
		return false, nil
	}
	return Compose(reserved, gauss).Within(eps, delta)
}

// ReservedMu returns the μ that the limit (ε, δ) leaves for Gaussians when `reserved` is set aside. The result has nine
// digits and is rounded down. It is 0 if nothing is left.
//
// Errors: those of [Cost.Within].
func ReservedMu(reserved Cost, eps, delta float64) (float64, error) {
	if reserved.gaussian() {
		return Mu(eps, delta)
	}
	high, err := Mu(eps, delta)
	if err != nil {
		return 0, err
	}
	low := 0.0
	for high-low > 1e-9*high {
		middle := (low + high) / 2
		ok, err := (Cost{Adjacency: reserved.Adjacency, Mu: middle}).WithinReserve(reserved, eps, delta)
		if err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}
