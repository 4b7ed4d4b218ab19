package core

import (
	"encoding/json"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/tally"
)

var tallyMechanism = &descriptor{
	name:    "tally",
	has:     func(s *config.Stream) bool { return s.Tally != nil },
	version: tally.Version,
	absent:  "the zero record",
	build:   newTally,
}

func newTally(s *config.Stream, plan json.RawMessage, _ []float64) (*Mechanism, error) {
	e, err := planned(*s.Tally, s.Params(), plan, tally.New, tally.Adopt)
	if err != nil {
		return nil, err
	}
	p := e.Plan()
	g := p.Lattice.Step()
	m := &Mechanism{
		Estimator: e, Method: "sum", Factorization: "identity", clip: p.Lattice.Bound(),
		sensitivity: p.Lattice.Bound() * s.Privacy.Adjacency.Factor(),
		Lattice:     []float64{g}, Noise: map[string]float64{"tally": p.Noise * g},
	}
	if m.Plan, err = json.Marshal(p); err != nil {
		return nil, err
	}
	m.description, err = json.Marshal(map[string]any{"name": "tally", "step": s.Slots()})
	return m, err
}
