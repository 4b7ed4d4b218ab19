package sgd

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// variants returns configurations of every kind, for records of two features.
func variants() map[string]Config {
	no := false
	all := map[string]Config{
		"track":             {Clip: "track", Bands: 4},
		"track/independent": {Clip: "track", Bands: 1, Average: "smooth"},
		"track/growth":      {Clip: "track", Growth: "double", Curvature: 0.5},
		"bisect":            {Clip: "bisect", Bands: 2, Intercept: &no},
		"bisect/residual":   {Clip: "bisect", Value: "residual", Restart: &no},
		"scan":              {Clip: "scan", Value: "residual", Rungs: 8, Top: 16, ClipY: 3},
		"fixed":             {Clip: "fixed", Zeta: 1.5, Intervals: &no},
		"original units":    {Clip: "track", Centre: []float64{1, 2, 3}, Scale: []float64{2, 1, 0.5}},
	}
	for name, c := range all {
		c.Method, c.Columns, c.Target = "amb", []string{"u", "y", "v"}, "y"
		c.ClipX, c.Radius, c.Batch = 3, 5, 24
		if c.Clip == "track" {
			c.Bootstrap = 16
		} else if c.Clip != "fixed" {
			c.Stat = 16
		}
		all[name] = c
	}
	return all
}

// params returns a budget with which batches are small.
func params(adjacency dp.Adjacency) dp.Params { return dp.Params{Mu: 4, Adjacency: adjacency} }

func mustNew(t testing.TB, c Config, p dp.Params) *AMB {
	t.Helper()
	e, err := NewAMB(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// records draws n records of y = u − 2v + 1/2 + noise, some of them null, as
// multiples of 2⁻¹⁰.
func records(seed uint64, n int) [][]float64 {
	source := rand.New(rand.NewPCG(seed, 7))
	number := func() float64 { return float64(source.IntN(4096)-2048) / 1024 }
	rows := make([][]float64, n)
	for i := range rows {
		u, v := number(), number()
		rows[i] = []float64{u, u - 2*v + 0.5 + number()/2, v}
		if source.IntN(10) == 0 {
			rows[i] = nil
		}
	}
	return rows
}

// closeStep adds the records of the open step and closes it.
func closeStep(t testing.TB, e *AMB, rows [][]float64, noise dp.Noise) *dp.Release {
	t.Helper()
	first, end := e.Range(e.step + 1)
	for slot := first; slot < end && slot < uint64(len(rows)); slot++ {
		e.Add(slot, rows[slot])
	}
	r, err := e.Close(noise)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRange compares the slots of every step with the sum over earlier steps.
func TestRange(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		e := mustNew(t, c, params(dp.Replace))
		at := uint64(0)
		n := uint64(0)
		for step := uint64(1); step < 3000; step++ {
			first, end := e.Range(step)
			want := e.plan.Batch
			switch search, before := e.kind(step); {
			case search:
				want = e.plan.Search
			case before != n:
				t.Fatalf("%s: step %d follows %d gradient steps, want %d", name, step, before, n)
			default:
				if c.Growth == "double" {
					want <<= max(0, int(math.Floor(math.Log2(float64(n+1)/16))))
				}
				n++
			}
			if first != at || end-first != want {
				t.Fatalf("%s: step %d has slots [%d, %d), want %d from %d on", name, step, first, end, want, at)
			}
			at = end
		}
		for _, step := range []uint64{1 << 20, 1 << 40, 1 << 56} {
			if first, end := e.Range(step); end < first || first > 1<<63 {
				t.Errorf("%s: step %d has slots [%d, %d)", name, step, first, end)
			}
		}
	}
}

// TestPlainDescent runs without noise and without clipping: the result must be mini-batch gradient descent.
func TestPlainDescent(t *testing.T) {
	t.Parallel()
	c := variants()["fixed"]
	c.Zeta, c.ClipX, c.Curvature, c.Radius = 1000, 10, 4, 100
	e := mustNew(t, c, dp.Params{Mu: 4, Adjacency: dp.Replace, LatticeBits: 30})
	rows := records(1, 24*30)
	w := make([]float64, 3)
	constant := e.plan.Constant
	if constant != 2 {
		t.Errorf("the constant feature is %g, want the root of the curvature", constant)
	}
	eta := e.plan.rate(c0(e).Eta0, 24)
	if want := 0.3 * 24 / (104 + 23*4.0); math.Abs(eta-want) > 1e-15 {
		t.Errorf("the step size is %g, want %g", eta, want)
	}
	for step := range 30 {
		gradient := make([]float64, 3)
		for _, row := range rows[24*step : 24*(step+1)] {
			if row == nil {
				continue
			}
			x := []float64{row[0], row[2], constant}
			r := x[0]*w[0] + x[1]*w[1] + x[2]*w[2] - row[1]
			for j := range x {
				gradient[j] += r * x[j]
			}
		}
		for j := range w {
			w[j] -= eta / 24 * gradient[j]
		}
		r := closeStep(t, e, rows, dptest.Zero())
		theta := value(r, "theta")
		for j, want := range []float64{w[0], w[1], w[2] * constant} {
			// Each gradient is rounded to about ζ·2⁻³⁰.
			if math.Abs(theta[j]-want) > 1e-5 {
				t.Fatalf("step %d: coefficient %d is %g, want %g", step+1, j, theta[j], want)
			}
		}
	}
}

func c0(e *AMB) *Config { return &e.cfg }

// TestOrder adds the records of every step in another order. Every bit must be equal.
func TestOrder(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		a, b := mustNew(t, c, params(dp.ZeroOut)), mustNew(t, c, params(dp.ZeroOut))
		rows := records(2, 4000)
		x, y := keyed(t, 1), keyed(t, 1)
		for step := uint64(1); step < 60; step++ {
			first, end := a.Range(step)
			order := slices.Clone(rows[first:end])
			slices.Reverse(order)
			for i := range order {
				a.Add(first+uint64(i), rows[first+uint64(i)])
				b.Add(first+uint64(i), order[i])
			}
			r, err1 := a.Close(x(step))
			s, err2 := b.Close(y(step))
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(r, s) {
				t.Fatalf("%s: step %d depends on the order of its records", name, step)
			}
		}
	}
}

// TestNullRecords checks that a null record and an empty slot differ only in the number of rows. Neither adds to a
// gradient, and neither changes the clip norm.
func TestNullRecords(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		nulls, gaps, w := mustNew(t, c, params(dp.Replace)), mustNew(t, c, params(dp.Replace)), 0.0
		for step := uint64(1); step < 40; step++ {
			first, end := nulls.Range(step)
			for slot := first; slot < end; slot++ {
				switch slot % 5 {
				case 0:
					nulls.Add(slot, nil)
				case 1:
					nulls.Add(slot, []float64{1, math.NaN(), 1})
				case 2:
					nulls.Add(slot, []float64{math.Inf(-1), 1, 1})
				case 3:
					nulls.Add(slot, []float64{1, 2})
				case 4:
					nulls.Add(slot, []float64{1, 2, 3, 4})
				}
			}
			a, err1 := nulls.Close(dptest.Zero())
			b, err2 := gaps.Close(dptest.Zero())
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if a == nil {
				continue
			}
			if a.Rows != end-first || b.Rows != 0 || !reflect.DeepEqual(a.Values, b.Values) {
				t.Fatalf("%s: null records differ from slots without one", name)
			}
			for _, v := range value(a, "theta") {
				w = max(w, math.Abs(v))
			}
		}
		if w != 0 {
			t.Errorf("%s: null records move the iterate to %g", name, w)
		}
	}
}

// TestManyNulls follows the clip norm with three null records in five. The share that null records add to a count must
// keep the clip norm where it is without them.
func TestManyNulls(t *testing.T) {
	t.Parallel()
	zeta := func(nulls int, clip string) float64 {
		l := newLinear(1, 4, 1)
		sim := simulate(t, 4, Config{ClipX: 1e3, Intercept: new(bool), Clip: clip, Radius: 10, Batch: 800},
			params(dp.ZeroOut), 1,
			func(p *AMBPlan) { p.Bound, p.Curvature = 2, 1 })
		source := rand.New(rand.NewPCG(3, 3))
		var all []float64
		for range 60 {
			r := sim.next(t, func(x []float64) float64 {
				y := l.draw(x)
				if source.IntN(5) < nulls {
					return math.NaN()
				}
				return y
			})
			all = append(all, value(r, "zeta")[0])
		}
		return median(all[20:])
	}
	for _, clip := range []string{"track", "bisect"} {
		without, with := zeta(0, clip), zeta(3, clip)
		t.Logf("%s: clip norm %.3g without null records, %.3g with 60 %%", clip, without, with)
		if ratio := with / without; !(ratio > 0.8 && ratio < 1.25) {
			t.Errorf("%s: null records move the clip norm by a factor of %.3g", clip, ratio)
		}
	}
}

// TestPast checks that a record changes no earlier release, and the same keys give the same releases.
func TestPast(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		rows := records(5, 2000)
		other := slices.Clone(rows)
		other[300] = []float64{9, -9, 9}
		a, b := mustNew(t, c, params(dp.Replace)), mustNew(t, c, params(dp.Replace))
		x, y := keyed(t, 2), keyed(t, 2)
		differ := false
		for step := uint64(1); step < 40; step++ {
			_, end := a.Range(step)
			r, s := closeStep(t, a, rows, x(step)), closeStep(t, b, other, y(step))
			if same := reflect.DeepEqual(r, s); end <= 300 && !same {
				t.Fatalf("%s: step %d depends on a later record", name, step)
			} else if !same {
				differ = true
			}
		}
		if !differ {
			t.Errorf("%s: a record changes nothing", name)
		}
	}
}

// TestLargeRecords compares features of any finite size with the vectors to which they are shortened.
func TestLargeRecords(t *testing.T) {
	t.Parallel()
	c := variants()["fixed"]
	c.Intercept = new(bool)
	sum := func(rows ...[]float64) []int64 {
		e := mustNew(t, c, params(dp.Replace))
		copy(e.w, []float64{0.5, -0.25})
		for i, row := range rows {
			e.Add(uint64(i), row)
		}
		return slices.Clone(e.gradients.integers())
	}
	want := sum([]float64{1.8, 0.7, 2.4})
	for _, scale := range []float64{1.5, 1e10, 1e149, 1e155, 1e307} {
		got := sum([]float64{1.8 * scale, 0.7, 2.4 * scale})
		for j := range want {
			if d := got[j] - want[j]; d < -8 || d > 8 { // in units of 2⁻²⁴
				t.Errorf("features times %g: the gradient is %v, want %v", scale, got, want)
			}
		}
	}
	for _, row := range [][]float64{{1e-200, 1e300, 0}, {5e-324, 1.7e308, 5e-324}, {0, 1.7e308, 0},
		{1e308, -1.7e308, -1e308}, {1e-139, -1e308, 1e-139}} {
		got := sum(row)
		most := mustNew(t, c, params(dp.Replace)).plan.Lattice.K
		if got[0]*got[0]+got[1]*got[1] > most*most {
			t.Errorf("%g: the gradient is %v", row, got)
		}
	}
}

// TestOriginalUnits compares predictions by the coefficients in original units and in scaled units.
func TestOriginalUnits(t *testing.T) {
	t.Parallel()
	for _, intercept := range []bool{true, false} {
		c := variants()["original units"]
		c.Intercept = &intercept
		e := mustNew(t, c, params(dp.Replace))
		theta := []float64{0.3, -1.2}
		if intercept {
			theta = append(theta, 0.7)
		}
		original := e.cfg.original(theta)
		for _, row := range [][]float64{{0, 0, 0}, {1, 0, 0}, {5, 0, -7}} { // u, y, v in original units
			scaled := func(i int) float64 { return (row[i] - c.Centre[i]) / c.Scale[i] }
			want := theta[0]*scaled(0) + theta[1]*scaled(2)
			if intercept {
				want += theta[2]
			}
			want = c.Centre[1] + c.Scale[1]*want
			got := original[0]*row[0] + original[1]*row[2] + original[2]
			if math.Abs(got-want) > 1e-12 {
				t.Errorf("u = %g, v = %g: prediction %g, want %g", row[0], row[2], got, want)
			}
		}
	}
}

// TestHorizon checks that after the last step there is no release and the state does not change.
func TestHorizon(t *testing.T) {
	t.Parallel()
	c := variants()["track"]
	c.Horizon = 5
	e := mustNew(t, c, params(dp.Replace))
	for range 5 {
		closeStep(t, e, nil, dptest.Zero())
	}
	state := estimatortest.State(t, e)
	if r, err := e.Close(dptest.Zero()); r != nil || !errors.Is(err, dp.ErrExhausted) {
		t.Errorf("after the horizon Close returns %v, %v", r, err)
	}
	if !slices.Equal(estimatortest.State(t, e), state) {
		t.Error("Close after the horizon changes the state")
	}
	for range 17 {
		e = mustNew(t, variants()["track"], params(dp.Replace))
	}
	for range e.plan.Search + 1 {
		e.Add(0, nil)
	}
	if _, err := e.Close(dptest.Zero()); err == nil {
		t.Error("no error for a step with more records than slots")
	}
}

// TestAddAllocates checks that Add allocates nothing, however long the stream is.
func TestAddAllocates(t *testing.T) {
	for name, c := range variants() {
		c.Batch = 1 << 20
		if c.Stat > 0 {
			c.Stat = 1 << 20
		}
		if c.Bootstrap > 0 {
			c.Bootstrap = 1 << 20
		}
		e := mustNew(t, c, params(dp.Replace))
		for step := range uint64(3) { // a search, then two gradient steps
			first, _ := e.Range(step + 1)
			t.Run(name, func(t *testing.T) { estimatortest.Allocates(t, e, first, []float64{0.3, 0.2, 40}, nil) })
			if _, err := e.Close(dptest.Zero()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestLearns runs the stream of casePaperVerbatim with our defaults and a known curvature. The paper's excess risk
// stays at that of the iterate 0.
func TestLearns(t *testing.T) {
	t.Parallel()
	const n, d = 60000, 10
	_, verbatim := paperVerbatim(t, n, d, 12, 4545, 454, math.Sqrt(8*math.Log(1e6)), 1)
	l := newLinear(1, d, 1)
	sim := simulate(t, d, Config{ClipX: 8, Intercept: new(bool), Radius: 10, Curvature: 1.5},
		dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}, 1, nil)
	var r *dp.Release
	for sim.slot < n-sim.e.plan.Batch {
		r = sim.next(t, l.draw)
	}
	ours := l.excess(value(r, "theta_average"))
	t.Logf("excess risk after %d records: %.3g verbatim, %.3g ours", n, verbatim, ours)
	if !(verbatim > 0.499 && ours < 0.005) {
		t.Errorf("excess risk %g verbatim, %g ours", verbatim, ours)
	}
}

// keyed returns the noise of an epoch with fixed keys.
func keyed(t testing.TB, n byte) func(step uint64) dp.Noise {
	t.Helper()
	master, secret := [32]byte{1, n}, [32]byte{2}
	e, err := dp.NewEpoch(&master, &secret, "test", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	h := dp.NewTranscript([32]byte{})
	return func(step uint64) dp.Noise { return e.Step(step, &h) }
}
