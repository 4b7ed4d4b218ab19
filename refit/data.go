package refit

import (
	"fmt"
	"math"
)

// Data is a window of regression rows in the unit ball: features x ∈ ℝᵈ with ‖x‖₂ ≤ 1 and a target |y| ≤ 1. A null row
// is all zeros, but its position counts. For newton with an intercept, the last feature is a constant, and the bound
// holds for the other features.
//
// Rows are clipped when they are added, and sensitivities rely on the bounds. Only solvers that test norms in integers
// do not need them.
type Data struct {
	dim  int
	x, y []float64
	// If exact is set, solvers round sums over the rows only once, so that the sums do not depend on the order of the
	// rows; see [Refit.NewPart].
	exact bool
}

// NewData returns an empty window for rows of dim features, with memory for the given number of rows.
func NewData(dim, rows int) *Data {
	if dim < 1 || rows < 0 {
		panic(fmt.Sprintf("refit: window of %d rows of %d features", rows, dim))
	}
	return &Data{dim: dim, x: make([]float64, 0, rows*dim), y: make([]float64, 0, rows)}
}

// Dim returns the number of features d.
func (w *Data) Dim() int { return w.dim }

// Len returns the number of rows n, including null rows.
func (w *Data) Len() int { return len(w.y) }

// Add adds a row. It shortens x to norm 1 and moves y to the nearest number in [−1, 1]. A row that is not finite or
// does not have d features becomes a null row.
func (w *Data) Add(x []float64, y float64) {
	w.AddNull()
	row := w.row(len(w.y) - 1)
	if len(x) == w.dim && clip(row, x, 1) && y-y == 0 {
		w.y[len(w.y)-1] = min(max(y, -1), 1)
		return
	}
	clear(row)
}

// clip sets dst to x, shortened to norm bound. It returns false, and dst is meaningless, if x is not finite.
func clip(dst, x []float64, bound float64) bool {
	norm, ok := norm(x)
	if norm > bound {
		scale := bound / norm
		if scale < 0x1p-900 {
			// The quotient may have lost some or all of its digits, so shorten twice.
			for j, v := range x {
				dst[j] = math.Ldexp(v, -600)
			}
			return clip(dst, dst, bound)
		}
		for j, v := range x {
			dst[j] = float64(v * scale)
		}
		return ok
	}
	copy(dst, x)
	return ok
}

// AddNull adds a null row.
func (w *Data) AddNull() {
	for range w.dim {
		w.x = append(w.x, 0)
	}
	w.y = append(w.y, 0)
}

// Reset empties the window and retains its memory.
func (w *Data) Reset() { w.x, w.y = w.x[:0], w.y[:0] }

// clone returns a copy whose rows a solver may overwrite.
func (w *Data) clone() *Data {
	return &Data{w.dim, append([]float64(nil), w.x...), append([]float64(nil), w.y...), w.exact}
}

// row returns row i.
func (w *Data) row(i int) []float64 { return w.x[i*w.dim:][:w.dim] }

// norm returns ‖x‖₂, rounded up, and whether x is finite.
func norm(x []float64) (float64, bool) {
	var top uint64 // bits of the largest magnitude; bits are ordered like magnitudes
	for _, v := range x {
		top = max(top, math.Float64bits(v)&^(1<<63))
	}
	largest := math.Float64frombits(top)
	if largest-largest != 0 {
		return 0, false
	}
	if largest == 0 {
		return 0, true
	}
	_, e := math.Frexp(largest)
	var sum float64
	if e > -1000 && e < 1000 { // 2^−e is a normal number, so multiplying by it equals Ldexp
		unit := math.Ldexp(1, -e)
		for _, v := range x {
			s := float64(v * unit)
			sum += float64(s * s)
		}
	} else {
		for _, v := range x {
			s := math.Ldexp(v, -e)
			sum += float64(s * s)
		}
	}
	return math.Ldexp(math.Sqrt(sum)*(1+0x1p-48), e), true
}
