package stream_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// closedWell fails unless an epoch is closed, charged for all that it released, and has no files left.
func closedWell(r *streamtest.Rig, t *testing.T, how string, epoch uint64) {
	t.Helper()
	var closed, destroyed bool
	var end int64
	for _, e := range r.Entries() {
		if e.Task() != fixtures.OrdersTask || e.Epoch != epoch {
			continue
		}
		switch e.Kind {
		case ledger.KindClose:
			closed, end = true, e.End
		case ledger.KindDestroyed:
			destroyed = true
		}
	}
	if !closed || !destroyed {
		t.Errorf("%s: closed %t, destroyed %t", how, closed, destroyed)
	}
	if _, err := os.Stat(r.File(state.SecretName(epoch))); err == nil {
		t.Errorf("%s: the secret still exists", how)
	}
	for _, p := range outputIfAny(r, "orders.dp") {
		if p.Epoch == epoch && p.Value != "{}" {
			if got := p.Parse(t).Offsets[1]; end >= 0 && got > end {
				t.Errorf("%s: released up to offset %d, charged to %d", how, got, end)
			}
		}
	}
	for _, name := range []string{state.CheckpointName, state.PreviousName} {
		if data, err := os.ReadFile(r.File(name)); err == nil {
			if c, err := state.ParseCheckpoint(data); err != nil || c.Epoch == epoch {
				t.Errorf("%s: %s of the closed epoch still exists", how, name)
			}
		}
	}
}

// TestSecretRetention: after an epoch is closed, its secret is kept for the configured time, but its sums are destroyed
// at once. When the time is over, a running daemon destroys the secret, and so does a start.
func TestSecretRetention(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	retain := func(d time.Duration) func(*stream.Options) {
		return func(o *stream.Options) { o.Config.State.EpochSecretRetention = d }
	}
	exists := func(epoch uint64) bool {
		_, err := os.Stat(r.File(state.SecretName(epoch)))
		return err == nil
	}
	destroyed := func(epoch uint64) bool {
		return slices.ContainsFunc(r.Entries(),
			func(e ledger.Entry) bool { return e.Kind == ledger.KindDestroyed && e.Epoch == epoch })
	}
	up := func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning }
	x := r.Start(retain(time.Hour))
	x.Until("up", up)
	for n := uint64(1); n <= 2; n++ {
		if err := x.Control(task.RequestOpen, epoch.OpenRequest{}); err != nil {
			t.Fatal(err)
		}
		x.Until("the next epoch", func(s monitor.TaskStatus) bool { return s.Epoch == n+1 })
		if !exists(n) || destroyed(n) {
			t.Errorf("the secret of epoch %d is destroyed at once", n)
		}
		for _, name := range []string{state.CheckpointName, state.PreviousName} {
			if data, err := os.ReadFile(r.File(name)); err == nil {
				if c, err := state.ParseCheckpoint(data); err != nil || c.Epoch <= n {
					t.Errorf("%s of epoch %d still exists", name, n)
				}
			}
		}
	}
	x.End()
	x = r.Start(retain(2 * time.Second))
	x.Until("up", up)
	for deadline := time.Now().Add(fixtures.Patience); exists(1) || exists(2) || !destroyed(1) ||
		!destroyed(2); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the secrets still exist: %s", r.Kinds())
		}
	}
	if err := x.Control(task.RequestOpen, epoch.OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	x.End()
	x = r.Start()
	x.Until("epoch 4", func(s monitor.TaskStatus) bool { return s.Epoch == 4 && s.State == monitor.StateRunning })
	x.End()
	if exists(3) || !destroyed(3) || !exists(4) {
		t.Errorf("after a start without retention: %s", r.Kinds())
	}
}

// TestAbandonedSecret: secrets are kept no longer than configured even if their task is not in the configuration or not
// run by the command.
func TestAbandonedSecret(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"second.dp"`), "stream.orders",
		"stream.second")
	for _, by := range []string{"daemon", "command"} {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		retain := func(o *stream.Options) { o.Config.State.EpochSecretRetention = time.Hour }
		x := r.Start(retain)
		x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		if err := x.Control(task.RequestClose, epoch.OpenRequest{}); err != nil {
			t.Fatal(err)
		}
		x.End()
		if _, err := os.Stat(r.File(state.SecretName(1))); err != nil {
			t.Fatalf("%s: the secret is not kept: %v", by, err)
		}
		// Files that an interrupted closing left are destroyed too.
		fixtures.Must(t, os.WriteFile(r.File(state.PreviousName), []byte("sums"), 0o600))
		r.Toml = second
		if by == "daemon" {
			x = r.Start()
			x.Until("the other stream",
				func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning && s.Step == 10 })
			for deadline := time.Now().Add(fixtures.Patience); !strings.Contains(r.Kinds(),
				ledger.KindDestroyed); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the secret still exists: %s", r.Kinds())
				}
			}
			x.End()
		} else {
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, core.Task{Stream: "second", Partition: 0}, epoch.OpenRequest{})
			}))
		}
		closedWell(r, t, by, 1)
	}
}
