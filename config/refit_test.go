package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/toml"
	"github.com/streamdp/streamdp/refit"
)

// weekly is a configuration of a refit; the mechanism's table begins with line 16.
const weekly = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "/var/lib/streamdp"
key_file = "/etc/streamdp/key"
[stream.weekly]
input  = { topic = "sales", columns = ["price", "weekday", "sold"] }
output = { topic = "weekly.dp" }
centre = [10.0, 3.0, 50.0]
scale  = [4.0, 2.0, 20.0]
[stream.weekly.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.weekly.refit]
target = "sold"
clip_x = 4.0                       # bound on the features' norm after scaling
clip_y = 3.0                       # and on the target's size
window = 5000
`

// TestRefit reads a refit: its configuration gets the stream's settings, and the digest holds the keys that differ from
// their defaults.
func TestRefit(t *testing.T) {
	s := parse(t, weekly).Stream("weekly")
	yes := true
	want := refit.Config{
		Target: "sold", ClipX: 4, ClipY: 3, Intercept: &yes, Window: 5000, Solver: "newton", Share: 0.2,
		Transforms: 1, Ratio: 4,
		Columns: []string{"price", "weekday", "sold"}, Centre: []float64{10, 3, 50}, Scale: []float64{4, 2, 20},
	}
	if !reflect.DeepEqual(*s.Refit, want) {
		t.Errorf("got %+v, want %+v", *s.Refit, want)
	}
	if s.Mechanism() != "refit" || s.LastStep() != 0 {
		t.Errorf("mechanism %s, last step %d", s.Mechanism(), s.LastStep())
	}
	const canonical = `"refit":{"clip_x":4,"clip_y":3,"target":"sold","window":5000}`
	if got := string(s.Canonical(0)); !strings.Contains(got, canonical) {
		t.Errorf("%s has no %s", got, canonical)
	}
	s = parse(t,
		strings.Replace(weekly, "scale ", "horizon = 7\nscale ", 1)+
			"stride = 6000\nsolver = \"fast-ihm\"\ntransforms = 5\niterations = 5\n").Stream("weekly")
	if s.LastStep() != 7 || s.Refit.Stride != 6000 {
		t.Errorf("got %+v", s.Refit)
	}
	if got := string(s.Canonical(0)); !strings.Contains(got,
		`"iterations":5,"solver":"fast-ihm","stride":6000,"target":"sold","transforms":5`) {
		t.Errorf("%s lacks a key that differs from its default", got)
	}
}

// TestRefitDefects has one line for each defect of a refit's table.
func TestRefitDefects(t *testing.T) {
	f := func(old, new string, want ...string) {
		t.Helper()
		src := strings.Replace(weekly, old, new, 1)
		if src == weekly {
			t.Fatalf("%q is not there", old)
		}
		if got := faults(t, src); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %s\nwant %s", new, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	const end = "window = 5000"
	f(`target = "sold"`, "", `16: stream.weekly.refit.target: required`)
	f(`"sold"`+"\n", `"returned"`+"\n", `17: stream.weekly.refit.target: must be one of the columns ("returned")`)
	f("clip_x = 4.0", "clip_x = 0", `18: stream.weekly.refit.clip_x: must be positive and finite (0)`)
	f("clip_y = 3.0", "residual_clip = 1.0",
		`19: stream.weekly.refit.residual_clip: must be absent: its unit depends on a centre, scale or bound that is "auto"`)
	f(end, "window = 0", `20: stream.weekly.refit.window: must be 1 to 2147483648 slots (0)`)
	f(end, "", `16: stream.weekly.refit.window: required, or a step by the clock, such as step = "1h"`)
	f(end, end+"\nstride = 4000",
		`21: stream.weekly.refit.stride: must be at least the window: otherwise a record could be in two `+
			"windows and pay twice (4000)")
	f(end, end+"\nsolver = \"ols\"",
		`21: stream.weekly.refit.solver: must be "newton", "ihm", "adassp", "linmix", "fast-ihm", "dp-gd" or "dp-gd-residual" ("ols")`)
	f(end, end+"\nsolver = \"dp-gd-paper\"",
		`21: stream.weekly.refit.solver: must be "newton", "ihm", "adassp", "linmix", "fast-ihm", "dp-gd" or "dp-gd-residual" ("dp-gd-paper")`)
	f(end, end+"\naccounting = \"rdp\"",
		`21: stream.weekly.refit.accounting: must be "exact" for solver "newton" ("rdp")`)
	f(end, end+"\nsolver = \"fast-ihm\"\naccounting = \"exact\"",
		`22: stream.weekly.refit.accounting: must be "rdp" or "paper" for solver "fast-ihm" ("exact")`)
	f(end, end+"\nrows = 99\neigen_test = true\nradius = 1",
		`21: stream.weekly.refit.rows: belongs to solvers "ihm", "linmix" and "fast-ihm" (99)`,
		`22: stream.weekly.refit.eigen_test: belongs to solvers "ihm" and "adassp" (true)`,
		`23: stream.weekly.refit.radius: belongs to solvers "ihm" and "dp-gd" (1)`)
	f(end, end+"\nsolver = \"ihm\"\nrows = 3\nshare = 1",
		`22: stream.weekly.refit.rows: must be 5 to 2^20, so that a sketch can be inverted, or 0 (chosen) (3)`,
		`23: stream.weekly.refit.share: must be in (0, 1) (1)`)
	f(end, end+"\nsolver = \"fast-ihm\"\ntransforms = 2",
		`22: stream.weekly.refit.transforms: must be 1 or the number of iterations (2)`)
	f("scale ", "step = 100\nscale ",
		`10: stream.weekly.step: must be absent: for refit a step is a window: set refit.window to its number of offsets, or step to a period of the clock (100)`)
	f(`"weekly.dp"`, `"weekly.dp", values = ["theta", "eta"]`,
		`8: stream.weekly.output.values: must be a value that this stream publishes: "theta", "intercept", "theta_original" or "intercept_original" ("eta")`)
}

// TestSchemaAgreesWithRefit: schema and package refit have the same words and defaults.
func TestSchemaAgreesWithRefit(t *testing.T) {
	n := root().At("stream", "NAME", "refit")
	c := n.Child("solver")
	f := func(word, want string) {
		m := refit.Config{Target: "y", Columns: []string{"x", "y"}, ClipX: 1, ClipY: 1, Window: 9, Solver: word}
		m.Defaults()
		rule := ""
		for _, err := range fault.All(m.Validate()) {
			if f, ok := errors.AsType[*fault.Fault](err); ok && f.Key == "solver" {
				rule = f.Rule
			}
		}
		if rule != want {
			t.Errorf("solver %q: %q, want %q", word, rule, want)
		}
	}
	for _, w := range c.Words {
		f(w, "")
	}
	f("no", "must be "+toml.Alternatives(c.Words))
	var mine, theirs refit.Config
	d := &document{toml.Of("", nil)}
	d.ReadTable(n, nil, nil, reflect.ValueOf(&mine).Elem())
	theirs.Defaults()
	mine.ClipX, mine.ClipY = 0, 0 // the default in a file is "auto" instead
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults %+v, the package has %+v", mine, theirs)
	}
}
