package moments

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/matfact"
)

// literal is a workload as the reference cases define it. Its rows are not divided by the number of records, but by t
// for a mean, by k for a window, and by 1 for other workloads.
type literal struct {
	Kind string
	Beta float64
	K    uint64
}

// read returns the workload and the scale of its rows.
func (l literal) read(t *testing.T) (matfact.Workload, func(t uint64) float64) {
	t.Helper()
	one := func(uint64) float64 { return 1 }
	switch l.Kind {
	case "prefix":
		return matfact.Workload{Kind: "sum"}, one
	case "exp":
		return matfact.Workload{Kind: "exponential", Decay: l.Beta}, one
	case "mean":
		return matfact.Workload{Kind: "mean"}, func(t uint64) float64 { return 1 / float64(t) }
	case "window":
		return matfact.Workload{Kind: "window", Window: l.K}, func(uint64) float64 { return 1 / float64(l.K) }
	}
	t.Fatalf("unknown workload %q", l.Kind)
	return matfact.Workload{}, nil
}

// setting is a workload with one factorization for both moments, and the gains of its releases.
type setting struct {
	factor  matfact.Factorization
	shapes  shapes
	overlap *overlap
	scale   func(t uint64) float64
}

func (l literal) setting(t *testing.T, kind string, n uint64) *setting {
	t.Helper()
	w, scale := l.read(t)
	f, err := matfact.New(matfact.Config{Kind: kind, Horizon: n}, w)
	if err != nil {
		t.Fatal(err)
	}
	s := shape{f, w.Kernel(), false}
	return &setting{f, shapes{s, s}, newOverlap(f, w.Kernel()), scale}
}

// at returns the gains of release t.
func (s *setting) at(t uint64) Gains {
	g, _ := s.shapes.gains(s.overlap, t, 1/s.scale(t), 1/s.scale(t))
	return g
}

// sum returns the sum of the gains of the first n releases.
func (s *setting) sum(n uint64) (g Gains) {
	for t := uint64(1); t <= n; t++ {
		g = g.Plus(s.at(t))
	}
	return g
}

// full converts the error of d(d+1)/2 independent draws to that of d² draws.
func full(sym float64, d int) float64 { return sym * 2 * float64(d) / float64(d+1) }

func noiseOf(t Tradeoff, sigma, clip float64, s *setting) Noise {
	return t.Noise(1/sigma, clip, s.factor.ColNorm(), s.factor.ColNorm())
}

func caseMultiParticipation(t *testing.T, c cases.Case) {
	var in struct {
		Workload      literal
		Factorization string
		N             int
		Steps         []int
		Zeta          float64
		Lambda        float64 `json:"nu_lambda"`
		D             int
		Adjacency     *dp.Adjacency
	}
	var want struct {
		Bound float64 `json:"sens_bound"`
	}
	c.Read(t, &in, &want)
	adjacency := dp.Replace
	if in.Adjacency != nil {
		adjacency = *in.Adjacency
	}
	w, _ := in.Workload.read(t)
	coef := root(t, w.Kernel(), in.N)
	if in.Factorization == "identity" {
		coef = make([]float64, in.N)
		coef[0] = 1
	}
	m := make([][]float64, in.N)
	for i := range m {
		m[i] = make([]float64, in.N)
		for j := range i + 1 {
			m[i][j] = coef[i-j]
		}
	}
	bound := ParticipationSensitivity(m, m, in.Steps, in.Lambda, in.Zeta, in.D, adjacency)
	if in.Workload.Kind == "window" && in.Factorization == "sqrt" {
		bound /= math.Sqrt(float64(in.Workload.K)) // because rows contain 1/k, as in the kind mse
	}
	c.Near(t, "sens_bound", bound, want.Bound)
}

func caseSplit(t *testing.T, c cases.Case) {
	var in struct{ Alpha, Epsilon, Delta float64 }
	var want struct {
		First    float64 `json:"gdp_first"`
		SecondD2 float64 `json:"gdp_second_d2"`
		SecondD1 float64 `json:"gdp_second_d1"`
		Sigma1   float64 `json:"sigma1_basic"`
		Sigma2   float64 `json:"sigma2_basic"`
		Joint    float64 `json:"sigma_joint"`
	}
	c.Read(t, &in, &want)
	c.Near(t, "gdp_first", Split(in.Alpha, 2, dp.Replace).First(), want.First)
	c.Near(t, "gdp_second_d2", Split(in.Alpha, 2, dp.Replace).Second(), want.SecondD2)
	c.Near(t, "gdp_second_d1", Split(in.Alpha, 1, dp.Replace).Second(), want.SecondD1)
	first, second, err := SplitBasic(in.Alpha, in.Epsilon, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "sigma1_basic", first, want.Sigma1)
	c.Near(t, "sigma2_basic", second, want.Sigma2)
	joint, err := dp.Sigma(in.Epsilon, in.Delta, 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "sigma_joint", joint, want.Joint)
}

func caseCS(t *testing.T, c cases.Case) {
	var in struct {
		Nu float64 `json:"tau_zeta2"`
	}
	var want struct {
		First, Second float64
		JMEFirst      float64 `json:"jme_first"`
		JMESecond     float64 `json:"jme_second"`
	}
	c.Read(t, &in, &want)
	c.Near(t, "first", CS(in.Nu, dp.Replace).First(), want.First)
	c.Near(t, "second", CS(in.Nu, dp.Replace).Second(), want.Second)
	c.Near(t, "jme_first", Joint(in.Nu, 2, dp.Replace).First(), want.JMEFirst)
	c.Near(t, "jme_second", Joint(in.Nu, 2, dp.Replace).Second(), want.JMESecond)
}

func caseErrors(t *testing.T, c cases.Case) {
	var in struct {
		Workload      literal
		Factorization string
		N             uint64
		D             int
		Zeta, Sigma   float64
		Adjacency     dp.Adjacency
		Nu            any
	}
	var want struct {
		MeanError float64 `json:"mse_Y"`
		Symmetric float64 `json:"mse_S_jme_sym"`
		Full      float64 `json:"mse_S_jme_full_d2"`
		Fourth    float64 `json:"q4"`
		Cross     float64 `json:"pp_cross_upper"`
		Equal     float64 `json:"pp_cross_equal_rows"`
		Trace     float64 `json:"pp_cross_trace"`
		PP        float64 `json:"mse_S_pp_debiased_upper"`
		Bias      float64 `json:"pp_bias_sq"`
	}
	c.Read(t, &in, &want)
	nu := calibration.FreeSquares(in.D)
	if v, ok := in.Nu.(float64); ok {
		nu = v
	}
	s := in.Workload.setting(t, in.Factorization, in.N)
	g := s.sum(in.N)
	n := noiseOf(Joint(nu, in.D, in.Adjacency), in.Sigma, in.Zeta, s)
	mean, joint := ExpectedError("jme", n, in.Zeta, in.D, g)
	// Post-processing uses the deviation of joint estimation, as in a combination, or its own deviation. The two are
	// equal if the second moment is free.
	if own := noiseOf(Single(in.Adjacency), in.Sigma, in.Zeta, s); own.First < n.First {
		if _, v := ExpectedError("pp_debiased", own, in.Zeta, in.D, g); math.Abs(v/want.PP-1) < 1e-3 {
			n = own
		}
	}
	_, processed := ExpectedError("pp_debiased", n, in.Zeta, in.D, g)
	_, biased := ExpectedError("pp", n, in.Zeta, in.D, g)
	c.Near(t, "mse_Y", mean, want.MeanError)
	c.Near(t, "mse_S_jme_sym", joint, want.Symmetric)
	c.Near(t, "mse_S_jme_full_d2", full(joint, in.D), want.Full)
	// The cases use the square root of a window's rows including the factor 1/k. That scales C, and therefore the noise
	// before the workload; errors do not change.
	unit := 1.0
	if in.Workload.Kind == "window" && in.Factorization == "sqrt" {
		unit = float64(in.Workload.K)
	}
	c.Near(t, "q4", unit*unit*g.Fourth, want.Fourth)
	c.Near(t, "pp_cross_upper", unit*g.Cross, want.Cross)
	c.Near(t, "mse_S_pp_debiased_upper", processed, want.PP)
	c.Near(t, "pp_bias_sq", biased-processed, want.Bias)
	// The cross term has two special values: ΣM for equal rows, and tr M for orthogonal rows.
	var trace float64
	for row := uint64(1); row <= in.N; row++ {
		for k := uint64(1); k <= row; k++ {
			a := s.scale(row)
			switch {
			case in.Workload.Kind == "exp":
				a *= math.Pow(in.Workload.Beta, float64(row-k))
			case in.Workload.Kind == "window" && row-k >= in.Workload.K:
				a = 0
			}
			trace += a * a * s.factor.CinvVar(k)
		}
	}
	c.Near(t, "pp_cross_equal_rows", unit*g.First, want.Equal)
	c.Near(t, "pp_cross_trace", unit*trace, want.Trace)
}

// covarianceSums returns the expected squared errors of the covariance over all releases: for joint estimation with d²
// and d(d+1)/2 draws, and a lower and an upper bound for post-processing. The lower bound is for alternating rows,
// whose means are 0 at even steps.
func covarianceSums(t *testing.T, w literal, kind string, n uint64, d int, sigma, clip float64) (jmeFull, jme, lower,
	upper float64) {
	t.Helper()
	s := w.setting(t, kind, n)
	v := noiseOf(Joint(calibration.FreeSquares(d), d, dp.Replace), sigma, clip, s)
	var odd float64
	for step := uint64(1); step <= n; step++ {
		one, err1 := ExpectedCovarianceError("jme", s.factor, v, clip, d, step)
		squares, err2 := ExpectedCovarianceError("pp_debiased", s.factor, v, clip, d, step)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		jme += one
		upper += squares
		_, second := ExpectedError("jme", v, clip, d, s.at(step))
		jmeFull += one - second + full(second, d)
		if step%2 == 1 && step > 1 {
			odd += math.Pow(float64(step), -3)
		}
	}
	return jmeFull, jme, upper - 2*float64(d+1)*v.First*v.First*clip*clip*odd, upper
}

func caseCovarianceErrors(t *testing.T, c cases.Case) {
	var in struct {
		N             uint64
		D             int
		Zeta, Sigma   float64
		Factorization string
		Workload      literal
	}
	var want struct {
		Full  float64 `json:"jme_debiased_full"`
		JME   float64 `json:"jme_debiased_sym"`
		Upper float64 `json:"pp_debiased_upper"`
		Lower float64 `json:"pp_debiased_lower"`
	}
	c.Read(t, &in, &want)
	jmeFull, jme, lower, upper := covarianceSums(t, in.Workload, in.Factorization, in.N, in.D, in.Sigma, in.Zeta)
	c.Near(t, "jme_debiased_full", jmeFull, want.Full)
	c.Near(t, "jme_debiased_sym", jme, want.JME)
	c.Near(t, "pp_debiased_lower", lower, want.Lower)
	c.Near(t, "pp_debiased_upper", upper, want.Upper)
}

func caseFigure3(t *testing.T, c cases.Case) {
	var in struct {
		N           uint64
		D           int
		Zeta, Sigma float64
		Omega       float64 `json:"omega_paper"`
	}
	var want struct {
		Full  float64 `json:"jme_full"`
		JME   float64 `json:"jme_sym"`
		Upper float64 `json:"pp_upper"`
		Lower float64 `json:"pp_lower"`
	}
	c.Read(t, &in, &want)
	jmeFull, jme, lower, upper := covarianceSums(t, literal{Kind: "mean"}, "identity", in.N, in.D, in.Sigma, in.Zeta)
	c.Near(t, "jme_full", jmeFull, want.Full)
	c.Near(t, "jme_sym", jme, want.JME)
	c.Near(t, "pp_lower", lower, want.Lower)
	c.Near(t, "pp_upper", upper, want.Upper)
}

func caseCombine(t *testing.T, c cases.Case) {
	var in struct {
		D             int
		T             uint64
		Sigma, Zeta   float64
		Workload      literal
		Factorization string
		Adjacency     *dp.Adjacency
		Nu            *float64
	}
	var want struct {
		Joint    float64  `json:"v_jme"`
		PP       float64  `json:"v_pp_bound"`
		W        float64  `json:"w_jme"`
		Combined float64  `json:"v_combined"`
		Cov1     *float64 `json:"cov_w1"`
		Cov0     *float64 `json:"cov_w0"`
		CovW     *float64 `json:"cov_w_best"`
		CovBest  *float64 `json:"cov_best"`
	}
	c.Read(t, &in, &want)
	adjacency, nu := dp.Replace, calibration.FreeSquares(in.D)
	if in.Adjacency != nil {
		adjacency = *in.Adjacency
	}
	if in.Nu != nil {
		nu = *in.Nu
	}
	s := in.Workload.setting(t, in.Factorization, in.T)
	n, g := noiseOf(Joint(nu, in.D, adjacency), in.Sigma, in.Zeta, s), s.at(in.T)
	_, joint := ExpectedError("jme", n, in.Zeta, in.D, g)
	_, processed := ExpectedError("pp_debiased", n, in.Zeta, in.D, g)
	w, combined := Combine(joint, processed)
	c.Near(t, "v_jme", joint, want.Joint)
	c.Near(t, "v_pp_bound", processed, want.PP)
	c.Near(t, "w_jme", w, want.W)
	c.Near(t, "v_combined", combined, want.Combined)
	if want.Cov1 == nil {
		return
	}
	x := s.shapes.scatter(g, in.T, min(float64(in.T), weights(s.shapes.first.kernel, in.T)), 1/s.scale(in.T))
	c.Near(t, "cov_w1", covarianceError(1, n, in.Zeta, in.D, x), *want.Cov1)
	c.Near(t, "cov_w0", covarianceError(0, n, in.Zeta, in.D, x), *want.Cov0)
	best := x.weight(n, in.Zeta, in.D)
	c.Near(t, "cov_w_best", best, *want.CovW)
	c.Near(t, "cov_best", covarianceError(best, n, in.Zeta, in.D, x), *want.CovBest)
}

func caseAuto(t *testing.T, c cases.Case) {
	var in struct {
		Workload      literal
		Factorization string
		N             uint64
		D             int
		Zeta, Sigma   float64
		Adjacency     dp.Adjacency
		Block         uint64
		Metric        string
		Combined      bool `json:"allow_combined"`
	}
	var want struct {
		Joint  float64  `json:"v_jme"`
		PP     *float64 `json:"v_pp_bound"`
		Method string
	}
	c.Read(t, &in, &want)
	s := in.Workload.setting(t, in.Factorization, in.N)
	g := s.at(in.N)
	if in.Metric == "sum" {
		g = s.sum(in.N)
	}
	x := circumstances{
		Mu: 1 / in.Sigma, Clip: in.Zeta, Dim: in.D, Adjacency: in.Adjacency, Joint: in.D, Alpha: s.factor.ColNorm(),
		Beta: s.factor.ColNorm(), Gains: g,
		Squares: in.Block == 1, Combine: in.Combined && in.Factorization == "identity",
		Nu: calibration.FreeSquares(in.D), Weights: [2]float64{1 / (in.Zeta * in.Zeta), math.Pow(in.Zeta, -4)},
	}
	if in.Adjacency == dp.ZeroOut {
		x.Nu, x.Search = chooseNu(1, float64(in.D+1)/2, in.D, in.Adjacency), true
	}
	all, best := x.choose()
	c.Near(t, "v_jme", all[0].Second*all[0].Second, want.Joint)
	if (want.PP != nil) != (len(all) > 1) {
		t.Fatalf("%d alternatives", len(all))
	}
	if want.PP != nil {
		c.Near(t, "v_pp_bound", all[1].Second*all[1].Second, *want.PP)
	}
	if all[best].Method != want.Method {
		t.Errorf("method %s, want %s", all[best].Method, want.Method)
	}
}

func caseProjection(t *testing.T, c cases.Case) {
	var in struct {
		M     []float64
		D     int
		Floor *float64
		Cap   *float64 `json:"trace_cap"`
	}
	var want struct{ P []float64 }
	c.Read(t, &in, &want)
	var got []float64
	var err error
	if in.Cap != nil {
		got, err = ProjectMoment(in.M, in.D, *in.Cap)
	} else {
		got, err = ProjectPSD(in.M, in.D, *in.Floor)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range want.P {
		c.Near(t, fmt.Sprintf("entry %d", i), got[i], v)
	}
}

func caseFigure1(t *testing.T, c cases.Case) {
	var in struct {
		Lambda, Tau, Alpha *float64
		Lam                *float64
		D                  int
		N                  uint64
		Zeta, Sigma        *float64
	}
	var want struct {
		First  float64  `json:"rmse_first"`
		Full   float64  `json:"rmse_second_full"`
		Second *float64 `json:"rmse_second_sym"`
	}
	c.Read(t, &in, &want)
	zeta, sigma := 1.0, 1.0
	if in.Zeta != nil {
		zeta = *in.Zeta
	}
	if in.Sigma != nil {
		sigma = *in.Sigma
	}
	var x Tradeoff
	switch {
	case in.Alpha != nil:
		x = Split(*in.Alpha, in.D, dp.Replace)
	case in.Tau != nil:
		x = CS(*in.Tau*zeta*zeta, dp.Replace)
	default:
		x = Joint(*in.Lam*zeta*zeta, in.D, dp.Replace)
	}
	s := literal{Kind: "prefix"}.setting(t, "identity", in.N)
	first, second := ExpectedError("jme", noiseOf(x, sigma, zeta, s), zeta, in.D, s.sum(in.N))
	c.Near(t, "rmse_first", math.Sqrt(first), want.First)
	c.Near(t, "rmse_second_full", math.Sqrt(full(second, in.D)), want.Full)
	if want.Second != nil {
		c.Near(t, "rmse_second_sym", math.Sqrt(second), *want.Second)
	}
}

// brackets caches the suprema of post-processing's cross term. Each takes seconds and does not depend on σ.
var brackets sync.Map

// bracket returns a lower and an upper bound of sup_X tr(MXXᵀ), M = (AᵀA)∘Q.
func (s *setting) bracket(t *testing.T, name string, n uint64, d int) (lower, upper float64) {
	t.Helper()
	if s.factor.Kind() == "identity" {
		g := s.sum(n)
		return g.Cross, g.Cross // exact, because M is diagonal
	}
	key := fmt.Sprint(name, n, min(d, 16))
	if v, ok := brackets.Load(key); ok {
		return v.([2]float64)[0], v.([2]float64)[1]
	}
	lower, upper = Elliptope(s.dense(t, int(n)), d)
	brackets.Store(key, [2]float64{lower, upper})
	return lower, upper
}

// root returns the coefficients of the square root of a kernel.
func root(t *testing.T, kernel matfact.Workload, n int) []float64 {
	t.Helper()
	c, err := audit.KernelRoot(kernel, n)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// dense computes M with dense matrices.
func (s *setting) dense(t *testing.T, n int) *mat.SymDense {
	a := mat.NewDense(n, n, nil)
	for row := range n {
		for k := range row + 1 {
			x := s.scale(uint64(row) + 1)
			switch w := s.shapes.first.kernel; {
			case w.Kind == "exponential":
				x *= math.Pow(w.Decay, float64(row-k))
			case w.Kind == "window" && row-k >= int(w.Window):
				x = 0
			}
			a.Set(row, k, x)
		}
	}
	c := inverse(root(t, s.shapes.first.kernel, n))
	q := mat.NewSymDense(n, nil)
	for row := range n {
		for k := range row + 1 {
			v := c[row] * c[k]
			if k > 0 {
				v += q.At(row-1, k-1)
			}
			q.SetSym(row, k, v)
		}
	}
	var square mat.SymDense
	square.SymOuterK(1, a.T())
	for row := range n {
		for k := range row + 1 {
			q.SetSym(row, k, q.At(row, k)*square.At(row, k))
		}
	}
	return q
}

// casePostProcessing tests Figures 2 and 7. These give bounds on suprema, and our results must be between the bounds.
func casePostProcessing(t *testing.T, c cases.Case) {
	var in struct {
		N             uint64
		D             int
		Zeta, Sigma   float64
		Factorization string
		Workload      *literal
		Omega         float64 `json:"omega_paper"`
	}
	var want struct {
		Full   float64 `json:"jme_full"`
		JME    float64 `json:"jme_sym"`
		Abs    float64 `json:"pp_debiased_abs_upper"`
		Lower  float64 `json:"pp_debiased_sup_lower"`
		Upper  float64 `json:"pp_debiased_sup_upper"`
		Biased float64 `json:"pp_biased_sup_lower"`
	}
	c.Read(t, &in, &want)
	w := literal{Kind: "prefix"}
	if in.Workload != nil {
		w = *in.Workload
	} else {
		// The names of the cases for Figure 7 contain the workload: fig7/exp0.9/…, fig7/window10/….
		if n, _ := fmt.Sscanf(c.Name, "fig7/exp%f/", &w.Beta); n == 1 {
			w.Kind = "exp"
		} else if n, _ := fmt.Sscanf(c.Name, "fig7/window%d/", &w.K); n == 1 {
			w.Kind = "window"
		}
	}
	s := w.setting(t, in.Factorization, in.N)
	n, g := noiseOf(Joint(calibration.FreeSquares(in.D), in.D, dp.Replace), in.Sigma, in.Zeta, s), s.sum(in.N)
	_, joint := ExpectedError("jme", n, in.Zeta, in.D, g)
	c.Near(t, "jme_sym", joint, want.JME)
	c.Near(t, "jme_full", full(joint, in.D), want.Full)
	_, abs := ExpectedError("pp_debiased", n, in.Zeta, in.D, g)
	c.Near(t, "pp_debiased_abs_upper", abs, want.Abs)
	lower, upper := s.bracket(t, fmt.Sprint(w), in.N, in.D)
	at := func(method string, cross float64) float64 {
		h := g
		h.Cross = cross
		_, second := ExpectedError(method, n, in.Zeta, in.D, h)
		return second
	}
	rel, _ := c.Tolerance(t)
	if low, high := at("pp_debiased", lower),
		at("pp_debiased", upper); !(low >= want.Lower*(1-rel) && low <= high && high <= want.Upper*(1+rel)) {
		t.Errorf("the supremum is in [%g, %g], the case has [%g, %g]", low, high, want.Lower, want.Upper)
	}
	if biased := at("pp", lower); !(biased >= want.Biased*(1-rel)) {
		t.Errorf("the biased supremum is at least %g, the case has %g", biased, want.Biased)
	}
}
