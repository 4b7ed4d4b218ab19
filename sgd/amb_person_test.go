package sgd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// personConfigs are configurations of amb for persons with records in two steps, four apart.
func personConfigs() (all []Config) {
	for _, clip := range []string{"track", "bisect", "scan", "fixed"} {
		for _, bands := range []int{1, 6} {
			c := Config{Target: "y", Columns: []string{"u", "y"}, ClipX: 3, Radius: 10, Clip: clip, Bands: bands,
				Intercept: new(bool), Rungs: 12,
				Batch: 60, Horizon: 11, Endless: true,
				Person: matfact.Participation{Count: 2, Separation: 4, PerStep: 2}}
			switch clip {
			case "track":
				c.Bootstrap, c.ThresholdQuantile, c.Fraction = 20, 0.9, 0.2
			case "fixed":
				c.Zeta = 5
			default:
				c.Stat = 20
			}
			all = append(all, c)
		}
	}
	return all
}

// TestPersonsThroughMap is the sensitivity audit of the map that caps a person's records, together with the regression,
// for whole logs. The neighbour of a log gets noise with which its clip norms and iterates equal those of the log. No
// two neighbours may be farther apart than μ. A person who writes into every slot must cost as much as the gradients
// alone are charged. The audit must also find two faults: maps with too large caps, and noise for a single record.
func TestPersonsThroughMap(t *testing.T) {
	t.Parallel()
	const steps = 11
	for i, c := range personConfigs() {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			p := dp.Params{Mu: 6, Adjacency: adjacency}
			e := mustNew(t, c, p)
			s := auditSubject(t, e)
			a := estimatortest.Persons{
				Rule: persons.Rule{Cap: 2, Separation: 4, PerStep: 2, Users: 1000}, Replace: adjacency == dp.Replace,
				Worst: [][]float64{{3, 1e9}, {3, 1e-9}, nil}, Other: [][]float64{{3, -1e9}, {-3, 1e-9}, {1e-9, 1}},
				Random: func(source *rand.Rand) []float64 {
					return []float64{4 * source.Float64(), 8*source.Float64() - 4}
				},
			}
			if c.Clip != "fixed" {
				a.Quiet = 1 // the first step is a search
			}
			for step := range uint64(steps) {
				first, end := e.Range(step + 1)
				a.Slots = append(a.Slots, int(end-first))
			}
			a.Apart = func(x, y [][][]float64) (float64, error) {
				d, err := s.Coupling(x, y, audit.NewKeys([32]byte{9}))
				return d / s.Mu, err
			}
			name := fmt.Sprintf("%s, %d bands, %s", c.Clip, c.Bands, adjacency)
			if d := a.Neighbours(t, uint64(i), 6); d > 1+1e-9 {
				t.Errorf("%s: two neighbours are %.9g of μ apart", name, d)
			}
			least := 0.999
			if c.Clip == "track" { // the count pays the rest
				least *= math.Sqrt(1-c.Fraction) * e.plan.RecordMu / e.plan.Mu * e.plan.Person.Norm / e.factor.ColNorm()
			}
			if d := a.Everywhere(t, a.Rule, -1); d < least || d > 1+1e-9 {
				t.Errorf("%s: a person in every slot costs %.6g of μ", name, d)
			}
			for _, more := range []persons.Rule{{Cap: 3, Separation: 4, PerStep: 2, Users: 1000},
				{Cap: 2, Separation: 4, PerStep: 4, Users: 1000}} {
				if d := a.Everywhere(t, more, -1); d < 1.02 {
					t.Errorf("%s: the audit misses a map with the rule %+v: %.6g of μ", name, more, d)
				}
			}
			single := c
			single.Person = matfact.Participation{}
			s = auditSubject(t, mustNew(t, single, p))
			if d := a.Everywhere(t, a.Rule, -1); d < 1.4 {
				t.Errorf("%s: the audit misses the noise of a single record: %.6g of μ", name, d)
			}
		}
	}
}

// TestPersonPlan checks the stated costs, the plans that an epoch accepts, and those that it refuses.
func TestPersonPlan(t *testing.T) {
	for _, c := range personConfigs() {
		p := dp.Params{Mu: 6, Adjacency: dp.Replace}
		e := mustNew(t, c, p)
		plan := e.Plan()
		if plan.Person == nil || plan.Person.Cap != 2 || plan.Person.Separation != 4 || plan.Person.PerStep != 2 ||
			plan.Person.Norm < 2*math.Sqrt2 {
			t.Fatalf("%+v", plan.Person)
		}
		// A person has two records in each of two steps, and one record is one of these four. So a person costs at
		// least √8 times as much as a record.
		if one, all := e.RecordCost(), e.Cost(); one.Mu > all.Mu/math.Sqrt(8) || one.Mu < all.Mu/9 ||
			one.Mu < plan.RecordMu*(1-1e-9) || all.Mu < 6*(1-1e-9) {
			t.Errorf("%s: a record costs %+v, a person %+v", c.Clip, one, all)
		}
		if _, err := AdoptAMB(c, p, plan); err != nil {
			t.Error(err)
		}
		for _, change := range []func(*Config){
			func(c *Config) { c.Person.Count++ }, func(c *Config) { c.Person.PerStep-- },
			func(c *Config) { c.Person = matfact.Participation{} },
		} {
			other := c
			if change(&other); func() bool { _, err := AdoptAMB(other, p, plan); return err == nil }() {
				t.Errorf("%s: no error for the plan with %+v", c.Clip, other.Person)
			}
		}
		// Compare MostSlots with every run of successive steps.
		for steps := uint64(1); steps <= 12; steps++ {
			var most uint64
			for first := uint64(1); first+steps <= 41; first++ {
				begin, _ := e.Range(first)
				_, end := e.Range(first + steps - 1)
				most = max(most, end-begin)
			}
			if bound := e.MostSlots(steps, 40); bound < most || bound > most+2*max(plan.Search, plan.Batch) {
				t.Errorf("%s: %d steps have %d slots, at most %d", c.Clip, steps, most, bound)
			}
			if bound := e.MostSlots(steps, 0); bound < most || bound > steps*max(plan.Search, plan.Batch) {
				t.Errorf("%s: without end %d steps have %d slots, at most %d", c.Clip, steps, most, bound)
			}
		}
		if e.MostSlots(5, 1<<61) != 1<<62 {
			t.Error("the number of slots is not limited")
		}
	}
}
