package refit

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// wishart is a draw of X̃ᵀX̃ for a sketch X̃ = SX + ηξ of k rows. S and ξ have independent entries N(0, 1), so the rows
// of X̃ are independent N(0, Σ), Σ = XᵀX + η²I. X̃ᵀX̃ has the distribution of
//
//	X̃ᵀX̃ = L·A·Aᵀ·Lᵀ in law,  Σ = LLᵀ,  A lower triangular,
//	A_ii² ~ χ²_{k−i+1} for i = 1 … d,  A_ij ~ N(0, 1) for i > j
//
// so the sketch itself is never computed.
//
// Cost: k·d Gaussians, for any n.
// Source: Bartlett (1933).
type wishart struct {
	l, a []float64
	k    int
}

// drawWishart draws A, for k ≥ d rows. It draws a χ² as a sum of squares, so that it never
// rejects a draw.
func drawWishart(l []float64, d, k int, row dp.Row) *wishart {
	z := make([]float64, k*d)
	row.Fill(z)
	w := &wishart{l: l, a: make([]float64, d*d), k: k}
	for i := range d {
		squares := z[:k-i]
		w.a[i*d+i] = math.Sqrt(vector.Dot2(squares, squares))
		z = z[k-i:]
		z = z[copy(w.a[i*d:][:i], z):]
	}
	return w
}

// solve replaces g by (X̃ᵀX̃/k)⁻¹g. It takes four triangular solves.
func (w *wishart) solve(g []float64) {
	forward(w.l, g)
	forward(w.a, g)
	backward(w.a, g)
	backward(w.l, g)
	for j := range g {
		g[j] *= float64(w.k)
	}
}

// add adds X̃ᵀX̃ to sum.
func (w *wishart) add(sum []float64, d int) { addSquare(sum, lowerProduct(w.l, w.a, d), d) }

// formed is a Hessian that was computed explicitly, as its Cholesky factor.
type formed struct {
	l     []float64
	scale float64
}

// form factors h/scale and overwrites h. It fails if the matrix is not positive definite.
func form(h []float64, d int, scale float64) (hessian, error) {
	if !cholesky(h, d) {
		return nil, errFailed
	}
	return formed{h, scale}, nil
}

func (f formed) solve(g []float64) {
	forward(f.l, g)
	backward(f.l, g)
	for j := range g {
		g[j] *= f.scale
	}
}

// hessian is an estimate of XᵀX that preconditions gradients.
type hessian interface {
	// solve replaces g by H⁻¹g.
	solve(g []float64)
}
