package config

import (
	"errors"
	"flag"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/moments"
)

var update = flag.Bool("update", false, "write docs/config.md")

// orders is a configuration that must always be accepted unchanged.
const orders = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "/var/lib/streamdp"
key_file = "/etc/streamdp/key"
[http]
listen = "127.0.0.1:9464"
exposure = "operator"
[stream.orders]
input  = { topic = "orders", partition = 0, start = "earliest", codec = "json", columns = ["amount", "items", "weight"] }
output = { topic = "orders.dp" }
centre = [40.0, 3.0, 1.2]          # public constants: rows enter as (x - centre) / scale
scale  = [80.0, 5.0, 2.0]
step   = 100                       # offsets per release
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0                # over all epochs and streams that read this partition
[stream.orders.moments]
clip = 1.0                         # bound on the row's Euclidean norm after scaling
workload = "mean"
`

// other is a second stream, to be appended to orders; its header is line 23.
const other = `[stream.other]
input = { topic = "orders", columns = ["amount"] }
output.topic = "other.dp"
step = 50
privacy = { epsilon = 2, delta = 1e-8, adjacency = "zero-out", limit_epsilon = 3 }
moments.clip = 2
`

func parse(t *testing.T, src string) *Config {
	t.Helper()
	c, err := Parse("c.toml", []byte(src))
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, src)
	}
	return c
}

// faults returns the lines of the error, without the file's name.
func faults(t *testing.T, src string) []string {
	t.Helper()
	c, err := Parse("c.toml", []byte(src))
	if err == nil {
		return nil
	}
	if c != nil {
		t.Error("a configuration is returned with an error")
	}
	if _, ok := err.(Faults); !ok {
		t.Fatalf("%T, want Faults", err)
	}
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		rest, ok := strings.CutPrefix(lines[i], "c.toml:")
		if !ok {
			t.Errorf("no position in %q", lines[i])
		}
		lines[i] = rest
	}
	return lines
}

func TestOrders(t *testing.T) {
	want := &Config{
		Kafka: Kafka{Brokers: []string{"localhost:9092"}, ClientID: "streamdp", FetchMemory: 256 << 20},
		State: State{Dir: "/var/lib/streamdp", KeyFile: "/etc/streamdp/key", CommitInterval: 200 * time.Millisecond},
		HTTP:  HTTP{Listen: "127.0.0.1:9464", Exposure: "operator", Metrics: "task"},
		Log:   Log{Level: "info", Format: "json"},
	}
	yes := true
	s := &Stream{
		Name: "orders",
		Input: Input{Topic: "orders", MaxTopics: 100, Partitions: []int{0}, Start: Earliest, Codec: "json",
			Framing: "confluent", Subjects: []string{},
			Columns: []string{"amount", "items", "weight"}},
		Output: Output{Topic: "orders.dp", Create: true, Values: []string{}, Encoding: "json", PrivacyEvery: 1},
		Centre: []float64{40, 3, 1.2},
		Scale:  []float64{80, 5, 2},
		Step:   100, StepMax: 10_000_000, MergeAhead: 4,
		OnHorizon:   "halt",
		WarmupMode:  "buffer",
		OnGap:       "halt",
		DeadLetter:  DeadLetter{Mode: "off"},
		LatticeBits: 24,
		Privacy:     Privacy{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut, LimitEpsilon: 3, LimitDelta: 1e-8},
	}
	s.Moments = &moments.Config{Method: "auto", Clip: 1, Workload: "mean", Factorization: "auto", Bands: 16, Split: 0.5,
		Metric: "last", Covariance: &yes,
		Columns: s.Input.Columns, Step: 100, Centre: s.Centre, Scale: s.Scale, WarmupMode: "buffer"}
	want.Streams = []*Stream{s}

	if got := parse(t, orders); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v\nstream %+v\nwant   %+v", got, want, got.Streams[0], s)
	}
	// The example file is the same with comments.
	got, err := Load("../examples/orders.toml")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the example differs: %+v", got.Streams[0])
	}
	if got.Stream("orders") != got.Streams[0] || got.Stream("order") != nil {
		t.Error("Stream finds the wrong one")
	}
	if s.Mechanism() != "moments" || (&Stream{}).Mechanism() != "" {
		t.Error("Mechanism")
	}
	if p := s.Params(); p != (dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut, LatticeBits: 24}) {
		t.Errorf("Params %+v", p)
	}
}

// TestExampleHoldsTheOriginal: the example may have additional comments, but nothing else may differ.
func TestExampleHoldsTheOriginal(t *testing.T) {
	data, err := os.ReadFile("../examples/orders.toml")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\n"); line != "" && line[0] != '#' {
			kept = append(kept, line)
		}
	}
	if got := strings.Join(kept, "\n") + "\n"; got != orders {
		t.Errorf("without its comment lines the example is\n%s", got)
	}
}

// TestLeast: if the file has only topic, columns and guarantee, moments find all bounds, with a release at every
// hundredth offset, for one epoch. This is the same configuration as one that states these values. A configuration with
// a clip norm still has the constants 0 and 1.
func TestLeast(t *testing.T) {
	const least = `[kafka]
brokers = ["localhost:9092"]
[state]
dir = "/var/lib/streamdp"
key_file = "/etc/streamdp/key"
[stream.orders]
input = { topic = "orders", columns = ["amount", "items"] }
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
[stream.orders.moments]
`
	s := parse(t, least).Streams[0]
	nan := func(x []float64) bool { return len(x) == 2 && math.IsNaN(x[0]) && math.IsNaN(x[1]) }
	if !nan(s.Centre) || !nan(s.Scale) || !nan(s.Moments.Centre) || !nan(s.Moments.Scale) ||
		!math.IsNaN(s.Moments.Clip) ||
		s.Step != 100 || s.Moments.Step != 100 || s.Output.Topic != "orders.dp" || !s.Output.Create ||
		s.Privacy.LimitEpsilon != 1 || s.Privacy.LimitDelta != 1e-8 {
		t.Errorf("%+v, moments %+v", s, s.Moments)
	}
	full := strings.NewReplacer("[stream.orders.privacy]",
		"output.topic = \"orders.dp\"\ncentre = \"auto\"\nscale = \"auto\"\nstep = 100\n[stream.orders.privacy]\n"+
			"limit_epsilon = 1.0",
		"[stream.orders.moments]\n", "[stream.orders.moments]\nclip = \"auto\"\n").Replace(least)
	if a, b := s.Canonical(0), parse(t, full).Streams[0].Canonical(0); string(a) != string(b) {
		t.Errorf("%s and, written out, %s", a, b)
	}
	given := parse(t, least+"clip = 1.5\n").Streams[0]
	if !reflect.DeepEqual(given.Centre, []float64{0, 0}) || !reflect.DeepEqual(given.Scale, []float64{1, 1}) ||
		given.Moments.Automatic() {
		t.Errorf("with a clip norm: centre %v, scale %v", given.Centre, given.Scale)
	}
	part := parse(t,
		strings.Replace(least, "[stream.orders.privacy]", "scale = [2, \"auto\"]\n[stream.orders.privacy]",
			1)).Streams[0]
	if !nan(part.Centre) || part.Scale[0] != 2 || !math.IsNaN(part.Scale[1]) {
		t.Errorf("with one scale: centre %v, scale %v", part.Centre, part.Scale)
	}

	// Each configuration lacks a key that has no default, or has a value that conflicts with a default.
	f := func(old, new string, want ...string) {
		t.Helper()
		src := strings.Replace(least, old, new, 1)
		if got := faults(t, src); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %q\nwant %q", new, got, want)
		}
	}
	f("[stream.orders.moments]",
		"[stream.orders.adam]\nmodel = { loss = \"linear\", target = \"items\" }\nmode = \"model\"\nclip = 1.0\n"+
			"rate = 0.1", "6: stream.orders.step: required")
	f("[stream.orders]",
		"[stream.more]\ninput = { topic = \"orders.dp\", columns = [\"a\"] }\n"+
			"privacy = { epsilon = 1, delta = 1e-8, adjacency = \"replace\" }\nmoments = {}\n[stream.orders]",
		`10: stream.orders.output.topic: must not be an input topic, as stream.more.input.topic is ("orders.dp")`)
	f("[stream.orders]",
		"[stream.more]\ninput = { topic = \"orders\", columns = [\"a\"] }\n"+
			"privacy = { epsilon = 1, delta = 1e-8, adjacency = \"zero-out\" }\nmoments = {}\n[stream.orders]",
		`10: stream.orders.output.topic: required, because streams more and orders read the same topic and would both publish to the same default ("orders.dp")`)
	f("[stream.orders]",
		"[stream.more]\ninput = { topic = \"orders\", columns = [\"a\"] }\noutput.topic = \"more\"\n"+
			"privacy = { epsilon = 2, delta = 1e-8, adjacency = \"zero-out\" }\nmoments = {}\n[stream.orders]",
		"13: stream.orders.privacy.limit_epsilon: must be the same as in [stream.more], which reads the same topic: "+
			"2 (1)")
	f(`topic = "orders"`, `topic = "`+strings.Repeat("x", 247)+`"`,
		`6: stream.orders.output.topic: required, because the default (input.topic followed by ".dp") is too long for a topic`)
}

func TestLoadUnreadable(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.toml"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, ok := err.(Faults); ok {
		t.Error("a missing file is not an error of type Faults")
	}
}

// TestValues reads further accepted values and checks the results.
func TestValues(t *testing.T) {
	f := func(old, new string, get func(*Config) any, want any) {
		t.Helper()
		src := strings.Replace(orders, old, new, 1)
		if src == orders {
			t.Fatalf("%q is not there", old)
		}
		if got := get(parse(t, src)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", new, got, want)
		}
	}
	first := func(get func(*Stream) any) func(*Config) any {
		return func(c *Config) any { return get(c.Streams[0]) }
	}
	partitions := first(func(s *Stream) any { return s.Input.Partitions })
	f("partition = 0", "partition = 7", partitions, []int{7})
	f("partition = 0", "partition = [2, 0, 1]", partitions, []int{0, 1, 2})
	f(`partition = 0, `, ``, partitions, []int{0})
	f("partition = 0", `partition = "all"`, partitions, []int{AllPartitions})
	begin := first(func(s *Stream) any { return s.Input.Start })
	f(`"earliest"`, `"latest"`, begin, Latest)
	f(`"earliest"`, `0`, begin, Start(0))
	f(`"earliest"`, `12345`, begin, Start(12345))
	f(`"earliest"`, `"12345"`, begin, Start(12345))
	f(`"earliest"`, `"9223372036854775807"`, begin, Start(1<<63-1))
	f(`start = "earliest", `, ``, begin, Earliest)
	centre := first(func(s *Stream) any { return s.Centre })
	f("centre = [40.0, 3.0, 1.2]", "centre = 2", centre, []float64{2, 2, 2})
	f("centre = [40.0, 3.0, 1.2]", "centre = [1, 2.5, -3]", centre, []float64{1, 2.5, -3})
	f("centre = [40.0, 3.0, 1.2]", "", centre, []float64{0, 0, 0})
	scale := first(func(s *Stream) any { return s.Scale })
	f("scale  = [80.0, 5.0, 2.0]", "scale = 0.5", scale, []float64{.5, .5, .5})
	f("scale  = [80.0, 5.0, 2.0]", "", scale, []float64{1, 1, 1})
	f("scale  = [80.0, 5.0, 2.0]", "", first(func(s *Stream) any { return s.Moments.Scale }), []float64{1, 1, 1})
	limit := first(func(s *Stream) any { return s.Privacy.LimitDelta })
	f("delta = 1e-8", "delta = 1e-9", limit, 1e-9)
	f("delta = 1e-8", "delta = 1e-9\nlimit_delta = 1e-7", limit, 1e-7)
	f("epsilon = 1.0", "epsilon = 3", first(func(s *Stream) any { return s.Privacy.Epsilon }), 3.0)
	f("zero-out", "replace", first(func(s *Stream) any { return s.Privacy.Adjacency }), dp.Replace)
	horizon := first(func(s *Stream) any { return [2]any{s.Moments.Horizon, s.OnHorizon} })
	f("step   = 100", "step = 100\nhorizon = 1000", horizon, [2]any{uint64(1000), "halt"})
	f("step   = 100", "step = 100\nhorizon = 1000\non_horizon = \"continue\"", horizon,
		[2]any{uint64(1000), "continue"})
	covariance := first(func(s *Stream) any { return *s.Moments.Covariance })
	f(`"mean"`, `"mean"`+"\ncovariance = false", covariance, false)
	f(`"mean"`, `"sum"`, covariance, false)
	f(`"mean"`, `"exponential"`+"\ndecay = 0.5", first(func(s *Stream) any { return s.Moments.Decay }), 0.5)
	f(`"mean"`, `"mean"`+"\nweights = [1, 2]", first(func(s *Stream) any { return s.Moments.Weights }), []float64{1, 2})
	values := first(func(s *Stream) any { return s.Output.Values })
	f(`"orders.dp"`, `"orders.dp", values = ["covariance_original", "mean"]`, values,
		[]string{"covariance_original", "mean"})
	f("[state]", "tls = {}\n[state]", func(c *Config) any { return *c.Kafka.TLS }, TLS{})
	f("[state]", "tls = { ca_file = \"/ca\", cert_file = \"/c\", key_file = \"/k\" }\n[state]",
		func(c *Config) any { return *c.Kafka.TLS }, TLS{"/ca", "/c", "/k"})
	f("[state]", "sasl = { mechanism = \"plain\", username = \"u\", password_file = \"/p\" }\n[state]",
		func(c *Config) any { return *c.Kafka.SASL }, SASL{Mechanism: "plain", Username: "u", PasswordFile: "/p"})
	listener := func(c *Config) any {
		return [4]any{c.HTTP.Listen, c.HTTP.TLS, c.HTTP.BasicAuth, c.HTTP.InsecureListen}
	}
	f(`"127.0.0.1:9464"`, `":1"`+"\ninsecure_listen = true", listener,
		[4]any{":1", (*ServerTLS)(nil), (*BasicAuth)(nil), true})
	f(`"127.0.0.1:9464"`, `":1"`+"\ntls = { cert_file = \"/c\", key_file = \"/k\" }",
		func(c *Config) any { return *c.HTTP.TLS }, ServerTLS{"/c", "/k"})
	f(`"127.0.0.1:9464"`, `":1"`+"\nbasic_auth = { username = \"u\", password_file = \"/p\" }",
		func(c *Config) any { return *c.HTTP.BasicAuth }, BasicAuth{"u", "/p"})
	f(`"127.0.0.1:9464"`, `":1"`+"\ninsecure_listen = true\nhosts = [\"a\", \"b.c\"]",
		func(c *Config) any { return c.HTTP.Hosts }, []string{"a", "b.c"})
	commits := func(c *Config) any { return c.State.CommitInterval }
	f(`[http]`, `epoch_secret_retention = "720h"`+"\n[http]",
		func(c *Config) any { return c.State.EpochSecretRetention }, 720*time.Hour)
	f(`[http]`, `commit_interval = "1m30s"`+"\n[http]", commits, 90*time.Second)
	f(`[http]`, `commit_interval = "0s"`+"\n[http]", commits, time.Duration(0))
	f("[\"localhost:9092\"]\n[state]",
		"[\"LocalHost:1\", \"127.0.0.9:9092\", \"[::1]:9093\"]\n[state]\ncommit_interval = \"0s\"", commits,
		time.Duration(0))
}

func TestStart(t *testing.T) {
	for _, s := range []string{"earliest", "latest", "0", "77"} {
		var at Start
		if err := at.UnmarshalText([]byte(s)); err != nil {
			t.Error(err)
		}
		if text, err := at.MarshalText(); err != nil || string(text) != s || at.String() != s {
			t.Errorf("%s comes back as %s, %v", s, text, err)
		}
	}
	if _, err := Start(-3).MarshalText(); err == nil {
		t.Error("-3 can be marshalled")
	}
}

// TestAuto checks that bounds that are "auto" are NaN for the mechanism and "auto" in the digest. Other mechanisms
// refuse "auto".
func TestAuto(t *testing.T) {
	edit := func(replace ...string) string {
		text := strings.NewReplacer(replace...).Replace(orders)
		if text == orders {
			t.Fatal("nothing is replaced")
		}
		return text
	}
	s := parse(t,
		edit("clip = 1.0", `clip = "auto"`, "[40.0, 3.0, 1.2]", `["auto", 3, "auto"]`, "[80.0, 5.0, 2.0]", `"auto"`,
			"step   = 100", "step = 100\nwarmup = 20000\nwarmup_mode = \"split\"")).Streams[0]
	m := s.Moments
	if !math.IsNaN(m.Clip) || !math.IsNaN(m.Centre[0]) || m.Centre[1] != 3 || len(m.Scale) != 3 ||
		!math.IsNaN(m.Scale[2]) || m.Warmup != 20000 || m.WarmupMode != "split" {
		t.Errorf("%+v", m)
	}
	c := string(s.Canonical(0))
	for _, want := range []string{`"clip":"auto"`, `"centre":["auto",3,"auto"]`, `"scale":["auto","auto","auto"]`,
		`"warmup":20000`, `"warmup_mode":"split"`} {
		if !strings.Contains(c, want) {
			t.Errorf("%s is not in %s", want, c)
		}
	}
	before := parse(t, orders).Streams[0].Canonical(0)
	if strings.Contains(string(before), "warmup") {
		t.Errorf("the digest of a stream without a warm-up has changed: %s", before)
	}
	if d := Diff(before, []byte(c)); len(d) != 5 {
		t.Errorf("differences %q", d)
	}
}
