package refit

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/gram"
	"github.com/streamdp/streamdp/internal/testing/rival"
)

// keyed returns the noise of an epoch with fixed keys, window by window.
func keyed(b testing.TB) func() dp.Noise {
	e, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "bench", 1, [16]byte{}, [32]byte{})
	if err != nil {
		b.Fatal(err)
	}
	h, step := dp.NewTranscript([32]byte{3}), uint64(0)
	return func() dp.Noise {
		step++
		h.AbsorbRecords(1)
		return e.Step(step, &h)
	}
}

// plainDescent is T steps of gradient descent without privacy, in the plainest code.
func plainDescent(w *Data, theta, g []float64, steps int, rate float64) {
	d := w.dim
	for range steps {
		clear(g)
		for i, r := range w.y {
			row := w.x[i*d : (i+1)*d]
			for j, v := range row {
				r -= v * theta[j]
			}
			for j, v := range row {
				g[j] += r * v
			}
		}
		for j, v := range g {
			theta[j] += rate * v
		}
	}
}

// BenchmarkNewton measures newton over a window, on one processor. The rival computes a Gram matrix and makes the same
// number of passes of plain gradient descent over the same rows.
func BenchmarkNewton(b *testing.B) {
	for _, shape := range [][2]int{{36_000, 8}, {13_500, 26}} {
		n, d := shape[0], shape[1]
		b.Run(fmt.Sprintf("%dx%d", n, d), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			w := window(n, d, 1)
			s, err := newNewton(0.5, dp.ZeroOut, 24, n, d, false)
			if err != nil {
				b.Fatal(err)
			}
			noise, copied := keyed(b), w.clone()
			theta, g, sum := make([]float64, d), make([]float64, d), gram.NewSum(d)
			rival.Compare(b, n, func() {
				copy(copied.x, w.x)
				copy(copied.y, w.y)
				if _, _, err := s.solve(copied, noise()); err != nil {
					b.Fatal(err)
				}
			}, "descent", func() {
				clear(theta)
				plainDescent(w, theta, g, s.trace.steps, 1e-6)
				sum.Reset()
				sum.Add(w.x)
			})
			b.ReportMetric(float64(s.trace.steps), "steps")
		})
	}
}

// BenchmarkNewtonTwo compares newton on two processors with newton on one.
func BenchmarkNewtonTwo(b *testing.B) {
	if runtime.NumCPU() < 2 {
		b.Skip("one processor")
	}
	const n, d = 1 << 16, 16
	w := window(n, d, 1)
	noise, copied := keyed(b), w.clone()
	solve := func(processors int) func() {
		return func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
			copy(copied.x, w.x)
			copy(copied.y, w.y)
			s, err := newNewton(0.5, dp.ZeroOut, 24, n, d, false)
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := s.solve(copied, noise()); err != nil {
				b.Fatal(err)
			}
		}
	}
	rival.Compare(b, n, solve(2), "one", solve(1))
}

// BenchmarkIHM measures iterative Hessian mixing that draws the squares of its sketches. Rivals are the method with
// explicit sketches, and the normal equations without privacy, from this package's sums and from gonum's.
func BenchmarkIHM(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const n, d = 1 << 17, 90
	source := rand.New(rand.NewPCG(1, 1))
	w := NewData(d, n)
	x := make([]float64, d)
	for range n {
		for j := range x {
			x[j] = source.NormFloat64() / 10
		}
		w.Add(x, x[0])
	}
	p := dp.Params{Epsilon: 1, Delta: 1e-10, Adjacency: dp.ZeroOut}
	k := sketchRows(d, 3, p.Delta)
	c, err := calibrateIHM(Exact, p, k, 3, 0.2, false)
	if err != nil {
		b.Fatal(err)
	}
	noise, used := keyed(b), w.clone()
	fresh := func() { // a solver takes over the rows' memory, so each run needs a copy
		copy(used.x, w.x)
		copy(used.y, w.y)
	}
	solve := func(dense bool) func() {
		return func() {
			s := &ihmSolver{noise: c, params: p, rows: k, iterations: 3, clip: 1, dense: dense}
			if _, _, err := s.solve(used, noise()); err != nil {
				b.Fatal(err)
			}
		}
	}
	normal := func() {
		s := sumsOf(w)
		l, theta := full(s.gram(), d, 0), s.xy()
		if !cholesky(l, d) {
			b.Fatal("not positive definite")
		}
		forward(l, theta)
		backward(l, theta)
	}
	// The normal equations with another library: a rival that does not change together with this package.
	rows := blas64.General{Rows: n, Cols: d, Stride: d, Data: slices.Clone(w.x)}
	target := blas64.Vector{N: n, Inc: 1, Data: slices.Clone(w.y)}
	square := blas64.Symmetric{Uplo: blas.Lower, N: d, Stride: d, Data: make([]float64, d*d)}
	product := blas64.Vector{N: d, Inc: 1, Data: make([]float64, d)}
	gonum := func() {
		blas64.Syrk(blas.Trans, 1, rows, 0, square)
		blas64.Gemv(blas.Trans, 1, rows, target, 0, product)
		if !cholesky(square.Data, d) {
			b.Fatal("not positive definite")
		}
		forward(square.Data, product.Data)
		backward(square.Data, product.Data)
	}
	formed := func() { // copying takes a thousandth of the time
		fresh()
		solve(true)()
	}
	b.Run("normal", func(b *testing.B) { rival.CompareFresh(b, n, fresh, solve(false), "normal", normal) })
	b.Run("gonum", func(b *testing.B) { rival.CompareFresh(b, n, fresh, solve(false), "gonum", gonum) })
	b.Run("dense", func(b *testing.B) { rival.CompareFresh(b, n, fresh, solve(false), "dense", formed) })
}

// BenchmarkFast measures fast iterative Hessian mixing against the solver that draws the square of a dense sketch.
func BenchmarkFast(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, shape := range [][2]int{{1 << 17, 32}, {1 << 14, 512}} {
		n, d := shape[0], shape[1]
		b.Run(fmt.Sprintf("%dx%d", n, d), func(b *testing.B) {
			w := window(n, d, 1)
			p := dp.Params{Epsilon: 1, Delta: 1e-10, Adjacency: dp.ZeroOut}
			noise, copied := keyed(b), w.clone()
			solve := func(c Config) func() {
				return func() {
					copy(copied.x, w.x)
					copy(copied.y, w.y)
					if _, _, err := Solve(c, p, copied, noise()); err != nil {
						b.Fatal(err)
					}
				}
			}
			rival.Compare(b, n, solve(Config{Solver: "fast-ihm", Iterations: 3}), "ihm", solve(Config{Solver: "ihm"}))
		})
	}
}

// BenchmarkAdd measures adding a record to a window.
func BenchmarkAdd(b *testing.B) {
	for _, c := range []string{"newton", "linmix"} {
		b.Run(c, func(b *testing.B) {
			config := configs()[c]
			config.Window = 1 << 22
			r := mustRefit(b, config, generous)
			row := []float64{1, 0.5, -1}
			b.ReportAllocs()
			for b.Loop() {
				if r.rows == config.Window {
					r.reset()
				}
				r.Add(0, row)
			}
		})
	}
}
