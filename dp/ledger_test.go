package dp

import (
	"math/rand/v2"
	"testing"
)

func TestCharged(t *testing.T) {
	const delta = 1e-6
	z := func(first, end int64, mu float64) Charge {
		return Charge{First: first, End: end, Cost: Cost{Adjacency: ZeroOut, Mu: mu}}
	}
	log := func(n uint64, c Charge) Charge { c.Log = n; return c }
	for _, c := range []struct {
		charges []Charge
		want    float64
	}{
		{nil, 0},
		{[]Charge{z(0, 10, 3)}, 3},
		{[]Charge{z(0, 10, 3), z(10, 20, 4)}, 4},              // disjoint ranges: parallel
		{[]Charge{z(0, 11, 3), z(10, 20, 4)}, 5},              // one position is in both ranges
		{[]Charge{z(0, -1, 3), z(1000, -1, 4)}, 5},            // without end
		{[]Charge{z(0, 10, 3), z(0, 10, 4), z(5, 6, 12)}, 13}, // two streams and a refit
		{[]Charge{z(5, 5, 9), z(0, 10, 3)}, 3},                // an empty range charges nothing
		{[]Charge{z(5, 5, 9)}, 0},
		{[]Charge{z(0, 10, 3), log(1, z(10, 20, 4))}, 5}, // two logs may contain the same people
		{[]Charge{z(0, 10, 3), z(10, 20, 2), log(1, z(0, 1, 4)), log(1, z(1, 2, 1))}, 5},
	} {
		cost, err := Charged(c.charges, ZeroOut, delta)
		if got := cost.Mu; err != nil || cost.Adjacency != ZeroOut || got < c.want || got > c.want*(1+1e-14) {
			t.Errorf("%v: %v, want %v, %v", c.charges, got, c.want, err)
		}
	}
	// Zero-out charges count twice when they are stated for replacement.
	mixed := []Charge{z(0, 1, 3), {End: 1, Cost: Cost{Adjacency: Replace, Mu: 8}}}
	if got, err := Charged(mixed, Replace, delta); err != nil || got.Mu < 10 || got.Mu > 10.0000001 {
		t.Errorf("mixed adjacency: %v, want 10, %v", got.Mu, err)
	}
	fast := Charge{End: 1, Cost: Cost{Adjacency: ZeroOut, Terms: []Term{{Kind: KindFastMixRow, Count: 1, Gamma: 20}}}}
	if got, err := Charged([]Charge{fast}, Replace, delta); err == nil {
		t.Errorf("FastMix rows under replace: %+v", got)
	}
	if got, err := Charged(nil, ZeroOut, 0); err == nil {
		t.Errorf("at δ = 0: %+v", got)
	}
}

// TestChargedIncomparable charges a stream of means for some records, and refits for other records and for both.
// Neither cost covers the other, so δ decides which record pays most. Over several logs the worst combination counts.
func TestChargedIncomparable(t *testing.T) {
	means, refit := Cost{Adjacency: ZeroOut, Mu: 0.4}, Cost{Adjacency: ZeroOut, Rows: 20, Gamma: 10}
	disjoint := []Charge{{First: 0, End: 10, Cost: means}, {First: 10, End: 20, Cost: refit}}
	for _, delta := range []float64{1e-2, 1e-9} {
		got, err := Charged(disjoint, ZeroOut, delta)
		want, err2 := Parallel(delta, means, refit)
		if err != nil || err2 != nil || !got.Equal(want) {
			t.Errorf("disjoint at %g: %+v, want %+v, %v, %v", delta, got, want, err, err2)
		}
	}
	both, err := Charged(append(disjoint[:2:2], Charge{First: 5, End: 8, Cost: refit}), ZeroOut, 1e-9)
	if err != nil || both.Mu != 0.4 || both.Rows != 20 {
		t.Errorf("overlapping: %+v, %v", both, err)
	}
	// Another log with refits only: together with a record that had refits in the first log it has 40 rows. The result
	// is at least as large as for every combination.
	other := append(disjoint[:2:2], Charge{Log: 7, End: 1, Cost: refit})
	total, err := Charged(other, ZeroOut, 1e-9)
	if err != nil {
		t.Fatal(err)
	}
	most, err := total.Epsilon(1e-9)
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []Cost{means, refit} {
		if eps, err := Compose(first, refit).Epsilon(1e-9); err != nil || !(eps <= most) {
			t.Errorf("%+v with a refit: %g, above %g, %v", first, eps, most, err)
		}
	}
}

// TestChargedProperties checks that the result is monotone in every charge, and does not depend on the order of
// charges.
func TestChargedProperties(t *testing.T) {
	const delta = 1e-6
	source := rand.New(rand.NewPCG(1, 1))
	for range 150 {
		var charges []Charge
		for range 1 + source.IntN(7) {
			first := source.Int64N(20)
			end := first + source.Int64N(20)
			if source.IntN(4) == 0 {
				end = -1
			}
			charges = append(charges,
				Charge{uint64(source.IntN(2)), first, end, randomCost(source, Adjacency(1+source.IntN(2)))})
		}
		total, err := Charged(charges, Replace, delta)
		if err != nil {
			t.Fatal(err)
		}
		less, err := Charged(charges[1:], Replace, delta)
		if err != nil {
			t.Fatal(err)
		}
		a, err := less.Epsilon(delta)
		b, err2 := total.Epsilon(delta)
		// The factor 1 + 10⁻⁹ is needed because dense rows do not use their exact curve together with a Laplace term.
		if err != nil || err2 != nil || !(a <= b*(1+1e-9)) {
			t.Fatalf("%v: %v without the first, %v with it, %v, %v", charges, a, b, err, err2)
		}
		larger := append([]Charge(nil), charges...)
		larger[0].Cost.Mu += 0.3
		if c, err := Charged(larger, Replace, delta); err != nil {
			t.Fatal(err)
		} else if eps, err := c.Epsilon(delta); err != nil || !(eps >= b*(1-1e-9)) {
			t.Fatalf("%v: %v, with a larger mu %v, %v", charges, b, eps, err)
		}
		source.Shuffle(len(charges), func(i, j int) { charges[i], charges[j] = charges[j], charges[i] })
		if again, err := Charged(charges, Replace, delta); err != nil || !again.Equal(total) {
			t.Fatalf("%v: %v in another order, %v, %v", charges, again, total, err)
		}
	}
}

// TestChargedJoin makes more incomparable costs than MostCharged keeps. They must become one cost that covers them all.
func TestChargedJoin(t *testing.T) {
	var charges []Charge
	for i := range 2 * most {
		charges = append(charges, Charge{First: int64(i), End: int64(i) + 1,
			Cost: Cost{Adjacency: ZeroOut, Mu: 0.1 + float64(i)/10000, Rows: 1000 - i, Gamma: 300}})
	}
	total, err := Charged(charges, ZeroOut, 1e-6)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range charges {
		if !total.Covers(c.Cost) {
			t.Fatalf("%+v does not cover %+v", total, c.Cost)
		}
	}
}
