package recovery_test

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

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// chargedFor returns the largest ε that the state directory charges on any log.
func chargedFor(r *streamtest.Rig) float64 {
	r.T.Helper()
	all, err := streamtest.ReadSpent(filepath.Join(r.Dir, "state"), "", nil)
	fixtures.Must(r.T, err)
	if len(all) != 1 {
		r.T.Fatalf("%d logs are charged", len(all))
	}
	return all[0].ChargedEpsilon
}

// TestCloseOnAnotherLog: if the checkpoint is lost and the input was recreated, the new log's end is no upper bound on
// the offsets that the epoch has read. So it must not limit the charge.
func TestCloseOnAnotherLog(t *testing.T) {
	t.Parallel()
	other := fixtures.With(fixtures.OrdersStream, "[stream.orders]", "[stream.other]", "[stream.orders.",
		"[stream.other.", "[stream.orders.", "[stream.other.", `"orders.dp"`, `"other.dp"`)
	for _, how := range []string{"output there", "output gone", "stream removed"} {
		for _, n := range []int{0, 10, 2000} {
			for _, old := range []bool{false, true} {
				t.Run(fmt.Sprint(how, ", records ", n, ", without ids ", old), func(t *testing.T) {
					t.Parallel()
					make := streamtest.NewRig
					if old {
						make = streamtest.NewOldRig
					}
					r := make(t, fixtures.OrdersStream).TenSteps()
					before := chargedFor(r)
					fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 100))
					if how == "output gone" {
						kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
					}
					if r.Recreate(0, n); how == "stream removed" {
						r.Toml = other
					}
					fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
						return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
					}))
					if after := chargedFor(r); after < before {
						t.Errorf("charged %g, before %g", after, before)
					}
					if e := r.Entries(); r.Closed(e) != -1 {
						t.Errorf("closed at %d, and nothing tells where it ended", r.Closed(e))
					}
				})
			}
		}
	}
	// With a horizon, the charge ends there at the latest.
	r := streamtest.Ran(t, fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 40"))
	fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 100))
	r.Recreate(0, 10)
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}))
	if end := r.Closed(r.Entries()); end != 4000 {
		t.Errorf("closed at %d, its horizon is 4000", end)
	}
	// The log that the epoch read bounds the charge.
	r = streamtest.Ran(t, fixtures.OrdersStream)
	fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 100))
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}))
	if end := r.Closed(r.Entries()); end != 1050 {
		t.Errorf("closed at %d, the log's end is 1050", end)
	}
}

// TestLedgerRepairOutputMoved: releases in the configured output prove only a minimum length of an epoch, because later
// ones may be in another topic that was the output for some time.
func TestLedgerRepairOutputMoved(t *testing.T) {
	t.Parallel()
	for _, horizon := range []bool{true, false} {
		toml := fixtures.OrdersStream
		if horizon {
			toml = fixtures.With(toml, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"")
		}
		r := streamtest.NewRig(t, toml)
		r.Produce(0, 250)
		x := r.Start()
		x.Published(2)
		x.End()
		r.Toml = fixtures.With(toml, `"orders.dp"`, `"moved.dp"`)
		r.Produce(250, 250)
		x = r.Start()
		x.Until("step 4", func(s monitor.TaskStatus) bool { return (s.Epoch == 2 || s.Step >= 4) && s.Outbox == 0 })
		if !horizon {
			fixtures.Must(t, x.Ask(task.Request{Kind: task.RequestOpen, Stream: "orders"}))
			x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 })
		}
		x.End()
		before, err := streamtest.ReadSpent(filepath.Join(r.Dir, "state"), "", nil)
		fixtures.Must(t, err)
		r.Toml = toml
		fixtures.Must(t, os.Remove(r.LedgerFile()))
		_, err = stream.RepairLedger(t.Context(), r.Options(), true)
		fixtures.Must(t, err)
		after, err := streamtest.ReadSpent(filepath.Join(r.Dir, "state"), "", nil)
		fixtures.Must(t, err)
		// at returns ε at an offset.
		at := func(all []ledger.Spent, offset int64) (e float64) {
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

// TestLedgerRepairCheaperManifest: a manifest that states less than its mechanism's cost is named and refused, with and
// without its checkpoint.
func TestLedgerRepairCheaperManifest(t *testing.T) {
	t.Parallel()
	toml := fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\"")
	for _, c := range []struct {
		name       string
		checkpoint bool
	}{{"manifest-1", true}, {"manifest-2", true}, {"manifest-2", false}} {
		r := streamtest.NewRig(t, toml)
		r.Produce(0, 650)
		x := r.Start()
		x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 2 && s.Outbox == 0 })
		x.End()
		fixtures.Must(t, os.Remove(r.LedgerFile()))
		if !c.checkpoint {
			fixtures.Must(t, os.Remove(r.File(state.CheckpointName)))
			fixtures.Must(t, os.Remove(r.File(state.PreviousName)))
		}
		data, err := os.ReadFile(r.File(c.name))
		fixtures.Must(t, err)
		fixtures.Must(t, os.WriteFile(r.File(c.name), cheaper(t, data), 0o600))
		_, err = stream.RepairLedger(t.Context(), r.Options(), true)
		if name := strings.Replace(c.name, "manifest-", "manifest of epoch ", 1); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", c, err)
		}
		if data, err := os.ReadFile(r.LedgerFile()); err == nil && len(data) > 0 {
			t.Errorf("%+v: a ledger was written", c)
		}
		fixtures.Must(t, os.WriteFile(r.File(c.name), data, 0o600))
		if _, err := stream.RepairLedger(t.Context(), r.Options(), true); err != nil {
			t.Errorf("%+v: unchanged manifest: %v", c, err)
		}
	}
}

// TestLedgerRepairLearner: the initial parameters of a learning mechanism's epoch are deleted when it is closed, but
// its cost can still be computed.
func TestLedgerRepairLearner(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.ModelStream, "step   = 50", "step = 50\nhorizon = 2\non_horizon = \"rollover\""))
	for i := range 350 {
		r.Send(fmt.Appendf(nil, `{"a":%g,"b":0.3,"paid":%d}`, float64(i%7)/7, i%2))
	}
	x := r.Start()
	x.Until("epoch 4", func(s monitor.TaskStatus) bool { return s.Epoch == 4 && s.Step == 1 && s.Outbox == 0 })
	x.End()
	before := chargedFor(r)
	if _, err := os.Stat(r.File(state.InitialName(2))); err == nil {
		t.Fatal("the initial parameters of epoch 2 still exist")
	}
	fixtures.Must(t, os.Remove(r.LedgerFile()))
	if _, err := stream.RepairLedger(t.Context(), r.Options(), true); err != nil {
		t.Fatal(err)
	}
	if after := chargedFor(r); after != before {
		t.Errorf("charged %g, was %g", after, before)
	}
}

// TestRecoverCheaperManifest: a manifest that states too small a cost is not accepted from an exported file either.
func TestRecoverCheaperManifest(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	x, err := recovery.ExportEpoch(r.Options().Config, connect.InsecureKey(r.Seed), fixtures.OrdersTask, 1, false)
	fixtures.Must(t, err)
	good := x.Manifest
	x.Manifest = string(cheaper(t, []byte(good)))
	for _, lost := range []string{"", r.File(state.CheckpointName), r.File(state.PreviousName), r.LedgerFile()} {
		if lost != "" {
			fixtures.Must(t, os.Remove(lost))
		}
		err = r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.Recover(ctx, d, fixtures.OrdersTask, x)
		})
		if err == nil || !strings.Contains(err.Error(), "manifest of epoch 1") {
			t.Errorf("lost %q: %v", lost, err)
		}
		if data, _ := os.ReadFile(r.File("manifest-1")); string(data) != good {
			t.Errorf("lost %q: the manifest was changed", lost)
		}
	}
	// Without the ledger, the true manifest is restored for ledger repair.
	fixtures.Must(t, os.Remove(r.File("manifest-1")))
	x.Manifest = good
	r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.Recover(ctx, d, fixtures.OrdersTask, x)
	})
	if data, _ := os.ReadFile(r.File("manifest-1")); string(data) != good {
		t.Error("the true manifest is not back")
	}
}

// TestLedgerRepairControlTopic: lines in the control topic are restored unchanged, and a repair writes nothing to the
// topic.
func TestLedgerRepairControlTopic(t *testing.T) {
	t.Parallel()
	r := streamtest.Mirrored(t, fixtures.RollsStream)
	r.Produce(0, 650)
	x := r.Start()
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
	x.End()
	was, err := os.ReadFile(r.LedgerFile())
	fixtures.Must(t, err)
	fixtures.Must(t, os.WriteFile(r.LedgerFile(), was[:bytes.IndexByte(was, '\n')+1], 0o600))
	records := len(r.Control())
	_, err = stream.RepairLedger(t.Context(), r.Options(), true)
	fixtures.Must(t, err)
	if now, _ := os.ReadFile(r.LedgerFile()); string(now) != string(was) {
		t.Errorf("got\n%s\nwant\n%s", now, was)
	}
	if n := len(r.Control()); n != records {
		t.Errorf("the topic has %d records, had %d", n, records)
	}
	r.Produce(650, 100)
	x = r.Start()
	x.Until("on", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 3 && s.Outbox == 0 })
	x.End()
}

// TestCloseBehindWithoutIDs: if the brokers have no topic ids, an old copy of a state is closed up to the log's end
// only if the log has the last record that the copy read.
func TestCloseBehindWithoutIDs(t *testing.T) {
	t.Parallel()
	for _, recreated := range []bool{false, true} {
		r := streamtest.NewOldRig(t, fixtures.OrdersStream)
		r.Produce(0, 550)
		x := r.Start()
		x.Published(5)
		x.End()
		old := r.Sibling(fixtures.OrdersStream)
		r.CopyState(old)
		r.Produce(550, 1000)
		x = r.Start()
		x.Published(15)
		x.End()
		want := int64(1550)
		if recreated {
			r.Recreate(5000, 2000)
			want = -1
		}
		fixtures.Must(t, old.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
		}))
		if end := old.Closed(old.Entries()); end != want {
			t.Errorf("recreated %v: closed at %d, want %d", recreated, end, want)
		}
	}
}

// TestVouchedByCheckpoint: if this version cannot build an epoch's mechanism, only the epoch's checkpoint proves the
// cost in the manifest.
func TestVouchedByCheckpoint(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 100\nhorizon = 40"))
	file, err := os.ReadFile(r.File("manifest-1"))
	fixtures.Must(t, err)
	m, err := core.ParseManifest(file)
	fixtures.Must(t, err)
	cp := &state.Checkpoint{Epoch: 1, Manifest: sha256.Sum256(file)}
	ends, err := recovery.ProvenCharge(m, file, cp)
	if err != nil || !slices.Equal(ends, []int64{4000}) {
		t.Errorf("unchanged manifest: end %d, %v", ends, err)
	}
	m.Plan = []byte(`{"format":"of another version"}`)
	if ends, err = recovery.ProvenCharge(m, file, cp); err != nil || !slices.Equal(ends, []int64{-1}) {
		t.Errorf("named by its checkpoint: end %d, %v", ends, err)
	}
	cp.Epoch = 2
	for _, cp := range []*state.Checkpoint{nil, cp} {
		if _, err = recovery.ProvenCharge(m, file, cp); err == nil ||
			!strings.Contains(err.Error(), "cannot verify the cost") {
			t.Errorf("not named: %v", err)
		}
	}
}
