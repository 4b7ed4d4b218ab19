package sgd

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"streamdp/dp"
	"streamdp/internal/rival"
)

// BenchmarkAdd measures a record of a gradient step, checked, shortened where it
// is long, clipped, quantised, tested and summed in integers, against a step of
// stochastic gradient descent as one writes it down.
func BenchmarkAdd(b *testing.B) {
	for _, d := range []int{10, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			no := false
			e, err := New(Config{
				Method: "amb", Columns: append(names(d), "y"), Target: "y", ClipX: 100, Intercept: &no, Radius: 10,
				Clip: "fixed", Zeta: 2, Batch: 1 << 26,
			}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
			if err != nil {
				b.Fatal(err)
			}
			rows := make([][]float64, 64)
			source := rand.New(rand.NewPCG(1, 2))
			for i := range rows {
				rows[i] = make([]float64, d+1)
				for j := range rows[i] {
					rows[i][j] = source.NormFloat64()
				}
			}
			w := make([]float64, d)
			n, m := 0, 0
			rival.Compare(b, 1, func() {
				e.Add(0, rows[n%len(rows)])
				n++
			}, "sgd", func() {
				plain(w, rows[m%len(rows)])
				m++
			})
		})
	}
}

// plain is a step of stochastic gradient descent on the record (x, y), a call as
// Add is one.
//
//go:noinline
func plain(w, row []float64) {
	d := len(w)
	x := row[:d]
	r := -row[d]
	for j, v := range x {
		r += w[j] * v
	}
	for j, v := range x {
		w[j] -= 1e-3 * r * v
	}
}
