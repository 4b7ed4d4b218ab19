package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// EpochInfo is an epoch according to the ledger.
type EpochInfo struct {
	Stream      string    `json:"stream"`
	Partition   int       `json:"partition"`
	Epoch       uint64    `json:"epoch"`
	State       string    `json:"state"` // "open" or "closed"
	Cluster     string    `json:"cluster"`
	Topic       string    `json:"topic"`
	Incarnation uint64    `json:"incarnation"`
	First       int64     `json:"first"`
	End         int64     `json:"end"` // −1: open end
	Mechanism   string    `json:"mechanism"`
	Epsilon     float64   `json:"epsilon"`
	Delta       float64   `json:"delta"`
	Mu          float64   `json:"mu"`
	Adjacency   string    `json:"adjacency"`
	Opened      time.Time `json:"opened"`
	// Closed is the time at which the epoch ended. Destroyed is the time at which its secret was deleted; after that,
	// nobody can derive its noise again. nil: not yet.
	Closed    *time.Time `json:"closed,omitempty"`
	Destroyed *time.Time `json:"secret_destroyed,omitempty"`
	// Digest is the SHA-256 of the stream's configuration and the mechanism's version, in
	// hexadecimal.
	Digest string `json:"digest"`
	// Unit is "person" if the epoch protects the persons of Population, else empty.
	Unit       string `json:"unit,omitempty"`
	Population string `json:"population,omitempty"`
	Reason     string `json:"reason"` // why the epoch ended or, while it is open, why it was opened
	// Parts are the partitions of a merged epoch. First and End are then sums over the parts.
	Parts []EntryPart `json:"parts,omitempty"`
}

// globbed escapes the characters that have a special meaning in a path pattern.
var globbed = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)

// Read reads the ledger of a state directory. Another process may be writing it, so Read ignores a last line without a
// newline.
func Read(dir string) (*Ledger, error) {
	data, err := state.OS{}.ReadFile(dir + "/" + FileName)
	if errors.Is(err, fs.ErrNotExist) {
		if found, err := filepath.Glob(filepath.Join(globbed.Replace(dir), "tasks", "*", "manifest-*")); err != nil ||
			len(found) > 0 {
			return nil,
				fmt.Errorf(
					"%w: %s/%s is missing, but the folder tasks has epochs: restore the ledger; if there is no copy "+
						"of it, run: streamdp ledger repair", failure.ErrState, dir, FileName)
		}
		return &Ledger{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	l, err := Parse(data[:CompleteLines(data)], nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	return l, nil
}

// Books are the ledgers of an installation as they were when read: the one ledger of a state directory or, if instances
// share tasks, the ledgers of all shards. No two ledgers charge the same input partition or the same persons.
type Books struct{ Ledgers []*Ledger }

// ReadBooks reads the ledger of a state directory. A daemon may be running on it.
func ReadBooks(dir string) (*Books, error) {
	l, err := Read(dir)
	if err != nil {
		return nil, err
	}
	return &Books{[]*Ledger{l}}, nil
}

// Moved returns why no daemon may run on the ledger's directory: its tasks were moved into a group, or it is a
// read-only copy. It returns nil if a daemon may run.
func (b *Books) Moved() error {
	for _, l := range b.Ledgers {
		if m := l.Moved(); m != nil {
			return m.Refusal()
		}
	}
	return nil
}

// Epochs lists all epochs, ledger by ledger. Within a ledger they are in the order in which they were opened.
func (b *Books) Epochs() []EpochInfo {
	out := []EpochInfo{}
	for _, l := range b.Ledgers {
		out = append(out, l.EpochList()...)
	}
	return out
}

// EpochList lists the epochs in the order in which they were opened.
func (l *Ledger) EpochList() (out []EpochInfo) {
	for i := range l.Entries {
		e := &l.Entries[i]
		if e.Kind != KindOpen {
			continue
		}
		info := EpochInfo{
			Stream: e.Stream, Partition: e.Partition, Epoch: e.Epoch, State: "open",
			Cluster: e.Cluster, Topic: e.Topic, Incarnation: e.Incarnation, First: e.First, End: e.End,
			Mechanism: e.Mechanism, Epsilon: e.Epsilon, Delta: e.Delta, Mu: e.Cost.Mu,
			Adjacency: e.Cost.Adjacency.String(),
			Opened:    e.Time, Reason: e.Reason, Digest: e.Digest, Unit: e.Unit, Parts: slices.Clone(e.Parts),
		}
		if e.Person != nil {
			info.Population = e.Person.Population
		}
		if end := l.End(i); end != nil {
			if end.Kind == KindVoid {
				continue
			}
			info.State, info.End, info.Reason, info.Closed = "closed", end.End, end.Reason, &end.Time
			for i := range end.Parts {
				info.Parts[i].End = end.Parts[i].End
			}
		}
		for j := i + 1; j < len(l.Entries); j++ {
			if d := &l.Entries[j]; d.Kind == KindDestroyed && d.Task() == e.Task() && d.Epoch == e.Epoch {
				info.Destroyed = &d.Time
				break
			}
		}
		out = append(out, info)
	}
	return out
}

// SourceBudget is the history of charges to an input partition or, if persons are protected, to a population.
type SourceBudget struct {
	core.Source
	Population string        `json:"population,omitempty"`
	Events     []BudgetEvent `json:"events"`
}

// Budget returns every charge and every change of a limit, in order.
func (b *Books) Budget() ([]SourceBudget, error) {
	all := []SourceBudget{}
	for _, l := range b.Ledgers {
		for i := range l.Entries {
			if l.Entries[i].Kind != KindOpen {
				continue
			}
			for _, a := range l.Entries[i].accounts() {
				if slices.ContainsFunc(all,
					func(b SourceBudget) bool { return b.Source == a.Source && b.Population == a.Population }) {
					continue
				}
				l.mu.Lock()
				events, err := l.budgetOf(a, 0)
				l.mu.Unlock()
				if err != nil {
					return nil, err
				}
				if len(events) > 0 {
					all = append(all, SourceBudget{a.Source, a.Population, events})
				}
			}
		}
	}
	return all, nil
}

// Charged returns the ε, at the limit's δ, of the record that has paid most in a stream's input partition or, for a
// merged stream, in any partition that it reads. If the stream protects persons, it returns the ε of the person of the
// population who has paid most. The result is the maximum over all clusters in the ledgers and over all adjacencies in
// which there was ever a charge.
func (b *Books) Charged(s *config.Stream, partition int) (worst float64, err error) {
	for _, l := range b.Ledgers {
		eps, err := l.chargedOf(s, partition)
		if err != nil {
			return 0, err
		}
		worst = max(worst, eps)
	}
	return worst, nil
}

// chargedOf is Books.Charged for one ledger.
func (l *Ledger) chargedOf(s *config.Stream, partition int) (float64, error) {
	var accounts []Account
	if s.User != nil {
		accounts = []Account{{Population: s.User.Population}}
	}
	for i := range l.Entries {
		for _, src := range l.Entries[i].Sources() {
			a := Account{Source: src}
			if s.User == nil && src.Topic == s.Input.Topic && !slices.Contains(accounts, a) &&
				(partition == src.Partition || partition == core.Merged && s.Input.Reads(src.Partition)) {
				accounts = append(accounts, a)
			}
		}
	}
	worst := 0.0
	for _, a := range accounts {
		eps, err := l.chargedEpsilon(a, s.Privacy.Adjacency, s.Privacy.LimitDelta)
		if err != nil {
			return 0, err
		}
		worst = max(worst, eps)
	}
	return worst, nil
}
