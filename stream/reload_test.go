package stream_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// reloads writes the file and makes a daemon read it.
func reloads(x *streamtest.Running, q httpapi.ReloadRequest, tables ...string) *httpapi.Reload {
	x.T.Helper()
	x.R.Write(tables...)
	found, err := x.D.Reload(q)
	if err != nil {
		x.T.Fatalf("%v\n%s", err, x.R.Log)
	}
	return found
}

// sendTopic appends n records to a topic, numbered from first.
func sendTopic(r *streamtest.Rig, topic string, first, n int) {
	r.T.Helper()
	var list []kafka.Message
	for i := range n {
		list = append(list, kafka.Message{Value: fixtures.OrderRecord(first + i), Time: time.UnixMilli(1)})
	}
	_, err := r.Client.Produce(r.T.Context(), topic, 0, list)
	fixtures.Must(r.T, err)
}

// TestReload: a daemon reloads its file again and again, under load. Its releases have the bytes of an uninterrupted
// run, and nothing is lost.
func TestReload(t *testing.T) {
	t.Parallel()
	sales, visits := ofTopic("sales"), ofTopic("visits")
	r := streamtest.NewRig(t, fixtures.OrdersStream+sales)
	for _, topic := range []string{"sales", "visits", "rejected"} {
		fixtures.Must(t, r.Client.CreateTopic(t.Context(), topic, 1, nil))
	}
	x := r.Start(r.Reloadable)
	feed := feedOn(r)
	x.Reaches("orders", 1)

	if got := reloads(x, httpapi.ReloadRequest{}, fixtures.OrdersStream, sales); !stream.Unchanged(got) {
		t.Errorf("the same file: %+v", got)
	}
	orders := x.In.Tasks()[0]
	sendTopic(r, "sales", 0, 250)
	letters := "[stream.sales.dead_letter]\nmode = \"reference\"\ntopic = \"rejected\"\n"
	got := reloads(x, httpapi.ReloadRequest{}, fixtures.OrdersStream, sales+letters)
	if len(got.Changed) != 1 || got.Changed[0].Stream != "sales" ||
		fmt.Sprint(
			got.Changed[0].Keys) != `[dead_letter.mode: "off" → "reference" dead_letter.topic: "" → "rejected"]` {
		t.Errorf("changed: %+v", got.Changed)
	}
	sendTopic(r, "sales", 250, 250)
	if x.In.Tasks()[0] != orders {
		t.Error("another stream's tasks were restarted")
	}
	got = reloads(x, httpapi.ReloadRequest{Open: true}, fixtures.OrdersStream, visits)
	if !slices.Equal(got.Added, []string{"visits"}) || !slices.Equal(got.Removed, []string{"sales"}) ||
		len(got.Changed)+len(got.Unopened) > 0 {
		t.Errorf("one added, one removed: %+v", got)
	}
	sendTopic(r, "visits", 0, 300)
	sendTopic(r, "sales", 500, 250)
	x.Reaches("visits", 3)
	// The tasks of orders restart with another limit, which is recorded and charges nothing.
	raised := fixtures.With(fixtures.OrdersStream, "limit_epsilon = 3.0", "limit_epsilon = 4.0")
	for range 4 {
		reloads(x, httpapi.ReloadRequest{}, raised, visits, sales)
		reloads(x, httpapi.ReloadRequest{}, raised+"\n",
			fixtures.With(visits, `"visits.dp"`, `"visits.dp", create = false`))
		reloads(x, httpapi.ReloadRequest{}, fixtures.With(raised, "step   = 100", "step = 100\non_gap = \"null\""),
			visits, sales)
	}
	feed.end()
	sendTopic(r, "sales", 750, 250)
	steps := stepsOf(r, 100)
	x.Reaches("orders", steps)
	x.Reaches("sales", 10)
	x.Reaches("visits", 3)
	if kinds := r.Kinds(); kinds != "open open open limit" {
		t.Errorf("the ledger has %s", kinds)
	}
	if _, body := x.Get("/metrics"); !strings.Contains(body, "streamdp_config_last_load_successful 1\n") {
		t.Error("the last reload counts as refused")
	}
	x.End()

	whole := r.Sibling(strings.NewReplacer(`.dp"`, `.whole.dp"`).Replace(fixtures.OrdersStream + visits + sales))
	y := whole.Start()
	for _, name := range []string{"orders", "sales", "visits"} {
		n := map[string]uint64{"orders": steps, "sales": 10, "visits": 3}[name]
		y.Reaches(name, n)
		r.History(name+".dp").Equals(t, whole.History(name+".whole.dp"))
	}
	y.End()
}

// TestReloadOrder: of two concurrent reloads, the later one reads the file after the other has finished. A file read
// earlier never replaces one read later.
func TestReloadOrder(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := streamtest.NewRig(t, fixtures.OrdersStream+sales)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
	var slow atomic.Bool
	read, goOn := make(chan struct{}), make(chan struct{})
	x := r.Start(func(o *stream.Options) {
		o.Load = func() (*config.Config, error) {
			c, err := config.Load(r.Configuration())
			if slow.CompareAndSwap(true, false) {
				close(read)
				<-goOn
			}
			return c, err
		}
	})
	r.Write(fixtures.OrdersStream, sales)
	slow.Store(true)
	first, second := make(chan error, 1), make(chan error, 1)
	reload := func(done chan error) {
		_, err := x.D.Reload(httpapi.ReloadRequest{})
		done <- err
	}
	go reload(first)
	<-read
	r.Write(fixtures.OrdersStream) // the operator removes a stream
	go reload(second)
	select {
	case err := <-second:
		t.Errorf("the later reload did not wait: %v", err)
		second <- err
	case <-time.After(100 * time.Millisecond):
	}
	close(goOn)
	fixtures.Must(t, <-first)
	fixtures.Must(t, <-second)
	if x.In.Process.Config().Stream("sales") != nil {
		t.Error("the file that was read first is the configuration")
	}
	x.End()
}

// TestReloadBeforeRun: a reload requested while the daemon starts waits until its tasks have begun. Like any other, it
// opens no epoch.
func TestReloadBeforeRun(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
	r.Produce(0, 100)
	r.Write(fixtures.OrdersStream, sales)
	found := make(chan *httpapi.Reload, 1)
	r.Before = func(d *stream.Daemon) {
		go func() {
			x, err := d.Reload(httpapi.ReloadRequest{})
			if err != nil {
				t.Error(err)
			}
			found <- x
		}()
		select {
		case x := <-found:
			t.Error("a daemon without tasks has added a stream")
			found <- x
		case <-time.After(50 * time.Millisecond):
		}
	}
	x := r.Start(r.Reloadable)
	if got := <-found; got == nil || !slices.Equal(got.Added, []string{"sales"}) ||
		!slices.Equal(got.Unopened, []string{"sales-0"}) {
		t.Errorf("%+v", got)
	}
	x.Published(1)
	x.Of("sales", "halted", func(s monitor.TaskStatus) bool { return s.Reason == failure.Unopened })
	if got := r.Kinds(); got != "open" {
		t.Errorf("the ledger has %s", got)
	}
	x.End()
}

// TestReloadRefused: a change that a running daemon cannot make is refused as a whole. Then no part of the change is
// made, not even a permitted one, and the answer lists everything that is refused.
func TestReloadRefused(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := streamtest.NewRig(t, fixtures.OrdersStream+sales)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
	r.Produce(0, 200)
	levels := []string{}
	x := r.Start(r.Reloadable,
		func(o *stream.Options) { o.SetLevel = func(level string) { levels = append(levels, level) } })
	x.Published(2)
	x.Of("sales", "running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	tasks, before, ledger := x.In.Tasks(), x.In.Process.Config(), r.Kinds()
	unchanged := func(why string) {
		t.Helper()
		if !slices.Equal(x.In.Tasks(), tasks) || x.In.Process.Config() != before || r.Kinds() != ledger ||
			len(levels) > 0 {
			t.Errorf("%s: something changed", why)
		}
		if _, body := x.Get("/metrics"); !strings.Contains(body, "streamdp_config_last_load_successful 0\n") {
			t.Errorf("%s: the metric does not say so", why)
		}
	}
	visits := ofTopic("visits")
	for _, c := range []struct {
		edit   func(*streamtest.Rig)
		tables []string
		want   []string
	}{
		{nil, []string{fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 50"), visits},
			[]string{"stream orders: step: 100 → 50: the guarantee of the open epoch 1 of task orders-0 depends"}},
		{nil,
			[]string{fixtures.With(fixtures.OrdersStream, "epsilon = 1.0", "epsilon = 0.5"),
				fixtures.With(sales, "clip = 1.0", "clip = 2.0")},
			[]string{"stream orders: privacy.epsilon: 1 → 0.5", "stream sales: moments.clip: 1 → 2"}},
		{nil, []string{fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"orders.dp", encoding = "base64"`)},
			[]string{
				`output.encoding: "json" → "base64": the bytes of releases of the open epoch 1 of task orders-0 depend`}},
		{nil, []string{fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"orders.dp", values = ["mean"]`)},
			[]string{"output.values"}},
		{nil,
			[]string{
				fixtures.With(fixtures.OrdersStream, `topic = "orders", `, `topic = "orders", partition = [0, 1], `) +
					"merge = true\n"}, nil},
		{nil,
			[]string{
				fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nmerge = true", `topic = "orders", `,
					`topic = "orders", partition = [0, 1], `)},
			[]string{"stream orders: merge: epoch 1 of task orders-0 is open"}},
		{nil,
			[]string{
				fixtures.With(fixtures.OrdersStream, `limit_epsilon = 3.0`, "limit_epsilon = 1.0", "epsilon = 1.0\n",
					"epsilon = 1.0\nlimit_delta = 1e-7\n")}, nil},
		{func(r *streamtest.Rig) { r.Commit, r.Archive = "20ms", true }, []string{fixtures.OrdersStream},
			[]string{"state.archive: false → true", `state.commit_interval: "10ms" → "20ms"`}},
		{func(r *streamtest.Rig) { r.Http = "exposure = \"public\"\n[log]\nlevel = \"debug\"\n" },
			[]string{fixtures.OrdersStream}, []string{"http.exposure"}},
		{func(r *streamtest.Rig) { r.Topic = "control" }, []string{fixtures.OrdersStream},
			[]string{`kafka.control_topic: "" → "control"`}},
		{func(r *streamtest.Rig) { r.Group = "[cluster]\ngroup = \"g\"\n" }, []string{fixtures.OrdersStream},
			[]string{"cluster: absent → present"}},
	} {
		if c.want == nil {
			continue
		}
		edited := *r
		if c.edit != nil {
			c.edit(&edited)
		}
		edited.Write(c.tables...)
		found, err := x.D.Reload(httpapi.ReloadRequest{Open: true})
		var refused *httpapi.RefusedError
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

	// The new limit is below what is already charged.
	low := fixtures.With(fixtures.OrdersStream, "epsilon = 1.0", "epsilon = 1.0", "limit_epsilon = 3.0",
		"limit_epsilon = 1.0\nlimit_delta = 2e-8")
	r.Write(low, sales)
	if found, err := x.D.Reload(httpapi.ReloadRequest{DryRun: true}); err != nil || len(found.Changed) != 1 {
		t.Errorf("a limit that is enough: %+v, %v", found, err)
	}

	// A file with faults: the answer has all of them, with their lines.
	r.Write(fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 0"),
		fixtures.With(sales, "clip = 1.0", "clib = 1.0"))
	_, err := x.D.Reload(httpapi.ReloadRequest{})
	var faults config.Faults
	if !errors.As(err, &faults) || len(faults) != 2 || faults[0].Line == 0 || faults[0].Line == faults[1].Line ||
		!strings.HasPrefix(faults[0].File, r.Dir) {
		t.Errorf("a file with two faults: %v", err)
	}
	unchanged("faults")
	fixtures.Must(t, os.Remove(r.Configuration()))
	if _, err := x.D.Reload(httpapi.ReloadRequest{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	unchanged("no file")

	// A dry run shows what would change, and leaves the metric unchanged.
	r.Write(fixtures.OrdersStream, visits)
	found, err := x.D.Reload(httpapi.ReloadRequest{DryRun: true, Open: true})
	if err != nil || !slices.Equal(found.Added, []string{"visits"}) || !slices.Equal(found.Removed, []string{"sales"}) {
		t.Errorf("dry run: %+v, %v", found, err)
	}
	unchanged("dry run")

	// After its epoch was closed, a stream accepts any change, which opens no epoch.
	fixtures.Must(t, x.ControlOf("sales", task.RequestClose, epoch.OpenRequest{}))
	ledger = r.Kinds()
	edited := *r
	edited.Http = "[log]\nlevel = \"debug\"\n"
	edited.Write(fixtures.OrdersStream, fixtures.With(sales, "step   = 100", "step = 50"))
	if _, err := x.D.Reload(httpapi.ReloadRequest{}); err != nil {
		t.Error(err)
	}
	if r.Kinds() != ledger || !slices.Equal(levels, []string{"debug"}) {
		t.Errorf("the ledger has %s, levels %v", r.Kinds(), levels)
	}
	fixtures.Must(t, x.ControlOf("sales", task.RequestOpen, epoch.OpenRequest{}))
	sendTopic(r, "sales", 0, 100)
	x.Reaches("sales", 2)
	x.End()

	y := r.Start()
	if _, err := y.D.Reload(httpapi.ReloadRequest{}); !errors.Is(err, stream.ErrNoFile) {
		t.Errorf("without a file: %v", err)
	}
	y.End()
}

// TestReloadClosed: after a task's epoch was closed on request, a reload opens no other epoch, not even with --open.
// The operator must name the task.
func TestReloadClosed(t *testing.T) {
	t.Parallel()
	sales := ofTopic("sales")
	r := streamtest.NewRig(t, fixtures.OrdersStream+sales)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
	r.Produce(0, 100)
	x := r.Start(r.Reloadable)
	x.Published(1)
	x.Of("sales", "running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	fixtures.Must(t, x.ControlOf("sales", task.RequestClose, epoch.OpenRequest{}))
	before := r.Kinds()
	shorter := fixtures.With(sales, "step   = 100", "step = 50")
	for _, open := range []bool{false, true} {
		if got := reloads(x, httpapi.ReloadRequest{Open: open}, fixtures.OrdersStream, shorter); len(got.Opened)+
			len(got.Unopened) > 0 {
			t.Errorf("open %t: %v opened, %v wait", open, got.Opened, got.Unopened)
		}
	}
	x.Of("sales", "closed", func(s monitor.TaskStatus) bool { return s.State == monitor.StateClosed })
	if r.Kinds() != before {
		t.Errorf("the ledger had %s, and has %s", before, r.Kinds())
	}
	fixtures.Must(t, x.ControlOf("sales", task.RequestOpen, epoch.OpenRequest{}))
	sendTopic(r, "sales", 0, 50)
	x.Reaches("sales", 1)
	x.End()
}

// TestReloadLimit: a limit below what is already charged is refused.
func TestReloadLimit(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 100)
	x := r.Start(r.Reloadable)
	x.Published(1)
	fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{From: "earliest"})) // charged twice
	x.Of("orders", "in epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 })
	before := r.Kinds()
	r.Write(fixtures.With(fixtures.OrdersStream, "limit_epsilon = 3.0", "limit_epsilon = 1.2"))
	if _, err := x.D.Reload(httpapi.ReloadRequest{}); err == nil ||
		!strings.Contains(err.Error(), "stream orders: limit_epsilon 1.2 at delta 1e-08 is below what") {
		t.Errorf("%v", err)
	}
	if r.Kinds() != before {
		t.Error("the ledger has another line")
	}
	x.End()
}

// TestReloadHorizon: changing on_horizon does not open the next epoch of a task at its horizon. With --open it does.
func TestReloadHorizon(t *testing.T) {
	t.Parallel()
	short := fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 2")
	sales := ofTopic("sales")
	r := streamtest.NewRig(t, short+sales)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
	r.Produce(0, 300)
	x := r.Start(r.Reloadable)
	x.Of("orders", "exhausted", func(s monitor.TaskStatus) bool { return s.State == monitor.StateExhausted })
	x.Of("sales", "running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	before := r.Kinds()
	rolls := fixtures.With(short, "horizon = 2", "horizon = 2\non_horizon = \"rollover\"")
	reloads(x, httpapi.ReloadRequest{}, rolls, sales)
	if s := x.Of("orders", "halted",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted }); s.Reason != failure.Unopened ||
		r.Kinds() != before {
		t.Errorf("%s: %s; the ledger has %s", s.Reason, s.Message, r.Kinds())
	}
	if got := reloads(x, httpapi.ReloadRequest{}, rolls, sales); !slices.Equal(got.Unopened, []string{"orders-0"}) {
		t.Errorf("unopened: %v", got.Unopened)
	}
	if got := reloads(x, httpapi.ReloadRequest{Open: true}, rolls, sales); len(got.Unopened) > 0 {
		t.Errorf("unopened: %v", got.Unopened)
	}
	x.Of("orders", "in the next epoch",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning && s.Epoch == 2 && s.Step == 1 })
	x.End()
}

// TestReloadOpensNothing: a task has not opened its epoch, because it waits or the budget does not suffice. If a reload
// makes the opening possible, the task still does not open the epoch.
func TestReloadOpensNothing(t *testing.T) {
	t.Parallel()
	both := fixtures.OrdersStream + fixtures.With(ofTopic("sales"), `topic = "sales"`, `topic = "orders"`)
	poor := strings.ReplaceAll(both, "limit_epsilon = 3.0", "limit_epsilon = 1.0")
	waits := fixtures.With(ofTopic("sales"), `topic = "sales"`, `topic = "visits"`)
	for name, c := range map[string]struct {
		before, after string
		waits         string // the task's state
	}{
		"another topic":  {waits, ofTopic("sales"), monitor.StateRetrying},
		"a higher limit": {poor, both, monitor.StateHalted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, c.before)
			fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
			r.Produce(0, 300)
			x := r.Start(r.Reloadable)
			stream, task := "", ""
			for stream == "" {
				for _, s := range x.D.Status() {
					if s.State == c.waits {
						stream, task = s.Stream, s.Stream+"-0"
					}
				}
				time.Sleep(time.Millisecond)
			}
			opened := strings.Count(r.Kinds(), "open")
			// A change unrelated to openings leaves the task as it is.
			letters := fmt.Sprintf("[stream.%s.dead_letter]\nmode = \"reference\"\ntopic = \"rejected\"\n", stream)
			if got := reloads(x, httpapi.ReloadRequest{}, c.before+letters); len(got.Unopened) > 0 ||
				len(got.Changed) != 1 {
				t.Errorf("with dead letters: %+v", got)
			}
			if got := reloads(x, httpapi.ReloadRequest{}, c.after); !slices.Equal(got.Unopened, []string{task}) {
				t.Errorf("unopened: %v", got.Unopened)
			}
			x.Of(stream, "held",
				func(s monitor.TaskStatus) bool {
					return s.State == monitor.StateHalted && s.Reason == failure.Unopened
				})
			if n := strings.Count(r.Kinds(), "open"); n != opened {
				t.Errorf("the ledger has %s", r.Kinds())
			}
			if got := reloads(x, httpapi.ReloadRequest{Open: true}, c.after); len(got.Unopened) > 0 {
				t.Errorf("unopened: %v", got.Unopened)
			}
			x.Of(stream, "running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			if n := strings.Count(r.Kinds(), "open"); n <= opened {
				t.Errorf("the ledger has %s", r.Kinds())
			}
			x.End()
		})
	}
}

// TestReloadAccess checks who may request a reload, and the answers.
func TestReloadAccess(t *testing.T) {
	t.Parallel()
	ask := func(x *streamtest.Running, edit func(*http.Request)) (int, httpapi.ReloadAnswer) {
		req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/-/reload", nil)
		if edit != nil {
			edit(req)
		}
		w := httptest.NewRecorder()
		(*x.D.Server()).Guarded().ServeHTTP(w, req)
		var a httpapi.ReloadAnswer
		_ = json.Unmarshal(w.Body.Bytes(), &a)
		return w.Code, a
	}
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
	r.Produce(0, 100)
	x := r.Start(r.Reloadable)
	x.Published(1)
	r.Write(fixtures.OrdersStream, ofTopic("sales"))
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
	if len(x.D.Status()) != 1 {
		t.Fatal("a request without access reloaded the configuration")
	}
	// An epoch cannot be opened over HTTP.
	if code, a := ask(x, func(q *http.Request) { q.URL.RawQuery = "open=true" }); code != http.StatusOK ||
		a.Status != "success" || !slices.Equal(a.Data.Added, []string{"sales"}) {
		t.Errorf("%d: %+v", code, a)
	}
	if s := x.Of("sales", "halted",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted }); s.Reason != failure.Unopened {
		t.Errorf("%+v", s)
	}
	r.Write(fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 50"))
	if code, a := ask(x, nil); code != http.StatusConflict || !a.Configuration || len(a.Data.Refused) != 1 ||
		!strings.Contains(a.Error, "step: 100 → 50") {
		t.Errorf("%d: %+v", code, a)
	}
	r.Write(fixtures.With(fixtures.OrdersStream, "step   = 100", "stop = 50"))
	if code, a := ask(x, nil); code != http.StatusConflict || !a.Configuration || a.Data != nil ||
		!strings.Contains(a.Error, "streamdp.toml:") {
		t.Errorf("%d: %+v", code, a)
	}
	// An epoch can be opened over the control socket.
	r.Write(fixtures.OrdersStream, ofTopic("sales"))
	body, err := json.Marshal(httpapi.ReloadRequest{Open: true})
	fixtures.Must(t, err)
	req, err := http.NewRequest("POST", "http://daemon/reload", bytes.NewReader(body))
	fixtures.Must(t, err)
	if text := fixtures.ReadAll(t, x.ControlRaw(req)); !strings.Contains(text, `"status":"success"`) {
		t.Error(text)
	}
	x.Of("sales", "running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	x.End()

	r.Http = "exposure = \"public\"\n"
	x = r.Start(r.Reloadable)
	if code, _ := ask(x, nil); code != http.StatusForbidden {
		t.Errorf("a public listener: %d", code)
	}
	x.End()
	r.Http = "insecure_listen = true\n"
	x = r.Start(r.Reloadable)
	(*x.D.Server()).HTTP.Listen = "0.0.0.0:9464"
	if code, _ := ask(x, nil); code != http.StatusForbidden {
		t.Errorf("a listener without a password: %d", code)
	}
	x.End()
}

// TestReloadKilled kills a daemon that reloads its configuration all the time: a stream is added and removed, and the
// other one's tasks restart again and again. No release is lost, and each has the bytes of an uninterrupted run.
func TestReloadKilled(t *testing.T) {
	t.Parallel()
	const seed = 23
	r := streamtest.NewRig(t, killStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "sales", 1, nil))
	// If a kill interrupts an opening, the epoch is taken back, and the next epoch has other bytes.
	first := r.Sibling(killStream + ofTopic("sales"))
	first.Dir = r.Dir
	begun := first.Start()
	for _, name := range []string{"orders", "sales"} {
		begun.Of(name, "running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	}
	begun.End()
	sendTopic(r, "sales", 0, 2000)
	spec := specOf(r, "daemon", 0)
	text := func(tables ...string) string {
		now := *r
		now.Toml = strings.Join(tables, "")
		return string(now.Text())
	}
	again := fixtures.With(killStream, "step = 20", "step = 20\non_gap = \"null\"")
	spec.Reloads = []string{text(killStream), text(again, ofTopic("sales")), text(killStream, ofTopic("sales")),
		text(again)}
	feed := feedOn(r)
	var hit interruptions
	killLoop(t, r, spec, rand.New(rand.NewPCG(seed, 0)), killsOf(8, 100), &hit)
	feed.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	t.Logf("%d kills, %d inside a commit, %d with releases that had not left", hit.kills, hit.inCommit, hit.unsent)
	r.History("orders.dp").Equals(t, r.Uninterrupted(steps))

	all := r.Sibling(ofTopic("sales"))
	all.Dir, all.Commit = r.Dir, "10ms"
	x := all.Start()
	x.Reaches("sales", 20)
	x.End()
	whole := r.Sibling(fixtures.With(ofTopic("sales"), `"sales.dp"`, `"sales.whole.dp"`))
	whole.Commit = "10ms"
	y := whole.Start()
	y.Reaches("sales", 20)
	y.End()
	r.History("sales.dp").Equals(t, whole.History("sales.whole.dp"))
}

// TestReloadPatterns: streams are made for the topics of an added pattern, and none opens an epoch for a topic that
// exists already. When a pattern is removed, nothing of its streams is left in the process, and their epochs stay open.
func TestReloadPatterns(t *testing.T) {
	t.Parallel()
	pattern := strings.ReplaceAll(salesStream, "stream.orders", "stream.all")
	r := newPatternRig(t, fixtures.OrdersStream, "orders", "sales-a")
	r.Produce(0, 100)
	fill(r, "sales-a", 100)
	x := r.Start(soon, r.Reloadable)
	x.Published(1)
	if got := reloads(x, httpapi.ReloadRequest{}, pattern, fixtures.OrdersStream); !slices.Equal(got.Added,
		[]string{"all"}) {
		t.Errorf("added: %v", got.Added)
	}
	if s := x.Of("all.sales-a", "halted",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted }); s.Reason != failure.Unopened ||
		r.Kinds() != "open" {
		t.Errorf("an existing topic: %s: %s; the ledger has %s", s.Reason, s.Message, r.Kinds())
	}
	// A later topic gets an epoch.
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-b", 1, nil))
	fill(r, "sales-b", 100)
	x.Reaches("all.sales-b", 1)
	if got := reloads(x, httpapi.ReloadRequest{}, pattern, fixtures.OrdersStream); !slices.Equal(got.Unopened,
		[]string{"all.sales-a-0"}) || !stream.Unchanged(got) {
		t.Errorf("the same file: %+v", got)
	}
	// There is no difference either if the reader of the file knows topics from the ledger.
	plain := (*x.D.Load())
	(*x.D.Load()) = func() (*config.Config, error) {
		c, err := plain()
		if err == nil {
			c, _ = c.Expand(config.Topics{Found: []string{"sales-a", "sales-b"}})
		}
		return c, err
	}
	if got := reloads(x, httpapi.ReloadRequest{}, pattern, fixtures.OrdersStream); !stream.Unchanged(got) {
		t.Errorf("the same file, with its topics: %+v", got)
	}
	reloads(x, httpapi.ReloadRequest{Open: true}, pattern, fixtures.OrdersStream)
	x.Reaches("all.sales-a", 1)
	before := r.Kinds()

	// If the pattern changes, its streams restart and continue their epochs.
	more := fixtures.With(pattern, `topics = "sales-.*",`, `topics = "sales-[ab]", max_topics = 2,`)
	if got := reloads(x, httpapi.ReloadRequest{}, more, fixtures.OrdersStream); len(got.Changed) != 1 ||
		len(got.Added)+len(got.Removed)+len(got.Unopened) > 0 {
		t.Errorf("changed: %+v", got)
	}
	fill(r, "sales-a", 100)
	x.Reaches("all.sales-a", 2)
	r.Write(fixtures.With(more, "step   = 100", "step = 50"), fixtures.OrdersStream)
	if _, err := x.D.Reload(httpapi.ReloadRequest{}); err == nil ||
		!strings.Contains(err.Error(), "stream all.sales-a: step: 100 → 50") ||
		!strings.Contains(err.Error(), "stream all.sales-b: step") {
		t.Errorf("%v", err)
	}
	if got := reloads(x, httpapi.ReloadRequest{}, fixtures.OrdersStream); !slices.Equal(got.Removed,
		[]string{"all", "all.sales-a", "all.sales-b"}) {
		t.Errorf("removed: %v", got.Removed)
	}
	if _, body := x.Get("/metrics"); strings.Contains(body, "sales-a") || strings.Contains(body, `pattern="all"`) {
		t.Error("removed streams or patterns still have series")
	}
	if s := x.D.Status(); len(s) != 1 || r.Kinds() != before {
		t.Errorf("%d tasks, the ledger has %s", len(s), r.Kinds())
	}
	reloads(x, httpapi.ReloadRequest{}, more, fixtures.OrdersStream)
	fill(r, "sales-b", 100)
	x.Reaches("all.sales-b", 2)
	if r.Kinds() != before {
		t.Errorf("the ledger has %s", r.Kinds())
	}
	x.End()
}
