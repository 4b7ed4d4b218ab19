package stream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"os"
	"regexp"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// runsEmpty starts a daemon, waits until it runs, and ends it before the first step.
func runsEmpty(r *rig) {
	r.t.Helper()
	x := r.start(newHand().on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	x.end()
}

// anew deletes a topic and makes it again.
func anew(r *rig, topic string) {
	r.t.Helper()
	kafkatest.DeleteTopic(r.t, r.broker.Addrs(), topic)
	must(r.t, dial(r.t, r.addr).CreateTopic(r.t.Context(), topic, 1, controlSettings))
}

// boundByNothing makes the ledger one of an older build, which does not say where the boundaries are.
func boundByNothing(r *rig) {
	r.t.Helper()
	line, err := os.ReadFile(r.ledgerFile())
	must(r.t, err)
	older := regexp.MustCompile(`,"boundaries":{[^}]*}`).ReplaceAll(line, nil)
	if bytes.Equal(older, line) {
		r.t.Fatalf("the ledger does not say where the boundaries are: %s", line)
	}
	older = r.sealedAnew(older)
	must(r.t, os.WriteFile(r.ledgerFile(), older, 0o600))
	data, err := os.ReadFile(r.file(checkpointName))
	must(r.t, err)
	cp, err := parseCheckpoint(data)
	must(r.t, err)
	cp.ledger = sha256.Sum256(bytes.TrimSuffix(older, []byte("\n")))
	must(r.t, os.WriteFile(r.file(checkpointName), cp.encode(nil), 0o600))
}

// TestClockRolledBack: where the state, the boundary topic and the output go back together to before the
// first step, nothing that is left knows that step. The boundary topic is another one, or has lost its
// records, and nobody decides its boundary again.
func TestClockRolledBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		back func(r *rig)
		says string
	}{
		"made anew":       {func(r *rig) { anew(r, "bounds") }, "boundary topic bounds was deleted and made again since epoch 1 was opened"},
		"records deleted": {func(r *rig) { kafkatest.DeleteRecords(t, r.broker.Addrs(), "bounds", 0, 1) }, "boundary topic bounds does not reach to offset 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := clockRig(t, clockStream, 1)
			runsEmpty(r)
			old := r.sibling(clockStream)
			r.copyState(old)
			h := newHand()
			x := r.start(h.on)
			r.sendTo(0, 0, 50)
			h.tick()
			x.published(1)
			x.end()
			c.back(r)
			anew(r, "orders.dp")
			r.sendTo(0, 50, 50)
			h.tick()
			x = old.start(h.on)
			x.halts(haltBoundary, c.says, "start anew with: streamdp epoch open orders")
			x.endHalted()
			if out := r.outputOf("orders.dp"); len(out) != 0 {
				t.Errorf("%d releases with other boundaries", len(out))
			}
			// A new epoch, which pays, goes on.
			must(t, old.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
			x = old.start(h.on)
			h.tick()
			x.until("epoch 2 has a step", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 1 && s.Outbox == 0 })
			x.end()
		})
	}
}

// TestClockTopicMadeAgain: a boundary topic that is made anew before the first step, while the daemon runs,
// is noticed before that step's boundary is decided.
func TestClockTopicMadeAgain(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	if e := r.entries()[0]; e.Boundaries == nil || e.Boundaries.Topic != "bounds" || len(e.Boundaries.TopicID) != 32 || e.Boundaries.First != 0 {
		t.Fatalf("the ledger has %+v", e.Boundaries)
	}
	anew(r, "bounds")
	r.sendTo(0, 0, 50)
	h.tick()
	x.halts(haltBoundary, "boundary topic bounds was deleted and made again")
	x.endHalted()
	if records := recordsOf(r, "bounds"); len(records) != 0 {
		t.Errorf("%d boundaries in the other topic", len(records))
	}
}

// TestClockTopicAtStart: each start looks whether the boundary topic could lose boundaries or their order.
func TestClockTopicAtStart(t *testing.T) {
	t.Parallel()
	for why, spoil := range map[string]func(r *rig){
		"has cleanup.policy = compact": func(r *rig) {
			setTopicConfig(t, r, "bounds", "cleanup.policy", "compact")
		},
		"has 2 partitions": func(r *rig) {
			addPartitions(t, r, "bounds", 2)
		},
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			r := clockRig(t, clockStream, 1)
			h := newHand()
			x := r.start(h.on)
			x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
			r.sendTo(0, 0, 50)
			h.tick()
			x.published(1)
			x.end()
			spoil(r)
			x = r.start(h.on)
			x.halts(haltBoundary, "boundary topic bounds "+why)
			x.endHalted()
		})
	}
}

// TestClockOlderLedger: an epoch that an older build opened, whose line says nothing of the boundary topic,
// runs on as it did.
func TestClockOlderLedger(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	runsEmpty(r)
	boundByNothing(r)
	anew(r, "bounds")
	h := newHand()
	for step := range uint64(2) {
		x := r.start(h.on)
		r.sendTo(0, 50*int(step), 50)
		h.tick()
		x.published(step + 1)
		x.end()
	}
	if e := r.entries()[0]; e.Boundaries != nil {
		t.Errorf("the ledger has %+v", e.Boundaries)
	}
}
