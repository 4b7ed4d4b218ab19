package clipgrad

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"
)

// TestKernel checks that the kernel gives the same integers as the loop in Go. It varies the length of rows, the
// distance of the iterate, the clip norm (all, some or no rows are clipped) and the number of rows after the last whole
// group.
func TestKernel(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no AVX2: only the loop in Go runs here")
	}
	defer func() { vector = true }()
	for _, bits := range []int{24, 25, 26, 29, 30} {
		for _, d := range []int{1, 2, 3, 4, 5, 8, 17, 64, 91} {
			for _, n := range []int{4, 7, 8, 12, 127, 128, 131, 1000, 5001} {
				if n*d > 100_000 {
					continue
				}
				r, _ := problem(uint64(n+d), n, d, bits, n%2 == 0)
				for _, far := range []float64{0, 1e-300, 0.3, 1e140} {
					u := make([]float64, d)
					for j := range u {
						u[j] = far * (float64(j) - 0.7)
					}
					for _, zeta := range []float64{1e-100, 0.2, 1e100} {
						want, got := make([]int64, d), make([]int64, d)
						vector = false
						counted := r.Sum(want, u, zeta, 0.4, bits)
						vector = true
						if again := r.Sum(got, u, zeta, 0.4, bits); again != counted || !slices.Equal(got, want) {
							t.Fatalf("%d bits, %d×%d at %g, clipped to %g: %v, %d counted; in Go %v, %d", bits, n, d,
								far, zeta, got, again, want, counted)
						}
					}
				}
			}
		}
	}
	// Callers have no residual that is not finite. Such a residual weighs no more than any other.
	for _, y := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		var got [2]int64
		for i, kernel := range []bool{false, true} {
			vector = kernel
			x, targets := make([]float64, 2*group), make([]float64, 2*group)
			x[3] = 0.5
			r := ByResidual(x, targets, nil, 1, 24)
			r.Prepare(0, 2*group)
			r.y[3] = y
			w := r.workers[0]
			p := &pass{rows: r, u: []float64{0.1}, top: r.top, quotient: 1, limit: 2, size: blockRows}
			w.rows(p, 0, 2*group)
			got[i] = w.block[0]
		}
		if got[0] != got[1] || got[0] != 1<<47 && got[0] != -1<<47 {
			t.Errorf("a target of %g gives %d, in Go %d", y, got[1], got[0])
		}
	}
}

// TestRoundColumns checks that the kernel gives the same integers as the loop in Go, in the same order and with the
// same squares, for every number of columns.
func TestRoundColumns(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no AVX2: only the loop in Go runs here")
	}
	defer func() { vector = true }()
	source := rand.New(rand.NewPCG(5, 6))
	for n := 1; n < 20; n++ {
		x0, x1 := make([]float64, n), make([]float64, n)
		for j := range n {
			x0[j], x1[j] = source.NormFloat64(), source.NormFloat64()
		}
		x0[n/2] = 2.5 // a half rounds to even
		for _, unit := range []float64{1, 1 << 10, 0x1.8p20, -7} {
			var dst [2][]uint64 // as bits, because a word may be NaN
			var squares [2][2]float64
			for i, kernel := range []bool{false, true} {
				vector = kernel
				packed := make([]float64, words*n)
				squares[i][0], squares[i][1] = roundPair(packed, x0, x1, unit, 3*unit)
				for _, word := range packed {
					dst[i] = append(dst[i], math.Float64bits(word))
				}
			}
			if !slices.Equal(dst[0], dst[1]) || squares[0] != squares[1] {
				t.Fatalf("%v and %v times %g: %#x, squares %v; in Go %#x, %v", x0, x1, unit, dst[1], squares[1],
					dst[0], squares[0])
			}
			for j := range n {
				word := dst[1][words*j]
				if k0, k1 := math.RoundToEven(x0[j]*unit),
					math.RoundToEven(x1[j]*(3*unit)); float64(int32(word)) != k0 || float64(int32(word>>32)) != k1 {
					t.Fatalf("%g and %g times %g: %#x", x0[j], x1[j], unit, word)
				}
			}
		}
	}
}
