package stream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// chargedFor returns the largest ε that the state directory charges on any log.
func chargedFor(r *rig) float64 {
	r.t.Helper()
	all, err := readSpent(filepath.Join(r.dir, "state"), "", nil)
	must(r.t, err)
	if len(all) != 1 {
		r.t.Fatalf("%d logs are charged", len(all))
	}
	return all[0].ChargedEpsilon
}

// TestCloseOnAnotherLog: where the checkpoint is lost and the input was made anew, the
// new log's end is no bound on what the epoch has read.
func TestCloseOnAnotherLog(t *testing.T) {
	t.Parallel()
	other := with(ordersStream, "[stream.orders]", "[stream.other]", "[stream.orders.", "[stream.other.", "[stream.orders.", "[stream.other.", `"orders.dp"`, `"other.dp"`)
	for _, how := range []string{"output there", "output gone", "stream removed"} {
		for _, n := range []int{0, 10, 2000} {
			for _, old := range []bool{false, true} {
				t.Run(fmt.Sprint(how, ", records ", n, ", without ids ", old), func(t *testing.T) {
					t.Parallel()
					make := newRig
					if old {
						make = newOldRig
					}
					r := make(t, ordersStream).tenSteps()
					before := chargedFor(r)
					must(t, os.Truncate(r.file(checkpointName), 100))
					if how == "output gone" {
						kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
					}
					if r.recreate(0, n); how == "stream removed" {
						r.toml = other
					}
					must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
					if after := chargedFor(r); after < before {
						t.Errorf("charged %g, before %g", after, before)
					}
					if e := r.entries(); r.closed(e) != -1 {
						t.Errorf("closed at %d, and nothing tells where it ended", r.closed(e))
					}
				})
			}
		}
	}
	// With a horizon, it ends there at the latest.
	r := ran(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 40"))
	must(t, os.Truncate(r.file(checkpointName), 100))
	r.recreate(0, 10)
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
	if end := r.closed(r.entries()); end != 4000 {
		t.Errorf("closed at %d, its horizon is 4000", end)
	}
	// The log that it read bounds it.
	r = ran(t, ordersStream)
	must(t, os.Truncate(r.file(checkpointName), 100))
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
	if end := r.closed(r.entries()); end != 1050 {
		t.Errorf("closed at %d, the log's end is 1050", end)
	}
}

// TestLedgerRepairOutputMoved: releases in the configured output say what an epoch reached
// at least. Some may be in another topic, which was the output for a while.
func TestLedgerRepairOutputMoved(t *testing.T) {
	t.Parallel()
	for _, horizon := range []bool{true, false} {
		toml := ordersStream
		if horizon {
			toml = with(toml, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"")
		}
		r := newRig(t, toml)
		r.produce(0, 250)
		x := r.start()
		x.published(2)
		x.end()
		r.toml = with(toml, `"orders.dp"`, `"moved.dp"`)
		r.produce(250, 250)
		x = r.start()
		x.until("step 4", func(s TaskStatus) bool { return (s.Epoch == 2 || s.Step >= 4) && s.Outbox == 0 })
		if !horizon {
			must(t, x.ask(requestOpen, ControlRequest{Stream: "orders"}))
			x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 })
		}
		x.end()
		before, err := readSpent(filepath.Join(r.dir, "state"), "", nil)
		must(t, err)
		r.toml = toml
		must(t, os.Remove(r.ledgerFile()))
		_, err = RepairLedger(t.Context(), r.options(), true)
		must(t, err)
		after, err := readSpent(filepath.Join(r.dir, "state"), "", nil)
		must(t, err)
		// at returns ε at an offset.
		at := func(all []Spent, offset int64) (e float64) {
			for _, q := range all[0].Ranges {
				if q.First <= offset && (q.End < 0 || offset < q.End) {
					e = max(e, q.Epsilon)
				}
			}
			return e
		}
		for offset := int64(0); offset < 500; offset += 50 {
			if is, was := at(after, offset), at(before, offset); is < was {
				t.Errorf("horizon %v: offset %d is charged %g, was %g", horizon, offset, is, was)
			}
		}
	}
}

var manifestMu = regexp.MustCompile(`(?s)"cost": \{.{0,80}?"mu": 0\.(\d)`)

// cheaper makes a manifest state a smaller cost.
func cheaper(t testing.TB, manifest []byte) []byte {
	t.Helper()
	m := manifestMu.FindSubmatchIndex(manifest)
	if m == nil || manifest[m[2]] == '0' {
		t.Fatalf("no cost to change in %s", manifest)
	}
	manifest = bytes.Clone(manifest)
	manifest[m[2]] = '0'
	return manifest
}

// TestLedgerRepairCheaperManifest: a manifest that states a smaller cost than its
// mechanism has is named and refused, with and without its checkpoint.
func TestLedgerRepairCheaperManifest(t *testing.T) {
	t.Parallel()
	toml := with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"")
	for _, c := range []struct {
		name       string
		checkpoint bool
	}{{"manifest-1", true}, {"manifest-2", true}, {"manifest-2", false}} {
		r := newRig(t, toml)
		r.produce(0, 650)
		x := r.start()
		x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 2 && s.Outbox == 0 })
		x.end()
		must(t, os.Remove(r.ledgerFile()))
		if !c.checkpoint {
			must(t, os.Remove(r.file(checkpointName)))
			must(t, os.Remove(r.file(previousName)))
		}
		data, err := os.ReadFile(r.file(c.name))
		must(t, err)
		must(t, os.WriteFile(r.file(c.name), cheaper(t, data), 0o600))
		_, err = RepairLedger(t.Context(), r.options(), true)
		if name := strings.Replace(c.name, "manifest-", "manifest of epoch ", 1); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", c, err)
		}
		if data, err := os.ReadFile(r.ledgerFile()); err == nil && len(data) > 0 {
			t.Errorf("%+v: a ledger was written", c)
		}
		must(t, os.WriteFile(r.file(c.name), data, 0o600))
		if _, err := RepairLedger(t.Context(), r.options(), true); err != nil {
			t.Errorf("%+v: as it was: %v", c, err)
		}
	}
}

// TestLedgerRepairLearner: what an epoch of a learning mechanism began with is deleted when
// it is closed, and its cost can still be worked out.
func TestLedgerRepairLearner(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(modelStream, "step   = 50", "step = 50\nhorizon = 2\non_horizon = \"rollover\""))
	for i := range 350 {
		r.send(fmt.Appendf(nil, `{"a":%g,"b":0.3,"paid":%d}`, float64(i%7)/7, i%2))
	}
	x := r.start()
	x.until("epoch 4", func(s TaskStatus) bool { return s.Epoch == 4 && s.Step == 1 && s.Outbox == 0 })
	x.end()
	before := chargedFor(r)
	if _, err := os.Stat(r.file(initialName(2))); err == nil {
		t.Fatal("what epoch 2 began with is there")
	}
	must(t, os.Remove(r.ledgerFile()))
	if _, err := RepairLedger(t.Context(), r.options(), true); err != nil {
		t.Fatal(err)
	}
	if after := chargedFor(r); after != before {
		t.Errorf("charged %g, was %g", after, before)
	}
}

// TestRecoverCheaperManifest: neither is such a manifest taken from an exported file.
func TestRecoverCheaperManifest(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	x, err := ExportEpoch(r.options().Config, InsecureKey(r.seed), ordersTask, 1, false)
	must(t, err)
	good := x.Manifest
	x.Manifest = string(cheaper(t, []byte(good)))
	for _, lost := range []string{"", r.file(checkpointName), r.file(previousName), r.ledgerFile()} {
		if lost != "" {
			must(t, os.Remove(lost))
		}
		err = r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, x) })
		if err == nil || !strings.Contains(err.Error(), "manifest of epoch 1") {
			t.Errorf("lost %q: %v", lost, err)
		}
		if data, _ := os.ReadFile(r.file("manifest-1")); string(data) != good {
			t.Errorf("lost %q: the manifest was changed", lost)
		}
	}
	// Without the ledger the true one is brought back, for ledger repair.
	must(t, os.Remove(r.file("manifest-1")))
	x.Manifest = good
	r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, x) })
	if data, _ := os.ReadFile(r.file("manifest-1")); string(data) != good {
		t.Error("the true manifest is not back")
	}
}

// TestLedgerRepairControlTopic: lines that the control topic holds come back as they were,
// and a repair writes nothing there.
func TestLedgerRepairControlTopic(t *testing.T) {
	t.Parallel()
	r := mirrored(t, rollsStream)
	r.produce(0, 650)
	x := r.start()
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
	x.end()
	was, err := os.ReadFile(r.ledgerFile())
	must(t, err)
	must(t, os.WriteFile(r.ledgerFile(), was[:bytes.IndexByte(was, '\n')+1], 0o600))
	records := len(r.control())
	_, err = RepairLedger(t.Context(), r.options(), true)
	must(t, err)
	if now, _ := os.ReadFile(r.ledgerFile()); string(now) != string(was) {
		t.Errorf("got\n%s\nwant\n%s", now, was)
	}
	if n := len(r.control()); n != records {
		t.Errorf("the topic has %d records, had %d", n, records)
	}
	r.produce(650, 100)
	x = r.start()
	x.until("on", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 3 && s.Outbox == 0 })
	x.end()
}

// TestCloseBehindWithoutIDs: an old copy of a state is closed up to the log's end, where
// the brokers have no topic ids, only if the log has the last record that the copy read.
func TestCloseBehindWithoutIDs(t *testing.T) {
	t.Parallel()
	for _, recreated := range []bool{false, true} {
		r := newOldRig(t, ordersStream)
		r.produce(0, 550)
		x := r.start()
		x.published(5)
		x.end()
		old := r.sibling(ordersStream)
		r.copyState(old)
		r.produce(550, 1000)
		x = r.start()
		x.published(15)
		x.end()
		want := int64(1550)
		if recreated {
			r.recreate(5000, 2000)
			want = -1
		}
		must(t, old.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
		if end := old.closed(old.entries()); end != want {
			t.Errorf("recreated %v: closed at %d, want %d", recreated, end, want)
		}
	}
}

// TestVouchedByCheckpoint: where this version can't build an epoch's mechanism, its
// checkpoint vouches for the manifest, and nothing else does.
func TestVouchedByCheckpoint(t *testing.T) {
	t.Parallel()
	r := ran(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 40"))
	file, err := os.ReadFile(r.file("manifest-1"))
	must(t, err)
	m, err := core.ParseManifest(file)
	must(t, err)
	cp := &checkpoint{epoch: 1, manifest: sha256.Sum256(file)}
	ends, err := vouched(m, file, cp)
	if err != nil || !slices.Equal(ends, []int64{4000}) {
		t.Errorf("as it is: end %d, %v", ends, err)
	}
	m.Plan = []byte(`{"format":"of another version"}`)
	if ends, err = vouched(m, file, cp); err != nil || !slices.Equal(ends, []int64{-1}) {
		t.Errorf("named by its checkpoint: end %d, %v", ends, err)
	}
	cp.epoch = 2
	for _, cp := range []*checkpoint{nil, cp} {
		if _, err = vouched(m, file, cp); err == nil || !strings.Contains(err.Error(), "nothing vouches") {
			t.Errorf("not named: %v", err)
		}
	}
}
