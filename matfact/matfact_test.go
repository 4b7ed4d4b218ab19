package matfact

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestNewErrors checks that New reports all faults at once.
func TestNewErrors(t *testing.T) {
	check := func(c Config, w Workload, want ...string) {
		t.Helper()
		f, err := New(c, w)
		if err == nil {
			t.Errorf("New(%+v, %+v) = %s, want an error", c, w, f.Kind())
			return
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(want) {
			t.Errorf("New(%+v, %+v): %d faults, want %d:\n%v", c, w, len(lines), len(want), err)
			return
		}
		for i := range want {
			if !strings.Contains(lines[i], want[i]) {
				t.Errorf("New(%+v, %+v): fault %d is %q, want %q in it", c, w, i, lines[i], want[i])
			}
		}
	}
	sum := Workload{Kind: "sum"}
	check(Config{}, sum, "factorization is \"\"")
	check(Config{Kind: "auto"}, sum, "Auto")
	check(Config{Kind: "dense"}, sum, "horizon is 0")
	check(Config{Kind: "dense", Horizon: 301}, sum, "horizon is 301")
	for want, s := range map[string]*Stored{
		"has 2 scales and 1 entries": {Kind: "dense", Scales: []float64{1, 1}, Entries: Packed{5}},
		"has 3 scales and 1 entries": {Kind: "dense", Scales: []float64{1, 1, 1}, Entries: Packed{5}},
		"has scale 0.5":              {Kind: "dense", Scales: []float64{1, 1, 0.5}, Entries: Packed{1, 2, 3}},
		"has scale NaN":              {Kind: "dense", Scales: []float64{1, 1, math.NaN()}, Entries: Packed{1, 2, 3}},
		"outside":                    {Kind: "dense", Scales: []float64{1, 1, 1}, Entries: Packed{1, 2, math.MinInt64}},
		"neither decays": {Kind: "dense", Scales: []float64{1, 1, 1}, Entries: Packed{1, 2, 3},
			Bands: []Fixed{1}},
		"by a factor": {Kind: "dense", Scales: []float64{1e6, 1e6, 1e6}, Entries: Packed{1 << 61, 1 << 61, 1 << 61}},
	} {
		check(Config{Kind: "dense", Horizon: 3, Stored: s}, sum, want)
	}
	check(Config{Kind: "blt"}, sum, "tune is 0")
	check(Config{Kind: "banded"}, Workload{Kind: "mean"}, "tune is 0")
	check(Config{Kind: "blt", Buffers: 9}, Workload{Kind: "mean"}, "buffers is 9", "tune is 0")
	check(Config{Kind: "blt", Buffers: -1, Tune: 10}, sum, "buffers is -1")
	check(Config{Kind: "phased", Buffers: 2}, sum, "buffers is 2")
	check(Config{Kind: "phased", Bands: 2}, sum, "bands is 2")
	check(Config{Kind: "bsr", Bands: 257}, sum, "bands is 257")
	check(Config{Kind: "banded", Bands: 65, Tune: 10}, sum, "bands is 65")
	check(Config{Kind: "bisr", Bands: -1, Buffers: 3}, sum, "buffers is 3", "bands is -1")
	for _, kind := range []string{"identity", "phased", "dense"} {
		check(Config{Kind: kind, Horizon: 9, Normalise: true}, sum, "normalise cannot be combined with")
	}
	check(Config{Kind: "bsr", Normalise: true}, sum, "horizon is 0")
	check(Config{Kind: "blt", Horizon: 1 << 17, Normalise: true}, sum, "horizon is 131072")
	check(Config{Kind: "bsr", Horizon: 5, Stored: &Stored{Kind: "bsr", Height: 5}}, sum, "normalised to 5 rows")
	check(Config{Kind: "bsr", Horizon: 5, Normalise: true, Stored: &Stored{Kind: "bsr"}}, sum, "normalised to 0 rows")
	check(Config{Kind: "bsr", Horizon: 6, Normalise: true, Stored: &Stored{Kind: "bsr", Height: 5}}, sum,
		"normalised to 5 rows")
	check(
		Config{Kind: "blt", Horizon: 6, Normalise: true,
			Stored: &Stored{Kind: "blt", Height: 6, Decay: []Fixed{1 << 63},
				Phases: []Phase{{Start: 1, Scale: 2, Weight: []Fixed{1 << 60}}}}}, sum, "scale 2")
	check(Config{Kind: "sqrt"}, sum, "horizon is 0")
	check(Config{Kind: "sqrt", Horizon: 1 << 30}, sum, "horizon is")
	check(Config{Kind: "identity"}, Workload{}, "workload is \"\"")
	check(Config{Kind: "identity"}, Workload{Kind: "exponential"}, "decay is 0")
	check(Config{Kind: "identity"}, Workload{Kind: "exponential", Decay: math.NaN()}, "decay is NaN")
	check(Config{Kind: "identity"}, Workload{Kind: "exponential", Decay: 1}, "decay is 1")
	check(Config{Kind: "identity"}, Workload{Kind: "window"}, "window is 0")
	check(Config{Kind: "identity"}, Workload{Kind: "sum", Decay: 0.5, Window: 3}, "decay is 0.5", "window is 3")
	check(Config{Kind: "x", Buffers: 3}, Workload{Kind: "y"}, "workload", "factorization", "buffers")

	phase := func(ph ...Phase) *Stored {
		return &Stored{Kind: "phased", Decay: []Fixed{1 << 62, 1 << 63}, Phases: ph}
	}
	stored := func(s *Stored, want ...string) {
		t.Helper()
		check(Config{Kind: "phased", Stored: s}, sum, want...)
	}
	good := Phase{Start: 1, Scale: 1, Weight: []Fixed{1 << 60, 1 << 60}}
	if _, err := New(Config{Kind: "phased", Stored: phase(good)}, sum); err != nil {
		t.Fatal(err)
	}
	check(Config{Kind: "blt", Tune: 10, Stored: phase(good)}, sum, "stored factorization is \"phased\"")
	check(Config{Kind: "sqrt", Horizon: 3, Stored: &Stored{Kind: "sqrt", Decay: []Fixed{1}}}, sum,
		"must not have decays")
	check(
		Config{Kind: "identity",
			Stored: &Stored{Kind: "identity", Decay: good.Weight[:1],
				Phases: []Phase{{Start: 1, Scale: 1, Weight: good.Weight[:1]}}}}, sum, "identity must not have buffers")
	check(
		Config{Kind: "blt", Stored: &Stored{Kind: "blt", Phases: []Phase{{Start: 1, Scale: 1}, {Start: 2, Scale: 1}}}},
		sum, "2 phases")
	bands := func(kind string, m []Fixed, want ...string) {
		t.Helper()
		check(Config{Kind: kind, Stored: &Stored{Kind: kind, Bands: m}}, sum, want...)
	}
	bands("bsr", []Fixed{1 << 63, 1 << 63}, "band 2 must be positive")
	bands("bsr", []Fixed{1 << 63, 0}, "band 2 must be positive")
	bands("bsr", []Fixed{1<<64 - 1, 1<<64 - 2, 1<<64 - 3}, "does not decay")
	bands("bsr", make([]Fixed, 300),
		append([]string{"has 301 bands"}, slices.Repeat([]string{"must be positive"}, 300)...)...)
	bands("bisr", []Fixed{1 << 63, 1 << 63}, "add up to 1")
	bands("bisr", []Fixed{1 << 63, 1<<63 - 1}, "add up to 1")
	bands("bisr", []Fixed{1 << 63, 0}, "band 2 must be positive")
	bands("phased", []Fixed{1}, "phased must have neither bands nor entries", "must have a phase")
	check(Config{Kind: "bsr", Stored: &Stored{Kind: "bsr", Phases: []Phase{good}}}, sum, "neither decays nor phases")
	check(Config{Kind: "sqrt", Horizon: 3, Stored: &Stored{Kind: "sqrt", Bands: []Fixed{1}}}, sum, "bands or entries")
	stored(phase(), "must have a phase")
	stored(phase(Phase{Start: 2, Scale: 1, Weight: good.Weight}), "starts at 2")
	stored(phase(Phase{Start: 1, Scale: 0.5, Weight: good.Weight}), "scale 0.5")
	stored(phase(Phase{Start: 1, Scale: math.NaN(), Weight: good.Weight}), "scale NaN")
	stored(phase(Phase{Start: 1, Scale: 1, Weight: []Fixed{1, 0}}), "weight 0")
	stored(phase(Phase{Start: 1, Scale: 1, Weight: []Fixed{1, 2, 3}}), "3 weights", "must use all")
	stored(phase(good, good), "phase 1 must start later")
	stored(phase(good, Phase{Start: 5, Scale: 1, Weight: good.Weight[:1]}), "no fewer weights", "must use all")
	stored(phase(Phase{Start: 1, Scale: 1, Weight: []Fixed{1 << 61, 1 << 63}}), "unstable")
	many := &Stored{Kind: "phased", Phases: []Phase{{Start: 1, Scale: 1}}}
	for i := range maxDecays + 1 {
		many.Decay = append(many.Decay, Fixed(i+1)<<58)
		many.Phases[0].Weight = append(many.Phases[0].Weight, 1)
	}
	stored(many, "17 decays")
	stored(&Stored{Kind: "phased", Decay: []Fixed{5, 5}, Phases: []Phase{good}}, "decay 1", "unstable")
	stored(&Stored{Kind: "phased", Decay: []Fixed{0, 1 << 63}, Phases: []Phase{good}}, "decay 0", "unstable")
}

// TestStored reads a factorization back from JSON. It must be the same matrix, and New must not optimise again.
func TestStored(t *testing.T) {
	for _, f := range factorizations(t, 100) {
		text, err := json.Marshal(f.Stored())
		if err != nil {
			t.Fatal(err)
		}
		stored := new(Stored)
		if err := json.Unmarshal(text, stored); err != nil {
			t.Fatal(err)
		}
		w := Workload{Kind: "sum"}
		c := Config{Kind: f.Kind(), Horizon: f.Horizon(), Normalise: stored.Height > 0, Stored: stored}
		inner := f.Factorization
		if x, ok := inner.(*normalised); ok {
			inner = x.inner
		}
		if r, ok := inner.(*root); ok {
			w = r.kernel
		}
		again := mustNew(t, c, w)
		if !reflect.DeepEqual(again.Stored(), f.Stored()) || again.ColNorm() != f.ColNorm() ||
			again.RowVar(w, 77) != f.RowVar(w, 77) {
			t.Errorf("%s: differs after a round trip", f.name)
		}
		if !strings.HasPrefix(f.name, "sqrt") {
			// The returned copies share no memory with the factorization.
			for _, ph := range f.Stored().Phases {
				clear(ph.Weight)
			}
			clear(stored.Decay)
			clear(stored.Bands)
			clear(f.Stored().Bands)
			clear(f.Stored().Scales)
			clear(f.Stored().Entries)
			if !reflect.DeepEqual(again.Stored(), f.Stored()) {
				t.Errorf("%s: Stored shares memory", f.name)
			}
		}
	}
	var f Fixed
	for _, text := range []string{`"-1"`, `"18446744073709551616"`, `""`, `"1.5"`, `7`} {
		if err := json.Unmarshal([]byte(text), &f); err == nil {
			t.Errorf("%s is read as %d", text, f)
		}
	}
}

// FuzzStored passes arbitrary stored integers to New. The result must be an error or a matrix that works, never a
// panic, a hang or a NaN.
func FuzzStored(f *testing.F) {
	for _, x := range factorizations(f, 20) {
		text, _ := json.Marshal(x.Stored())
		f.Add(text)
	}
	for _, x := range factorizations(f, 5) {
		if x.Horizon() > 0 {
			text, _ := json.Marshal(x.Stored())
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := new(Stored)
		if json.Unmarshal(data, s) != nil || len(s.Phases) > 50 || len(s.Decay) > 20 {
			return
		}
		w := Workload{Kind: "sum"}
		x, err := New(Config{Kind: s.Kind, Horizon: 5, Normalise: s.Height > 0, Stored: s}, w)
		if err != nil {
			return
		}
		values := []float64{x.ColNorm(), x.RowVar(w, 5), x.CinvVar(3), x.Cov(Workload{Kind: "window", Window: 2}, 4, 5)}
		if x.Horizon() == 0 {
			values = append(values, x.RowVar(w, 1<<40), x.RowVar(Workload{Kind: "exponential", Decay: 0.5}, 1<<50))
		}
		for i, v := range values {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("value %d is %g", i, v)
			}
		}
		x.Limits(1 << 24)
		shaper, row := x.NewShaper(1), []float64{0}
		for range 5 {
			shaper.Predict(row)
			shaper.Push([]int64{1 << 20})
		}
	})
}

// TestErrors checks error functions that no case checks against their definitions, and against the published figures
// for running averages.
func TestErrors(t *testing.T) {
	mean := Workload{Kind: "mean"}
	phased := mustNew(t, Config{Kind: "phased"}, mean)
	near(t, "phased running average, n = 100", RMSE(phased, mean, 100), 0.1733, 3e-4)
	near(t, "phased running average, n = 1000", RMSE(phased, mean, 1000), 0.0558, 5e-4)
	sum := mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"})
	near(t, "phased sum, max", MaxError(sum, Workload{Kind: "sum"}, 1000), 3.844, 2e-4)
	near(t, "phased sum, rmse", RMSE(sum, Workload{Kind: "sum"}, 1000), 3.503, 2e-4)

	root := mustNew(t, Config{Kind: "sqrt", Horizon: 1000, Normalise: true}, Workload{Kind: "sum"})
	near(t, "normalised square root, max", MaxError(root, Workload{Kind: "sum"}, 1000), 3.073, 2e-4)
	near(t, "normalised square root, rmse", RMSE(root, Workload{Kind: "sum"}, 1000), 2.984, 2e-4)

	// Errors evaluates only some rows; it must agree with the functions that evaluate all rows.
	window := Workload{Kind: "window", Window: 300}
	for _, w := range []Workload{{Kind: "sum"}, mean, {Kind: "exponential", Decay: 0.999}, window} {
		for _, c := range []Config{{Kind: "identity"}, {Kind: "phased"}, {Kind: "blt", Tune: 5000},
			{Kind: "sqrt", Horizon: 20000}, {Kind: "bisr"}} {
			for _, n := range []uint64{1, 1024, 1025, 20000} {
				f := mustNew(t, c, w)
				worst, rmse := Errors(f, w, n)
				tolerance := 1e-5
				if c.Kind == "phased" && w == window {
					tolerance = 1e-3
				}
				near(t, fmt.Sprintf("Errors(%s, %v, %d): max", c.Kind, w, n), worst, MaxError(f, w, n), tolerance)
				near(t, fmt.Sprintf("Errors(%s, %v, %d): rmse", c.Kind, w, n), rmse, RMSE(f, w, n), tolerance)
			}
		}
	}

	// Compute the tree's errors and the bound for sums by their definitions.
	for _, honaker := range []bool{false, true} {
		var top, sum float64
		for n := uint64(1); n <= 700; n++ {
			var v float64
			for l := range 10 {
				if n>>l&1 == 1 && honaker {
					v += math.Ldexp(1, l) / (math.Ldexp(1, l+1) - 1)
				} else if n>>l&1 == 1 {
					v++
				}
			}
			top, sum = max(top, v), sum+v
			norm := math.Sqrt(1 + math.Ceil(math.Log2(float64(n))))
			near(t, fmt.Sprintf("TreeErrorAt(%d, %d, %t)", n, n, honaker), TreeErrorAt(n, n, honaker),
				norm*math.Sqrt(v), 1e-12)
			worst, rmse := TreeError(n, honaker)
			near(t, fmt.Sprintf("TreeError(%d, %t): max", n, honaker), worst, norm*math.Sqrt(top), 1e-12)
			near(t, fmt.Sprintf("TreeError(%d, %t): rmse", n, honaker), rmse, norm*math.Sqrt(sum/float64(n)), 1e-12)
		}
	}
	const many = 300000
	var bound float64
	for k := many; k >= 1; k-- {
		bound += 0.5 / math.Sin(float64(2*k-1)*math.Pi/float64(4*many+2))
	}
	near(t, "SumBound", SumBound(many), bound/many, 1e-10)

	// No C may have a smaller error than the bounds. For a window of one step, independent noise attains the bound.
	if b := SumBound(1); math.Abs(b-1) > 1e-12 {
		t.Errorf("SumBound(1) = %g", b)
	}
	near(t, "WindowOptimum(1)", WindowOptimum(1), 1, 1e-12)
	near(t, "WindowOptimum(2)", WindowOptimum(2), 4/math.Pi, 1e-12)
	near(t, "WindowOptimum(3)", WindowOptimum(3), 1.0/3+2*math.Sqrt(3)/math.Pi, 1e-9) // Lebesgue's constant L₁
	near(t, "ExpOptimum(0)", ExpOptimum(0), 1, 1e-15)
	if worst, rmse := TreeError(1, true); worst != 1 || rmse != 1 {
		t.Errorf("TreeError(1) = %g, %g", worst, rmse)
	}
	if worst, rmse := TreeError(0, false); worst != 0 || rmse != 0 {
		t.Errorf("TreeError(0) = %g, %g", worst, rmse)
	}
}
