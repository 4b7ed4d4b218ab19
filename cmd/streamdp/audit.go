package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/audit"
	"streamdp/matfact"
	"streamdp/moments"
	"streamdp/sgd"
	"streamdp/sketch"
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
			var missing error // the others are audited all the same
			for _, s := range cfg.Streams {
				suite, err := suiteOf(s)
				if errors.As(err, new(audit.NoneError)) {
					missing = errors.Join(missing, fmt.Errorf("stream %s: %w", s.Name, err))
					continue
				}
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
			return errors.Join(reportAudits(g, all), missing)
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
	case s.SGD != nil:
		return sgdSuite(s)
	case s.Refit != nil:
		return refitSuite(s)
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
	pairs := audit.Pairs(p.ClipX, e.Columns(), s.Privacy.Adjacency)
	if s.Privacy.Adjacency == dp.ZeroOut {
		for i := range pairs {
			pairs[i].Y = nil // a row of zeros is a record like others, and no null record
		}
	}
	return &audit.Suite{
		Configured: subject, Clip: p.ClipX, Adjacency: s.Privacy.Adjacency, Others: pairs, Steps: []int{1, 2, 3},
		Horizon: s.SGD.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}

// refitSuite audits a refit by coupling. Solvers that sketch multiply records by noise,
// which no release shows: their audits are in the tests of package sketch.
func refitSuite(s *config.Stream) (*audit.Suite, error) {
	r, err := sketch.New(*s.Refit, s.Params())
	if err != nil {
		return nil, configError{err}
	}
	p := r.Plan()
	w := audit.Windows{
		Mechanism: r, Adjacency: s.Privacy.Adjacency, Bits: s.LatticeBits, Features: p.Features, Solver: p.Solver,
		Budget: p.Mu, Noise: max(p.Multiplier, p.Sigma), Course: r.Course,
	}
	if w.Mu, err = dp.Mu(s.Privacy.Epsilon, s.Privacy.Delta); err != nil {
		return nil, err
	}
	subject, err := w.Subject()
	if err != nil {
		return nil, err
	}
	pairs := audit.Pairs(s.Refit.ClipX, r.Columns(), s.Privacy.Adjacency)
	if s.Privacy.Adjacency == dp.ZeroOut {
		for i := range pairs {
			pairs[i].Y = nil // a row of zeros has a target and a constant
		}
	}
	return &audit.Suite{
		Configured: subject, Clip: s.Refit.ClipX, Adjacency: s.Privacy.Adjacency, Others: pairs, Steps: []int{1, 2},
		Horizon: s.Refit.LastStep(), Keys: audit.NewKeys(dp.NewSecret()),
	}, nil
}
