package stream_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/internal/testing/tracetest"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/monitor"
)

// saying returns a span's content as text, without times and identifiers.
func saying(s tracetest.Span) string {
	text := fmt.Sprint(s.Name, " ", s.Kind, " ", s.Failed)
	for _, key := range slices.Sorted(maps.Keys(s.Attributes)) {
		text += fmt.Sprintf(" %s=%v", key, s.Attributes[key])
	}
	return text
}

// traced runs a daemon over 450 records, and returns the contents of its spans, sorted; spans of steps include their
// parents. The numbers of fetches and of requests to the output depend on timing and sizes. So each kind of fetch
// appears once, and releases are counted by step.
func traced(t *testing.T, r *streamtest.Rig, c *tracetest.Receiver) (said []string, spans []tracetest.Span) {
	t.Helper()
	for n := 0; n < 450; n += 50 { // so that records of other sizes give the same number of responses
		r.Produce(n, 50)
	}
	x := r.Start()
	x.Published(4)
	x.End()
	spans = c.Spans()
	byID := map[string]tracetest.Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	for _, s := range spans {
		switch s.Name {
		case "publish":
			first, last := s.Attributes["streamdp.step"].(int64), s.Attributes["streamdp.step"].(int64)
			if l, ok := s.Attributes["streamdp.last_step"].(int64); ok {
				last = l
			}
			for step := first; step <= last; step++ {
				said = append(said, fmt.Sprint("publish ", step))
			}
		case "fetch":
			said = append(said, saying(s))
		default:
			within := ""
			if parent, ok := byID[s.Parent]; ok {
				within = " in " + saying(parent)
			} else if s.Parent != "" {
				t.Errorf("%s has no parent", saying(s))
			}
			said = append(said, saying(s)+within)
		}
	}
	slices.Sort(said)
	kept := said[:0]
	for _, s := range said {
		if len(kept) == 0 || s != kept[len(kept)-1] || !strings.HasPrefix(s, "fetch") {
			kept = append(kept, s)
		}
	}
	return kept, spans
}

// TestTraces checks that traces reveal nothing about records. Two runs read records at the same offsets, with different
// values, lengths and shares of invalid records. They give the same spans except for times, and no span has an
// attribute outside the list. Releases equal those without traces.
func TestTraces(t *testing.T) {
	t.Parallel()
	run := func(record func(i int) []byte, on bool) (said []string, spans []tracetest.Span, out map[string]string) {
		r := streamtest.NewRig(t, fixtures.OrdersStream)
		r.Commit, r.Record = "0s", record // a commit for each step
		c := tracetest.New(t)
		if on {
			r.Traces = fmt.Sprintf("endpoint = %q\nservice = \"orders-dp\"", c.Server.URL)
		}
		said, spans = traced(t, r, c)
		return said, spans, r.OutputOf("orders.dp")
	}
	other := func(i int) []byte {
		switch i % 3 {
		case 0:
			return []byte("no record at all, and a long one")
		case 1:
			return []byte(`{}`)
		}
		return fmt.Appendf(nil, `{"amount": %d.5, "items": 99, "weight": 77.125, "secret": "hunter2"}`, i)
	}
	said, spans, out := run(nil, true)
	saidOther, _, _ := run(other, true)
	if !slices.Equal(said, saidOther) {
		t.Errorf("other records give other spans:\n%s\n\n%s", strings.Join(said, "\n"), strings.Join(saidOther, "\n"))
	}
	if nothing, _, without := run(nil, false); len(nothing) > 0 || !maps.Equal(out, without) {
		t.Errorf("%d spans without [trace]; other releases with it: %t", len(nothing), !maps.Equal(out, without))
	}
	kinds := map[string]int{}
	for _, s := range spans {
		kinds[s.Name]++
		for key := range s.Attributes {
			if !slices.Contains(trace.Keys, key) {
				t.Errorf("%s has attribute %s", s.Name, key)
			}
		}
		if s.Attributes["streamdp.stream"] != "orders" || s.Attributes["streamdp.partition"] != "0" ||
			s.Attributes["streamdp.epoch"] != int64(1) {
			t.Errorf("%s", saying(s))
		}
	}
	// Five commits: one per step, and one of the acknowledgements at the end.
	if kinds["steps"] != 4 || kinds["close"] != 4 || kinds["commit"] != 5 || kinds["publish"] == 0 ||
		kinds["fetch"] == 0 || len(kinds) != 5 {
		t.Errorf("%v", kinds)
	}
}

// TestTracesBounded: the number of spans in a trace is bounded, however many steps a commit makes durable.
func TestTracesBounded(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 1"))
	c := tracetest.New(t)
	r.Commit, r.Traces = "400ms", fmt.Sprintf("endpoint = %q", c.Server.URL)
	r.Produce(0, 400)
	x := r.Start()
	x.Published(400)
	x.End()
	closes, most, last := map[string]int{}, 0, int64(0)
	for _, s := range c.Spans() {
		if s.Name == "close" {
			closes[s.Trace]++
			most = max(most, closes[s.Trace])
		}
		if s.Name == "steps" {
			if l, ok := s.Attributes["streamdp.last_step"].(int64); ok {
				last = max(last, l)
			}
		}
	}
	if most != monitor.MostCloses || last != 400 {
		t.Errorf("%d spans of closed steps in a trace, up to step %d", most, last)
	}
}

// TestTracesLost: a collector that hangs, refuses or is missing causes one warning. It costs no release, and at most
// two seconds at the end.
func TestTracesLost(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(t *testing.T, c *tracetest.Receiver){
		"hangs": func(t *testing.T, c *tracetest.Receiver) {
			hang := make(chan struct{})
			c.Hang.Store(&hang)
			t.Cleanup(func() { close(hang) })
		},
		"refuses":      func(t *testing.T, c *tracetest.Receiver) { c.Status.Store(http.StatusServiceUnavailable) },
		"is not there": func(t *testing.T, c *tracetest.Receiver) { c.Vanish() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := tracetest.New(t)
			r := streamtest.NewRig(t, fixtures.OrdersStream)
			r.Traces = fmt.Sprintf("endpoint = %q", c.Server.URL)
			lose(t, c)
			r.Produce(0, 300)
			x := r.Start()
			x.Published(3)
			x.Stop()
			began := time.Now()
			if err := x.Ends(); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 2*time.Second+fixtures.Patience/6 {
				t.Errorf("the end took %v", took)
			}
			if n := strings.Count(r.Log.String(), "level=WARN msg=\"call failed: retrying\""); n != 1 ||
				!strings.Contains(r.Log.String(), "send traces") {
				t.Errorf("%d warnings:\n%s", n, r.Log)
			}
			for outcome, some := range map[string]bool{"sent": false, "dropped": true} {
				if n := fixtures.Counter(t, x.In.Process.Metrics.Registry, "trace_spans_total",
					outcome); n > 0 != some {
					t.Errorf("%d spans %s", n, outcome)
				}
			}
		})
	}
}
