package stream

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// TestOutputDeleted: an output topic that is deleted under the daemon is made
// anew, for what is to come; one that is gone at the start would have told
// whether this state is the newest.
func TestOutputDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
	r.produce(550, 500)
	x.published(10)
	x.end()
	list := r.output("orders.dp")
	if len(list) == 0 || list[len(list)-1].step != 10 || list[0].step > 6 {
		t.Errorf("releases %+v", list)
	}
	c := dial(t, r.addr)
	if cfg, err := c.TopicConfig(t.Context(), "orders.dp", "cleanup.policy"); err != nil || cfg["cleanup.policy"] != "compact" {
		t.Errorf("the new topic's policy is %v %v", cfg, err)
	}
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
	r.start().halts(haltOutputGone, "epoch open")
}

// TestRestoredCopy: a state directory older than its output repeats what was
// published, compares, publishes nothing meanwhile, and goes on.
func TestRestoredCopy(t *testing.T) {
	t.Parallel()
	restoredCopy(t, newRig(t, ordersStream))
}

// TestUsersRestoredCopy is the same where persons are protected: the map is as of the commit that is
// restored.
func TestUsersRestoredCopy(t *testing.T) {
	t.Parallel()
	for mode, m := range personModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			restoredCopy(t, personRig(t, mode, 100))
		})
	}
}

func restoredCopy(t *testing.T, r *rig) {
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	x.end()
	backup := r.sibling(r.toml)
	r.copyState(backup)
	r.produce(550, 1000)
	x = r.start()
	x.published(15)
	x.end()
	before := r.output("orders.dp")
	backup.copyState(r)
	r.log = &journal{}
	x = r.start()
	x.published(15)
	x.end()
	if after := r.output("orders.dp"); len(after) != len(before) {
		t.Errorf("%d releases were published while comparing", len(after)-len(before))
	}
	if !strings.Contains(r.log.String(), "the output is ahead of this state") {
		t.Error("a restored copy is not in the log")
	}
	r.produce(1550, 500)
	x = r.start()
	x.published(20)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(20))

	// The old commit beside the last one does the same.
	if err := os.Rename(r.file(previousName), r.file(checkpointName)); err != nil {
		t.Fatal(err)
	}
	x = r.start()
	x.published(20)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(20))

	// And a lost checkpoint repeats everything.
	for _, name := range []string{previousName, checkpointName} {
		os.Remove(r.file(name))
	}
	x = r.start()
	x.published(20)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(20))
}

// TestRestoredCopyForks: a restored copy that meets other records before it has
// caught up halts at the first release that differs, and publishes nothing. A
// new epoch covers what the other copy has published.
func TestRestoredCopyForks(t *testing.T) {
	t.Parallel()
	for _, offline := range []bool{false, true} {
		r := newOldRig(t, ordersStream)
		r.produce(0, 550)
		x := r.start()
		x.published(5)
		x.end()
		backup := r.sibling(ordersStream)
		r.copyState(backup)
		r.produce(550, 1000)
		x = r.start()
		x.published(15)
		x.end()
		backup.copyState(r)
		before := len(r.output("orders.dp"))

		r.recreate(0, 870) // the same records, and one with another digit
		r.send([]byte(`{"amount": 20.26, "items": 1, "weight": 0.1, "note": "x"}`))
		r.produce(871, 1129)
		x = r.start()
		x.halts(haltOutput, "orders/0/1/9 differs")
		if !offline {
			if err := x.control(requestOpen, OpenRequest{From: "latest"}); err != nil {
				t.Fatal(err)
			}
			x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.State == stateRunning })
		}
		x.end()
		if offline {
			if err := r.offline(func(ctx context.Context, d *Daemon) error {
				return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "latest"})
			}); err != nil {
				t.Fatal(err)
			}
		}
		if after := len(r.output("orders.dp")); after != before {
			t.Errorf("%d releases were published by a fork", after-before)
		}
		for _, e := range r.entries() {
			if e.Kind == kindClose && e.End < 1500 {
				t.Errorf("the charge covers offsets below %d, releases those below 1500", e.End)
			}
		}
	}
}

// TestForkInOutbox: what a copy owes may have been published with other bytes.
// It is not published then, and closing its epoch does not publish it either.
func TestForkInOutbox(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	data, err := os.ReadFile(r.file(checkpointName))
	if err != nil {
		t.Fatal(err)
	}
	cp, err := parseCheckpoint(data)
	if err != nil {
		t.Fatal(err)
	}
	cp.outbox = append(cp.outbox, pending{Message: core.Message{Step: 10, Key: []byte("orders/0/1/10"), Value: []byte(`{"other":1}`)}, time: time.UnixMilli(1)})
	cp.output = 0
	if err := os.WriteFile(r.file(checkpointName), cp.encode(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	before := len(r.output("orders.dp"))
	x := r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "orders/0/1/10 differs") {
		t.Errorf("ended with %v", err)
	}
	err = r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) })
	if err == nil || !strings.Contains(err.Error(), "--drop-outbox") {
		t.Errorf("close: %v", err)
	}
	if err := r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, true) }); err != nil {
		t.Error(err)
	}
	if after := len(r.output("orders.dp")); after != before {
		t.Errorf("%d releases were published", after-before)
	}
}

// TestOutputTruncated: an output that lost what came after the last
// acknowledged release can't tell a restored copy from the original.
func TestOutputTruncated(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	_, _, end, err := dial(t, r.addr).Offsets(t.Context(), "orders.dp", 0)
	if err != nil {
		t.Fatal(err)
	}
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders.dp", 0, end)
	x := r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "whether this state is the newest") {
		t.Errorf("ended with %v", err)
	}
	if s := x.d.Status()[0]; s.Reason != haltOutputGone {
		t.Errorf("reason %s", s.Reason)
	}
	// Without a checkpoint nothing may be missing from the start on.
	r = ran(t, ordersStream)
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders.dp", 0, 1)
	for _, name := range []string{previousName, checkpointName} {
		os.Remove(r.file(name))
	}
	x = r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || x.d.Status()[0].Reason != haltOutputGone {
		t.Errorf("ended with %v", err)
	}
}

// TestUnknownEpoch: releases of an epoch that the ledger does not know mean that
// a newer state exists somewhere.
func TestUnknownEpoch(t *testing.T) {
	t.Parallel()
	foreign := func(r *rig, key string) {
		t.Helper()
		_, err := dial(t, r.addr).Produce(t.Context(), "orders.dp", 0, []kafka.Message{{Key: []byte(key), Value: []byte("{}"), Time: time.UnixMilli(1)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := ran(t, ordersStream)
	foreign(r, "orders/1/9/1") // another task's
	foreign(r, "other/0/9/1")
	foreign(r, "orders/0/09/1") // nobody's
	x := r.start()
	x.published(10)
	x.end()
	foreign(r, "orders/0/2/1")
	x = r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "epoch 2, which this ledger does not know") {
		t.Errorf("ended with %v", err)
	}

	// A fresh directory finds the releases of the lost one.
	r = r.sibling(ordersStream)
	x = r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "releases of this stream that the ledger knows no epoch of") {
		t.Errorf("ended with %v", err)
	}
	if len(r.entries()) > 0 {
		t.Error("it was charged")
	}
	// The operator may pay again.
	if err := r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }); err != nil {
		t.Error(err)
	}
}

// TestRestoredClosed: a copy that was made while its epoch was closed opens no
// successor by itself where the output holds one that it does not know, and none
// of a number that was used.
func TestRestoredClosed(t *testing.T) {
	t.Parallel()
	halts := with(ordersStream, "step   = 100", "step = 100\nhorizon = 4")
	rolls := with(halts, "horizon = 4", "horizon = 4\non_horizon = \"rollover\"")
	r := newRig(t, halts)
	r.produce(0, 1050)
	if err := r.start().ends(); err != nil {
		t.Fatal(err)
	}
	s := r.sibling(rolls)
	r.copyState(s)
	r.toml = rolls
	x := r.start()
	x.until("epoch 3", func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
	x.end()

	x = s.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "epoch 3, which this ledger does not know") {
		t.Errorf("the copy ended with %v", err)
	}
	if got := s.kinds(); got != "open close key-destroyed" {
		t.Errorf("the copy's ledger: %s", got)
	}
	// The operator may pay again.
	must(t, s.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
	if all := s.entries(); all[len(all)-1].Epoch != 4 {
		t.Errorf("epoch %d is opened", all[len(all)-1].Epoch)
	}
	if !strings.Contains(s.log.String(), "does not know") {
		t.Error("nobody was told")
	}
	x = s.start()
	x.until("epoch 5", func(s TaskStatus) bool { return s.Epoch == 5 && s.Step == 2 && s.Outbox == 0 })
	x.end()
	s.history("orders.dp") // no number has two releases
}

// TestOutputMoves: with another output in the configuration the old one is read
// to its end first.
func TestOutputMoves(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	r.toml = with(r.toml, `"orders.dp"`, `"elsewhere"`)
	r.produce(1050, 500)
	x := r.start()
	x.published(15)
	x.end()
	v := judge(t, append(r.output("orders.dp"), r.output("elsewhere")...))
	v.faultless(t)
	if v.steps != 15 {
		t.Errorf("%d steps", v.steps)
	}
	// An old copy, moved: what the old output holds is compared.
	r = newRig(t, ordersStream)
	r.produce(0, 550)
	x = r.start()
	x.published(5)
	x.end()
	backup := r.sibling(ordersStream)
	r.copyState(backup)
	r.produce(550, 500)
	x = r.start()
	x.published(10)
	x.end()
	backup.copyState(r)
	r.toml = with(r.toml, `"orders.dp"`, `"elsewhere"`)
	x = r.start()
	x.published(10)
	x.end()
	if list := outputIfAny(r, "elsewhere"); len(list) > 0 {
		t.Errorf("%d releases came out again", len(list))
	}
}
