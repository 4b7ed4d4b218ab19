package sgd

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/calibration"
)

// ambStateVersion is the first byte of a serialised state:
//
//	version, u64 fingerprint, u64 step, u64 iteration, iterate, u64 the last clip
//	norm and the next, u64 steps at its bound, u64 begin of the average, average,
//	[recent clip norms, drift], [batches], u64 length, shaper's state
//
// all little-endian except the shaper's state, whose format is matfact's. The parts in brackets are present if the plan
// has restarts and intervals. The state has no dimensions: they are in the plan, which the fingerprint identifies.
const ambStateVersion = 1

// identify returns the fingerprint of everything that gives the numbers of a state their meaning.
func (e *AMB) identify() (uint64, error) {
	cfg := e.cfg // batch sizes and horizons are in the plan, or are not part of a state
	h := fnv.New64a()
	err := json.NewEncoder(h).Encode(
		[]any{AMBVersion, e.plan, cfg, cfg.Columns, cfg.Centre, cfg.Scale, e.horizon, e.params.Adjacency})
	return h.Sum64(), err
}

// AppendBinary appends the state after the last Close, without the open step. The state is as secret as the rows: with
// it, the noise can be subtracted from releases.
func (e *AMB) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: e.AppendReleased(b)}
	if err := w.Blob(e.shaper.AppendBinary); err != nil {
		return b, err
	}
	return w.B, nil
}

// AppendReleased appends the part of the state that anybody can compute from releases and public numbers: everything
// except the noise of earlier steps.
func (e *AMB) AppendReleased(b []byte) []byte {
	w := &bin.Writer{B: b}
	w.Byte(ambStateVersion)
	w.Uint(e.fingerprint)
	w.Uint(e.step)
	w.Uint(e.iteration)
	for _, v := range e.w {
		w.Float(v)
	}
	w.Float(e.used)
	w.Float(e.zeta)
	w.Uint(e.ceiling)
	w.Uint(e.began)
	e.average.appendTo(w)
	if e.drift != nil {
		e.jump.appendTo(w)
		e.drift.appendTo(w)
	}
	if e.batches != nil {
		e.batches.appendTo(w)
	}
	return w.B
}

// UnmarshalBinary restores a state that AppendBinary wrote for an estimator with the same plan and configuration. It
// drops the open step. After an error the estimator must not be used.
//
// It refuses a state whose form AppendBinary cannot have written. It cannot detect a changed number, so a program that
// stores a state must also store a hash of it.
func (e *AMB) UnmarshalBinary(data []byte) error {
	r := &bin.Reader{B: data}
	if r.Byte() != ambStateVersion {
		return errors.New("sgd: the state has an unknown version")
	}
	if r.Uint() != e.fingerprint {
		return errors.New("sgd: the state belongs to another configuration")
	}
	e.step = r.Uint()
	e.iteration = r.Uint()
	if e.step > e.horizon {
		return errDamaged
	}
	if _, before := e.kind(e.step + 1); e.iteration != before {
		return errDamaged
	}
	copy(e.w, floats(r, len(e.w)))
	e.used, e.zeta = r.Float(), r.Float()
	e.ceiling, e.began = r.Uint(), r.Uint()
	e.average.restore(r)
	if e.drift != nil {
		e.jump.restore(r)
		e.drift.restore(r)
	}
	if e.batches != nil {
		e.batches.restore(r)
	}
	blob := r.Bytes()
	if !r.Done() || !e.consistent() {
		return errDamaged
	}
	var scratch []float64
	if e.shaped {
		scratch = e.predict
	}
	if err := calibration.RestoreShaper(e.shaper, blob, e.iteration, scratch, e.reach); err != nil {
		return fmt.Errorf("sgd: cannot restore the state: %w", err)
	}
	e.open()
	return nil
}

// consistent reports whether the parts of a state can belong to one sequence of iterates and are within their bounds.
func (e *AMB) consistent() bool {
	p := &e.plan
	norm := func(zeta float64) bool { return zeta >= p.ZetaLow && zeta <= p.ZetaHigh }
	switch {
	case e.cfg.Clip == "fixed":
		norm = func(zeta float64) bool { return zeta == p.Zeta }
	case e.step == 0:
		norm = func(zeta float64) bool { return zeta == 0 }
	}
	if !norm(e.zeta) || e.iteration > 0 != (e.used != 0) || e.used != 0 && !norm(e.used) || e.ceiling > e.step ||
		e.began > e.iteration {
		return false
	}
	var square float64
	for _, v := range e.w {
		square += float64(v * v)
	}
	if p.Radius > 0 && !(math.Sqrt(square) <= p.Radius*dp.RoundUp) && e.iteration > 0 {
		return false
	}
	since := e.iteration - e.began
	if e.average.length() != since {
		return false
	}
	if e.drift != nil {
		seen := e.drift.blocks*e.drift.length + e.drift.count
		// The iterate that causes a restart is in the new average, but in no block.
		if e.drift.blocks > e.iteration || seen != since && !(e.began > 0 && seen+1 == since) {
			return false
		}
		if uint64(len(e.jump.recent)) > e.iteration {
			return false
		}
		for _, z := range e.jump.recent {
			if !norm(z) {
				return false
			}
		}
	}
	return e.batches == nil || e.batches.length <= 1<<56 && e.batches.total() == since
}
