package refit

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/sgd"
)

// descentSolver is gradient descent with residuals clipped to a fixed bound C:
//
//	θ_{t+1} = θ_t + rate·(Xᵀclip_C(Y − Xθ_t) + CσZ_t)/n,  t = 0…T−1,  θ₀ = 0
//
// Privacy: T exact Gaussian releases of sensitivity S·C on a lattice are together S√T/σ-Gaussian private. The number n
// of positions is public.
// Cost: O(Tnd) time. It overwrites the window and needs no further memory.
// Source: Lev et al., Algorithm 7. The source gives σ for replaced records, but compares with methods that protect
// zeroed records.
type descentSolver struct {
	params     dp.Params
	iterations int
	clip       float64
	rate       float64
	sigma      float64 // standard deviation of the noise, in units of C
}

// calibrateDescent returns σ: S√T/μ for exact. For paper, under replace, it is the simple bound of concentrated
// privacy:
//
//	σ² = 2T/(√(ε+L) − √L)²,  L = log(1/δ)
func calibrateDescent(acc Accounting, p dp.Params, iterations int, clip, rate float64) (*descentSolver, error) {
	mu, err := p.Budget()
	if err != nil {
		return nil, err
	}
	s := &descentSolver{params: p, iterations: iterations, clip: clip, rate: rate}
	switch acc {
	case Exact:
		s.sigma = p.Adjacency.Factor() * math.Sqrt(float64(iterations)) / mu * dp.RoundUp
	case Paper:
		if p.Mu != 0 {
			return nil, errors.New("the paper's calibration needs epsilon and delta, not mu")
		}
		rho, err := dp.RhoSimple(p.Epsilon, p.Delta)
		if err != nil {
			return nil, err
		}
		s.sigma = math.Sqrt(2*float64(iterations)/float64(rho)) * dp.RoundUp
	default:
		return nil, fmt.Errorf("accounting is %q, must be %q or %q for gradient descent", acc, Exact, Paper)
	}
	return s, nil
}

func (s *descentSolver) cost() dp.Cost {
	return dp.Cost{Adjacency: s.params.Adjacency,
		Mu: s.params.Adjacency.Factor() * math.Sqrt(float64(s.iterations)) / s.sigma * (1 + 0x1p-50)}
}

func (s *descentSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	return attempt(s.prepare, w, noise)
}

func (s *descentSolver) prepare(w *Data) (solution, error) {
	n, d := float64(w.Len()), w.dim
	g, err := newGradients(w, s.params.Adjacency, s.clip, s.sigma, s.params.Bits())
	if err != nil {
		return nil, err
	}
	return func(noise dp.Noise) (theta []float64, eta float64, err error) {
		theta = descend(d, s.iterations, s.rate/n, func(t int, theta []float64) []float64 {
			return g.release(noise, numbered("dp-gd-residual/grad", t), theta)
		})
		if !vector.Finite(theta) {
			return nil, 0, errFailed
		}
		return theta, 0, nil
	}, nil
}

// descend returns θ_T of θ_{t+1} = θ_t + rate·g_t(θ_t) from θ₀ = 0.
func descend(d, iterations int, rate float64, gradient func(t int, theta []float64) []float64) []float64 {
	theta := make([]float64, d)
	for t := range iterations {
		vector.Axpy(theta, rate, gradient(t, theta))
	}
	return theta
}

// trackedSolver is the gradient descent of package sgd, applied to windows. Its clip norm follows a private quantile,
// its step size follows a private curvature, and it averages its iterates.
//
// Privacy and cost: as [sgd.Refit].
type trackedSolver struct {
	params    dp.Params
	intercept bool // the last feature is a constant
	radius    float64
}

func (s *trackedSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	sample := &sgd.Sample{D: w.dim, X: w.x, Y: w.y, Bound: sgd.Bounds{X: 1, Y: 1}}
	if s.intercept {
		sample.Constant, sample.Bound.X = constant, constant*dp.RoundUp
	}
	theta, _, err = sgd.Refit(sample, s.radius, s.params, noise)
	if err != nil {
		return nil, 0, err
	}
	if s.intercept { // sgd returns the coefficient of a constant of 1
		theta[w.dim-1] /= constant
	}
	if !vector.Finite(theta) {
		return nil, 0, errFailed
	}
	return theta, 0, nil
}

// constant is the value of the constant feature, for windows with an intercept.
const constant = math.Sqrt2 / 2 * (1 - 0x1p-50)
