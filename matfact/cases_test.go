package matfact

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/optimise"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

// testCase is a reference case with its relative tolerance.
type testCase struct {
	cases.Case
	Tol float64
}

func TestCases(t *testing.T) {
	kinds := map[string]func(*testing.T, cases.Case){}
	for kind, f := range map[string]func(*testing.T, testCase){
		"sqrt_coefs": caseSqrtCoefs, "prefix_errors": casePrefixErrors,
		"exp_optimum_inf": caseExpOptimum, "exp_blt_inf": caseExpBLT, "exp_and_adam": caseExpAdam,
		"blt_opt": caseBLTOpt, "blt_opt_horizon_free": caseBLTOpt, "blt_given": caseBLTGiven,
		"blt_inverse": caseBLTInverse,
		"window":      caseWindow, "window_given": caseWindowGiven,
		"banded_prefix": caseBandedPrefix, "banded_opt_max": caseBandedOptMax,
		"dense_prefix": caseDensePrefix, "dense_exp": caseDenseExp,
		"minsep_sens2": caseMinSep, "minsep_sens2_inf": caseMinSep,
		"minsep_sens2_sqrt": caseMinSepSqrt, "minsep_general": caseMinSepGeneral,
		"phased_err": casePhasedErr, "phased_table": casePhasedTable,
	} {
		kinds[kind] = func(t *testing.T, c cases.Case) {
			rel, _ := c.Tolerance(t)
			f(t, testCase{c, rel})
		}
	}
	cases.Run(t, "matfact", kinds)
}

// near checks |got − want| ≤ tol·|want|; if want is 0, |got| ≤ tol.
func near(t *testing.T, name string, got, want, tol float64) {
	t.Helper()
	bound := tol * math.Abs(want)
	if want == 0 {
		bound = tol
	}
	if !(math.Abs(got-want) <= bound) {
		t.Errorf("%s = %.17g, want %.17g (relative difference %.2g, tolerance %g)", name, got, want, got/want-1, tol)
	}
}

func nearAll(t *testing.T, name string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d values, want %d", name, len(got), len(want))
	}
	for i := range got {
		near(t, fmt.Sprintf("%s[%d]", name, i), got[i], want[i], tol)
	}
}

// atMost checks the result of an optimiser, which may be better than expected.
func atMost(t *testing.T, name string, got, want, tol float64) {
	t.Helper()
	if !(got <= want*(1+tol)) {
		t.Errorf("%s = %.17g, want at most %.17g (relative excess %.2g, tolerance %g)", name, got, want,
			got/want-1, tol)
	}
}

func mustNew(t testing.TB, c Config, w Workload) Factorization {
	t.Helper()
	f, err := New(c, w)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func kernelOf(beta float64) Workload {
	if beta == 1 {
		return Workload{Kind: "sum"}
	}
	return Workload{Kind: "exponential", Decay: beta}
}

func caseSqrtCoefs(t *testing.T, c testCase) {
	var in struct {
		Beta float64
		N    uint64
	}
	var want struct{ C, Cinv []float64 }
	c.Read(t, &in, &want)
	w := kernelOf(in.Beta)
	nearAll(t, "c", seriesPower(w, 0.5, int(in.N)), want.C, c.Tol)
	nearAll(t, "cinv", seriesPower(w, -0.5, int(in.N)), want.Cinv, c.Tol)
	// The stored integers are what the factorization uses.
	for j, k := range mustNew(t, Config{Kind: "sqrt", Horizon: in.N}, w).(*root).coef {
		if got := float64(k) * 0x1p-62; math.Abs(got-want.C[j]) > c.Tol*want.C[j]+0x1p-62 {
			t.Errorf("stored c[%d] = %.17g, want %.17g", j, got, want.C[j])
		}
	}
}

func casePrefixErrors(t *testing.T, c testCase) {
	var in struct{ N uint64 }
	want := map[string]float64{}
	c.Read(t, &in, &want)
	sum, mean := Workload{Kind: "sum"}, Workload{Kind: "mean"}
	got := map[string]float64{"lower_bound": SumBound(in.N)}
	for _, kind := range []string{"identity", "sqrt"} {
		f := mustNew(t, Config{Kind: kind, Horizon: in.N}, sum)
		got[kind+"_max"], got[kind+"_rmse"] = MaxError(f, sum, in.N), RMSE(f, sum, in.N)
		got["runavg_"+kind+"_rmse"] = RMSE(f, mean, in.N)
	}
	got["tree_max"], got["tree_rmse"] = TreeError(in.N, true)
	got["tree_naive_max"], got["tree_naive_rmse"] = TreeError(in.N, false)
	for name, v := range want {
		near(t, name, got[name], v, c.Tol)
	}
}

func caseBandedPrefix(t *testing.T, c testCase) {
	var in struct {
		N uint64
		P int
	}
	var want struct{ BSR, BISR [2]float64 }
	c.Read(t, &in, &want)
	sum := Workload{Kind: "sum"}
	for kind, v := range map[string][2]float64{"bsr": want.BSR, "bisr": want.BISR} {
		f := mustNew(t, Config{Kind: kind, Bands: in.P}, sum)
		// The values are for columns that end at row n; ColNorm is for columns without end.
		cut := columnNorm(f, in.N) / f.ColNorm()
		if cut > 1 {
			t.Errorf("%s: a column of height %d has norm %g of ColNorm", kind, in.N, cut)
		}
		near(t, kind+" max", cut*MaxError(f, sum, in.N), v[0], c.Tol)
		near(t, kind+" rmse", cut*RMSE(f, sum, in.N), v[1], c.Tol)
	}
}

func caseBandedOptMax(t *testing.T, c testCase) {
	var in struct {
		N uint64
		P int
	}
	var want struct{ Max float64 }
	c.Read(t, &in, &want)
	sum := Workload{Kind: "sum"}
	f := mustNew(t, Config{Kind: "banded", Bands: in.P, Tune: in.N}, sum)
	atMost(t, "max", MaxError(f, sum, in.N), want.Max, c.Tol)
}

func caseDensePrefix(t *testing.T, c testCase) {
	var in struct{ N int }
	var want struct {
		Gamma2, RMSE float64
		Mean         float64 `json:"runavg_rmse"`
	}
	c.Read(t, &in, &want)
	sum, mean := Workload{Kind: "sum"}, Workload{Kind: "mean"}
	near(t, "gamma2", mustDense(t, workloadRows(sum, in.N), true).Value, want.Gamma2, c.Tol)
	for w, v := range map[Workload]float64{sum: want.RMSE, mean: want.Mean} {
		near(t, w.Kind+" rmse", mustDense(t, workloadRows(w, in.N), false).Value, v, c.Tol)
		// The factorization that New builds has the same error.
		f := mustNew(t, Config{Kind: "dense", Horizon: uint64(in.N)}, w)
		near(t, w.Kind+" rmse of the factorization", RMSE(f, w, uint64(in.N)), v, c.Tol)
	}
}

func caseDenseExp(t *testing.T, c testCase) {
	var in struct {
		N    int
		Beta float64
	}
	var want struct {
		RMSE float64
		Adam float64 `json:"adam_rmse"`
	}
	c.Read(t, &in, &want)
	w := kernelOf(in.Beta)
	near(t, "rmse", RMSE(mustNew(t, Config{Kind: "dense", Horizon: uint64(in.N)}, w), w, uint64(in.N)),
		want.RMSE, c.Tol)
	a := workloadRows(w, in.N)
	a.Apply(func(i, _ int, v float64) float64 {
		return v * (1 - in.Beta) / -math.Expm1(float64(i+1)*math.Log(in.Beta))
	}, a)
	near(t, "adam_rmse", mustDense(t, a, false).Value, want.Adam, c.Tol)
}

// caseMinSep runs minsep_sens2, with columns that end at row n, and
// minsep_sens2_inf, with columns that do not end.
func caseMinSep(t *testing.T, c testCase) {
	var in struct {
		A, Ahat []float64
		N, K, B uint64
	}
	var want struct{ Sens2 float64 }
	c.Read(t, &in, &want)
	f, err := newBuffered(storeBLT(in.A, in.Ahat))
	if err != nil {
		t.Fatal(err)
	}
	near(t, "sens2", mustSensitivity2(t, f, in.K, in.B, in.N), want.Sens2, c.Tol)
}

func caseMinSepSqrt(t *testing.T, c testCase) {
	var in struct{ N, K, B uint64 }
	var want struct{ Sens2 float64 }
	c.Read(t, &in, &want)
	f := mustNew(t, Config{Kind: "sqrt", Horizon: in.N}, Workload{Kind: "sum"})
	near(t, "sens2", mustSensitivity2(t, f, in.K, in.B, in.N), want.Sens2, c.Tol)
}

// caseMinSepGeneral checks that Sensitivity is an upper bound, and not much too large.
func caseMinSepGeneral(t *testing.T, c testCase) {
	var in struct {
		N        int
		K, B     uint64
		FormulaC string `json:"C"`
	}
	var want struct {
		Exact float64 `json:"exact_scalar_sens2"`
	}
	c.Read(t, &in, &want)
	var row, column, diagonal float64
	if _, err := fmt.Sscanf(in.FormulaC, "C_ij=cos(%g i+%g j)+%g*[i==j], 0-based, i>=j", &row, &column,
		&diagonal); err != nil {
		t.Fatalf("unknown matrix: %s", in.FormulaC)
	}
	m := newMatrix(in.N)
	for i := range m {
		for j := range i + 1 {
			m[i][j] = math.Cos(row*float64(i) + column*float64(j))
		}
		m[i][i] += diagonal
	}
	got := patternBound(absGram(m), Participation{Count: in.K, Separation: in.B})
	if !(got >= want.Exact*(1-c.Tol) && got <= 1.5*want.Exact) {
		t.Errorf("bound is %g, the exact value %g", got, want.Exact)
	}
}

func mustSensitivity2(t *testing.T, f Factorization, k, b, n uint64) float64 {
	t.Helper()
	s, err := Sensitivity(f, Participation{Count: k, Separation: b}, n)
	if err != nil {
		t.Fatal(err)
	}
	return s * s
}

func mustDense(t *testing.T, a *mat.Dense, worst bool) *optimise.Optimum {
	t.Helper()
	d, err := optimise.Dense(a, worst)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// columnNorm returns the norm of a column of height n.
func columnNorm(f Factorization, n uint64) float64 {
	var e squares
	for _, c := range f.(toeplitz).column(int(n)) {
		e.add(c)
	}
	return math.Sqrt(e.float())
}

func caseExpOptimum(t *testing.T, c testCase) {
	var in struct{ Beta float64 }
	var want struct{ Optimum, Identity float64 }
	c.Read(t, &in, &want)
	near(t, "optimum", ExpOptimum(in.Beta), want.Optimum, c.Tol)
	w := kernelOf(in.Beta)
	identity := mustNew(t, Config{Kind: "identity"}, w)
	near(t, "identity", identity.ColNorm()*math.Sqrt(identity.RowVar(w, 1<<40)), want.Identity, c.Tol)
}

func caseExpBLT(t *testing.T, c testCase) {
	var in struct {
		Beta    float64
		Buffers []int
	}
	var want struct{ Value []float64 }
	c.Read(t, &in, &want)
	w := kernelOf(in.Beta)
	for i, d := range in.Buffers {
		f := mustNew(t, Config{Kind: "blt", Buffers: d}, w)
		atMost(t, fmt.Sprintf("value with %d buffers", d), f.ColNorm()*math.Sqrt(f.RowVar(w, 1<<50)),
			want.Value[i], c.Tol)
	}
}

func caseExpAdam(t *testing.T, c testCase) {
	var in struct {
		Beta float64
		N    uint64
	}
	want := map[string][2]float64{}
	c.Read(t, &in, &want)
	w := kernelOf(in.Beta)
	for _, kind := range []string{"identity", "sqrt"} {
		f := mustNew(t, Config{Kind: kind, Horizon: in.N}, w)
		for name, scale := range map[string]func(t uint64) float64{
			"exp": func(uint64) float64 { return 1 },
			// adam is the row scaling of Adam's bias correction, (1−β)/(1−β^t).
			"adam": func(t uint64) float64 {
				return (1 - in.Beta) / -math.Expm1(float64(t)*math.Log(in.Beta))
			},
		} {
			worst, rmse := rowErrors(f, in.N, func(t uint64) float64 { return f.RowVar(w, t) * scale(t) * scale(t) })
			v, ok := want[name+"_"+kind]
			if !ok {
				t.Fatalf("no value %s_%s", name, kind)
			}
			near(t, name+"_"+kind+" max", worst, v[0], c.Tol)
			near(t, name+"_"+kind+" rmse", rmse, v[1], c.Tol)
		}
	}
}

// caseBLTOpt runs blt_opt, √(S(n)E(n)), and blt_opt_horizon_free, √(S(∞)E(n)). The optimiser's value is compared with
// the closed forms and, if C is valid for every length, with RowVar of the factorization that New builds.
func caseBLTOpt(t *testing.T, c testCase) {
	var in struct {
		N       float64
		Buffers int
	}
	var want struct{ Max, Value float64 }
	c.Read(t, &in, &want)
	free := c.Kind == "blt_opt_horizon_free"
	o := bltObjective{sens: in.N, length: in.N}
	if free {
		o.sens = math.Inf(1)
	}
	a, ahat, value, err := optimiseBLT(in.Buffers, o)
	if err != nil {
		t.Fatal(err)
	}
	atMost(t, "error", math.Sqrt(value), max(want.Max, want.Value), c.Tol)
	s, _, _ := sensitivity(a, ahat, o.sens, false)
	e, _, _ := squaredError(a, ahat, 0, in.N, 0, false)
	near(t, "S·E", s*e, value, 1e-9)
	if free {
		w := Workload{Kind: "sum"}
		f := mustNew(t, Config{Kind: "blt", Tune: uint64(in.N), Buffers: in.Buffers}, w)
		atMost(t, "error of the factorization that New builds", f.ColNorm()*math.Sqrt(f.RowVar(w, uint64(in.N))),
			want.Value, c.Tol)
	}
}

func caseBLTGiven(t *testing.T, c testCase) {
	var in struct {
		A, Ahat []float64
		N       float64
		Z       string
	}
	var want struct {
		Omega, Omegahat []float64
		BWeights        []float64 `json:"B_weights"`
		Sn              float64   `json:"S_n"`
		Sinf            float64   `json:"S_inf"`
		Elast           float64   `json:"E_last"`
		Emean           float64   `json:"E_mean"`
		Coefs           []float64
		Cinv            []float64 `json:"cinv_coefs"`
		Noise           []float64
		Prefix          []float64 `json:"prefix_noise"`
	}
	c.Read(t, &in, &want)
	var phase, frequency float64
	var steps int
	if _, err := fmt.Sscanf(in.Z, "z_t=sin(%g+%g(t-1)), t=1..%d", &phase, &frequency, &steps); err != nil ||
		len(want.Noise) != steps {
		t.Fatalf("unknown z: %s", in.Z)
	}
	p := append([]float64{0}, in.Ahat...)
	beta := residues(in.A, p)
	nearAll(t, "omega", residues(in.Ahat, in.A), want.Omega, c.Tol)
	nearAll(t, "omegahat", residues(in.A, in.Ahat), want.Omegahat, c.Tol)
	nearAll(t, "B_weights", beta, want.BWeights, c.Tol)
	sn, _, _ := sensitivity(in.A, in.Ahat, in.N, false)
	near(t, "S_n", sn, want.Sn, c.Tol)
	sinf, _, _ := sensitivity(in.A, in.Ahat, math.Inf(1), false)
	near(t, "S_inf", sinf, want.Sinf, c.Tol)
	e, _, _ := squaredError(in.A, in.Ahat, 0, in.N, 0, false)
	near(t, "E_last", e, want.Elast, c.Tol)
	near(t, "E_mean", meanEnergy(beta, p, in.N), want.Emean, c.Tol)

	// The factorization built from the same numbers.
	f, err := newBuffered(storeBLT(in.A, in.Ahat))
	if err != nil {
		t.Fatal(err)
	}
	sum := Workload{Kind: "sum"}
	near(t, "squared column norm", f.ColNorm()*f.ColNorm(), want.Sinf, c.Tol)
	near(t, "RowVar", f.RowVar(sum, uint64(in.N)), want.Elast, c.Tol)
	coefs, cinv := impulse(f, len(want.Coefs)), make([]float64, len(want.Cinv))
	nearAll(t, "coefs", coefs, want.Coefs, c.Tol)
	filter := f.NewFilter(1)
	for i := range cinv {
		z := []float64{0}
		if i == 0 {
			z[0] = 1
		}
		filter.Next(cinv[i:i+1], z)
	}
	nearAll(t, "cinv_coefs", cinv, want.Cinv, c.Tol)
	filter = f.NewFilter(1)
	noise, prefix := make([]float64, len(want.Noise)), make([]float64, len(want.Noise))
	var total float64
	for i := range noise {
		filter.Next(noise[i:i+1], []float64{math.Sin(phase + frequency*float64(i))})
		total += noise[i]
		prefix[i] = total
	}
	nearAll(t, "noise", noise, want.Noise, c.Tol)
	nearAll(t, "prefix_noise", prefix, want.Prefix, c.Tol)
}

// meanEnergy returns the mean of energy over the lengths 1 … n.
func meanEnergy(b, p []float64, n float64) float64 {
	var q float64
	for i := range b {
		for k := range b {
			q += b[i] * b[k] * meanGeometric(gapProduct(p[i], p[k]), n)
		}
	}
	return q
}

// impulse returns the first n entries of the first column of C, by Predict of a Shaper.
func impulse(f Factorization, n int) []float64 {
	const unit = 1 << 50
	shaper, s := f.NewShaper(1), []float64{0}
	out := make([]float64, n)
	for i := range out {
		r := shaper.Predict(s)
		out[i] = s[0] / unit
		w := []int64{0}
		if i == 0 {
			out[i], w[0] = 1/r, unit
		}
		shaper.Push(w)
	}
	return out
}

func caseBLTInverse(t *testing.T, c testCase) {
	var in struct{ A, Omega []float64 }
	var want struct{ Ahat []float64 }
	c.Read(t, &in, &want)
	got := roots(in.A, in.Omega)
	nearAll(t, "ahat", got, want.Ahat, c.Tol)
}

// roots returns the solutions of Σ ω_i/(â−a_i) = 1, ascending, for ascending a.
func roots(a, omega []float64) []float64 {
	ph := Phase{Scale: 1}
	var decay []Fixed
	for i := len(a) - 1; i >= 0; i-- {
		decay = append(decay, floorDecay(a[i]))
		ph.Weight = append(ph.Weight, floorFixed(omega[i]))
	}
	gap := newModes(decay, ph).gap
	slices.Reverse(gap)
	return gap
}

func caseWindow(t *testing.T, c testCase) {
	var in struct{ W uint64 }
	var want struct {
		Bound    float64 `json:"lower_bound_inf"`
		Identity float64
		BLT2     float64 `json:"blt2"`
		Sqrt     float64 `json:"sqrt_max_n4W"`
	}
	c.Read(t, &in, &want)
	w := Workload{Kind: "window", Window: in.W}
	endless := func(c Config) float64 {
		f := mustNew(t, c, w)
		return f.ColNorm() * math.Sqrt(f.RowVar(w, 1<<40))
	}
	near(t, "lower_bound_inf", WindowOptimum(in.W), want.Bound, c.Tol)
	near(t, "identity", endless(Config{Kind: "identity"}), want.Identity, c.Tol)
	atMost(t, "blt2", endless(Config{Kind: "blt", Buffers: 2}), want.BLT2, c.Tol)
	near(t, "sqrt_max_n4W", MaxError(mustNew(t, Config{Kind: "sqrt", Horizon: 4 * in.W}, w), w, 4*in.W),
		want.Sqrt, c.Tol)
}

func caseWindowGiven(t *testing.T, c testCase) {
	var in struct {
		W       float64
		A, Ahat []float64
	}
	var want struct{ Err2 float64 }
	c.Read(t, &in, &want)
	e, _, _ := squaredError(in.A, in.Ahat, 0, 0, in.W, false)
	near(t, "closed form", e, want.Err2, c.Tol)
	f, err := newBuffered(storeBLT(in.A, in.Ahat))
	if err != nil {
		t.Fatal(err)
	}
	near(t, "RowVar", f.RowVar(Workload{Kind: "window", Window: uint64(in.W)}, 1<<40), want.Err2, c.Tol)
}

// casePhasedErr compares RowVar with reference values that were computed by a float64 recursion. The error of these
// values grows in proportion to t (1.1·10⁻⁷ at t = 10¹¹, see TestPhasedExact), and so does the tolerance.
func casePhasedErr(t *testing.T, c testCase) {
	var in struct {
		T     uint64
		Table string
	}
	var want struct{ Err2 float64 }
	c.Read(t, &in, &want)
	if in.Table != "phased_table" {
		t.Fatalf("unknown table %q", in.Table)
	}
	sum := Workload{Kind: "sum"}
	f := mustNew(t, Config{Kind: "phased"}, sum)
	near(t, "err2", f.RowVar(sum, in.T), want.Err2, c.Tol+0x1p-56*float64(in.T))
}

func casePhasedTable(t *testing.T, c testCase) {
	var in struct{ A0, Ratio, Q, M float64 }
	var want struct {
		Phases []struct {
			T        float64
			A, Omega []float64
			S        float64
		}
	}
	c.Read(t, &in, &want)
	if in.A0 != 0.3 || in.Ratio != 10 || in.Q != 2 || in.M != 8 {
		t.Fatalf("unknown grid %+v", in)
	}
	stored := mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"}).Stored()
	if len(want.Phases) != len(phasedSum) || len(stored.Phases) != len(phasedSum) {
		t.Fatalf("%d phases, want %d", len(phasedSum), len(want.Phases))
	}
	for p, ph := range want.Phases {
		got := phasedSum[p]
		if float64(stored.Phases[p].Start) != ph.T || got.s != ph.S || !slices.Equal(got.omega, ph.Omega) ||
			!slices.Equal(phasedGaps[:len(got.omega)], ph.A) {
			t.Errorf("phase %d differs", p)
		}
	}
}
