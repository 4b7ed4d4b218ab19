package main

import (
	"math"

	"slices"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/matfact"
	"github.com/streamdp/streamdp/moments"
	"github.com/streamdp/streamdp/refit"
	"github.com/streamdp/streamdp/sgd"
)

// loudMu is about the μ at which the fewest runs show a relative error.
const loudMu = 4

// suiteOf returns the audits of a stream's mechanism. A mechanism without audits is an
// error: what cannot be audited must not pass.
func suiteOf(s *config.Stream) (*audit.Suite, error) {
	if m := mechanismOf(s); m.audits != nil {
		if s.Automatic() {
			// What follows the warm-up, for the bound 1, whatever is found. The warm-up is
			// audited in the tests of stream/core and internal/bounds.
			s = s.Standing()
		}
		return m.audits(s)
	}
	return nil, audit.NoneError(s.Mechanism())
}

func momentsSuite(s *config.Stream) (*audit.Suite, error) {
	var attained float64
	var worst audit.Pair
	var norm func(steps uint64) float64
	var beyond float64
	c := *s.Moments
	if c.Automatic() {
		// What follows the warm-up: the noise for the clip norm 1, whatever is found. The
		// warm-up is audited in the tests of internal/bounds.
		c.Centre, c.Scale, c.Warmup, c.WarmupMode = nil, nil, 0, ""
		if math.IsNaN(c.Clip) {
			c.Clip = 1
		}
	}
	subject := func(p dp.Params) (*audit.Subject, moments.Plan, error) {
		e, err := moments.New(c, p)
		if err != nil {
			return nil, moments.Plan{}, configError{err}
		}
		plan := e.Plan()
		w := matfact.Workload{Kind: s.Moments.Workload, Decay: s.Moments.Decay, Window: s.Moments.Window}
		if attained = e.Attained(); plan.Person != nil {
			f, err := matfact.New(matfact.Config{Kind: plan.Factorization.Kind, Horizon: c.Horizon, Stored: plan.Factorization}, w)
			if err != nil {
				return nil, plan, err
			}
			end := uint64(0)
			norm = func(steps uint64) float64 {
				p := s.Participation()
				p.Count = steps
				n, _ := matfact.Sensitivity(f, p, end) // of as many steps there is one
				return n
			}
			if end = f.Horizon(); end == 0 && c.LastStep() > 0 {
				beyond = norm(s.Participation().Count)
				end = c.LastStep()
				beyond /= norm(s.Participation().Count)
				end = 0
			}
			if plan.Nu > 0.5 && s.Params().Adjacency == dp.Replace {
				attained = 1e-9 // what is charged is for persons in different steps
			}
		}
		matrix, err := audit.Stored(plan.Factorization, w, s.Moments.Horizon)
		if err != nil {
			return nil, plan, err
		}
		m := audit.Moments{
			Mechanism: e, Mu: plan.Mu, Method: plan.Method, Workload: w, C: matrix, Clip: plan.Clip,
			First: plan.First, Diagonal: plan.Diagonal, OffDiagonal: plan.OffDiagonal, Count: plan.Count, Full: plan.Full,
			Exp: plan.Lattice.Exp, SecondExp: plan.SecondExp, CountExp: plan.CountExp, FullExp: plan.FullExp,
		}
		worst = m.Worst(s.Params().Adjacency)
		return m.Subject(), plan, nil
	}
	configured, plan, err := subject(s.Params())
	if err != nil {
		return nil, err
	}
	// Test against the published guarantee, ε at δ, not against the plan's μ.
	if configured.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	loud, _, err := subject(dp.Params{Mu: loudMu, Adjacency: s.Params().Adjacency, LatticeBits: s.LatticeBits})
	if err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: configured, Loud: loud, Clip: plan.Clip, Adjacency: s.Params().Adjacency,
		Worst: []audit.Pair{worst}, Others: audit.NullPairs(plan.Clip, len(s.Input.Row()), s.Params().Adjacency), Attained: attained,
		Person: s.Participation(), Norm: norm, Beyond: beyond,
		Horizon: c.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}

// descentSuite audits a regression by coupling. Its steps depend on its releases, so two
// neighbouring streams cannot be compared under one and the same noise.
func descentSuite(s *config.Stream) (*audit.Suite, error) {
	e, err := sgd.NewAMB(*s.SGD, s.Params())
	if err != nil {
		return nil, configError{err}
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

// newtonSuite is descentSuite for method newton. Every slot of the streams holds a record,
// because gradient steps need records. The streams are longer than an epoch.
func newtonSuite(s *config.Stream) (*audit.Suite, error) {
	e, err := sgd.NewNewton(*s.SGD, s.Params())
	if err != nil {
		return nil, configError{err}
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
		Mechanism: audit.Filled(e, keys, p.ClipX), Adjacency: s.Params().Adjacency, Bits: s.LatticeBits, Features: features,
		C: c, Gradient: p.GradientNoise, Count: p.CountNoise, Locate: p.LocateNoise, Course: e.Opened, Budget: p.Mu,
		Released: e.AppendReleased, Person: s.Participation(), Epoch: e.EpochSteps,
	}
	// Test against the published guarantee, ε at δ, not against the plan's μ.
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

// refitSuite audits a refit by coupling. The releases of neighbours differ in additive noise
// and, for solvers that sketch, in the covariance of the sketches. Fast transforms have
// neither form; the tests of package sketch audit them.
func refitSuite(s *config.Stream) (*audit.Suite, error) {
	r, err := refit.New(*s.Refit, s.Params())
	if err != nil {
		return nil, configError{err}
	}
	p := r.Plan()
	adjacency := s.Privacy.Adjacency
	if s.User != nil { // whose noise is that of single records under zero-out
		adjacency = dp.ZeroOut
	}
	w := audit.Windows{
		Mechanism: r, Adjacency: adjacency, Bits: s.LatticeBits, Features: p.Features, Centred: *s.Refit.Intercept, Solver: p.Solver,
		Budget: p.Mu, Noise: max(p.Multiplier, p.Sigma), Test: p.Test, Rows: p.Rows, Gamma: p.Gamma, Radius: p.Radius, Course: r.Course,
	}
	if s.Refit.Sketches() {
		w.Mu = p.Cost.Mu // the rest of ε is that of the sketches
	} else if w.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	subject, err := w.Subject()
	if err != nil {
		return nil, err
	}
	first, end := r.Range(1)
	suite := &audit.Suite{
		Configured: subject, Clip: s.Refit.ClipX, Person: s.Participation(), Adjacency: s.Params().Adjacency, Others: audit.NullPairs(s.Refit.ClipX, r.Columns(), s.Params().Adjacency), Steps: []int{1, 2},
		SketchRows: p.Cost.Rows, Horizon: s.Refit.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
		Extremes: w.Extremes(audit.Target{
			Columns: r.Columns(), Target: slices.Index(s.Refit.Columns, s.Refit.Target), ClipX: s.Refit.ClipX, ClipY: s.Refit.ClipY,
			Residual: s.Refit.ResidualClip / s.Refit.ClipY, Iterations: p.Iterations, Tau: p.Tau, Debias: s.Refit.Debias, Pool: s.Refit.Pool, Slots: int(min(end-first, 1<<14)),
		}),
	}
	if s.User != nil {
		suite.Extremes = nil // it is known of single records how much of μ they cost
	}
	return suite, nil
}

// adamParameters limits how many parameters an audit looks at. All are treated alike, so
// that few show what all do.
const adamParameters = 1 << 10

// adamSuite audits the sensitivity alone, by coupling. It cannot audit the noise: the noisy
// means do not follow from the released parameters.
func adamSuite(s *config.Stream) (*audit.Suite, error) {
	c := *s.Adam
	c.Dim = min(c.Dim, adamParameters)
	e, err := adam.New(c, s.Params())
	if err != nil {
		return nil, configError{err}
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
	subject := &audit.Subject{Mechanism: e, Array: func(name string, _ uint64) (audit.Array, bool) { a, ok := arrays[name]; return a, ok }}
	// Test against the published guarantee, ε at δ, not against the plan's μ.
	if subject.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	suite := &audit.Suite{
		Configured: subject, Clip: plan.Clip, Adjacency: s.Params().Adjacency,
		Others:  audit.NullPairs(plan.Clip, e.Columns(), s.Params().Adjacency),
		Horizon: c.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}
	if plan.First.Kind == "identity" { // whose columns end with their step
		suite.Person = s.Participation()
	}
	if c.Mode == "gradients" && s.User == nil {
		switch c.Method { // of which one pair is the worst whatever stands beside it
		case "pp", "pp_debiased", "momentum":
			suite.Worst = []audit.Pair{audit.SquaresWorst(0, plan.Clip, c.Dim, s.Params().Adjacency)}
		case "jme", "jme_per_example":
			suite.Worst = []audit.Pair{audit.SquaresWorst(plan.Nu, plan.Clip, c.Dim, s.Params().Adjacency)}
		}
	}
	return suite, nil
}
