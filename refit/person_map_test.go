package refit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestPersonsThroughMap is the sensitivity audit of the map that caps a person's records, together with the solver, for
// whole logs. The neighbour of a log gets noise with which every window releases the same bits. No two neighbours may
// be farther apart than μ. A person with equal records must cost all of μ if every release adds them up. The audit must
// find maps with too large caps.
func TestPersonsThroughMap(t *testing.T) {
	t.Parallel()
	const windows, slots, mu = 5, 24, 8
	rule := persons.Rule{Cap: 2, Separation: 2, PerStep: 2, Users: 1000}
	for i, solver := range gaussian {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			no := false
			c := Config{Solver: solver, Target: "y", ClipX: 1, ClipY: 1, Window: slots, Intercept: &no,
				Columns: []string{"x0", "x1", "y"},
				Person:  matfact.Participation{Count: rule.Cap, Separation: rule.Separation, PerStep: rule.PerStep}}
			measured := func(c Config) func(x, y [][][]float64) (float64, error) {
				r := mustRefit(t, c, dp.Params{Mu: mu, Adjacency: adjacency})
				s := describe(t, r)
				return func(x, y [][][]float64) (float64, error) {
					d, err := s.Coupling(x, y, auditKeys(byte(20+i)))
					return d / r.Cost().Mu, err
				}
			}
			a := estimatortest.Persons{
				Rule: rule, Replace: adjacency == dp.Replace, Apart: measured(c),
				Worst: [][]float64{{1, 0, 1}, {0, 1, -1}, nil}, Other: [][]float64{{1, 0, -1}, {0.6, 0.8, 1}},
				Random: func(source *rand.Rand) []float64 {
					return []float64{source.Float64() - 0.5, source.Float64() - 0.5, 2*source.Float64() - 1}
				},
			}
			for range windows {
				a.Slots = append(a.Slots, slots)
			}
			name := fmt.Sprintf("%s, %s", solver, adjacency)
			if d := a.Neighbours(t, uint64(i), 4); d > 1+1e-9 {
				t.Errorf("%s: two neighbours are %.9g of μ apart", name, d)
			}
			d := a.Everywhere(t, rule, -1)
			if d > 1+1e-9 || d < 0.5 || adjacency == dp.ZeroOut && solver != "dp-gd" && d < 0.98 {
				t.Errorf("%s: a person in every slot costs %.6g of μ", name, d)
			}
			for _, more := range []persons.Rule{{Cap: 4, Separation: 1, PerStep: 2, Users: 1000},
				{Cap: 2, Separation: 2, PerStep: 4, Users: 1000}} {
				if got := a.Everywhere(t, more, -1); got < 1.3*d {
					t.Errorf("%s: a map with the rule %+v costs %.6g of μ, want %.6g", name, more, got, d)
				}
			}
			if solver == "newton" && adjacency == dp.Replace {
				continue // with little noise the iterates fit this person, whose gradients then become small
			}
			c.Person = matfact.Participation{}
			a.Apart = measured(c)
			if d := a.Everywhere(t, rule, -1); d < 1.2 {
				t.Errorf("%s: the audit misses the noise of a single record: %.6g of μ", name, d)
			}
		}
	}
}

// TestPersonPlan checks the stated costs, the plans that an epoch accepts, and those that it refuses.
func TestPersonPlan(t *testing.T) {
	c := Config{Target: "y", ClipX: 1, ClipY: 1, Window: 400, Columns: []string{"x", "y"},
		Person: matfact.Participation{Count: 9, Separation: 3, PerStep: 2}}
	for _, solver := range gaussian {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			c.Solver = solver
			p := dp.Params{Epsilon: 4, Delta: 1e-6, Adjacency: adjacency}
			r := mustRefit(t, c, p)
			plan := r.Plan()
			if plan.Person == nil || plan.Person.Cap != 9 || plan.Person.PerStep != 2 ||
				math.Abs(plan.Person.Norm/6-1) > 1e-9 {
				t.Fatalf("%s: %+v", solver, plan.Person)
			}
			mu, err := p.Budget()
			if err != nil {
				t.Fatal(err)
			}
			// The noise must equal the noise for a single record under zero-out with a budget of μ/6 (zero-out) or μ/12
			// (replace).
			single := c
			single.Person = matfact.Participation{}
			alone := mustRefit(t, single,
				dp.Params{Mu: mu / 6 / adjacency.Factor(), Delta: 1e-6, Adjacency: dp.ZeroOut}).Plan()
			for i, x := range plan.numbers()[:10] {
				if want := *alone.numbers()[i]; math.Abs(*x-want) > 1e-9*math.Abs(want) {
					t.Errorf("%s, %s: number %d of the plan is %g, want %g", solver, adjacency, i, *x, want)
				}
			}
			if cost := r.Cost(); cost.Adjacency != adjacency || math.Abs(cost.Mu/mu-1) > 1e-9 ||
				cost.Mu > mu*(1+1e-12) {
				t.Errorf("%s: a person pays %+v, of %g", solver, cost, mu)
			}
			if one := r.RecordCost(); math.Abs(one.Mu*6/mu-1) > 1e-9 {
				t.Errorf("%s: a record pays %+v", solver, one)
			}
			if _, err := Adopt(c, p, plan); err != nil {
				t.Error(solver, err)
			}
			for _, change := range []func(*Config){
				func(c *Config) { c.Person.Count++ }, func(c *Config) { c.Person.Separation++ },
				func(c *Config) { c.Person = matfact.Participation{} },
			} {
				other := c
				change(&other)
				if _, err := Adopt(other, p, plan); err == nil {
					t.Errorf("%s: no error for the plan with %+v", solver, other.Person)
				}
			}
		}
	}
	for want, change := range map[string]func(*Config){
		"cap: must be at least 1 step":        func(c *Config) { c.Person.Count = 0 },
		"separation: must be at least 1 step": func(c *Config) { c.Person.Separation = 0 },
		`solver: must be "newton", "adassp", "dp-gd" or "dp-gd-residual" if persons are`: func(c *Config) {
			c.Solver = "ihm"
		},
		`accounting: must be "exact"`: func(c *Config) { c.Solver, c.Accounting = "adassp", Paper },
	} {
		c := c
		c.Solver = "newton"
		change(&c)
		if _, err := New(c, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
