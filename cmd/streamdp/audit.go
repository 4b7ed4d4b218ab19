package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"streamdp/adam"
	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/audit"
	"streamdp/matfact"
	"streamdp/moments"
	"streamdp/sgd"
)

func auditCommand(g *globals) *cobra.Command {
	var quick bool
	c := &cobra.Command{
		Use:   "audit -c FILE",
		Short: "Test whether every stream's mechanism is as private as it says",
		Long: "Build every stream's mechanism as it is configured, run it over made-up records\n" +
			"under keys that are thrown away, and look for privacy faults from outside: how\n" +
			"far apart the releases of neighbouring streams are under one noise, whether\n" +
			"releases hold the noise that was drawn and it is white, and how well neighbours\n" +
			"can be told apart under fresh keys.\n\n" +
			"No record, no key file and no state is read, and nothing is published or\n" +
			"charged. Every audit states the probability that it fails without a fault\n" +
			"(level), and what it finds with which probability (power).",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			var all []*streamAudit
			for _, s := range cfg.Streams {
				suite, err := suiteOf(s)
				if err != nil {
					return fmt.Errorf("stream %s: %w", s.Name, err)
				}
				suite.Quick = quick
				a, err := runSuite(s.Name, suite)
				if err != nil {
					return fmt.Errorf("stream %s: %w", s.Name, err)
				}
				all = append(all, a)
			}
			return reportAudits(g, all)
		},
	}
	c.Flags().BoolVar(&quick, "quick", false, "fewer draws, for a first look")
	return c
}

// streamAudit is what the audits found in one stream's mechanism.
type streamAudit struct {
	Stream    string          `json:"stream"`
	Adjacency dp.Adjacency    `json:"adjacency"`
	Mu        float64         `json:"mu"`
	Passed    bool            `json:"passed"`
	Findings  []audit.Finding `json:"findings"`
}

func runSuite(name string, s *audit.Suite) (*streamAudit, error) {
	found, err := s.Run()
	if err != nil {
		return nil, err
	}
	a := &streamAudit{Stream: name, Adjacency: s.Adjacency, Mu: s.Configured.Mu, Passed: true, Findings: found}
	for _, f := range found {
		a.Passed = a.Passed && f.Passed
	}
	return a, nil
}

// reportAudits prints the findings. It is an error if one of them failed.
func reportAudits(g *globals, all []*streamAudit) error {
	failed, total := 0, 0
	for _, a := range all {
		for _, f := range a.Findings {
			total++
			if !f.Passed {
				failed++
			}
		}
	}
	if g.json {
		err := json.NewEncoder(g.stdout).Encode(struct {
			Passed  bool           `json:"passed"`
			Streams []*streamAudit `json:"streams"`
		}{failed == 0, all})
		if err != nil {
			return err
		}
	} else if err := printAudits(g, all); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d audits failed: do not run this build", failed, total)
	}
	return nil
}

func printAudits(g *globals, all []*streamAudit) error {
	for i, a := range all {
		if i > 0 {
			fmt.Fprintln(g.stdout)
		}
		fmt.Fprintf(g.stdout, "stream %s: mu %.6g, %s\n", a.Stream, a.Mu, a.Adjacency)
		w := tabwriter.NewWriter(g.stdout, 2, 0, 2, ' ', 0)
		fmt.Fprintln(w, "AUDIT\tWHAT\tDRAWS\tSTATISTIC\tBOUND\tLEVEL\tPOWER\tVERDICT")
		for _, f := range a.Findings {
			bound := fmt.Sprintf("%.4g to %.4g", f.Low, f.High)
			if f.Low == 0 {
				bound = fmt.Sprintf("at most %.4g", f.High)
			}
			verdict := "pass"
			if !f.Passed {
				verdict = "FAIL"
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%.6g\t%s\t%.1g\t%g: %s\t%s\n", f.Audit, f.What, f.Draws, f.Statistic, bound, f.Level, f.Power, f.Finds, verdict)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for _, f := range a.Findings {
			if !f.Passed {
				fmt.Fprintf(g.stdout, "%s failed: %s: %s\n", f.Audit, f.What, f.Fault)
			}
		}
	}
	return nil
}

// loudMu is the μ at which a relative error shows in the fewest runs, about.
const loudMu = 4

// suiteOf returns the audits of a stream's mechanism. A mechanism that they do not
// know is an error: what can't be audited does not pass.
func suiteOf(s *config.Stream) (*audit.Suite, error) {
	switch {
	case s.Moments != nil:
		return momentsSuite(s)
	case s.Adam != nil:
		return adamSuite(s)
	case s.SGD != nil:
		return sgdSuite(s)
	}
	return nil, fmt.Errorf("there is no audit of %s", s.Mechanism())
}

func momentsSuite(s *config.Stream) (*audit.Suite, error) {
	subject := func(p dp.Params) (*audit.Subject, moments.Plan, error) {
		e, err := moments.New(*s.Moments, p)
		if err != nil {
			return nil, moments.Plan{}, configError{err}
		}
		plan := e.Plan()
		if plan.Method != "jme" {
			return nil, plan, fmt.Errorf("there is no audit of method %s", plan.Method)
		}
		w := matfact.Workload{Kind: s.Moments.Workload, Decay: s.Moments.Decay, Window: s.Moments.Window}
		c, err := audit.Stored(plan.Factorization, w, s.Moments.Horizon)
		if err != nil {
			return nil, plan, err
		}
		return audit.Joint{
			Mechanism: e, Mu: plan.Mu, Workload: w, C: c, First: plan.First, Diagonal: plan.Diagonal, OffDiagonal: plan.OffDiagonal,
			Exp: plan.Lattice.Exp, SecondExp: plan.SecondExp,
		}.Subject(), plan, nil
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
		Worst:   []audit.Pair{audit.JointWorst(plan.Nu, plan.Clip, s.Moments.Columns, s.Privacy.Adjacency)},
		Horizon: s.Moments.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
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
		Horizon: c.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}
	if c.Mode == "model" && s.Privacy.Adjacency == dp.ZeroOut {
		suite.Others = nullPairs(plan.Clip, e.Columns())
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

// sgdSuite audits a regression by coupling: its steps follow from its releases, so
// there is no one noise under which neighbours could be compared.
func sgdSuite(s *config.Stream) (*audit.Suite, error) {
	e, err := sgd.New(*s.SGD, s.Params())
	if err != nil {
		return nil, err
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
	var others []audit.Pair
	if s.Privacy.Adjacency == dp.ZeroOut {
		others = nullPairs(p.ClipX, e.Columns())
	}
	return &audit.Suite{
		Configured: subject, Clip: p.ClipX, Adjacency: s.Privacy.Adjacency, Others: others, Steps: []int{1, 2, 3},
		Horizon: s.SGD.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}

// nullPairs are neighbours under zero-out where a row of zeros is a record like
// others, and no null record.
func nullPairs(clip float64, columns int) []audit.Pair {
	pairs := audit.Pairs(clip, columns, dp.ZeroOut)
	for i := range pairs {
		pairs[i].Y = nil
	}
	return pairs
}
