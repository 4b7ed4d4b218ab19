// Package fit fits a private regression to a file once: a batch, without Kafka and without a ledger. [Run] performs a
// request, and [Result.Print] prints its result.
package fit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/table"
)

var errTooFew = errors.New("too few rows")

// Request says what to fit. Its fields have the meaning of the command's flags.
type Request struct {
	Solver string
	// Compare runs all solvers instead of one, each at the full cost.
	Compare bool

	CSV, Header, Target string
	Columns             []string // none: all
	// Centre and Scale are a number for all columns, or a number or "auto" for each column. "" means "auto" if ClipX is
	// "auto", otherwise 0 and 1.
	Centre, Scale string
	// ClipX and ClipY are a number or "auto".
	ClipX, ClipY string

	Epsilon, Delta float64
	Adjacency      string

	Intercept         bool
	Radius, Curvature float64 // 0: unknown

	// Diagnostics adds errors that are exact functions of the file, and allows solvers without privacy.
	Diagnostics bool
	// Seed, if not nil, determines the keys, and then nothing is protected. If it is nil, each fit makes new keys and
	// throws them away.
	Seed *uint64
}

// Run reads the file and fits it with one solver, or with all of them. Before and after each fit it calls progress with
// the solver's name and the number of fits that are done.
//
// Errors: an [exit.Usage] if the request contradicts itself or does not fit the file; a file that cannot be read; a
// solver that fails. With Compare the result of a solver contains its failure instead.
func Run(r *Request, progress func(solver string, done, all int)) ([]*Result, error) {
	chosen, err := r.chosen()
	if err != nil {
		return nil, err
	}
	own := *r
	d, centre, scale, err := own.read()
	if err != nil {
		return nil, err
	}
	var results []*Result
	for i, s := range chosen {
		progress(s.name, i, len(chosen))
		one, err := own.fit(d, s)
		progress(s.name, i+1, len(chosen))
		if err != nil && !r.Compare {
			return nil, err
		}
		if err != nil {
			one = &Result{Solver: s.name, Failure: err.Error()}
		} else if one.Bounds != nil {
			one.Original = original(one, d, one.Bounds.Centre, one.Bounds.Scale)
		} else if centre != nil {
			one.Original = original(one, d, centre, scale)
		}
		results = append(results, one)
	}
	return results, nil
}

// chosen returns the solvers to run. It fails if other values of the request do not suit them.
func (f *Request) chosen() (chosen []solver, err error) {
	for _, s := range solvers {
		if f.Compare || s.name == f.Solver {
			chosen = append(chosen, s)
		}
	}
	switch {
	case len(chosen) == 0:
		return nil, exit.Usagef("--solver is %q, must be %s", f.Solver, strings.Join(Solvers(), ", "))
	case f.Compare && !f.Diagnostics:
		return nil,
			exit.Usagef("--compare shows errors on the file, which are not private: add --insecure-diagnostics")
	case !chosen[0].private && !f.Diagnostics:
		return nil, exit.Usagef("solver %s is not private: add --insecure-diagnostics to use it", chosen[0].name)
	}
	for _, s := range chosen {
		switch {
		case f.Compare:
		case f.Radius != 0 && !slices.Contains([]string{"dp-gd", "ambssgd"}, s.name):
			return nil, exit.Usagef("--radius is for dp-gd and ambssgd, not %s", s.name)
		case f.Curvature != 0 && !slices.Contains([]string{"dp-gd", "dp-ssgd", "ambssgd"}, s.name):
			return nil, exit.Usagef("--curvature is for ambssgd, dp-ssgd and dp-gd, not %s", s.name)
		}
	}
	return chosen, nil
}

// data is a file in memory, with the parameters that a solver needs.
type data struct {
	names  []string
	target int
	rows   [][]float64 // rows in scaled units, or in the file's if bounds must be found; nil is a null record
	params dp.Params
	clipX  float64
	clipY  float64

	intercept bool
	radius    float64
	curvature float64
	// find says which bounds must be found, nil if none. standard says that these include the centre and scale of all
	// columns. frozen lists the columns without a spread, after the bounds were found.
	find     *bounds.Config
	standard bool
	frozen   []int
	// noise returns the noise of a step. Each solver numbers its own steps from 1; the bounds use step 0.
	noise func(step uint64) dp.Noise
}

// fit fits the data with one solver. It makes new keys and throws them away afterwards, so that no other run has the
// same noise.
func (f *Request) fit(d *data, s solver) (*Result, error) {
	master, secret, nonce := dp.NewSecret(), dp.NewSecret(), keys.NewNonce()
	if f.Seed != nil {
		master, secret, nonce = [32]byte{}, [32]byte{}, [16]byte{}
		binary.BigEndian.PutUint64(master[:], *f.Seed)
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
	fitted, found := &own, (*Bounds)(nil)
	if d.automatic() && s.private {
		if !s.gaussian {
			return nil,
				exit.Usagef(
					"solver %s cannot share its budget with a search for bounds: give --centre, --scale, --clip-x "+
						"and --clip-y", s.name)
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
			return nil, fmt.Errorf("%s: a coefficient is outside the range of float64: scale the columns to about 1",
				s.name)
		}
	}
	r.Solver, r.N, r.D = s.name, len(d.rows), len(d.names)-1
	r.target = d.names[d.target]
	r.Columns = slices.Delete(slices.Clone(d.names), d.target, d.target+1)
	r.Epsilon, r.Delta, r.Adjacency = d.params.Epsilon, d.params.Delta, d.params.Adjacency
	// The duration depends on the records. Rounded to whole seconds it reveals little.
	r.Seconds, r.Insecure = math.Ceil(time.Since(begun).Seconds()), f.Seed != nil
	if f.Diagnostics {
		mse := fitted.mse(r)
		if found != nil { // use original units, because another fit finds other scales
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
func (f *Request) read() (d *data, centre, scale []float64, err error) {
	if err := table.CheckHeader(f.Header); err != nil {
		return nil, nil, nil, err
	}
	d = &data{intercept: f.Intercept, radius: f.Radius, curvature: f.Curvature}
	d.params = dp.Params{Epsilon: f.Epsilon, Delta: f.Delta}
	if err := d.params.Adjacency.UnmarshalText([]byte(f.Adjacency)); err != nil {
		return nil, nil, nil, exit.Usagef("--%w", err)
	}
	if _, err := d.params.Budget(); err != nil {
		return nil, nil, nil, exit.Usagef("%w", err)
	}
	for _, b := range []struct {
		name, text string
		value      *float64
	}{{"clip-x", f.ClipX, &d.clipX}, {"clip-y", f.ClipY, &d.clipY}} {
		x, err := numbersOrAuto("--"+b.name, b.text, 1)
		if err != nil {
			return nil, nil, nil, err
		}
		if *b.value = x[0]; x[0] <= 0 {
			return nil, nil, nil, exit.Usagef("--%s is %g, must be positive and finite", b.name, x[0])
		}
	}
	findX := math.IsNaN(d.clipX)
	switch {
	case findX && f.Curvature != 0:
		return nil, nil, nil, exit.Usagef("--curvature needs --clip-x as a number: with auto, its unit is unknown")
	case !(f.Radius >= 0) || math.IsInf(f.Radius, 0) || !(f.Curvature >= 0 && !(f.Curvature > d.clipX*d.clipX)):
		return nil, nil, nil,
			exit.Usagef("--radius must be at least 0, --curvature at least 0 and at most clip-x squared")
	case d.radius == 0 && !findX && !math.IsNaN(d.clipY):
		d.radius = 100 * d.clipY / d.clipX
	}
	for text, missing := range map[*string]string{&f.Centre: "0", &f.Scale: "1"} {
		if *text == "" {
			if *text = missing; findX {
				*text = "auto"
			}
		}
	}
	t, err := table.Open(f.CSV, f.Header, f.Columns)
	if err != nil {
		return nil, nil, nil, err
	}
	defer t.Close()
	d.names = t.Names
	if d.target, err = f.targetOf(t); err != nil {
		return nil, nil, nil, err
	}
	if len(d.names) < 2 && !f.Intercept {
		return nil, nil, nil, exit.Usagef("%s has no feature: the target is the only column", f.CSV)
	}
	if centre, err = numbersOrAuto("--centre", f.Centre, len(d.names)); err == nil {
		scale, err = numbersOrAuto("--scale", f.Scale, len(d.names))
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if slices.ContainsFunc(scale, func(s float64) bool { return s <= 0 }) {
		return nil, nil, nil, exit.Usagef("--scale must be positive")
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
		line, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s: %w", f.CSV, err)
		}
		d.rows = append(d.rows, use(t.Picked(line)))
	}
	if len(d.rows) == 0 {
		return nil, nil, nil, fmt.Errorf("%s has no rows", f.CSV)
	}
	same := func(x []float64, v float64) bool {
		return !slices.ContainsFunc(x, func(y float64) bool { return y != v })
	}
	if d.automatic() || same(centre, 0) && same(scale, 1) {
		return d, nil, nil, nil
	}
	return d, centre, scale, nil
}

// targetOf returns the position of the target among the chosen columns.
func (f *Request) targetOf(t *table.Table) (int, error) {
	if f.Target == "last" {
		return len(t.Names) - 1, nil
	}
	if i := t.Column(f.Target); i >= 0 {
		return i, nil
	}
	return 0, exit.Usagef("--target is %q, must be one of %s, or last", f.Target, strings.Join(t.Names, ", "))
}

// scaledRow returns a row in scaled units. It returns nil if a cell is not a finite number.
func scaledRow(cells []string, centre, scale []float64) []float64 {
	row := make([]float64, len(cells))
	for i, c := range cells {
		x, ok := table.Number(c)
		if row[i] = (x - centre[i]) / scale[i]; !ok || math.IsNaN(row[i]) || math.IsInf(row[i], 0) {
			return nil
		}
	}
	return row
}

// predict returns the prediction for a row, and its target.
func (d *data) predict(r *Result, row []float64) (prediction, target float64) {
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

// mse returns the mean squared error over the valid rows.
func (d *data) mse(r *Result) float64 {
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
