package moments

import (
	"errors"

	"streamdp/dp"
	"streamdp/internal/bin"
)

// stateVersion is the first byte of a serialised state:
//
//	version, u64 step, weight, (accumulator, u64 length, shaper's state) × 2
//
// all little-endian. The dimensions come from the plan and are not stored, but
// every length must come out even.
const stateVersion = 1

// AppendBinary appends the state after the last Close. Nothing of the open
// step is in it. It is as secret as the rows: whoever has it can subtract the
// noise.
func (e *Estimator) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: b}
	w.Byte(stateVersion)
	w.Uint(e.step)
	e.weight.appendTo(w)
	for _, s := range []*series{&e.first, &e.second} {
		s.total.appendTo(w)
		if err := w.Blob(s.shaper.AppendBinary); err != nil {
			return b, err
		}
	}
	return w.B, nil
}

// UnmarshalBinary restores a state that AppendBinary of an estimator with the
// same plan wrote, and drops the open step. After an error the estimator must
// not be used.
func (e *Estimator) UnmarshalBinary(data []byte) error {
	r := &bin.Reader{B: data}
	if r.Byte() != stateVersion {
		return errors.New("state of moments: unknown version")
	}
	e.step = r.Uint()
	e.weight.restore(r)
	for _, s := range []*series{&e.first, &e.second} {
		s.total.restore(r)
		blob := r.Bytes()
		if r.Bad {
			break
		}
		if err := s.shaper.UnmarshalBinary(blob); err != nil {
			return err
		}
		clear(s.integers)
	}
	if !r.Done() || e.step > e.horizon {
		return errors.New("state of moments: damaged, or of another configuration")
	}
	e.squares.reset()
	e.rows, e.inBlock = 0, 0
	return nil
}

func (a *running) appendTo(w *bin.Writer) {
	for _, x := range a.sum {
		w.Uint(x.Lo)
		w.Int(x.Hi)
	}
}

func (a *running) restore(r *bin.Reader) {
	for i := range a.sum {
		a.sum[i] = dp.Wide{Lo: r.Uint(), Hi: r.Int()}
	}
}

func (a *decaying) appendTo(w *bin.Writer) {
	for _, v := range a.sum {
		w.Float(v)
	}
}

func (a *decaying) restore(r *bin.Reader) {
	for i := range a.sum {
		a.sum[i] = r.Float()
	}
}

func (a *windowed) appendTo(w *bin.Writer) {
	a.running.appendTo(w)
	w.Uint(uint64(a.next))
	for _, v := range a.ring {
		w.Int(v)
	}
}

func (a *windowed) restore(r *bin.Reader) {
	a.running.restore(r)
	a.next = r.Index(a.size)
	for i := range a.ring {
		a.ring[i] = r.Int()
	}
}

func (w *weight) appendTo(b *bin.Writer) {
	b.Float(w.sum)
	b.Uint(w.count)
	b.Uint(uint64(w.next))
	for _, v := range w.ring {
		b.Uint(v)
	}
}

func (w *weight) restore(r *bin.Reader) {
	w.sum = r.Float()
	w.count = r.Uint()
	w.next = r.Index(max(len(w.ring), 1))
	for i := range w.ring {
		w.ring[i] = r.Uint()
	}
}
