package dp

import (
	"encoding/hex"
	"math"
	"math/big"
	"testing"

	"streamdp/internal/cases"
)

func TestCases(t *testing.T) {
	cases.Run(t, "privacy", map[string]func(*testing.T, cases.Case){
		"gaussian_sigma":     caseGaussianSigma,
		"gaussian_log_delta": caseGaussianLogDelta,
		"gaussian_epsilon":   caseGaussianEpsilon,
		"noise_prf":          caseNoisePRF,
		"row_keys":           caseRowKeys,
		"word_to_gaussian":   caseWordToGaussian,
	},
		"zcdp_to_epsilon", "epsilon_to_rho_simple", "rdp_gaussmix_row", "rdp_fastmix_row", "rdp_laplace",
		"rdp_composition", "gaussmix_exact_delta", "joint_exact_delta", "joint_exact_delta_replace",
		"ledger", "group_privacy", "audit_variance_threshold", "one_run_audit_p")
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

// keyInputs are what the key cases share.
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

// gaussianBits is the float64 form of a word and its first extension word.
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
	if isTail(u) != (in.Ext != nil) {
		t.Fatalf("word %x: tail is %v", u, isTail(u))
	}
	c.Near(t, "z", gaussianBits(u, ext), want.Z)
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
