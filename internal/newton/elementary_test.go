package newton

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestElementary compares with package math, over the whole range.
func TestElementary(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	near := func(what string, x, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 6e-16*math.Abs(want)) {
			t.Fatalf("%s(%g) = %.17g, want %.17g", what, x, got, want)
		}
	}
	for range 100_000 {
		x := source.NormFloat64() * math.Exp(6*source.Float64())
		if math.Abs(x) < 700 {
			near("Exp", x, Exp(x), math.Exp(x))
		}
		y := math.Exp(x / 2)
		if y > 1e-300 && y < 1e300 {
			if want := math.Log(y); math.Abs(Log(y)-want) > 4e-16*max(math.Abs(want), math.Ln2) {
				t.Fatalf("Log(%g) = %.17g, want %.17g", y, Log(y), want)
			}
			if a := source.Float64() - 0.5; math.Abs(Pow(y, a)-math.Pow(y, a)) > 1e-13*math.Pow(y, a) {
				t.Fatalf("Pow(%g, %g) = %g", y, a, Pow(y, a))
			}
		}
	}
	for x, want := range map[float64]float64{0: 1, 800: math.Inf(1), -800: 0, math.Inf(1): math.Inf(1),
		math.Inf(-1): 0} {
		if got := Exp(x); got != want {
			t.Errorf("Exp(%g) = %g", x, got)
		}
	}
	if !math.IsNaN(Exp(math.NaN())) || Log(1) != 0 {
		t.Error("Exp(NaN) is not NaN, or Log(1) is not 0")
	}
}
