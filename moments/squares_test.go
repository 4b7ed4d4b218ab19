package moments

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"streamdp/dp"
	"streamdp/internal/dptest"
)

// TestSquaresAreExact compares the float64 kernel with plain int64 products,
// after every record: at the largest norm, where one bit more would be lost, and
// for random rows; at every K around those where the number of records that fit
// changes.
func TestSquaresAreExact(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	for _, k := range []int64{
		1 << 24, 1<<24 + 1, 3 << 23, 1<<25 - 1, 1 << 25, 33554433, 47453132, // ⌊√(2⁵³/4)⌋, the last that takes the kernel
		47453133, 1 << 26, 1<<30 - 1, 1 << 30,
	} {
		for _, d := range []int{1, 2, 3, 4, 5, 8, 17} {
			t.Run(fmt.Sprintf("K=%d/d=%d", k, d), func(t *testing.T) {
				s, want := newSquares(d, k), make([]int64, d*(d+1)/2)
				if kernel := 4*k*k <= 1<<53; kernel != (s.part != nil) {
					t.Fatalf("kernel %t, want %t", s.part != nil, kernel)
				}
				// Reading moves the records to int64: never, sometimes, always.
				for _, read := range []int{1 << 30, 7, 1} {
					for name, draw := range vectors(source, d, k) {
						records := int(min((1<<62)/(k*k), 200))
						for n := 1; n <= records; n++ {
							v := draw()
							s.add(v)
							addProducts(want, v)
							if n%read == 0 || n == records {
								if !slices.Equal(s.total(), want) {
									t.Fatalf("%s: after %d records %v, want %v", name, n, s.sum, want)
								}
							}
						}
						s.add(draw())
						s.reset()
						if clear(want); !slices.Equal(s.total(), want) {
							t.Fatalf("%s: not empty after reset", name)
						}
					}
				}
			})
		}
	}
}

// vectors returns sequences of integer vectors of length d and norm at most k.
func vectors(source *rand.Rand, d int, k int64) map[string]func() []int64 {
	within := func(v []int64) []int64 {
		for {
			var sum float64
			for _, x := range v {
				sum += float64(x) * float64(x)
			}
			if sum <= float64(k)*float64(k)*(1-1e-15) || d == 1 {
				return v
			}
			for i := range v {
				v[i] -= v[i] / 1000
			}
		}
	}
	axis, pair := make([]int64, d), make([]int64, d)
	axis[d-1] = -k
	half := int64(math.Sqrt(float64(k) * float64(k) / 2)) // the largest product off the diagonal
	pair[0] = k
	if d > 1 {
		pair[0], pair[d-1] = half, -half
	}
	return map[string]func() []int64{
		"axis": func() []int64 { return axis },
		"pair": func() []int64 { return pair },
		"odd": func() []int64 {
			v := slices.Clone(pair)
			v[0] -= 1 - v[0]&1
			return v
		},
		"random": func() []int64 {
			v := make([]int64, d)
			for i := range v {
				v[i] = source.Int64N(2*k+1) - k
			}
			return within(v)
		},
		"short": func() []int64 {
			v := make([]int64, d)
			for i := range v {
				v[i] = source.Int64N(5) - 2
			}
			return v
		},
	}
}

// TestBlocks compares what a step hands to the noise with products in int64,
// rounded where the documentation says: after every ⌊2⁶²/K²⌋ records counted from
// the step's start, valid or not. Steps end before, at and after a border.
func TestBlocks(t *testing.T) {
	t.Parallel()
	for _, mu := range []float64{0.5, 50} { // K = 1.1·2²⁴ and 1.1·2²⁹: kernel and integer form
		e := mustNew(t, Config{Clip: 1.1, Columns: 3, Step: 1 << 20, Factorization: "identity"}, dp.Params{Mu: mu, Adjacency: dp.Replace})
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
					addProducts(square, v)
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
