package moments

import (
	"math"
	"os"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// TestExpectedErrors tests every formula of an expected error by simulation. It runs estimators under many keys, and
// sums the squared errors of both moments and of the covariance over all releases. ζ is not 1, and the matrix is a
// square root. Terms that depend on the rows are computed for the stream of the test; TestScatter checks that the
// stated bounds hold for all rows.
//
// The tolerance follows from the sample's own variance; 3 assertions for each of the methods, workloads and matrices
// share alpha 10⁻⁹. With STREAMDP_SLOW=1 there are 2·10⁵ runs, and all errors must be within 1 % in addition.
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
				c := Config{Method: method, Workload: workload, Factorization: kind, Horizon: steps, Step: 1,
					Clip: clip, Columns: dptest.Columns(d)}
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
		start := estimatortest.State(t, e)
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
				t.Errorf("%s, %s: squared error of the %s is %.5g, expected %.5g ± %.2g", c.Method, describe(c), name,
					mean, expected[k], most)
			}
			if !(expected[k] <= upper[k]*(1+1e-9)) {
				t.Errorf("%s, %s: the %s is expected to be off by %.5g, stated at most %.5g", c.Method, describe(c),
					name, expected[k], upper[k])
			}
			off := math.Abs(mean/expected[k] - 1)
			if worst = max(worst, off); slow && off > 0.01 {
				t.Errorf("%s, %s: %s is off by %.2g", c.Method, describe(c), name, off)
			}
		}
	}
	t.Logf("%d runs of %d configurations: observed over expected is off by at most %.2g", runs, len(all), worst)
}

// squared returns ‖x−y‖². If d > 0, x and y are the upper triangles of symmetric matrices.
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

// expectedErrors returns the expected squared errors of all releases for the rows of s, by the formulas of
// ExpectedError and covarianceError with the exact cross terms, and the errors that Expect states.
func expectedErrors(e *Estimator, s audit.Stream, c Config) (exact, stated [3]float64) {
	n := Noise{First: e.plan.First, Diagonal: e.plan.Diagonal}
	clip, d := e.plan.Clip, len(c.Columns)
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
			// The weight is public, so the error follows from the mixture.
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
		exact[2] += v.mixed*v.mixed*dim*(dim+1)/2*n.Diagonal*n.Diagonal*g.Second + 2*(dim+1)*square*linear +
			dim*(dim+1)*square*square*quartic
		x2 := e.Expect(t)
		for k, r := range []float64{x2.RMSEMean, x2.RMSESecondMoment, x2.RMSECovariance} {
			stated[k] += r * r
		}
	}
	return exact, stated
}

// TestStatedErrors tests the methods that square rows. The variance of every released entry must not exceed that of its
// stated standard error, which is an upper bound. The mean of the entries must be the true value, except for the second
// moment of pp, which is biased. There are 2000 runs, or 4000 with STREAMDP_SLOW=1.
func TestStatedErrors(t *testing.T) {
	t.Parallel()
	const steps, d, alpha = 5, 2, stattest.Alpha / 500
	runs := 2000.
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = 4000
	}
	s := audit.Stream{{{0.8, 0.5}}, {}, {{-0.2, -0.9}}, {nil}, {{0.9, -0.3}}}
	for i, c := range variants(steps) {
		if !squaring(c.Method) || c.Factorization == "blt" {
			continue
		}
		c.Clip, c.Columns, c.Project, c.PSDFloor = 1, dptest.Columns(d), false, nil
		e := mustNew(t, c, dp.Params{Mu: 2, Adjacency: dp.Adjacency(1 + i%2)})
		want, start := exactly(s, c, e.plan.Clip), estimatortest.State(t, e)
		noise := dptest.Seeded(uint64(i))
		type moments struct{ m1, m2, se float64 }
		var all [steps][3][3]moments
		for range int(runs) {
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
					if z := stattest.Normal(alpha); !(math.Abs(m.m1) <= z*math.Sqrt(variance/runs)) &&
						!(c.Method == "pp" && k == 1 && j != 1) {
						t.Errorf("%s, %s, step %d: %s %d has a bias of %.3g", c.Method, describe(c), step+1,
							name, j, m.m1)
					}
					// Squares of Gaussians have a kurtosis of at most 15.
					if most := m.se * m.se * (1 + stattest.Normal(alpha)*math.Sqrt(14/runs)); !(variance <= most) {
						t.Errorf("%s, %s, step %d: %s %d has variance %.4g, stated %.4g", c.Method, describe(c), step+1,
							name, j, variance, m.se*m.se)
					}
				}
			}
		}
	}
}

// TestAcross compares covariances over time with those of released noise, computed with dense matrices.
func TestAcross(t *testing.T) {
	t.Parallel()
	const n = 12
	for _, c := range everything(n) {
		c.Clip, c.Columns = 1.3, dptest.Columns(2)
		e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
		got, err := e.Across(3, 7)
		if squaring(c.Method) {
			if err == nil {
				t.Errorf("%s, %s: Across returns %v although the covariances depend on the rows", c.Method, describe(c),
					got)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		// Compute rows of AC⁻¹ from unit impulses, and divide them by the divisors for full slots.
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
		if x := e.Expect(5); err != nil || math.Abs(math.Sqrt(own.Mean)-x.Mean) > 1e-12*x.Mean ||
			math.Abs(math.Sqrt(own.Diagonal)-x.Diagonal) > 1e-12*x.Diagonal {
			t.Errorf("%s, %s: variances %v, standard errors %v (%v)", c.Method, describe(c), own, x, err)
		}
		if _, err := e.Across(1, n+1); err == nil && e.cfg.LastStep() > 0 {
			t.Errorf("%s, %s: covariances beyond the horizon", c.Method, describe(c))
		}
	}
}
