package stream

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// LedgerRepair is the difference between a ledger and one that has all that the control
// topic and files tell of.
type LedgerRepair struct {
	Kept    int     `json:"kept"`    // lines that can be believed, from the first
	Dropped int     `json:"dropped"` // bytes behind them
	Added   []Entry `json:"added"`
	Old     string  `json:"old,omitempty"` // where the old ledger is, once it is replaced
}

// repair is one that is being worked out, in a file beside the ledger.
type repair struct {
	h   *home
	dir string
	out *LedgerRepair
}

// salvage copies the lines that can be believed.
func (r *repair) salvage() error {
	data, err := r.h.disk.ReadFile(r.dir + "/" + ledgerName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key := newLedgerKey(r.h.key)
	ends := []int{0}
	for i, c := range data {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	// What begins a ledger that can be believed can be believed.
	lo, hi := 0, len(ends)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if _, err := parseLedger(data[:ends[mid]], key); err == nil {
			lo = mid
		} else {
			hi = mid
		}
	}
	// Lines under other keys alone prove nothing: anybody can write them.
	if l, err := parseLedger(data[:ends[lo]], key); err == nil && l.foreign() {
		lo = 0
	}
	r.out.Kept, r.out.Dropped = lo, len(data)-ends[lo]
	path := r.dir + "/" + ledgerName + ".repair"
	if err := removeAll(r.h.disk, r.dir, ledgerName+".repair"); err != nil {
		return err
	}
	if err := writeNew(r.h.disk, path, data[:ends[lo]]); err != nil {
		return err
	}
	l, err := parseLedger(data[:ends[lo]], key)
	if err != nil {
		return err
	}
	l.disk, l.dir, l.path, l.now, l.size = r.h.disk, r.dir, path, time.Now, int64(ends[lo])
	r.h.ledger = l
	return nil
}

// tasks adds what the files of all tasks tell of.
func (r *repair) tasks() error {
	names, err := r.h.disk.ReadDir(r.dir + "/tasks")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	for _, name := range names {
		if t, ok := core.ParseTask(name); ok {
			if err := r.task(t); err != nil {
				return fmt.Errorf("task %s: %w", t, err)
			}
		}
	}
	return nil
}

// task adds what the files of one task tell of.
func (r *repair) task(t core.Task) error {
	l := r.h.ledger
	run, err := newKeeper(r.h, t, func() {})
	if err != nil {
		return err
	}
	if s := r.h.config().Stream(t.Stream); s != nil {
		run.s = s
	}
	files, err := r.h.disk.ReadDir(run.store.dir)
	if err != nil {
		return err
	}
	var epochs []uint64
	for _, name := range files {
		if n, err := strconv.ParseUint(strings.TrimPrefix(name, "manifest-"), 10, 64); err == nil && n > 0 {
			epochs = append(epochs, n)
		}
	}
	slices.Sort(epochs)
	newest := max(l.nextEpoch(t)-1, slices.Max(append(epochs, 0)))
	cp, err := run.store.load()
	if err != nil && !errors.Is(err, errCheckpoint) {
		return err
	}
	// settle closes an epoch that is no longer open, and says which line an open one's
	// checkpoint was written under.
	settle := func(e *Entry) error {
		secret := slices.Contains(files, secretName(e.Epoch))
		if e.Epoch == newest && (secret || cp != nil && cp.epoch == e.Epoch) {
			if cp == nil || cp.epoch != e.Epoch || l.knows(cp.ledger) {
				return nil
			}
			return l.append(Entry{Kind: kindRepair, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch, Accepts: hex.EncodeToString(cp.ledger[:])})
		}
		var ends []EntryPart
		for _, v := range e.views() {
			ends = append(ends, EntryPart{Partition: v.Partition, End: v.End})
		}
		closing := e.closing(ends, 0)
		closing.Reason = "repaired"
		if err := l.append(*closing); err != nil || secret {
			return err
		}
		return l.append(Entry{Kind: kindDestroyed, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch})
	}
	if last := l.newest(t); last != nil && last.Kind == kindOpen {
		if err := settle(last); err != nil {
			return err
		}
	}
	for _, n := range epochs {
		if n < l.nextEpoch(t) {
			continue
		}
		e, err := r.opened(run, n, cp)
		if err != nil {
			return err
		}
		if err := l.append(*e); err != nil {
			return err
		}
		if err := settle(e); err != nil {
			return err
		}
	}
	return nil
}

// opened makes the entry that a manifest's epoch was charged by. The epoch ends at its
// horizon, as the mechanism says. cp is the task's checkpoint, nil if there is none.
func (r *repair) opened(run *keeper, n uint64, cp *checkpoint) (*Entry, error) {
	file, err := r.h.disk.ReadFile(run.store.path(manifestName(n)))
	if err != nil {
		return nil, err
	}
	m, err := core.ParseManifest(file)
	if err != nil {
		return nil, halted(haltState, "manifest of epoch %d: %w", n, err)
	}
	if m.Task() != run.task || m.Epoch != n {
		return nil, halted(haltState, "manifest of epoch %d: it is another one's", n)
	}
	ends, err := vouched(m, file, cp)
	if err != nil {
		return nil, err
	}
	var c struct {
		Privacy struct{ Epsilon, Delta float64 }
		User    json.RawMessage
	}
	if err := json.Unmarshal(m.Config, &c); err != nil {
		return nil, halted(haltState, "manifest of epoch %d: %w", n, err)
	}
	e := &Entry{
		Kind: kindOpen, Stream: m.Stream, Source: m.Source, Epoch: n, Nonce: hex.EncodeToString(m.Nonce), Digest: hex.EncodeToString(m.Digest),
		Incarnation: m.Incarnation, First: m.Base, End: ends[0], Mechanism: m.Mechanism, Cost: m.Cost,
		Epsilon: c.Privacy.Epsilon, Delta: c.Privacy.Delta, LimitEpsilon: m.LimitEpsilon, LimitDelta: m.LimitDelta, Reason: "repaired",
	}
	if c.User != nil {
		s, err := config.StreamOf(m.Stream, m.Config)
		if err != nil {
			return nil, halted(haltState, "manifest of epoch %d: it protects persons, and who they are can't be read (%w); restore the ledger from a backup", n, err)
		}
		e.Unit, e.Person = entryPerson(s, m.Partitions)
	}
	switch {
	case cp != nil && cp.epoch == n:
		e.Output = &EntryOutput{cp.outputTopic, cp.outputPartition}
	case run.s != nil:
		e.Output = &EntryOutput{run.s.Output.Topic, run.s.Output.Partition}
	}
	for i, p := range m.Parts {
		e.Parts = append(e.Parts, EntryPart{Partition: p.Partition, Incarnation: p.Incarnation, First: p.Base, End: ends[i]})
	}
	if m.Partition == core.Merged {
		e.sum()
	}
	if slices.ContainsFunc(e.accounts(), r.h.ledger.unopened) && run.s != nil {
		reserved, err := core.Reserve(r.h.config(), run.s)
		if err != nil {
			return nil, halted(haltBudget, "%w", err)
		}
		if !reserved.Sketches.Empty() {
			e.Reserved = reserved.Sketches
		}
	}
	return e, nil
}
