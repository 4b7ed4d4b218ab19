package stream

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/stream/core"
)

// closedWell fails unless an epoch is closed, charged for all that it released,
// and nothing of it is left.
func closedWell(r *rig, t *testing.T, how string, epoch uint64) {
	t.Helper()
	var closed, destroyed bool
	var end int64
	for _, e := range r.entries() {
		if e.Task() != ordersTask || e.Epoch != epoch {
			continue
		}
		switch e.Kind {
		case kindClose:
			closed, end = true, e.End
		case kindDestroyed:
			destroyed = true
		}
	}
	if !closed || !destroyed {
		t.Errorf("%s: closed %t, destroyed %t", how, closed, destroyed)
	}
	if _, err := os.Stat(r.file(secretName(epoch))); err == nil {
		t.Errorf("%s: the secret is still there", how)
	}
	for _, p := range outputIfAny(r, "orders.dp") {
		if p.epoch == epoch && p.value != "{}" {
			if got := p.parse(t).Offsets[1]; end >= 0 && got > end {
				t.Errorf("%s: released up to offset %d, charged to %d", how, got, end)
			}
		}
	}
	for _, name := range []string{checkpointName, previousName} {
		if data, err := os.ReadFile(r.file(name)); err == nil {
			if c, err := parseCheckpoint(data); err != nil || c.epoch == epoch {
				t.Errorf("%s: %s of the closed epoch is still there", how, name)
			}
		}
	}
}

// TestSecretRetention: a closed epoch's secret is kept as long as configured,
// its sums are not; a running daemon destroys it when its time has come, and so
// does the next start.
func TestSecretRetention(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	retain := func(d time.Duration) func(*Options) {
		return func(o *Options) { o.Config.State.EpochSecretRetention = d }
	}
	exists := func(epoch uint64) bool {
		_, err := os.Stat(r.file(secretName(epoch)))
		return err == nil
	}
	destroyed := func(epoch uint64) bool {
		return slices.ContainsFunc(r.entries(), func(e Entry) bool { return e.Kind == kindDestroyed && e.Epoch == epoch })
	}
	up := func(s TaskStatus) bool { return s.State == stateRunning }
	x := r.start(retain(time.Hour))
	x.until("up", up)
	for epoch := uint64(1); epoch <= 2; epoch++ {
		if err := x.control(requestOpen, OpenRequest{}); err != nil {
			t.Fatal(err)
		}
		x.until("the next epoch", func(s TaskStatus) bool { return s.Epoch == epoch+1 })
		if !exists(epoch) || destroyed(epoch) {
			t.Errorf("the secret of epoch %d is gone at once", epoch)
		}
		for _, name := range []string{checkpointName, previousName} {
			if data, err := os.ReadFile(r.file(name)); err == nil {
				if c, err := parseCheckpoint(data); err != nil || c.epoch <= epoch {
					t.Errorf("%s of epoch %d is still there", name, epoch)
				}
			}
		}
	}
	x.end()
	x = r.start(retain(2 * time.Second))
	x.until("up", up)
	for deadline := time.Now().Add(patience); exists(1) || exists(2) || !destroyed(1) || !destroyed(2); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the secrets are still there: %s", r.kinds())
		}
	}
	if err := x.control(requestOpen, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	x.end()
	x = r.start()
	x.until("epoch 4", func(s TaskStatus) bool { return s.Epoch == 4 && s.State == stateRunning })
	x.end()
	if exists(3) || !destroyed(3) || !exists(4) {
		t.Errorf("after a start without retention: %s", r.kinds())
	}
}

// TestAbandonedSecret: a task that is no longer configured, or not of the command
// that runs, keeps its secrets no longer than others.
func TestAbandonedSecret(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	for _, by := range []string{"daemon", "command"} {
		r := ran(t, ordersStream)
		retain := func(o *Options) { o.Config.State.EpochSecretRetention = time.Hour }
		x := r.start(retain)
		x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
		if err := x.control(requestClose, OpenRequest{}); err != nil {
			t.Fatal(err)
		}
		x.end()
		if _, err := os.Stat(r.file(secretName(1))); err != nil {
			t.Fatalf("%s: the secret is not kept: %v", by, err)
		}
		// What an interrupted closing leaves is no better.
		must(t, os.WriteFile(r.file(previousName), []byte("sums"), 0o600))
		r.toml = second
		if by == "daemon" {
			x = r.start()
			x.until("the other stream", func(s TaskStatus) bool { return s.State == stateRunning && s.Step == 10 })
			for deadline := time.Now().Add(patience); !strings.Contains(r.kinds(), kindDestroyed); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the secret is still there: %s", r.kinds())
				}
			}
			x.end()
		} else {
			must(t, r.offline(func(ctx context.Context, d *Daemon) error {
				return d.OpenEpoch(ctx, core.Task{Stream: "second", Partition: 0}, OpenRequest{})
			}))
		}
		closedWell(r, t, by, 1)
	}
}
