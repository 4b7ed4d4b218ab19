package adam

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
)

// apart returns ‖x−y‖² + λ‖x∘x−y∘y‖².
func apart(x, y []float64, lambda float64) float64 {
	var first, second float64
	for i := range x {
		first += (x[i] - y[i]) * (x[i] - y[i])
		e := x[i]*x[i] - y[i]*y[i]
		second += e * e
	}
	return first + lambda*second
}

func inBall(source *rand.Rand, d int, radius float64) []float64 {
	x := make([]float64, d)
	var sum float64
	for i := range x {
		x[i] = source.NormFloat64()
		sum += x[i] * x[i]
	}
	scale := radius / math.Sqrt(sum)
	if source.IntN(2) == 0 {
		scale *= source.Float64()
	}
	for i := range x {
		x[i] *= scale
	}
	return x
}

// moved returns x, moved by a distance of about size within the ball.
func moved(source *rand.Rand, x []float64, size, radius float64) []float64 {
	y := make([]float64, len(x))
	var sum float64
	for i := range x {
		y[i] = x[i] + size*radius*source.NormFloat64()
		sum += y[i] * y[i]
	}
	if norm := math.Sqrt(sum); norm > radius {
		for i := range y {
			y[i] *= radius / norm
		}
	}
	return y
}

func plus(x, y []float64) []float64 {
	z := make([]float64, len(x))
	for i := range x {
		z[i] = x[i] + y[i]
	}
	return z
}

// worstGradients returns a batch of m gradients with two versions, x and y, of the first one. The two sums, with
// squares, are as far apart as the theorem says. All other gradients are ζe₁. The first is ζe₁ and −ζe₁, or ζe₁ and 0.
// For m = 1 it returns the worst single vectors.
func worstGradients(m uint64, nu, clip float64, d int, adjacency dp.Adjacency) (others [][]float64, x, y []float64) {
	x = make([]float64, d)
	x[0] = clip
	for range m - 1 {
		others = append(others, append([]float64(nil), x...))
	}
	if m > 1 {
		nu = 0
	}
	p := audit.SquaresWorst(nu, clip, d, adjacency)
	return others, p.X, p.Y
}

// TestBatchSensitivity searches for sums of vectors that are farther apart than the closed form says. It must find
// none, but some as far apart. The search is random, with refinement, over the sum of the other vectors and both
// versions of one vector. It starts from pairs that include the worst one.
func TestBatchSensitivity(t *testing.T) {
	t.Parallel()
	const clip = 1.7
	tried := 0
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, m := range []uint64{1, 2, 3, 8} {
			for _, d := range []int{1, 2, 3, 5} {
				for _, nu := range []float64{0.003, 0.2, 0.5, 0.9, 2.77, 4, 30} {
					lambda := nu / (clip * clip)
					closed := batchSensitivity(m, lambda, clip, d, adjacency)
					source := rand.New(rand.NewPCG(uint64(d)+m, math.Float64bits(nu)))
					rest := clip * float64(m-1)
					best := 0.0
					for start := range 60 {
						a, u, w := inBall(source, d, max(rest, 1e-300)), inBall(source, d, clip), make([]float64, d)
						if adjacency == dp.Replace {
							w = inBall(source, d, clip)
						}
						if start == 0 {
							var others [][]float64
							others, u, w = worstGradients(m, nu, clip, d, adjacency)
							clear(a)
							for _, x := range others {
								a = plus(a, x)
							}
						}
						top := apart(plus(a, u), plus(a, w), lambda)
						for size := 1.0; size > 1e-7; {
							a2, u2, w2 := a, moved(source, u, size, clip), w
							if m > 1 {
								a2 = moved(source, a, size, rest)
							}
							if adjacency == dp.Replace {
								w2 = moved(source, w, size, clip)
							}
							tried++
							if f := apart(plus(a2, u2), plus(a2, w2), lambda); f > top {
								a, u, w, top = a2, u2, w2, f
							} else {
								size *= 0.9
							}
						}
						best = max(best, top)
					}
					if got := math.Sqrt(best) / closed; !(got <= 1+1e-12 && got >= 1-1e-12) {
						t.Errorf("%s, m=%d, d=%d, nu=%g: the worst pair is %.12g of the closed form apart", adjacency,
							m, d, nu, got)
					}
				}
			}
		}
	}
	t.Logf("%d pairs", tried)
}

// TestClippedMeanSensitivity makes the same kind of search for vectors of bounded norm and distance.
func TestClippedMeanSensitivity(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(2, 3))
	for _, d := range []int{1, 2, 4} {
		for _, bound := range []float64{0.2, 1, 3} {
			for _, distance := range []float64{0.05, 0.5, 1.3, 7} {
				for _, lambda := range []float64{0.01, 0.3, 1, 10} {
					closed := clippedMeanSensitivity(bound, distance, lambda, d)
					best := 0.0
					for start := range 240 {
						x := inBall(source, d, bound)
						y := moved(source, x, 0, bound)
						if start < 200 {
							// Pairs on one axis, and pairs that are symmetric to the diagonal of two axes.
							x, y = make([]float64, d), make([]float64, d)
							far := min(distance, 2*bound) * float64(start/2+1) / 100
							if x[0], y[0] = bound, bound-far; start%2 == 1 && d > 1 {
								c := math.Sqrt(max(0, bound*bound-far*far/4)/2) * (1 - 1e-15)
								h := far / math.Sqrt(8)
								x[0], x[1], y[0], y[1] = c+h, c-h, c-h, c+h
							}
						}
						top := apart(x, y, lambda)
						if start < 200 {
							best = max(best, top)
							continue
						}
						for size := 1.0; size > 1e-6; {
							u := moved(source, x, size, bound)
							v := moved(source, y, size, bound)
							// Move x and y along the line between them until they are within the allowed distance.
							var far float64
							for i := range u {
								far += (u[i] - v[i]) * (u[i] - v[i])
							}
							if far = math.Sqrt(far); far > distance {
								for i := range v {
									v[i] = u[i] + (v[i]-u[i])*distance/far
								}
							}
							if f := apart(u, v, lambda); f > top {
								x, y, top = u, v, f
							} else {
								size *= 0.9
							}
						}
						best = max(best, top)
					}
					if got := math.Sqrt(best) / closed; !(got <= 1+1e-12 && got >= 0.999) {
						t.Errorf(
							"d=%d, bound %g, distance %g, lambda %g: the worst pair is %.9g of the closed form apart",
							d, bound, distance, lambda, got)
					}
				}
			}
		}
	}
}

// TestClippedMeanBoundsBatches compares the bound for means that are clipped again with the exact value for all means.
// If the second clipping has no effect, the bound is not smaller.
func TestClippedMeanBoundsBatches(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, m := range []uint64{2, 5, 64} {
			for _, lambda := range []float64{0.01, 1, 50} {
				n, clip := float64(m), 1.3
				exact := batchSensitivity(m, lambda/(n*n), clip, 3, adjacency) / n
				bound := clippedMeanSensitivity(clip, adjacency.Factor()*clip/n, lambda, 3)
				if bound < exact*(1-1e-12) {
					t.Errorf("%s, m=%d, lambda %g: %g for means in the whole ball, below %g", adjacency, m, lambda,
						bound, exact)
				}
				if tight := clippedMeanSensitivity(clip/10, adjacency.Factor()*clip/n, lambda, 3); tight > bound {
					t.Errorf("%s, m=%d, lambda %g: a smaller ball costs more", adjacency, m, lambda)
				}
			}
		}
	}
}

// TestCalibrate compares the noise of each method with its definition, for ζ ≠ 1 and different column norms.
func TestCalibrate(t *testing.T) {
	t.Parallel()
	const clip, alpha, beta, mu, nu, tau = 1.7, 1.3, 2.1, 0.8, 0.4, 0.6
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, m := range []uint64{1, 4} {
			n, f := float64(m), adjacency.Factor()
			single := f * clip * alpha / n / mu
			ratio := nu * alpha * alpha / (clip * clip * beta * beta)
			vector := clip * alpha * math.Sqrt(calibration.SquaresSensitivity(nu, 3, adjacency)) / n / mu
			batch := single * math.Sqrt(1+4*nu*(n-1)*(n-1)/(n*n))
			if adjacency == dp.ZeroOut {
				batch = single * math.Sqrt(1+nu*(2*n-1)*(2*n-1)/(n*n))
			} else if m == 1 {
				batch = vector
			}
			for method, want := range map[string][2]float64{
				"pp": {single, 0}, "pp_debiased": {single, 0}, "momentum": {single, 0},
				"jme": {vector, vector / math.Sqrt(ratio)}, "jme_per_example": {vector, vector / math.Sqrt(ratio)},
				"jme_batch":  {batch, batch / math.Sqrt(ratio)},
				"joint_clip": {f * clip * beta / n / mu, f * clip * beta / n / mu / math.Sqrt(tau)},
			} {
				c := Config{Method: method, Clip: clip, Step: m, Dim: 3, Tau: tau, Mode: "gradients"}
				got := c.calibrated(mu, nu, alpha, beta, adjacency)
				for i, x := range [2]float64{got.First, got.Second} {
					if math.Abs(x-want[i]) > 1e-12*want[i] {
						t.Errorf("%s, %s, m=%d: noise %d is %g, want %g", method, adjacency, m, i, x, want[i])
					}
				}
				if math.Abs(got.Sensitivity-mu*got.First) > 1e-12 {
					t.Errorf("%s: sensitivity %g and noise %g do not make μ", method, got.Sensitivity, got.First)
				}
			}
		}
	}
}

// TestNu compares the chosen weight with all others on a grid.
func TestNu(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"jme", "jme_per_example", "jme_batch"} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			for _, m := range []uint64{1, 6} {
				if method == "jme" && m > 1 {
					continue
				}
				what := fmt.Sprintf("%s, %s, m=%d", method, adjacency, m)
				c := Config{Method: method, Clip: 1.7, Step: m, Dim: 3, Rate: 1, Factorization: "blt"}
				c.Defaults()
				f, err := c.factorize(nil)
				if err != nil {
					t.Fatal(err)
				}
				if method != "jme_batch" && adjacency == dp.Replace ||
					method == "jme_batch" && m == 1 && adjacency == dp.Replace {
					if nu := c.nu(f, adjacency); nu != 0.5 {
						t.Errorf("%s: nu is %g, want the free one", what, nu)
					}
					continue
				}
				objective := func(nu float64) float64 {
					n := c.calibrated(1, nu, f.first.ColNorm(), f.second.ColNorm(), adjacency)
					a, b := n.First*linear(f.first, c.Beta1, steady)/c.Clip,
						n.Second*linear(f.second, c.Beta2, steady)/(c.Clip*c.Clip)
					return a*a + b*b
				}
				chosen := objective(c.nu(f, adjacency))
				for nu := 1e-4; nu < 1e4; nu *= 1.003 {
					if objective(nu) < chosen*(1-1e-12) {
						t.Errorf("%s: nu %g is better than the chosen %g", what, nu, c.nu(f, adjacency))
						break
					}
				}
			}
		}
	}
}
