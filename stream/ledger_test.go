package stream

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
)

// ending is an entry that ends one.
func ending(kind string, epoch uint64, end int64) Entry {
	return Entry{Kind: kind, Stream: "orders", Source: testSource, Epoch: epoch, End: end, Reason: reasonRequest}
}

// sealedLedger is the file of a ledger with all kinds of lines.
func sealedLedger(t testing.TB, d disk, key *ledgerKey) []byte {
	t.Helper()
	l, err := openLedger(d, "/s", key)
	must(t, err)
	l.now = func() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }
	_, err = l.open(charging(1, 0, -1, dp.ZeroOut, 0.125))
	must(t, err)
	must(t, l.setLimit(Entry{Kind: kindLimit, Stream: "orders", Source: testSource, Epoch: 1, LimitEpsilon: 2, LimitDelta: 1e-8}, dp.ZeroOut))
	must(t, l.append(ending(kindClose, 1, 1000)))
	must(t, l.append(ending(kindDestroyed, 1, 0)))
	_, err = l.open(charging(2, 1000, 5000, dp.ZeroOut, 0.125))
	must(t, err)
	data, err := d.ReadFile("/s/" + ledgerName)
	must(t, err)
	return data
}

// TestLedgerBits: no bit of a sealed ledger can change unnoticed, whether the key is
// at hand or not.
func TestLedgerBits(t *testing.T) {
	t.Parallel()
	key := newLedgerKey(InsecureKey(1))
	file := sealedLedger(t, newSimDisk("/s"), key)
	golden(t, goldenPath("ledger-sealed.jsonl"), file)
	at := func(data []byte, key *ledgerKey) (*ledger, error) {
		d := newSimDisk("/s")
		f, err := d.Append("/s/" + ledgerName)
		must(t, write(f, err, data))
		return openLedger(d, "/s", key)
	}
	for _, k := range []*ledgerKey{key, nil, newLedgerKey(InsecureKey(2))} {
		if l, err := at(file, k); err != nil || len(l.entries) != 5 || l.torn {
			t.Fatalf("as it was written: %v", err)
		}
		accepted, stride := 0, 1
		if k != key {
			stride = 13 // the sums alone: any of them shows it
		}
		for bit := 0; bit < 8*len(file); bit += stride {
			file[bit/8] ^= 1 << (bit % 8)
			if _, err := at(file, k); err == nil {
				if accepted++; accepted < 5 {
					t.Errorf("bit %d of byte %d may flip: %q", bit%8, bit/8, file[max(0, bit/8-20):min(len(file), bit/8+20)])
				}
			} else if !errors.Is(err, errLedger) {
				t.Fatal(err)
			}
			file[bit/8] ^= 1 << (bit % 8)
		}
		if accepted > 0 {
			t.Errorf("%d of %d flips are accepted", accepted, 8*len(file))
		}
	}

	// A line that somebody else writes has right sums and no MAC.
	l, err := at(file, newLedgerKey(InsecureKey(2)))
	must(t, err)
	var h *halt
	if err := l.append(ending(kindClose, 2, 1000)); !errors.As(err, &h) || h.reason != haltKey || !l.waits() {
		t.Errorf("a line under a new key without the operator's word: %v", err)
	}
	l.acceptKey()
	must(t, l.append(ending(kindClose, 2, 1000)))
	if l.foreign() {
		t.Error("the new key's line does not count")
	}
	forged, err := l.disk.ReadFile(l.path)
	must(t, err)
	if l, err := at(forged, newLedgerKey(InsecureKey(2))); err != nil || l.entries[5].Key == "" {
		t.Errorf("after a change of the key: %v", err)
	}
	mac := bytes.LastIndex(forged, []byte(`,"key":"`))
	lies := append(slices.Clone(forged[:mac]), bytes.Replace(forged[mac:], []byte(l.key.id), []byte(key.id), 1)...)
	lies = lies[:len(lies)-1-len(sealEnd)-32-len(sumField)]
	lies = append(append(lies, sumField...), checksum(lies)...)
	if _, err := at(append(lies, sealEnd+"\n"...), key); err == nil {
		t.Error("a line with the MAC of another key is accepted")
	}
	// Once there are MACs, a line without one is none.
	unsealed, err := at(file, nil)
	must(t, err)
	must(t, unsealed.append(ending(kindClose, 2, 1000)))
	plain, err := unsealed.disk.ReadFile(unsealed.path)
	must(t, err)
	for _, k := range []*ledgerKey{key, nil} {
		if _, err := at(plain, k); err == nil {
			t.Error("a line without a MAC is accepted behind one with it")
		}
	}
}

// TestLedgerForged: a line under an invented key is refused behind lines under the
// present one, also where it would erase a charge.
func TestLedgerForged(t *testing.T) {
	t.Parallel()
	key := newLedgerKey(InsecureKey(1))
	d := newSimDisk("/s")
	file := sealedLedger(t, d, key)
	l, err := openLedger(d, "/s", key)
	must(t, err)
	for _, e := range []Entry{ending(kindVoid, 2, 0), ending(kindClose, 2, 1000), {Kind: kindLimit, Stream: "orders", Source: testSource, Epoch: 2, LimitEpsilon: 9, LimitDelta: 1e-8}} {
		forged := append(slices.Clone(file), forgedLine(t, l, e)...)
		if _, err := parseLedger(forged, key); !errors.Is(err, errLedger) {
			t.Errorf("a forged %s is accepted: %v", e.Kind, err)
		}
		// Without the key nobody can tell.
		if _, err := parseLedger(forged, nil); err != nil {
			t.Errorf("a forged %s: %v", e.Kind, err)
		}
		// With another key nothing proves any line.
		l2, err := parseLedger(forged, newLedgerKey(InsecureKey(2)))
		must(t, err)
		if !l2.waits() {
			t.Error("lines that nothing proves can be followed without the operator's word")
		}
	}
}

// TestLedgerBefore: a ledger that has no MACs yet is read, and its next line binds
// all that was there.
func TestLedgerBefore(t *testing.T) {
	t.Parallel()
	key := newLedgerKey(InsecureKey(1))
	d := newSimDisk("/s")
	old, err := os.ReadFile(goldenPath("ledger.jsonl"))
	must(t, err)
	f, err := d.Append("/s/" + ledgerName)
	must(t, write(f, err, old))
	l, err := openLedger(d, "/s", key)
	must(t, err)
	e := charging(3, 5000, -1, dp.ZeroOut, 0.125)
	e.Source = l.entries[0].Source
	_, err = l.open(e)
	must(t, err)
	file, err := d.ReadFile("/s/" + ledgerName)
	must(t, err)
	if l, err = parseLedger(file, key); err != nil || len(l.entries) != 7 || l.entries[6].Key != key.id || l.entries[6].MAC == "" || l.entries[5].MAC != "" {
		t.Fatalf("%v\n%s", err, file)
	}
	for bit := range 8 * len(file) {
		file[bit/8] ^= 1 << (bit % 8)
		if n := whole(file); n == len(file) {
			if _, err := parseLedger(file, key); err == nil {
				t.Fatalf("bit %d of byte %d may flip", bit%8, bit/8)
			}
		}
		file[bit/8] ^= 1 << (bit % 8)
	}
}

// TestLedgerLock: without the lock file a second process still does not get in, and
// one whose ledger is another file than it was writes nothing.
func TestLedgerLock(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	x := r.start()
	x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
	lock := filepath.Join(r.dir, "state", "lock")
	must(t, os.Remove(lock))
	if _, err := New(r.options()); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "ledger.jsonl is in use by another process") {
		t.Errorf("a second process: %v", err)
	}
	was, err := os.ReadFile(r.ledgerFile())
	must(t, err)
	for name, change := range map[string]func(){
		"another size": func() {
			must(t, os.WriteFile(r.ledgerFile(), append(slices.Clone(was), was[:10]...), 0o600))
		},
		"another file": func() {
			must(t, os.WriteFile(r.ledgerFile()+".new", was, 0o600))
			must(t, os.Rename(r.ledgerFile()+".new", r.ledgerFile()))
		},
		"no file": func() { must(t, os.Remove(r.ledgerFile())) },
	} {
		change()
		now, _ := os.ReadFile(r.ledgerFile())
		err := x.in.Own.ledger.append(ending(kindDestroyed, 1, 0))
		var h *halt
		if !errors.As(err, &h) || h.reason != haltState {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(r.ledgerFile()); !bytes.Equal(now, after) {
			t.Errorf("%s: it was written to", name)
		}
	}
	x.end()
}

// TestAdjacencies: a limit holds in every adjacency in which the source was ever
// charged, at openings and when the limit changes.
func TestAdjacencies(t *testing.T) {
	t.Parallel()
	mu, err := dp.Mu(1, 1e-8)
	must(t, err)
	ledgerOf := func(list ...Entry) *ledger {
		l, err := openLedger(newSimDisk("/s"), "/s", nil)
		must(t, err)
		for _, e := range list {
			if e.Kind == kindOpen {
				_, err = l.open(e)
			} else {
				err = l.append(e)
			}
			must(t, err)
		}
		return l
	}
	// A replacement is two zeroings: what is 1 for those is 2 and more for these.
	l := ledgerOf(charging(1, 0, -1, dp.Replace, mu), ending(kindClose, 1, 1000))
	_, err = l.open(charging(2, 0, -1, dp.ZeroOut, mu))
	var over *errBudget
	if !errors.As(err, &over) || over.adjacency != dp.Replace || !(over.spent > 2.3 && over.spent < 2.4) || over.alreadyCharged > 1 {
		t.Errorf("zero-out over the same records: %v", err)
	}
	if err := l.affords(charging(2, 0, -1, dp.ZeroOut, mu), &l.entries[0], []EntryPart{{End: 1000}}, 0); err == nil {
		t.Error("and it is said to be affordable")
	}
	// Elsewhere it fits, in both: of 1.5 there 0.7 is for the rest.
	small, err := dp.Mu(0.7, 1e-8)
	must(t, err)
	if _, err := l.open(charging(2, 1000, -1, dp.ZeroOut, small)); err != nil {
		t.Error(err)
	}
	if eps, err := l.chargedEpsilon(ofRecords(testSource), dp.ZeroOut, 1e-8); err != nil || !(eps > 1.4 && eps < 1.5) {
		t.Errorf("charged %g, %v", eps, err)
	}
	if s, err := l.spent(testSource, nil); err != nil || s.Adjacency != dp.Replace || !(s.ChargedEpsilon > 1.4 && s.ChargedEpsilon < 1.5) {
		t.Errorf("spent %+v, %v", s, err)
	}
	// The limit can't go below what is spent in the other one.
	limit := Entry{Kind: kindLimit, Stream: "orders", Source: testSource, Epoch: 2, LimitEpsilon: 1.2, LimitDelta: 1e-8}
	if err := l.setLimit(limit, dp.ZeroOut); err == nil || !strings.Contains(err.Error(), "(replace)") {
		t.Errorf("a limit of 1.2: %v", err)
	}
	limit.LimitEpsilon = 1.6
	must(t, l.setLimit(limit, dp.ZeroOut))
	s, err := l.spent(testSource, nil)
	if err != nil || len(s.Limits) != 1 || s.Limits[0].OldLimitEpsilon != 1.5 || s.Limits[0].LimitEpsilon != 1.6 || s.Limits[0].Time.IsZero() {
		t.Errorf("changes of the limit: %+v, %v", s.Limits, err)
	}
}

// TestAdjacencyChange is the same through the daemon: an epoch under replacement,
// then another under zero-out over the same records.
func TestAdjacencyChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(ordersStream, "zero-out", "replace", "limit_epsilon = 3.0", "limit_epsilon = 1.5"))
	r.produce(0, 300)
	x := r.start()
	x.published(3)
	x.end()
	r.toml = with(r.toml, `"replace"`, `"zero-out"`)
	err := r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "earliest"})
	})
	if err == nil || !strings.Contains(err.Error(), "epsilon 2.3") || !strings.Contains(err.Error(), "(replace)") {
		t.Errorf("opened: %v", err)
	}
	if n := len(r.entries()); n != 1 {
		t.Errorf("%d lines: %s", n, r.kinds())
	}
}

// TestLedgerIndex: what the index answers is what a reading of all lines would.
func TestLedgerIndex(t *testing.T) {
	t.Parallel()
	l, err := openLedger(newSimDisk("/s"), "/s", nil)
	must(t, err)
	add := func(e Entry) {
		t.Helper()
		must(t, l.append(e))
		var all []dp.Charge
		var newest *Entry
		for i := range l.entries {
			o := &l.entries[i]
			var end *Entry
			for j := i + 1; j < len(l.entries); j++ {
				if c := &l.entries[j]; (c.Kind == kindClose || c.Kind == kindVoid) && c.Epoch == o.Epoch && c.Stream == o.Stream && o.Kind == kindOpen {
					end = c
				}
			}
			if o.Kind == kindClose && o.Stream == "orders" || o.Kind == kindOpen && o.Stream == "orders" && (end == nil || end.Kind == kindClose) {
				newest = o
			}
			if o.Kind == kindOpen && (end == nil || end.Kind == kindClose) {
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
		must(t, err)
		if got, err := l.charged(ofRecords(testSource), dp.ZeroOut, 1e-8, nil); err != nil || got.Mu != want.Mu {
			t.Errorf("after %d lines: charged mu %g, want %g, %v", len(l.entries), got.Mu, want.Mu, err)
		}
		got := l.newest(ordersTask)
		if (got == nil) != (newest == nil) || got != nil && got.Seq != newest.Seq {
			t.Errorf("after %d lines: newest %+v, want %+v", len(l.entries), got, newest)
		}
	}
	other := charging(1, 50, 250, dp.ZeroOut, 0.3)
	other.Stream = "other"
	add(charging(1, 0, -1, dp.ZeroOut, 0.1))
	add(ending(kindClose, 1, 100))
	add(charging(2, 100, -1, dp.ZeroOut, 0.1))
	add(other)
	add(ending(kindClose, 2, 100))
	add(ending(kindDestroyed, 1, 0))
	add(charging(3, 100, -1, dp.ZeroOut, 0.1))
	add(ending(kindVoid, 3, 0))
	add(charging(4, 100, 300, dp.ZeroOut, 0.1))
	add(ending(kindClose, 4, 200))
	add(charging(5, 150, -1, dp.ZeroOut, 0.2))
	add(ending(kindClose, 5, -1))
	if n := len(l.index.accounts[ofRecords(testSource)].closed); n != 2 {
		t.Errorf("%d ranges, want 2: [0, 200) and [150, …)", n)
	}
	if open := l.undestroyed(ordersTask); len(open) != 3 || open[0].Epoch != 2 {
		t.Errorf("undestroyed: %+v", open)
	}
	if n := l.nextEpoch(ordersTask); n != 6 {
		t.Errorf("the next epoch is %d", n)
	}
}

// rollover opens and closes an epoch, as a horizon does.
func rollover(t testing.TB, l *ledger, epoch uint64) {
	e := charging(epoch, int64(epoch)*100, int64(epoch)*100+100, dp.ZeroOut, 0.1)
	if _, err := l.open(e); err != nil {
		t.Fatal(err)
	}
	l.newest(ordersTask)
	l.opening(ordersTask, epoch)
	l.lastIncarnation(testSource)
	c := ending(kindClose, epoch, e.End)
	c.Anchor, c.AnchorOffset = "00", e.End-1
	if err := l.append(c); err != nil {
		t.Fatal(err)
	}
	if err := l.append(ending(kindDestroyed, epoch, 0)); err != nil {
		t.Fatal(err)
	}
}

// memoryDisk keeps nothing: what an append costs beside the disk.
type memoryDisk struct{ disk }

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error)          { return len(p), nil }
func (nowhere) Sync() error                          { return nil }
func (nowhere) Close() error                         { return nil }
func (memoryDisk) Append(string) (file, error)       { return nowhere{}, nil }
func (memoryDisk) SyncDir(string) error              { return nil }
func (memoryDisk) ReadFile(s string) ([]byte, error) { return nil, missing("read", s) }

// TestRolloverCost: a rollover takes no longer after 4000 others than after 200.
// Without indexes it takes a hundred times as long.
func TestRolloverCost(t *testing.T) {
	l, err := openLedger(memoryDisk{}, "/s", newLedgerKey(InsecureKey(1)))
	must(t, err)
	epoch := uint64(0)
	run := func(n int) time.Duration {
		begun := time.Now()
		for range n {
			epoch++
			rollover(t, l, epoch)
		}
		return time.Since(begun)
	}
	took := func() time.Duration { // the best of several: something else may run in between
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

// BenchmarkLedger is the ledger's part of opening an epoch, of closing it, and of what status
// shows of the budget, without the disk: behind 1000 epochs by behind 10.
func BenchmarkLedger(b *testing.B) {
	ledgerOf := func(epochs uint64) *ledger {
		l, err := openLedger(memoryDisk{}, "/s", newLedgerKey(InsecureKey(1)))
		must(b, err)
		for epoch := range epochs {
			rollover(b, l, epoch+1)
		}
		_, err = l.budgetOf(ofRecords(testSource), budgetEvents) // what a status has read before
		must(b, err)
		return l
	}
	long := ledgerOf(1000)
	var short [64]*ledger // in turn, so that each stays short
	for i := range short {
		short[i] = ledgerOf(10)
	}
	steps := []struct {
		name string
		do   func(l *ledger, epoch uint64)
	}{
		{"open", func(l *ledger, epoch uint64) {
			_, err := l.open(charging(epoch, int64(epoch)*100, int64(epoch)*100+100, dp.ZeroOut, 0.1))
			must(b, err)
		}},
		{"close", func(l *ledger, epoch uint64) {
			must(b, l.append(ending(kindClose, epoch, int64(epoch)*100+100)))
			must(b, l.append(ending(kindDestroyed, epoch, 0)))
		}},
		{"status", func(l *ledger, epoch uint64) {
			_, err := l.chargedEpsilon(ofRecords(testSource), dp.ZeroOut, 1e-8)
			must(b, err)
			_, err = l.budgetOf(ofRecords(testSource), budgetEvents)
			must(b, err)
		}},
	}
	took := map[*ledger][][]float64{}
	sum := func(l *ledger, as *ledger) {
		epoch := l.nextEpoch(ordersTask)
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
		b.ReportMetric(median(took[long][i]), "ns/"+s.name)
		b.ReportMetric(median(took[long][i])/median(took[short[0]][i]), s.name+"-ratio")
	}
}
