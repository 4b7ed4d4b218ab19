package matfact

import "math"

// This file has the closed forms of a buffered linear Toeplitz matrix (BLT). In the paper's notation a BLT has the
// generating functions
//
//	c(x)   = Π_i (1−θ̂_i x)/(1−θ_i x) = 1 + Σ_i ω_i x/(1−θ_i x)      of C
//	1/c(x)                            = 1 + Σ_i ω̂_i x/(1−θ̂_i x)     of C⁻¹
//
// This file represents a BLT by its gaps, a_i = 1−θ_i and â_i = 1−θ̂_i, because the best decays are as close to 1 as
// 1−10⁻⁹. All functions in this file compute in float64, for optimising and planning. Neither releases nor privacy
// depend on them.
//
// Source: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, "Efficient and Near-Optimal Noise Generation for Streaming
// Differential Privacy". The gap form, and the sums without cancellation that follow from it, are derived in
// docs/theory/matfact.md.

// residues returns the weights b_i = Π_j(r_j−p_i) / Π_{l≠i}(p_l−p_i) of the
// partial fractions of Π_j(1−(1−r_j)x) / Π_i(1−(1−p_i)x):
//
//	p = a, r = â        b = ω, of C
//	p = â, r = a        b = ω̂, of C⁻¹
//	p = (a₀, â), r = a  b = β, of B = AC⁻¹ where A is 1/(1−(1−a₀)x)
func residues(r, p []float64) []float64 {
	b := make([]float64, len(p))
	for i, pi := range p {
		b[i] = 1
		j := 0
		for l, pl := range p {
			if l != i {
				if j < len(r) {
					b[i] *= (r[j] - pi) / (pl - pi)
					j++
				} else {
					b[i] /= pl - pi
				}
			}
		}
		for ; j < len(r); j++ {
			b[i] *= r[j] - pi
		}
	}
	return b
}

// geometric returns G(δ, n) = Σ_{m<n} (1−δ)^m and its derivative with respect to δ ∈ [0, 1].
// n may be +Inf if δ > 0.
func geometric(delta, n float64) (g, dg float64) {
	switch {
	case n <= 0:
		return 0, 0
	case math.IsInf(n, 1):
		return 1 / delta, -1 / (delta * delta)
	case delta == 0:
		return n, -n * (n - 1) / 2
	}
	logTheta := math.Log1p(-delta)
	g = -math.Expm1(n*logTheta) / delta
	if n*delta < 1e-3 {
		dg = -n*(n-1)/2 + delta*n*(n-1)*(n-2)/3 - delta*delta*n*(n-1)*(n-2)*(n-3)/8
	} else if delta < 1 {
		dg = (n*math.Exp((n-1)*logTheta) - g) / delta
	} else if n > 1 {
		dg = -g
	}
	return g, dg
}

// gapProduct returns p+q−pq = 1 − (1−p)(1−q).
func gapProduct(p, q float64) float64 { return p + q*(1-p) }

// energy returns the sum of the first n squares of Σ_i b_i (1−p_i)^m, which is Σ_ik b_i b_k G(D_ik, n) with D_ik =
// p_i+p_k−p_ip_k. It adds the partial derivatives with respect to b and p to the slices db and dp, unless they are nil.
func energy(b, p []float64, n float64, db, dp []float64) float64 {
	var q float64
	for i := range b {
		var gb, dgb float64
		for k := range b {
			g, dg := geometric(gapProduct(p[i], p[k]), n)
			gb += g * b[k]
			dgb += dg * (1 - p[k]) * b[k]
		}
		q += b[i] * gb
		if db != nil {
			db[i] += 2 * gb
			dp[i] += 2 * b[i] * dgb
		}
	}
	return q
}

// chainRule computes total derivatives with respect to r and p. It takes the derivatives with respect to the residues
// b(r, p) and the explicit derivatives with respect to p, and uses
//
//	∂ ln b_i/∂r_j = 1/(r_j−p_i)
//	∂ ln b_i/∂p_i = −Σ_j 1/(r_j−p_i) + Σ_{l≠i} 1/(p_l−p_i)
//	∂ ln b_i/∂p_l = −1/(p_l−p_i)
func chainRule(b, r, p, db, dp []float64) (dr, total []float64) {
	dr = make([]float64, len(r))
	total = append([]float64(nil), dp...)
	for i := range p {
		u := b[i] * db[i]
		for j := range r {
			v := u / (r[j] - p[i])
			dr[j] += v
			total[i] -= v
		}
		for l := range p {
			if l != i {
				v := u / (p[l] - p[i])
				total[i] += v
				total[l] -= v
			}
		}
	}
	return dr, total
}

// sensitivity returns S(n) = Σ_{j<n} c_j² and, if grad is set, its derivatives with respect
// to a and â.
func sensitivity(a, ahat []float64, n float64, grad bool) (s float64, da, dahat []float64) {
	omega := residues(ahat, a)
	if !grad {
		return 1 + energy(omega, a, n-1, nil, nil), nil, nil
	}
	db, dp := make([]float64, len(a)), make([]float64, len(a))
	s = 1 + energy(omega, a, n-1, db, dp)
	dahat, da = chainRule(omega, ahat, a, db, dp)
	return s, da, dahat
}

// squaredError returns E(n) = Σ_{j<n} b_j² for the workload 1/(1−(1−a₀)x). If window > 0 (then a₀ = 0), it returns the
// error of a sum over the last W = window steps instead, in the limit n → ∞,
//
//	E(W) + Σ_{i,k≥1} κ_iκ_k / D_ik,   κ_i = β_i (1 − (1−â_i)^W),
//
// If grad is set, it also returns the derivatives.
func squaredError(a, ahat []float64, a0, n, window float64, grad bool) (e float64, da, dahat []float64) {
	p := append([]float64{a0}, ahat...)
	beta := residues(a, p)
	var db, dp []float64
	if grad {
		db, dp = make([]float64, len(p)), make([]float64, len(p))
	}
	if window == 0 {
		e = energy(beta, p, n, db, dp)
	} else {
		e = energy(beta, p, window, db, dp)
		kappa, gap := make([]float64, len(ahat)), make([]float64, len(ahat))
		for i, q := range ahat {
			gap[i] = -math.Expm1(window * math.Log1p(-q))
			kappa[i] = beta[i+1] * gap[i]
		}
		var dk, dq []float64
		if grad {
			dk, dq = make([]float64, len(ahat)), make([]float64, len(ahat))
		}
		e += energy(kappa, ahat, math.Inf(1), dk, dq)
		if grad {
			for i, q := range ahat {
				db[i+1] += dk[i] * gap[i]
				dp[i+1] += dq[i]
				if q < 1 {
					dp[i+1] += dk[i] * beta[i+1] * window * math.Exp((window-1)*math.Log1p(-q))
				}
			}
		}
	}
	if !grad {
		return e, nil, nil
	}
	da, dp = chainRule(beta, a, p, db, dp)
	return e, da, dp[1:]
}
