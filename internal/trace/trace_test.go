package trace_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/tracetest"
	"github.com/streamdp/streamdp/internal/trace"
)

// outcome adds up what a tracer reports about its spans.
type outcome struct {
	mu            sync.Mutex
	sent, dropped int
	errs          []error
}

func (o *outcome) add(sent, dropped int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent, o.dropped = o.sent+sent, o.dropped+dropped
	if err != nil {
		o.errs = append(o.errs, err)
	}
}

func (o *outcome) now() (sent, dropped, failed int, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent, o.dropped, len(o.errs), fmt.Sprint(o.errs)
}

func newTracer(r *tracetest.Receiver, edits ...func(*trace.Options)) (*trace.Tracer, *outcome) {
	var said outcome
	o := trace.Options{Endpoint: r.Server.URL + "/v1/traces", Sample: 1, Service: "dp", Version: "1.2", Sent: said.add}
	o.Times(0, time.Minute, time.Minute) // a slow machine must not run into a limit
	for _, edit := range edits {
		edit(&o)
	}
	return trace.New(o), &said
}

var (
	task  = trace.Work{Stream: "orders", Partition: "merged", Epoch: 3}
	began = time.Unix(1_700_000_000, 5)
)

// TestSpans: the receiver gets all spans in the form of OTLP, with everything that a trace needs.
func TestSpans(t *testing.T) {
	t.Parallel()
	r := tracetest.New(t)
	tr, said := newTracer(r, func(o *trace.Options) {
		o.Instance, o.Header = "a", http.Header{"X-Key": {"k1", "k2"}, "Content-Type": {"text/plain"}}
	})
	end := tr.Start()
	w := task
	w.First = 7
	steps := tr.Begin(trace.Steps, w, began)
	shut := tr.Within(steps, trace.Close, w, began.Add(1))
	shut.End(began.Add(2))
	w.First, w.Last, w.Failed = 7, 8, "disk"
	commit := tr.Within(steps, trace.Commit, w, began.Add(3))
	commit.End(began.Add(4))
	steps.Last = 8
	steps.End(began.Add(5))
	publish := tr.Within(steps, trace.Publish, task, began.Add(6)) // after steps has ended
	publish.End(began.Add(7))
	alone := tr.Within(trace.Span{}, trace.Publish, task, began)
	alone.End(began.Add(-1)) // the clock was set back
	fetch := task
	fetch.Input = 5
	f := tr.Begin(trace.Fetch, fetch, began)
	f.End(began.Add(8))
	end()

	spans := r.Spans()
	if len(spans) != 6 {
		t.Fatalf("%d spans: %+v", len(spans), spans)
	}
	a := func(more ...any) map[string]any {
		all := map[string]any{"streamdp.stream": "orders", "streamdp.partition": "merged", "streamdp.epoch": int64(3)}
		for i := 0; i < len(more); i += 2 {
			all[more[i].(string)] = more[i+1]
		}
		return all
	}
	root := spans[2]
	one := int64(7)
	want := []tracetest.Span{
		{Name: "close", Kind: "SPAN_KIND_INTERNAL", Start: began.Add(1), End: began.Add(2),
			Attributes: a("streamdp.step", one), Trace: root.Trace, Parent: root.ID},
		{Name: "commit", Kind: "SPAN_KIND_INTERNAL", Failed: true, Start: began.Add(3), End: began.Add(4),
			Attributes: a("streamdp.step", one, "streamdp.last_step", int64(8), "error.type", "disk"),
			Trace:      root.Trace, Parent: root.ID},
		{Name: "steps", Kind: "SPAN_KIND_INTERNAL", Start: began, End: began.Add(5),
			Attributes: a("streamdp.step", one, "streamdp.last_step", int64(8)), Trace: root.Trace},
		{Name: "publish", Kind: "SPAN_KIND_PRODUCER", Start: began.Add(6), End: began.Add(7), Attributes: a(),
			Trace: root.Trace, Parent: root.ID},
		{Name: "publish", Kind: "SPAN_KIND_PRODUCER", Start: began, End: began, Attributes: a(), Trace: spans[4].Trace},
		{Name: "fetch", Kind: "SPAN_KIND_CLIENT", Start: began, End: began.Add(8),
			Attributes: a("streamdp.input_partition", int64(5)), Trace: spans[5].Trace},
	}
	ids, traces := map[string]bool{}, map[string]bool{}
	for i, s := range spans {
		ids[s.ID], traces[s.Trace] = true, true
		want[i].ID = s.ID
		if !reflect.DeepEqual(s, want[i]) {
			t.Errorf("span %d\n got %+v\nwant %+v", i, s, want[i])
		}
	}
	if len(ids) != 6 || len(traces) != 3 {
		t.Errorf("%d ids, %d traces", len(ids), len(traces))
	}
	path, header, by := r.Last()
	if path != "/v1/traces" || !reflect.DeepEqual(header["X-Key"], []string{"k1", "k2"}) ||
		header.Get("User-Agent") != "streamdp/1.2" {
		t.Errorf("%s, %v", path, header)
	}
	if want := (map[string]any{"service.name": "dp", "service.version": "1.2",
		"service.instance.id": "a"}); !reflect.DeepEqual(by, want) {
		t.Errorf("sent by %v", by)
	}
	if sent, dropped, failed, _ := said.now(); sent != 6 || dropped != 0 || failed != 0 {
		t.Errorf("%d sent, %d dropped, %d failures", sent, dropped, failed)
	}
}

// TestSample checks that a trace is sent completely or not at all.
func TestSample(t *testing.T) {
	t.Parallel()
	r := tracetest.New(t)
	tr, _ := newTracer(r, func(o *trace.Options) { o.Sample = 0.25 })
	end := tr.Start()
	const traces = 1000
	for range traces {
		a := tr.Begin(trace.Steps, task, began)
		b := tr.Within(a, trace.Close, task, began)
		if !a.Begun() || !b.Begun() {
			t.Fatal("a span that is not sent counts as not begun: its trace would be sampled again")
		}
		b.End(began)
		a.End(began)
	}
	end()
	byTrace := map[string]int{}
	for _, s := range r.Spans() {
		byTrace[s.Trace]++
	}
	for id, n := range byTrace {
		if n != 2 {
			t.Errorf("%d spans of trace %s", n, id)
		}
	}
	if n := len(byTrace); n < 150 || n > 350 { // 7 standard deviations
		t.Errorf("%d of %d traces", n, traces)
	}
}

// TestQueue uses a collector that hangs. Beginning and ending spans must not wait for it. Spans that do not fit the
// queue must be dropped and counted, and the tracer must end in time.
func TestQueue(t *testing.T) {
	t.Parallel()
	r := tracetest.New(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) }) // before the server is closed
	r.Hang.Store(&hang)
	const late = 20 * time.Second // a request that hangs takes longer
	tr, said := newTracer(r, func(o *trace.Options) { o.Times(0, 3*late, 0) })
	end := tr.Start()
	const spans = 10_000
	begun := time.Now()
	for range spans {
		s := tr.Begin(trace.Fetch, task, began)
		s.End(began)
	}
	if took := time.Since(begun); took > late {
		t.Errorf("spans took %v", took)
	}
	for r.Requests.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	begun = time.Now()
	end()
	if took := time.Since(begun); took > late {
		t.Errorf("the end took %v", took)
	}
	sent, dropped, failed, text := said.now()
	if sent != 0 || dropped < spans-4096-512 || failed == 0 {
		t.Errorf("%d sent, %d dropped, %d failures: %s", sent, dropped, failed, text)
	}
}

// TestVanished uses a collector that vanishes and returns. It must get the spans that ended after its return, and each
// failure must be reported.
func TestVanished(t *testing.T) {
	t.Parallel()
	r := tracetest.New(t)
	tr, said := newTracer(r, func(o *trace.Options) { o.Times(time.Hour, time.Minute, time.Minute) })
	end := tr.Start()
	many := func() {
		for range 512 { // a full request is sent at once, and no other is sent
			s := tr.Begin(trace.Fetch, task, began)
			s.End(began)
		}
	}
	wait := func(what string, ok func(sent, dropped, failed int) bool) {
		t.Helper()
		for late := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
			sent, dropped, failed, text := said.now()
			if ok(sent, dropped, failed) {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("%s: %d sent, %d dropped, %s", what, sent, dropped, text)
			}
		}
	}
	many()
	wait("all are sent", func(sent, dropped, failed int) bool { return sent == 512 && dropped == 0 && failed == 0 })
	r.Vanish()
	many()
	wait("it is gone", func(sent, dropped, failed int) bool { return dropped == 512 && failed == 1 })
	r.Return()
	many()
	wait("it is back", func(sent, dropped, failed int) bool { return sent == 1024 && dropped == 512 && failed == 1 })
	r.Rejects.Store(500)
	many()
	wait("it takes a part",
		func(sent, dropped, failed int) bool { return sent == 1036 && dropped == 1012 && failed == 2 })
	r.Rejects.Store(0)
	r.Status.Store(http.StatusTemporaryRedirect) // must not be followed, because a header may contain a secret
	many()
	wait("it redirects", func(sent, dropped, failed int) bool { return dropped == 1524 && failed == 3 })
	r.Status.Store(http.StatusUnauthorized)
	requests := r.Requests.Load()
	many()
	end()
	_, dropped, failed, text := said.now()
	if dropped != 2036 || failed != 4 || r.Requests.Load() != requests+1 ||
		!strings.Contains(text, "307 Temporary Redirect") || !strings.Contains(text, "401 Unauthorized") {
		t.Errorf("%d dropped, %d failures, %s", dropped, failed, text)
	}
}

// TestTLS: the tracer checks the receiver's certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	r := tracetest.NewTLS(t)
	pool := x509.NewCertPool()
	pool.AddCert(r.Server.Certificate())
	known, now := &tls.Config{RootCAs: pool}, &tls.Config{RootCAs: x509.NewCertPool()}
	tr, _ := newTracer(r, func(o *trace.Options) { o.TLS = func() *tls.Config { return now } })
	if err := tr.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	now = known // the file was replaced
	if err := tr.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	now = &tls.Config{RootCAs: x509.NewCertPool()}
	if err := tr.Probe(t.Context()); err == nil {
		t.Error("the tracer still trusts an authority that was removed")
	}
	if len(r.Spans()) != 0 {
		t.Error("a probe sends spans")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.Probe(ctx); err == nil {
		t.Error("a probe ignores its context")
	}
}

// TestOff checks that without a tracer nothing is recorded and nothing allocated. With a tracer, beginning and ending
// spans must allocate nothing.
func TestOff(t *testing.T) {
	var off *trace.Tracer
	work := func(tr *trace.Tracer) func() {
		return func() {
			a := tr.Begin(trace.Steps, task, began)
			b := tr.Within(a, trace.Close, task, began)
			b.Failed = "other"
			b.End(began)
			a.End(began)
		}
	}
	if n := testing.AllocsPerRun(1000, work(off)); n != 0 {
		t.Errorf("%v allocations without a tracer, want 0", n)
	}
	on := trace.New(trace.Options{Sample: 1})
	if n := testing.AllocsPerRun(1000, work(on)); n != 0 {
		t.Errorf("%v allocations with a tracer, want 0", n)
	}
	if s := off.Begin(trace.Fetch, task, began); s.Begun() {
		t.Error("a span began without a tracer")
	}
	off.Start()()
}

func BenchmarkSpan(b *testing.B) {
	run := func(name string, tr *trace.Tracer) {
		b.Run(name, func(b *testing.B) {
			defer tr.Start()()
			b.ReportAllocs()
			for b.Loop() {
				s := tr.Begin(trace.Close, task, began)
				s.End(began)
			}
		})
	}
	r := tracetest.New(b)
	on, _ := newTracer(r)
	rare, _ := newTracer(r, func(o *trace.Options) { o.Sample = 0.01 })
	run("off", nil)
	run("on", on)
	run("sampled", rare)
}
