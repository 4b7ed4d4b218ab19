package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/fit"
	"github.com/streamdp/streamdp/internal/table"
)

func fitCommand(g *globals) *cobra.Command {
	var r fit.Request
	var seed uint64
	c := &cobra.Command{
		Use:   "fit --csv FILE --target COLUMN --epsilon E --delta D --adjacency A",
		Short: "Fit a private regression to a file, without Kafka",
		Long: "Fit a linear regression of one column of a CSV file on the others, once, under\n" +
			"(epsilon, delta)-differential privacy. The file may be compressed (.gz) or - for\n" +
			"standard input. Each line is one record. Every cell of the chosen columns is a\n" +
			"number; a line in which one is not, an empty line, and a quote that its line does\n" +
			"not close make a null record. The number of lines is public.\n\n" +
			"A first line is public, too: auto takes it for a header where no cell is a number,\n" +
			"and it says how many columns there are. With --header no and --columns it is a\n" +
			"record like any other. Bounds, centre and scale are public constants that you\n" +
			"give. Those that are auto, as all are where --clip-x is not given, are found\n" +
			"privately with a part of the budget: 10 % to 50 %, the less the more rows there\n" +
			"are. Each run costs its epsilon and delta again.\n\n" +
			"Solvers:\n" + fit.Help(),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("insecure-seed") {
				r.Seed = &seed
			}
			for _, name := range []string{"csv", "target", "epsilon", "delta", "adjacency"} {
				if !c.Flags().Changed(name) {
					return exit.Usagef("--%s is needed", name)
				}
			}
			if r.Compare && c.Flags().Changed("solver") {
				return exit.Usagef("give either --solver or --compare")
			}
			return g.fit(&r)
		},
	}
	fl := c.Flags()
	fl.StringVar(&r.Solver, "solver", "newton", "solver: "+strings.Join(fit.Solvers(), ", "))
	fl.StringVar(&r.CSV, "csv", "", "CSV file")
	fl.StringVar(&r.Header, "header", "auto", "whether the file has a header: "+table.HeaderUsage)
	fl.StringVar(&r.Target, "target", "", "column to predict: a name, a 1-based number, or last")
	fl.StringSliceVar(&r.Columns, "columns", nil,
		"columns to use, the target among them, names or 1-based numbers (default: all)")
	fl.StringVar(&r.Centre, "centre", "",
		"constant to subtract, one number or one a column, or auto (default: 0, auto where clip-x is)")
	fl.StringVar(&r.Scale, "scale", "",
		"constant to divide by, one number or one a column, or auto (default: 1, auto where clip-x is)")
	fl.Float64Var(&r.Epsilon, "epsilon", 0, "epsilon of the guarantee")
	fl.Float64Var(&r.Delta, "delta", 0, "delta of the guarantee")
	fl.StringVar(&r.Adjacency, "adjacency", "",
		"what neighbouring files differ in: one row nulled (zero-out) or replaced (replace)")
	fl.StringVar(&r.ClipX, "clip-x", "auto",
		"bound on the features' Euclidean norm, after scaling, or auto; longer rows are shortened")
	fl.StringVar(&r.ClipY, "clip-y", "auto", "bound on the target's absolute value, after scaling, or auto")
	fl.BoolVar(&r.Intercept, "intercept", true, "fit a constant")
	fl.Float64Var(&r.Radius, "radius", 0,
		"bound on the coefficients' norm, for dp-gd, ambssgd (default: 100 clip-y/clip-x)")
	fl.Float64Var(&r.Curvature, "curvature", 0,
		"bound on the largest eigenvalue of the features' second moment, for ambssgd, dp-ssgd, dp-gd (default: for "+
			"the first two clip-x squared, usually far too large)")
	fl.BoolVar(&r.Compare, "compare", false,
		"run all solvers, each at the full cost, and show their errors; needs --insecure-diagnostics")
	fl.BoolVar(&r.Diagnostics, "insecure-diagnostics", false,
		"print the error on the file, which is an exact function of it, and allow the solver ols, which "+
			"protects nothing")
	fl.Uint64Var(&seed, "insecure-seed", 0, "derive keys from a number: reproducible, and protecting nothing")
	return c
}

// fit runs the request and prints what came of it.
func (g *globals) fit(r *fit.Request) error {
	var bar *progressbar.ProgressBar
	all, err := fit.Run(r, func(solver string, done, all int) {
		if bar == nil {
			bar = progress(g.stderr, int64(all), "fitting")
		}
		bar.Describe(solver)
		_ = bar.Set(done)
	})
	if err != nil {
		return err
	}
	if r.Diagnostics {
		fmt.Fprintln(g.stderr, "streamdp: warning: the errors printed are exact functions of the file, and not private")
	}
	if r.Seed != nil {
		fmt.Fprintln(g.stderr, "streamdp: warning: INSECURE: keys follow from --insecure-seed; nothing was protected")
	}
	if g.json {
		e := json.NewEncoder(g.stdout)
		if r.Compare {
			return e.Encode(all)
		}
		return e.Encode(all[0])
	}
	if r.Compare {
		return fit.PrintComparison(g.stdout, all)
	}
	return all[0].Print(g.stdout)
}
