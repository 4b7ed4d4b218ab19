package adam

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
)

func TestCases(t *testing.T) {
	cases.Run(t, "adam", map[string]func(*testing.T, cases.Case){
		"batch_sens":         caseBatchSensitivity,
		"clipped_mean_sens":  caseClippedMean,
		"algorithm2_literal": caseLiteral,
		"trace":              caseTrace,
		"v_noise":            caseVNoise,
		"fig4":               caseFigure4,
	})
}

// caseNear compares with a relative tolerance, below 1e-9 with an absolute one.
func caseNear(t *testing.T, c cases.Case, what string, got, want float64) {
	t.Helper()
	rel, _ := c.Tolerance(t)
	cases.Near(t, what, got, want, rel, 1e-9)
}

func caseBatchSensitivity(t *testing.T, c cases.Case) {
	var in struct {
		M         uint64
		Lam, Zeta float64
		Adjacency dp.Adjacency
		Aggregate string
		D         int
	}
	var want struct{ Sens float64 }
	c.Read(t, &in, &want)
	m := float64(in.M)
	switch in.Aggregate {
	case "sum":
		caseNear(t, c, "sens", batchSensitivity(in.M, in.Lam, in.Zeta, in.D, in.Adjacency), want.Sens)
	case "mean":
		caseNear(t, c, "sens", batchSensitivity(in.M, in.Lam/(m*m), in.Zeta, in.D, in.Adjacency)/m, want.Sens)
		// The calibration of the method must give the same result.
		cfg := Config{Method: "jme_batch", Clip: in.Zeta, Dim: in.D, Step: in.M, Mode: "gradients"}
		n := cfg.calibrated(1, in.Lam*in.Zeta*in.Zeta, 1, 1, in.Adjacency)
		caseNear(t, c, "lambda", n.Lambda, in.Lam)
		caseNear(t, c, "calibrated", n.First, want.Sens)
	default:
		t.Fatalf("unknown aggregate %q", in.Aggregate)
	}
}

func caseClippedMean(t *testing.T, c cases.Case) {
	var in struct {
		Rho      float64
		Distance float64 `json:"max_distance"`
		Lam      float64
		D        int
	}
	var want struct{ Sens float64 }
	c.Read(t, &in, &want)
	caseNear(t, c, "sens", clippedMeanSensitivity(in.Rho, in.Distance, in.Lam, in.D), want.Sens)
}

// caseLiteral checks the results of Algorithm 2 as published, whose noise is for one vector.
func caseLiteral(t *testing.T, c cases.Case) {
	var in struct {
		M                uint64
		Lam, Zeta, Sigma float64
		D                int
	}
	var want struct {
		Claimed   float64 `json:"claimed_sens"`
		Sum       float64 `json:"true_sens_sum"`
		Effective float64 `json:"effective_sigma_sum"`
		Mean      float64 `json:"true_over_claimed_mean_reading"`
	}
	c.Read(t, &in, &want)
	claimed := in.Zeta * math.Sqrt(calibration.SquaresSensitivity(in.Lam*in.Zeta*in.Zeta, in.D, dp.Replace))
	actual := batchSensitivity(in.M, in.Lam, in.Zeta, in.D, dp.Replace)
	m := float64(in.M)
	caseNear(t, c, "claimed_sens", claimed, want.Claimed)
	caseNear(t, c, "true_sens_sum", actual, want.Sum)
	caseNear(t, c, "effective_sigma_sum", in.Sigma*claimed/actual, want.Effective)
	caseNear(t, c, "true_over_claimed_mean_reading",
		batchSensitivity(in.M, in.Lam/(m*m), in.Zeta, in.D, dp.Replace)/claimed, want.Mean)
}

// caseTrace replays gradients and draws through the production path. With 30 lattice bits the error is 10⁻⁷; a wrong
// formula causes a far larger one.
func caseTrace(t *testing.T, c cases.Case) {
	var in struct {
		Method, Factorization string
		Adjacency             dp.Adjacency
		Zeta, Sigma           float64
		Nu, Tau               float64
		M                     uint64
		Hyper                 struct {
			Beta1, Beta2, Lr, Eps float64
			VFloor                json.RawMessage `json:"v_floor"`
			Theta0                []float64       `json:"theta0"`
			UpdateClip            float64         `json:"update_clip"`
		}
		Gradients [][][]float64
		G1, G2    [][]float64
	}
	var want struct {
		First  float64  `json:"std_Z1"`
		Second *float64 `json:"std_Z2"`
		Lam    *float64
		Steps  []struct {
			M     []float64 `json:"m_hat"`
			V     []float64 `json:"v_hat"`
			Theta []float64
		}
	}
	c.Read(t, &in, &want)
	cfg := Config{
		Method: in.Method, Clip: in.Zeta, Nu: in.Nu, Tau: in.Tau, Beta1: in.Hyper.Beta1, Beta2: in.Hyper.Beta2,
		Rate: in.Hyper.Lr, Eps: in.Hyper.Eps, UpdateClip: in.Hyper.UpdateClip,
		Factorization: in.Factorization, Dim: len(in.Hyper.Theta0), Initial: in.Hyper.Theta0,
		Step: in.M, Horizon: uint64(len(in.Gradients)),
	}
	if text := string(in.Hyper.VFloor); in.Method != "momentum" && text != `"auto"` {
		if text != "" {
			if err := json.Unmarshal(in.Hyper.VFloor, &cfg.VFloor); err != nil {
				t.Fatal(err)
			}
		}
		if cfg.VFloor == 0 { // our default is the noise's standard deviation; the cases use the smallest number
			cfg.Negative = "zero"
			if cfg.UpdateClip == 0 {
				cfg.UpdateClip = math.MaxFloat64
			}
		}
	}
	e, err := New(cfg, dp.Params{Mu: 1 / in.Sigma, Adjacency: in.Adjacency, LatticeBits: 30})
	if err != nil {
		t.Fatal(err)
	}
	rel, _ := c.Tolerance(t)
	rel = max(rel, 1e-6)
	near := func(what string, got, want float64) {
		t.Helper()
		cases.Near(t, what, got, want, rel, rel)
	}
	p := e.Plan()
	near("std_Z1", p.FirstNoise, want.First)
	if want.Second != nil {
		near("std_Z2", p.SecondNoise, *want.Second)
		near("lam", p.Lambda, *want.Lam)
	} else if p.SecondNoise != 0 {
		t.Errorf("std_Z2 is %g, want none", p.SecondNoise)
	}
	noise := dptest.Arrays(map[string][][]float64{"adam/first": in.G1, "adam/second": in.G2})
	for i, batch := range in.Gradients {
		for k, g := range batch {
			e.Add(uint64(i)*in.M+uint64(k), g)
		}
		u := e.peek()
		r, err := e.Close(noise)
		if err != nil {
			t.Fatal(err)
		}
		for j := range e.dim {
			near("m_hat", e.m[j]*u.unbias1, want.Steps[i].M[j])
			if want.Steps[i].V != nil {
				near("v_hat", e.v[j]*u.unbias2-u.bias, want.Steps[i].V[j])
			} else if in.Method != "momentum" {
				t.Fatal("no second moment")
			}
			near("theta", r.Values[0].Data[j], want.Steps[i].Theta[j])
		}
	}
}

// peek returns the public numbers of the next step.
func (e *Estimator) peek() update {
	again, err := Adopt(e.cfg, e.params, e.Plan())
	if err != nil {
		panic(err)
	}
	var u update
	for range e.step + 1 {
		again.step++
		u = again.update()
	}
	return u
}

func caseVNoise(t *testing.T, c cases.Case) {
	var in struct {
		T     uint64
		Beta2 float64
	}
	var want struct {
		Linear      float64 `json:"jme_identity"`
		Squared     float64 `json:"pp_identity_over_tau2"`
		LinearSqrt  float64 `json:"jme_sqrt"`
		SquaredSqrt float64 `json:"pp_sqrt_over_tau2"`
		BiasSqrt    float64 `json:"pp_sqrt_bias_over_tau2"`
	}
	c.Read(t, &in, &want)
	identity := newVNoise(factorization(t, "identity", in.Beta2, in.T), in.Beta2, in.T)
	caseNear(t, c, "jme_identity", identity.Linear, want.Linear)
	caseNear(t, c, "pp_identity_over_tau2", identity.Squared, want.Squared)
	caseNear(t, c, "bias at C = I", identity.Bias, 1)
	root := newVNoise(factorization(t, "sqrt", in.Beta2, in.T), in.Beta2, in.T)
	caseNear(t, c, "jme_sqrt", root.Linear, want.LinearSqrt)
	caseNear(t, c, "pp_sqrt_over_tau2", root.Squared, want.SquaredSqrt)
	caseNear(t, c, "pp_sqrt_bias_over_tau2", root.Bias, want.BiasSqrt)
}

func factorization(t testing.TB, kind string, decay float64, horizon uint64) matfact.Factorization {
	t.Helper()
	f, err := matfact.New(matfact.Config{Kind: kind, Horizon: horizon},
		matfact.Workload{Kind: "exponential", Decay: decay})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func caseFigure4(t *testing.T, c cases.Case) {
	var in struct {
		N             uint64
		D             int
		Beta2         float64
		Zeta, Sigma   float64
		Factorization string
		Workload      string
		Omega         float64 `json:"omega_paper"`
	}
	var want struct {
		JME      float64 `json:"jme_diag"`
		Debiased float64 `json:"pp_debiased"`
		Biased   float64 `json:"pp_biased"`
	}
	c.Read(t, &in, &want)
	if in.Workload != "(1-beta2) E_beta2" || math.Abs(in.Omega-2*in.Sigma) > 1e-12 {
		t.Fatalf("unknown workload %q or axis %g", in.Workload, in.Omega)
	}
	f := factorization(t, in.Factorization, in.Beta2, in.N)
	// Our number is an upper bound on how much gradients raise the error of a square, while the cases maximise over
	// gradients. The fewer parameters, the larger the difference.
	noise := (&Config{Method: "pp", Clip: in.Zeta, Dim: in.D, Step: 1}).calibrated(1/in.Sigma, 0, f.ColNorm(), 1,
		dp.Replace).First
	slack := 0.0
	if in.Factorization != "identity" {
		scale := 4 * noise * noise * in.Zeta * in.Zeta
		rel, _ := c.Tolerance(t)
		bound, most := crossTerm(f, in.Beta2, int(in.N), rel*want.Debiased/scale/4)
		slack = scale * (bound - most)
	}
	for method, want := range map[string]float64{"jme": want.JME, "pp_debiased": want.Debiased, "pp": want.Biased} {
		got, err := ExpectedError(method, f, in.Beta2, in.Zeta, 1/in.Sigma, dp.Replace, in.D, in.N)
		if err != nil {
			t.Fatal(err)
		}
		if method != "jme" {
			got -= slack
		}
		caseNear(t, c, method, got, want)
	}
}

// crossTerm returns bound = Σ|M|. If bound exceeds little, it also returns most: the largest tr(MG) over Gram matrices
// G of unit vectors, found by ascent. M_kl = Q_kl·Σ_t a_tk·a_tl over n steps, where Q is the covariance of shaped noise
// and a_tk = (1−β)β^(t−k).
func crossTerm(f matfact.Factorization, beta float64, n int, little float64) (bound, most float64) {
	filter := f.NewFilter(1)
	c := make([]float64, n) // coefficients of C⁻¹, a Toeplitz matrix
	for k := range c {
		z := []float64{0}
		if k == 0 {
			z[0] = 1
		}
		filter.Next(z, z)
		c[k] = z[0]
	}
	m, q := make([][]float64, n), make([]float64, n) // q by distance k − l
	for k := range m {
		m[k] = make([]float64, n)
		for l := range k + 1 {
			q[k-l] += c[k] * c[l]
			a := (1 - beta) / (1 + beta) * math.Pow(beta, float64(k-l)) * (1 - math.Pow(beta, 2*float64(n-k)))
			m[k][l], m[l][k] = a*q[k-l], a*q[k-l]
		}
	}
	for _, row := range m {
		for _, v := range row {
			bound += math.Abs(v)
		}
	}
	if bound <= little {
		return bound, bound
	}
	rank := int(math.Sqrt(2*float64(n))) + 1
	source := rand.New(rand.NewPCG(1, 2))
	g := make([][]float64, n)
	for k := range g {
		g[k] = make([]float64, rank)
		for j := range g[k] {
			g[k][j] = source.NormFloat64() / math.Sqrt(float64(rank))
		}
	}
	sum := make([]float64, rank)
	for range 40 {
		before := most
		most = 0
		for k, row := range m {
			clear(sum)
			for l, v := range row {
				if l != k {
					for j, x := range g[l] {
						sum[j] += v * x
					}
				}
			}
			var norm float64
			for _, x := range sum {
				norm += x * x
			}
			norm = math.Sqrt(norm)
			most += norm + row[k]
			for j, x := range sum {
				g[k][j] = x / max(norm, math.SmallestNonzeroFloat64)
			}
		}
		if most-before < 1e-5*most {
			break
		}
	}
	return bound, most
}
