package suites

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/tally"
)

// Tally builds the audits of a stream of sums.
func Tally(s *config.Stream) (*audit.Suite, error) {
	e, err := tally.New(*s.Tally, s.Params())
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	p := e.Plan()
	subject := &audit.Subject{Mechanism: e, Array: func(name string, _ uint64) (audit.Array, bool) {
		return audit.Array{Deviations: []float64{p.Noise}}, name == "tally/sum"
	}}
	if subject.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: subject, Clip: s.Tally.Clip, Adjacency: s.Privacy.Adjacency, Horizon: s.Tally.LastStep(),
		Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}
