package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// TestRetention: records that were deleted before they were read halt the task,
// or are empty slots where that is configured; the steps stay where they are.
func TestRetention(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	r.produce(1050, 1000)
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 1530)
	x := r.start()
	x.halts(haltGap, "offsets 1000 to 1529 are no longer in the log", "on_gap")
	x.end()
	r.toml = with(r.toml, "step   = 100", "step = 100\non_gap = \"null\"")
	x = r.start()
	x.published(20)
	x.end()
	v := r.history("orders.dp")
	for step, rows := range map[uint64]uint64{10: 100, 11: 0, 15: 0, 16: 70, 17: 100} {
		p := v.byKey[fmt.Sprintf("orders/0/1/%d", step)]
		if rel := p.parse(t); rel.Rows != rows {
			t.Errorf("step %d has %d rows, want %d", step, rel.Rows, rows)
		}
	}
	if !strings.Contains(r.log.String(), "records were deleted before they were read") {
		t.Error("the gap is not in the log")
	}
}

// TestRetentionLive: retention overtakes a running daemon.
func TestRetentionLive(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 250)
	x := r.start()
	x.published(2)
	// The daemon waits at 250. The answer to its fetch must be late.
	held := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: -1})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := held.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	r.produce(250, 300)
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 400)
	held.Remove()
	x.halts(haltGap, "offsets 250 to 399")
}

// TestAnchorDeleted: retention may take the record that proves the log, and
// nothing unread; then the log is trusted once.
func TestAnchorDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 1000)
	x := r.start()
	x.published(10)
	x.end()
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 1000)
	r.produce(1000, 500)
	x = r.start()
	x.published(15)
	x.end()
	if !strings.Contains(r.log.String(), "the log is trusted this once") {
		t.Error("a dropped anchor is not in the log")
	}
	if n := len(r.history("orders.dp").bytes); n != 15 {
		t.Errorf("%d releases", n)
	}
}

// TestLogReplaced: a log that is not the one that was read halts the task,
// whatever it looks like: too short, refilled, re-created while the daemon
// runs, of another cluster.
func TestLogReplaced(t *testing.T) {
	t.Parallel()
	check := func(name, reason string, change func(r *rig)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newOldRig(t, ordersStream).tenSteps()
			change(r)
			before := len(r.output("orders.dp"))
			x := r.start()
			x.halts(reason, "epoch open")
			if code, body := x.get("/-/ready"); code != 503 || !strings.Contains(body, "task orders-0 is halted ("+reason+")") {
				t.Errorf("ready is %d %s", code, body)
			}
			x.end()
			if after := len(r.output("orders.dp")); after != before {
				t.Errorf("%d releases were published by a halted task", after-before)
			}
			// A restart examines the cause again, and finds it.
			r.start().halts(reason)
		})
	}
	check("shorter", haltTruncated, func(r *rig) { r.recreate(0, 500) })
	check("empty", haltTruncated, func(r *rig) { r.recreate(0, 0) })
	check("refilled", haltReplaced, func(r *rig) { r.recreate(7, 2000) })
	check("cut and refilled", haltReplaced, func(r *rig) {
		r.recreate(0, 900)
		r.produce(7, 1100)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		r := ran(t, ordersStream)
		b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, ClusterID: "other"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		r.broker, r.addr, r.client = b, b.Addr(), dial(t, b.Addr())
		r.produce(0, 1050)
		r.start().halts(haltReplaced, "cluster")
	})
	t.Run("live", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, ordersStream)
		r.produce(0, 1050)
		x := r.start()
		x.published(10)
		r.recreate(7, 2000)
		x.until("halt", func(s TaskStatus) bool { return s.State == stateHalted })
		if s := x.d.Status()[0]; s.Reason != haltReplaced && s.Reason != haltTruncated {
			t.Errorf("reason %s: %s", s.Reason, s.Message)
		}
		if s := x.d.Status()[0]; s.Step != 10 {
			t.Errorf("step %d", s.Step)
		}
	})
}

// TestLogReplacedBeforeFirst: an epoch that has read nothing yet knows its log by
// the record that the one before ended with.
func TestLogReplacedBeforeFirst(t *testing.T) {
	t.Parallel()
	r := newOldRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\""))
	r.produce(0, 400)
	x := r.start()
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 })
	x.end()
	x = r.start()
	x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
	r.produce(400, 50)
	x.until("read", func(s TaskStatus) bool { return s.NextOffset == 450 })
	x.end()
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "latest"})
	}))
	if e := r.entries(); e[len(e)-1].First != 450 || e[len(e)-1].Incarnation != 1 {
		t.Errorf("the last epoch: %+v", e[len(e)-1])
	}
	r.recreate(7, 600)
	x = r.start()
	x.halts(haltReplaced, "epoch open")
	x.end()
}

// TestCompacted: the cleaner decides by keys which records there are, so such a
// topic is refused, or accepted by name, and then the release says so.
func TestCompacted(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	kafkatest.CreateTopic(t, b.Addrs(), "orders", map[string]string{"cleanup.policy": "compact"})
	r := newRigAt(t, b, b.Addr(), ordersStream)
	r.produce(0, 250)
	x := r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "allow_compacted") {
		t.Errorf("ended with %v", err)
	}
	if len(r.entries()) > 0 {
		t.Errorf("a refused topic was charged: %s", r.kinds())
	}
	r.toml = with(r.toml, `codec = "json"`, `codec = "json", allow_compacted = true`)
	x = r.start()
	x.published(2)
	x.end()
	if last := r.history("orders.dp").byKey["orders/0/1/2"]; !strings.Contains(last.value, "The input topic is compacted") {
		t.Errorf("release: %s", last.value)
	}
}
