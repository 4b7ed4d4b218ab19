package suites

import (
	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/matfact"
)

// adamParameters limits the number of parameters in an audit. The mechanism treats all parameters alike, so a few
// suffice.
const adamParameters = 1 << 10

// Adam builds audits of the sensitivity only, by coupling. The noise cannot be audited, because the noisy means do not
// follow from the released parameters.
func Adam(s *config.Stream) (*audit.Suite, error) {
	c := *s.Adam
	c.Dim = min(c.Dim, adamParameters)
	e, err := adam.New(c, s.Params())
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	plan := e.Plan()
	first, second := e.Deviations()
	arrays := map[string]audit.Array{}
	for name, a := range map[string]struct {
		stored *matfact.Stored
		decay  float64
		sd     float64
	}{"adam/first": {plan.First, c.Beta1, first}, "adam/second": {plan.Second, c.Beta2, second}} {
		if a.stored == nil {
			continue
		}
		m, err := audit.Stored(a.stored, matfact.Workload{Kind: "exponential", Decay: a.decay}, c.Horizon)
		if err != nil {
			return nil, err
		}
		arrays[name] = audit.Array{Deviations: []float64{a.sd}, C: m}
	}
	subject := &audit.Subject{Mechanism: e,
		Array: func(name string, _ uint64) (audit.Array, bool) { a, ok := arrays[name]; return a, ok }}
	// The audit tests the published guarantee, ε at δ, instead of the plan's μ.
	if subject.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	suite := &audit.Suite{
		Configured: subject, Clip: plan.Clip, Adjacency: s.Params().Adjacency,
		Others:  audit.NullPairs(plan.Clip, e.Columns(), s.Params().Adjacency),
		Horizon: c.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}
	if plan.First.Kind == "identity" { // a row affects only its own step
		suite.Person = s.Participation()
	}
	if c.Mode == "gradients" && s.User == nil {
		switch c.Method { // with these methods, the same pair is the worst for all other records
		case "pp", "pp_debiased", "momentum":
			suite.Worst = []audit.Pair{audit.SquaresWorst(0, plan.Clip, c.Dim, s.Params().Adjacency)}
		case "jme", "jme_per_example":
			suite.Worst = []audit.Pair{audit.SquaresWorst(plan.Nu, plan.Clip, c.Dim, s.Params().Adjacency)}
		}
	}
	return suite, nil
}
