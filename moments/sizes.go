package moments

import (
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Sizes returns the memory and state that the estimator needs in its last step, in bytes. Earlier steps need less: the
// phased factorization starts with fewer buffers, others start with fewer rows.
func (e *Estimator) Sizes() dp.Sizes {
	const header, shaper = 1 + 8 + 8, 8 + 33
	d := int64(len(e.cfg.Columns))
	pairs := d * (d + 1) / 2
	state := header + held(&e.shapes.first, 8, 8, 8)
	add := func(s *shape, stored *matfact.Stored, coordinates int64) {
		state += shaper + coordinates*(held(s, 16, 8, 8)+stored.StateBytes(e.horizon))
	}
	all := d // number of coordinates of sums and squares
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
	add(&e.shapes.first, e.plan.Factorization, 1)
	if e.products != nil {
		state += pairs * held(&e.shapes.first, 16, 8, 0)
		all += pairs
	}
	release := int64(0)
	for _, name := range e.cfg.Values() {
		switch name {
		case "valid_count", "counted_share", "full_share":
			release += 16
		case "mean", "sum", "mean_original", "mean_counted", "mean_counted_original":
			release += 16 * d
		default:
			release += 8 * d * (d + 1)
		}
	}
	var warming dp.Sizes
	if e.warmup != nil {
		warming = e.warmup.Sizes()
		state += warming.State
		release += 8 * (2*d + 16) // the bounds that every release repeats
		release = max(release, warming.Release)
	}
	// The peak includes open sums, squares in two forms, draws, predictions, deviations, a window's sum, squares of a
	// window's rows, a matrix and its eigenvectors.
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
	part := 8 * (all + d)
	if e.second != nil { // squares in two forms, one of them in whole tiles
		part += 24*pairs + 8*(d+8)*(d+12)
	}
	return dp.Sizes{State: state, Release: release, Peak: peak + warming.Peak, Part: part}
}

// held returns the bytes that an accumulator needs for a coordinate. sum and decaying are the bytes of a sum and of a
// decaying sum; a window needs `entry` bytes for each of its steps.
func held(s *shape, sum, decaying, entry int64) int64 {
	switch s.kernel.Kind {
	case "exponential":
		return decaying
	case "window":
		return entry * int64(s.kernel.Window)
	}
	return sum
}
