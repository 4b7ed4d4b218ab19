package stream

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/browser"
	"github.com/streamdp/streamdp/stream/core"
)

// salesStream is a pattern.
var salesStream = with(ordersStream, `topic = "orders",`, `topics = "sales-.*",`, "output = { topic = \"orders.dp\" }\n", "")

// newPatternRig is a rig with these topics.
func newPatternRig(t *testing.T, toml string, topics ...string) *rig {
	t.Helper()
	return newRigOn(t, toml, embedded.Options{Topics: topics})
}

// soon shortens how long a daemon takes to find topics.
func soon(o *Options) { o.Hooks.LookEvery = 20 * time.Millisecond }

// fill appends n records to a topic.
func fill(r *rig, topic string, n int) {
	r.t.Helper()
	fillTopic(r.t, r.client, topic, n)
}

// fillTopic appends n records to a topic, which the client need not know yet.
func fillTopic(t testing.TB, client *kafka.Client, topic string, n int) {
	t.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Value: orderRecord(i), Time: time.UnixMilli(1)}
	}
	for late := time.After(patience); ; {
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
func drop(r *rig, topic string) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.addr))
	must(r.t, err)
	defer client.Close()
	req := kmsg.NewPtrDeleteTopicsRequest()
	x := kmsg.NewDeleteTopicsRequestTopic()
	x.Topic = &topic
	req.TopicNames, req.Topics = []string{topic}, append(req.Topics, x)
	_, err = req.RequestWith(r.t.Context(), client)
	must(r.t, err)
}

// runs waits until the tasks that run are those of these streams, whose every epoch is at least at a
// step.
func runs(x *running, step uint64, streams ...string) {
	x.t.Helper()
	eventually(x, fmt.Sprintf("%q run", streams), func(all []TaskStatus) bool {
		var names []string
		for _, s := range all {
			if s.State == stateRunning && s.Step >= step && s.Outbox == 0 {
				names = append(names, s.Stream)
			}
		}
		slices.Sort(names)
		return slices.Equal(names, streams) && len(all) == len(streams)
	})
}

// eventually waits until the tasks are as wanted.
func eventually(x *running, what string, ok func([]TaskStatus) bool) {
	x.t.Helper()
	for late := time.After(patience); !ok(x.d.Status()); {
		select {
		case <-x.wake:
		case <-time.After(5 * time.Millisecond):
		case <-x.done:
			x.t.Fatalf("the daemon ended: %v\n%s", x.result, x.r.log)
		case <-late:
			x.t.Fatalf("not reached: %s: %+v\n%s", what, x.d.Status(), x.r.log)
		}
	}
}

// releases reads a topic's records.
func releasesOf(r *rig, topic string) (all []kafka.Record) {
	r.t.Helper()
	must(r.t, r.client.ReadBack(r.t.Context(), topic, 0, 0, func(rec *kafka.Record) error {
		all = append(all, kafka.Record{Key: bytes.Clone(rec.Key), Value: bytes.Clone(rec.Value)})
		return nil
	}))
	return all
}

// TestPattern: each topic that matches is a stream with an epoch and an output of its own, also one
// that is made while the daemon runs; none that the process writes to is. What was taken is known
// without the cluster, and goes on at the next start.
func TestPattern(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a", "other", "sales-b.dp", "sales-Q")
	fill(r, "sales-a", 250)
	fill(r, "sales-Q", 100)
	capital := "orders.sales-q~"
	x := r.start(soon)
	eventually(x, "two streams run", func(all []TaskStatus) bool {
		return len(all) == 2 && all[0].Step == 2 && all[0].Outbox == 0 && all[1].Step == 1 && all[1].Outbox == 0
	})
	if s := x.d.Status(); s[0].Stream != "orders.sales-a" || s[0].Topic != "sales-a" || s[0].Output != "sales-a.dp" || !strings.HasPrefix(s[1].Stream, capital) || s[1].Topic != "sales-Q" {
		t.Fatalf("%+v", s)
	}
	must(t, r.broker.CreateTopic(t.Context(), "sales-c", 1, nil))
	fill(r, "sales-c", 120)
	eventually(x, "the new topic has a release", func(all []TaskStatus) bool {
		return len(all) == 3 && all[1].Stream == "orders.sales-c" && all[1].Step == 1 && all[1].Outbox == 0
	})
	if out := releasesOf(r, "sales-c.dp"); len(out) != 1 || string(out[0].Key) != "orders.sales-c/0/1/1" {
		t.Errorf("%v", out)
	}
	conforms(t, string(releasesOf(r, "sales-c.dp")[0].Value))
	conforms(t, string(releasesOf(r, "sales-Q.dp")[0].Value))
	if code, body := x.get("/-/ready"); code != http.StatusOK {
		t.Errorf("not ready: %s", body)
	}
	eventually(x, "the metrics count the topic", func([]TaskStatus) bool { // after its task has begun
		_, body := x.get("/metrics")
		return strings.Contains(body, `streamdp_pattern_topics{pattern="orders",state="taken"} 3`)
	})
	if _, body := x.get("/metrics"); !strings.Contains(body, `streamdp_steps_total{partition="0",stream="orders.sales-c"} 1`) {
		t.Errorf("metrics: %s", body)
	}
	if code, body := x.get("/api/v1/streams/orders.sales-c/releases"); code != http.StatusOK || !strings.Contains(body, "orders.sales-c") {
		t.Errorf("%d %s", code, body)
	}
	if _, body := x.get("/api/v1/streams"); !strings.Contains(body, `"orders.sales-a","orders.sales-c","`+capital) {
		t.Errorf("streams: %s", body)
	}
	if _, body := x.get("/api/v1/status"); !strings.Contains(body, `"patterns":[{"pattern":"orders","topics":"sales-.*","max_topics":100,"taken":3,"beyond":0,"refused":0}]`) {
		t.Errorf("status: %s", body)
	}
	x.end()
	if n := strings.Count(r.kinds(), kindOpen); n != 3 {
		t.Errorf("%d epochs were opened, want one for each topic", n)
	}
	// Without the cluster the streams of the ledger are known.
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		if len(d.Status()) != 3 {
			t.Errorf("%+v", d.Status())
		}
		return nil
	}))
	fill(r, "sales-a", 100)
	x = r.start(soon)
	eventually(x, "all go on", func(all []TaskStatus) bool {
		return len(all) == 3 && all[0].Step == 3 && all[0].Outbox == 0 && all[2].State == stateRunning
	})
	// A command opens an epoch of one of them.
	must(t, x.controlOf("orders.sales-a", "open", OpenRequest{From: "continue", Reason: "requested"}))
	eventually(x, "the second epoch", func(all []TaskStatus) bool { return all[0].Epoch == 2 && all[0].State == stateRunning })
	x.end()
	if n := strings.Count(r.kinds(), kindOpen); n != 4 {
		t.Errorf("%d epochs", n)
	}
}

// TestPatternAsWritten: a topic that a pattern takes has the releases of a table for it, but for the
// stream's name in their keys and noise, and the same digest.
func TestPatternAsWritten(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a")
	fill(r, "sales-a", 100)
	x := r.start(soon)
	runs(x, 1, "orders.sales-a")
	x.end()
	s := r.sibling(with(ordersStream, `topic = "orders",`, `topic = "sales-a",`, `"orders.dp"`, `"b"`))
	y := s.start()
	runs(y, 1, "orders")
	y.end()
	one, two := r.entries()[0], s.entries()[0]
	if one.Digest != two.Digest || one.Topic != "sales-a" || one.Source != two.Source || one.Output.Topic != "sales-a.dp" {
		t.Errorf("%+v\n%+v", one, two)
	}
	a, b := releasesOf(r, "sales-a.dp"), releasesOf(r, "b")
	if len(a) != 1 || len(b) != 1 || !strings.Contains(string(a[0].Value), `"stream":"orders.sales-a"`) {
		t.Fatalf("%d and %d releases", len(a), len(b))
	}
}

// TestPatternBudgets: each topic has a budget of its own: a second epoch of one topic does not charge
// another one.
func TestPatternBudgets(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, with(salesStream, "limit_epsilon = 3.0", "limit_epsilon = 1.0"), "sales-a", "sales-b")
	fill(r, "sales-a", 100)
	fill(r, "sales-b", 100)
	x := r.start(soon)
	runs(x, 1, "orders.sales-a", "orders.sales-b")
	for _, s := range x.d.Status() {
		if s.ChargedEpsilon < 0.9 || s.ChargedEpsilon > 1 {
			t.Errorf("%s is charged %g", s.Stream, s.ChargedEpsilon)
		}
	}
	// The records of one topic have paid all that they may; new ones of the other have not.
	err := x.controlOf("orders.sales-a", "open", OpenRequest{From: "earliest", Reason: "requested"})
	if err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a second epoch over the same records: %v", err)
	}
	must(t, x.controlOf("orders.sales-b", "open", OpenRequest{From: "continue", Reason: "requested"}))
	x.end()
	books, err := ReadBooks(r.dir + "/state")
	must(t, err)
	all, err := books.Budget()
	must(t, err)
	events := map[string]int{}
	for _, b := range all {
		events[b.Topic] += len(b.Events)
	}
	if len(all) != 2 || events["sales-a"] != 1 || events["sales-b"] != 3 {
		t.Errorf("%+v", all)
	}
}

// TestPatternBound: no more topics than max_topics are taken; what was taken stays taken, whatever
// its name, and what is not is said once.
func TestPatternBound(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, with(salesStream, `topics = "sales-.*",`, `topics = "sales-.*", max_topics = 2,`), "sales-m", "sales-n")
	x := r.start(soon)
	runs(x, 0, "orders.sales-m", "orders.sales-n")
	must(t, r.broker.CreateTopic(t.Context(), "sales-a", 1, nil))
	missing := func() PatternStatus {
		for late := time.After(patience); ; {
			if p := x.d.Patterns()[0]; p.Beyond > 0 {
				return p
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-late:
				t.Fatalf("nothing is beyond the bound: %+v", x.d.Patterns())
			}
		}
	}
	if p := missing(); p.Taken != 2 || p.Beyond != 1 || len(p.Missing) != 1 || p.Missing[0].Topic != "sales-a" {
		t.Errorf("%+v", p)
	}
	if _, body := x.get("/metrics"); !strings.Contains(body, `streamdp_pattern_topics{pattern="orders",state="beyond"} 1`) {
		t.Error("no metric")
	}
	time.Sleep(60 * time.Millisecond) // it looks again, twice
	runs(x, 0, "orders.sales-m", "orders.sales-n")
	x.end()
	if n := strings.Count(r.log.String(), "more topics match a pattern than it takes"); n != 1 {
		t.Errorf("warned %d times", n)
	}
	x = r.start(soon)
	missing()
	runs(x, 0, "orders.sales-m", "orders.sales-n")
	// A topic that is gone keeps its place while its epoch is open.
	drop(r, "sales-m")
	time.Sleep(60 * time.Millisecond)
	x.end()
	x = r.start(soon)
	missing()
	if all := x.d.Status(); len(all) != 2 || all[0].Stream != "orders.sales-m" || all[1].Stream != "orders.sales-n" {
		t.Errorf("%+v", all)
	}
	// Closed, it has no place after the next start.
	must(t, x.controlOf("orders.sales-m", "close", OpenRequest{DropOutbox: true}))
	x.end()
	x = r.start(soon)
	runs(x, 0, "orders.sales-a", "orders.sales-n")
	x.end()
	if n := strings.Count(r.kinds(), kindOpen); n != 3 {
		t.Errorf("%d epochs", n)
	}
}

// TestPatternMadeAnew: a topic that was deleted and made again under its name is another log: the
// task halts, and another epoch charges the records as those of a new log.
func TestPatternMadeAnew(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a")
	fill(r, "sales-a", 150)
	x := r.start(soon)
	runs(x, 1, "orders.sales-a")
	x.end()
	drop(r, "sales-a")
	must(t, r.broker.CreateTopic(t.Context(), "sales-a", 1, nil))
	fill(r, "sales-a", 50)
	x = r.start(soon)
	eventually(x, "it halts", func(all []TaskStatus) bool { return len(all) == 1 && all[0].State == stateHalted })
	must(t, x.controlOf("orders.sales-a", "open", OpenRequest{From: "earliest", Reason: "requested"}))
	runs(x, 0, "orders.sales-a")
	x.end()
	last := r.entries()[len(r.entries())-1]
	if last.Kind != kindOpen || last.Incarnation != 2 || last.First != 0 {
		t.Errorf("%+v", last)
	}
}

// TestPatternWaits: a daemon with a pattern that matches nothing is ready and waits.
func TestPatternWaits(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "other")
	x := r.start(soon)
	for late := time.After(patience); ; {
		if x.d.Addr() != "" {
			if code, body := x.get("/-/ready"); code == http.StatusOK {
				break
			} else if !strings.Contains(body, "the topics that match a pattern are not known yet") {
				t.Fatal(body)
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-x.done:
			t.Fatal(x.result)
		case <-late:
			t.Fatal("not ready")
		}
	}
	must(t, r.broker.CreateTopic(t.Context(), "sales-x", 1, nil))
	runs(x, 0, "orders.sales-x")
	x.end()
}

// TestPatternCommand: a command names a stream that the ledger knows, or whose topic its name says.
func TestPatternCommand(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a", "sales-b")
	task := core.Task{Stream: "orders.sales-a"}
	one := func(o *Options) { o.Tasks = []core.Task{task} }
	command := func(f func(context.Context, *Daemon) error) {
		t.Helper()
		o := r.options()
		one(&o)
		d, err := New(o)
		must(t, err)
		defer d.Close()
		must(t, f(t.Context(), d))
	}
	command(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, task, OpenRequest{From: "earliest", Reason: "requested"})
	})
	command(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, task, false) })
	command(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, task, OpenRequest{From: "continue", Reason: "requested"})
	})
	if got := r.kinds(); strings.Count(got, kindOpen) != 2 {
		t.Error(got)
	}
	for _, e := range r.entries() {
		if e.Stream != "orders.sales-a" || e.Topic != "sales-a" {
			t.Errorf("%+v", e)
		}
	}
}

// TestPatternReadsNoOutput: a pattern of everything reads nothing that the process writes: releases,
// dead letters, the mirror of its ledger; nor what begins as systems' topics do.
func TestPatternReadsNoOutput(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, with(salesStream, "sales-.*", ".*", "[stream.orders]\n", "[stream.orders]\ndead_letter = { mode = \"reference\", topic = \"*.dead\" }\n"), "a", "a.dead", "_x", "__y")
	r.topic = "control"
	if _, err := r.client.Produce(t.Context(), "a", 0, []kafka.Message{{Value: []byte("no JSON"), Time: time.UnixMilli(1)}}); err != nil {
		t.Fatal(err)
	}
	fill(r, "a", 200)
	x := r.start(soon)
	runs(x, 2, "orders.a")
	names := func() (all []string) {
		all, err := r.client.Topics(t.Context())
		must(t, err)
		return all
	}
	for late := time.After(patience); !slices.Contains(names(), "a.dp") || !slices.Contains(names(), "control") || len(releasesOf(r, "a.dead")) == 0; {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-late:
			t.Fatalf("there are only %q", names())
		}
	}
	must(t, r.broker.CreateTopic(t.Context(), "z", 1, nil)) // is found after those
	runs(x, 0, "orders.a", "orders.z")
	x.end()
	if n := strings.Count(r.kinds(), kindOpen); n != 2 {
		t.Errorf("%d epochs", n)
	}
	// An output of before is none to read, whatever the configuration says now.
	r.toml = with(salesStream, "sales-.*", ".*", "[stream.orders]\n", "[stream.orders]\noutput = { topic = \"*.out\" }\n")
	must(t, r.broker.CreateTopic(t.Context(), "y", 1, nil))
	x = r.start(soon)
	runs(x, 0, "orders.a", "orders.a.dead", "orders.y", "orders.z") // dead letters are no longer this process's
	x.end()
}

// TestPatternsOfOneTopic: two patterns that match a topic both read it only where they are the same
// text; then its records pay for both from one budget.
func TestPatternsOfOneTopic(t *testing.T) {
	t.Parallel()
	second := strings.NewReplacer("stream.orders", "stream.second", `codec = "json"`, `codec = "json", max_topics = 7`).Replace(salesStream)
	second = with(second, "[stream.second]\n", "[stream.second]\noutput = { topic = \"*.second\" }\n")
	r := newPatternRig(t, salesStream+second, "sales-a")
	fill(r, "sales-a", 100)
	x := r.start(soon)
	runs(x, 1, "orders.sales-a", "second.sales-a")
	for _, s := range x.d.Status() {
		if s.ChargedEpsilon < 1.3 {
			t.Errorf("%s: its records have paid %g for two epochs", s.Stream, s.ChargedEpsilon)
		}
	}
	x.end()
	s := newPatternRig(t, salesStream+strings.Replace(second, "sales-.*", "sales-..*|b", 1), "sales-a", "sales-aa", "b")
	x = s.start(soon)
	runs(x, 0, "orders.sales-a", "orders.sales-aa", "second.b")
	if p := x.d.Patterns()[1]; p.Refused != 2 || !strings.Contains(p.Missing[0].Reason, "it matches [stream.orders] too, which has it") {
		t.Errorf("%+v", p)
	}
	if n := strings.Count(s.log.String(), "a topic matches a pattern and is not taken"); n != 2 {
		t.Errorf("warned %d times", n)
	}
	x.end()
}

// TestManyOpenAtOnce: tasks that open epochs at once, with a control topic, do not take the lines that
// others add meanwhile for lines that the topic lost.
func TestManyOpenAtOnce(t *testing.T) {
	t.Parallel()
	var topics, want []string
	for i := range 16 {
		topics = append(topics, fmt.Sprintf("sales-%02d", i))
		want = append(want, "orders."+topics[i])
	}
	r := newPatternRig(t, salesStream, topics...)
	r.topic = "control"
	x := r.start(soon)
	runs(x, 0, want...)
	x.end()
	if strings.Contains(r.log.String(), "halted") {
		t.Errorf("a task halted:\n%s", r.log)
	}
}

// TestPatternPage: the status page shows a stream for each topic, also one that comes while it is open, and
// says which topics are not taken.
func TestPatternPage(t *testing.T) {
	t.Parallel()
	path := browser.Find()
	if path == "" {
		t.Skip("no Chromium: install one (Debian: chromium-headless-shell), or name it in STREAMDP_BROWSER")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := newPatternRig(t, with(salesStream, `topics = "sales-.*",`, `topics = "sales-.*", max_topics = 2,`), "sales-a")
	fill(r, "sales-a", 100)
	x := r.start(soon)
	runs(x, 1, "orders.sales-a")
	p := browser.Open(t, path)
	p.Go("http://" + x.d.Addr() + "/")
	p.Until(ctx, "the release", `document.getElementById("s-orders.sales-a-0")?.querySelector(".chart .value")?.dataset.release === "orders.sales-a/0/1/1"`)
	must(t, r.broker.CreateTopic(t.Context(), "sales-B", 1, nil))
	eventually(x, "the second stream", func(all []TaskStatus) bool { return len(all) == 2 })
	must(t, r.broker.CreateTopic(t.Context(), "sales-c", 1, nil))
	p.Until(ctx, "the new stream, and what is not taken",
		`document.querySelector('[id^="s-orders.sales-b~"]') && document.getElementById("alerts").innerText.includes("Stream orders does not take 1 of the topics that match sales-.*. sales-c: the stream has 2 topics already, input.max_topics.")`)
	p.Eval(`document.querySelectorAll("details").forEach((d) => { d.open = true })`, nil)
	for _, fault := range accessible(t, p) { // one stream has a release, the other none
		t.Error(fault)
	}
	if c := p.Complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}
	x.end()
}

// TestTopicMadeAnewWhileRunning: the same records under the same name are another log, also for a task that met no start between,
// and whose last record is there.
func TestTopicMadeAnewWhileRunning(t *testing.T) {
	t.Parallel()
	r := newPatternRig(t, salesStream, "sales-a")
	fill(r, "sales-a", 150)
	x := r.start(soon)
	runs(x, 1, "orders.sales-a")
	drop(r, "sales-a")
	eventually(x, "it misses the topic", func([]TaskStatus) bool { return strings.Contains(r.log.String(), "what=fetch") })
	must(t, r.broker.CreateTopic(t.Context(), "sales-a", 1, nil))
	fill(r, "sales-a", 250)
	eventually(x, "it halts", func(all []TaskStatus) bool {
		return len(all) == 1 && all[0].State == stateHalted && all[0].Reason == haltReplaced && all[0].Step == 1
	})
	x.end()
}
