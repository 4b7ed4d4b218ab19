package core

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestRoundUp(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		x := math.Exp(40 * (rng.Float64() - 0.5))
		up, err := roundUp(x, 4)
		if err != nil || up < x || up > x*1.001 {
			t.Fatalf("%g rounds up to %g, %v", x, up, err)
		}
		if again, err := roundUp(up, 4); err != nil || again != up {
			t.Fatalf("%g rounds up to %g, %v", up, again, err)
		}
	}
	for x, want := range map[float64]float64{
		1:          1,
		1.0001:     1.001,
		9.9991:     10,
		999.91:     1000,
		0.00012341: 0.0001235,
		2e-300:     2e-300,
	} {
		if up, err := roundUp(x, 4); err != nil || up != want {
			t.Errorf("%g rounds up to %g, want %g", x, up, want)
		}
	}
}

// TestAtMost: the printed bound is never below the number.
func TestAtMost(t *testing.T) {
	t.Parallel()
	for x, want := range map[float64]string{
		0:                 "0",
		1:                 "1",
		0.999999999999998: "1",
		1.4425941:         "1.4426",
		1.4425931:         "1.4426",
		1.442593:          "1.4426",
		1.44259:           "1.44259",
		12345678:          "1.23457e+07",
	} {
		if got := AtMost(x); got != want {
			t.Errorf("%v is at most %s, want %s", x, got, want)
		}
	}
}
