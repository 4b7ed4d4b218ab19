package moments

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// automatic returns a configuration of d columns. The warm-up must find all bounds.
func automatic(d int) Config {
	nan := slices.Repeat([]float64{math.NaN()}, d)
	return Config{Columns: dptest.Columns(d), Step: 500, Tune: 40, Clip: math.NaN(), Centre: nan, Scale: nan}
}

// runStep adds a row from row for every slot of the next step of e, and closes the step.
func runStep(t testing.TB, e *Estimator, step uint64, noise dp.Noise, row func() []float64) *dp.Release {
	t.Helper()
	first, end := e.Range(step)
	for slot := first; slot < end; slot++ {
		e.Add(slot, row())
	}
	r, err := e.Close(noise)
	if err != nil {
		t.Fatal(err)
	}
	if r.Step != step {
		t.Fatalf("release of step %d, want %d", r.Step, step)
	}
	return r
}

// gaussians returns rows of independent normal numbers.
func gaussians(source *rand.Rand, centre, scale []float64) func() []float64 {
	return func() []float64 {
		x := make([]float64, len(centre))
		for j := range x {
			x[j] = centre[j] + scale[j]*source.NormFloat64()
		}
		return x
	}
}

func valueOf(t testing.TB, r *dp.Release, name string) *dp.Value {
	t.Helper()
	for i := range r.Values {
		if r.Values[i].Name == name {
			return &r.Values[i]
		}
	}
	t.Fatalf("step %d releases no %s", r.Step, name)
	return nil
}

func boundsOf(t testing.TB, r *dp.Release) *Bounds {
	t.Helper()
	for _, n := range r.Notes {
		if b, ok := n.Value.(*Bounds); ok {
			return b
		}
	}
	t.Fatalf("the release of step %d has no note on its bounds", r.Step)
	return nil
}

// TestWarmupAccuracy compares bounds from the warm-up with the true constants and the best clip norm. There are ten
// Gaussian columns with very different centres and scales, N = 5000, then 20 000 records, ε = 1, δ = 10⁻⁶. It computes
// the root mean square errors of the mean and of the covariance, with each column in units of its deviation. Their
// ratio must be at most 1.1. There are 24 runs of two estimators each. With independent noise, the ratio of the means'
// errors would have a deviation of about 1/√(24·10) = 6.5 %. So both estimators get the same rows and the same noise,
// and only the bounds differ.
func TestWarmupAccuracy(t *testing.T) {
	t.Parallel()
	const d, runs = 10, 24
	centre := []float64{0, 3, -1e6, 2.5e9, 1e-7, 40, -0.3, 7e4, 12, 1}
	scale := []float64{1, 1, 1e3, 4e3, 1e-9, 35, 0.01, 1e5, 2, 1e-3}
	p := dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}
	rms := func(clip float64, seed uint64) (mean, covariance float64) {
		source := rand.New(rand.NewPCG(seed, 91))
		row := gaussians(source, centre, scale)
		c := automatic(d)
		if clip > 0 {
			c.Clip, c.Centre, c.Scale = clip, centre, scale
		}
		e := mustNew(t, c, p)
		noise := dptest.Seeded(seed)
		step := uint64(1)
		if clip == 0 {
			runStep(t, e, 1, dptest.Seeded(seed+1000), row)
			step++
		} else {
			inner := row
			row = func() []float64 {
				x := inner()
				for j := range x {
					x[j] = (x[j] - centre[j]) / scale[j]
				}
				return x
			}
			for range 5000 {
				row()
			}
		}
		var r *dp.Release
		for range 40 {
			r = runStep(t, e, step, noise, row)
			step++
		}
		m, v := valueOf(t, r, "mean_original"), valueOf(t, r, "covariance_original")
		n := 0
		for i := range d {
			x := (m.Data[i] - centre[i]) / scale[i]
			mean += x * x
			for j := i; j < d; j++ {
				x := v.Data[n] / (scale[i] * scale[j])
				if i == j {
					x--
				}
				covariance += x * x
				n++
			}
		}
		return mean, covariance
	}
	var mean, covariance float64
	oracle := map[float64][2]float64{}
	for seed := range uint64(runs) {
		m, v := rms(0, seed)
		mean, covariance = mean+m, covariance+v
		for _, clip := range []float64{3, 3.5, 4, 4.5, 5} {
			m, v := rms(clip, seed)
			oracle[clip] = [2]float64{oracle[clip][0] + m, oracle[clip][1] + v}
		}
	}
	// The oracle's clip norm minimises the sum of the squared errors of an entry of the mean and of an entry of the
	// covariance.
	var best [2]float64
	least := math.Inf(1)
	for clip, x := range oracle {
		t.Logf("clip %g: mean %.4f, covariance %.4f", clip, math.Sqrt(x[0]/runs/d), math.Sqrt(x[1]/runs/(d*(d+1)/2)))
		if sum := x[0]/d + x[1]/(d*(d+1)/2); sum < least {
			least, best = sum, x
		}
	}
	first, second := math.Sqrt(mean/best[0]), math.Sqrt(covariance/best[1])
	t.Logf("errors divided by the oracle's: mean %.3f, covariance %.3f", first, second)
	if !(first <= 1.1 && second <= 1.1) {
		t.Errorf("errors divided by the oracle's: mean %.3f, covariance %.3f", first, second)
	}
}

// TestWarmupStates runs an estimator through its warm-up, buffered and split, with and without given bounds. It
// restores the estimator after every step, which must continue with the same bytes. Releases of moments must repeat the
// constants, and rows must be scaled with them.
func TestWarmupStates(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for name, edit := range map[string]func(*Config){
		"all":            func(*Config) {},
		"split":          func(c *Config) { c.WarmupMode = "split" },
		"given clip":     func(c *Config) { c.Clip = 4 },
		"clip alone":     func(c *Config) { c.Centre, c.Scale = nil, nil },
		"clip of scaled": func(c *Config) { c.Centre, c.Scale = []float64{5, 100, 0}, []float64{2, 10, 1} },
		"columns":        func(c *Config) { c.Centre, c.Scale = []float64{nan, 100, nan}, []float64{nan, 10, 1} },
		"scales, split":  func(c *Config) { c.Centre, c.WarmupMode = []float64{5, 100, 0}, "split" },
		"window":         func(c *Config) { c.Workload, c.Window = "window", 2 },
		"sum":            func(c *Config) { c.Workload = "sum" },
		"squares":        func(c *Config) { c.Method, c.Step = "combined", 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := automatic(3)
			edit(&c)
			p := dp.Params{Mu: 2, Adjacency: dp.Replace}
			source := rand.New(rand.NewPCG(5, 6))
			row := gaussians(source, []float64{5, 100, 0}, []float64{2, 10, 1})
			e := mustNew(t, c, p)
			if e.plan.Warmup == nil || e.plan.Warmup.Records%c.Step != 0 {
				t.Fatalf("the warm-up is %+v", e.plan.Warmup)
			}
			plan, err := json.Marshal(e.Plan())
			if err != nil {
				t.Fatal(err)
			}
			// No slot is in two steps: each record is either in the warm-up or in moments.
			var covered uint64
			for step := uint64(1); step <= e.plan.Warmup.Parts+2; step++ {
				first, end := e.Range(step)
				if first != covered || end <= first || (step <= e.plan.Warmup.Parts) != (end <= e.plan.Warmup.Records) {
					t.Errorf("step %d has slots %d to %d, after %d, with a warm-up of %d", step, first, end, covered,
						e.plan.Warmup.Records)
				}
				covered = end
			}
			steps := e.plan.Warmup.Parts + 3
			var last *dp.Release
			for step := uint64(1); step <= steps; step++ {
				state := estimatortest.State(t, e)
				if most := e.Sizes().State; int64(len(state)) > most {
					t.Errorf("step %d: a state has %d bytes, at most %d were stated", step, len(state), most)
				}
				var kept Plan
				if err := json.Unmarshal(plan, &kept); err != nil {
					t.Fatal(err)
				}
				other, err := Adopt(c, p, kept)
				if err != nil {
					t.Fatal(err)
				}
				if err := other.UnmarshalBinary(state); err != nil {
					t.Fatal(err)
				}
				for n := range state {
					if step < 2 || n%7 == 0 {
						if err := mustNewer(t, c, p, kept).UnmarshalBinary(state[:n]); err == nil {
							t.Fatalf("step %d: a state cut to %d bytes was accepted", step, n)
						}
					}
					if n > 400 {
						break
					}
				}
				first, end := e.Range(step)
				if a, b := other.Range(step); a != first || b != end {
					t.Fatalf("step %d has slots %d to %d, restored %d to %d", step, first, end, a, b)
				}
				for slot := first; slot < end; slot++ {
					x := row()
					if slot%50 == 7 {
						x = nil
					}
					e.Add(slot, x)
					other.Add(slot, x)
				}
				r, err := e.Close(dptest.Seeded(step))
				if err != nil {
					t.Fatal(err)
				}
				q, err := other.Close(dptest.Seeded(step))
				if err != nil {
					t.Fatal(err)
				}
				a, b := encoded(t, r), encoded(t, q)
				if !bytes.Equal(a, b) {
					t.Fatalf("step %d: releases differ:\n%s\n%s", step, a, b)
				}
				if int64(e.Sizes().Release) < 8 {
					t.Error("a release of no size")
				}
				last = r
			}
			if last.Step != steps {
				t.Errorf("the last release is of step %d, want %d", last.Step, steps)
			}
			b := boundsOf(t, last)
			if b.Verdict != "ok" && b.Verdict != "biased" {
				t.Errorf("verdict %q", b.Verdict)
			}
			if e.cfg.autoClip() != (b.Clipping != nil) || !e.cfg.autoClip() && math.Abs(b.Clip-4) > 1e-6 {
				t.Errorf("clip %g, %+v", b.Clip, b.Clipping)
			}
			if name == "sum" || name == "clip alone" {
				return
			}
			v := valueOf(t, last, "mean_original")
			for j, want := range []float64{5, 100, 0} {
				// The mean of some hundred rows with noise and clipping may be wrong by a tenth of the rows' deviation
				// plus five deviations of the noise.
				if deviation := []float64{2, 10, 1}[j]; math.Abs(v.Data[j]-want) > 0.3*deviation+5*v.SE[j] {
					t.Errorf("column %d: mean %g ± %g, want %g", j, v.Data[j], v.SE[j], want)
				}
			}
		})
	}
}

func mustNewer(t testing.TB, c Config, p dp.Params, plan Plan) *Estimator {
	t.Helper()
	e, err := Adopt(c, p, plan)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// encoded encodes a release in a form that can represent NaN.
func encoded(t testing.TB, r *dp.Release) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, v := range r.Values {
		b.WriteString(v.Name)
		for _, x := range [][]float64{v.Data, v.SE, v.SEWithClipping} {
			for _, y := range x {
				b.WriteString(" ")
				n := math.Float64bits(y)
				for range 16 {
					b.WriteByte("0123456789abcdef"[n>>60])
					n <<= 4
				}
			}
			b.WriteString(";")
		}
	}
	notes, err := json.Marshal(r.Notes)
	if err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), notes...)
}

// TestWarmupVerdicts checks four cases. A stage without enough records must end the estimator. A constant column must
// be frozen at its centre, with unknown deviations. Rows that drift beyond the clip norm must make releases stale. A
// heavy tail must make them biased.
func TestWarmupVerdicts(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 2, Adjacency: dp.ZeroOut}
	source := rand.New(rand.NewPCG(7, 8))
	row := gaussians(source, []float64{5, 100}, []float64{2, 10})

	t.Run("fail", func(t *testing.T) {
		for _, mode := range []string{"buffer", "split"} {
			c := automatic(2)
			c.WarmupMode = mode
			e := mustNew(t, c, p)
			r := runStep(t, e, 1, dptest.Seeded(1), func() []float64 { return nil })
			stages := r.Notes[0].Value.([]bounds.Stage)
			if s := stages[len(stages)-1]; len(r.Values) != 0 || s.Verdict != "fail" ||
				s.Reason != "not enough records" || s.Stage != "A1" {
				t.Errorf("%s: %+v", mode, s)
			}
			if why, ended := e.Ended(); !ended || why != "warmup" {
				t.Errorf("%s: the estimator continues", mode)
			}
			state := estimatortest.State(t, e)
			other := mustNew(t, c, p)
			if err := other.UnmarshalBinary(state); err != nil {
				t.Fatal(err)
			}
			for _, e := range []*Estimator{e, other} {
				e.Add(0, row())
				if _, err := e.Close(dptest.Seeded(2)); !errors.Is(err, dp.ErrExhausted) {
					t.Errorf("%s: %v after a warm-up that failed", mode, err)
				}
			}
		}
	})
	t.Run("partial", func(t *testing.T) {
		c := automatic(3)
		floor := 0.5
		c.PSDFloor, c.Project = &floor, true
		e := mustNew(t, c, p)
		constant := func() []float64 { x := row(); return []float64{x[0], 42.5, x[1]} }
		runStep(t, e, 1, dptest.Seeded(3), constant)
		r := runStep(t, e, 2, dptest.Seeded(4), constant)
		b := boundsOf(t, r)
		if b.Verdict != "partial" || !slices.Equal(b.Frozen, c.Columns[1:2]) || b.Centre[1] != 42.5 {
			t.Errorf("%+v", b)
		}
		m := valueOf(t, r, "mean_original")
		if m.Data[1] != 42.5 || !math.IsNaN(m.SE[1]) || !math.IsNaN(m.SEWithClipping[1]) || math.IsNaN(m.SE[0]) {
			t.Errorf("mean_original %v ± %v, %v", m.Data, m.SE, m.SEWithClipping)
		}
		for _, name := range []string{"second_moment", "covariance", "covariance_psd", "covariance_original",
			"second_moment_projected"} {
			v := valueOf(t, r, name)
			for n, entry := range [][2]int{{0, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 2}} {
				frozen := entry[0] == 1 || entry[1] == 1
				want := 0.0
				if name == "covariance_psd" && n == 3 {
					want = floor
				}
				if frozen && v.Data[n] != want || v.SE != nil && math.IsNaN(v.SE[n]) != frozen ||
					v.SE != nil && !frozen && !(v.SEWithClipping[n] >= v.SE[n]) {
					t.Errorf("%s, entry %v: %g, %v, %v", name, entry, v.Data[n], v.SE, v.SEWithClipping)
				}
			}
		}
	})
	t.Run("stale", func(t *testing.T) {
		c := automatic(2)
		c.Step = 2000
		e := mustNew(t, c, p)
		runStep(t, e, 1, dptest.Seeded(5), row)
		r := runStep(t, e, 2, dptest.Seeded(6), row)
		b, full := boundsOf(t, r), valueOf(t, r, "full_share")
		if b.Verdict != "ok" || *b.FullShareWarmup > full.Data[0]+5*full.SE[0] || *b.FullShareWarmup < 0.7 {
			t.Errorf("without drift: %+v, full_share %g, in the warm-up %g", b, full.Data[0], *b.FullShareWarmup)
		}
		drifted := gaussians(source, []float64{15, 100}, []float64{2, 10})
		for step := range uint64(3) {
			r = runStep(t, e, 3+step, dptest.Seeded(7+step), drifted)
		}
		if b := boundsOf(t, r); b.Verdict != "stale" {
			t.Errorf("after a drift: %+v, full_share %v", b, valueOf(t, r, "full_share"))
		}
	})
	t.Run("biased", func(t *testing.T) {
		e := mustNew(t, automatic(2), p)
		heavy := func() []float64 {
			return []float64{source.NormFloat64() / math.Sqrt(source.Float64()),
				source.NormFloat64() / math.Sqrt(source.Float64())}
		}
		runStep(t, e, 1, dptest.Seeded(11), heavy)
		r := runStep(t, e, 2, dptest.Seeded(12), heavy)
		b := boundsOf(t, r)
		if b.Verdict != "biased" || !(b.BiasSecond > 0) {
			t.Errorf("%+v, %+v", b, b.Clipping)
		}
		// With two columns, each entry off the diagonal has half of the estimate, and each entry on it 2^−¾.
		m := valueOf(t, r, "covariance")
		for n, part := range []float64{math.Pow(2, -0.75), 0.5, math.Pow(2, -0.75)} {
			if want := math.Hypot(m.SE[n], part*b.BiasSecond); math.Abs(m.SEWithClipping[n]-want) > 1e-12*want {
				t.Errorf("entry %d: %g with clipping, want %g", n, m.SEWithClipping[n], want)
			}
		}
	})
}

// TestWarmupUnits lets the warm-up find the clip norm. Apart from the lattice of rows, releases must equal those of an
// estimator whose configuration gives the same bounds.
func TestWarmupUnits(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"jme", "combined", "pp_debiased"} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			c := automatic(2)
			c.Method, c.Step, c.Project, c.ValidCount = method, 1, true, new(true)
			p := dp.Params{Mu: 3, Adjacency: adjacency}
			source := rand.New(rand.NewPCG(9, 10))
			row := gaussians(source, []float64{5, 100}, []float64{2, 10})
			e := mustNew(t, c, p)
			runStep(t, e, 1, dptest.Seeded(1), row)
			found := e.found
			c.Clip, c.Centre, c.Scale = found.Clip, found.Centre, found.Scale
			given := mustNew(t, c, p)
			a, b := dptest.Seeded(2), dptest.Seeded(2)
			for step := uint64(1); step <= 40; step++ {
				x := row()
				r := runStep(t, e, step+1, a, func() []float64 { return x })
				y := make([]float64, 2)
				found.Scaled(y, x)
				q := runStep(t, given, step, b, func() []float64 { return y })
				for i, v := range r.Values {
					w := q.Values[i]
					size := 0.0
					for _, x := range w.Data {
						size = max(size, math.Abs(x))
					}
					if v.Name == "full_share" {
						size = 1
					}
					for n := range v.Data {
						if math.Abs(v.Data[n]-w.Data[n]) > 1e-5*size+1e-12 {
							t.Fatalf("%s, %s, step %d: %s is %v, with given bounds %v", method, adjacency, step, v.Name,
								v.Data, w.Data)
						}
					}
					for n := range v.SE {
						if math.Abs(v.SE[n]-w.SE[n]) > 1e-5*w.SE[n] {
							t.Fatalf("%s, %s, step %d: error of %s is %v, with given bounds %v", method, adjacency,
								step, v.Name, v.SE, w.SE)
						}
					}
				}
			}
		}
	}
}

// TestWarmupConfiguration lists configurations that are refused.
func TestWarmupConfiguration(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 0.2, Adjacency: dp.ZeroOut}
	for _, x := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"valid", func(*Config) {}, ""},
		{"few records", func(c *Config) { c.Warmup = 500 }, "warmup: must be at least"},
		{"a part of a step", func(c *Config) { c.Warmup = 100_250 }, "warmup: must be a multiple of step"},
		{"a mode", func(c *Config) { c.WarmupMode = "whole" }, "warmup_mode: must be"},
		{"tau", func(c *Config) { c.Method, c.Tau = "cs", 1 }, "tau: needs a clip"},
		{"weights", func(c *Config) { c.Weights = []float64{1, 2} }, "weights: needs a clip"},
		{"second", func(c *Config) { c.Second = &Second{Workload: "mean"} }, "warmup: cannot be combined with"},
		{"nothing to find", func(c *Config) { c.Clip, c.Centre, c.Scale, c.Warmup = 1, nil, nil, 5000 },
			"warmup: belongs to"},
		{"no mode without", func(c *Config) { c.Clip, c.Centre, c.Scale, c.WarmupMode = 1, nil, nil, "split" },
			"warmup_mode: belongs to"},
	} {
		c := automatic(2)
		x.edit(&c)
		_, err := New(c, p)
		if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.name, err, x.want)
		}
	}
	// A plan with another warm-up is refused.
	e := mustNew(t, automatic(2), p)
	for name, edit := range map[string]func(*WarmupPlan){
		"records": func(w *WarmupPlan) { w.Records += 500 },
		"gains":   func(w *WarmupPlan) { w.Gains.Mean *= 1.01 },
		"parts":   func(w *WarmupPlan) { w.Parts = 5 },
	} {
		plan := e.Plan()
		edit(plan.Warmup)
		if _, err := Adopt(automatic(2), p, plan); err == nil {
			t.Errorf("Adopt accepted a plan with other %s", name)
		}
	}
	plan := e.Plan()
	plan.Warmup = nil
	if _, err := Adopt(automatic(2), p, plan); err == nil {
		t.Error("Adopt accepted a plan without a warm-up")
	}
}
