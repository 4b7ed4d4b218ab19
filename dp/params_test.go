package dp

import (
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// TestLeastDelta checks that the part of δ that is due to the cut of the noise is within the bound, for every way to
// spread a shift of norm μ over the coordinates. A δ for which that part would matter must be refused.
func TestLeastDelta(t *testing.T) {
	q := func(x float64) float64 {
		if x <= 0 {
			return 1
		}
		p, _ := upperTail(new(big.Rat).SetFloat64(x), 320).Float64()
		return p
	}
	rng := rand.New(rand.NewPCG(1, 6))
	atCut, most := q(maxZ), 60
	if os.Getenv("STREAMDP_SLOW") != "" {
		most = 300
	}
	for _, mu := range []float64{1e-9, 0.01, 0.19, 0.2, 0.5, 2, 6, 10, 12.9} {
		for _, n := range []int{1, 2, 3, 10, most} {
			for range max(3, 20/n) {
				v := make([]float64, n)
				var norm float64
				for j := range v {
					v[j] = math.Exp(4 * rng.NormFloat64()) // sometimes one coordinate dominates, sometimes many count
					norm += v[j] * v[j]
				}
				var cut float64
				for _, x := range v {
					// Noise beyond the cut: on one side without the shift, on the other side because of it.
					cut += q(maxZ-mu*x/math.Sqrt(norm)) + atCut
				}
				if bound := q(maxZ-mu) + float64(n)*0x1p-128; cut > bound*(1+1e-9) {
					t.Errorf("mu %g over %d coordinates: the cut adds %g, the bound is %g", mu, n, cut, bound)
				}
			}
		}
		if least, bound := LeastDelta(mu), q(maxZ-mu)+math.Ldexp(1, 56-128); least < 1000*bound || least > 1025*bound {
			t.Errorf("mu %g: least delta %g, the cut adds %g", mu, least, bound)
		}
	}
	if least := LeastDelta(maxZ + 1); !(least > 1) {
		t.Errorf("LeastDelta for a shift beyond the cut is %g", least)
	}
	for delta, ok := range map[float64]bool{1e-300: false, 0x1p-101: false, 0x1p-63: false, 0x1p-61: true,
		1e-12: true} {
		_, err := Params{Epsilon: 1, Delta: delta, Adjacency: ZeroOut}.Budget()
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "must be at least 2.2e-19") {
			t.Errorf("delta %g: %v", delta, err)
		}
	}
	// Weak privacy: a large shift reaches the cut although the tail is small.
	if _, err := (Params{Epsilon: 60, Delta: 1e-9, Adjacency: ZeroOut}).Budget(); err == nil {
		t.Error("epsilon 60 with delta 1e-9 is accepted")
	}
}
