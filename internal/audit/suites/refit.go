package suites

import (
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/refit"
)

// Refit builds the audits of a refit, by coupling. The releases of neighbours differ in additive noise and, for solvers
// that sketch, in the covariance of the sketches. Sketches by fast transforms have neither form; the tests of package
// refit audit them.
func Refit(s *config.Stream) (*audit.Suite, error) {
	r, err := refit.New(*s.Refit, s.Params())
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	p := r.Plan()
	adjacency := s.Privacy.Adjacency
	if s.User != nil { // persons get the noise that single records get under zero-out
		adjacency = dp.ZeroOut
	}
	w := audit.Windows{
		Mechanism: r, Adjacency: adjacency, Bits: s.LatticeBits, Features: p.Features, Centred: *s.Refit.Intercept,
		Solver: p.Solver,
		Budget: p.Mu, Noise: max(p.Multiplier, p.Sigma), Test: p.Test, Rows: p.Rows, Gamma: p.Gamma, Radius: p.Radius,
		Course: r.Course,
	}
	if s.Refit.Sketches() {
		w.Mu = p.Cost.Mu // the sketches use the rest of ε
	} else if w.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	subject, err := w.Subject()
	if err != nil {
		return nil, err
	}
	first, end := r.Range(1)
	suite := &audit.Suite{
		Configured: subject, Clip: s.Refit.ClipX, Person: s.Participation(), Adjacency: s.Params().Adjacency,
		Others: audit.NullPairs(s.Refit.ClipX, r.Columns(), s.Params().Adjacency), Steps: []int{1, 2},
		SketchRows: p.Cost.Rows, Horizon: s.Refit.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
		Extremes: w.Extremes(audit.Target{
			Columns: r.Columns(), Target: slices.Index(s.Refit.Columns, s.Refit.Target), ClipX: s.Refit.ClipX,
			ClipY:    s.Refit.ClipY,
			Residual: s.Refit.ResidualClip / s.Refit.ClipY, Iterations: p.Iterations, Tau: p.Tau,
			Debias: s.Refit.Debias, Pool: s.Refit.Pool, Slots: int(min(end-first, 1<<14)),
		}),
	}
	if s.User != nil {
		suite.Extremes = nil // the cost of these pairs is known for single records only
	}
	return suite, nil
}
