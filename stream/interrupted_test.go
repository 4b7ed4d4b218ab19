package stream

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// TestInterruptedOpening: a charge without a manifest, and nothing that would
// show that the epoch ran, is void, and its number is not used again.
func TestInterruptedOpening(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"start", "offline open", "offline close"} {
		r := ran(t, ordersStream)
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		for _, name := range []string{"manifest-2", checkpointName, previousName} {
			if err := os.Remove(r.file(name)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		must(t, os.WriteFile(r.file(openingName(2)), nil, 0o600))
		switch by {
		case "start":
			// The last one that counts is closed by request: nothing opens by itself.
			if err := r.start().ends(); !errors.Is(err, ErrNothing) {
				t.Errorf("ended with %v", err)
			}
			if got := r.kinds(); got != "open close key-destroyed open void" {
				t.Errorf("%s: ledger: %s", by, got)
			}
		case "offline open":
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
			if got := r.kinds(); got != "open close key-destroyed open void open" {
				t.Errorf("%s: ledger: %s", by, got)
			}
			if e := r.entries()[5]; e.Epoch != 3 || e.First != 1000 {
				t.Errorf("epoch %d begins at %d", e.Epoch, e.First)
			}
		case "offline close":
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
			if got := r.kinds(); got != "open close key-destroyed open void" {
				t.Errorf("%s: ledger: %s", by, got)
			}
		}
		for _, name := range []string{secretName(2), openingName(2), openingName(3)} {
			if _, err := os.Stat(r.file(name)); err == nil {
				t.Errorf("%s: %s is still there", by, name)
			}
		}
	}
}

// TestLostFiles: an epoch whose files and releases are gone has run, as far as
// anybody knows: its charge stays.
func TestLostFiles(t *testing.T) {
	t.Parallel()
	for how, lose := range map[string]func(r *rig){
		"deleted":   func(r *rig) { kafkatest.DeleteTopic(r.t, r.broker.Addrs(), "orders.dp") },
		"truncated": func(r *rig) { kafkatest.DeleteRecords(r.t, r.broker.Addrs(), "orders.dp", 0, 10) },
		"moved":     func(r *rig) { r.toml = with(r.toml, `"orders.dp"`, `"moved.dp"`) },
	} {
		r := ran(t, ordersStream)
		must(t, os.RemoveAll(r.file("")))
		lose(r)
		if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "epoch open orders") {
			t.Errorf("%s: ended with %v", how, err)
		}
		if got := r.kinds(); got != "open" {
			t.Errorf("%s: ledger: %s", how, got)
		}
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		if e := r.entries(); e[1].Kind != kindClose || e[1].End != 1050 {
			t.Errorf("%s: ledger: %s, end %d", how, r.kinds(), e[1].End)
		}
	}
}

// TestLostCoverage: where nothing says how far an epoch read, and the log is one
// that ends before it began, its charge has no end.
func TestLostCoverage(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "500"})
	}))
	x := r.start()
	x.published(5)
	x.end()
	must(t, os.Truncate(r.file(checkpointName), 100))
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
	r.recreate(0, 10)
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
	all := r.entries()
	if e := all[len(all)-2]; e.Kind != kindClose || e.End != -1 {
		t.Errorf("%s: end %d", e.Kind, e.End)
	}
}

// TestInterruptedClosing: what a crash inside a closing left is destroyed at the
// next start, and before a command opens another epoch.
func TestInterruptedClosing(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"start", "offline open"} {
		r := ran(t, ordersStream)
		l, err := openLedger(osDisk{}, r.dir+"/state", newLedgerKey(InsecureKey(r.seed)))
		must(t, err)
		opened := l.opening(ordersTask, 1)
		must(t, l.append(Entry{Kind: kindClose, Stream: "orders", Source: opened.Source, Epoch: 1, Reason: reasonRequest, End: 1000}))
		if by == "start" {
			if err := r.start().ends(); !errors.Is(err, ErrNothing) {
				t.Errorf("ended with %v", err)
			}
		} else {
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		}
		closedWell(r, t, by, 1)
	}
}

// TestLedgerOfTheState: the ledger must be the one that the files were written
// with.
func TestLedgerOfTheState(t *testing.T) {
	t.Parallel()
	damage := map[string]func(t *testing.T, r *rig){
		"a digit":            func(t *testing.T, r *rig) { edit(t, r.ledgerFile(), `"epsilon":1,`, `"epsilon":2,`) },
		"a line is missing":  func(t *testing.T, r *rig) { dropLine(t, r.ledgerFile(), 0) },
		"a line is repeated": func(t *testing.T, r *rig) { repeatLine(t, r.ledgerFile()) },
		"no JSON":            func(t *testing.T, r *rig) { must(t, os.WriteFile(r.ledgerFile(), []byte("x\n"), 0o600)) },
	}
	for name, f := range damage {
		r := ran(t, ordersStream)
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		f(t, r)
		if _, err := New(r.options()); !errors.Is(err, ErrState) || !errors.Is(err, errLedger) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := map[string]func(t *testing.T, r *rig){
		"missing": func(t *testing.T, r *rig) { must(t, os.Remove(r.ledgerFile())) },
		"of the epoch before": func(t *testing.T, r *rig) {
			must(t, os.Rename(r.ledgerFile()+".old", r.ledgerFile()))
		},
	}
	for name, f := range old {
		r := ran(t, ordersStream)
		data, err := os.ReadFile(r.ledgerFile())
		must(t, err)
		must(t, os.WriteFile(r.ledgerFile()+".old", data, 0o600))
		must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		f(t, r)
		lines := func() int {
			data, _ := os.ReadFile(r.ledgerFile())
			return bytes.Count(data, []byte("\n"))
		}
		before := lines()
		if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "restore the newest one") {
			t.Errorf("%s: ended with %v", name, err)
		}
		if err := r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }); err == nil {
			t.Errorf("%s: an epoch was opened with it", name)
		}
		if lines() != before && name == "missing" {
			t.Errorf("%s: something was charged", name)
		}
	}
	// Lines that came after the epoch opened count too.
	r := ran(t, ordersStream)
	data, err := os.ReadFile(r.ledgerFile())
	must(t, err)
	r.toml = with(r.toml, "limit_epsilon = 3.0", "limit_epsilon = 3.5")
	r.produce(1050, 100)
	x := r.start()
	x.published(11)
	x.end()
	must(t, os.WriteFile(r.ledgerFile(), data, 0o600))
	if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "newer ledger") {
		t.Errorf("ended with %v", err)
	}
}

func dropLine(t testing.TB, path string, n int) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(data, []byte("\n"))
	must(t, os.WriteFile(path, bytes.Join(append(lines[:n:n], lines[n+1:]...), nil), 0o600))
}

func repeatLine(t testing.TB, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	i := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	must(t, os.WriteFile(path, append(data, data[i:]...), 0o600))
}
