package refit

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// adasspSolver is adaptive sufficient-statistics perturbation. It adds noise to the Gram matrix and to XᵀY, and a ridge
// to the Gram matrix. A private lower bound of λ_min makes the ridge as small as the noise allows:
//
//	λ̃ = max(0, λ_min(XᵀX) + s·Z − s·shift)
//	ridge = max(0, s_G·√(d·log(2d²/ϱ)) − λ̃)
//	θ = (XᵀX + N + ridge·I)⁻¹(XᵀY + noise)
//
// The noise of each release is s times the release's sensitivity. The sensitivity is 1 for λ_min, √S for XᵀX in the
// Frobenius norm (N is symmetric, with s_G = s√S on its diagonal), and S for XᵀY, where S = 1 under zero-out and 2
// under replace.
//
// Privacy: three exact Gaussian releases on lattices, together √3/s-Gaussian private. Without the test of λ_min there
// are two releases, together √2/s-Gaussian private. The guarantee never fails, not even with a small probability.
// Cost: O(nd²) time, O(d²) memory in addition to the window, which it overwrites.
// Source: Wang (2018) as in Lev et al., Algorithm 6.
type adasspSolver struct {
	params dp.Params
	s      float64
	shift  float64 // margin of the test in units of s; 0 without the test
	test   bool
}

// calibrateAdaSSP returns s:
//
//	exact     √3/μ, or √2/μ without the test, for the μ of (ε, δ)
//	analytic  1/μ, for the μ of (ε/3, δ/3)
//	paper     √(2 log(6/δ))/(ε/3)
//
// Errors: acc is rdp (exact is better); acc is paper, under replace or where the paper's noise does not give (ε, δ).
func calibrateAdaSSP(acc Accounting, p dp.Params, test bool) (*adasspSolver, error) {
	mu, err := p.Budget()
	if err != nil {
		return nil, err
	}
	solver := &adasspSolver{params: p, test: test}
	releases := 2.0
	if test {
		releases = 3
		solver.shift = math.Sqrt(2 * math.Log(6/p.Delta))
	}
	switch acc {
	case Exact:
		solver.s = math.Sqrt(releases) / mu * dp.RoundUp
		return solver, nil
	case Analytic, Paper:
		if p.Mu != 0 {
			return nil, fmt.Errorf("accounting %q splits epsilon and delta: give epsilon and delta, not mu", acc)
		}
		if acc == Analytic {
			solver.s, err = dp.Sigma(p.Epsilon/3, p.Delta/3, 1)
			return solver, err
		}
		if p.Adjacency != dp.ZeroOut {
			return nil, errPaper
		}
		solver.s = math.Sqrt(2*math.Log(6/p.Delta)) / (p.Epsilon / 3)
		if ok, err := solver.cost().Within(p.Epsilon, p.Delta); err != nil || !ok {
			return nil, errors.Join(err,
				fmt.Errorf("the paper's calibration cannot reach (epsilon, delta) = (%g, %g)",
					p.Epsilon, p.Delta))
		}
		return solver, nil
	}
	return nil, fmt.Errorf("accounting is %q, must be %q, %q or %q for AdaSSP", acc, Exact, Analytic, Paper)
}

func (s *adasspSolver) cost() dp.Cost {
	releases := 2.0
	if s.test {
		releases = 3
	}
	return dp.Cost{Adjacency: s.params.Adjacency, Mu: math.Sqrt(releases) / s.s * (1 + 0x1p-50)}
}

// fits returns an error if the Gram matrix of d features has no lattice.
func (s *adasspSolver) fits(d int) error {
	_, err := newton.NewGram(d, 1, 1/s.s, s.params.Adjacency, s.params.Bits())
	return err
}

func (s *adasspSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	return attempt(s.prepare, w, noise)
}

func (s *adasspSolver) prepare(w *Data) (solution, error) {
	n, d, bits, a := w.Len(), w.dim, s.params.Bits(), s.params.Adjacency
	least := 0.0
	if s.test {
		least = leastEigenvalue(sumsOf(w).gram(), d)
	}
	g, err := newton.NewGram(d, 1, 1/s.s, a, bits)
	if err != nil {
		return nil, err
	}
	g.Flat, g.Once = true, w.exact
	g.AddRows(w.x, w.dim)
	gradient, err := newGradients(w, a, 1, s.s*a.Factor(), bits)
	if err != nil {
		return nil, err
	}
	return func(noise dp.Noise) (theta []float64, eta float64, err error) {
		var lambda float64
		if s.test {
			if lambda, err = lower(noise, "adassp/lambda", least, eigenError(n, d, 1), 1, s.s, s.shift,
				bits); err != nil {
				return nil, 0, err
			}
		}
		upper, err := g.Release(noise, "adassp/gram")
		if err != nil {
			return nil, 0, err
		}
		// At θ = 0 with a clip norm of 1, the gradient is XᵀY.
		xy := gradient.release(noise, "adassp/xty", make([]float64, d))
		theta = solveSymmetric(upper, d, ridgeFor(s.s*math.Sqrt(a.Factor()), lambda, float64(d), utility(s.params)), xy)
		if !vector.Finite(theta) {
			return nil, 0, errFailed
		}
		return theta, 0, nil
	}, nil
}

// ridgeFor returns max(0, s·√(d·log(2d²/ϱ)) − λ̃). The norm of the noise matrix exceeds the first term with probability
// at most ϱ. λ̃ is subtracted because the data contribute at least that much.
func ridgeFor(s, lambda, d, failure float64) float64 {
	return max(0, float64(s*math.Sqrt(d*newton.Log(2*d*d/failure)))-lambda)
}

// solveSymmetric returns (A + ridge·I)⁻¹b for the upper triangle of a symmetric A, which need not be positive definite.
func solveSymmetric(upper []float64, d int, ridge float64, b []float64) []float64 {
	values, vectors := newton.Eigen(upper, d)
	x := make([]float64, d)
	for k, v := range values {
		var along float64
		for i, y := range b {
			along += float64(vectors[i*d+k] * y)
		}
		along /= v + ridge
		for i := range x {
			x[i] += float64(along * vectors[i*d+k])
		}
	}
	return x
}
