package matfact

import "math"

// This file computes the sensitivity of a BLT to all rows of one person, as a differentiable function for the
// optimiser. docs/theory/matfact.md derives it.

// personSensitivity returns
//
//	P² = k·S(∞) + 2 Σ_i ω_i h_i T_i,   h_i = 1 + θ_i Σ_j ω_j/D_ij,
//	T_i = Σ_{m=1}^{k−1} (k−m) θ_i^(mb−1),
//
// that is, the largest squared norm of the sum of k columns of C at infinite height, any two of them at least b steps
// apart. If grad is set, it also returns the derivatives with respect to a and â. The cost depends neither on k nor on
// b.
func personSensitivity(a, ahat []float64, k, b float64, grad bool) (p2 float64, da, dahat []float64) {
	omega := residues(ahat, a)
	var db, dp []float64
	if grad {
		db, dp = make([]float64, len(a)), make([]float64, len(a))
	}
	p2 = k * (1 + energy(omega, a, math.Inf(1), db, dp))
	for i := range db {
		db[i] *= k
		dp[i] *= k
	}
	for i, w := range omega {
		t, dt := spacedRows(a[i], k, b)
		theta, sum, slope := 1-a[i], 0.0, 0.0
		for j, v := range omega {
			d := gapProduct(a[i], a[j])
			q := v / d
			sum += q
			slope += q / d * (1 - a[j])
			if grad {
				db[j] += 2 * w * t * theta / d
				dp[j] -= 2 * w * t * theta * q / d * theta
			}
		}
		h := 1 + theta*sum
		p2 += 2 * w * h * t
		if grad {
			db[i] += 2 * h * t
			dp[i] += 2 * w * (h*dt - t*(sum+theta*slope))
		}
	}
	if !grad {
		return p2, nil, nil
	}
	dahat, da = chainRule(omega, ahat, a, db, dp)
	return p2, da, dahat
}

// spacedRows returns T = Σ_{m=1}^{k−1} (k−m)θ^(mb−1), θ = 1−p, and its derivative with
// respect to p. With ρ = θ^b and H as in meanGeometric,
//
//	T = θ^(b−1)·(k−1)·H(1−ρ, k−1).
func spacedRows(p, k, b float64) (t, dt float64) {
	power := func(e float64) float64 { // θ^e, 0⁰ = 1
		if e <= 0 {
			return 1
		}
		return math.Exp(e * math.Log1p(-p))
	}
	n := k - 1
	first := power(b - 1)
	h, dh := meanGeometricSlope(-math.Expm1(b*math.Log1p(-p)), n)
	t = n * first * h
	dt = n * first * dh * b * first
	if b > 1 {
		dt -= n * (b - 1) * power(b-2) * h
	}
	return t, dt
}

// meanGeometricSlope returns H(δ, n) of meanGeometric and its derivative with respect to δ.
func meanGeometricSlope(delta, n float64) (h, dh float64) {
	h = meanGeometric(delta, n)
	x := n * delta
	if x < 1e-2 {
		// Add the derivative of each term, up to x⁵.
		f := n*n - 1
		return h, -f/6 + delta*f*(n-2)/12 - delta*delta*f*(n-2)*(n-3)/40 +
			delta*delta*delta*f*(n-2)*(n-3)*(n-4)/180
	}
	g, dg := geometric(delta, n)
	return h, (g-(1-delta)*dg)/x - h/delta
}
