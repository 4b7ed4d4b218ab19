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

	"streamdp/dp"
)

// fitFlags are the flags of fit.
type fitFlags struct {
	solver, csv, header, target string
	columns                     []string
	centre, scale               string
	epsilon, delta              float64
	adjacency                   string
	clipX, clipY                float64
	intercept                   bool
	radius, curvature           float64
	compare, diagnostics        bool
	seed                        uint64
	seeded                      bool
}

func fitCommand(g *globals) *cobra.Command {
	var f fitFlags
	c := &cobra.Command{
		Use:   "fit --csv FILE --target COLUMN --epsilon E --delta D --adjacency A --clip-x C --clip-y C",
		Short: "Fit a private regression to a file, without Kafka",
		Long: "Fit a linear regression of one column of a CSV file on the others, once, under\n" +
			"(epsilon, delta)-differential privacy. The file may be compressed (.gz) or - for\n" +
			"standard input. Every cell of the chosen columns is a number; a row in which one\n" +
			"is not counts as a null record.\n\n" +
			"A header is public. auto takes the first line for one where no cell is a number;\n" +
			"where a record may look so, say --header no. Bounds, centre and scale are public\n" +
			"constants that you give, never derived from the file. Each run costs its epsilon\n" +
			"and delta again.\n\nSolvers:\n" + solverList(),
		RunE: func(c *cobra.Command, _ []string) error {
			f.seeded = c.Flags().Changed("insecure-seed")
			for _, name := range []string{"csv", "target", "epsilon", "delta", "adjacency", "clip-x", "clip-y"} {
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
	fl.StringVar(&f.header, "header", "auto", "whether the file has a header: auto, yes or no")
	fl.StringVar(&f.target, "target", "", "column to predict: a name, a 1-based number, or last")
	fl.StringSliceVar(&f.columns, "columns", nil, "columns to use, names or 1-based numbers (default: all)")
	fl.StringVar(&f.centre, "centre", "0", "constant to subtract, one number or one a column")
	fl.StringVar(&f.scale, "scale", "1", "constant to divide by, one number or one a column")
	fl.Float64Var(&f.epsilon, "epsilon", 0, "epsilon of the guarantee")
	fl.Float64Var(&f.delta, "delta", 0, "delta of the guarantee")
	fl.StringVar(&f.adjacency, "adjacency", "", "what neighbouring files differ in: one row nulled (zero-out) or replaced (replace)")
	fl.Float64Var(&f.clipX, "clip-x", 0, "bound on the features' Euclidean norm, after scaling; longer rows are shortened")
	fl.Float64Var(&f.clipY, "clip-y", 0, "bound on the target's absolute value, after scaling")
	fl.BoolVar(&f.intercept, "intercept", true, "fit a constant")
	fl.Float64Var(&f.radius, "radius", 0, "bound on the coefficients' norm, for dp-gd, ambssgd (default: 100 clip-y/clip-x)")
	fl.Float64Var(&f.curvature, "curvature", 0, "bound on the largest eigenvalue of the features' second moment, for ambssgd, dp-ssgd, dp-gd (default: for the first two clip-x squared, usually far too large)")
	fl.BoolVar(&f.compare, "compare", false, "run all solvers, each at the full cost, and show their errors; needs --insecure-diagnostics")
	fl.BoolVar(&f.diagnostics, "insecure-diagnostics", false, "print the error on the file, which is an exact function of it, and allow the solver ols, which protects nothing")
	fl.Uint64Var(&f.seed, "insecure-seed", 0, "derive keys from a number: reproducible, and protecting nothing")
	return c
}

// fitData is a file in memory, with what a solver needs.
type fitData struct {
	names  []string
	target int
	rows   [][]float64 // scaled; nil is a null record
	params dp.Params
	clipX  float64
	clipY  float64

	intercept bool
	radius    float64
	curvature float64
	// noise gives the noise of each step of a solver's own counting.
	noise func(step uint64) dp.Noise
}

// fitResult is what fit prints.
type fitResult struct {
	Solver    string    `json:"solver"`
	Theta     []float64 `json:"theta"`
	Intercept float64   `json:"intercept"`
	// SE are the standard errors of theta and intercept, of noise and sampling, where
	// the solver knows them.
	SE []float64 `json:"se,omitempty"`
	// Original are theta and intercept in the file's units, where those differ.
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
	Failure   string       `json:"failure,omitempty"` // of one of several
	Insecure  bool         `json:"insecure,omitempty"`

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

// run fits by one solver under keys of its own, which are thrown away: no other
// run of anything has its noise.
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
	r, err := s.fit(&own)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	for _, v := range append(slices.Clone(r.Theta), r.Intercept) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%s: a coefficient left the range of float64: scale the columns to about 1", s.name)
		}
	}
	r.Solver, r.N, r.D = s.name, len(d.rows), len(d.names)-1
	r.Columns = slices.Delete(slices.Clone(d.names), d.target, d.target+1)
	r.Epsilon, r.Delta, r.Adjacency = d.params.Epsilon, d.params.Delta, d.params.Adjacency
	r.Seconds, r.Insecure = time.Since(begun).Seconds(), f.seeded
	if !f.diagnostics {
		// How long work took depends on the records; between one multiple and the next
		// it does not show.
		r.Seconds = math.Ceil(r.Seconds)
	}
	if f.diagnostics {
		mse := d.mse(r)
		r.TrainMSE = &mse
	}
	return r, nil
}

// read reads the file and scales its rows. centre and scale are nil where nothing
// is scaled.
func (f *fitFlags) read() (d *fitData, centre, scale []float64, err error) {
	if !slices.Contains([]string{"auto", "yes", "no"}, f.header) {
		return nil, nil, nil, usagef("--header is %q, must be auto, yes or no", f.header)
	}
	d = &fitData{clipX: f.clipX, clipY: f.clipY, intercept: f.intercept, radius: f.radius, curvature: f.curvature}
	d.params = dp.Params{Epsilon: f.epsilon, Delta: f.delta}
	if err := d.params.Adjacency.UnmarshalText([]byte(f.adjacency)); err != nil {
		return nil, nil, nil, usagef("--%w", err)
	}
	if _, err := d.params.Budget(); err != nil {
		return nil, nil, nil, usagef("%w", err)
	}
	for _, b := range []struct {
		name  string
		value float64
	}{{"clip-x", f.clipX}, {"clip-y", f.clipY}} {
		if !(b.value > 0) || math.IsInf(b.value, 0) {
			return nil, nil, nil, usagef("--%s is %g, must be positive and finite", b.name, b.value)
		}
	}
	if !(f.radius >= 0) || math.IsInf(f.radius, 0) || !(f.curvature >= 0 && f.curvature <= f.clipX*f.clipX) {
		return nil, nil, nil, usagef("--radius must be at least 0, --curvature at least 0 and at most clip-x squared")
	}
	if d.radius == 0 {
		d.radius = 100 * f.clipY / f.clipX
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
	if centre, err = numbers("--centre", f.centre, len(d.names)); err == nil {
		scale, err = numbers("--scale", f.scale, len(d.names))
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if slices.ContainsFunc(scale, func(s float64) bool { return !(s > 0) }) {
		return nil, nil, nil, usagef("--scale must be positive")
	}
	for {
		line, err := t.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", f.csv, err)
		}
		d.rows = append(d.rows, scaledRow(t.picked(line), centre, scale))
	}
	if len(d.rows) == 0 {
		return nil, nil, nil, fmt.Errorf("%s has no rows", f.csv)
	}
	same := func(x []float64, v float64) bool {
		return !slices.ContainsFunc(x, func(y float64) bool { return y != v })
	}
	if same(centre, 0) && same(scale, 1) {
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

// scaledRow returns a row in scaled units, nil where a cell is no finite number.
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
	fmt.Fprintf(w, "%s of %s on %d rows: (%g, %g)-differentially private, %s, accounting %s\n", r.Solver, d.names[d.target], r.N, r.Epsilon, r.Delta, r.Adjacency, r.Account)
	if r.Note != "" {
		fmt.Fprintln(w, r.Note)
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	row := func(i int, name string, v float64) {
		fmt.Fprintf(t, "  %s\t%.6g\t", name, v+0) // no −0
		if i < len(r.SE) {
			fmt.Fprintf(t, "%.2g\t", r.SE[i])
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
