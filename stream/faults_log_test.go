package stream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestRetention: records deleted before they were read halt the task or, if so configured, count as empty slots. Steps
// keep their offsets.
func TestRetention(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	r.Produce(1050, 1000)
	kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders", 0, 1530)
	x := r.Start()
	x.Halts(failure.Gap, "offsets 1000 to 1529 are no longer in the log", "on_gap")
	x.End()
	r.Toml = fixtures.With(r.Toml, "step   = 100", "step = 100\non_gap = \"null\"")
	x = r.Start()
	x.Published(20)
	x.End()
	v := r.History("orders.dp")
	for step, rows := range map[uint64]uint64{10: 100, 11: 0, 15: 0, 16: 70, 17: 100} {
		p := v.ByKey[fmt.Sprintf("orders/0/1/%d", step)]
		if rel := p.Parse(t); rel.Rows != rows {
			t.Errorf("step %d has %d rows, want %d", step, rel.Rows, rows)
		}
	}
	if !strings.Contains(r.Log.String(), "records were deleted before this task read them") {
		t.Error("the gap is not in the log")
	}
}

// TestRetentionLive: retention overtakes a running daemon.
func TestRetentionLive(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	// The daemon waits at 250. The response to its fetch must be late.
	held := r.Broker.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: -1})
	ctx, cancel := context.WithTimeout(t.Context(), fixtures.Patience)
	defer cancel()
	if err := held.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	r.Produce(250, 300)
	kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders", 0, 400)
	held.Remove()
	x.Halts(failure.Gap, "offsets 250 to 399")
}

// TestAnchorDeleted: retention may delete the record that identifies the log if nothing unread is deleted. Then the
// task trusts the log once.
func TestAnchorDeleted(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 1000)
	x := r.Start()
	x.Published(10)
	x.End()
	kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders", 0, 1000)
	r.Produce(1000, 500)
	x = r.Start()
	x.Published(15)
	x.End()
	if !strings.Contains(r.Log.String(), "assuming, this one time, that the log is the same") {
		t.Error("a dropped anchor is not in the log")
	}
	if n := len(r.History("orders.dp").Bytes); n != 15 {
		t.Errorf("%d releases", n)
	}
}

// TestLogReplaced: the task halts if the log is not the one read before. The new log may be too short, filled again,
// created again while the daemon runs, or of another cluster.
func TestLogReplaced(t *testing.T) {
	t.Parallel()
	check := func(name, reason string, change func(r *streamtest.Rig)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewOldRig(t, fixtures.OrdersStream).TenSteps()
			change(r)
			before := len(r.Output("orders.dp"))
			x := r.Start()
			x.Halts(reason, "epoch open")
			if code, body := x.Get("/-/ready"); code != 503 ||
				!strings.Contains(body, "task orders-0 is halted ("+reason+")") {
				t.Errorf("ready is %d %s", code, body)
			}
			x.End()
			if after := len(r.Output("orders.dp")); after != before {
				t.Errorf("%d releases were published by a halted task", after-before)
			}
			// A restart checks again and halts for the same reason.
			r.Start().Halts(reason)
		})
	}
	check("shorter", failure.Truncated, func(r *streamtest.Rig) { r.Recreate(0, 500) })
	check("empty", failure.Truncated, func(r *streamtest.Rig) { r.Recreate(0, 0) })
	check("refilled", failure.Replaced, func(r *streamtest.Rig) { r.Recreate(7, 2000) })
	check("cut and refilled", failure.Replaced, func(r *streamtest.Rig) {
		r.Recreate(0, 900)
		r.Produce(7, 1100)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		r := streamtest.Ran(t, fixtures.OrdersStream)
		b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, ClusterID: "other"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		r.Broker, r.Addr, r.Client = b, b.Addr(), fixtures.Dial(t, b.Addr())
		r.Produce(0, 1050)
		r.Start().Halts(failure.Replaced, "cluster")
	})
	t.Run("live", func(t *testing.T) {
		t.Parallel()
		r := streamtest.NewRig(t, fixtures.OrdersStream)
		r.Produce(0, 1050)
		x := r.Start()
		x.Published(10)
		r.Recreate(7, 2000)
		x.Until("halt", func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted })
		if s := x.D.Status()[0]; s.Reason != failure.Replaced && s.Reason != failure.Truncated {
			t.Errorf("reason %s: %s", s.Reason, s.Message)
		}
		if s := x.D.Status()[0]; s.Step != 10 {
			t.Errorf("step %d", s.Step)
		}
	})
}

// TestLogReplacedBeforeFirst: an epoch that has read nothing yet identifies its log by the last record of the epoch
// before.
func TestLogReplacedBeforeFirst(t *testing.T) {
	t.Parallel()
	r := streamtest.NewOldRig(t,
		fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\""))
	r.Produce(0, 400)
	x := r.Start()
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 })
	x.End()
	x = r.Start()
	x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	r.Produce(400, 50)
	x.Until("read", func(s monitor.TaskStatus) bool { return s.NextOffset == 450 })
	x.End()
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{From: "latest"})
	}))
	if e := r.Entries(); e[len(e)-1].First != 450 || e[len(e)-1].Incarnation != 1 {
		t.Errorf("the last epoch: %+v", e[len(e)-1])
	}
	r.Recreate(7, 600)
	x = r.Start()
	x.Halts(failure.Replaced, "epoch open")
	x.End()
}

// TestCompacted: a compacted topic is refused, because the cleaner deletes records by their keys. If the configuration
// accepts it explicitly, the release says so.
func TestCompacted(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	kafkatest.CreateTopic(t, b.Addrs(), "orders", map[string]string{"cleanup.policy": "compact"})
	r := streamtest.NewRigAt(t, b, b.Addr(), fixtures.OrdersStream)
	r.Produce(0, 250)
	x := r.Start()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) || !strings.Contains(err.Error(), "allow_compacted") {
		t.Errorf("ended with %v", err)
	}
	if len(r.Entries()) > 0 {
		t.Errorf("a refused topic was charged: %s", r.Kinds())
	}
	r.Toml = fixtures.With(r.Toml, `codec = "json"`, `codec = "json", allow_compacted = true`)
	x = r.Start()
	x.Published(2)
	x.End()
	if last := r.History("orders.dp").ByKey["orders/0/1/2"]; !strings.Contains(last.Value,
		"The input topic is compacted") {
		t.Errorf("release: %s", last.Value)
	}
}
