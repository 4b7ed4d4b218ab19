package sgd

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// TestBatch pins the batch sizes that plans choose.
func TestBatch(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		d, bands  int
		adjacency dp.Adjacency
		want      uint64
	}{
		{10, 1, dp.Replace, 1012}, {10, 16, dp.Replace, 227}, {50, 1, dp.Replace, 5057}, {50, 16, dp.Replace, 980},
		{10, 1, dp.ZeroOut, 253}, {10, 16, dp.ZeroOut, 227}, {50, 1, dp.ZeroOut, 1265}, {50, 16, dp.ZeroOut, 490},
	} {
		e := mustNew(t,
			Config{Method: "amb", Columns: append(names(x.d), "y"), Target: "y", ClipX: 10, Radius: 10,
				Intercept: new(bool), Bands: x.bands},
			dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: x.adjacency})
		if got := e.plan.Batch; got != x.want {
			t.Errorf("d = %d, %d bands, %s: batch %d, want %d", x.d, x.bands, x.adjacency, got, x.want)
		}
		if e.plan.Search != 156 {
			t.Errorf("the bootstrap takes %d slots, want 156", e.plan.Search)
		}
	}
}

// TestPlan checks the numbers on which the guarantee depends.
func TestPlan(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			e := mustNew(t, c, params(adjacency))
			p := e.plan
			share := 1.0
			if c.Clip == "track" {
				share = 1 - e.cfg.Fraction
				// The count pays the rest of μ².
				if got := float64(p.Unit) / p.CountNoise; math.Abs(got-4*math.Sqrt(1-share)) > 1e-9 {
					t.Errorf("%s: the count costs %g", name, got)
				}
			}
			least := adjacency.Factor() * float64(p.Lattice.K) * e.factor.ColNorm() / (4 * math.Sqrt(share))
			if p.GradientNoise < least || p.GradientNoise > least*(1+1e-3) {
				t.Errorf("%s, %s: noise of %g lattice steps, must be a little more than %g", name, adjacency,
					p.GradientNoise, least)
			}
			if c.Clip != "fixed" {
				questions := float64(e.ladder.Searches())
				if c.Clip == "scan" {
					questions = float64(e.cfg.Rungs)
				}
				if got := float64(p.Unit) * math.Sqrt(questions) / p.SearchNoise; math.Abs(got-4) > 1e-9 {
					t.Errorf("%s: a search costs %g", name, got)
				}
			}
			if cost := e.Cost(); cost.Adjacency != adjacency || cost.Mu > 4 || cost.Mu < 4*(1-1e-12) {
				t.Errorf("%s: the cost is %+v", name, cost)
			}
			if p.One > float64(p.Lattice.K)-1 || p.One < float64(p.Lattice.K)*(1-1e-6) {
				t.Errorf("%s: a gradient of the clip norm has %g steps of %d", name, p.One, p.Lattice.K)
			}
		}
	}
}

// TestAdopt encodes and decodes a plan, and checks that a plan with any changed number is refused.
func TestAdopt(t *testing.T) {
	t.Parallel()
	for name, c := range variants() {
		c.Start = []float64{0.5, -0.5, 0.25}[:mustNew(t, c, params(dp.Replace)).cfg.features()]
		e := mustNew(t, c, params(dp.Replace))
		text, err := json.Marshal(e.Plan())
		if err != nil {
			t.Fatal(err)
		}
		var kept AMBPlan
		if err := json.Unmarshal(text, &kept); err != nil {
			t.Fatal(err)
		}
		c.Start = nil // only the plan holds the start
		f, err := AdoptAMB(c, params(dp.Replace), kept)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(f.Plan(), e.Plan()) || !reflect.DeepEqual(f.w, e.w) {
			t.Errorf("%s: encoding and decoding changes the plan", name)
		}
		estimatortest.Plans(t, kept, 1e-9,
			func(kept AMBPlan) (*AMB, error) { return AdoptAMB(c, params(dp.Replace), kept) }, ".start")
	}
}

// TestFaults checks that all faults are reported at once, each with its key.
func TestFaults(t *testing.T) {
	t.Parallel()
	for key, alter := range map[string]func(*Config){
		"target":             func(c *Config) { c.Target = "z" },
		"clip_x":             func(c *Config) { c.ClipX = 0 },
		"clip_y":             func(c *Config) { c.ClipY = -1 },
		"method":             func(c *Config) { c.Method = "newton" },
		"clip":               func(c *Config) { c.Clip = "guess" },
		"value":              func(c *Config) { c.Value = "loss" },
		"growth":             func(c *Config) { c.Growth = "linear" },
		"average":            func(c *Config) { c.Average = "median" },
		"threshold_quantile": func(c *Config) { c.ThresholdQuantile = 1 },
		"fraction":           func(c *Config) { c.Fraction = -0.1 },
		"tail":               func(c *Config) { c.Tail = 1.5 },
		"kappa":              func(c *Config) { c.Kappa = math.Inf(1) },
		"rungs":              func(c *Config) { c.Rungs = -1 },
		"top":                func(c *Config) { c.Top = math.NaN() },
		"zeta":               func(c *Config) { c.Zeta = 2 },
		"stat":               func(c *Config) { c.Stat = 100 },
		"bootstrap":          func(c *Config) { c.Clip, c.Bootstrap = "bisect", 5 },
		"batch":              func(c *Config) { c.Batch = 1 << 40 },
		"bands":              func(c *Config) { c.Bands = 1000 },
		"eta0":               func(c *Config) { c.Eta0 = 1.1 },
		"curvature":          func(c *Config) { c.Curvature = 100 },
		"radius":             func(c *Config) { c.Radius = 0 },
		"level":              func(c *Config) { c.Level = 95 },
		"columns":            func(c *Config) { c.Columns, c.Intercept = []string{"y"}, new(bool) },
		"centre":             func(c *Config) { c.Centre = []float64{1} },
		"scale":              func(c *Config) { c.Scale = []float64{1, 0, 1} },
		"start":              func(c *Config) { c.Start = []float64{1} },
	} {
		c := variants()["track"]
		alter(&c)
		_, err := NewAMB(c, dp.Params{Epsilon: 1, Adjacency: dp.Replace}) // delta is missing too
		found := false
		for _, e := range fault.All(err) {
			var f *fault.Fault
			found = found || errors.As(e, &f) && f.Key == key
		}
		if !found || !strings.Contains(err.Error(), "delta is 0") {
			t.Errorf("%s: %v", key, err)
		}
	}
	c := variants()["track"]
	c.Batch = 3
	if _, err := NewAMB(c, dp.Params{Mu: 0.2, Adjacency: dp.Replace}); err == nil ||
		!strings.Contains(err.Error(), "noise exceeds") {
		t.Errorf("a batch that is too short: %v", err)
	}
	c.Batch = 1 << 30
	if _, err := NewAMB(c, dp.Params{Mu: 0.2, Adjacency: dp.Replace}); err == nil ||
		!strings.Contains(err.Error(), "52 bits") {
		t.Errorf("a batch that is too long: %v", err)
	}
}

// TestWarnings checks the warnings about valid but unsuitable settings.
func TestWarnings(t *testing.T) {
	t.Parallel()
	c := variants()["track"]
	c.Batch, c.Curvature = 0, 1
	if w := mustNew(t, c, params(dp.Replace)).Warnings(); len(w) != 0 {
		t.Errorf("unexpected warnings: %v", w)
	}
	for want, alter := range map[string]func(*Config){
		"curvature is not set": func(c *Config) { c.Curvature = 0 },
		"published search":     func(c *Config) { c.Clip = "scan" },
		"can only grow":        func(c *Config) { c.ThresholdQuantile = 0.97 },
		"moves the clip norm":  func(c *Config) { c.Batch, c.Bootstrap = 9, 20 },
		"do not change":        func(c *Config) { c.Growth = "double" },
	} {
		c := c
		c.Bootstrap = 0
		alter(&c)
		if w := strings.Join(mustNew(t, c, params(dp.Replace)).Warnings(), "\n"); !strings.Contains(w, want) {
			t.Errorf("no warning %q: %q", want, w)
		}
	}
}

// TestExpect compares the expected excess risk with the excess risk of simulated streams.
func TestExpect(t *testing.T) {
	t.Parallel()
	const d, steps, trials = 6, 256, 12
	for _, bands := range []int{1, 16} {
		var sum float64
		var want Outlook
		for trial := range uint64(trials) {
			sim := simulate(t, d, Config{ClipX: 1e3, Intercept: new(bool), Radius: 10, Bands: bands, Batch: 300},
				dp.Params{Mu: 0.6, Adjacency: dp.Replace}, trial,
				func(p *AMBPlan) { p.Bound, p.Curvature = math.Sqrt(d), 1 })
			l := newLinear(trial, d, 1)
			for range steps - 1 {
				sim.next(t, l.draw)
			}
			r := sim.next(t, l.draw)
			sum += l.excess(value(r, "theta_average")) / trials
			want = sim.e.Expect(steps)
			if want.Slots != sim.slot {
				t.Errorf("the outlook is for %d slots, %d were used", want.Slots, sim.slot)
			}
		}
		expected := want.Sampling + want.Privacy
		t.Logf("%d bands: excess risk %.3g, expected %.3g (%.3g by sampling)", bands, sum, expected, want.Sampling)
		// A mean of 72 squares has a deviation of 17 %, and the formula is for long averages.
		if ratio := sum / expected; ratio < 0.5 || ratio > 2 {
			t.Errorf("%d bands: excess risk %g, expected %g", bands, sum, expected)
		}
	}
}

// TestPace checks that the advised batch is the chosen one and grows as the root of the condition number. After the
// stated number of steps, the slow direction must have almost converged.
func TestPace(t *testing.T) {
	t.Parallel()
	const condition = 9
	sim := simulate(t, 2,
		Config{ClipX: 5, Intercept: new(bool), Radius: 10, Curvature: 1, Intervals: new(bool), Restart: new(bool)},
		dp.Params{Epsilon: 30, Delta: 1e-6, Adjacency: dp.ZeroOut}, 5, func(p *AMBPlan) { p.Batch = 400 })
	one, pace := sim.e.Pace(1), sim.e.Pace(condition)
	if e := mustNew(t, sim.e.cfg, sim.e.params); e.plan.Batch != one.Advised || pace.Search != e.plan.Search ||
		pace.Batch != 400 {
		t.Errorf("%+v, but the plan chose %d and %d", pace, e.plan.Batch, e.plan.Search)
	}
	wide := mustNew(t, Config{Method: "amb", Columns: append(names(200), "y"), Target: "y", ClipX: 30, Radius: 10},
		params(dp.Replace))
	if a, b := wide.Pace(1).Least, wide.Pace(4).Least; b < 2*a-1 || b > 2*a || a < 10 {
		t.Errorf("the least batch goes from %d to %d", a, b)
	}
	l := newLinear(3, 2, 0.5)
	l.deviation, l.w = []float64{1, 1. / 3}, []float64{0, 1}
	var r *dp.Release
	for range pace.Settling {
		r = sim.next(t, l.draw)
	}
	left := 1 - value(r, "theta")[1]
	t.Logf("after %d steps of %.3g %.3g of the way is left", pace.Settling, pace.StepSize, left)
	if !(left > 0 && left < 0.15) {
		t.Errorf("after %d steps, %g of the distance remains", pace.Settling, left)
	}
}

// TestExpectGrowth compares Expect with sums over a schedule of doubling batches.
func TestExpectGrowth(t *testing.T) {
	t.Parallel()
	e := mustNew(t, variants()["track/growth"], params(dp.Replace))
	for _, n := range []uint64{1, 2, 31, 33, 64, 100, 1000, 12345} {
		got := e.Expect(n)
		start, f := uint64(0), 0.25
		if n < 64 {
			f = 0.5
		}
		for p := uint64(1); float64(p) <= f*float64(n); p *= 2 {
			start = p
		}
		var one, two float64
		for i := start; i < n; i++ {
			one += 1 / float64(e.batch(i))
			two += 1 / float64(e.batch(i)) / float64(e.batch(i))
		}
		size, zeta, k := clippedMoments(3, 0.6)
		v := noiseShape(e.plan.Factorization, e.factor.ColNorm())
		noise := e.plan.GradientNoise / e.factor.ColNorm() / e.plan.One * zeta
		steps := float64(n - start)
		for _, x := range [][2]float64{{got.Sampling, size * 3 * one / (2 * steps * steps * k * k)},
			{got.Privacy, noise * noise * v.average * 3 * two / (2 * steps * steps * k * k)}} {
			if math.Abs(x[0]-x[1]) > 1e-9*x[1] {
				t.Errorf("after %d steps: %g, want %g", n, x[0], x[1])
			}
		}
	}
}
