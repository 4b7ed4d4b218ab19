// Package ledger keeps the record of everything that was ever charged: a chained file, its copy in the control
// topic, and the budgets that follow from it.
package ledger

import (
	"bytes"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// Entry is one line of the ledger. Which fields it has depends on Kind:
//
//	open           an epoch and all that it charges, before anything of it exists
//	void           the epoch of the last open never began: no noise was drawn
//	close          where the epoch ended, and an anchor to know the log again
//	limit          the limit of a source was raised
//	key-destroyed  the epoch's secret is gone: its noise can't be derived again
//	repair         a ledger was worked out anew; the epoch's checkpoint names a line of
//	               the one that was lost, which counts as known
//	imported       the lines that follow came from a state directory
//	moved          the last line of a directory whose tasks a group of instances runs
type Entry struct {
	Seq  uint64    `json:"seq"`
	Prev string    `json:"prev"` // SHA-256 of the line before, in hexadecimal
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`

	Stream string `json:"stream"`
	core.Source
	Epoch uint64 `json:"epoch"`
	// Parts are the partitions of a merged epoch. Then the source's partition is −1, and
	// First and End are sums over them.
	Parts []EntryPart `json:"parts,omitempty"`

	// open
	Nonce       string `json:"nonce,omitempty"`
	Digest      string `json:"digest,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty"`
	TopicID     string `json:"topic_id,omitempty"` // where the brokers have one
	First       int64  `json:"first,omitempty"`    // base offset
	End         int64  `json:"end,omitempty"`      // open: horizon's end, −1 without one; close: end of the last step
	// Output is where the epoch's releases go from its first one on, nil in lines of older
	// builds, which did not say it.
	Output *EntryOutput `json:"output,omitempty"`
	// Boundaries are those of steps by the clock, nil of other steps and in lines of older builds.
	Boundaries *EntryBoundaries `json:"boundaries,omitempty"`
	Mechanism  string           `json:"mechanism,omitempty"`
	Cost       dp.Cost          `json:"cost,omitzero"`
	// Unit is whom the epoch protects: "person", and then Person says who that is; "": a record.
	Unit   string       `json:"unit,omitempty"`
	Person *EntryPerson `json:"person,omitempty"`
	// Reserved is the part of the source's limit that is set aside for sketches, in the entry
	// that opened the source's first epoch.
	Reserved dp.Cost `json:"reserved,omitzero"`

	// open, limit
	Epsilon      float64 `json:"epsilon,omitempty"`
	Delta        float64 `json:"delta,omitempty"`
	LimitEpsilon float64 `json:"limit_epsilon,omitempty"`
	LimitDelta   float64 `json:"limit_delta,omitempty"`

	// close
	// Steps is how many the epoch had, at least, where it protects what a person has in a period.
	Steps        uint64 `json:"steps,omitempty"`
	AnchorOffset int64  `json:"anchor_offset,omitempty"`
	Anchor       string `json:"anchor,omitempty"` // HMAC of the last record, in hexadecimal; empty: no record

	Reason string `json:"reason,omitempty"`

	// repair
	Accepts string `json:"accepts,omitempty"` // hash of a line that was lost, in hexadecimal

	// imported, moved
	Move *EntryMove `json:"move,omitempty"`

	// Key is the id of the master key of the MACs from here on. It is in the first line that
	// has a MAC, and wherever the key changes.
	Key string `json:"key,omitempty"`
	// MAC is the HMAC of the line up to it. Sum is the first half of the SHA-256 of the line
	// up to that, which shows every changed bit even without the key.
	MAC string `json:"mac,omitempty"`
	Sum string `json:"sum,omitempty"`
}

// EntryOutput is the partition of a topic to which releases go.
type EntryOutput struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
}

// Task returns the task that the entry is of.
func (e *Entry) Task() core.Task { return core.Task{Stream: e.Stream, Partition: e.Partition} }

// The kinds of entries.
const (
	KindOpen      = "open"
	KindVoid      = "void"
	KindClose     = "close"
	KindLimit     = "limit"
	KindDestroyed = "key-destroyed"
	KindRepair    = "repair"
	KindImported  = "imported"
	KindMoved     = "moved"
)

// Reasons of a close entry.
const (
	ReasonHorizon = "horizon"
	ReasonRequest = "requested"
)

// Ledger is the append-only record of everything that was ever charged. Its file has JSON
// lines; each contains the hash of the one before and, from some line on, a MAC. It is
// safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	Disk    state.Disk
	dir     string
	Path    string
	Now     func() time.Time
	Key     *Key  // nil: lines are neither checked nor made with MACs
	Held    *Held // nil: nobody else can write the file
	Entries []Entry
	heads   map[[32]byte]bool // the hashes of all lines
	Head    [32]byte          // of the last one
	KeyID   string            // of the last line's MAC, "" where it has none
	rekeyed bool              // the operator's word that the key was changed
	index   ledgerIndex
	size    int64
	Torn    bool // a torn last line was cut off at opening
	partial bool // part of a line may stand behind size, of an append that failed
}

// chargesOffsets reports whether First and End of an opening are a valid range.
func (e *Entry) chargesOffsets() bool { return e.First >= 0 && (e.End == -1 || e.End > e.First) }

// End returns the entry that closed or voided the epoch that entry i opened, nil if the
// epoch is open.
func (l *Ledger) End(i int) *Entry {
	if j, ended := l.index.ends[i]; ended {
		return &l.Entries[j]
	}
	return nil
}

// Newest returns the task's last entry of kind open or close, nil if there is none. It
// leaves out voided openings.
func (l *Ledger) Newest(t core.Task) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.index.Tasks[t]
	if of == nil || of.newest < 0 {
		return nil
	}
	found := l.Entries[of.newest]
	return &found
}

// Opening returns the open entry of an epoch, nil if the ledger has none.
func (l *Ledger) Opening(t core.Task, epoch uint64) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.index.Tasks[t]
	if of == nil {
		return nil
	}
	i, known := of.openings[epoch]
	if !known {
		return nil
	}
	found := l.Entries[i]
	return &found
}

// LastReader returns, of the epochs of a task's stream that read a source, the closing that
// came last, as it is for the source, with the incarnation that its epoch read; and the
// opening of one that is open and of another task. Each is nil where there is none. A stream
// may have read the source with a task of its own, and as a partition of a merged epoch.
func (l *Ledger) LastReader(t core.Task, src core.Source) (last *Entry, incarnation uint64, open *Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.index.Sources[src]
	if of == nil {
		return nil, 0, nil
	}
	for _, i := range of.open {
		if e := l.Entries[i]; e.Stream == t.Stream && e.Task() != t {
			open = &e
		}
	}
	for _, i := range slices.Backward(of.openings) { // epochs of one stream follow each other
		opened, end := &l.Entries[i], l.End(i)
		if opened.Stream != t.Stream || end == nil || end.Kind != KindClose {
			continue
		}
		v, _ := end.View(src)
		o, _ := opened.View(src)
		return &v, o.Incarnation, open
	}
	return nil, 0, open
}

// NextEpoch returns the number of the task's next epoch. Every number is used once; that
// includes voided epochs.
func (l *Ledger) NextEpoch(t core.Task) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.index.Tasks[t]; of != nil {
		return of.last + 1
	}
	return 1
}

// Undestroyed returns the closings of a task whose secret is not destroyed according to the
// ledger.
func (l *Ledger) Undestroyed(t core.Task) (open []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.index.Tasks[t]; of != nil {
		for _, i := range of.undestroyed {
			open = append(open, l.Entries[i])
		}
	}
	return open
}

// Tasks returns all tasks that ever opened an epoch, in the order of their first one.
func (l *Ledger) Tasks() []core.Task {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.index.order)
}

// HasTask reports whether the ledger has a line about a task.
func (l *Ledger) HasTask(t core.Task) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index.Tasks[t] != nil
}

// HasSource reports whether the ledger has a line about a source.
func (l *Ledger) HasSource(src core.Source) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index.Sources[src] != nil
}

// All returns a copy of the entries.
func (l *Ledger) All() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.Entries)
}

// lines returns the number of entries.
func (l *Ledger) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.Entries)
}

// HeadHash returns the hash of the last line.
func (l *Ledger) HeadHash() [32]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Head
}

// Knows reports whether the ledger has, or once ended with, a line with this hash. Zeros,
// which stand for no line, are known too.
func (l *Ledger) Knows(head [32]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heads[head]
}

// identity returns the hash of the ledger's first line, by which copies of it are known.
func (l *Ledger) identity() (id [32]byte, ok bool) { return l.hashOf(1) }

// hashOf returns the hash of a line, by its number from 1.
func (l *Ledger) hashOf(seq uint64) (hash [32]byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n := uint64(len(l.Entries)); {
	case seq == 0 || seq > n:
		return hash, false
	case seq == n:
		return l.Head, true
	}
	_, err := hex.Decode(hash[:], []byte(l.Entries[seq].Prev)) // of the line after it
	return hash, err == nil
}

// LastIncarnation returns the newest incarnation of a source, 1 where there is none,
// the id of its topic, "" where none was recorded, and the newest close of it with an
// anchor, nil where there is none, with the id of the master key that the anchor is
// under. unproven says that a later close covers records and has no anchor.
func (l *Ledger) LastIncarnation(src core.Source) (n uint64, topicID string, last *Entry, lastKey string,
	unproven bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.index.Sources[src]
	if of == nil {
		return 1, "", nil, "", false
	}
	if of.anchor >= 0 {
		found, _ := l.Entries[of.anchor].View(src)
		last = &found
	}
	return of.incarnation, of.topicID, last, of.anchorKey, of.unproven
}

// accepted returns the hash that a repair accepts for a line of the ledger.
func (e *Entry) accepted() (head [32]byte, ok bool) {
	b, err := hex.DecodeString(e.Accepts)
	return [32]byte(append(b, make([]byte, 32)...)[:32]), err == nil && len(b) == 32 &&
		!bytes.Equal(b, make([]byte, 32))
}
