package sgd

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// The statistical cases simulate the production solvers with seeded noise. Their tolerances cover the sampling error of
// the case's trials and of an equal number of our trials.

// linear draws records y = ⟨x, w⟩ + σz with Gaussian features of the given variances, and with w uniform on the unit
// sphere.
type linear struct {
	source    *rand.Rand
	w         []float64
	deviation []float64
	sigma     float64
}

func newLinear(seed uint64, d int, sigma float64) *linear {
	l := &linear{source: rand.New(rand.NewPCG(seed, 1)), w: make([]float64, d),
		deviation: slices.Repeat([]float64{1}, d), sigma: sigma}
	var square float64
	for j := range l.w {
		l.w[j] = l.source.NormFloat64()
		square += l.w[j] * l.w[j]
	}
	for j := range l.w {
		l.w[j] /= math.Sqrt(square)
	}
	return l
}

// draw writes the features to x and returns the target.
func (l *linear) draw(x []float64) float64 {
	y := l.sigma * l.source.NormFloat64()
	for j := range l.w {
		x[j] = l.deviation[j] * l.source.NormFloat64()
		y += l.w[j] * x[j]
	}
	return y
}

func (l *linear) sample(n int) *Sample {
	d := len(l.w)
	s := &Sample{D: d, X: make([]float64, n*d), Y: make([]float64, n)}
	for i := range n {
		s.Y[i] = l.draw(s.row(i))
	}
	return s
}

// excess returns ½‖w−w*‖² in the metric of the features' second moment.
func (l *linear) excess(w []float64) float64 {
	var sum float64
	for j, v := range w {
		e := (v - l.w[j]) * l.deviation[j]
		sum += e * e
	}
	return sum / 2
}

// ols returns the least-squares solution.
func ols(t testing.TB, s *Sample) []float64 {
	t.Helper()
	x := mat.NewDense(s.Len(), s.D, s.X)
	gram, moment, theta := mat.NewSymDense(s.D, nil), mat.NewVecDense(s.D, nil), mat.NewVecDense(s.D, nil)
	gram.SymOuterK(1, x.T())
	moment.MulVec(x.T(), mat.NewVecDense(s.Len(), s.Y))
	var c mat.Cholesky
	if !c.Factorize(gram) {
		t.Fatal("the sample does not have full rank")
	}
	if err := c.SolveVecTo(theta, moment); err != nil {
		t.Fatal(err)
	}
	return theta.RawVector().Data
}

func distance(a, b []float64) float64 {
	var sum float64
	for j := range a {
		sum += (a[j] - b[j]) * (a[j] - b[j])
	}
	return math.Sqrt(sum)
}

// statistics compares sample means with a case's statistics.
type statistics map[string][]float64

func (s statistics) add(name string, v float64) { s[name] = append(s[name], v) }

// check skips a statistic that the case leaves out or has as null.
func (s statistics) check(t *testing.T, c cases.Case, expected map[string]*float64) {
	t.Helper()
	var tol map[string]float64
	if err := json.Unmarshal(c.Tol, &tol); err != nil {
		t.Fatal(err)
	}
	for name, w := range present(expected) {
		if len(s[name]) == 0 {
			t.Errorf("no statistic %s", name)
			continue
		}
		var sum float64
		for _, v := range s[name] {
			sum += v
		}
		got := sum / float64(len(s[name]))
		t.Logf("%s %.4g, case %.4g ± %.2g", name, got, w, tol[name])
		if !(math.Abs(got-w) <= tol[name]) {
			t.Errorf("%s = %.5g, want %.5g ± %.2g", name, got, w, tol[name])
		}
	}
}

// present returns the statistics that are numbers.
func present(expected map[string]*float64) map[string]float64 {
	numbers := map[string]float64{}
	for name, v := range expected {
		if v != nil {
			numbers[name] = *v
		}
	}
	return numbers
}

// adjacencyOf parses the name of an adjacency as the cases have it. A case without a name is for replacement.
func adjacencyOf(t *testing.T, name string) dp.Adjacency {
	t.Helper()
	switch name {
	case "", "replacement", "replace":
		return dp.Replace
	case "zero-out":
		return dp.ZeroOut
	}
	t.Fatalf("adjacency %q", name)
	return 0
}

// multiple parses text such as "5 sqrt(p)".
func multiple(t *testing.T, text string, p int) float64 {
	var k float64
	if _, err := fmt.Sscanf(text, "%g sqrt(p)", &k); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return k * math.Sqrt(float64(p))
}

func caseDescentError(t *testing.T, c cases.Case) {
	t.Parallel()
	var in struct {
		P, N, T, Trials  int
		Rho, Eta, Sigma  float64
		Gamma, Adjacency string
		Star             string `json:"theta_star"`
	}
	in.Sigma = 1 // if the case states no sigma
	var want map[string]*float64
	c.Read(t, &in, &want)
	s := statistics{}
	for trial := range in.Trials {
		l := newLinear(uint64(1000*in.P+trial), in.P, in.Sigma)
		sample := l.sample(in.N)
		path, err := GradientDescent(sample, Descent{Steps: in.T, Rate: in.Eta, Clip: multiple(t, in.Gamma, in.P)},
			dp.Params{Mu: math.Sqrt(2 * in.Rho), Adjacency: adjacencyOf(t, in.Adjacency)}, dptest.Seeded(uint64(trial)))
		if err != nil {
			t.Fatal(err)
		}
		last, best := path.Iterates[in.T-1], ols(t, sample)
		s.add("gd_minus_theta_star", distance(last, l.w))
		s.add("gd_minus_ols", distance(last, best))
		s.add("ols_minus_theta_star", distance(best, l.w))
		s.add("clipped_fraction", path.Clipped)
	}
	s.check(t, c, want)
}

func caseTrackedError(t *testing.T, c cases.Case) {
	t.Parallel()
	var in struct {
		P, N, T, Trials          int
		Rho, Eta, Zeta0, Q, Frac float64
		Kappa, Sigma             float64
		Average, Adjacency       string
	}
	in.Sigma = 1
	var want map[string]*float64
	c.Read(t, &in, &want)
	var first, last int
	if _, err := fmt.Sscanf(in.Average, "iterates %d..%d", &first, &last); err != nil || first != in.T/2+1 ||
		last != in.T {
		t.Fatalf("averages %q, not the last half", in.Average)
	}
	s := statistics{}
	for trial := range in.Trials {
		l := newLinear(uint64(1000*in.P+trial), in.P, in.Sigma)
		sample := l.sample(in.N)
		path, err := GradientDescent(sample,
			Descent{Steps: in.T, Rate: in.Eta, Zeta: in.Zeta0, Quantile: in.Q, Fraction: in.Frac, Kappa: in.Kappa},
			dp.Params{Mu: math.Sqrt(2 * in.Rho), Adjacency: adjacencyOf(t, in.Adjacency)}, dptest.Seeded(uint64(trial)))
		if err != nil {
			t.Fatal(err)
		}
		s.add("avg_minus_ols", distance(path.Average(), ols(t, sample)))
		s.add("zeta_last_over_sqrt_p", path.Zeta[in.T-1]/math.Sqrt(float64(in.P)))
	}
	s.check(t, c, want)
}

func caseCoverage(t *testing.T, c cases.Case) {
	t.Parallel()
	var in struct {
		N, P, M, Runs   int
		Rho, Eta, Level float64
		Gamma           string
		Adjacency       string
		BurnIn          int `json:"burn_in"`
		Total           int `json:"total_iterations"`
	}
	var want map[string]*float64
	c.Read(t, &in, &want)
	runs := (in.Runs + 1) / 2 // enough for the tolerances
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = in.Runs
	}
	s := statistics{}
	for run := range runs {
		sample := newLinear(uint64(run), in.P, 1).sample(in.N)
		best := ols(t, sample)
		noise := dptest.Seeded(uint64(run))
		descend := func(steps int) [][]float64 {
			// All runs share the budget: they have the noise of Total steps.
			path, err := GradientDescent(sample, Descent{Steps: steps, Rate: in.Eta, Clip: multiple(t, in.Gamma, in.P)},
				dp.Params{Mu: math.Sqrt(2 * in.Rho * float64(steps) / float64(in.Total)),
					Adjacency: adjacencyOf(t, in.Adjacency)}, noise)
			if err != nil {
				t.Fatal(err)
			}
			return path.Iterates
		}
		one := descend(in.Total)
		points, err2 := Checkpoints(one, in.M, in.BurnIn)
		batched, err3 := BatchedMeans(one, in.M, in.BurnIn)
		if err2 != nil || err3 != nil {
			t.Fatal(err2, err3)
		}
		constructions := map[string][][]float64{"checkpoints": points, "batched": batched}
		if in.Total/in.M > in.BurnIn { // otherwise no run is longer than its burn-in
			var many [][][]float64
			for range in.M {
				many = append(many, descend(in.Total/in.M))
			}
			means, err := RunMeans(many, in.BurnIn)
			if err != nil {
				t.Fatal(err)
			}
			constructions["runs"] = means
		}
		for name, estimates := range constructions {
			centre, half, err := Intervals(estimates, in.Level)
			if err != nil {
				t.Fatal(err)
			}
			for j := range centre {
				covered := 0.0
				if math.Abs(centre[j]-best[j]) <= half[j] {
					covered = 1
				}
				s.add("coverage_"+name, covered)
				s.add("width_"+name, 2*half[j])
			}
		}
	}
	s.check(t, c, want)
}

// caseAutoregression applies the interval constructions to an autoregressive process, such as a coordinate of unclipped
// descent.
func caseAutoregression(t *testing.T, c cases.Case) {
	t.Parallel()
	var in struct {
		Phi, Level float64
		BurnIn     int `json:"burn_in"`
		M          int
		Total      int `json:"total_iterations"`
		Replicates int
	}
	var want map[string]*float64
	c.Read(t, &in, &want)
	s := statistics{}
	source := rand.New(rand.NewPCG(3, 4))
	const width = 50 // independent processes, as coordinates of one path
	path := make([][]float64, in.Total)
	for i := range path {
		path[i] = make([]float64, width)
	}
	for range in.Replicates / width / 3 {
		for i, x := range path {
			for j := range x {
				x[j] = source.NormFloat64()
				if i > 0 {
					x[j] += in.Phi * path[i-1][j]
				}
			}
		}
		for name, construct := range map[string]func([][]float64, int, int) ([][]float64, error){
			"coverage_batched": BatchedMeans, "coverage_checkpoints": Checkpoints} {
			estimates, err := construct(path, in.M, in.BurnIn)
			if err != nil {
				t.Fatal(err)
			}
			centre, half, err := Intervals(estimates, in.Level)
			if err != nil {
				t.Fatal(err)
			}
			for j := range centre {
				covered := 0.0
				if math.Abs(centre[j]) <= half[j] {
					covered = 1
				}
				s.add(name, covered)
			}
		}
	}
	s.check(t, c, want)
}

// simulation runs an AMB on a stream of records.
type simulation struct {
	e     *AMB
	noise dp.Noise
	row   []float64
	step  uint64
	slot  uint64
}

// simulate builds an estimator of features x0 … and target y without a constant. alter changes the resolved plan.
func simulate(t testing.TB, d int, cfg Config, p dp.Params, seed uint64, alter func(*AMBPlan)) *simulation {
	t.Helper()
	cfg.Columns, cfg.Target, cfg.Method = append(names(d), "y"), "y", "amb"
	cfg.Defaults()
	plan, factor, err := resolveAMB(&cfg, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if alter != nil {
		alter(plan)
	}
	e, err := buildAMB(cfg, p, *plan, factor)
	if err != nil {
		t.Fatal(err)
	}
	return &simulation{e: e, noise: dptest.Seeded(seed), row: make([]float64, d+1)}
}

func names(d int) []string {
	var all []string
	for j := range d {
		all = append(all, fmt.Sprint("x", j))
	}
	return all
}

// next takes records from draw until a release is due.
func (s *simulation) next(t testing.TB, draw func(x []float64) float64) *dp.Release {
	t.Helper()
	for {
		s.step++
		_, end := s.e.Range(s.step)
		for ; s.slot < end; s.slot++ {
			d := len(s.row) - 1
			s.row[d] = draw(s.row[:d])
			s.e.Add(s.slot, s.row)
		}
		r, err := s.e.Close(s.noise)
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			return r
		}
	}
}

// value returns a released value, nil if the release has none with the name.
func value(r *dp.Release, name string) []float64 {
	for _, v := range r.Values {
		if v.Name == name {
			return v.Data
		}
	}
	return nil
}

func caseStreamTrack(t *testing.T, c cases.Case) {
	t.Parallel()
	var in struct {
		N, D, L, Band, Trials int
		Sigma                 float64
		Star                  string `json:"w_star"`
		Eps, Delta            float64
		Adjacency             string
		Alpha                 float64
		Batch                 uint64 `json:"b"`
		Eta, Q, Kappa, Frac   float64
		S0                    uint64
		Top                   float64 `json:"B"`
	}
	var want map[string]*float64
	c.Read(t, &in, &want)
	no := false
	s := statistics{}
	var zetas []float64
	for trial := range in.Trials {
		sim := simulate(t, in.D, Config{
			ClipX: 1e6, Intercept: &no, Radius: 1, Clip: "track", Batch: in.Batch, Bootstrap: in.S0, Bands: in.Band,
			ThresholdQuantile: in.Q,
			Kappa:             in.Kappa, Fraction: in.Frac, Rungs: in.L, Top: in.Top, Eta0: 1, Restart: &no,
			Intervals: &no,
		}, dp.Params{Epsilon: in.Eps, Delta: in.Delta, Adjacency: adjacencyOf(t, in.Adjacency)}, uint64(trial),
			func(p *AMBPlan) {
				p.Radius = 0
				p.Bound, p.Curvature = 1, 1
			})
		sim.e.cfg.Eta0 = in.Eta // makes the step size eta
		sim.e.average = newTail(0.5, 0, in.D)
		l := newLinear(uint64(trial), in.D, in.Sigma)
		steps := (in.N - int(in.S0)) / int(in.Batch)
		var last *dp.Release
		for n := range steps {
			last = sim.next(t, l.draw)
			if n >= steps/2 {
				s.add("excess_mean_iterate_second_half", l.excess(value(last, "theta")))
			}
			zetas = append(zetas, value(last, "zeta")[0])
		}
		s.add("excess_tail_half", l.excess(value(last, "theta_average")))
	}
	slices.Sort(zetas)
	s.add("median_zeta", zetas[len(zetas)/2])
	s.check(t, c, want)
}

// casePaperVerbatim runs the algorithm with the paper's constants: the search stops on an empty rung, every gradient is
// clipped to almost nothing, and the iterate stays at 0. TestLearns runs the same stream with our settings.
func casePaperVerbatim(t *testing.T, c cases.Case) {
	t.Parallel()
	var in struct {
		N, D             int
		Eps, Delta       float64
		T                int
		Batch            uint64 `json:"b"`
		Stat             uint64 `json:"s"`
		Threshold, Alpha string
		L                string
		Trials           int
	}
	var want struct {
		Min float64 `json:"excess_min"`
		Max float64 `json:"excess_max"`
	}
	c.Read(t, &in, &want)
	if in.Threshold != "s" || in.L != "ceil(200 log2 N)" || !strings.HasPrefix(in.Alpha, "sqrt(8 ln ") {
		t.Fatalf("threshold %s, L %s, alpha %s", in.Threshold, in.L, in.Alpha)
	}
	for trial := range in.Trials {
		_, excess := paperVerbatim(t, in.N, in.D, in.T, in.Batch, in.Stat, math.Sqrt(8*math.Log(1/in.Delta))/in.Eps,
			uint64(trial))
		near(t, "least excess risk", excess, want.Min, 1e-3)
		near(t, "largest excess risk", excess, want.Max, 1e-3)
	}
}

// paperVerbatim returns the excess risk of the paper's algorithm on n records.
func paperVerbatim(t *testing.T, n, d, steps int, batch, stat uint64, alpha float64, seed uint64) (*linear, float64) {
	t.Helper()
	no := false
	sim := simulate(t, d, Config{
		ClipX: 1e6, Intercept: &no, Radius: 1, Clip: "scan", Value: "residual", Batch: batch, Stat: stat, Bands: 1,
		Rungs: int(math.Ceil(200 * math.Log2(float64(n)))), Top: 65536, Restart: &no, Intervals: &no,
	}, dp.Params{Mu: 1 / alpha, Adjacency: dp.Replace}, seed, func(p *AMBPlan) {
		p.Radius = 0
		p.Bound, p.Curvature = math.Sqrt(float64(d)), 1
		p.Multiplier = math.Sqrt(float64(d)) * math.Sqrt(math.Log(float64(n)))
	})
	sim.e.cfg.Eta0 = 1
	l := newLinear(seed, d, 1)
	for range steps {
		sim.next(t, l.draw)
	}
	return l, l.excess(sim.e.w)
}
