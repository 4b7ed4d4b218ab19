package stream

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/kafka"
)

// The formats on disk and in Kafka, as files: a change of one shows in a
// review, and an old file must still be read.

func goldenPath(name string) string { return filepath.Join("testdata", name) }

// dump is a binary file in a form that a person can compare.
func dump(b []byte) []byte { return []byte(hex.Dump(b)) }

func goldenCheckpoint() *checkpoint {
	c := &checkpoint{
		epoch: 3, seq: 41, step: 7,
		position:    kafka.Position{Next: 1700, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 1698, LeaderEpoch: 1}},
		outputTopic: "orders.dp", outputPartition: 1, output: 12, acknowledged: true,
		build: "go1.26.0 linux/amd64", state: []byte{1, 2, 3, 0, 255},
		outbox: []pending{
			{step: 6, key: []byte("orders/0/3/6"), value: []byte(`{"x":1}`), headers: []kafka.Header{{Key: "a", Value: []byte("b")}, {Key: "n"}}, time: time.UnixMilli(1700000000123)},
			{step: 7, key: []byte("orders/0/3/7"), value: []byte{}, time: time.UnixMilli(1700000000124)},
		},
	}
	for i := range 32 {
		c.manifest[i], c.transcript[i], c.ledger[i], c.position.Anchor.Hash[i] = byte(i), byte(i+32), byte(i+64), byte(i+96)
	}
	return c
}

func TestGoldenCheckpoint(t *testing.T) {
	t.Parallel()
	want := goldenCheckpoint()
	file := want.encode(nil)
	golden(t, goldenPath("checkpoint.hex"), dump(file))
	got, err := parseCheckpoint(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read back: %v\n%+v\n%+v", err, got, want)
	}
	// Every bit counts.
	for i := range file {
		file[i] ^= 1 << (i % 8)
		if _, err := parseCheckpoint(file); err == nil {
			t.Errorf("byte %d may change", i)
		}
		file[i] ^= 1 << (i % 8)
		if _, err := parseCheckpoint(file[:i]); err == nil {
			t.Errorf("it may end after %d bytes", i)
		}
	}
}

// plainEstimator is a mechanism of fixed numbers.
type plainEstimator struct{ Estimator }

func (plainEstimator) Cost() dp.Cost { return dp.Cost{Adjacency: dp.Replace, Mu: 0.25} }

func goldenMechanism() *mechanism {
	return &mechanism{
		Estimator: plainEstimator{}, name: "moments", clip: 1, sens: 1.5, lattice: []float64{0x1p-24, 0x1p-30},
		describe: json.RawMessage(`{"name":"moments","method":"jme","workload":"mean","factorization":"phased","step":100,"nu":0.5,"lambda":2}`),
		plan:     json.RawMessage(`{"clip":1}`),
	}
}

func goldenStream(t testing.TB) *config.Stream {
	t.Helper()
	c, err := config.Parse("t.toml", []byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+ordersStream))
	must(t, err)
	return c.Streams[0]
}

func goldenManifest(t testing.TB) *manifest {
	t.Helper()
	versions := map[string]string{"noise": "row/v1", "mechanism": "jme/v1"}
	canonical := []byte(`{"privacy":{"epsilon":1},"step":100,"text":"<&>"}`)
	digest := config.DigestOf(canonical, versions)
	return &manifest{
		Format: manifestFormat, Stream: "orders", Epoch: 3, Source: Source{"cluster", "orders", 0},
		Nonce: []byte("0123456789abcdef"), KeyID: "0011223344556677", EpochID: []byte("abcdefgh"),
		Config: canonical, Versions: versions, Digest: digest[:],
		Incarnation: 2, Base: 1000, Partitions: 4, Mechanism: "moments", Plan: json.RawMessage("{\n    \"clip\": 1\n  }"),
		Cost: dp.Cost{Adjacency: dp.Replace, Mu: 0.25}, LimitEpsilon: 3, LimitDelta: 1e-8, ChargedEpsilonAtOpen: 1.25,
		Persons: []Person{{2, new(2.708)}, {10, nil}}, Version: "v1.2.3",
	}
}

func TestGoldenManifest(t *testing.T) {
	t.Parallel()
	want := goldenManifest(t)
	file, err := want.encode()
	must(t, err)
	golden(t, goldenPath("manifest.json"), file)
	got, err := parseManifest(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read back: %v\n%+v\n%+v", err, got, want)
	}
	for _, change := range [][2]string{
		{`"step": 100`, `"step": 101`}, // the digest
		{`row/v1`, `row/v2`},
		{`"format": 1`, `"format": 2`},
		{`"epoch": 3`, `"epoch": 0`},
		{`"base": 1000`, `"base": -1`},
		{`"nonce": "30`, `"nonce": "`},
		{`"version": "v1.2.3"`, `"version": "v1.2.3", "more": 1`},
	} {
		bad := strings.Replace(string(file), change[0], change[1], 1)
		if bad == string(file) {
			t.Fatalf("no %s in the manifest", change[0])
		}
		if _, err := parseManifest([]byte(bad)); err == nil {
			t.Errorf("a manifest with %s passes", change[1])
		}
	}
	if _, err := parseManifest(append(file, '{')); err == nil {
		t.Error("a manifest with text behind it passes")
	}
}

func TestGoldenLedger(t *testing.T) {
	t.Parallel()
	d := newSimDisk("/s")
	l, err := openLedger(d, "/s")
	must(t, err)
	l.now = func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.FixedZone("x", 3600)) }
	src := Source{"cluster", "orders", 0}
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
	entries, heads, err := parseLedger(file)
	if err != nil || !reflect.DeepEqual(entries, l.entries) || !slices.Equal(heads, l.heads) {
		t.Errorf("read back: %v\n%+v\n%+v", err, entries, l.entries)
	}
	// A torn last line is cut off, wherever it was torn; what the lines before
	// say stays.
	last := strings.LastIndexByte(string(file[:len(file)-1]), '\n') + 1
	for cut := last; cut < len(file); cut += 37 {
		for _, torn := range [][]byte{file[:cut], append(slices.Clone(file[:cut]), make([]byte, len(file)-cut)...), append(append(slices.Clone(file[:last]), make([]byte, cut-last+1)...), file[cut+1:]...)} {
			d := newSimDisk("/s")
			f, err := d.Append("/s/ledger.jsonl")
			must(t, write(f, err, torn))
			l, err := openLedger(d, "/s")
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
	if _, err := openLedger(d, "/s"); err == nil {
		t.Error("a ledger with a damaged first line was opened")
	}
}

// TestLedgerStories: chains that are intact and impossible.
func TestLedgerStories(t *testing.T) {
	t.Parallel()
	src := Source{"c", "orders", 0}
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
		if _, _, err := parseLedger(chain(list)); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	l := &ledger{disk: newSimDisk("/s"), dir: "/s", path: "/s/ledger.jsonl", now: time.Now}
	for _, at := range []int64{-2, 0, 5} {
		if _, err := l.open(open(1, func(e *Entry) { e.First, e.End, e.LimitEpsilon, e.LimitDelta = 5, at, 1, 1e-8 })); err == nil || len(l.entries) > 0 {
			t.Errorf("an epoch from offset 5 to %d is opened", at)
		}
	}
	if _, _, err := parseLedger(chain([]Entry{open(1), end(kindClose, 1, 10), end(kindDestroyed, 1, 0), open(3), end(kindVoid, 3, 0), open(4)})); err != nil {
		t.Error(err)
	}
}

func TestGoldenRelease(t *testing.T) {
	t.Parallel()
	rel := &dp.Release{Step: 7, Rows: 93, Values: []dp.Value{
		{Name: "mean", Shape: []int{3}, Data: []float64{0.1, -1e-9, 1e21}, SE: []float64{0.25}},
		{Name: "second_moment", Shape: []int{3, 3}, Layout: "upper", Data: []float64{1, 0, math.Copysign(0, -1), 1. / 3, 5e-324, 1.7976931348623157e308}, SE: []float64{1, 2, 3, 4, 5, 6}},
		{Name: "unknown_error", Shape: []int{1}, Data: []float64{2}},
	}}
	for file, change := range map[string]func(*config.Stream, *manifest){
		"release.json":          func(*config.Stream, *manifest) {},
		"release.base64.json":   func(s *config.Stream, _ *manifest) { s.Output.Encoding = "base64" },
		"release.values.json":   func(s *config.Stream, _ *manifest) { s.Output.Values = []string{"mean"} },
		"release.insecure.json": func(s *config.Stream, m *manifest) { m.Insecure, s.Input.AllowCompacted = true, true },
	} {
		s, m := goldenStream(t), goldenManifest(t)
		change(s, m)
		e, err := newEncoder(s, m, goldenMechanism())
		must(t, err)
		all, err := e.encode(rel, 1600, 1700)
		must(t, err)
		if len(all) != 1 {
			t.Fatalf("%d messages", len(all))
		}
		p := all[0]
		conforms(t, string(p.value))
		var b strings.Builder
		b.WriteString("key: " + string(p.key) + "\n")
		for _, h := range p.headers {
			b.WriteString(h.Key + ": " + string(h.Value) + "\n")
		}
		golden(t, goldenPath(file), append([]byte(b.String()), append(p.value, '\n')...))
		if task, epoch, step, ok := parseIdentity(p.key); !ok || task != (Task{"orders", 0}) || epoch != 3 || step != 7 {
			t.Errorf("key %s", p.key)
		}
	}
	// A number that JSON has not is never published.
	e, err := newEncoder(goldenStream(t), goldenManifest(t), goldenMechanism())
	must(t, err)
	for _, x := range []float64{math.NaN(), math.Inf(1)} {
		if _, err := e.encode(&dp.Release{Step: 1, Values: []dp.Value{{Name: "mean", Shape: []int{1}, Data: []float64{x}}}}, 0, 1); err == nil {
			t.Errorf("%g is encoded", x)
		}
	}
}
