package refit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/internal/vector"
)

// configs returns a configuration for each solver and for each option of a solver.
func configs() map[string]Config {
	base := func(solver string) Config {
		return Config{Solver: solver, Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 2, ClipY: 3, Window: 120}
	}
	all := map[string]Config{}
	for _, s := range Solvers {
		all[s] = base(s)
	}
	with := func(name, solver string, f func(c *Config)) {
		c := base(solver)
		f(&c)
		all[name] = c
	}
	no := false
	with("newton without a constant", "newton", func(c *Config) { c.Intercept = &no })
	with("newton in original units", "newton",
		func(c *Config) { c.Centre, c.Scale = []float64{1, 10, -2}, []float64{2, 5, 0.5} })
	with("ihm by sums", "ihm", func(c *Config) { c.Radius = 2 })
	with("ihm with everything", "ihm", func(c *Config) {
		c.EigenTest, c.Debias, c.Pool, c.ResidualClip, c.Accounting = true, true, true, 2, RDP
	})
	with("ihm of the paper", "ihm", func(c *Config) { c.Accounting, c.EigenTest = Paper, true })
	with("adassp with a test", "adassp", func(c *Config) { c.EigenTest, c.Accounting = true, Analytic })
	with("fast-ihm with a transform each", "fast-ihm", func(c *Config) { c.Transforms = 4 })
	with("fast-ihm of the paper", "fast-ihm", func(c *Config) { c.Accounting = Paper })
	with("linmix of the paper", "linmix", func(c *Config) { c.Accounting = Paper })
	with("dp-gd in a ball", "dp-gd", func(c *Config) { c.Radius = 5 })
	with("dp-gd-residual of the paper", "dp-gd-residual", func(c *Config) { c.Accounting = Paper })
	return all
}

// generous is a budget with which the noise is small.
var generous = dp.Params{Epsilon: 50, Delta: 1e-3, Adjacency: dp.ZeroOut}

func mustRefit(t testing.TB, c Config, p dp.Params) *Refit {
	t.Helper()
	r, err := New(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// records returns rows (a, y, b) with y = 0.7a − 0.4b + 0.5 and some noise. Some rows are invalid, and some are out of
// bounds.
func records(n int, seed uint64) [][]float64 {
	source := rand.New(rand.NewPCG(seed, 2))
	rows := make([][]float64, n)
	for i := range rows {
		a, b := source.NormFloat64(), source.NormFloat64()
		rows[i] = []float64{a, 0.7*a - 0.4*b + 0.5 + 0.1*source.NormFloat64(), b}
		switch i % 17 {
		case 3:
			rows[i] = nil
		case 7:
			rows[i][0] = math.Inf(1)
		case 9:
			rows[i] = append(rows[i], 1)
		case 11:
			rows[i][1] = 1e300
		}
	}
	return rows
}

func closeWindow(t testing.TB, r *Refit, rows [][]float64, n dp.Noise) *dp.Release {
	t.Helper()
	first, _ := r.Range(r.step + 1)
	for i, row := range rows {
		r.Add(first+uint64(i), row)
	}
	release, err := r.Close(n)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// TestReleases checks the form of every solver's releases, and that a kept plan gives the same releases.
func TestReleases(t *testing.T) {
	t.Parallel()
	for name, c := range configs() {
		r := mustRefit(t, c, generous)
		if c.Window != 120 || r.Columns() != 3 {
			t.Fatal("another window")
		}
		one, two := records(120, 1), records(90, 2)
		first := closeWindow(t, r, one, dptest.Seeded(1))
		second := closeWindow(t, r, two, dptest.Seeded(2))
		if first.Step != 1 || second.Step != 2 || first.Rows != 120 || second.Rows != 90 {
			t.Errorf("%s: steps %d and %d of %d and %d rows", name, first.Step, second.Step, first.Rows, second.Rows)
		}
		cfg := c
		cfg.Defaults()
		var names []string
		for _, v := range first.Values {
			names = append(names, v.Name)
			if len(v.Data) != v.Shape[0] || !vector.Finite(v.Data) {
				t.Errorf("%s: value %s is %v", name, v.Name, v.Data)
			}
		}
		if want := cfg.Values(); !slices.Equal(names, want) || first.Failed != "" {
			t.Errorf("%s: values %v, want %v; failed %q", name, names, want, first.Failed)
		}
		// After a round trip through JSON, the plan gives the same releases.
		text, err := json.Marshal(r.Plan())
		if err != nil {
			t.Fatal(err)
		}
		var plan Plan
		if err := json.Unmarshal(text, &plan); err != nil {
			t.Fatal(err)
		}
		adopted, err := Adopt(c, generous, plan)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again := closeWindow(t, adopted, one, dptest.Seeded(1)); !reflect.DeepEqual(again, first) {
			t.Errorf("%s: under its own plan %v, want %v", name, again.Values, first.Values)
		}
	}
}

// TestUnits checks coefficients, constant and original units. The target has no noise, and with the large budget the
// solution has almost none.
func TestUnits(t *testing.T) {
	t.Parallel()
	loud := dp.Params{Mu: 60, Adjacency: dp.ZeroOut}
	source := rand.New(rand.NewPCG(4, 4))
	for _, constant := range []bool{true, false} {
		c := Config{
			Target: "y", Columns: []string{"a", "y", "b"}, ClipX: 4, ClipY: 30, Window: 4000, Intercept: &constant,
			Centre: []float64{10, -3, 0.5}, Scale: []float64{2, 8, 0.25},
		}
		r := mustRefit(t, c, loud)
		// y = 1.5a − 2b + 40 in original units.
		for i := range 4000 {
			a, b := 10+2*source.NormFloat64(), 0.5+0.25*source.NormFloat64()
			y := 1.5*a - 2*b
			if constant {
				y += 40
			} else {
				y -= 1.5*10 - 2*0.5 + 3 // make y relative to its centre
			}
			r.Add(uint64(i), []float64{(a - 10) / 2, (y + 3) / 8, (b - 0.5) / 0.25})
		}
		release, err := r.Close(dptest.Seeded(5))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][]float64{"theta": {1.5 * 2 / 8, -2 * 0.25 / 8}, "theta_original": {1.5, -2}}
		if constant {
			want["intercept"] = []float64{(1.5*10 - 2*0.5 + 40 + 3) / 8}
			want["intercept_original"] = []float64{40}
		}
		if len(release.Values) != len(want) {
			t.Errorf("%d values", len(release.Values))
		}
		for _, v := range release.Values {
			for j, x := range v.Data {
				if math.Abs(x-want[v.Name][j]) > 0.02*max(1, math.Abs(want[v.Name][j])) {
					t.Errorf("constant %t: %s is %.4f, want %.4f", constant, v.Name, v.Data, want[v.Name])
				}
			}
		}
	}
}

// TestSolve checks that a refit and a call of Solve give the same result.
func TestSolve(t *testing.T) {
	t.Parallel()
	no := false
	for _, solver := range Solvers {
		c := Config{Solver: solver, Target: "y", Columns: []string{"a", "b", "y"}, ClipX: 1, ClipY: 1, Window: 200,
			Intercept: &no}
		r := mustRefit(t, c, generous)
		w := NewData(2, 200)
		source := rand.New(rand.NewPCG(7, 7))
		for i := range 200 {
			a, b := source.NormFloat64()/4, source.NormFloat64()/4
			r.Add(uint64(i), []float64{a, b, a - b/2})
			w.Add([]float64{a, b}, a-b/2)
		}
		release, err := r.Close(dptest.Seeded(3))
		if err != nil {
			t.Fatal(err)
		}
		theta, cost, err := Solve(Config{Solver: solver}, generous, w, dptest.Seeded(3))
		if err != nil {
			t.Fatal(err)
		}
		for j, v := range release.Values[0].Data {
			if math.Abs(v-theta[j]) > 1e-6*max(1, math.Abs(v)) { // rows differ in their last bits
				t.Errorf("%s: %v, want %v", solver, theta, release.Values[0].Data)
			}
		}
		if !cost.Equal(r.Cost()) {
			t.Errorf("%s: cost %v, want %v", solver, cost, r.Cost())
		}
		if ok, err := cost.Within(generous.Epsilon, generous.Delta); err != nil || !ok {
			t.Errorf("%s: the cost is not within the guarantee: %v", solver, err)
		}
	}
}

// TestBadWindows runs windows with no solution or a poor one: empty, all null, one row, fewer rows than a sketch,
// rank-deficient, constant columns, targets out of bounds.
func TestBadWindows(t *testing.T) {
	t.Parallel()
	windows := map[string][][]float64{
		"empty":     nil,
		"null":      make([][]float64, 50),
		"one row":   {{1, 1, 1}},
		"few rows":  records(5, 3),
		"huge":      {},
		"tiny":      {},
		"constant":  {},
		"dependent": {},
	}
	for i := range 60 {
		x := float64(i)/30 - 1
		windows["huge"] = append(windows["huge"], []float64{1e300 * x, -1e300, math.MaxFloat64})
		windows["tiny"] = append(windows["tiny"], []float64{5e-324, x * 1e-310, -5e-324})
		windows["constant"] = append(windows["constant"], []float64{1, 3, 1})
		windows["dependent"] = append(windows["dependent"], []float64{x, x, 2 * x})
	}
	for name, c := range configs() {
		for _, p := range []dp.Params{generous, {Epsilon: 0.1, Delta: 1e-6, Adjacency: dp.ZeroOut}} {
			r, err := New(c, p)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for what, rows := range windows {
				release := closeWindow(t, r, rows, dptest.Seeded(9))
				if failed := release.Failed != ""; failed != (len(release.Values) == 0) || what == "empty" && !failed {
					t.Errorf("%s, %s: %d values, failed %q", name, what, len(release.Values), release.Failed)
				}
				for _, v := range release.Values {
					if !vector.Finite(v.Data) {
						t.Errorf("%s, %s: %s is %v", name, what, v.Name, v.Data)
					}
				}
			}
			// The next window runs.
			if release := closeWindow(t, r, records(120, 1), dptest.Seeded(1)); release.Failed != "" {
				t.Errorf("%s: after bad windows: %s", name, release.Failed)
			}
		}
	}
}

func TestTooManyRecords(t *testing.T) {
	t.Parallel()
	for name, c := range configs() {
		r := mustRefit(t, c, generous)
		for i := range 121 {
			r.Add(uint64(i), []float64{1, 1, 1})
		}
		if _, err := r.Close(dptest.Zero()); err == nil {
			t.Errorf("%s: no error for a window of too many records", name)
		}
	}
}

// TestStride checks that steps follow each other without a gap, and that records between windows are ignored.
func TestStride(t *testing.T) {
	t.Parallel()
	c := configs()["newton"]
	c.Stride, c.Horizon = 500, 3
	r, plain := mustRefit(t, c, generous), mustRefit(t, configs()["newton"], generous)
	for step, want := range map[uint64][2]uint64{1: {0, 120}, 2: {120, 620}, 11: {4620, 5120}} {
		if first, end := r.Range(step); first != want[0] || end != want[1] {
			t.Errorf("step %d is [%d, %d)", step, first, end)
		}
	}
	rows := records(1120, 4)
	for step := range uint64(3) {
		first, end := r.Range(step + 1)
		for i := first; i < end; i++ {
			r.Add(i, rows[i])
		}
		release, err := r.Close(dptest.Seeded(step))
		if err != nil {
			t.Fatal(err)
		}
		if want := closeWindow(t, plain, rows[500*step:500*step+120],
			dptest.Seeded(step)); !reflect.DeepEqual(release, want) {
			t.Errorf("window %d is %v, want %v", step+1, release, want)
		}
	}
	if _, err := r.Close(dptest.Zero()); !errors.Is(err, dp.ErrExhausted) {
		t.Errorf("after the horizon: %v", err)
	}
	c.Endless = true
	if mustRefit(t, c, generous).cfg.LastStep() != 0 {
		t.Error("an endless horizon ends")
	}
}

// TestSample checks that a release has the announced form, and too few records cause a warning.
func TestSample(t *testing.T) {
	t.Parallel()
	for name, c := range configs() {
		r := mustRefit(t, c, generous)
		sample, release := r.Sample(), closeWindow(t, r, records(120, 1), dptest.Seeded(1))
		for i, v := range sample.Values {
			if got := release.Values[i]; got.Name != v.Name || !slices.Equal(got.Shape, v.Shape) ||
				len(got.Data) != len(v.Data) || len(got.SE) != len(v.SE) {
				t.Errorf("%s: value %v, announced %v", name, got, v)
			}
		}
		if len(sample.Values) != len(release.Values) || len(r.Warnings()) > 0 {
			t.Errorf("%s: %d values, announced %d; warnings %q", name, len(release.Values), len(sample.Values),
				r.Warnings())
		}
	}
	if r := mustRefit(t, configs()["newton"],
		dp.Params{Epsilon: 0.1, Delta: 1e-6, Adjacency: dp.Replace}); len(r.Warnings()) != 1 {
		t.Errorf("few records: %q", r.Warnings())
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	for name, c := range configs() {
		c.Window = 1 << 20
		if c.Solver == "fast-ihm" || c.Accounting == Paper {
			continue // calibration is slow, and Add is the same code
		}
		r := mustRefit(t, c, generous)
		t.Run(name, func(t *testing.T) { estimatortest.Allocates(t, r, 0, records(64, 1)...) })
	}
}

// TestRowsInTheBall checks that rows of the window are exactly in the unit ball, for every record and every bound.
// Sketches depend on this, because they have no test in integers.
func TestRowsInTheBall(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(16, 17))
	check := func(what string, row []float64, y float64) {
		t.Helper()
		sum := new(big.Float).SetPrec(4096)
		for _, v := range row {
			f := new(big.Float).SetPrec(4096).SetFloat64(v)
			sum.Add(sum, f.Mul(f, f))
		}
		if sum.Cmp(big.NewFloat(1)) > 0 || !(math.Abs(y) <= 1) {
			excess, _ := sum.Float64()
			t.Errorf("%s: squared norm %.17g, target %g", what, excess, y)
		}
	}
	for _, clip := range []float64{1e-60, 1e-15, 1e-3, 0.7, 1, 3, 1e60} {
		for _, intercept := range []bool{false, true} {
			c := Config{Solver: "linmix", Target: "y", Columns: []string{"a", "y", "b", "c"}, ClipX: clip,
				ClipY: 1 / clip, Window: 10, Intercept: &intercept}
			r := mustRefit(t, c, generous)
			for range 1000 {
				row := make([]float64, 4)
				size := math.Ldexp(1, source.IntN(2090)-1070) // up to 2¹⁰¹⁹
				if source.IntN(3) == 0 {
					size = clip
				}
				for j := range row {
					row[j] = 16 * size * (2*source.Float64() - 1)
				}
				y, ok := r.features(row)
				if !ok {
					t.Fatalf("%g is refused", row)
				}
				check(fmt.Sprintf("clip_x %g, record %g", clip, row), r.row, y)
				d := NewData(4, 1)
				d.Add(row, y)
				check(fmt.Sprintf("row %g", row), d.row(0), y)
			}
			for _, row := range [][]float64{
				{math.MaxFloat64, math.MaxFloat64, -math.MaxFloat64, math.MaxFloat64}, {5e-324, -5e-324, 0, 5e-324},
				{clip, 0, math.Copysign(0, -1), 0},
			} {
				y, ok := r.features(row)
				if !ok {
					t.Fatalf("%g is refused", row)
				}
				check(fmt.Sprintf("clip_x %g, record %g", clip, row), r.row, y)
			}
		}
	}
}
