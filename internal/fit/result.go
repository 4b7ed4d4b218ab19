package fit

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/streamdp/streamdp/dp"
)

// Result is the result of a solver, and the JSON object that the command prints.
type Result struct {
	Solver    string    `json:"solver"`
	Theta     []float64 `json:"theta"`
	Intercept float64   `json:"intercept"`
	// SE holds the standard errors of theta and intercept, due to noise and sampling, if the solver computes them.
	SE deviations `json:"se,omitempty"`
	// Original holds theta and the intercept in the file's units, if the data were scaled.
	Original  []float64    `json:"theta_original,omitempty"`
	Columns   []string     `json:"columns"`
	TrainMSE  *float64     `json:"train_mse,omitempty"`
	N         int          `json:"n"`
	D         int          `json:"d"`
	Epsilon   float64      `json:"epsilon"`
	Delta     float64      `json:"delta"`
	Adjacency dp.Adjacency `json:"adjacency"`
	Seconds   float64      `json:"seconds"` // whole seconds, unless there are diagnostics
	Account   string       `json:"accounting"`
	Note      string       `json:"note,omitempty"`
	Bounds    *Bounds      `json:"bounds,omitempty"`  // bounds that were found
	Failure   string       `json:"failure,omitempty"` // error of this solver, if several ran
	Insecure  bool         `json:"insecure,omitempty"`
	// NotPrivate names the keys of this object that are exact functions of the file.
	NotPrivate []string `json:"not_private,omitempty"`

	target string // name of the target column
	steps  int    // number of gradient steps of a stream's estimator
}

// original returns the coefficients and the constant in the file's units.
func original(r *Result, d *data, centre, scale []float64) []float64 {
	constant := centre[d.target] + scale[d.target]*r.Intercept
	var out []float64
	for i := range d.names {
		if i == d.target {
			continue
		}
		c := scale[d.target] * r.Theta[len(out)] / scale[i]
		constant -= c * centre[i]
		out = append(out, c)
	}
	return append(out, constant)
}

// Print writes the result in words and tables.
func (r *Result) Print(w io.Writer) error {
	guarantee := fmt.Sprintf("(%g, %g)-differentially private, %s, accounting %s", r.Epsilon, r.Delta,
		r.Adjacency, r.Account)
	switch {
	case slices.Contains(r.NotPrivate, "theta"):
		guarantee = "not private: an exact function of the file, accounting " + r.Account
	case r.Insecure:
		guarantee = "INSECURE, because --insecure-seed determines the keys; otherwise " + guarantee
	}
	fmt.Fprintf(w, "%s of %s on %d rows: %s\n", r.Solver, r.target, r.N, guarantee)
	if r.Bounds != nil {
		fmt.Fprintln(w, r.Bounds)
	}
	if r.Note != "" {
		fmt.Fprintln(w, r.Note)
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	row := func(i int, name string, v float64) {
		fmt.Fprintf(t, "  %s\t%.6g\t", name, v+0) // turns −0 into 0
		if i < len(r.SE) {
			fmt.Fprintf(t, "%s\t", r.SE.text(i))
		} else if r.SE != nil {
			fmt.Fprint(t, "\t")
		}
		if r.Original != nil {
			fmt.Fprintf(t, "%.6g\t", r.Original[i])
		}
		fmt.Fprintln(t)
	}
	switch {
	case r.Original != nil && r.SE != nil:
		fmt.Fprintln(t, "  \tscaled\tstandard error\toriginal units\t")
	case r.Original != nil:
		fmt.Fprintln(t, "  \tscaled\toriginal units\t")
	case r.SE != nil:
		fmt.Fprintln(t, "  \t\tstandard error\t")
	}
	for i, name := range r.Columns {
		row(i, name, r.Theta[i])
	}
	row(len(r.Theta), "intercept", r.Intercept)
	if err := t.Flush(); err != nil {
		return err
	}
	if r.TrainMSE != nil {
		fmt.Fprintf(w, "mean squared error on the file, not private: %.6g\n", *r.TrainMSE)
	}
	return nil
}

// PrintComparison writes the errors of several solvers as a table.
func PrintComparison(w io.Writer, all []*Result) error {
	fmt.Fprintln(w, "not private: errors and seconds are exact functions of the file")
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SOLVER\tMEAN SQUARED ERROR\tSECONDS\tACCOUNTING")
	for _, r := range all {
		if r.Failure != "" {
			fmt.Fprintf(t, "%s\t-\t-\t%s\n", r.Solver, strings.ReplaceAll(r.Failure, "\n", "; "))
			continue
		}
		fmt.Fprintf(t, "%s\t%.6g\t%.2f\t%s\n", r.Solver, *r.TrainMSE, r.Seconds, r.Account)
	}
	return t.Flush()
}
