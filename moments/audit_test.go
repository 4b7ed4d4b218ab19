package moments

import (
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
	p := e.Plan()
	s := audit.Joint{
		Mechanism: e, Mu: p.Mu, Workload: w, C: c, First: p.First, Diagonal: p.Diagonal, OffDiagonal: p.OffDiagonal,
		Exp: p.Lattice.Exp, SecondExp: p.SecondExp,
	}.Subject()
	return &subject{s, e, e.cfg, p, w.Kernel(), c}, nil
}

func mustSubject(t testing.TB, c Config, p dp.Params) *subject {
	t.Helper()
	a, err := newSubject(mustNew(t, c, p))
	if err != nil {
		t.Fatal(err)
	}
	return a
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
