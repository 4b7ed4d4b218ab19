package optimise

import (
	"errors"
	"math"

	"gonum.org/v1/gonum/mat"
)

// Optimum is the best lower triangular C for the n rows A of a workload, with a proof of optimality: Value is the error
// of C, and Bound is a lower bound on the error of every C.
type Optimum struct {
	C            *mat.Dense // largest column norm 1
	Value, Bound float64
}

// Dense minimises, over C with column norms of at most 1,
//
//	rmse  √(Σ_t ‖row t of AC⁻¹‖²/n)        worst = false
//	max   max_t ‖row t of AC⁻¹‖            worst = true; not for means, whose
//	      first row has the largest error, 1, under any C
//
// The weights u, v are positive and add up to 1; D_u and D_v are the diagonal matrices of
// their square roots. With the singular value decomposition D_u AD_v = UσVᵀ,
//
//	C = D_v^(−1) σ^½Vᵀ and B = D_u^(−1) Uσ^½ satisfy A = BC, which gives the error of C;
//	Σσ is a lower bound on the error of any C (for the rmse with uniform u).
//
// The two are equal if v is the diagonal of VσVᵀ divided by Σσ, and u the diagonal of UσUᵀ divided by Σσ. This fixed
// point is iterated, accelerated by Anderson's method on the logarithms, until error and bound agree to 10⁻⁹. Only CᵀC
// matters, so C is made lower triangular at the end.
//
// Cost: 20 to 40 singular value decompositions: 0.1 s for n = 100, 3 s for 300.
// Source: the fixed point of Yuan, Yang, Zhang, Hao, "Optimizing linear counting queries under differential privacy",
// and of McKenna et al., in the form for γ₂ norms; docs/theory/matfact.md.
// Errors: it does not converge to 10⁻⁶.
func Dense(a *mat.Dense, worst bool) (*Optimum, error) {
	n, _ := a.Dims()
	p := densePoint{
		a: a, n: n, worst: worst,
		gram: mat.NewSymDense(n, nil), scaled: mat.NewDense(n, n, nil),
	}
	x := make([]float64, 2*n) // ln u, ln v
	if !worst {
		x = make([]float64, n) // ln v
	}
	var (
		best    = Optimum{Value: math.Inf(1)}
		next    = make([]float64, len(x))
		speed   anderson
		stalled int
	)
	for range 300 {
		value, bound, err := p.evaluate(x, next)
		if err != nil {
			return nil, err
		}
		best.Bound = max(best.Bound, bound)
		stalled++
		if value < best.Value*(1-1e-10) {
			stalled = 0
		}
		if value < best.Value {
			best.Value = value
			p.keep()
		}
		if best.Value <= best.Bound*(1+1e-9) || stalled > 30 {
			break
		}
		x = speed.next(x, next)
	}
	if !(best.Value <= best.Bound*(1+1e-6)) {
		return nil, errors.New("cannot optimise the dense factorization: the iteration does not converge")
	}
	var err error
	best.C, err = lowerFactor(p.gram)
	return &best, err
}

// densePoint is a point of the iteration of Dense: the weights, and the values computed from them.
type densePoint struct {
	a     *mat.Dense
	n     int
	worst bool

	lnU, lnV []float64 // lnU is nil if the weights u are uniform
	scaled   *mat.Dense
	svd      mat.SVD
	u, v     mat.Dense
	sigma    []float64
	column   float64       // largest squared column norm of C
	gram     *mat.SymDense // CᵀC of the best point, columns of C scaled to norm 1 at most
}

// logU returns ln u_t.
func (p *densePoint) logU(t int) float64 {
	if p.lnU == nil {
		return -math.Log(float64(p.n))
	}
	return p.lnU[t]
}

// evaluate sets the point to the weights x. It returns the error of the C that they give and the lower bound that they
// prove. It sets next to the weights of the next iteration.
func (p *densePoint) evaluate(x, next []float64) (value, bound float64, err error) {
	p.lnV = x[len(x)-p.n:]
	if p.worst {
		p.lnU = x[:p.n]
	}
	var sumU, sumV float64
	for t := range p.n {
		sumU += math.Exp(p.logU(t))
		sumV += math.Exp(p.lnV[t])
		for j := range p.n {
			p.scaled.Set(t, j, p.a.At(t, j)*math.Exp((p.logU(t)+p.lnV[j])/2))
		}
	}
	if !p.svd.Factorize(p.scaled, mat.SVDThin) {
		return 0, 0, errors.New("cannot optimise the dense factorization: the singular value decomposition fails")
	}
	p.sigma = p.svd.Values(p.sigma)
	p.svd.UTo(&p.u)
	p.svd.VTo(&p.v)
	var trace float64
	for _, s := range p.sigma {
		trace += s
	}
	// Compute the largest squared row norm of B, or the mean of the squared row norms, and the largest squared column
	// norm of C.
	var top, mean float64
	p.column = 0
	for t := range p.n {
		var du, dv float64
		for k, s := range p.sigma {
			du += s * p.u.At(t, k) * p.u.At(t, k)
			dv += s * p.v.At(t, k) * p.v.At(t, k)
		}
		top = max(top, du/math.Exp(p.logU(t)))
		mean += du
		p.column = max(p.column, dv/math.Exp(p.lnV[t]))
		next[len(x)-p.n+t] = math.Log(dv / trace)
		if p.worst {
			next[t] = math.Log(du / trace)
		}
	}
	value = math.Sqrt(mean * p.column)
	if p.worst {
		value = math.Sqrt(top * p.column)
	}
	return value, trace / math.Sqrt(sumU*sumV), nil
}

// keep records the point as the best one.
func (p *densePoint) keep() {
	for i := range p.n {
		for j := range i + 1 {
			var g float64
			for k, s := range p.sigma {
				g += s * p.v.At(i, k) * p.v.At(j, k)
			}
			p.gram.SetSym(i, j, g*math.Exp(-(p.lnV[i]+p.lnV[j])/2)/p.column)
		}
	}
}

// lowerFactor returns the lower triangular C with a positive diagonal and CᵀC = x. It is the Cholesky factor of x in
// reversed order, reversed again.
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
		return nil, errors.New("cannot optimise the dense factorization: the optimum is singular")
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

// anderson accelerates a fixed-point iteration x ← g(x). It takes the affine combination of the last few points whose
// residual g(x) − x is smallest.
type anderson struct{ points, images [][]float64 }

// next returns the point after x; image is g(x).
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
				sum *= 1 + 1e-10 // the last residuals are nearly dependent
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
	if size := mat.Norm(&weight, 2); !(size < 1e6) { // NaN if points coincide
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
