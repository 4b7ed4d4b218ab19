package refit

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// ihmSolver is iterative Hessian mixing. With η² = γ, or η² = max(0, γ − λ̃) with a test of λ_min, it iterates from θ₀
// = 0:
//
//	H_t = X̃_tᵀX̃_t/k for a fresh sketch X̃_t = S_tX + ηξ_t of k rows
//	g_t = Xᵀclip_C(Y − Xθ_t) [− η²θ_t] + CσZ_t
//	θ_{t+1} = θ_t + H_t⁻¹g_t,  t = 0…T−1
//
// The term in brackets is off by default: the iterates then approach the least-squares solution. With the term they
// approach the solution of a ridge regression.
//
// Privacy: as for [calibrateIHM]. Without a test, η² alone guarantees γ for every window; with a test, γ holds unless
// the test fails. Gradients and test are exact, on lattices. The sketches multiply data by noise; no guarantee in
// finite precision is proven for such products.
// Cost: O(nd² + d³ + T(nd + d²)) time, O(d²) memory in addition to the window, which it overwrites; with dense, O(Tknd)
// time. With a radius it makes no pass over the rows.
// Errors: [errFailed] if a matrix is not positive definite. The probability is at most that of a failed test.
// Source: Lev et al., Algorithm 1.
// Deviations: X̃ᵀX̃ is drawn directly from its distribution; docs/theory/refit.md.
type ihmSolver struct {
	noise      sketchNoise
	params     dp.Params
	rows       int     // k
	iterations int     // T
	clip       float64 // C, in units of the target's bound
	ridge      bool    // subtract η²θ_t
	debias     bool    // correct the mean of H⁻¹ if no noise was added to XᵀX
	pool       bool    // H_t is the mean of all sketches so far
	radius     float64 // keep iterates in the ball of this radius and compute gradients from sums; 0: off
	dense      bool    // compute the sketches explicitly
}

func (s *ihmSolver) solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	return attempt(s.prepare, w, noise)
}

// prepare returns a function that solves the window. It takes over the window's memory. Each call of the returned
// function is a separate mechanism.
func (s *ihmSolver) prepare(w *Data) (solution, error) {
	if s.radius > 0 {
		return s.prepareSums(sumsOf(w))
	}
	var dense *Data
	if s.dense {
		dense = w.clone()
	}
	g, err := newGradients(w, s.params.Adjacency, s.clip, s.noise.Sigma, s.params.Bits())
	if err != nil {
		return nil, err
	}
	all := sumsAnd(w, g.rows.Prepare)
	return s.newSolution(all, dense, g.numbered("ihm/grad")), nil
}

// prepareSums is prepare for a solver with a radius, which needs only the sums.
func (s *ihmSolver) prepareSums(w *rowSums) (solution, error) {
	return s.newSolution(w, nil, s.bySums(w)), nil
}

// newSolution returns the solution of a window with the given sums and gradients. dense holds the rows, if the sketches
// are computed explicitly.
func (s *ihmSolver) newSolution(w *rowSums, dense *Data, gradient gradientOf) solution {
	d, upper, lambda := w.dim, w.gram(), 0.0
	if s.noise.Test > 0 {
		lambda = leastEigenvalue(upper, d)
	}
	return func(noise dp.Noise) (theta []float64, eta float64, err error) {
		square := s.noise.Gamma
		if s.noise.Test > 0 {
			level, err := lower(noise, "ihm/lambda", lambda, eigenError(w.Len(), d, 1), 1, s.noise.Test, s.noise.Tau,
				s.params.Bits())
			if err != nil {
				return nil, 0, err
			}
			square = max(0, s.noise.Gamma-level)
		}
		i := iteration{steps: s.iterations, radius: s.radius}
		i.gradient = func(t int, theta []float64) ([]float64, error) { return gradient(noise, t, theta) }
		if dense != nil {
			i.sketch = s.denseSketches(dense, math.Sqrt(square), noise)
		} else {
			l := full(upper, d, square)
			hidden := bitsOf(l)
			if !cholesky(l, d) {
				return nil, 0, errFailed
			}
			i.sketch = s.wishartSketches("ihm", d, noise, func(int) ([]float64, []int64) { return l, hidden })
		}
		if s.ridge {
			i.ridge = square
		}
		if s.debias && (s.noise.Test == 0 || square == 0) {
			i.debias, i.pool, i.rows = true, s.pool, s.rows
		}
		if theta, err = i.run(d); err != nil {
			return nil, 0, err
		}
		roundPublic(theta)
		return theta, math.Sqrt(square), nil
	}
}

// solution solves the window that it was prepared for. eta is the level η of the sketch's noise, which is public.
type solution = func(noise dp.Noise) (theta []float64, eta float64, err error)

// attempt prepares the window and solves it once.
func attempt(prepare func(*Data) (solution, error), w *Data, noise dp.Noise) (theta []float64, eta float64, err error) {
	solve, err := prepare(w)
	if err != nil {
		return nil, 0, err
	}
	return solve(noise)
}

// iteration is θ_{t+1} = P(θ_t + f_t·H_t⁻¹(g_t − ridge·θ_t)) from θ₀ = 0, where P is the projection onto the ball of
// the radius. A radius of 0 means no projection.
type iteration struct {
	steps    int
	sketch   func(t int) (hessian, error)
	gradient func(t int, theta []float64) ([]float64, error)
	ridge    float64
	radius   float64
	// debias sets f_t = (K−d−1)/K, because E[H_t⁻¹] is too large by K/(K−d−1). K is the number of rows in H_t: rows, or
	// (t+1)·rows if sketches are pooled. Without debias f_t = 1.
	debias, pool bool
	rows         int
}

// run returns θ_T.
func (i *iteration) run(d int) ([]float64, error) {
	theta := make([]float64, d)
	for t := range i.steps {
		g, err := i.gradient(t, theta)
		if err != nil {
			return nil, err
		}
		h, err := i.sketch(t)
		if err != nil {
			return nil, err
		}
		vector.Axpy(g, -i.ridge, theta)
		h.solve(g)
		vector.Axpy(theta, i.factor(t, d), g)
		if norm := math.Sqrt(vector.Dot2(theta, theta)); i.radius > 0 && norm > i.radius {
			for j := range theta {
				theta[j] *= i.radius / norm
			}
		}
		if !vector.Finite(theta) {
			return nil, errFailed
		}
	}
	return theta, nil
}

func (i *iteration) factor(t, d int) float64 {
	if !i.debias {
		return 1
	}
	k := float64(i.rows)
	if i.pool {
		k *= float64(t + 1)
	}
	return (k - float64(d) - 1) / k
}

// wishartSketches draws the Hessian of each iteration. Its argument `covariance` returns the Cholesky factor of the
// covariance of an iteration's rows, and the bits of the numbers from which the factor was computed.
func (s *ihmSolver) wishartSketches(name string, d int, noise dp.Noise,
	covariance func(t int) (l []float64, hidden []int64)) func(t int) (hessian, error) {
	pooled := make([]float64, d*d)
	return func(t int) (hessian, error) {
		l, hidden := covariance(t)
		w := drawWishart(l, d, s.rows, noise.Row(numbered(name+"/wishart", t), hidden))
		if !s.pool {
			return w, nil
		}
		w.add(pooled, d)
		return form(append([]float64(nil), pooled...), d, float64(s.rows*(t+1)))
	}
}

// denseSketches computes the sketch of each iteration explicitly, as the source does.
func (s *ihmSolver) denseSketches(w *Data, eta float64, noise dp.Noise) func(t int) (hessian, error) {
	return func(t int) (hessian, error) {
		row := noise.Row(numbered("ihm/mix", t), bitsOf(w.x, []float64{eta}))
		mixed := &Data{dim: w.dim, x: gaussianMix(w, s.rows, eta, row), y: make([]float64, s.rows)}
		return form(full(sumsOf(mixed).gram(), w.dim, 0), w.dim, float64(s.rows))
	}
}

// gradientOf releases Σ x·clip_C(y − xᵀθ) with the noise of iteration t.
type gradientOf = func(noise dp.Noise, t int, theta []float64) ([]float64, error)

// byRows computes gradients by passes over the rows. It takes over the rows' memory.
func (s *ihmSolver) byRows(w *Data, array string) (gradientOf, error) {
	g, err := newGradients(w, s.params.Adjacency, s.clip, s.noise.Sigma, s.params.Bits())
	if err != nil {
		return nil, err
	}
	return g.numbered(array), nil
}

// bySums computes gradients without the rows. If ‖θ‖ ≤ R, no residual exceeds C_Y + R. So with C = C_Y + R nothing is
// clipped, and Xᵀclip_C(Y − Xθ) = XᵀY − XᵀXθ.
func (s *ihmSolver) bySums(w *rowSums) gradientOf {
	n, d, adjacency := w.Len(), w.dim, s.params.Adjacency
	bound := (1 + s.radius) * dp.RoundUp
	symmetric, xy := full(w.gram(), d, 0), w.xy()
	return func(noise dp.Noise, t int, theta []float64) ([]float64, error) {
		g := append([]float64(nil), xy...)
		for i := range d {
			vector.Axpy(g, -theta[i], symmetric[i*d:][:d])
		}
		return releaseVector(noise, numbered("ihm/grad", t), g, adjacency.Factor()*bound, eigenError(n, d, 2*bound),
			bound*s.noise.Sigma, s.params.Bits())
	}
}
