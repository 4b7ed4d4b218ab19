package refit

import (
	"errors"

	"github.com/streamdp/streamdp/internal/bin"
)

// AppendBinary appends to b the rows of the part, so that [Part.UnmarshalBinary] can restore them in another process:
// the number of records, the number of rows, then the features and the target of each row.
//
// Privacy: these are clipped records, as secret as the records themselves.
// Cost: 8·(d + 1) bytes for a row of d features.
// Errors: the solver has sums instead of rows; no merged stream has such a solver.
func (p *Part) AppendBinary(b []byte) ([]byte, error) {
	if p.e.data == nil {
		return nil, errors.New("cannot encode the part: its sums are in floating point")
	}
	w := bin.Writer{B: b}
	w.Uint(p.e.rows)
	w.Uint(uint64(p.e.data.Len()))
	for i, y := range p.e.data.y {
		for _, x := range p.e.data.row(i) {
			w.Float(x)
		}
		w.Float(y)
	}
	return w.B, nil
}

// UnmarshalBinary replaces the rows of the part by those that [Part.AppendBinary] wrote, for a part of a refit with the
// same configuration and plan.
//
// Privacy: UnmarshalBinary refuses a row that no record can produce, because sensitivities rely on the bound of every
// row.
// Errors: data was not written by AppendBinary for such a part, or has more rows than a window. Then the part is empty.
func (p *Part) UnmarshalBinary(data []byte) error {
	p.Reset()
	if p.e.data == nil {
		return errors.New("cannot encode the part: its sums are in floating point")
	}
	c, w, r := &p.e.cfg, p.e.data, bin.Reader{B: data}
	p.e.rows = r.Uint()
	n := r.Uint()
	if width := uint64(8 * (w.dim + 1)); r.Bad || n != min(p.e.rows, c.Slots()) || uint64(len(r.B)) != n*width {
		p.Reset()
		return errors.New("cannot decode the part: it is damaged or belongs to another refit")
	}
	for range n {
		for range w.dim {
			w.x = append(w.x, r.Float())
		}
		w.y = append(w.y, r.Float())
		if i := len(w.y) - 1; !p.e.possible(w.row(i), w.y[i]) {
			r.Bad = true
		}
	}
	if !r.Done() {
		p.Reset()
		return errors.New("cannot decode the part: it is damaged or belongs to another refit")
	}
	return nil
}

// Reset empties the part.
func (p *Part) Reset() { p.e.reset() }

// possible reports whether a record can produce this row: its features are in the unit ball, up to the rounding of a
// norm, and its target is in [−1, 1]. Every row except null rows has the constant.
func (r *Refit) possible(x []float64, y float64) bool {
	if *r.cfg.Intercept {
		constant := x[len(x)-1]
		x = x[:len(x)-1]
		if whole := r.cfg.ClipX * (1 / r.plan.NormBound * (1 - 0x1p-50)); constant != whole && constant != 0 {
			return false
		}
	}
	square := 0.0
	for _, v := range x {
		square += float64(v * v)
	}
	return square <= 1+0x1p-40 && y >= -1 && y <= 1
}
