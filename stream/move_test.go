package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// filesOn returns a rig of a daemon without [cluster], at the broker of a group.
func filesOn(r *rig) *rig {
	s := r.sibling(r.toml)
	s.group = ""
	return s
}

func stateDir(r *rig) string { return filepath.Join(r.dir, "state") }

func imports(r *rig, dir string) (*GroupImport, error) {
	o := r.options()
	return ImportCluster(r.t.Context(), o.Config, o.Key, dir)
}

func groupBooks(r *rig) *Books {
	r.t.Helper()
	o := r.options()
	books, err := ReadGroupBooks(r.t.Context(), o.Config, o.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	return books
}

// epochsByTask lists epochs in an order that does not depend on shards.
func epochsByTask(b *Books) []EpochInfo {
	return slices.SortedFunc(slices.Values(b.Epochs()), func(x, y EpochInfo) int {
		return 2*strings.Compare(core.Task{Stream: x.Stream, Partition: x.Partition}.String(), core.Task{Stream: y.Stream, Partition: y.Partition}.String()) + int(x.Epoch) - int(y.Epoch)
	})
}

func sameEpochs(x, y []EpochInfo) bool {
	a, err := json.Marshal(x)
	b, err2 := json.Marshal(y)
	return err == nil && err2 == nil && string(a) == string(b)
}

// TestImport: a daemon with files publishes the first part, and a group into which its directory was
// moved the second. Together they are what one process publishes. Epochs and charges go along, also
// where the move was cut off at any write and repeated, and the directory starts no more.
func TestImport(t *testing.T) {
	t.Parallel()
	const partitions = 4
	r := groupRig(t, partitions, "")
	r.begin()
	feed := func(first, n int) {
		for p := range partitions {
			r.sendTo(p, first, n)
		}
	}
	feed(0, 550)
	f := filesOn(r)
	x := f.start()
	f.awaits("orders.dp", 5*partitions, f.log.String)
	one := ControlRequest{Stream: "orders", Partition: 1, Open: OpenRequest{Reason: "requested"}}
	must(t, x.ask(requestOpen, one)) // it has two epochs then
	two := ControlRequest{Stream: "orders", Partition: 2}
	must(t, x.ask(requestClose, two)) // none that is open
	feed(550, 200)
	f.awaits("orders.dp", 5*partitions+2*3, f.log.String)
	if _, err := imports(r, stateDir(f)); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a directory whose daemon runs: %v", err)
	}
	x.end()
	before, err := ReadBooks(stateDir(f))
	must(t, err)

	o := r.options()
	cut := errors.New("cut")
	begin := func() *importing {
		g, err := newGroupTools(t.Context(), o.Config, o.Key)
		must(t, err)
		return newImporting(g, stateDir(f))
	}
	// What a transaction has no room for is refused before the directory is given up. The values
	// alone have room.
	full := begin()
	full.room = 1
	if _, err := full.run(t.Context()); err == nil {
		t.Error("there is room for a byte, and more went in")
	}
	values := 0
	for _, s := range full.shards {
		if s.all != nil {
			values = max(values, s.all.bytes())
		}
	}
	for _, room := range []int{1, values + 100} {
		full = begin()
		full.room = room
		if _, err = full.run(t.Context()); err == nil || !strings.Contains(err.Error(), "more shards") || full.ledger.moved() != nil {
			t.Errorf("room for %d bytes: %v", room, err)
		}
	}
	var shards []int
	for cutAt := 0; ; cutAt++ {
		i, at := begin(), 0
		i.write = func(int) error {
			if at++; at > 1 || cutAt == 0 { // one more shard each time
				return cut
			}
			return nil
		}
		_, err := i.run(t.Context())
		shards = i.order
		if err == nil {
			break
		}
		if !errors.Is(err, cut) || cutAt > len(shards) {
			t.Fatal(err)
		}
		if _, err := os.Stat(f.file(secretName(1))); err != nil {
			t.Errorf("the move is not complete, and a secret is gone: %v", err)
		}
		if _, err := f.try(); err == nil || !strings.Contains(err.Error(), "were moved to group g") {
			t.Errorf("a directory that is being moved starts: %v", err)
		}
	}
	if len(shards) < 2 {
		t.Fatalf("shards %v: cut nowhere", shards)
	}
	if got, err := imports(r, stateDir(f)); err != nil || got.Tasks != partitions || got.Open != 3 || len(got.Shards) != len(shards) {
		t.Errorf("again: %+v, %v", got, err)
	}
	if got, want := epochsByTask(groupBooks(r)), epochsByTask(before); !sameEpochs(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for p := range partitions {
		got, err := groupBooks(r).Charged(o.Config.Streams[0], p)
		must(t, err)
		if want, err := before.Charged(o.Config.Streams[0], p); err != nil || got != want {
			t.Errorf("partition %d has paid %v, want %v", p, got, want)
		}
	}
	// What is left is for reading.
	if after, err := ReadBooks(stateDir(f)); err != nil || !sameEpochs(epochsByTask(after), epochsByTask(before)) {
		t.Errorf("the ledger that was moved: %v", err)
	}
	for p := range partitions {
		left, err := os.ReadDir(filepath.Join(stateDir(f), "tasks", core.Task{Stream: "orders", Partition: p}.String()))
		must(t, err)
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
	_, err = f.try()
	refused("run", err)
	_, err = RepairLedger(t.Context(), f.options(), true)
	refused("ledger repair", err)
	h := r.sibling(r.toml)
	h.group = strings.Replace(r.group, `"g"`, `"h"`, 1)
	h.begin()
	_, err = imports(h, stateDir(f))
	refused("import into another group", err)

	// It goes on.
	y := r.instance("a").start()
	ready(y, false, "task orders-2 is closed")
	if _, err := imports(r, stateDir(f)); err == nil || !strings.Contains(err.Error(), "instances of group g are running (a)") {
		t.Errorf("into a group that runs: %v", err)
	}
	must(t, AskGroup(t.Context(), o.Config, o.Key, requestOpen, ControlRequest{Stream: "orders", Partition: 2, Open: OpenRequest{Reason: "requested"}}))
	feed(750, 250)
	r.awaits("orders.dp", 10*partitions, y.r.log.String)
	y.end()
	got, want := r.values("orders.dp"), alone(r, 10*partitions)
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
	s.toml = with(s.toml, "stream.orders]", "stream.others]", "stream.orders.", "stream.others.", "stream.orders.", "stream.others.", `"orders.dp"`, `"others.dp"`)
	z := s.start()
	s.awaits("others.dp", 10*partitions, s.log.String)
	z.end()
	if _, err := imports(r, stateDir(s)); err == nil || !strings.Contains(err.Error(), "the group has charged orders/") {
		t.Errorf("the same partitions again: %v", err)
	}
	if _, err := s.try(); err != nil {
		t.Errorf("a directory that was refused does not start: %v", err)
	}
}

// TestImportRefused: what can't be moved is refused before anything is written.
func TestImportRefused(t *testing.T) {
	t.Parallel()
	key := InsecureKey(1)
	open := Entry{Kind: kindOpen, Stream: "orders", Source: core.Source{Cluster: "c", Topic: "orders"}, Epoch: 1, End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
	person, merged := open, open
	person.Unit, person.Person = "person", &EntryPerson{Population: "p", Key: "id", Partitioner: "none", Partitions: 1}
	merged.Partition, merged.Parts = core.Merged, []EntryPart{{Partition: 0, End: -1}}
	moved := EntryMove{ID: strings.Repeat("0", 32), Group: "other", Cluster: "c"}
	aCopy := moved
	aCopy.Copy = true
	for _, c := range []struct {
		words string
		key   *[32]byte
		lines []Entry
	}{
		{"is empty", key, nil},
		{"holds key", InsecureKey(2), []Entry{open}},
		{"protect persons", key, []Entry{person}},
		{`cluster.assign = "topic"`, key, []Entry{merged}},
		{"moved to group other", key, []Entry{open, {Kind: kindMoved, Move: &moved}}},
		{"a copy of the ledgers of group other", key, []Entry{open, {Kind: kindMoved, Move: &aCopy}}},
	} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, ledgerName), nil, 0o600))
		l, err := openLedger(osDisk{}, dir, newLedgerKey(c.key))
		must(t, err)
		for _, e := range c.lines {
			must(t, l.append(e))
		}
		i := newImporting(&groupTools{c: &config.Config{Cluster: &config.Cluster{Group: "g", Shards: 4, Assign: "partition"}}, master: key}, dir)
		i.g.genesis.Cluster = "c"
		if err = i.read(); err == nil {
			err = i.divide()
		}
		i.close()
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.words, err)
		}
	}
}

// TestImportFormerKey: an anchor that is under a former key proves nothing under the present one, and
// a shard's lines are all under that.
func TestImportFormerKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for n := uint64(1); n <= 2; n++ {
		l, err := openLedger(osDisk{}, dir, newLedgerKey(InsecureKey(n)))
		must(t, err)
		l.acceptKey()
		open := Entry{Kind: kindOpen, Stream: "orders", Source: core.Source{Topic: "orders"}, Epoch: n, End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
		must(t, l.append(open))
		must(t, l.append(*open.closing([]EntryPart{{End: 9, AnchorOffset: 8, Anchor: "ab"}}, 0)))
	}
	i := newImporting(&groupTools{c: &config.Config{Cluster: &config.Cluster{Group: "g", Shards: 1}}, master: InsecureKey(2)}, dir)
	defer i.close()
	must(t, i.read())
	must(t, i.divide())
	if lines := i.shards[0].lines; len(lines) != 4 || lines[1].Anchor != "" || lines[1].AnchorOffset != 0 || lines[3].Anchor != "ab" {
		t.Errorf("%+v", lines)
	}
}

// TestMovedLine: nothing is behind it, and no other line says where tasks went.
func TestMovedLine(t *testing.T) {
	t.Parallel()
	move := &EntryMove{ID: strings.Repeat("0", 32), Group: "g", Cluster: "c"}
	open := Entry{Kind: kindOpen, Stream: "orders", Source: core.Source{Cluster: "c", Topic: "orders"}, Epoch: 1, End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
	bad := open
	bad.Move = move
	for _, lines := range [][]Entry{
		{{Kind: kindMoved, Move: move}, open},
		{bad},
		{{Kind: kindMoved}},
		{{Kind: kindImported, Move: &EntryMove{ID: "0", Group: "g", Cluster: "c"}}},
	} {
		l, err := openLedger(newSimDisk("/s"), "/s", newLedgerKey(InsecureKey(1)))
		must(t, err)
		var text []byte
		for i, e := range lines {
			if i > 0 { // append itself refuses
				l.entries[0].Kind = kindLimit
			}
			must(t, l.append(e))
		}
		data, err := l.disk.ReadFile(l.path)
		must(t, err)
		if _, err := parseLedger(append(text, data...), newLedgerKey(InsecureKey(1))); !errors.Is(err, errLedger) {
			t.Errorf("%v: %v", lines, err)
		}
	}
}

// TestExport: a copy of all shards is read like a state directory, and nothing runs on it.
func TestExport(t *testing.T) {
	t.Parallel()
	const partitions = 3
	r := groupRig(t, partitions, "")
	r.begin()
	for p := range partitions {
		r.sendTo(p, 0, 300)
	}
	y := r.instance("a").start()
	r.awaits("orders.dp", 3*partitions, y.r.log.String)
	o := r.options()
	dir := t.TempDir()
	f := filesOn(r)
	for _, secrets := range []bool{false, true} {
		f.dir = filepath.Join(dir, strconv.FormatBool(secrets))
		got, err := ExportCluster(t.Context(), o.Config, o.Key, stateDir(f), secrets)
		must(t, err)
		if got.Epochs != partitions || got.Lines != partitions+1 {
			t.Errorf("%+v", got)
		}
		books, err := ReadBooks(stateDir(f))
		must(t, err)
		if !sameEpochs(epochsByTask(books), epochsByTask(groupBooks(r))) {
			t.Errorf("%+v", books.Epochs())
		}
		for p := range partitions {
			all, err := Verify(t.Context(), Audit{Config: f.options().Config, Key: o.Key, Log: o.Log}, core.Task{Stream: "orders", Partition: p})
			must(t, err)
			if len(all) != 1 || secrets && (all[0].Releases != 3 || all[0].Difference != "" || all[0].Unverifiable != "") || !secrets && all[0].Unverifiable == "" {
				t.Errorf("%+v", all)
			}
		}
	}
	if _, err := ExportCluster(t.Context(), o.Config, o.Key, stateDir(f), true); err == nil || !strings.Contains(err.Error(), "must be a new directory") {
		t.Errorf("over something: %v", err)
	}
	y.end()
	if _, err := f.try(); err == nil || !strings.Contains(err.Error(), "a copy of the ledgers of group g") {
		t.Errorf("a copy starts: %v", err)
	}
	if _, err := imports(r, stateDir(f)); err == nil || !strings.Contains(err.Error(), "a copy of the ledgers of group g") {
		t.Errorf("a copy is imported: %v", err)
	}
	data, err := os.ReadFile(f.ledgerFile())
	must(t, err)
	if _, err := parseLedger(data, newLedgerKey(o.Key)); err != nil {
		t.Error(err)
	}
}

// TestOneLedger: lines of several ledgers stand in the order of their times, and each ledger's in its
// own, whatever its clock did.
func TestOneLedger(t *testing.T) {
	t.Parallel()
	key := InsecureKey(1)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	of := func(partition int, seconds ...int) *ledger {
		l, err := openLedger(newSimDisk("/s"), "/s", newLedgerKey(key))
		must(t, err)
		for i, s := range seconds {
			e := Entry{Kind: kindOpen, Stream: "orders", Source: core.Source{Cluster: "c", Topic: "orders", Partition: partition}, Epoch: uint64(i/2 + 1), End: -1, Cost: dp.Cost{Mu: 1, Adjacency: dp.ZeroOut}}
			if i%2 == 1 {
				e.Kind, e.End, e.Cost = kindClose, 5, dp.Cost{}
			}
			e.Time = at.Add(time.Duration(s) * time.Second)
			must(t, l.copyLine(e))
		}
		return l
	}
	_, l, err := oneLedger([]*ledger{of(0, 5, 6, 2, 9), of(1, 1, 6, 7)}, key, EntryMove{ID: strings.Repeat("0", 32), Group: "g", Cluster: "c", Copy: true})
	must(t, err)
	var got []string
	for _, e := range l.entries {
		got = append(got, fmt.Sprintf("%d %s %d %d", e.Partition, e.Kind, e.Epoch, e.Time.Second()))
	}
	want := []string{"1 open 1 1", "0 open 1 5", "0 close 1 6", "0 open 2 2", "1 close 1 6", "1 open 2 7", "0 close 2 9"}
	if !slices.Equal(got[:len(got)-1], want) || l.moved() == nil {
		t.Errorf("%q", got)
	}
}
