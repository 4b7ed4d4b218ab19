package sgd

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"streamdp/dp"
	"streamdp/internal/cases"
	"streamdp/internal/dptest"
)

func TestCases(t *testing.T) {
	cases.Run(t, "sgd", map[string]func(*testing.T, cases.Case){
		"gdp_calibrate":        caseCalibrate,
		"zcdp_to_dp":           caseZCDP,
		"gdp_delta":            caseDelta,
		"shuffle":              caseShuffle,
		"clone_delta":          caseCloneDelta,
		"ssgd_eps":             caseSSGD,
		"mf_band":              caseBands,
		"student_t":            caseStudent,
		"clip_is_huber":        caseHuber,
		"dp_gd_replay":         caseDescent,
		"dp_gd_process":        caseProcess,
		"dp_gd_lambda":         caseLambda,
		"dp_gd_track_replay":   caseTracked,
		"ci_constructions":     caseIntervals,
		"tail_average":         caseTailAverage,
		"dp_ssgd_replay":       caseShuffled,
		"dp_stat_law":          caseStatLaw,
		"stream_replay":        caseStreamReplay,
		"fig1":                 caseDescentError,
		"fig2":                 caseDescentError,
		"fig3":                 caseDescentError,
		"gd_track":             caseTrackedError,
		"fig56":                caseCoverage,
		"ar1_coverage":         caseAutoregression,
		"stream_track_iid":     caseStreamTrack,
		"stream_track_mf16":    caseStreamTrack,
		"paper_verbatim":       casePaperVerbatim,
		"stream_newton_replay": caseNewtonReplay,
		"stream_newton_mse":    caseNewtonMSE,
	})
}

// near fails unless |got − want| ≤ tol·max(|want|, 1).
func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	cases.Near(t, what, got, want, tol, tol)
}

// onLattice is the tolerance of a case that runs through the lattice.
func onLattice(t *testing.T, c cases.Case) float64 {
	tol, _ := c.Tolerance(t)
	return max(tol, 1e-6)
}

// tolerance returns a case's tolerance and whether it is relative, "rel 1e-7".
func tolerance(t *testing.T, c cases.Case) (tol float64, relative bool) {
	t.Helper()
	var text string
	if json.Unmarshal(c.Tol, &text) == nil {
		if _, err := fmt.Sscanf(text, "rel %g", &tol); err != nil {
			t.Fatalf("tol: %v", err)
		}
		return tol, true
	}
	tol, _ = c.Tolerance(t)
	return tol, false
}

// check compares by the case's own tolerance.
func check(t *testing.T, c cases.Case, what string, got, want float64) {
	t.Helper()
	if tol, relative := tolerance(t, c); relative {
		cases.Near(t, what, got, want, tol, 0)
	} else {
		near(t, what, got, want, tol)
	}
}

func caseCalibrate(t *testing.T, c cases.Case) {
	var in struct{ Eps, Delta float64 }
	var want struct {
		Mu, Alpha, Rho float64
		Paper          float64 `json:"paper_alpha"`
	}
	c.Read(t, &in, &want)
	mu, err := dp.Mu(in.Eps, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "mu", mu, want.Mu)
	check(t, c, "alpha", 1/mu, want.Alpha)
	check(t, c, "rho", mu*mu/2, want.Rho)
	check(t, c, "paper_alpha", math.Sqrt(8*math.Log(1/in.Delta))/in.Eps, want.Paper)
}

func caseZCDP(t *testing.T, c cases.Case) {
	var in struct{ Rho, Delta float64 }
	var want struct {
		Simple float64 `json:"eps_simple"`
		Tight  float64 `json:"eps_zcdp_tight"`
		Exact  float64 `json:"eps_gdp"`
	}
	c.Read(t, &in, &want)
	rho := dp.ZCDP(in.Rho)
	for _, x := range []struct {
		name string
		of   func(float64) (float64, error)
		want float64
	}{{"simple", rho.Simple, want.Simple}, {"tight", rho.Tight, want.Tight}, {"exact", rho.Exact, want.Exact}} {
		got, err := x.of(in.Delta)
		if err != nil {
			t.Fatal(err)
		}
		check(t, c, x.name, got, x.want)
	}
}

func caseDelta(t *testing.T, c cases.Case) {
	var in struct{ Mu, Eps float64 }
	var want struct{ Delta float64 }
	c.Read(t, &in, &want)
	check(t, c, "delta", math.Exp(dp.LogDelta(in.Eps, in.Mu)), want.Delta)
}

// caseShuffle compares the numerical accountant, and the closed form of the same
// authors, which holds for few randomizers and is looser.
func caseShuffle(t *testing.T, c cases.Case) {
	var in struct {
		N           int
		Eps0, Delta float64
	}
	var want struct {
		Closed  *float64 `json:"eps_closed"`
		Numeric float64  `json:"eps_numeric"`
	}
	c.Read(t, &in, &want)
	got, err := ShuffleEpsilon(in.N, in.Eps0, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "eps_numeric", got, want.Numeric)
	n, e := float64(in.N), math.Exp(in.Eps0)
	if in.Eps0 > math.Log(n/(16*math.Log(2/in.Delta))) {
		if want.Closed != nil {
			t.Error("the closed form does not hold here")
		}
		return
	}
	closed := math.Log1p((e - 1) / (e + 1) * (8*math.Sqrt(e*math.Log(4/in.Delta)/n) + 8*e/n))
	check(t, c, "eps_closed", closed, *want.Closed)
	if got > closed {
		t.Errorf("the numerical %g is above the closed form's %g", got, closed)
	}
}

func caseCloneDelta(t *testing.T, c cases.Case) {
	var in struct {
		N         int
		Eps0, Eps float64
	}
	var want struct{ Delta float64 }
	c.Read(t, &in, &want)
	got, err := CloneDelta(in.N, in.Eps0, in.Eps)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "delta", got, want.Delta)
}

func caseSSGD(t *testing.T, c cases.Case) {
	var in struct {
		N                   int
		Alpha, Delta, Split float64
	}
	var want struct {
		Eps          float64
		Unamplified  float64 `json:"eps_unamplified"`
		Eps0, Delta0 float64
	}
	c.Read(t, &in, &want)
	if in.Split != 0.5 {
		t.Fatalf("δ is split at %g, ours at ½", in.Split)
	}
	got, err := SSGDEpsilon(in.N, 2*in.Alpha, in.Delta, dp.Replace)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "eps", got, want.Eps)
	alone, err := dp.Epsilon(in.Delta, 1/in.Alpha)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "eps_unamplified", alone, want.Unamplified)
	s, err := shuffledEpsilon(in.N, 1/in.Alpha, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "eps0", s.epsilon0, want.Eps0)
	// The case stops after two steps from ε₀ = 0 where we go on to the fixed
	// point: its δ₀ is larger by some 10⁻⁴, and so is what it adds up to. Both are
	// those of the shuffle, also where it gains nothing.
	epsilon := want.Eps
	if alone < s.epsilon {
		epsilon = s.epsilon
	}
	events := func(epsilon, epsilon0 float64) float64 {
		return (math.Exp(epsilon) + 1) * (1 + math.Exp(-epsilon0)/2) * float64(in.N)
	}
	first, err := dp.Epsilon(in.Delta/2/events(epsilon, 0), 1/in.Alpha)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "delta0 of two steps", in.Delta/2/events(epsilon, first), want.Delta0)
	if spent := events(s.epsilon, s.epsilon0) * s.delta0; !(spent <= in.Delta/2 && spent > in.Delta/2*(1-1e-5)) {
		t.Errorf("δ₀ adds up to %g of %g", spent, in.Delta/2)
	}
}

func caseBands(t *testing.T, c cases.Case) {
	var in struct{ P int }
	var want struct {
		R       []float64
		ColNorm float64 `json:"col_norm"`
		Sum     float64 `json:"r_at_1"`
		LongRun float64 `json:"longrun_var_factor"`
	}
	c.Read(t, &in, &want)
	factor, err := factorize(in.P, nil)
	if err != nil {
		t.Fatal(err)
	}
	filter := factor.NewFilter(1)
	sum := 0.0
	for k, r := range want.R {
		z := []float64{0}
		if k == 0 {
			z[0] = 1
		}
		filter.Next(z, z) // the column of C⁻¹
		check(t, c, sprint("r_", k), z[0], r)
		sum += z[0]
	}
	check(t, c, "col_norm", factor.ColNorm(), want.ColNorm)
	check(t, c, "r(1)", sum, want.Sum)
	check(t, c, "long-run variance", noiseShape(factor.Stored(), factor.ColNorm()).average, want.LongRun)
}

// sampleOf makes a sample of features that no bound shortens.
func sampleOf(x [][]float64, y []float64) *Sample {
	return &Sample{D: len(x[0]), X: slices.Concat(x...), Y: y}
}

// caseHuber takes the clipped gradients from the lattice, one record at a time.
func caseHuber(t *testing.T, c cases.Case) {
	var in struct {
		X        [][]float64
		Y, Theta []float64
		Gamma    float64
	}
	var want struct {
		B     []float64   `json:"huber_B"`
		Loss  []float64   `json:"huber_loss"`
		Grads [][]float64 `json:"clipped_grads"`
		Sum   []float64   `json:"sum_grad"`
	}
	c.Read(t, &in, &want)
	d := len(in.Theta)
	lattice := dp.Lattice{Exp: -30, K: 1 << 30}
	one := lattice.Radius(d)
	all, single := newGradients(lattice, one, d), newGradients(lattice, one, d)
	// A clip norm above all gradients is as good as any other, and the lattice is
	// as fine as it is small.
	clip := 0.0
	for i, x := range in.X {
		product, square := dotSquare(in.Theta, x)
		clip = max(clip, 2*math.Abs(product-in.Y[i])*math.Sqrt(square))
	}
	clip = min(clip, in.Gamma)
	all.open(clip)
	gradient := func(g gradients, j int) float64 { return float64(g.integers()[j]) / one * clip }
	for i, x := range in.X {
		product, square := dotSquare(in.Theta, x)
		r := product - in.Y[i]
		b := in.Gamma / math.Sqrt(square)
		loss := r * r / 2
		if math.Abs(r) > b {
			loss = b * (math.Abs(r) - b/2)
		}
		check(t, c, "bound of the residual", b, want.B[i])
		check(t, c, "loss", loss, want.Loss[i])
		single.open(clip)
		single.add(x, r, square, 1)
		all.add(x, r, square, 1)
		for j := range d {
			near(t, "gradient", gradient(single, j), want.Grads[i][j], onLattice(t, c))
		}
	}
	for j := range d {
		near(t, "sum", gradient(all, j), want.Sum[j], onLattice(t, c))
	}
}

func caseDescent(t *testing.T, c cases.Case) {
	var in struct {
		X      [][]float64
		Y      []float64
		Gamma  *float64
		Eta    float64
		T      int
		Theta0 []float64
		Z      [][]float64
	}
	var want struct{ Theta [][]float64 }
	c.Read(t, &in, &want)
	// Clip norms above all gradients give the same path, small ones on a finer
	// lattice: the least that clips nothing, or the case's own.
	gamma := math.Inf(1)
	if in.Gamma != nil {
		gamma = *in.Gamma
	}
	largest := 0.0
	for _, row := range in.Z {
		for _, v := range row {
			largest = max(largest, math.Abs(v))
		}
	}
	descend := func(clip float64) *Path {
		// The case's noise has a deviation of its own applied, where ours is
		// 2γ√T/(nμ) of the mean: μ makes them alike. Noise far above the clip norm
		// needs the room of a coarser lattice, and does not see it.
		n := float64(len(in.Y))
		sd := max(largest, clip/n)
		p := dp.Params{Mu: 2 * clip * math.Sqrt(float64(in.T)) / (n * sd), Adjacency: dp.Replace, LatticeBits: 30}
		if n*sd > clip*0x1p15 {
			p.LatticeBits = 24
		}
		var z []float64
		for _, row := range in.Z {
			for _, v := range row {
				z = append(z, -v/sd) // it is added to θ, ours to the gradient
			}
		}
		path, err := GradientDescent(sampleOf(in.X, in.Y), Descent{Steps: in.T, Rate: in.Eta, Clip: clip, Start: in.Theta0}, p, dptest.Queue(z...))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	clip := min(gamma, 1)
	path := descend(clip)
	for path.Clipped != 0 && clip < min(gamma, 0x1p100) {
		clip = min(gamma, 2*clip)
		path = descend(clip)
	}
	for i, theta := range path.Iterates {
		for j, v := range theta {
			near(t, sprint("theta after step ", i+1), v, want.Theta[i][j], onLattice(t, c))
		}
	}
	if in.Gamma == nil && path.Clipped != 0 {
		t.Errorf("a part %g of the gradients was clipped", path.Clipped)
	}
}

func caseProcess(t *testing.T, c cases.Case) {
	var in struct {
		X      [][]float64
		Y      []float64
		Eta    float64
		Lam    float64
		Theta0 []float64
		T, Tau int
	}
	var want struct {
		OLS        []float64
		Mean       []float64   `json:"mean_t"`
		Cov        [][]float64 `json:"cov_t"`
		Cross      [][]float64 `json:"cross_cov_tau_t"`
		Stationary [][]float64 `json:"cov_stationary"`
		MSE        float64     `json:"mse_t"`
	}
	c.Read(t, &in, &want)
	p, err := NewGDProcess(sampleOf(in.X, in.Y), in.Eta, in.Lam, in.Theta0)
	if err != nil {
		t.Fatal(err)
	}
	stationary, err := p.Stationary()
	if err != nil {
		t.Fatal(err)
	}
	for i := range in.Theta0 {
		check(t, c, "ols", p.OLS()[i], want.OLS[i])
		check(t, c, "mean", p.Mean(in.T)[i], want.Mean[i])
		for j := range in.Theta0 {
			check(t, c, "cov", p.Cov(in.T, in.T).At(i, j), want.Cov[i][j])
			check(t, c, "cross", p.Cov(in.Tau, in.T).At(i, j), want.Cross[i][j])
			check(t, c, "stationary", stationary.At(i, j), want.Stationary[i][j])
		}
	}
	check(t, c, "mse", p.MSE(in.T), want.MSE)
}

// caseLambda recovers the deviation of the noise from a descent on null records.
func caseLambda(t *testing.T, c cases.Case) {
	var in struct {
		T          int
		Gamma, Rho float64
		N          int
	}
	var want struct {
		Replace float64 `json:"lam_replacement"`
		ZeroOut float64 `json:"lam_zeroout"`
	}
	c.Read(t, &in, &want)
	for adjacency, lambda := range map[dp.Adjacency]float64{dp.Replace: want.Replace, dp.ZeroOut: want.ZeroOut} {
		s := &Sample{D: 1, X: make([]float64, in.N), Y: make([]float64, in.N)}
		z := make([]float64, in.T)
		z[0] = 1
		path, err := GradientDescent(s, Descent{Steps: in.T, Rate: 1, Clip: in.Gamma},
			dp.Params{Mu: math.Sqrt(2 * in.Rho), Adjacency: adjacency, LatticeBits: 30}, dptest.Queue(z...))
		if err != nil {
			t.Fatal(err)
		}
		near(t, adjacency.String(), -path.Iterates[0][0], lambda, onLattice(t, c))
	}
}

func caseTracked(t *testing.T, c cases.Case) {
	var in struct {
		X           [][]float64
		Y           []float64
		Rho         float64
		T           int
		Eta, Zeta0  float64
		Q, Frac     float64
		Kappa, Sens float64
		Normals     []float64
	}
	var want struct {
		Theta [][]float64
		Zeta  []float64
		Mean  []float64 `json:"average_last_half"`
	}
	c.Read(t, &in, &want)
	adjacency := dp.Replace
	if in.Sens == 1 {
		adjacency = dp.ZeroOut
	}
	path, err := GradientDescent(sampleOf(in.X, in.Y), Descent{Steps: in.T, Rate: in.Eta, Zeta: in.Zeta0, Quantile: in.Q, Fraction: in.Frac, Kappa: in.Kappa},
		dp.Params{Mu: math.Sqrt(2 * in.Rho), Adjacency: adjacency, LatticeBits: 30}, dptest.Queue(in.Normals...))
	if err != nil {
		t.Fatal(err)
	}
	for i, theta := range path.Iterates {
		near(t, sprint("zeta of step ", i+1), path.Zeta[i], want.Zeta[i], onLattice(t, c))
		for j, v := range theta {
			near(t, sprint("theta after step ", i+1), v, want.Theta[i][j], onLattice(t, c))
		}
	}
	for j, v := range path.Average() {
		near(t, "average", v, want.Mean[j], onLattice(t, c))
	}
}

func caseIntervals(t *testing.T, c cases.Case) {
	var in struct {
		Trajectory [][]float64
		M          int
		BurnIn     int `json:"burn_in"`
		Level      float64
	}
	type interval struct{ Center, Half []float64 }
	var want struct {
		Checkpoints interval
		Batched     interval `json:"batched_means"`
	}
	c.Read(t, &in, &want)
	for _, x := range []struct {
		construct func([][]float64, int, int) ([][]float64, error)
		want      interval
	}{{Checkpoints, want.Checkpoints}, {BatchedMeans, want.Batched}} {
		estimates, err := x.construct(in.Trajectory, in.M, in.BurnIn)
		if err != nil {
			t.Fatal(err)
		}
		centre, half, err := Intervals(estimates, in.Level)
		if err != nil {
			t.Fatal(err)
		}
		for j := range centre {
			check(t, c, "centre", centre[j], x.want.Center[j])
			check(t, c, "half-width", half[j], x.want.Half[j])
		}
	}
}

func caseShuffled(t *testing.T, c cases.Case) {
	var in struct {
		X                [][]float64
		Y                []float64
		Zeta, Alpha, Eta float64
		Perm             json.RawMessage
		G                [][]float64
	}
	var want struct {
		Tail []float64 `json:"tail_average"`
		Last []float64 `json:"w_N"`
	}
	c.Read(t, &in, &want)
	var order []int
	if string(in.Perm) == `"identity"` {
		for i := range in.Y {
			order = append(order, i)
		}
	} else if err := json.Unmarshal(in.Perm, &order); err != nil {
		t.Fatalf("order %s: %v", in.Perm, err)
	}
	path, err := ShuffledSGD(sampleOf(in.X, in.Y), ShuffledDescent{Clip: in.Zeta, Rate: in.Eta, Noise: 2 * in.Alpha}, dp.Replace,
		dptest.Queue(slices.Concat(in.G...)...), order)
	if err != nil {
		t.Fatal(err)
	}
	for j, v := range path.Average() {
		near(t, "average", v, want.Tail[j], onLattice(t, c))
		near(t, "last iterate", path.Iterates[len(order)-1][j], want.Last[j], onLattice(t, c))
	}
}

func caseStudent(t *testing.T, c cases.Case) {
	var in struct{ P, DF float64 }
	var want struct{ Quantile float64 }
	c.Read(t, &in, &want)
	check(t, c, "quantile", StudentQuantile(in.P, in.DF), want.Quantile)
}

func caseTailAverage(t *testing.T, c cases.Case) {
	var in struct{ W [][]float64 }
	var want map[string]struct {
		After uint64 `json:"start_after"`
		Mean  []float64
	}
	c.Read(t, &in, &want)
	tol, _ := c.Tolerance(t)
	averages := map[string]*tail{} // by the text of their fraction
	for name := range want {
		_, fraction, _ := strings.Cut(name, "_f")
		if averages[fraction] != nil {
			continue
		}
		f, err := strconv.ParseFloat(fraction, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The rule that young averages take the half is the estimator's own.
		averages[fraction] = newTail(f, 0, len(in.W[0]))
	}
	seen := 0
	mean := make([]float64, len(in.W[0]))
	for i, w := range in.W {
		for fraction, a := range averages {
			a.add(w)
			e, ok := want[sprint("T", i+1, "_f", fraction)]
			if !ok {
				continue
			}
			seen++
			if after := a.mean(mean); after != e.After {
				t.Errorf("T = %d, f = %s: the average begins after %d, want %d", i+1, fraction, after, e.After)
			}
			for j := range mean {
				near(t, sprint("mean at T = ", i+1), mean[j], e.Mean[j], tol)
			}
		}
	}
	if seen != len(want) {
		t.Errorf("%d of %d averages were compared", seen, len(want))
	}
}

func caseStatLaw(t *testing.T, c cases.Case) {
	var in struct {
		Values           []float64
		L                int
		B                float64
		Alpha, Threshold float64
	}
	var want struct {
		Gammas       []float64
		Counts       []float64
		ScanSD       float64   `json:"scan_sd"`
		ScanLaw      []float64 `json:"scan_law"`
		BisectCounts int       `json:"bisect_counts"`
		BisectSD     float64   `json:"bisect_sd"`
		BisectLaw    []float64 `json:"bisect_law"`
	}
	c.Read(t, &in, &want)
	tol, _ := c.Tolerance(t)
	l := ladder{in.B, in.L}
	h := l.histogram()
	for _, u := range in.Values {
		h[l.index(u)]++
	}
	for i, g := range want.Gammas {
		near(t, "rung", l.rung(i), g, tol)
		near(t, "count", float64(h.upTo(i)), want.Counts[i], tol)
	}
	if l.searches() != want.BisectCounts {
		t.Errorf("a binary search asks %d counts, want %d", l.searches(), want.BisectCounts)
	}
	near(t, "scan_sd", math.Sqrt(float64(in.L))*in.Alpha, want.ScanSD, tol)
	near(t, "bisect_sd", math.Sqrt(float64(l.searches()))*in.Alpha, want.BisectSD, tol)
	for _, m := range []struct {
		method string
		sd     float64
		law    []float64
	}{{"scan", want.ScanSD, want.ScanLaw}, {"bisect", want.BisectSD, want.BisectLaw}} {
		law, err := StatLaw(m.method, in.Values, in.L, in.B, in.Threshold, 0, m.sd)
		if err != nil {
			t.Fatal(err)
		}
		for i := range law {
			near(t, m.method+" law", law[i], m.law[i], tol)
		}
	}
}

// caseStreamReplay replays a stream and its normals through the estimator, at 30
// lattice bits and with nothing to shorten the features or to stop the iterates.
func caseStreamReplay(t *testing.T, c cases.Case) {
	var in struct {
		X       [][]float64
		Y       []float64
		Nulls   []int `json:"null_records"`
		Normals []float64
		Config  struct {
			Batch      uint64  `json:"b"`
			Stat       uint64  `json:"s"`
			Bootstrap  uint64  `json:"s0"`
			Eta        float64 `json:"eta"`
			Alpha      float64 `json:"alpha"`
			Clip       string  `json:"stat"`
			Value      string  `json:"val"`
			Rungs      int     `json:"L"`
			Top        float64 `json:"B"`
			Quantile   float64 `json:"q"`
			Multiplier float64 `json:"cmul"`
			Threshold  float64 `json:"thr"`
			Bands      int     `json:"band"`
			Fraction   float64 `json:"frac"`
			Kappa      float64 `json:"kappa"`
			Sens       float64 `json:"sens"`
			Zeta       float64 `json:"zeta"`
		}
	}
	type step struct {
		T     uint64
		After uint64 `json:"after_record"`
		Zeta  float64
		W     []float64
		Tail  []float64 `json:"tail_half"`
	}
	var want struct {
		Steps []step
		Used  int `json:"normals_used"`
	}
	c.Read(t, &in, &want)
	tol := onLattice(t, c)

	d := len(in.X[0])
	no := false
	x := in.Config
	cfg := Config{
		Method: "amb", Target: "y", ClipX: 1e6, Intercept: &no, Restart: &no, Intervals: &no, Radius: 1, Clip: x.Clip,
		Bands: max(x.Bands, 1), Rungs: x.Rungs, Top: x.Top, Quantile: x.Quantile, Fraction: x.Fraction, Kappa: x.Kappa,
		Value: map[string]string{"gnorm": "gradnorm", "resid": "residual"}[x.Value], Zeta: x.Zeta,
		Horizon: 1000,
	}
	for j := range d {
		cfg.Columns = append(cfg.Columns, sprint("x", j))
	}
	cfg.Columns = append(cfg.Columns, "y")
	params := dp.Params{Mu: 1 / x.Alpha, Adjacency: dp.Replace, LatticeBits: 30}
	if x.Sens == 1 {
		params.Adjacency = dp.ZeroOut
	}
	cfg.Defaults()
	plan, factor, err := resolve(&cfg, params, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan.Batch, plan.Search, plan.Radius = x.Batch, max(x.Stat, x.Bootstrap), 0
	plan.Bound, plan.Curvature, cfg.Eta0 = 1, 1, x.Eta // a step size of eta
	plan.Threshold, plan.Multiplier = cfg.Quantile*float64(plan.Search), 1
	if x.Threshold != 0 {
		plan.Threshold = x.Threshold
	}
	if x.Multiplier != 0 {
		plan.Multiplier = x.Multiplier
	}
	e, err := build(cfg, params, *plan, factor)
	if err != nil {
		t.Fatal(err)
	}
	half := newTail(0.5, 0, d)
	e.average = half

	noise := dptest.Queue(in.Normals[:want.Used]...)
	row := make([]float64, d+1)
	var at uint64 // step of the daemon
	for _, step := range want.Steps {
		var r *dp.Release
		var end uint64
		for r == nil {
			at++
			var first uint64
			first, end = e.Range(at)
			for i := first; i < end; i++ {
				if slices.Contains(in.Nulls, int(i)) {
					e.Add(i, nil)
					continue
				}
				copy(row, in.X[i])
				row[d] = in.Y[i]
				e.Add(i, row)
			}
			if r, err = e.Close(noise); err != nil {
				t.Fatal(err)
			}
		}
		value := func(name string) []float64 {
			for _, v := range r.Values {
				if v.Name == name {
					return v.Data
				}
			}
			t.Fatalf("no value %s", name)
			return nil
		}
		if got := uint64(value("iteration")[0]); got != step.T || end-1 != step.After || uint64(value("slots")[0]) != end {
			t.Errorf("iteration %d ends with record %d, want %d, %d", got, end-1, step.T, step.After)
		}
		near(t, "zeta", value("zeta")[0], step.Zeta, tol)
		for j := range d {
			near(t, sprint("w after step ", step.T), value("theta")[j], step.W[j], tol)
			near(t, sprint("average after step ", step.T), value("theta_average")[j], step.Tail[j], tol)
		}
	}
	defer func() {
		if recover() == nil {
			t.Errorf("fewer than %d normals were used", want.Used)
		}
	}()
	noise.Row("any", []int64{0}).At(0)
}

func sprint(parts ...any) string { return fmt.Sprint(parts...) }
