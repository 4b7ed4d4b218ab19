package stream_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestSoak runs a daemon at full speed for the time in STREAMDP_SOAK, with epochs that roll over. It samples memory
// after a collection, goroutines and descriptors. Their medians in the last third of the time must equal those in the
// second third. Memory may differ by some MB, because response buffers may be in use or not. In half an hour, even a
// leak of one byte per record would exceed that.
func TestSoak(t *testing.T) {
	text := os.Getenv("STREAMDP_SOAK")
	if text == "" {
		t.Skip("takes as long as STREAMDP_SOAK says: make soak")
	}
	length, err := time.ParseDuration(text)
	fixtures.Must(t, err)
	b := streamtest.Spawn(t, streamtest.ChildSpec{Role: "broker", Topics: []string{"in"}}).Up()
	r := streamtest.NewRigAt(t, nil, b.Addr,
		fixtures.With(fixtures.WideStream(16, 1000), "step = 1000",
			"step = 1000\nhorizon = 50\non_horizon = \"rollover\""))
	r.Commit = "50ms"
	addrs := []string{b.Addr}
	var list []kafka.Message
	for _, rec := range fixtures.PackedRecords(16, 2000) {
		list = append(list, kafka.Message{Value: rec.Value, Time: time.UnixMilli(1)})
	}
	x := r.Start(func(o *stream.Options) { o.Hooks.Observe = nil })
	type sample struct {
		heap       uint64
		goroutines int
		files      int
	}
	var samples []sample
	begun := time.Now()
	trimmed, sampled := begun, begun
	end, lag := int64(0), int64(0)
	for time.Since(begun) < length {
		s := x.D.Status()[0]
		if s.State == monitor.StateHalted {
			t.Fatalf("halted: %s", s.Message)
		}
		// There is always enough to read. Records that were read are deleted, so that the broker can hold the rest.
		if lag = end - s.NextOffset; lag < 40_000 {
			_, err := r.Client.Produce(t.Context(), "in", 0, list)
			fixtures.Must(t, err)
			end += int64(len(list))
		} else {
			time.Sleep(time.Millisecond) // the daemon is behind
		}
		if time.Since(trimmed) > time.Second {
			trimmed = time.Now()
			if before := s.NextOffset - 10_000; before > 0 {
				kafkatest.DeleteRecords(t, addrs, "in", 0, before)
			}
			if out, err := r.Client.End(context.Background(), "m.dp", 0); err == nil && out > 200 {
				kafkatest.DeleteRecords(t, addrs, "m.dp", 0, out-100)
			}
		}
		if time.Since(sampled) > length/300 {
			sampled = time.Now()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			files, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Skip("no /proc here to count descriptors in")
			}
			samples = append(samples, sample{m.HeapAlloc, runtime.NumGoroutine(), len(files)})
		}
	}
	s := x.D.Status()[0]
	x.Stop()
	fixtures.Must(t, x.Ends())
	if len(samples) < 30 || s.Epoch < 3 {
		t.Fatalf("%d samples, epoch %d: too short", len(samples), s.Epoch)
	}
	middle := func(part []sample, of func(sample) float64) float64 {
		var v []float64
		for _, s := range part {
			v = append(v, of(s))
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	// Each epoch leaves its ledger lines and their index in memory, 2.5 kB.
	n := len(samples) / 3
	var said []string
	for _, c := range []struct {
		what  string
		of    func(sample) float64
		slack float64
	}{
		{"MB of heap", func(s sample) float64 { return float64(s.heap) / (1 << 20) }, 12 + float64(s.Epoch)*4/1024},
		{"goroutines", func(s sample) float64 { return float64(s.goroutines) }, 3},
		{"descriptors", func(s sample) float64 { return float64(s.files) }, 3},
	} {
		was, is := middle(samples[n:2*n], c.of), middle(samples[2*n:], c.of)
		said = append(said, strings.TrimSpace(format(was)+" and "+format(is)+" "+c.what))
		if is > was+c.slack {
			t.Errorf("%g %s in the second third, %g in the last", was, c.what, is)
		}
	}
	t.Logf("%v, %d records, %.0f a second, %d epochs; in the second third and the last: %s", length, s.NextOffset,
		float64(s.NextOffset)/length.Seconds(), s.Epoch, strings.Join(said, ", "))
}

func format(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.1f", v), "0"), ".")
}
