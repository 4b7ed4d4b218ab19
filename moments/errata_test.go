package moments

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// TestErrata is the evidence for docs/errata.md. It has a subtest, with its number, for each erratum of "Continual
// Release Moment Estimation with Differential Privacy". Each computes the printed and the corrected result, and
// compares them with a simulation, a search or a definition.
func TestErrata(t *testing.T) {
	t.Parallel()
	for _, e := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"01 prefactor of the second moment's error", erratumPrefactor},
		{"02 variance and deviation", erratumDeviation},
		{"03 r(c) and r(1/c)", erratumInverse},
		{"04 smallest and largest weight", erratumLargest},
		{"05 column norms in Corollary A.3", erratumColumnNorms},
		{"06 two meanings of sigma", erratumSigma},
		{"07 dimensions after Corollary 3.9", erratumDimensions},
		{"08 norm of the bias", erratumBiasNorm},
		{"09 Gram matrix of the shaped noise", erratumGram},
		{"10 bias of Algorithm 6", erratumBias},
		{"11 independent estimation", erratumSplit},
		{"12 concatenation without the norm of C", erratumConcatenation},
		{"13 privacy for free", erratumFree},
		{"14 square root under post-processing", erratumSquareRoot},
		{"15 draws of a symmetric matrix", erratumSymmetric},
		{"16 bounds of Theorem 4.2", erratumCovariance},
		{"17 rows of Figure 5", erratumFigure5},
		{"18 decreasing column norms", erratumDecreasing},
	} {
		t.Run(e.name, e.f)
	}
}

// lowerTriangular returns the matrix of Toeplitz coefficients.
func lowerTriangular(c []float64) *mat.TriDense {
	m := mat.NewTriDense(len(c), mat.Lower, nil)
	for i := range c {
		for j := range i + 1 {
			m.SetTri(i, j, c[i-j])
		}
	}
	return m
}

func near(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if !(math.Abs(got-want) <= relative*math.Abs(want)) {
		t.Errorf("%s is %.6g, want %.6g", what, got, want)
	}
}

// Equation (4) has 2ζ, but the error is 2ζ²: λ contains 1/ζ².
func erratumPrefactor(t *testing.T) {
	const n, d, zeta, runs = 6, 3, 1.7, 3000
	e := mustNew(t,
		Config{Method: "jme", Workload: "sum", Factorization: "sqrt", Horizon: n, Step: 1, Clip: zeta,
			Columns: dptest.Columns(d)}, dp.Params{Mu: 1, Adjacency: dp.Replace})
	zero, start, noise := make([]float64, d*(d+1)/2), estimatortest.State(t, e), dptest.Seeded(1)
	var mean, square float64
	for range runs {
		if err := e.UnmarshalBinary(start); err != nil {
			t.Fatal(err)
		}
		var total float64
		for range n {
			r, err := e.Close(noise)
			if err != nil {
				t.Fatal(err)
			}
			total += squared(r.Values[1].Data, zero, d)
		}
		mean += total / runs
		square += total * total / runs
	}
	s := literal{Kind: "prefix"}.setting(t, "sqrt", n)
	// RMSE = 2ζ²√(c_d d²)·σ‖C₂‖‖A₂C₂⁻¹‖, with d(d+1)/2 draws instead of d².
	right := 4 * math.Pow(zeta, 4) / calibration.FreeSquares(d) * float64(d*(d+1)/2) * math.Pow(s.factor.ColNorm(),
		2) * s.sum(n).Second
	printed := right / (zeta * zeta)
	tolerance := stattest.Normal(stattest.Alpha) * math.Sqrt((square-mean*mean)/runs)
	if math.Abs(mean-right) > tolerance || math.Abs(mean-printed) < 10*tolerance {
		t.Errorf("simulated %.1f ± %.1f, with ζ² %.1f, printed %.1f", mean, tolerance, right, printed)
	}
}

// σ_{ε,δ} is called a variance, but a Gaussian of that variance is not (ε, δ)-private.
func erratumDeviation(t *testing.T) {
	for _, x := range []struct{ epsilon, delta, sigma float64 }{{8, 1e-3, 0.4801}, {0.1, 1e-9, 50.21}} {
		sigma, err := dp.Sigma(x.epsilon, x.delta, 1)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "σ", sigma, x.sigma, 1e-3)
		at, other := dp.LogDelta(x.epsilon, 1/sigma), dp.LogDelta(x.epsilon, 1/math.Sqrt(sigma))
		near(t, "δ of that deviation", math.Exp(at), x.delta, 1e-6)
		if off := math.Exp(other - at); off > 0.5 && off < 2 {
			t.Errorf("(%g, %g): as a variance it gives δ %g, which is as good", x.epsilon, x.delta, math.Exp(other))
		}
	}
}

// The proof of Theorem 3.2 has r_d(c_d) = 4.
func erratumInverse(t *testing.T) {
	for _, d := range []int{1, 2, 7} {
		c := 1 / calibration.FreeSquares(d)
		near(t, "r(1/c)", calibration.SquaresSensitivity(1/c, d, dp.Replace), 4, 1e-12)
	}
	near(t, "r₂(c₂)", calibration.SquaresSensitivity(2, 2, dp.Replace), 6.25, 1e-12)
}

// λ* is called the smallest λ with r = 4, but every smaller λ has r = 4 too.
func erratumLargest(t *testing.T) {
	for _, d := range []int{1, 3} {
		for _, x := range []float64{1e-6, 0.1, 0.9, 1} {
			near(t, "r below ν*", calibration.SquaresSensitivity(x*calibration.FreeSquares(d), d, dp.Replace), 4, 1e-12)
		}
		if r := calibration.SquaresSensitivity(1.0001*calibration.FreeSquares(d), d, dp.Replace); r <= 4 {
			t.Errorf("r beyond ν* is %g", r)
		}
	}
}

// The proof has ζ²/α₁², but the result ζ²α₁², and below it noise of ζ²α₁r(λζ²β₁/α₁)σ.
func erratumColumnNorms(t *testing.T) {
	const zeta, alpha, beta, d = 1.7, 2.3, 0.8, 2
	lambda := 0.9
	p := audit.JointWorst(lambda*zeta*zeta*beta*beta/(alpha*alpha), zeta, d, dp.Replace)
	distance := apart(p.X, p.Y, alpha, beta, lambda)
	r := calibration.SquaresSensitivity(lambda*zeta*zeta*beta*beta/(alpha*alpha), d, dp.Replace)
	near(t, "ζ²α²r", zeta*zeta*alpha*alpha*r, distance, 1e-12)
	near(t, "the sensitivity", math.Sqrt(distance),
		JointSensitivity([]float64{alpha}, []float64{beta}, lambda, zeta, d, dp.Replace), 1e-12)
	for _, printed := range []float64{zeta * zeta / (alpha * alpha) * r,
		math.Pow(zeta*zeta*alpha*calibration.SquaresSensitivity(lambda*zeta*zeta*beta/alpha, d, dp.Replace), 2)} {
		if math.Abs(printed/distance-1) < 0.5 {
			t.Errorf("the printed formula gives %g, the distance is %g", printed, distance)
		}
	}
}

// In Lemma 3.8, Corollary 3.9 and section 4, σ is the deviation of the first moment's noise, which is twice the
// multiplier of Theorem 3.3. Also, the quartic term has a ζ² that does not belong there.
func erratumSigma(t *testing.T) {
	const n, d, sigma, zeta, runs = 5, 2, 0.7, 1.3, 20000
	source := rand.New(rand.NewPCG(6, 6))
	x := make([][]float64, n) // rows of full norm, which attain the supremum
	for k := range x {
		x[k] = []float64{zeta * math.Cos(float64(k)), zeta * math.Sin(float64(k))}
	}
	var mean, square float64
	for range runs {
		var e [3]float64
		var total float64
		for k := range x {
			y := []float64{x[k][0] + 2*sigma*zeta*source.NormFloat64(), x[k][1] + 2*sigma*zeta*source.NormFloat64()}
			tau2 := 4 * sigma * sigma * zeta * zeta
			e[0] += y[0]*y[0] - x[k][0]*x[k][0] - tau2
			e[1] += y[0]*y[1] - x[k][0]*x[k][1]
			e[2] += y[1]*y[1] - x[k][1]*x[k][1] - tau2
			total += e[0]*e[0] + 2*e[1]*e[1] + e[2]*e[2]
		}
		mean += total / runs
		square += total * total / runs
	}
	const a2 = n * (n + 1) / 2 // ‖A‖² of prefix sums
	formula := func(tau2 float64) float64 { return (d*(d+1)*tau2*tau2 + 2*(d+1)*tau2*zeta*zeta) * a2 }
	right := formula(4 * sigma * sigma * zeta * zeta)
	tolerance := stattest.Normal(stattest.Alpha) * math.Sqrt((square-mean*mean)/runs)
	// Corollary 3.9: (d(d+1)σ⁴ + 2(d+1)σ²)ζ²‖A‖².
	printed := func(s float64) float64 { return (d*(d+1)*math.Pow(s, 4) + 2*(d+1)*s*s) * zeta * zeta * a2 }
	if math.Abs(mean-right) > tolerance {
		t.Errorf("simulated %.1f ± %.1f, corrected %.1f", mean, tolerance, right)
	}
	for _, p := range []float64{printed(sigma), printed(2 * sigma)} {
		if math.Abs(mean-p) < 5*tolerance {
			t.Errorf("simulated %.1f ± %.1f, printed %.1f", mean, tolerance, p)
		}
	}
}

// The text after Corollary 3.9 says that the new method's error in high dimension is "2σ²‖A₂‖²".
func erratumDimensions(t *testing.T) {
	s := literal{Kind: "prefix"}.setting(t, "identity", 10)
	const d, sigma = 1000, 0.8
	g := s.sum(10)
	_, ours := ExpectedError("jme", noiseOf(Joint(calibration.FreeSquares(d), d, dp.Replace), sigma, 1, s), 1, d, g)
	near(t, "d² draws", full(ours, d), 8*d*d*sigma*sigma*g.Second, 1e-9) // 2d²ω², ω = 2σ
	// This is the σ above which joint estimation is better: σ² = ½ with d² draws, σ² = ¼ with symmetric draws, up to
	// terms of order 1/d.
	crossover := func(f func(sigma float64) (joint, processed float64)) float64 {
		lo, hi := 0.01, 10.0
		for range 60 {
			if joint, processed := f(math.Sqrt(lo * hi)); joint < processed {
				hi = math.Sqrt(lo * hi)
			} else {
				lo = math.Sqrt(lo * hi)
			}
		}
		return lo
	}
	both := func(sigma float64) (joint, processed float64) {
		n := noiseOf(Joint(calibration.FreeSquares(d), d, dp.Replace), sigma, 1, s)
		_, joint = ExpectedError("jme", n, 1, d, g)
		_, processed = ExpectedError("pp_debiased", n, 1, d, g)
		return joint, processed
	}
	near(t, "the threshold", crossover(both), math.Sqrt(0.25*(1-2./d)), 1e-6)
	near(t, "the threshold with d² draws", crossover(func(sigma float64) (float64, float64) {
		joint, processed := both(sigma)
		return full(joint, d), processed
	}), math.Sqrt(0.5), 2e-3)
}

// The bias is printed as ‖Σ_i(A₂)_{[i,·]}‖², which seems to add up rows. Running averages show that the bias is the
// norm of the row sums.
func erratumBiasNorm(t *testing.T) {
	const n = 10
	rowSums, added := 0.0, 0.0
	for row := 1; row <= n; row++ {
		rowSums += 1 // each row of averages sums to 1
		var column float64
		for k := row; k <= n; k++ {
			column += 1 / float64(k)
		}
		added += column * column
	}
	s := literal{Kind: "mean"}.setting(t, "identity", n)
	near(t, "(Σ_k a_k Q_kk)² over all releases", s.sum(n).Bias, rowSums, 1e-12)
	near(t, "the sum over rows", added, 17.07, 1e-3)
}

// Step 1 of Lemma 3.8's proof has Q = (C₁C₁ᵀ)⁻¹.
func erratumGram(t *testing.T) {
	const n = 6
	c := lowerTriangular(root(t, matfact.Workload{Kind: "sum"}, n))
	var right, printed, inverse mat.Dense
	right.Mul(c.T(), c)
	printed.Mul(c, c.T())
	f, err := matfact.New(matfact.Config{Kind: "sqrt", Horizon: n}, matfact.Workload{Kind: "sum"})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		m        *mat.Dense
		from, to float64
	}{{&right, 1, 1.2718}, {&printed, 1.2718, 1}} {
		if err := inverse.Inverse(x.m); err != nil {
			t.Fatal(err)
		}
		near(t, "the first variance", inverse.At(0, 0), x.from, 1e-4)
		near(t, "the last variance", inverse.At(n-1, n-1), x.to, 1e-4)
	}
	// The noise of step 1 is the first draw, so it has variance 1.
	near(t, "the variance of the first step's noise", f.CinvVar(1), 1, 1e-12)
	near(t, "the variance of the last step's noise", f.CinvVar(n), 1.2718, 1e-4)
}

// The bias b_t of Algorithm 6 uses the same wrong matrix, and lacks the factor 4ζ². It is already a sum over k, but is
// subtracted from every x̂x̂ᵀ, so it is summed a second time.
func erratumBias(t *testing.T) {
	for _, x := range []struct {
		n               int
		right, literals float64
	}{{6, 47.6, 42.8}, {20, 203, 538}, {100, 1286, 16275}} {
		c := lowerTriangular(root(t, matfact.Workload{Kind: "sum"}, x.n))
		var gram, inverse mat.Dense
		gram.Mul(c, c.T())
		if err := inverse.Inverse(&gram); err != nil {
			t.Fatal(err)
		}
		s := literal{Kind: "prefix"}.setting(t, "sqrt", uint64(x.n))
		norm := s.factor.ColNorm()
		bias, _, _ := s.overlap.at(uint64(x.n))
		// Compute the bias of the squares of noisy rows after n steps, for ζ = σ = 1.
		near(t, "the bias", 4*norm*norm*bias, x.right, 2e-3)
		// Compute the bias that the algorithm subtracts if it is taken literally.
		var off, cumulative float64
		for k := range x.n {
			cumulative += inverse.At(k, k)
			off += norm * norm * cumulative
		}
		near(t, "what is subtracted", off, x.literals, 2e-3)
	}
}

// Algorithm 4 draws Z₂ with σ instead of σ₂, uses √2ζ² also for d = 1, and splits the budget by basic composition.
func erratumSplit(t *testing.T) {
	first, second, err := SplitBasic(0.5, 1, 1e-6)
	if err != nil {
		t.Fatal(err)
	}
	sigma, err := dp.Sigma(1, 1e-6, 1)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "(ε/2, δ/2)", first, 8.348, 1e-4)
	near(t, "(ε/2, δ/2)", second, 8.348, 1e-4)
	near(t, "μ²/2", sigma*math.Sqrt2, 5.975, 1e-4)
	for d, want := range map[int]float64{1: 1, 2: 2, 5: 2} {
		// sup ‖xxᵀ−yyᵀ‖² over the unit ball.
		source := rand.New(rand.NewPCG(4, uint64(d)))
		top := apart(inBall(source, d, 0), make([]float64, d), 0, 1, 1)
		for range 20000 {
			x, y := inBall(source, d, 1), inBall(source, d, 1)
			top = max(top, apart(x, y, 0, 1, 1))
		}
		if d > 1 {
			p := audit.JointWorst(1e9, 1, d, dp.Replace)
			top = max(top, apart(p.X, p.Y, 0, 1, 1))
		}
		if !(top <= want*(1+1e-12) && top > 0.95*want) {
			t.Errorf("d = %d: squares are √%g apart, want √%g", d, top, want)
		}
	}
}

// The sensitivity in Algorithm 5 is 2ζ√(1+τ). It has the unit of ζ, and it lacks ‖C‖. With a square root, neighbours
// are farther apart than that.
func erratumConcatenation(t *testing.T) {
	const n, zeta, tau = 64, 1.5, 0.4
	s := literal{Kind: "prefix"}.setting(t, "sqrt", n)
	p := audit.JointWorst(tau*zeta*zeta, zeta, 3, dp.Replace)
	norm := s.factor.ColNorm()
	distance := math.Sqrt(apart(p.X, p.Y, norm, norm, tau))
	charged := CS(tau*zeta*zeta, dp.Replace).Noise(1, zeta, norm, norm).Sensitivity
	if printed := 2 * zeta * math.Sqrt(1+tau*zeta*zeta); !(printed < distance && distance <= charged) {
		t.Errorf("neighbours are %g apart, printed %g, with ‖C‖ %g", distance, printed, charged)
	}
}

// "Privacy for free" and the dominance of Theorems 3.6 and 3.7 hold for replacement only.
func erratumFree(t *testing.T) {
	for _, nu := range []float64{0.01, 0.3, 0.5} {
		near(t, "r under replacement", calibration.SquaresSensitivity(nu, 3, dp.Replace),
			calibration.SquaresSensitivity(0, 3, dp.Replace), 1e-12)
		near(t, "r under zero-out", calibration.SquaresSensitivity(nu, 3, dp.ZeroOut), 1+nu, 1e-12)
		joint, split, cs := Joint(nu, 3, dp.ZeroOut), Split(1/(1+nu), 3, dp.ZeroOut), CS(nu, dp.ZeroOut)
		for _, other := range []Tradeoff{split, cs} {
			near(t, "the first moment's variance", other.First(), joint.First(), 1e-12)
			near(t, "the second moment's variance", other.Second(), joint.Second(), 1e-12)
		}
	}
}

// The captions of Figures 2 and 7 say that the square root "improves the quality of both methods".
func erratumSquareRoot(t *testing.T) {
	const n, d = 1000, 1000
	var joint, processed [2]float64
	for i, kind := range []string{"identity", "sqrt"} {
		s := literal{Kind: "prefix"}.setting(t, kind, n)
		g, v := s.sum(n), noiseOf(Joint(calibration.FreeSquares(d), d, dp.Replace), 1, 1, s)
		_, joint[i] = ExpectedError("jme", v, 1, d, g)
		g.Cross = 0 // a lower bound for all rows
		if kind == "identity" {
			g = s.sum(n) // an upper bound for all rows
		}
		_, processed[i] = ExpectedError("pp_debiased", v, 1, d, g)
	}
	if gain, loss := joint[0]/joint[1], processed[1]/processed[0]; math.Abs(gain-52) > 1 || math.Abs(loss-21) > 1 {
		t.Errorf("joint estimation improves %g times, post-processing gets %g times worse", gain, loss)
	}
}

// Algorithms 1 and 3 draw d² values for a symmetric matrix. If this noise is symmetrised, it equals that of d(d+1)/2
// draws, whose squared norm is about half.
func erratumSymmetric(t *testing.T) {
	const d, runs = 3, 60000
	source := rand.New(rand.NewPCG(7, 7))
	rows := make([][]float64, runs)
	want := make([][]float64, d*(d+1)/2)
	var whole float64
	for r := range rows {
		var g [d][d]float64
		for i := range d {
			for j := range d {
				g[i][j] = source.NormFloat64()
				whole += g[i][j] * g[i][j] / runs
			}
		}
		rows[r] = upper(d, func(i, j int) float64 { return (g[i][j] + g[j][i]) / 2 })
	}
	n := 0
	for i := range d {
		for j := i; j < d; j++ {
			want[n] = make([]float64, len(want))
			if want[n][n] = 0.5; i == j {
				want[n][n] = 1
			}
			n++
		}
	}
	if err := stattest.Covariance(rows, want, stattest.Alpha); err != nil {
		t.Errorf("(G+Gᵀ)/2 has another distribution: %v", err)
	}
	near(t, "‖G‖²", whole, d*d, 0.05)
	var halved float64
	for _, r := range rows {
		halved += squared(r, make([]float64, len(r)), d) / runs
	}
	near(t, "‖(G+Gᵀ)/2‖²", halved, float64(d*(d+1))/2, 0.05)
}

// The bounds of Theorem 4.2 hold, but the supremum is between tighter ones: a single record has no covariance, and
// alternating records have means of 0 at even steps.
func erratumCovariance(t *testing.T) {
	const n = 12
	var alternating, h1, h3, odd float64
	for step := 1; step <= n; step++ {
		mean := float64(step%2) / float64(step)        // of alternating rows ±1
		alternating += (1 - mean*mean) / float64(step) // Σ_k (x_k−x̄)²/t²
		h1 += 1 / float64(step)
		h3 += math.Pow(float64(step), -3)
		if step%2 == 1 {
			odd += math.Pow(float64(step), -3)
		}
	}
	near(t, "the last factor for alternating records", alternating, h1-odd, 1e-12)
	if !(h1-h3 < h1-odd && h1-odd <= h1-1 && h1-1 < h1) {
		t.Errorf("bounds %g, %g, %g, %g", h1-h3, h1-odd, h1-1, h1)
	}
	// No rows exceed the first bound, H₁ − 1: at every step the mean square deviation is at most 1, and at the first
	// step it is 0.
	source := rand.New(rand.NewPCG(1, 16))
	for range 2000 {
		var total, sum, squares float64
		for step := 1; step <= n; step++ {
			x := source.Float64()*2 - 1
			if source.IntN(2) == 0 {
				x = math.Copysign(1, x)
			}
			sum += x
			squares += x * x
			m := sum / float64(step)
			total += (squares/float64(step) - m*m) / float64(step)
		}
		if total > h1-1 {
			t.Fatalf("rows reach %g, the bound is %g", total, h1-1)
		}
	}
}

// Figure 5 uses Gaussian rows without a clip norm, but noise for rows of norm 1.
func erratumFigure5(t *testing.T) {
	const d, draws = 5, 4000
	source := rand.New(rand.NewPCG(5, 17))
	long := 0
	for range draws {
		var square float64
		x := make([]float64, d)
		var root [d][2 * d]float64
		for i := range d {
			x[i] = source.NormFloat64() * math.Sqrt(0.5)
			for k := range root[i] {
				root[i][k] = source.NormFloat64() * math.Sqrt(0.5)
			}
		}
		for k := range 2 * d {
			z := source.NormFloat64()
			for i := range d {
				x[i] += root[i][k] * z
			}
		}
		for _, v := range x {
			square += v * v
		}
		if square > 1 {
			long++
		}
	}
	if share := float64(long) / draws; share < 0.97 {
		t.Errorf("only %.3f of the rows are longer than 1", share)
	}
}

// "Decreasing column norms" are needed for the closed form to be exact, not for privacy: for any C the largest norms
// give a bound.
func erratumDecreasing(t *testing.T) {
	source := rand.New(rand.NewPCG(18, 18))
	exact, loose := 0, 0
	for range 200 {
		first, second := make([]float64, 4), make([]float64, 4)
		for i := range first {
			first[i], second[i] = source.Float64()*2, source.Float64()*2
		}
		lambda := math.Exp(source.NormFloat64())
		closed := JointSensitivity(first, second, lambda, 1.3, 2, dp.Replace)
		var largest [2]float64
		var top float64
		for i := range first {
			largest[0], largest[1] = max(largest[0], first[i]), max(largest[1], second[i])
			p := audit.JointWorst(lambda*1.69*second[i]*second[i]/(first[i]*first[i]), 1.3, 2, dp.Replace)
			top = max(top, math.Sqrt(apart(p.X, p.Y, first[i], second[i], lambda)))
		}
		near(t, "the largest distance over the columns", closed, top, 1e-9)
		bound := JointSensitivity(largest[:1], largest[1:], lambda, 1.3, 2, dp.Replace)
		if bound < closed*(1-1e-12) {
			t.Errorf("the largest norms give %g, the columns %g", bound, closed)
		}
		if bound > closed*(1+1e-9) {
			loose++
		} else {
			exact++
		}
	}
	if exact == 0 || loose == 0 {
		t.Errorf("%d exact, %d loose", exact, loose)
	}
}
