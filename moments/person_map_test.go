package moments

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
)

// slotOf is a record of a log: its person, 0 for none, and its row, nil for an invalid one.
type slotOf struct {
	user int
	row  []float64
}

// counted passes a log through the map of persons, as the daemon does, and returns the rows that reach the estimator.
// Before the step with number `restart` (from 0) the map is replaced by an empty one, as if it had been lost. If
// restart is −1, the map is kept.
func counted(t *testing.T, r persons.Rule, log []slotOf, restart int) audit.Stream {
	t.Helper()
	var m *persons.Map
	s := make(audit.Stream, personSteps)
	for step := range s {
		if step == 0 || step == restart {
			var err error
			if m, err = persons.NewMap(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Open(uint64(step) + 1); err != nil {
			t.Fatal(err)
		}
		for _, x := range log[step*personSlots:][:personSlots] {
			row := x.row
			if m.Take(persons.Tag{0: byte(x.user)}) != persons.Counts {
				row = nil
			}
			s[step] = append(s[step], row)
		}
		if err := m.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestPersonsThroughMap is the sensitivity audit of the map of persons and the estimator together, for whole logs: a
// person's records are replaced by null records or, under replace, by those of a new person at other slots. No two such
// logs may be farther apart than μ. A person who writes into every slot must reach μ, and the audit must find maps that
// admit too many records.
func TestPersonsThroughMap(t *testing.T) {
	t.Parallel()
	for _, factorization := range []string{"auto", "identity"} {
		for _, rule := range []persons.Rule{
			{Cap: 3, Separation: 4, PerStep: 1, Users: 100},
			{Cap: 2, Separation: 3, PerStep: 2, Users: 100},
			{Separation: 4, PerStep: 1, Users: 4 * personSlots},
		} {
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				p := matfact.Participation{Count: rule.Cap, Separation: rule.Separation, PerStep: rule.PerStep}
				if p.Count == 0 {
					p = matfact.Participation{Count: personSteps, Separation: p.Separation,
						PerStep: p.PerStep}.Within(personSteps)
				}
				c := Config{Workload: "sum", Method: "jme", Nu: 0.5, ValidCount: new(true), Clip: personClip,
					Columns: dptest.Columns(2), Step: personSlots,
					Factorization: factorization, Tune: 12, Endless: true, Person: p}
				a := mustSubject(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
				apart := func(r persons.Rule, x, y []slotOf, restart int) float64 {
					distance, err := a.Sensitivity(counted(t, r, x, restart), counted(t, r, y, restart), keys(13))
					if err != nil {
						t.Fatal(err)
					}
					return distance / a.plan.Mu
				}
				name := fmt.Sprintf("%s, %+v, %s", factorization, rule, adjacency)
				source := rand.New(rand.NewPCG(45, 46))
				for range 8 {
					x := make([]slotOf, personSteps*personSlots)
					y := make([]slotOf, len(x))
					for i := range x {
						x[i] = slotOf{source.IntN(4), inBall(source, 2, personClip)}
						if source.IntN(8) == 0 {
							x[i].row = nil
						}
						switch y[i] = x[i]; {
						case x[i].user == 1:
							x[i].row = []float64{personClip, 0}
							y[i] = slotOf{}
							fallthrough
						case x[i].user == 0:
							if adjacency == dp.Replace && source.IntN(2) == 0 {
								y[i] = slotOf{9, []float64{-personClip, 0}}
							} else if x[i].user == 0 {
								y[i] = x[i]
							}
						}
					}
					if d := apart(rule, x, y, -1); d > 1+1e-9 {
						t.Errorf("%s: two neighbours are %.9g of μ apart", name, d)
					}
				}
				if adjacency == dp.Replace {
					continue
				}
				everywhere, nobody := make([]slotOf, personSteps*personSlots), make([]slotOf, personSteps*personSlots)
				for i := range everywhere {
					everywhere[i] = slotOf{1, []float64{personClip, 0}}
				}
				if d := apart(rule, everywhere, nobody, -1); d < 0.999 || d > 1+1e-9 {
					t.Errorf("%s: a person in every slot costs %.6g of μ", name, d)
				}
				generous := map[string]persons.Rule{
					"records of a step": {Cap: rule.Cap, Separation: rule.Separation, PerStep: rule.PerStep + 1,
						Users: rule.Users},
				}
				if rule.Cap == 0 {
					generous["separation"] = persons.Rule{Separation: rule.Separation - 2, PerStep: 1,
						Users: rule.Users}
				} else if rule.Cap < 3 {
					generous["cap"] = persons.Rule{Cap: rule.Cap + 1, Separation: rule.Separation,
						PerStep: rule.PerStep, Users: rule.Users}
				}
				for what, r := range generous {
					if d := apart(r, everywhere, nobody, -1); d < 1.005 {
						t.Errorf("%s: the audit misses a map with more %s: %.6g of μ", name, what, d)
					}
				}
				// With independent noise, adjacent steps cost no more than others, so only the largest number of steps
				// has an effect.
				if d := apart(rule, everywhere, nobody, 1); d < 1.005 && factorization == "auto" {
					t.Errorf("%s: the audit misses a map that was lost: %.6g of μ", name, d)
				}
			}
		}
	}
}

// TestPersonPeriodsThroughMap is the same audit if the unit of protection is a person's records of one period. Voiding
// or replacing one period must cost at most μ, and exactly μ for a person who writes into every slot of the period. Two
// periods of one person may cost more, but at most 2μ. The audit must find maps that are not emptied at a new period,
// or are emptied at a wrong step.
func TestPersonPeriodsThroughMap(t *testing.T) {
	t.Parallel()
	const period = 4
	rule := persons.Rule{Cap: 2, Separation: 2, PerStep: 1, Period: period, Users: 100}
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		c := Config{Workload: "sum", Method: "jme", Nu: 0.5, ValidCount: new(true), Clip: personClip,
			Columns: dptest.Columns(2), Step: personSlots,
			Factorization: "auto", Tune: 12, Endless: true,
			Person: matfact.Participation{Count: 2, Separation: 2, PerStep: 1}.Within(period)}
		a := mustSubject(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
		apart := func(r persons.Rule, x, y []slotOf) float64 {
			distance, err := a.Sensitivity(counted(t, r, x, -1), counted(t, r, y, -1), keys(13))
			if err != nil {
				t.Fatal(err)
			}
			return distance / a.plan.Mu
		}
		source := rand.New(rand.NewPCG(45, 47))
		random := func() []slotOf {
			x := make([]slotOf, personSteps*personSlots)
			for i := range x {
				x[i] = slotOf{source.IntN(4), inBall(source, 2, personClip)}
			}
			return x
		}
		for range 8 {
			x := random()
			y := append([]slotOf{}, x...)
			p := source.IntN(personSteps / period)
			for i := p * period * personSlots; i < (p+1)*period*personSlots; i++ {
				if x[i].user == 1 {
					x[i].row, y[i] = []float64{personClip, 0}, slotOf{}
				}
				if x[i].user < 2 && adjacency == dp.Replace && source.IntN(2) == 0 {
					y[i] = slotOf{9, []float64{-personClip, 0}}
				}
			}
			if d := apart(rule, x, y); d > 1+1e-9 {
				t.Errorf("%s: two neighbours are %.9g of μ apart", adjacency, d)
			}
		}
		if adjacency == dp.Replace {
			continue
		}
		// A person writes into every slot. Then one of the first two periods is voided, or both are.
		everywhere := make([]slotOf, personSteps*personSlots)
		for i := range everywhere {
			everywhere[i] = slotOf{1, []float64{personClip, 0}}
		}
		without := func(first, end int) []slotOf {
			y := append([]slotOf{}, everywhere...)
			clear(y[first*period*personSlots : end*period*personSlots])
			return y
		}
		for p := range 2 {
			if d := apart(rule, everywhere, without(p, p+1)); d < 0.99 || d > 1+1e-9 {
				t.Errorf("a person in every slot of period %d costs %.6g of μ", p, d)
			}
		}
		if d := apart(rule, everywhere, without(0, 2)); d < 1.3 || d > 2 {
			t.Errorf("two periods of one person cost %.6g of μ", d)
		}
		for what, wrong := range map[string]uint64{"is not emptied": 0, "is emptied a step early": period - 1,
			"is emptied every second period": 2 * period} {
			r := rule
			r.Period = wrong
			most := 0.0
			for p := range 2 {
				most = max(most, apart(r, everywhere, without(p, p+1)))
			}
			if most < 1.005 {
				t.Errorf("the audit misses a map that %s: %.6g of μ", what, most)
			}
		}
	}
}
