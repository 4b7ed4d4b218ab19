package calibration

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/matfact"
)

func factor(t *testing.T, c matfact.Config) matfact.Factorization {
	t.Helper()
	f, err := matfact.New(c, matfact.Workload{Kind: "sum"})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCharge compares the charge with the sum of its parts, and with the limits of each array's noise.
func TestCharge(t *testing.T) {
	t.Parallel()
	shaped, ends := factor(t, matfact.Config{Kind: "bisr", Bands: 5}),
		factor(t, matfact.Config{Kind: "sqrt", Horizon: 50})
	arrays := []Array{
		{Factor: shaped, Entries: 3, Unit: 0x1p-20, Deviation: 40, Weight: 1},
		{Factor: ends, Entries: 6, Unit: 0x1p-18, Deviation: 900, Weight: 50, Symmetric: true},
	}
	for _, last := range []uint64{0, 1000} {
		s, limits, err := Charge(0, 0, last, arrays...)
		if err != nil {
			t.Fatal(err)
		}
		want, coordinates := 0.0, []float64{Endless, 50 * 6}
		if last > 0 {
			coordinates[0] = 3 * 1000
		}
		for i, a := range arrays {
			l, err := a.Factor.Limits(a.Deviation / a.Unit * (1 + 0x1p-10))
			if err != nil {
				t.Fatal(err)
			}
			if l != limits[i] || l.Rounding == 0 {
				t.Errorf("limits %v, want %v", limits[i], l)
			}
			each := 2 * l.Rounding * a.Unit * a.Weight
			if a.Symmetric {
				each *= math.Sqrt2
			}
			want += each * math.Sqrt(coordinates[i])
		}
		if !(s > want && s < want*(1+0x1p-38)) {
			t.Errorf("Charge returns %.17g, want slightly more than %.17g", s, want)
		}
		if all, _, err := Charge(7, 0.25, last, arrays...); err != nil ||
			!(all > s+7.25 && all < (s+7.25)*(1+0x1p-38)) {
			t.Errorf("Charge returns %.17g with squares of 7.25, %.17g without: %v", all, s, err)
		}
	}
	arrays[0].Deviation, arrays[1].Deviation = 0x1p40, 0x1p40
	if _, _, err := Charge(7, 0, 0, arrays...); err == nil {
		t.Error("Charge accepted noise beyond the integers")
	}
	if Grown(1.001, 1) == nil || Grown(1.0009, 1) != nil || Grown(math.NaN(), 1) == nil {
		t.Error("Grown accepted noise that grew by more than 2⁻¹⁰")
	}
}

// TestLastStep checks that the mechanism ends with the first factorization that ends.
func TestLastStep(t *testing.T) {
	t.Parallel()
	for _, end := range []bool{false, true} {
		f := factor(t, matfact.Config{Kind: "identity"})
		if end {
			f = factor(t, matfact.Config{Kind: "sqrt", Horizon: 50})
		}
		for configured, want := range map[uint64]uint64{0: Endless / 7, 40: 40, 60: 60} {
			if end {
				want = min(want, 50)
			}
			if got := LastStep(configured, 7, nil, f); got != want {
				t.Errorf("the last step is %d, want %d", got, want)
			}
		}
	}
}

// TestSame checks that Same accepts factorizations that are equally good, and refuses worse ones.
func TestSame(t *testing.T) {
	t.Parallel()
	w := matfact.Workload{Kind: "sum"}
	compare := func(c, d matfact.Config) bool {
		kept, fresh := factor(t, c), factor(t, d)
		f := Factor{Kept: kept.Stored(), Fresh: fresh.Stored(), Own: kept, Best: fresh, Workload: w, At: 100}
		return SameKind(f.Kept, f.Fresh) && f.Same()
	}
	blt := matfact.Config{Kind: "blt", Horizon: 100, Buffers: 3}
	moved := factor(t, blt).Stored().Clone()
	moved.Phases[0].Weight[0] -= moved.Phases[0].Weight[0] / 1e6
	worse := moved.Clone()
	worse.Phases[0].Weight[0] -= worse.Phases[0].Weight[0] / 10
	bands := matfact.Config{Kind: "bisr", Bands: 5}
	for name, c := range map[string]struct {
		kept, fresh matfact.Config
		want        bool
	}{
		"same":                {blt, blt, true},
		"different last bits": {matfact.Config{Kind: "blt", Stored: moved}, blt, true},
		"worse":               {matfact.Config{Kind: "blt", Stored: worse}, blt, false},
		"other kind":          {bands, blt, false},
		"not searched":        {bands, bands, true},
		"not optimised":       {matfact.Config{Kind: "bisr", Bands: 6}, bands, false},
	} {
		if got := compare(c.kept, c.fresh); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !SameKind(nil, nil) || SameKind(moved, nil) || (&Factor{}).Same() != true {
		t.Error("a factorization equals nil")
	}
}

// TestRestoreShaper checks that RestoreShaper refuses states of another step, and predictions that no noise can give.
func TestRestoreShaper(t *testing.T) {
	t.Parallel()
	f := factor(t, matfact.Config{Kind: "bisr", Bands: 5})
	s := f.NewShaper(2)
	s.Push([]int64{1000, -1000})
	s.Push([]int64{10, 10})
	state, err := s.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := f.Limits(100)
	if err != nil {
		t.Fatal(err)
	}
	reach := Reach(limits, 100)
	if want := limits.Noise + 1400; reach < want || reach > want+8 {
		t.Errorf("predictions reach %g, want about %g", reach, want)
	}
	scratch := make([]float64, 2)
	for what, c := range map[string]struct {
		steps   uint64
		scratch []float64
		reach   float64
		ok      bool
	}{
		"its own":            {2, scratch, reach, true},
		"one step more":      {3, scratch, reach, false},
		"beyond":             {2, scratch, 1, false},
		"predictions unread": {2, nil, 1, true},
	} {
		if err := RestoreShaper(f.NewShaper(2), state, c.steps, c.scratch, c.reach); (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
	if RestoreShaper(f.NewShaper(3), state, 2, nil, reach) == nil {
		t.Error("a state of two coordinates was accepted for three")
	}
}
