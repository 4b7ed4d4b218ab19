package sgd

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestShuffleTable compares the accountant of a shuffled pass with published numbers, at δ = 10⁻⁶ and noise of 2α clip
// norms.
func TestShuffleTable(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		n           int
		alpha, want float64
		relative    float64
	}{{1e4, 1, 4.89, 2e-3}, {1e4, 1.5, 0.809, 2e-3}, {1e4, 3, 0.176, 5e-3}, {1e5, 1, 1.15, 2e-3}, {1e5, 2, 0.124, 6e-3},
		{1e6, 3, 0.0177, 6e-3}} {
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

// TestShuffledSGD checks a pass in secret order.
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
	for _, d := range []ShuffledDescent{{}, {Clip: 1, Rate: 1}, {Clip: -1, Rate: 1, Noise: 1},
		{Clip: 1, Rate: math.Inf(1), Noise: 1}} {
		if _, err := ShuffledSGD(s, d, dp.Replace, dptest.Zero(), nil); err == nil {
			t.Errorf("no error for %+v", d)
		}
	}
	if _, err := ShuffledSGD(s, ShuffledDescent{1, 1, 1}, 0, dptest.Zero(), nil); err == nil {
		t.Error("no error for a pass without adjacency")
	}
}
