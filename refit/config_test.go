package refit

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// TestForeignPlans refuses plans that do not follow from the configuration.
func TestForeignPlans(t *testing.T) {
	t.Parallel()
	for name, c := range configs() {
		adopt := func(kept Plan) (*Refit, error) { return Adopt(c, generous, kept) }
		plan := mustRefit(t, c, generous).Plan()
		t.Run(name, func(t *testing.T) { estimatortest.Plans(t, plan, 1e-10, adopt) })
		plan.Cost.Terms = append(plan.Cost.Terms, dp.Term{})
		if _, err := adopt(plan); err == nil {
			t.Errorf("%s: no error for a plan with one more term", name)
		}
	}
}

// TestFaults checks that all faults of a configuration are reported at once.
func TestFaults(t *testing.T) {
	t.Parallel()
	check := func(f func(c *Config), keys ...string) {
		t.Helper()
		c := configs()["newton"]
		f(&c)
		c.Defaults()
		var got []string
		for _, err := range fault.All(c.Validate()) {
			var f *fault.Fault
			if !errors.As(err, &f) {
				t.Errorf("%v is not a fault.Fault", err)
				continue
			}
			got = append(got, f.Key)
		}
		slices.Sort(got)
		slices.Sort(keys)
		if !slices.Equal(got, keys) {
			t.Errorf("faults of %v, want %v", got, keys)
		}
	}
	check(func(c *Config) {})
	check(func(c *Config) { c.ClipX, c.ClipY, c.Window = 0, math.NaN(), 0 }, "clip_x", "clip_y", "window")
	check(func(c *Config) { c.Target = "z" }, "target")
	check(func(c *Config) { c.Columns = []string{"y"}; no := false; c.Intercept = &no }, "columns")
	check(func(c *Config) { c.Stride = 100 }, "stride")
	check(func(c *Config) { c.ClipX, c.ClipY = 1e-310, 1e300 }, "clip_x", "clip_y")
	check(func(c *Config) { c.Solver, c.ResidualClip = "ihm", 1e-200 }, "residual_clip")
	check(func(c *Config) { c.Solver = "ols" }, "solver")
	check(func(c *Config) { c.Accounting = RDP }, "accounting")
	check(func(c *Config) { c.Solver, c.Accounting = "fast-ihm", Exact }, "accounting")
	check(func(c *Config) {
		c.Share, c.Rows, c.Iterations, c.EigenTest, c.Debias, c.Pool, c.ResidualClip, c.Ratio, c.Radius = 0.3, 50, 2,
			true, true, true, 1, 5, 1
	}, "share", "rows", "iterations", "eigen_test", "debias", "pool", "residual_clip", "ratio", "radius")
	check(func(c *Config) { c.Solver, c.Transforms, c.Ratio = "fast-ihm", 3, -1 }, "transforms", "ratio")
	check(func(c *Config) { c.Solver, c.Ratio = "fast-ihm", 1e30 }, "ratio")
	check(func(c *Config) { c.Solver, c.Rows, c.Share, c.Iterations = "ihm", 4, 1, -1 }, "rows", "share", "iterations")
	check(func(c *Config) { c.Solver, c.Radius, c.ResidualClip = "ihm", 1, 2 }, "radius")
	check(func(c *Config) { c.Solver, c.Radius = "ihm", math.Inf(1) }, "radius")
	check(func(c *Config) { c.Solver, c.Radius, c.Dense = "ihm", 1, true }, "dense")
	check(func(c *Config) { c.Dense = true }, "dense")

	for what, p := range map[string]dp.Params{
		"adjacency": {Epsilon: 1, Delta: 1e-6}, "delta": {Epsilon: 1, Adjacency: dp.ZeroOut},
		"mu":      {Mu: 1e-7, Adjacency: dp.ZeroOut},
		"lattice": {Mu: 1e12, Adjacency: dp.ZeroOut},
	} {
		if _, err := New(configs()["newton"], p); err == nil {
			t.Errorf("no error for newton without %s", what)
		}
	}
	for _, solver := range []string{"ihm", "linmix", "fast-ihm"} {
		if _, err := New(configs()[solver], dp.Params{Mu: 1, Adjacency: dp.ZeroOut}); err == nil {
			t.Errorf("no error for %s with a budget of μ", solver)
		}
	}
	replace := dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}
	for _, name := range []string{"fast-ihm", "ihm of the paper", "linmix of the paper"} {
		if _, err := New(configs()[name], replace); err == nil {
			t.Errorf("no error for %s under replace", name)
		}
	}
}
