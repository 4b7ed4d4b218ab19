package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
)

// TestRealKafkaClock merges three partitions, one of them quiet, in steps of a tenth of a second, for moments and for a
// regression. It kills the broker under load; once it ends the daemon while the broker is down. Each step begins in
// each partition where the step before ended, each record is in one step, and an auditor recomputes every release.
func TestRealKafkaClock(t *testing.T) {
	b := kafkatest.NewReal(t)
	s := streamtest.NewSite(t, b.Addrs, "")
	s.In = strings.Replace(s.Out, "dp", "clock", 1)
	fixtures.Must(t, s.Client.CreateTopic(t.Context(), s.In, 3, map[string]string{"retention.ms": "-1"}))
	s.From, s.Table = `, partition = "all"`, "merge = true"
	s.Edit = strings.NewReplacer("step   = 100", "step = \"100ms\"", "[state]",
		"boundary_topic = \""+s.In+".bounds\"\n[state]",
		"[stream.orders.moments]", fmt.Sprintf(`[stream.regression]
input = { topic = %q, columns = ["amount", "items", "weight"], partition = "all" }
output = { topic = %q }
centre = [40.0, 3.0, 1.2]
scale = [80.0, 5.0, 2.0]
merge = true
step = "100ms"
step_max = 1000000
privacy = { epsilon = 1.0, delta = 1e-8, adjacency = "zero-out", limit_epsilon = 3.0 }
refit = { target = "weight", clip_x = 1.5, clip_y = 2.0 }
[stream.orders.moments]`, s.In, s.Out+".fit"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	send := func(partition int32, first, n int) error {
		list := make([]kafka.Message, n)
		for i := range list {
			list[i] = kafka.Message{Value: fixtures.OrderRecord(first + i), Time: time.UnixMilli(1)}
		}
		sending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := s.Client.Produce(sending, s.In, partition, list)
		return err
	}
	var load sync.WaitGroup
	for partition := range int32(2) {
		load.Go(func() {
			// Unacknowledged records may be in the log, and are appended again.
			for n := 0; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
				if send(partition, n, 20) == nil {
					n += 20
				}
			}
		})
	}
	d := s.Run()
	running := func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning }
	d.Wait("it runs", running)
	for i := range 2 {
		step := d.D.Status()[0].Step
		d.Wait("more steps", func(s monitor.TaskStatus) bool { return s.Step > step+2 })
		b.Kill()
		d.Wait("trouble", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
		if i == 1 {
			d.Stop()
			<-d.Done
		}
		b.Start()
		if i == 1 {
			d = s.Run()
		}
		d.Wait("it runs again", running)
	}
	stop()
	load.Wait()
	fixtures.Must(t, send(2, 0, 5))
	var ends [3]int64
	total := int64(0)
	for p := range ends {
		var err error
		ends[p], err = s.Client.End(t.Context(), s.In, int32(p))
		fixtures.Must(t, err)
		total += ends[p]
	}
	for i := range 2 {
		d.Wait("all records", func(monitor.TaskStatus) bool {
			s := d.D.Status()[i]
			return s.NextOffset >= total && s.Outbox == 0 && s.State == monitor.StateRunning
		})
	}
	d.End()
	cfg, err := config.Parse("test.toml", []byte(s.File()))
	fixtures.Must(t, err)
	outputs := map[core.Task]string{fixtures.MergedTask: s.Out,
		{Stream: "regression", Partition: core.Merged}: s.Out + ".fit"}
	for task, topic := range outputs {
		s.Out = topic
		out := s.Output()
		all, err := recovery.Verify(t.Context(),
			recovery.Audit{Config: cfg, Key: connect.InsecureKey(7),
				Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, task)
		fixtures.Must(t, err)
		if len(all) != 1 || all[0].Difference+all[0].Unverifiable != "" || all[0].Missing != 0 ||
			all[0].Releases != len(out) {
			t.Errorf("%s, of %d releases: %+v", task, len(out), all)
		}
		var at [3]int64
		rows := 0
		for step := range uint64(len(out)) {
			rel := fixtures.ParseClock(t, out[core.Identity(task, 1, step+1)].Value)
			for p, part := range rel.Parts {
				if part.Offsets[0] != at[p] {
					t.Errorf("%s: step %d begins at %d in partition %d, not at %d", task, step+1,
						part.Offsets[0], p, at[p])
				}
				at[p] = part.Offsets[1]
			}
			rows += rel.Rows
		}
		if at != ends || rows != int(total) {
			t.Errorf("%s: the steps end at %v with %d records, and the partitions at %v", task, at, rows, ends)
		}
		t.Logf("%s: 2 kills of the broker, %d steps of %d records, which end at %v", task, len(out), rows, at)
	}
}
