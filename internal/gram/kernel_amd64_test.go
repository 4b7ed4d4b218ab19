package gram

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"
)

// TestKernels compares the results of the vector kernels with the loops in Go, bit for bit: It compares sums of rows of
// all magnitudes and of every length around whole vectors. It also compares rounded products of the largest and of
// random integers, at every shift, including products halfway between two results.
func TestKernels(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no AVX2: only the loops in Go run here")
	}
	defer func() { vector, fused = true, cpu.X86.HasFMA }()
	source := rand.New(rand.NewPCG(7, 8))
	for _, d := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 31, 64, 65} {
		for range 20 {
			x := make([]float64, group*d)
			for i := range x {
				if x[i] = math.Ldexp(source.NormFloat64(), source.IntN(120)-60); source.IntN(20) == 0 {
					x[i] = math.Copysign(0, x[i])
				}
			}
			start := make([]float64, d*(d+1)/2)
			for i := range start {
				start[i] = source.NormFloat64()
			}
			var got [2][]float64
			for i, kernels := range []bool{false, true} {
				got[i] = slices.Clone(start)
				addGroup(got[i], x, d, kernels)
			}
			for i, v := range got[0] {
				if math.Float64bits(v) != math.Float64bits(got[1][i]) {
					t.Fatalf("rows of %d, entry %d: %x in Go, and %x", d, i, v, got[1][i])
				}
			}
		}
	}
	const most = 47453132 // the largest norm in float64: its square is just below 2⁵¹
	for name, largest := range map[string]int64{"largest": most, "24 bits": 1 << 24, "small": 5} {
		for shift := uint(1); shift <= 52; shift++ {
			for _, d := range []int{1, 2, 3, 4, 5, 8, 9, 17} {
				k, x, start := make([]int64, d), make([]float64, d), make([]int64, d*(d+1)/2)
				for i := range k {
					k[i] = source.Int64N(2*largest+1) - largest
					switch source.IntN(4) {
					case 0:
						k[i] = largest - 2*largest*source.Int64N(2)
					case 1: // products halfway between two results
						k[i] &^= 1<<min(shift/2, uint(bits.Len64(uint64(largest)))-1) - 1
					}
					x[i] = float64(k[i])
				}
				for i := range start {
					start[i] = source.Int64N(1<<62) - 1<<61
				}
				want, got := slices.Clone(start), slices.Clone(start)
				addRounded(want, k, 1<<(shift-1), shift)
				addNearest(got, x, shift)
				if !slices.Equal(got, want) {
					t.Fatalf("%s, products of %v, shift %d: %v, want %v", name, k, shift, got, want)
				}
			}
		}
	}
	// Without the kernels, sums are also exact.
	vector, fused = false, false
	for _, d := range []int{1, 2, 5, 17} {
		for name, draw := range vectors(source, d, most) {
			s, want := NewExact(d, most), make([]int64, d*(d+1)/2)
			for n := 1; n <= 50; n++ {
				v := draw()
				s.Add(v)
				addProducts(want, v)
				if n%7 == 0 && !slices.Equal(s.Total(), want) {
					t.Fatalf("%s, without kernels, after %d records: %v, want %v", name, n, s.sum, want)
				}
			}
			got := make([]int64, len(want))
			s.RoundInto(got, 24)
			for i, p := range want {
				if got[i] != (p+1<<23)>>24 {
					t.Fatalf("%s, without kernels: entry %d is %d of %d", name, i, got[i], p)
				}
			}
		}
	}
}
