package eigen

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/testing/rival"
)

// matrices returns symmetric matrices of every kind that could break the algorithm: random, low rank, diagonal, already
// tridiagonal, clustered and graded spectra, zeros, multiples of the identity, and tiny or large entries.
func matrices(n int) map[string][]float64 {
	source := rand.New(rand.NewPCG(1, uint64(n)))
	make2 := func(f func(i, j int) float64) []float64 {
		a := make([]float64, n*n)
		for i := range n {
			for j := range i + 1 {
				a[i*n+j] = f(i, j)
				a[j*n+i] = a[i*n+j]
			}
		}
		return a
	}
	unit := func(int, int) float64 { return source.Float64() - 0.5 }
	x := make([]float64, n)
	for i := range x {
		x[i] = source.Float64() - 0.5
	}
	return map[string][]float64{
		"random":   make2(unit),
		"rank 1":   make2(func(i, j int) float64 { return x[i] * x[j] }),
		"zero":     make2(func(int, int) float64 { return 0 }),
		"ones":     make2(func(int, int) float64 { return 1 }),
		"diagonal": make2(func(i, j int) float64 { return map[bool]float64{true: x[i]}[i == j] }),
		"tridiagonal": make2(func(i, j int) float64 {
			if i-j > 1 {
				return 0
			}
			return x[i] + x[j]
		}),
		"graded": make2(func(i, j int) float64 { return math.Ldexp(source.Float64(), -3*(i+j)) }),
		"graded up": make2(func(i, j int) float64 {
			return math.Ldexp(source.Float64(), -3*(2*n-i-j))
		}),
		"covariance": make2(func(i, j int) float64 { return math.Pow(0.6, float64(i-j)) }),
		"tiny":       make2(func(i, j int) float64 { return 1e-140 * unit(i, j) }),
		"large":      make2(func(i, j int) float64 { return 1e140 * unit(i, j) }),
		"blocks": make2(func(i, j int) float64 {
			if i%2 != j%2 {
				return 0
			}
			return unit(i, j)
		}),
	}
}

// TestSymmetric multiplies the decomposition out again, and compares the eigenvalues with gonum's.
func TestSymmetric(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 4, 7, 16, 50} {
		for name, a := range matrices(n) {
			q := slices.Clone(a)
			values, ok := Symmetric(q, n)
			if !ok {
				t.Fatalf("%s, n = %d: no convergence", name, n)
			}
			var size float64
			for _, v := range a {
				size = max(size, math.Abs(v))
			}
			limit := 8 * float64(n) * 0x1p-52 * (1 + size*float64(n))
			if size > 0 {
				limit = 8 * float64(n) * 0x1p-52 * size * float64(n)
			}
			for i := range n {
				for j := range n {
					var sum, dot float64
					for k := range n {
						sum += values[k] * q[k*n+i] * q[k*n+j]
						dot += q[i*n+k] * q[j*n+k]
					}
					if i == j {
						dot--
					}
					if !(math.Abs(sum-a[i*n+j]) <= limit) {
						t.Fatalf("%s, n = %d: entry (%d, %d) is off by %g of %g", name, n, i, j, sum-a[i*n+j], size)
					}
					if !(math.Abs(dot) <= 8*float64(n)*0x1p-52) {
						t.Fatalf("%s, n = %d: vectors %d and %d are not orthonormal, by %g", name, n, i, j, dot)
					}
				}
			}
			if name == "tiny" || name == "large" {
				continue // gonum v0.17.0 panics when it scales these
			}
			var other mat.EigenSym
			if !other.Factorize(mat.NewSymDense(n, a), false) {
				t.Fatalf("%s, n = %d: the reference fails", name, n)
			}
			slices.Sort(values)
			for i, want := range other.Values(nil) {
				if !(math.Abs(values[i]-want) <= limit) {
					t.Errorf("%s, n = %d: eigenvalue %g, want %g", name, n, values[i], want)
				}
			}
		}
	}
}

// TestGolden pins the bits on every architecture.
func TestGolden(t *testing.T) {
	t.Parallel()
	h := sha256.New()
	for _, name := range []string{"random", "graded", "blocks", "ones"} {
		const n = 12
		a := matrices(n)[name]
		values, _ := Symmetric(a, n)
		for _, x := range append(values, a...) {
			h.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(x)))
		}
	}
	const want = "7422608cfbdfbc2e795a13406654a4daf44c35ea2c53f8b3140dfa6f3ace4736"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("bits changed: %s, were %s", got, want)
	}
}

func BenchmarkSymmetric(b *testing.B) {
	for _, n := range []int{3, 16, 100, 300} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			a := matrices(min(n, 300))["random"]
			m := mat.NewSymDense(n, slices.Clone(a))
			q := make([]float64, n*n)
			rival.Compare(b, n*n*n, func() {
				copy(q, a)
				Symmetric(q, n)
			}, "gonum", func() {
				var e mat.EigenSym
				e.Factorize(m, true)
				var v mat.Dense
				e.VectorsTo(&v)
			})
		})
	}
}
