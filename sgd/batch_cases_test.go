package sgd

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/shuffle"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

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

// caseShuffle compares the numerical accountant with the case. It also checks the looser closed form of the same
// authors, which holds for few randomizers.
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
	got, err := shuffle.Epsilon(in.N, in.Eps0, in.Delta)
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
	got, err := shuffle.Delta(in.N, in.Eps0, in.Eps)
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
	s, err := shuffle.Gaussian(in.N, 1/in.Alpha, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "eps0", s.Epsilon0, want.Eps0)
	// The case stops after two steps from ε₀ = 0, while we go on to the fixed point. So the case's δ₀ is larger by
	// about 10⁻⁴, and so is its sum. Both numbers describe the shuffled pass, even where shuffling gains nothing.
	epsilon := want.Eps
	if alone < s.Epsilon {
		epsilon = s.Epsilon
	}
	events := func(epsilon, epsilon0 float64) float64 {
		return (math.Exp(epsilon) + 1) * (1 + math.Exp(-epsilon0)/2) * float64(in.N)
	}
	first, err := dp.Epsilon(in.Delta/2/events(epsilon, 0), 1/in.Alpha)
	if err != nil {
		t.Fatal(err)
	}
	check(t, c, "delta0 of two steps", in.Delta/2/events(epsilon, first), want.Delta0)
	if spent := events(s.Epsilon, s.Epsilon0) * s.Delta0; !(spent <= in.Delta/2 && spent > in.Delta/2*(1-1e-5)) {
		t.Errorf("δ₀ adds up to %g of %g", spent, in.Delta/2)
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
	// All clip norms above all gradients give the same path, and a small one has a finer lattice. So take the smallest
	// that clips nothing, unless the case states a clip norm.
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
		// The case states the noise's standard deviation. Ours is 2γ√T/(nμ) for the mean, so choose the μ with which
		// both are equal. Noise far above the clip norm needs a coarser lattice; the noise hides the difference.
		n := float64(len(in.Y))
		sd := max(largest, clip/n)
		p := dp.Params{Mu: 2 * clip * math.Sqrt(float64(in.T)) / (n * sd), Adjacency: dp.Replace, LatticeBits: 30}
		if n*sd > clip*0x1p15 {
			p.LatticeBits = 24
		}
		var z []float64
		for _, row := range in.Z {
			for _, v := range row {
				z = append(z, -v/sd) // the case adds it to θ, we add it to the gradient
			}
		}
		path, err := GradientDescent(sampleOf(in.X, in.Y),
			Descent{Steps: in.T, Rate: in.Eta, Clip: clip, Start: in.Theta0}, p, dptest.Queue(z...))
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
		t.Errorf("a share %g of the gradients was clipped", path.Clipped)
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
	path, err := GradientDescent(sampleOf(in.X, in.Y),
		Descent{Steps: in.T, Rate: in.Eta, Zeta: in.Zeta0, Quantile: in.Q, Fraction: in.Frac, Kappa: in.Kappa},
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
	path, err := ShuffledSGD(sampleOf(in.X, in.Y),
		ShuffledDescent{Clip: in.Zeta, Rate: in.Eta, Noise: 2 * in.Alpha}, dp.Replace,
		dptest.Queue(slices.Concat(in.G...)...), order)
	if err != nil {
		t.Fatal(err)
	}
	for j, v := range path.Average() {
		near(t, "average", v, want.Tail[j], onLattice(t, c))
		near(t, "last iterate", path.Iterates[len(order)-1][j], want.Last[j], onLattice(t, c))
	}
}
