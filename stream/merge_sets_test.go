package stream_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// openingOn returns the line that opened an epoch of the merged task.
func openingOn(r *streamtest.Rig, epoch uint64) *ledger.Entry {
	r.T.Helper()
	all := r.Entries()
	i := slices.IndexFunc(all, func(e ledger.Entry) bool {
		return e.Kind == ledger.KindOpen && e.Epoch == epoch && e.Task() == fixtures.MergedTask
	})
	if i < 0 {
		r.T.Fatalf("epoch %d was never opened", epoch)
	}
	return &all[i]
}

// TestMergedSets: a merged stream leaves out a partition for an epoch. A later epoch reads the partition from the
// offset where reading stopped, and its records are charged once.
func TestMergedSets(t *testing.T) {
	t.Parallel()
	both := fixtures.With(fixtures.MergedStream, `"all"`, "[0, 1]")
	r := streamtest.NewMergedRig(t, both, 2)
	r.SendTo(0, 0, 250)
	r.SendTo(1, 1000, 250)
	run := func(epoch, step uint64) {
		x := r.Start()
		x.Until("the step",
			func(s monitor.TaskStatus) bool { return s.Epoch == epoch && s.Step == step && s.Outbox == 0 })
		x.End()
	}
	reopen := func(toml string) {
		r.Toml = toml
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.MergedTask, epoch.OpenRequest{})
		}))
	}
	run(1, 2)
	reopen(fixtures.With(fixtures.MergedStream, `"all"`, "[0]"))
	r.SendTo(0, 250, 100)
	run(2, 1)
	reopen(both)
	r.SendTo(0, 350, 100)
	r.SendTo(1, 1250, 100)
	run(3, 1)
	if p := openingOn(r, 3).Parts; p[0].First != 300 || p[1].First != 200 {
		t.Errorf("epoch 3 begins with %+v, want 300 and 200", p)
	}
}

// TestMergedLag: a halted merged task shows lag and headroom of its worst partition, as a running one does.
func TestMergedLag(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, fixtures.MergedStream, 2)
	r.SendTo(0, 0, 1000)
	r.SendTo(1, 1000, 120)
	x := r.Start()
	x.Published(1)
	x.Until("the lag", func(s monitor.TaskStatus) bool { return s.Step == 1 && s.LogEnd == 1120 && s.Lag == 900 })
	x.End()
	kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders", 1, 60)
	r.Toml = fixtures.With(fixtures.MergedStream, "step = 100", "step = 50")
	x = r.Start()
	x.Halts(failure.Configuration)
	x.Until("measured", func(s monitor.TaskStatus) bool { return s.Headroom != nil && s.LogEnd == 1120 })
	if s := x.D.Status()[0]; s.Lag != 900 || *s.Headroom != 40 || s.NextOffset != 200 {
		t.Errorf("at %d: lag %d, headroom %d; want 200, 900, 40", s.NextOffset, s.Lag, *s.Headroom)
	}
	x.EndHalted()
}

// TestMergedAddedBudget: a request does not close an epoch if the next epoch would exceed the budget of an added
// partition.
func TestMergedAddedBudget(t *testing.T) {
	t.Parallel()
	small := func(s string) string { return fixtures.With(s, "limit_epsilon = 3.0", "limit_epsilon = 1.1") }
	one := small(
		fixtures.With(strings.ReplaceAll(fixtures.OrdersStream, "stream.orders", "stream.one"), `topic = "orders"`,
			`topic = "orders", partition = 2`, "orders.dp", "one.dp"))
	merged := small(fixtures.MergedStream)
	r := streamtest.NewMergedRig(t, merged, 2)
	x := r.Start()
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	x.End()
	streamtest.AddPartitions(t, r, "orders", 3)
	r.Toml = one
	x = r.Start()
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	x.End()
	lines := len(r.Entries())
	r.Toml = merged
	x = r.Start()
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if err := x.Ask(task.Request{Kind: task.RequestOpen, Stream: "orders", Partition: core.Merged}); err == nil ||
		!strings.Contains(err.Error(), "budget of orders/2 spent") {
		t.Errorf("a running task: %v", err)
	}
	if s := x.D.Status()[0]; s.Epoch != 1 || s.State != monitor.StateRunning {
		t.Errorf("the task is %+v", s)
	}
	x.End()
	err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.MergedTask, epoch.OpenRequest{})
	})
	if err == nil || !strings.Contains(err.Error(), "budget of orders/2 spent") {
		t.Errorf("a task that does not run: %v", err)
	}
	if n := len(r.Entries()); n != lines {
		t.Errorf("%d lines more", n-lines)
	}
}

// TestMergedImplausible: the task halts if the output has a release of a step whose records one partition does not have
// yet, even if the other partitions have enough records.
func TestMergedImplausible(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, fixtures.MergedStream, 2)
	r.SendTo(0, 0, 900)
	r.SendTo(1, 1000, 150)
	x := r.Start()
	x.Published(1)
	r.Forge("{}", "orders/merged/1/5") // needs 500 offsets of each; together they have 1050
	r.SendTo(1, 1150, 50)
	x.Halts(failure.OutputAhead, "records of that step are not in the input", "orders/1 ends at offset")
	x.EndHalted()
}

// TestAbandonedTruncated: a task outside the configuration, whose checkpoint is lost and whose log lost its end, is
// charged at least for what its releases cover.
func TestAbandonedTruncated(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(
		fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "other"`),
		"stream.orders", "stream.other")
	for name, c := range map[string]struct {
		forget bool // remove the output from the ledger's line
		covers string
		end    int64
	}{
		"as long as the releases":  {false, `{"offsets":[100,200]}`, 250},
		"shorter":                  {false, `{"offsets":[200,300]}`, -1},
		"a line of an older build": {true, `{"offsets":[100,200]}`, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, fixtures.OrdersStream)
			r.Produce(0, 250)
			x := r.Start()
			x.Published(2)
			x.End()
			r.Client = fixtures.Dial(t, r.Addr)
			_, err := r.Client.Produce(t.Context(), "orders.dp", 0,
				[]kafka.Message{{Key: []byte("orders/0/1/3"), Value: []byte(c.covers), Time: time.UnixMilli(1)}})
			fixtures.Must(t, err)
			fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 100))
			r.Toml = other
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				if c.forget {
					(*d.Own()).Ledger.Entries[0].Output = nil
				}
				return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
			}))
			if end := r.Closed(r.Entries()); end != c.end {
				t.Errorf("closed at %d, want %d", end, c.end)
			}
		})
	}
}
