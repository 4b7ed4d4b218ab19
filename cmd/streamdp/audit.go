package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/audit/suites"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/stream/preflight"
)

func auditCommand(g *globals) *cobra.Command {
	var quick bool
	c := &cobra.Command{
		Use:   "audit -c FILE",
		Short: "Test whether every stream's mechanism is as private as it claims",
		Long: "Build each stream's mechanism as it is configured, run it on made-up records\n" +
			"with temporary keys, and look for privacy faults in its output. The audits test\n" +
			"how far apart the releases of neighbouring streams are under the same noise,\n" +
			"whether releases contain the noise that was drawn and whether it is white, and\n" +
			"how well neighbours can be told apart under fresh keys.\n\n" +
			"No record, key file or state is read, and nothing is published or charged. Each\n" +
			"audit states the probability that it fails without a fault (level), and the size\n" +
			"of fault that it finds with a given probability (power).",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			var all []*audit.Report
			var missing error // returned after all other streams have been audited
			for _, s := range cfg.Representative().Streams {
				suite, err := suiteOf(s)
				if errors.As(err, new(audit.NoneError)) {
					missing = errors.Join(missing, fmt.Errorf("stream %s: %w", preflight.Title(s), err))
					continue
				}
				if err != nil {
					return fmt.Errorf("stream %s: %w", preflight.Title(s), err)
				}
				suite.Quick = quick
				a, err := suite.Report(preflight.Title(s))
				if err != nil {
					return fmt.Errorf("stream %s: %w", preflight.Title(s), err)
				}
				all = append(all, a)
			}
			return errors.Join(reportAudits(g, all), missing)
		},
	}
	c.Flags().BoolVar(&quick, "quick", false, "use fewer draws: faster, but finds only larger faults")
	return c
}

// suiteOf builds the audits of a stream's mechanism. It fails for a mechanism without audits.
func suiteOf(s *config.Stream) (*audit.Suite, error) { return suites.Of(s, plan.Audits(s)) }

// reportAudits prints the findings of audits. It returns an error if an audit failed.
func reportAudits(g *globals, all []*audit.Report) error {
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
			Passed  bool            `json:"passed"`
			Streams []*audit.Report `json:"streams"`
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

func printAudits(g *globals, all []*audit.Report) error {
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
			fmt.Fprintf(w, "%s\t%s\t%d\t%.6g\t%s\t%.1g\t%g: %s\t%s\n", f.Audit, f.What, f.Draws, f.Statistic, bound,
				f.Level, f.Power, f.Finds, verdict)
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
