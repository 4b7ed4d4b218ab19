package gram

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/streamdp/streamdp/internal/testing/rival"
)

// TestExact compares the float64 kernel with plain int64 products after every record. Records are random rows and rows
// of the largest norm, where one bit more would be lost. The values of K are those near which the number of records
// that fit changes.
func TestExact(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	for _, k := range []int64{
		// ⌊√(2⁵³/4)⌋ is the largest K with the kernel.
		1 << 24, 1<<24 + 1, 3 << 23, 1<<25 - 1, 1 << 25, 33554433, 47453132,
		47453133, 1 << 26, 1<<30 - 1, 1 << 30,
	} {
		for _, d := range []int{1, 2, 3, 4, 5, 8, 17} {
			t.Run(fmt.Sprintf("K=%d/d=%d", k, d), func(t *testing.T) {
				s, want := NewExact(d, k), make([]int64, d*(d+1)/2)
				if kernel := 4*k*k <= 1<<53; kernel != (s.part != nil) {
					t.Fatalf("kernel %t, want %t", s.part != nil, kernel)
				}
				// Reading the total moves the records to int64: read never, sometimes, and always.
				for _, read := range []int{1 << 30, 7, 1} {
					for name, draw := range vectors(source, d, k) {
						records := int(min((1<<62)/(k*k), 200))
						for n := 1; n <= records; n++ {
							v := draw()
							s.Add(v)
							addProducts(want, v)
							if n%read == 0 || n == records {
								if !slices.Equal(s.Total(), want) {
									t.Fatalf("%s: after %d records %v, want %v", name, n, s.sum, want)
								}
							}
						}
						s.Add(draw())
						s.Reset()
						if clear(want); !slices.Equal(s.Total(), want) {
							t.Fatalf("%s: not empty after reset", name)
						}
					}
				}
			})
		}
	}
}

// TestRoundInto compares rounded sums with int64 products that are rounded once: sums of no vector, of one vector,
// which has its own code, and of many. The sums follow each other, to test that none leaves anything behind.
func TestRoundInto(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 4))
	for _, k := range []int64{1 << 24, 1 << 25, 47453133, 1 << 30} { // the kernel is not used for the last two
		for _, d := range []int{1, 2, 5, 17} {
			for name, draw := range vectors(source, d, k) {
				s := NewExact(d, k)
				for _, n := range []int{0, 1, 1, 2, 3, 1, 4, 1, 5, 17} {
					for _, shift := range []uint{0, 1, 24} {
						got, want, sum := make([]int64, d*(d+1)/2), make([]int64, d*(d+1)/2), make([]int64, d*(d+1)/2)
						n := min(n, int((1<<62)/(k*k)))
						for range n {
							v := draw()
							s.Add(v)
							addProducts(sum, v)
						}
						for i, p := range sum {
							start := source.Int64N(1<<40) - 1<<39
							got[i] = start
							if want[i] = start + p>>shift; shift > 0 && p>>(shift-1)&1 == 1 {
								want[i]++
							}
						}
						if s.RoundInto(got, shift); !slices.Equal(got, want) {
							t.Fatalf("K=%d, %s, %d vectors of %d, shift %d: %v, want %v", k, name, n, d,
								shift, got, want)
						}
					}
				}
			}
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
	half := int64(math.Sqrt(float64(k) * float64(k) / 2)) // square root of the largest product off the diagonal
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

// TestSum compares with plain sums of integers, which are exact. Rows come one by one, in pieces of every size, and as
// merged blocks.
func TestSum(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 4))
	for _, d := range []int{1, 2, 3, 4, 7, 16} {
		for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 23} {
			x := make([]float64, n*d)
			for i := range x {
				x[i] = float64(source.IntN(2001) - 1000)
			}
			want := make([]float64, d*(d+1)/2)
			for r := range n {
				row, at := x[r*d:(r+1)*d], 0
				for i := range d {
					for j := i; j < d; j++ {
						want[at] += row[i] * row[j]
						at++
					}
				}
			}
			for _, piece := range []int{1, 2, 3, 5, 100} {
				s, blocks := NewSum(d), NewSum(d)
				for r := 0; r < n; r += piece {
					part := x[r*d : min(r+piece, n)*d]
					s.Add(part)
					block := NewSum(d)
					block.Add(part)
					blocks.Merge(block)
				}
				if !slices.Equal(s.Upper(), want) || !slices.Equal(blocks.Upper(), want) {
					t.Fatalf("d = %d, %d rows by %d: %v and %v, want %v", d, n, piece, s.Upper(), blocks.Upper(), want)
				}
				s.Add(make([]float64, d))
				s.Reset()
				if s.Add(x); !slices.Equal(s.Upper(), want) {
					t.Fatalf("d = %d, %d rows: %v after a reset, want %v", d, n, s.Upper(), want)
				}
			}
		}
	}
}

// BenchmarkSum measures the Gram matrix of a tall matrix against gonum's Syrk.
func BenchmarkSum(b *testing.B) {
	for _, shape := range [][2]int{{1 << 17, 8}, {1 << 17, 26}, {1 << 17, 90}, {1 << 14, 512}} {
		n, d := shape[0], shape[1]
		b.Run(fmt.Sprintf("%dx%d", n, d), func(b *testing.B) {
			x := make([]float64, n*d)
			source := rand.New(rand.NewPCG(5, 6))
			for i := range x {
				x[i] = source.NormFloat64()
			}
			s := NewSum(d)
			c := blas64.Symmetric{Uplo: blas.Upper, N: d, Stride: d, Data: make([]float64, d*d)}
			a := blas64.General{Rows: n, Cols: d, Stride: d, Data: x}
			rival.Compare(b, n, func() {
				s.Reset()
				s.Add(x)
			}, "Syrk", func() { blas64.Syrk(blas.Trans, 1, a, 0, c) })
		})
	}
}
