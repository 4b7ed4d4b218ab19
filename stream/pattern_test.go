package stream_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/browser"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// salesStream is a pattern.
var salesStream = fixtures.With(fixtures.OrdersStream, `topic = "orders",`, `topics = "sales-.*",`,
	"output = { topic = \"orders.dp\" }\n", "")

// newPatternRig returns a rig with these topics.
func newPatternRig(t *testing.T, toml string, topics ...string) *streamtest.Rig {
	t.Helper()
	return streamtest.NewRigOn(t, toml, embedded.Options{Topics: topics})
}

// soon shortens the interval at which a daemon looks for topics.
func soon(o *stream.Options) { o.Hooks.LookEvery = 20 * time.Millisecond }

// fill appends n records to a topic.
func fill(r *streamtest.Rig, topic string, n int) {
	r.T.Helper()
	fillTopic(r.T, r.Client, topic, n)
}

// fillTopic appends n records to a topic. The client need not know the topic yet.
func fillTopic(t testing.TB, client *kafka.Client, topic string, n int) {
	t.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Value: fixtures.OrderRecord(i), Time: time.UnixMilli(1)}
	}
	for late := time.After(fixtures.Patience); ; {
		_, err := client.Produce(t.Context(), topic, 0, list)
		if err == nil {
			return
		}
		if !kafka.UnknownTopic(err) {
			t.Fatal(err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-late:
			t.Fatal(err)
		}
	}
}

// drop deletes a topic.
func drop(r *streamtest.Rig, topic string) {
	r.T.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.Addr))
	fixtures.Must(r.T, err)
	defer client.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	x := kmsg.NewDeleteTopicsRequestTopic()
	x.Topic = &topic
	req.TopicNames, req.Topics = []string{topic}, append(req.Topics, x)
	_, err = req.RequestWith(r.T.Context(), client)
	fixtures.Must(r.T, err)
}

// runs waits until exactly these streams run, each at the given step or later.
func runs(x *streamtest.Running, step uint64, streams ...string) {
	x.T.Helper()
	eventually(x, fmt.Sprintf("%q run", streams), func(all []monitor.TaskStatus) bool {
		var names []string
		for _, s := range all {
			if s.State == monitor.StateRunning && s.Step >= step && s.Outbox == 0 {
				names = append(names, s.Stream)
			}
		}
		slices.Sort(names)
		return slices.Equal(names, streams) && len(all) == len(streams)
	})
}

// eventually waits until the tasks are as wanted.
func eventually(x *streamtest.Running, what string, ok func([]monitor.TaskStatus) bool) {
	x.T.Helper()
	for late := time.After(fixtures.Patience); !ok(x.D.Status()); {
		select {
		case <-x.Wake:
		case <-time.After(5 * time.Millisecond):
		case <-x.Done:
			x.T.Fatalf("the daemon ended: %v\n%s", x.Result, x.R.Log)
		case <-late:
			x.T.Fatalf("not reached: %s: %+v\n%s", what, x.D.Status(), x.R.Log)
		}
	}
}

// releasesOf reads a topic's records.
func releasesOf(r *streamtest.Rig, topic string) (all []kafka.Record) {
	r.T.Helper()
	fixtures.Must(r.T, r.Client.ReadBack(r.T.Context(), topic, 0, 0, func(rec *kafka.Record) error {
		all = append(all, kafka.Record{Key: bytes.Clone(rec.Key), Value: bytes.Clone(rec.Value)})
		return nil
	}))
	return all
}

// TestPattern: each topic that matches becomes a stream with its own epoch and output, even if it is created while the
// daemon runs. Topics that the process writes to are excluded. The ledger knows the topics of earlier runs, so they
// continue at the next start even before the cluster answers.
func TestPattern(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a", "other", "sales-b.dp", "sales-Q")
	fill(r, "sales-a", 250)
	fill(r, "sales-Q", 100)
	capital := "orders.sales-q~"
	x := r.Start(soon)
	eventually(x, "two streams run", func(all []monitor.TaskStatus) bool {
		return len(all) == 2 && all[0].Step == 2 && all[0].Outbox == 0 && all[1].Step == 1 && all[1].Outbox == 0
	})
	if s := x.D.Status(); s[0].Stream != "orders.sales-a" || s[0].Topic != "sales-a" || s[0].Output != "sales-a.dp" ||
		!strings.HasPrefix(s[1].Stream, capital) || s[1].Topic != "sales-Q" {
		t.Fatalf("%+v", s)
	}
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-c", 1, nil))
	fill(r, "sales-c", 120)
	eventually(x, "the new topic has a release", func(all []monitor.TaskStatus) bool {
		return len(all) == 3 && all[1].Stream == "orders.sales-c" && all[1].Step == 1 && all[1].Outbox == 0
	})
	if out := releasesOf(r, "sales-c.dp"); len(out) != 1 || string(out[0].Key) != "orders.sales-c/0/1/1" {
		t.Errorf("%v", out)
	}
	fixtures.Conforms(t, string(releasesOf(r, "sales-c.dp")[0].Value))
	fixtures.Conforms(t, string(releasesOf(r, "sales-Q.dp")[0].Value))
	if code, body := x.Get("/-/ready"); code != http.StatusOK {
		t.Errorf("not ready: %s", body)
	}
	eventually(x, "the metrics count the topic", func([]monitor.TaskStatus) bool { // after its task has begun
		_, body := x.Get("/metrics")
		return strings.Contains(body, `streamdp_pattern_topics{pattern="orders",state="taken"} 3`)
	})
	if _, body := x.Get("/metrics"); !strings.Contains(body,
		`streamdp_steps_total{partition="0",stream="orders.sales-c"} 1`) {
		t.Errorf("metrics: %s", body)
	}
	if code, body := x.Get("/api/v1/streams/orders.sales-c/releases"); code != http.StatusOK ||
		!strings.Contains(body, "orders.sales-c") {
		t.Errorf("%d %s", code, body)
	}
	if _, body := x.Get("/api/v1/streams"); !strings.Contains(body, `"orders.sales-a","orders.sales-c","`+capital) {
		t.Errorf("streams: %s", body)
	}
	if _, body := x.Get("/api/v1/status"); !strings.Contains(body,
		`"patterns":[{"pattern":"orders","topics":"sales-.*","max_topics":100,"taken":3,"beyond":0,"refused":0}]`) {
		t.Errorf("status: %s", body)
	}
	x.End()
	if n := strings.Count(r.Kinds(), ledger.KindOpen); n != 3 {
		t.Errorf("%d epochs were opened, want one for each topic", n)
	}
	// Without the cluster, the streams in the ledger are known.
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		if len(d.Status()) != 3 {
			t.Errorf("%+v", d.Status())
		}
		return nil
	}))
	fill(r, "sales-a", 100)
	x = r.Start(soon)
	eventually(x, "all go on", func(all []monitor.TaskStatus) bool {
		return len(all) == 3 && all[0].Step == 3 && all[0].Outbox == 0 && all[2].State == monitor.StateRunning
	})
	// A command opens an epoch of one of them.
	fixtures.Must(t, x.ControlOf("orders.sales-a", "open", epoch.OpenRequest{From: "continue", Reason: "requested"}))
	eventually(x, "the second epoch",
		func(all []monitor.TaskStatus) bool { return all[0].Epoch == 2 && all[0].State == monitor.StateRunning })
	x.End()
	if n := strings.Count(r.Kinds(), ledger.KindOpen); n != 4 {
		t.Errorf("%d epochs", n)
	}
}

// TestPatternAsWritten: a topic that matches a pattern has the same digest and releases as if it had its own table,
// except for the stream's name in keys and noise.
func TestPatternAsWritten(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a")
	fill(r, "sales-a", 100)
	x := r.Start(soon)
	runs(x, 1, "orders.sales-a")
	x.End()
	s := r.Sibling(
		fixtures.With(fixtures.OrdersStream, `topic = "orders",`, `topic = "sales-a",`, `"orders.dp"`, `"b"`))
	y := s.Start()
	runs(y, 1, "orders")
	y.End()
	one, two := r.Entries()[0], s.Entries()[0]
	if one.Digest != two.Digest || one.Topic != "sales-a" || one.Source != two.Source ||
		one.Output.Topic != "sales-a.dp" {
		t.Errorf("%+v\n%+v", one, two)
	}
	a, b := releasesOf(r, "sales-a.dp"), releasesOf(r, "b")
	if len(a) != 1 || len(b) != 1 || !strings.Contains(string(a[0].Value), `"stream":"orders.sales-a"`) {
		t.Fatalf("%d and %d releases", len(a), len(b))
	}
}

// TestPatternBudgets: each topic has its own budget, so a second epoch of one topic does not charge another topic.
func TestPatternBudgets(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, fixtures.With(salesStream, "limit_epsilon = 3.0", "limit_epsilon = 1.0"),
		"sales-a", "sales-b")
	fill(r, "sales-a", 100)
	fill(r, "sales-b", 100)
	x := r.Start(soon)
	runs(x, 1, "orders.sales-a", "orders.sales-b")
	for _, s := range x.D.Status() {
		if s.ChargedEpsilon < 0.9 || s.ChargedEpsilon > 1 {
			t.Errorf("%s is charged %g", s.Stream, s.ChargedEpsilon)
		}
	}
	// The records of one topic have used up their budget. New records of the other topic have budget left.
	err := x.ControlOf("orders.sales-a", "open", epoch.OpenRequest{From: "earliest", Reason: "requested"})
	if err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a second epoch over the same records: %v", err)
	}
	fixtures.Must(t, x.ControlOf("orders.sales-b", "open", epoch.OpenRequest{From: "continue", Reason: "requested"}))
	x.End()
	books, err := ledger.ReadBooks(r.Dir + "/state")
	fixtures.Must(t, err)
	all, err := books.Budget()
	fixtures.Must(t, err)
	events := map[string]int{}
	for _, b := range all {
		events[b.Topic] += len(b.Events)
	}
	if len(all) != 2 || events["sales-a"] != 1 || events["sales-b"] != 3 {
		t.Errorf("%+v", all)
	}
}

// TestPatternBound: at most max_topics topics are taken. A topic that was accepted stays accepted, even if topics
// appear whose names sort before it. Refused topics are reported once.
func TestPatternBound(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, fixtures.With(salesStream, `topics = "sales-.*",`, `topics = "sales-.*", max_topics = 2,`),
		"sales-m", "sales-n")
	x := r.Start(soon)
	runs(x, 0, "orders.sales-m", "orders.sales-n")
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-a", 1, nil))
	missing := func() httpapi.PatternStatus {
		for late := time.After(fixtures.Patience); ; {
			if p := x.D.Patterns()[0]; p.Beyond > 0 {
				return p
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-late:
				t.Fatalf("nothing is beyond the bound: %+v", x.D.Patterns())
			}
		}
	}
	if p := missing(); p.Taken != 2 || p.Beyond != 1 || len(p.Missing) != 1 || p.Missing[0].Topic != "sales-a" {
		t.Errorf("%+v", p)
	}
	if _, body := x.Get("/metrics"); !strings.Contains(body,
		`streamdp_pattern_topics{pattern="orders",state="beyond"} 1`) {
		t.Error("no metric")
	}
	time.Sleep(60 * time.Millisecond) // it looks twice more
	runs(x, 0, "orders.sales-m", "orders.sales-n")
	x.End()
	if n := strings.Count(r.Log.String(), "more topics match a pattern than allowed"); n != 1 {
		t.Errorf("warned %d times", n)
	}
	x = r.Start(soon)
	missing()
	runs(x, 0, "orders.sales-m", "orders.sales-n")
	// A deleted topic keeps its place while its epoch is open.
	drop(r, "sales-m")
	time.Sleep(60 * time.Millisecond)
	x.End()
	x = r.Start(soon)
	missing()
	if all := x.D.Status(); len(all) != 2 || all[0].Stream != "orders.sales-m" || all[1].Stream != "orders.sales-n" {
		t.Errorf("%+v", all)
	}
	// If its epoch is closed, it loses its place at the next start.
	fixtures.Must(t, x.ControlOf("orders.sales-m", "close", epoch.OpenRequest{DropOutbox: true}))
	x.End()
	x = r.Start(soon)
	runs(x, 0, "orders.sales-a", "orders.sales-n")
	x.End()
	if n := strings.Count(r.Kinds(), ledger.KindOpen); n != 3 {
		t.Errorf("%d epochs", n)
	}
}

// TestPatternMadeAnew: a topic that was deleted and created again under its name is a different log. The task halts,
// and the next epoch charges the records as records of a new log.
func TestPatternMadeAnew(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a")
	fill(r, "sales-a", 150)
	x := r.Start(soon)
	runs(x, 1, "orders.sales-a")
	x.End()
	drop(r, "sales-a")
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-a", 1, nil))
	fill(r, "sales-a", 50)
	x = r.Start(soon)
	eventually(x, "it halts",
		func(all []monitor.TaskStatus) bool { return len(all) == 1 && all[0].State == monitor.StateHalted })
	fixtures.Must(t, x.ControlOf("orders.sales-a", "open", epoch.OpenRequest{From: "earliest", Reason: "requested"}))
	runs(x, 0, "orders.sales-a")
	x.End()
	last := r.Entries()[len(r.Entries())-1]
	if last.Kind != ledger.KindOpen || last.Incarnation != 2 || last.First != 0 {
		t.Errorf("%+v", last)
	}
}

// TestPatternWaits: a daemon with a pattern that matches nothing is ready and waits.
func TestPatternWaits(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "other")
	x := r.Start(soon)
	for late := time.After(fixtures.Patience); ; {
		if x.D.Addr() != "" {
			if code, body := x.Get("/-/ready"); code == http.StatusOK {
				break
			} else if !strings.Contains(body, "the topics that match a pattern are not known yet") {
				t.Fatal(body)
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-x.Done:
			t.Fatal(x.Result)
		case <-late:
			t.Fatal("not ready")
		}
	}
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-x", 1, nil))
	runs(x, 0, "orders.sales-x")
	x.End()
}

// TestPatternCommand: a command names a stream in the ledger, or one whose topic follows from its name.
func TestPatternCommand(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a", "sales-b")
	task := core.Task{Stream: "orders.sales-a"}
	one := func(o *stream.Options) { o.Tasks = []core.Task{task} }
	command := func(f func(context.Context, *stream.Daemon) error) {
		t.Helper()
		o := r.Options()
		one(&o)
		d, err := stream.New(o)
		fixtures.Must(t, err)
		defer d.Close()
		fixtures.Must(t, f(t.Context(), d))
	}
	command(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, task, epoch.OpenRequest{From: "earliest", Reason: "requested"})
	})
	command(func(ctx context.Context, d *stream.Daemon) error { return streamtest.CloseEpoch(ctx, d, task, false) })
	command(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, task, epoch.OpenRequest{From: "continue", Reason: "requested"})
	})
	if got := r.Kinds(); strings.Count(got, ledger.KindOpen) != 2 {
		t.Error(got)
	}
	for _, e := range r.Entries() {
		if e.Stream != "orders.sales-a" || e.Topic != "sales-a" {
			t.Errorf("%+v", e)
		}
	}
}

// TestPatternReadsNoOutput: a pattern that matches everything reads nothing that the process writes (releases, dead
// letters, the copy of its ledger), and no topic with a name like a system topic.
func TestPatternReadsNoOutput(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t,
		fixtures.With(salesStream, "sales-.*", ".*", "[stream.orders]\n",
			"[stream.orders]\ndead_letter = { mode = \"reference\", topic = \"*.dead\" }\n"), "a", "a.dead",
		"_x", "__y")
	r.Topic = "control"
	if _, err := r.Client.Produce(t.Context(), "a", 0,
		[]kafka.Message{{Value: []byte("no JSON"), Time: time.UnixMilli(1)}}); err != nil {
		t.Fatal(err)
	}
	fill(r, "a", 200)
	x := r.Start(soon)
	runs(x, 2, "orders.a")
	names := func() (all []string) {
		all, err := r.Client.Topics(t.Context())
		fixtures.Must(t, err)
		return all
	}
	for late := time.After(fixtures.Patience); !slices.Contains(names(), "a.dp") ||
		!slices.Contains(names(), "control") || len(releasesOf(r, "a.dead")) == 0; {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-late:
			t.Fatalf("there are only the topics %q", names())
		}
	}
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "z", 1, nil)) // found after the topics before
	runs(x, 0, "orders.a", "orders.z")
	x.End()
	if n := strings.Count(r.Kinds(), ledger.KindOpen); n != 2 {
		t.Errorf("%d epochs", n)
	}
	// A former output is not read, even if the configuration changed.
	r.Toml = fixtures.With(salesStream, "sales-.*", ".*", "[stream.orders]\n",
		"[stream.orders]\noutput = { topic = \"*.out\" }\n")
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "y", 1, nil))
	x = r.Start(soon)
	runs(x, 0, "orders.a", "orders.a.dead", "orders.y", "orders.z") // now dead letters are not this process's
	x.End()
}

// TestPatternsOfOneTopic: two patterns that match a topic both read it only if they are the same text. Then its records
// are charged for both, from one budget.
func TestPatternsOfOneTopic(t *testing.T) {
	t.Parallel()
	second := strings.NewReplacer("stream.orders", "stream.second", `codec = "json"`,
		`codec = "json", max_topics = 7`).Replace(salesStream)
	second = fixtures.With(second, "[stream.second]\n", "[stream.second]\noutput = { topic = \"*.second\" }\n")
	r := newPatternRig(t, salesStream+second, "sales-a")
	fill(r, "sales-a", 100)
	x := r.Start(soon)
	runs(x, 1, "orders.sales-a", "second.sales-a")
	for _, s := range x.D.Status() {
		if s.ChargedEpsilon < 1.3 {
			t.Errorf("%s: its records are charged %g for two epochs", s.Stream, s.ChargedEpsilon)
		}
	}
	x.End()
	s := newPatternRig(t, salesStream+strings.Replace(second, "sales-.*", "sales-..*|b", 1), "sales-a", "sales-aa", "b")
	x = s.Start(soon)
	runs(x, 0, "orders.sales-a", "orders.sales-aa", "second.b")
	if p := x.D.Patterns()[1]; p.Refused != 2 ||
		!strings.Contains(p.Missing[0].Reason, "[stream.orders] already reads this topic") {
		t.Errorf("%+v", p)
	}
	if n := strings.Count(s.Log.String(), "a topic matches a pattern but gets no stream"); n != 2 {
		t.Errorf("warned %d times", n)
	}
	x.End()
}

// TestManyOpenAtOnce: tasks open epochs at the same time, with a control topic. While one task adds lines to the topic,
// another must not conclude that the topic has lost them.
func TestManyOpenAtOnce(t *testing.T) {
	t.Parallel()
	var topics, want []string
	for i := range 16 {
		topics = append(topics, fmt.Sprintf("sales-%02d", i))
		want = append(want, "orders."+topics[i])
	}
	r := newPatternRig(t, salesStream, topics...)
	r.Topic = "control"
	x := r.Start(soon)
	runs(x, 0, want...)
	x.End()
	if strings.Contains(r.Log.String(), "halted") {
		t.Errorf("a task halted:\n%s", r.Log)
	}
}

// TestPatternPage: the status page shows a stream for each topic, also for one that appears while the page is open, and
// says which topics are refused.
func TestPatternPage(t *testing.T) {
	t.Parallel()
	path := browser.Find()
	if path == "" {
		t.Skip("no Chromium: install one (Debian: chromium-headless-shell), or name it in STREAMDP_BROWSER")
	}
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	r := newPatternRig(t,
		fixtures.With(salesStream, `topics = "sales-.*",`, `topics = "sales-.*", max_topics = 2,`), "sales-a")
	fill(r, "sales-a", 100)
	x := r.Start(soon)
	runs(x, 1, "orders.sales-a")
	p := browser.Open(t, path)
	p.Go("http://" + x.D.Addr() + "/")
	p.Until(ctx, "the release",
		`document.getElementById("s-orders.sales-a-0")?.querySelector(".chart .value")?.dataset.release === "orders.sales-a/0/1/1"`)
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-B", 1, nil))
	eventually(x, "the second stream", func(all []monitor.TaskStatus) bool { return len(all) == 2 })
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-c", 1, nil))
	p.Until(ctx, "the new stream, and what is not taken",
		`document.querySelector('[id^="s-orders.sales-b~"]') && document.getElementById("alerts").innerText.includes("Stream orders does not take 1 of the topics that match sales-.*. sales-c: the stream already has 2 topics, as many as input.max_topics allows.")`)
	p.Eval(`document.querySelectorAll("details").forEach((d) => { d.open = true })`, nil)
	for _, fault := range fixtures.Accessible(t, p) { // one stream has a release, the other none
		t.Error(fault)
	}
	if c := p.Complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}
	x.End()
}

// TestTopicMadeAnewWhileRunning deletes a topic and creates it again with the same records while its task runs. The
// task treats it as a different log, although the last record that it read is there.
func TestTopicMadeAnewWhileRunning(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a")
	fill(r, "sales-a", 150)
	x := r.Start(soon)
	runs(x, 1, "orders.sales-a")
	drop(r, "sales-a")
	eventually(x, "it misses the topic",
		func([]monitor.TaskStatus) bool { return strings.Contains(r.Log.String(), "what=fetch") })
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "sales-a", 1, nil))
	fill(r, "sales-a", 250)
	eventually(x, "it halts", func(all []monitor.TaskStatus) bool {
		return len(all) == 1 && all[0].State == monitor.StateHalted && all[0].Reason == failure.Replaced &&
			all[0].Step == 1
	})
	x.End()
}
