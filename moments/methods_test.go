package moments

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"streamdp/dp"
	"streamdp/internal/audit"
	"streamdp/internal/dptest"
	"streamdp/internal/stattest"
	"streamdp/matfact"
)

// variants are configurations of every method but plain joint estimation, with a
// horizon of n steps, all workloads and the factorizations that fit; where nothing
// forbids it with projections, the number of valid records, or a second moment of
// its own shape. Step is filled in.
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
				c.ValidCount, c.Project = (i+j)%2 == 0, (i+j)%3 == 0
				if c.Workload != "sum" && (i+j)%3 == 1 {
					c.PSDFloor = &floor
				}
				all = append(all, c)
			}
		}
		c := w
		c.Method, c.Factorization, c.Horizon, c.Step, c.ValidCount = "jme", "sqrt", n, 4, true
		all = append(all, c)
		c.ValidCount, c.Second = false, &Second{Workload: w.Workload, Decay: w.Decay, Window: w.Window, Factorization: "identity"}
		all = append(all, c)
		c.Method, c.Second = "ime", &Second{Workload: "exponential", Decay: 0.7, Factorization: "blt"}
		all = append(all, c)
	}
	return all
}

// everything is audited and variants, with slots filled in.
func everything(n uint64) []Config {
	all := audited(n)
	for i := range all {
		all[i].Method, all[i].Step = "jme", 4
	}
	return append(all, variants(n)...)
}

// within cuts a stream to steps of at most so many records.
func within(s audit.Stream, n uint64) audit.Stream {
	c := slices.Clone(s)
	for i, records := range c {
		c[i] = records[:min(uint64(len(records)), n)]
	}
	return c
}

// TestGram compares what it computes step by step with dense matrices, in
// ascending order and any other, for both forms of Q.
func TestGram(t *testing.T) {
	t.Parallel()
	const n = 40
	for _, w := range []matfact.Workload{
		{Kind: "sum"}, {Kind: "exponential", Decay: 0.9}, {Kind: "exponential", Decay: 0.3}, {Kind: "window", Window: 1}, {Kind: "window", Window: 7}, {Kind: "window", Window: 100},
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
				for name, x := range map[string][2]float64{"bias": {gotBias, bias}, "fourth": {gotFourth, fourth}, "cross": {gotCross, cross}} {
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
		if got, want := geometric(0.97, steps), -math.Expm1(float64(steps)*math.Log(0.97))/0.03; math.Abs(got-want) > 1e-13*want {
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

// dense is a release's row a of weights over all slots with Q, for exact errors of
// given rows.
type dense struct {
	a []float64
	q *mat.SymDense
	x [][]float64 // rows, zero where a slot has none
}

// cross returns tr(XᵀHQHX) and tr((HQ)²) for H = c·diag(a) − aaᵀ, or, where plain
// is set, for H = diag(a).
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

// TestScatter compares the bounds of the covariance's error with exact values for
// random rows, weights and empty slots, and looks for rows that exceed them; for
// independent noise and equal weights they are attained.
func TestScatter(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(31, 7))
	const n = 9
	for _, w := range []matfact.Workload{{Kind: "sum"}, {Kind: "exponential", Decay: 0.8}, {Kind: "window", Window: 4}} {
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
						t.Fatalf("%v, %s, step %d, c %g, %g records: errors %g and %g exceed %g and %g", w, kind, step, c, records, wantLinear, wantQuartic, linear, quartic)
					}
					if kind == "identity" && w.Kind != "exponential" {
						if math.Abs(quartic-wantQuartic) > 1e-12*quartic+1e-16 {
							t.Fatalf("%v, step %d: quartic %g, want %g", w, step, quartic, wantQuartic)
						}
						if linear > 0 && full {
							top = max(top, wantLinear/linear)
						}
					}
					// The mean of the squares' noise, and the plain error's cross term.
					var trace float64
					for k := range n {
						trace += d.a[k] * q.At(k, k)
					}
					if math.Abs(bias-trace) > 1e-12*trace {
						t.Fatalf("%v, %s, step %d: bias %g, want %g", w, kind, step, bias, trace)
					}
					plain, fourth := d.cross(0, true)
					if !(plain <= gains.Cross*(1+1e-12)) || math.Abs(fourth-gains.Fourth) > 1e-12*fourth {
						t.Fatalf("%v, %s, step %d: error of squares %g and %g, stated %g and %g", w, kind, step, plain, fourth, gains.Cross, gains.Fourth)
					}
				}
				if kind == "identity" && w.Kind != "exponential" && step > 1 && step%2 == 0 && top < 0.9 {
					t.Errorf("%v, step %d: rows come to no more than %g of the bound", w, step, top)
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

// TestScatterWeight compares the weight with all others.
func TestScatterWeight(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 8))
	for range 500 {
		w := []matfact.Workload{{Kind: "sum"}, {Kind: "exponential", Decay: source.Float64()}, {Kind: "window", Window: 1 + source.Uint64N(9)}}[source.IntN(3)]
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
		n := Calibrate(math.Exp(source.NormFloat64()), dp.FreeSquares(d), clip, f.ColNorm(), f.ColNorm(), d, dp.Replace)
		best := covarianceError(x.weight(n, clip, d), n, clip, d, x)
		for k := range 1001 {
			if other := covarianceError(float64(k)/1000, n, clip, d, x); other < best*(1-1e-12) {
				t.Fatalf("%v, %s, step %d, %g records, d=%d: weight %g gives %g, %g gives %g", w, f.Kind(), step, records, d, x.weight(n, clip, d), best, float64(k)/1000, other)
			}
		}
	}
}

// TestExpectedErrors simulates every formula of an expected error: squared errors
// of both moments and of the covariance, summed over all releases, of estimators
// under many keys. ζ is not 1, the matrix is a square root. What depends on the
// rows is put in for the stream at hand; that the stated bounds hold for all rows
// is TestScatter's.
//
// The tolerance follows from the sample's own variance; 3 assertions for each of
// the methods, workloads and matrices share alpha 10⁻⁹. With STREAMDP_SLOW=1 there
// are 2·10⁵ runs and all errors must be within 1 % besides.
func TestExpectedErrors(t *testing.T) {
	t.Parallel()
	const steps, d, clip, sigma = 6, 3, 1.7, 0.6
	runs, slow := 2500, os.Getenv("STREAMDP_SLOW") != ""
	if slow {
		runs = 200000
	}
	rows := [][]float64{{0.5, -0.3, 1.2}, {0.9, 0.1, 0.2}, {-0.4, 1.5, 0}, {3, 2, -4}, {1, 1, -1}, {0, 0, 1.7}}
	s := make(audit.Stream, steps)
	for i, x := range rows {
		s[i] = [][]float64{x}
	}
	var all []Config
	for _, method := range []string{"jme", "ime", "cs", "pp", "pp_debiased", "combined"} {
		for _, workload := range []string{"mean", "sum"} {
			for _, kind := range []string{"sqrt", "identity"} {
				c := Config{Method: method, Workload: workload, Factorization: kind, Horizon: steps, Step: 1, Clip: clip, Columns: d}
				if method == "cs" {
					c.Tau = 0.4
				}
				all = append(all, c)
			}
		}
	}
	const alpha = stattest.Alpha / 72
	worst := 0.0
	for i, c := range all {
		e := mustNew(t, c, dp.Params{Mu: 1 / sigma, Adjacency: dp.Adjacency(1 + i%2)})
		want := exactly(s, c, e.plan.Clip)
		start := mustState(t, e)
		noise := dptest.Seeded(uint64(100 + i))
		var errs [3][]float64
		for range runs {
			if err := e.UnmarshalBinary(start); err != nil {
				t.Fatal(err)
			}
			var total [3]float64
			for step, records := range s {
				e.Add(uint64(step), records[0])
				r, err := e.Close(noise)
				if err != nil {
					t.Fatal(err)
				}
				total[0] += squared(r.Values[0].Data, want.mean[step], 0)
				total[1] += squared(r.Values[1].Data, want.second[step], d)
				if c.Workload != "sum" {
					total[2] += squared(r.Values[2].Data, want.covariance[step], d)
				}
			}
			for k, v := range total {
				errs[k] = append(errs[k], v)
			}
		}
		expected, upper := expectedErrors(e, s, c)
		for k, name := range []string{"mean", "second moment", "covariance"} {
			if k == 2 && c.Workload == "sum" {
				continue
			}
			var mean, square float64
			for _, v := range errs[k] {
				mean += v / float64(runs)
			}
			for _, v := range errs[k] {
				square += (v - mean) * (v - mean) / float64(runs-1)
			}
			most := stattest.Normal(alpha) * math.Sqrt(square/float64(runs))
			if !(math.Abs(mean-expected[k]) <= most) {
				t.Errorf("%s, %s: squared error of the %s is %.5g, expected %.5g ± %.2g", c.Method, describe(c), name, mean, expected[k], most)
			}
			if !(expected[k] <= upper[k]*(1+1e-9)) {
				t.Errorf("%s, %s: the %s is expected to be off by %.5g, stated at most %.5g", c.Method, describe(c), name, expected[k], upper[k])
			}
			off := math.Abs(mean/expected[k] - 1)
			if worst = max(worst, off); slow && off > 0.01 {
				t.Errorf("%s, %s: %s is off by %.2g", c.Method, describe(c), name, off)
			}
		}
	}
	t.Logf("%d runs of %d configurations: observed over expected is off by at most %.2g", runs, len(all), worst)
}

// squared returns ‖x−y‖², of symmetric matrices given by their upper triangles
// where d > 0.
func squared(x, y []float64, d int) (sum float64) {
	if d == 0 {
		for i := range x {
			sum += (x[i] - y[i]) * (x[i] - y[i])
		}
		return sum
	}
	n := 0
	for i := range d {
		for j := i; j < d; j++ {
			e := (x[n] - y[n]) * (x[n] - y[n])
			if sum += e; j > i {
				sum += e
			}
			n++
		}
	}
	return sum
}

// expectedErrors returns the expected squared errors of all releases for the rows
// of s, by the formulas of ExpectedError and covarianceError with the exact cross
// terms, and what Expect states.
func expectedErrors(e *Estimator, s audit.Stream, c Config) (exact, stated [3]float64) {
	n := Noise{First: e.plan.First, Diagonal: e.plan.Diagonal}
	clip, d := e.plan.Clip, c.Columns
	st := setting{factor: e.shapes.first.factor, shapes: e.shapes}
	q := covarianceOf(&st, len(s))
	for step := range s {
		x := dense{a: make([]float64, len(s)), q: q, x: make([][]float64, len(s))}
		for k := range s {
			x.x[k] = clipped(s[k][0], d, clip)
			if k <= step {
				x.a[k] = 1
				if c.Workload == "mean" {
					x.a[k] = 1 / float64(step+1)
				}
			}
		}
		t := uint64(step) + 1
		divisor := e.shapes.first.divisor(t, 1)
		g, bias := e.shapes.gains(newOverlap(e.shapes.first.factor, e.shapes.first.kernel), t, divisor, divisor)
		v := e.variances(newOverlap(e.shapes.first.factor, e.shapes.first.kernel), t, divisor, divisor, float64(t))
		if !e.plan.squares() {
			bias = 0
		}
		plain, fourth := x.cross(0, true)
		at := g
		at.Cross, at.Fourth = plain/(clip*clip), fourth
		method := e.plan.Method
		if method == "combined" {
			// The weight is public; the error is that of the mixture.
			_, joint := ExpectedError("jme", n, clip, d, at)
			_, processed := ExpectedError("pp_debiased", n, clip, d, at)
			first, _ := ExpectedError("jme", n, clip, d, at)
			exact[0] += first
			exact[1] += v.weight*v.weight*joint + (1-v.weight)*(1-v.weight)*processed
		} else {
			at.Bias = bias * bias
			first, second := ExpectedError(method, n, clip, d, at)
			exact[0] += first
			exact[1] += second
		}
		linear, quartic := x.cross(1-v.mixed, false)
		dim, square := float64(d), n.First*n.First
		exact[2] += v.mixed*v.mixed*dim*(dim+1)/2*n.Diagonal*n.Diagonal*g.Second + 2*(dim+1)*square*linear + dim*(dim+1)*square*square*quartic
		x2 := e.Expect(t)
		for k, r := range []float64{x2.RMSEMean, x2.RMSESecondMoment, x2.RMSECovariance} {
			stated[k] += r * r
		}
	}
	return exact, stated
}

// TestStatedErrors compares, for the methods that square rows, the variance of
// every released entry with its stated standard error, which is an upper bound,
// and the mean with the truth: only pp has a bias, in the second moment.
func TestStatedErrors(t *testing.T) {
	t.Parallel()
	const steps, d, runs, alpha = 5, 2, 4000, stattest.Alpha / 500
	s := audit.Stream{{{0.8, 0.5}}, {}, {{-0.2, -0.9}}, {nil}, {{0.9, -0.3}}}
	for i, c := range variants(steps) {
		if !squaring(c.Method) || c.Factorization == "blt" {
			continue
		}
		c.Clip, c.Columns, c.Project, c.PSDFloor = 1, d, false, nil
		e := mustNew(t, c, dp.Params{Mu: 2, Adjacency: dp.Adjacency(1 + i%2)})
		want, start := exactly(s, c, e.plan.Clip), mustState(t, e)
		noise := dptest.Seeded(uint64(i))
		type moments struct{ m1, m2, se float64 }
		var all [steps][3][3]moments
		for range runs {
			if err := e.UnmarshalBinary(start); err != nil {
				t.Fatal(err)
			}
			for step, records := range s {
				for _, x := range records {
					e.Add(uint64(step), x)
				}
				r, err := e.Close(noise)
				if err != nil {
					t.Fatal(err)
				}
				for k, truth := range [][][]float64{want.mean, want.second, want.covariance} {
					if k == 2 && c.Workload == "sum" {
						continue
					}
					for j, x := range r.Values[k].Data {
						m, off := &all[step][k][j], x-truth[step][j]
						m.m1 += off / runs
						m.m2 += off * off / runs
						m.se = r.Values[k].SE[min(j, len(r.Values[k].SE)-1)]
					}
				}
			}
		}
		for step := range all {
			for k, name := range []string{"mean", "second_moment", "covariance"} {
				for j, m := range all[step][k] {
					variance := m.m2 - m.m1*m.m1
					if z := stattest.Normal(alpha); !(math.Abs(m.m1) <= z*math.Sqrt(variance/runs)) && !(c.Method == "pp" && k == 1 && j != 1) {
						t.Errorf("%s, %s, step %d: %s %d has a bias of %.3g", c.Method, describe(c), step+1, name, j, m.m1)
					}
					// Squares of Gaussians have a kurtosis of at most 15.
					if most := m.se * m.se * (1 + stattest.Normal(alpha)*math.Sqrt(14/float64(runs))); !(variance <= most) {
						t.Errorf("%s, %s, step %d: %s %d has variance %.4g, stated %.4g", c.Method, describe(c), step+1, name, j, variance, m.se*m.se)
					}
				}
			}
		}
	}
}

// TestAcross compares covariances over time with those of released noise, by
// dense matrices.
func TestAcross(t *testing.T) {
	t.Parallel()
	const n = 12
	for _, c := range everything(n) {
		c.Clip, c.Columns = 1.3, 2
		e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
		got, err := e.Across(3, 7)
		if squaring(c.Method) {
			if err == nil {
				t.Errorf("%s, %s: covariances that depend on the rows are %v", c.Method, describe(c), got)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		// Rows of AC⁻¹ over the divisors of full slots, by impulses.
		rows := func(s *shape) (u, v []float64) {
			u, v = make([]float64, n), make([]float64, n)
			for j := range n {
				f, z, total := s.factor.NewFilter(1), []float64{0}, 0.0
				var past []float64
				for i := range n {
					if z[0] = 0; i == j {
						z[0] = 1
					}
					f.Next(z, z)
					past = append(past, z[0])
					switch total += z[0]; s.kernel.Kind {
					case "exponential":
						total = (total-z[0])*s.kernel.Decay + z[0]
					case "window":
						if i >= int(s.kernel.Window) {
							total -= past[i-int(s.kernel.Window)]
						}
					}
					if i+1 == 3 {
						u[j] = total / s.divisor(3, c.Step)
					}
					if i+1 == 7 {
						v[j] = total / s.divisor(7, c.Step)
					}
				}
			}
			return u, v
		}
		dot := func(s *shape) (x float64) {
			u, v := rows(s)
			for j := range u {
				x += u[j] * v[j]
			}
			return x
		}
		p := e.Plan()
		first, second := dot(&e.shapes.first), dot(&e.shapes.second)
		for name, x := range map[string][2]float64{
			"mean": {got.Mean, p.First * p.First * first}, "diagonal": {got.Diagonal, p.Diagonal * p.Diagonal * second},
			"off-diagonal": {got.OffDiagonal, p.OffDiagonal * p.OffDiagonal * second},
		} {
			if math.Abs(x[0]-x[1]) > 1e-9*(math.Abs(x[1])+p.First*1e-6) {
				t.Errorf("%s, %s: covariance of %s is %g, want %g", c.Method, describe(c), name, x[0], x[1])
			}
		}
		own, err := e.Across(5, 5)
		if x := e.Expect(5); err != nil || math.Abs(math.Sqrt(own.Mean)-x.Mean) > 1e-12*x.Mean || math.Abs(math.Sqrt(own.Diagonal)-x.Diagonal) > 1e-12*x.Diagonal {
			t.Errorf("%s, %s: variances %v, standard errors %v (%v)", c.Method, describe(c), own, x, err)
		}
		if _, err := e.Across(1, n+1); err == nil && e.cfg.LastStep() > 0 {
			t.Errorf("%s, %s: covariances beyond the horizon", c.Method, describe(c))
		}
	}
}
