package refit

import (
	"errors"

	"github.com/streamdp/streamdp/dp"
)

// Part holds the rows of one partition in a window, clipped as the refit does. It is not
// safe for concurrent use, but several parts may be used at the same time, and while the
// refit is.
type Part struct {
	of *Refit
	e  Refit // a copy with rows of its own
}

// NewPart returns an empty part of a window. Its slots are those of its partition: window t
// has Window of them, from (t−1)·Stride on, of each partition. With Most it has those that
// were added since the last Merge.
//
// Every pass of newton over the rows of all parts is a sum of integers, as are the sums of
// adassp and dp-gd-residual. A refit that merges parts adds such a sum up exactly and rounds
// it once, to the lattice of the noise; a refit of one log rounds every 4096 rows. So a
// release depends on which records the window has, and not on how they are divided among
// parts, nor in which order they came.
//
// A refit of one log has one part a window, for every solver. Its rows stay in their order,
// so its release is that of the same rows by [Refit.Add]. The part may be filled while
// [Refit.Close] solves the window before.
//
// Privacy: a record is in one part. It changes one sum that is rounded, as it changes one
// block otherwise, so the sensitivity is that of the refit.
// Memory: the rows of the partition, allocated with the first one; with Most it grows with
// them.
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
			return // between windows
		}
		if w := p.e.data; w != nil && w.x == nil {
			n := int(c.Window)
			w.x, w.y = make([]float64, 0, n*w.dim), make([]float64, 0, n)
		}
	}
	p.e.take(row)
}

// Merge adds the rows of a part to the open window, and empties the part.
//
// Errors: a part of another refit, or a second part of a window of one log. Then nothing is
// added.
func (r *Refit) Merge(part dp.Part) error {
	p, ok := part.(*Part)
	if !ok || p.of != r {
		return errors.New("a part of another refit")
	}
	if r.cfg.Partitions == 0 {
		if r.rows > 0 {
			return errors.New("the refit has one log, and its window has rows")
		}
		r.rows, r.data, r.sums, p.e.data, p.e.sums = p.e.rows, p.e.data, p.e.sums, r.data, r.sums
	} else if r.rows += p.e.rows; r.rows <= r.cfg.Slots() { // else Close refuses
		r.data.x, r.data.y = append(r.data.x, p.e.data.x...), append(r.data.y, p.e.data.y...)
	}
	p.e.reset()
	return nil
}
