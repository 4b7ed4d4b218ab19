package sgd

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/rival"
)

// BenchmarkAdd measures the cost of a record in a gradient step (checking, shortening, clipping, quantising, testing,
// summing in integers) against a plain step of stochastic gradient descent.
func BenchmarkAdd(b *testing.B) {
	for _, d := range []int{10, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			no := false
			e, err := NewAMB(Config{
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

// plain is a step of stochastic gradient descent on the record (x, y). It is a call, as Add is.
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

// BenchmarkNewtonAdd measures the cost of a record in a step of Newton: checking, shortening, whitening, clipping,
// quantising and testing it, then summing it and its outer product in integers. The rival does only the necessary
// arithmetic in float64: a product with the whitening matrix and a rank-1 update of an upper triangle.
func BenchmarkNewtonAdd(b *testing.B) {
	for _, d := range []int{10, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			e := benchNewton(b, d)
			rows := make([][]float64, 64)
			source := rand.New(rand.NewPCG(1, 2))
			for i := range rows {
				rows[i] = make([]float64, d+1)
				for j := range rows[i] {
					rows[i][j] = source.NormFloat64()
				}
			}
			upper, z := make([]float64, d*(d+1)/2), make([]float64, d)
			first, end := e.Range(e.step + 1)
			slot := first
			m := 0
			rival.Compare(b, 1, func() {
				if slot == end {
					slot = first
					e.open()
				}
				e.Add(slot, rows[slot%64])
				slot++
			}, "whitening+update", func() {
				whitenAndUpdate(upper, z, e.white.Root, rows[m%64][:d])
				m++
			})
		})
	}
}

// benchNewton returns an estimator that has completed its searches.
func benchNewton(b *testing.B, d int) *Newton {
	b.Helper()
	e := mustNewton(b, Config{Columns: append(names(d), "y"), Target: "y", ClipX: 100, Intercept: new(bool)},
		dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
	source := rand.New(rand.NewPCG(3, 4))
	row := make([]float64, d+1)
	for e.phase != descent {
		first, end := e.Range(e.step + 1)
		for slot := first; slot < end; slot++ {
			for j := range row {
				row[j] = source.NormFloat64()
			}
			e.Add(slot, row)
		}
		if _, err := e.Close(dptest.Seeded(e.step)); err != nil {
			b.Fatal(err)
		}
	}
	return e
}

// whitenAndUpdate is the plain code that adds xxᵀ to an upper triangle and sets z to Wx.
//
//go:noinline
func whitenAndUpdate(upper, z, w, x []float64) {
	d := len(x)
	for i := range z {
		var sum float64
		for j, v := range w[i*d:][:d] {
			sum += v * x[j]
		}
		z[i] = sum
	}
	for i, v := range x {
		row := upper[:d-i]
		upper = upper[d-i:]
		for j, u := range x[i:] {
			row[j] += v * u
		}
	}
}

// BenchmarkNewtonEpoch measures the end of an epoch: the noise of a matrix, its eigenvectors, the whitening. It also
// reports the memory that the estimator states.
func BenchmarkNewtonEpoch(b *testing.B) {
	for _, d := range []int{10, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			e := benchNewton(b, d)
			source := rand.New(rand.NewPCG(3, 4))
			row := make([]float64, d+1)
			for e.epoch == 0 && e.done+1 < e.plan.steps(0) {
				first, end := e.Range(e.step + 1)
				for slot := first; slot < end; slot++ {
					for j := range row {
						row[j] = source.NormFloat64()
					}
					e.Add(slot, row)
				}
				if _, err := e.Close(dptest.Seeded(e.step)); err != nil {
					b.Fatal(err)
				}
			}
			for j := range e.hist {
				e.hist[j] += 1 << 16 // as many rows as a later epoch has
			}
			noise := dptest.Seeded(1)
			state, err := e.AppendBinary(nil)
			if err != nil {
				b.Fatal(err)
			}
			before := e.run
			b.ResetTimer()
			for range b.N {
				e.run = before
				e.matrix = make([]float64, len(before.matrix))
				if err := e.end(noise); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(e.Sizes().Peak), "peak-bytes")
			b.ReportMetric(float64(len(state)), "state-bytes")
		})
	}
}
