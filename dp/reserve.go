package dp

import (
	"errors"
	"fmt"
)

// Reserve returns the part of a limit (ε, δ) that has to be set aside for sketches and
// terms before the first release, for a limit over which they and Gaussians trade
// against each other in view of releases is not known to be one:
//
//	all of m copies of c but their Gaussian part, m the largest number (at most 1024)
//	whose composition is within (ε, δ)
//
// It is the empty cost, of c's adjacency, where c is Gaussian, which needs none.
//
// Cost: some twenty evaluations of δ.
// Errors: c itself is not within (ε, δ); as [Cost.Within].
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
	low, high := 0, 1 // low copies are within the limit
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
		return none, fmt.Errorf("(%g, %g) is less than what is to be charged", eps, delta)
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
	// As far as it fits, room for what sums in another order round up.
	roomy := c
	roomy.BadDelta *= 1 + 0x1p-40
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

// gaussian reports whether μ is all that there is to the cost.
func (c Cost) gaussian() bool { return c.Rows == 0 && len(c.Terms) == 0 && c.BadDelta == 0 }

// WithinReserve reports whether the cost is within (ε, δ) when reserved is set aside
// for all of it that is not Gaussian: reserved covers that part, field by field, and
// reserved with the Gaussian part is within (ε, δ).
//
// Privacy: a limit that is enforced by this holds for charges that were chosen in view
// of releases, if reserved was fixed before the first of them. It orders everything
// that it admits: what of μ, rows, terms and bad events is left over can be filled with
// mechanisms that read nothing.
// Errors: as [Cost.Within]; two adjacencies.
func (c Cost) WithinReserve(reserved Cost, eps, delta float64) (bool, error) {
	if c.Adjacency != reserved.Adjacency {
		return false, errors.New("a cost and what is set aside are of two adjacencies")
	}
	gauss := Cost{Adjacency: c.Adjacency, Mu: c.Mu}
	c.Mu = 0
	if !reserved.Covers(c) {
		return false, nil
	}
	return Compose(reserved, gauss).Within(eps, delta)
}

// ReservedMu returns how much μ the limit (ε, δ) leaves for Gaussians beside what is
// set aside, to nine digits and rounded down; 0 where it leaves nothing.
//
// Errors: as [Cost.Within].
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
