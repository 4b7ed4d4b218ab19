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
			"standard input. Each line is one record. Every cell of the chosen columns must be\n" +
			"a number. A line with any other cell, an empty line, and a line with an unclosed\n" +
			"quote make a null record. The number of lines is public.\n\n" +
			"The first line is public too: auto takes it as a header if no cell is a number,\n" +
			"and it determines the number of columns. With --header no and --columns it is a\n" +
			"record like any other. Bounds, centre and scale are public constants that you\n" +
			"give. Constants that are auto (all of them, without --clip-x) are found privately\n" +
			"with a share of the budget: 10 % to 50 %, and less with more rows.\n" +
			"Each run costs its epsilon and delta again.\n\n" +
			"Solvers:\n" + fit.Help(),
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("insecure-seed") {
				r.Seed = &seed
			}
			for _, name := range []string{"csv", "target", "epsilon", "delta", "adjacency"} {
				if !c.Flags().Changed(name) {
					return exit.Usagef("--%s is required", name)
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
		"columns to use, including the target: names or 1-based numbers (default: all)")
	fl.StringVar(&r.Centre, "centre", "",
		"constant to subtract: one number, one for each column, or auto (default: 0, or auto if --clip-x is auto)")
	fl.StringVar(&r.Scale, "scale", "",
		"constant to divide by: one number, one for each column, or auto (default: 1, or auto if --clip-x is auto)")
	fl.Float64Var(&r.Epsilon, "epsilon", 0, "epsilon of the guarantee")
	fl.Float64Var(&r.Delta, "delta", 0, "delta of the guarantee")
	fl.StringVar(&r.Adjacency, "adjacency", "",
		"how neighbouring files differ: one row nulled (zero-out) or replaced (replace)")
	fl.StringVar(&r.ClipX, "clip-x", "auto",
		"bound on the features' Euclidean norm, after scaling, or auto; longer rows are shortened")
	fl.StringVar(&r.ClipY, "clip-y", "auto", "bound on the target's absolute value, after scaling, or auto")
	fl.BoolVar(&r.Intercept, "intercept", true, "fit a constant")
	fl.Float64Var(&r.Radius, "radius", 0,
		"bound on the coefficients' norm, for dp-gd, ambssgd (default: 100 clip-y/clip-x)")
	fl.Float64Var(&r.Curvature, "curvature", 0,
		"bound on the largest eigenvalue of the features' second moment, for ambssgd, dp-ssgd, dp-gd (default for "+
			"the first two: clip-x squared, usually far too large)")
	fl.BoolVar(&r.Compare, "compare", false,
		"run all solvers, each at the full cost, and show their errors; needs --insecure-diagnostics")
	fl.BoolVar(&r.Diagnostics, "insecure-diagnostics", false,
		"print the error on the file, an exact function of it, and allow the solver ols, which "+
			"protects nothing")
	fl.Uint64Var(&seed, "insecure-seed", 0, "derive keys from a number: reproducible, but protects nothing")
	return c
}

// fit runs the request and prints the result.
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
		fmt.Fprintln(g.stderr, "streamdp: warning: the printed errors are exact functions of the file, so they are "+
			"not private")
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
