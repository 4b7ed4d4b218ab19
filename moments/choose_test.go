package moments

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestRefusals lists configurations that could be built, but that New must refuse, each with the reason.
func TestRefusals(t *testing.T) {
	t.Parallel()
	floor, negative, yes, no := 0.0, -1.0, true, false
	base := Config{Clip: 1, Columns: dptest.Columns(2), Step: 1}
	for _, x := range []struct {
		name string
		f    func(*Config)
		err  string
	}{
		{"squares of block sums", func(c *Config) { c.Method, c.Step = "pp", 2 }, "square the sum of a step's rows"},
		{"a combination over blocks", func(c *Config) { c.Method, c.Step = "combined", 100 },
			"square the sum of a step's rows"},
		{"squares over phased noise", func(c *Config) { c.Method, c.Factorization = "pp_debiased", "phased" },
			"cannot compute its error"},
		{"squares over correlated noise without end",
			func(c *Config) { c.Method, c.Factorization, c.Tune = "pp", "blt", 100 }, "needs a horizon"},
		{"squares over correlated noise for too long",
			func(c *Config) { c.Method, c.Factorization, c.Horizon = "pp", "sqrt", longestSquares+1 }, "at most 16384"},
		{"squares over correlated noise that does not end",
			func(c *Config) { c.Method, c.Factorization, c.Horizon, c.Endless = "pp", "blt", 10, true },
			"needs a horizon"},
		{"two matrices for concatenation", func(c *Config) { c.Method, c.Tau, c.Second = "cs", 1, &Second{} },
			"one matrix C"},
		{"two matrices for squares", func(c *Config) { c.Method, c.Second = "pp", &Second{} },
			"cannot be combined with a second factorization"},
		{"concatenation without a weight", func(c *Config) { c.Method = "cs" }, "tau: must be positive"},
		{"a weight without its method", func(c *Config) { c.Tau = 1 }, "tau: belongs to method \"cs\""},
		{"a share without its method", func(c *Config) { c.Split = 0.2 }, "split: belongs to method \"ime\""},
		{"a share of 1", func(c *Config) { c.Method, c.Split = "ime", 1 }, "split: must be in (0, 1)"},
		{"a weight for independent moments", func(c *Config) { c.Method, c.Nu = "ime", 1 },
			"nu: belongs to the methods"},
		{"weights for squares", func(c *Config) { c.Method, c.Weights = "pp", []float64{1, 1} },
			"weights: belongs to the methods"},
		{"an inflation for concatenation", func(c *Config) { c.Method, c.Tau, c.Inflation = "cs", 1, 2 },
			"inflation: belongs to the methods"},
		{"a weight below the free one", func(c *Config) { c.Nu = 0.4 }, "up to that weight the second moment is free"},
		{"an unknown metric", func(c *Config) { c.Metric = "mean" }, "metric: must be \"last\" or \"sum\""},
		{"a metric although the method is given", func(c *Config) { c.Method, c.Metric = "jme", "sum" },
			"metric: belongs to method \"auto\""},
		{"a metric over too many steps", func(c *Config) { c.Metric, c.Horizon = "sum", longestSum+1 },
			"at most 1048576"},
		{"a floor below zero", func(c *Config) { c.PSDFloor = &negative }, "psd_floor: must be at least 0"},
		{"a floor without a covariance", func(c *Config) { c.PSDFloor, c.Covariance = &floor, &no },
			"psd_floor: needs the covariance"},
		{"a covariance of two workloads",
			func(c *Config) { c.Second, c.Covariance = &Second{Workload: "window", Window: 2}, &yes },
			"covariance: needs one workload"},
		{"an invalid second moment", func(c *Config) { c.Second = &Second{Workload: "window"} },
			"second moment: window: must be at least 1"},
		{"a window larger than memory", func(c *Config) { c.Workload, c.Window = "window", 1<<40 }, "more than 16 GiB"},
		{"an unknown method", func(c *Config) { c.Method = "sum" }, "\"pp_debiased\" or \"combined\""},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := base
			x.f(&c)
			_, err := New(c, dp.Params{Mu: 1, Adjacency: dp.Replace})
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("error %v, must say %q", err, x.err)
			}
			if n := len(fault.All(err)); n != 1 {
				t.Errorf("%d faults: %v", n, err)
			}
		})
	}
}

// TestChoice checks that "auto" chooses the alternative with the least weighted error, and that the plan states all
// alternatives. The stated errors must be those that each method's own plan expects.
func TestChoice(t *testing.T) {
	t.Parallel()
	chosen := map[string]int{}
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 2, 20} {
			for _, mu := range []float64{0.2, 3, 20} {
				for _, c := range []Config{
					{Workload: "mean", Factorization: "identity"},
					{Workload: "sum", Factorization: "sqrt", Horizon: 60},
					{Workload: "exponential", Decay: 0.5, Factorization: "blt", Horizon: 60},
					{Workload: "window", Window: 2, Factorization: "identity", Metric: "sum", Tune: 100},
					{Workload: "mean", Factorization: "identity", Weights: []float64{1, 7}},
					{Workload: "mean", Factorization: "identity", Inflation: 1.5},
				} {
					c.Clip, c.Columns, c.Step = 1.7, dptest.Columns(d), 1
					p := dp.Params{Mu: mu, Adjacency: adjacency}
					name := fmt.Sprintf("%s, %s, mu %g", describe(c), adjacency, mu)
					e := mustNew(t, c, p)
					plan := e.Plan()
					choice := plan.Choice
					if choice == nil {
						t.Fatalf("%s: no choice", name)
					}
					chosen[plan.Method]++
					weights := [2]float64{1 / (c.Clip * c.Clip), math.Pow(c.Clip, -4)}
					if c.Weights != nil {
						weights = [2]float64(c.Weights)
					}
					least, taken := math.Inf(1), math.Inf(1)
					for _, a := range choice.Alternatives {
						cost := weights[0]*a.First*a.First + weights[1]*a.Second*a.Second
						if least = min(least, cost); a.Method == plan.Method {
							taken = cost
						}
						// The same method, given in the configuration.
						own := c
						own.Method, own.Metric = a.Method, ""
						if own.Weights, own.Inflation, own.Nu = nil, 0, a.Nu; a.Method == "pp_debiased" {
							own.Nu = 0
						}
						alone := mustNew(t, own, p)
						var first, second float64
						from := choice.Step
						if choice.Metric == "sum" {
							from = 1
						}
						for ; from <= choice.Step; from++ {
							x := alone.Expect(from)
							first += x.RMSEMean * x.RMSEMean
							second += x.RMSESecondMoment * x.RMSESecondMoment
						}
						// Expect includes the part of the noise that covers rounding.
						if !(math.Abs(math.Sqrt(first)/a.First-1) < 1e-4) ||
							!(math.Abs(math.Sqrt(second)/a.Second-1) < 1e-4) {
							t.Errorf("%s: %s states errors of %g and %g, its own plan %g and %g", name, a.Method,
								a.First, a.Second, math.Sqrt(first), math.Sqrt(second))
						}
					}
					if taken != least {
						t.Errorf("%s: %s costs %g, least is %g: %+v", name, plan.Method, taken, least, choice)
					}
				}
			}
		}
	}
	for _, m := range []string{"jme", "combined"} {
		if chosen[m] == 0 {
			t.Errorf("%s was never chosen: %v", m, chosen)
		}
	}
	t.Log(chosen)
	// In these configurations there is nothing to choose: several slots a step, noise without a Toeplitz matrix,
	// squares that no integer can hold.
	for name, c := range map[string]Config{
		"several slots": {Step: 2, Factorization: "identity"},
		"phased noise":  {Step: 1},
	} {
		c.Clip, c.Columns = 1, dptest.Columns(2)
		if plan := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace}).Plan(); plan.Choice != nil ||
			plan.Method != "jme" {
			t.Errorf("%s: %s, %+v", name, plan.Method, plan.Choice)
		}
	}
	c := Config{Clip: 1, Columns: dptest.Columns(2), Step: 1, Factorization: "identity"}
	if plan := mustNew(t, c, dp.Params{Mu: 1e-5, Adjacency: dp.Replace}).Plan(); plan.Choice != nil ||
		plan.Method != "jme" {
		t.Errorf("squares that do not fit: %s, %+v", plan.Method, plan.Choice)
	}
}

// TestCombinationGrid compares the weight of a combination under zero-out with a search over all weights.
func TestCombinationGrid(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(5, 2))
	for range 300 {
		u := math.Exp(3 * source.NormFloat64())
		x := circumstances{
			Mu: math.Exp(source.NormFloat64()), Clip: math.Exp(source.NormFloat64()), Dim: 1 + source.IntN(50),
			Adjacency: dp.ZeroOut,
			Alpha:     1, Beta: 1, Gains: Gains{First: u, Second: u, Fourth: u, Cross: u, Bias: u}, Squares: true,
			Combine: true, Search: true,
		}
		x.Joint = x.Dim
		x.Nu = chooseNu(1, float64(x.Dim+1)/2, x.Dim, x.Adjacency)
		x.Weights = [2]float64{1 / (x.Clip * x.Clip), math.Pow(x.Clip, -4)}
		_, found := x.best("combined")
		least := math.Inf(1)
		for nu := 1e-3; nu < 1e3; nu *= 1.01 {
			if _, cost := x.try("combined", nu); cost < least {
				least = cost
			}
		}
		if found > least*1.002 {
			t.Errorf("d = %d, mu %g: the grid finds %g, the least is %g", x.Dim, x.Mu, found, least)
		}
	}
}

// TestAdoptMethods checks that Adopt accepts the plan of every method's configuration, and refuses plans of other
// methods and changed plans.
func TestAdoptMethods(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 1, Delta: 1e-7, Adjacency: dp.ZeroOut}
	kept := func(own Plan) (k Plan) { // encoded and decoded, as in the epoch's manifest
		text, err := json.Marshal(own)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &k); err != nil {
			t.Fatal(err)
		}
		return k
	}
	auto := Config{Workload: "mean", Factorization: "identity", Step: 1}
	for _, c := range append(variants(40), auto) {
		c.Clip, c.Columns = 1.4, dptest.Columns(3)
		own := mustNew(t, c, p).Plan()
		e, err := Adopt(c, p, kept(own))
		if err != nil {
			t.Errorf("%s, %s: its own plan is refused: %v", c.Method, describe(c), err)
			continue
		}
		if e.fingerprint != mustNew(t, c, p).fingerprint {
			t.Errorf("%s, %s: an adopted plan has changed", c.Method, describe(c))
		}
		refuse := func(what string, alter func(*Plan)) {
			k := kept(own)
			alter(&k)
			if _, err := Adopt(c, p, k); err == nil {
				t.Errorf("%s, %s: a changed %s is accepted", c.Method, describe(c), what)
			}
		}
		refuse("method", func(k *Plan) { k.Method = map[bool]string{true: "cs", false: "pp"}[own.Method == "pp"] })
		refuse("count", func(k *Plan) { k.Count += 1e-9 })
		refuse("step of the count", func(k *Plan) { k.CountExp++ })
		refuse("weight", func(k *Plan) { k.Lambda += 1e-9 })
		refuse("deviation", func(k *Plan) { k.First *= 0.999 })
		if own.SecondFactorization != nil {
			refuse("kind of the second factorization", func(k *Plan) { k.SecondFactorization.Kind = "phased" })
			refuse("presence of the second factorization", func(k *Plan) { k.SecondFactorization = nil })
		} else {
			refuse("second factorization", func(k *Plan) { k.SecondFactorization = k.Factorization })
		}
		if own.Choice != nil {
			refuse("choice", func(k *Plan) { k.Choice.Alternatives[0].Second *= 1.1 })
			refuse("metric", func(k *Plan) { k.Choice.Metric = "sum" })
		} else {
			refuse("presence of a choice", func(k *Plan) { k.Choice = &Choice{} })
		}
	}
}
