package dp

import (
	"math"
	"testing"
)

// TestGaussianInverses computes δ at the result of Mu or Epsilon, over the whole documented range. It must be at most
// the given δ, and within 10⁻⁹ of it.
func TestGaussianInverses(t *testing.T) {
	for _, eps := range []float64{1e-6, 1e-3, 0.1, 0.5, 1, 3, 10, 50} {
		for _, delta := range []float64{1e-300, 1e-100, 1e-20, 1e-9, 1e-6, 1e-3, 0.1} {
			mu, err := Mu(eps, delta)
			if err != nil {
				t.Fatal(err)
			}
			if d := LogDelta(eps, mu); d > math.Log(delta) || d < math.Log(delta)-1e-8*(1-math.Log(delta)) {
				t.Errorf("log δ(%g, Mu) = %.15g, want just below %.15g", eps, d, math.Log(delta))
			}
			back, err := Epsilon(delta, mu)
			if err != nil {
				t.Fatal(err)
			}
			if !(math.Abs(back-eps) <= 1e-9*eps+1e-12) {
				t.Errorf("Epsilon(%g, Mu(%g, %g)) = %.15g", delta, eps, delta, back)
			}
		}
	}
}

// TestGaussianLargest: the largest ε, which may stand for no limit, has a result too.
func TestGaussianLargest(t *testing.T) {
	if mu, err := Mu(math.MaxFloat64, 1e-8); err != nil || !(mu > 1e153 && mu < 1.9e154) {
		t.Errorf("Mu(MaxFloat64) = %g, %v", mu, err)
	}
}

func TestGaussianMonotone(t *testing.T) {
	for _, mu := range []float64{1e-5, 0.01, 0.3, 0.999, 1.001, 2, 7, 40} {
		last := math.Inf(1)
		for eps := -2.0; eps < 30; eps += 0.0625 {
			d := LogDelta(eps, mu)
			if !(d <= last+1e-12*math.Abs(last)) || d > 0 {
				t.Fatalf("log δ(%g, %g) = %g after %g", eps, mu, d, last)
			}
			last = d
		}
	}
}

func TestGaussianRefuses(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range [][2]float64{{-1, 0.1}, {nan, 0.1}, {inf, 0.1}, {1, 0}, {1, 1}, {1, -1}, {1, nan}} {
		if mu, err := Mu(c[0], c[1]); err == nil {
			t.Errorf("Mu%v = %g", c, mu)
		}
	}
	for _, c := range [][2]float64{{0, 1}, {1, 1}, {1e-6, -1}, {1e-6, nan}, {1e-6, inf}} {
		if eps, err := Epsilon(c[0], c[1]); err == nil {
			t.Errorf("Epsilon%v = %g", c, eps)
		}
	}
	for _, s := range []float64{0, -1, nan, inf} {
		if sigma, err := Sigma(1, 1e-6, s); err == nil {
			t.Errorf("Sigma for sensitivity %g = %g", s, sigma)
		}
	}
	if _, err := (Params{Epsilon: 1, Delta: 1e-6}).Budget(); err == nil {
		t.Error("Budget accepted parameters without adjacency")
	}
}
