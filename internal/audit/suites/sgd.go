package suites

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/matfact"
	"github.com/streamdp/streamdp/sgd"
)

// Descent builds the audits of a regression with method amb, by coupling: its steps depend on its releases, so two
// neighbouring streams cannot be compared under the same noise.
func Descent(s *config.Stream) (*audit.Suite, error) {
	e, err := sgd.NewAMB(*s.SGD, s.Params())
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	p := e.Plan()
	c, err := audit.Stored(p.Factorization, matfact.Workload{Kind: "sum"}, 0)
	if err != nil {
		return nil, err
	}
	subject := audit.Descent{
		Mechanism: e, Mu: p.Mu, C: c, Search: p.SearchNoise, Count: p.CountNoise, Gradient: p.GradientNoise,
		Scan: s.SGD.Clip == "scan", Rungs: s.SGD.Rungs, Threshold: p.Threshold, Unit: p.Unit, Null: p.Null,
		Released: e.AppendReleased,
	}.Subject()
	if subject.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: subject, Clip: p.ClipX, Adjacency: s.Params().Adjacency, Steps: []int{1, 2, 3},
		Others:  audit.NullPairs(p.ClipX, e.Columns(), s.Params().Adjacency),
		Person:  s.Participation(),
		Horizon: s.SGD.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}

// Newton builds the audits of a regression with method newton, by coupling as in [Descent]. Every slot of the streams
// holds a record, because gradient steps need records. The streams are longer than an epoch.
func Newton(s *config.Stream) (*audit.Suite, error) {
	e, err := sgd.NewNewton(*s.SGD, s.Params())
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	p := e.Plan()
	c, err := audit.Stored(p.Factorization, matfact.Workload{Kind: "sum"}, 0)
	if err != nil {
		return nil, err
	}
	features := e.Columns() - 1
	if *s.SGD.Intercept {
		features++
	}
	keys := audit.NewKeys(dp.NewSecret())
	o := audit.Online{
		Mechanism: audit.Filled(e, keys, p.ClipX), Adjacency: s.Params().Adjacency, Bits: s.LatticeBits,
		Features: features,
		C:        c, Gradient: p.GradientNoise, Count: p.CountNoise, Locate: p.LocateNoise, Course: e.Opened,
		Budget:   p.Mu,
		Released: e.AppendReleased, Person: s.Participation(), Epoch: e.EpochSteps,
	}
	// The audit tests the published guarantee, ε at δ, instead of the plan's μ.
	if o.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: o.Subject(), Clip: p.ClipX, Adjacency: s.Params().Adjacency, Steps: []int{1, 2, 3, 5, 6, 7},
		Others:  audit.NullPairs(p.ClipX, e.Columns(), s.Params().Adjacency),
		Person:  s.Participation(),
		Horizon: s.SGD.LastStep(), Keys: keys,
	}, nil
}
