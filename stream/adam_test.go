package stream_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// gradient returns a record of packed float64s, computed at the parameters of a step.
func gradient(step uint64, x ...float64) kafka.Message {
	return kafka.Message{Value: core.PackParameters(x), Headers: stepHeader(step), Time: time.UnixMilli(1)}
}

func stepHeader(step uint64) []kafka.Header {
	return []kafka.Header{{Key: "other", Value: []byte("x")}, {Key: "model-step", Value: fmt.Appendf(nil, "%d", step)}}
}

// postOn appends messages to the topic "orders".
func postOn(r *streamtest.Rig, messages ...kafka.Message) {
	r.T.Helper()
	if _, err := r.Client.Produce(context.Background(), "orders", 0, messages); err != nil {
		r.T.Fatal(err)
	}
}

// data returns the numbers of a value of a release, JSON or base64.
func data(t testing.TB, value, name string) []float64 {
	t.Helper()
	var rel struct {
		Values map[string]struct{ Data json.RawMessage }
	}
	fixtures.Must(t, json.Unmarshal([]byte(value), &rel))
	raw := rel.Values[name].Data
	var x []float64
	if json.Unmarshal(raw, &x) == nil {
		return x
	}
	var text string
	fixtures.Must(t, json.Unmarshal(raw, &text))
	b, err := base64.StdEncoding.DecodeString(text)
	fixtures.Must(t, err)
	x, err = core.ParseParameters(b)
	fixtures.Must(t, err)
	return x
}

// assembled joins the pieces of releases in an output, and then checks the output like one of whole releases.
func assembled(t testing.TB, list []fixtures.Published, records []kafka.Record) []fixtures.Published {
	t.Helper()
	var all []fixtures.Published
	open := map[string][]byte{}
	for i, p := range list {
		chunk, hash := header(records[i], "streamdp_chunk"), header(records[i], "streamdp_sha256")
		if chunk == "" {
			all = append(all, p)
			continue
		}
		var k, n int
		if _, err := fmt.Sscanf(chunk, "%d/%d", &k, &n); err != nil || k < 1 || k > n {
			t.Fatalf("chunk %q", chunk)
		}
		key := strings.TrimSuffix(p.Key, fmt.Sprintf("/%d", k))
		if key == p.Key || key != core.Identity(fixtures.OrdersTask, p.Epoch, p.Step) {
			t.Fatalf("piece %s has key %s", chunk, p.Key)
		}
		if k == 1 {
			open[key] = nil
		}
		open[key] = append(open[key], p.Value...)
		if k < n {
			continue
		}
		if sum := sha256.Sum256(open[key]); hex.EncodeToString(sum[:]) != hash {
			t.Fatalf("%s: the pieces have another hash", key)
		}
		p.Key, p.Value, p.Hash = key, string(open[key]), sha256.Sum256(open[key])
		all = append(all, p)
	}
	return all
}

func header(rec kafka.Record, key string) string {
	for _, h := range rec.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// TestGradients runs a stream of gradients end to end. Every release moves the parameters and conforms to the schema.
// If a record is not a gradient, or is a stale one, its slot adds nothing.
func TestGradients(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.GradientStream)
	bad := []kafka.Message{
		gradient(0, 1, 2), gradient(0, 1, 2, 3, 4), gradient(0, 1, math.NaN(), 0), gradient(0, math.Inf(1), 0, 0),
		{Headers: stepHeader(0), Time: time.UnixMilli(1)},
		{Value: core.PackParameters([]float64{1, 1, 1}), Time: time.UnixMilli(1)},
		gradient(7, 1, 1, 1), gradient(3, 1, 1, 1), // from the future and stale, in steps 7 and 8
		{Value: core.PackParameters([]float64{1, 1, 1}), Headers: append(stepHeader(0), stepHeader(0)...),
			Time: time.UnixMilli(1)},
		{Value: core.PackParameters([]float64{1, 1, 1}),
			Headers: []kafka.Header{{Key: "model-step", Value: []byte("-1")}}, Time: time.UnixMilli(1)},
		{Value: core.PackParameters([]float64{1, 1, 1}), Headers: []kafka.Header{{Key: "model-step", Value: nil}},
			Time: time.UnixMilli(1)},
		{Value: core.PackParameters([]float64{1, 1, 1}),
			Headers: []kafka.Header{{Key: "Model-Step", Value: []byte("0")}}, Time: time.UnixMilli(1)},
	}
	x := r.Start()
	const steps = 12
	for i := range uint64(steps) {
		postOn(r, gradient(i, 1, 0, 0), gradient(i, 0, -1, 0), gradient(i, 1, 0, 1e9), bad[i])
		x.Published(i + 1)
	}
	_, body := x.Get("/metrics")
	for _, want := range []string{
		`{partition="0",reason="arity",stream="orders"} 2`, `{partition="0",reason="not-finite",stream="orders"} 2`,
		`{partition="0",reason="null",stream="orders"} 1`,
		`{partition="0",reason="no-step",stream="orders"} 5`, `{partition="0",reason="stale",stream="orders"} 2`,
	} {
		if !strings.Contains(body, "streamdp_diagnostic_records_rejected_total"+want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	x.End()
	r.History("orders.dp")
	list := r.Output("orders.dp")
	var last []float64
	for i, p := range list {
		fixtures.Conforms(t, p.Value)
		theta := data(t, p.Value, "parameters")
		if rel := p.Parse(t); rel.Rows != 4 || len(theta) != 3 || slices.Equal(theta, last) ||
			data(t, p.Value, "model_step")[0] != float64(i+1) {
			t.Errorf("step %d: %s", i+1, p.Value)
		}
		last = theta
	}
	if !(last[0] < 0 && last[1] > 0 && last[2] < 0) {
		t.Errorf("parameters %g do not follow the gradients", last)
	}

	// With null records in place of the refused ones, the releases have the same bytes.
	nulls := streamtest.NewRig(t, fixtures.GradientStream)
	nulls.Seed = r.Seed
	y := nulls.Start()
	for i := range uint64(steps) {
		postOn(nulls, gradient(i, 1, 0, 0), gradient(i, 0, -1, 0), gradient(i, 1, 0, 1e9),
			kafka.Message{Time: time.UnixMilli(1)})
		y.Published(i + 1)
	}
	y.End()
	for i, p := range nulls.Output("orders.dp") {
		if !slices.Equal(data(t, p.Value, "parameters"), data(t, list[i].Value, "parameters")) {
			t.Errorf("step %d: a refused record does not count as a null", i+1)
		}
	}
}

// TestPieces publishes releases larger than a message, interrupts the daemon at every point, and restores an old copy
// of the state. The pieces equal those of an uninterrupted run.
func TestPieces(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.GradientStream, "dim  = 3",
		"dim = 150\nfactorization = \"blt\"\nmethod = \"jme_per_example\"")
	message := func(i uint64) kafka.Message {
		x := make([]float64, 150)
		for j := range x {
			x[j] = math.Sin(float64(i) + float64(j))
		}
		return gradient(i/4, x...)
	}
	r := streamtest.NewRig(t, toml)
	r.Chunk = 700
	const steps = 8
	copied := r.Sibling(toml)
	sent := uint64(0)
	for _, stop := range []uint64{3, 4, 7, steps} {
		for ; sent < 4*stop; sent++ {
			postOn(r, message(sent))
		}
		x := r.Start()
		x.Published(stop)
		x.End()
		if stop == 3 {
			r.CopyState(copied)
		}
	}
	list := r.Output("orders.dp")
	v := streamtest.Judge(t, assembled(t, list, r.Records("orders.dp")))
	v.Faultless(t)
	if v.Steps != steps || len(list) < 3*steps {
		t.Fatalf("%d steps in %d messages", v.Steps, len(list))
	}

	// An uninterrupted run at another broker.
	other := streamtest.NewRig(t, toml)
	other.Chunk = 700
	for i := range uint64(4 * steps) {
		postOn(other, message(i))
	}
	y := other.Start()
	y.Published(steps)
	y.End()
	same := other.Output("orders.dp")
	for step := uint64(1); step <= steps; step++ {
		if !slices.Equal(data(t, wholeOf(list, step), "parameters"), data(t, wholeOf(same, step), "parameters")) {
			t.Errorf("step %d differs from the uninterrupted run", step)
		}
	}

	if strings.Contains(other.Log.String(), "the repeated releases match the output") {
		t.Error("an uninterrupted run says that it compared")
	}

	// The old copy repeats and compares the published releases, and then continues.
	z := copied.Start()
	z.Published(steps)
	z.End()
	if log := copied.Log.String(); !strings.Contains(log, "repeating releases to compare them") ||
		strings.Count(log, "the repeated releases match the output") != 1 {
		t.Error("the copy did not notice that the output is ahead")
	}
	if n := len(r.Output("orders.dp")); n != len(list) {
		t.Errorf("the copy published %d messages that were published before", n-len(list))
	}
}

// wholeOf returns the release of a step from its pieces in an output.
func wholeOf(list []fixtures.Published, step uint64) string {
	var b strings.Builder
	for _, p := range list {
		if p.Step == step {
			b.WriteString(p.Value)
		}
	}
	return b.String()
}

// TestOwnSize uses the limits of production, not those of tests. It publishes releases larger than a topic's default
// message limit, with a state so large that checkpoints use slots, and continues after a restart.
func TestOwnSize(t *testing.T) {
	t.Parallel()
	large(t, 250_000, 3)
}

// TestTenMillion is TestOwnSize with ten million parameters, whose gradients have 40 MB each. It takes half a minute
// and 5 GB, including the broker and the output, and runs with STREAMDP_SLOW=1.
func TestTenMillion(t *testing.T) {
	fixtures.Slow(t)
	large(t, 10_000_000, 119)
}

// large publishes two steps of dim parameters, each in the given number of messages, by two daemons one after the
// other.
func large(t *testing.T, dim, messages int) {
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.GradientStream, "dim  = 3", fmt.Sprintf("dim = %d", dim), `codec = "float64"`,
			`codec = "float32"`,
			`topic = "orders.dp" }`, `topic = "orders.dp", encoding = "base64" }`, "step   = 4", "step = 1"))
	streamtest.SetTopicConfig(t, r, "orders", "max.message.bytes", fmt.Sprint(4*dim+1000))
	value := make([]byte, 4*dim)
	for i := range dim {
		binary.LittleEndian.PutUint32(value[4*i:], math.Float32bits(float32(i%7)))
	}
	var all []fixtures.Published
	for step := range uint64(2) {
		postOn(r, kafka.Message{Value: value, Headers: stepHeader(step), Time: time.UnixMilli(1)})
		x := r.Start()
		x.Published(step + 1)
		if code, body := x.Get("/api/v1/streams/orders/releases"); code != 200 || strings.Contains(body, "offsets") {
			t.Errorf("the API shows pieces: %d %.100s", code, body)
		}
		x.End()
		if info, err := os.Stat(r.File("checkpoint.0")); err != nil || info.Size() < int64(24*dim) {
			t.Errorf("the state is in no slot: %v", err)
		}
		list := r.Output("orders.dp")
		if len(list) != messages*int(step+1) {
			t.Fatalf("%d messages of %d steps", len(list), step+1)
		}
		if at := core.ReleaseEnd([]byte(list[0].Value)); at != 1 {
			t.Errorf("the first piece ends with offset %d", at)
		}
		if at := core.ReleaseEnd([]byte(list[1].Value)); at != -1 {
			t.Errorf("the second piece ends with offset %d", at)
		}
		all = assembled(t, list, r.Records("orders.dp"))
	}
	if len(all) != 2 {
		t.Fatalf("%d releases", len(all))
	}
	fixtures.Conforms(t, all[0].Value)
	one, two := data(t, all[0].Value, "parameters"), data(t, all[1].Value, "parameters")
	var moved, same float64
	for j := range two {
		if two[j] != one[j] {
			moved++
		}
		same += two[j] * one[j]
	}
	if len(one) != dim || len(two) != dim || moved < float64(dim)*0.99 || same <= 0 {
		t.Errorf("%d and %d parameters, %g of them moved", len(one), len(two), moved)
	}
}

// TestLearnt: an epoch begins with the final parameters of the epoch before. It does not matter whether the horizon or
// an operator ended that epoch, whether it was running then, or what else changed. The manifest holds the hash of the
// parameters. The first epoch begins with initial_file.
func TestLearnt(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.GradientStream, "step   = 4", "step = 4\nhorizon = 2\non_horizon = \"rollover\"",
			"rate = 0.1", "rate = 0.1\ninitial_file = \"INITIAL\""))
	file := filepath.Join(r.Dir, "theta")
	fixtures.Must(t, os.WriteFile(file, core.PackParameters([]float64{5, -6, 7}), 0o600))
	r.Toml = fixtures.With(r.Toml, "INITIAL", file)
	for i := range uint64(30) {
		postOn(r, gradient(i/4%2, 1, 1, 1)) // used at step 0 or 1 of its epoch
	}
	x := r.Start()
	x.Until("three epochs", func(s monitor.TaskStatus) bool { return s.Epoch == 4 })
	if err := x.Control("close", epoch.OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	x.End()
	initial := func(epoch uint64) string {
		file, err := os.ReadFile(r.File(state.ManifestName(epoch)))
		fixtures.Must(t, err)
		m, err := core.ParseManifest(file)
		fixtures.Must(t, err)
		var p adam.Plan
		fixtures.Must(t, json.Unmarshal(m.Plan, &p))
		return p.Initial
	}
	hash := func(x []float64) string {
		sum := sha256.Sum256(core.PackParameters(x))
		return hex.EncodeToString(sum[:])
	}
	if got := initial(1); got != hash([]float64{5, -6, 7}) {
		t.Errorf("the first epoch begins with %s", got)
	}
	last := map[uint64][]float64{}
	for _, p := range r.Output("orders.dp") {
		last[p.Epoch] = data(t, p.Value, "parameters")
	}
	for epoch := uint64(2); epoch <= 3; epoch++ {
		if got := initial(epoch); got != hash(last[epoch-1]) {
			t.Errorf("epoch %d does not begin with the final parameters of epoch %d", epoch, epoch-1)
		}
	}
	if theta := last[1]; !(theta[0] > 3 && theta[0] < 6) {
		t.Errorf("epoch 1 ends with %g", theta)
	}

	// An operator opens an epoch with another rate while nothing runs.
	r.Toml = fixtures.With(r.Toml, "rate = 0.1", "rate = 0.2")
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}))
	if got := initial(5); got != hash(last[4]) && got != hash(last[3]) {
		t.Errorf("epoch 5 begins with %s", got)
	}
	// If the number of parameters changes, the old parameters are not used.
	r.Toml = strings.Replace(fixtures.With(r.Toml, "dim  = 3", "dim = 4"),
		fmt.Sprintf("\ninitial_file = %q", file), "", 1)
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}))
	if got := initial(6); got != "" || !strings.Contains(r.Log.String(), "do not fit the model") {
		t.Errorf("epoch 6 begins with %s", got)
	}
	// If the file of initial parameters is changed, it does not match the epoch.
	fixtures.Must(t, os.WriteFile(r.File(state.InitialName(6)), core.PackParameters([]float64{1, 2, 3, 4}), 0o600))
	y := r.Start()
	y.Halts(failure.State, "manifest of epoch 6")
	if y.Ends() == nil {
		t.Error("the daemon ends without an error")
	}
}

// TestInitialFile: a file that holds no parameters of this model is refused.
func TestInitialFile(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.GradientStream, "rate = 0.1", "rate = 0.1\ninitial_file = \"INITIAL\""))
	file := filepath.Join(r.Dir, "theta")
	r.Toml = fixtures.With(r.Toml, "INITIAL", file)
	s, err := config.Parse("c.toml", r.Text())
	fixtures.Must(t, err)
	for name, content := range map[string][]byte{
		"missing": nil, "empty": {}, "cut": make([]byte, 23), "of two": make([]byte, 16),
		"no number": core.PackParameters([]float64{1, math.NaN(), 2}),
	} {
		if content != nil {
			fixtures.Must(t, os.WriteFile(file, content, 0o600))
		}
		if _, err := dryrun.Describe(s.Streams[0]); err == nil {
			t.Errorf("a file that is %s is accepted", name)
		}
	}
	fixtures.Must(t, os.WriteFile(file, core.PackParameters([]float64{1, 2, 3}), 0o600))
	d, err := dryrun.Describe(s.Streams[0])
	fixtures.Must(t, err)
	if d.MessageBytes != d.ReleaseBytes || d.Noise["first"] <= 0 || len(d.Lattice) != 1 {
		t.Errorf("%+v", d)
	}
}

// TestModel runs a logistic regression end to end.
func TestModel(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.ModelStream)
	var values [][]byte
	for i := range 50 * 40 {
		a, b := math.Sin(float64(i)), math.Cos(float64(7*i))
		paid := 0
		if a > b/2 {
			paid = 1
		}
		values = append(values, fmt.Appendf(nil, `{"a": %g, "b": %g, "paid": %d}`, a, b, paid))
	}
	r.Send(values...)
	x := r.Start()
	x.Published(40)
	x.End()
	r.History("orders.dp")
	list := r.Output("orders.dp")
	fixtures.Conforms(t, list[39].Value)
	theta := data(t, list[39].Value, "parameters")
	if !(len(theta) == 3 && theta[0] > 0.3 && theta[1] < -0.1) {
		t.Errorf("parameters %g", theta)
	}
	for _, want := range []string{
		`"name":"adam"`, `"model":{"loss":"logistic","target":"paid"}`, `"parameters":3`,
		`"columns":["a","b","paid"]`,
	} {
		if !strings.Contains(list[0].Value, want) {
			t.Errorf("a release lacks %s", want)
		}
	}
}

// TestRefusedClasses: examples whose target is not one of the classes are counted.
func TestRefusedClasses(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.ModelStream, `"logistic"`, `"softmax", classes = 2`, "step   = 50", "step = 2",
			"centre = [0, 0, 0.5]", ""))
	r.Send([]byte(`{"a":1,"b":1,"paid":1}`), []byte(`{"a":1,"b":1,"paid":2}`), []byte(`{"a":1,"b":1,"paid":0.5}`),
		[]byte(`{"a":1,"b":1,"paid":0}`))
	x := r.Start()
	x.Published(2)
	if _, body := x.Get("/metrics"); !strings.Contains(body,
		`rejected_total{partition="0",reason="no-class",stream="orders"} 2`) {
		t.Error("metrics lack the refused examples")
	}
	x.End()
}
