package stream

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/stream/core"
)

// TestRemovedStream: the epoch of a stream that the configuration has no longer is
// seen, can be closed by a running daemon and by a command, and is charged no
// further than it came.
func TestRemovedStream(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	for _, by := range []string{"daemon", "command", "without its checkpoint"} {
		r := newRig(t, ordersStream+second)
		r.produce(0, 350)
		x := r.start()
		x.published(3)
		x.until("the second too", func(TaskStatus) bool { s := x.d.Status()[1]; return s.Step == 3 && s.Outbox == 0 })
		x.end()
		r.toml = ordersStream
		r.produce(350, 200)
		state := filepath.Join(r.dir, "state")
		epochs, err := readEpochs(state)
		must(t, err)
		if len(epochs) != 2 || epochs[1].Stream != "second" && epochs[0].Stream != "second" || epochs[1].State != "open" {
			t.Fatalf("%s: epochs %+v", by, epochs)
		}
		task := core.Task{Stream: "second", Partition: 0}
		closes := func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, task, false) }
		end := int64(300)
		switch by {
		case "daemon":
			x = r.start()
			x.published(5)
			if err := x.controlOf("second", requestOpen, OpenRequest{}); err == nil {
				t.Error("an epoch of a stream that is not configured was opened")
			}
			must(t, x.controlOf("second", requestClose, OpenRequest{}))
			if err := x.controlOf("second", requestClose, OpenRequest{}); err == nil || !strings.Contains(err.Error(), "no open epoch") {
				t.Errorf("closed again: %v", err)
			}
			x.end()
		case "command":
			must(t, r.offline(closes))
		default:
			for _, name := range []string{checkpointName, previousName} {
				must(t, os.Remove(filepath.Join(state, "tasks", "second-0", name)))
			}
			must(t, r.offline(closes))
			end = 550 // the log's end
		}
		found := false
		for _, e := range r.entries() {
			if e.Stream == "second" && e.Kind == kindClose {
				found = true
				if e.End != end {
					t.Errorf("%s: it is charged up to %d, want %d", by, e.End, end)
				}
			}
		}
		if !found || !strings.Contains(r.kinds(), kindDestroyed) {
			t.Errorf("%s: %s", by, r.kinds())
		}
		if left, _ := filepath.Glob(filepath.Join(state, "tasks", "second-0", "[cs]*")); len(left) > 0 {
			t.Errorf("%s: %v is left", by, left)
		}
	}
}

// TestOpeningLooksEverywhere: an old copy of the ledger is noticed by the files of
// any task, not of the one alone that opens an epoch.
func TestOpeningLooksEverywhere(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`), "stream.orders", "stream.second")
	for name, ahead := range map[string]func(r *rig){
		// The second stream opens an epoch that the copy does not know.
		"an epoch": func(r *rig) {
			must(t, r.offline(func(ctx context.Context, d *Daemon) error {
				return d.OpenEpoch(ctx, core.Task{Stream: "second", Partition: 0}, OpenRequest{})
			}))
		},
		// Its limit is raised, and its checkpoint follows.
		"a limit": func(r *rig) {
			r.toml = strings.ReplaceAll(r.toml, "limit_epsilon = 3.0", "limit_epsilon = 4.0")
			r.produce(350, 200)
			x := r.start()
			x.until("the second is on", func(TaskStatus) bool { s := x.d.Status()[1]; return s.Step == 5 && s.Outbox == 0 })
			x.end()
		},
	} {
		r := newRig(t, ordersStream+second)
		r.produce(0, 350)
		x := r.start()
		x.published(3)
		x.until("the second too", func(TaskStatus) bool { s := x.d.Status()[1]; return s.Step == 3 && s.Outbox == 0 })
		x.end()
		old, err := os.ReadFile(r.ledgerFile())
		must(t, err)
		ahead(r)
		must(t, os.WriteFile(r.ledgerFile(), old, 0o600))
		err = r.offline(func(ctx context.Context, d *Daemon) error {
			return d.OpenEpoch(ctx, ordersTask, OpenRequest{})
		})
		if err == nil || !strings.Contains(err.Error(), "an old copy; restore the newest one") {
			t.Errorf("%s: %v", name, err)
		}
		if now, _ := os.ReadFile(r.ledgerFile()); strings.Count(string(now), `"kind":"open"`) != 2 {
			t.Errorf("%s: charged over an old ledger: %s", name, r.kinds())
		}
	}
}
