package stream_test

import (
	"context"
	"errors"
	"os"
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

// TestOutputDeleted: an output topic that is deleted while the daemon runs is created again for later releases. If the
// topic is missing at the start, the task halts, because only the output can show whether this state is the newest.
func TestOutputDeleted(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 550)
	x := r.Start()
	x.Published(5)
	kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
	r.Produce(550, 500)
	x.Published(10)
	x.End()
	list := r.Output("orders.dp")
	if len(list) == 0 || list[len(list)-1].Step != 10 || list[0].Step > 6 {
		t.Errorf("releases %+v", list)
	}
	c := fixtures.Dial(t, r.Addr)
	if cfg, err := c.TopicConfig(t.Context(), "orders.dp", "cleanup.policy"); err != nil ||
		cfg["cleanup.policy"] != "compact" {
		t.Errorf("the new topic's policy is %v %v", cfg, err)
	}
	kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
	r.Start().Halts(failure.OutputTruncated, "epoch open")
}

// TestRestoredCopy starts from a state directory that is older than its output. The task computes the published
// releases again, compares them, publishes nothing meanwhile, and then continues.
func TestRestoredCopy(t *testing.T) {
	t.Parallel()
	restoredCopy(t, streamtest.NewRig(t, fixtures.OrdersStream))
}

// TestUsersRestoredCopy is TestRestoredCopy for a stream that protects persons. The map of persons is in the state of
// the restored commit.
func TestUsersRestoredCopy(t *testing.T) {
	t.Parallel()
	for mode, m := range fixtures.PersonModes {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			restoredCopy(t, streamtest.PersonRig(t, mode, 100))
		})
	}
}

func restoredCopy(t *testing.T, r *streamtest.Rig) {
	r.Produce(0, 550)
	x := r.Start()
	x.Published(5)
	x.End()
	backup := r.Sibling(r.Toml)
	r.CopyState(backup)
	r.Produce(550, 1000)
	x = r.Start()
	x.Published(15)
	x.End()
	before := r.Output("orders.dp")
	backup.CopyState(r)
	r.Log = &fixtures.Journal{}
	x = r.Start()
	x.Published(15)
	x.End()
	if after := r.Output("orders.dp"); len(after) != len(before) {
		t.Errorf("%d releases were published while comparing", len(after)-len(before))
	}
	if !strings.Contains(r.Log.String(), "the output is ahead of this state") {
		t.Error("a restored copy is not in the log")
	}
	r.Produce(1550, 500)
	x = r.Start()
	x.Published(20)
	x.End()
	r.History("orders.dp").Equals(t, r.Uninterrupted(20))

	// The older commit in the other file gives the same result.
	if err := os.Rename(r.File(state.PreviousName), r.File(state.CheckpointName)); err != nil {
		t.Fatal(err)
	}
	x = r.Start()
	x.Published(20)
	x.End()
	r.History("orders.dp").Equals(t, r.Uninterrupted(20))

	// After the loss of both checkpoints, everything is repeated.
	for _, name := range []string{state.PreviousName, state.CheckpointName} {
		os.Remove(r.File(name))
	}
	x = r.Start()
	x.Published(20)
	x.End()
	r.History("orders.dp").Equals(t, r.Uninterrupted(20))
}

// TestRestoredCopyForks: if a restored copy reads different records before it has caught up, it halts at the first
// release that differs, and publishes nothing. If the epoch is closed for a new one, its charge covers the releases of
// the other copy.
func TestRestoredCopyForks(t *testing.T) {
	t.Parallel()
	for _, offline := range []bool{false, true} {
		r := streamtest.NewOldRig(t, fixtures.OrdersStream)
		r.Produce(0, 550)
		x := r.Start()
		x.Published(5)
		x.End()
		backup := r.Sibling(fixtures.OrdersStream)
		r.CopyState(backup)
		r.Produce(550, 1000)
		x = r.Start()
		x.Published(15)
		x.End()
		backup.CopyState(r)
		before := len(r.Output("orders.dp"))

		r.Recreate(0, 870) // the same records, except for a different digit in one of them
		r.Send([]byte(`{"amount": 20.26, "items": 1, "weight": 0.1, "note": "x"}`))
		r.Produce(871, 1129)
		x = r.Start()
		x.Halts(failure.OutputAhead, "orders/0/1/9 differs")
		if !offline {
			if err := x.Control(task.RequestOpen, epoch.OpenRequest{From: "latest"}); err != nil {
				t.Fatal(err)
			}
			x.Until("epoch 2",
				func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.State == monitor.StateRunning })
		}
		x.End()
		if offline {
			if err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{From: "latest"})
			}); err != nil {
				t.Fatal(err)
			}
		}
		if after := len(r.Output("orders.dp")); after != before {
			t.Errorf("%d releases were published by a fork", after-before)
		}
		for _, e := range r.Entries() {
			if e.Kind == ledger.KindClose && e.End < 1500 {
				t.Errorf("the charge covers offsets below %d, releases those below 1500", e.End)
			}
		}
	}
}

// TestForkInOutbox: the releases in a copy's outbox may have been published with other bytes. Then the copy does not
// publish them, not even when its epoch is closed.
func TestForkInOutbox(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	data, err := os.ReadFile(r.File(state.CheckpointName))
	if err != nil {
		t.Fatal(err)
	}
	cp, err := state.ParseCheckpoint(data)
	if err != nil {
		t.Fatal(err)
	}
	cp.Outbox = append(cp.Outbox,
		state.Message{Message: core.Message{Step: 10, Key: []byte("orders/0/1/10"), Value: []byte(`{"other":1}`)},
			Time: time.UnixMilli(1)})
	cp.Output = 0
	if err := os.WriteFile(r.File(state.CheckpointName), cp.Encode(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	before := len(r.Output("orders.dp"))
	x := r.Start()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) || !strings.Contains(err.Error(), "orders/0/1/10 differs") {
		t.Errorf("ended with %v", err)
	}
	err = r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	})
	if err == nil || !strings.Contains(err.Error(), "--drop-outbox") {
		t.Errorf("close: %v", err)
	}
	if err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, true)
	}); err != nil {
		t.Error(err)
	}
	if after := len(r.Output("orders.dp")); after != before {
		t.Errorf("%d releases were published", after-before)
	}
}

// TestOutputTruncated: an output that lost its releases since the last acknowledged one cannot show whether this state
// is a restored copy.
func TestOutputTruncated(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	end, err := fixtures.Dial(t, r.Addr).End(t.Context(), "orders.dp", 0)
	if err != nil {
		t.Fatal(err)
	}
	kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders.dp", 0, end)
	x := r.Start()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) ||
		!strings.Contains(err.Error(), "whether this state is the newest") {
		t.Errorf("ended with %v", err)
	}
	if s := x.D.Status()[0]; s.Reason != failure.OutputTruncated {
		t.Errorf("reason %s", s.Reason)
	}
	// Without a checkpoint, the output must be complete from its start.
	r = streamtest.Ran(t, fixtures.OrdersStream)
	kafkatest.DeleteRecords(t, r.Broker.Addrs(), "orders.dp", 0, 1)
	for _, name := range []string{state.PreviousName, state.CheckpointName} {
		os.Remove(r.File(name))
	}
	x = r.Start()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) || x.D.Status()[0].Reason != failure.OutputTruncated {
		t.Errorf("ended with %v", err)
	}
}

// TestUnknownEpoch: releases of an epoch that is not in the ledger show that a newer state exists.
func TestUnknownEpoch(t *testing.T) {
	t.Parallel()
	foreign := func(r *streamtest.Rig, key string) {
		t.Helper()
		_, err := fixtures.Dial(t, r.Addr).Produce(t.Context(), "orders.dp", 0,
			[]kafka.Message{{Key: []byte(key), Value: []byte("{}"), Time: time.UnixMilli(1)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := streamtest.Ran(t, fixtures.OrdersStream)
	foreign(r, "orders/1/9/1") // key of another task
	foreign(r, "other/0/9/1")
	foreign(r, "orders/0/09/1") // not a valid key
	x := r.Start()
	x.Published(10)
	x.End()
	foreign(r, "orders/0/2/1")
	x = r.Start()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) ||
		!strings.Contains(err.Error(), "epoch 2, which is not in this ledger") {
		t.Errorf("ended with %v", err)
	}

	// A fresh state directory finds the releases of the lost one.
	r = r.Sibling(fixtures.OrdersStream)
	x = r.Start()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) ||
		!strings.Contains(err.Error(), "releases of this stream, but the ledger has no epoch of it") {
		t.Errorf("ended with %v", err)
	}
	if len(r.Entries()) > 0 {
		t.Error("it was charged")
	}
	// The operator may accept a new charge.
	if err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}); err != nil {
		t.Error(err)
	}
}

// TestRestoredClosed restores a copy whose epoch was closed, while the output holds releases of a later epoch that the
// copy does not know. The copy opens no epoch by itself, and never uses that epoch's number again.
func TestRestoredClosed(t *testing.T) {
	t.Parallel()
	halts := fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4")
	rolls := fixtures.With(halts, "horizon = 4", "horizon = 4\non_horizon = \"rollover\"")
	r := streamtest.NewRig(t, halts)
	r.Produce(0, 1050)
	if err := r.Start().Ends(); err != nil {
		t.Fatal(err)
	}
	s := r.Sibling(rolls)
	r.CopyState(s)
	r.Toml = rolls
	x := r.Start()
	x.Until("epoch 3", func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
	x.End()

	x = s.Start()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) ||
		!strings.Contains(err.Error(), "epoch 3, which is not in this ledger") {
		t.Errorf("the copy ended with %v", err)
	}
	if got := s.Kinds(); got != "open close key-destroyed" {
		t.Errorf("the copy's ledger: %s", got)
	}
	// The operator may accept a new charge.
	fixtures.Must(t, s.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}))
	if all := s.Entries(); all[len(all)-1].Epoch != 4 {
		t.Errorf("epoch %d is opened", all[len(all)-1].Epoch)
	}
	if !strings.Contains(s.Log.String(), "that is not in this ledger") {
		t.Error("the log does not warn")
	}
	x = s.Start()
	x.Until("epoch 5", func(s monitor.TaskStatus) bool { return s.Epoch == 5 && s.Step == 2 && s.Outbox == 0 })
	x.End()
	s.History("orders.dp") // no number has two releases
}

// TestOutputMoves: if the configuration names another output, the old one is first read to its end.
func TestOutputMoves(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	r.Toml = fixtures.With(r.Toml, `"orders.dp"`, `"elsewhere"`)
	r.Produce(1050, 500)
	x := r.Start()
	x.Published(15)
	x.End()
	v := streamtest.Judge(t, append(r.Output("orders.dp"), r.Output("elsewhere")...))
	v.Faultless(t)
	if v.Steps != 15 {
		t.Errorf("%d steps", v.Steps)
	}
	// An old copy with another output: releases in the old output are compared.
	r = streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 550)
	x = r.Start()
	x.Published(5)
	x.End()
	backup := r.Sibling(fixtures.OrdersStream)
	r.CopyState(backup)
	r.Produce(550, 500)
	x = r.Start()
	x.Published(10)
	x.End()
	backup.CopyState(r)
	r.Toml = fixtures.With(r.Toml, `"orders.dp"`, `"elsewhere"`)
	x = r.Start()
	x.Published(10)
	x.End()
	if list := outputIfAny(r, "elsewhere"); len(list) > 0 {
		t.Errorf("%d releases were published again", len(list))
	}
}
