package moments

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/rival"
)

// BenchmarkAdd measures adding one record: it is quantised, checked and added to both moments exactly. The rival is the
// work of a program without privacy: a float64 sum and a float64 rank-1 update of the upper triangle.
func BenchmarkAdd(b *testing.B) {
	for _, d := range []int{3, 16, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			e, err := New(Config{Clip: 1.3, Columns: dptest.Columns(d), Step: 1 << 32, Factorization: "identity"},
				dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
			if err != nil {
				b.Fatal(err)
			}
			// different rows, so that the processor cannot always predict the branch for clipping
			rows := make([][]float64, 64)
			source := rand.New(rand.NewPCG(1, 2))
			for i := range rows {
				rows[i] = make([]float64, d)
				for j := range d {
					rows[i][j] = source.NormFloat64()
				}
			}
			sum, square := make([]float64, d), make([]float64, d*(d+1)/2)
			n, m := 0, 0
			rival.Compare(b, 1, func() {
				e.Add(0, rows[n%len(rows)])
				n++
			}, "rank1", func() {
				x := rows[m%len(rows)]
				m++
				for i, v := range x {
					sum[i] += v
				}
				rankOne(square, x)
			})
		})
	}
}

// BenchmarkStep measures a whole step up to the drawing of noise: the work of BenchmarkAdd, the last block, and the
// rounding of squares to their lattice. If a step has one record, the last two parts are needed for each record.
func BenchmarkStep(b *testing.B) {
	for _, d := range []int{10, 100, 1000} {
		for _, step := range []int{1, 100} {
			b.Run(fmt.Sprintf("d=%d/step=%d", d, step), func(b *testing.B) {
				e, err := New(
					Config{Method: "jme", Clip: 1.3, Columns: dptest.Columns(d), Step: uint64(step),
						Factorization: "identity"},
					dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
				if err != nil {
					b.Fatal(err)
				}
				rows := make([][]float64, 64)
				source := rand.New(rand.NewPCG(1, 2))
				for i := range rows {
					rows[i] = make([]float64, d)
					for j := range d {
						rows[i][j] = source.NormFloat64()
					}
				}
				square := make([]float64, d*(d+1)/2)
				rival.Compare(b, step, func() {
					for i := range step {
						e.Add(0, rows[i%len(rows)])
					}
					e.endBlock()
					e.rows = 0
				}, "rank1", func() {
					for i := range step {
						rankOne(square, rows[i%len(rows)])
					}
				})
			})
		}
	}
}

// rankOne adds the upper triangle of xxᵀ.
func rankOne(square, x []float64) {
	for i, v := range x {
		tail := x[i:]
		row := square[:len(tail)]
		square = square[len(tail):]
		for j, y := range tail {
			row[j] += v * y
		}
	}
}

// BenchmarkMethods measures a step of one record and its release for every method, compared with joint estimation.
func BenchmarkMethods(b *testing.B) {
	for _, d := range []int{10, 100} {
		for _, method := range []string{"ime", "pp_debiased", "combined"} {
			b.Run(fmt.Sprintf("%s/d=%d", method, d), func(b *testing.B) {
				row := make([]float64, d)
				row[0] = 0.5
				steps := func(method string) func() {
					e, err := New(
						Config{Method: method, Clip: 1.3, Columns: dptest.Columns(d), Step: 1,
							Factorization: "identity"},
						dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
					if err != nil {
						b.Fatal(err)
					}
					noise, step := keyed(b, 1), uint64(0)
					return func() {
						step++
						e.Add(step-1, row)
						if _, err := e.Close(noise(step)); err != nil {
							b.Fatal(err)
						}
					}
				}
				rival.Compare(b, 1, steps(method), "jme", steps("jme"))
			})
		}
	}
}

// BenchmarkClose measures the end of a step: keys, drawing and correlating noise for both moments, sums, standard
// errors and the release, with the covariance. The rival only draws the same number of Gaussians, without protecting
// anything.
func BenchmarkClose(b *testing.B) {
	for _, kind := range []string{"identity", "phased"} {
		for _, d := range []int{3, 16, 100} {
			b.Run(fmt.Sprintf("%s/d=%d", kind, d), func(b *testing.B) {
				e, err := New(Config{Clip: 1.3, Columns: dptest.Columns(d), Step: 100, Factorization: kind},
					dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
				if err != nil {
					b.Fatal(err)
				}
				noise := keyed(b, 1)
				step := uint64(0)
				closeStep := func() {
					step++
					if _, err := e.Close(noise(step)); err != nil {
						b.Fatal(err)
					}
				}
				for range 1000 { // passes through nine phases of the phased factorization
					closeStep()
				}
				draws := d * (d + 3) / 2
				source := rand.New(rand.NewChaCha8([32]byte{}))
				rival.Compare(b, draws, closeStep, "NormFloat64", func() {
					for range draws {
						benchSink += source.NormFloat64()
					}
				})
			})
		}
	}
}

var benchSink float64
