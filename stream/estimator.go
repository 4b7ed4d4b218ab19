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
	// first(t) = end(t−1). It is asked for the open step and the last one.
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
	sample   *dp.Release        // a release of the largest form; nil: any is
	warnings []string

	chunked bool // releases above chunkBytes are published in pieces
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
	case s.Adam != nil:
		v["mechanism"] = adam.Version
	case s.SGD != nil:
		v["mechanism"] = sgd.Version
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
	case s.Adam != nil:
		return newAdam(s, plan, initial)
	case s.SGD != nil:
		return newSGD(s, plan)
	}
	return nil, errors.New("the stream has no mechanism")
}

func newMoments(s *config.Stream, plan json.RawMessage) (*mechanism, error) {
	var e *moments.Estimator
	var err error
	if plan == nil {
		e, err = moments.New(*s.Moments, s.Params())
	} else {
		var p moments.Plan
		if err := json.Unmarshal(plan, &p); err != nil {
			return nil, errors.New("the epoch's plan is damaged")
		}
		e, err = moments.Adopt(*s.Moments, s.Params(), p)
	}
	if err != nil {
		return nil, err
	}
	p := e.Plan()
	m := &mechanism{
		Estimator: e, name: "moments", method: p.Method, factorization: p.Factorization.Kind,
		clip: p.Clip, sens: p.Sensitivity,
	}
	m.lattice = []float64{p.Lattice.Step(), p.SecondStep()}
	m.noise = map[string]float64{"first": p.First, "second_diagonal": p.Diagonal, "second_off_diagonal": p.OffDiagonal}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.describe, err = json.Marshal(struct {
		Name          string  `json:"name"`
		Method        string  `json:"method"`
		Workload      string  `json:"workload"`
		Decay         float64 `json:"decay,omitempty"`
		Window        uint64  `json:"window,omitempty"`
		Factorization string  `json:"factorization"`
		Buffers       int     `json:"buffers,omitempty"`
		Bands         int     `json:"bands,omitempty"`
		Step          uint64  `json:"step"`
		Horizon       uint64  `json:"horizon,omitempty"`
		Nu            float64 `json:"nu"`
		Lambda        float64 `json:"lambda"`
	}{
		"moments", p.Method, s.Moments.Workload, s.Moments.Decay, s.Moments.Window,
		p.Factorization.Kind, len(p.Factorization.Decay), bandsOf(p.Factorization), s.Step, s.Moments.LastStep(), p.Nu, p.Lambda,
	})
	return m, err
}

func newSGD(s *config.Stream, plan json.RawMessage) (*mechanism, error) {
	var e *sgd.AMB
	var err error
	if plan == nil {
		e, err = sgd.New(*s.SGD, s.Params())
	} else {
		var p sgd.Plan
		if err := json.Unmarshal(plan, &p); err != nil {
			return nil, errors.New("the epoch's plan is damaged")
		}
		e, err = sgd.Adopt(*s.SGD, s.Params(), p)
	}
	if err != nil {
		return nil, err
	}
	p, c := e.Plan(), s.SGD
	m := &mechanism{
		Estimator: e, name: "sgd", method: p.Method, factorization: p.Factorization.Kind,
		clip: p.ClipX, sens: p.Sensitivity / p.One, sample: e.Sample(), warnings: e.Warnings(),
	}
	// Gradients are counted in clip norms, searches and counts in records.
	m.lattice = []float64{1 / p.One, 1 / float64(p.Unit)}
	m.noise = map[string]float64{"gradient": p.GradientNoise / p.One}
	if p.CountNoise > 0 {
		m.noise["count"] = p.CountNoise / float64(p.Unit)
	}
	if p.SearchNoise > 0 {
		m.noise["search"] = p.SearchNoise / float64(p.Unit)
	}
	if m.plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.describe, err = json.Marshal(struct {
		Name          string  `json:"name"`
		Method        string  `json:"method"`
		Target        string  `json:"target"`
		Intercept     bool    `json:"intercept"`
		Clip          string  `json:"clip"`
		Value         string  `json:"value"`
		Quantile      float64 `json:"threshold_quantile"`
		ClipY         float64 `json:"clip_y,omitempty"`
		Factorization string  `json:"factorization"`
		Bands         int     `json:"bands,omitempty"`
		Batch         uint64  `json:"batch"`
		Search        uint64  `json:"search,omitempty"`
		Growth        string  `json:"growth"`
		Eta0          float64 `json:"eta0"`
		Curvature     float64 `json:"curvature"`
		Radius        float64 `json:"radius"`
		Average       string  `json:"average"`
		Level         float64 `json:"level,omitempty"`
		Horizon       uint64  `json:"horizon,omitempty"`
	}{
		"sgd", p.Method, c.Target, *c.Intercept, c.Clip, c.Value, c.Quantile, c.ClipY, p.Factorization.Kind, bandsOf(p.Factorization),
		p.Batch, p.Search, c.Growth, c.Eta0, p.Curvature, p.Radius, c.Average, levelOf(c), c.LastStep(),
	})
	return m, err
}

// levelOf returns the level of a stream's intervals, 0 where it has none.
func levelOf(c *sgd.Config) float64 {
	if !*c.Intervals {
		return 0
	}
	return c.Level
}

// bandsOf returns the number of bands of a factorization with its diagonal, 0
// where there are none.
func bandsOf(f *matfact.Stored) int {
	if len(f.Bands) == 0 {
		return 0
	}
	return len(f.Bands) + 1
}
