package sgd

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// newtonStateVersion is the first byte of a serialised state of Newton:
//
//	version, u64 fingerprint, u64 step, iteration, first slot of the last step, slots,
//	phase, iterate, last clip norm, u64 restarts, drifts, unsettled, presence, believed,
//	u64 repeats, tries, R², mode,
//
//	[centre if there is an intercept, clip norm, signal, u64 epoch, done, V, √H, recent clip norms,
//	their median an epoch ago, wander, blocks, matrix, weight, missed, [h if the weight is not 0,]
//	Gram matrix, histogram], u64 length, shaper's state
//
// all little-endian except the shaper's state, whose format is matfact's. The part in brackets is present only in the
// phase of descent.
const newtonStateVersion = 3

func (e *Newton) identify() (uint64, error) {
	cfg := e.cfg
	h := fnv.New64a()
	err := json.NewEncoder(h).Encode(
		[]any{NewtonVersion, e.plan, cfg, cfg.Columns, cfg.Centre, cfg.Scale, e.horizon, e.params.Adjacency,
			e.params.Bits()})
	return h.Sum64(), err
}

// AppendBinary appends the state after the last Close, without the open step. The state is as secret as the rows: with
// it, the noise can be subtracted from releases.
func (e *Newton) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: e.AppendReleased(b)}
	if e.phase == descent {
		e.gram.AppendTo(w)
		for _, n := range e.hist {
			w.Int(n)
		}
	}
	if err := w.Blob(e.shaper.AppendBinary); err != nil {
		return b, err
	}
	return w.B, nil
}

// AppendReleased appends the part of the state that anybody can compute from releases and public numbers: everything
// except the open epoch's sums and the noise of earlier steps.
func (e *Newton) AppendReleased(b []byte) []byte {
	w := &bin.Writer{B: b}
	floats := func(x []float64) {
		for _, v := range x {
			w.Float(v)
		}
	}
	truth := func(v bool) {
		w.Uint(0)
		if v {
			w.B[len(w.B)-8] = 1
		}
	}
	w.Byte(newtonStateVersion)
	w.Uint(e.fingerprint)
	for _, v := range []uint64{e.step, e.iteration, e.first, e.slots, uint64(e.phase)} {
		w.Uint(v)
	}
	floats(e.w)
	w.Float(e.used)
	w.Uint(e.restarts)
	w.Uint(e.drifts)
	truth(e.unsettled)
	e.seen.appendTo(w)
	truth(e.believed)
	w.Uint(e.repeats)
	w.Uint(e.tries)
	w.Float(e.squared)
	truth(e.mode)
	if e.phase == descent {
		if *e.cfg.Intercept {
			floats(e.centre)
		}
		w.Float(e.zeta)
		w.Float(e.signal)
		w.Uint(uint64(e.epoch))
		w.Uint(e.done)
		floats(e.white.Vectors)
		floats(e.white.Scale)
		e.jump.appendTo(w)
		w.Float(e.before)
		e.wander.appendTo(w)
		e.blocks.appendTo(w)
		floats(e.matrix)
		w.Float(e.weight)
		w.Float(e.missed)
		if e.weight > 0 {
			floats(e.white.Share)
		}
	}
	return w.B
}

// UnmarshalBinary restores a state that AppendBinary wrote for an estimator with the same plan and configuration. It
// drops the open step. After an error the estimator must not be used.
//
// It refuses a state whose form AppendBinary cannot have written; see [AMB.UnmarshalBinary].
func (e *Newton) UnmarshalBinary(data []byte) error {
	r := &bin.Reader{B: data}
	if r.Byte() != newtonStateVersion {
		return errors.New("sgd: the state has an unknown version")
	}
	if r.Uint() != e.fingerprint {
		return errors.New("sgd: the state belongs to another configuration")
	}
	d := len(e.w)
	e.constant = 0
	e.forget()
	e.step, e.iteration, e.first, e.slots = r.Uint(), r.Uint(), r.Uint(), r.Uint()
	phase := phase(r.Index(int(descent) + 1))
	copy(e.w, floats(r, d))
	e.used = r.Float()
	e.restarts, e.drifts = r.Uint(), r.Uint()
	e.unsettled = r.Index(2) == 1
	e.seen.restore(r)
	e.believed = r.Index(2) == 1
	e.repeats, e.tries = r.Uint(), uint64(r.Index(triesMost+1))
	e.phase = phase
	if e.squared = r.Float(); *e.cfg.Intercept && phase != searchNorm {
		e.constant = constantFor(e.squared)
	}
	e.mode = r.Index(2) == 1
	if r.Bad || !e.consistent() {
		return errDamaged
	}
	if phase == descent {
		if !e.restoreRun(r) {
			return errDamaged
		}
	}
	blob := r.Bytes()
	if !r.Done() {
		return errDamaged
	}
	if err := calibration.RestoreShaper(e.shaper, blob, e.drawn(), e.predict, e.reach); err != nil {
		return fmt.Errorf("sgd: cannot restore the state: %w", err)
	}
	e.open()
	return nil
}

// consistent reports whether the counters of a state can belong together, and whether the searches can have found the
// values in the state.
func (e *Newton) consistent() bool {
	p, last := &e.plan, e.slots-e.first
	switch {
	case e.step > e.horizon || e.iteration > e.step || e.restarts > e.iteration || e.drifts > e.iteration,
		e.repeats > e.iteration || e.tries > e.repeats || e.tries > 0 && e.believed && e.phase == descent,
		e.step != e.iteration+p.Searches()*(e.restarts+e.repeats)+e.searched(),
		e.step == 0 && (e.first != 0 || e.slots != 0),
		e.step > 0 &&
			(e.first > e.Longest(e.step-1) ||
				(last%p.Search != 0 || last > searchMost*p.Search) && !slices.Contains(p.Batch, last)),
		e.unsettled && e.restarts == 0,
		e.tries > 0 && e.phase != descent && e.seen.long.slots == 0, // a search was repeated, but no record was seen
		e.iteration > 0 != (e.used != 0), e.used != 0 && !inRange(e.used),
		e.mode && !(e.phase == searchScale && *e.cfg.Intercept):
		return false
	case e.phase == searchNorm:
		return e.squared == 0
	case e.phase == searchMedian && !*e.cfg.Intercept:
		return false
	}
	return slices.Contains(normRungs, e.squared)
}

// searched returns the number of searches completed since the searches last started.
func (e *Newton) searched() uint64 {
	if e.phase > searchMedian && !*e.cfg.Intercept {
		return uint64(e.phase) - 1
	}
	return uint64(e.phase)
}

// inRange reports whether zeta is a possible clip norm.
func inRange(zeta float64) bool { return zeta >= zetaLeast && zeta <= zetaMost }

// restoreRun reads the part of the state that exists only in the phase of descent.
func (e *Newton) restoreRun(r *bin.Reader) bool {
	p, d := &e.plan, len(e.w)
	if *e.cfg.Intercept {
		e.centre = floats(r, d-1)
		r.Bad = r.Bad || !(vector.Dot4(e.centre, e.centre) <= 1+1e-9)
	}
	e.zeta, e.signal = r.Float(), r.Float()
	e.epoch = r.Index(int(e.iteration/firstSteps) + 1)
	done := r.Uint()
	if r.Bad || !inRange(e.zeta) || !(e.signal >= 0.05) || done >= p.steps(e.epoch) || done > e.iteration {
		return false
	}
	vectors, scale := floats(r, d*d), floats(r, d)
	// V must consist of eigenvectors, and √H of roots of shares of a trace of about 1: otherwise whitened rows would
	// leave the range of float64.
	for _, v := range vectors {
		r.Bad = r.Bad || !(math.Abs(v) <= 1+0x1p-20)
	}
	for _, s := range scale {
		r.Bad = r.Bad || !(s >= 0x1p-200 && s <= 0x1p200)
	}
	if r.Bad {
		return false
	}
	e.white = newton.Restore(vectors, scale)
	e.begin()
	e.done = done
	e.jump.restore(r)
	e.before = r.Float()
	r.Bad = r.Bad || e.before < 0
	e.wander.restore(r)
	e.blocks.restore(r)
	e.matrix = floats(r, len(e.matrix))
	e.weight, e.missed = r.Float(), r.Float()
	if e.weight > 0 {
		e.white.Share = floats(r, d)
		for _, h := range e.white.Share {
			r.Bad = r.Bad || !(h >= 0 && h <= 1)
		}
	}
	e.gram.Restore(r)
	var rows int64
	for j := range e.hist {
		e.hist[j] = r.Int()
		r.Bad = r.Bad || e.hist[j] < 0 || e.hist[j] > 1<<56
		rows += e.hist[j]
	}
	if r.Bad || float64(rows) != e.gram.Rows() || rows > int64(done*p.batch(e.epoch)) {
		return false
	}
	for _, z := range e.jump.recent {
		if !inRange(z) {
			return false
		}
	}
	return uint64(len(e.jump.recent)) == min(done, recentMost) &&
		e.wander.count == done%wanderLength && e.wander.n <= e.iteration/wanderLength &&
		e.weight >= 0 && e.missed >= 0 && (e.epoch > 0 || e.weight == 0) && e.inBlocks()
}

// inBlocks reports whether the blocks can be those of the last epochs.
func (e *Newton) inBlocks() bool {
	all := e.blocks.epochs
	if len(all) != min(e.epoch+1, epochsMost) {
		return false
	}
	for i, stretches := range all {
		k := e.epoch - (len(all) - 1 - i)
		for _, s := range stretches {
			steps := s.slots / float64(e.plan.batch(k))
			if steps != math.Floor(steps) || steps > float64(e.plan.stretch(k)) {
				return false
			}
		}
	}
	return true
}

// normRungs holds the squared norms that the search can find.
var normRungs = func() (all []float64) {
	for i := range normLadder.Rungs + 1 {
		all = append(all, normLadder.Rung(i))
	}
	return all
}()
