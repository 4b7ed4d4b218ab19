package newton

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"
)

// TestKernel checks that the kernel gives the same bits as the loop in Go, for every number of columns, also beyond a
// multiple of eight, and for zeros of either sign. It must write nothing behind its rows.
func TestKernel(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no AVX2: only the loop in Go runs here")
	}
	defer func() { vector = true }()
	source := rand.New(rand.NewPCG(21, 22))
	for d := 1; d < 40; d++ {
		w := &Whitening{Root: make([]float64, d*d), dim: d}
		for i := range w.Root {
			w.Root[i] = math.Ldexp(source.NormFloat64(), source.IntN(40))
		}
		x := make([]float64, 4*d)
		for i := range x {
			x[i] = []float64{source.NormFloat64(), 0, math.Copysign(0, -1), 1e-310}[source.IntN(4)]
		}
		var rows [2][]uint64
		for i, kernel := range []bool{false, true} {
			vector = kernel
			dst := make([]float64, 4*d+8)
			w.ApplyFour(dst[:4*d], x)
			for _, v := range dst {
				rows[i] = append(rows[i], math.Float64bits(v))
			}
		}
		if !slices.Equal(rows[0], rows[1]) {
			t.Fatalf("d = %d: rows %x, in Go %x", d, rows[1], rows[0])
		}
	}
}
