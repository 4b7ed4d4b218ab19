package boundary_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"regexp"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// runsEmpty starts a daemon, waits until it runs, and ends it before the first step.
func runsEmpty(r *streamtest.Rig) {
	r.T.Helper()
	x := r.Start(streamtest.NewHand().On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	x.End()
}

// anew deletes a topic and creates it again.
func anew(r *streamtest.Rig, topic string) {
	r.T.Helper()
	kafkatest.DeleteTopic(r.T, r.Broker.Addrs(), topic)
	fixtures.Must(r.T, fixtures.Dial(r.T, r.Addr).CreateTopic(r.T.Context(), topic, 1, ledger.TopicSpec.Settings))
}

// boundByNothing turns the ledger into one of an older build, which does not name the boundary topic.
func boundByNothing(r *streamtest.Rig) {
	r.T.Helper()
	line, err := os.ReadFile(r.LedgerFile())
	fixtures.Must(r.T, err)
	older := regexp.MustCompile(`,"boundaries":{[^}]*}`).ReplaceAll(line, nil)
	if bytes.Equal(older, line) {
		r.T.Fatalf("the ledger does not say where the boundaries are: %s", line)
	}
	older = r.SealedAnew(older)
	fixtures.Must(r.T, os.WriteFile(r.LedgerFile(), older, 0o600))
	data, err := os.ReadFile(r.File(state.CheckpointName))
	fixtures.Must(r.T, err)
	cp, err := state.ParseCheckpoint(data)
	fixtures.Must(r.T, err)
	cp.Ledger = sha256.Sum256(bytes.TrimSuffix(older, []byte("\n")))
	fixtures.Must(r.T, os.WriteFile(r.File(state.CheckpointName), cp.Encode(nil), 0o600))
}

// TestClockRolledBack sets back the state, the boundary topic and the output together to before the first step, so none
// of them shows that step. The boundary topic is a different one, or has lost its records. The task must not make the
// first boundary again.
func TestClockRolledBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		back func(r *streamtest.Rig)
		says string
	}{
		"made anew": {func(r *streamtest.Rig) { anew(r, "bounds") },
			"boundary topic bounds was deleted and created again since epoch 1 was opened"},
		"records deleted": {func(r *streamtest.Rig) { kafkatest.DeleteRecords(t, r.Broker.Addrs(), "bounds", 0, 1) },
			"boundary topic bounds cannot be read from offset 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
			runsEmpty(r)
			old := r.Sibling(fixtures.ClockStream)
			r.CopyState(old)
			h := streamtest.NewHand()
			x := r.Start(h.On)
			r.SendTo(0, 0, 50)
			h.Tick()
			x.Published(1)
			x.End()
			c.back(r)
			anew(r, "orders.dp")
			r.SendTo(0, 50, 50)
			h.Tick()
			x = old.Start(h.On)
			x.Halts(failure.BoundaryTopic, c.says, "open a new epoch: streamdp epoch open orders")
			x.EndHalted()
			if out := r.OutputOf("orders.dp"); len(out) != 0 {
				t.Errorf("%d releases with other boundaries", len(out))
			}
			// A new epoch can run; it is charged.
			fixtures.Must(t, old.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
			}))
			x = old.Start(h.On)
			h.Tick()
			x.Until("epoch 2 has a step",
				func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 1 && s.Outbox == 0 })
			x.End()
		})
	}
}

// TestClockTopicMadeAgain creates the boundary topic again before the first step, while the daemon runs. The task
// notices this before it makes that step's boundary.
func TestClockTopicMadeAgain(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if e := r.Entries()[0]; e.Boundaries == nil || e.Boundaries.Topic != "bounds" || len(e.Boundaries.TopicID) != 32 ||
		e.Boundaries.First != 0 {
		t.Fatalf("the ledger has %+v", e.Boundaries)
	}
	anew(r, "bounds")
	r.SendTo(0, 0, 50)
	h.Tick()
	x.Halts(failure.BoundaryTopic, "boundary topic bounds was deleted and created again")
	x.EndHalted()
	if records := recordsOf(r, "bounds"); len(records) != 0 {
		t.Errorf("%d boundaries in the other topic", len(records))
	}
}

// TestClockTopicAtStart: each start checks whether the boundary topic could lose boundaries or their order.
func TestClockTopicAtStart(t *testing.T) {
	t.Parallel()
	for why, spoil := range map[string]func(r *streamtest.Rig){
		"has cleanup.policy = compact": func(r *streamtest.Rig) {
			streamtest.SetTopicConfig(t, r, "bounds", "cleanup.policy", "compact")
		},
		"has 2 partitions": func(r *streamtest.Rig) {
			streamtest.AddPartitions(t, r, "bounds", 2)
		},
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
			h := streamtest.NewHand()
			x := r.Start(h.On)
			x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			r.SendTo(0, 0, 50)
			h.Tick()
			x.Published(1)
			x.End()
			spoil(r)
			x = r.Start(h.On)
			x.Halts(failure.BoundaryTopic, "boundary topic bounds "+why)
			x.EndHalted()
		})
	}
}

// TestClockOlderLedger: an epoch that an older build opened, whose ledger line does not name the boundary topic,
// continues to run.
func TestClockOlderLedger(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	runsEmpty(r)
	boundByNothing(r)
	anew(r, "bounds")
	h := streamtest.NewHand()
	for step := range uint64(2) {
		x := r.Start(h.On)
		r.SendTo(0, 50*int(step), 50)
		h.Tick()
		x.Published(step + 1)
		x.End()
	}
	if e := r.Entries()[0]; e.Boundaries != nil {
		t.Errorf("the ledger has %+v", e.Boundaries)
	}
}
