package main

import (
	"streamdp/adam"
	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/audit"
	"streamdp/matfact"
	"streamdp/moments"
	"streamdp/sgd"
	"streamdp/sketch"
)

// loudMu is the μ at which a relative error shows in the fewest runs, about.
const loudMu = 4

// suiteOf returns the audits of a stream's mechanism. A mechanism that they do not
// know is an error: what can't be audited does not pass.
func suiteOf(s *config.Stream) (*audit.Suite, error) {
	switch {
	case s.Moments != nil:
		return momentsSuite(s)
	case s.SGD != nil && s.SGD.Method == "newton":
		return newtonSuite(s)
	case s.SGD != nil:
		return sgdSuite(s)
	case s.Refit != nil:
		return refitSuite(s)
	case s.Adam != nil:
		return adamSuite(s)
	}
	return nil, audit.NoneError(s.Mechanism())
}

func momentsSuite(s *config.Stream) (*audit.Suite, error) {
	var attained float64
	var worst audit.Pair
	subject := func(p dp.Params) (*audit.Subject, moments.Plan, error) {
		e, err := moments.New(*s.Moments, p)
		if err != nil {
			return nil, moments.Plan{}, configError{err}
		}
		plan := e.Plan()
		attained = e.Attained()
		w := matfact.Workload{Kind: s.Moments.Workload, Decay: s.Moments.Decay, Window: s.Moments.Window}
		c, err := audit.Stored(plan.Factorization, w, s.Moments.Horizon)
		if err != nil {
			return nil, plan, err
		}
		m := audit.Moments{
			Mechanism: e, Mu: plan.Mu, Method: plan.Method, Workload: w, C: c, Clip: plan.Clip,
			First: plan.First, Diagonal: plan.Diagonal, OffDiagonal: plan.OffDiagonal, Count: plan.Count,
			Exp: plan.Lattice.Exp, SecondExp: plan.SecondExp, CountExp: plan.CountExp,
		}
		worst = m.Worst(s.Privacy.Adjacency)
		return m.Subject(), plan, nil
	}
	configured, plan, err := subject(s.Params())
	if err != nil {
		return nil, err
	}
	// What the public is promised is ε at δ, whatever the plan says of μ.
	if configured.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	loud, _, err := subject(dp.Params{Mu: loudMu, Adjacency: s.Privacy.Adjacency, LatticeBits: s.LatticeBits})
	if err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: configured, Loud: loud, Clip: plan.Clip, Adjacency: s.Privacy.Adjacency,
		Worst: []audit.Pair{worst}, Attained: attained,
		Horizon: s.Moments.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}

// sgdSuite audits a regression by coupling: its steps follow from its releases, so
// there is no one noise under which neighbours could be compared.
func sgdSuite(s *config.Stream) (*audit.Suite, error) {
	e, err := sgd.New(*s.SGD, s.Params())
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
	}.Subject()
	if subject.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: subject, Clip: p.ClipX, Adjacency: s.Privacy.Adjacency, Steps: []int{1, 2, 3},
		Others:  audit.NullPairs(p.ClipX, e.Columns(), s.Privacy.Adjacency),
		Horizon: s.SGD.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}

// newtonSuite is sgdSuite for method newton. Streams are full of records, for without
// them there are no gradient steps, and go beyond the end of an epoch.
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
		Mechanism: audit.Filled(e, keys, p.ClipX), Adjacency: s.Privacy.Adjacency, Bits: s.LatticeBits, Features: features,
		C: c, Gradient: p.GradientNoise, Count: p.CountNoise, Course: e.Opened, Budget: p.Mu,
	}
	// What the public is promised is ε at δ, whatever the plan says of μ.
	if o.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	return &audit.Suite{
		Configured: o.Subject(), Clip: p.ClipX, Adjacency: s.Privacy.Adjacency, Steps: []int{1, 2, 3, 5, 6},
		Others:  audit.NullPairs(p.ClipX, e.Columns(), s.Privacy.Adjacency),
		Horizon: s.SGD.LastStep(), Keys: keys,
	}, nil
}

// refitSuite audits a refit by coupling. What neighbours' releases differ in is additive
// noise, and for solvers that sketch the covariance of sketches besides. Those of fast
// transforms have neither form: their audits are in the tests of package sketch.
func refitSuite(s *config.Stream) (*audit.Suite, error) {
	r, err := sketch.New(*s.Refit, s.Params())
	if err != nil {
		return nil, configError{err}
	}
	p := r.Plan()
	w := audit.Windows{
		Mechanism: r, Adjacency: s.Privacy.Adjacency, Bits: s.LatticeBits, Features: p.Features, Solver: p.Solver,
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
	return &audit.Suite{
		Configured: subject, Clip: s.Refit.ClipX, Adjacency: s.Privacy.Adjacency, Others: audit.NullPairs(s.Refit.ClipX, r.Columns(), s.Privacy.Adjacency), Steps: []int{1, 2},
		SketchRows: p.Cost.Rows, Horizon: s.Refit.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}

// adamParameters bounds the parameters that an audit looks at: all are treated
// alike, and what neighbours' gradients do shows in few.
const adamParameters = 1 << 10

// adamSuite audits sensitivity alone, by coupling: parameters do not determine the
// noisy means that they were made from.
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
	// What the public is promised is ε at δ, whatever the plan says of μ.
	if subject.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	suite := &audit.Suite{
		Configured: subject, Clip: plan.Clip, Adjacency: s.Privacy.Adjacency,
		Others:  audit.NullPairs(plan.Clip, e.Columns(), s.Privacy.Adjacency),
		Horizon: c.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}
	if c.Mode == "gradients" {
		switch c.Method { // of which one pair is the worst whatever stands beside it
		case "pp", "pp_debiased", "momentum":
			suite.Worst = []audit.Pair{audit.SquaresWorst(0, plan.Clip, c.Dim, s.Privacy.Adjacency)}
		case "jme", "jme_per_example":
			suite.Worst = []audit.Pair{audit.SquaresWorst(plan.Nu, plan.Clip, c.Dim, s.Privacy.Adjacency)}
		}
	}
	return suite, nil
}
