package moments

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// apart returns α²‖x−y‖² + λβ²‖xxᵀ−yyᵀ‖²_F.
func apart(x, y []float64, alpha, beta, lambda float64) float64 {
	var first, second float64
	for i := range x {
		first += (x[i] - y[i]) * (x[i] - y[i])
		for j := range x {
			e := x[i]*x[j] - y[i]*y[j]
			second += e * e
		}
	}
	return alpha*alpha*first + lambda*beta*beta*second
}

// TestJointSensitivity searches for two records that are farther apart than the closed form says, by random search with
// refinement. The search begins at pairs that include the worst one. No pair may exceed the closed form, and one must
// attain it.
func TestJointSensitivity(t *testing.T) {
	t.Parallel()
	const clip, alpha, beta = 1.7, 1.3, 0.6
	tried := 0
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 2, 3, 5} {
			for _, nu := range []float64{0.01, 0.3, 0.5, 0.51, 0.9, 2, 2.772, 2.78, 4, 30} {
				lambda := nu * alpha * alpha / (clip * clip * beta * beta)
				closed := JointSensitivity([]float64{alpha}, []float64{beta}, lambda, clip, d, adjacency)
				n := Joint(nu, d, adjacency).Noise(2, clip, alpha, beta)
				for what, got := range map[string]float64{"lambda": n.Lambda / lambda,
					"sensitivity": n.Sensitivity / closed, "first": n.First * 2 / closed,
					"diagonal": n.Diagonal / n.First * math.Sqrt(lambda),
					"off":      n.OffDiagonal / n.Diagonal * math.Sqrt2} {
					if math.Abs(got-1) > 1e-14 {
						t.Errorf("Noise at %g: %s is off by %g", nu, what, got-1)
					}
				}
				source := rand.New(rand.NewPCG(uint64(d), math.Float64bits(nu)))
				free := func() []float64 { return inBall(source, d, clip) }
				if adjacency == dp.ZeroOut {
					free = func() []float64 { return make([]float64, d) }
				}
				best := 0.0
				for start := range 150 {
					x, y := inBall(source, d, clip), free()
					if start == 0 {
						p := audit.JointWorst(nu, clip, d, adjacency)
						x, y = p.X, p.Y
					}
					top := apart(x, y, alpha, beta, lambda)
					for size := 1.0; size > 1e-7; {
						u, v := moved(source, x, size, clip), y
						if adjacency == dp.Replace {
							v = moved(source, y, size, clip)
						}
						tried++
						if f := apart(u, v, alpha, beta, lambda); f > top {
							x, y, top = u, v, f
						} else {
							size *= 0.93
						}
					}
					best = max(best, top)
				}
				if got := math.Sqrt(best) / closed; !(got <= 1+1e-12 && got >= 1-1e-12) {
					t.Errorf("%s, d=%d, nu=%g: the worst pair is %.15g of the closed form apart", adjacency, d, nu, got)
				}
			}
		}
	}
	t.Logf("%d pairs", tried)
}

// inBall returns a random vector of norm at most clip; every second one is on the sphere.
func inBall(source *rand.Rand, d int, clip float64) []float64 {
	x := make([]float64, d)
	var sum float64
	for i := range x {
		x[i] = source.NormFloat64()
		sum += x[i] * x[i]
	}
	scale := clip / math.Sqrt(sum)
	if source.IntN(2) == 0 {
		scale *= source.Float64()
	}
	for i := range x {
		x[i] *= scale
	}
	return x
}

// moved returns x moved by about size, in the ball.
func moved(source *rand.Rand, x []float64, size, clip float64) []float64 {
	y := make([]float64, len(x))
	var sum float64
	for i := range x {
		y[i] = x[i] + size*clip*source.NormFloat64()
		sum += y[i] * y[i]
	}
	if norm := math.Sqrt(sum); norm > clip {
		for i := range y {
			y[i] *= clip / norm
		}
	}
	return y
}

// TestJointSensitivityOfColumns checks that the result is the sensitivity of the worst column, also if one of the
// matrices has a zero column. The largest norms of both matrices together must give an upper bound.
func TestJointSensitivityOfColumns(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 3))
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 2, 4} {
			first, second := []float64{0.2, 1.1, 0, 0.7}, []float64{0.9, 0.3, 1.4, 0}
			const lambda, clip = 0.8, 1.3
			closed := JointSensitivity(first, second, lambda, clip, d, adjacency)
			top := 0.0
			for range 40000 {
				x, y := inBall(source, d, clip), make([]float64, d)
				if adjacency == dp.Replace {
					y = inBall(source, d, clip)
				}
				for i := range first {
					top = max(top, apart(x, y, first[i], second[i], lambda))
				}
			}
			if got := math.Sqrt(top); got > closed*(1+1e-12) || got < 0.97*closed {
				t.Errorf("%s, d=%d: pairs up to %.9g apart, closed form %.9g", adjacency, d, got, closed)
			}
			if bound := JointSensitivity([]float64{1.1}, []float64{1.4}, lambda, clip, d, adjacency); closed > bound {
				t.Errorf("%s, d=%d: %g is above %g, that of the largest norms", adjacency, d, closed, bound)
			}
		}
	}
}

// TestRoundedSquares searches for neighbours whose rounded squares are farther apart than the charged sensitivity, in
// blocks with arbitrary other contents, on lattices so coarse that rounding is most of the distance.
func TestRoundedSquares(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(4, 5))
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 2, 3, 8} {
			for _, shift := range []uint{1, 3, 8} {
				const k, nu = 40, 0.5
				l := dp.Lattice{Exp: 0, K: k}
				n := Joint(nu, d, adjacency).Noise(1, k, 1, 1)
				exact := JointSensitivity([]float64{1}, []float64{1}, n.Lambda, k, d, adjacency)
				charged := exact + math.Sqrt(n.Lambda)*float64(d)*math.Ldexp(1, int(shift))
				top := 0.0
				u, v := make([]int64, d), make([]int64, d)
				for range 20000 {
					if !l.Quantise(u, inBall(source, d, k)) ||
						adjacency == dp.Replace && !l.Quantise(v, inBall(source, d, k)) {
						t.Fatal("a row was refused")
					}
					var first, second float64
					for i := range u {
						first += float64(u[i]-v[i]) * float64(u[i]-v[i])
						for j := i; j < d; j++ {
							rest := source.Int64N(1<<20) - 1<<19
							round := func(x []int64) float64 {
								return float64((rest + x[i]*x[j] + 1<<(shift-1)) >> shift)
							}
							e := math.Ldexp(round(u)-round(v), int(shift))
							if second += e * e; i != j {
								second += e * e
							}
						}
					}
					top = max(top, math.Sqrt(first+n.Lambda*second))
				}
				if top > charged {
					t.Errorf("%s, d=%d, shift %d: neighbours are %g apart, charged %g", adjacency, d, shift,
						top, charged)
				}
				if shift == 8 && d > 1 && top < exact {
					t.Errorf("%s, d=%d, shift %d: rounding adds nothing (%g of %g), so the test is useless", adjacency,
						d, shift, top, exact)
				}
			}
		}
	}
}

// TestChooseNu compares the chosen ν with all others on a grid, and the ν chosen by inflation with its definition.
func TestChooseNu(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 2, 10} {
			at := func(nu float64) string { return fmt.Sprintf("%s, d=%d, nu=%g", adjacency, d, nu) }
			for ratio := 1e-6; ratio < 1e7; ratio *= 3.1 {
				objective := func(nu float64) float64 {
					return (1 + ratio/nu) * calibration.SquaresSensitivity(nu, d, adjacency)
				}
				nu := chooseNu(1, ratio, d, adjacency)
				best, where := math.Inf(1), 0.0
				for x := 1e-5; x < 1e5; x *= 1.001 {
					if f := objective(x); f < best {
						best, where = f, x
					}
				}
				if objective(nu) > best*(1+1e-9) {
					t.Errorf("%s for ratio %g: %g is better by %g", at(nu), ratio, where, objective(nu)/best-1)
				}
				if adjacency == dp.Replace && nu < calibration.FreeSquares(d) {
					t.Errorf("%s for ratio %g is below the free weight", at(nu), ratio)
				}
			}
			for _, phi := range []float64{1, 1.0001, 1.1, 2, 50} {
				nu, err := nuForInflation(phi, d, adjacency)
				if adjacency == dp.ZeroOut && phi == 1 {
					if err == nil {
						t.Errorf("%s for no inflation", at(nu))
					}
					continue
				}
				alone := 1.0
				if adjacency == dp.Replace {
					alone = 4
				}
				if err != nil || math.Abs(calibration.SquaresSensitivity(nu, d, adjacency)/alone-phi) > 1e-12*phi {
					t.Errorf("%s for inflation %g gives %g (%v)", at(nu), phi,
						calibration.SquaresSensitivity(nu, d, adjacency)/alone, err)
				}
				if nu < calibration.FreeSquares(d) && adjacency == dp.Replace {
					t.Errorf("%s for inflation %g is below the free weight", at(nu), phi)
				}
			}
		}
	}
	// These values are for d = 1 under replacement, in the range of the closed form. A search with 40 digits found
	// them, and determines half of the digits.
	for ratio, want := range map[float64]float64{1000: 32.130809304009794, 30: 6.0274543613966332,
		12: 4.0484442026938767, 1e5: 316.72855783823252, 4: calibration.FreeSquares(1),
		0.25: calibration.FreeSquares(1)} {
		if nu := chooseNu(1, ratio, 1, dp.Replace); math.Abs(nu/want-1) > 1e-14 {
			t.Errorf("d=1, ratio %g: nu is %.17g, want %.17g", ratio, nu, want)
		}
	}
	for _, phi := range []float64{0, 0.99, -1, math.NaN(), math.Inf(1)} {
		if nu, err := nuForInflation(phi, 2, dp.Replace); err == nil {
			t.Errorf("inflation %g gives %g", phi, nu)
		}
	}
}

// TestTradeoffs compares the charge of each method with a search for the neighbours that are farthest apart, in both
// moments and the number of valid records. None may exceed the charge. If the method claims an exact charge, some must
// attain it.
func TestTradeoffs(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, d := range []int{1, 2, 4} {
			for _, kappa := range []float64{0, 0.1, 2.4, 5} {
				// A tradeoff, and whether its charge is exact.
				type charged struct {
					name  string
					t     Tradeoff
					tight bool
				}
				all := []charged{
					{"single", Single(adjacency).withCount(kappa), true},
					{"split", Single(adjacency).withCount(kappa).split(0.3, d, adjacency), adjacency == dp.ZeroOut},
					{"concatenation", CS(0.7, adjacency).withCount(kappa), adjacency == dp.ZeroOut},
				}
				for _, nu := range []float64{0.1, 0.5, 1, 3, 10} {
					all = append(all, charged{fmt.Sprint("joint ", nu), Joint(nu, d, adjacency).withCount(kappa), true})
				}
				source := rand.New(rand.NewPCG(uint64(d), 77))
				for _, c := range all {
					top := 1 + c.t.Nu + kappa // the distance for a record that becomes invalid
					if adjacency == dp.Replace {
						p := audit.JointWorst(c.t.Nu, 1, d, adjacency)
						top = max(top, apart(p.X, p.Y, 1, 1, c.t.Nu))
						for range 2000 {
							top = max(top, apart(inBall(source, d, 1), inBall(source, d, 1), 1, 1, c.t.Nu))
						}
					}
					switch ratio := top / c.t.Square; {
					case ratio > 1+1e-12:
						t.Errorf("%s, %s, d=%d, κ %g: neighbours are %g apart, charged %g", c.name, adjacency, d, kappa,
							top, c.t.Square)
					case c.tight && ratio < 1-1e-12:
						t.Errorf("%s, %s, d=%d, κ %g: charged %g, neighbours are at most %g apart", c.name, adjacency,
							d, kappa, c.t.Square, top)
					}
				}
			}
			// Under zero-out, independent and joint estimation have the same frontier; under replacement joint
			// estimation is better everywhere.
			for _, share := range []float64{0.1, 0.5, 0.9} {
				split := Split(share, d, adjacency)
				joint := Joint(split.Nu, d, adjacency)
				switch better := joint.First() < split.First()*(1-1e-9) && joint.Second() < split.Second()*(1-1e-9); {
				case adjacency == dp.Replace && !better:
					t.Errorf("d=%d, share %g: joint estimation has variances %g and %g, independent %g and %g", d,
						share, joint.First(), joint.Second(), split.First(), split.Second())
				case adjacency == dp.ZeroOut &&
					math.Abs(joint.First()/split.First()-1)+math.Abs(joint.Second()/split.Second()-1) > 1e-14:
					t.Errorf("d=%d, share %g: the frontiers differ", d, share)
				}
			}
		}
	}
}

// TestParticipationSensitivity compares the bound for persons with several records with the largest distance that a
// search finds. The distance never exceeds the bound. For one record the bound is the exact sensitivity; at ν = ½
// alternating or equal signs attain it.
func TestParticipationSensitivity(t *testing.T) {
	t.Parallel()
	const n, clip = 6, 1.4
	source := rand.New(rand.NewPCG(8, 8))
	coef, err := audit.KernelRoot(matfact.Workload{Kind: "sum"}, n)
	if err != nil {
		t.Fatal(err)
	}
	c := make([][]float64, n)
	for i := range c {
		c[i] = make([]float64, n)
		for j := range i + 1 {
			c[i][j] = coef[i-j]
		}
	}
	column := 0.0
	for _, x := range coef {
		column = math.Hypot(column, x)
	}
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, steps := range [][]int{{0}, {0, 3}, {1, 2, 4}} {
			for _, lambda := range []float64{0.5 / (clip * clip), 2} {
				bound := ParticipationSensitivity(c, c, steps, lambda, clip, 2, adjacency)
				if len(steps) == 1 {
					if want := JointSensitivity([]float64{column}, []float64{column}, lambda, clip, 2,
						adjacency); math.Abs(bound-want) > 1e-12 {
						t.Errorf("%s, one record: %g, want %g", adjacency, bound, want)
					}
				}
				top := 0.0
				for trial := range 4000 {
					x, y := make([][]float64, n), make([][]float64, n)
					for i := range n {
						x[i], y[i] = make([]float64, 2), make([]float64, 2)
					}
					for k, i := range steps {
						x[i], y[i] = inBall(source, 2, clip), inBall(source, 2, clip)
						if trial == 0 {
							x[i], y[i] = []float64{clip, 0}, []float64{-clip, 0}
						} else if trial%3 == 0 && k > 0 {
							x[i], y[i] = x[steps[0]], y[steps[0]]
						}
						if adjacency == dp.ZeroOut {
							y[i] = make([]float64, 2)
						}
					}
					var square float64
					for i := range n {
						var first [2]float64
						var second [3]float64
						for j := range i + 1 {
							w := c[i][j]
							first[0] += w * (x[j][0] - y[j][0])
							first[1] += w * (x[j][1] - y[j][1])
							second[0] += w * (x[j][0]*x[j][0] - y[j][0]*y[j][0])
							second[1] += w * math.Sqrt2 * (x[j][0]*x[j][1] - y[j][0]*y[j][1])
							second[2] += w * (x[j][1]*x[j][1] - y[j][1]*y[j][1])
						}
						square += first[0]*first[0] + first[1]*first[1] +
							lambda*(second[0]*second[0]+second[1]*second[1]+second[2]*second[2])
					}
					top = max(top, math.Sqrt(square))
				}
				if !(top <= bound*(1+1e-12)) {
					t.Errorf("%s, steps %v: streams are %g apart, the bound is %g", adjacency, steps, top, bound)
				}
				if adjacency == dp.Replace && lambda*clip*clip <= 0.5 && top < bound*(1-1e-12) {
					t.Errorf("%s, steps %v: streams are at most %g apart, the bound is %g", adjacency,
						steps, top, bound)
				}
			}
		}
	}
}
