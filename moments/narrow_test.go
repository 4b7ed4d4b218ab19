package moments

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestNarrow checks when states are narrow. If a BLT correlates the noise of single rows, its state must have 64 bits,
// for only slightly more noise. For persons, and where rounding would cost too much, it must have 128 bits.
func TestNarrow(t *testing.T) {
	t.Parallel()
	persons := matfact.Participation{Count: 3, Separation: 4}
	for name, x := range map[string]struct {
		c    Config
		want [2]bool
	}{
		"one matrix": {Config{Horizon: 1000}, [2]bool{true, true}},
		"two matrices": {
			Config{Horizon: 1000, Second: &Second{Workload: "exponential", Decay: 0.99, Factorization: "blt"}},
			[2]bool{true, true}},
		"one of two": {Config{Horizon: 1000, Second: &Second{Factorization: "sqrt"}}, [2]bool{true, false}},
		"for ever":   {Config{Workload: "exponential", Decay: 0.999, Endless: true}, [2]bool{true, true}},
		"too long":   {Config{Tune: 1e9, Endless: true}, [2]bool{}},
		"normalised": {Config{Horizon: 100, Normalise: true}, [2]bool{}},
		"phased":     {Config{Factorization: "phased", Endless: true}, [2]bool{}},
		"persons":    {Config{Horizon: 1000, Person: persons}, [2]bool{}},
		"persons once": {Config{Horizon: 1000, Person: matfact.Participation{Count: 1, Separation: 1, PerStep: 2}},
			[2]bool{}},
		"persons without end": {Config{Workload: "exponential", Decay: 0.999, Endless: true, Person: persons},
			[2]bool{}},
	} {
		c, p := x.c, dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
		c.Clip, c.Columns, c.Step = 1.4, dptest.Columns(3), 4
		if c.Factorization == "" {
			c.Factorization = "blt"
		}
		if c.Workload == "" {
			c.Workload = "sum"
		}
		plan := mustNew(t, c, p).Plan()
		if got := [2]bool{calibration.IsNarrow(plan.Factorization),
			calibration.IsNarrow(plan.second())}; got != x.want {
			t.Errorf("%s: narrow states %v, want %v", name, got, x.want)
		}
		c.Defaults()
		wide, _, err := resolve(&c, p, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if calibration.IsNarrow(wide.Factorization) || !(plan.First <= wide.First*calibration.NarrowGrowth) {
			t.Errorf("%s: noise %g, with wide states %g", name, plan.First, wide.First)
		}
	}
}

// TestNarrowPersons makes a plan for persons that states a fraction. Adopt must refuse it, even if everything else in
// the plan is calibrated to that matrix.
func TestNarrowPersons(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
	for _, person := range []matfact.Participation{{Count: 3, Separation: 4}, {Count: 1, Separation: 1, PerStep: 2}} {
		c := Config{Workload: "sum", Factorization: "blt", Horizon: 1000, Clip: 1.4, Columns: dptest.Columns(3),
			Step: 4, Person: person}
		plan := mustNew(t, c, p).Plan()
		f, err := matfact.New(matfact.Config{Kind: "blt", Stored: plan.Factorization}, matfact.Workload{Kind: "sum"})
		if err != nil {
			t.Fatal(err)
		}
		plan.Factorization = matfact.Narrow(f, plan.First/plan.Lattice.Step()).Stored()
		if _, err := Adopt(c, p, plan); !errors.Is(err, calibration.ErrForeign) {
			t.Errorf("%+v: a plan with a fraction: %v", person, err)
		}
		c.Defaults()
		if _, _, err := resolve(&c, p, &plan, 0); err == nil {
			t.Errorf("%+v: noise of persons is calibrated to a narrow matrix", person)
		}
	}
}

// TestNarrowEpochs continues an epoch that began with wide states. It must keep wide states, and its bits must not
// change. Epochs with wide and with narrow states must refuse each other's states.
func TestNarrowEpochs(t *testing.T) {
	t.Parallel()
	c, p := Config{Workload: "sum", Factorization: "blt", Horizon: 100, Clip: 1.4, Columns: dptest.Columns(3), Step: 4},
		dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
	c.Defaults()
	old, _, err := resolve(&c, p, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	adopt := func() *Estimator {
		e, err := Adopt(c, p, *old)
		if err != nil {
			t.Fatal(err)
		}
		if calibration.IsNarrow(e.plan.Factorization) {
			t.Fatal("an epoch with wide states continued with narrow ones")
		}
		return e
	}
	fresh, e := mustNew(t, c, p), adopt()
	for step := range uint64(7) {
		for _, x := range []*Estimator{fresh, e} {
			x.Add(4*step, []float64{1, 0.5, -0.25})
			if _, err := x.Close(keyed(t, 1)(step + 1)); err != nil {
				t.Fatal(err)
			}
		}
		state := estimatortest.State(t, e)
		again := adopt()
		if err := again.UnmarshalBinary(state); err != nil {
			t.Fatalf("step %d: the state of a wide epoch: %v", step+1, err)
		}
		if !bytes.Equal(estimatortest.State(t, again), state) {
			t.Fatalf("step %d: the state of a wide epoch changed", step+1)
		}
		e = again
		if adopt().UnmarshalBinary(estimatortest.State(t, fresh)) == nil ||
			mustNew(t, c, p).UnmarshalBinary(state) == nil {
			t.Fatalf("step %d: the other kind of epoch accepted the state", step+1)
		}
	}
	// A plan without its fraction is a plan for wide states. Their rounding may cost the same to the last bits, and
	// then the plan is accepted and its epoch has wide states. A fraction cannot be added.
	plan := fresh.Plan()
	plan.Factorization.Fraction = 0
	if e, err := Adopt(c, p, plan); err == nil && e.UnmarshalBinary(estimatortest.State(t, fresh)) == nil {
		t.Error("a narrow epoch continued with wide states")
	}
	plan = *old
	plan.Factorization = fresh.Plan().Factorization
	if _, err := Adopt(c, p, plan); err == nil {
		t.Error("Adopt accepted the noise of a wide plan with a narrow matrix")
	}
}

// TestNarrowOtherProcessor checks that an epoch keeps its fraction, even if this processor's optimiser would lead to a
// fraction with one bit more or less.
func TestNarrowOtherProcessor(t *testing.T) {
	t.Parallel()
	c, p := Config{Workload: "sum", Factorization: "blt", Horizon: 100, Clip: 1.4, Columns: dptest.Columns(3), Step: 4},
		dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
	c.Defaults()
	fresh := mustNew(t, c, p).Plan()
	kept := fresh.Factorization.Clone()
	kept.Fraction--
	for i, w := range kept.Phases[0].Weight {
		kept.Phases[0].Weight[i] = w >> (64 - kept.Fraction) << (64 - kept.Fraction)
	}
	plan, _, err := resolve(&c, p, &Plan{Factorization: kept}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Adopt(c, p, *plan); err != nil {
		t.Error(err)
	}
}

// TestNarrowGolden pins plan, releases and state of an epoch with narrow states, on every architecture and for all
// later versions. The matrix is given, because an optimiser finds different last bits on other machines.
func TestNarrowGolden(t *testing.T) {
	t.Parallel()
	c, p := Config{Workload: "sum", Factorization: "blt", Horizon: 100, Clip: 1.25, Columns: dptest.Columns(3), Step: 4,
		ValidCount: new(true)}, dp.Params{Mu: 0.75, Adjacency: dp.ZeroOut}
	c.Defaults()
	given := &matfact.Stored{
		Kind: "blt", Fraction: 29,
		Decay: []matfact.Fixed{9100000000000000000, 17300000000000000000, 18410000000000000000},
		Phases: []matfact.Phase{
			{Start: 1, Scale: 1, Weight: []matfact.Fixed{150000000 << 35, 78000000 << 35, 12000001 << 35}}},
	}
	plan, s, err := resolve(&c, p, &Plan{Factorization: given}, 0)
	if err != nil {
		t.Fatal(err)
	}
	e, err := build(c, p, plan, s, false)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(e.Plan()); err != nil {
		t.Fatal(err)
	}
	for step := range uint64(20) {
		e.Add(4*step, []float64{float64(step) / 32, 0.5, -0.25})
		r, err := e.Close(keyed(t, 1)(step + 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.NewEncoder(h).Encode(r.Values); err != nil {
			t.Fatal(err)
		}
	}
	h.Write(estimatortest.State(t, e))
	const want = "5bf7e8e177cc7f2072888842ec07a18714ea6bc513849bdcb525d7e662a51eaf"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
}
