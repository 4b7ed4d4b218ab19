package moments

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

func TestCases(t *testing.T) {
	cases.Run(t, "moments", map[string]func(*testing.T, cases.Case){
		"r_d":               caseRd,
		"joint_sensitivity": caseJointSensitivity,
		"calibration":       caseCalibration,
		"gaussian_sigma":    caseGaussianSigma,
		"lambda":            caseLambda,
		"trace":             caseTrace,

		"multi_participation": caseMultiParticipation,
		"ime":                 caseSplit,
		"cs":                  caseCS,
		"mse":                 caseErrors,
		"mse_cov":             caseCovarianceErrors,
		"combine":             caseCombine,
		"auto":                caseAuto,
		"projection":          caseProjection,
		"fig1":                caseFigure1,
		"fig2":                casePostProcessing,
		"fig3":                caseFigure3,
		"fig7":                casePostProcessing,
	})
}

func caseRd(t *testing.T, c cases.Case) {
	var in struct {
		D         int
		Nu        float64
		Adjacency dp.Adjacency
	}
	var want struct{ R float64 }
	c.Read(t, &in, &want)
	c.Near(t, "r", calibration.SquaresSensitivity(in.Nu, in.D, in.Adjacency), want.R)
}

func caseJointSensitivity(t *testing.T, c cases.Case) {
	var in struct {
		C1, C2    [][]float64
		Lam, Zeta float64
		D         int
		Adjacency dp.Adjacency
	}
	var want struct {
		Sens  float64
		Upper float64 `json:"safe_upper"`
	}
	c.Read(t, &in, &want)
	first, second := columnNorms(in.C1), columnNorms(in.C2)
	c.Near(t, "sens", JointSensitivity(first, second, in.Lam, in.Zeta, in.D, in.Adjacency), want.Sens)
	largest := func(x []float64) []float64 {
		m := 0.0
		for _, v := range x {
			m = max(m, v)
		}
		return []float64{m}
	}
	c.Near(t, "safe_upper",
		JointSensitivity(largest(first), largest(second), in.Lam, in.Zeta, in.D, in.Adjacency), want.Upper)
}

func columnNorms(c [][]float64) []float64 {
	norms := make([]float64, len(c[0]))
	for _, row := range c {
		for j, v := range row {
			norms[j] = math.Hypot(norms[j], v)
		}
	}
	return norms
}

func caseCalibration(t *testing.T, c cases.Case) {
	var in struct {
		Epsilon, Delta float64
		Alpha          float64 `json:"C1_norm"`
		Beta           float64 `json:"C2_norm"`
		Zeta           float64
		D              int
		Adjacency      dp.Adjacency
		Nu             *float64
	}
	var want struct {
		Sigma     float64
		Mu, Nu    *float64
		Lam, Sens float64
		First     float64 `json:"std_Z1"`
		Diagonal  float64 `json:"std_S_diag"`
		Off       float64 `json:"std_S_offdiag"`
	}
	c.Read(t, &in, &want)
	mu, err := dp.Mu(in.Epsilon, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	nu := calibration.FreeSquares(in.D)
	if in.Nu != nil {
		nu = *in.Nu
	}
	if want.Mu != nil {
		c.Near(t, "mu", mu, *want.Mu)
	}
	if want.Nu != nil {
		c.Near(t, "nu", nu, *want.Nu)
	}
	c.Near(t, "sigma", 1/mu, want.Sigma)
	n := Joint(nu, in.D, in.Adjacency).Noise(mu, in.Zeta, in.Alpha, in.Beta)
	c.Near(t, "lam", n.Lambda, want.Lam)
	c.Near(t, "sens", n.Sensitivity, want.Sens)
	c.Near(t, "std_Z1", n.First, want.First)
	c.Near(t, "std_S_diag", n.Diagonal, want.Diagonal)
	c.Near(t, "std_S_offdiag", n.OffDiagonal, want.Off)
}

func caseGaussianSigma(t *testing.T, c cases.Case) {
	var in struct{ Epsilon, Delta float64 }
	var want struct{ Sigma float64 }
	c.Read(t, &in, &want)
	mu, err := dp.Mu(in.Epsilon, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "sigma", Joint(0, 3, dp.Replace).Noise(mu, 1, 1, 1).First/2, want.Sigma)
}

func caseLambda(t *testing.T, c cases.Case) {
	var in struct {
		K1, K2    float64
		Inflation *float64 `json:"first_moment_variance_inflation"`
		D         int
		Adjacency dp.Adjacency
	}
	var want struct {
		Nu        float64
		Objective *float64
		Factor    *float64 `json:"second_moment_variance_factor"`
	}
	c.Read(t, &in, &want)
	if in.Inflation == nil {
		nu := chooseNu(in.K1, in.K2, in.D, in.Adjacency)
		c.Near(t, "nu", nu, want.Nu)
		if want.Objective != nil {
			c.Near(t, "objective", (in.K1+in.K2/nu)*calibration.SquaresSensitivity(nu, in.D, in.Adjacency),
				*want.Objective)
		}
		return
	}
	nu, err := nuForInflation(*in.Inflation, in.D, in.Adjacency)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "nu", nu, want.Nu)
	if want.Factor != nil && in.Adjacency == dp.Replace {
		at := calibration.FreeSquares(in.D)
		c.Near(t, "second moment's factor",
			calibration.SquaresSensitivity(nu, in.D,
				in.Adjacency)/nu/(calibration.SquaresSensitivity(at, in.D, in.Adjacency)/at),
			*want.Factor)
	}
}

// caseTrace replays rows and draws through Add and Close. With 30 lattice bits rounding errs by 10⁻⁷; a wrong formula
// would err by much more.
func caseTrace(t *testing.T, c cases.Case) {
	var in struct {
		Workload        literal
		Factorization   string
		N               int
		Steps           int `json:"n_steps"`
		Block           int
		D               int
		Zeta, Sigma, Nu float64
		Adjacency       *dp.Adjacency
		X               [][]float64
		G1              [][]float64
		G2              [][]float64 `json:"g2_svec"`
	}
	var want struct {
		Sens   *float64
		Y      [][]float64
		S      [][]float64 `json:"S_jme"`
		Mean   [][]float64
		SEY    []float64   `json:"se_Y"`
		SEDiag []float64   `json:"se_S_diag"`
		SEOff  []float64   `json:"se_S_offdiag"`
		Cov    [][]float64 `json:"cov_jme_debiased"`

		SPP         [][]float64 `json:"S_pp"`
		SPPDebiased [][]float64 `json:"S_pp_debiased"`
		PPBias      []float64   `json:"pp_bias"`
		CovPP       [][]float64 `json:"cov_pp_debiased"`
	}
	c.Read(t, &in, &want)
	adjacency, steps, block := dp.Replace, in.N, 1
	if in.Adjacency != nil {
		adjacency = *in.Adjacency
	}
	if in.Block > 0 {
		steps, block = in.Steps, in.Block
	}
	w, scale := in.Workload.read(t)
	covariance := want.Cov != nil
	// For one column under replace the product charges the count of rows that are not shortened, which the cases do not
	// have.
	charged := 1.0
	if in.D == 1 && adjacency == dp.Replace {
		charged = math.Sqrt(1.02)
	}
	still := make([][]float64, len(in.X)) // the noise of these rows
	for i := range still {
		still[i] = []float64{0}
	}
	build := func(method string) *Estimator {
		cfg := Config{
			Method: method, Clip: in.Zeta, Workload: w.Kind, Decay: w.Decay, Window: w.Window,
			Factorization: in.Factorization, Covariance: &covariance,
			Columns: dptest.Columns(in.D), Step: uint64(block), Horizon: uint64(steps),
		}
		if method == "jme" || method == "combined" {
			cfg.Nu = in.Nu
		}
		// Do not use New here: a case may have a weight below the free one, which New refuses.
		e, err := newEstimator(cfg, dp.Params{Mu: charged / in.Sigma, Adjacency: adjacency, LatticeBits: 30})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := build("jme")
	rel, _ := c.Tolerance(t)
	rel = max(rel, 1e-6)
	near := func(what string, got, want float64) {
		t.Helper()
		cases.Near(t, what, got, want, rel, rel)
	}
	if want.Sens != nil {
		sens := e.Plan().Sensitivity / charged
		if w.Kind == "window" && in.Factorization == "sqrt" && *want.Sens < 0.99*sens {
			sens /= math.Sqrt(float64(w.Window)) // because rows contain 1/k; releases are the same
		}
		near("sens", sens, *want.Sens)
	}
	noise := dptest.Arrays(map[string][][]float64{"jme/first": in.G1, "jme/second": in.G2, "jme/full": still})
	for s := range steps {
		for i := range block {
			e.Add(uint64(s*block+i), in.X[s*block+i])
		}
		r, err := e.Close(noise)
		if err != nil {
			t.Fatal(err)
		}
		// The product divides by the number of records, a case by the divisor of its workload.
		literal := scale(uint64(s)+1) * max(1, e.weight.total())
		if w.Kind == "sum" {
			literal = 1
		}
		mean, second := r.Values[0], r.Values[1]
		n := 0
		for i := range in.D {
			near("Y", literal*mean.Data[i], want.Y[s][i])
			if want.Mean != nil {
				near("mean", mean.Data[i]/float64((s+1)*block), want.Mean[s][i])
			}
			for j := i; j < in.D; j++ {
				near("S", literal*second.Data[n], want.S[s][n])
				if want.SEY == nil {
					n++
					continue
				}
				se := want.SEOff
				if i == j {
					se = want.SEDiag
				}
				near("se of S", literal*second.SE[n], se[s])
				n++
			}
		}
		if want.SEY != nil {
			near("se of Y", literal*mean.SE[0], want.SEY[s])
		}
		if covariance {
			for i, v := range r.Values[2].Data {
				near("covariance", v, want.Cov[s][i])
			}
		}
	}
	if want.SPP == nil {
		return
	}
	// The squares of the same noisy rows are the post-processed part of the combination. They are also the release of
	// post-processing alone, if both methods have the same deviation.
	combined := build("combined")
	methods := []*Estimator{combined}
	if alone := build("pp"); math.Abs(alone.plan.First-combined.plan.First) < 1e-6*alone.plan.First {
		methods = append(methods, alone, build("pp_debiased"))
	}
	for _, e := range methods {
		noise := dptest.Arrays(map[string][][]float64{"jme/first": in.G1, "jme/second": in.G2, "jme/full": still})
		for s, row := range in.X {
			e.Add(uint64(s), row)
			r, err := e.Close(noise)
			if err != nil {
				t.Fatal(err)
			}
			divisor, literal := 1.0, 1.0
			if w.Kind != "sum" {
				divisor = max(1, e.weight.total())
				literal = scale(uint64(s)+1) * divisor
			}
			all := func(what string, got, want []float64) {
				t.Helper()
				for i, v := range want {
					near(what, literal*got[i], v)
				}
			}
			switch e.plan.Method {
			case "pp":
				all("S_pp", r.Values[1].Data, want.SPP[s])
			case "pp_debiased":
				all("S_pp_debiased", r.Values[1].Data, want.SPPDebiased[s])
			default:
				v := e.variances(e.overlap, e.step, divisor, divisor, 0)
				near("pp_bias", literal*v.bias, want.PPBias[s])
				v.weight = 0
				debiased, _ := e.moments(&v, divisor, divisor)
				all("S_pp_debiased", debiased, want.SPPDebiased[s])
				v.bias = 0
				raw, _ := e.moments(&v, divisor, divisor)
				all("S_pp", raw, want.SPP[s])
			}
			if want.CovPP != nil && e != combined {
				for i, v := range r.Values[2].Data {
					near("covariance of squared rows", v, want.CovPP[s][i])
				}
			}
		}
	}
}
