package stream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
)

// canaries are parts of the record values below. They must never appear in anything that leaves the process, except in
// noisy numbers.
var canaries = []string{"canary", "71c3", "7.1318371", "71318371", "1e999", "1.7e308", "8723415"}

// leaks fails if a canary appears in text.
func leaks(t *testing.T, what, text string) {
	t.Helper()
	low := strings.ToLower(text)
	for _, c := range canaries {
		if i := strings.Index(low, strings.ToLower(c)); i >= 0 {
			t.Errorf("%s holds %q: …%s…", what, c, text[max(0, i-80):min(len(text), i+80)])
		}
	}
}

// TestNullInvariance: the content of records affects neither the steps, nor their offsets and numbers of records, nor
// the number of releases. No part of a value appears in a log, an error, a metric or the status.
func TestNullInvariance(t *testing.T) {
	t.Parallel()
	stream := fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 10", "scale  = [80.0, 5.0, 2.0]",
		"scale  = [80.0, 5.0, 0.1]")
	const n = 300
	odd := [][]byte{
		nil,
		{},
		[]byte("canary-71c3"),
		[]byte(`{"amount": 8723415, "items": 1`),
		[]byte(`{"amount": 1, "items": 2}`),
		[]byte(`{"amount": "canary", "items": 2, "weight": 1}`),
		[]byte(`{"amount": NaN, "items": 7.1318371, "weight": 1}`),
		[]byte(`{"amount": 1e999, "items": 7.1318371, "weight": 1}`),
		[]byte(`{"amount": null, "items": 7.1318371, "weight": 1}`),
		[]byte(`{"amount": 7.1318371, "items": 2, "weight": 1.7e308}`),     // not finite after scaling
		[]byte(`{"amount": 8723415, "items": 8723415, "weight": 8723415}`), // clipped
		[]byte(`{"amount": 1, "amount": 8723415, "items": 2, "weight": 1}`),
		[]byte(`{"canary":` + strings.Repeat("[", 200)),
		[]byte("[7.1318371]"),
		[]byte("\x00\xff canary"),
		[]byte(strings.Repeat("canary-71c3 ", 10_000)),
	}
	type shape struct {
		offsets, covers [2]int64
		rows            uint64
	}
	var want []shape
	for _, hostile := range []bool{false, true} {
		r := streamtest.NewRig(t, stream)
		p := kafkatest.NewProducer(t, r.Broker.Addrs(), "orders", 0, "")
		txn := kafkatest.NewProducer(t, r.Broker.Addrs(), "orders", 0, "txn")
		for i := 0; i < n; i += 50 {
			var list []kafkatest.Record
			for j := i; j < i+50; j++ {
				rec := kafkatest.Record{Key: []byte("k"), Value: fixtures.OrderRecord(j)}
				if hostile {
					rec.Value = odd[(j+i/50)%len(odd)]
					rec.Key = []byte("canary-71c3")
				}
				list = append(list, rec)
			}
			p.Send(list...)
			// An aborted transaction, a committed one, and their markers.
			txn.Begin()
			txn.Send(kafkatest.Record{Value: []byte(`{"amount": 8723415, "items": 1, "weight": 1}`)},
				kafkatest.Record{Value: []byte("canary")})
			txn.End(i%100 == 0)
		}
		x := r.Start()
		end := int64(n + n/50*3)
		x.Until("all is read", func(s monitor.TaskStatus) bool {
			return s.NextOffset == end && s.Outbox == 0 && s.Step == uint64(end/10)
		})
		_, metrics := x.Get("/metrics")
		leaks(t, "/metrics", metrics)
		for _, path := range []string{"/api/v1/status", "/api/v1/streams/orders", "/-/ready"} {
			_, body := x.Get(path)
			leaks(t, path, body)
		}
		if hostile {
			for _, reason := range []codec.Reason{
				codec.Null, codec.Malformed, codec.TooDeep, codec.Missing, codec.Duplicate, codec.NotNumber,
				codec.NotFinite,
			} {
				if !strings.Contains(metrics,
					fmt.Sprintf(`streamdp_diagnostic_records_rejected_total{partition="0",reason=%q,stream="orders"}`,
						reason.String())) {
					t.Errorf("no record was rejected for %v", reason)
				}
			}
		}
		x.End()
		var got []shape
		rows := uint64(0)
		v := r.History("orders.dp")
		for step := uint64(1); step <= v.Steps; step++ {
			p := v.ByKey[fmt.Sprintf("orders/0/1/%d", step)]
			rel := p.Parse(t)
			got = append(got, shape{rel.Offsets, rel.Covers, rel.Rows})
			rows += rel.Rows
			// A released number may begin with any digits; a text must not contain a canary.
			for _, c := range []string{"canary", "71c3"} {
				if strings.Contains(p.Value, c) {
					t.Errorf("release %s holds %q", p.Key, c)
				}
			}
		}
		leaks(t, "the log", r.Log.String())
		// All records except aborted ones and markers.
		if want := uint64(n + n/100*2); rows > want || rows < want-10 {
			t.Errorf("%d rows, want %d and less than a step fewer", rows, want)
		}
		if want == nil {
			want = got
		} else if !slices.Equal(got, want) {
			t.Errorf("the records' content moved the steps:\n%v\n%v", got, want)
		}
	}
}

// TestNoLeaks halts a task while it reads private records, and searches for them in everything that is logged or shown.
func TestNoLeaks(t *testing.T) {
	t.Parallel()
	private := func(i int) []byte {
		return fmt.Appendf(nil, `{"amount": %d8723415, "items": 7.1318371, "weight": 1, "note": "canary-71c3"}`, i)
	}
	for _, h := range haltedStates {
		r := streamtest.NewRig(t, fixtures.OrdersStream)
		for i := 0; i < 1050; i += 350 {
			var list [][]byte
			for j := range 350 {
				list = append(list, private(i+j))
			}
			r.Send(list...)
		}
		x := r.Start()
		x.Published(10)
		x.End()
		h.prepare(t, r)
		if h.reason == failure.Replaced || h.reason == failure.Truncated {
			r.Recreate(0, 0)
		}
		x, err := r.Try()
		if err != nil {
			t.Fatal(err)
		}
		// The task halts, or the process ends with the same message.
		x.Until("halt", func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted })
		text := r.Log.String()
		if x.D.Addr() != "" {
			x.Stop()
		}
		if err := x.Ends(); err != nil {
			text += err.Error()
		}
		leaks(t, h.name, text+x.D.Status()[0].Message)
		if !strings.Contains(text, "halted") {
			t.Errorf("%s: nothing was logged", h.name)
		}
	}
}

// TestProducersDecideRetention: a start warns if the timestamps of producers decide which records are deleted, and only
// then.
func TestProducersDecideRetention(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, retention string
		warns           bool
	}{{"CreateTime", "1000000", true}, {"LogAppendTime", "1000000", false}, {"CreateTime", "-1", false}} {
		r := streamtest.NewRig(t, fixtures.OrdersStream)
		streamtest.SetTopicConfig(t, r, "orders", "message.timestamp.type", c.kind)
		streamtest.SetTopicConfig(t, r, "orders", "retention.ms", c.retention)
		x := r.Start()
		x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		x.End()
		if n := strings.Count(r.Log.String(), "timestamps that producers set"); (n == 1) != c.warns || n > 1 {
			t.Errorf("%s, retention %s: warned %d times", c.kind, c.retention, n)
		}
	}
	for policy, want := range map[string]bool{"delete": true, "compact,delete": true, "compact": false} {
		if got := input.ProducersDecideRetention(
			map[string]string{"cleanup.policy": policy, "message.timestamp.type": "CreateTime",
				"retention.ms": "604800000"}); got != want {
			t.Errorf("%s: %t", policy, got)
		}
	}
}
