package stattest

import "math"

// StudentT returns the t with P(T > t) = alpha for Student's distribution with n
// degrees of freedom.
func StudentT(n int, alpha float64) float64 { return NoncentralT(n, 0, alpha) }

// NoncentralT returns the t with P(T > t) = alpha for T = (Z + shift)/√(χ²_n/n), Z standard Gaussian: the statistic of
// two samples whose means differ by shift standard errors. The result is NaN unless 0 < alpha ≤ ½.
func NoncentralT(n int, shift, alpha float64) float64 {
	if !(alpha > 0 && alpha <= 0.5) {
		return math.NaN()
	}
	// The median is above lo, because the median of √(χ²_n/n) is between 0.67 and 1.
	lo, hi := min(shift, 2*shift)-1, shift+1
	for NoncentralTail(n, shift, hi) > alpha {
		hi += 2 * (hi - lo)
	}
	return bisect(lo, hi, func(t float64) bool { return NoncentralTail(n, shift, t) <= alpha })
}

// NoncentralTail returns P(T > t) for T as in NoncentralT, n ≥ 1:
//
//	∫ f(s) Q(ts − shift) ds,  f the density of √(χ²_n/n)
//
// With s = e^u the integrand is smooth on the whole line and falls exponentially, so a sum over equidistant points
// converges exponentially. The relative error is below 10⁻¹⁰, in a comparison with 30-digit arithmetic.
func NoncentralTail(n int, shift, t float64) float64 {
	nu := float64(n)
	gamma, _ := math.Lgamma(nu / 2)
	scale := math.Ln2 + nu/2*math.Log(nu/2) - gamma
	log := func(u float64) float64 {
		s := math.Exp(u)
		return scale + nu*u - nu/2*s*s + logQ(t*s-shift)
	}
	// The integrand is unimodal in u, because the logarithm of either factor is concave in s.
	lo, hi := -60.0, 5.0
	for hi-lo > 1e-9 {
		a, b := hi-0.618*(hi-lo), lo+0.618*(hi-lo)
		if log(a) > log(b) {
			hi = b
		} else {
			lo = a
		}
	}
	mode := (lo + hi) / 2
	top := log(mode)
	if top < -745 {
		return 0
	}
	s := math.Exp(mode)
	step := 0.25 / math.Sqrt(1+2*nu*s*s+t*t*s*s)
	sum := 1.0
	for _, sign := range []float64{-1, 1} {
		for k := 1.0; ; k++ {
			v := math.Exp(log(mode+sign*k*step) - top)
			if sum += v; v < 1e-17*sum {
				break
			}
		}
	}
	return min(1, sum*step*math.Exp(top))
}

// logQ returns log P(Z > x).
func logQ(x float64) float64 {
	if x < 30 {
		return math.Log(math.Erfc(x/math.Sqrt2) / 2)
	}
	y := 1 / (x * x)
	return -x*x/2 - math.Log(x*math.Sqrt(2*math.Pi)) + math.Log1p(-y*(1-3*y*(1-5*y)))
}

// Ratio returns the f with P(F > f) = alpha for the ratio F of two independent
// χ²_n: (√n/2)(√F − 1/√F) has Student's distribution with n degrees of freedom.
func Ratio(n int, alpha float64) float64 {
	y := StudentT(n, alpha) / math.Sqrt(float64(n))
	root := y + math.Hypot(1, y)
	return root * root
}

// OneRun returns the p-value of the hypothesis that a mechanism is (ε, δ)-private in an audit with one run. For each of
// m canaries, a fair coin decided whether it was put into the data. The auditor then guessed `guesses` of these coins,
// and `correct` of the guesses were right. The p-value is
//
//	P[B ≥ v] + 2mδ·max_{1≤i≤v} P[v−i ≤ B < v]/i,  B ~ Bin(guesses, e^ε/(1+e^ε))
//
// Source: Steinke, Nasr, Jagielski (2023), "Privacy Auditing with One (1) Training Run", Theorem 5.2. The test detects
// errors in μ of a factor of three or more.
func OneRun(canaries, guesses, correct int, eps, delta float64) float64 {
	// These are the logarithms of p and 1 − p, accurate also for large ε.
	logP, logNot := -math.Log1p(math.Exp(-eps)), -eps-math.Log1p(math.Exp(-eps))
	all, _ := math.Lgamma(float64(guesses) + 1)
	mass := func(k int) float64 {
		a, _ := math.Lgamma(float64(k) + 1)
		b, _ := math.Lgamma(float64(guesses-k) + 1)
		return math.Exp(all - a - b + float64(k)*logP + float64(guesses-k)*logNot)
	}
	var p, below, worst float64
	for k := guesses; k >= correct; k-- {
		p += mass(k)
	}
	for i := 1; i <= correct; i++ {
		below += mass(correct - i)
		worst = max(worst, below/float64(i))
	}
	return min(1, p+2*float64(canaries)*delta*worst)
}
