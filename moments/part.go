package moments

import (
	"errors"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/gram"
)

// Part sums some of the records of a step, for example those of one partition, so that several goroutines can sum a
// step together. A Part is not safe for concurrent use. Different goroutines may use different parts and the estimator
// at the same time.
type Part struct {
	of *Estimator
	e  Estimator // a copy with separate integers
}

// NewPart returns an empty part of a step. It computes the same integers as the estimator, but does not round squares:
// the squares of all parts are rounded once, when the step is closed. So a step's integers depend only on its records,
// not on how they are divided among parts. The sensitivity is the same as without parts, because one record changes the
// rounded sum just as it changes the rounded sum of one block.
//
// Memory: O(d²).
// Errors: a warm-up, whose records cannot be summed in parts.
func (e *Estimator) NewPart() (dp.Part, error) {
	if e.warmup != nil {
		return nil, errors.New("the records of a warm-up cannot be summed in parts")
	}
	p := &Part{of: e, e: *e}
	c := &p.e
	own := func(s *series) *series {
		if s == nil {
			return nil
		}
		return &series{integers: make([]int64, len(s.integers))}
	}
	c.first, c.second, c.count, c.full = own(e.first), own(e.second), own(e.count), own(e.full)
	c.arrays = nil
	for _, s := range []*series{c.first, c.second, c.count, c.full} {
		if s != nil {
			c.arrays = append(c.arrays, s)
		}
	}
	c.integer = make([]int64, len(e.integer))
	if e.second != nil {
		c.wide = make([]dp.Wide, len(e.second.integers))
		if e.wide == nil {
			e.wide = make([]dp.Wide, len(e.second.integers))
		}
		c.squares = gram.NewExact(len(e.integer), e.plan.Lattice.K)
	}
	c.rows, c.inBlock, c.clipped, c.refused = 0, 0, 0, 0
	return p, nil
}

// Add adds a record, as [Estimator.Add] does.
func (p *Part) Add(slot uint64, row []float64) { p.e.Add(slot, row) }

// Merge adds the records of a part to the open step, and empties the part. Sums of integers are exact, so the order of
// merging does not matter.
//
// Errors: a part that belongs to another estimator. Then nothing is added.
func (e *Estimator) Merge(part dp.Part) error {
	p, ok := part.(*Part)
	if !ok || p.of != e {
		return errors.New("the part belongs to another estimator")
	}
	c := &p.e
	c.endBlock()
	for i, s := range c.arrays {
		total := e.arrays[i].integers
		for j, k := range s.integers {
			total[j] += k
		}
		clear(s.integers)
	}
	for i, x := range c.wide {
		e.wide[i].AddWide(x)
	}
	clear(c.wide)
	e.rows += c.rows
	e.clipped += c.clipped
	e.refused += c.refused
	c.rows, c.clipped, c.refused = 0, 0, 0
	return nil
}

// roundWide rounds the squares of all parts to the lattice of the second moment, once.
func (e *Estimator) roundWide() {
	for i, x := range e.wide {
		e.second.integers[i] += x.Rounded(uint(e.plan.SecondExp - 2*e.plan.Lattice.Exp))
	}
	clear(e.wide)
}
