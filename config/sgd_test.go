package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"streamdp/internal/fault"
	"streamdp/sgd"
)

// demand is a configuration of an online regression; the mechanism's table
// begins with line 16.
const demand = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "/var/lib/streamdp"
key_file = "/etc/streamdp/key"
[stream.demand]
input  = { topic = "sales", columns = ["price", "weekday", "sold"] }
output = { topic = "demand.dp" }
centre = [10.0, 3.0, 50.0]
scale  = [4.0, 2.0, 20.0]
[stream.demand.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.demand.sgd]
method = "amb"
target = "sold"
clip_x = 4.0                       # bound on the features' norm after scaling
curvature = 1.5                    # no eigenvalue of their second moment is larger
radius = 20.0                      # nor the norm of the coefficients
`

// TestSGD reads a regression: what the stream says is in its configuration, and
// the digest holds what is not a default.
func TestSGD(t *testing.T) {
	s := parse(t, demand).Stream("demand")
	yes := true
	want := sgd.Config{
		Target: "sold", ClipX: 4, Intercept: &yes, Method: "amb", Clip: "track", Value: "gradnorm", Quantile: 0.6, Kappa: 1, Fraction: 0.05,
		Rungs: 32, Top: 65536, Bands: 16, Eta0: 0.3, Curvature: 1.5, Growth: "none", Average: "tail", Tail: 0.25, Restart: &yes, Radius: 20,
		Intervals: &yes, Level: 0.95, Columns: []string{"price", "weekday", "sold"}, Centre: []float64{10, 3, 50}, Scale: []float64{4, 2, 20},
	}
	if !reflect.DeepEqual(*s.SGD, want) {
		t.Errorf("got %+v, want %+v", *s.SGD, want)
	}
	if s.Mechanism() != "sgd" || s.LastStep() != 0 {
		t.Errorf("mechanism %s, last step %d", s.Mechanism(), s.LastStep())
	}
	const canonical = `"sgd":{"clip_x":4,"curvature":1.5,"method":"amb","radius":20,"target":"sold"}`
	if got := string(s.Canonical(0)); !strings.Contains(got, canonical) {
		t.Errorf("%s has no %s", got, canonical)
	}
	s = parse(t, strings.Replace(demand, "scale ", "horizon = 7\non_horizon = \"continue\"\nscale ", 1)).Stream("demand")
	if s.LastStep() != 0 || s.SGD.Horizon != 7 || !s.SGD.Endless {
		t.Errorf("a horizon that goes on: %+v", s.SGD)
	}
	s = parse(t, demand+"restart = false\nintervals = false\nintercept = false\nbands = 1\naverage = \"smooth\"\n").Stream("demand")
	if *s.SGD.Restart || *s.SGD.Intervals || *s.SGD.Intercept {
		t.Errorf("what is off is on: %+v", s.SGD)
	}
	if got := string(s.Canonical(0)); !strings.Contains(got, `"average":"smooth","bands":1,"clip_x":4,"curvature":1.5,"intercept":false,"intervals":false,"method":"amb","radius":20,"restart":false`) {
		t.Errorf("%s lacks what is no default", got)
	}
}

// TestSGDDefects has a line for each defect of a regression's table.
func TestSGDDefects(t *testing.T) {
	f := func(old, new string, want ...string) {
		t.Helper()
		src := strings.Replace(demand, old, new, 1)
		if src == demand {
			t.Fatalf("%q is not there", old)
		}
		if got := faults(t, src); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %s\nwant %s", new, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	const end = "curvature = 1.5"
	f(`method = "amb"`, "", `20: stream.demand.sgd.curvature: belongs to method "amb" (1.5)`)
	f(`"amb"`, `"newton"`, `20: stream.demand.sgd.curvature: belongs to method "amb" (1.5)`)
	f(`"amb"`, `"sgd"`, `17: stream.demand.sgd.method: must be "newton" or "amb" ("sgd")`)
	f(`target = "sold"`, ``, `16: stream.demand.sgd.target: required`)
	f(`"sold"`+"\n", `"returned"`+"\n", `18: stream.demand.sgd.target: must be one of the columns ("returned")`)
	f("clip_x = 4.0", "", `16: stream.demand.sgd.clip_x: required`)
	f("clip_x = 4.0", "clip_x = 0", `19: stream.demand.sgd.clip_x: must be positive and in the range 1e-60 to 1e60: scale the columns to about 1 (0)`)
	f("radius = 20.0", "", `16: stream.demand.sgd.radius: required for method "amb"`)
	f("curvature = 1.5", "curvature = 17", `20: stream.demand.sgd.curvature: must be positive and at most clip_x squared, or 0 (that) (17)`)
	f(end, "clip = \"fixed\"", `16: stream.demand.sgd.zeta: required for clip "fixed"`)
	f(end, "zeta = 2", `20: stream.demand.sgd.zeta: belongs to clip "fixed" (2)`)
	f(end, "clip = \"bisect\"\nbootstrap = 200", `21: stream.demand.sgd.bootstrap: belongs to clip "track" (200)`)
	f(end, "stat = 200", `20: stream.demand.sgd.stat: belongs to clip "bisect" and "scan" (200)`)
	f(end, "clip = \"quantile\"\nstat = 3", `20: stream.demand.sgd.clip: must be "track", "bisect", "scan" or "fixed" ("quantile")`)
	f(end, "bands = 0\nrungs = 0\nkappa = 0\neta0 = 0\nfraction = 0\nlevel = 0\ntop = 0\ntail = 1\nthreshold_quantile = 1",
		`20: stream.demand.sgd.bands: must be 1 to 256 (0)`, `21: stream.demand.sgd.rungs: must be 1 to 10000 (0)`,
		`22: stream.demand.sgd.kappa: must be positive and at most 100 (0)`, `23: stream.demand.sgd.eta0: must be positive and at most 1 (0)`,
		`24: stream.demand.sgd.fraction: must be in (0, 1) (0)`, `25: stream.demand.sgd.level: must be in (0, 1) (0)`, `26: stream.demand.sgd.top: must be positive (0)`,
		`27: stream.demand.sgd.tail: must be in (0, 1) (1)`, `28: stream.demand.sgd.threshold_quantile: must be in (0, 1) (1)`)
	f(end, "batch = -1\nbands = 300\nclip_y = -2\naverage = \"mean\"", `20: stream.demand.sgd.batch: must be at least 0 (-1)`, `21: stream.demand.sgd.bands: must be 1 to 256 (300)`,
		`22: stream.demand.sgd.clip_y: must be positive (-2)`, `23: stream.demand.sgd.average: must be "tail" or "smooth" ("mean")`)
	f("scale ", "step = 100\nscale ", `10: stream.demand.step: must not be there: sgd has steps of its own length (100)`)
	f(`columns = ["price", "weekday", "sold"]`, `columns = ["sold"]`, `9: stream.demand.centre: must be one number, or one for each of the 1 columns`,
		`10: stream.demand.scale: must be one number, or one for each of the 1 columns`)
	f(`"demand.dp"`, `"demand.dp", values = ["theta", "mean"]`,
		`8: stream.demand.output.values: must be a value that this stream publishes: "theta", "theta_average", "interval_low", "interval_high", "zeta", "average_start", "iteration", "slots" or "theta_average_original" ("mean")`)
	f(`"demand.dp" }`, `"demand.dp", values = ["interval_low"] }`+"\nsgd.intervals = false",
		`8: stream.demand.output.values: must be a value that this stream publishes: "theta", "theta_average", "zeta", "average_start", "iteration", "slots" or "theta_average_original" ("interval_low")`)
}

// TestNewton reads a regression that has hardly more than bounds.
func TestNewton(t *testing.T) {
	bare := strings.NewReplacer("method = \"amb\"\n", "", "curvature = 1.5 ", "# ", "radius = 20.0 ", "# ").Replace(demand)
	yes := true
	for _, src := range []string{bare, bare + "method = \"newton\"\n"} {
		s := parse(t, src).Stream("demand")
		want := sgd.Config{
			Target: "sold", ClipX: 4, Intercept: &yes, Method: "newton", Intervals: &yes, Level: 0.95,
			Columns: []string{"price", "weekday", "sold"}, Centre: []float64{10, 3, 50}, Scale: []float64{4, 2, 20},
		}
		if !reflect.DeepEqual(*s.SGD, want) {
			t.Errorf("got %+v, want %+v", *s.SGD, want)
		}
		const canonical = `"sgd":{"clip_x":4,"target":"sold"}`
		if got := string(s.Canonical(0)); !strings.Contains(got, canonical) {
			t.Errorf("%s has no %s", got, canonical)
		}
	}
	f := func(more, want string) {
		t.Helper()
		if got := faults(t, bare+more+"\n"); !reflect.DeepEqual(got, []string{want}) {
			t.Errorf("%s\n got %s\nwant %s", more, strings.Join(got, "\n     "), want)
		}
	}
	f("batch = 100", `21: stream.demand.sgd.batch: belongs to method "amb" (100)`)
	f("restart = true", `21: stream.demand.sgd.restart: belongs to method "amb" (true)`)
	f("bands = 16", `21: stream.demand.sgd.bands: belongs to method "amb" (16)`)
	f("radius = -1", `21: stream.demand.sgd.radius: must be positive (-1)`)
	f("level = 1", `21: stream.demand.sgd.level: must be in (0, 1) (1)`)
}

// TestSchemaAgreesWithSGD: words and defaults of the table are those that the
// package itself has.
func TestSchemaAgreesWithSGD(t *testing.T) {
	n := root().at("stream", "NAME", "sgd")
	for _, name := range []string{"method", "clip", "value", "growth", "average"} {
		c := n.child(name)
		f := func(word, want string) {
			m := sgd.Config{Method: "amb", Target: "y", Columns: []string{"x", "y"}, ClipX: 1, Radius: 1}
			if word == "fixed" {
				m.Zeta = 1
			}
			field(reflect.ValueOf(&m).Elem(), name).SetString(word)
			m.Defaults()
			rule := ""
			for _, err := range fault.All(m.Validate()) {
				if f, ok := errors.AsType[*fault.Fault](err); ok && f.Key == name {
					rule = f.Rule
				}
			}
			if !strings.HasPrefix(rule, want) || (rule == "") != (want == "") {
				t.Errorf("%s %q: %q, want %q", name, word, rule, want)
			}
		}
		for _, w := range c.words {
			f(w, "")
		}
		for _, w := range c.later {
			f(w, fault.NotYet)
		}
		f("no", "must be "+alternatives(c.words))
	}
	var mine, theirs sgd.Config
	d := &document{positions: scan(""), masked: map[string]string{}, bad: map[string]bool{}}
	d.readTable(n, nil, nil, reflect.ValueOf(&mine).Elem())
	theirs.Defaults()
	if mine.Method != theirs.Method {
		t.Errorf("the default method is %q, the package has %q", mine.Method, theirs.Method)
	}
	mine.Method = "amb"
	theirs = sgd.Config{Method: "amb"}
	theirs.Defaults()
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults %+v, the package has %+v", mine, theirs)
	}
	mine.Method = "newton"
	d.clearOthers(n, nil, mine.Method, reflect.ValueOf(&mine).Elem())
	theirs = sgd.Config{}
	theirs.Defaults()
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults of newton %+v, the package has %+v", mine, theirs)
	}
	// Every value that a release can hold has a name that the configuration knows.
	theirs.Centre = []float64{1, 0}
	for method, want := range map[string]int{"amb": 9, "newton": 11} {
		theirs.Method = method
		if names := theirs.Values(); !slices.Contains(names, "theta_average_original") || len(names) != want {
			t.Errorf("values are %q", names)
		}
	}
}
