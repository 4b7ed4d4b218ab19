package refit

import (
	"errors"

	"gonum.org/v1/gonum/mat"
)

// NonPrivate is a solution without any guarantee, for comparison. Do not publish it or anything computed from it.
type NonPrivate struct {
	Theta []float64
}

// LeastSquares returns the shortest θ that minimises ‖Y − Xθ‖. It is not private.
//
// Cost: O(nd²) for a QR factorization of [X, Y], then O(d³). A direction gets no coefficient if the spread of the rows
// in it is less than 2⁻⁵⁰·max(n, d) times their largest spread.
// Errors: the factorization does not converge.
func LeastSquares(w *Data) (NonPrivate, error) {
	d := w.dim
	rows := max(w.Len(), d+1) // padding with rows of zeros changes nothing
	a := mat.NewDense(rows, d+1, nil)
	for i, y := range w.y {
		copy(a.RawRowView(i), w.row(i))
		a.Set(i, d, y)
	}
	var qr mat.QR
	var r mat.Dense
	qr.Factorize(a)
	qr.RTo(&r)
	// R holds Qᵀ[X, Y].
	var svd mat.SVD
	if !svd.Factorize(r.Slice(0, d, 0, d), mat.SVDFull) {
		return NonPrivate{}, errors.New("the singular values did not converge")
	}
	values, rank := svd.Values(nil), 0
	for _, v := range values {
		if v > values[0]*0x1p-50*float64(rows) {
			rank++
		}
	}
	if rank == 0 {
		return NonPrivate{make([]float64, d)}, nil
	}
	var theta mat.Dense
	svd.SolveTo(&theta, r.Slice(0, d, d, d+1), rank)
	return NonPrivate{mat.Col(nil, 0, &theta)}, nil
}
