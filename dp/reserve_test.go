package dp

import (
	"slices"
	"testing"
)

// TestReserve checks that the reserve covers the largest number of copies within the limit, and that a Gaussian needs
// no reserve.
func TestReserve(t *testing.T) {
	t.Parallel()
	const eps, delta = 3, 1e-7
	rows := Cost{Adjacency: Replace, Mu: 0.1, Rows: 216, Gamma: 300, BadDelta: 1e-10}
	for name, c := range map[string]Cost{
		"rows": rows,
		"terms": {Adjacency: ZeroOut, Mu: 0.1,
			Terms:    []Term{{Kind: KindFastMixRow, Count: 200, Gamma: 500}, {Kind: KindLaplace, Count: 2, Scale: 30}},
			BadDelta: 1e-9},
	} {
		r, err := Reserve(c, eps, delta)
		if err != nil {
			t.Fatal(err)
		}
		all := []Cost{c}
		for {
			more := Compose(append(all, c)...)
			if ok, err := more.Within(eps, delta); err != nil {
				t.Fatal(err)
			} else if !ok {
				break
			}
			all = append(all, c)
		}
		m := len(all)
		want := Compose(all...)
		want.Mu = 0
		if !r.Covers(want) || r.BadDelta > want.BadDelta*(1+0x1p-39) || r.Rows != want.Rows ||
			!slices.Equal(r.Terms, want.Terms) {
			t.Errorf("%s: the reserve is %+v, want %d times %+v", name, r, m, c)
		}
		if m < 3 {
			t.Errorf("%s: only %d copies fit", name, m)
		}
		// A stream whose cost is the whole limit must be admitted, alone.
		whole, err := c.Epsilon(delta)
		if err != nil {
			t.Fatal(err)
		}
		whole *= 1 + 1e-9
		r, err = Reserve(c, whole, delta)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := c.WithinReserve(r, whole, delta); err != nil || !ok {
			t.Errorf("%s: a cost of the whole limit is not within it: %v", name, err)
		}
		if _, err := Reserve(c, whole*0.99, delta); err == nil {
			t.Errorf("%s: Reserve accepted a limit below the cost", name)
		}
	}
	if r, err := Reserve(Cost{Adjacency: ZeroOut, Mu: 100}, eps, delta); err != nil || !r.Empty() ||
		r.Adjacency != ZeroOut {
		t.Errorf("a Gaussian has the reserve %+v, %v", r, err)
	}
	if _, err := Reserve(rows, -1, delta); err == nil {
		t.Error("ReservedMu accepted a negative limit")
	}
}

// TestWithinReserve checks that admitted costs are bounded in every field separately. A cost that is within (ε, δ) only
// by trading one field for another must be refused.
func TestWithinReserve(t *testing.T) {
	t.Parallel()
	const eps, delta = 3, 1e-7
	c := Cost{Adjacency: ZeroOut, Mu: 0.2, Rows: 300, Gamma: 200, BadDelta: 1e-9}
	reserved, err := Reserve(c, eps, delta)
	if err != nil {
		t.Fatal(err)
	}
	most, err := ReservedMu(reserved, eps, delta)
	if err != nil || !(most > 0.2) {
		t.Fatalf("the mu left for Gaussians is %g, %v", most, err)
	}
	alone, err := Mu(eps, delta)
	if err != nil || !(most < alone) {
		t.Fatalf("the mu left for Gaussians is %g of %g", most, alone)
	}
	with := func(change func(*Cost)) Cost {
		x := reserved
		x.Mu = most
		change(&x)
		return x
	}
	for _, step := range []struct {
		name string
		cost Cost
		want bool
	}{
		{"all of it", with(func(*Cost) {}), true},
		{"more Gaussians", with(func(x *Cost) { x.Mu *= 1.0001 }), false},
		{"Gaussians for rows", with(func(x *Cost) { x.Mu, x.Rows, x.Gamma, x.BadDelta = 1.01*most, 0, 0, 0 }), false},
		{"no rows", with(func(x *Cost) { x.Rows, x.Gamma, x.BadDelta = 0, 0, 0 }), true},
		{"rows for Gaussians", with(func(x *Cost) { x.Mu = 0; x.Rows++ }), false},
		{"fewer rows, less gamma", with(func(x *Cost) { x.Mu = 0; x.Rows /= 10; x.Gamma *= 0.999 }), false},
		{"more gamma", with(func(x *Cost) { x.Gamma *= 2 }), true},
		{"more bad events", with(func(x *Cost) { x.Mu = 0; x.BadDelta *= 1.01 }), false},
		{"a term",
			with(func(x *Cost) { x.Mu = 0; x.Terms = []Term{{Kind: KindPure, Count: 1, Epsilon: 1e-6}} }), false},
	} {
		got, err := step.cost.WithinReserve(reserved, eps, delta)
		if err != nil || got != step.want {
			t.Errorf("%s: within is %t, %v, want %t", step.name, got, err, step.want)
		}
	}
	// The costs that trade fields are within (ε, δ) on their own: only the reserve refuses them.
	for _, x := range []Cost{with(func(x *Cost) { x.Mu, x.Rows, x.Gamma, x.BadDelta = 1.01*most, 0, 0, 0 }),
		with(func(x *Cost) { x.Mu = 0; x.Rows++ })} {
		if ok, err := x.Within(eps, delta); err != nil || !ok {
			t.Errorf("%+v is not within (%g, %g), %v", x, float64(eps), delta, err)
		}
	}
	// With an empty reserve only Gaussians are admitted.
	none := Cost{Adjacency: ZeroOut}
	for mu, want := range map[float64]bool{alone: true, alone * (1 + 1e-9): false} {
		if ok, err := (Cost{Adjacency: ZeroOut, Mu: mu}).WithinReserve(none, eps, delta); err != nil || ok != want {
			t.Errorf("mu %g is within: %t, %v, want %t", mu, ok, err, want)
		}
	}
	if ok, err := c.WithinReserve(none, eps, delta); err != nil || ok {
		t.Errorf("rows with nothing set aside: %t, %v", ok, err)
	}
	if mu, err := ReservedMu(none, eps, delta); err != nil || mu != alone {
		t.Errorf("%g is left of %g, %v", mu, alone, err)
	}
	if _, err := c.WithinReserve(Cost{Adjacency: Replace}, eps, delta); err == nil {
		t.Error("two adjacencies")
	}
}
