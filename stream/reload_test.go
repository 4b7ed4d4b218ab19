package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
)

// reloads writes the file and makes a daemon read it.
func reloads(x *running, q ReloadRequest, tables ...string) *Reload {
	x.t.Helper()
	x.r.write(tables...)
	found, err := x.d.Reload(q)
	if err != nil {
		x.t.Fatalf("%v\n%s", err, x.r.log)
	}
	return found
}

// sendTopic appends n records to a topic, numbered from first.
func sendTopic(r *rig, topic string, first, n int) {
	r.t.Helper()
	var list []kafka.Message
	for i := range n {
		list = append(list, kafka.Message{Value: orderRecord(first + i), Time: time.UnixMilli(1)})
	}
	_, err := r.client.Produce(r.t.Context(), topic, 0, list)
	must(r.t, err)
}

// TestReload: a daemon reads its file again and again, under load. What it publishes has the bytes of a
// run without interruption; nothing is lost.
func TestReload(t *testing.T) {
	t.Parallel()
	sales, visits := ofTopic("sales"), ofTopic("visits")
	r := newRig(t, ordersStream+sales)
	for _, topic := range []string{"sales", "visits", "rejected"} {
		must(t, r.client.CreateTopic(t.Context(), topic, 1, nil))
	}
	x := r.start(r.reloadable)
	feed := feedOn(r)
	x.reaches("orders", 1)

	if got := reloads(x, ReloadRequest{}, ordersStream, sales); !unchanged(got) {
		t.Errorf("the same file: %+v", got)
	}
	orders := x.in.Tasks()[0]
	sendTopic(r, "sales", 0, 250)
	letters := "[stream.sales.dead_letter]\nmode = \"reference\"\ntopic = \"rejected\"\n"
	got := reloads(x, ReloadRequest{}, ordersStream, sales+letters)
	if len(got.Changed) != 1 || got.Changed[0].Stream != "sales" || fmt.Sprint(got.Changed[0].Keys) != `[dead_letter.mode: "off" → "reference" dead_letter.topic: "" → "rejected"]` {
		t.Errorf("changed: %+v", got.Changed)
	}
	sendTopic(r, "sales", 250, 250)
	if x.in.Tasks()[0] != orders {
		t.Error("another stream's tasks were started again")
	}
	got = reloads(x, ReloadRequest{Open: true}, ordersStream, visits)
	if !slices.Equal(got.Added, []string{"visits"}) || !slices.Equal(got.Removed, []string{"sales"}) || len(got.Changed)+len(got.Unopened) > 0 {
		t.Errorf("one added, one removed: %+v", got)
	}
	sendTopic(r, "visits", 0, 300)
	sendTopic(r, "sales", 500, 250)
	x.reaches("visits", 3)
	// The orders' tasks are started again, with another limit, which is written down and charges nothing.
	raised := with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 4.0")
	for range 4 {
		reloads(x, ReloadRequest{}, raised, visits, sales)
		reloads(x, ReloadRequest{}, raised+"\n", with(visits, `"visits.dp"`, `"visits.dp", create = false`))
		reloads(x, ReloadRequest{}, with(raised, "step   = 100", "step = 100\non_gap = \"null\""), visits, sales)
	}
	feed.end()
	sendTopic(r, "sales", 750, 250)
	steps := stepsOf(r, 100)
	x.reaches("orders", steps)
	x.reaches("sales", 10)
	x.reaches("visits", 3)
	if kinds := r.kinds(); kinds != "open open open limit" {
		t.Errorf("the ledger has %s", kinds)
	}
	if _, body := x.get("/metrics"); !strings.Contains(body, "streamdp_config_last_load_successful 1\n") {
		t.Error("the last reload counts as refused")
	}
	x.end()

	whole := r.sibling(strings.NewReplacer(`.dp"`, `.whole.dp"`).Replace(ordersStream + visits + sales))
	y := whole.start()
	for _, name := range []string{"orders", "sales", "visits"} {
		n := map[string]uint64{"orders": steps, "sales": 10, "visits": 3}[name]
		y.reaches(name, n)
		r.history(name+".dp").equals(t, whole.history(name+".whole.dp"))
	}
	y.end()
}

// TestReloadOrder: of two reloads that come at once, the later one reads the file when the other has
// been done. A file that was read earlier never replaces one that was read later.
func TestReloadOrder(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := newRig(t, ordersStream+sales)
	must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
	var slow atomic.Bool
	read, goOn := make(chan struct{}), make(chan struct{})
	x := r.start(func(o *Options) {
		o.Load = func() (*config.Config, error) {
			c, err := config.Load(r.configuration())
			if slow.CompareAndSwap(true, false) {
				close(read)
				<-goOn
			}
			return c, err
		}
	})
	r.write(ordersStream, sales)
	slow.Store(true)
	first, second := make(chan error, 1), make(chan error, 1)
	reload := func(done chan error) {
		_, err := x.d.Reload(ReloadRequest{})
		done <- err
	}
	go reload(first)
	<-read
	r.write(ordersStream) // the operator takes a stream out
	go reload(second)
	select {
	case err := <-second:
		t.Errorf("the later one did not wait: %v", err)
		second <- err
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	must(t, <-first)
	must(t, <-second)
	if x.in.Process.config().Stream("sales") != nil {
		t.Error("the file that was read first is the configuration")
	}
	x.end()
}

// TestReloadBeforeRun: a request that comes while the daemon starts waits until its tasks have begun, and then opens
// no epoch, like every other one.
func TestReloadBeforeRun(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
	r.produce(0, 100)
	r.write(ordersStream, sales)
	found := make(chan *Reload, 1)
	r.before = func(d *Daemon) {
		go func() {
			x, err := d.Reload(ReloadRequest{})
			if err != nil {
				t.Error(err)
			}
			found <- x
		}()
		select {
		case x := <-found:
			t.Error("a daemon without tasks has taken a stream")
			found <- x
		case <-time.After(50 * time.Millisecond):
		}
	}
	x := r.start(r.reloadable)
	if got := <-found; got == nil || !slices.Equal(got.Added, []string{"sales"}) || !slices.Equal(got.Unopened, []string{"sales-0"}) {
		t.Errorf("%+v", got)
	}
	x.published(1)
	x.of("sales", "halted", func(s TaskStatus) bool { return s.Reason == haltUnopened })
	if got := r.kinds(); got != "open" {
		t.Errorf("the ledger has %s", got)
	}
	x.end()
}

// TestReloadRefused: what a daemon can't take while it runs is refused as a whole. Nothing is changed then, not
// even what it could take, and the answer says everything that it can't.
func TestReloadRefused(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := newRig(t, ordersStream+sales)
	must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
	r.produce(0, 200)
	levels := []string{}
	x := r.start(r.reloadable, func(o *Options) { o.SetLevel = func(level string) { levels = append(levels, level) } })
	x.published(2)
	x.of("sales", "running", func(s TaskStatus) bool { return s.State == stateRunning })
	tasks, before, ledger := x.in.Tasks(), x.in.Process.config(), r.kinds()
	unchanged := func(why string) {
		t.Helper()
		if !slices.Equal(x.in.Tasks(), tasks) || x.in.Process.config() != before || r.kinds() != ledger || len(levels) > 0 {
			t.Errorf("%s: something changed", why)
		}
		if _, body := x.get("/metrics"); !strings.Contains(body, "streamdp_config_last_load_successful 0\n") {
			t.Errorf("%s: the metric does not say so", why)
		}
	}
	visits := ofTopic("visits")
	for _, c := range []struct {
		edit   func(*rig)
		tables []string
		want   []string
	}{
		{nil, []string{with(ordersStream, "step   = 100", "step = 50"), visits}, []string{"stream orders: step: 100 → 50: the guarantee of epoch 1 of task orders-0 depends on it"}},
		{nil, []string{with(ordersStream, "epsilon = 1.0", "epsilon = 0.5"), with(sales, "clip = 1.0", "clip = 2.0")}, []string{"stream orders: privacy.epsilon: 1 → 0.5", "stream sales: moments.clip: 1 → 2"}},
		{nil, []string{with(ordersStream, `"orders.dp"`, `"orders.dp", encoding = "base64"`)}, []string{`output.encoding: "json" → "base64": the bytes of epoch 1 of task orders-0 depend on it`}},
		{nil, []string{with(ordersStream, `"orders.dp"`, `"orders.dp", values = ["mean"]`)}, []string{"output.values"}},
		{nil, []string{with(ordersStream, `topic = "orders", `, `topic = "orders", partition = [0, 1], `) + "merge = true\n"}, nil},
		{nil, []string{with(ordersStream, "step   = 100", "step = 100\nmerge = true", `topic = "orders", `, `topic = "orders", partition = [0, 1], `)}, []string{"stream orders: merge: epoch 1 of task orders-0 is open"}},
		{nil, []string{with(ordersStream, `limit_epsilon = 3.0`, "limit_epsilon = 1.0", "epsilon = 1.0\n", "epsilon = 1.0\nlimit_delta = 1e-7\n")}, nil},
		{func(r *rig) { r.commit, r.archive = "20ms", true }, []string{ordersStream}, []string{"state.archive: false → true", `state.commit_interval: "10ms" → "20ms"`}},
		{func(r *rig) { r.http = "exposure = \"public\"\n[log]\nlevel = \"debug\"\n" }, []string{ordersStream}, []string{"http.exposure"}},
		{func(r *rig) { r.topic = "control" }, []string{ordersStream}, []string{`kafka.control_topic: "" → "control"`}},
		{func(r *rig) { r.group = "[cluster]\ngroup = \"g\"\n" }, []string{ordersStream}, []string{"cluster: absent → present"}},
	} {
		if c.want == nil {
			continue
		}
		edited := *r
		if c.edit != nil {
			c.edit(&edited)
		}
		edited.write(c.tables...)
		found, err := x.d.Reload(ReloadRequest{Open: true})
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Reload != found {
			t.Fatalf("%v: %v", c.want, err)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nlacks %s", err, want)
			}
		}
		unchanged(fmt.Sprint(c.want))
	}

	// A limit below what is paid.
	low := with(ordersStream, "epsilon = 1.0", "epsilon = 1.0", "limit_epsilon = 3.0", "limit_epsilon = 1.0\nlimit_delta = 2e-8")
	r.write(low, sales)
	if found, err := x.d.Reload(ReloadRequest{DryRun: true}); err != nil || len(found.Changed) != 1 {
		t.Errorf("a limit that is enough: %+v, %v", found, err)
	}

	// A file with faults: all of them, with their lines.
	r.write(with(ordersStream, "step   = 100", "step = 0"), with(sales, "clip = 1.0", "clib = 1.0"))
	_, err := x.d.Reload(ReloadRequest{})
	var faults config.Faults
	if !errors.As(err, &faults) || len(faults) != 2 || faults[0].Line == 0 || faults[0].Line == faults[1].Line || !strings.HasPrefix(faults[0].File, r.dir) {
		t.Errorf("a file with two faults: %v", err)
	}
	unchanged("faults")
	must(t, os.Remove(r.configuration()))
	if _, err := x.d.Reload(ReloadRequest{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	unchanged("no file")

	// A dry run shows what would be, and leaves the metric as it is.
	r.write(ordersStream, visits)
	found, err := x.d.Reload(ReloadRequest{DryRun: true, Open: true})
	if err != nil || !slices.Equal(found.Added, []string{"visits"}) || !slices.Equal(found.Removed, []string{"sales"}) {
		t.Errorf("dry run: %+v, %v", found, err)
	}
	unchanged("dry run")

	// After the epoch was closed, its stream takes any change; it opens no epoch.
	must(t, x.controlOf("sales", requestClose, OpenRequest{}))
	ledger = r.kinds()
	edited := *r
	edited.http = "[log]\nlevel = \"debug\"\n"
	edited.write(ordersStream, with(sales, "step   = 100", "step = 50"))
	if _, err := x.d.Reload(ReloadRequest{}); err != nil {
		t.Error(err)
	}
	if r.kinds() != ledger || !slices.Equal(levels, []string{"debug"}) {
		t.Errorf("the ledger has %s, levels %v", r.kinds(), levels)
	}
	must(t, x.controlOf("sales", requestOpen, OpenRequest{}))
	sendTopic(r, "sales", 0, 100)
	x.reaches("sales", 2)
	x.end()

	y := r.start()
	if _, err := y.d.Reload(ReloadRequest{}); !errors.Is(err, errNoFile) {
		t.Errorf("without a file: %v", err)
	}
	y.end()
}

// TestReloadClosed: a task whose epoch was closed on request waits for no reload. Another epoch is opened by name.
func TestReloadClosed(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := newRig(t, ordersStream+sales)
	must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
	r.produce(0, 100)
	x := r.start(r.reloadable)
	x.published(1)
	x.of("sales", "running", func(s TaskStatus) bool { return s.State == stateRunning })
	must(t, x.controlOf("sales", requestClose, OpenRequest{}))
	before := r.kinds()
	shorter := with(sales, "step   = 100", "step = 50")
	for _, open := range []bool{false, true} {
		if got := reloads(x, ReloadRequest{Open: open}, ordersStream, shorter); len(got.Opened)+len(got.Unopened) > 0 {
			t.Errorf("open %t: %v opened, %v wait", open, got.Opened, got.Unopened)
		}
	}
	x.of("sales", "closed", func(s TaskStatus) bool { return s.State == stateClosed })
	if r.kinds() != before {
		t.Errorf("the ledger had %s, and has %s", before, r.kinds())
	}
	must(t, x.controlOf("sales", requestOpen, OpenRequest{}))
	sendTopic(r, "sales", 0, 50)
	x.reaches("sales", 1)
	x.end()
}

// TestReloadLimit: a limit below what was paid is refused.
func TestReloadLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 100)
	x := r.start(r.reloadable)
	x.published(1)
	must(t, x.control(requestOpen, OpenRequest{From: "earliest"})) // paid twice
	x.of("orders", "in epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 })
	before := r.kinds()
	r.write(with(ordersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.2"))
	if _, err := x.d.Reload(ReloadRequest{}); err == nil || !strings.Contains(err.Error(), "stream orders: limit_epsilon 1.2 at delta 1e-08 is below what") {
		t.Errorf("%v", err)
	}
	if r.kinds() != before {
		t.Error("the ledger has another line")
	}
	x.end()
}

// TestReloadHorizon: an epoch that ended at its horizon has no successor because on_horizon was changed. With
// --open it has one.
func TestReloadHorizon(t *testing.T) {
	t.Parallel()
	short := with(ordersStream, "step   = 100", "step = 100\nhorizon = 2")
	sales := ofTopic("sales")
	r := newRig(t, short+sales)
	must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
	r.produce(0, 300)
	x := r.start(r.reloadable)
	x.of("orders", "exhausted", func(s TaskStatus) bool { return s.State == stateExhausted })
	x.of("sales", "running", func(s TaskStatus) bool { return s.State == stateRunning })
	before := r.kinds()
	rolls := with(short, "horizon = 2", "horizon = 2\non_horizon = \"rollover\"")
	reloads(x, ReloadRequest{}, rolls, sales)
	if s := x.of("orders", "halted", func(s TaskStatus) bool { return s.State == stateHalted }); s.Reason != haltUnopened || r.kinds() != before {
		t.Errorf("%s: %s; the ledger has %s", s.Reason, s.Message, r.kinds())
	}
	if got := reloads(x, ReloadRequest{}, rolls, sales); !slices.Equal(got.Unopened, []string{"orders-0"}) {
		t.Errorf("unopened: %v", got.Unopened)
	}
	if got := reloads(x, ReloadRequest{Open: true}, rolls, sales); len(got.Unopened) > 0 {
		t.Errorf("unopened: %v", got.Unopened)
	}
	x.of("orders", "in the next epoch", func(s TaskStatus) bool { return s.State == stateRunning && s.Epoch == 2 && s.Step == 1 })
	x.end()
}

// TestReloadOpensNothing: a task that had not opened its epoch yet, because it waited or could not pay for it,
// does not open one because a reload made that possible.
func TestReloadOpensNothing(t *testing.T) {
	t.Parallel()
	both := ordersStream + with(ofTopic("sales"), `topic = "sales"`, `topic = "orders"`)
	poor := strings.ReplaceAll(both, "limit_epsilon = 3.0", "limit_epsilon = 1.0")
	waits := with(ofTopic("sales"), `topic = "sales"`, `topic = "visits"`)
	for name, c := range map[string]struct {
		before, after string
		waits         string // a task's state
	}{
		"another topic":  {waits, ofTopic("sales"), stateRetrying},
		"a higher limit": {poor, both, stateHalted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.before)
			must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
			r.produce(0, 300)
			x := r.start(r.reloadable)
			stream, task := "", ""
			for stream == "" {
				for _, s := range x.d.Status() {
					if s.State == c.waits {
						stream, task = s.Stream, s.Stream+"-0"
					}
				}
				time.Sleep(time.Millisecond)
			}
			opened := strings.Count(r.kinds(), "open")
			// What has nothing to do with an opening leaves the task as it is.
			letters := fmt.Sprintf("[stream.%s.dead_letter]\nmode = \"reference\"\ntopic = \"rejected\"\n", stream)
			if got := reloads(x, ReloadRequest{}, c.before+letters); len(got.Unopened) > 0 || len(got.Changed) != 1 {
				t.Errorf("with dead letters: %+v", got)
			}
			if got := reloads(x, ReloadRequest{}, c.after); !slices.Equal(got.Unopened, []string{task}) {
				t.Errorf("unopened: %v", got.Unopened)
			}
			x.of(stream, "held", func(s TaskStatus) bool { return s.State == stateHalted && s.Reason == haltUnopened })
			if n := strings.Count(r.kinds(), "open"); n != opened {
				t.Errorf("the ledger has %s", r.kinds())
			}
			if got := reloads(x, ReloadRequest{Open: true}, c.after); len(got.Unopened) > 0 {
				t.Errorf("unopened: %v", got.Unopened)
			}
			x.of(stream, "running", func(s TaskStatus) bool { return s.State == stateRunning })
			if n := strings.Count(r.kinds(), "open"); n <= opened {
				t.Errorf("the ledger has %s", r.kinds())
			}
			x.end()
		})
	}
}

// TestReloadAccess: who may have the configuration read again, and what the answer is.
func TestReloadAccess(t *testing.T) {
	t.Parallel()
	ask := func(x *running, edit func(*http.Request)) (int, ReloadAnswer) {
		req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/-/reload", nil)
		if edit != nil {
			edit(req)
		}
		w := httptest.NewRecorder()
		x.d.server.guarded().ServeHTTP(w, req)
		var a ReloadAnswer
		_ = json.Unmarshal(w.Body.Bytes(), &a)
		return w.Code, a
	}
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
	r.produce(0, 100)
	x := r.start(r.reloadable)
	x.published(1)
	r.write(ordersStream, ofTopic("sales"))
	for what, edit := range map[string]func(*http.Request){
		"a page of another site": func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "cross-site") },
		"another origin":         func(q *http.Request) { q.Header.Set("Origin", "http://evil.example") },
		"another name":           func(q *http.Request) { q.Host = "evil.example" },
	} {
		if code, _ := ask(x, edit); code != http.StatusForbidden {
			t.Errorf("%s: %d", what, code)
		}
	}
	if code, _ := ask(x, func(q *http.Request) { q.Method = http.MethodGet }); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", code)
	}
	if len(x.d.Status()) != 1 {
		t.Fatal("somebody had the configuration read")
	}
	// Nobody opens an epoch over HTTP.
	if code, a := ask(x, func(q *http.Request) { q.URL.RawQuery = "open=true" }); code != http.StatusOK || a.Status != "success" || !slices.Equal(a.Data.Added, []string{"sales"}) {
		t.Errorf("%d: %+v", code, a)
	}
	if s := x.of("sales", "halted", func(s TaskStatus) bool { return s.State == stateHalted }); s.Reason != haltUnopened {
		t.Errorf("%+v", s)
	}
	r.write(with(ordersStream, "step   = 100", "step = 50"))
	if code, a := ask(x, nil); code != http.StatusConflict || !a.Configuration || len(a.Data.Refused) != 1 || !strings.Contains(a.Error, "step: 100 → 50") {
		t.Errorf("%d: %+v", code, a)
	}
	r.write(with(ordersStream, "step   = 100", "stop = 50"))
	if code, a := ask(x, nil); code != http.StatusConflict || !a.Configuration || a.Data != nil || !strings.Contains(a.Error, "streamdp.toml:") {
		t.Errorf("%d: %+v", code, a)
	}
	// On the control socket an epoch may be opened.
	r.write(ordersStream, ofTopic("sales"))
	body, err := json.Marshal(ReloadRequest{Open: true})
	must(t, err)
	req, err := http.NewRequest("POST", "http://daemon/reload", bytes.NewReader(body))
	must(t, err)
	if text := readAll(t, x.controlRaw(req)); !strings.Contains(text, `"status":"success"`) {
		t.Error(text)
	}
	x.of("sales", "running", func(s TaskStatus) bool { return s.State == stateRunning })
	x.end()

	r.http = "exposure = \"public\"\n"
	x = r.start(r.reloadable)
	if code, _ := ask(x, nil); code != http.StatusForbidden {
		t.Errorf("a public listener: %d", code)
	}
	x.end()
	r.http = "insecure_listen = true\n"
	x = r.start(r.reloadable)
	x.d.server.http.Listen = "0.0.0.0:9464"
	if code, _ := ask(x, nil); code != http.StatusForbidden {
		t.Errorf("a listener without a password: %d", code)
	}
	x.end()
}

// TestReloadKilled kills a daemon that reads its configuration again all the time: a stream comes and goes, and
// the other one's tasks begin again and again. No release is lost, and each has the bytes of a run without
// interruption.
func TestReloadKilled(t *testing.T) {
	t.Parallel()
	const seed = 23
	r := newRig(t, killStream)
	must(t, r.client.CreateTopic(t.Context(), "sales", 1, nil))
	// An opening that is killed is void, and the next one is another epoch, with other bytes.
	first := r.sibling(killStream + ofTopic("sales"))
	first.dir = r.dir
	begun := first.start()
	for _, name := range []string{"orders", "sales"} {
		begun.of(name, "running", func(s TaskStatus) bool { return s.State == stateRunning })
	}
	begun.end()
	sendTopic(r, "sales", 0, 2000)
	spec := specOf(r, "daemon", 0)
	text := func(tables ...string) string {
		now := *r
		now.toml = strings.Join(tables, "")
		return string(now.text())
	}
	again := with(killStream, "step = 20", "step = 20\non_gap = \"null\"")
	spec.Reloads = []string{text(killStream), text(again, ofTopic("sales")), text(killStream, ofTopic("sales")), text(again)}
	feed := feedOn(r)
	var hit interruptions
	killLoop(t, r, spec, rand.New(rand.NewPCG(seed, 0)), killsOf(8, 100), &hit)
	feed.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	t.Logf("%d kills, %d inside a commit, %d with releases that had not left", hit.kills, hit.inCommit, hit.unsent)
	r.history("orders.dp").equals(t, r.uninterrupted(steps))

	all := r.sibling(ofTopic("sales"))
	all.dir, all.commit = r.dir, "10ms"
	x := all.start()
	x.reaches("sales", 20)
	x.end()
	whole := r.sibling(with(ofTopic("sales"), `"sales.dp"`, `"sales.whole.dp"`))
	whole.commit = "10ms"
	y := whole.start()
	y.reaches("sales", 20)
	y.end()
	r.history("sales.dp").equals(t, whole.history("sales.whole.dp"))
}

// TestReloadPatterns: a pattern that is added takes topics, and opens no epoch of those that are there. One
// that is removed leaves nothing of its streams in the process; their epochs stay open.
func TestReloadPatterns(t *testing.T) {
	t.Parallel()
	pattern := strings.ReplaceAll(salesStream, "stream.orders", "stream.all")
	r := newPatternRig(t, ordersStream, "orders", "sales-a")
	r.produce(0, 100)
	fill(r, "sales-a", 100)
	x := r.start(soon, r.reloadable)
	x.published(1)
	if got := reloads(x, ReloadRequest{}, pattern, ordersStream); !slices.Equal(got.Added, []string{"all"}) {
		t.Errorf("added: %v", got.Added)
	}
	if s := x.of("all.sales-a", "halted", func(s TaskStatus) bool { return s.State == stateHalted }); s.Reason != haltUnopened || r.kinds() != "open" {
		t.Errorf("a topic that was there: %s: %s; the ledger has %s", s.Reason, s.Message, r.kinds())
	}
	// A topic that comes later is what the pattern is for.
	must(t, r.broker.CreateTopic(t.Context(), "sales-b", 1, nil))
	fill(r, "sales-b", 100)
	x.reaches("all.sales-b", 1)
	if got := reloads(x, ReloadRequest{}, pattern, ordersStream); !slices.Equal(got.Unopened, []string{"all.sales-a-0"}) || !unchanged(got) {
		t.Errorf("the same file: %+v", got)
	}
	// Where whoever reads the file knows of topics, from the ledger, that is no difference either.
	plain := x.d.load
	x.d.load = func() (*config.Config, error) {
		c, err := plain()
		if err == nil {
			c, _ = c.Expand(config.Topics{Found: []string{"sales-a", "sales-b"}})
		}
		return c, err
	}
	if got := reloads(x, ReloadRequest{}, pattern, ordersStream); !unchanged(got) {
		t.Errorf("the same file, with its topics: %+v", got)
	}
	reloads(x, ReloadRequest{Open: true}, pattern, ordersStream)
	x.reaches("all.sales-a", 1)
	before := r.kinds()

	// Its streams begin again where the pattern changes, and go on with their epochs.
	more := with(pattern, `topics = "sales-.*",`, `topics = "sales-[ab]", max_topics = 2,`)
	if got := reloads(x, ReloadRequest{}, more, ordersStream); len(got.Changed) != 1 || len(got.Added)+len(got.Removed)+len(got.Unopened) > 0 {
		t.Errorf("changed: %+v", got)
	}
	fill(r, "sales-a", 100)
	x.reaches("all.sales-a", 2)
	r.write(with(more, "step   = 100", "step = 50"), ordersStream)
	if _, err := x.d.Reload(ReloadRequest{}); err == nil || !strings.Contains(err.Error(), "stream all.sales-a: step: 100 → 50") || !strings.Contains(err.Error(), "stream all.sales-b: step") {
		t.Errorf("%v", err)
	}
	if got := reloads(x, ReloadRequest{}, ordersStream); !slices.Equal(got.Removed, []string{"all", "all.sales-a", "all.sales-b"}) {
		t.Errorf("removed: %v", got.Removed)
	}
	if _, body := x.get("/metrics"); strings.Contains(body, "sales-a") || strings.Contains(body, `pattern="all"`) {
		t.Error("series of streams or patterns that are gone")
	}
	if s := x.d.Status(); len(s) != 1 || r.kinds() != before {
		t.Errorf("%d tasks, the ledger has %s", len(s), r.kinds())
	}
	reloads(x, ReloadRequest{}, more, ordersStream)
	fill(r, "sales-b", 100)
	x.reaches("all.sales-b", 2)
	if r.kinds() != before {
		t.Errorf("the ledger has %s", r.kinds())
	}
	x.end()
}
