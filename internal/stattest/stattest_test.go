package stattest

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestChiSquared(t *testing.T) {
	for _, c := range []struct {
		n                int
		alpha, low, high float64
	}{ // scipy 1.x
		{1, 1e-09, 1.57079632679e-18, 37.3248930514},
		{2, 0.0001, 0.000200010000667, 18.420680744},
		{9, 1e-09, 0.0484070584363, 60.6603083738},
		{9, 1e-12, 0.0103930208765, 76.005925142},
		{200, 1e-09, 102.286604458, 344.142079609},
		{1000, 1e-09, 754.633063178, 1291.95786624},
		{10000, 1e-12, 9037.25777236, 11027.3799303},
		{1000000, 1e-09, 991541.122094, 1008505.50945},
		{10000000, 1e-12, 9968573.83079, 10031491.4981},
	} {
		low, high := ChiSquared(c.n, c.alpha)
		if math.Abs(low-c.low) > 1e-8*c.low || math.Abs(high-c.high) > 1e-8*c.high {
			t.Errorf("n=%d, alpha=%g: %.12g, %.12g, want %.12g, %.12g", c.n, c.alpha, low, high, c.low, c.high)
		}
	}
	if z := Normal(1e-9); math.Abs(z-6.1094102048693975) > 1e-12 {
		t.Errorf("Normal(1e-9) = %.12g", z)
	}
}

// TestLevel counts false alarms at alpha = 1 %: 4000 trials give 40 on average, and at most 83 with probability 1 −
// 10⁻⁹. There may be fewer for Kolmogorov–Smirnov, whose inequality is not tight for small n, and for White, which
// divides alpha by a union bound.
func TestLevel(t *testing.T) {
	const trials, alpha, most = 4000, 0.01, 83
	source := rand.New(rand.NewPCG(1, 1))
	alarms := map[string]int{}
	for range trials {
		rows := make([][]float64, 50)
		for i := range rows {
			rows[i] = []float64{source.NormFloat64(), source.NormFloat64()}
		}
		a, b := make([]float64, 60), make([]float64, 60)
		for i := range a {
			a[i], b[i] = source.NormFloat64(), source.NormFloat64()
		}
		for name, err := range map[string]error{
			"variance":    Variance(a, alpha),
			"mean":        Mean(a, 0, 1, alpha),
			"correlation": Correlation(a, b, alpha),
			"lag":         Lag(a, 1, alpha),
			"ks":          KolmogorovSmirnov(a, Gaussian, alpha),
			"white":       White(rows, 3, alpha),
			"covariance":  Covariance(rows, [][]float64{{1, 0}, {0, 1}}, alpha),
		} {
			if err != nil {
				alarms[name]++
			}
		}
	}
	for name, n := range alarms {
		if n > most {
			t.Errorf("%s: %d false alarms in %d at alpha %g", name, n, trials, alpha)
		}
	}
	for _, name := range []string{"variance", "mean", "correlation"} {
		if alarms[name] < 9 { // probability 10⁻⁹ as well
			t.Errorf("%s: only %d alarms in %d at alpha %g", name, alarms[name], trials, alpha)
		}
	}
}

// TestPower gives each assertion samples that it must refuse. The sizes make a miss less likely than 10⁻³ for a random
// seed, and the seed is fixed.
func TestPower(t *testing.T) {
	source := rand.New(rand.NewPCG(2, 2))
	draw := func(n int, f func(z float64) float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = f(source.NormFloat64())
		}
		return x
	}
	same := func(z float64) float64 { return z }
	if Variance(draw(17532, func(z float64) float64 { return z / 1.05 }), 2e-9) == nil {
		t.Error("a deviation that is 5 % too small passes")
	}
	if Variance(draw(102, func(z float64) float64 { return z / 2 }), 2e-9) == nil {
		t.Error("a deviation that is half passes")
	}
	if Mean(draw(10000, func(z float64) float64 { return z + 0.1 }), 0, 1, Alpha) == nil {
		t.Error("a mean of 0.1 passes")
	}
	a, b := draw(8700, same), draw(8700, same)
	for i := range b {
		b[i] = 0.1*a[i] + math.Sqrt(0.99)*b[i]
	}
	if Correlation(a, b, Alpha) == nil {
		t.Error("a correlation of 0.1 passes")
	}
	c := append([]float64{0, 0, 0}, a...)
	for i := range a {
		c[i] += 0.15 * a[i]
	}
	if Lag(c[3:], 3, Alpha) == nil && Lag(c[:len(a)], 3, Alpha) == nil {
		t.Error("a correlation of 0.15 at lag 3 passes")
	}
	if KolmogorovSmirnov(draw(2000, math.Abs), Gaussian, Alpha) == nil {
		t.Error("absolute values pass as Gaussian")
	}
	if KolmogorovSmirnov(draw(2000, same), Gaussian, Alpha) != nil {
		t.Error("Gaussians do not pass as Gaussian")
	}
	rows := make([][]float64, 2000)
	for i := range rows {
		x, y := source.NormFloat64(), source.NormFloat64()
		rows[i] = []float64{2 * x, x + 3*y}
	}
	if err := Covariance(rows, [][]float64{{4, 2}, {2, 10}}, Alpha); err != nil {
		t.Error(err)
	}
	if Covariance(rows, [][]float64{{4, 1}, {1, 10}}, Alpha) == nil {
		t.Error("a covariance that is half passes")
	}
	if Covariance(rows, [][]float64{{1, 2}, {2, 1}}, Alpha) == nil {
		t.Error("an indefinite covariance passes")
	}
	for name, err := range map[string]error{
		"variance": Variance([]float64{math.NaN()}, Alpha), "mean": Mean([]float64{math.NaN()}, 0, 1, Alpha),
		"correlation": Correlation([]float64{math.NaN(), 1}, []float64{1, 2}, Alpha),
	} {
		if err == nil {
			t.Errorf("%s: NaN passes", name)
		}
	}
}
