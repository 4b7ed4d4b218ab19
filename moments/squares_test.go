package moments

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestBlocks compares the sums of a step before noise with products in int64, rounded where the documentation says:
// after every ⌊2⁶²/K²⌋ records counted from the step's start, valid or not. Steps end before, at and after a border.
func TestBlocks(t *testing.T) {
	t.Parallel()
	for _, mu := range []float64{0.5, 50} { // K = 1.1·2²⁴ and 1.1·2²⁹: kernel and integer form
		e := mustNew(t, Config{Clip: 1.1, Columns: dptest.Columns(3), Step: 1 << 20, Factorization: "identity"},
			dp.Params{Mu: mu, Adjacency: dp.Replace})
		k := e.plan.Lattice.K
		shift, block := uint(e.plan.SecondExp-2*e.plan.Lattice.Exp), (1<<62)/(k*k)
		source := rand.New(rand.NewPCG(3, 4))
		for _, records := range []int64{0, 1, block - 1, block, block + 1, 2*block + 3} {
			want, square, n, v := make([]int64, 6), make([]int64, 6), int64(0), make([]int64, 3)
			round := func() {
				for i, p := range square {
					want[i] += (p + 1<<(shift-1)) >> shift
				}
				clear(square)
			}
			for r := range records {
				row := []float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64()}
				switch {
				case r%11 == 3:
					row = nil
				case r%13 == 5:
					row[1] = math.NaN()
				default:
					if !e.plan.Lattice.Quantise(v, row) {
						t.Fatal("a row was refused")
					}
					n := 0
					for i := range v {
						for j := i; j < len(v); j++ {
							square[n] += v[i] * v[j]
							n++
						}
					}
				}
				e.Add(0, row)
				if n++; n%block == 0 {
					round()
				}
			}
			round()
			noise := dptest.Zero()
			if _, err := e.Close(noise); err != nil {
				t.Fatal(err)
			}
			if got := noise.Hidden("jme/second"); !slices.Equal(got, want) {
				t.Errorf("mu %g, %d records in blocks of %d: %v, want %v", mu, records, block, got, want)
			}
		}
	}
}

func mustNew(t testing.TB, cfg Config, p dp.Params) *Estimator {
	t.Helper()
	e, err := New(cfg, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
