package moments

import (
	"streamdp/dp"
	"streamdp/matfact"
)

// Sizes returns what the estimator takes, at most: the phased factorization
// starts with fewer buffers than it ends with.
func (e *Estimator) Sizes() dp.Sizes {
	const header, shaper = 1 + 8 + 8, 8 + 33
	d := int64(e.cfg.Columns)
	pairs := d * (d + 1) / 2
	state := header + held(&e.shapes.first, 8, 8, 8)
	add := func(s *shape, stored *matfact.Stored, coordinates int64) {
		each := held(s, 16, 8, 8)
		if stored.Kind == "sqrt" || stored.Kind == "dense" {
			each += 8 * int64(e.horizon)
		} else {
			each += 16*int64(len(stored.Decay)) + 8*int64(len(stored.Bands))
		}
		state += shaper + coordinates*each
	}
	all := d // coordinates that are noisy or squared
	add(&e.shapes.first, e.plan.Factorization, d)
	if e.second != nil {
		add(&e.shapes.second, e.plan.second(), pairs)
		all += pairs
	}
	if e.secondWeight != nil {
		state += held(&e.shapes.second, 8, 8, 8)
	}
	if e.count != nil {
		add(&e.shapes.first, e.plan.Factorization, 1)
	}
	if e.products != nil {
		state += pairs * held(&e.shapes.first, 16, 8, 0)
		all += pairs
	}
	release := int64(0)
	for _, name := range e.cfg.Values() {
		switch name {
		case "valid_count":
			release += 16
		case "mean", "sum", "mean_original":
			release += 16 * d
		default:
			release += 8 * d * (d + 1)
		}
	}
	// Besides: open sums, squares in two forms, draws, predictions, deviations,
	// a window's sum, squares of a window's rows, a matrix and its eigenvectors.
	peak := state + release + all*8*10
	if e.products != nil {
		peak += 16 * pairs
	}
	if e.cfg.PSDFloor != nil || e.cfg.Project {
		peak += 8 * 2 * d * d
	}
	if e.overlap != nil && e.overlap.inverse != nil {
		peak += 16 * int64(e.horizon)
	}
	return dp.Sizes{State: state, Release: release, Peak: peak}
}

// held returns the bytes of an accumulator's coordinate: a sum, a decaying sum, or
// an entry for each step of a window.
func held(s *shape, sum, decaying, entry int64) int64 {
	switch s.kernel.Kind {
	case "exponential":
		return decaying
	case "window":
		return entry * int64(s.kernel.Window)
	}
	return sum
}
