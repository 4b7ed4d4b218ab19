package moments

import (
	"math"
	"testing"

	"streamdp/dp"
	"streamdp/internal/audit"
	"streamdp/matfact"
)

// The audits of internal/audit take an estimator as a stranger would: rows in,
// releases out. This file tells them what is public about one.

// subject is an estimator under audit.
type subject struct {
	*audit.Subject
	e      *Estimator
	cfg    Config
	plan   Plan
	kernel matfact.Workload
	c      audit.Matrix
}

// newSubject returns a subject for e, which must not have closed a step.
func newSubject(e *Estimator) (*subject, error) {
	w := e.cfg.workload()
	c, err := audit.Stored(e.plan.Factorization, w, e.cfg.Horizon)
	if err != nil {
		return nil, err
	}
	first, second := deviations(&e.plan, e.cfg.Columns)
	value := "mean"
	if w.Kind == "sum" {
		value = "sum"
	}
	s := audit.Running{
		Mechanism: e, Mu: e.plan.Mu, Workload: w,
		Series: []audit.Series{
			{Array: "jme/first", Value: value, Exp: e.plan.Lattice.Exp, Deviations: first, C: c},
			{Array: "jme/second", Value: "second_moment", Exp: e.plan.SecondExp, Deviations: second, C: c},
		},
	}.Subject()
	return &subject{s, e, e.cfg, e.Plan(), w.Kernel(), c}, nil
}

func mustSubject(t testing.TB, c Config, p dp.Params) *subject {
	t.Helper()
	a, err := newSubject(mustNew(t, c, p))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// deviations returns the plan's standard deviations of one step's independent
// draws, in lattice units.
func deviations(p *Plan, columns int) (first, second []float64) {
	first = []float64{math.Ldexp(p.First, -p.Lattice.Exp)}
	for i := range columns {
		for j := i; j < columns; j++ {
			sd := p.OffDiagonal
			if i == j {
				sd = p.Diagonal
			}
			second = append(second, math.Ldexp(sd, -p.SecondExp))
		}
	}
	return first, second
}

// root returns the coefficients of the square root of the subject's kernel.
func (a *subject) root(t testing.TB, steps int) []float64 {
	t.Helper()
	c, err := audit.KernelRoot(a.kernel, steps)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
