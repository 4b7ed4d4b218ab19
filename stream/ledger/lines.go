package ledger

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// This file has one method for each kind of line that the program writes. Each makes its line durable.

// Open charges an epoch: it appends e. It returns an error instead if the records of the source, or the persons of the
// population, would then have paid more than the limit. The result is the ε charged so far, including this epoch, at
// the limit's δ.
func (l *Ledger) Open(e Entry) (charged float64, err error) {
	if !e.chargesOffsets() {
		return 0, fmt.Errorf("internal: epoch %d would charge offsets %d to %d, an invalid range", e.Epoch,
			e.First, e.End)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if charged, err = l.fitsAll(&e, nil); err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(e.accounts(), l.unopenedLocked) {
		e.Reserved = dp.Cost{}
	}
	return charged, l.appendLocked(e)
}

// Reserve sets e.Reserved if opening e is the first of an account: the part of the limit that the stream sets aside for
// sketches.
func (l *Ledger) Reserve(e *Entry, c *config.Config, s *config.Stream) error {
	if !slices.ContainsFunc(e.accounts(), l.Unopened) {
		return nil
	}
	reserved, err := core.Reserve(c, s)
	if err != nil {
		return failure.Haltf(failure.Budget, "%w", err)
	}
	if !reserved.Sketches.Empty() {
		e.Reserved = reserved.Sketches
	}
	return nil
}

// Reopen appends the opening of an epoch that was already charged in a ledger that was lost. It does not check the
// limit.
func (l *Ledger) Reopen(e Entry) error { return l.Append(e) }

// Void takes back the charge of an epoch that never began.
func (l *Ledger) Void(opened *Entry) error {
	var parts []EntryPart
	for _, p := range opened.Parts {
		parts = append(parts, EntryPart{Partition: p.Partition})
	}
	return l.Append(Entry{
		Kind: KindVoid, Stream: opened.Stream, Source: opened.Source, Epoch: opened.Epoch, Parts: parts,
		Reason: "interrupted while opening, before any noise",
	})
}

// Close ends the epoch of an opening. ends has one end for each view of the opening, and steps is a lower bound on the
// steps of the epoch. Close returns the line's End: the sum of the ends, or −1 if one of them is −1.
func (l *Ledger) Close(opened *Entry, ends []EntryPart, steps uint64, reason string) (end int64, err error) {
	e := opened.closing(ends, steps)
	e.Reason = reason
	return e.End, l.Append(*e)
}

// Destroyed records that the secret of an epoch is gone.
func (l *Ledger) Destroyed(e *Entry) error {
	return l.Append(Entry{Kind: KindDestroyed, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch})
}

// Repaired records the hash of a lost line, to which the checkpoint of an open epoch refers. From then on Knows returns
// true for this hash.
func (l *Ledger) Repaired(opened *Entry, lost [32]byte) error {
	return l.Append(Entry{
		Kind: KindRepair, Stream: opened.Stream, Source: opened.Source, Epoch: opened.Epoch,
		Accepts: hex.EncodeToString(lost[:]),
	})
}

// SetLimit appends the limit of an epoch's stream, if it differs from the last one recorded for the epoch's accounts.
// It refuses a limit below what was already paid, in the stream's adjacency or in any other in which the account was
// ever charged.
func (l *Ledger) SetLimit(s *config.Stream, m *core.Manifest) error {
	return l.setLimit(limitOf(s, m), s.Privacy.Adjacency)
}

func (l *Ledger) setLimit(e Entry, adjacency dp.Adjacency) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if changed, err := l.limits(e, adjacency); err != nil || !changed {
		return err
	}
	return l.appendLocked(e)
}

// TakesLimit returns the error that SetLimit would return. It appends nothing.
func (l *Ledger) TakesLimit(s *config.Stream, m *core.Manifest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.limits(limitOf(s, m), s.Privacy.Adjacency)
	return err
}

// limitOf returns the entry that records a stream's limit for an epoch.
func limitOf(s *config.Stream, m *core.Manifest) Entry {
	var parts []EntryPart
	for _, p := range m.Parts {
		parts = append(parts, EntryPart{Partition: p.Partition})
	}
	return Entry{
		Kind: KindLimit, Stream: m.Stream, Source: m.Source, Epoch: m.Epoch, Parts: parts,
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta,
	}
}

// Import appends a line which says that the following lines came from a state directory, and then copies of those
// lines.
func (l *Ledger) Import(m EntryMove, lines []Entry) error {
	if err := l.Append(Entry{Kind: KindImported, Move: &m}); err != nil {
		return err
	}
	return l.copyAll(lines)
}

// MoveAway appends the ledger's final line: a group of instances runs its tasks from now on.
func (l *Ledger) MoveAway(m EntryMove) error { return l.Append(Entry{Kind: KindMoved, Move: &m}) }

// CopyAndMove appends copies of other ledgers' lines and then a final line. This ledger is a read-only copy from then
// on.
func (l *Ledger) CopyAndMove(lines []Entry, m EntryMove) error {
	if err := l.copyAll(lines); err != nil {
		return err
	}
	return l.MoveAway(m)
}

// copyAll appends lines of other ledgers. It keeps their content and times, but chains and seals them again.
func (l *Ledger) copyAll(lines []Entry) error {
	now := l.Now
	defer func() { l.Now = now }()
	for _, e := range lines {
		l.Now = func() time.Time { return e.Time }
		e.Key, e.MAC, e.Sum = "", "", ""
		if err := l.Append(e); err != nil {
			return err
		}
	}
	return nil
}
