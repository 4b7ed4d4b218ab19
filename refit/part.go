package refit

import (
	"errors"

	"github.com/streamdp/streamdp/dp"
)

// Part holds the rows of one partition in a window, clipped as the refit clips them. A Part is not safe for concurrent
// use, but several parts can be used at the same time, even while the refit is in use.
type Part struct {
	of *Refit
	e  Refit // a copy with its own rows
}

// NewPart returns an empty part of a window. A part counts the slots of its partition: window t has Window slots of
// each partition, from slot (t−1)·Stride on. With Most, the window has the slots that were added since the last Merge.
//
// Each pass of newton over the rows of all parts computes a sum of integers. adassp and dp-gd-residual also compute
// sums of integers. A refit that merges parts adds up such a sum exactly and rounds it once, to the lattice of the
// noise; a refit of one log rounds every 4096 rows. So a release depends only on the records in the window, not on how
// they are divided among parts or on their order.
//
// A refit of one log has one part per window, for every solver. The rows stay in order, so the release equals that for
// the same rows added by [Refit.Add]. The part may be filled while [Refit.Close] solves the window before.
//
// Privacy: a record is in one part. With parts it changes one rounded sum; in a single log it changes one rounded
// block. So the sensitivity does not change.
// Memory: the rows of the partition, allocated with the first row; with Most the memory grows with the rows.
// Errors: none.
func (r *Refit) NewPart() (dp.Part, error) {
	p := &Part{of: r, e: *r}
	p.e.rows, p.e.solver = 0, nil
	p.e.row = make([]float64, len(r.row))
	if r.sums != nil {
		p.e.sums = newRowSums(r.sums.dim)
	} else {
		p.e.data = &Data{dim: r.data.dim, exact: r.data.exact}
	}
	return p, nil
}

// Add adds a record, as [Refit.Add] does.
func (p *Part) Add(slot uint64, row []float64) {
	if c := &p.e.cfg; c.Most == 0 {
		if slot%max(c.Window, c.Stride) >= c.Window {
			return // a slot between windows
		}
		if w := p.e.data; w != nil && w.x == nil {
			n := int(c.Window)
			w.x, w.y = make([]float64, 0, n*w.dim), make([]float64, 0, n)
		}
	}
	p.e.take(row)
}

// Merge adds the rows of a part to the open window and empties the part.
//
// Errors: the part belongs to another refit, or it is a second part of a window of one log. Then Merge adds nothing.
func (r *Refit) Merge(part dp.Part) error {
	p, ok := part.(*Part)
	if !ok || p.of != r {
		return errors.New("the part belongs to another refit")
	}
	if r.cfg.Partitions == 0 {
		if r.rows > 0 {
			return errors.New("the window already has rows, and a refit of one log has one part per window")
		}
		r.rows, r.data, r.sums, p.e.data, p.e.sums = p.e.rows, p.e.data, p.e.sums, r.data, r.sums
	} else if r.rows += p.e.rows; r.rows <= r.cfg.Slots() { // if there are too many rows, Close returns an error
		r.data.x, r.data.y = append(r.data.x, p.e.data.x...), append(r.data.y, p.e.data.y...)
	}
	p.e.reset()
	return nil
}
