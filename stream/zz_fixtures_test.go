package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/browser"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/race"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/twmb/franz-go/pkg/sr"
)

// counter returns what a counter of a daemon says for the value of a label.
func counter(t testing.TB, all prometheus.Gatherer, name, label string) int {
	t.Helper()
	families, err := all.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != "streamdp_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					return int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return 0
}

const gradientStream = `
[stream.orders]
input  = { topic = "orders", codec = "float64" }
output = { topic = "orders.dp" }
step   = 4
[stream.orders.privacy]
epsilon = 4.0
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = 40.0
[stream.orders.adam]
clip = 1.0
rate = 0.1
dim  = 3
`

const modelStream = `
[stream.orders]
input  = { topic = "orders", codec = "json", columns = ["a", "b", "paid"] }
output = { topic = "orders.dp" }
centre = [0, 0, 0.5]
step   = 50
[stream.orders.privacy]
epsilon = 8.0
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = 40.0
[stream.orders.adam]
mode = "model"
clip = 1.0
rate = 0.05
model = { loss = "logistic", target = "paid" }
`

// clockStream is orders with steps by the clock.
var clockStream = with(ordersStream, "step   = 100", `step = "1m"`)

// mergedClockStream is the same, merged over all partitions.
var mergedClockStream = with(mergedStream, "step = 100", `step = "1m"`)

// clockRelease is what tests look at in a release by the clock.
type clockRelease struct {
	Epoch, Step uint64
	Rows        int
	Offsets     [2]int64
	Covers      [2]int64
	Parts       []struct{ Offsets [2]int64 }
	Privacy     struct{ Statements []string }
	Mechanism   struct{ Clock string }
}

func parseClock(t testing.TB, value string) (x clockRelease) {
	t.Helper()
	must(t, json.Unmarshal([]byte(value), &x))
	return x
}

// processorTime is what the process has used of all processors.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// clockRefit makes of a stream of moments by the clock a refit.
func clockRefit(text, keys string) string {
	return with(text, "centre", "step_max = 300\ncentre", ".moments]\nclip = 1.0\n",
		".refit]\ntarget = \"weight\"\nclip_x = 1.5\nclip_y = 2.0\n"+keys+"\n")
}

// rollsStream opens another epoch every four steps, within a limit that three of
// them in a row keep.
var rollsStream = with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"", "limit_epsilon = 3.0", "limit_epsilon = 1.0")

// mayHaveRun is in the halt of a copy that was cut off when it opened an epoch of which the other
// copy has published a release.
const mayHaveRun = "is missing, and the epoch may have run"

// machineStream is a small stream; tests replace parts of it.
const machineStream = `
[stream.m]
input  = { topic = "in", codec = "json", columns = ["a", "b", "c"] }
output = { topic = "out" }
centre = [1.0, 0.0, -2.0]
scale  = [0.5, 4.0, 1.5]
step   = 7
[stream.m.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "replace"
limit_epsilon = 3.0
[stream.m.moments]
clip = 1.0
`

// machineRegressions are the same stream with regressions of several kinds.
var machineRegressions = []string{
	regression("amb.clip = \"track\"\namb.batch = 20\namb.bootstrap = 30"),
	regression("amb.clip = \"bisect\"\namb.batch = 22\namb.stat = 13\namb.bands = 3\namb.value = \"residual\""),
	regression("amb.clip = \"fixed\"\namb.zeta = 1.5\namb.batch = 20\nintercept = false\nintervals = false\namb.average = \"smooth\""),
	onlineNewton(""),
	onlineNewton("intercept = false\nradius = 5.0\n"),
}

// machineCombined are the same stream with squares of noisy rows beside joint
// estimation, one record a step, over all steps, a window and with decaying weights.
var machineCombined = []string{
	combined(""),
	combined("workload = \"window\"\nwindow = 5\n"),
	combined("workload = \"exponential\"\ndecay = 0.9\n"),
}

// combined is machineStream with the combination of methods for its moments.
func combined(keys string) string {
	return with(machineStream, "step   = 7", "step = 1") + "method = \"combined\"\nfactorization = \"identity\"\n" + keys
}

// regression is machineStream with a regression for its mechanism.
func regression(keys string) string {
	return with(machineStream, "step   = 7\n", "", "[stream.m.moments]\nclip = 1.0\n",
		"[stream.m.sgd]\nmethod = \"amb\"\ntarget = \"b\"\nclip_x = 3.0\nclip_y = 4.0\nradius = 5.0\namb.curvature = 2.0\n"+keys+"\n")
}

// onlineNewton is machineStream with the default regression, and a budget that leaves
// its steps short.
func onlineNewton(keys string) string {
	return with(machineStream, "step   = 7\n", "", "[stream.m.moments]\nclip = 1.0\n", "[stream.m.sgd]\ntarget = \"b\"\nclip_x = 3.0\n"+keys,
		"epsilon = 1.0", "epsilon = 40.0", "limit_epsilon = 3.0", "limit_epsilon = 50.0")
}

// randomLog has records of every kind at some of the offsets [0, n).
func randomLog(rng *rand.Rand, n int) (log []kafka.Record, records int) {
	for i := range n {
		if rng.IntN(5) == 0 {
			continue // aborted, a marker, compacted away
		}
		rec := kafka.Record{Offset: int64(i)}
		switch rng.IntN(10) {
		case 0:
			rec.Value = badValues[rng.IntN(len(badValues))]
		default:
			rec.Value = fmt.Appendf(nil, `{"a":%g,"b":%g,"c":%g}`, rng.NormFloat64(), 3*rng.NormFloat64(), rng.NormFloat64()-2)
		}
		log = append(log, rec)
	}
	return log, len(log)
}

// badValues give no row, each for another reason. All of them have a canary
// that must show up nowhere.
var badValues = [][]byte{
	nil,
	{},
	[]byte("canary-71c3 not json"),
	[]byte(`{"a":1,"b":2`),
	[]byte(`{"a":1,"b":2,"canary-71c3":3}`),
	[]byte(`{"a":1,"b":2,"c":"canary-71c3"}`),
	[]byte(`{"a":NaN,"b":7.1318371,"c":1}`),
	[]byte(`{"a":1e999,"b":7.1318371,"c":1}`),
	[]byte(`{"a":null,"b":7.1318371,"c":1}`),
	[]byte(`{"a":1,"a":7.1318371,"b":2,"c":1}`),
	[]byte(`[1,2,7.1318371]`),
	[]byte(`{"a":1.7e308,"b":-1.7e308,"c":7.1318371}`), // finite, and not after scaling
	[]byte(strings.Repeat("[", 200)),
	[]byte("\xff\xfe canary-71c3"),
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

func goldenPath(name string) string { return filepath.Join(root(), "stream", "testdata", name) }

// root returns the module's root.
func root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			panic("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

// releaseSchema returns the schema of releases.
func releaseSchema(t testing.TB) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(), "stream", "*", "release.schema.json"))
	must(t, err)
	if len(files) == 0 { // not yet moved
		files = []string{filepath.Join(root(), "stream", "release.schema.json")}
	}
	text, err := os.ReadFile(files[0])
	must(t, err)
	return text
}

// dump is a binary file in a form that a person can compare.
func dump(b []byte) []byte { return []byte(hex.Dump(b)) }

func flipByte(t testing.TB, path string, at int) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	data[at] ^= 1
	must(t, os.WriteFile(path, data, 0o600))
}

var update = flag.Bool("update", false, "write golden files and docs/metrics.md instead of comparing with them")

// golden compares with a file, or writes it.
func golden(t testing.TB, path string, got []byte) {
	t.Helper()
	if *update {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if string(got) != string(want) {
		t.Errorf("%s differs from what the code makes; go test ./stream -update writes it\n%s", path, got)
	}
}

var testSource = core.Source{Cluster: "c", Topic: "orders", Partition: 0}

// gathered waits until so many wait. If they never do, it goes on.
func gathered(waiting func() int, n int) {
	for late := time.Now().Add(patience); waiting() < n && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
}

// mergedRefit is a merged stream with a refit of orders.
func mergedRefit(keys string) string {
	return with(mergedStream, "step = 100\n", "", "[stream.orders.moments]\nclip = 1.0\n",
		"[stream.orders.refit]\ntarget = \"weight\"\nclip_x = 1.5\nclip_y = 2.0\n"+keys+"\n")
}

var mergedTask = core.Task{Stream: "orders", Partition: core.Merged}

// mergedStream is orders, merged over all partitions.
var mergedStream = with(ordersStream, `topic = "orders"`, `topic = "orders", partition = "all"`, "step   = 100", "step = 100\nmerge = true")

// accessible returns what is wrong for readers who don't see the page, or don't see it well:
// by axe-core, if STREAMDP_AXE names its file, and otherwise by a few rules of our own.
func accessible(t *testing.T, p *browser.Page) (faults []string) {
	t.Helper()
	if path := os.Getenv("STREAMDP_AXE"); path != "" {
		script, err := os.ReadFile(path)
		must(t, err)
		p.Eval(string(script)+"\n;0", nil)
		p.Eval(`axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.flatMap((v) => v.nodes.map((n) => v.id + ": " + n.html.slice(0, 200) + " " + (n.failureSummary || "")))) `, &faults)
		return faults
	}
	p.Eval(`(() => {
		const all = [], named = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.innerText || (e.id && document.querySelector('label[for="' + e.id + '"]'));
		if (!document.documentElement.lang || !document.title) all.push("no language or title");
		for (const e of document.querySelectorAll("button, select, a, [tabindex='0'], [role=img], [role=meter]")) if (!named(e)) all.push("no name: " + e.outerHTML.slice(0, 120));
		const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
		for (const id of new Set(ids)) if (ids.filter((x) => x === id).length > 1) all.push("id twice: " + id);
		let level = 0;
		for (const h of document.querySelectorAll("h1, h2, h3, h4")) { const n = Number(h.tagName[1]); if (n > level + 1) all.push("heading " + h.innerText + " skips a level"); level = n; }
		for (const th of document.querySelectorAll("th")) if (!th.scope) all.push("th without scope: " + th.innerText);
		return all;
	})()`, &faults)
	return faults
}

// oneShard is where all merged streams of a test are.
func oneShard(*config.Stream) int { return 0 }

// files returns the contents of a directory, by path.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	}))
	return all
}

func sameFiles(t testing.TB, was, is map[string]string) {
	t.Helper()
	for name := range is {
		if _, ok := was[name]; !ok {
			t.Errorf("%s is new", name)
		}
	}
	for name, data := range was {
		if is[name] != data {
			t.Errorf("%s has changed", name)
		}
	}
}

// refitOf is machineStream with a refit for its mechanism.
func refitOf(keys string) string {
	return with(machineStream, "step   = 7\n", "", "[stream.m.moments]\nclip = 1.0\n",
		"[stream.m.refit]\ntarget = \"b\"\nclip_x = 3.0\nclip_y = 4.0\n"+keys+"\n")
}

// machineRefits are small streams with refits of several kinds.
var machineRefits = []string{
	refitOf("window = 20"),
	refitOf("window = 30\nstride = 45\nintercept = false"),
	refitOf("window = 40\nsolver = \"ihm\""),
	refitOf("window = 25\nsolver = \"linmix\""),
	with(refitOf("window = 50\nsolver = \"fast-ihm\""), `adjacency = "replace"`, `adjacency = "zero-out"`),
	with(refitOf("window = 33\nsolver = \"adassp\"\neigen_test = true"), "limit_epsilon", "limit_delta = 1e-7\nlimit_epsilon"),
	refitOf("window = 28\nsolver = \"dp-gd\""),
}

// copy of a release in the output topic.
type published struct {
	offset int64
	key    string
	value  string
	hash   [32]byte // of key, value and headers
	epoch  uint64
	step   uint64
}

// release is what tests read of a release's value.
type release struct {
	Schema    string
	Stream    string
	Partition int
	Epoch     uint64
	Step      uint64
	Rows      uint64
	Offsets   [2]int64
	Covers    [2]int64
	Mechanism struct {
		Method    string
		Clip      string
		Search    int64
		Intercept bool
	}
	Values map[string]struct {
		Shape []int
		Data  []float64
	}
	Warmup []json.RawMessage
}

// silent returns how many steps without a release, searches, are between this
// release and the one before, or the mechanism's begin where it is the first, and
// their offsets.
func (r *release) silent(first bool) (steps uint64, offsets int64) {
	switch {
	case len(r.Warmup) > 0 || r.Mechanism.Search == 0 || r.Mechanism.Clip != "bisect" && r.Mechanism.Clip != "scan" && !first:
		return 0, 0
	case r.Mechanism.Method == "newton":
		searches := int64(2)
		if r.Mechanism.Intercept {
			searches = 3
		}
		return uint64(searches), searches * r.Mechanism.Search
	}
	return 1, r.Mechanism.Search
}

func (p *published) parse(t testing.TB) (rel release) {
	t.Helper()
	if err := json.Unmarshal([]byte(p.value), &rel); err != nil {
		t.Fatalf("release %s: %v", p.key, err)
	}
	return rel
}

// slow skips what the default run has no time for.
func slow(t testing.TB) {
	t.Helper()
	if os.Getenv("STREAMDP_SLOW") == "" {
		t.Skip("takes long: runs with STREAMDP_SLOW=1, which the CI script sets")
	}
}

// patience is how long a test waits for what must happen.
var patience = 60 * time.Second

func init() {
	if race.Enabled {
		patience *= 5
	}
}

const ordersStream = `
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
`

// with returns a stream's tables with texts replaced: old, new, old, new.
func with(toml string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(toml, pairs[i]) {
			panic("nothing to replace: " + pairs[i])
		}
		toml = strings.Replace(toml, pairs[i], pairs[i+1], 1)
	}
	return toml
}

// shortDir is a temporary directory whose name leaves room for that of a
// socket, which may have 107 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func dial(t testing.TB, addr string) *kafka.Client {
	t.Helper()
	c, err := kafka.NewClient(kafka.Options{Brokers: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func copyDir(t testing.TB, to, from string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // a daemon that runs has taken it away
		}
		if err != nil {
			return err
		}
		name := filepath.Join(to, strings.TrimPrefix(path, from))
		if e.IsDir() {
			return os.MkdirAll(name, 0o700)
		}
		if !e.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(name, data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// journal keeps what a daemon logs.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	if testing.Verbose() {
		os.Stderr.Write(p)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func readAll(t testing.TB, res *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func fetch(t testing.TB, url string) (code int, body string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode, readAll(t, res)
}

var ordersTask = core.Task{Stream: "orders", Partition: 0}

func orderRecord(i int) []byte {
	return fmt.Appendf(nil, `{"amount": %d.25, "items": %d, "weight": 0.%d, "note": "x"}`, 20+i%60, 1+i%7, i%10)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// validator checks JSON against the part of JSON Schema 2020-12 that the
// release's schema uses, and refuses a schema that uses more.
type validator struct {
	defs   map[string]any
	faults []string
}

// annotations are keywords without effect.
var annotations = []string{"$schema", "$id", "title", "description", "$defs"}

func validate(schema []byte, doc string) ([]string, error) {
	var s map[string]any
	if err := decodeNumbers(schema, &s); err != nil {
		return nil, err
	}
	var d any
	if err := decodeNumbers([]byte(doc), &d); err != nil {
		return nil, err
	}
	v := &validator{}
	v.defs, _ = s["$defs"].(map[string]any)
	v.check("", s, d)
	return v.faults, nil
}

func decodeNumbers(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return dec.Decode(into)
}

func (v *validator) fault(path, format string, args ...any) {
	v.faults = append(v.faults, path+": "+fmt.Sprintf(format, args...))
}

func number(x any) *big.Rat {
	n, ok := x.(json.Number)
	if !ok {
		return nil
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok {
		return nil
	}
	return r
}

func kindOf(x any) string {
	switch x := x.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	default:
		if r := number(x); r.IsInt() {
			return "integer"
		}
		return "number"
	}
}

func same(a, b any) bool {
	if x, y := number(a), number(b); x != nil && y != nil {
		return x.Cmp(y) == 0
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func (v *validator) check(path string, s map[string]any, d any) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		want := s[key]
		switch key {
		case "$ref":
			name := strings.TrimPrefix(want.(string), "#/$defs/")
			def, ok := v.defs[name].(map[string]any)
			if !ok {
				panic("schema: no definition " + name)
			}
			v.check(path, def, d)
		case "type":
			if kind := kindOf(d); kind != want && !(kind == "integer" && want == "number") {
				v.fault(path, "%s, want %s", kind, want)
			}
		case "const":
			if !same(d, want) {
				v.fault(path, "not %v", want)
			}
		case "enum":
			if !slices.ContainsFunc(want.([]any), func(e any) bool { return same(d, e) }) {
				v.fault(path, "not one of %v", want)
			}
		case "anyOf":
			if !slices.ContainsFunc(want.([]any), func(e any) bool {
				inner := &validator{defs: v.defs}
				inner.check(path, e.(map[string]any), d)
				return len(inner.faults) == 0
			}) {
				v.fault(path, "none of the alternatives")
			}
		case "pattern":
			if text, ok := d.(string); ok && !regexp.MustCompile(want.(string)).MatchString(text) {
				v.fault(path, "does not match %s", want)
			}
		case "minimum", "exclusiveMinimum", "exclusiveMaximum":
			x := number(d)
			if x == nil {
				continue
			}
			c := x.Cmp(number(want))
			if key == "minimum" && c < 0 || key == "exclusiveMinimum" && c <= 0 || key == "exclusiveMaximum" && c >= 0 {
				v.fault(path, "violates %s %v", key, want)
			}
		case "required":
			if object, ok := d.(map[string]any); ok {
				for _, name := range want.([]any) {
					if _, ok := object[name.(string)]; !ok {
						v.fault(path, "lacks %v", name)
					}
				}
			}
		case "properties":
			if object, ok := d.(map[string]any); ok {
				for name, sub := range want.(map[string]any) {
					if x, ok := object[name]; ok {
						v.check(path+"/"+name, sub.(map[string]any), x)
					}
				}
			}
		case "additionalProperties":
			known, _ := s["properties"].(map[string]any)
			if object, ok := d.(map[string]any); ok {
				for name, x := range object {
					if _, ok := known[name]; !ok {
						v.check(path+"/"+name, want.(map[string]any), x)
					}
				}
			}
		case "items":
			if list, ok := d.([]any); ok {
				for i, x := range list {
					v.check(fmt.Sprint(path, "/", i), want.(map[string]any), x)
				}
			}
		case "prefixItems":
			if list, ok := d.([]any); ok {
				for i, sub := range want.([]any) {
					if i < len(list) {
						v.check(fmt.Sprint(path, "/", i), sub.(map[string]any), list[i])
					}
				}
			}
		case "minItems", "maxItems":
			if list, ok := d.([]any); ok {
				c := big.NewRat(int64(len(list)), 1).Cmp(number(want))
				if key == "minItems" && c < 0 || key == "maxItems" && c > 0 {
					v.fault(path, "%d items, %s %v", len(list), key, want)
				}
			}
		case "uniqueItems":
			if list, ok := d.([]any); ok {
				for i, x := range list {
					if slices.ContainsFunc(list[:i], func(y any) bool { return same(x, y) }) {
						v.fault(path, "%v twice", x)
					}
				}
			}
		default:
			if !slices.Contains(annotations, key) {
				panic("schema: keyword " + key)
			}
		}
	}
}

// conforms fails unless a release's value has the published schema and no field
// that the schema does not name.
func conforms(t testing.TB, value string) {
	t.Helper()
	faults, err := validate(releaseSchema(t), value)
	if err != nil || len(faults) > 0 {
		t.Errorf("release against its schema: %v %v\n%s", err, faults, value)
	}
	var schema struct {
		Properties map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"properties"`
		Defs map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(releaseSchema(t), &schema); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(value), &doc); err != nil {
		t.Fatal(err)
	}
	for name, x := range doc {
		top, ok := schema.Properties[name]
		if !ok {
			t.Errorf("the schema does not name %s", name)
		}
		inner := top.Properties
		object, isObject := x.(map[string]any)
		if !isObject {
			continue
		}
		for field, x := range object {
			if name == "values" {
				for part := range x.(map[string]any) {
					if _, ok := schema.Defs["value"].Properties[part]; !ok {
						t.Errorf("the schema does not name values.%s.%s", field, part)
					}
				}
			} else if _, ok := inner[field]; !ok {
				t.Errorf("the schema does not name %s.%s", name, field)
			}
		}
	}
}

// avroOrder is a schema of orders with these fields.
func avroOrder(fields ...string) sr.Schema {
	var list []string
	for _, f := range fields {
		name, typ, _ := strings.Cut(f, " ")
		list = append(list, fmt.Sprintf(`{"name":%q,"type":%q}`, name, typ))
	}
	return sr.Schema{Schema: `{"type":"record","name":"order","fields":[` + strings.Join(list, ",") + `]}`}
}

// framed is a record in Confluent's framing: the schema's id, and numbers.
func framed(id uint32, numbers ...float64) kafkatest.Record {
	b := binary.BigEndian.AppendUint32([]byte{0}, id)
	for _, x := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
	}
	return kafkatest.Record{Value: b}
}

// wideStream has d packed columns.
func wideStream(d, step int) string {
	names := make([]string, d)
	for i := range names {
		names[i] = fmt.Sprintf("%q", fmt.Sprint("c", i))
	}
	return with(machineStream,
		`codec = "json", columns = ["a", "b", "c"]`, fmt.Sprintf(`codec = "float64", columns = [%s]`, strings.Join(names, ", ")),
		"centre = [1.0, 0.0, -2.0]\nscale  = [0.5, 4.0, 1.5]\n", "",
		"step   = 7", fmt.Sprintf("step = %d", step))
}

// packedRecords are n records of d columns.
func packedRecords(d, n int) []kafka.Record {
	rng := rand.New(rand.NewPCG(uint64(d), uint64(n)))
	list := make([]kafka.Record, n)
	for i := range list {
		list[i].Offset = int64(i)
		for range d {
			list[i].Value = binary.LittleEndian.AppendUint64(list[i].Value, math.Float64bits(rng.NormFloat64()/math.Sqrt(float64(d))))
		}
	}
	return list
}

// response is one response with records of offsets [first, first+len).
func response(records []kafka.Record, first int64) *codec.Batch {
	b := &codec.Batch{}
	b.First, b.Next = first, first+int64(len(records))
	for i, rec := range records {
		rec.Offset = first + int64(i)
		b.Records = append(b.Records, rec)
		b.Bytes += len(rec.Value)
	}
	return b
}

// userOf is the user key of a record: of nine persons, or of nobody.
func userOf(i int) []byte {
	if u := i * 7 % 19 % 10; u > 0 {
		return fmt.Append(nil, "u", u)
	}
	return nil
}

// personModes are a stream that remembers everybody, with a full table, and one that forgets.
var personModes = []struct{ name, table string }{
	{"cap", "user = { key = \"field:user\", cap = 3, separation = 2, max_users = 12 }\n"},
	{"separation", "horizon = 5000\nuser = { key = \"field:user\", separation = 4, per_step = 2, max_users = 400 }\n"},
}

// personRecord is a record of one of 23 persons, some of whom are rare, or of nobody.
func personRecord(i int) []byte {
	h := uint32(i) * 2654435761 >> 8
	u := int(23 * math.Pow(float64(h)/(1<<24), 2))
	if h%11 == 0 {
		return orderRecord(i)
	}
	return append(fmt.Appendf(nil, `{"user": "u%d", `, u), orderRecord(i)[1:]...)
}

// rolloverStream ends its epochs after three steps of ten records and opens the
// next by itself.
var rolloverStream = with(ordersStream, "step   = 100", "step = 10\nhorizon = 3\non_horizon = \"rollover\"")

const scenarioRecords = 75 // two whole epochs, one step of a third, and five left over

const scenarioSteps = 7

// epochReference are the releases of an uninterrupted run whose first epoch has
// number 1 + shift, by place of the epoch in the log and step.
type epochReference map[[2]int64]published
