package moments

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"streamdp/dp"
	"streamdp/internal/rival"
)

// BenchmarkAdd measures a record, quantised, tested and added to both moments
// exactly, against what a program without privacy would do: a float64 sum and a
// float64 rank-1 update of the upper triangle.
func BenchmarkAdd(b *testing.B) {
	for _, d := range []int{3, 16, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			e, err := New(Config{Clip: 1.3, Columns: d, Step: 1 << 32, Factorization: "identity"},
				dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
			if err != nil {
				b.Fatal(err)
			}
			rows := make([][]float64, 64) // a few, for the branch of clipping
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
