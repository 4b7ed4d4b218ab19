package sgd

import (
	"errors"

	"gonum.org/v1/gonum/mat"
)

// LeastSquares returns the θ that minimises Σ(⟨x_i, θ⟩ − y_i)²; if there are several, the shortest. Compare private
// solvers with it.
//
// Privacy: none.
// Cost: O(nd²).
// Errors: there are fewer records than features.
func LeastSquares(s *Sample) ([]float64, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	if s.Len() < s.D {
		return nil, errors.New("there are fewer records than coefficients")
	}
	var svd mat.SVD
	if !svd.Factorize(mat.NewDense(s.Len(), s.D, s.X), mat.SVDThin) {
		return nil, errors.New("the singular values did not converge")
	}
	rank := svd.Rank(1e-12)
	if rank == 0 {
		return make([]float64, s.D), nil
	}
	var theta mat.Dense
	svd.SolveTo(&theta, mat.NewDense(s.Len(), 1, s.Y), rank)
	return mat.Col(nil, 0, &theta), nil
}
