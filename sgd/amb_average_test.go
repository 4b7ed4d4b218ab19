package sgd

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestAverages compares tail and batches with their definitions, for all lengths.
func TestAverages(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(8, 9))
	var all [][]float64
	tails := []*tail{newTail(0.25, 64, 2), newTail(0.5, 0, 2), newTail(0.9, 0, 2)}
	b := newBatches(3, 2)
	mean, se := make([]float64, 2), make([]float64, 2)
	for n := 1; n <= 1500; n++ {
		w := []float64{source.NormFloat64(), 5 + source.NormFloat64()}
		all = append(all, w)
		for _, a := range tails {
			a.add(w)
			f := a.fraction
			if n < int(a.young) {
				f = 0.5
			}
			start := 0
			for p := 1; float64(p) <= f*float64(n); p *= 2 {
				start = p
			}
			after := a.mean(mean)
			want := meanOf(all[start:])
			if int(after) != start || math.Abs(mean[0]-want[0])+math.Abs(mean[1]-want[1]) > 1e-12 {
				t.Fatalf("f = %g, T = %d: mean %v after %d, want %v after %d", a.fraction, n, mean, after, want, start)
			}
		}
		b.add(w)
		if b.total() != uint64(n) || b.length < 3 ||
			n >= 3*batchesMost && (len(b.sums) < batchesMost/2 || len(b.sums) >= batchesMost) {
			t.Fatalf("%d vectors: %d batches of %d, %d open", n, len(b.sums), b.length, b.count)
		}
		used := b.error(se)
		var means [][]float64
		for l := int(b.length); l <= n; l += int(b.length) {
			if first := l - int(b.length); first >= n/4 {
				means = append(means, meanOf(all[first:l]))
			}
		}
		if used != len(means) {
			t.Fatalf("%d vectors: %d batches are in the last three quarters, want %d", n, used, len(means))
		}
		if used < 2 {
			continue
		}
		_, half, err := Intervals(means, 0.9)
		if err != nil {
			t.Fatal(err)
		}
		quantile := StudentQuantile(0.95, float64(used-1))
		for j := range se {
			if math.Abs(se[j]*quantile-half[j]) > 1e-12 {
				t.Fatalf("%d vectors: half-width %g, want %g", n, se[j]*quantile, half[j])
			}
		}
	}
}

// TestDriftRule applies the rule to sequences without drift and to one with drift.
func TestDriftRule(t *testing.T) {
	t.Parallel()
	for _, d := range []int{1, 2, 10} {
		source := rand.New(rand.NewPCG(uint64(d), 2))
		rule := newDrift(8, d)
		w := make([]float64, d)
		draw := func(mean float64) []float64 {
			for j := range w {
				w[j] = mean + source.NormFloat64()
			}
			return w
		}
		restarts := 0
		for range 8 * 2000 {
			if rule.observe(draw(0)) {
				restarts++
				rule.reset()
			}
		}
		if restarts > 20 {
			t.Errorf("d = %d: %d of 2000 blocks of a constant sequence are out of line", d, restarts)
		}
		rule.reset()
		at := -1
		for i := range 8 * 40 {
			if rule.observe(draw(0.02 * float64(i))) {
				at = i
				break
			}
		}
		if at < 0 {
			t.Errorf("d = %d: a drift is not detected", d)
		}
	}
}
