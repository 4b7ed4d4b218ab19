package adam

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/fnv"
	"math"
	"slices"

	"streamdp/internal/bin"
	"streamdp/matfact"
)

// stateVersion is the first byte of a serialised state:
//
//	version, u64 fingerprint, u64 step, u64 number of parameters, θ, what squaring
//	makes of the noise, m, v, (u64 length, shaper's state) for each shard and array
//
// all little-endian but the shapers', which are matfact's. θ, m and v are float64s;
// v is missing for momentum. What squaring makes of the noise is there for "pp" and
// "pp_debiased": two float64s, and two k×k matrices of them for a BLT of k buffers.
// Shapers are missing for independent noise. Dimensions come from the plan, which
// the fingerprint stands for.
const stateVersion = 1

// identify returns the fingerprint of everything that gives the numbers of a
// state their meaning.
func (e *Estimator) identify() (uint64, error) {
	c := e.cfg
	c.Initial, c.InitialFile = nil, "" // a hash of them is in the plan
	h := fnv.New64a()
	err := json.NewEncoder(h).Encode([]any{Version, e.plan, c, e.horizon, shardSize, e.params.Adjacency})
	return h.Sum64(), err
}

// AppendBinary appends the state after the last Close. Nothing of the open
// step is in it. Where noise is correlated it is as secret as the gradients:
// whoever has it can subtract the noise.
func (e *Estimator) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: slices.Grow(b, int(e.Sizes().State))}
	w.Byte(stateVersion)
	w.Uint(e.fingerprint)
	w.Uint(e.step)
	w.Uint(uint64(e.dim))
	for _, v := range e.theta {
		w.Float(v)
	}
	if e.noise != nil {
		e.noise.appendTo(w)
	}
	for _, x := range [][]float64{e.m, e.v} {
		for _, v := range x {
			w.Float(v)
		}
	}
	for i := range e.shards {
		for _, s := range e.shards[i].shapers {
			if s == nil {
				continue
			}
			if err := w.Blob(s.AppendBinary); err != nil {
				return b, err
			}
		}
	}
	return w.B, nil
}

var errDamaged = errors.New("state of adam: damaged")

// UnmarshalBinary restores a state that AppendBinary of an estimator with the
// same plan and configuration wrote, and drops the open step. After an error the
// estimator must not be used.
//
// It refuses whatever AppendBinary cannot have written in form. Moments that were
// changed it cannot tell from others: the file that holds them has a hash.
func (e *Estimator) UnmarshalBinary(data []byte) error {
	r := &bin.Reader{B: data}
	if r.Byte() != stateVersion {
		return errors.New("state of adam: unknown version")
	}
	if r.Uint() != e.fingerprint {
		return errors.New("state of adam: of another configuration")
	}
	e.step = r.Uint()
	if r.Bad || e.step > e.horizon {
		return errDamaged
	}
	if r.Uint() != uint64(e.dim) {
		return errDamaged
	}
	for i := range e.theta {
		e.theta[i] = r.Float()
	}
	if e.noise != nil {
		e.noise.restore(r, e.step)
	}
	for _, x := range [][]float64{e.m, e.v} {
		for i := range x {
			x[i] = r.Float()
		}
	}
	for i := range e.shards {
		for k, s := range e.shards[i].shapers {
			if s == nil {
				continue
			}
			blob := r.Bytes()
			if r.Bad {
				return errDamaged
			}
			if err := e.restoreShaper(s, blob, e.shards[i].to-e.shards[i].from, e.reach[k]); err != nil {
				return err
			}
		}
	}
	if !r.Done() {
		return errDamaged
	}
	e.rows, e.inBlock = 0, 0
	clear(e.first)
	clear(e.second)
	clear(e.squares)
	return nil
}

// ParametersOf returns the parameters that a state holds, those of its last step's
// release, whatever its configuration: what a successor may begin with. They are a
// function of what was released, and as public.
func ParametersOf(state []byte) ([]float64, error) {
	r := &bin.Reader{B: state}
	version, _, _, dim := r.Byte(), r.Uint(), r.Uint(), r.Uint()
	if r.Bad || version != stateVersion || dim > uint64(len(r.B)/8) {
		return nil, errDamaged
	}
	theta := make([]float64, dim)
	for i := range theta {
		theta[i] = r.Float()
	}
	if r.Bad {
		return nil, errDamaged
	}
	return theta, nil
}

func (e *Estimator) restoreShaper(s matfact.Shaper, blob []byte, dim int, reach float64) error {
	if err := s.UnmarshalBinary(blob); err != nil {
		return err
	}
	// Every shaper's state begins with version, fingerprint, dimension, steps.
	if binary.BigEndian.Uint64(blob[1+8+8:]) != e.step {
		return errDamaged
	}
	predict := make([]float64, dim)
	s.Predict(predict)
	for _, x := range predict {
		if !(math.Abs(x) <= reach) {
			return errDamaged
		}
	}
	return nil
}
