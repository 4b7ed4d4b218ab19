package moments

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/calibration"
)

// stateVersion is the first byte of a serialised state:
//
//	version, u64 fingerprint, u64 step, warm-up?, weight, second weight?,
//	(accumulator, u64 length, shaper's state) for each array, products?
//
// Everything is little-endian, except for the shaper's state, which package matfact writes. weight is the divisor's
// state. accumulator is the noisy sum. For sums and means it is u64 records and 128 bits a coordinate, for exponential
// weights a float64 a coordinate, for windows the last W numbers a coordinate, by step modulo W. products are sums of
// squared noisy rows in the format of accumulators. For a window they are left out, because they can be computed from
// its rows. The plan says which arrays and which of the parts marked ? are present, and which dimensions they have. The
// fingerprint identifies the plan.
const stateVersion = 1

// identify returns a fingerprint of everything that is needed to interpret the numbers of a state.
func (e *Estimator) identify() (uint64, error) {
	h := fnv.New64a()
	all := []any{
		Version, e.plan, e.shapes.first.kernel, len(e.cfg.Columns), e.cfg.Step, e.horizon, numbers(e.cfg.Centre),
		numbers(e.cfg.Scale), e.params.Adjacency,
	}
	if e.secondWeight != nil {
		all = append(all, e.shapes.second.kernel)
	}
	err := json.NewEncoder(h).Encode(all)
	return h.Sum64(), err
}

// AppendBinary appends the state after the last Close. It leaves out the open step. The state is as secret as the rows:
// anybody who has it can subtract the noise.
func (e *Estimator) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: b}
	w.Byte(stateVersion)
	w.Uint(e.fingerprint)
	w.Uint(e.step)
	if e.warmup != nil {
		e.warmup.AppendTo(w)
	}
	e.weight.appendTo(w)
	if e.secondWeight != nil {
		e.secondWeight.appendTo(w)
	}
	for _, s := range e.arrays {
		s.total.appendTo(w)
		if err := w.Blob(s.shaper.AppendBinary); err != nil {
			return b, err
		}
	}
	if e.products != nil {
		e.products.appendTo(w)
	}
	return w.B, nil
}

var errDamaged = errors.New("cannot read the state of moments: it is damaged")

// UnmarshalBinary restores a state that an estimator with the same plan and configuration wrote. It drops the open
// step. After an error the estimator must not be used.
//
// UnmarshalBinary refuses a state whose form AppendBinary cannot have written. It does not detect a changed number, so
// a program that stores a state must also store a hash of it.
func (e *Estimator) UnmarshalBinary(data []byte) error {
	r := &bin.Reader{B: data}
	if r.Byte() != stateVersion {
		return errors.New("cannot read the state of moments: its version is unknown")
	}
	if r.Uint() != e.fingerprint {
		return errors.New("cannot read the state of moments: it belongs to another configuration")
	}
	e.step = r.Uint()
	if e.step > e.horizon {
		return errDamaged
	}
	if e.warmup != nil {
		if err := e.warmup.Restore(r); err != nil {
			return err
		}
		if e.step > 0 && (e.warming() || e.warmup.Failed()) {
			return errDamaged
		}
		e.adoptBounds()
	}
	e.weight.restore(r, e.step, e.cfg.Step)
	if e.secondWeight != nil {
		e.secondWeight.restore(r, e.step, e.cfg.Step)
	}
	for _, s := range e.arrays {
		s.total.restore(r, e.step)
		blob := r.Bytes()
		if r.Bad {
			return errDamaged
		}
		if err := s.restore(blob, e.step); err != nil {
			return err
		}
	}
	if e.products != nil {
		e.products.restore(r, e.first.total, len(e.cfg.Columns))
	}
	if !r.Done() {
		return errDamaged
	}
	e.squares.Reset()
	clear(e.wide)
	e.rows, e.inBlock = 0, 0
	return nil
}

// restore reads a shaper's state, and drops the open step.
func (s *series) restore(blob []byte, step uint64) error {
	if err := calibration.RestoreShaper(s.shaper, blob, step, s.predict, s.reach); err != nil {
		return fmt.Errorf("cannot read the state of moments: %w", err)
	}
	clear(s.integers)
	return nil
}

func (a *running) appendTo(w *bin.Writer) {
	for _, x := range a.sum {
		w.Uint(x.Lo)
		w.Int(x.Hi)
	}
}

func (a *running) restore(r *bin.Reader, _ uint64) {
	for i := range a.sum {
		a.sum[i] = dp.Wide{Lo: r.Uint(), Hi: r.Int()}
	}
}

func (a *decaying) appendTo(w *bin.Writer) {
	for _, v := range a.sum {
		w.Float(v)
	}
}

func (a *decaying) restore(r *bin.Reader, _ uint64) {
	for i := range a.sum {
		a.sum[i] = r.Float()
	}
}

func (a *windowed) appendTo(w *bin.Writer) {
	for _, v := range a.ring {
		w.Int(v)
	}
}

func (a *windowed) restore(r *bin.Reader, step uint64) {
	dim := len(a.sum)
	width := uint64(len(a.ring) / dim)
	clear(a.sum)
	for i := range a.ring {
		v := r.Int()
		if v != 0 && uint64(i/dim) >= step {
			r.Bad = true // a row whose step has not happened yet must be zero
			return
		}
		a.ring[i] = v
		a.sum[i%dim].Add(v)
	}
	a.next = int(step%width) * dim
}

func (w *weight) appendTo(b *bin.Writer) {
	switch w.kind {
	case "exponential":
		b.Float(w.sum)
	case "window":
		for _, v := range w.ring {
			b.Uint(v)
		}
	default:
		b.Uint(w.count)
	}
}

// restore reads the divisor. step is the number of closed steps, slots the largest number of records of a step.
func (w *weight) restore(r *bin.Reader, step, slots uint64) {
	switch w.kind {
	case "exponential":
		w.sum = r.Float()
		most := float64(slots) / (1 - w.decay) * (1 + 0x1p-20)
		r.Bad = r.Bad || !(w.sum >= 0 && w.sum <= most)
	case "window":
		w.count = 0
		for i := range w.ring {
			v := r.Uint()
			if v > slots || v != 0 && uint64(i) >= step {
				r.Bad = true
				return
			}
			w.ring[i] = v
			w.count += v
		}
		w.next = int(step % uint64(len(w.ring)))
	default:
		w.count = r.Uint()
		r.Bad = r.Bad || w.count > 0 && (w.count-1)/slots >= step
	}
}

// numbers returns x in a form that JSON can represent. A constant that the warm-up finds becomes null.
func numbers(x []float64) []*float64 {
	if x == nil {
		return nil
	}
	out := make([]*float64, len(x))
	for i := range x {
		if x[i] == x[i] {
			out[i] = &x[i]
		}
	}
	return out
}
