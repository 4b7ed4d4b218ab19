package stream_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// TestInterruptedOpening: the charge of an epoch without a manifest is taken back if nothing shows that the epoch ran.
// The epoch's number is not used again.
func TestInterruptedOpening(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"start", "offline open", "offline close"} {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		}))
		for _, name := range []string{"manifest-2", state.CheckpointName, state.PreviousName} {
			if err := os.Remove(r.File(name)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		fixtures.Must(t, os.WriteFile(r.File(state.OpeningName(2)), nil, 0o600))
		switch by {
		case "start":
			// The last epoch that counts was closed by request, so nothing opens by itself.
			if err := r.Start().Ends(); !errors.Is(err, failure.ErrNothing) {
				t.Errorf("ended with %v", err)
			}
			if got := r.Kinds(); got != "open close key-destroyed open void" {
				t.Errorf("%s: ledger: %s", by, got)
			}
		case "offline open":
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
			}))
			if got := r.Kinds(); got != "open close key-destroyed open void open" {
				t.Errorf("%s: ledger: %s", by, got)
			}
			if e := r.Entries()[5]; e.Epoch != 3 || e.First != 1000 {
				t.Errorf("epoch %d begins at %d", e.Epoch, e.First)
			}
		case "offline close":
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
			}))
			if got := r.Kinds(); got != "open close key-destroyed open void" {
				t.Errorf("%s: ledger: %s", by, got)
			}
		}
		for _, name := range []string{state.SecretName(2), state.OpeningName(2), state.OpeningName(3)} {
			if _, err := os.Stat(r.File(name)); err == nil {
				t.Errorf("%s: %s still exists", by, name)
			}
		}
	}
}

// TestLostFiles: an epoch whose files and releases are lost may have run, so its charge stays.
func TestLostFiles(t *testing.T) {
	t.Parallel()
	for how, lose := range map[string]func(r *streamtest.Rig){
		"deleted":   func(r *streamtest.Rig) { kafkatest.DeleteTopic(r.T, r.Broker.Addrs(), "orders.dp") },
		"truncated": func(r *streamtest.Rig) { kafkatest.DeleteRecords(r.T, r.Broker.Addrs(), "orders.dp", 0, 10) },
		"moved":     func(r *streamtest.Rig) { r.Toml = fixtures.With(r.Toml, `"orders.dp"`, `"moved.dp"`) },
	} {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		fixtures.Must(t, os.RemoveAll(r.File("")))
		lose(r)
		if err := r.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
			!strings.Contains(err.Error(), "epoch open orders") {
			t.Errorf("%s: ended with %v", how, err)
		}
		if got := r.Kinds(); got != "open" {
			t.Errorf("%s: ledger: %s", how, got)
		}
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		}))
		if e := r.Entries(); e[1].Kind != ledger.KindClose || e[1].End != 1050 {
			t.Errorf("%s: ledger: %s, end %d", how, r.Kinds(), e[1].End)
		}
	}
}

// TestLostCoverage: the charge of an epoch has no end if nothing shows how far the epoch read and the log ends before
// the epoch's first offset.
func TestLostCoverage(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{From: "500"})
	}))
	x := r.Start()
	x.Published(5)
	x.End()
	fixtures.Must(t, os.Truncate(r.File(state.CheckpointName), 100))
	kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders.dp")
	r.Recreate(0, 10)
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}))
	all := r.Entries()
	if e := all[len(all)-2]; e.Kind != ledger.KindClose || e.End != -1 {
		t.Errorf("%s: end %d", e.Kind, e.End)
	}
}

// TestInterruptedClosing: files left by a crash in a closing are destroyed at the next start, and before a command
// opens another epoch.
func TestInterruptedClosing(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"start", "offline open"} {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		l, err := ledger.Open(state.OS{}, r.Dir+"/state", ledger.NewKey(connect.InsecureKey(r.Seed)))
		fixtures.Must(t, err)
		opened := l.Opening(fixtures.OrdersTask, 1)
		fixtures.Must(t,
			l.Append(
				ledger.Entry{Kind: ledger.KindClose, Stream: "orders", Source: opened.Source, Epoch: 1,
					Reason: ledger.ReasonRequest, End: 1000}))
		if by == "start" {
			if err := r.Start().Ends(); !errors.Is(err, failure.ErrNothing) {
				t.Errorf("ended with %v", err)
			}
		} else {
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
			}))
		}
		closedWell(r, t, by, 1)
	}
}

// TestLedgerOfTheState: a task halts unless the ledger is the one with which its files were written.
func TestLedgerOfTheState(t *testing.T) {
	t.Parallel()
	damage := map[string]func(t *testing.T, r *streamtest.Rig){
		"a digit": func(t *testing.T, r *streamtest.Rig) {
			edit(t, r.LedgerFile(), `"epsilon":1,`, `"epsilon":2,`)
		},
		"a line is missing":  func(t *testing.T, r *streamtest.Rig) { dropLine(t, r.LedgerFile(), 0) },
		"a line is repeated": func(t *testing.T, r *streamtest.Rig) { repeatLine(t, r.LedgerFile()) },
		"no JSON": func(t *testing.T, r *streamtest.Rig) {
			fixtures.Must(t, os.WriteFile(r.LedgerFile(), []byte("x\n"), 0o600))
		},
	}
	for name, f := range damage {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		}))
		f(t, r)
		if _, err := stream.New(r.Options()); !errors.Is(err, failure.ErrState) || !errors.Is(err, ledger.ErrLedger) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := map[string]func(t *testing.T, r *streamtest.Rig){
		"missing": func(t *testing.T, r *streamtest.Rig) { fixtures.Must(t, os.Remove(r.LedgerFile())) },
		"of the epoch before": func(t *testing.T, r *streamtest.Rig) {
			fixtures.Must(t, os.Rename(r.LedgerFile()+".old", r.LedgerFile()))
		},
	}
	for name, f := range old {
		r := streamtest.Ran(t, fixtures.OrdersStream)
		data, err := os.ReadFile(r.LedgerFile())
		fixtures.Must(t, err)
		fixtures.Must(t, os.WriteFile(r.LedgerFile()+".old", data, 0o600))
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		}))
		f(t, r)
		lines := func() int {
			data, _ := os.ReadFile(r.LedgerFile())
			return bytes.Count(data, []byte("\n"))
		}
		before := lines()
		if err := r.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
			!strings.Contains(err.Error(), "restore the newest ledger") {
			t.Errorf("%s: ended with %v", name, err)
		}
		if err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		}); err == nil {
			t.Errorf("%s: an epoch was opened with it", name)
		}
		if lines() != before && name == "missing" {
			t.Errorf("%s: something was charged", name)
		}
	}
	// Lines written after the epoch was opened count too.
	r := streamtest.Ran(t, fixtures.OrdersStream)
	data, err := os.ReadFile(r.LedgerFile())
	fixtures.Must(t, err)
	r.Toml = fixtures.With(r.Toml, "limit_epsilon = 3.0", "limit_epsilon = 3.5")
	r.Produce(1050, 100)
	x := r.Start()
	x.Published(11)
	x.End()
	fixtures.Must(t, os.WriteFile(r.LedgerFile(), data, 0o600))
	if err := r.Start().Ends(); !errors.Is(err, failure.ErrHalted) || !strings.Contains(err.Error(), "newer ledger") {
		t.Errorf("ended with %v", err)
	}
}

func dropLine(t testing.TB, path string, n int) {
	t.Helper()
	data, err := os.ReadFile(path)
	fixtures.Must(t, err)
	lines := bytes.SplitAfter(data, []byte("\n"))
	fixtures.Must(t, os.WriteFile(path, bytes.Join(append(lines[:n:n], lines[n+1:]...), nil), 0o600))
}

func repeatLine(t testing.TB, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	fixtures.Must(t, err)
	i := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	fixtures.Must(t, os.WriteFile(path, append(data, data[i:]...), 0o600))
}
