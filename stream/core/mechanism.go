package core

import (
	"encoding"
	"encoding/json"
	"errors"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
	"github.com/streamdp/streamdp/stream/codec"
)

// Estimator is a mechanism: it takes rows and returns releases. It has no clock, I/O or randomness, so a step's release
// is a function of the rows and the noise up to that step.
//
// An Estimator is not safe for concurrent use.
type Estimator interface {
	// Columns returns the length of a row.
	Columns() int
	// Range returns the slots of step t, [first, end), with first(t) = end(t−1). Core calls it for the open step and,
	// unless the estimator is adaptive, for the first and last steps of the horizon.
	Range(t uint64) (first, end uint64)
	// Add adds the record of a slot to the open step. row is nil if the record is invalid. Add clips the values and
	// does not retain row. It allocates memory only for the rows of a window that has no fixed number of slots. Slots
	// without a record have no call of Add.
	Add(slot uint64, row []float64)
	// Close ends the open step. It returns nil if the step has no release, and the error dp.ErrExhausted after the last
	// step of the horizon.
	Close(n dp.Noise) (*dp.Release, error)
	// Cost returns the privacy cost of the whole epoch to one record.
	Cost() dp.Cost
	// Sizes returns the memory and state that the estimator needs, in bytes.
	Sizes() dp.Sizes
	// AppendBinary appends the state after the last Close, without the rows of the open step.
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// adaptive is an estimator whose step lengths depend on its releases. For future steps, only an upper bound on the
// number of slots is known.
type adaptive interface {
	// Longest returns the largest number of slots that the first t steps can have together, or math.MaxUint64 if that
	// exceeds 64 bits.
	Longest(t uint64) uint64
}

// ending is an estimator that may be unable to continue after a Close.
type ending interface {
	// Ended reports whether no step can follow, and why, in one word.
	Ended() (why string, ended bool)
}

// Mechanism is an estimator, together with what an epoch records and publishes about it.
type Mechanism struct {
	Estimator
	Name string // name of the mechanism's table in the configuration
	// Method and Factorization are the ones in use, even if "auto" is configured.
	Method, Factorization string

	Plan json.RawMessage // plan of the epoch, for the manifest
	// Lattice holds the spacing of the integer lattice of each array. Noise holds the standard deviation of the
	// independent noise that one step adds to each array. Both are in scaled units.
	Lattice []float64
	Noise   map[string]float64

	description json.RawMessage // description of the mechanism, for releases; so are the fields below
	norm        float64         // norm of a person's steps, if the stream protects persons
	record      *dp.Cost        // cost of one of a person's records, see moments.Estimator.RecordCost; nil: unknown
	clip        float64
	found       bool // a warm-up finds the clip norm, and clip is in units of it
	sensitivity float64
	warnings    []string
	crowds      bool // the noise is calibrated for replace; it covers zero-out too if config.Stream.Crowds holds

	warmup *WarmupPlan // the warm-up before the mechanism; nil: none
	// Warmup is the number of an epoch's offsets in its warm-up; 0: none.
	Warmup int64

	// scales says that the mechanism finds the scaling of rows, and scales them itself.
	scales bool
	sample *dp.Release // a release of the largest form; nil: all are equally large
	// Chunk is the size in bytes above which a release is published in pieces; 0: never in pieces.
	Chunk int
	// accounting is the method that derived the noise; "" means exact Gaussian accounting. sketched says that the noise
	// multiplies records instead of being added. For such releases no proof covers floating-point precision.
	accounting string
	sketched   bool
	ahead      bool  // closing a step takes long; see [Core.Ahead]
	clocked    bool  // steps are by the clock, and Range returns only their largest size
	window     int64 // only the last window offsets of a step count; 0: all do
	// Refused returns how many decoded records were not used, and why. It is nil for mechanisms that use every decoded
	// record. The count is not part of the state.
	Refused func() (codec.Reason, uint64)
	// Clipped returns how many rows were shortened to the clip norm. It is nil for mechanisms that do not count them.
	// The count is not part of the state.
	Clipped func() uint64
}

// Warnings are about settings that are allowed but probably unintended.
func (m *Mechanism) Warnings() []string { return m.warnings }

// planned builds a mechanism from its configuration or, if plan is not nil, from the plan that an epoch recorded.
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

// bandsOf returns the number of bands of a factorization, including its diagonal, or 0 if it is not banded.
func bandsOf(f *matfact.Stored) int {
	if len(f.Bands) == 0 {
		return 0
	}
	return len(f.Bands) + 1
}

// Cost returns the cost of an epoch, for the adjacency of the stream.
//
// Privacy: if the map of persons can be full, removing one person makes room for at most one other person. The
// adjacency "zero-out" is then a case of "replace", and costs the same μ.
func (m *Mechanism) Cost() dp.Cost {
	c := m.Estimator.Cost()
	if m.crowds {
		c.Adjacency = dp.ZeroOut
	}
	return c
}
