package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
)

// fitFlags are the flags of fit.
type fitFlags struct {
	solver, csv, header, target string
	columns                     []string
	centre, scale               string
	epsilon, delta              float64
	adjacency                   string
	clipX, clipY                string
	intercept                   bool
	radius, curvature           float64
	compare, diagnostics        bool
	seed                        uint64
	seeded                      bool
}

func fitCommand(g *globals) *cobra.Command {
	var f fitFlags
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
			"Solvers:\n" + solverList(),
		RunE: func(c *cobra.Command, _ []string) error {
			f.seeded = c.Flags().Changed("insecure-seed")
			for _, name := range []string{"csv", "target", "epsilon", "delta", "adjacency"} {
				if !c.Flags().Changed(name) {
					return usagef("--%s is needed", name)
				}
			}
			if f.compare && c.Flags().Changed("solver") {
				return usagef("give either --solver or --compare")
			}
			return g.fit(&f)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.solver, "solver", "newton", "solver: "+strings.Join(solverNames(), ", "))
	fl.StringVar(&f.csv, "csv", "", "CSV file")
	fl.StringVar(&f.header, "header", "auto", "whether the file has a header: "+headerUsage)
	fl.StringVar(&f.target, "target", "", "column to predict: a name, a 1-based number, or last")
	fl.StringSliceVar(&f.columns, "columns", nil, "columns to use, the target among them, names or 1-based numbers (default: all)")
	fl.StringVar(&f.centre, "centre", "", "constant to subtract, one number or one a column, or auto (default: 0, auto where clip-x is)")
	fl.StringVar(&f.scale, "scale", "", "constant to divide by, one number or one a column, or auto (default: 1, auto where clip-x is)")
	fl.Float64Var(&f.epsilon, "epsilon", 0, "epsilon of the guarantee")
	fl.Float64Var(&f.delta, "delta", 0, "delta of the guarantee")
	fl.StringVar(&f.adjacency, "adjacency", "", "what neighbouring files differ in: one row nulled (zero-out) or replaced (replace)")
	fl.StringVar(&f.clipX, "clip-x", "auto", "bound on the features' Euclidean norm, after scaling, or auto; longer rows are shortened")
	fl.StringVar(&f.clipY, "clip-y", "auto", "bound on the target's absolute value, after scaling, or auto")
	fl.BoolVar(&f.intercept, "intercept", true, "fit a constant")
	fl.Float64Var(&f.radius, "radius", 0, "bound on the coefficients' norm, for dp-gd, ambssgd (default: 100 clip-y/clip-x)")
	fl.Float64Var(&f.curvature, "curvature", 0, "bound on the largest eigenvalue of the features' second moment, for ambssgd, dp-ssgd, dp-gd (default: for the first two clip-x squared, usually far too large)")
	fl.BoolVar(&f.compare, "compare", false, "run all solvers, each at the full cost, and show their errors; needs --insecure-diagnostics")
	fl.BoolVar(&f.diagnostics, "insecure-diagnostics", false, "print the error on the file, which is an exact function of it, and allow the solver ols, which protects nothing")
	fl.Uint64Var(&f.seed, "insecure-seed", 0, "derive keys from a number: reproducible, and protecting nothing")
	return c
}

// fitData is a file in memory, with the parameters that a solver needs.
type fitData struct {
	names  []string
	target int
	rows   [][]float64 // scaled, unless bounds are to be found; nil is a null record
	params dp.Params
	clipX  float64
	clipY  float64

	intercept bool
	radius    float64
	curvature float64
	// find says which bounds are to be found, nil for none. standard: centre and scale of all
	// columns are. frozen are the columns without a spread, once they are.
	find     *bounds.Config
	standard bool
	frozen   []int
	// noise returns the noise of a step. Each solver numbers its own steps, from 1; bounds
	// have step 0.
	noise func(step uint64) dp.Noise
}

// fitResult is what fit prints.
type fitResult struct {
	Solver    string    `json:"solver"`
	Theta     []float64 `json:"theta"`
	Intercept float64   `json:"intercept"`
	// SE holds the standard errors of theta and intercept, from noise and sampling, if
	// the solver computes them.
	SE deviations `json:"se,omitempty"`
	// Original is theta and intercept in the file's units, if the data were scaled.
	Original  []float64    `json:"theta_original,omitempty"`
	Columns   []string     `json:"columns"`
	TrainMSE  *float64     `json:"train_mse,omitempty"`
	N         int          `json:"n"`
	D         int          `json:"d"`
	Epsilon   float64      `json:"epsilon"`
	Delta     float64      `json:"delta"`
	Adjacency dp.Adjacency `json:"adjacency"`
	Seconds   float64      `json:"seconds"` // whole ones, without diagnostics
	Account   string       `json:"accounting"`
	Note      string       `json:"note,omitempty"`
	Bounds    *fitBounds   `json:"bounds,omitempty"`  // that were found
	Failure   string       `json:"failure,omitempty"` // of one of several
	Insecure  bool         `json:"insecure,omitempty"`
	// NotPrivate names the keys above that are exact functions of the file.
	NotPrivate []string `json:"not_private,omitempty"`

	steps int // of gradients, of a stream's estimator
}

func (g *globals) fit(f *fitFlags) error {
	chosen := []solver{}
	for _, s := range solvers {
		if f.compare || s.name == f.solver {
			chosen = append(chosen, s)
		}
	}
	switch {
	case len(chosen) == 0:
		return usagef("--solver is %q, must be %s", f.solver, strings.Join(solverNames(), ", "))
	case f.compare && !f.diagnostics:
		return usagef("--compare shows errors on the file, which are not private: it needs --insecure-diagnostics")
	case !chosen[0].private && !f.diagnostics:
		return usagef("solver %s protects nothing: it needs --insecure-diagnostics", chosen[0].name)
	}
	for _, s := range chosen {
		switch {
		case f.compare:
		case f.radius != 0 && !slices.Contains([]string{"dp-gd", "ambssgd"}, s.name):
			return usagef("--radius is for dp-gd and ambssgd, not %s", s.name)
		case f.curvature != 0 && !slices.Contains([]string{"dp-gd", "dp-ssgd", "ambssgd"}, s.name):
			return usagef("--curvature is for ambssgd, dp-ssgd and dp-gd, not %s", s.name)
		}
	}
	d, centre, scale, err := f.read()
	if err != nil {
		return err
	}
	var all []*fitResult
	bar := progress(g.stderr, int64(len(chosen)), "fitting")
	for _, s := range chosen {
		bar.Describe(s.name)
		r, err := f.run(d, s)
		_ = bar.Add(1)
		if err != nil && !f.compare {
			return err
		}
		if err != nil {
			r = &fitResult{Solver: s.name, Failure: err.Error()}
		} else if r.Bounds != nil {
			r.Original = original(r, d, r.Bounds.Centre, r.Bounds.Scale)
		} else if centre != nil {
			r.Original = original(r, d, centre, scale)
		}
		all = append(all, r)
	}
	if f.diagnostics {
		fmt.Fprintln(g.stderr, "streamdp: warning: the errors printed are exact functions of the file, and not private")
	}
	if f.seeded {
		fmt.Fprintln(g.stderr, "streamdp: warning: INSECURE: keys follow from --insecure-seed; nothing was protected")
	}
	if g.json {
		e := json.NewEncoder(g.stdout)
		if f.compare {
			return e.Encode(all)
		}
		return e.Encode(all[0])
	}
	if f.compare {
		return printComparison(g.stdout, all)
	}
	return all[0].print(g.stdout, d)
}

// run fits with one solver. It makes new keys and throws them away afterwards, so that no
// other run shares its noise.
func (f *fitFlags) run(d *fitData, s solver) (*fitResult, error) {
	master, secret, nonce := dp.NewSecret(), dp.NewSecret(), dp.NewNonce()
	if f.seeded {
		master, secret, nonce = [32]byte{}, [32]byte{}, [16]byte{}
		binary.BigEndian.PutUint64(master[:], f.seed)
	}
	keys, err := dp.NewEpoch(&master, &secret, "offline/fit/"+s.name, 1, nonce, [32]byte{})
	if err != nil {
		return nil, err
	}
	defer keys.Destroy()
	h := dp.NewTranscript([32]byte{})
	h.AbsorbRecords(uint64(len(d.rows)))
	own := *d
	own.noise = func(step uint64) dp.Noise { return keys.Step(step, &h) }
	begun := time.Now()
	fitted, found := &own, (*fitBounds)(nil)
	if d.automatic() && s.private {
		if !s.gaussian {
			return nil, usagef("solver %s takes its budget whole, and bounds need a part: give --centre, --scale, --clip-x and --clip-y", s.name)
		}
		if fitted, found, err = own.bounded(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	r, err := s.fit(fitted)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	fitted.freeze(r)
	r.Bounds = found
	for _, v := range append(slices.Clone(r.Theta), r.Intercept) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%s: a coefficient left the range of float64: scale the columns to about 1", s.name)
		}
	}
	r.Solver, r.N, r.D = s.name, len(d.rows), len(d.names)-1
	r.Columns = slices.Delete(slices.Clone(d.names), d.target, d.target+1)
	r.Epsilon, r.Delta, r.Adjacency = d.params.Epsilon, d.params.Delta, d.params.Adjacency
	r.Seconds, r.Insecure = wholeSeconds(begun), f.seeded
	if f.diagnostics {
		mse := fitted.mse(r)
		if found != nil { // other runs find other scales
			mse *= found.Scale[d.target] * found.Scale[d.target]
		}
		r.TrainMSE, r.Seconds = &mse, time.Since(begun).Seconds()
		r.NotPrivate = []string{"train_mse", "seconds"}
	}
	if !s.private {
		r.NotPrivate = append(r.NotPrivate, "theta", "intercept", "theta_original")
	}
	return r, nil
}

// read reads the file and scales its rows. centre and scale are nil if nothing is scaled.
func (f *fitFlags) read() (d *fitData, centre, scale []float64, err error) {
	if err := checkHeader(f.header); err != nil {
		return nil, nil, nil, err
	}
	d = &fitData{intercept: f.intercept, radius: f.radius, curvature: f.curvature}
	d.params = dp.Params{Epsilon: f.epsilon, Delta: f.delta}
	if err := d.params.Adjacency.UnmarshalText([]byte(f.adjacency)); err != nil {
		return nil, nil, nil, usagef("--%w", err)
	}
	if _, err := d.params.Budget(); err != nil {
		return nil, nil, nil, usagef("%w", err)
	}
	for _, b := range []struct {
		name, text string
		value      *float64
	}{{"clip-x", f.clipX, &d.clipX}, {"clip-y", f.clipY, &d.clipY}} {
		x, err := numbersOrAuto("--"+b.name, b.text, 1)
		if err != nil {
			return nil, nil, nil, err
		}
		if *b.value = x[0]; x[0] <= 0 {
			return nil, nil, nil, usagef("--%s is %g, must be positive and finite", b.name, x[0])
		}
	}
	findX := math.IsNaN(d.clipX)
	switch {
	case findX && f.curvature != 0:
		return nil, nil, nil, usagef("--curvature needs a --clip-x that is given: its unit is that of the bound")
	case !(f.radius >= 0) || math.IsInf(f.radius, 0) || !(f.curvature >= 0 && !(f.curvature > d.clipX*d.clipX)):
		return nil, nil, nil, usagef("--radius must be at least 0, --curvature at least 0 and at most clip-x squared")
	case d.radius == 0 && !findX && !math.IsNaN(d.clipY):
		d.radius = 100 * d.clipY / d.clipX
	}
	for text, missing := range map[*string]string{&f.centre: "0", &f.scale: "1"} {
		if *text == "" {
			if *text = missing; findX {
				*text = "auto"
			}
		}
	}
	t, err := openTable(f.csv, f.header, f.columns)
	if err != nil {
		return nil, nil, nil, err
	}
	defer t.close()
	d.names = t.names
	if d.target, err = f.targetOf(t); err != nil {
		return nil, nil, nil, err
	}
	if len(d.names) < 2 && !f.intercept {
		return nil, nil, nil, usagef("%s has no column beside the target", f.csv)
	}
	if centre, err = numbersOrAuto("--centre", f.centre, len(d.names)); err == nil {
		scale, err = numbersOrAuto("--scale", f.scale, len(d.names))
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if slices.ContainsFunc(scale, func(s float64) bool { return s <= 0 }) {
		return nil, nil, nil, usagef("--scale must be positive")
	}
	use := func(cells []string) []float64 { return scaledRow(cells, centre, scale) }
	if findX || math.IsNaN(d.clipY) || slices.ContainsFunc(append(slices.Clone(centre), scale...), math.IsNaN) {
		d.find = &bounds.Config{Columns: len(d.names), Centre: centre, Scale: scale,
			Regression: &bounds.Regression{Target: d.target, X: findX, Y: math.IsNaN(d.clipY)}}
		given := func(x float64) bool { return !math.IsNaN(x) }
		d.standard = !slices.ContainsFunc(centre, given) && !slices.ContainsFunc(scale, given)
		zero, one := make([]float64, len(d.names)), slices.Repeat([]float64{1}, len(d.names))
		use = func(cells []string) []float64 { return scaledRow(cells, zero, one) }
	}
	for {
		line, err := t.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", f.csv, err)
		}
		d.rows = append(d.rows, use(t.picked(line)))
	}
	if len(d.rows) == 0 {
		return nil, nil, nil, fmt.Errorf("%s has no rows", f.csv)
	}
	same := func(x []float64, v float64) bool {
		return !slices.ContainsFunc(x, func(y float64) bool { return y != v })
	}
	if d.automatic() || same(centre, 0) && same(scale, 1) {
		return d, nil, nil, nil
	}
	return d, centre, scale, nil
}

// targetOf finds the target among the chosen columns.
func (f *fitFlags) targetOf(t *table) (int, error) {
	if f.target == "last" {
		return len(t.names) - 1, nil
	}
	if i := slices.Index(t.names, f.target); i >= 0 {
		return i, nil
	}
	if n, err := strconv.Atoi(f.target); err == nil && n >= 1 && n <= len(t.header) {
		if i := slices.Index(t.pick, n-1); i >= 0 {
			return i, nil
		}
	}
	return 0, usagef("--target is %q, must be one of %s, or last", f.target, strings.Join(t.names, ", "))
}

// scaledRow returns a row in scaled units, nil if a cell is not a finite number.
func scaledRow(cells []string, centre, scale []float64) []float64 {
	row := make([]float64, len(cells))
	for i, c := range cells {
		x, ok := number(c)
		if row[i] = (x - centre[i]) / scale[i]; !ok || math.IsNaN(row[i]) || math.IsInf(row[i], 0) {
			return nil
		}
	}
	return row
}

// predict returns the prediction for a row, and its target.
func (d *fitData) predict(r *fitResult, row []float64) (prediction, target float64) {
	prediction = r.Intercept
	j := 0
	for i, x := range row {
		if i == d.target {
			continue
		}
		prediction += r.Theta[j] * x
		j++
	}
	return prediction, row[d.target]
}

// mse returns the mean squared error over the rows that are valid.
func (d *fitData) mse(r *fitResult) float64 {
	var sum float64
	n := 0
	for _, row := range d.rows {
		if row == nil {
			continue
		}
		p, y := d.predict(r, row)
		sum += (p - y) * (p - y)
		n++
	}
	return sum / float64(max(n, 1))
}

// original returns coefficients and constant in the file's units.
func original(r *fitResult, d *fitData, centre, scale []float64) []float64 {
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

func (r *fitResult) print(w io.Writer, d *fitData) error {
	guarantee := fmt.Sprintf("(%g, %g)-differentially private, %s, accounting %s", r.Epsilon, r.Delta, r.Adjacency, r.Account)
	switch {
	case slices.Contains(r.NotPrivate, "theta"):
		guarantee = "not private, an exact function of the file, accounting " + r.Account
	case r.Insecure:
		guarantee = "INSECURE, keys follow from --insecure-seed; else " + guarantee
	}
	fmt.Fprintf(w, "%s of %s on %d rows: %s\n", r.Solver, d.names[d.target], r.N, guarantee)
	if r.Bounds != nil {
		fmt.Fprintln(w, r.Bounds)
	}
	if r.Note != "" {
		fmt.Fprintln(w, r.Note)
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	row := func(i int, name string, v float64) {
		fmt.Fprintf(t, "  %s\t%.6g\t", name, v+0) // no −0
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

// printComparison writes the errors of several solvers.
func printComparison(w io.Writer, all []*fitResult) error {
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

var errTooFew = errors.New("too few rows")
