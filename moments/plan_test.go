package moments

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// TestAdopt checks that Adopt accepts the plan of the same configuration, even if another processor computed different
// last bits, and refuses every other plan.
func TestAdopt(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 1, Delta: 1e-7, Adjacency: dp.Replace}
	for _, c := range audited(1000) {
		c.Clip, c.Columns, c.Step = 1.4, dptest.Columns(3), 4
		own := mustNew(t, c, p).Plan()
		kept := func() Plan { // encoded and decoded, as in the epoch's manifest
			text, err := json.Marshal(own)
			if err != nil {
				t.Fatal(err)
			}
			var k Plan
			if err := json.Unmarshal(text, &k); err != nil {
				t.Fatal(err)
			}
			return k
		}
		accept := func(what string, k Plan) {
			t.Helper()
			e, err := Adopt(c, p, k)
			if err != nil {
				t.Errorf("%s: %s is refused: %v", describe(c), what, err)
				return
			}
			if got := e.Plan(); got.First != k.First || got.Mu != k.Mu || e.Cost().Mu != k.Mu {
				t.Errorf("%s: the estimator does not use %s", describe(c), what)
			}
		}
		refuse := func(what string, k Plan) {
			t.Helper()
			if _, err := Adopt(c, p, k); err == nil {
				t.Errorf("%s: %s is accepted", describe(c), what)
			}
		}
		accept("the same plan", kept())
		// This is the smallest change of the matrix that Adopt must notice. Normalised columns have the same norm, so
		// the noise does not change until the matrix is worse.
		finest := 30
		if c.Normalise {
			finest = 3
		}
		numbers := map[string]func(*Plan) *float64{
			"clip": func(k *Plan) *float64 { return &k.Clip }, "nu": func(k *Plan) *float64 { return &k.Nu },
			"lambda":      func(k *Plan) *float64 { return &k.Lambda },
			"sensitivity": func(k *Plan) *float64 { return &k.Sensitivity },
			"mu":          func(k *Plan) *float64 { return &k.Mu }, "first": func(k *Plan) *float64 { return &k.First },
			"diagonal":     func(k *Plan) *float64 { return &k.Diagonal },
			"off_diagonal": func(k *Plan) *float64 { return &k.OffDiagonal },
		}
		for name, field := range numbers {
			k := kept()
			*field(&k) = math.Nextafter(*field(&k), 0)
			accept("a last bit of "+name, k)
			for _, factor := range []float64{1 - 1e-12, 1 + 1e-12, 0.5, 0, math.NaN(), math.Inf(1)} {
				k := kept()
				*field(&k) *= factor
				refuse(fmt.Sprintf("%s times %g", name, factor), k)
			}
		}
		for name, alter := range map[string]func(*Plan){
			"method":           func(k *Plan) { k.Method = "ime" },
			"lattice exponent": func(k *Plan) { k.Lattice.Exp++ },
			"lattice K":        func(k *Plan) { k.Lattice.K-- },
			"second exponent":  func(k *Plan) { k.SecondExp-- },
			"no factorization": func(k *Plan) { k.Factorization = nil },
			"other kind": func(k *Plan) {
				k.Factorization = &matfact.Stored{Kind: "identity", Phases: []matfact.Phase{{Start: 1, Scale: 1}}}
				if c.Factorization == "identity" {
					k.Factorization = &matfact.Stored{Kind: "sqrt"}
				}
			},
			"no phases": func(k *Plan) {
				if len(k.Factorization.Phases) == 0 {
					k.Factorization.Height++
				}
				k.Factorization.Phases = []matfact.Phase{}
			},
			"decay": func(k *Plan) {
				if d := k.Factorization.Decay; len(d) > 0 {
					d[0] -= d[0] >> finest
				} else {
					k.Factorization.Decay = []matfact.Fixed{1 << 63}
				}
			},
			"weight": func(k *Plan) {
				if d := k.Factorization.Decay; len(d) > 0 {
					w := k.Factorization.Phases[0].Weight
					w[0] -= w[0] >> finest
				} else {
					k.Factorization.Phases = append(k.Factorization.Phases, matfact.Phase{Start: 2, Scale: 1})
				}
			},
			"scale": func(k *Plan) {
				if len(k.Factorization.Phases) > 0 {
					k.Factorization.Phases[0].Scale *= 1 + 1e-9
				} else {
					k.Factorization.Phases = []matfact.Phase{{Start: 1, Scale: 2}}
				}
			},
		} {
			k := kept()
			alter(&k)
			refuse("another "+name, k)
		}
		// A plan for other parameters is refused.
		for what, other := range map[string]dp.Params{
			"epsilon":   {Epsilon: 1.001, Delta: 1e-7, Adjacency: dp.Replace},
			"adjacency": {Epsilon: 1, Delta: 1e-7, Adjacency: dp.ZeroOut},
			"bits":      {Epsilon: 1, Delta: 1e-7, Adjacency: dp.Replace, LatticeBits: 26},
		} {
			refuse("a plan of another "+what, mustNew(t, c, other).Plan())
		}
	}
}

// TestForeignPlans changes every number of plans that have every field.
func TestForeignPlans(t *testing.T) {
	t.Parallel()
	p := dp.Params{Epsilon: 1, Delta: 1e-7, Adjacency: dp.ZeroOut}
	for name, c := range map[string]Config{
		"two factorizations": {Step: 4, ValidCount: new(true), Horizon: 50, Factorization: "blt",
			Second: &Second{Factorization: "sqrt"}},
		"a choice": {Step: 1, Horizon: 50, Factorization: "blt"},
		"phases":   {Step: 4, Factorization: "phased"},
		"dense":    {Step: 4, Horizon: 10, Factorization: "dense"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Clip, c.Columns = 1.4, dptest.Columns(3)
			estimatortest.Plans(t, mustNew(t, c, p).Plan(), 1e-3,
				func(kept Plan) (*Estimator, error) { return Adopt(c, p, kept) })
		})
	}
}

// TestAdoptAnotherOptimum uses a BLT that another processor's optimiser might have found. Adopt must accept it with
// everything that follows from it, and must refuse it with the noise for our own optimum.
func TestAdoptAnotherOptimum(t *testing.T) {
	t.Parallel()
	c, p := Config{Clip: 1.4, Columns: dptest.Columns(3), Step: 4, Factorization: "blt", Horizon: 1000},
		dp.Params{Mu: 1, Adjacency: dp.Replace}
	c.Defaults()
	own := mustNew(t, c, p).Plan()
	moved := own.clone()
	for i := range moved.Factorization.Decay {
		moved.Factorization.Decay[i] -= 1 << (20 + i)
		moved.Factorization.Phases[0].Weight[i] += 1 << (64 - own.Factorization.Fraction + i)
	}
	if _, err := Adopt(c, p, moved); err == nil {
		t.Error("another matrix is accepted with the noise of ours")
	}
	consistent, _, err := resolve(&c, p, &moved, 0)
	if err != nil {
		t.Fatal(err)
	}
	if consistent.First == own.First {
		t.Fatal("the other optimum has the same column norm, so the test is useless")
	}
	e, err := Adopt(c, p, *consistent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Close(dptest.Zero()); err != nil {
		t.Fatal(err)
	}
	// A worse matrix that is calibrated consistently is private, but it does not belong to this configuration.
	for i := range moved.Factorization.Decay {
		w := &moved.Factorization.Phases[0].Weight[i]
		*w = *w >> (65 - own.Factorization.Fraction) << (64 - own.Factorization.Fraction)
	}
	worse, _, err := resolve(&c, p, &moved, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Adopt(c, p, *worse); err == nil {
		t.Error("a worse matrix is accepted")
	}
}

// TestPlanIsACopy changes the result of Plan and the argument of Adopt. The estimator must not change.
func TestPlanIsACopy(t *testing.T) {
	t.Parallel()
	c, p := Config{Clip: 1, Columns: dptest.Columns(2), Step: 1, Factorization: "blt", Horizon: 10},
		dp.Params{Mu: 1, Adjacency: dp.Replace}
	given := mustNew(t, c, p).Plan()
	e, err := Adopt(c, p, given)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(e.Plan())
	if err != nil {
		t.Fatal(err)
	}
	given.Factorization.Decay[0], given.Factorization.Phases[0].Weight[0] = 1, 1
	other := e.Plan()
	other.Factorization.Phases[0].Scale = 5
	if got, err := json.Marshal(e.Plan()); err != nil || string(got) != string(want) {
		t.Errorf("the estimator's plan changed to %s", got)
	}
}

// TestLimits uses configurations at the limits of integers and float64: New must return an error, or an estimator whose
// release is right.
func TestLimits(t *testing.T) {
	t.Parallel()
	replace := dp.Params{Mu: 1, Adjacency: dp.Replace}
	zeroOut := dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
	base := Config{Method: "jme", Clip: 1, Columns: dptest.Columns(2), Step: 1, Factorization: "identity"}
	with := func(f func(*Config)) Config {
		c := base
		f(&c)
		return c
	}
	for _, x := range []struct {
		name string
		c    Config
		p    dp.Params
		err  string // part of the error, "" for none
	}{
		{"plain", base, replace, ""},
		{"one column", with(func(c *Config) { c.Columns = dptest.Columns(1) }), replace, ""},
		{"a hundred columns", with(func(c *Config) { c.Columns = dptest.Columns(100) }), replace, ""},
		{"three hundred columns", with(func(c *Config) { c.Columns = dptest.Columns(300) }), replace, ""},
		{"no column", with(func(c *Config) { c.Columns = dptest.Columns(0) }), replace, "columns"},
		{"no slot", with(func(c *Config) { c.Step = 0 }), replace, "step"},
		{"the longest step", with(func(c *Config) { c.Step = 1<<38 - 1<<30 }), replace, ""},
		{"a step too long", with(func(c *Config) { c.Step = 1 << 38 }), replace, "step: must be less"},
		{"a step much too long", with(func(c *Config) { c.Step = math.MaxUint64 }), replace, "step: must be less"},
		{"finest lattice", base, dp.Params{Mu: 1, Adjacency: dp.Replace, LatticeBits: 30}, ""},
		{"too fine a lattice", base, dp.Params{Mu: 1, Adjacency: dp.Replace, LatticeBits: 31}, "lattice_bits"},
		{"too coarse a lattice", base, dp.Params{Mu: 1, Adjacency: dp.Replace, LatticeBits: 23}, "lattice_bits"},
		{"a lattice that gives up bits", base, dp.Params{Mu: 50, Adjacency: dp.Replace, LatticeBits: 30}, ""},
		{"little noise", base, dp.Params{Mu: 60, Adjacency: dp.Replace}, ""},
		{"too little noise", base, dp.Params{Mu: 200, Adjacency: dp.Replace}, "too small"},
		{"much noise", base, dp.Params{Mu: 1e-5, Adjacency: dp.Replace}, ""},
		{"too much noise", base, dp.Params{Mu: 1e-9, Adjacency: dp.Replace}, "2^51"},
		{"large second moment's weight", with(func(c *Config) { c.Nu = 1e6 }), replace, ""},
		{"too large a weight", with(func(c *Config) { c.Nu = 1e20 }), replace, "2^51"},
		{"endless weight", with(func(c *Config) { c.Nu = math.Inf(1) }), replace, "nu"},
		{"small weight", with(func(c *Config) { c.Nu = 1e-9 }), zeroOut, ""},
		{"too small a weight", with(func(c *Config) { c.Nu = 1e-30 }), zeroOut, "2^51"},
		{"tiny weight", with(func(c *Config) { c.Nu = 5e-324 }), zeroOut, "must"},
		{"less than the free weight", with(func(c *Config) { c.Nu = 0.499 }), replace, "at least 0.5"},
		{"weights that overflow", with(func(c *Config) { c.Clip, c.Weights = 1e50, []float64{1e-200, 1e200} }),
			replace, "+Inf"},
		{"weights that vanish", with(func(c *Config) { c.Clip, c.Weights = 1e-50, []float64{1e250, 1e-250} }),
			zeroOut, "must"},
		{"large clip", with(func(c *Config) { c.Clip = 1e59 }), replace, ""},
		{"small clip", with(func(c *Config) { c.Clip = 1e-59 }), replace, ""},
		{"clip beyond fourth powers", with(func(c *Config) { c.Clip = 1e61 }), replace, "about 1"},
		{"clip below fourth powers", with(func(c *Config) { c.Clip = 1e-61 }), replace, "about 1"},
		{"clip beyond squares", with(func(c *Config) { c.Clip = 1e155 }), replace, "about 1"},
		{"clip beyond the lattice", with(func(c *Config) { c.Clip = 1e300 }), replace, "out of range"},
		{"clip below the lattice", with(func(c *Config) { c.Clip = 1e-150 }), replace, "out of range"},
		{"smallest clip", with(func(c *Config) { c.Clip = 5e-324 }), replace, "out of range"},
		{"negative clip", with(func(c *Config) { c.Clip = -1 }), replace, "clip"},
		{"no clip", with(func(c *Config) { c.Clip = 0 }), replace, "clip"},
		{"no adjacency", base, dp.Params{Mu: 1}, "adjacency"},
		{"no budget", base, dp.Params{Adjacency: dp.Replace}, "delta"},
		{"centre of another length", with(func(c *Config) { c.Centre = []float64{1} }), replace, "centre"},
		{"infinite centre", with(func(c *Config) { c.Centre = []float64{1, math.Inf(-1)} }), replace, "centre"},
		{"scale of another length", with(func(c *Config) { c.Scale = []float64{1, 2, 3} }), replace, "scale"},
		{"scale of zero", with(func(c *Config) { c.Scale = []float64{1, 0} }), replace, "scale"},
		{"a square root without end", with(func(c *Config) { c.Factorization, c.Horizon, c.Endless = "sqrt", 9, true }),
			replace, "on_horizon"},
		{"a square root without horizon", with(func(c *Config) { c.Factorization = "sqrt" }), replace, "horizon"},
		{"a horizon beyond all offsets", with(func(c *Config) { c.Step, c.Horizon = 4096, 1<<52 }), replace, "horizon"},
		{"the largest horizon", with(func(c *Config) { c.Factorization, c.Step, c.Horizon = "identity", 4096, 1<<50 }),
			replace, ""},
		{"a horizon that is only tuned for",
			with(func(c *Config) { c.Factorization, c.Step, c.Horizon, c.Endless = "identity", 4096, 1<<52, true }),
			replace, ""},
		{"buffers without a BLT", with(func(c *Config) { c.Buffers = 2 }), replace, "buffers"},
		{"buffers although auto takes no BLT", with(func(c *Config) { c.Factorization, c.Buffers = "auto", 2 }),
			replace, "buffers"},
		{"buffers if auto takes a BLT",
			with(func(c *Config) { c.Factorization, c.Buffers, c.Horizon = "auto", 2, 50 }), replace, ""},
		{"bands", with(func(c *Config) { c.Factorization, c.Bands = "bisr", 2 }), replace, ""},
		{"bands without a banded factorization", with(func(c *Config) { c.Factorization, c.Bands = "blt", 2 }),
			replace, "bands"},
		{"too many bands", with(func(c *Config) { c.Factorization, c.Bands = "bsr", 257 }), replace, "1 to 256"},
		{"fewer than one band", with(func(c *Config) { c.Factorization, c.Bands = "bsr", -1 }), replace, "1 to 256"},
		{"too many bands to optimise",
			with(func(c *Config) { c.Factorization, c.Bands, c.Horizon = "banded", 65, 100 }), replace, "at most 64"},
		{"bands to optimise without a length", with(func(c *Config) { c.Factorization = "banded" }), replace, "tune"},
		{"optimised bands", with(func(c *Config) { c.Factorization, c.Bands, c.Tune = "banded", 3, 100 }), replace, ""},
		{"dense without horizon", with(func(c *Config) { c.Factorization = "dense" }), replace, "horizon"},
		{"dense with a long horizon", with(func(c *Config) { c.Factorization, c.Horizon = "dense", 301 }),
			replace, "300"},
		{"dense", with(func(c *Config) { c.Factorization, c.Horizon = "dense", 8 }), replace, ""},
		{"normalised without horizon", with(func(c *Config) { c.Factorization, c.Normalise = "bisr", true }), replace,
			"normalise"},
		{"normalised without end",
			with(func(c *Config) { c.Factorization, c.Normalise, c.Horizon, c.Endless = "bisr", true, 9, true }),
			replace, "on_horizon"},
		{"normalised phases", with(func(c *Config) { c.Factorization, c.Normalise, c.Horizon = "phased", true, 9 }),
			replace, "normalise"},
		{"normalised", with(func(c *Config) { c.Factorization, c.Normalise, c.Horizon = "blt", true, 30 }),
			replace, ""},
		{"a window too wide", with(func(c *Config) { c.Workload, c.Window = "window", 1<<33 }), replace, "window"},
		{"two choices of nu", with(func(c *Config) { c.Nu, c.Inflation = 1, 2 }), replace, "at most one"},
		{"inflation of one, zero-out", with(func(c *Config) { c.Inflation = 1 }), zeroOut, "inflation"},
		{"a covariance of sums", with(func(c *Config) { yes := true; c.Workload, c.Covariance = "sum", &yes }), replace,
			"covariance"},
		{"inflation", with(func(c *Config) { c.Inflation = 1.5 }), replace, ""},
		{"weights", with(func(c *Config) { c.Weights = []float64{1, 5} }), replace, ""},
		{"default weights", base, zeroOut, ""},
		{"unknown workload", with(func(c *Config) { c.Workload = "median" }), replace,
			"\"mean\", \"sum\", \"exponential\" or \"window\""},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			e, err := New(x.c, x.p)
			if x.err != "" {
				if err == nil || !strings.Contains(err.Error(), x.err) {
					t.Fatalf("error is %v, must say %q", err, x.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			plan := e.Plan()
			if e.Columns() != len(x.c.Columns) || !e.Cost().Equal(dp.Cost{Adjacency: x.p.Adjacency, Mu: plan.Mu}) {
				t.Errorf("%d columns, cost %v", e.Columns(), e.Cost())
			}
			for what, v := range map[string]float64{
				"clip": plan.Clip, "nu": plan.Nu, "lambda": plan.Lambda, "sensitivity": plan.Sensitivity, "mu": plan.Mu,
				"first": plan.First, "diagonal": plan.Diagonal, "off-diagonal": plan.OffDiagonal,
			} {
				if !vector.Positive(v) {
					t.Errorf("%s is %g", what, v)
				}
			}
			if got := plan.Sensitivity / plan.First; got > plan.Mu {
				t.Errorf("sensitivity over noise is %.17g, charged %.17g", got, plan.Mu)
			}
			if plan.Clip > x.c.Clip || plan.Clip < x.c.Clip*(1-0x1p-23) {
				t.Errorf("clip is %.17g, asked for %.17g", plan.Clip, x.c.Clip)
			}
			g, g2, bits := plan.Lattice.Step(), plan.SecondStep(), x.p.Bits()
			if fine := math.Ldexp(min(plan.Clip*plan.Clip, plan.OffDiagonal), -bits); g2 > fine || g2 < g*g {
				t.Errorf("g₂ is %g, must be in [%g, %g]", g2, g*g, fine)
			}
			if fine := math.Ldexp(min(x.c.Clip, plan.First), -24); g > fine {
				t.Errorf("g is %g, must be at most %g", g, fine)
			}
			// Close the largest possible step, with rows of full norm. The norm is in one column or spread over all
			// columns.
			row := make([]float64, len(x.c.Columns))
			for i := range row {
				row[i] = 2 * plan.Clip
			}
			e.Add(0, row)
			r, err := e.Close(dptest.Seeded(1))
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range r.Values[0].Data {
				want := plan.Clip / math.Sqrt(float64(len(x.c.Columns)))
				if math.Abs(v-want) > 8*r.Values[0].SE[0]+2*g {
					t.Errorf("mean %d is %g, want %g ± %g", i, v, want, r.Values[0].SE[0])
				}
			}
		})
	}
}

// TestSumsFit takes the largest step that New allows. int64 must hold its sums and the largest noise.
func TestSumsFit(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{24, 27, 30} {
		// For one ν, squares are the first to become too large; for the other ν, rows.
		for _, nu := range []float64{0.5, 0.02} {
			c := Config{Clip: 1, Columns: dptest.Columns(1), Step: 1, Factorization: "phased", Nu: nu}
			p := dp.Params{Mu: 20 * math.Exp2(24-float64(bits)), Adjacency: dp.ZeroOut, LatticeBits: bits}
			lo, hi := uint64(1), uint64(1)<<62
			for hi-lo > 1 {
				c.Step = lo + (hi-lo)/2
				if _, err := New(c, p); err == nil {
					lo = c.Step
				} else {
					hi = c.Step
				}
			}
			c.Step = lo
			e := mustNew(t, c, p)
			k, shift := float64(e.plan.Lattice.K), e.plan.SecondExp-2*e.plan.Lattice.Exp
			rows := float64(lo)*k + e.first.reach
			squares := float64(lo)*(k*math.Ldexp(k, -shift)+1) + e.second.reach
			if !(max(rows, squares) < 1<<63) {
				t.Errorf("%d bits, nu %g: rows may reach %g, squares %g", bits, nu, rows, squares)
			}
			if max(rows, squares) < 1<<61 {
				t.Errorf("%d bits, nu %g: steps end at %d records, although longer steps would fit", bits, nu, lo)
			}
			if nu < 0.1 && bits == 24 && rows < squares {
				t.Error("rows are never the first to become too large, so their test is useless")
			}
		}
	}
}

// TestWeights compares the chosen ν with other values, by the errors that Expect returns. The errors are weighted and
// summed over the mean's entries and over all d² entries of the second moment.
func TestWeights(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, weights := range [][]float64{nil, {1, 1}, {3, 0.2}, {1, 100}} {
			c := Config{Clip: 1.9, Columns: dptest.Columns(4), Step: 10, Factorization: "identity", Weights: weights}
			p := dp.Params{Mu: 1, Adjacency: adjacency}
			nu := mustNew(t, c, p).plan.Nu
			if weights == nil {
				if weights = []float64{1 / (1.9 * 1.9), 1 / math.Pow(1.9, 4)}; adjacency == dp.Replace {
					if nu != 0.5 {
						t.Errorf("nu is %g by default, want the free point", nu)
					}
					continue
				}
			}
			objective := func(nu float64) float64 {
				c := c
				c.Weights, c.Nu = nil, nu
				x := mustNew(t, c, p).Expect(3)
				// E‖Ŝ − S‖² counts entries off the diagonal twice.
				return weights[0]*4*x.Mean*x.Mean + weights[1]*(4*x.Diagonal*x.Diagonal+12*x.OffDiagonal*x.OffDiagonal)
			}
			best := objective(nu)
			for _, factor := range []float64{0.5, 0.9, 0.99, 1.01, 1.1, 2} {
				if other := objective(nu * factor); other < best*(1-1e-9) {
					t.Errorf("%s, weights %v: nu %g is better than %g by %g", adjacency, weights, nu*factor, nu,
						1-other/best)
				}
			}
		}
	}
}

// TestCharges adds up the parts that the sensitivity must contain: the joint sensitivity for the largest column norm, a
// unit of the squares' lattice in every entry of the matrix, and twice the rounding of every prediction, over all
// coordinates of the epoch.
func TestCharges(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, c := range audited(50) {
			for _, endless := range []bool{false, true} {
				if c.Endless = endless; endless && final(c) {
					continue
				}
				c.Clip, c.Columns, c.Step, c.Nu = 1.7, dptest.Columns(4), 3, 0.8
				e := mustNew(t, c, dp.Params{Mu: 0.5, Adjacency: adjacency})
				p, norm := e.plan, e.shapes.first.factor.ColNorm()
				tau := p.Sensitivity / 0.5
				for what, ratio := range map[string]float64{
					"first": p.First / tau, "diagonal": p.Diagonal / tau * math.Sqrt(p.Lambda),
					"off-diagonal": p.OffDiagonal / tau * math.Sqrt(2*p.Lambda),
					"lambda":       p.Lambda / (0.8 / (p.Clip * p.Clip)),
				} {
					if math.Abs(ratio-1) > 1e-13 {
						t.Errorf("%s: %s is off by %g", describe(c), what, ratio-1)
					}
				}
				coordinates := func(dim int) float64 {
					if endless {
						return 1 << 56
					}
					return float64(50 * dim)
				}
				first, err1 := e.shapes.first.factor.Limits(p.First / p.Lattice.Step())
				second, err2 := e.shapes.first.factor.Limits(p.Diagonal / p.SecondStep())
				unit := math.Ldexp(1, p.FullExp)
				full, err3 := e.shapes.first.factor.Limits(p.Full / unit)
				if err := errors.Join(err1, err2, err3); err != nil {
					t.Fatal(err)
				}
				exact := JointSensitivity([]float64{norm}, []float64{norm}, p.Lambda, p.Clip, 4, adjacency)
				squares := math.Sqrt(p.Lambda) * norm * 4 * p.SecondStep()
				predictions := 2*first.Rounding*p.Lattice.Step()*math.Sqrt(coordinates(4)) +
					2*second.Rounding*p.SecondStep()*math.Sqrt(2*p.Lambda)*math.Sqrt(coordinates(10)) +
					2*full.Rounding*unit*p.First/p.Full*math.Sqrt(coordinates(1))
				if c.Factorization == "identity" != (predictions == 0) {
					t.Errorf("%s: predictions cost %g", describe(c), predictions)
				}
				// The charge for rounding assumes slightly more noise than is drawn.
				if least := (exact + squares + predictions) * (1 + 0x1p-40); !(p.Sensitivity >= least &&
					p.Sensitivity <= least+predictions*0.01+exact*0x1p-38) {
					t.Errorf("%s, %s: sensitivity %.17g, must be at least %.17g", describe(c), adjacency,
						p.Sensitivity, least)
				}
			}
		}
	}
}
