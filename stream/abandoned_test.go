package stream_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

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

// TestRemovedStream: if a stream is removed from the configuration, its open epoch is still shown. A running daemon or
// a command can close it, and it is charged only as far as it read.
func TestRemovedStream(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"second.dp"`), "stream.orders",
		"stream.second")
	for _, by := range []string{"daemon", "command", "without its checkpoint"} {
		r := streamtest.NewRig(t, fixtures.OrdersStream+second)
		r.Produce(0, 350)
		x := r.Start()
		x.Published(3)
		x.Until("the second too",
			func(monitor.TaskStatus) bool { s := x.D.Status()[1]; return s.Step == 3 && s.Outbox == 0 })
		x.End()
		r.Toml = fixtures.OrdersStream
		r.Produce(350, 200)
		st := filepath.Join(r.Dir, "state")
		epochs, err := streamtest.ReadEpochs(st)
		fixtures.Must(t, err)
		if len(epochs) != 2 || epochs[1].Stream != "second" && epochs[0].Stream != "second" ||
			epochs[1].State != "open" {
			t.Fatalf("%s: epochs %+v", by, epochs)
		}
		id := core.Task{Stream: "second", Partition: 0}
		closes := func(ctx context.Context, d *stream.Daemon) error { return streamtest.CloseEpoch(ctx, d, id, false) }
		end := int64(300)
		switch by {
		case "daemon":
			x = r.Start()
			x.Published(5)
			if err := x.ControlOf("second", task.RequestOpen, epoch.OpenRequest{}); err == nil {
				t.Error("an epoch of a stream that is not configured was opened")
			}
			fixtures.Must(t, x.ControlOf("second", task.RequestClose, epoch.OpenRequest{}))
			if err := x.ControlOf("second", task.RequestClose, epoch.OpenRequest{}); err == nil ||
				!strings.Contains(err.Error(), "no open epoch") {
				t.Errorf("closed again: %v", err)
			}
			x.End()
		case "command":
			fixtures.Must(t, r.Offline(closes))
		default:
			for _, name := range []string{state.CheckpointName, state.PreviousName} {
				fixtures.Must(t, os.Remove(filepath.Join(st, "tasks", "second-0", name)))
			}
			fixtures.Must(t, r.Offline(closes))
			end = 550 // the log's end
		}
		found := false
		for _, e := range r.Entries() {
			if e.Stream == "second" && e.Kind == ledger.KindClose {
				found = true
				if e.End != end {
					t.Errorf("%s: it is charged up to %d, want %d", by, e.End, end)
				}
			}
		}
		if !found || !strings.Contains(r.Kinds(), ledger.KindDestroyed) {
			t.Errorf("%s: %s", by, r.Kinds())
		}
		if left, _ := filepath.Glob(filepath.Join(st, "tasks", "second-0", "[cs]*")); len(left) > 0 {
			t.Errorf("%s: %v still exists", by, left)
		}
	}
}

// TestOpeningLooksEverywhere: the files of any task reveal an old copy of the ledger, not only those of the task that
// opens an epoch.
func TestOpeningLooksEverywhere(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"second.dp"`), "stream.orders",
		"stream.second")
	for name, ahead := range map[string]func(r *streamtest.Rig){
		// The second stream opens an epoch that is not in the copy of the ledger.
		"an epoch": func(r *streamtest.Rig) {
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, core.Task{Stream: "second", Partition: 0}, epoch.OpenRequest{})
			}))
		},
		// The second stream's limit is raised, and its next checkpoint names the ledger line of the raise.
		"a limit": func(r *streamtest.Rig) {
			r.Toml = strings.ReplaceAll(r.Toml, "limit_epsilon = 3.0", "limit_epsilon = 4.0")
			r.Produce(350, 200)
			x := r.Start()
			x.Until("the second is on",
				func(monitor.TaskStatus) bool { s := x.D.Status()[1]; return s.Step == 5 && s.Outbox == 0 })
			x.End()
		},
	} {
		r := streamtest.NewRig(t, fixtures.OrdersStream+second)
		r.Produce(0, 350)
		x := r.Start()
		x.Published(3)
		x.Until("the second too",
			func(monitor.TaskStatus) bool { s := x.D.Status()[1]; return s.Step == 3 && s.Outbox == 0 })
		x.End()
		old, err := os.ReadFile(r.LedgerFile())
		fixtures.Must(t, err)
		ahead(r)
		fixtures.Must(t, os.WriteFile(r.LedgerFile(), old, 0o600))
		err = r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		})
		if err == nil || !strings.Contains(err.Error(), "an old copy; restore the newest ledger") {
			t.Errorf("%s: %v", name, err)
		}
		if now, _ := os.ReadFile(r.LedgerFile()); strings.Count(string(now), `"kind":"open"`) != 2 {
			t.Errorf("%s: an epoch was charged to an old ledger: %s", name, r.Kinds())
		}
	}
}
