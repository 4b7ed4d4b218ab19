package adam

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestPersonsThroughMap is the sensitivity audit of the map that caps a person's records, together with the optimiser,
// for whole logs. No two neighbours may be farther apart than μ. A person who writes into every slot must cost all of μ
// if the charge is exact. The audit must find maps with too large caps.
//
// Gradients of a model depend on parameters. So the neighbour of a log gets noise with which both have equal releases,
// to the last bit.
func TestPersonsThroughMap(t *testing.T) {
	t.Parallel()
	const slots, clip = 3, 1.7
	model := &Model{Loss: "linear", Target: "y"}
	for i, c := range []Config{
		{Method: "momentum", Factorization: "blt", Dim: 2},
		{Method: "pp_debiased", Dim: 2},
		{Method: "jme_per_example", Dim: 2},
		{Method: "jme_batch", Dim: 2, Nu: 0.5},
		{Method: "joint_clip", Tau: 0.7, Dim: 2},
		{Method: "momentum", Factorization: "blt", Mode: "model", Model: model, Columns: []string{"x", "y"}},
		{Method: "jme_per_example", Mode: "model", Model: model, Columns: []string{"x", "y"}},
	} {
		for _, rule := range []persons.Rule{{Cap: 2, Separation: 3, PerStep: 2, Users: 100},
			{Separation: 4, PerStep: 1, Users: 4 * slots}} {
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				a := estimatortest.Persons{Rule: rule,
					Slots:   []int{slots, slots, slots, slots, slots, slots, slots, slots, slots},
					Replace: adjacency == dp.Replace}
				c.Clip, c.Rate, c.Step, c.Horizon, c.Endless = clip, 0.1, slots, uint64(len(a.Slots)), true
				c.Person = matfact.Participation{Count: rule.Cap, Separation: rule.Separation, PerStep: rule.PerStep}
				if rule.Cap == 0 {
					c.Person = matfact.Participation{Count: c.Horizon, Separation: rule.Separation,
						PerStep: rule.PerStep}.Within(c.Horizon)
				}
				s := newSubject(t, mustNew(t, c, dp.Params{Mu: 4, Adjacency: adjacency}))
				measure := s.Sensitivity
				a.Worst, a.Other = [][]float64{{clip, 0}}, [][]float64{{-clip, 0}, {0, clip}}
				if c.Mode == "model" {
					measure = s.Coupling
					a.Worst, a.Other = [][]float64{{1, 90}, {-1, 40}}, [][]float64{{1, -90}, {-1, -50}}
				}
				a.Random = func(source *rand.Rand) []float64 { return inBall(source, 2, clip) }
				a.Apart = func(x, y [][][]float64) (float64, error) {
					d, err := measure(x, y, auditKeys(9))
					return d / s.Mu, err
				}
				name := fmt.Sprintf("%s, mode %q, %+v", describe(c, adjacency), c.Mode, rule)
				if d := a.Neighbours(t, uint64(i), 4); d > 1+1e-9 {
					t.Errorf("%s: two neighbours are %.9g of μ apart", name, d)
				}
				if c.joint() { // other pairs may be farther apart than these
					continue
				}
				if d := a.Everywhere(t, rule, -1); d < 0.999 || d > 1+1e-9 {
					t.Errorf("%s: a person in every slot costs %.6g of μ", name, d)
				}
				more := rule
				if more.PerStep++; a.Everywhere(t, more, -1) < 1.2 {
					t.Errorf("%s: the audit misses a map with more records in a step", name)
				}
				if more = rule; rule.Cap > 0 {
					more.Cap++
				} else {
					more.Separation -= 2
				}
				if d := a.Everywhere(t, more, -1); d < 1.02 {
					t.Errorf("%s: the audit misses a map with more steps: %.6g of μ", name, d)
				}
				// Plant a fault: noise for a single record, with α in place of P.
				c.Person = matfact.Participation{Count: 1, Separation: 1, PerStep: 1}
				s = newSubject(t, mustNew(t, c, dp.Params{Mu: 4, Adjacency: adjacency}))
				if measure = s.Sensitivity; c.Mode == "model" {
					measure = s.Coupling
				}
				if d := a.Everywhere(t, rule, -1); d < 1.4 {
					t.Errorf("%s: the audit misses the noise of a single record: %.6g of μ", name, d)
				}
			}
		}
	}
}
