package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/toml"
	"github.com/streamdp/streamdp/sgd"
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
radius = 20.0                      # and on that of the coefficients
[stream.demand.sgd.amb]
curvature = 1.5                    # no eigenvalue of the features' second moment is larger
`

// TestSGD reads a regression: its configuration gets the stream's settings, and the digest holds the keys that differ
// from their defaults.
func TestSGD(t *testing.T) {
	s := parse(t, demand).Stream("demand")
	yes := true
	want := sgd.Config{
		Target: "sold", ClipX: 4, Intercept: &yes, Method: "amb", Clip: "track", Value: "gradnorm",
		ThresholdQuantile: 0.6,
		Kappa:             1, Fraction: 0.05,
		Rungs: 32, Top: 65536, Bands: 16, Eta0: 0.3, Curvature: 1.5, Growth: "none", Average: "tail", Tail: 0.25,
		Restart: &yes, Radius: 20,
		Intervals: &yes, Level: 0.95, Columns: []string{"price", "weekday", "sold"}, Centre: []float64{10, 3, 50},
		Scale: []float64{4, 2, 20},
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
	s = parse(t,
		strings.Replace(demand, "scale ", "horizon = 7\non_horizon = \"continue\"\nscale ", 1)).Stream("demand")
	if s.LastStep() != 0 || s.SGD.Horizon != 7 || !s.SGD.Endless {
		t.Errorf("on_horizon = continue: %+v", s.SGD)
	}
	s = parse(t,
		strings.Replace(demand, "radius", "intervals = false\nintercept = false\nradius", 1)+
			"restart = false\nbands = 1\naverage = \"smooth\"\n").Stream("demand")
	if *s.SGD.Restart || *s.SGD.Intervals || *s.SGD.Intercept {
		t.Errorf("an option that is off is on: %+v", s.SGD)
	}
	if got := string(s.Canonical(0)); !strings.Contains(got,
		`"average":"smooth","bands":1,"clip_x":4,"curvature":1.5,"intercept":false,"intervals":false,"method":"amb","radius":20,"restart":false`) {
		t.Errorf("%s lacks a key that differs from its default", got)
	}
}

// TestSGDDefects has one line for each defect of a regression's table.
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
	f(`method = "amb"`, "", `22: stream.demand.sgd.amb.curvature: belongs to method "amb" (1.5)`)
	f(`"amb"`, `"newton"`, `22: stream.demand.sgd.amb.curvature: belongs to method "amb" (1.5)`)
	f(`"amb"`, `"sgd"`, `17: stream.demand.sgd.method: must be "newton" or "amb" ("sgd")`)
	f(`target = "sold"`, ``, `16: stream.demand.sgd.target: required`)
	f(`"sold"`+"\n", `"returned"`+"\n", `18: stream.demand.sgd.target: must be one of the columns ("returned")`)
	f("clip_x = 4.0", "",
		`22: stream.demand.sgd.amb.curvature: must be absent: its unit depends on a centre, scale or bound that is "auto"`)
	f("clip_x = 4.0", "clip_x = 0",
		`19: stream.demand.sgd.clip_x: must be positive and in the range 1e-60 to 1e60: scale the columns to about 1 (0)`)
	f("radius = 20.0", "", `16: stream.demand.sgd.radius: required for method "amb"`)
	f("radius = 20.0", "clip_y = -2\nradius = 20.0\nlevel = 0", `20: stream.demand.sgd.clip_y: must be positive (-2)`,
		`22: stream.demand.sgd.level: must be in (0, 1) (0)`)
	f("curvature = 1.5", "curvature = 17",
		`22: stream.demand.sgd.amb.curvature: must be positive and at most clip_x squared, `+
			`or 0 for clip_x squared (17)`)
	f(end, "clip = \"fixed\"", `21: stream.demand.sgd.amb.zeta: required for clip "fixed"`)
	f(end, "zeta = 2", `22: stream.demand.sgd.amb.zeta: belongs to clip "fixed" (2)`)
	f(end, "clip = \"bisect\"\nbootstrap = 200", `23: stream.demand.sgd.amb.bootstrap: belongs to clip "track" (200)`)
	f(end, "stat = 200", `22: stream.demand.sgd.amb.stat: belongs to clip "bisect" and "scan" (200)`)
	f(end, "clip = \"quantile\"\nstat = 3",
		`22: stream.demand.sgd.amb.clip: must be "track", "bisect", "scan" or "fixed" ("quantile")`)
	f(end, "bands = 0\nrungs = 0\nkappa = 0\neta0 = 0\nfraction = 0\ntop = 0\ntail = 1\nthreshold_quantile = 1",
		`22: stream.demand.sgd.amb.bands: must be 1 to 256 (0)`,
		`23: stream.demand.sgd.amb.rungs: must be 1 to 10000 (0)`,
		`24: stream.demand.sgd.amb.kappa: must be positive and at most 100 (0)`,
		`25: stream.demand.sgd.amb.eta0: must be positive and at most 1 (0)`,
		`26: stream.demand.sgd.amb.fraction: must be in (0, 1) (0)`,
		`27: stream.demand.sgd.amb.top: must be positive (0)`,
		`28: stream.demand.sgd.amb.tail: must be in (0, 1) (1)`,
		`29: stream.demand.sgd.amb.threshold_quantile: must be in (0, 1) (1)`)
	f(end, "batch = -1\nbands = 300\naverage = \"mean\"", `22: stream.demand.sgd.amb.batch: must be at least 0 (-1)`,
		`23: stream.demand.sgd.amb.bands: must be 1 to 256 (300)`,
		`24: stream.demand.sgd.amb.average: must be "tail" or "smooth" ("mean")`)
	// These keys belong in the surrounding table, or are misspelt.
	f(end, "level = 0.9", `22: stream.demand.sgd.amb.level: unknown key (it belongs in [stream.demand.sgd])`)
	f(end, "clip_x = 4.0\nCurvature = 1\ncurvatur = 1",
		`22: stream.demand.sgd.amb.clip_x: unknown key (it belongs in [stream.demand.sgd])`,
		`23: stream.demand.sgd.amb.Curvature: keys are lower case (did you mean curvature?)`,
		`24: stream.demand.sgd.amb.curvatur: unknown key (did you mean curvature?)`)
	f("scale ", "curvature = 3\nscale ",
		`10: stream.demand.curvature: unknown key (it belongs in [stream.demand.sgd.amb])`)
	f("[stream.demand.sgd.amb]\n"+end, "amb = 3", `21: stream.demand.sgd.amb: must be a table (3)`)
	f("[stream.demand.sgd.amb]\n"+end, "[stream.demand.sgd.newton]\ncurvature = 1",
		`21: stream.demand.sgd.newton: unknown key`)
	f("scale ", "step = 100\nscale ",
		`10: stream.demand.step: must be absent: sgd chooses the length of its steps (100)`)
	f(`columns = ["price", "weekday", "sold"]`, `columns = ["sold"]`,
		`9: stream.demand.centre: must be one number, or a list with one for each of the 1 columns`,
		`10: stream.demand.scale: must be one number, or a list with one for each of the 1 columns`)
	f(`"demand.dp"`, `"demand.dp", values = ["theta", "mean"]`,
		`8: stream.demand.output.values: must be a value that this stream publishes: "theta", "theta_average", "interval_low", "interval_high", "zeta", "average_start", "iteration", "slots" or "theta_average_original" ("mean")`)
	f(`"demand.dp" }`, `"demand.dp", values = ["interval_low"] }`+"\nsgd.intervals = false",
		`8: stream.demand.output.values: must be a value that this stream publishes: "theta", "theta_average", "zeta", "average_start", "iteration", "slots" or "theta_average_original" ("interval_low")`)
}

// everyAMB sets all keys of method amb to values other than the defaults.
const everyAMB = `clip = "fixed"
zeta = 2.5
value = "residual"
batch = 500
threshold_quantile = 0.7
kappa = 2
fraction = 0.1
rungs = 20
top = 1024
bands = 4
eta0 = 0.2
growth = "double"
average = "smooth"
tail = 0.5
restart = false
`

// TestAMBMoved: in earlier versions the keys of method amb were in the mechanism's own table. In their present table
// they must have the same meaning and digest, so that an open epoch continues. The earlier version computed the digests
// here from the same keys at their old places.
func TestAMBMoved(t *testing.T) {
	f := func(keys, digest string, more ...string) {
		t.Helper()
		around := strings.NewReplacer(
			append(more, "[stream.demand.sgd.amb]\n", "", "curvature = 1.5 ", "# ")...).Replace(demand)
		got := parse(t, around+"[stream.demand.sgd.amb]\n"+keys).Streams[0].Digest(0,
			map[string]string{"noise": "1", "mechanism": "sgd/1"})
		if hex.EncodeToString(got[:]) != digest {
			t.Errorf("%s: digest %x, was %s", keys, got, digest)
		}
		var want []string
		for i, line := range strings.Split(strings.TrimSuffix(keys, "\n"), "\n") {
			name, _, ok := strings.Cut(line, " =")
			if ok {
				want = append(want,
					fmt.Sprintf("%d: stream.demand.sgd.%s: unknown key (moved to [stream.demand.sgd.amb])",
						strings.Count(around, "\n")+1+i, name))
			}
		}
		if got := faults(t, around+keys); !slices.Equal(got, want) {
			t.Errorf("%s at the old place\n got %s\nwant %s", keys, strings.Join(got, "\n     "),
				strings.Join(want, "\n     "))
		}
	}
	f("curvature = 1.5\n", "5809a89e383e09140a0598754d6b81e3fcd484db0904ef80fffa975e9504d802")
	f("curvature = 1.5\n"+everyAMB, "4befbb71e3bd9ae691f9fd47613c6820403bd3d073dd4279f8ffb77e0f411cd5",
		"radius = ", "intervals = false\nlevel = 0.9\nclip_y = 3\nradius = ")
	f("clip = \"bisect\"\nstat = 300\n", "607e606fc67d8970e6b9b92965fe18d5185bb5a5c99b8a111472e9715747cb4b")
	f("bootstrap = 300\n", "8105cba4a73a8619427369a6bc92de63d38987a7b0f51101d23d820de3dd2976")
	f("", "56d00ba5ed991fea7ce505e420f90174d46be46010b712f3644570b6a11ddcd7", "method = \"amb\"\n", "",
		"radius = 20.0 ", "radius = 7 # ")
	// One key is at its old place and is reported. A fault that only follows from it is not.
	halfway := strings.Replace(demand, "radius = ", "clip = \"bisect\"\nzeta = 1\nradius = ", 1) + "stat = 300\n"
	want := []string{`20: stream.demand.sgd.clip: unknown key (moved to [stream.demand.sgd.amb])`,
		`21: stream.demand.sgd.zeta: unknown key (moved to [stream.demand.sgd.amb])`}
	if got := faults(t, halfway); !slices.Equal(got, want) {
		t.Errorf("got %s", strings.Join(got, "\n    "))
	}
	halfway = strings.Replace(demand, "radius = ", "zeta = 1\nradius = ", 1) + "clip = \"fixed\"\n"
	if got := faults(t, halfway); !slices.Equal(got,
		[]string{`20: stream.demand.sgd.zeta: unknown key (moved to [stream.demand.sgd.amb])`}) {
		t.Errorf("got %s", strings.Join(got, "\n    "))
	}
}

// TestExampleDigests: the examples have the same digests as in earlier versions.
func TestExampleDigests(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"orders":     {"orders": "94d194e74b2a6f7558fb913334a902b7cb5b3d3296afe5ec4b03191b63053267"},
		"demand":     {"demand": "e2f4f6b6784030f6c32136bb913b9c21a6975243d92faaeb0271159f935982ac"},
		"demand-amb": {"demand": "b468ff2ef6e0d93780b0d281211b9aec126ef0e8736503afa31125a5afaffbf5"},
		"refit": {
			"prices": "8957e6c0e93b54a019da520ecb88f755c4e0cb398dc73c797339c71aa4d447e2",
			"sales":  "063c5f8c11e04731b6eb421417676795fdb7afc751fc37dea373593ec570cf96",
		},
		"churn": {"churn": "5f3770c7eda67e15172ca62290074837c95c140cd42d670a462258bafa81230c"},
	} {
		c, err := Load("../examples/" + name + ".toml")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, s := range c.Streams {
			digest := s.Digest(0, map[string]string{"noise": "1", "mechanism": s.Mechanism() + "/1"})
			got[s.Name] = hex.EncodeToString(digest[:])
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s has the digests %v, had %v", name, got, want)
		}
	}
}

// TestNewton reads a regression with method newton that sets little more than bounds.
func TestNewton(t *testing.T) {
	bare := strings.NewReplacer("method = \"amb\"\n", "", "[stream.demand.sgd.amb]\n", "", "curvature = 1.5 ", "# ",
		"radius = 20.0 ", "# ").Replace(demand)
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
	f("amb.batch = 100", `21: stream.demand.sgd.amb.batch: belongs to method "amb" (100)`)
	f("amb.restart = true", `21: stream.demand.sgd.amb.restart: belongs to method "amb" (true)`)
	f("[stream.demand.sgd.amb]\nbands = 16", `22: stream.demand.sgd.amb.bands: belongs to method "amb" (16)`)
	f("radius = -1", `21: stream.demand.sgd.radius: must be positive (-1)`)
	f("level = 1", `21: stream.demand.sgd.level: must be in (0, 1) (1)`)
}

// TestSchemaAgreesWithSGD: schema and package sgd have the same words and defaults.
func TestSchemaAgreesWithSGD(t *testing.T) {
	n := root().At("stream", "NAME", "sgd")
	for _, name := range []string{"method", "clip", "value", "growth", "average"} {
		_, c := locate(nil, "sgd", name)
		f := func(word, want string) {
			m := sgd.Config{Method: "amb", Target: "y", Columns: []string{"x", "y"}, ClipX: 1, Radius: 1}
			if word == "fixed" {
				m.Zeta = 1
			}
			toml.Field(reflect.ValueOf(&m).Elem(), name).SetString(word)
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
		for _, w := range c.Words {
			f(w, "")
		}
		f("no", "must be "+toml.Alternatives(c.Words))
	}
	var mine, theirs sgd.Config
	d := &document{toml.Of("", nil)}
	d.ReadTable(n, nil, nil, reflect.ValueOf(&mine).Elem())
	theirs.Defaults()
	if mine.Method != theirs.Method {
		t.Errorf("the default method is %q, the package has %q", mine.Method, theirs.Method)
	}
	mine.ClipX = 0 // the default in a file is "auto" instead
	mine.Method = "amb"
	theirs = sgd.Config{Method: "amb"}
	theirs.Defaults()
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults %+v, the package has %+v", mine, theirs)
	}
	mine.Method = "newton"
	d.clearOthers(n, nil, reflect.ValueOf(&mine).Elem())
	theirs = sgd.Config{}
	theirs.Defaults()
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults of newton %+v, the package has %+v", mine, theirs)
	}
	// The configuration knows the name of every value that a release can have.
	theirs.Centre = []float64{1, 0}
	for method, want := range map[string]int{"amb": 9, "newton": 11} {
		theirs.Method = method
		if names := theirs.Values(); !slices.Contains(names, "theta_average_original") || len(names) != want {
			t.Errorf("values are %q", names)
		}
	}
}
