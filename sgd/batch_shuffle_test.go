package sgd

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/mathext"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestShuffleTable compares the accountant of a shuffled pass with published
// numbers of ours, at δ = 10⁻⁶ and noise of 2α clip norms.
func TestShuffleTable(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		n           int
		alpha, want float64
		relative    float64
	}{{1e4, 1, 4.89, 2e-3}, {1e4, 1.5, 0.809, 2e-3}, {1e4, 3, 0.176, 5e-3}, {1e5, 1, 1.15, 2e-3}, {1e5, 2, 0.124, 6e-3}, {1e6, 3, 0.0177, 6e-3}} {
		got, err := SSGDEpsilon(x.n, 2*x.alpha, 1e-6, dp.Replace)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(got/x.want-1) > x.relative {
			t.Errorf("n = %d, α = %g: ε = %.5g, want %g", x.n, x.alpha, got, x.want)
		}
		zero, err := SSGDEpsilon(x.n, 2*x.alpha, 1e-6, dp.ZeroOut)
		if err != nil {
			t.Fatal(err)
		}
		if zero > got {
			t.Errorf("n = %d, α = %g: zero-out costs %g, replace %g", x.n, x.alpha, zero, got)
		}
	}
	for _, adjacency := range []dp.Adjacency{dp.Replace, dp.ZeroOut} {
		sigma, err := CalibrateSSGD(1e4, 0.5, 1e-6, adjacency)
		if err != nil {
			t.Fatal(err)
		}
		at, err1 := SSGDEpsilon(1e4, sigma, 1e-6, adjacency)
		below, err2 := SSGDEpsilon(1e4, sigma*0.999, 1e-6, adjacency)
		if err1 != nil || err2 != nil || !(at <= 0.5 && below > 0.5) {
			t.Errorf("%s: noise %g gives ε = %g, a little less %g; %v, %v", adjacency, sigma, at, below, err1, err2)
		}
	}
}

// TestCloneDelta enumerates the pair of the shuffle bound for few records.
func TestCloneDelta(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 5, 12} {
		for _, epsilon0 := range []float64{0, 0.3, 1, 4} {
			p := math.Exp(-epsilon0)
			d := 1 / (1 + p)
			// P(A + D, C − A + 1 − D) as a map of outcomes.
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
					w := choose(n-1, c) * math.Pow(p, float64(c)) * math.Pow(1-p, float64(n-1-c)) * choose(c, a) / math.Pow(2, float64(c))
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
				got, err := cloneDelta(n, epsilon0, epsilon)
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

// TestCloneDeltaExact compares with sums of 40 digits: never below them, and above by
// what is dropped of C and by less than 10⁻⁶ of them: tails are the largest, and so are
// their roundings, where C is least.
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
		got, err := cloneDelta(x.n, x.epsilon0, x.epsilon)
		if dropped := newClones(x.n, x.epsilon0).dropped; err != nil || got < x.delta || got > x.delta*(1+1e-6)+dropped {
			t.Errorf("%+v: δ = %.17g, %v, with %g dropped", x, got, err, dropped)
		}
	}
}

// TestCloneDeltaLarge compares with tails that are computed one by one: what is added
// for rounding is little even for a δ of 10⁻¹⁰.
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
		got, err := cloneDelta(x.n, x.epsilon0, x.epsilon)
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

// TestPermutation counts the orders of four records under fresh keys.
func TestPermutation(t *testing.T) {
	t.Parallel()
	const runs = 12000
	counts := map[[4]int]float64{}
	for run := range runs {
		noise := keyed(t, byte(run))
		row := noise(uint64(run)+1).Row("dp-ssgd/order", []int64{4})
		order := permutation(4, row)
		counts[[4]int(order)]++
	}
	var chi float64
	for _, n := range counts {
		want := float64(runs) / 24
		chi += (n - want) * (n - want) / want
	}
	if _, most := stattest.ChiSquared(23, stattest.Alpha); len(counts) != 24 || chi > most {
		t.Errorf("%d orders, %g from uniform, must be within %g", len(counts), chi, most)
	}
}

// TestShuffledSGD runs a pass in secret order.
func TestShuffledSGD(t *testing.T) {
	t.Parallel()
	l := newLinear(2, 3, 0.5)
	s := l.sample(6000)
	path, err := ShuffledSGD(s, ShuffledDescent{Clip: 3, Rate: 0.005, Noise: 2}, dp.Replace, keyed(t, 1)(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if risk := l.excess(path.Average()); len(path.Iterates) != 6000 || risk > 0.1 {
		t.Errorf("excess risk %g after %d steps", risk, len(path.Iterates))
	}
	for _, d := range []ShuffledDescent{{}, {Clip: 1, Rate: 1}, {Clip: -1, Rate: 1, Noise: 1}, {Clip: 1, Rate: math.Inf(1), Noise: 1}} {
		if _, err := ShuffledSGD(s, d, dp.Replace, dptest.Zero(), nil); err == nil {
			t.Errorf("%+v is taken", d)
		}
	}
	if _, err := ShuffledSGD(s, ShuffledDescent{1, 1, 1}, 0, dptest.Zero(), nil); err == nil {
		t.Error("a pass without adjacency is taken")
	}
}
