package matfact

import (
	"errors"
	"math"

	"gonum.org/v1/gonum/mat"
)

// denseOptimum is the best lower triangular C of all for n rows A of a workload,
// with the proof: value is the error that C has, bound one that no C can go
// below.
type denseOptimum struct {
	c            *mat.Dense // largest column norm 1
	value, bound float64
}

// optimiseDense minimises, over C with column norms of at most 1,
//
//	rmse  √(Σ_t ‖row t of AC⁻¹‖²/n)        worst = false
//	max   max_t ‖row t of AC⁻¹‖            worst = true; not for means, whose
//	      first row has the largest error, 1, under any C
//
// For positive weights u, v that add up to 1, with D_u AD_v = UσVᵀ where D has
// their roots,
//
//	C = D_v^(−1) σ^½Vᵀ and B = D_u^(−1) Uσ^½ have A = BC and errors that follow,
//	Σσ is at most the least error of any C (u uniform for the rmse),
//
// and both meet where v is the diagonal of VσVᵀ over Σσ, and u that of UσUᵀ. That
// is iterated, accelerated by Anderson's method on the logarithms, until the
// bound is met to 10⁻⁹. Only CᵀC matters, so C is made lower triangular.
//
// Cost: 20 to 40 singular value decompositions: 0.1 s for n = 100, 3 s for 300.
// Source: the fixed point is that of Yuan, Yang, Zhang, Hao, "Optimizing linear
// counting queries under differential privacy" and of McKenna et al., in the
// form for γ₂ norms; docs/theory/matfact.md.
// Errors: no convergence to 10⁻⁶.
func optimiseDense(a *mat.Dense, worst bool) (*denseOptimum, error) {
	n, _ := a.Dims()
	x := make([]float64, 2*n) // ln u, ln v
	if !worst {
		x = make([]float64, n) // ln v
	}
	var (
		best    denseOptimum
		gram    = mat.NewSymDense(n, nil)
		scaled  = mat.NewDense(n, n, nil)
		next    = make([]float64, len(x))
		speed   anderson
		svd     mat.SVD
		u, v    mat.Dense
		sigma   []float64
		lnV     []float64
		lnU     = func(int) float64 { return -math.Log(float64(n)) }
		stalled int
	)
	best.value = math.Inf(1)
	for range 300 {
		lnV = x[len(x)-n:]
		if worst {
			lnU = func(t int) float64 { return x[t] }
		}
		var sumU, sumV float64
		for t := range n {
			sumU += math.Exp(lnU(t))
			sumV += math.Exp(lnV[t])
			for j := range n {
				scaled.Set(t, j, a.At(t, j)*math.Exp((lnU(t)+lnV[j])/2))
			}
		}
		if !svd.Factorize(scaled, mat.SVDThin) {
			return nil, errors.New("optimising a dense factorization: no singular value decomposition")
		}
		sigma = svd.Values(sigma)
		svd.UTo(&u)
		svd.VTo(&v)
		var trace float64
		for _, s := range sigma {
			trace += s
		}
		// Largest squared row norm of B (or their mean) and column norm of C.
		var top, mean, column float64
		for t := range n {
			var du, dv float64
			for k, s := range sigma {
				du += s * u.At(t, k) * u.At(t, k)
				dv += s * v.At(t, k) * v.At(t, k)
			}
			top = max(top, du/math.Exp(lnU(t)))
			mean += du
			column = max(column, dv/math.Exp(lnV[t]))
			next[len(x)-n+t] = math.Log(dv / trace)
			if worst {
				next[t] = math.Log(du / trace)
			}
		}
		value := math.Sqrt(mean * column)
		if worst {
			value = math.Sqrt(top * column)
		}
		best.bound = max(best.bound, trace/math.Sqrt(sumU*sumV))
		stalled++
		if value < best.value*(1-1e-10) {
			stalled = 0
		}
		if value < best.value {
			best.value = value
			for i := range n {
				for j := range i + 1 {
					var g float64
					for k, s := range sigma {
						g += s * v.At(i, k) * v.At(j, k)
					}
					gram.SetSym(i, j, g*math.Exp(-(lnV[i]+lnV[j])/2)/column)
				}
			}
		}
		if best.value <= best.bound*(1+1e-9) || stalled > 30 {
			break
		}
		x = speed.next(x, next)
	}
	if !(best.value <= best.bound*(1+1e-6)) {
		return nil, errors.New("optimising a dense factorization: does not converge")
	}
	var err error
	best.c, err = lowerFactor(gram)
	return &best, err
}

// lowerFactor returns the lower triangular C with a positive diagonal and
// CᵀC = x: the Cholesky factor of x with its order reversed, reversed back.
func lowerFactor(x *mat.SymDense) (*mat.Dense, error) {
	n := x.SymmetricDim()
	reversed := mat.NewSymDense(n, nil)
	for i := range n {
		for j := range i + 1 {
			reversed.SetSym(n-1-i, n-1-j, x.At(i, j))
		}
	}
	var chol mat.Cholesky
	if !chol.Factorize(reversed) {
		return nil, errors.New("optimising a dense factorization: the optimum is singular")
	}
	var l mat.TriDense
	chol.LTo(&l)
	c := mat.NewDense(n, n, nil)
	for i := range n {
		for j := range i + 1 {
			c.Set(n-1-j, n-1-i, l.At(i, j)) // CᵀC = x where C = J Lᵀ J
		}
	}
	return c, nil
}

// anderson accelerates a fixed-point iteration x ← g(x): of the affine
// combinations of the last few points it takes the one whose residual g(x) − x
// is least.
type anderson struct{ points, images [][]float64 }

// next returns the point after x, of which image is g(x).
func (a *anderson) next(x, image []float64) []float64 {
	const depth = 10
	a.points = append(a.points, append([]float64(nil), x...))
	a.images = append(a.images, append([]float64(nil), image...))
	if len(a.points) > depth+1 {
		a.points, a.images = a.points[1:], a.images[1:]
	}
	m := len(a.points) - 1
	out := append([]float64(nil), image...)
	if m == 0 {
		return out
	}
	residual := func(k, i int) float64 { return a.images[k][i] - a.points[k][i] }
	change := func(k, i int) float64 { return residual(k+1, i) - residual(k, i) }
	normal, right := mat.NewDense(m, m, nil), mat.NewVecDense(m, nil)
	for p := range m {
		for q := range m {
			var sum float64
			for i := range x {
				sum += change(p, i) * change(q, i)
			}
			if p == q {
				sum *= 1 + 1e-10 // they are nearly dependent in the end
			}
			normal.Set(p, q, sum)
		}
		var sum float64
		for i := range x {
			sum += change(p, i) * residual(m, i)
		}
		right.SetVec(p, sum)
	}
	var weight mat.VecDense
	if err := weight.SolveVec(normal, right); err != nil {
		if _, poor := err.(mat.Condition); !poor {
			return out
		}
	}
	if size := mat.Norm(&weight, 2); !(size < 1e6) { // NaN where points coincide
		return out
	}
	for p := range m {
		w := weight.AtVec(p)
		for i := range out {
			out[i] -= w * (a.images[p+1][i] - a.images[p][i])
		}
	}
	return out
}
