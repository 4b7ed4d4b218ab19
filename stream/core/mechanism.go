package core

import (
	"encoding"
	"encoding/json"
	"errors"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
	"github.com/streamdp/streamdp/stream/codec"
)

// Estimator is a mechanism: it takes rows and returns releases. It has no clock, no I/O and
// no randomness of its own. So the release of a step is a function of the rows up to that
// step and the noise of the steps up to it.
//
// An Estimator is not safe for concurrent use.
type Estimator interface {
	// Columns returns the length of a row.
	Columns() int
	// Range returns the slots of step t, [first, end), with first(t) = end(t−1). Core
	// calls it for the open step. For an estimator that is not adaptive it also calls it
	// for the first and last steps of the horizon.
	Range(t uint64) (first, end uint64)
	// Add adds the record of a slot to the open step. row is nil if the record is
	// invalid. Add clips the row and does not keep row. It allocates nothing, but for the
	// rows of a window that has no fixed number of slots. It is not called for slots
	// without a record.
	Add(slot uint64, row []float64)
	// Close ends the open step. It returns nil if the step has no release, and the
	// error dp.ErrExhausted after the last step of the horizon.
	Close(n dp.Noise) (*dp.Release, error)
	// Cost returns what the whole epoch costs a single record.
	Cost() dp.Cost
	// Sizes returns the memory and state that the estimator needs, in bytes.
	Sizes() dp.Sizes
	// AppendBinary appends the state after the last Close. It leaves out the rows of the
	// open step.
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// adaptive is an estimator whose steps are longer or shorter depending on its releases. The
// slots of a step to come are not known; only a bound on them is.
type adaptive interface {
	// Longest returns the largest number of slots that the first t steps can have
	// together, math.MaxUint64 if that is beyond 64 bits.
	Longest(t uint64) uint64
}

// ending is an estimator that may find that it cannot go on, after a Close.
type ending interface {
	// Ended says in a word why no step can follow.
	Ended() (why string, ended bool)
}

// Mechanism is an estimator, together with what an epoch records and publishes about it.
type Mechanism struct {
	Estimator
	Name string // of the mechanism's table in the configuration
	// Method and Factorization are those in use, for example if "auto" is configured.
	Method, Factorization string

	Plan json.RawMessage // for the manifest
	// Lattice holds the steps of the integer lattices, by array. Noise holds the standard
	// deviations of one step's independent noise. Both are in scaled units.
	Lattice []float64
	Noise   map[string]float64

	description json.RawMessage // for the release, as what follows
	norm        float64         // of a person's steps, where persons are protected
	record      *dp.Cost        // of one record then, see moments.Estimator.RecordCost; nil: not known
	clip        float64
	found       bool // the clip norm is found, and clip is in its unit
	sensitivity float64
	warnings    []string
	crowds      bool // its noise is that of replace, and so covers zero-out where config.Stream.Crowds holds

	warmup *WarmupPlan // before the mechanism, nil for none
	// Warmup is how many offsets of an epoch go into its warm-up, 0 for none.
	Warmup int64

	// scales says that the mechanism finds how rows are scaled, and scales them itself.
	scales bool
	sample *dp.Release // a release of the largest form; nil: any is
	// Chunk is the size in bytes above which a release is published in pieces; 0: never.
	Chunk int
	// accounting says how the noise was found; "" stands for the exact Gaussian one.
	// sketched says that noise multiplies records; for such a release no proof covers the
	// finite precision of the computer.
	accounting string
	sketched   bool
	ahead      bool  // a step takes long to end; see [Core.Ahead]
	clocked    bool  // steps are by the clock, and Range says only what they can hold at most
	window     int64 // the last offsets of a step, which alone count; 0: all do
	// Refused counts the records that were decoded and still not used, and says why. It is
	// nil for mechanisms that use every decoded record. The count is not part of the state.
	Refused func() (codec.Reason, uint64)
	// Clipped counts the rows that were shortened to the clip norm. It is nil for mechanisms
	// that do not count them. The count is not part of the state.
	Clipped func() uint64
}

// Warnings are about settings that are allowed and probably not meant.
func (m *Mechanism) Warnings() []string { return m.warnings }

// planned builds a mechanism from its configuration or, if plan is not nil, from the plan
// that a begun epoch recorded.
func planned[C, P, E any](c C, params dp.Params, plan json.RawMessage, build func(C, dp.Params) (E, error),
	adopt func(C, dp.Params, P) (E, error)) (E, error) {
	if plan == nil {
		return build(c, params)
	}
	var p P
	if err := json.Unmarshal(plan, &p); err != nil {
		var none E
		return none, errors.New("the epoch's plan is damaged")
	}
	return adopt(c, params, p)
}

// bandsOf returns the number of bands of a factorization, its diagonal included, 0 if the
// factorization is not banded.
func bandsOf(f *matfact.Stored) int {
	if len(f.Bands) == 0 {
		return 0
	}
	return len(f.Bands) + 1
}

// Cost returns what an epoch costs, for the adjacency of the stream.
//
// Privacy: where the map of persons can be full, to leave a person out lets at most one other one in. So zero-out
// is then one person out and one in, which is a case of replace, and costs the same μ.
func (m *Mechanism) Cost() dp.Cost {
	c := m.Estimator.Cost()
	if m.crowds {
		c.Adjacency = dp.ZeroOut
	}
	return c
}
