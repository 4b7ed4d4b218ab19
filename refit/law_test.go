package refit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/vector"
)

// window returns n random rows of d features, correlated, with a linear target.
func window(n, d int, seed uint64) *Data {
	source := rand.New(rand.NewPCG(seed, 3))
	w := NewData(d, n)
	x := make([]float64, d)
	for range n {
		y := 0.0
		for j := range x {
			x[j] = source.NormFloat64() / (2 * math.Sqrt(float64(d)))
			if j > 0 {
				x[j] += 0.6 * x[j-1]
			}
			y += x[j] / float64(j+1)
		}
		w.Add(x, y+0.05*source.NormFloat64())
	}
	return w
}

// TestWishartLaw compares an explicit sketch with one whose square is drawn: the Kolmogorov distance between samples of
// some functionals must be small.
func TestWishartLaw(t *testing.T) {
	t.Parallel()
	const n, d, k, eta, draws = 40, 3, 9, 0.4, 4000
	w := window(n, d, 1)
	upper := sumsOf(w).gram()
	l := full(upper, d, eta*eta)
	if !cholesky(l, d) {
		t.Fatal("not positive definite")
	}
	functionals := func(h hessian) []float64 {
		var all []float64
		for j := range d {
			e := make([]float64, d)
			e[j] = 1
			h.solve(e)
			all = append(all, e...)
		}
		g := []float64{1, -2, 0.5}
		h.solve(g)
		return append(all, g[0], g[0]+g[1]+g[2], vector.Dot2(g, g))
	}
	var drawn, formed [][]float64
	a, b := newQuick(1), newQuick(2)
	for range draws {
		drawn = append(drawn, functionals(drawWishart(l, d, k, a)))
		mixed := gaussianMix(w, k, eta, b)
		h, err := form(full(gramOf(mixed, d), d, 0), d, k)
		if err != nil {
			t.Fatal(err)
		}
		formed = append(formed, functionals(h))
	}
	const tests = 12
	for f := range tests {
		var x, y []float64
		for i := range draws {
			x, y = append(x, drawn[i][f]), append(y, formed[i][f])
		}
		slices.Sort(x)
		slices.Sort(y)
		var distance float64
		for i, j := 0, 0; i < draws && j < draws; {
			if x[i] <= y[j] {
				i++
			} else {
				j++
			}
			distance = max(distance, math.Abs(float64(i-j))/draws)
		}
		// Each sample is within √(log(2/α)/2n) of its distribution. α is divided among the tests.
		if most := 2 * math.Sqrt(math.Log(2/(stattest.Alpha/(2*tests)))/(2*draws)); distance > most {
			t.Errorf("functional %d: the two distributions are %.4f apart, must be at most %.4f", f, distance, most)
		}
	}
}

// TestLambda checks that the released λ is the eigenvalue plus noise of the stated standard deviation, and that it is a
// lower bound with the stated probability.
func TestLambda(t *testing.T) {
	t.Parallel()
	const lambda, sd, tau, draws = 300.0, 20.0, 1.5, 20_000
	noise := newQuick(3)
	var z []float64
	above := 0
	for range draws {
		level, err := lower(noise, "l", lambda, 0, 1, sd, tau, 24)
		if err != nil {
			t.Fatal(err)
		}
		z = append(z, (level+sd*tau-lambda)/sd)
		if level > lambda {
			above++
		}
	}
	if err := stattest.Variance(z, stattest.Alpha); err != nil {
		t.Error(err)
	}
	if err := stattest.Mean(z, 0, 1, stattest.Alpha); err != nil {
		t.Error(err)
	}
	want := upperTail(tau) * draws
	if math.Abs(float64(above)-want) > 6.2*math.Sqrt(want) {
		t.Errorf("%d of %d levels are above, want %.0f", above, draws, want)
	}
	if level, err := lower(noise, "l", 0.5, 0, 1, sd, 8, 24); err != nil || level != 0 {
		t.Errorf("a level of %g: %v", level, err)
	}
}

// TestLaplace checks the distribution of the Laplace draws, and that a release is x plus the draw.
func TestLaplace(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(4, 4))
	var z []float64
	for range 50_000 {
		z = append(z, laplace(source.Uint64()))
	}
	cdf := func(x float64) float64 {
		if x < 0 {
			return math.Exp(x) / 2
		}
		return 1 - math.Exp(-x)/2
	}
	if err := stattest.KolmogorovSmirnov(z, cdf, stattest.Alpha); err != nil {
		t.Error(err)
	}
	for word, want := range map[uint64]float64{0: 64 * math.Ln2, 1 << 63: -64 * math.Ln2, 1<<63 - 1: 0,
		math.MaxUint64: 0} {
		if got := laplace(word); math.Abs(got-want) > 1e-15*math.Abs(want)+1e-18 {
			t.Errorf("word %x gives %g, want %g", word, got, want)
		}
	}
	const scale, omega = 3.0, 6.0
	var released []float64
	noise := newQuick(6)
	for range 20_000 {
		v, err := releaseLaplace(noise, "m", 10, 0, scale, omega, 0, 24)
		if err != nil {
			t.Fatal(err)
		}
		released = append(released, (10-v)/scale)
	}
	if err := stattest.KolmogorovSmirnov(released, cdf, stattest.Alpha); err != nil {
		t.Error(err)
	}
	if v, err := releaseLaplace(noise, "m", 1e-17, 0.25, 0, omega, 3, 24); err != nil || v != 0.25 {
		t.Errorf("a number that does not depend on data is released as %g: %v", v, err)
	}
}

// TestBounds checks that the bounds of λ_min and m̂ fail at most as often as their τ says. This must hold even if
// errors in computing λ raise the noise to one and a half times its size, as for windows of 2³¹ rows.
func TestBounds(t *testing.T) {
	t.Parallel()
	const x, err, scale, draws = 1e4, 0.25, 20.0, 40_000
	noise := newQuick(7)
	gaussian, exponential := 0, 0
	const tau, laplaceTau = 2.5, 4.0
	for range draws {
		level, e := lower(noise, "l", x, err, 1, scale, tau, 24)
		if e != nil {
			t.Fatal(e)
		}
		if level > x {
			gaussian++
		}
		above, e := releaseLaplace(noise, "m", x, err, scale, scale, laplaceTau, 24)
		if e != nil {
			t.Fatal(e)
		}
		if above+scale*laplaceTau < x {
			exponential++
		}
	}
	for _, c := range []struct {
		what  string
		found int
		most  float64
	}{{"λ_min", gaussian, upperTail(tau)}, {"m̂", exponential, math.Exp(-laplaceTau) / 2}} {
		if most := c.most * draws; float64(c.found) > most+6.2*math.Sqrt(most) {
			t.Errorf("%d of %d bounds of %s fail, must be at most %.0f", c.found, draws, c.what, most)
		}
	}
}

// TestFarOut checks that a number outside the lattice causes no error, because an error would reveal it.
func TestFarOut(t *testing.T) {
	t.Parallel()
	for _, x := range []float64{1e13, -1e13, 1e300, -1e300} {
		v, err := releaseVector(zeroNoise{}, "v", []float64{x, 3}, 1, 0, 2, 24)
		if err != nil {
			t.Fatalf("error for %g: %v", x, err)
		}
		if v[1] != 3 || v[0] != math.Copysign(0x1p37, x) && v[0] != x {
			t.Errorf("%g and 3 are released as %g", x, v)
		}
		if v, err := releaseLaplace(newQuick(1), "m", x, 0, 3, 6, 1, 24); err != nil ||
			math.Signbit(v) != math.Signbit(x) {
			t.Errorf("%g is released as %g: %v", x, v, err)
		}
	}
}

// TestRadius checks that gradients from sums equal gradients from rows if no residual exceeds its bound, and that
// iterates never leave the ball.
func TestRadius(t *testing.T) {
	t.Parallel()
	w := window(500, 4, 5)
	s := &ihmSolver{noise: sketchNoise{Gamma: 2, Sigma: 1e-3}, params: dp.Params{Adjacency: dp.Replace}, rows: 40,
		iterations: 4, clip: 3, radius: 2}
	bySums := s.bySums(sumsOf(w))
	byRows, err := s.byRows(w.clone(), "ihm/grad")
	if err != nil {
		t.Fatal(err)
	}
	theta := []float64{0.5, -1, 0.2, 0.9}
	a, err := bySums(zeroNoise{}, 0, theta)
	if err != nil {
		t.Fatal(err)
	}
	b, err := byRows(zeroNoise{}, 0, theta)
	if err != nil {
		t.Fatal(err)
	}
	for j := range a {
		if math.Abs(a[j]-b[j]) > 1e-4 {
			t.Errorf("gradients %v and %v", a, b)
		}
	}
	for seed := range uint64(20) {
		s.noise.Sigma = 50
		theta, _, err := s.solve(w.clone(), newQuick(seed))
		if err != nil {
			t.Fatal(err)
		}
		if norm := math.Sqrt(vector.Dot2(theta, theta)); norm > s.radius+1e-5 {
			t.Errorf("an iterate of norm %g", norm)
		}
	}
}

type zeroNoise struct{ quick }

func (zeroNoise) Row(string, []int64) dp.Row { return zeroNoise{} }
func (zeroNoise) At(int) float64             { return 0 }

// TestOptions checks the effect of the options of iterative Hessian mixing. If rows vary in every direction, correcting
// and pooling sketches reduces the error. In the first step they change only the length of the step.
func TestOptions(t *testing.T) {
	t.Parallel()
	w := window(4000, 5, 6)
	p := dp.Params{Epsilon: 2, Delta: 1e-7, Adjacency: dp.ZeroOut}
	k := sketchRows(5, 3, p.Delta)
	noise, err := calibrateIHM(Exact, p, k, 3, 0.2, true)
	if err != nil {
		t.Fatal(err)
	}
	mse := errorOf(w)
	ols, err := LeastSquares(w)
	if err != nil {
		t.Fatal(err)
	}
	excess := func(debias, pool bool, gamma float64) float64 {
		n := noise
		n.Gamma *= gamma
		s := &ihmSolver{noise: n, params: p, rows: k, iterations: 3, clip: 1, debias: debias, pool: pool}
		mean, _ := trials(t, w, s, 300, 7, func(theta []float64) float64 { return mse(theta) - mse(ols.Theta) })
		return mean
	}
	// The window's smallest eigenvalue exceeds γ, so the sketch has no noise.
	lambda := leastEigenvalue(sumsOf(w).gram(), 5)
	small := 0.2 * lambda / noise.Gamma
	plain, both := excess(false, false, small), excess(true, true, small)
	if !(both < 0.8*plain) {
		t.Errorf("error %.3g, corrected and pooled %.3g", plain, both)
	}
	// With noise in the sketch (η² > 0), neither option has an effect.
	if plain, both := excess(false, false, 20), excess(true, false, 20); plain != both {
		t.Errorf("if the sketch has noise, the error is %.6g, corrected %.6g", plain, both)
	}
	i := iteration{debias: true, pool: true, rows: 50}
	if f := i.factor(2, 5); math.Abs(f-144./150) > 1e-15 {
		t.Errorf("factor %g", f)
	}
}

// TestNonPrivate checks that the solvers without privacy come near least squares.
func TestNonPrivate(t *testing.T) {
	t.Parallel()
	w := window(700, 4, 8)
	ols, err := LeastSquares(w)
	if err != nil {
		t.Fatal(err)
	}
	mse := errorOf(w)
	for _, fast := range []bool{false, true} {
		s, err := IHS(w, 100, 8, fast, newQuick(1))
		if err != nil {
			t.Fatal(err)
		}
		if e := mse(s.Theta)/mse(ols.Theta) - 1; !(e < 1e-3) {
			t.Errorf("fast %t: error %g above least squares", fast, e)
		}
	}
	if _, err := IHS(w, 3, 8, false, newQuick(1)); err == nil {
		t.Error("a sketch of fewer rows than features")
	}
	// With linearly dependent columns the solution must be the shortest; without rows it must be 0.
	double := NewData(2, 10)
	for i := range 10 {
		x := float64(i)/20 - 0.2
		double.Add([]float64{x, x}, x)
	}
	shortest, err := LeastSquares(double)
	if err != nil || math.Abs(shortest.Theta[0]-0.5) > 1e-12 || math.Abs(shortest.Theta[1]-0.5) > 1e-12 {
		t.Errorf("dependent columns: %v, %v", shortest, err)
	}
	if none, err := LeastSquares(NewData(3, 0)); err != nil || vector.Dot2(none.Theta, none.Theta) != 0 {
		t.Errorf("no rows: %v, %v", none, err)
	}
}

// TestBlocks checks that a window's sums are the sums of its blocks.
func TestBlocks(t *testing.T) {
	t.Parallel()
	w := window(9000, 3, 9)
	whole, blocks := newRowSums(3), newRowSums(3)
	for lo := 0; lo < w.Len(); lo += 1000 {
		block := newRowSums(3)
		for i := lo; i < lo+1000; i++ {
			block.Add(w.row(i), w.y[i])
			whole.Add(w.row(i), w.y[i])
		}
		blocks.Merge(block)
	}
	parallel := sumsOf(w)
	if whole.Len() != 9000 || blocks.Len() != 9000 || parallel.Len() != 9000 {
		t.Fatal("rows are missing")
	}
	for i, v := range whole.joint() {
		if math.Abs(v-blocks.joint()[i]) > 1e-10 || math.Abs(v-parallel.joint()[i]) > 1e-10 {
			t.Errorf("entry %d: %g, of blocks %g, in parallel %g", i, v, blocks.joint()[i], parallel.joint()[i])
		}
	}
	whole.Reset()
	whole.Merge(blocks)
	if !slices.Equal(whole.gram(), blocks.gram()) || !slices.Equal(whole.xy(), blocks.xy()) {
		t.Error("merging into an empty sum changes the sum")
	}
}

// TestPrepareMeanwhile converts rows to directions segment by segment, while the sums are computed, and afterwards.
// Sums and gradients must be equal. Segments and units end at different rows.
func TestPrepareMeanwhile(t *testing.T) {
	for _, n := range []int{9, 511, 4096, 5003, 9000} {
		w, theta := window(n, 5, 3), []float64{0.5, -0.25, 0, 1, 0.125}
		want := sumsOf(w)
		release := func(w *Data, sums func(w *Data, g *gradients) *rowSums) (joint, gradient []float64) {
			g, err := newGradients(w, dp.ZeroOut, 1, 0.1, 24)
			if err != nil {
				t.Fatal(err)
			}
			joint = sums(w, g).joint()
			return joint, g.release(zeroNoise{}, "gradient", theta)
		}
		_, after := release(w.clone(), func(*Data, *gradients) *rowSums { return want })
		for range 3 {
			joint, meanwhile := release(w.clone(),
				func(w *Data, g *gradients) *rowSums { return sumsAnd(w, g.rows.Prepare) })
			if !slices.Equal(joint, want.joint()) || !slices.Equal(meanwhile, after) {
				t.Errorf("%d rows: sums %v and gradients %v, want %v and %v", n, joint, meanwhile, want.joint(), after)
			}
		}
	}
}
