package recovery_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestLedgerRepair: a ledger is reconstructed from manifests, checkpoints and releases. It charges no less than the
// lost one, and the daemon continues with it.
func TestLedgerRepair(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"")
	for name, harm := range map[string]func(data []byte) []byte{
		"lost":                 nil,
		"a flipped first line": func(data []byte) []byte { data[30] ^= 1; return data },
		"a flipped last line":  func(data []byte) []byte { data[len(data)-40] ^= 1; return data },
		"an old copy":          func(data []byte) []byte { return data[:strings.IndexByte(string(data), '\n')+1] },
		"text behind it":       func(data []byte) []byte { return append(data, "garbage\n"...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, toml)
			r.Produce(0, 1050)
			x := r.Start()
			x.Until("epoch 3", func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
			x.End()
			before, err := streamtest.ReadSpent(r.Dir+"/state", "", nil)
			fixtures.Must(t, err)
			data, err := os.ReadFile(r.LedgerFile())
			fixtures.Must(t, err)
			was := string(data)
			if harm == nil {
				fixtures.Must(t, os.Remove(r.LedgerFile()))
			} else {
				fixtures.Must(t, os.WriteFile(r.LedgerFile(), harm(data), 0o600))
			}
			harmed, _ := os.ReadFile(r.LedgerFile())

			// At first the command only reports what it would do.
			diff, err := stream.RepairLedger(t.Context(), r.Options(), false)
			fixtures.Must(t, err)
			if len(diff.Added) == 0 && diff.Dropped == 0 || diff.Old != "" {
				t.Fatalf("nothing to repair: %+v", diff)
			}
			if now, _ := os.ReadFile(r.LedgerFile()); string(now) != string(harmed) {
				t.Error("it was changed without being asked")
			}
			diff, err = stream.RepairLedger(t.Context(), r.Options(), true)
			fixtures.Must(t, err)
			if old, err := os.ReadFile(diff.Old); err != nil || string(old) != string(harmed) {
				t.Errorf("the old one is not kept: %v", err)
			}
			after, err := streamtest.ReadSpent(r.Dir+"/state", "", nil)
			fixtures.Must(t, err)
			if len(after) != 1 || after[0].ChargedEpsilon < before[0].ChargedEpsilon || after[0].ChargedEpsilon > 3 {
				t.Errorf("charged %+v, was %+v", after, before)
			}
			if after[0].ChargedEpsilon > before[0].ChargedEpsilon+1e-9 {
				t.Errorf("closed epochs with all releases published are charged %g, were %g",
					after[0].ChargedEpsilon, before[0].ChargedEpsilon)
			}
			if again, err := stream.RepairLedger(t.Context(), r.Options(), true); err != nil || len(again.Added) > 0 ||
				again.Dropped > 0 {
				t.Errorf("repaired again: %+v, %v\n%s", again, err, was)
			}
			// The open epoch continues, and the next one is opened.
			r.Produce(1050, 400)
			x = r.Start()
			x.Until("epoch 4", func(s monitor.TaskStatus) bool { return s.Epoch == 4 && s.Step == 2 && s.Outbox == 0 })
			x.End()
			r.History("orders.dp")
		})
	}
	// Repair refuses while a daemon runs, and leaves an undamaged ledger unchanged.
	r := streamtest.Ran(t, fixtures.OrdersStream)
	x := r.Start()
	x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if _, err := stream.RepairLedger(t.Context(), r.Options(), true); !errors.Is(err, failure.ErrState) ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("while a daemon runs: %v", err)
	}
	x.End()
	was, err := os.ReadFile(r.LedgerFile())
	fixtures.Must(t, err)
	if diff, err := stream.RepairLedger(context.Background(), r.Options(), true); err != nil || len(diff.Added) > 0 ||
		diff.Dropped > 0 || diff.Old != "" {
		t.Errorf("of a whole ledger: %+v, %v", diff, err)
	}
	if now, _ := os.ReadFile(r.LedgerFile()); string(now) != string(was) {
		t.Error("a whole ledger was changed")
	}
}

// TestForgedLedger: somebody without the key cannot remove a charge, neither by appending a line to lines under the
// key, nor by replacing the whole ledger. Repair does not accept such lines either.
func TestForgedLedger(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		before, err := streamtest.ReadSpent(r.Dir+"/state", "", nil)
		fixtures.Must(t, err)
		data, err := os.ReadFile(r.LedgerFile())
		fixtures.Must(t, err)
		l, err := ledger.Parse(data, nil)
		fixtures.Must(t, err)
		lie := l.Entries[0] // the opening
		if whole {
			lie.Cost.Mu, lie.MAC, lie.Sum = lie.Cost.Mu/100, "", ""
			l, data = &ledger.Ledger{}, nil
		} else {
			lie = ledger.Entry{Kind: ledger.KindVoid, Stream: lie.Stream, Source: lie.Source, Epoch: 1, Time: lie.Time}
		}
		fixtures.Must(t, os.WriteFile(r.LedgerFile(), append(data, streamtest.ForgedLine(t, l, lie)...), 0o600))
		if whole {
			x := r.Start()
			x.Halts(failure.State, "present key")
			x.EndHalted()
		} else if err := r.Offline(func(context.Context, *stream.Daemon) error { return nil }); !errors.Is(err,
			failure.ErrState) || !strings.Contains(err.Error(), "present key") {
			t.Errorf("a forged line is accepted: %v", err)
		}
		_, err = stream.RepairLedger(t.Context(), r.Options(), true)
		fixtures.Must(t, err)
		after, err := streamtest.ReadSpent(r.Dir+"/state", "", nil)
		fixtures.Must(t, err)
		if len(after) != 1 || after[0].ChargedEpsilon < before[0].ChargedEpsilon {
			t.Errorf("whole ledger %t: charged %+v, was %+v", whole, after, before)
		}
	}
}

// TestRotatedKey: a daemon with another key appends no line, so the operator can still restore the former key. A
// request of the operator accepts the new key: the ledger then continues under it, with all its charges.
func TestRotatedKey(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	was, err := os.ReadFile(r.LedgerFile())
	fixtures.Must(t, err)
	r.Seed++
	x := r.Start()
	x.Halts(failure.Key)
	x.EndHalted()
	if now, _ := os.ReadFile(r.LedgerFile()); string(now) != string(was) {
		t.Error("lines were added under a key that nobody confirmed")
	}
	r.Seed--
	fixtures.Must(t, r.Offline(func(context.Context, *stream.Daemon) error { return nil }))
	r.Seed++
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{SameLog: true, Reason: "rotation"})
	}))
	r.Produce(1050, 200)
	x = r.Start()
	x.Until("epoch 2 releases", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 1 && s.Outbox == 0 })
	x.End()
	found := map[string]int{}
	for _, e := range r.Entries() {
		found[e.Kind]++
	}
	if found[ledger.KindOpen] != 2 || found[ledger.KindClose] != 1 || found[ledger.KindDestroyed] != 1 {
		t.Errorf("lines %v", found)
	}
	r.Seed--
	if err := r.Offline(func(context.Context, *stream.Daemon) error { return nil }); !errors.Is(err, failure.ErrState) {
		t.Errorf("the former key again: %v", err)
	}
}
