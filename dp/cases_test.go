package dp

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

func TestCases(t *testing.T) {
	cases.Run(t, "privacy", map[string]func(*testing.T, cases.Case){
		"gaussian_sigma":            caseGaussianSigma,
		"gaussian_log_delta":        caseGaussianLogDelta,
		"gaussian_epsilon":          caseGaussianEpsilon,
		"zcdp_to_epsilon":           caseZCDP,
		"epsilon_to_rho_simple":     caseRho,
		"rdp_gaussmix_row":          caseSketchRow,
		"rdp_fastmix_row":           caseFastMixRow,
		"rdp_laplace":               caseLaplace,
		"rdp_composition":           caseComposition,
		"gaussmix_exact_delta":      caseSketchDelta,
		"joint_exact_delta":         caseJointDelta,
		"joint_exact_delta_replace": caseJointDeltaReplace,
		"ledger":                    caseLedger,
		"group_privacy":             caseGroup,
		"noise_prf":                 caseNoisePRF,
		"row_keys":                  caseRowKeys,
		"word_to_gaussian":          caseWordToGaussian,
		"audit_variance_threshold":  caseVarianceThreshold,
		"one_run_audit_p":           caseOneRun,
	})
}

func caseGaussianSigma(t *testing.T, c cases.Case) {
	var in struct {
		Epsilon, Delta float64
		L2Sensitivity  float64 `json:"l2_sensitivity"`
	}
	var want struct{ Sigma float64 }
	c.Read(t, &in, &want)
	got, err := Sigma(in.Epsilon, in.Delta, in.L2Sensitivity)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "sigma", got, want.Sigma)
	if d := LogDelta(in.Epsilon, in.L2Sensitivity/got); d > math.Log(in.Delta)+1e-12 {
		t.Errorf("log δ of the returned sigma is %g, above %g", d, math.Log(in.Delta))
	}
}

func caseGaussianLogDelta(t *testing.T, c cases.Case) {
	var in struct{ Epsilon, Mu float64 }
	var want struct {
		LogDelta float64 `json:"log_delta"`
	}
	c.Read(t, &in, &want)
	c.Near(t, "log delta", LogDelta(in.Epsilon, in.Mu), want.LogDelta)
}

func caseGaussianEpsilon(t *testing.T, c cases.Case) {
	var in struct{ Delta, Mu float64 }
	var want struct{ Epsilon float64 }
	c.Read(t, &in, &want)
	got, err := Epsilon(in.Delta, in.Mu)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "epsilon", got, want.Epsilon)
}

func caseZCDP(t *testing.T, c cases.Case) {
	var in struct{ Rho, Delta float64 }
	var want struct {
		Simple float64
		Tight  float64 `json:"rdp_tight"`
		Exact  float64 `json:"gaussian_exact"`
		Order  float64 `json:"alpha_at_optimum_about"`
	}
	c.Read(t, &in, &want)
	isOptimum(t, Curve{{Kind: KindGaussian, Count: 1, Mu: ZCDP(in.Rho).mu()}}, want.Order, in.Delta, want.Tight)
	for _, v := range []struct {
		what string
		f    func(float64) (float64, error)
		want float64
	}{{"simple", ZCDP(in.Rho).Simple, want.Simple}, {"tight", ZCDP(in.Rho).Tight, want.Tight},
		{"exact", ZCDP(in.Rho).Exact, want.Exact}} {
		got, err := v.f(in.Delta)
		if err != nil {
			t.Fatal(err)
		}
		c.Near(t, v.what, got, v.want)
	}
}

func caseRho(t *testing.T, c cases.Case) {
	var in struct{ Epsilon, Delta float64 }
	var want struct {
		Rho   float64
		Exact float64 `json:"rho_gaussian_exact"`
	}
	c.Read(t, &in, &want)
	rho, err := RhoSimple(in.Epsilon, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "rho", float64(rho), want.Rho)
	mu, err := Mu(in.Epsilon, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "exact rho", mu*mu/2, want.Exact)
}

func caseSketchRow(t *testing.T, c cases.Case) {
	var in struct{ Alpha, Gamma float64 }
	var want struct{ RDP float64 }
	c.Read(t, &in, &want)
	nearAt(t, c, Term{Kind: KindSketchRow, Count: 1, Gamma: in.Gamma}, in.Alpha, want.RDP)
}

func caseFastMixRow(t *testing.T, c cases.Case) {
	var in struct {
		Alpha, Gamma float64
		C2           *float64
	}
	var want struct {
		RDP      float64
		AlphaMax *float64 `json:"alpha_max"`
	}
	c.Read(t, &in, &want)
	term := Term{Kind: KindFastMixRow, Count: 1, Gamma: in.Gamma}
	if in.C2 != nil {
		term.C2 = *in.C2
	}
	nearAt(t, c, term, in.Alpha, want.RDP)
	if want.AlphaMax != nil {
		limit, err := Curve{term}.Range()
		if err != nil {
			t.Fatal(err)
		}
		c.Near(t, "range", limit, *want.AlphaMax)
	}
}

func caseLaplace(t *testing.T, c cases.Case) {
	var in struct {
		Alpha float64
		Scale float64 `json:"scale_over_sensitivity"`
	}
	var want struct{ RDP float64 }
	c.Read(t, &in, &want)
	nearAt(t, c, Term{Kind: KindLaplace, Count: 1, Scale: in.Scale}, in.Alpha, want.RDP)
}

func nearAt(t *testing.T, c cases.Case, term Term, alpha, want float64) {
	t.Helper()
	got, err := Curve{term}.At(alpha)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "divergence", got, want)
}

func caseComposition(t *testing.T, c cases.Case) {
	var in struct {
		Mechanisms []struct {
			Type                      string
			Mu, Gamma, C2, B, Epsilon float64
			Count                     *int
		}
		Delta float64
	}
	var want struct {
		Tight   float64  `json:"epsilon_tight"`
		Mironov *float64 `json:"epsilon_mironov"`
		Order   *float64 `json:"alpha_at_optimum_about"`
	}
	c.Read(t, &in, &want)
	var costs []Cost
	var terms Curve     // each mechanism with its own γ
	var least []float64 // the γ of dense rows
	for _, m := range in.Mechanisms {
		n := 1
		if m.Count != nil {
			n = *m.Count
		}
		cost := Cost{Adjacency: ZeroOut}
		switch m.Type {
		case "gaussian":
			cost.Mu = m.Mu
			cost = Compose(slices.Repeat([]Cost{cost}, n)...)
		case "gaussmix_row":
			cost.Rows, cost.Gamma = n, m.Gamma
			least = append(least, m.Gamma)
		case "fastmix_row":
			cost.Terms = []Term{{Kind: KindFastMixRow, Count: n, Gamma: m.Gamma, C2: m.C2}}
		case "laplace":
			cost.Terms = []Term{{Kind: KindLaplace, Count: n, Scale: m.B}}
		case "pure":
			cost.Terms = []Term{{Kind: KindPure, Count: n, Epsilon: m.Epsilon}}
		default:
			t.Fatalf("unknown type of mechanism: %q", m.Type)
		}
		costs, terms = append(costs, cost), terms.Add(cost.Curve()...)
	}
	got, err := terms.Epsilon(in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "epsilon", got, want.Tight)
	if want.Mironov != nil {
		c.Near(t, "epsilon by Mironov", mironov(t, terms, in.Delta), *want.Mironov)
	}
	if want.Order != nil {
		isOptimum(t, terms, *want.Order, in.Delta, got)
	}
	// A composed cost has one γ, the least. If all rows have the same γ, the result must be the same as with separate
	// γ; otherwise it must not be smaller.
	total := Compose(costs...)
	composed, err := total.Curve().Epsilon(in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(least)))) < 2 {
		c.Near(t, "epsilon of the composed cost", composed, want.Tight)
	} else if !(composed >= got) {
		t.Errorf("the composed cost's epsilon is %g, below %g", composed, got)
	}
	if exact, err := total.Epsilon(in.Delta); err != nil || !(exact <= composed) {
		t.Errorf("the cost's epsilon is %g, %v, above %g", exact, err, composed)
	}
}

// isOptimum fails unless the conversion at an order close to the best one gives almost the best ε, which is at least 0.
// The error of ε is quadratic in the error of the order.
func isOptimum(t *testing.T, c Curve, order, delta, eps float64) {
	t.Helper()
	if order == 0 {
		return
	}
	r, err := c.At(order)
	if err != nil {
		t.Fatal(err)
	}
	if at := max(0, r+math.Log1p(-1/order)-(math.Log(delta)+math.Log(order))/(order-1)); at < eps*(1-1e-9) ||
		at > eps*(1+1e-5) {
		t.Errorf("epsilon %g at order %g, %g at the best", at, order, eps)
	}
}

// mironov converts a curve by its classical rule, r(α) + log(1/δ)/(α−1), on a fine grid of the orders that Epsilon
// searches. Bounded curves, for example of Laplace noise, have their best order at the end of the grid.
func mironov(t *testing.T, c Curve, delta float64) float64 {
	t.Helper()
	limit, err := c.Range()
	if err != nil {
		t.Fatal(err)
	}
	best := math.Inf(1)
	for x := 1e-6; 1+x < limit && x < 1e17; x *= 1.0002 {
		r, err := c.At(1 + x)
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, r-math.Log(delta)/x)
	}
	return best
}

func caseSketchDelta(t *testing.T, c cases.Case) {
	in := directionCase{}
	in.check(t, c)
	got, err := sketchDelta(in.Epsilon, in.Rows, in.Gamma)
	if err != nil {
		t.Fatal(err)
	}
	in.near(t, c, "delta", got, max(in.want.Remove, in.want.Add))
}

func caseJointDelta(t *testing.T, c cases.Case) {
	in := directionCase{}
	in.check(t, c)
	got, err := jointDelta(in.Epsilon, in.Mu, in.Rows, in.Gamma, ZeroOut)
	if err != nil {
		t.Fatal(err)
	}
	in.near(t, c, "delta", got, max(in.want.Remove, in.want.Add))
}

// directionCase is a case with results for both directions of zeroing.
type directionCase struct {
	Epsilon, Mu, Gamma float64
	Rows               int
	want               struct {
		Remove float64 `json:"delta_remove"`
		Add    float64 `json:"delta_add"`
	}
}

func (in *directionCase) check(t *testing.T, c cases.Case) {
	c.Read(t, in, &in.want)
	k := float64(in.Rows)
	in.near(t, c, "removal", expUp(pair{in.Mu, k, 0, in.Gamma}.logDelta(in.Epsilon)), in.want.Remove)
	in.near(t, c, "addition", expUp(pair{in.Mu, 0, k, in.Gamma}.logDelta(in.Epsilon)), in.want.Add)
}

// near adds 10⁻²⁰ to the case's tolerance, because the case says 0 where its method underflows.
func (in *directionCase) near(t *testing.T, c cases.Case, what string, got, want float64) {
	t.Helper()
	rel, abs := c.Tolerance(t)
	cases.Near(t, what, got, want, rel, max(abs, 1e-20))
}

func caseJointDeltaReplace(t *testing.T, c cases.Case) {
	var in struct {
		Epsilon, Mu, Gamma float64
		Rows               int
	}
	var want struct{ Delta float64 }
	c.Read(t, &in, &want)
	got, err := jointDelta(in.Epsilon, in.Mu, in.Rows, in.Gamma, Replace)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "delta", got, want.Delta)
}

func caseLedger(t *testing.T, c cases.Case) {
	var in struct {
		Charges []struct {
			Mu float64 `json:"gaussian_mu"`
		}
		Composition string
		Delta       float64
	}
	var want struct{ Mu, Epsilon float64 }
	c.Read(t, &in, &want)
	var costs []Cost
	for _, k := range in.Charges {
		costs = append(costs, Cost{Adjacency: ZeroOut, Mu: k.Mu})
	}
	var total Cost
	var times int
	switch _, err := fmt.Sscanf(in.Composition, "sequential_x%d", &times); {
	case in.Composition == "sequential":
		total = Compose(costs...)
	case in.Composition == "parallel":
		var err error
		if total, err = Parallel(in.Delta, costs...); err != nil {
			t.Fatal(err)
		}
	case err == nil:
		total = Compose(slices.Repeat(costs, times)...)
	default:
		t.Fatalf("unknown composition %q", in.Composition)
	}
	c.Near(t, "mu", total.Mu, want.Mu)
	eps, err := total.Epsilon(in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "epsilon", eps, want.Epsilon)
}

func caseGroup(t *testing.T, c cases.Case) {
	var in struct {
		Records int     `json:"records_per_user"`
		Mu      float64 `json:"mu_record"`
		Delta   float64
	}
	var want struct {
		Mu      float64 `json:"mu_user"`
		Epsilon float64 `json:"epsilon_user"`
	}
	c.Read(t, &in, &want)
	cost := Cost{Adjacency: ZeroOut, Mu: in.Mu}
	group, err := cost.Group(in.Records)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "mu", group.Mu, want.Mu)
	eps, err := cost.GroupEpsilon(in.Records, in.Delta)
	if err != nil {
		t.Fatal(err)
	}
	c.Near(t, "epsilon", eps, want.Epsilon)
}

// keyInputs are the inputs that all key cases have.
type keyInputs struct {
	Master     string `json:"master_hex"`
	Secret     string `json:"epoch_secret_hex"`
	Stream     string
	Epoch      uint64
	Nonce      string `json:"nonce_hex"`
	ConfigHash string `json:"config_hash_hex"`
	Task       string
	Step       uint64
	Transcript string `json:"transcript_hex"`
}

func (in keyInputs) epoch(t *testing.T) *Epoch {
	t.Helper()
	var master, secret, digest [32]byte
	var nonce [16]byte
	unhex(t, master[:], in.Master)
	unhex(t, nonce[:], in.Nonce)
	unhex(t, digest[:], in.ConfigHash)
	var salt *[32]byte
	if in.Secret != "" {
		unhex(t, secret[:], in.Secret)
		salt = &secret
	}
	e, err := NewEpoch(&master, salt, in.Stream, in.Epoch, nonce, digest)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func unhex(t *testing.T, dst []byte, s string) {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(dst) {
		t.Fatalf("%q is not %d bytes of hex", s, len(dst))
	}
	copy(dst, b)
}

func caseNoisePRF(t *testing.T, c cases.Case) {
	var in keyInputs
	var want struct {
		EpochKey string   `json:"epoch_key_hex"`
		TaskKey  string   `json:"task_key_hex"`
		ExtKey   string   `json:"ext_key_hex"`
		Words    []string `json:"words_hex"`
		FirstExt string   `json:"first_ext_word_coord3_hex"`
		Z        []float64
	}
	c.Read(t, &in, &want)
	e := in.epoch(t)
	wantHex(t, "epoch key", e.key[:], want.EpochKey)
	lp := lengthPrefixed(in.Task)
	tk, xk := e.derive("streamdp/noise/v1\x00", lp), e.derive("streamdp/noise-ext/v1\x00", lp)
	wantHex(t, "task key", tk, want.TaskKey)
	wantHex(t, "extension key", xk, want.ExtKey)

	var row keyedRow
	row.open((*[32]byte)(tk), in.Step, len(want.Words))
	row.ext = newAES((*[32]byte)(xk))
	for j, w := range want.Words {
		wantWord(t, "word", row.Word(j), w)
		if z := row.At(j); !(math.Abs(z-want.Z[j]) <= 2e-14) {
			t.Errorf("z[%d] = %.17g, want %.17g", j, z, want.Z[j])
		}
	}
	var ext [1]uint64
	row.extension(3, ext[:])
	wantWord(t, "extension word", ext[0], want.FirstExt)
}

func caseRowKeys(t *testing.T, c cases.Case) {
	var in keyInputs
	var want struct {
		EpochKey  string   `json:"epoch_key_hex"`
		TaskKey   string   `json:"task_key_hex"`
		RowKey    string   `json:"row_key_hex"`
		RowExtKey string   `json:"row_ext_key_hex"`
		Words     []string `json:"words_hex"`
		FirstExt  string   `json:"first_ext_word_coord3_hex"`
	}
	c.Read(t, &in, &want)
	e := in.epoch(t)
	wantHex(t, "epoch key", e.key[:], want.EpochKey)
	wantHex(t, "task key", e.derive("streamdp/noise/v1\x00", lengthPrefixed(in.Task)), want.TaskKey)
	var h Transcript
	unhex(t, h[:], in.Transcript)
	a := e.array(in.Task)
	wantHex(t, "row key", a.keyFor("streamdp/row/v1\x00", in.Step, &h)[:], want.RowKey)
	wantHex(t, "row extension key", a.keyFor("streamdp/row-ext/v1\x00", in.Step, &h)[:], want.RowExtKey)
	row := a.row(in.Step, &h, len(want.Words))
	for j, w := range want.Words {
		wantWord(t, "word", row.Word(j), w)
	}
	var ext [1]uint64
	row.extension(3, ext[:])
	wantWord(t, "extension word", ext[0], want.FirstExt)
}

// gaussianBits returns the float64 of a word and its first extension word.
func gaussianBits(u, ext uint64) float64 {
	if isTail(u) {
		return gaussianTail(u, ext)
	}
	return gaussianMain(u)
}

func caseWordToGaussian(t *testing.T, c cases.Case) {
	var in struct {
		Word string  `json:"word_hex"`
		Ext  *string `json:"ext_hex"`
	}
	var want struct{ Z float64 }
	c.Read(t, &in, &want)
	u, ext := parseWord(t, in.Word), uint64(0)
	if in.Ext != nil {
		ext = parseWord(t, *in.Ext)
	}
	if isTail(u) && in.Ext == nil { // any other word needs no extension
		t.Fatalf("word %x is in the tail, but has no extension", u)
	}
	c.Near(t, "z", gaussianBits(u, ext), want.Z)
}

func caseVarianceThreshold(t *testing.T, c cases.Case) {
	var in struct {
		Draws int
		Alpha float64
	}
	var want struct {
		Low  float64 `json:"reject_if_sum_z2_below"`
		High float64 `json:"reject_if_above"`
	}
	c.Read(t, &in, &want)
	low, high := stattest.ChiSquared(in.Draws, in.Alpha)
	c.Near(t, "low", low, want.Low)
	c.Near(t, "high", high, want.High)
}

func caseOneRun(t *testing.T, c cases.Case) {
	var in struct {
		Canaries, Guesses, Correct int
		Epsilon, Delta             float64
	}
	var want struct {
		P float64 `json:"p_value"`
	}
	c.Read(t, &in, &want)
	c.Near(t, "p", stattest.OneRun(in.Canaries, in.Guesses, in.Correct, in.Epsilon, in.Delta), want.P)
}

func wantHex(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if hex.EncodeToString(got) != want {
		t.Errorf("%s is %x, want %s", what, got, want)
	}
}

func parseWord(t *testing.T, s string) uint64 {
	t.Helper()
	n, ok := new(big.Int).SetString(s, 16)
	if !ok || !n.IsUint64() {
		t.Fatalf("%q is not a word", s)
	}
	return n.Uint64()
}

func wantWord(t *testing.T, what string, got uint64, want string) {
	t.Helper()
	if got != parseWord(t, want) {
		t.Errorf("%s is %016x, want %s", what, got, want)
	}
}
