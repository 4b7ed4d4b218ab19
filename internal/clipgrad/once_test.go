package clipgrad

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

// TestRoundOnce checks that sums that are rounded once are the same for any order of the rows and any number of
// workers, while sums that are rounded by block are not. A row that becomes null moves them by at most Sensitivity.
func TestRoundOnce(t *testing.T) {
	t.Parallel()
	const n, d, bits, out, zeta = 2*blockRows + 77, 5, 24, 26, 0.3
	rng := rand.New(rand.NewPCG(3, 4))
	x, y := make([][]float64, n), make([]float64, n)
	for i := range x {
		x[i] = make([]float64, d)
		for j := range x[i] {
			x[i][j] = rng.NormFloat64() / 4
		}
		y[i] = math.Max(-1, math.Min(1, rng.NormFloat64()))
	}
	u := []float64{0.3, -0.1, 0.2, 0, 0.05}
	sums := func(order []int, null, workers int, once bool) (sum []int64) {
		var rows, targets []float64
		nulls := make([]bool, n)
		for at, i := range order {
			rows, targets = append(rows, x[i]...), append(targets, y[i])
			nulls[at] = i == null
		}
		r := ByNorm(rows, targets, nulls, d, bits)
		if once {
			r.RoundOnce()
		}
		r.hire(workers)
		sum = make([]int64, d)
		counted := r.Sum(sum, u, zeta, 0.4, out)
		again := make([]int64, d)
		if r.Sum(again, u, zeta, 0.4, out) != counted || !slices.Equal(sum, again) {
			t.Fatal("another pass gives another sum")
		}
		return append(sum, counted)
	}
	inOrder := make([]int, n)
	for i := range inOrder {
		inOrder[i] = i
	}
	want, blocks := sums(inOrder, -1, 1, true), sums(inOrder, -1, 1, false)
	differ := false
	for round := range 4 {
		order := rng.Perm(n)
		if got := sums(order, -1, 1+round, true); !slices.Equal(got, want) {
			t.Errorf("another order, %d workers: %v, want %v", 1+round, got, want)
		}
		differ = differ || !slices.Equal(sums(order, -1, 1, false), blocks)
	}
	if !differ {
		t.Error("sums that are rounded by block do not depend on the order: the test shows nothing")
	}
	for _, null := range []int{0, blockRows, n - 1} {
		got := sums(inOrder, null, 2, true)
		var square float64
		for j := range d {
			v := math.Ldexp(float64(got[j]-want[j]), -out)
			square += v * v
		}
		if moved, most := math.Sqrt(square), Sensitivity(dp.ZeroOut, d, out); moved > most || moved == 0 {
			t.Errorf("row %d moves the sums by %g, at most %g", null, moved, most)
		}
	}
}
