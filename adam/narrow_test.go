package adam

import (
	"errors"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestNarrow checks that all states have 64 bits, at the price of slightly more noise, if BLTs correlate the noise for
// single records. An epoch that began with wide states must continue with wide ones.
func TestNarrow(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
	for _, base := range methods(4) {
		c := base
		c.Factorization, c.Dim = "blt", 5
		e := mustNew(t, c, p)
		if !calibration.IsNarrow(e.plan.First) || c.joint() != calibration.IsNarrow(e.plan.Second) {
			t.Errorf("%s: the states are wide", c.Method)
		}
		wide, _, err := resolve(&e.cfg, p, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if calibration.IsNarrow(wide.First) || calibration.IsNarrow(wide.Second) ||
			!(e.plan.FirstNoise <= wide.FirstNoise*calibration.NarrowGrowth) {
			t.Errorf("%s: noise %g, with wide states %g", c.Method, e.plan.FirstNoise, wide.FirstNoise)
		}
		old, err := Adopt(c, p, *wide)
		if err != nil {
			t.Fatalf("%s: cannot continue an epoch with wide states: %v", c.Method, err)
		}
		if calibration.IsNarrow(old.plan.First) {
			t.Errorf("%s: an epoch with wide states goes on with narrow ones", c.Method)
		}
		for _, x := range []*Estimator{e, old} {
			x.Add(0, make([]float64, 5))
			if _, err := x.Close(keyed(t, 1)(1)); err != nil {
				t.Fatal(err)
			}
		}
		if e.UnmarshalBinary(estimatortest.State(t, old)) == nil ||
			old.UnmarshalBinary(estimatortest.State(t, e)) == nil {
			t.Errorf("%s: no error for a state of the other kind of epoch", c.Method)
		}
	}
}

// TestNarrowPersons checks that states are never narrow if persons are protected. Then a plan with a fraction (narrow
// states) must be refused, even if its other numbers are correct.
func TestNarrowPersons(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
	for _, person := range []matfact.Participation{{Count: 10, Separation: 10}, {Count: 1, Separation: 1, PerStep: 2}} {
		c := Config{Method: "momentum", Clip: 1, Rate: 0.1, Dim: 4, Step: 8, Factorization: "blt", Person: person}
		plan := mustNew(t, c, p).Plan()
		if calibration.IsNarrow(plan.First) {
			t.Errorf("%+v: the noise of persons has narrow states", person)
		}
		f, err := matfact.New(matfact.Config{Kind: "blt", Stored: plan.First}, exponential(0.9))
		if err != nil {
			t.Fatal(err)
		}
		first, _ := plan.units(c.Step)
		plan.First = matfact.Narrow(f, plan.FirstNoise/first).Stored()
		if _, err := Adopt(c, p, plan); !errors.Is(err, calibration.ErrForeign) {
			t.Errorf("%+v: a plan with a fraction: %v", person, err)
		}
		c.Defaults()
		if _, _, err := resolve(&c, p, &plan, 0); err == nil {
			t.Errorf("%+v: noise of persons is calibrated to a narrow matrix", person)
		}
	}
}
