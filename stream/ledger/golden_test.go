package ledger_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

func TestGoldenLedger(t *testing.T) {
	t.Parallel()
	d := simdisk.NewSimDisk("/s")
	l, err := ledger.Open(d, "/s", nil)
	fixtures.Must(t, err)
	l.Now = func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.FixedZone("x", 3600)) }
	src := core.Source{Cluster: "cluster", Topic: "orders", Partition: 0}
	cost := dp.Cost{Adjacency: dp.ZeroOut, Mu: 0.125}
	open := func(epoch uint64, first, end int64) {
		t.Helper()
		_, err := l.Open(ledger.Entry{
			Kind: ledger.KindOpen, Stream: "orders", Source: src, Epoch: epoch, Nonce: "00ff", Digest: "ff00",
			Incarnation: 1,
			First:       first, End: end, Mechanism: "moments", Cost: cost, Epsilon: 1, Delta: 1e-8, LimitEpsilon: 3,
			LimitDelta: 1e-8, Reason: "first",
		})
		fixtures.Must(t, err)
	}
	open(1, 0, -1)
	fixtures.Must(t,
		l.Append(
			ledger.Entry{Kind: ledger.KindLimit, Stream: "orders", Source: src, Epoch: 1, LimitEpsilon: 4,
				LimitDelta: 1e-7}))
	fixtures.Must(t,
		l.Append(
			ledger.Entry{Kind: ledger.KindClose, Stream: "orders", Source: src, Epoch: 1, End: 1000, AnchorOffset: 998,
				Anchor: "abcd", Reason: ledger.ReasonRequest}))
	fixtures.Must(t, l.Append(ledger.Entry{Kind: ledger.KindDestroyed, Stream: "orders", Source: src, Epoch: 1}))
	open(2, 1000, 5000)
	fixtures.Must(t,
		l.Append(ledger.Entry{Kind: ledger.KindVoid, Stream: "orders", Source: src, Epoch: 2, Reason: "interrupted"}))
	file, err := d.ReadFile("/s/ledger.jsonl")
	fixtures.Must(t, err)
	fixtures.Golden(t, "testdata/ledger.jsonl", file)
	read, err := ledger.Parse(file, nil)
	if err != nil || !reflect.DeepEqual(read.Entries, l.Entries) || !reflect.DeepEqual((*read.Heads()), (*l.Heads())) ||
		!reflect.DeepEqual(read.Index(), l.Index()) {
		t.Errorf("read back: %v\n%+v\n%+v", err, read.Entries, l.Entries)
	}
	entries := read.Entries
	// A torn last line is cut off wherever it was torn, and the lines before it are kept.
	last := strings.LastIndexByte(string(file[:len(file)-1]), '\n') + 1
	for cut := last; cut < len(file); cut += 37 {
		all := [][]byte{file[:cut], append(slices.Clone(file[:cut]), make([]byte, len(file)-cut)...)}
		if sector := cut/512*512 + 512; sector < len(file) { // the sector before it was never written
			all = append(all, append(append(slices.Clone(file[:last]), make([]byte, sector-last)...), file[sector:]...))
		}
		for _, torn := range all {
			d := simdisk.NewSimDisk("/s")
			f, err := d.Append("/s/ledger.jsonl")
			fixtures.Must(t, state.Write(f, err, torn))
			l, err := ledger.Open(d, "/s", nil)
			if err != nil || len(l.Entries) != len(entries)-1 || l.Torn != (len(torn) > last) {
				t.Fatalf("torn after %d bytes: %v", cut, err)
			}
		}
	}
	// Zeros at any other place are damage.
	bad := slices.Clone(file)
	bad[10] = 0
	d = simdisk.NewSimDisk("/s")
	f, err := d.Append("/s/ledger.jsonl")
	fixtures.Must(t, state.Write(f, err, bad))
	if _, err := ledger.Open(d, "/s", nil); err == nil {
		t.Error("a ledger with a damaged first line was opened")
	}
}

// TestLedgerStories: Parse refuses ledgers whose chain is intact, but whose sequence of lines is impossible.
func TestLedgerStories(t *testing.T) {
	t.Parallel()
	src := core.Source{Cluster: "c", Topic: "orders", Partition: 0}
	open := func(epoch uint64, change ...func(*ledger.Entry)) ledger.Entry {
		e := ledger.Entry{Kind: ledger.KindOpen, Stream: "orders", Source: src, Epoch: epoch, Incarnation: 1, End: -1,
			Cost: dp.Cost{Adjacency: dp.ZeroOut, Mu: 0.1}}
		for _, f := range change {
			f(&e)
		}
		return e
	}
	end := func(kind string, epoch uint64, at int64) ledger.Entry {
		return ledger.Entry{Kind: kind, Stream: "orders", Source: src, Epoch: epoch, End: at}
	}
	chain := func(list []ledger.Entry) []byte {
		l := ledger.Unsealed(simdisk.NewSimDisk("/s"), func() time.Time { return time.Unix(0, 0) })
		for _, e := range list {
			fixtures.Must(t, l.Append(e))
		}
		data, err := l.Disk.ReadFile(l.Path)
		fixtures.Must(t, err)
		return data
	}
	for name, list := range map[string][]ledger.Entry{
		"a number twice":          {open(1), end(ledger.KindVoid, 1, 0), open(1)},
		"a smaller number":        {open(2), end(ledger.KindVoid, 2, 0), open(1)},
		"a close without opening": {end(ledger.KindClose, 1, 10)},
		"closed twice":            {open(1), end(ledger.KindClose, 1, 10), end(ledger.KindClose, 1, 10)},
		"closed and void":         {open(1), end(ledger.KindClose, 1, 10), end(ledger.KindVoid, 1, 0)},
		"destroyed while open":    {open(1), end(ledger.KindDestroyed, 1, 0)},
		"ends before it begins":   {open(1, func(e *ledger.Entry) { e.First = 5 }), end(ledger.KindClose, 1, 4)},
		"costs nothing":           {open(1, func(e *ledger.Entry) { e.Cost.Mu = 0 })},
		"no adjacency":            {open(1, func(e *ledger.Entry) { e.Cost = dp.Cost{} })},
		"horizon before its base": {open(1, func(e *ledger.Entry) { e.First, e.End = 5, 4 })},
		"charges no offset":       {open(1, func(e *ledger.Entry) { e.First, e.End = 5, 5 })},
		"a negative end":          {open(1, func(e *ledger.Entry) { e.First, e.End = 5, -2 })},
		"closed on another log": {open(1),
			func() ledger.Entry { e := end(ledger.KindClose, 1, 10); e.Topic = "x"; return e }()},
		"another kind": {{Kind: "refund", Stream: "orders", Source: src, Epoch: 1}},
	} {
		if name == "no adjacency" {
			continue // the ledger cannot even be written
		}
		if _, err := ledger.Parse(chain(list), nil); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	l := ledger.Unsealed(simdisk.NewSimDisk("/s"), time.Now)
	for _, at := range []int64{-2, 0, 5} {
		if _, err := l.Open(
			open(1,
				func(e *ledger.Entry) { e.First, e.End, e.LimitEpsilon, e.LimitDelta = 5, at, 1, 1e-8 })); err == nil ||
			len(l.Entries) > 0 {
			t.Errorf("an epoch from offset 5 to %d is opened", at)
		}
	}
	if _, err := ledger.Parse(
		chain(
			[]ledger.Entry{open(1), end(ledger.KindClose, 1, 10), end(ledger.KindDestroyed, 1, 0), open(3),
				end(ledger.KindVoid, 3, 0), open(4)}), nil); err != nil {
		t.Error(err)
	}
}
