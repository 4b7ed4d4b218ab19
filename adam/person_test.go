package adam

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// TestPersonSensitivity is audit A0 for whole persons, with gradients in three steps, four steps apart. No two
// neighbouring streams may be farther apart than μ. If the charge is exact, the worst must be at least 0.999μ apart.
func TestPersonSensitivity(t *testing.T) {
	t.Parallel()
	const steps, d = 9, 3
	for _, m := range []uint64{1, 3} {
		for _, base := range methods(m) {
			for _, kind := range []string{"identity", "blt"} {
				if kind == "blt" && base.joint() {
					continue
				}
				for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
					c := base
					c.Factorization, c.Dim, c.Horizon, c.Endless = kind, d, steps, true
					c.Person = matfact.Participation{Count: 3, Separation: 4, PerStep: 2}
					s := newSubject(t, mustNew(t, c, dp.Params{Mu: 2, Adjacency: adjacency}))
					clip := s.e.plan.Clip
					stream := make(audit.Stream, steps)
					for i := range stream {
						stream[i] = make([][]float64, m)
						if m == 3 {
							stream[i][2] = []float64{clip, 0, 0} // the worst for squares of sums
						}
					}
					x, y := []float64{clip, 0, 0}, []float64{-clip, 0, 0}
					put := func(x []float64, at ...int) audit.Stream {
						s := stream
						for _, step := range at {
							for i := range min(m, 2) {
								s = s.Replace(step, int(i), x)
							}
						}
						return s
					}
					pairs := [][2]audit.Stream{{put(x, 0, 4, 8), stream}, {put(y, 0, 4), stream},
						{put(x, 3, 7), stream}}
					if adjacency == dp.Replace {
						pairs = append(pairs, [2]audit.Stream{put(x, 0, 4, 8), put(y, 0, 4, 8)},
							[2]audit.Stream{put(x, 0, 4, 8), put(y, 1, 5)},
							[2]audit.Stream{put(x, 0, 4, 8), put(x, 2, 6)},
							[2]audit.Stream{put(x, 0, 4, 8), put([]float64{0, clip, 0}, 0, 4, 8)})
					}
					name, top := fmt.Sprintf("%s, %+v", describe(c, adjacency), c.Person), 0.0
					for _, p := range pairs {
						distance, err := s.Sensitivity(p[0], p[1], auditKeys(3))
						if err != nil {
							t.Fatal(name, err)
						}
						top = max(top, distance/s.Mu)
					}
					if top > 1+1e-9 {
						t.Errorf("%s: the worst pair is %.9g of μ apart", name, top)
					}
					if !c.joint() && top < 0.999 || top < 0.35 {
						t.Errorf("%s: the worst pair is only %.6g of μ apart", name, top)
					}
				}
			}
		}
	}
}

// TestPersonPlan checks the stated costs, the plans that an epoch accepts, and those that it refuses.
func TestPersonPlan(t *testing.T) {
	c := Config{Method: "momentum", Clip: 1, Rate: 0.1, Dim: 4, Step: 8, Horizon: 100, Factorization: "blt",
		Person: matfact.Participation{Count: 10, Separation: 10, PerStep: 9}}
	p := dp.Params{Mu: 1, Adjacency: dp.Replace}
	plan := mustNew(t, c, p).Plan()
	if plan.Person == nil || *plan.Person != (PersonPlan{Cap: 10, Separation: 10, PerStep: 8, Norm: plan.Person.Norm}) {
		t.Fatalf("%+v", plan.Person)
	}
	if s := 2 * plan.Clip * plan.Person.Norm / 8; plan.Sensitivity < s || plan.Sensitivity > s*(1+1e-3) {
		t.Errorf("sensitivity %g, want 2ζP/m = %g", plan.Sensitivity, s)
	}
	if _, err := Adopt(c, p, plan); err != nil {
		t.Error(err)
	}
	other := c
	other.Person.Count = 9
	if _, err := Adopt(other, p, plan); !errors.Is(err, calibration.ErrForeign) {
		t.Errorf("another cap: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"cap: must be at least 1 step":           func(c *Config) { c.Person.Count = 0 },
		"separation: must be at least 1 step":    func(c *Config) { c.Person.Separation = 0 },
		"separation: must be the smallest":       func(c *Config) { c.Person.Fixed = true },
		"use a different matrix for each moment": func(c *Config) { c.Method = "jme_per_example" },
	} {
		c := c
		change(&c)
		if _, err := New(c, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
