package core

import (
	"encoding/json"
	"math"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/moments"
	"github.com/streamdp/streamdp/stream/codec"
)

var momentsMechanism = &descriptor{
	name:      "moments",
	has:       func(s *config.Stream) bool { return s.Moments != nil },
	versionOf: func(s *config.Stream) string { return s.Moments.Version() },
	absent:    nullRecord,
	build:     newMoments,
	keep:      keepMoments,
	persons:   true,
	computes:  momentsComputed,
}

// newMoments returns the mechanism for moments and covariances.
func newMoments(s *config.Stream, plan json.RawMessage, _ []float64) (*Mechanism, error) {
	e, err := planned(*s.Moments, s.Params(), plan, moments.New, moments.Adopt)
	if err != nil {
		return nil, err
	}
	return momentsOf(s, e)
}

// keepMoments checks a recorded plan once for all mechanisms that are made from it.
func keepMoments(s *config.Stream, plan json.RawMessage) (func() (*Mechanism, error), error) {
	k, err := planned(*s.Moments, s.Params(), plan, nil, moments.Keep)
	if err != nil {
		return nil, err
	}
	return func() (*Mechanism, error) {
		e, err := k.Estimator()
		if err != nil {
			return nil, err
		}
		return momentsOf(s, e)
	}, nil
}

// momentsOf makes the Mechanism for an estimator of moments.
func momentsOf(s *config.Stream, e *moments.Estimator) (*Mechanism, error) {
	p := e.Plan()
	m := &Mechanism{
		Estimator: e, Method: p.Method, Factorization: p.Factorization.Kind,
		clip: p.Clip, sensitivity: p.Sensitivity, Lattice: []float64{p.Lattice.Step()},
		Noise:   map[string]float64{"first": p.First},
		Refused: func() (codec.Reason, uint64) { return codec.NotFinite, e.Refused() }, Clipped: e.Clipped,
	}
	if p.Diagonal > 0 {
		m.Lattice = append(m.Lattice, p.SecondStep())
		m.Noise["second_diagonal"], m.Noise["second_off_diagonal"] = p.Diagonal, p.OffDiagonal
	}
	if p.Count > 0 {
		m.Lattice = append(m.Lattice, math.Ldexp(1, p.CountExp))
		m.Noise["valid_count"] = p.Count
	}
	if p.Person != nil {
		m.norm, m.record, m.sample = p.Person.Norm, new(e.RecordCost()), e.Sample()
	}
	m.Lattice = append(m.Lattice, math.Ldexp(1, p.FullExp))
	m.Noise["full"] = p.Full
	if p.Warmup != nil {
		m.sample, m.scales, m.found, m.Warmup = e.Sample(), true, math.IsNaN(s.Moments.Clip), int64(p.Warmup.Records)
	}
	var err error
	if m.Plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	last, mode := s.Moments.LastStep(), ""
	if p.Warmup != nil {
		last -= min(last, p.Warmup.Parts)
		mode = s.Moments.WarmupMode
	}
	split := 0.0
	if p.Method == "ime" {
		split = s.Moments.Split
	}
	m.description, err = json.Marshal(struct {
		Name          string              `json:"name"`
		Method        string              `json:"method"`
		Workload      string              `json:"workload"`
		Decay         float64             `json:"decay,omitempty"`
		Window        uint64              `json:"window,omitempty"`
		Factorization string              `json:"factorization"`
		Buffers       int                 `json:"buffers,omitempty"`
		Bands         int                 `json:"bands,omitempty"`
		Normalise     bool                `json:"normalise,omitempty"`
		Step          uint64              `json:"step"` // length of a step; if steps are by the clock, the largest one
		Clock         string              `json:"clock,omitempty"`
		Horizon       uint64              `json:"horizon,omitempty"` // number of steps, not counting a warm-up
		Nu            float64             `json:"nu,omitempty"`
		Lambda        float64             `json:"lambda,omitempty"`
		Split         float64             `json:"split,omitempty"`
		PSDFloor      *float64            `json:"psd_floor,omitempty"`
		Choice        *moments.Choice     `json:"choice,omitempty"`
		WarmupMode    string              `json:"warmup_mode,omitempty"`
		Warmup        *moments.WarmupPlan `json:"warmup,omitempty"`
	}{
		"moments", p.Method, s.Moments.Workload, s.Moments.Decay, s.Moments.Window,
		p.Factorization.Kind, len(p.Factorization.Decay), bandsOf(p.Factorization), s.Moments.Normalise, s.Slots(),
		clockOf(s), last, p.Nu, p.Lambda,
		split, s.Moments.PSDFloor, p.Choice, mode, p.Warmup,
	})
	return m, err
}

// clockOf returns the period of steps by the clock, or "" for other steps.
func clockOf(s *config.Stream) string {
	if s.Step.Clock() == 0 {
		return ""
	}
	return s.Step.Clock().String()
}
