package sketch

import (
	"errors"
	"fmt"
	"math"

	"streamdp/dp"
)

// descentSolver is gradient descent with residuals clipped to a fixed bound C:
//
//	θ_{t+1} = θ_t + rate·(Xᵀclip_C(Y − Xθ_t) + CσZ_t)/n,  t = 0…T−1,  θ₀ = 0
//
// Privacy: T Gaussian releases of sensitivity S·C, exact, on a lattice:
// (S√T/σ)-Gaussian-private. n, the number of positions, is public.
// Cost: O(Tnd) time, the window's memory, which it overwrites.
// Source: Lev et al., Algorithm 7, whose σ is for replaced records; its comparison is
// for zeroed ones.
type descentSolver struct {
	params     dp.Params
	iterations int
	clip       float64
	rate       float64
	sigma      float64 // in units of C
}

// calibrateDescent returns σ: S√T/μ for exact, and for paper what the simple bound of
// concentrated privacy gives under replace:
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
		s.sigma = p.Adjacency.Factor() * math.Sqrt(float64(iterations)) / mu * (1 + 0x1p-40)
	case Paper:
		if p.Mu != 0 {
			return nil, errors.New("the paper's calibration has no form for mu")
		}
		rho, err := dp.RhoSimple(p.Epsilon, p.Delta)
		if err != nil {
			return nil, err
		}
		s.sigma = math.Sqrt(2*float64(iterations)/float64(rho)) * (1 + 0x1p-40)
	default:
		return nil, fmt.Errorf("accounting is %q, must be %q or %q for gradient descent", acc, Exact, Paper)
	}
	return s, nil
}

func (s *descentSolver) cost() dp.Cost {
	return dp.Cost{Adjacency: s.params.Adjacency, Mu: s.params.Adjacency.Factor() * math.Sqrt(float64(s.iterations)) / s.sigma * (1 + 0x1p-50)}
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
		if !finite(theta) {
			return nil, 0, errFailed
		}
		return theta, 0, nil
	}, nil
}

// descend returns θ_T of θ_{t+1} = θ_t + rate·g_t(θ_t) from θ₀ = 0.
func descend(d, iterations int, rate float64, gradient func(t int, theta []float64) []float64) []float64 {
	theta := make([]float64, d)
	for t := range iterations {
		axpy(theta, rate, gradient(t, theta))
	}
	return theta
}
