package stattest

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestNoncentralT(t *testing.T) {
	for _, c := range []struct {
		n              int
		shift, t, tail float64
	}{ // mpmath, 30 digits
		{1, 0, 3, 0.102416382349567},
		{2, 1.5, 10, 0.0312279267501269},
		{10, 0, 4.5, 0.000571552543402033},
		{10, 4, 30, 2.81417358024191e-7},
		{126, 22.6, 37.2, 8.57806097650096e-10},
		{530, 46.1, 60, 5.98303372193106e-12},
		{6484, 161.07, 172, 6.76736244726686e-10},
		{42, 19.6, 5, 1},
		{5, -2, 3, 6.73318853123727e-5},
	} {
		got := NoncentralTail(c.n, c.shift, c.t)
		if !(math.Abs(got-c.tail) <= 1e-10*c.tail) {
			t.Errorf("P(T > %g), n = %d, shift = %g: %.15g, want %.15g", c.t, c.n, c.shift, got, c.tail)
		}
		if q := NoncentralT(c.n, c.shift, got); c.tail <= 0.5 != (math.Abs(q-c.t) <= 1e-9*c.t) {
			t.Errorf("quantile of %.15g, n = %d, shift = %g: %.15g, want %.15g", got, c.n, c.shift, q, c.t)
		}
	}
	// With many degrees of freedom the distribution is Gaussian.
	if q := StudentT(1e9, 1e-9); math.Abs(q-Normal(2e-9)) > 1e-6 {
		t.Errorf("quantile of Student's distribution with 10⁹ degrees of freedom: %.9g", q)
	}
}

func TestRatio(t *testing.T) {
	for _, c := range []struct {
		n           int
		alpha, want float64
	}{ // mpmath, by the incomplete beta function
		{10, 1e-3, 8.7538662754473},
		{3997, 1e-9, 1.20911985319954},
		{29766, 1e-9, 1.07201064020293},
		{515410, 1e-9, 1.01684931119059},
	} {
		if got := Ratio(c.n, c.alpha); !(math.Abs(got-c.want) <= 1e-11*c.want) {
			t.Errorf("n = %d, alpha = %g: %.15g, want %.15g", c.n, c.alpha, got, c.want)
		}
	}
}

// TestOneRun: with δ = 0 the p-value is a binomial tail. For randomised response, which attains (ε, 0), it is never too
// small.
func TestOneRun(t *testing.T) {
	if p := OneRun(10, 3, 2, math.Log(3), 0); math.Abs(p-(0.75*0.75*0.75+3*0.75*0.75*0.25)) > 1e-15 {
		t.Errorf("p = %.17g", p)
	}
	if p := OneRun(10, 10, 0, 1, 0); p < 1-1e-13 {
		t.Errorf("no correct guess: p = %g", p)
	}
	if p := OneRun(1e6, 1e5, 1e5, 700, 1e-9); !(p > 0.9 && p <= 1) {
		t.Errorf("a huge ε: p = %g", p)
	}
	const trials, canaries, alpha, eps = 4000, 200, 0.01, 1.5
	source := rand.New(rand.NewPCG(4, 4))
	alarms := 0
	for range trials {
		correct := 0
		for range canaries {
			if source.Float64() < 1/(1+math.Exp(-eps)) {
				correct++
			}
		}
		if OneRun(canaries, canaries, correct, eps, 0) <= alpha {
			alarms++
		}
	}
	if alarms > 83 { // as in TestLevel
		t.Errorf("%d false alarms in %d at alpha %g", alarms, trials, alpha)
	}
}
