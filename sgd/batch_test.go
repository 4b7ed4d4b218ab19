package sgd

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestProcess simulates a descent that is a Gaussian process, and compares its mean and covariances.
func TestProcess(t *testing.T) {
	t.Parallel()
	const runs, steps, tau = 3000, 3, 5
	l := newLinear(3, 2, 1)
	s := l.sample(40)
	const gamma, rate, lambda = 64, 0.3, 0.4
	// λ = 2γ√T/(nμ)
	mu := 2 * gamma * math.Sqrt(tau) / 40 / lambda
	p, err := NewGDProcess(s, rate, lambda, nil)
	if err != nil {
		t.Fatal(err)
	}
	var early, late [][]float64
	noise := dptest.Seeded(5)
	for range runs {
		path, err := GradientDescent(s, Descent{Steps: tau, Rate: rate, Clip: gamma},
			dp.Params{Mu: mu, Adjacency: dp.Replace}, noise)
		if err != nil {
			t.Fatal(err)
		}
		if path.Clipped > 0 {
			t.Fatal("a gradient was clipped")
		}
		difference := func(theta, mean []float64) []float64 {
			return []float64{theta[0] - mean[0], theta[1] - mean[1]}
		}
		early = append(early, difference(path.Iterates[steps-1], p.Mean(steps)))
		late = append(late, difference(path.Iterates[tau-1], p.Mean(tau)))
	}
	// Both steps together have the covariance [[A, B], [Bᵀ, D]].
	var joint [][]float64
	for i := range early {
		joint = append(joint, slices.Concat(early[i], late[i]))
	}
	want := make([][]float64, 4)
	for i := range want {
		want[i] = make([]float64, 4)
		for j := range want[i] {
			switch {
			case i < 2 && j < 2:
				want[i][j] = p.Cov(steps, steps).At(i, j)
			case i < 2:
				want[i][j] = p.Cov(tau, steps).At(j-2, i)
			case j < 2:
				want[i][j] = p.Cov(tau, steps).At(i-2, j)
			default:
				want[i][j] = p.Cov(tau, tau).At(i-2, j-2)
			}
		}
	}
	if err := stattest.Covariance(joint, want, stattest.Alpha); err != nil {
		t.Error(err)
	}
	// The eigenvalue of ηΣ is 1, where M is singular, and then 2.
	one := &Sample{D: 1, X: []float64{1, 1}, Y: []float64{1, 3}}
	p, err = NewGDProcess(one, 1, 0.5, []float64{7})
	if err != nil {
		t.Fatal(err)
	}
	if p.OLS()[0] != 2 || p.Mean(1)[0] != 2 || p.Cov(4, 4).At(0, 0) != 0.25 || p.MSE(0) != 25 {
		t.Errorf("a singular process has mean %v, variance %g", p.Mean(1), p.Cov(4, 4).At(0, 0))
	}
	if p, err = NewGDProcess(one, 2, 0.5, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stationary(); err == nil {
		t.Error("no error for the stationary distribution of a process that does not contract")
	}
	if _, err := NewGDProcess(&Sample{D: 2, X: []float64{1, 1, 2, 2}, Y: []float64{1, 1}}, 1, 1, nil); err == nil {
		t.Error("no error for a sample without full rank")
	}
}

// TestNullRows checks that a null record of a sample adds q to a count and nothing to a gradient.
func TestNullRows(t *testing.T) {
	t.Parallel()
	l := newLinear(6, 3, 1)
	full := l.sample(2000)
	half := &Sample{D: 3, X: slices.Clone(full.X), Y: slices.Clone(full.Y)}
	for i := range half.Y {
		if i%5 < 3 {
			clear(half.row(i))
		}
	}
	zeta := func(s *Sample) float64 {
		path, err := GradientDescent(s, Descent{Steps: 40, Rate: 0.5, Zeta: 1}, dp.Params{Mu: 2, Adjacency: dp.ZeroOut},
			dptest.Seeded(1))
		if err != nil {
			t.Fatal(err)
		}
		return median(path.Zeta[20:])
	}
	if a, b := zeta(full), zeta(half); math.Abs(a/b-1) > 0.15 {
		t.Errorf("null records move the clip norm from %g to %g", a, b)
	}
	silent := &Sample{D: 3, X: half.X, Y: slices.Clone(half.Y)}
	for i := range silent.Y {
		if i%5 < 3 {
			silent.Y[i] = 0
		}
	}
	if a, b := zeta(half), zeta(silent); a != b {
		t.Errorf("targets of null records move the clip norm from %g to %g", b, a)
	}
}

// TestRefit compares a refit that has only bounds, five times too loose, with least squares and with the published
// descent.
func TestRefit(t *testing.T) {
	t.Parallel()
	const n, d = 4000, 6
	var ours, published float64
	for run := range uint64(6) {
		l := newLinear(run, d, 0.3)
		rows := make([][]float64, n)
		for i := range rows {
			rows[i] = make([]float64, d+1)
			rows[i][d] = l.draw(rows[i][:d]) + 0.5
		}
		s, err := NewSample(rows, d+1, d, Bounds{20, 10}, 1)
		if err != nil {
			t.Fatal(err)
		}
		p := dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut}
		theta, path, err := Refit(s, 5, p, dptest.Seeded(run))
		if err != nil {
			t.Fatal(err)
		}
		if mu, err := p.Budget(); err != nil || path.Mu != mu {
			t.Errorf("the refit costs %g of %g, %v", path.Mu, mu, err)
		}
		best := ols(t, s)
		ours += distance(theta, best) / 6
		fixed, err := GradientDescent(s, Descent{Steps: 10, Rate: 0.25, Clip: 5 * math.Sqrt(d)}, p, dptest.Seeded(run))
		if err != nil {
			t.Fatal(err)
		}
		published += distance(fixed.Iterates[9], best) / 6
	}
	t.Logf("distance to least squares: %.3g, published %.3g", ours, published)
	if !(ours < 0.05 && ours < published) {
		t.Errorf("distance to least squares %g, published %g", ours, published)
	}
}

// TestCurvature checks that the released eigenvalue is the right one, up to its noise.
func TestCurvature(t *testing.T) {
	t.Parallel()
	s := &Sample{D: 2, X: []float64{3, 0, 0, 2, 3, 0, 0, 1}, Y: make([]float64, 4), Bound: Bounds{4, 1}}
	const mu = 1
	h, err := curvature(s, mu, dptest.Zero())
	if err != nil {
		t.Fatal(err)
	}
	if want := 18./4 + 16/mu/4; math.Abs(h-want) > 1e-4 {
		t.Errorf("the curvature is %g, want %g", h, want)
	}
	if h, err = curvature(s, mu, dptest.Queue(9)); err != nil || h != 16 {
		t.Errorf("a large draw gives %g, %v; the bound is 16", h, err)
	}
	if h, err = curvature(s, mu, dptest.Queue(-9)); err != nil || !(h > 0) {
		t.Errorf("a small draw gives %g, %v", h, err)
	}
}

// TestSample checks that NewSample shortens features, cuts targets and recognises null rows.
func TestSample(t *testing.T) {
	t.Parallel()
	rows := [][]float64{{3, 7, 4}, {0.3, -9, 0.4}, {1, 2}, {1, math.NaN(), 1}, {math.Inf(1), 0, 0}, {1e308, 1, -1e308},
		nil, {0, 1, 0}}
	s, err := NewSample(rows, 3, 1, Bounds{1, 5}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	r := math.Sqrt(0.5)
	want := [][]float64{{0.6, 0.8, 0.5, 5}, {0.3, 0.4, 0.5, -5}, {}, {}, {}, {r, -r, 0.5, 1}, {}, {0, 0, 0.5, 1}}
	for i, w := range want {
		got := append(slices.Clone(s.row(i)), s.Y[i])
		if len(w) == 0 {
			w = make([]float64, 4)
		}
		for j := range w {
			if math.Abs(got[j]-w[j]) > 1e-15 {
				t.Errorf("row %d is %v, want %v", i, got, w)
			}
		}
	}
	if s.Bound != (Bounds{1, 5}) || s.Constant != 0.5 {
		t.Errorf("bounds are %+v, the constant %g", s.Bound, s.Constant)
	}
	if c := s.withConstant(2); c.row(0)[2] != 2 || c.row(2)[2] != 0 || s.row(0)[2] != 0.5 ||
		c.Coefficients([]float64{1, 1, 3})[2] != 6 {
		t.Errorf("with another constant: %+v", c)
	}
	squares := s.squares()
	for i, square := range squares {
		if null := i == 2 || i == 3 || i == 4 || i == 6; (square < 0) != null {
			t.Errorf("row %d has the square %g", i, square)
		}
	}
	for _, bad := range []func() (*Sample, error){
		func() (*Sample, error) { return NewSample(nil, 3, 0, Bounds{1, 1}, 0) },
		func() (*Sample, error) { return NewSample(rows, 3, 3, Bounds{1, 1}, 0) },
		func() (*Sample, error) { return NewSample(rows, 3, 1, Bounds{0, 1}, 0) },
		func() (*Sample, error) { return NewSample(rows, 3, 1, Bounds{1, math.Inf(1)}, 0) },
		func() (*Sample, error) { return NewSample(rows, 3, 1, Bounds{1, 1}, 2) },
		func() (*Sample, error) { return NewSample([][]float64{{1}}, 1, 0, Bounds{1, 1}, 0) },
	} {
		if _, err := bad(); err == nil {
			t.Error("no error for an invalid sample")
		}
	}
}

// TestLeastSquares checks the solution of full rank, and the shortest of many solutions.
func TestLeastSquares(t *testing.T) {
	t.Parallel()
	l := newLinear(1, 4, 0)
	theta, err := LeastSquares(l.sample(20))
	if err != nil || distance(theta, l.w) > 1e-12 {
		t.Errorf("%v, %v, want %v", theta, err, l.w)
	}
	theta, err = LeastSquares(&Sample{D: 2, X: []float64{1, 1, 2, 2, 3, 3}, Y: []float64{2, 4, 6}})
	if err != nil || distance(theta, []float64{1, 1}) > 1e-12 {
		t.Errorf("of equal columns: %v, %v", theta, err)
	}
	if _, err := LeastSquares(&Sample{D: 2, X: []float64{1, 2}, Y: []float64{1}}); err == nil {
		t.Error("no error for one record and two coefficients")
	}
}

// TestDescentFaults checks that invalid descents are refused, with all faults.
func TestDescentFaults(t *testing.T) {
	t.Parallel()
	s := &Sample{D: 1, X: []float64{1, 2}, Y: []float64{1, 2}}
	good := Descent{Steps: 3, Rate: 0.1, Clip: 1}
	p := dp.Params{Mu: 1, Adjacency: dp.Replace}
	for i, alter := range []func(*Descent){
		func(d *Descent) { d.Steps = 0 },
		func(d *Descent) { d.Rate = math.NaN() },
		func(d *Descent) { d.Clip = -1 },
		func(d *Descent) { d.Zeta = 1 },
		func(d *Descent) { d.Clip = 0 },
		func(d *Descent) { d.Quantile = 2 },
		func(d *Descent) { d.Fraction = -1 },
		func(d *Descent) { d.Kappa = 1e9 },
		func(d *Descent) { d.Start = []float64{1, 2} },
		func(d *Descent) { d.Clip, d.Zeta, d.ZetaLow, d.ZetaHigh = 0, 1, 3, 2 },
	} {
		d := good
		alter(&d)
		if _, err := GradientDescent(s, d, p, dptest.Zero()); err == nil {
			t.Errorf("no error for fault %d", i)
		}
	}
	if _, err := GradientDescent(s, good, dp.Params{Mu: 1}, dptest.Zero()); err == nil {
		t.Error("no error for a descent without adjacency")
	}
	s.X[0] = math.NaN()
	if _, err := GradientDescent(s, good, p, dptest.Zero()); err == nil {
		t.Error("no error for a sample with NaN")
	}
}

// TestConstructions checks that intervals are refused with too few iterates, and that the intervals of independent
// estimates have the stated coverage.
func TestConstructions(t *testing.T) {
	t.Parallel()
	path := make([][]float64, 25)
	for i := range path {
		path[i] = []float64{float64(i)}
	}
	for _, f := range []func() error{
		func() error { _, err := Checkpoints(path, 10, 16); return err },
		func() error { _, err := BatchedMeans(path, 0, 0); return err },
		func() error { _, err := BatchedMeans(path, 5, -1); return err },
		func() error { _, err := RunMeans([][][]float64{path}, 25); return err },
		func() error { _, _, err := Intervals(path[:1], 0.9); return err },
		func() error { _, _, err := Intervals(path, 1); return err },
	} {
		if f() == nil {
			t.Error("no error for intervals of too few iterates")
		}
	}
	source := rand.New(rand.NewPCG(1, 1))
	covered := 0
	const runs = 4000
	for range runs {
		x := make([][]float64, 6)
		for i := range x {
			x[i] = []float64{source.NormFloat64()}
		}
		centre, half, err := Intervals(x, 0.8)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(centre[0]) <= half[0] {
			covered++
		}
	}
	// The binomial deviation is 0.0063.
	if p := float64(covered) / runs; math.Abs(p-0.8) > 6.2*0.0064 {
		t.Errorf("intervals of level 0.8 cover %g", p)
	}
}

// TestRefitFits checks that RefitFits refuses exactly the budgets with which Refit refuses some table of at most n
// records.
func TestRefitFits(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{24, 30} {
		for _, constant := range []float64{0, 0.5} {
			for e := -40; e <= 14; e++ {
				for _, d := range []int{1, 2} {
					const most = 7
					p := dp.Params{Mu: math.Ldexp(1, e), Adjacency: dp.Replace, LatticeBits: bits}
					var want error
					for n := 1; n <= most; n++ {
						s := &Sample{D: d, X: make([]float64, n*d), Y: make([]float64, n), Constant: constant,
							Bound: Bounds{1, 1}}
						_, _, err := Refit(s, 0, p, dptest.Seeded(1))
						want = errors.Join(want, err)
					}
					if got := RefitFits(d, constant != 0, most, p); (got == nil) != (want == nil) {
						t.Errorf("%d bits, constant %g, %d features, mu 2^%d: %v, and Refit says %v", bits, constant, d,
							e, got, want)
					}
				}
			}
		}
	}
	// Sums of 2²² gradients of 2³⁰ lattice steps leave the range of float64's integers.
	p := dp.Params{Mu: 0.1, Adjacency: dp.ZeroOut, LatticeBits: 30}
	if err := RefitFits(2, true, 1<<22-1, p); err != nil {
		t.Error(err)
	}
	if err := RefitFits(2, true, 1<<22, p); err == nil {
		t.Error("no error for tables of 2^22 records")
	}
}
