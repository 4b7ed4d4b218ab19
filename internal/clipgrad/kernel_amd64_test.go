package clipgrad

import (
	"math"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"
)

// TestKernel: the kernel makes the integers of the loop in Go, for every length of rows,
// iterates near and far, clip norms that cut all rows, some and none, and however many
// rows are left over.
func TestKernel(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no AVX2: only the loop in Go runs here")
	}
	defer func() { vector = true }()
	for _, bits := range []int{24, 25} {
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
							t.Fatalf("%d bits, %d×%d at %g, clipped to %g: %v, %d counted; in Go %v, %d", bits, n, d, far, zeta, got, again, want, counted)
						}
					}
				}
			}
		}
	}
	// A residual that is no number, which no caller has, is none for both.
	for _, y := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		var got [2]float64
		for i, kernel := range []bool{false, true} {
			vector = kernel
			x, targets := make([]float64, 8), make([]float64, 8)
			for k := range x {
				x[k] = 0.5
			}
			r := ByResidual(x, targets, nil, 1, 24)
			r.y[3] = y
			w := r.workers[0]
			p := &pass{rows: r, u: []float64{0.1}, top: r.top, quotient: 1, limit: 2, size: blockRows, room: room(24)}
			if kernel {
				addPairs(&w.lanes[0], &r.e[0], &r.y[0], &r.norm[0], &p.u[0], 1, 1, p.quotient, p.top, p.limit)
			} else {
				w.group(p, 0)
				w.group(p, group)
			}
			got[i] = w.lanes[3]
		}
		if !(got[0] == got[1] || math.IsNaN(got[0]) && math.IsNaN(got[1])) {
			t.Errorf("a target of %g gives %g, in Go %g", y, got[1], got[0])
		}
	}
}
