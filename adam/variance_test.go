package adam

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
)

// TestVNoise compares the recursions with sums over all pairs of steps.
func TestVNoise(t *testing.T) {
	t.Parallel()
	const steps = 60
	for _, kind := range []string{"identity", "blt", "sqrt"} {
		for _, betas := range [][2]float64{{0.9, 0.999}, {0.5, 0.8}, {0.99, 0.9}} {
			f := factorization(t, kind, betas[0], steps)
			window := matfact.Workload{Kind: "window", Window: 1}
			s := newSquared(f, betas[1])
			for i := uint64(1); i <= steps; i++ {
				s.advance()
				var mean, pairs float64
				weight := func(k uint64) float64 { return (1 - betas[1]) * math.Pow(betas[1], float64(i-k)) }
				for k := uint64(1); k <= i; k++ {
					mean += weight(k) * f.CinvVar(k)
					for l := uint64(1); l <= i; l++ {
						pairs += weight(k) * weight(l) * math.Pow(f.Cov(window, k, l), 2)
					}
				}
				if math.Abs(s.mean-mean) > 1e-12*mean || math.Abs(s.pairs-pairs) > 1e-12*pairs {
					t.Errorf("%s, %g, step %d: mean %.15g and pairs %.15g, want %.15g and %.15g", kind, betas, i,
						s.mean, s.pairs, mean, pairs)
				}
			}
		}
	}
}

// TestUnbiased runs steps without gradients. For the methods that claim an unbiased v̂, the mean of v̂ over keys must
// be 0, and its standard deviation the stated one, also with correlated noise. Each method gets 20 000 values; α =
// 10⁻⁹.
func TestUnbiased(t *testing.T) {
	t.Parallel()
	const d, steps, runs = 20, 6, 1000
	for _, c := range []Config{
		{Method: "pp_debiased"}, {Method: "pp_debiased", Factorization: "blt"},
		{Method: "pp_debiased", Factorization: "sqrt"},
		{Method: "jme_per_example", Factorization: "blt"}, {Method: "joint_clip", Tau: 1}, {Method: "pp"},
	} {
		c.Clip, c.Rate, c.Step, c.Dim, c.Horizon, c.Beta2 = 1.3, 1e-3, 4, d, steps, 0.8
		e := mustNew(t, c, dp.Params{Mu: 0.7, Adjacency: dp.ZeroOut})
		start, err := e.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var values []float64
		u := update{}
		noise := dptest.Seeded(uint64(len(c.Method) + len(c.Factorization)))
		for range runs {
			if err := e.UnmarshalBinary(start); err != nil {
				t.Fatal(err)
			}
			for range steps {
				r, err := e.Close(noise)
				if err != nil {
					t.Fatal(err)
				}
				u.deviation = r.Values[1].Data[0]
			}
			u2 := e.peekLast()
			for _, v := range e.v {
				values = append(values, v*u2.unbias2-u2.bias)
			}
		}
		want, n := 0.0, float64(len(values))
		if c.Method == "pp" {
			want = e.plan.FirstNoise * e.plan.FirstNoise // C = I
		}
		if err := stattest.Mean(values, want, u.deviation, stattest.Alpha); err != nil {
			t.Errorf("%s, %s: %v", c.Method, c.Factorization, err)
		}
		var square float64
		for _, v := range values {
			square += (v - want) * (v - want) / n
		}
		// Weighted sums of squares of Gaussians have an excess kurtosis of up to 12.
		if ratio, most := square/(u.deviation*u.deviation), 6.2*math.Sqrt(14/n); math.Abs(ratio-1) > most {
			t.Errorf("%s, %s: variance is %.4g of the stated one, must be within %.3g", c.Method, c.Factorization,
				ratio, most)
		}
	}
}

// peekLast returns the public numbers of the last closed step.
func (e *Estimator) peekLast() update {
	e.step--
	defer func() { e.step++ }()
	return e.peek()
}

// TestExpectedError compares the formulas with simulations: 40 000 streams of 5 gradients on the border of the ball,
// with d = 3 and ζ ≠ 1.
func TestExpectedError(t *testing.T) {
	t.Parallel()
	const d, steps, runs, clip, mu, beta2 = 3, 5, 40000, 1.3, 1.1, 0.9
	gradients := [][]float64{{1.3, 0, 0}, {0, -1.3, 0}, {0.9, 0.9, 0.2}, {0, 0, 1.3}, {-1.3, 0, 0}}
	for _, kind := range []string{"identity", "sqrt"} {
		f := factorization(t, kind, beta2, steps)
		for _, method := range []string{"jme", "pp_debiased", "pp"} {
			for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
				want, err := ExpectedError(method, f, beta2, clip, mu, adjacency, d, steps)
				if err != nil {
					t.Fatal(err)
				}
				c := Config{Method: method, Clip: clip, Dim: d, Step: 1, Rate: 1e-3, Beta1: beta2, Beta2: beta2,
					Factorization: kind, Horizon: steps}
				if method == "jme" && adjacency == dp.ZeroOut {
					c.Nu = 1
				}
				e := mustNew(t, c, dp.Params{Mu: mu, Adjacency: adjacency})
				start, err := e.AppendBinary(nil)
				if err != nil {
					t.Fatal(err)
				}
				noise := dptest.Seeded(uint64(adjacency))
				biases := make([]float64, steps)
				if method == "pp_debiased" {
					for i := range biases {
						v := newVNoise(f, beta2, uint64(i)+1)
						biases[i] = math.Pow(e.plan.FirstNoise, 2) * v.Bias * complement(1-beta2, uint64(i)+1)
					}
				}
				var sum, square float64
				for range runs / 4 {
					if err := e.UnmarshalBinary(start); err != nil {
						t.Fatal(err)
					}
					truth := make([]float64, d)
					total := 0.0
					for i, g := range gradients {
						e.Add(uint64(i), g)
						if _, err := e.Close(noise); err != nil {
							t.Fatal(err)
						}
						for j := range truth {
							truth[j] = beta2*truth[j] + (1-beta2)*g[j]*g[j]
							off := e.v[j] - biases[i] - truth[j]
							total += off * off
						}
					}
					sum, square = sum+total, square+total*total
				}
				n := float64(runs / 4)
				mean := sum / n
				se := math.Sqrt((square/n - mean*mean) / n)
				low := mean - 6.2*se
				// The stated error is a bound over all gradients. For C = I these gradients attain its term 4ρ²ζ²κ.
				slack := 0.0
				if method != "jme" && kind == "sqrt" {
					slack = 0.3 * want
				}
				if want < low || want > mean+6.2*se+slack+1e-5*want {
					t.Errorf("%s, %s, %s: simulated %.5g ± %.2g, stated %.5g", kind, method, adjacency, mean, se, want)
				}
			}
		}
	}
}
