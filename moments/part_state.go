package moments

import (
	"errors"
	"math"
	"math/bits"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
)

// AppendBinary appends the exact sums of the part to b: the numbers of records, then the integers of each array, then
// the squares in 128 bits. Another process can read them by [Part.UnmarshalBinary].
//
// Privacy: these are sums of records without noise. Protect them like the records.
// Cost: O(d²).
// Errors: none.
func (p *Part) AppendBinary(b []byte) ([]byte, error) {
	c := &p.e
	c.endBlock()
	w := bin.Writer{B: b}
	w.Uint(c.rows)
	w.Uint(c.clipped)
	w.Uint(c.refused)
	for _, s := range c.arrays {
		if s == c.second {
			continue // the array of squares: they are not rounded yet
		}
		for _, k := range s.integers {
			w.Int(k)
		}
	}
	for _, x := range c.wide {
		w.Int(x.Hi)
		w.Uint(x.Lo)
	}
	return w.B, nil
}

// UnmarshalBinary replaces the sums of the part by those that [Part.AppendBinary] wrote. The estimators of both parts
// must have the same configuration and plan.
//
// Privacy: UnmarshalBinary refuses sums that no records of a step can have, because sensitivities rely on the bound of
// every record.
// Errors: data that is not the state of such a part; a part with more records than a step has slots. The part is empty
// after an error.
func (p *Part) UnmarshalBinary(data []byte) error {
	p.Reset()
	c, r := &p.e, bin.Reader{B: data}
	c.rows, c.clipped, c.refused = r.Uint(), r.Uint(), r.Uint()
	for _, s := range c.arrays {
		if s == c.second {
			continue
		}
		for j := range s.integers {
			s.integers[j] = r.Int()
		}
	}
	for i := range c.wide {
		c.wide[i] = dp.Wide{Hi: r.Int(), Lo: r.Uint()}
	}
	if !r.Done() || !c.possible() {
		p.Reset()
		return errors.New("cannot read the sums of a part: they are damaged, or belong to another estimator")
	}
	return nil
}

// Reset empties the part.
func (p *Part) Reset() {
	c := &p.e
	c.squares.Reset()
	c.inBlock, c.rows, c.clipped, c.refused = 0, 0, 0, 0
	for _, s := range c.arrays {
		clear(s.integers)
	}
	clear(c.wide)
}

// possible reports whether records of a step can have these sums.
func (e *Estimator) possible() bool {
	if e.rows > e.cfg.Step || e.clipped > e.rows || e.refused > e.rows {
		return false
	}
	k := uint64(e.plan.Lattice.K)
	for _, x := range e.first.integers {
		if beyond(dp.Wide{Hi: x >> 63, Lo: uint64(x)}, e.rows, k) {
			return false
		}
	}
	if e.count != nil && !counts(e.count.integers[0], e.rows, 1<<-e.plan.CountExp) {
		return false
	}
	if !counts(e.full.integers[0], e.rows, uint64(math.Ldexp(1, -e.plan.FullExp))) {
		return false
	}
	next := 0
	for i := range e.integer {
		for j := i; j < len(e.integer) && next < len(e.wide); j++ {
			x, most := e.wide[next], k*k
			if next++; i == j && x.Hi < 0 {
				return false // a sum of squares cannot be negative
			} else if i != j {
				most /= 2
			}
			if beyond(x, e.rows, most) {
				return false
			}
		}
	}
	return true
}

// beyond reports whether |x| > n·most.
func beyond(x dp.Wide, n, most uint64) bool {
	hi, lo := uint64(x.Hi), x.Lo
	if x.Hi < 0 {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
	}
	mostHi, mostLo := bits.Mul64(n, most)
	return hi > mostHi || hi == mostHi && lo > mostLo
}

// counts reports whether n records can have this sum if each adds a number from 0 to `one`.
func counts(sum int64, n, one uint64) bool {
	return sum >= 0 && !beyond(dp.Wide{Lo: uint64(sum)}, n, one)
}
