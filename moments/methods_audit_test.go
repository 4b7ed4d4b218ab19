package moments

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
)

// methodPairs returns neighbouring records for an estimator, the worst ones first.
func methodPairs(a *subject, adjacency dp.Adjacency) []audit.Pair {
	return append([]audit.Pair{a.worst(adjacency)}, audit.NullPairs(a.plan.Clip, len(a.cfg.Columns), adjacency)...)
}

// TestMethodsSensitivity is the sensitivity audit of every method. It uses releases if they determine the noisy rows,
// and coupling in all cases. Coupling moves the noise by the difference of two neighbours. Then their releases must be
// the same to the last bit, including squares, weights and projections, and the difference must be at most μ. For the
// worst pair it must be exactly the distance that the method claims to attain. STREAMDP_SLOW=1 tests all pairs for each
// configuration, otherwise a fifth.
func TestMethodsSensitivity(t *testing.T) {
	t.Parallel()
	const steps = 5
	slow := os.Getenv("STREAMDP_SLOW") != ""
	for i, c := range variants(steps) {
		t.Run(c.Method+"/"+c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				for _, d := range []int{1, 2, 3} {
					c := c
					c.Clip, c.Columns = 1.7, dptest.Columns(d)
					a := mustSubject(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
					base, fixed, top := within(auditStream(steps, d), c.Step), keys(byte(i)), 0.0
					for k, p := range methodPairs(a, adjacency) {
						// The longest column of a square root is the first.
						places := []int{0, steps / 2, steps - 1}
						if k > 0 {
							if places = places[:1]; !slow && (k+i)%5 > 0 {
								continue
							}
						}
						for _, at := range places {
							n := slices.Clone(base)
							n[at] = [][]float64{nil, nil, make([]float64, d)}[:min(c.Step, 3)]
							x, y := n.Replace(at, 0, p.X), n.Replace(at, 0, p.Y)
							distance, err := a.Coupling(x, y, fixed)
							if err != nil {
								t.Fatalf("%s, %s: %g and %g in step %d: %v", describe(c), adjacency, p.X,
									p.Y, at+1, err)
							}
							if !(distance <= a.plan.Mu*(1+1e-9)) {
								t.Errorf("%s, %s: %g and %g in step %d are %.9g of μ apart", describe(c), adjacency,
									p.X, p.Y, at+1, distance/a.plan.Mu)
							}
							top = max(top, distance)
							if a.Recover == nil {
								continue
							}
							released, err := a.Sensitivity(x, y, fixed)
							if err != nil || math.Abs(released-distance) > 1e-9*a.plan.Mu {
								t.Errorf("%s, %s: %g and %g are %.9g of μ apart by coupling, %.9g by releases: %v",
									describe(c), adjacency, p.X, p.Y, distance/a.plan.Mu, released/a.plan.Mu, err)
							}
						}
					}
					// Two different matrices attain their norms in different columns.
					if attained := a.e.Attained(); c.Second == nil && math.Abs(top/a.plan.Mu-attained) > 1e-3*attained {
						t.Errorf("%s, %s: the worst pair is %.6g of μ apart, must be %.6g", describe(c), adjacency,
							top/a.plan.Mu, attained)
					}
				}
			}
		})
	}
}

// TestMethods runs the audits A0, A1 and A2 over every method, with d = 1 under one adjacency and d = 3 under the
// other. With STREAMDP_SLOW=1 it makes more runs, and uses d = 1, 2, 3 under both adjacencies. The probability of a
// false alarm is 10⁻⁹ an audit.
func TestMethods(t *testing.T) {
	t.Parallel()
	slow := os.Getenv("STREAMDP_SLOW") != ""
	for i, c := range []Config{
		{Method: "jme", Workload: "mean", Factorization: "phased", Step: 3},
		{Method: "jme", Workload: "sum", Factorization: "sqrt", Step: 3, Horizon: 600, ValidCount: new(true)},
		{Method: "jme", Workload: "exponential", Decay: 0.9, Factorization: "blt", Step: 3,
			Second: &Second{Workload: "window", Window: 4, Factorization: "identity"}},
		{Method: "ime", Workload: "window", Window: 5, Factorization: "blt", Step: 2, Split: 0.4,
			ValidCount: new(true)},
		{Method: "cs", Workload: "mean", Factorization: "phased", Step: 3, Tau: 0.2},
		{Method: "pp", Workload: "mean", Factorization: "identity", Step: 1, ValidCount: new(true)},
		{Method: "pp_debiased", Workload: "sum", Factorization: "sqrt", Step: 1, Horizon: 600},
		{Method: "combined", Workload: "exponential", Decay: 0.95, Factorization: "identity", Step: 1},
		{Method: "combined", Workload: "mean", Factorization: "identity", Step: 1, ValidCount: new(true)},
	} {
		t.Run(c.Method+"/"+c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				dims := []int{1, 2, 3}
				if !slow {
					dims = []int{1 + 2*((i+int(adjacency))%2)}
				}
				for _, d := range dims {
					c := c
					c.Clip, c.Columns = 1.3, dptest.Columns(d)
					configured := mustSubject(t, c, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: adjacency})
					loud := mustSubject(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
					s := audit.Suite{
						Configured: configured.Subject, Loud: loud.Subject, Clip: configured.plan.Clip,
						Adjacency: adjacency,
						Worst:     methodPairs(configured, adjacency)[:1],
						Others:    audit.NullPairs(configured.plan.Clip, d, adjacency),
						Attained:  configured.e.Attained(),
						Horizon:   c.Horizon, Keys: keys(byte(16*i + d)), Quick: !slow,
					}
					found, err := s.Run()
					if err != nil {
						t.Fatal(err)
					}
					kinds := map[string]bool{}
					for _, f := range found {
						// Two different matrices attain their norms in different columns.
						if kinds[f.Audit] = true; !f.Passed &&
							!(c.Second != nil && f.Low > 0.9 && f.Statistic < f.Low) {
							t.Errorf("%s, %s: %s: %s: %s", describe(c), adjacency, f.Audit, f.What, f.Fault)
						}
						if f.Level > 2*stattest.Alpha {
							t.Errorf("%s: %s has level %g", describe(c), f.What, f.Level)
						}
					}
					if len(kinds) != 3 {
						t.Errorf("%s: audits %v", describe(c), kinds)
					}
				}
			}
		})
	}
}

// TestMutantMethods plants faults into the methods that post-process or divide a budget. An audit must find each fault
// and measure its size.
func TestMutantMethods(t *testing.T) {
	t.Parallel()
	const steps = 4
	for _, m := range []struct {
		name  string
		c     Config
		p     dp.Params
		plant func(e *Estimator)
		// the distance measured by the sensitivity audit, in units of μ; 0: releases are not a function of noisy
		// integers
		distance float64
	}{
		{"none", Config{Method: "pp_debiased"}, dp.Params{Mu: 4, Adjacency: dp.Replace}, func(*Estimator) {}, 1},
		{"first moment's noise for zeroed records under replacement", Config{Method: "pp"},
			dp.Params{Mu: 4, Adjacency: dp.Replace},
			func(e *Estimator) { e.first.sd[0] /= 2 }, 2},
		{"squares of exact rows", Config{Method: "pp"}, dp.Params{Mu: 4, Adjacency: dp.ZeroOut},
			func(e *Estimator) { e.first.shaper = exactSquares{e.first.shaper, e} }, 0},
		// Each of two mechanisms spends μ², so the distance is √2.
		{"all of the budget for each moment", Config{Method: "ime", Split: 0.5},
			dp.Params{Mu: 4, Adjacency: dp.ZeroOut}, func(e *Estimator) {
				for _, s := range []*series{e.first, e.second} {
					for i := range s.sd {
						s.sd[i] /= math.Sqrt2
					}
				}
			}, math.Sqrt2},
		// 1 + ν is charged, but the distance is 1 + ν + κ.
		{"a free number of valid records under zero-out", Config{Method: "jme", Nu: 1, ValidCount: new(true)},
			dp.Params{Mu: 4, Adjacency: dp.ZeroOut}, func(e *Estimator) {
				factor := math.Sqrt((2 + countWeight) / 2)
				for _, s := range e.arrays {
					for i := range s.sd {
						s.sd[i] /= factor
					}
				}
			}, math.Sqrt((2 + countWeight) / 2)},
		{"joint estimation's deviation of a single moment in a combination", Config{Method: "combined", Nu: 1},
			dp.Params{Mu: 4, Adjacency: dp.ZeroOut}, func(e *Estimator) {
				for _, s := range e.arrays {
					for i := range s.sd {
						s.sd[i] /= math.Sqrt2
					}
				}
			}, math.Sqrt2},
	} {
		t.Run(m.name, func(t *testing.T) {
			c := m.c
			c.Clip, c.Columns, c.Step, c.Workload, c.Factorization = 2, dptest.Columns(2), 1, "mean", "identity"
			e := mustNew(t, c, m.p)
			a, err := newSubject(e)
			if err != nil {
				t.Fatal(err)
			}
			m.plant(e)
			// The audit gets the noise that the mechanism really draws.
			described := a.Array
			a.Array = func(name string, step uint64) (audit.Array, bool) {
				x, ok := described(name, step)
				for _, s := range e.arrays {
					if s.name == name {
						x.Deviations = s.sd
					}
				}
				return x, ok
			}
			p := methodPairs(a, m.p.Adjacency)[0]
			base := within(auditStream(steps, 2), 1)
			base[0] = [][]float64{nil}
			distance, err := a.Coupling(base.Replace(0, 0, p.X), base.Replace(0, 0, p.Y), keys(3))
			if (err == nil) != (m.distance > 0) || err == nil && math.Abs(distance/a.plan.Mu-m.distance) > 1e-3 {
				t.Errorf("the audit measures %.6g of μ, %v; the fault is worth %.6g", distance/a.plan.Mu,
					err, m.distance)
			}
		})
	}
}

// exactSquares is the fault of squaring rows before noise is added.
type exactSquares struct {
	matfact.Shaper
	e *Estimator
}

func (s exactSquares) Push(w []int64) {
	s.Shaper.Push(w)
	s.e.products.add(s.e.first.integers) // without noise
}
