package stream

import (
	"encoding"
	"encoding/json"
	"errors"

	"streamdp/adam"
	"streamdp/config"
	"streamdp/dp"
	"streamdp/matfact"
	"streamdp/moments"
	"streamdp/sgd"
	"streamdp/sketch"
)

// Estimator is a mechanism: rows in, releases out. It has no clock, no I/O and
// no randomness of its own, so that a step's release is a function of its rows,
// its past and the noise it is given.
//
// An Estimator is not safe for concurrent use.
type Estimator interface {
	// Columns returns the length of a row.
	Columns() int
	// Range returns the slots of step t, [first, end), with
	// first(t) = end(t−1). It is asked for the open step alone, and for the last
	// one of all where the estimator is not adaptive.
	Range(t uint64) (first, end uint64)
	// Add adds the record of a slot to the open step; nil is an invalid one. It
	// clips by itself, allocates nothing, and does not keep row. It is never
	// called for slots without a record.
	Add(slot uint64, row []float64)
	// Close ends the open step. The release is nil where none is due, the
	// error dp.ErrExhausted after the horizon.
	Close(n dp.Noise) (*dp.Release, error)
	// Cost returns what one record pays over the whole epoch.
	Cost() dp.Cost
	// Sizes returns what the estimator takes.
	Sizes() dp.Sizes
	// AppendBinary appends the state after the last Close: nothing of the open
	// step is in it.
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// adaptive is an estimator whose steps' slots depend on releases: of those to come it
// knows how many there are at most.
type adaptive interface {
	// Longest returns the largest number of slots that the first t steps can have,
	// math.MaxUint64 where that is beyond 64 bits.
	Longest(t uint64) uint64
}

// mechanism is an estimator with what an epoch keeps of it and says about it.
type mechanism struct {
	Estimator
	name string
	// method and factorization are what the configuration resolved to.
	method, factorization string

	plan json.RawMessage // for the manifest
	// describe and lattice are for the release.
	describe json.RawMessage
	clip     float64
	sens     float64
	lattice  []float64
	noise    map[string]float64 // noise standard deviations of one step, by array
	warnings []string

	sample  *dp.Release // a release of the largest form; nil: any is
	chunked bool        // releases above chunkBytes are published in pieces
	// accounting is how the noise was found, "" for exact. sketched says that noise
	// multiplies records, for which finite precision is not proven.
	accounting string
	sketched   bool
	window     int64 // the last offsets of a step, which alone count; 0: all do
	// refused counts the decoded records that gave nothing all the same, and
	// why; nil where there are none. It is no part of the state.
	refused func() (Reason, uint64)
}

// versions are what the digest binds besides the configuration.
func versions(s *config.Stream) map[string]string {
	v := map[string]string{"noise": dp.NoiseFormat}
	switch {
	case s.Moments != nil:
		v["mechanism"] = moments.Version
	case s.SGD != nil && s.SGD.Method == "newton":
		v["mechanism"] = sgd.NewtonVersion
	case s.SGD != nil:
		v["mechanism"] = sgd.Version
	case s.Refit != nil:
		v["mechanism"] = sketch.Version
	case s.Adam != nil:
		v["mechanism"] = adam.Version
	}
	return v
}

// newMechanism builds the stream's estimator; plan is that of a begun epoch,
// nil for a new one. initial are the parameters that the epoch begins with, for a
// mechanism that has some; nil: its own.
func newMechanism(s *config.Stream, plan json.RawMessage, initial []float64) (*mechanism, error) {
	switch {
	case s.Moments != nil:
		return newMoments(s, plan)
	case s.SGD != nil:
		return newSGD(s, plan)
	case s.Refit != nil:
		return newRefit(s, plan)
	case s.Adam != nil:
		return newAdam(s, plan, initial)
	}
	return nil, errors.New("the stream has no mechanism")
}

// planned builds a mechanism: for a new epoch from its configuration, for a begun one,
// which has a plan, by that.
func planned[C, P, E any](c C, params dp.Params, plan json.RawMessage, build func(C, dp.Params) (E, error), adopt func(C, dp.Params, P) (E, error)) (E, error) {
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

// bandsOf returns the number of bands of a factorization with its diagonal, 0
// where there are none.
func bandsOf(f *matfact.Stored) int {
	if len(f.Bands) == 0 {
		return 0
	}
	return len(f.Bands) + 1
}
