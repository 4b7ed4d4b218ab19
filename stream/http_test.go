package stream

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
)

var update = flag.Bool("update", false, "write golden files and docs/metrics.md instead of comparing with them")

func TestHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	x.until("the last is remembered", func(TaskStatus) bool { return len(x.in.Tasks()[0].releases(100)) == 10 })

	check := func(method, path string, code int, contentType string, words ...string) string {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+x.d.Addr()+path, nil)
		must(t, err)
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		defer res.Body.Close()
		body := readAll(t, res)
		if res.StatusCode != code || !strings.HasPrefix(res.Header.Get("Content-Type"), contentType) {
			t.Errorf("%s %s: %s, %s", method, path, res.Status, res.Header.Get("Content-Type"))
		}
		for _, w := range words {
			if !strings.Contains(body, w) {
				t.Errorf("%s lacks %q:\n%s", path, w, body)
			}
		}
		return body
	}
	check("GET", "/", 200, "text/plain", "/metrics", "/-/ready", "/api/v1/status", "/api/v1/schema/release.json")
	check("GET", "/-/healthy", 200, "text/plain", "healthy")
	check("GET", "/-/ready", 200, "text/plain", "ready")
	check("GET", "/metrics", 200, "text/plain", `streamdp_step{partition="0",stream="orders"} 10`, "go_goroutines", "process_resident_memory_bytes")
	check("GET", "/api/v1/status", 200, "application/json", `"status":"success"`, `"state":"running"`, `"step":10`, `"next_offset":1050`, `"version":"test"`, `"last_commit"`, `"last_release"`)
	check("GET", "/api/v1/streams", 200, "application/json", `"data":["orders"]`)
	check("GET", "/api/v1/streams/orders", 200, "application/json", `"epoch":1`)
	check("GET", "/api/v1/streams/orders?partition=0", 200, "application/json", `"epoch":1`)
	check("GET", "/api/v1/streams/orders?partition=1", 404, "application/json", `"status":"error"`)
	check("GET", "/api/v1/streams/nobody", 404, "application/json", `"status":"error"`)
	check("GET", "/api/v1/streams/nobody/releases", 404, "application/json", `"status":"error"`)
	if got := check("GET", "/api/v1/schema/release.json", 200, "application/schema+json"); got != string(releaseJSONSchema) {
		t.Error("the schema served is not the file")
	}
	check("GET", "/nothing", 404, "text/plain")
	check("POST", "/api/v1/status", 405, "text/plain")
	for _, path := range []string{"/epoch/open", "/epoch/close"} {
		check("POST", path, 404, "text/plain") // on the control socket only
	}
	for _, path := range []string{"/debug/pprof/", "/debug/vars"} {
		check("GET", path, 404, "text/plain")
	}
	for _, limit := range []string{"0", "-1", "x", "1.5", "101"} {
		check("GET", "/api/v1/streams/orders/releases?limit="+limit, 400, "application/json", `"status":"error"`)
	}
	out := r.history("orders.dp")
	for limit, want := range map[string]int{"": 10, "?limit=3": 3, "?limit=100": 10, "?partition=0&limit=1": 1} {
		var answer struct{ Data []json.RawMessage }
		must(t, json.Unmarshal([]byte(check("GET", "/api/v1/streams/orders/releases"+limit, 200, "application/json")), &answer))
		if len(answer.Data) != want {
			t.Errorf("%s: %d releases, want %d", limit, len(answer.Data), want)
		}
		for i, value := range answer.Data {
			// As published, the newest first.
			if want := out.byKey[fmt.Sprintf("orders/0/1/%d", 10-i)].value; string(value) != want {
				t.Errorf("%s: release %d is\n%s\n%s", limit, i, value, want)
			}
			conforms(t, string(value))
		}
	}

	// What changes a task is for this user only.
	state := filepath.Join(r.dir, "state")
	for path, mode := range map[string]os.FileMode{
		filepath.Join(state, ControlSocket):  0o600 | os.ModeSocket,
		filepath.Join(state, "ledger.jsonl"): 0o600,
		filepath.Join(state, "lock"):         0o600,
		state:                                0o700 | os.ModeDir,
		filepath.Join(state, "tasks"):        0o700 | os.ModeDir,
		r.file(""):                           0o700 | os.ModeDir,
		r.file("secret-1"):                   0o600,
		r.file("manifest-1"):                 0o600,
		r.file(checkpointName):               0o600,
		r.file(previousName):                 0o600,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, mode)
		}
	}
	for _, body := range []string{"", "[]", "{", strings.Repeat(" ", 1<<17)} {
		req, err := http.NewRequest("POST", "http://daemon/epoch/close", strings.NewReader(body))
		must(t, err)
		res := x.controlRaw(req)
		if res.StatusCode != 400 {
			t.Errorf("control request %.10q: %s", body, res.Status)
		}
	}
	if err := x.controlOf("nobody", requestClose, OpenRequest{}); err == nil || !strings.Contains(err.Error(), "no task nobody-0") {
		t.Errorf("close of a task that does not exist: %v", err)
	}
	x.end()
	if left, _ := filepath.Glob(filepath.Join(state, "*.sock")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestRestoredModes: what a copy has left open to others is closed before
// anything is made in it.
func TestRestoredModes(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	for _, dir := range []string{r.file(""), filepath.Join(r.dir, "state", "tasks")} {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, os.Chmod(r.file("secret-1"), 0o644))
	x := r.start()
	x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
	for _, dir := range []string{r.file(""), filepath.Join(r.dir, "state", "tasks")} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", dir, info.Mode(), err)
		}
	}
	x.end()
}

// TestHTTPReasons: readiness names every task that is not running.
func TestHTTPReasons(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream+strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`, `topic = "orders"`, `topic = "missing"`), "stream.orders", "stream.second"))
	r.produce(0, 150)
	x := r.start()
	x.published(1)
	x.until("the second waits", func(TaskStatus) bool { return x.d.Status()[1].State == stateRetrying })
	code, body := x.get("/-/ready")
	if code != 503 || !strings.Contains(body, "task second-0 is retrying") || strings.Contains(body, "orders-0") {
		t.Errorf("ready is %d %s", code, body)
	}
	// One of the two is closed: the daemon waits for the other, and says what
	// is missing.
	must(t, x.control(requestClose, OpenRequest{}))
	x.until("closed", func(s TaskStatus) bool { return s.State == stateClosed })
	if code, body := x.get("/-/ready"); code != 503 || !strings.Contains(body, "task orders-0 is closed") {
		t.Errorf("ready is %d %s", code, body)
	}
	x.end()
}

// TestMetrics: names and kinds as Prometheus wants them, of a daemon that has
// met everything; and what a public one shows.
func TestMetrics(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, exposure := range []string{"operator", "public"} {
		r := newRig(t, with(ordersStream, "step   = 100", "step = 10"))
		r.http = fmt.Sprintf("exposure = %q", exposure)
		r.produce(0, 250)
		r.send(badValues...)
		x := r.start()
		x.published(26)
		families, err := x.in.Process.metrics.registry.Gather()
		must(t, err)
		begun := 0
		for _, f := range families {
			if slices.Contains([]string{"commit_errors_total", "releases_republished_total"}, strings.TrimPrefix(f.GetName(), prefix)) {
				begun++
			}
		}
		if begun != 2 {
			t.Errorf("%s: %d of 2 counters are there before they count", exposure, begun)
		}
		x.in.Process.metrics.kafkaError(&kafka.Error{API: "fetch", Code: 7})
		x.in.Process.metrics.halted(ordersTask, haltGap)
		x.in.Process.metrics.commitFailed(ordersTask)
		x.in.Process.metrics.republished(ordersTask, 0)
		x.in.Process.metrics.shares(64)
		x.in.Process.metrics.patternTopics("orders", "taken", 1)
		x.in.Process.metrics.certificate("kafka.tls", time.Unix(1, 0))
		x.in.Process.schemas.reached(x.in.Process.log, x.in.Process.metrics.registryReachable, nil)
		x.in.Process.metrics.bySchema(core.Task{Stream: "orders"}, &codec.Batch{Schemas: []int32{1}, Reasons: make([]codec.Reason, 1)}, func(int32) bool { return true })
		x.in.Process.metrics.tookOver(time.Second)
		x.in.Process.metrics.traced(1, 0)
		x.in.Process.metrics.restored(6)
		x.in.Process.metrics.transaction("committed")
		x.in.Process.metrics.stateCommitted(time.Second, 6)
		x.in.Process.metrics.ledgerLines(2)
		x.in.Process.metrics.generation(1, "key")
		families, err = x.in.Process.metrics.registry.Gather()
		must(t, err)
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		must(t, err)
		for _, p := range problems {
			t.Errorf("%s: %s: %s", exposure, p.Metric, p.Text)
		}
		for _, f := range families {
			name := strings.TrimPrefix(f.GetName(), prefix)
			i := slices.IndexFunc(metricTable, func(d metricDef) bool { return d.name == name })
			if exposure == "operator" {
				seen[name] = true
				continue
			}
			if strings.HasPrefix(name, "promhttp_") {
				continue // of the answers to scrapes
			}
			if i < 0 || metricTable[i].class == "P" || strings.HasPrefix(metricTable[i].help, "Not private") {
				t.Errorf("a public daemon shows %s", f.GetName())
			}
		}
		_, page := x.get("/metrics")
		for _, private := range []string{"go_", "process_", "streamdp_read_bytes", "streamdp_diagnostic", "streamdp_checkpoint_bytes", "streamdp_fetch", "streamdp_commit_duration"} {
			if strings.Contains(page, "\n"+private) != (exposure == "operator") {
				t.Errorf("%s: %s is shown: %t", exposure, private, exposure == "public")
			}
		}
		x.end()
	}
	for _, d := range metricTable {
		if !seen[d.name] {
			t.Errorf("%s is in the reference and never shown", d.name)
		}
		if (d.class == "P") != strings.HasPrefix(d.help, "Not private. ") {
			t.Errorf("%s is of class %s, its help says %q", d.name, d.class, d.help)
		}
	}
}

// TestMetricValues: what the gauges say is what happened.
func TestMetricValues(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 7\non_horizon = \"rollover\""))
	r.produce(0, 1050)
	x := r.start()
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 3 && s.NextOffset == 1050 && s.Outbox == 0 })
	_, page := x.get("/metrics")
	for _, line := range []string{
		`streamdp_records_read_total{partition="0",stream="orders"} 1`, // and more: some are read twice
		`streamdp_steps_total{partition="0",stream="orders"} 10`,
		`streamdp_releases_total{partition="0",stream="orders"} 10`,
		`streamdp_epochs_total{partition="0",stream="orders"} 2`,
		`streamdp_next_offset{partition="0",stream="orders"} 1050`,
		`streamdp_log_end_offset{partition="0",stream="orders"} 1050`,
		`streamdp_lag_records{partition="0",stream="orders"} 0`,
		`streamdp_retention_headroom_records{partition="0",stream="orders"} 1050`,
		`streamdp_step{partition="0",stream="orders"} 3`,
		`streamdp_horizon_steps{partition="0",stream="orders"} 7`,
		`streamdp_outbox_releases{partition="0",stream="orders"} 0`,
		`streamdp_privacy_epsilon{partition="0",stream="orders"} 1`,
		`streamdp_privacy_limit_epsilon{partition="0",stream="orders"} 3`,
		`streamdp_privacy_charged_epsilon{partition="0",stream="orders"} 1`,
		`streamdp_insecure_noise 1`,
		`streamdp_task_info{adjacency="zero-out",epoch="2",factorization="blt",mechanism="moments",method="jme",partition="0",stream="orders"} 1`,
	} {
		if !strings.Contains(page, "\n"+line) {
			t.Errorf("no line %s", line)
		}
	}
	x.end()
}

// TestClippedRows: the exact number of shortened rows, and of rows that scaling made
// infinite, is a metric for the operator, and nobody else sees it.
func TestClippedRows(t *testing.T) {
	t.Parallel()
	for _, exposure := range []string{"operator", "public"} {
		r := newRig(t, with(ordersStream, "scale  = [80.0, 5.0, 2.0]", "scale = [80.0, 5.0, 1e-3]"))
		r.http = fmt.Sprintf("exposure = %q", exposure)
		for range 10 {
			r.send([]byte(`{"amount": 40, "items": 3, "weight": 1.2}`), []byte(`{"amount": 140, "items": 3, "weight": 1.2}`),
				[]byte(`{"amount": 40, "items": 8, "weight": 1.2}`), []byte(`{"amount": 40, "items": 3, "weight": 1e306}`),
				[]byte(`{"amount": 40, "items": 8.01, "weight": 1.2}`))
		}
		x := r.start()
		x.until("all is read", func(s TaskStatus) bool { return s.NextOffset == 50 })
		_, page := x.get("/metrics")
		for _, line := range []string{`streamdp_diagnostic_records_clipped_total{partition="0",stream="orders"} 20`, `rejected_total{partition="0",reason="not-finite",stream="orders"} 10`} {
			if strings.Contains(page, line+"\n") != (exposure == "operator") {
				t.Errorf("%s: line %s", exposure, line)
			}
		}
		if strings.Contains(page, "clipped") != (exposure == "operator") {
			t.Errorf("%s: says something of clipped rows", exposure)
		}
		x.end()
	}
}

// TestMetricsReference: docs/metrics.md is made from the table of metrics.
// TestTicks: what anybody may see changes at ticks of the clock and not when the
// work was done, which depends on the records and on the noise.
func TestTicks(t *testing.T) {
	t.Parallel()
	const period = 1500 * time.Millisecond
	r := newRig(t, ordersStream)
	r.commit = period.String()
	r.http = `exposure = "public"`
	x := r.start()
	x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
	counters := regexp.MustCompile(`(?m)^streamdp_(?:records_read_total|steps_total|releases_total|step|next_offset|log_end_offset|lag_records|outbox_releases|retention_headroom_records){.*`)
	look := func() string {
		_, body := x.get("/metrics")
		s := x.d.Status()[0]
		return fmt.Sprint(s.Step, s.NextOffset, s.LogEnd, s.Outbox, counters.FindAllString(body, -1))
	}
	for round := range 3 {
		// A while after a tick, and all of it before the next.
		var was string
		var tick time.Duration
		for was = ""; was == "" || time.Since(x.in.Process.started) >= tick; was = look() {
			phase := time.Since(x.in.Process.started) % period
			time.Sleep((period + period/5 - phase) % period)
			tick = time.Since(x.in.Process.started).Truncate(period) + period
		}
		r.produce(250*round, 250)
		for look() == was {
			time.Sleep(5 * time.Millisecond)
		}
		if at := time.Since(x.in.Process.started); at < tick {
			t.Errorf("round %d: changed %v before the tick: %s\n%s", round, tick-at, was, look())
		}
		x.until("published", func(s TaskStatus) bool { return s.NextOffset == int64(250*(round+1)) && s.Outbox == 0 })
	}
	x.end()
}

func TestMetricsReference(t *testing.T) {
	golden(t, "../docs/metrics.md", MetricsReference())
}

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

// TestDescribe: what is said of a stream before any data agrees with what it
// does.
func TestDescribe(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("t.toml", []byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+machineStream))
	must(t, err)
	d, err := Describe(c.Streams[0])
	must(t, err)
	m := newMachine(t, machineStream, 1).all(mutateLog(1)[:700], 700)
	largest := 0
	for _, p := range m.releases {
		largest = max(largest, len(p.Value))
	}
	state, err := m.p.core.AppendState(nil)
	must(t, err)
	if int64(largest) > d.ReleaseBytes || d.ReleaseBytes > 3*int64(largest) {
		t.Errorf("releases have up to %d bytes, said %d", largest, d.ReleaseBytes)
	}
	if n := int64(len(state)); n > d.StateBytes+1024 || d.StateBytes > 2*n+1024 {
		t.Errorf("the state has %d bytes, said %d", n, d.StateBytes)
	}
}

// TestMetricsAggregate: no series of a task, and the sums of all.
func TestMetricsAggregate(t *testing.T) {
	t.Parallel()
	const n = 3
	for _, exposure := range []string{"operator", "public"} {
		r := newRig(t, with(ordersStream, `topic = "orders"`, `topic = "wide", partition = [0, 1, 2]`))
		r.http = fmt.Sprintf("metrics = \"aggregate\"\nexposure = %q\n", exposure)
		must(t, r.client.CreateTopic(t.Context(), "wide", n, nil))
		for p := range n {
			var list []kafka.Message
			for i := range 100 * (p + 1) {
				list = append(list, kafka.Message{Value: orderRecord(i), Time: time.UnixMilli(1)})
			}
			_, err := r.client.Produce(t.Context(), "wide", int32(p), list)
			must(t, err)
		}
		x := r.start()
		x.until("all are done", func(TaskStatus) bool {
			for i, s := range x.d.Status() {
				if s.Step != uint64(i+1) || s.Outbox > 0 {
					return false
				}
			}
			return true
		})
		_, page := x.get("/metrics")
		for _, line := range []string{
			`streamdp_task_state{state="running"} 3`, `streamdp_task_state{state="halted"} 0`,
			`streamdp_step 6`, `streamdp_steps_total 6`, `streamdp_records_read_total 600`, `streamdp_next_offset 600`, `streamdp_lag_records 0`,
			`streamdp_retention_headroom_records 100`, `streamdp_privacy_epsilon 1`, `streamdp_privacy_limit_epsilon 3`, `streamdp_epochs_total 3`,
		} {
			if !strings.Contains(page, "\n"+line+"\n") {
				t.Errorf("%s: no line %q", exposure, line)
			}
		}
		for _, absent := range []string{"stream=", "partition=", "streamdp_task_info", "streamdp_horizon_steps"} {
			if strings.Contains(page, absent) {
				t.Errorf("%s: has %q", exposure, absent)
			}
		}
		// Of each metric that is shown, and in the table.
		for _, d := range metricTable {
			if d.kind == "gauge" && d.ofTask() && strings.Contains(page, "\n"+prefix+d.name+" ") != (d.over != "" && (exposure == "operator" || d.class != "P")) {
				if d.name != "task_state" && d.name != "bounds_verdict" && d.name != "noise_stddev" { // these have a label
					t.Errorf("%s: %s", exposure, d.name)
				}
			}
		}
		if t.Failed() {
			t.Log(page)
		}
		x.end()
	}
}
