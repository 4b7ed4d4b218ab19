package moments

import (
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/matfact"
)

// The audits of internal/audit see only the rows and releases of an estimator. This file provides the public facts
// about an estimator that they need.

// subject is an estimator under audit.
type subject struct {
	*audit.Subject
	e      *Estimator
	cfg    Config
	plan   Plan
	kernel matfact.Workload
	c      audit.Matrix
	worst  func(dp.Adjacency) audit.Pair
}

// newSubject returns a subject for e, which must not have closed a step yet.
func newSubject(e *Estimator) (*subject, error) {
	p, w := e.Plan(), e.cfg.workload()
	c, err := audit.Stored(p.Factorization, w, e.cfg.Horizon)
	if err != nil {
		return nil, err
	}
	m := audit.Moments{
		Mechanism: e, Mu: p.Mu, Method: p.Method, Workload: w, C: c, Clip: p.Clip,
		First: p.First, Diagonal: p.Diagonal, OffDiagonal: p.OffDiagonal, Count: p.Count, Full: p.Full,
		Exp: p.Lattice.Exp, SecondExp: p.SecondExp, CountExp: p.CountExp, FullExp: p.FullExp,
	}
	if p.SecondFactorization != nil {
		m.Second = e.cfg.second().workload()
		if m.SecondC, err = audit.Stored(p.SecondFactorization, m.Second, e.cfg.Horizon); err != nil {
			return nil, err
		}
	}
	return &subject{m.Subject(), e, e.cfg, p, w.Kernel(), c, m.Worst}, nil
}

// mustSubject builds an estimator even if New refuses its weight as useless, because such an estimator must also be
// private.
func mustSubject(t testing.TB, c Config, p dp.Params) *subject {
	t.Helper()
	e, err := newEstimator(c, p)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newSubject(e)
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
