package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// filesOn returns a rig with a daemon without [cluster], at the broker of a group.
func filesOn(r *streamtest.Rig) *streamtest.Rig {
	s := r.Sibling(r.Toml)
	s.Group = ""
	return s
}

func stateDir(r *streamtest.Rig) string { return filepath.Join(r.Dir, "state") }

func imports(r *streamtest.Rig, dir string) (*cluster.Imported, error) {
	o := r.Options()
	return cluster.Import(r.T.Context(), o.Config, o.Key, dir)
}

func groupBooks(r *streamtest.Rig) *ledger.Books {
	r.T.Helper()
	o := r.Options()
	books, err := cluster.ReadBooks(r.T.Context(), o.Config, o.Key)
	if err != nil {
		r.T.Fatal(err)
	}
	return books
}

// epochsByTask lists epochs in an order independent of shards.
func epochsByTask(b *ledger.Books) []ledger.EpochInfo {
	return slices.SortedFunc(slices.Values(b.Epochs()), func(x, y ledger.EpochInfo) int {
		return 2*strings.Compare(core.Task{Stream: x.Stream, Partition: x.Partition}.String(),
			core.Task{Stream: y.Stream, Partition: y.Partition}.String()) + int(x.Epoch) - int(y.Epoch)
	})
}

func sameEpochs(x, y []ledger.EpochInfo) bool {
	a, err := json.Marshal(x)
	b, err2 := json.Marshal(y)
	return err == nil && err2 == nil && string(a) == string(b)
}

// TestImport: a daemon with files publishes the first releases. After its directory was moved into a group, the group
// publishes the others. Together they equal the releases of one process. Epochs and charges move too, even if the
// import was interrupted at any write and repeated. No daemon starts on the directory any more.
func TestImport(t *testing.T) {
	t.Parallel()
	const partitions = 4
	r := streamtest.GroupRig(t, partitions, "")
	r.Begin()
	feed := func(first, n int) {
		for p := range partitions {
			r.SendTo(p, first, n)
		}
	}
	feed(0, 550)
	f := filesOn(r)
	x := f.Start()
	f.Awaits("orders.dp", 5*partitions, f.Log.String)
	one := task.Request{Kind: task.RequestOpen, Stream: "orders", Partition: 1,
		Open: epoch.OpenRequest{Reason: "requested"}}
	fixtures.Must(t, x.Ask(one)) // the stream then has two epochs
	two := task.Request{Kind: task.RequestClose, Stream: "orders", Partition: 2}
	fixtures.Must(t, x.Ask(two)) // no open epoch
	feed(550, 200)
	f.Awaits("orders.dp", 5*partitions+2*3, f.Log.String)
	if _, err := imports(r, stateDir(f)); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a directory whose daemon runs: %v", err)
	}
	x.End()
	before, err := ledger.ReadBooks(stateDir(f))
	fixtures.Must(t, err)

	o := r.Options()
	cut := errors.New("cut")
	begin := func() *cluster.Importing {
		g, err := cluster.NewGroupTools(t.Context(), o.Config, o.Key)
		fixtures.Must(t, err)
		return cluster.NewImporting(g, stateDir(f))
	}
	// An import that does not fit into a transaction is refused before the directory is given up. The values alone
	// would fit.
	full := begin()
	full.Room = 1
	if _, err := full.Run(t.Context()); err == nil {
		t.Error("there is room for a byte, and more went in")
	}
	values := 0
	for _, s := range full.Shards {
		if s.All != nil {
			values = max(values, s.All.Bytes())
		}
	}
	for _, room := range []int{1, values + 100} {
		full = begin()
		full.Room = room
		if _, err = full.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "more shards") ||
			full.Ledger.Moved() != nil {
			t.Errorf("room for %d bytes: %v", room, err)
		}
	}
	var shards []int
	for cutAt := 0; ; cutAt++ {
		i, at := begin(), 0
		i.Write = func(int) error {
			if at++; at > 1 || cutAt == 0 { // each attempt completes one more shard
				return cut
			}
			return nil
		}
		_, err := i.Run(t.Context())
		shards = i.Order
		if err == nil {
			break
		}
		if !errors.Is(err, cut) || cutAt > len(shards) {
			t.Fatal(err)
		}
		if _, err := os.Stat(f.File(state.SecretName(1))); err != nil {
			t.Errorf("the move is not complete, and a secret is gone: %v", err)
		}
		if _, err := f.Try(); err == nil || !strings.Contains(err.Error(), "were moved to group g") {
			t.Errorf("a directory that is being moved starts: %v", err)
		}
	}
	if len(shards) < 2 {
		t.Fatalf("shards %v: cut nowhere", shards)
	}
	if got, err := imports(r, stateDir(f)); err != nil || got.Tasks != partitions || got.Open != 3 ||
		len(got.Shards) != len(shards) {
		t.Errorf("again: %+v, %v", got, err)
	}
	if got, want := epochsByTask(groupBooks(r)), epochsByTask(before); !sameEpochs(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for p := range partitions {
		got, err := groupBooks(r).Charged(o.Config.Streams[0], p)
		fixtures.Must(t, err)
		if want, err := before.Charged(o.Config.Streams[0], p); err != nil || got != want {
			t.Errorf("partition %d has paid %v, want %v", p, got, want)
		}
	}
	// The remaining directory is read-only.
	if after, err := ledger.ReadBooks(stateDir(f)); err != nil ||
		!sameEpochs(epochsByTask(after), epochsByTask(before)) {
		t.Errorf("the ledger that was moved: %v", err)
	}
	for p := range partitions {
		left, err := os.ReadDir(filepath.Join(stateDir(f), "tasks", core.Task{Stream: "orders", Partition: p}.String()))
		fixtures.Must(t, err)
		for _, e := range left {
			if !strings.HasPrefix(e.Name(), "manifest-") {
				t.Errorf("partition %d: %s is left", p, e.Name())
			}
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "were moved to group g") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = f.Try()
	refused("run", err)
	_, err = stream.RepairLedger(t.Context(), f.Options(), true)
	refused("ledger repair", err)
	h := r.Sibling(r.Toml)
	h.Group = strings.Replace(r.Group, `"g"`, `"h"`, 1)
	h.Begin()
	_, err = imports(h, stateDir(f))
	refused("import into another group", err)

	// The group continues.
	y := r.Instance("a").Start()
	ready(y, false, "task orders-2 is closed")
	if _, err := imports(r, stateDir(f)); err == nil ||
		!strings.Contains(err.Error(), "instances of group g are running (a)") {
		t.Errorf("into a group that runs: %v", err)
	}
	fixtures.Must(t,
		cluster.Ask(t.Context(), o.Config, o.Key,
			task.Request{Kind: task.RequestOpen, Stream: "orders", Partition: 2,
				Open: epoch.OpenRequest{Reason: "requested"}}))
	feed(750, 250)
	r.Awaits("orders.dp", 10*partitions, y.R.Log.String)
	y.End()
	got, want := r.Values("orders.dp"), alone(r, 10*partitions)
	other := func(key string, _ [32]byte) bool {
		return strings.HasPrefix(key, "orders/1/") || strings.HasPrefix(key, "orders/2/")
	}
	maps.DeleteFunc(got, other)
	maps.DeleteFunc(want, other)
	if len(want) != 20 || !maps.Equal(got, want) {
		t.Errorf("%d releases are not those of one process, %d", len(got), len(want))
	}

	// A second directory has charged the same partitions.
	s := filesOn(r)
	s.Toml = fixtures.With(s.Toml, "stream.orders]", "stream.others]", "stream.orders.", "stream.others.",
		"stream.orders.", "stream.others.", `"orders.dp"`, `"others.dp"`)
	z := s.Start()
	s.Awaits("others.dp", 10*partitions, s.Log.String)
	z.End()
	if _, err := imports(r, stateDir(s)); err == nil ||
		!strings.Contains(err.Error(), "the group has already charged epochs over orders/") {
		t.Errorf("the same partitions again: %v", err)
	}
	if _, err := s.Try(); err != nil {
		t.Errorf("a directory that was refused does not start: %v", err)
	}
}

// TestImportRefused: a directory that cannot be moved is refused before anything is written.
func TestImportRefused(t *testing.T) {
	t.Parallel()
	key := connect.InsecureKey(1)
	open := ledger.Entry{Kind: ledger.KindOpen, Stream: "orders", Source: core.Source{Cluster: "c", Topic: "orders"},
		Epoch: 1, End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
	person, merged := open, open
	person.Unit, person.Person = "person",
		&ledger.EntryPerson{Population: "p", Key: "id", Partitioner: "none", Partitions: 1}
	merged.Partition, merged.Parts = core.Merged, []ledger.EntryPart{{Partition: 0, End: -1}}
	moved := ledger.EntryMove{ID: strings.Repeat("0", 32), Group: "other", Cluster: "c"}
	aCopy := moved
	aCopy.Copy = true
	for _, c := range []struct {
		words string
		key   *[32]byte
		lines []ledger.Entry
	}{
		{"is empty", key, nil},
		{"holds key", connect.InsecureKey(2), []ledger.Entry{open}},
		{"protect persons", key, []ledger.Entry{person}},
		{`cluster.assign = "topic"`, key, []ledger.Entry{merged}},
		{"moved to group other", key, []ledger.Entry{open, {Kind: ledger.KindMoved, Move: &moved}}},
		{"a copy of the ledgers of group other", key, []ledger.Entry{open, {Kind: ledger.KindMoved, Move: &aCopy}}},
	} {
		dir := t.TempDir()
		fixtures.Must(t, os.WriteFile(filepath.Join(dir, ledger.FileName), nil, 0o600))
		l, err := ledger.Open(state.OS{}, dir, ledger.NewKey(c.key))
		fixtures.Must(t, err)
		for _, e := range c.lines {
			fixtures.Must(t, l.Append(e))
		}
		i := cluster.NewImporting(
			&cluster.GroupTools{C: &config.Config{Cluster: &config.Cluster{Group: "g", Shards: 4, Assign: "partition"}},
				Master: key}, dir)
		i.G.Genesis.Cluster = "c"
		if err = i.Read(); err == nil {
			err = i.Divide()
		}
		i.Close()
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.words, err)
		}
	}
}

// TestImportFormerKey: all lines of a shard are under the current key, so Import drops anchors under a former key: they
// cannot be verified.
func TestImportFormerKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for n := uint64(1); n <= 2; n++ {
		l, err := ledger.Open(state.OS{}, dir, ledger.NewKey(connect.InsecureKey(n)))
		fixtures.Must(t, err)
		l.AcceptKey()
		open := ledger.Entry{Kind: ledger.KindOpen, Stream: "orders", Source: core.Source{Topic: "orders"}, Epoch: n,
			End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
		fixtures.Must(t, l.Append(open))
		_, err = l.Close(&open, []ledger.EntryPart{{End: 9, AnchorOffset: 8, Anchor: "ab"}}, 0, "")
		fixtures.Must(t, err)
	}
	i := cluster.NewImporting(
		&cluster.GroupTools{C: &config.Config{Cluster: &config.Cluster{Group: "g", Shards: 1}},
			Master: connect.InsecureKey(2)}, dir)
	defer i.Close()
	fixtures.Must(t, i.Read())
	fixtures.Must(t, i.Divide())
	if lines := i.Shards[0].Lines; len(lines) != 4 || lines[1].Anchor != "" || lines[1].AnchorOffset != 0 ||
		lines[3].Anchor != "ab" {
		t.Errorf("%+v", lines)
	}
}

// TestMovedLine: no line may follow a line of kind "moved", and lines of other kinds have no field Move.
func TestMovedLine(t *testing.T) {
	t.Parallel()
	move := &ledger.EntryMove{ID: strings.Repeat("0", 32), Group: "g", Cluster: "c"}
	open := ledger.Entry{Kind: ledger.KindOpen, Stream: "orders", Source: core.Source{Cluster: "c", Topic: "orders"},
		Epoch: 1, End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
	bad := open
	bad.Move = move
	for _, lines := range [][]ledger.Entry{
		{{Kind: ledger.KindMoved, Move: move}, open},
		{bad},
		{{Kind: ledger.KindMoved}},
		{{Kind: ledger.KindImported, Move: &ledger.EntryMove{ID: "0", Group: "g", Cluster: "c"}}},
	} {
		l, err := ledger.Open(simdisk.NewSimDisk("/s"), "/s", ledger.NewKey(connect.InsecureKey(1)))
		fixtures.Must(t, err)
		var text []byte
		for i, e := range lines {
			if i > 0 { // Append refuses, too
				l.Entries[0].Kind = ledger.KindLimit
			}
			fixtures.Must(t, l.Append(e))
		}
		data, err := l.Disk.ReadFile(l.Path)
		fixtures.Must(t, err)
		if _, err := ledger.Parse(append(text, data...), ledger.NewKey(connect.InsecureKey(1))); !errors.Is(err,
			ledger.ErrLedger) {
			t.Errorf("%v: %v", lines, err)
		}
	}
}

// TestExport: a copy of all shards is read like a state directory, and nothing runs on it.
func TestExport(t *testing.T) {
	t.Parallel()
	const partitions = 3
	r := streamtest.GroupRig(t, partitions, "")
	r.Begin()
	for p := range partitions {
		r.SendTo(p, 0, 300)
	}
	y := r.Instance("a").Start()
	r.Awaits("orders.dp", 3*partitions, y.R.Log.String)
	o := r.Options()
	dir := t.TempDir()
	f := filesOn(r)
	for _, secrets := range []bool{false, true} {
		f.Dir = filepath.Join(dir, strconv.FormatBool(secrets))
		got, err := cluster.Export(t.Context(), o.Config, o.Key, stateDir(f), secrets)
		fixtures.Must(t, err)
		if got.Epochs != partitions || got.Lines != partitions+1 {
			t.Errorf("%+v", got)
		}
		books, err := ledger.ReadBooks(stateDir(f))
		fixtures.Must(t, err)
		if !sameEpochs(epochsByTask(books), epochsByTask(groupBooks(r))) {
			t.Errorf("%+v", books.Epochs())
		}
		for p := range partitions {
			all, err := recovery.Verify(t.Context(), recovery.Audit{Config: f.Options().Config, Key: o.Key, Log: o.Log},
				core.Task{Stream: "orders", Partition: p})
			fixtures.Must(t, err)
			if len(all) != 1 ||
				secrets && (all[0].Releases != 3 || all[0].Difference != "" || all[0].Unverifiable != "") ||
				!secrets && all[0].Unverifiable == "" {
				t.Errorf("%+v", all)
			}
		}
	}
	if _, err := cluster.Export(t.Context(), o.Config, o.Key, stateDir(f), true); err == nil ||
		!strings.Contains(err.Error(), "must be a new directory") {
		t.Errorf("over something: %v", err)
	}
	y.End()
	if _, err := f.Try(); err == nil || !strings.Contains(err.Error(), "a copy of the ledgers of group g") {
		t.Errorf("a copy starts: %v", err)
	}
	if _, err := imports(r, stateDir(f)); err == nil ||
		!strings.Contains(err.Error(), "a copy of the ledgers of group g") {
		t.Errorf("a copy is imported: %v", err)
	}
	data, err := os.ReadFile(f.LedgerFile())
	fixtures.Must(t, err)
	if _, err := ledger.Parse(data, ledger.NewKey(o.Key)); err != nil {
		t.Error(err)
	}
}

// TestOneLedger: the lines of several ledgers are ordered by their times, but each ledger's lines keep their order even
// if its clock was set back.
func TestOneLedger(t *testing.T) {
	t.Parallel()
	key := connect.InsecureKey(1)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	of := func(partition int, seconds ...int) *ledger.Ledger {
		l, err := ledger.Open(simdisk.NewSimDisk("/s"), "/s", ledger.NewKey(key))
		fixtures.Must(t, err)
		for i, s := range seconds {
			e := ledger.Entry{Kind: ledger.KindOpen, Stream: "orders",
				Source: core.Source{Cluster: "c", Topic: "orders", Partition: partition}, Epoch: uint64(i/2 + 1),
				End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
			if i%2 == 1 {
				e.Kind, e.End, e.Cost = ledger.KindClose, 5, dp.Cost{}
			}
			l.Now = func() time.Time { return at.Add(time.Duration(s) * time.Second) }
			fixtures.Must(t, l.Append(e))
		}
		return l
	}
	_, l, err := cluster.OneLedger([]*ledger.Ledger{of(0, 5, 6, 2, 9), of(1, 1, 6, 7)}, key,
		ledger.EntryMove{ID: strings.Repeat("0", 32), Group: "g", Cluster: "c", Copy: true})
	fixtures.Must(t, err)
	var got []string
	for _, e := range l.Entries {
		got = append(got, fmt.Sprintf("%d %s %d %d", e.Partition, e.Kind, e.Epoch, e.Time.Second()))
	}
	want := []string{"1 open 1 1", "0 open 1 5", "0 close 1 6", "0 open 2 2", "1 close 1 6", "1 open 2 7",
		"0 close 2 9"}
	if !slices.Equal(got[:len(got)-1], want) || l.Moved() == nil {
		t.Errorf("%q", got)
	}
}
