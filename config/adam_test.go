package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/toml"
)

// updates is a stream of gradients; its [stream.updates.adam] is line 14.
const updates = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "/var/lib/streamdp"
key_file = "/etc/streamdp/key"
[stream.updates]
input  = { topic = "gradients", codec = "float32" }
output = { topic = "updates.dp", encoding = "base64" }
step   = 64
[stream.updates.privacy]
epsilon = 1
delta = 1e-6
privacy = 1
[stream.updates.adam]
clip = 1.5
rate = 1e-3
dim  = 1000
`

// learning is a stream of examples; its [stream.fit.adam] is line 14.
const learning = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "/var/lib/streamdp"
key_file = "/etc/streamdp/key"
[stream.fit]
input  = { topic = "rows", columns = ["age", "income", "paid"] }
output = { topic = "fit.dp" }
centre = [40, 3e4, 0.5]
scale  = [40, 3e4, 1]
step   = 64
privacy = { epsilon = 1, delta = 1e-6, adjacency = "replace", limit_epsilon = 4 }
[stream.fit.adam]
mode  = "model"
clip  = 1
rate  = 0.01
model = { loss = "logistic", target = "paid" }
`

func gradients() string {
	return strings.Replace(updates, "privacy = 1\n", "adjacency = \"zero-out\"\nlimit_epsilon = 2\n", 1)
}

func TestAdam(t *testing.T) {
	s := parse(t, gradients()).Streams[0]
	want := &adam.Config{
		Mode: "gradients", Method: "pp_debiased", Clip: 1.5, Rate: 1e-3, Dim: 1000, Beta1: 0.9, Beta2: 0.999,
		Schedule: "constant",
		Eps:      1e-8, Negative: "floor", Factorization: "identity", Release: "parameters",
		StepHeader: "model-step", Step: 64,
	}
	if !reflect.DeepEqual(s.Adam, want) || s.Mechanism() != "adam" || !s.Gradients() || s.Input.Columns != nil ||
		s.Centre != nil || s.LastStep() != 0 {
		t.Errorf("%+v, %+v", s, s.Adam)
	}
	s = parse(t, learning).Streams[0]
	want = &adam.Config{
		Mode: "model", Method: "pp_debiased", Clip: 1, Rate: 0.01, Beta1: 0.9, Beta2: 0.999, Schedule: "constant",
		Eps: 1e-8, Negative: "floor", Factorization: "identity", Release: "parameters",
		StepHeader: "model-step", Step: 64,
		Model: &adam.Model{Loss: "logistic", Target: "paid"}, Columns: []string{"age", "income", "paid"},
	}
	if !reflect.DeepEqual(s.Adam, want) || s.Gradients() || len(s.Centre) != 3 {
		t.Errorf("%+v, %+v", s, s.Adam)
	}
}

// TestAdamFaults changes one part of a valid configuration at a time, and expects the fault that names it.
func TestAdamFaults(t *testing.T) {
	f := func(src, old, new string, want ...string) {
		t.Helper()
		if !strings.Contains(src, old) {
			t.Fatalf("%q is not in the configuration", old)
		}
		got := faults(t, strings.Replace(src, old, new, 1))
		for i := range got {
			_, got[i], _ = strings.Cut(got[i], ": stream.")
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q: got\n\t%s\nwant\n\t%s", new, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
		}
	}
	g := gradients()
	f(g, "", "")
	f(g, `codec = "float32"`, `codec = "json-array"`)
	f(g, `, codec = "float32"`, ``, `updates.input.codec: required for gradients: "float32", "float64" or "json-array"`)
	f(g, `"float32"`, `"csv"`,
		`updates.input.codec: must be "float32", "float64" or "json-array" for gradients ("csv")`)
	f(g, `"float32"`, `"float64", columns = ["a"]`,
		`updates.input.columns: must be absent for gradients, which have adam.dim numbers; only mode "model" has columns`)
	f(g, "step   = 64", "step = 64\ncentre = 1\nscale = 2",
		"updates.centre: must be absent for gradients, which are not scaled",
		"updates.scale: must be absent for gradients, which are not scaled")
	f(g, "step   = 64", "", "updates.step: required")
	f(g, "dim  = 1000", "", `updates.adam.dim: required for mode "gradients"`)
	f(g, "dim  = 1000", "dim = 0", `updates.adam.dim: must be 1 to 1e+10 parameters (0)`)
	f(g, "dim  = 1000", "dim = 9\nmethod = \"joint_clip\"", `updates.adam.tau: required for method "joint_clip"`)
	f(g, "dim  = 1000", "dim = 9\nmethod = \"jme\"",
		`updates.adam.method: "jme" squares the single gradient of a step and needs step = 1; for larger steps use "jme_per_example", or "jme_batch", which squares the sum of a step's gradients ("jme")`)
	f(g, "dim  = 1000", "dim = 9\nschedule = \"cosine\"",
		`updates.adam.schedule: "cosine" needs the stream's horizon ("cosine")`)
	f(g, "dim  = 1000", "dim = 9\nmodel = { loss = \"linear\", target = \"x\" }",
		`updates.adam.model: belongs to mode "model"`)
	f(g, "clip = 1.5", "clip = 0", `updates.adam.clip: must be positive and finite (0)`)
	f(g, "clip = 1.5", "clip = 1\nmean_clip = 2", `updates.adam.mean_clip: belongs to method "jme_batch" (2)`)
	f(g, "rate = 1e-3", "", "updates.adam.rate: required")
	f(g, `encoding = "base64"`, `values = ["parameters", "update"]`,
		`updates.output.values: must be a value that this stream publishes: "parameters", "v_noise" or "model_step" ("update")`)
	f(g, `encoding = "base64"`, `privacy_every = 10`,
		`updates.output.privacy_every: must be 1 for adam: a step may have no release, or a release in several messages (10)`)
	f(g, "clip = 1.5", "clip = 1\ndecay = 1",
		`updates.adam.decay: unknown key (it belongs in [stream.updates.moments])`)

	f(learning, "", "")
	f(learning, `, columns = ["age", "income", "paid"]`, ``, "fit.input.columns: required")
	f(learning, `"paid" }`, `"payed" }`, `fit.adam.model.target: must be one of the columns ("payed")`)
	f(learning, `"logistic"`, `"softmax"`, `fit.adam.model.classes: required for loss "softmax"`)
	f(learning, `"logistic"`, `"mlp"`, `fit.adam.model.hidden: required for loss "mlp"`)
	f(learning, `"logistic"`, `"mlp", hidden = 4, classes = 1`,
		`fit.adam.model.classes: must be at least 2, or 0 if the target is a number (1)`)
	f(learning, `"logistic"`, `"log"`, `fit.adam.model.loss: must be "linear", "logistic", "softmax" or "mlp" ("log")`)
	f(learning, "model = {", "dim = 3\nmax_staleness = 2\nmodel = {",
		`fit.adam.dim: belongs to mode "gradients"; a model has its own number of parameters (3)`,
		`fit.adam.max_staleness: belongs to mode "gradients" (2)`)
	f(learning, `mode  = "model"`, ``, `fit.adam.dim: required for mode "gradients"`,
		`fit.adam.model: belongs to mode "model"`,
		`fit.centre: must be absent for gradients, which are not scaled`,
		`fit.scale: must be absent for gradients, which are not scaled`,
		`fit.input.codec: required for gradients: "float32", "float64" or "json-array"`,
		`fit.input.columns: must be absent for gradients, which have adam.dim numbers; only mode "model" has columns`)
}

// TestSchemaAgreesWithAdam checks that schema and package adam have the same words and defaults.
func TestSchemaAgreesWithAdam(t *testing.T) {
	n := root().At("stream", "NAME", "adam")
	for _, name := range []string{"mode", "method", "schedule", "negative", "factorization", "release"} {
		c := n.Child(name)
		f := func(word string, want string) {
			a := adam.Config{Clip: 1, Rate: 1, Step: 1, Dim: 1, Horizon: 1, Tau: 1, UpdateClip: 1}
			toml.Field(reflect.ValueOf(&a).Elem(), name).SetString(word)
			a.Defaults()
			rule := ""
			for _, err := range fault.All(a.Validate()) {
				if f, ok := errors.AsType[*fault.Fault](err); ok && f.Key == name {
					rule = f.Rule
				}
			}
			if rule != want {
				t.Errorf("%s %q: %q, want %q", name, word, rule, want)
			}
		}
		for _, w := range c.Words {
			f(w, "")
		}
		f("no", "must be "+toml.Alternatives(c.Words))
	}
	var mine, theirs adam.Config
	d := &document{toml.Of("", nil)}
	d.ReadTable(n, nil, nil, reflect.ValueOf(&mine).Elem())
	theirs.Defaults()
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults %+v, the package has %+v", mine, theirs)
	}
}

// TestAdamDigest: the digest holds every key that differs from its default, but not the name of the file of initial
// parameters.
func TestAdamDigest(t *testing.T) {
	canonical := func(src string) string { return string(parse(t, src).Streams[0].Canonical(0)) }
	base := canonical(gradients())
	if !strings.Contains(base, `"adam":{"clip":1.5,"dim":1000,"rate":0.001}`) ||
		!strings.Contains(base, `"columns":[]`) {
		t.Errorf("canonical form %s", base)
	}
	if got := canonical(
		strings.Replace(gradients(), "dim  = 1000", "dim = 1000\ninitial_file = \"x\"", 1)); got != base {
		t.Errorf("canonical form %s", got)
	}
	if got := canonical(strings.Replace(gradients(), "dim  = 1000", "dim = 1000\nnegative = \"abs\"", 1)); got == base {
		t.Error("another rule for negative moments does not change the configuration")
	}
	if got := canonical(learning); !strings.Contains(got, `"model":{"loss":"logistic","target":"paid"}`) {
		t.Errorf("canonical form %s", got)
	}
}
