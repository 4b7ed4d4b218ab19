package refit

import (
	"math"

	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// leastForErrors is the ν below which newton states no standard errors. In data sets with ν below 4, fewer than nine in
// ten coefficients were within 1.96 standard errors of the truth.
const leastForErrors = 5

// solutionErrors estimates how far newton's coefficients are from the least-squares coefficients of the distribution
// that the rows are drawn from. The estimate is approximate, and in the units of the window.
//
// Let û be the coordinates of ū along the eigenvectors V of the Gram matrix, W = V·H^−½·Vᵀ, and h_k as in
// [newton.Whitening]. Then the mean squared error of ⟨a, β⟩ is aᵀCa,
//
//	C = bbᵀ + V·diag(e_k/H_k)·Vᵀ,  b = (1 − κ)Wū,  e_k = noise_k + rows_k + rest_k
//	noise_k = Σ_t (c_t·sd_t)²                              as for κ
//	rows_k  = n̂ā²·(2 + n̂(γ/(exp(ζ/ā) − 1))²)/(h_k·Σh)      γ = ½
//	rest_k  = f_k²·max(0, Σ h_j(û_j² − noise_j))/Σh_j      f_k = Σ_t ω_t·(1 − .8·max(0, h_k − .15))^(t+1)
//
// ω_t are the weights of the mean ū, and in rows_k h is at least .02. b is the bias of the shrinkage. rows_k is the
// variance due to the sampling of rows, plus the bias of clipping. The clipped size of a row, |r|‖z‖, is assumed to be
// exponentially distributed with mean
//
//	ā = −cζ/ln(1 − q/n̂)
//
// because a share q/n̂ of the rows is below cζ; ζ and q are averages over t ≥ t₀. The squares then add up to 2n̂ā².
// Clipping removes n̂ā·exp(−ζ/ā); a share γ of that is assumed to point in one direction. Clipping leaves a share 1 −
// exp(−ζ/ā) of the curvature. rest_k is the distance that the steps have not covered. A direction whose true h is
// nearly 0 retains a share f_k of its distance. That distance is unknown; it is assumed to be as large as in the
// directions that were learned.
//
// The constant has h = .6, γ = 1 and no rest: its variance is ((1−κ_c)² ū_D² + e_D)·w_c².
//
// Privacy: a function of releases.
// Cost: O(d³) time, O(d²) memory.
// Source: ours; docs/theory/refit.md has the coverage.
type solutionErrors struct {
	dim      int
	square   []float64 // C, d×d, row-major
	constant float64   // variance of the constant before −βᵀm; 0 without an intercept
	centre   []float64 // m, zeros without an intercept
}

// scatter holds sums over the steps t ≥ t₀, from which the scatter of the rows is estimated.
type scatter struct {
	steps, zeta, count float64 // sums
}

// add adds a step.
func (s *scatter) add(zeta, count float64) {
	s.steps++
	s.zeta += zeta
	s.count += count
}

// rows returns rows_k·h_k·Σh, where the share γ is pull.
func (s *scatter) rows(valid, counted, pull float64) float64 {
	zeta := s.zeta / s.steps
	below := newton.Clip(s.count/s.steps/valid, 0.1, 0.9)
	mean := float64(counted*zeta) / -newton.Log(1-below)
	bias := pull / (newton.Exp(zeta/mean) - 1)
	return float64(valid*float64(mean*mean)) * (2 + float64(valid*float64(bias*bias)))
}

// errors returns the standard errors of the solution with coefficients κWū. It returns nil if there are too few records
// for the noise, or if nothing was learned. scale is w_c.
func (s *newtonSolver) errors(white *newton.Whitening, mean, sds, weights []float64, steps *scatter,
	scale float64) *solutionErrors {
	t := &s.trace
	d := len(white.Share)
	if nu := t.valid * s.mu / (float64(len(mean)) * s.adjacency.Factor()); nu < leastForErrors || t.shrink == 0 {
		return nil
	}
	along := make([]float64, d)
	white.Rotate(along, mean[:d])
	noise := make([]float64, d)
	var distance, shares float64
	for k, h := range white.Share {
		noise[k] = weightedVariance(h, sds, weights)
		distance += float64(h * (float64(along[k]*along[k]) - noise[k]))
		shares += h
	}
	distance = max(0, distance) / max(shares, 0.05)
	rows := steps.rows(t.valid, t.counted, 0.5) / t.signal

	e := &solutionErrors{dim: d, square: make([]float64, d*d), centre: make([]float64, d)}
	bias := make([]float64, d)
	white.Apply(bias, mean[:d])
	for i, b := range bias {
		bias[i] = float64((1 - t.shrink) * b)
	}
	for i := range d {
		for j := range i + 1 {
			e.square[i*d+j] = float64(bias[i] * bias[j])
		}
	}
	for k, h := range white.Share {
		left := remaining(max(0, h-0.15), weights)
		v := noise[k] + rows/max(h, 0.02) + float64(float64(left*left)*distance)
		v /= float64(white.Scale[k] * white.Scale[k])
		for i := range d {
			x := float64(v * white.Vectors[i*d+k])
			for j := range i + 1 {
				e.square[i*d+j] += float64(x * white.Vectors[j*d+k])
			}
		}
	}
	for i := range d {
		for j := range i {
			e.square[j*d+i] = e.square[i*d+j]
		}
	}
	if s.centring != nil {
		copy(e.centre, t.mean)
		b := (1 - t.constant) * mean[d]
		v := float64(b*b) + weightedVariance(constantSignal, sds, weights) +
			steps.rows(t.valid, t.counted, 1)/float64(t.signal*constantSignal)
		e.constant = float64(v * float64(scale*scale))
	}
	if !vector.Finite(e.square) || !vector.Finite([]float64{e.constant}) {
		return nil
	}
	return e
}

// remaining returns the share of the distance to the solution that remains in the mean with weights ω_t, if each step
// covers a share 0.8h of the remaining distance.
func remaining(h float64, weights []float64) (left float64) {
	p, power := 1-float64(0.8*h), 1.0
	for _, w := range weights {
		power = float64(power * p)
		left += float64(w * power)
	}
	return left
}

// coefficient returns the standard error of β_j.
func (e *solutionErrors) coefficient(j int) float64 { return math.Sqrt(e.square[j*e.dim+j]) }

// intercept returns the standard error of the sum of ⟨a, β⟩ and the intercept. A nil a stands for a vector of zeros.
func (e *solutionErrors) intercept(a []float64) float64 {
	x := make([]float64, e.dim)
	for j, m := range e.centre {
		if x[j] = -m; a != nil {
			x[j] += a[j]
		}
	}
	sum := e.constant
	for i, v := range x {
		sum += float64(v * vector.Dot2(e.square[i*e.dim:][:e.dim], x))
	}
	return math.Sqrt(max(0, sum))
}
