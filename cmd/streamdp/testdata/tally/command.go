package main

import (
	"fmt"
	"io"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/audit"
	"streamdp/tally"
)

func (p *plan) ofTally(*config.Stream, planQuestion) error {
	p.tables = func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "\n  standard error of every sum: %.4g\n", p.Noise["tally"])
		return err
	}
	return nil
}

func tallySuite(s *config.Stream) (*audit.Suite, error) {
	e, err := tally.New(*s.Tally, s.Params())
	if err != nil {
		return nil, configError{err}
	}
	p := e.Plan()
	subject := &audit.Subject{Mechanism: e, Array: func(name string, _ uint64) (audit.Array, bool) {
		return audit.Array{Deviations: []float64{p.Noise}}, name == "tally/sum"
	}}
	if subject.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: subject, Clip: s.Tally.Clip, Adjacency: s.Privacy.Adjacency, Horizon: s.Tally.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}
