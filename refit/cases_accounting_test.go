package refit

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

func caseCurves(t *testing.T, c cases.Case) {
	var in struct{ Alpha, Gamma, Q float64 }
	var want struct {
		Phi       *float64
		Fast1     *float64 `json:"phi_fast_q1"`
		Fast      *float64 `json:"phi_fast_q"`
		AlphaMax1 float64  `json:"alpha_max_fast_q1"`
		AlphaMax  float64  `json:"alpha_max_fast_q"`
		Unbounded *float64 `json:"phi_inf_L_eq_gamma"`
	}
	c.Read(t, &in, &want)
	tol := relative(t, c)
	check := func(what string, term dp.Term, want *float64) {
		t.Helper()
		term.Count = 1
		got, err := (dp.Curve{term}).At(in.Alpha)
		switch {
		case want == nil && err == nil:
			t.Errorf("%s is %g beyond its range", what, got)
		case want != nil && err != nil:
			t.Errorf("%s: %v", what, err)
		case want != nil:
			cases.Near(t, what, got, *want, tol, 0)
		}
	}
	fast := func(q float64) dp.Term {
		term := dp.Term{Kind: dp.KindFastMixRow, Gamma: in.Gamma, Count: 1}
		if q < 1 { // q = ((C²−1)/C²)²
			term.C2 = 1 / (1 - math.Sqrt(q))
		}
		return term
	}
	limit := func(what string, term dp.Term, want float64) {
		t.Helper()
		got, err := (dp.Curve{term}).Range()
		if err != nil {
			if want > 1 {
				t.Fatal(err)
			}
			return // there is no curve, because no order above 1 is left
		}
		cases.Near(t, what, got, want, tol, 0)
	}
	check("phi", dp.Term{Kind: dp.KindSketchRow, Gamma: in.Gamma}, want.Phi)
	check("phi_fast_q1", fast(1), want.Fast1)
	check("phi_fast_q", fast(in.Q), want.Fast)
	limit("alpha_max_fast_q1", fast(1), want.AlphaMax1)
	limit("alpha_max_fast_q", fast(in.Q), want.AlphaMax)
	// If m̂ has no bound, a row has the Rényi curve of a dense row at γ = 1/β.
	beta := 2/math.Sqrt(in.Gamma) - 1/in.Gamma
	check("phi_inf", dp.Term{Kind: dp.KindSketchRow, Gamma: 1 / beta}, want.Unbounded)
}

func caseSigma(t *testing.T, c cases.Case) {
	var in struct{ Epsilon, Delta, Sensitivity float64 }
	var want struct{ Sigma float64 }
	c.Read(t, &in, &want)
	got, err := dp.Sigma(in.Epsilon, in.Delta, in.Sensitivity)
	if err != nil {
		t.Fatal(err)
	}
	cases.Near(t, "sigma", got, want.Sigma, relative(t, c), 0)
	if l := dp.LogDelta(in.Epsilon, in.Sensitivity/got); !(l <= math.Log(in.Delta)) {
		t.Errorf("sigma gives delta %g", math.Exp(l))
	}
}

func caseDelta(t *testing.T, c cases.Case) {
	var in struct {
		Epsilon    float64
		Multiplier float64 `json:"noise_multiplier"`
	}
	var want struct{ Delta float64 }
	c.Read(t, &in, &want)
	cases.Near(t, "delta", math.Exp(dp.LogDelta(in.Epsilon, 1/in.Multiplier)), want.Delta, relative(t, c), 0)
}

// atLeast fails unless γ is near the wanted value and not below it.
func atLeast(t *testing.T, what string, got, want, rel float64) {
	t.Helper()
	cases.Near(t, what, got, want, rel, 0)
	if got < want*(1-1e-9) {
		t.Errorf("%s is %.17g, below %.17g", what, got, want)
	}
}

func casePapers(t *testing.T, c cases.Case) {
	var in struct {
		Epsilon, Delta float64
		K              int
		T              int
	}
	var want struct {
		LinMix      float64 `json:"gamma_linmix_unit"`
		IHM         float64 `json:"gamma_ihm"`
		Sigma       float64 `json:"sigma_ihm_C1"`
		Closed      float64 `json:"gamma_ihm_closed"`
		SigmaClosed float64 `json:"sigma_ihm_closed_C1"`
		Fast        float64 `json:"gamma_fast"`
		FastSigma   float64 `json:"sigma_fast_C1"`
		Omega       float64 `json:"omega_fast"`
		FastTau     float64 `json:"tau_fast_privacy_only"`
		Tau         float64 `json:"tau_ihm_privacy_only"`
	}
	c.Read(t, &in, &want)
	rel := relative(t, c)
	p := params(in.Epsilon, in.Delta)
	mixing, err := calibrateMixing(Paper, p, in.K)
	if err != nil {
		t.Fatal(err)
	}
	atLeast(t, "gamma_linmix", mixing.Gamma, want.LinMix, rel)
	ihm, err := calibrateIHM(Paper, p, in.K, in.T, 0.5, true)
	if err != nil {
		t.Fatal(err)
	}
	atLeast(t, "gamma_ihm", ihm.Gamma, want.IHM, rel)
	atLeast(t, "sigma_ihm", ihm.Sigma, want.Sigma, rel)
	cases.Near(t, "tau_ihm", upperQuantile(in.Delta/4), want.Tau, rel, 0)
	gamma, sigma := closedForm(p, in.K, in.T)
	cases.Near(t, "gamma_ihm_closed", gamma, want.Closed, rel, 0)
	cases.Near(t, "sigma_ihm_closed", sigma, want.SigmaClosed, rel, 0)
	if ihm.Gamma > gamma || ihm.Sigma > sigma {
		t.Errorf("the closed form asks for less noise: γ %g and %g, σ %g and %g", gamma, ihm.Gamma, sigma, ihm.Sigma)
	}
	fast, err := calibrateFast(Paper, p, in.K, in.T, in.T, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	atLeast(t, "gamma_fast", fast.Gamma, want.Fast, rel)
	atLeast(t, "sigma_fast", fast.Sigma, want.FastSigma, rel)
	cases.Near(t, "omega_fast", fast.Omega, want.Omega, rel, 0)
	cases.Near(t, "tau_fast", fast.Tau, want.FastTau, rel, 0)
}

// closedForm is Theorem 1 of Lev et al., "Near-Optimal Private Linear Regression via
// Iterative Hessian Mixing".
func closedForm(p dp.Params, k, iterations int) (gamma, sigma float64) {
	eps, t := p.Epsilon, float64(iterations)
	l := math.Log(5 / p.Delta)
	gamma = math.Sqrt(float64(k)*t) / (math.Sqrt(8*l) * (math.Sqrt(1+eps/(8*l)) - 1))
	l = math.Log(4 / p.Delta)
	sigma = math.Sqrt(t) / (math.Sqrt(2*l) * (math.Sqrt(1+eps/(2*l)) - 1))
	return gamma, sigma
}

func caseJoint(t *testing.T, c cases.Case) {
	var in struct {
		Epsilon, Delta float64
		K              int
		T              int
		Share          float64
		Test           bool    `json:"eigen_test"`
		Tail           float64 `json:"tail_fraction"`
	}
	var want struct {
		Gamma float64
		Sigma float64  `json:"sigma_over_C"`
		Test  *float64 `json:"test_noise"`
		Tau   *float64
		Check float64 `json:"eps_check"`
	}
	c.Read(t, &in, &want)
	rel := relative(t, c)
	// We reserve half of δ for the failure of a test. If the case reserves another part, calibrate for twice the δ that
	// remains in the case; then τ is the only difference.
	p := params(in.Epsilon, in.Delta)
	if in.Test {
		p.Delta *= 2 * (1 - in.Tail)
	}
	n, err := calibrateIHM(RDP, p, in.K, in.T, in.Share, in.Test)
	if err != nil {
		t.Fatal(err)
	}
	if in.Test && in.Tail != 0.5 {
		n.Tau = upperQuantile(in.Tail * in.Delta)
	}
	atLeast(t, "gamma", n.Gamma, want.Gamma, rel)
	atLeast(t, "sigma_over_C", n.Sigma, want.Sigma, rel)
	if want.Test != nil {
		cases.Near(t, "test_noise", n.Test, *want.Test, rel, 0)
		cases.Near(t, "tau", n.Tau, *want.Tau, rel, 0)
	} else if n.Test != 0 {
		t.Errorf("a test at %g", n.Test)
	}
	eps, err := n.Cost.Curve().Epsilon(p.Delta - n.Cost.BadDelta)
	if err != nil {
		t.Fatal(err)
	}
	cases.Near(t, "eps_check", eps, want.Check, rel, 0)
	if eps > in.Epsilon {
		t.Errorf("epsilon is %.17g", eps)
	}
}

func caseFastMixEpsilon(t *testing.T, c cases.Case) {
	var in struct {
		Omega, Gamma float64
		K1           int
		Delta        float64
	}
	var want struct {
		Exact     float64
		Displayed *float64 `json:"displayed_bound"`
	}
	c.Read(t, &in, &want)
	rel := relative(t, c)
	got, err := FastMixEpsilon(in.Omega, in.Gamma, in.K1, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	cases.Near(t, "exact", got, want.Exact, rel, 0)
	// What follows is Theorem 1 of the paper, which needs γ > 25/8.
	if in.Gamma <= 25./8 {
		if want.Displayed != nil {
			t.Errorf("the displayed bound holds for γ > 25/8")
		}
		return
	}
	l, r := math.Log(3/in.Delta), 25*float64(in.K1)/(32*in.Gamma*in.Gamma)
	bound := 2/in.Omega + float64(in.K1)/(4*in.Gamma) + 25*l/(8*in.Gamma-25)
	if l <= math.Pow(8*in.Gamma/25-1, 2)*r {
		bound = 2/in.Omega + r + 2*math.Sqrt(r*l)
	}
	cases.Near(t, "displayed_bound", bound, *want.Displayed, rel, 0)
	if got > bound {
		t.Errorf("the exact form, %g, is above the displayed one, %g", got, bound)
	}
}

func caseDynamicRows(t *testing.T, c cases.Case) {
	var in struct {
		Lambda         float64 `json:"lambda_tilde_over_C2"`
		K              int
		Epsilon, Delta float64
	}
	var want struct {
		Gamma float64 `json:"gamma_unit"`
		K     int     `json:"k_tilde"`
	}
	c.Read(t, &in, &want)
	p := params(in.Epsilon, in.Delta)
	n, err := calibrateMixing(Paper, p, in.K)
	if err != nil {
		t.Fatal(err)
	}
	atLeast(t, "gamma", n.Gamma, want.Gamma, 1e-6)
	k, err := dynamicRows(Paper, p, n, in.K, in.Lambda)
	if err != nil {
		t.Fatal(err)
	}
	if k != want.K {
		t.Errorf("%d rows, want %d", k, want.K)
	}
}
