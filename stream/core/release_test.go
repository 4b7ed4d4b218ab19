package core

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// plainEstimator is an estimator that returns fixed numbers.
type plainEstimator struct{ Estimator }

func (plainEstimator) Cost() dp.Cost { return dp.Cost{Adjacency: dp.Replace, Mu: 0.25} }

func goldenMechanism() *Mechanism {
	return &Mechanism{
		Estimator: plainEstimator{}, Name: "moments", clip: 1, sensitivity: 1.5, Lattice: []float64{0x1p-24, 0x1p-30},
		description: json.RawMessage(
			`{"name":"moments","method":"jme","workload":"mean","factorization":"phased","step":100,"nu":0.5,"lambda":2}`),
		Plan: json.RawMessage(`{"clip":1}`),
	}
}

func goldenStream(t testing.TB) *config.Stream {
	t.Helper()
	return parsed(t, `
[stream.orders]
input  = { topic = "orders", codec = "json", columns = ["amount", "items", "weight"] }
output = { topic = "orders.dp" }
centre = [40.0, 3.0, 1.2]
scale  = [80.0, 5.0, 2.0]
step   = 100
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.orders.moments]
clip = 1.0
`)
}

func TestGoldenRelease(t *testing.T) {
	t.Parallel()
	rel := &dp.Release{Step: 7, Rows: 93, Values: []dp.Value{
		{Name: "mean", Shape: []int{3}, Data: []float64{0.1, -1e-9, 1e21}, SE: []float64{0.25}},
		{Name: "second_moment", Shape: []int{3, 3}, Layout: "upper",
			Data: []float64{1, 0, math.Copysign(0, -1), 1. / 3, 5e-324, 1.7976931348623157e308},
			SE:   []float64{1, 2, 3, 4, 5, 6}},
		{Name: "unknown_error", Shape: []int{1}, Data: []float64{2}},
	}}
	for file, change := range map[string]func(*config.Stream, *Manifest){
		"release.json":        func(*config.Stream, *Manifest) {},
		"release.base64.json": func(s *config.Stream, _ *Manifest) { s.Output.Encoding = "base64" },
		"release.values.json": func(s *config.Stream, _ *Manifest) { s.Output.Values = []string{"mean"} },
		"release.insecure.json": func(s *config.Stream, m *Manifest) {
			m.Insecure, s.Input.AllowCompacted = true, true
		},
	} {
		s, m := goldenStream(t), goldenManifest(t)
		change(s, m)
		e, err := newEncoder(s, m, goldenMechanism())
		must(t, err)
		all, err := e.encode(rel, 1600, 1700, nil)
		must(t, err)
		if len(all) != 1 {
			t.Fatalf("%d messages", len(all))
		}
		p := all[0]
		var b strings.Builder
		b.WriteString("key: " + string(p.Key) + "\n")
		for _, h := range p.Headers {
			b.WriteString(h.Key + ": " + string(h.Value) + "\n")
		}
		golden(t, file, append([]byte(b.String()), append(p.Value, '\n')...))
		if task, epoch, step, ok := ParseIdentity(p.Key); !ok || task != (Task{"orders", 0}) ||
			epoch != 3 || step != 7 {
			t.Errorf("key %s", p.Key)
		}
	}
	// A number that JSON cannot represent is never published.
	e, err := newEncoder(goldenStream(t), goldenManifest(t), goldenMechanism())
	must(t, err)
	for _, x := range []float64{math.NaN(), math.Inf(1)} {
		if _, err := e.encode(
			&dp.Release{Step: 1, Values: []dp.Value{{Name: "mean", Shape: []int{1}, Data: []float64{x}}}}, 0, 1,
			nil); err == nil {
			t.Errorf("%g is encoded", x)
		}
	}
}

// TestPrivacyEvery: one of N releases has the privacy block, and the others its hash. If a release is made a second
// time in the form of the published one, it has the same bytes.
func TestPrivacyEvery(t *testing.T) {
	t.Parallel()
	s := goldenStream(t)
	whole, err := newEncoder(s, goldenManifest(t), goldenMechanism())
	must(t, err)
	s.Output.PrivacyEvery = 3
	e, err := newEncoder(s, goldenManifest(t), goldenMechanism())
	must(t, err)
	for step := uint64(1); step <= 8; step++ {
		for _, rel := range []*dp.Release{
			{Step: step, Rows: 9, Values: []dp.Value{{Name: "mean", Shape: []int{1}, Data: []float64{float64(step)}}}},
			{Step: step, Rows: 9, Failed: "no records"},
		} {
			encode := func(e *encoder) []byte {
				all, err := e.encode(rel, 0, 9, nil)
				must(t, err)
				return all[0].Value
			}
			got, full := encode(e), encode(whole)
			var parts struct {
				Privacy json.RawMessage `json:"privacy"`
				Hash    string          `json:"privacy_sha256"`
			}
			must(t, json.Unmarshal(full, &parts))
			want := string(full)
			if step%3 != 1 {
				hash := sha256.Sum256(parts.Privacy)
				want = strings.Replace(want, `"privacy":`+string(parts.Privacy),
					`"privacy_sha256":"`+hex.EncodeToString(hash[:])+`"`, 1)
			}
			if string(got) != want {
				t.Errorf("step %d: %s, want %s", step, got, want)
			}
			form, ok := FormOf(got)
			if !ok || form.Brief != (step%3 != 1) {
				t.Errorf("step %d: %+v, %v", step, form, ok)
			}
			c := &Core{encoder: whole}
			c.SetForm(form)
			if again := encode(whole); string(again) != string(got) {
				t.Errorf("step %d, made again: %s, want %s", step, again, got)
			}
			c.SetForm(Form{})
		}
	}
}

// TestNumbers: numbers are encoded as by encoding/json, byte for byte, and base64 encodes the whole list.
func TestNumbers(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	x := []float64{0, math.Copysign(0, -1), 1e-6, 0x1.0c6f7a0b5ed8dp-20, -9.99999e-7, 1e-7, 1e-10, 1.5e-100, 1e21,
		999999999999999900000, -1e21, 1e22, 1e300, 5e-324, math.MaxFloat64, 123456789}
	for len(x) < 100_000 {
		v := math.Float64frombits(source.Uint64())
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		x = append(x, v, source.NormFloat64(), math.Ldexp(source.NormFloat64(), source.IntN(200)-100))
	}
	for _, part := range [][]float64{nil, {}, x[:1], x[:191], x[:192], x[:193], x[:384], x} {
		got, ok := (&encoder{}).numbers([]byte("before"), part, false)
		want, err := json.Marshal(part)
		must(t, err)
		if !ok || string(got) != "before"+string(want) {
			t.Errorf("%d numbers differ from those of encoding/json", len(part))
		}
		raw := []byte{}
		for _, v := range part {
			raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(v))
		}
		got, ok = (&encoder{base64: true}).numbers(nil, part, false)
		if want, err = json.Marshal(raw); err != nil || !ok || string(got) != string(want) {
			t.Errorf("%d numbers differ in base64: %v", len(part), err)
		}
	}
	if got, ok := (&encoder{}).numbers(nil, []float64{1, math.NaN(), 2}, true); !ok || string(got) != "[1,null,2]" {
		t.Errorf("%s, %v", got, ok)
	}
	if _, ok := (&encoder{}).numbers(nil, []float64{1, math.Inf(-1)}, true); ok {
		t.Error("an infinity is encoded")
	}
}

// TestSharesAndReleased: a message's Shares equal what a reader parses from it, and numbers parsed in one pass equal
// those of encoding/json.
func TestSharesAndReleased(t *testing.T) {
	r := &dp.Release{Step: 3, Rows: 100, Values: []dp.Value{
		{Name: "valid_count", Shape: []int{1}, Data: []float64{97.25}, SE: []float64{1.5}},
		{Name: "mean", Shape: []int{3}, Data: []float64{-1e-9, 5e300, 0.1}, SE: []float64{1, math.NaN(), 2}},
		{Name: "full_share", Shape: []int{1}, Data: []float64{0.5}, SE: []float64{0.25}},
	}}
	for _, e := range []*encoder{
		{m: &Manifest{Stream: `a "b"`}, head: []byte(`"columns":["x\\\"]"],"mechanism":{"name":"moments"}`),
			brief: []byte(`"columns":[],"mechanism":{"name":"moments"}`), every: 1, tail: []byte(`}`)},
		{m: &Manifest{Stream: "a"}, values: []string{"mean", "full_share"}, base64: true,
			head: []byte(`"columns":[],"mechanism":{"name":"moments"}`), every: 1, tail: []byte(`}`)},
	} {
		messages, err := e.encode(r, 0, 100, nil)
		if err != nil || len(messages) != 1 {
			t.Fatal(messages, err)
		}
		m := messages[0]
		read, ok := SharesOf(m.Value)
		if !ok || !reflect.DeepEqual(*m.Shares, read) || read.Full == nil ||
			(read.Valid == nil) != (len(e.values) > 0) {
			t.Errorf("%+v, read %+v %v", m.Shares, read, ok)
		}
		// White space everywhere does not change the result.
		var spaced bytes.Buffer
		if err := json.Indent(&spaced, m.Value, "\r\n", "\t "); err != nil {
			t.Fatal(err)
		}
		for _, text := range [][]byte{m.Value, spaced.Bytes()} {
			x, err := ParseReleased(text)
			if err != nil {
				t.Fatal(err)
			}
			i := len(x.Values) - 2
			if v := x.Values[i]; v.Name != "mean" || !slices.Equal(v.Data, r.Values[1].Data) || v.SE[0] != 1 ||
				!math.IsNaN(v.SE[1]) || v.SE[2] != 2 || !slices.Equal(v.Shape, []int{3}) {
				t.Errorf("%+v", x)
			}
		}
	}
	for _, bad := range []string{
		`{"a":{"data":[1,"2"]}}`, `{"a":{"data":[1e999]}}`, `{"a":{"data":[null]}}`, `{"a":{"data":[[1]]}}`,
		`{"a":{"data":{}}}`, `{"a":[]}`, `{"a":{"data":[1],"se":[true]}}`, `{"a":{}}`, `7`,
	} {
		if _, err := ParseReleased([]byte(`{"schema":"streamdp.release.v1","values":` + bad + `}`)); err == nil {
			t.Errorf("%s is parsed as values", bad)
		}
	}
	for _, good := range []string{
		`{}`, ` { } `, `{"a": {"data":[]} }`, `{"a":{"data":[],"se":null,"other":{"x":[1,{"y":"]}"}]}}}`,
		`{"a":{"data":[ 1 , 2 ],"se": 1 }}`,
	} {
		if _, err := ParseReleased([]byte(`{"schema":"streamdp.release.v1","values":` + good + `}`)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}
