package refit

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/rival"
)

// TestTransform compares with the definition, for all combinations of stages.
func TestTransform(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	for _, d := range []int{1, 2, 3, 5, 9} {
		for n := 1; n <= 512; n *= 2 {
			x := make([]float64, n*d)
			for i := range x {
				x[i] = source.NormFloat64()
			}
			want := make([]float64, n*d)
			for i := range n {
				for k := range n {
					sign := 1 - 2*float64(bits.OnesCount(uint(i&k))%2)
					for j := range d {
						want[i*d+j] += sign * x[k*d+j]
					}
				}
			}
			walshHadamard(x, d)
			for i, v := range x {
				if math.Abs(v-want[i]) > 1e-12*float64(n) {
					t.Fatalf("%d×%d: entry %d is %g, want %g", n, d, i, v, want[i])
				}
			}
		}
	}
}

// TestTransformTwice checks H̃H̃ = n·I exactly, on integers, beyond one block.
func TestTransformTwice(t *testing.T) {
	for _, shape := range [][2]int{{1 << 17, 1}, {1 << 15, 7}, {1 << 12, 100}, {2, 1 << 17}} {
		n, d := shape[0], shape[1]
		x := make([]float64, n*d)
		for i := range x {
			x[i] = float64(i*7919%1009 - 500)
		}
		walshHadamard(x, d)
		walshHadamard(x, d)
		for i, v := range x {
			if v != float64(n)*float64(i*7919%1009-500) {
				t.Fatalf("%d×%d: entry %d is %g", n, d, i, v)
			}
		}
	}
}

func TestTransformShapes(t *testing.T) {
	for _, c := range [][2]int{{6, 2}, {5, 1}, {8, 3}, {0, 1}, {0, 0}, {4, 0}, {4, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d numbers in rows of %d were transformed", c[0], c[1])
				}
			}()
			walshHadamard(make([]float64, c[0]), c[1])
		}()
	}
}

// BenchmarkTransform measures a transform against copying the matrix once.
func BenchmarkTransform(b *testing.B) {
	for _, shape := range [][2]int{{1 << 19, 32}, {1 << 17, 9}, {1 << 14, 90}, {1 << 19, 1}} {
		n, d := shape[0], shape[1]
		b.Run(fmt.Sprintf("%dx%d", n, d), func(b *testing.B) {
			x, y := make([]float64, n*d), make([]float64, n*d) // zeros stay finite
			b.SetBytes(int64(8 * n * d))
			rival.Compare(b, n*d, func() { walshHadamard(x, d) }, "copy", func() { copy(y, x) })
		})
	}
}
