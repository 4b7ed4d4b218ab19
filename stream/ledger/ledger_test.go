package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// ending returns an entry that ends an epoch.
func ending(kind string, epoch uint64, end int64) ledger.Entry {
	return ledger.Entry{Kind: kind, Stream: "orders", Source: fixtures.TestSource, Epoch: epoch, End: end,
		Reason: ledger.ReasonRequest}
}

// sealedLedger returns the file of a ledger with all kinds of lines.
func sealedLedger(t testing.TB, d state.Disk, key *ledger.Key) []byte {
	t.Helper()
	l, err := ledger.Open(d, "/s", key)
	fixtures.Must(t, err)
	l.Now = func() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }
	_, err = l.Open(streamtest.Charging(1, 0, -1, dp.ZeroOut, 0.125))
	fixtures.Must(t, err)
	fixtures.Must(t,
		l.SetLimitLine(
			ledger.Entry{Kind: ledger.KindLimit, Stream: "orders", Source: fixtures.TestSource, Epoch: 1,
				LimitEpsilon: 2, LimitDelta: 1e-8}, dp.ZeroOut))
	fixtures.Must(t, l.Append(ending(ledger.KindClose, 1, 1000)))
	fixtures.Must(t, l.Append(ending(ledger.KindDestroyed, 1, 0)))
	_, err = l.Open(streamtest.Charging(2, 1000, 5000, dp.ZeroOut, 0.125))
	fixtures.Must(t, err)
	data, err := d.ReadFile("/s/" + ledger.FileName)
	fixtures.Must(t, err)
	return data
}

// TestLedgerBits: each changed bit of a sealed ledger is detected, with or without the key.
func TestLedgerBits(t *testing.T) {
	t.Parallel()
	key := ledger.NewKey(connect.InsecureKey(1))
	file := sealedLedger(t, simdisk.NewSimDisk("/s"), key)
	fixtures.Golden(t, "testdata/ledger-sealed.jsonl", file)
	at := func(data []byte, key *ledger.Key) (*ledger.Ledger, error) {
		d := simdisk.NewSimDisk("/s")
		f, err := d.Append("/s/" + ledger.FileName)
		fixtures.Must(t, state.Write(f, err, data))
		return ledger.Open(d, "/s", key)
	}
	for _, k := range []*ledger.Key{key, nil, ledger.NewKey(connect.InsecureKey(2))} {
		if l, err := at(file, k); err != nil || len(l.Entries) != 5 || l.Torn {
			t.Fatalf("unchanged file: %v", err)
		}
		accepted, stride := 0, 1
		if k != key {
			stride = 13 // without the key, only the sums detect it
		}
		for bit := 0; bit < 8*len(file); bit += stride {
			file[bit/8] ^= 1 << (bit % 8)
			if _, err := at(file, k); err == nil {
				if accepted++; accepted < 5 {
					t.Errorf("bit %d of byte %d may flip: %q", bit%8, bit/8,
						file[max(0, bit/8-20):min(len(file), bit/8+20)])
				}
			} else if !errors.Is(err, ledger.ErrLedger) {
				t.Fatal(err)
			}
			file[bit/8] ^= 1 << (bit % 8)
		}
		if accepted > 0 {
			t.Errorf("%d of %d flips are accepted", accepted, 8*len(file))
		}
	}

	// A line that somebody without the key writes has correct sums but no valid MAC.
	l, err := at(file, ledger.NewKey(connect.InsecureKey(2)))
	fixtures.Must(t, err)
	var h *failure.Halt
	if err := l.Append(ending(ledger.KindClose, 2, 1000)); !errors.As(err, &h) || h.Reason != failure.Key ||
		!l.Waits() {
		t.Errorf("a line under a new key without the operator's word: %v", err)
	}
	l.AcceptKey()
	fixtures.Must(t, l.Append(ending(ledger.KindClose, 2, 1000)))
	if l.Foreign() {
		t.Error("the new key's line does not count")
	}
	forged, err := l.Disk.ReadFile(l.Path)
	fixtures.Must(t, err)
	if l, err := at(forged, ledger.NewKey(connect.InsecureKey(2))); err != nil || l.Entries[5].Key == "" {
		t.Errorf("after a change of the key: %v", err)
	}
	mac := bytes.LastIndex(forged, []byte(`,"key":"`))
	lies := append(slices.Clone(forged[:mac]), bytes.Replace(forged[mac:], []byte(l.Key.ID), []byte(key.ID), 1)...)
	lies = lies[:len(lies)-1-len(ledger.SealEnd)-32-len(ledger.SumField)]
	lies = append(append(lies, ledger.SumField...), ledger.Checksum(lies)...)
	if _, err := at(append(lies, ledger.SealEnd+"\n"...), key); err == nil {
		t.Error("a line with the MAC of another key is accepted")
	}
	// After a line with a MAC, a line without one is refused.
	unsealed, err := at(file, nil)
	fixtures.Must(t, err)
	fixtures.Must(t, unsealed.Append(ending(ledger.KindClose, 2, 1000)))
	plain, err := unsealed.Disk.ReadFile(unsealed.Path)
	fixtures.Must(t, err)
	for _, k := range []*ledger.Key{key, nil} {
		if _, err := at(plain, k); err == nil {
			t.Error("a line without a MAC is accepted behind one with it")
		}
	}
}

// TestLedgerForged: a line under an invented key is refused after lines under the current one, even if it would remove
// a charge.
func TestLedgerForged(t *testing.T) {
	t.Parallel()
	key := ledger.NewKey(connect.InsecureKey(1))
	d := simdisk.NewSimDisk("/s")
	file := sealedLedger(t, d, key)
	l, err := ledger.Open(d, "/s", key)
	fixtures.Must(t, err)
	for _, e := range []ledger.Entry{
		ending(ledger.KindVoid, 2, 0), ending(ledger.KindClose, 2, 1000),
		{Kind: ledger.KindLimit, Stream: "orders", Source: fixtures.TestSource, Epoch: 2, LimitEpsilon: 9,
			LimitDelta: 1e-8},
	} {
		forged := append(slices.Clone(file), streamtest.ForgedLine(t, l, e)...)
		if _, err := ledger.Parse(forged, key); !errors.Is(err, ledger.ErrLedger) {
			t.Errorf("a forged %s is accepted: %v", e.Kind, err)
		}
		// Without the key, Parse cannot detect the forgery.
		if _, err := ledger.Parse(forged, nil); err != nil {
			t.Errorf("a forged %s: %v", e.Kind, err)
		}
		// With another key, no line is proven.
		l2, err := ledger.Parse(forged, ledger.NewKey(connect.InsecureKey(2)))
		fixtures.Must(t, err)
		if !l2.Waits() {
			t.Error("lines that nothing proves can be followed without the operator's word")
		}
	}
}

// TestLedgerBefore: a ledger that has no MACs yet is read, and the MAC of its next line covers everything before it.
func TestLedgerBefore(t *testing.T) {
	t.Parallel()
	key := ledger.NewKey(connect.InsecureKey(1))
	d := simdisk.NewSimDisk("/s")
	old, err := os.ReadFile("testdata/ledger.jsonl")
	fixtures.Must(t, err)
	f, err := d.Append("/s/" + ledger.FileName)
	fixtures.Must(t, state.Write(f, err, old))
	l, err := ledger.Open(d, "/s", key)
	fixtures.Must(t, err)
	e := streamtest.Charging(3, 5000, -1, dp.ZeroOut, 0.125)
	e.Source = l.Entries[0].Source
	_, err = l.Open(e)
	fixtures.Must(t, err)
	file, err := d.ReadFile("/s/" + ledger.FileName)
	fixtures.Must(t, err)
	if l, err = ledger.Parse(file, key); err != nil || len(l.Entries) != 7 || l.Entries[6].Key != key.ID ||
		l.Entries[6].MAC == "" || l.Entries[5].MAC != "" {
		t.Fatalf("%v\n%s", err, file)
	}
	for bit := range 8 * len(file) {
		file[bit/8] ^= 1 << (bit % 8)
		if n := ledger.CompleteLines(file); n == len(file) {
			if _, err := ledger.Parse(file, key); err == nil {
				t.Fatalf("bit %d of byte %d may flip", bit%8, bit/8)
			}
		}
		file[bit/8] ^= 1 << (bit % 8)
	}
}

// TestLedgerLock: even if the lock file was removed, a second process cannot open the ledger; and a process whose
// ledger was replaced by another file writes nothing.
func TestLedgerLock(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	x := r.Start()
	x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	lock := filepath.Join(r.Dir, "state", "lock")
	fixtures.Must(t, os.Remove(lock))
	if _, err := stream.New(r.Options()); !errors.Is(err, failure.ErrState) ||
		!strings.Contains(err.Error(), "ledger.jsonl is in use by another process") {
		t.Errorf("a second process: %v", err)
	}
	was, err := os.ReadFile(r.LedgerFile())
	fixtures.Must(t, err)
	for name, change := range map[string]func(){
		"another size": func() {
			fixtures.Must(t, os.WriteFile(r.LedgerFile(), append(slices.Clone(was), was[:10]...), 0o600))
		},
		"another file": func() {
			fixtures.Must(t, os.WriteFile(r.LedgerFile()+".new", was, 0o600))
			fixtures.Must(t, os.Rename(r.LedgerFile()+".new", r.LedgerFile()))
		},
		"no file": func() { fixtures.Must(t, os.Remove(r.LedgerFile())) },
	} {
		change()
		now, _ := os.ReadFile(r.LedgerFile())
		err := x.In.Own.Ledger.Append(ending(ledger.KindDestroyed, 1, 0))
		var h *failure.Halt
		if !errors.As(err, &h) || h.Reason != failure.State {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(r.LedgerFile()); !bytes.Equal(now, after) {
			t.Errorf("%s: it was written to", name)
		}
	}
	x.End()
}

// TestAdjacencies: a limit holds in every adjacency in which the source was ever charged, both at openings and when the
// limit changes.
func TestAdjacencies(t *testing.T) {
	t.Parallel()
	mu, err := dp.Mu(1, 1e-8)
	fixtures.Must(t, err)
	ledgerOf := func(list ...ledger.Entry) *ledger.Ledger {
		l, err := ledger.Open(simdisk.NewSimDisk("/s"), "/s", nil)
		fixtures.Must(t, err)
		for _, e := range list {
			if e.Kind == ledger.KindOpen {
				_, err = l.Open(e)
			} else {
				err = l.Append(e)
			}
			fixtures.Must(t, err)
		}
		return l
	}
	// A replacement counts as two zeroings: 1 under zero-out is 2 or more under replace.
	l := ledgerOf(streamtest.Charging(1, 0, -1, dp.Replace, mu), ending(ledger.KindClose, 1, 1000))
	_, err = l.Open(streamtest.Charging(2, 0, -1, dp.ZeroOut, mu))
	var over *ledger.ErrBudget
	if !errors.As(err, &over) || (*over.Adjacency()) != dp.Replace ||
		!((*over.Spent()) > 2.3 && (*over.Spent()) < 2.4) || (*over.AlreadyCharged()) > 1 {
		t.Errorf("zero-out over the same records: %v", err)
	}
	if err := l.Affords(streamtest.Charging(2, 0, -1, dp.ZeroOut, mu), &l.Entries[0], []ledger.EntryPart{{End: 1000}},
		0); err == nil {
		t.Error("and it is said to be affordable")
	}
	// On another partition the epoch fits in both adjacencies: 0.7 of the limit of 1.5 remain there.
	small, err := dp.Mu(0.7, 1e-8)
	fixtures.Must(t, err)
	if _, err := l.Open(streamtest.Charging(2, 1000, -1, dp.ZeroOut, small)); err != nil {
		t.Error(err)
	}
	if eps, err := l.ChargedEpsilon(streamtest.OfRecords(fixtures.TestSource), dp.ZeroOut, 1e-8); err != nil ||
		!(eps > 1.4 && eps < 1.5) {
		t.Errorf("charged %g, %v", eps, err)
	}
	if s, err := l.Spent(fixtures.TestSource, nil); err != nil || s.Adjacency != dp.Replace ||
		!(s.ChargedEpsilon > 1.4 && s.ChargedEpsilon < 1.5) {
		t.Errorf("spent %+v, %v", s, err)
	}
	// The limit cannot be set below the amount spent in the other adjacency.
	limit := ledger.Entry{Kind: ledger.KindLimit, Stream: "orders", Source: fixtures.TestSource, Epoch: 2,
		LimitEpsilon: 1.2, LimitDelta: 1e-8}
	if err := l.SetLimitLine(limit, dp.ZeroOut); err == nil || !strings.Contains(err.Error(), "(replace)") {
		t.Errorf("a limit of 1.2: %v", err)
	}
	limit.LimitEpsilon = 1.6
	fixtures.Must(t, l.SetLimitLine(limit, dp.ZeroOut))
	s, err := l.Spent(fixtures.TestSource, nil)
	if err != nil || len(s.Limits) != 1 || s.Limits[0].OldLimitEpsilon != 1.5 || s.Limits[0].LimitEpsilon != 1.6 ||
		s.Limits[0].Time.IsZero() {
		t.Errorf("changes of the limit: %+v, %v", s.Limits, err)
	}
}

// TestAdjacencyChange tests the same with the daemon: an epoch under replace, then another under zero-out over the same
// records.
func TestAdjacencyChange(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.OrdersStream, "zero-out", "replace", "limit_epsilon = 3.0", "limit_epsilon = 1.5"))
	r.Produce(0, 300)
	x := r.Start()
	x.Published(3)
	x.End()
	r.Toml = fixtures.With(r.Toml, `"replace"`, `"zero-out"`)
	err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{From: "earliest"})
	})
	if err == nil || !strings.Contains(err.Error(), "epsilon 2.3") || !strings.Contains(err.Error(), "(replace)") {
		t.Errorf("opened: %v", err)
	}
	if n := len(r.Entries()); n != 1 {
		t.Errorf("%d lines: %s", n, r.Kinds())
	}
}

// TestLedgerIndex: the index gives the same answers as reading all lines.
func TestLedgerIndex(t *testing.T) {
	t.Parallel()
	l, err := ledger.Open(simdisk.NewSimDisk("/s"), "/s", nil)
	fixtures.Must(t, err)
	add := func(e ledger.Entry) {
		t.Helper()
		fixtures.Must(t, l.Append(e))
		var all []dp.Charge
		var newest *ledger.Entry
		for i := range l.Entries {
			o := &l.Entries[i]
			var end *ledger.Entry
			for j := i + 1; j < len(l.Entries); j++ {
				if c := &l.Entries[j]; (c.Kind == ledger.KindClose || c.Kind == ledger.KindVoid) &&
					c.Epoch == o.Epoch && c.Stream == o.Stream && o.Kind == ledger.KindOpen {
					end = c
				}
			}
			if o.Kind == ledger.KindClose && o.Stream == "orders" ||
				o.Kind == ledger.KindOpen && o.Stream == "orders" && (end == nil || end.Kind == ledger.KindClose) {
				newest = o
			}
			if o.Kind == ledger.KindOpen && (end == nil || end.Kind == ledger.KindClose) {
				c := dp.Charge{Log: o.Incarnation, First: o.First, End: o.End, Cost: o.Cost}
				if end != nil {
					c.End = end.End
				}
				if c.End != c.First {
					all = append(all, c)
				}
			}
		}
		want, err := dp.Charged(all, dp.ZeroOut, 1e-8)
		fixtures.Must(t, err)
		if got, err := l.Charged(streamtest.OfRecords(fixtures.TestSource), dp.ZeroOut, 1e-8, nil); err != nil ||
			got.Mu != want.Mu {
			t.Errorf("after %d lines: charged mu %g, want %g, %v", len(l.Entries), got.Mu, want.Mu, err)
		}
		got := l.Newest(fixtures.OrdersTask)
		if (got == nil) != (newest == nil) || got != nil && got.Seq != newest.Seq {
			t.Errorf("after %d lines: newest %+v, want %+v", len(l.Entries), got, newest)
		}
	}
	other := streamtest.Charging(1, 50, 250, dp.ZeroOut, 0.3)
	other.Stream = "other"
	add(streamtest.Charging(1, 0, -1, dp.ZeroOut, 0.1))
	add(ending(ledger.KindClose, 1, 100))
	add(streamtest.Charging(2, 100, -1, dp.ZeroOut, 0.1))
	add(other)
	add(ending(ledger.KindClose, 2, 100))
	add(ending(ledger.KindDestroyed, 1, 0))
	add(streamtest.Charging(3, 100, -1, dp.ZeroOut, 0.1))
	add(ending(ledger.KindVoid, 3, 0))
	add(streamtest.Charging(4, 100, 300, dp.ZeroOut, 0.1))
	add(ending(ledger.KindClose, 4, 200))
	add(streamtest.Charging(5, 150, -1, dp.ZeroOut, 0.2))
	add(ending(ledger.KindClose, 5, -1))
	if n := len(l.Index().Accounts[streamtest.OfRecords(fixtures.TestSource)].Closed); n != 2 {
		t.Errorf("%d ranges, want 2: [0, 200) and [150, …)", n)
	}
	if open := l.Undestroyed(fixtures.OrdersTask); len(open) != 3 || open[0].Epoch != 2 {
		t.Errorf("undestroyed: %+v", open)
	}
	if n := l.NextEpoch(fixtures.OrdersTask); n != 6 {
		t.Errorf("the next epoch is %d", n)
	}
}

// rollover opens and closes an epoch, as at a horizon.
func rollover(t testing.TB, l *ledger.Ledger, epoch uint64) {
	e := streamtest.Charging(epoch, int64(epoch)*100, int64(epoch)*100+100, dp.ZeroOut, 0.1)
	if _, err := l.Open(e); err != nil {
		t.Fatal(err)
	}
	l.Newest(fixtures.OrdersTask)
	l.Opening(fixtures.OrdersTask, epoch)
	l.LastIncarnation(fixtures.TestSource)
	c := ending(ledger.KindClose, epoch, e.End)
	c.Anchor, c.AnchorOffset = "00", e.End-1
	if err := l.Append(c); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(ending(ledger.KindDestroyed, epoch, 0)); err != nil {
		t.Fatal(err)
	}
}

// memoryDisk stores nothing, to measure the cost of an append without the disk.
type memoryDisk struct{ state.Disk }

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error)          { return len(p), nil }
func (nowhere) Sync() error                          { return nil }
func (nowhere) Close() error                         { return nil }
func (memoryDisk) Append(string) (state.File, error) { return nowhere{}, nil }
func (memoryDisk) SyncDir(string) error              { return nil }
func (memoryDisk) ReadFile(s string) ([]byte, error) { return nil, simdisk.Missing("read", s) }

// TestRolloverCost: a rollover takes no longer after 4000 others than after 200. Without indexes it would take a
// hundred times as long.
func TestRolloverCost(t *testing.T) {
	l, err := ledger.Open(memoryDisk{}, "/s", ledger.NewKey(connect.InsecureKey(1)))
	fixtures.Must(t, err)
	epoch := uint64(0)
	run := func(n int) time.Duration {
		begun := time.Now()
		for range n {
			epoch++
			rollover(t, l, epoch)
		}
		return time.Since(begun)
	}
	took := func() time.Duration { // the shortest of several times, because other programs may run in between
		best := run(50)
		for range 5 {
			best = min(best, run(50))
		}
		return best
	}
	run(200)
	early := took()
	run(4_000)
	if late := took(); late > 10*early {
		t.Errorf("50 rollovers take %v at first, and %v after 4000", early, late)
	}
}

// BenchmarkLedger measures the ledger's part of opening an epoch, of closing it, and of the budget in the status,
// without the disk: after 1000 epochs, relative to after 10.
func BenchmarkLedger(b *testing.B) {
	ledgerOf := func(epochs uint64) *ledger.Ledger {
		l, err := ledger.Open(memoryDisk{}, "/s", ledger.NewKey(connect.InsecureKey(1)))
		fixtures.Must(b, err)
		for epoch := range epochs {
			rollover(b, l, epoch+1)
		}
		// as if a status had read the history before
		_, err = l.BudgetOf(streamtest.OfRecords(fixtures.TestSource), ledger.NewBudgetEvents)
		fixtures.Must(b, err)
		return l
	}
	long := ledgerOf(1000)
	var short [64]*ledger.Ledger // used in turn, so that each stays short
	for i := range short {
		short[i] = ledgerOf(10)
	}
	steps := []struct {
		name string
		do   func(l *ledger.Ledger, epoch uint64)
	}{
		{"open", func(l *ledger.Ledger, epoch uint64) {
			_, err := l.Open(streamtest.Charging(epoch, int64(epoch)*100, int64(epoch)*100+100, dp.ZeroOut, 0.1))
			fixtures.Must(b, err)
		}},
		{"close", func(l *ledger.Ledger, epoch uint64) {
			fixtures.Must(b, l.Append(ending(ledger.KindClose, epoch, int64(epoch)*100+100)))
			fixtures.Must(b, l.Append(ending(ledger.KindDestroyed, epoch, 0)))
		}},
		{"status", func(l *ledger.Ledger, epoch uint64) {
			_, err := l.ChargedEpsilon(streamtest.OfRecords(fixtures.TestSource), dp.ZeroOut, 1e-8)
			fixtures.Must(b, err)
			_, err = l.BudgetOf(streamtest.OfRecords(fixtures.TestSource), ledger.NewBudgetEvents)
			fixtures.Must(b, err)
		}},
	}
	took := map[*ledger.Ledger][][]float64{}
	sum := func(l *ledger.Ledger, as *ledger.Ledger) {
		epoch := l.NextEpoch(fixtures.OrdersTask)
		if took[as] == nil {
			took[as] = make([][]float64, len(steps))
		}
		for i, s := range steps {
			begun := time.Now()
			s.do(l, epoch)
			took[as][i] = append(took[as][i], float64(time.Since(begun).Nanoseconds()))
		}
	}
	for i := 0; b.Loop(); i++ {
		sum(long, long)
		sum(short[i%len(short)], short[0])
	}
	for i, s := range steps {
		b.ReportMetric(fixtures.Median(took[long][i]), "ns/"+s.name)
		b.ReportMetric(fixtures.Median(took[long][i])/fixtures.Median(took[short[0]][i]), s.name+"-ratio")
	}
}
