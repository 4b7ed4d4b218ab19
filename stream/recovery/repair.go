package recovery

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// LedgerRepair describes how a reconstructed ledger differs from the old one. The reconstructed ledger also has the
// lines that the control topic and the tasks' files prove.
type LedgerRepair struct {
	Kept    int            `json:"kept"`    // number of leading lines that are valid
	Dropped int            `json:"dropped"` // bytes after these lines
	Added   []ledger.Entry `json:"added"`
	Old     string         `json:"old,omitempty"` // path of the old ledger, once it was replaced
}

// Repair reconstructs a ledger in a file next to the old one: Salvage copies the valid lines of the old ledger, and
// then Tasks adds the lines that the tasks' files prove.
type Repair struct {
	Shard *epoch.Shard
	Dir   string        // the state directory
	Out   *LedgerRepair // the result so far
}

// Salvage copies the valid lines.
func (r *Repair) Salvage() error {
	data, err := r.Shard.Disk.ReadFile(r.Dir + "/" + ledger.FileName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key := ledger.NewKey(r.Shard.Key)
	ends := []int{0}
	for i, c := range data {
		if c == '\n' {
			ends = append(ends, i+1)
		}
	}
	// If n lines are valid, fewer lines are valid too. So bisection finds the number of valid lines.
	lo, hi := 0, len(ends)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if _, err := ledger.Parse(data[:ends[mid]], key); err == nil {
			lo = mid
		} else {
			hi = mid
		}
	}
	// If all MACs are under other keys, the lines prove nothing, because anybody can write such lines.
	if l, err := ledger.Parse(data[:ends[lo]], key); err == nil && l.Foreign() {
		lo = 0
	}
	r.Out.Kept, r.Out.Dropped = lo, len(data)-ends[lo]
	l, err := ledger.Continue(r.Shard.Disk, r.Dir, ledger.FileName+".repair", data[:ends[lo]], key)
	if err != nil {
		return err
	}
	r.Shard.Ledger = l
	return nil
}

// Tasks adds the lines that the files of all tasks prove.
func (r *Repair) Tasks() error {
	names, err := r.Shard.Disk.ReadDir(r.Dir + "/tasks")
	if err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
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

// task adds the lines that the files of one task prove.
func (r *Repair) task(t core.Task) error {
	l := r.Shard.Ledger
	run, err := epoch.NewKeeper(r.Shard, t, func() {})
	if err != nil {
		return err
	}
	if s := r.Shard.Config().Stream(t.Stream); s != nil {
		run.S = s
	}
	epochs, secrets, err := run.Store.Epochs()
	if err != nil {
		return err
	}
	newest := max(l.NextEpoch(t)-1, slices.Max(append(epochs, 0)))
	cp, err := run.Store.Load()
	if err != nil && !errors.Is(err, state.ErrCheckpoint) {
		return err
	}
	// settle adds the closing line of an epoch that is no longer open. For an open epoch, it records the ledger line to
	// which the checkpoint refers.
	settle := func(e *ledger.Entry) error {
		secret := slices.Contains(secrets, e.Epoch)
		if e.Epoch == newest && (secret || cp != nil && cp.Epoch == e.Epoch) {
			if cp == nil || cp.Epoch != e.Epoch || l.Knows(cp.Ledger) {
				return nil
			}
			return l.Repaired(e, cp.Ledger)
		}
		var ends []ledger.EntryPart
		for _, v := range e.Views() {
			ends = append(ends, ledger.EntryPart{Partition: v.Partition, End: v.End})
		}
		if _, err := l.Close(e, ends, 0, "repaired"); err != nil || secret {
			return err
		}
		return l.Destroyed(e)
	}
	if last := l.Newest(t); last != nil && last.Kind == ledger.KindOpen {
		if err := settle(last); err != nil {
			return err
		}
	}
	for _, n := range epochs {
		if n < l.NextEpoch(t) {
			continue
		}
		e, err := r.opened(run, n, cp)
		if err != nil {
			return err
		}
		if err := l.Reopen(*e); err != nil {
			return err
		}
		if err := settle(e); err != nil {
			return err
		}
	}
	return nil
}

// opened returns the opening entry for the epoch of a manifest. The epoch ends at its horizon, as computed from the
// mechanism. cp is the task's checkpoint, or nil if there is none.
func (r *Repair) opened(run *epoch.Keeper, n uint64, cp *state.Checkpoint) (*ledger.Entry, error) {
	file, err := run.Store.Manifest(n)
	if err != nil {
		return nil, err
	}
	m, err := core.ParseManifest(file)
	if err != nil {
		return nil, failure.Haltf(failure.State, "manifest of epoch %d: %w", n, err)
	}
	if m.Task() != run.Task || m.Epoch != n {
		return nil, failure.Haltf(failure.State, "manifest of epoch %d: it belongs to another epoch or task", n)
	}
	ends, err := provenCharge(m, file, cp)
	if err != nil {
		return nil, err
	}
	var c struct {
		Privacy struct{ Epsilon, Delta float64 }
		User    json.RawMessage
	}
	if err := json.Unmarshal(m.Config, &c); err != nil {
		return nil, failure.Haltf(failure.State, "manifest of epoch %d: %w", n, err)
	}
	e := &ledger.Entry{
		Kind: ledger.KindOpen, Stream: m.Stream, Source: m.Source, Epoch: n, Nonce: hex.EncodeToString(m.Nonce),
		Digest:    hex.EncodeToString(m.Digest),
		Mechanism: m.Mechanism, Cost: m.Cost,
		Epsilon: c.Privacy.Epsilon, Delta: c.Privacy.Delta, LimitEpsilon: m.LimitEpsilon, LimitDelta: m.LimitDelta,
		Reason: "repaired",
	}
	if c.User != nil {
		s, err := config.StreamOf(m.Stream, m.Config)
		if err != nil {
			return nil, failure.Haltf(failure.State,
				"manifest of epoch %d: it protects persons, but their description cannot be read (%w); restore the "+
					"ledger from a backup", n, err)
		}
		e.Unit, e.Person = ledger.PersonOf(s, m.Partitions)
	}
	switch {
	case cp != nil && cp.Epoch == n:
		e.Output = &ledger.EntryOutput{Topic: cp.OutputTopic, Partition: cp.OutputPartition}
	case run.S != nil:
		e.Output = &ledger.EntryOutput{Topic: run.S.Output.Topic, Partition: run.S.Output.Partition}
	}
	charged := []ledger.EntryPart{{Incarnation: m.Incarnation, First: m.Base, End: ends[0]}}
	if m.Partition == core.Merged {
		charged = nil
		for i, p := range m.Parts {
			charged = append(charged,
				ledger.EntryPart{Partition: p.Partition, Incarnation: p.Incarnation, First: p.Base, End: ends[i]})
		}
	}
	e.Charge(charged)
	if run.S != nil {
		if err := r.Shard.Ledger.Reserve(e, r.Shard.Config(), run.S); err != nil {
			return nil, err
		}
	}
	return e, nil
}
