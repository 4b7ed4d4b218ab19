package suites

import (
	"math"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/matfact"
	"github.com/streamdp/streamdp/moments"
)

// loudMu is approximately the μ at which the fewest runs show a relative error.
const loudMu = 4

// Moments builds the audits of a stream of moments: for the plan with the published guarantee, and for the same plan
// with μ = loudMu.
func Moments(s *config.Stream) (*audit.Suite, error) {
	var attained float64
	var worst audit.Pair
	var norm func(steps uint64) float64
	var beyond float64
	c := *s.Moments
	if c.Automatic() {
		// The audit covers the mechanism after the warm-up. Its noise is computed for the clip norm 1, so the result
		// holds for any norm that the warm-up finds. Tests of internal/bounds audit the warm-up itself.
		c.Centre, c.Scale, c.Warmup, c.WarmupMode = nil, nil, 0, ""
		if math.IsNaN(c.Clip) {
			c.Clip = 1
		}
	}
	subject := func(p dp.Params) (*audit.Subject, moments.Plan, error) {
		e, err := moments.New(c, p)
		if err != nil {
			return nil, moments.Plan{}, exit.Config{Err: err}
		}
		plan := e.Plan()
		w := matfact.Workload{Kind: s.Moments.Workload, Decay: s.Moments.Decay, Window: s.Moments.Window}
		if attained = e.Attained(); plan.Person != nil {
			f, err := matfact.New(
				matfact.Config{Kind: plan.Factorization.Kind, Horizon: c.Horizon, Stored: plan.Factorization}, w)
			if err != nil {
				return nil, plan, err
			}
			end := uint64(0)
			norm = func(steps uint64) float64 {
				p := s.Participation()
				p.Count = steps
				n, _ := matfact.Sensitivity(f, p, end) // cannot fail for these numbers of steps
				return n
			}
			if end = f.Horizon(); end == 0 && c.LastStep() > 0 {
				beyond = norm(s.Participation().Count)
				end = c.LastStep()
				beyond /= norm(s.Participation().Count)
				end = 0
			}
			if plan.Nu > 0.5 && s.Params().Adjacency == dp.Replace {
				attained = 1e-9 // the charge covers persons in different steps, which no pair reaches
			}
		}
		matrix, err := audit.Stored(plan.Factorization, w, s.Moments.Horizon)
		if err != nil {
			return nil, plan, err
		}
		m := audit.Moments{
			Mechanism: e, Mu: plan.Mu, Method: plan.Method, Workload: w, C: matrix, Clip: plan.Clip,
			First: plan.First, Diagonal: plan.Diagonal, OffDiagonal: plan.OffDiagonal, Count: plan.Count,
			Full: plan.Full,
			Exp:  plan.Lattice.Exp, SecondExp: plan.SecondExp, CountExp: plan.CountExp, FullExp: plan.FullExp,
		}
		worst = m.Worst(s.Params().Adjacency)
		return m.Subject(), plan, nil
	}
	configured, plan, err := subject(s.Params())
	if err != nil {
		return nil, err
	}
	// The audit tests the published guarantee, ε at δ, instead of the plan's μ.
	if configured.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	loud, _, err := subject(dp.Params{Mu: loudMu, Adjacency: s.Params().Adjacency, LatticeBits: s.LatticeBits})
	if err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: configured, Loud: loud, Clip: plan.Clip, Adjacency: s.Params().Adjacency,
		Worst: []audit.Pair{worst}, Others: audit.NullPairs(plan.Clip, len(s.Input.Row()), s.Params().Adjacency),
		Attained: attained,
		Person:   s.Participation(), Norm: norm, Beyond: beyond,
		Horizon: c.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}
