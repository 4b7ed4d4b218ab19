package refit

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/gram"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/sgd"
)

func TestCases(t *testing.T) {
	cases.Run(t, "sketch", map[string]func(*testing.T, cases.Case){
		"renyi_curves":        caseCurves,
		"analytic_gaussian":   caseSigma,
		"gaussian_delta":      caseDelta,
		"calibration_papers":  casePapers,
		"calibration_joint":   caseJoint,
		"fastmix_epsilon":     caseFastMixEpsilon,
		"linmix_dynamic_k":    caseDynamicRows,
		"fwht":                caseTransform,
		"srht":                caseSRHT,
		"ihm_fixed_noise":     caseIHM,
		"adassp_fixed_noise":  caseAdaSSP,
		"dpgd_fixed_noise":    caseDescent,
		"fastmix_fixed_noise": caseFastMix,
		"wishart_moments":     caseWishart,
		"newton_fixed_noise":  caseNewton,
		"dataset_statistics":  caseStatistics,
		"dataset_train_mse":   caseTrainMSE,
		"newton_train_mse":    caseNewtonMSE,

		"newton_intercept_fixed_noise": caseCentred,
		"newton_intercept_train_mse":   caseCentredMSE,
	})
}

// relative parses a tolerance: a number, or text that begins with "rel X" or "abs X".
func relative(t *testing.T, c cases.Case) float64 {
	t.Helper()
	var x float64
	if json.Unmarshal(c.Tol, &x) == nil {
		return x
	}
	var text string
	if err := json.Unmarshal(c.Tol, &text); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(text, "rel %g", &x); err != nil {
		if _, err := fmt.Sscanf(text, "abs %g", &x); err != nil {
			t.Fatalf("tolerance %q", text)
		}
	}
	return x
}

// params returns the parameters of the sketch cases: zero-out, ε and δ.
func params(eps, delta float64) dp.Params {
	return dp.Params{Epsilon: eps, Delta: delta, Adjacency: dp.ZeroOut}
}

func caseTransform(t *testing.T, c cases.Case) {
	var in struct{ X []float64 }
	var want struct{ Y []float64 }
	c.Read(t, &in, &want)
	walshHadamard(in.X, 1)
	for i, v := range in.X {
		cases.Near(t, "y", v, want.Y[i], 0, relative(t, c))
	}
}

func caseSRHT(t *testing.T, c cases.Case) {
	var in struct {
		X      [][]float64
		Padded int `json:"padded_n"`
		Signs  []float64
		Rows   []int
	}
	var want struct {
		Z      [][]float64
		M      float64 `json:"m_hat"`
		Delta  float64
		Lambda float64 `json:"lambda_min"`
	}
	c.Read(t, &in, &want)
	tol, d := relative(t, c), len(in.X[0])
	s := &srht{n: len(in.X), padded: padded(len(in.X)), signs: in.Signs[:len(in.X)], rows: in.Rows}
	if s.padded != in.Padded {
		t.Errorf("padded to %d, want %d", s.padded, in.Padded)
	}
	z, m := s.apply(flat(in.X), d)
	for i, v := range flat(want.Z) {
		cases.Near(t, "Z", z[i], v, 0, tol)
	}
	cases.Near(t, "m_hat", m, want.M, 0, tol)
	cases.Near(t, "Delta", s.coherence(), want.Delta, 0, tol)
	cases.Near(t, "lambda_min", leastEigenvalue(gramOf(z, d), d), want.Lambda, 0, tol)
}

func flat(rows [][]float64) []float64 {
	var x []float64
	for _, row := range rows {
		x = append(x, row...)
	}
	return x
}

func gramOf(x []float64, d int) []float64 {
	s := gram.NewSum(d)
	s.Add(x)
	return s.Upper()
}

// caseIHM runs the iteration on given matrices in float64. It also runs the production solver on the same noise, on the
// solver's lattice.
func caseIHM(t *testing.T, c cases.Case) {
	var in struct {
		X        [][]float64
		Y        []float64
		Eta2     float64
		Sigma, C float64
		K, T     int
		S, Xi    [][][]float64
		Zeta     [][]float64
	}
	var want struct {
		With    []float64 `json:"with_eta2_term"`
		Without []float64 `json:"without_eta2_term"`
	}
	c.Read(t, &in, &want)
	tol, d := relative(t, c), len(in.X[0])
	for _, ridge := range []bool{true, false} {
		expected := want.Without
		i := iteration{steps: in.T}
		if ridge {
			expected, i.ridge = want.With, in.Eta2
		}
		i.sketch = func(step int) (hessian, error) {
			mixed := make([]float64, in.K*d)
			for r := range in.K {
				for k, s := range in.S[step][r] {
					vector.Axpy(mixed[r*d:][:d], s, in.X[k])
				}
				vector.Axpy(mixed[r*d:][:d], math.Sqrt(in.Eta2), in.Xi[step][r])
			}
			return form(full(gramOf(mixed, d), d, 0), d, float64(in.K))
		}
		i.gradient = func(step int, theta []float64) ([]float64, error) {
			return plainGradient(in.X, in.Y, theta, in.C, in.Sigma, in.Zeta[step]), nil
		}
		theta, err := i.run(d)
		if err != nil {
			t.Fatal(err)
		}
		for j, v := range theta {
			cases.Near(t, "theta", v, expected[j], tol, tol)
		}

		solver := ihmSolver{
			noise:  sketchNoise{Gamma: in.Eta2, Sigma: in.Sigma / in.C},
			params: dp.Params{Adjacency: dp.ZeroOut, LatticeBits: 30},
			rows:   in.K, iterations: in.T, clip: in.C, ridge: ridge, dense: true,
		}
		rows := map[string][][]float64{}
		for step := range in.T {
			var mix []float64
			for k := range in.X {
				for r := range in.K {
					mix = append(mix, in.S[step][r][k])
				}
			}
			rows[numbered("ihm/mix", step)] = [][]float64{append(mix, flat(in.Xi[step])...)}
			rows[numbered("ihm/grad", step)] = [][]float64{in.Zeta[step]}
		}
		theta, _, err = solver.solve(windowOf(in.X, in.Y), dptest.Arrays(rows))
		if err != nil {
			t.Fatal(err)
		}
		for j, v := range theta {
			cases.Near(t, "theta of the solver", v, expected[j], 1e-6, 1e-6)
		}
	}
}

// plainGradient returns Σ x·clip_C(y − xᵀθ) + sigma·z, computed in float64.
func plainGradient(x [][]float64, y, theta []float64, c, sigma float64, z []float64) []float64 {
	g := make([]float64, len(theta))
	vector.Axpy(g, sigma, z)
	for i, row := range x {
		vector.Axpy(g, min(max(y[i]-vector.Dot2(row, theta), -c), c), row)
	}
	return g
}

func caseAdaSSP(t *testing.T, c cases.Case) {
	var in struct {
		X         [][]float64
		Y         []float64
		S         float64
		Shift     float64 `json:"lambda_shift_in_s"`
		Varrho, Z float64
		N         [][]float64 `json:"N_sym"`
		Zeta      []float64
		CX, CY    float64
	}
	var want struct {
		Lambda float64 `json:"lambda_tilde"`
		Ridge  float64
		Theta  []float64
	}
	c.Read(t, &in, &want)
	// In solvers, rows and targets are in units of their bounds.
	tol, d := relative(t, c), len(in.X[0])
	for i, row := range in.X {
		for j := range row {
			row[j] /= in.CX
		}
		in.Y[i] /= in.CY
	}
	near := func(what string, got, want float64) {
		t.Helper()
		cases.Near(t, what, got, want, tol, tol)
	}
	all := sumsOf(windowOf(in.X, in.Y))
	lambda := max(0, leastEigenvalue(all.gram(), d)+in.S*in.Z-in.S*in.Shift)
	near("lambda_tilde", lambda, want.Lambda)
	ridge := ridgeFor(in.S, lambda, float64(d), in.Varrho)
	near("ridge", ridge, want.Ridge)
	var noise []float64
	for i := range d {
		noise = append(noise, in.N[i][i:]...)
	}
	upper, xy := all.gram(), all.xy()
	vector.Axpy(upper, in.S, noise)
	vector.Axpy(xy, in.S, in.Zeta)
	for j, v := range solveSymmetric(upper, d, ridge, xy) {
		near("theta", v*in.CY/in.CX, want.Theta[j])
	}

	solver := adasspSolver{params: dp.Params{Delta: 10 * in.Varrho, Adjacency: dp.ZeroOut, LatticeBits: 30}, s: in.S,
		shift: in.Shift, test: true}
	theta, _, err := solver.solve(windowOf(in.X, in.Y), dptest.Arrays(map[string][][]float64{
		"adassp/lambda": {{in.Z}}, "adassp/gram": {noise}, "adassp/xty": {in.Zeta},
	}))
	if err != nil {
		t.Fatal(err)
	}
	for j, v := range theta {
		cases.Near(t, "theta of the solver", v*in.CY/in.CX, want.Theta[j], 1e-6, 1e-6)
	}
}

func caseDescent(t *testing.T, c cases.Case) {
	var in struct {
		X        [][]float64
		Y        []float64
		Rate     float64 `json:"lr"`
		Sigma, C float64
		T        int
		Noise    [][]float64
		Clip     string
	}
	var want struct{ Theta []float64 }
	c.Read(t, &in, &want)
	tol, d, n := relative(t, c), len(in.X[0]), float64(len(in.X))
	if in.Clip != "residual" {
		if !strings.Contains(in.Clip, "gradient") {
			t.Fatalf("clip %q", in.Clip)
		}
		caseGradientClip(t, in.X, in.Y, in.Rate, in.Sigma, in.C, in.Noise[:in.T], want.Theta)
		return
	}
	theta := descend(d, in.T, in.Rate/n, func(t int, theta []float64) []float64 {
		return plainGradient(in.X, in.Y, theta, in.C, in.Sigma*n, in.Noise[t])
	})
	for j, v := range theta {
		cases.Near(t, "theta", v, want.Theta[j], tol, tol)
	}
	solver := descentSolver{
		params: dp.Params{Adjacency: dp.ZeroOut, LatticeBits: 30}, iterations: in.T, clip: in.C, rate: in.Rate,
		sigma: in.Sigma * n / in.C,
	}
	rows := map[string][][]float64{}
	for i, z := range in.Noise {
		rows[numbered("dp-gd-residual/grad", i)] = [][]float64{z}
	}
	theta, _, err := solver.solve(windowOf(in.X, in.Y), dptest.Arrays(rows))
	if err != nil {
		t.Fatal(err)
	}
	for j, v := range theta {
		cases.Near(t, "theta of the solver", v, want.Theta[j], 1e-6, 1e-6)
	}
}

// caseGradientClip is caseDescent, but shortens each record's gradient, as package sgd does.
func caseGradientClip(t *testing.T, x [][]float64, y []float64, rate, sigma, clip float64, noise [][]float64,
	want []float64) {
	n := float64(len(x))
	unit := sigma * n / clip // standard deviation of the noise in units of the clip norm, 2√T/μ
	var z []float64
	for _, row := range noise {
		for _, v := range row {
			z = append(z, -v) // the case adds it to the step, sgd to the gradient
		}
	}
	path, err := sgd.GradientDescent(&sgd.Sample{D: len(x[0]), X: flat(x), Y: y},
		sgd.Descent{Steps: len(noise), Rate: rate, Clip: clip},
		dp.Params{Mu: 2 * math.Sqrt(float64(len(noise))) / unit, Adjacency: dp.Replace, LatticeBits: 30},
		dptest.Queue(z...))
	if err != nil {
		t.Fatal(err)
	}
	for j, v := range path.Iterates[len(noise)-1] {
		cases.Near(t, "theta", v, want[j], 1e-6, 1e-6)
	}
}

func caseFastMix(t *testing.T, c cases.Case) {
	var in struct {
		X                 [][]float64
		Signs             []float64
		Rows              []int
		Gamma, Omega, Tau float64
		Z1, Z2            float64
		SG, Xi            [][]float64
	}
	var want struct {
		M      float64 `json:"m_tilde"`
		Lambda float64 `json:"lambda_tilde"`
		Eta2   float64
		Output [][]float64
	}
	c.Read(t, &in, &want)
	tol, d := relative(t, c), len(in.X[0])
	near := func(what string, got, want float64) {
		t.Helper()
		cases.Near(t, what, got, want, tol, tol)
	}
	s := &srht{n: len(in.X), padded: len(in.Signs), signs: in.Signs[:len(in.X)], rows: in.Rows}
	z, m := s.apply(flat(in.X), d)
	n := fastNoise{Gamma: in.Gamma, Omega: in.Omega, Tau: in.Tau}
	draws := map[string]float64{"mhat": in.Z1, "lambda": in.Z2}
	l, err := n.levels(m, s.coherence(), leastEigenvalue(gramOf(z, d), d),
		func(array string, x, scale float64) (float64, error) {
			return x - scale*draws[array], nil
		})
	if err != nil {
		t.Fatal(err)
	}
	near("m_tilde", l.distortion, want.M)
	near("lambda_tilde", l.lambda, want.Lambda)
	near("eta2", l.square, want.Eta2)
	// The second sketch, computed like the first sketch of a window of k₂ rows.
	window := &Data{dim: d, x: z, y: make([]float64, len(in.Rows))}
	var mix []float64
	for i := range in.Rows {
		for r := range in.SG {
			mix = append(mix, in.SG[r][i])
		}
	}
	row := dptest.Queue(append(mix, flat(in.Xi)...)...).Row("mix", nil)
	for i, v := range gaussianMix(window, len(in.SG), math.Sqrt(l.square), row) {
		near("output", v, flat(want.Output)[i])
	}
}

func caseWishart(t *testing.T, c cases.Case) {
	var in struct {
		Sigma    [][]float64
		K, Draws int
	}
	var want struct {
		Mean, Var   [][]float64
		MeanInverse [][]float64 `json:"mean_inverse"`
	}
	c.Read(t, &in, &want)
	d := len(in.Sigma)
	l := flat(in.Sigma)
	if !cholesky(l, d) {
		t.Fatal("not positive definite")
	}
	source := dptest.Seeded(17)
	mean, inverse := make([]float64, d*d), make([]float64, d*d)
	for range in.Draws {
		w := drawWishart(l, d, in.K, source.Row("wishart", nil))
		w.add(mean, d)
		for j := range d {
			e := make([]float64, d)
			e[j] = 1
			w.solve(e) // a column of (W/k)⁻¹
			vector.Axpy(inverse[j*d:][:d], 1/float64(in.K), e)
		}
	}
	n := float64(in.Draws)
	for i := range d {
		for j := range d {
			cases.Near(t, "mean", mean[i*d+j]/n, want.Mean[i][j], 0, 5*math.Sqrt(want.Var[i][j]/n))
		}
		cases.Near(t, "mean of the inverse", inverse[i*d+i]/n, want.MeanInverse[i][i], 0.03, 0)
	}
}

func windowOf(x [][]float64, y []float64) *Data {
	w := NewData(len(x[0]), len(x))
	for i, row := range x {
		w.Add(row, y[i])
	}
	return w
}

func caseNewton(t *testing.T, c cases.Case) {
	var in struct {
		X         [][]float64
		Y         []float64
		Mu        float64
		Adjacency dp.Adjacency
		Hist      []float64
		Gram      []float64 `json:"gram_upper"`
		Grad      [][]float64
		Count     []float64
	}
	var want struct {
		Theta   []float64
		Valid   float64 `json:"n_valid"`
		R2      float64
		Ridge   float64
		Trace   float64 `json:"trace_cap"`
		T       float64
		C       float64
		T0      float64
		First   float64 `json:"zeta_first"`
		Last    float64 `json:"zeta_last"`
		Shrink  float64
		MuSteps float64 `json:"mu_steps"`
	}
	c.Read(t, &in, &want)
	w := windowOf(in.X, in.Y)
	s, err := newNewton(in.Mu, in.Adjacency, 30, w.Len(), w.Dim(), false)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][][]float64{"newton/hist": {in.Hist}, "newton/gram": {in.Gram}}
	for i := range in.Grad {
		rows[numbered("newton/grad", i)] = [][]float64{in.Grad[i]}
		rows[numbered("newton/count", i)] = [][]float64{{in.Count[i]}}
	}
	theta, _, err := s.solve(w, dptest.Arrays(rows))
	if err != nil {
		t.Fatal(err)
	}
	trace := s.trace
	near := func(what string, got, want float64) {
		t.Helper()
		rel, _ := c.Tolerance(t)
		cases.Near(t, what, got, want, rel, rel)
	}
	for j := range theta {
		near("theta", theta[j], want.Theta[j])
	}
	near("n_valid", trace.valid, want.Valid)
	near("r2", trace.squared, want.R2)
	near("ridge", trace.ridge, want.Ridge)
	near("trace_cap", trace.trace, want.Trace)
	near("T", float64(trace.steps), want.T)
	near("t0", float64(trace.start), want.T0)
	near("c", trace.counted, want.C)
	near("zeta_first", trace.first, want.First)
	near("zeta_last", trace.last, want.Last)
	near("shrink", trace.shrink, want.Shrink)
	near("mu_steps", s.part(s.shares.steps), want.MuSteps)
}

// caseCentred runs a refit with an intercept on the noise of the case.
func caseCentred(t *testing.T, c cases.Case) {
	var in struct {
		X         [][]float64
		Y         []float64
		Nulls     []int `json:"null_records"`
		Mu        float64
		Adjacency dp.Adjacency
		Hist0     []float64
		Mean      []float64
		MeanY     []float64
		Hist      []float64
		Gram      []float64 `json:"gram_upper"`
		Grad      [][]float64
		Count     []float64
	}
	var want struct {
		Theta     []float64
		Intercept float64
		Valid0    float64 `json:"n0"`
		R02       float64
		Mean      []float64
		MeanY     float64
		Valid     float64 `json:"n_valid"`
		R2        float64
		Ridge     float64
		Trace     float64 `json:"trace_cap"`
		T         float64
		C         float64
		T0        float64
		First     float64 `json:"zeta_first"`
		Last      float64 `json:"zeta_last"`
		Shrink    float64
		Constant  float64 `json:"shrink_constant"`
		MuSteps   float64 `json:"mu_steps"`
		Signal    float64
	}
	c.Read(t, &in, &want)
	cfg := Config{Target: "y", ClipX: 1, ClipY: 1, Window: uint64(len(in.Y))}
	for range in.X[0] {
		cfg.Columns = append(cfg.Columns, "x")
	}
	cfg.Columns = append(cfg.Columns, "y")
	r := mustRefit(t, cfg, dp.Params{Mu: in.Mu, Adjacency: in.Adjacency, LatticeBits: 30})
	for i, x := range in.X {
		row := append(x, in.Y[i])
		if slices.Contains(in.Nulls, i) {
			row = nil
		}
		r.Add(uint64(i), row)
	}
	rows := map[string][][]float64{
		"newton/hist0": {in.Hist0}, "newton/mean": {in.Mean}, "newton/meany": {in.MeanY}, "newton/hist": {in.Hist},
		"newton/gram": {in.Gram},
	}
	for i := range in.Grad {
		rows[numbered("newton/grad", i)] = [][]float64{in.Grad[i]}
		rows[numbered("newton/count", i)] = [][]float64{{in.Count[i]}}
	}
	release, err := r.Close(dptest.Arrays(rows))
	if err != nil {
		t.Fatal(err)
	}
	if release.Failed != "" {
		t.Fatal(release.Failed)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		rel, _ := c.Tolerance(t)
		cases.Near(t, what, got, want, rel, rel)
	}
	s := r.solver.(*newtonSolver)
	trace := s.trace
	for j, v := range release.Values[0].Data {
		near("theta", v, want.Theta[j])
	}
	near("intercept", release.Values[1].Data[0], want.Intercept)
	near("n0", trace.centres.valid, want.Valid0)
	near("r02", trace.centres.squared, want.R02)
	for j, v := range trace.mean {
		near("mean", v, want.Mean[j])
	}
	near("meany", trace.target, want.MeanY)
	near("n_valid", trace.valid, want.Valid)
	near("r2", trace.squared, want.R2)
	near("ridge", trace.ridge, want.Ridge)
	near("trace_cap", trace.trace, want.Trace)
	near("signal", trace.signal, want.Signal)
	near("T", float64(trace.steps), want.T)
	near("t0", float64(trace.start), want.T0)
	near("c", trace.counted, want.C)
	near("zeta_first", trace.first, want.First)
	near("zeta_last", trace.last, want.Last)
	near("shrink", trace.shrink, want.Shrink)
	near("shrink_constant", trace.constant, want.Constant)
	near("mu_steps", s.part(s.shares.steps), want.MuSteps)
}
