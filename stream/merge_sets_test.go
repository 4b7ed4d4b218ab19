package stream

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// openingOn returns the line that opened an epoch of the merged task.
func openingOn(r *rig, epoch uint64) *Entry {
	r.t.Helper()
	all := r.entries()
	i := slices.IndexFunc(all, func(e Entry) bool { return e.Kind == kindOpen && e.Epoch == epoch && e.Task() == mergedTask })
	if i < 0 {
		r.t.Fatalf("epoch %d was never opened", epoch)
	}
	return &all[i]
}

// TestMergedSets: a partition that a merged stream leaves out for an epoch is taken up
// again where it was left. Its records are charged once.
func TestMergedSets(t *testing.T) {
	t.Parallel()
	both := with(mergedStream, `"all"`, "[0, 1]")
	r := newMergedRig(t, both, 2)
	r.sendTo(0, 0, 250)
	r.sendTo(1, 1000, 250)
	run := func(epoch, step uint64) {
		x := r.start()
		x.until("the step", func(s TaskStatus) bool { return s.Epoch == epoch && s.Step == step && s.Outbox == 0 })
		x.end()
	}
	reopen := func(toml string) {
		r.toml = toml
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, mergedTask, OpenRequest{}) }))
	}
	run(1, 2)
	reopen(with(mergedStream, `"all"`, "[0]"))
	r.sendTo(0, 250, 100)
	run(2, 1)
	reopen(both)
	r.sendTo(0, 350, 100)
	r.sendTo(1, 1250, 100)
	run(3, 1)
	if p := openingOn(r, 3).Parts; p[0].First != 300 || p[1].First != 200 {
		t.Errorf("epoch 3 begins with %+v, want 300 and 200", p)
	}
}

// TestMergedLag: of a halted merged task, lag and headroom are those of the partitions where
// they are worst, as of a running one.
func TestMergedLag(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, mergedStream, 2)
	r.sendTo(0, 0, 1000)
	r.sendTo(1, 1000, 120)
	x := r.start()
	x.published(1)
	x.until("the lag", func(s TaskStatus) bool { return s.Step == 1 && s.LogEnd == 1120 && s.Lag == 900 })
	x.end()
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 1, 60)
	r.toml = with(mergedStream, "step = 100", "step = 50")
	x = r.start()
	x.halts(haltConfiguration)
	x.until("measured", func(s TaskStatus) bool { return s.Headroom != nil && s.LogEnd == 1120 })
	if s := x.d.Status()[0]; s.Lag != 900 || *s.Headroom != 40 || s.NextOffset != 200 {
		t.Errorf("at %d: lag %d, headroom %d; want 200, 900, 40", s.NextOffset, s.Lag, *s.Headroom)
	}
	x.endHalted()
}

// TestMergedAddedBudget: an epoch is not closed for another one that could not pay for a
// partition that was added.
func TestMergedAddedBudget(t *testing.T) {
	t.Parallel()
	small := func(s string) string { return with(s, "limit_epsilon = 3.0", "limit_epsilon = 1.1") }
	one := small(with(strings.ReplaceAll(ordersStream, "stream.orders", "stream.one"), `topic = "orders"`, `topic = "orders", partition = 2`, "orders.dp", "one.dp"))
	merged := small(mergedStream)
	r := newMergedRig(t, merged, 2)
	x := r.start()
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	x.end()
	addPartitions(t, r, "orders", 3)
	r.toml = one
	x = r.start()
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	x.end()
	lines := len(r.entries())
	r.toml = merged
	x = r.start()
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	if err := x.ask("open", ControlRequest{Stream: "orders", Partition: core.Merged}); err == nil || !strings.Contains(err.Error(), "budget of orders/2 spent") {
		t.Errorf("a running task: %v", err)
	}
	if s := x.d.Status()[0]; s.Epoch != 1 || s.State != stateRunning {
		t.Errorf("the task is %+v", s)
	}
	x.end()
	err := r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, mergedTask, OpenRequest{}) })
	if err == nil || !strings.Contains(err.Error(), "budget of orders/2 spent") {
		t.Errorf("a task that does not run: %v", err)
	}
	if n := len(r.entries()); n != lines {
		t.Errorf("%d lines more", n-lines)
	}
}

// TestMergedImplausible: a release of a step that one partition does not have yet is
// nobody's, however long the others are.
func TestMergedImplausible(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, mergedStream, 2)
	r.sendTo(0, 0, 900)
	r.sendTo(1, 1000, 150)
	x := r.start()
	x.published(1)
	r.forge("{}", "orders/merged/1/5") // 500 offsets of each, and both have 1050
	r.sendTo(1, 1150, 50)
	x.halts(haltOutput, "whose records the input does not have", "orders/1 ends at offset")
	x.endHalted()
}

// TestAbandonedTruncated: a task that is no longer configured and whose checkpoint is lost is
// charged no less than its releases cover, where its log lost its end.
func TestAbandonedTruncated(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "other"`), "stream.orders", "stream.other")
	for name, c := range map[string]struct {
		forget bool // what the ledger says of the output
		covers string
		end    int64
	}{
		"as long as the releases":  {false, `{"offsets":[100,200]}`, 250},
		"shorter":                  {false, `{"offsets":[200,300]}`, -1},
		"a line of an older build": {true, `{"offsets":[100,200]}`, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, ordersStream)
			r.produce(0, 250)
			x := r.start()
			x.published(2)
			x.end()
			r.client = dial(t, r.addr)
			_, err := r.client.Produce(t.Context(), "orders.dp", 0, []kafka.Message{{Key: []byte("orders/0/1/3"), Value: []byte(c.covers), Time: time.UnixMilli(1)}})
			must(t, err)
			must(t, os.Truncate(r.file(checkpointName), 100))
			r.toml = other
			must(t, r.offline(func(ctx context.Context, d *Daemon) error {
				if c.forget {
					d.own.ledger.entries[0].Output = nil
				}
				return d.CloseEpoch(ctx, ordersTask, false)
			}))
			if end := r.closed(r.entries()); end != c.end {
				t.Errorf("closed at %d, want %d", end, c.end)
			}
		})
	}
}
