package refit

import (
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/clipgrad"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// leastEigenvalue returns λ_min of a positive semidefinite matrix, at least 0.
func leastEigenvalue(upper []float64, d int) float64 {
	values, _ := newton.Eigen(upper, d)
	least := math.Inf(1)
	for _, v := range values {
		least = min(least, v)
	}
	return max(0, least)
}

// gaussianMix returns SX + ηξ. The noise row holds the k×n matrix S by columns, and then the k×d matrix ξ by rows.
// [wishart] draws the square of this sketch directly; gaussianMix computes the sketch by its definition.
//
// Privacy: each of its k rows is a row of a dense sketch at γ, if λ_min(XᵀX) + η² ≥ γ.
// Cost: O(knd) time, k·(n+d) Gaussians.
// Source: Lev et al., Algorithm 3, which multiplies η by the norm bound once more.
func gaussianMix(w *Data, k int, eta float64, row dp.Row) []float64 {
	n, d := w.Len(), w.dim
	mixed := make([]float64, k*d)
	next := 0
	weights := make([]float64, 4*k)
	for i := 0; i < n; i += 4 {
		m := min(4, n-i)
		for j := range weights[:m*k] {
			weights[j] = row.At(next)
			next++
		}
		if m == 4 {
			x0, x1, x2, x3 := w.row(i), w.row(i+1), w.row(i+2), w.row(i+3)
			for r := range k {
				a, b, c, e := weights[r], weights[k+r], weights[2*k+r], weights[3*k+r]
				dst := mixed[r*d:][:d]
				x1, x2, x3 := x1[:d], x2[:d], x3[:d]
				for j, v := range x0[:d] {
					dst[j] += (float64(a*v) + float64(b*x1[j])) + (float64(c*x2[j]) + float64(e*x3[j]))
				}
			}
			continue
		}
		for q := range m {
			for r := range k {
				vector.Axpy(mixed[r*d:][:d], weights[q*k+r], w.row(i+q))
			}
		}
	}
	for j := range mixed {
		mixed[j] += float64(eta * row.At(next))
		next++
	}
	return mixed
}

// mixingSolver is linear mixing: it sketches features and target together, and returns the least-squares solution of
// the sketched problem:
//
//	λ̃ = max(0, λ_min([X, Y]ᵀ[X, Y]) − s(τ − Z)),  η² = max(0, γC² − λ̃),  C² = 2
//	θ = (X̃ᵀX̃)⁻¹X̃ᵀỸ for the sketch [X̃, Ỹ] of k rows with noise η
//
// With dynamic set, a window with λ̃ ≥ γC² gets a sketch without noise, with as many rows as λ̃ permits.
//
// Privacy: as for [calibrateMixing]. With dynamic it is (ε, δ)-private by the paper's accounting, and has no dp.Cost.
// Cost: O(nd²) time, O(d²) memory in addition to the window.
// Source: Lev et al., Algorithms 2, 4 and 5.
// Deviations: λ̃ is compared in units of C²; the sketch is drawn as a Wishart matrix; docs/theory/refit.md.
type mixingSolver struct {
	noise      sketchNoise
	accounting Accounting
	params     dp.Params
	rows       int
	dynamic    bool
}

// normBound is C² = 1 + C_Y² for targets of at most C_Y = 1.
const normBound = 2

func (s *mixingSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	return attempt(s.prepare, w, noise)
}

func (s *mixingSolver) prepare(w *Data) (solution, error) {
	return s.prepareSums(sumsOf(w))
}

// prepareSums is prepare from the sums alone.
func (s *mixingSolver) prepareSums(w *rowSums) (solution, error) {
	n, d := w.Len(), w.dim
	upper := w.joint()
	lambda := leastEigenvalue(upper, d+1)
	return func(noise dp.Noise) (theta []float64, eta float64, err error) {
		level, err := lower(noise, "linmix/lambda", lambda, eigenError(n, d+1, normBound), normBound,
			normBound*s.noise.Test, s.noise.Tau, s.params.Bits())
		if err != nil {
			return nil, 0, err
		}
		k, square := s.rows, max(0, normBound*s.noise.Gamma-level)
		if s.dynamic && square == 0 {
			if k, err = dynamicRows(s.accounting, s.params, s.noise, k, level/normBound); err != nil {
				return nil, 0, err
			}
		}
		l := full(upper, d+1, square)
		row := noise.Row("linmix/wishart/0", bitsOf(l))
		if !cholesky(l, d+1) {
			return nil, 0, errFailed
		}
		a := drawWishart(l, d+1, k, row)
		// [X̃, Ỹ]ᵀ[X̃, Ỹ] = MMᵀ, so θ = M₁₁⁻ᵀ m₂₁ with the last row (m₂₁ᵀ, m₂₂) of M.
		m := lowerProduct(a.l, a.a, d+1)
		theta = append(theta, m[d*(d+1):][:d]...)
		block := make([]float64, d*d)
		for i := range d {
			copy(block[i*d:][:d], m[i*(d+1):][:d])
		}
		backward(block, theta)
		roundPublic(theta)
		if !vector.Finite(theta) {
			return nil, 0, errFailed
		}
		return theta, math.Sqrt(square), nil
	}, nil
}

// gradients releases noisy clipped gradients of a window.
type gradients struct {
	rows      *clipgrad.Rows
	adjacency dp.Adjacency
	clip      float64 // bound to which residuals are clipped
	sd        float64 // standard deviation of the noise, in units of clip
	out       int
	sum       []int64
	noise     []int64
}

// newGradients prepares the window's rows and takes over their memory.
//
// Errors: the noise has no lattice.
func newGradients(w *Data, a dp.Adjacency, clip, sd float64, bits int) (*gradients, error) {
	out, err := stepLattice(sd, w.Len(), bits)
	if err != nil {
		return nil, err
	}
	rows := clipgrad.ByResidual(w.x, w.y, nil, w.dim, bits)
	if w.exact {
		rows.RoundOnce()
	}
	return &gradients{
		rows: rows, adjacency: a, clip: clip, sd: sd, out: out,
		sum: make([]int64, w.dim), noise: make([]int64, w.dim),
	}, nil
}

// release returns Σ x·clip_C(y − xᵀθ) with noise.
//
// Privacy: exactly S/sd-Gaussian private, on a lattice; S = 1 under zero-out and 2 under replace.
func (g *gradients) release(n dp.Noise, array string, theta []float64) []float64 {
	d := len(theta)
	g.rows.Sum(g.sum, theta, g.clip, 1, g.out)
	sd := g.sd * clipgrad.Sensitivity(g.adjacency, d, g.out) / g.adjacency.Factor()
	dp.RoundRow(g.noise, n.Row(array, g.sum), []float64{math.Ldexp(sd, g.out)}, nil, 1)
	out := make([]float64, d)
	for j, k := range g.sum {
		out[j] = float64(g.clip * math.Ldexp(float64(k+g.noise[j]), -g.out))
	}
	return out
}

// numbered returns gradients that take the noise of iteration t from an array of its own, named after array and t.
func (g *gradients) numbered(array string) gradientOf {
	return func(noise dp.Noise, t int, theta []float64) ([]float64, error) {
		return g.release(noise, numbered(array, t), theta), nil
	}
}

// stepLattice returns by how many bits the lattice of a sum of n clipped gradients is finer than the clip norm: bits,
// or more if the noise is below 1. sd is the standard deviation of the noise in units of the clip norm.
func stepLattice(sd float64, n, bits int) (out int, err error) {
	out = bits
	if sd < 1 {
		_, e := math.Frexp(sd) // sd ≥ 2^(e−1)
		out += 1 - e
	}
	if out > 2*bits || math.Ldexp(float64(n), out) >= 1<<61 || !(15*math.Ldexp(sd, out) < 1<<51) {
		return 0, fmt.Errorf("noise with a standard deviation of %g clip norms, over %d rows, does not fit a lattice "+
			"of %d bits", sd, n, bits)
	}
	return out, nil
}
