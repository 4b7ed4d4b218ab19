package adam

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestCharges checks that arithmetic adds little to the exact sensitivity: by quantised squares, by the rounding of
// correlated noise, and by float64.
func TestCharges(t *testing.T) {
	t.Parallel()
	for _, m := range []uint64{1, 4, 1000} {
		for _, base := range methods(m) {
			for _, kind := range []string{"identity", "blt"} {
				for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
					c := base
					c.Factorization, c.Dim = kind, 30
					e := mustNew(t, c, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: adjacency})
					exact := e.cfg
					exact.Clip = e.plan.Clip
					beta := 1.0
					if e.factors.second != nil {
						beta = e.factors.second.ColNorm()
					}
					n := exact.calibrated(e.plan.Mu, e.plan.Nu, e.factors.first.ColNorm(), beta, adjacency)
					more := e.plan.Sensitivity/n.Sensitivity - 1
					most := 1e-6
					if kind == "blt" {
						most = 2e-4
					}
					if !(more > 0 && more < most) {
						t.Errorf("%s, m=%d, %s, %s: arithmetic costs %.3g of the noise", c.Method, m, kind,
							adjacency, more)
					}
					if clip := e.plan.Clip / c.Clip; !(clip <= 1 && clip > 1-0x1p-22) {
						t.Errorf("%s: the lattice has %g of the clip norm", c.Method, clip)
					}
					if e.plan.SecondNoise != 0 &&
						math.Abs(e.plan.SecondNoise*math.Sqrt(e.plan.Lambda)/e.plan.FirstNoise-1) > 1e-14 {
						t.Errorf("%s: the two deviations have ratio %g", c.Method, e.plan.SecondNoise/e.plan.FirstNoise)
					}
					if got := e.plan.Sensitivity / e.plan.FirstNoise; !(got <= e.plan.Mu*(1+0x1p-45) &&
						got > e.plan.Mu*(1-0x1p-45)) {
						t.Errorf("%s: sensitivity over noise is %.17g, μ %.17g", c.Method, got, e.plan.Mu)
					}
				}
			}
		}
	}
}

// TestAdopt changes every field of a plan, one at a time: each change is refused. A plan with a BLT from another
// optimiser is accepted.
func TestAdopt(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}
	c := Config{Method: "jme_batch", Clip: 1.3, MeanClip: 0.9, Rate: 0.1, Dim: 3, Step: 8, Factorization: "blt",
		Initial: []float64{1, 2, 3}}
	e := mustNew(t, c, p)
	for name, alter := range map[string]func(*Plan){
		"method": func(p *Plan) { p.Method = "jme_per_example" },
		"first":  func(p *Plan) { p.First.Phases[0].Weight[0] += 1 << 44 },
		"first kind": func(p *Plan) {
			p.First = &matfact.Stored{Kind: "identity", Phases: []matfact.Phase{{Start: 1, Scale: 1}}}
		},
		"no first":     func(p *Plan) { p.First = nil },
		"second":       func(p *Plan) { p.Second.Decay[0] -= 1 << 50 },
		"no second":    func(p *Plan) { p.Second = nil },
		"parameters":   func(p *Plan) { p.Parameters = 4 },
		"initial":      func(p *Plan) { p.Initial = strings.Repeat("0", 64) },
		"clip":         func(p *Plan) { p.Clip *= 1 + 1e-9 },
		"sum clip":     func(p *Plan) { p.SumClip++ },
		"nu":           func(p *Plan) { p.Nu *= 1 + 1e-6 },
		"other nu":     func(p *Plan) { p.Nu *= 2 },
		"no nu":        func(p *Plan) { p.Nu = 0 },
		"lambda":       func(p *Plan) { p.Lambda *= 1 + 1e-9 },
		"sensitivity":  func(p *Plan) { p.Sensitivity *= 1 - 1e-9 },
		"mu":           func(p *Plan) { p.Mu *= 1 + 1e-9 },
		"first noise":  func(p *Plan) { p.FirstNoise *= 1 - 1e-9 },
		"second noise": func(p *Plan) { p.SecondNoise *= 1 - 1e-9 },
		"lattice":      func(p *Plan) { p.Lattice.Exp++ },
		"norm":         func(p *Plan) { p.Lattice.K++ },
		"second exp":   func(p *Plan) { p.SecondExp++ },
	} {
		plan := e.Plan()
		alter(&plan)
		if _, err := Adopt(c, p, plan); err == nil {
			t.Errorf("no error for a plan with another %s", name)
		}
	}
	plan := e.Plan()
	estimatortest.Plans(t, plan, 1e-9, func(kept Plan) (*Estimator, error) { return Adopt(c, p, kept) })
	plan.First.Phases[0].Weight[0] += 3 << (64 - plan.First.Fraction) // last bits
	f, err := e.cfg.factorize(&plan)
	if err != nil {
		t.Fatal(err)
	}
	mu, err := p.Budget()
	if err != nil {
		t.Fatal(err)
	}
	other, err := calibrate(&e.cfg, p, mu, f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Adopt(c, p, *other); err != nil {
		t.Errorf("a plan of another processor is refused: %v", err)
	}
	if again := e.Plan(); again.First.Phases[0].Weight[0] == plan.First.Phases[0].Weight[0] {
		t.Error("a plan shares memory with the estimator's")
	}
}

// TestFaults checks that all faults of a configuration are reported at once, each with its key.
func TestFaults(t *testing.T) {
	t.Parallel()
	good := Config{Clip: 1, Rate: 0.1, Dim: 3, Step: 4}
	p := dp.Params{Mu: 1, Adjacency: dp.Replace}
	for _, f := range []struct {
		keys  string
		alter func(*Config)
	}{
		{"", func(*Config) {}},
		{"clip rate dim step", func(c *Config) { *c = Config{} }},
		{"clip rate eps", func(c *Config) { c.Clip, c.Rate, c.Eps = math.Inf(1), math.NaN(), -1 }},
		{"mode method schedule negative factorization release", func(c *Config) {
			c.Mode, c.Method, c.Schedule, c.Negative, c.Factorization, c.Release = "x", "x", "x", "x", "x", "x"
		}},
		{"beta1 beta2", func(c *Config) { c.Beta1, c.Beta2 = 1, -0.1 }},
		{"nu v_floor update_clip weight_decay", func(c *Config) {
			c.Method, c.Nu, c.VFloor, c.UpdateClip, c.WeightDecay = "jme_batch", -1, math.NaN(), -1, math.Inf(1)
		}},
		{"mean_clip", func(c *Config) { c.MeanClip = 0.5 }},
		{"mean_clip", func(c *Config) { c.Method, c.MeanClip = "jme_batch", 1 }},
		{"tau", func(c *Config) { c.Method = "joint_clip" }},
		{"tau", func(c *Config) { c.Tau = 1 }},
		{"nu", func(c *Config) { c.Nu = 1 }},
		{"v_floor negative", func(c *Config) { c.Method, c.VFloor, c.Negative = "momentum", 1, "abs" }},
		{"v_floor", func(c *Config) { c.Negative, c.VFloor = "abs", 1 }},
		{"update_clip", func(c *Config) { c.Negative = "zero" }},
		{"", func(c *Config) { c.Negative, c.UpdateClip = "zero", 1 }},
		{"schedule", func(c *Config) { c.Schedule = "cosine" }},
		{"on_horizon", func(c *Config) { c.Schedule, c.Horizon, c.Endless = "cosine", 9, true }},
		{"factorization", func(c *Config) { c.Factorization = "sqrt" }},
		{"on_horizon", func(c *Config) { c.Factorization, c.Horizon, c.Endless = "sqrt", 9, true }},
		{"factorization", func(c *Config) { c.Factorization, c.Horizon, c.Dim = "sqrt", 1<<20, 1<<20 }},
		{"method", func(c *Config) { c.Method = "jme" }},
		{"", func(c *Config) { c.Method, c.Step = "jme", 1 }},
		{"dim", func(c *Config) { c.Dim = -1 }},
		{"model dim", func(c *Config) { c.Mode = "model" }},
		{"max_staleness step_header", func(c *Config) {
			c.Mode, c.Dim, c.Model, c.Columns, c.MaxStaleness, c.StepHeader = "model", 0,
				&Model{Loss: "linear", Target: "y"}, exampleColumns(2, 0), 1, "x"
		}},
		{"model", func(c *Config) { c.Model = &Model{} }},
		{"initial_file", func(c *Config) { c.Initial = []float64{1, 2} }},
		{"initial_file", func(c *Config) { c.Initial = []float64{1, 2, math.NaN()} }},
	} {
		c := good
		f.alter(&c)
		c.Defaults()
		var keys []string
		for _, err := range fault.All(c.Validate()) {
			keys = append(keys, err.(*fault.Fault).Key)
		}
		want := strings.Fields(f.keys)
		slices.Sort(keys)
		slices.Sort(want)
		if !slices.Equal(keys, want) {
			t.Errorf("%+v: faults of %q, want %q", c, keys, want)
		}
		if _, err := New(c, p); (err == nil) != (f.keys == "") {
			t.Errorf("%+v: New says %v", c, err)
		}
	}
	if _, err := New(good, dp.Params{}); err == nil {
		t.Error("no error for a configuration without a guarantee")
	}
}

// TestLimits builds estimators at the limits of integers, and checks that New refuses larger values.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		ok     bool
		c      Config
		params dp.Params
	}{
		{true, Config{Step: 1 << 32}, dp.Params{Mu: 1}},
		{false, Config{Step: 1 << 40}, dp.Params{Mu: 1}},
		{true, Config{Method: "jme_per_example", Step: 1 << 30}, dp.Params{Mu: 1}},
		{false, Config{Method: "jme_per_example", Step: 1 << 40}, dp.Params{Mu: 1}},
		{true, Config{Method: "jme_batch", Step: 1 << 12}, dp.Params{Mu: 1}},
		{false, Config{Method: "jme_batch", Step: 1 << 40}, dp.Params{Mu: 1}},
		{true, Config{Method: "joint_clip", Tau: 1, Step: 1 << 30}, dp.Params{Mu: 1}},
		{false, Config{Method: "joint_clip", Tau: 1, Step: 1 << 40}, dp.Params{Mu: 1}},
		{true, Config{Method: "joint_clip", Tau: 1e20, Step: 4}, dp.Params{Mu: 1}},
		{true, Config{Method: "joint_clip", Tau: 1e-20, Step: 4}, dp.Params{Mu: 1}},
		{false, Config{Clip: 1e80, Step: 4}, dp.Params{Mu: 1}},
		{false, Config{Clip: 1e-80, Step: 4}, dp.Params{Mu: 1}},
		{true, Config{Step: 4}, dp.Params{Mu: 60}},
		{false, Config{Step: 4}, dp.Params{Mu: 1e9}},
		{false, Config{Method: "jme_per_example", Step: 4, Nu: 1e250}, dp.Params{Mu: 1}},
		{false, Config{Method: "jme_batch", Step: 4, MeanClip: 1e-9}, dp.Params{Mu: 1}},
		{false, Config{Method: "jme_batch", Step: 4, MeanClip: 1.4}, dp.Params{Mu: 1}},
		{true, Config{Method: "jme_batch", Step: 4, MeanClip: 1.2}, dp.Params{Mu: 1}},
		{false, Config{Method: "jme_batch", Step: 1 << 26, MeanClip: 1, Dim: 1 << 20},
			dp.Params{Mu: 1, LatticeBits: 30}},
	} {
		f.params.Adjacency = dp.Replace
		f.c.Rate = 0.1
		if f.c.Clip == 0 {
			f.c.Clip = 1.3
		}
		if f.c.Dim == 0 {
			f.c.Dim = 2
		}
		_, err := New(f.c, f.params)
		if (err == nil) != f.ok {
			t.Errorf("%+v, %+v: %v", f.c, f.params, err)
		}
		if err != nil && (strings.Contains(err.Error(), "NaN") || strings.Contains(fmt.Sprint(err), "%!")) {
			t.Errorf("message %q", err)
		}
	}
}
