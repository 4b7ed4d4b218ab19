package optimise

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/mat"
)

// TestMinimise finds the end of a curved valley. In some directions the domain ends before the minimum.
func TestMinimise(t *testing.T) {
	for _, start := range [][]float64{{-1.2, 1}, {3, -2}, {0, 0}} {
		x := append([]float64(nil), start...)
		value := Minimise(x, func(x, grad []float64) float64 {
			if x[0] > 4 {
				return math.Inf(1)
			}
			a, b := 1-x[0], x[1]-x[0]*x[0]
			grad[0], grad[1] = -2*a-400*x[0]*b, 200*b
			return a*a + 100*b*b
		})
		if !(value < 1e-16) || math.Abs(x[0]-1) > 1e-7 || math.Abs(x[1]-1) > 1e-7 {
			t.Errorf("from %v: %g at %v, want 0 at (1, 1)", start, value, x)
		}
	}
}

// TestDense compares with the best factorization of two prefix sums, which is known. With the best weights of the
// columns, its error is the sum of A's singular values divided by √2. The singular values are (1+√5)/2 and the inverse
// of that.
func TestDense(t *testing.T) {
	a := mat.NewDense(2, 2, []float64{1, 0, 1, 1})
	for _, worst := range []bool{false, true} {
		best, err := Dense(a, worst)
		if err != nil {
			t.Fatal(err)
		}
		if !(best.Bound <= best.Value*(1+1e-12) && best.Value <= best.Bound*(1+1e-6)) {
			t.Errorf("error %.12g and bound %.12g differ", best.Value, best.Bound)
		}
		// C = (c, 0; s, 1) with c² + s² = 1 has the rows 1/c and (1−s/c, 1) of AC⁻¹.
		least := math.Inf(1)
		for s := 0.0; s < 0.9; s += 1e-5 {
			c := math.Sqrt(1 - s*s)
			first, second := 1/(c*c), (1-s)*(1-s)/(c*c)+1
			if e := (first + second) / 2; !worst {
				least = min(least, math.Sqrt(e))
			} else {
				least = min(least, math.Sqrt(max(first, second)))
			}
		}
		if math.Abs(best.Value-least) > 1e-4*least {
			t.Errorf("worst %v: error %.9g, a search over all C finds %.9g", worst, best.Value, least)
		}
	}
}
