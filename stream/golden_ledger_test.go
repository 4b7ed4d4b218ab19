package stream

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

func TestGoldenLedger(t *testing.T) {
	t.Parallel()
	d := newSimDisk("/s")
	l, err := openLedger(d, "/s", nil)
	must(t, err)
	l.now = func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.FixedZone("x", 3600)) }
	src := core.Source{Cluster: "cluster", Topic: "orders", Partition: 0}
	cost := dp.Cost{Adjacency: dp.ZeroOut, Mu: 0.125}
	open := func(epoch uint64, first, end int64) {
		t.Helper()
		_, err := l.open(Entry{
			Kind: kindOpen, Stream: "orders", Source: src, Epoch: epoch, Nonce: "00ff", Digest: "ff00", Incarnation: 1,
			First: first, End: end, Mechanism: "moments", Cost: cost, Epsilon: 1, Delta: 1e-8, LimitEpsilon: 3, LimitDelta: 1e-8, Reason: "first",
		})
		must(t, err)
	}
	open(1, 0, -1)
	must(t, l.append(Entry{Kind: kindLimit, Stream: "orders", Source: src, Epoch: 1, LimitEpsilon: 4, LimitDelta: 1e-7}))
	must(t, l.append(Entry{Kind: kindClose, Stream: "orders", Source: src, Epoch: 1, End: 1000, AnchorOffset: 998, Anchor: "abcd", Reason: reasonRequest}))
	must(t, l.append(Entry{Kind: kindDestroyed, Stream: "orders", Source: src, Epoch: 1}))
	open(2, 1000, 5000)
	must(t, l.append(Entry{Kind: kindVoid, Stream: "orders", Source: src, Epoch: 2, Reason: "interrupted"}))
	file, err := d.ReadFile("/s/ledger.jsonl")
	must(t, err)
	golden(t, goldenPath("ledger.jsonl"), file)
	read, err := parseLedger(file, nil)
	if err != nil || !reflect.DeepEqual(read.entries, l.entries) || !reflect.DeepEqual(read.heads, l.heads) || !reflect.DeepEqual(read.index, l.index) {
		t.Errorf("read back: %v\n%+v\n%+v", err, read.entries, l.entries)
	}
	entries := read.entries
	// A torn last line is cut off, wherever it was torn; what the lines before
	// say stays.
	last := strings.LastIndexByte(string(file[:len(file)-1]), '\n') + 1
	for cut := last; cut < len(file); cut += 37 {
		all := [][]byte{file[:cut], append(slices.Clone(file[:cut]), make([]byte, len(file)-cut)...)}
		if sector := cut/512*512 + 512; sector < len(file) { // what is before it was never written
			all = append(all, append(append(slices.Clone(file[:last]), make([]byte, sector-last)...), file[sector:]...))
		}
		for _, torn := range all {
			d := newSimDisk("/s")
			f, err := d.Append("/s/ledger.jsonl")
			must(t, write(f, err, torn))
			l, err := openLedger(d, "/s", nil)
			if err != nil || len(l.entries) != len(entries)-1 || l.torn != (len(torn) > last) {
				t.Fatalf("torn after %d bytes: %v", cut, err)
			}
		}
	}
	// Zeros elsewhere are damage.
	bad := slices.Clone(file)
	bad[10] = 0
	d = newSimDisk("/s")
	f, err := d.Append("/s/ledger.jsonl")
	must(t, write(f, err, bad))
	if _, err := openLedger(d, "/s", nil); err == nil {
		t.Error("a ledger with a damaged first line was opened")
	}
}

// TestLedgerStories: chains that are intact and impossible.
func TestLedgerStories(t *testing.T) {
	t.Parallel()
	src := core.Source{Cluster: "c", Topic: "orders", Partition: 0}
	open := func(epoch uint64, change ...func(*Entry)) Entry {
		e := Entry{Kind: kindOpen, Stream: "orders", Source: src, Epoch: epoch, Incarnation: 1, End: -1, Cost: dp.Cost{Adjacency: dp.ZeroOut, Mu: 0.1}}
		for _, f := range change {
			f(&e)
		}
		return e
	}
	end := func(kind string, epoch uint64, at int64) Entry {
		return Entry{Kind: kind, Stream: "orders", Source: src, Epoch: epoch, End: at}
	}
	chain := func(list []Entry) []byte {
		l := &ledger{disk: newSimDisk("/s"), dir: "/s", path: "/s/ledger.jsonl", now: func() time.Time { return time.Unix(0, 0) }}
		for _, e := range list {
			must(t, l.append(e))
		}
		data, err := l.disk.ReadFile(l.path)
		must(t, err)
		return data
	}
	for name, list := range map[string][]Entry{
		"a number twice":          {open(1), end(kindVoid, 1, 0), open(1)},
		"a smaller number":        {open(2), end(kindVoid, 2, 0), open(1)},
		"a close without opening": {end(kindClose, 1, 10)},
		"closed twice":            {open(1), end(kindClose, 1, 10), end(kindClose, 1, 10)},
		"closed and void":         {open(1), end(kindClose, 1, 10), end(kindVoid, 1, 0)},
		"destroyed while open":    {open(1), end(kindDestroyed, 1, 0)},
		"ends before it begins":   {open(1, func(e *Entry) { e.First = 5 }), end(kindClose, 1, 4)},
		"costs nothing":           {open(1, func(e *Entry) { e.Cost.Mu = 0 })},
		"no adjacency":            {open(1, func(e *Entry) { e.Cost = dp.Cost{} })},
		"horizon before its base": {open(1, func(e *Entry) { e.First, e.End = 5, 4 })},
		"charges no offset":       {open(1, func(e *Entry) { e.First, e.End = 5, 5 })},
		"a negative end":          {open(1, func(e *Entry) { e.First, e.End = 5, -2 })},
		"closed on another log":   {open(1), func() Entry { e := end(kindClose, 1, 10); e.Topic = "x"; return e }()},
		"another kind":            {{Kind: "refund", Stream: "orders", Source: src, Epoch: 1}},
	} {
		if name == "no adjacency" {
			continue // it can't even be written
		}
		if _, err := parseLedger(chain(list), nil); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	l := &ledger{disk: newSimDisk("/s"), dir: "/s", path: "/s/ledger.jsonl", now: time.Now}
	for _, at := range []int64{-2, 0, 5} {
		if _, err := l.open(open(1, func(e *Entry) { e.First, e.End, e.LimitEpsilon, e.LimitDelta = 5, at, 1, 1e-8 })); err == nil || len(l.entries) > 0 {
			t.Errorf("an epoch from offset 5 to %d is opened", at)
		}
	}
	if _, err := parseLedger(chain([]Entry{open(1), end(kindClose, 1, 10), end(kindDestroyed, 1, 0), open(3), end(kindVoid, 3, 0), open(4)}), nil); err != nil {
		t.Error(err)
	}
}
