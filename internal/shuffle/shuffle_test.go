package shuffle

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/mathext"
)

// TestCloneDelta compares with an enumeration of the pair's outcomes, for few records.
func TestCloneDelta(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 5, 12} {
		for _, epsilon0 := range []float64{0, 0.3, 1, 4} {
			p := math.Exp(-epsilon0)
			d := 1 / (1 + p)
			// P(A + D, C − A + 1 − D), as a map of outcomes, and likewise Q.
			first, second := map[[2]int]float64{}, map[[2]int]float64{}
			choose := func(n, k int) float64 {
				x := 1.0
				for i := range k {
					x *= float64(n-i) / float64(i+1)
				}
				return x
			}
			for c := 0; c < n; c++ {
				for a := 0; a <= c; a++ {
					w := choose(n-1, c) * math.Pow(p, float64(c)) * math.Pow(1-p, float64(n-1-c)) * choose(c,
						a) / math.Pow(2, float64(c))
					first[[2]int{a + 1, c - a}] += w * d
					first[[2]int{a, c - a + 1}] += w * (1 - d)
					second[[2]int{a, c - a + 1}] += w * d
					second[[2]int{a + 1, c - a}] += w * (1 - d)
				}
			}
			for _, epsilon := range []float64{0, 0.1, 0.5, 2, 5} {
				var want float64
				for k, v := range first {
					want += max(0, v-math.Exp(epsilon)*second[k])
				}
				got, err := Delta(n, epsilon0, epsilon)
				if err != nil {
					t.Fatal(err)
				}
				if got < want-1e-15 || got > want+1e-9 {
					t.Errorf("n = %d, ε₀ = %g: δ(%g) = %.12g, want %.12g", n, epsilon0, epsilon, got, want)
				}
			}
		}
	}
}

// TestCloneDeltaExact compares with sums of 40 digits. The results are never below them. They are above by at most the
// dropped probability of C plus a relative 10⁻⁶, which covers the roundings: these are largest for the smallest C,
// whose tails are largest.
func TestCloneDeltaExact(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		n                        int
		epsilon0, epsilon, delta float64
	}{
		{20, 1, 0.2, 0.065502573864145673}, {500, 0.7, 0.11, 7.1547412018260347e-5},
		{3000, 2, 0.3, 8.434327077347207e-7}, {3000, 2, 0.45, 4.0496426330749074e-11},
		{2000, 0.5, 0.09, 1.681790124839921e-13}, {8000, 1.5, 0.2, 8.2398826105638872e-14},
	} {
		got, err := Delta(x.n, x.epsilon0, x.epsilon)
		if dropped := newClones(x.n, x.epsilon0).dropped; err != nil || got < x.delta ||
			got > x.delta*(1+1e-6)+dropped {
			t.Errorf("%+v: δ = %.17g, %v, with %g dropped", x, got, err, dropped)
		}
	}
}

// TestCloneDeltaLarge compares with tails that are computed one by one: the margin for rounding is small even for a δ
// of 10⁻¹⁰.
func TestCloneDeltaLarge(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		n                 int
		epsilon0, epsilon float64
	}{{1e5, 3, 0.05}, {1e5, 3, 0.09}, {3e5, 1, 0.01}, {2e4, 6, 1.5}, {1e5, 1, 0.024}, {1e4, 2, 0.23}, {1e7, 5, 0.04}} {
		p := math.Exp(-x.epsilon0)
		a, grow := 1/(1+p), math.Exp(x.epsilon)
		tail := func(c int, k float64) float64 {
			switch {
			case k <= 0:
				return 1
			case k > float64(c):
				return 0
			}
			return mathext.RegIncBeta(k, float64(c)-k+1, 0.5)
		}
		var want float64
		mean := float64(x.n-1) * p
		for c := max(0, int(mean-9*math.Sqrt(mean))); float64(c) < mean+9*math.Sqrt(mean)+20; c++ {
			k := math.Ceil(float64(c+1) * (a*grow - (1 - a)) / ((2*a - 1) * (1 + grow)))
			above, at := tail(c, k-1), tail(c, k)
			want += binomial(x.n-1, c, p) * max(0, a*above+(1-a)*at-grow*((1-a)*above+a*at))
		}
		got, err := Delta(x.n, x.epsilon0, x.epsilon)
		if err != nil {
			t.Fatal(err)
		}
		if got < want*(1-1e-10) || got > want*(1+1e-5)+3e-13 {
			t.Errorf("%+v: δ = %.12g, want %.12g", x, got, want)
		}
	}
}

// TestBinomial compares probabilities with exact products.
func TestBinomial(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 17, 60} {
		for k := range n + 1 {
			for _, p := range []float64{0.5, 0.01, 0.9} {
				want := math.Pow(p, float64(k)) * math.Pow(1-p, float64(n-k))
				for i := range k {
					want *= float64(n-i) / float64(i+1)
				}
				if got := binomial(n, k, p); math.Abs(got-want) > 1e-12*want {
					t.Errorf("P(Bin(%d, %g) = %d) = %.15g, want %.15g", n, p, k, got, want)
				}
			}
		}
	}
}
