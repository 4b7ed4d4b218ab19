package adam

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// stateVersion is the first byte of a serialised state:
//
//	version, u64 fingerprint, u64 step, u64 number of parameters, θ, noise of the
//	squares, m, v, (u64 length, shaper's state) for each shard and array
//
// all little-endian except the shapers' states, whose format is matfact's. θ, m and v are float64; momentum has no v.
// "pp" and "pp_debiased" have the noise of the squares: two float64, and for a BLT of k buffers two k×k matrices of
// float64. Independent noise has no shapers. The state has no dimensions: they are in the plan, which the fingerprint
// identifies.
const stateVersion = 1

// identify returns the fingerprint of everything that gives the numbers of a state their meaning.
func (e *Estimator) identify() (uint64, error) {
	h := fnv.New64a()
	err := json.NewEncoder(h).Encode([]any{Version, e.plan, e.cfg.identity(), e.horizon, shardSize, e.params.Adjacency})
	return h.Sum64(), err
}

// identity is the part of a configuration that a fingerprint contains. The names and their order are part of the
// format: if they change, states of open epochs are refused. A field that is added later is omitted if it is zero.
type identity struct {
	Mode, Method                          string
	Clip, MeanClip, Nu, Tau, Beta1, Beta2 float64
	Rate                                  float64
	Schedule                              string
	Eps, VFloor                           float64
	Negative                              string
	UpdateClip, WeightDecay               float64
	Factorization                         string
	Dim                                   int
	Release                               string
	Model                                 *Model
	MaxStaleness                          uint64
	StepHeader, InitialFile               string
	Columns, Target                       int
	Step, Horizon                         uint64
	Endless                               bool
	Initial                               []float64
	Person                                *matfact.Participation `json:",omitempty"`
}

// identity returns the part of the configuration that a fingerprint contains. It leaves out the initial parameters,
// because the plan has a hash of them.
func (c *Config) identity() identity {
	i := identity{
		Mode: c.Mode, Method: c.Method, Clip: c.Clip, MeanClip: c.MeanClip, Nu: c.Nu, Tau: c.Tau, Beta1: c.Beta1,
		Beta2: c.Beta2,
		Rate:  c.Rate, Schedule: c.Schedule, Eps: c.Eps, VFloor: c.VFloor, Negative: c.Negative,
		UpdateClip:  c.UpdateClip,
		WeightDecay: c.WeightDecay, Factorization: c.Factorization, Dim: c.Dim, Release: c.Release, Model: c.Model,
		MaxStaleness: c.MaxStaleness, StepHeader: c.StepHeader, Columns: len(c.Columns), Step: c.Step,
		Horizon: c.Horizon, Endless: c.Endless,
	}
	if c.Model != nil {
		i.Target = c.target()
	}
	if c.personal() {
		p := c.participation()
		i.Person = &p
	}
	return i
}

// AppendBinary appends the state after the last Close, without the open step. With correlated noise the state is as
// secret as the gradients: with it, the noise can be subtracted from releases.
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

var errDamaged = errors.New("adam: the state is damaged")

// UnmarshalBinary restores a state that an estimator with the same plan and configuration wrote. It drops the open
// step. After an error the estimator must not be used.
//
// It refuses a state whose form AppendBinary cannot have written. It cannot detect a changed number, so a program that
// stores a state must also store a hash of it.
func (e *Estimator) UnmarshalBinary(data []byte) error {
	r := &bin.Reader{B: data}
	if r.Byte() != stateVersion {
		return errors.New("adam: the state has an unknown version")
	}
	if r.Uint() != e.fingerprint {
		return errors.New("adam: the state belongs to another configuration")
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
			scratch := make([]float64, e.shards[i].to-e.shards[i].from)
			if err := calibration.RestoreShaper(s, blob, e.step, scratch, e.reach[k]); err != nil {
				return fmt.Errorf("adam: cannot restore the state: %w", err)
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

// ParametersOf returns the parameters in a state of any configuration. They are the parameters after the last step, and
// as public as that step's release. The next epoch may start from them.
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
