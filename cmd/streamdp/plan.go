package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/chart"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/preflight"
)

func planCommand(g *globals) *cobra.Command {
	var name, steps, plotFile string
	var condition float64
	var records uint64
	var all bool
	c := &cobra.Command{
		Use:   "plan -c FILE",
		Short: "Show the guarantee and the noise of every released value, before any data is read",
		Long: "Show the guarantee of a configuration and the noise of its releases without\n" +
			"reading any data: all output is a function of the configuration alone. Standard\n" +
			"errors are of the noise only, in scaled units, and assume that every slot of a\n" +
			"step holds a record. For steps by the clock they assume --step-records records,\n" +
			"and are smaller for larger steps. For an online regression the command shows the\n" +
			"expected excess risk and the length of steps: with newton for features of any\n" +
			"second moment, with amb for independent features of unit variance, and step size\n" +
			"and settling time for the given condition number.",
		RunE: func(c *cobra.Command, _ []string) error {
			if !(condition >= 1 && condition <= 1e12) {
				return exit.Usagef("--condition is %g, must be 1 to 1e12", condition)
			}
			if records < 2 || records > 1<<40 {
				return exit.Usagef("--step-records is %d, must be 2 to %d", records, uint64(1)<<40)
			}
			cfg, err := g.load()
			if err != nil {
				return err
			}
			at, err := parseSteps(steps)
			if err != nil {
				return err
			}
			chosen := c.Flags().Changed("steps")
			var plans []*plan.Plan
			guessed := !c.Flags().Changed("condition")
			of := cfg.Representative()
			for _, s := range of.Streams {
				if name != "" && !names(cfg, s, name) {
					continue
				}
				guessed = guessed || plan.Conditioned(s)
				within := plan.Steps(s, at, chosen)
				if len(within) == 0 {
					return exit.Usagef("--steps has only steps after the end of stream %s, which is step %d", s.Name,
						s.LastStep())
				}
				p, err := plan.Of(of, s, plan.Options{
					Steps: within, Factorizations: all, Figure: plotFile != "", Condition: condition,
					StepRecords: records,
				})
				if err != nil {
					return exit.Config{Err: fmt.Errorf("stream %s: %w", s.Name, err)}
				}
				p.Stream = preflight.Title(s)
				plans = append(plans, p)
			}
			if len(plans) == 0 {
				return noStream(cfg, name)
			}
			if !guessed {
				return exit.Usagef("--condition is only for regressions with method \"amb\", and the configuration " +
					"has none")
			}
			for _, p := range plans {
				warn(g, p.Description)
				if large := preflight.Oversize(p.Description); large != "" {
					fmt.Fprintf(g.stderr,
						"streamdp: warning: stream %s: %s, or raise the output topic's max.message.bytes\n",
						p.Stream, large)
				}
			}
			if plotFile != "" {
				if len(plans) > 1 {
					return exit.Usagef("--plot draws one stream only: choose it with --stream")
				}
				if plans[0].Comparison == nil {
					return exit.Usagef("--plot draws the noise of moments, but stream %s has another "+
						"mechanism", plans[0].Stream)
				}
				if err := plans[0].Draw(plotFile); errors.Is(err, chart.ErrForm) {
					return exit.Usagef("--plot is %q, must end in .svg or .png", plotFile)
				} else if err != nil {
					return err
				}
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(plans)
			}
			for i, p := range plans {
				if i > 0 {
					fmt.Fprintln(g.stdout)
				}
				if err := p.Print(g.stdout); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "stream", "", "only this stream")
	c.Flags().StringVar(&steps, "steps", "1,10,100,1000,10000",
		"steps at which to show the noise (default: these and the horizon)")
	c.Flags().Float64Var(&condition, "condition", 1,
		"for a regression with amb: assumed condition number of the features' second moment")
	c.Flags().Uint64Var(&records, "step-records", 1000,
		"number of records that a step by the clock is assumed to hold")
	c.Flags().BoolVar(&all, "factorizations", true, "compare the configured factorization with the others")
	c.Flags().StringVar(&plotFile, "plot", "",
		"draw the error of every factorization against time into this .svg or .png file")
	return c
}

func parseSteps(list string) ([]uint64, error) {
	var steps []uint64
	for _, word := range strings.Split(list, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(word), 10, 62)
		if err != nil || n == 0 {
			return nil, exit.Usagef("step is %q, must be a positive number", word)
		}
		steps = append(steps, n)
	}
	return steps, nil
}

// warn prints warnings about settings that are probably mistakes.
func warn(g *globals, d *core.Description) {
	for _, w := range d.Warnings {
		fmt.Fprintf(g.stderr, "streamdp: warning: stream %s: %s\n", d.Stream, w)
	}
}
