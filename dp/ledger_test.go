package dp

import (
	"math/rand/v2"
	"testing"
)

func TestCharged(t *testing.T) {
	z := func(first, end int64, mu float64) Charge { return Charge{first, end, Cost{ZeroOut, mu}} }
	for _, c := range []struct {
		charges []Charge
		want    float64
	}{
		{nil, 0},
		{[]Charge{z(0, 10, 3)}, 3},
		{[]Charge{z(0, 10, 3), z(10, 20, 4)}, 4},              // disjoint: parallel
		{[]Charge{z(0, 11, 3), z(10, 20, 4)}, 5},              // one position meets both
		{[]Charge{z(0, -1, 3), z(1000, -1, 4)}, 5},            // without end
		{[]Charge{z(0, 10, 3), z(0, 10, 4), z(5, 6, 12)}, 13}, // two streams and a refit
		{[]Charge{z(5, 5, 9), z(0, 10, 3)}, 3},                // an empty range covers nothing
	} {
		got := Charged(c.charges, ZeroOut).Mu
		if got < c.want || got > c.want*(1+1e-14) {
			t.Errorf("%v: %v, want %v", c.charges, got, c.want)
		}
	}
	// Zero-out charges under a limit for replacement count twice.
	if got := Charged([]Charge{z(0, 1, 3), {0, 1, Cost{Replace, 8}}}, Replace).Mu; got < 10 || got > 10.0000001 {
		t.Errorf("mixed adjacency: %v, want 10", got)
	}
}

// TestChargedProperties: monotone in every charge, and independent of order.
func TestChargedProperties(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		var charges []Charge
		for range 1 + source.IntN(8) {
			first := source.Int64N(20)
			end := first + source.Int64N(20)
			if source.IntN(4) == 0 {
				end = -1
			}
			charges = append(charges, Charge{first, end, Cost{Adjacency(1 + source.IntN(2)), source.Float64()}})
		}
		total := Charged(charges, Replace).Mu
		if less := Charged(charges[1:], Replace).Mu; less > total {
			t.Fatalf("%v: %v without the first, %v with it", charges, less, total)
		}
		source.Shuffle(len(charges), func(i, j int) { charges[i], charges[j] = charges[j], charges[i] })
		if again := Charged(charges, Replace).Mu; again != total {
			t.Fatalf("%v: %v in another order, %v", charges, again, total)
		}
	}
}
