package sgd

import (
	"errors"
	"math"

	"gonum.org/v1/gonum/mat"
)

// GDProcess is the exact distribution of the iterates of gradient descent without clipping, where every step adds noise
// N(0, λ²I) to the mean gradient. It is a Gaussian process. In the eigenbasis of Σ = XᵀX/n, each coordinate is an AR(1)
// process. The coordinate with eigenvalue σ has the coefficient m = 1 − ησ:
//
//	E θ_t = θ̂ + M^t(θ₀ − θ̂),   Cov(θ_τ, θ_t) = η²λ²M^(τ−t)Σ_{i<t}M^(2i)   (τ ≥ t)
//
// where M = I − ηΣ and θ̂ is the least-squares solution.
//
// Cost: O(nd² + d³) once, O(d³) for a matrix.
// Source: Brown and others (2024), Lemma 2.3, which needlessly excludes singular M.
//
// For reproduction only: the figures of the source are compared with it.
type GDProcess struct {
	scale float64 // ηλ
	m     []float64
	basis *mat.Dense
	ols   *mat.VecDense // in the eigenbasis, like start
	start *mat.VecDense
}

// NewGDProcess returns the process of a descent from start (nil means 0) with step size rate and noise lambda. The
// sample must have full rank.
func NewGDProcess(s *Sample, rate, lambda float64, start []float64) (*GDProcess, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	n, d := s.Len(), s.D
	x := mat.NewDense(n, d, s.X)
	sigma, moment := mat.NewSymDense(d, nil), mat.NewVecDense(d, nil)
	sigma.SymOuterK(1/float64(n), x.T())
	moment.MulVec(x.T(), mat.NewVecDense(n, s.Y))
	moment.ScaleVec(1/float64(n), moment)
	var eigen mat.EigenSym
	if !eigen.Factorize(sigma, true) {
		return nil, errors.New("the eigenvalues did not converge")
	}
	p := &GDProcess{scale: rate * lambda, basis: &mat.Dense{}, ols: mat.NewVecDense(d, nil),
		start: mat.NewVecDense(d, nil)}
	eigen.VectorsTo(p.basis)
	values := eigen.Values(nil)
	if !(values[0] > 0) {
		return nil, errors.New("the sample does not have full rank")
	}
	p.ols.MulVec(p.basis.T(), moment)
	for j, v := range values {
		p.m = append(p.m, 1-rate*v)
		p.ols.SetVec(j, p.ols.AtVec(j)/v)
	}
	if start != nil {
		p.start.MulVec(p.basis.T(), mat.NewVecDense(d, start))
	}
	return p, nil
}

// OLS returns θ̂.
func (p *GDProcess) OLS() []float64 { return p.back(func(j int) float64 { return p.ols.AtVec(j) }) }

// Mean returns E θ_t.
func (p *GDProcess) Mean(t int) []float64 {
	return p.back(func(j int) float64 { return p.ols.AtVec(j) + p.bias(j, t) })
}

// bias returns coordinate j of M^t(θ₀ − θ̂) in the eigenbasis.
func (p *GDProcess) bias(j, t int) float64 {
	return math.Pow(p.m[j], float64(t)) * (p.start.AtVec(j) - p.ols.AtVec(j))
}

// Cov returns Cov(θ_τ, θ_t) for τ ≥ t.
func (p *GDProcess) Cov(tau, t int) *mat.Dense {
	return p.matrix(func(j int) float64 {
		return p.scale * p.scale * math.Pow(p.m[j], float64(tau-t)) * p.energy(j, t)
	})
}

// energy returns Σ_{i<t} m_j^(2i).
func (p *GDProcess) energy(j, t int) float64 {
	square := p.m[j] * p.m[j]
	if square == 1 || t == 0 {
		return float64(t)
	}
	return -math.Expm1(float64(t)*math.Log(square)) / (1 - square)
}

// Stationary returns the limit of Cov(θ_t, θ_t).
// Errors: there is no limit, because an eigenvalue of ηΣ is 0 or at least 2.
func (p *GDProcess) Stationary() (*mat.Dense, error) {
	for _, m := range p.m {
		if !(math.Abs(m) < 1) {
			return nil, errors.New("the process has no stationary distribution")
		}
	}
	return p.matrix(func(j int) float64 { return p.scale * p.scale / (1 - p.m[j]*p.m[j]) }), nil
}

// MSE returns E ‖θ_t − θ̂‖².
func (p *GDProcess) MSE(t int) float64 {
	var sum float64
	for j := range p.m {
		b := p.bias(j, t)
		sum += b*b + p.scale*p.scale*p.energy(j, t)
	}
	return sum
}

// back returns the vector with the given coordinates in the eigenbasis, in the features' coordinates.
func (p *GDProcess) back(entry func(j int) float64) []float64 {
	v, out := mat.NewVecDense(len(p.m), nil), make([]float64, len(p.m))
	for j := range p.m {
		v.SetVec(j, entry(j))
	}
	mat.NewVecDense(len(out), out).MulVec(p.basis, v)
	return out
}

// matrix returns the matrix that has the given eigenvalues in the eigenbasis.
func (p *GDProcess) matrix(value func(j int) float64) *mat.Dense {
	var scaled, out mat.Dense
	scaled.Apply(func(_, j int, v float64) float64 { return v * value(j) }, p.basis)
	out.Mul(&scaled, p.basis.T())
	return &out
}
