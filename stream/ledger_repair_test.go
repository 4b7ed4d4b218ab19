package stream

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestLedgerRepair: from manifests, checkpoints and releases a ledger is worked out
// again that charges no less than the lost one, and with which the daemon goes on.
func TestLedgerRepair(t *testing.T) {
	t.Parallel()
	toml := with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"")
	for name, harm := range map[string]func(data []byte) []byte{
		"lost":                 nil,
		"a flipped first line": func(data []byte) []byte { data[30] ^= 1; return data },
		"a flipped last line":  func(data []byte) []byte { data[len(data)-40] ^= 1; return data },
		"an old copy":          func(data []byte) []byte { return data[:strings.IndexByte(string(data), '\n')+1] },
		"text behind it":       func(data []byte) []byte { return append(data, "garbage\n"...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, toml)
			r.produce(0, 1050)
			x := r.start()
			x.until("epoch 3", func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
			x.end()
			before, err := readSpent(r.dir+"/state", "", nil)
			must(t, err)
			data, err := os.ReadFile(r.ledgerFile())
			must(t, err)
			was := string(data)
			if harm == nil {
				must(t, os.Remove(r.ledgerFile()))
			} else {
				must(t, os.WriteFile(r.ledgerFile(), harm(data), 0o600))
			}
			harmed, _ := os.ReadFile(r.ledgerFile())

			// First it only says what it would do.
			diff, err := RepairLedger(t.Context(), r.options(), false)
			must(t, err)
			if len(diff.Added) == 0 && diff.Dropped == 0 || diff.Old != "" {
				t.Fatalf("nothing to repair: %+v", diff)
			}
			if now, _ := os.ReadFile(r.ledgerFile()); string(now) != string(harmed) {
				t.Error("it was changed without being asked")
			}
			diff, err = RepairLedger(t.Context(), r.options(), true)
			must(t, err)
			if old, err := os.ReadFile(diff.Old); err != nil || string(old) != string(harmed) {
				t.Errorf("the old one is not kept: %v", err)
			}
			after, err := readSpent(r.dir+"/state", "", nil)
			must(t, err)
			if len(after) != 1 || after[0].ChargedEpsilon < before[0].ChargedEpsilon || after[0].ChargedEpsilon > 3 {
				t.Errorf("charged %+v, was %+v", after, before)
			}
			if after[0].ChargedEpsilon > before[0].ChargedEpsilon+1e-9 {
				t.Errorf("closed epochs of which every release is published are charged %g, were %g", after[0].ChargedEpsilon, before[0].ChargedEpsilon)
			}
			if again, err := RepairLedger(t.Context(), r.options(), true); err != nil || len(again.Added) > 0 || again.Dropped > 0 {
				t.Errorf("repaired again: %+v, %v\n%s", again, err, was)
			}
			// The open epoch goes on, and the next one is opened.
			r.produce(1050, 400)
			x = r.start()
			x.until("epoch 4", func(s TaskStatus) bool { return s.Epoch == 4 && s.Step == 2 && s.Outbox == 0 })
			x.end()
			r.history("orders.dp")
		})
	}
	// No daemon may run, and one that was not harmed stays.
	r := ran(t, ordersStream)
	x := r.start()
	x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
	if _, err := RepairLedger(t.Context(), r.options(), true); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("beside a daemon: %v", err)
	}
	x.end()
	was, err := os.ReadFile(r.ledgerFile())
	must(t, err)
	if diff, err := RepairLedger(context.Background(), r.options(), true); err != nil || len(diff.Added) > 0 || diff.Dropped > 0 || diff.Old != "" {
		t.Errorf("of a whole ledger: %+v, %v", diff, err)
	}
	if now, _ := os.ReadFile(r.ledgerFile()); string(now) != string(was) {
		t.Error("a whole ledger was changed")
	}
}

// TestForgedLedger: who has no key erases no charge, neither with a line behind those
// under the key, nor with a ledger of his own; and no repair believes him.
func TestForgedLedger(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		r := ran(t, ordersStream)
		before, err := readSpent(r.dir+"/state", "", nil)
		must(t, err)
		data, err := os.ReadFile(r.ledgerFile())
		must(t, err)
		l, err := parseLedger(data, nil)
		must(t, err)
		lie := l.entries[0] // the opening
		if whole {
			lie.Cost.Mu, lie.MAC, lie.Sum = lie.Cost.Mu/100, "", ""
			l, data = &ledger{}, nil
		} else {
			lie = Entry{Kind: kindVoid, Stream: lie.Stream, Source: lie.Source, Epoch: 1, Time: lie.Time}
		}
		must(t, os.WriteFile(r.ledgerFile(), append(data, forgedLine(t, l, lie)...), 0o600))
		if whole {
			x := r.start()
			x.halts(haltState, "present key")
			x.endHalted()
		} else if err := r.offline(func(context.Context, *Daemon) error { return nil }); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "present key") {
			t.Errorf("a forged line is accepted: %v", err)
		}
		_, err = RepairLedger(t.Context(), r.options(), true)
		must(t, err)
		after, err := readSpent(r.dir+"/state", "", nil)
		must(t, err)
		if len(after) != 1 || after[0].ChargedEpsilon < before[0].ChargedEpsilon {
			t.Errorf("whole ledger %t: charged %+v, was %+v", whole, after, before)
		}
	}
}

// TestRotatedKey: a daemon with another key adds no line, so the former key can come
// back; a request of the operator binds the ledger to the new one, charges included.
func TestRotatedKey(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	was, err := os.ReadFile(r.ledgerFile())
	must(t, err)
	r.seed++
	x := r.start()
	x.halts(haltKey)
	x.endHalted()
	if now, _ := os.ReadFile(r.ledgerFile()); string(now) != string(was) {
		t.Error("lines were added under a key that nobody confirmed")
	}
	r.seed--
	must(t, r.offline(func(context.Context, *Daemon) error { return nil }))
	r.seed++
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{SameLog: true, Reason: "rotation"})
	}))
	r.produce(1050, 200)
	x = r.start()
	x.until("epoch 2 releases", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 1 && s.Outbox == 0 })
	x.end()
	found := map[string]int{}
	for _, e := range r.entries() {
		found[e.Kind]++
	}
	if found[kindOpen] != 2 || found[kindClose] != 1 || found[kindDestroyed] != 1 {
		t.Errorf("lines %v", found)
	}
	r.seed--
	if err := r.offline(func(context.Context, *Daemon) error { return nil }); !errors.Is(err, ErrState) {
		t.Errorf("the former key again: %v", err)
	}
}
