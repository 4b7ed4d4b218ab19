package moments

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// variants are configurations of every method except plain joint estimation, with a horizon of n steps, all workloads
// and the factorizations that fit. Where possible they have projections, the number of valid records, or a second
// moment with a separate workload and factorization. The caller sets Step.
func variants(n uint64) []Config {
	floor := 0.01
	var all []Config
	for i, w := range []Config{
		{Workload: "mean"}, {Workload: "sum"}, {Workload: "exponential", Decay: 0.9}, {Workload: "window", Window: 3},
	} {
		for _, method := range []string{"ime", "cs", "pp", "pp_debiased", "combined"} {
			for j, kind := range []string{"identity", "sqrt", "blt", "phased"} {
				c := w
				c.Method, c.Factorization, c.Horizon, c.Step = method, kind, n, 4
				if squaring(method) {
					if c.Step = 1; kind == "phased" {
						continue
					}
				}
				if method == "cs" {
					c.Tau = 0.3
				}
				if method == "ime" {
					c.Split = 0.3
				}
				c.ValidCount, c.Project = new((i+j)%2 == 0), (i+j)%3 == 0
				if c.Workload != "sum" && (i+j)%3 == 1 {
					c.PSDFloor = &floor
				}
				all = append(all, c)
			}
		}
		c := w
		c.Method, c.Factorization, c.Horizon, c.Step, c.ValidCount = "jme", "sqrt", n, 4, new(true)
		all = append(all, c)
		c.ValidCount, c.Second = nil,
			&Second{Workload: w.Workload, Decay: w.Decay, Window: w.Window, Factorization: "identity"}
		all = append(all, c)
		c.Method, c.Second = "ime", &Second{Workload: "exponential", Decay: 0.7, Factorization: "blt"}
		all = append(all, c)
	}
	return all
}

// everything returns audited and variants, with Step set.
func everything(n uint64) []Config {
	all := audited(n)
	for i := range all {
		all[i].Method, all[i].Step = "jme", 4
	}
	return append(all, variants(n)...)
}

// within cuts the steps of a stream to at most n records.
func within(s audit.Stream, n uint64) audit.Stream {
	c := slices.Clone(s)
	for i, records := range c {
		c[i] = records[:min(uint64(len(records)), n)]
	}
	return c
}

// TestGram compares the step-by-step results of overlap with dense matrices, in ascending and in random order, for both
// forms of Q.
func TestGram(t *testing.T) {
	t.Parallel()
	const n = 40
	for _, w := range []matfact.Workload{
		{Kind: "sum"}, {Kind: "exponential", Decay: 0.9}, {Kind: "exponential", Decay: 0.3},
		{Kind: "window", Window: 1}, {Kind: "window", Window: 7}, {Kind: "window", Window: 100},
	} {
		for _, kind := range []string{"identity", "sqrt", "blt"} {
			f, err := matfact.New(matfact.Config{Kind: kind, Horizon: n}, w)
			if err != nil {
				t.Fatal(err)
			}
			// Q = C⁻¹C⁻ᵀ, column by column.
			inverse := mat.NewDense(n, n, nil)
			for j := range n {
				filter, z := f.NewFilter(1), []float64{0}
				for i := range n {
					if z[0] = 0; i == j {
						z[0] = 1
					}
					filter.Next(z, z)
					inverse.Set(i, j, z[0])
				}
			}
			var q mat.SymDense
			q.SymOuterK(1, inverse)
			g := newOverlap(f, w)
			order := make([]int, n)
			for i := range order {
				order[i] = i + 1
			}
			for _, step := range append(order, 17, 3, 40, 1) {
				a := make([]float64, n)
				for k := range step {
					switch {
					case w.Kind == "exponential":
						a[k] = math.Pow(w.Decay, float64(step-1-k))
					case w.Kind != "window" || step-1-k < int(w.Window):
						a[k] = 1
					}
				}
				var bias, fourth, cross float64
				for k := range n {
					bias += a[k] * q.At(k, k)
					for l := range n {
						x := a[k] * a[l] * q.At(k, l)
						fourth += x * q.At(k, l)
						cross += math.Abs(x)
					}
				}
				gotBias, gotFourth, gotCross := g.at(uint64(step))
				for name, x := range map[string][2]float64{"bias": {gotBias, bias}, "fourth": {gotFourth, fourth},
					"cross": {gotCross, cross}} {
					if !(math.Abs(x[0]-x[1]) <= 1e-12*x[1]) {
						t.Errorf("%v, %s, step %d: %s is %.15g, want %.15g", w, kind, step, name, x[0], x[1])
					}
				}
				if got := weights(w, uint64(step)); math.Abs(got-sum(a)) > 1e-13*got {
					t.Errorf("%v: the weights of step %d are %g, want %g", w, step, got, sum(a))
				}
			}
		}
	}
	for steps := uint64(1); steps < 70; steps++ {
		if got, want := geometric(0.97, steps),
			-math.Expm1(float64(steps)*math.Log(0.97))/0.03; math.Abs(got-want) > 1e-13*want {
			t.Errorf("%d weights sum to %g, want %g", steps, got, want)
		}
	}
	if got := geometric(0.5, math.MaxUint64); got != 2 {
		t.Errorf("all weights sum to %g", got)
	}
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

// dense is a release's row a of weights over all slots, and Q, for exact errors of given rows.
type dense struct {
	a []float64
	q *mat.SymDense
	x [][]float64 // rows, zero for slots without a record
}

// cross returns tr(XᵀHQHX) and tr((HQ)²) for H = c·diag(a) − aaᵀ or, if plain is set, for H = diag(a).
func (d *dense) cross(c float64, plain bool) (linear, quartic float64) {
	n := len(d.a)
	h := mat.NewDense(n, n, nil)
	for k := range n {
		for l := range n {
			if !plain {
				h.Set(k, l, -d.a[k]*d.a[l])
			}
		}
		w := c
		if plain {
			w = 1
		}
		h.Set(k, k, h.At(k, k)+w*d.a[k])
	}
	var hq, hqh, square mat.Dense
	hq.Mul(h, d.q)
	hqh.Mul(&hq, h)
	square.Mul(&hq, &hq)
	for k := range n {
		quartic += square.At(k, k)
		for l := range n {
			for j := range d.x[k] {
				linear += hqh.At(k, l) * d.x[k][j] * d.x[l][j]
			}
		}
	}
	return linear, quartic
}

// TestScatter compares the bounds of the covariance's error with exact values for random rows, weights and empty slots,
// and searches for rows that exceed them. For independent noise and equal weights the bounds are attained.
func TestScatter(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(31, 7))
	const n = 9
	for _, w := range []matfact.Workload{{Kind: "sum"}, {Kind: "exponential", Decay: 0.8},
		{Kind: "window", Window: 4}} {
		for _, kind := range []string{"identity", "sqrt"} {
			f, err := matfact.New(matfact.Config{Kind: kind, Horizon: n}, w)
			if err != nil {
				t.Fatal(err)
			}
			s := shapes{shape{f, w, true}, shape{f, w, true}}
			setting := setting{factor: f, shapes: s, scale: func(uint64) float64 { return 1 }}
			q := covarianceOf(&setting, n)
			for step := 1; step <= n; step++ {
				top := 0.0
				for range 400 {
					d := dense{a: make([]float64, n), q: q, x: make([][]float64, n)}
					var records, divisor float64
					full := source.IntN(2) == 0
					axis := source.IntN(2) == 0
					for k := range n {
						d.x[k] = make([]float64, 2)
						if k >= step {
							continue
						}
						d.a[k] = math.Pow(w.Decay, float64(step-1-k))
						if w.Kind == "sum" || w.Kind == "window" && step-1-k < int(w.Window) {
							d.a[k] = 1
						} else if w.Kind == "window" {
							d.a[k] = 0
						}
						if d.a[k] == 0 || !full && source.IntN(3) == 0 {
							continue
						}
						records++
						divisor += d.a[k]
						angle := source.Float64() * 2 * math.Pi
						if axis {
							angle = float64(k%2) * math.Pi
						}
						d.x[k] = []float64{math.Cos(angle), math.Sin(angle)}
					}
					divisor = max(1, divisor)
					for k := range d.a {
						d.a[k] /= divisor
					}
					gains, bias := s.gains(newOverlap(f, w), uint64(step), divisor, divisor)
					x := s.scatter(gains, uint64(step), records, divisor)
					c := source.Float64()
					linear, quartic := x.spread(c)
					wantLinear, wantQuartic := d.cross(c, false)
					if !(wantLinear <= linear*(1+1e-12)+1e-15) || !(wantQuartic <= quartic*(1+1e-12)+1e-15) {
						t.Fatalf("%v, %s, step %d, c %g, %g records: errors %g and %g exceed %g and %g", w, kind, step,
							c, records, wantLinear, wantQuartic, linear, quartic)
					}
					if kind == "identity" && w.Kind != "exponential" {
						if math.Abs(quartic-wantQuartic) > 1e-12*quartic+1e-16 {
							t.Fatalf("%v, step %d: quartic %g, want %g", w, step, quartic, wantQuartic)
						}
						if linear > 0 && full {
							top = max(top, wantLinear/linear)
						}
					}
					// The mean of the squared noise, and the cross term of the error without a covariance.
					var trace float64
					for k := range n {
						trace += d.a[k] * q.At(k, k)
					}
					if math.Abs(bias-trace) > 1e-12*trace {
						t.Fatalf("%v, %s, step %d: bias %g, want %g", w, kind, step, bias, trace)
					}
					plain, fourth := d.cross(0, true)
					if !(plain <= gains.Cross*(1+1e-12)) || math.Abs(fourth-gains.Fourth) > 1e-12*fourth {
						t.Fatalf("%v, %s, step %d: error of squares %g and %g, stated %g and %g", w, kind, step, plain,
							fourth, gains.Cross, gains.Fourth)
					}
				}
				if kind == "identity" && w.Kind != "exponential" && step > 1 && step%2 == 0 && top < 0.9 {
					t.Errorf("%v, step %d: no rows exceed %g of the bound", w, step, top)
				}
			}
		}
	}
}

// covarianceOf returns Q.
func covarianceOf(s *setting, n int) *mat.SymDense {
	q := mat.NewSymDense(n, nil)
	one := matfact.Workload{Kind: "window", Window: 1}
	for t := range n {
		for k := range t + 1 {
			q.SetSym(t, k, s.factor.Cov(one, uint64(t)+1, uint64(k)+1))
		}
	}
	return q
}

// TestScatterWeight compares the weight with a grid of all others.
func TestScatterWeight(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 8))
	for range 500 {
		w := []matfact.Workload{{Kind: "sum"}, {Kind: "exponential", Decay: source.Float64()},
			{Kind: "window", Window: 1 + source.Uint64N(9)}}[source.IntN(3)]
		f, err := matfact.New(matfact.Config{Kind: []string{"identity", "sqrt"}[source.IntN(2)], Horizon: 30}, w)
		if err != nil {
			t.Fatal(err)
		}
		s := shapes{shape{f, w, true}, shape{f, w, true}}
		step := 1 + source.Uint64N(30)
		records := math.Floor(weights(w, step) * source.Float64())
		if source.IntN(2) == 0 {
			records = weights(w, step)
		}
		divisor := max(1, records)
		gains, _ := s.gains(newOverlap(f, w), step, divisor, divisor)
		x := s.scatter(gains, step, records, divisor)
		d, clip := 1+source.IntN(20), math.Exp(source.NormFloat64())
		n := Joint(calibration.FreeSquares(d), d, dp.Replace).Noise(math.Exp(source.NormFloat64()), clip, f.ColNorm(),
			f.ColNorm())
		best := covarianceError(x.weight(n, clip, d), n, clip, d, x)
		for k := range 1001 {
			if other := covarianceError(float64(k)/1000, n, clip, d, x); other < best*(1-1e-12) {
				t.Fatalf("%v, %s, step %d, %g records, d=%d: weight %g gives %g, %g gives %g", w, f.Kind(), step,
					records, d, x.weight(n, clip, d), best, float64(k)/1000, other)
			}
		}
	}
}
