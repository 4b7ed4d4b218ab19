// Package ledger records every charge to a budget: in a file whose lines are chained by hashes, and in a copy of it in
// the control topic. It computes the remaining budgets from these lines.
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

// Entry is one line of the ledger. Its Kind decides which fields it has:
//
//	open           an epoch and everything it charges, written before anything else of the epoch exists
//	void           the epoch of the last open never began: no noise was drawn
//	close          where the epoch ended, and an anchor that identifies the log later
//	limit          the limit of a source was raised
//	key-destroyed  the epoch's secret was deleted: its noise cannot be derived again
//	repair         the ledger was lost and reconstructed; the open epoch's checkpoint names a line
//	               of the lost ledger, and Knows accepts that line from here on
//	imported       the lines that follow came from a state directory
//	moved          the last line of a directory whose tasks a group of instances now runs
type Entry struct {
	Seq  uint64    `json:"seq"`
	Prev string    `json:"prev"` // SHA-256 of the previous line, in hexadecimal
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`

	Stream string `json:"stream"`
	core.Source
	Epoch uint64 `json:"epoch"`
	// Parts are the partitions of a merged epoch. The entry's own Partition is then −1, and First and End are sums over
	// Parts.
	Parts []EntryPart `json:"parts,omitempty"`

	// open
	Nonce       string `json:"nonce,omitempty"`
	Digest      string `json:"digest,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty"`
	TopicID     string `json:"topic_id,omitempty"` // "" if the brokers report none
	First       int64  `json:"first,omitempty"`    // open: first offset of the epoch
	// End is, in an opening, the end of the horizon, −1 without one; in a closing, the end of the last step.
	End int64 `json:"end,omitempty"`
	// Output is where the epoch's releases have gone since its first one. nil in lines of older builds, which did not
	// record it.
	Output *EntryOutput `json:"output,omitempty"`
	// Boundaries is set if the epoch's steps are by the clock. nil for other steps and in lines of older builds.
	Boundaries *EntryBoundaries `json:"boundaries,omitempty"`
	Mechanism  string           `json:"mechanism,omitempty"`
	Cost       dp.Cost          `json:"cost,omitzero"`
	// Unit says what the epoch protects: "person" or, if empty, a record. For "person", the field Person says who
	// counts as one person.
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

	// Steps is a lower bound on the number of steps that the epoch had. It is set if the epoch protects the records of
	// a person in a period.
	Steps        uint64 `json:"steps,omitempty"`
	AnchorOffset int64  `json:"anchor_offset,omitempty"`
	// Anchor is the HMAC of the last record, in hexadecimal; empty: the epoch had no record.
	Anchor string `json:"anchor,omitempty"`

	Reason string `json:"reason,omitempty"`

	// repair
	Accepts string `json:"accepts,omitempty"` // hash, in hexadecimal, of the lost line that this repair accepts

	// imported, moved
	Move *EntryMove `json:"move,omitempty"`

	// Key is the id of the master key that the MACs use from this line on. It is in the first line that has a MAC, and
	// in each line where the key changes.
	Key string `json:"key,omitempty"`
	// MAC is the HMAC of the line up to this field. Sum is the first half of the SHA-256 of the line up to that field:
	// without the key, it still detects every changed bit.
	MAC string `json:"mac,omitempty"`
	Sum string `json:"sum,omitempty"`
}

// EntryOutput is the partition of a topic to which releases go.
type EntryOutput struct {
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
}

// Task returns the task that the entry is about.
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

// Ledger is the append-only record of every charge. Its file has JSON lines. Each line contains the hash of the
// previous line; from some line on, each also contains a MAC. A Ledger is safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	Disk    state.Disk
	dir     string
	Path    string
	Now     func() time.Time
	Key     *Key  // nil: MACs are neither checked nor written
	Held    *Held // nil: no other process can write the file, so it is not locked
	Entries []Entry
	heads   map[[32]byte]bool // the hashes of all lines
	Head    [32]byte          // hash of the last line
	KeyID   string            // id of the key of the last line's MAC, "" if it has none
	rekeyed bool              // the operator confirmed that the key was changed
	index   ledgerIndex
	size    int64
	Torn    bool // a torn last line was cut off at opening
	partial bool // an append failed and may have left part of a line after size
}

// chargesOffsets reports whether First and End of an opening are a valid range.
func (e *Entry) chargesOffsets() bool { return e.First >= 0 && (e.End == -1 || e.End > e.First) }

// End returns the entry that closed or voided the epoch that entry i opened, or nil if the epoch is open.
func (l *Ledger) End(i int) *Entry {
	if j, ended := l.index.ends[i]; ended {
		return &l.Entries[j]
	}
	return nil
}

// Newest returns the task's last entry of kind open or close, or nil if there is none. It ignores voided openings.
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

// Opening returns the open entry of an epoch, or nil if the ledger has none.
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

// LastReader searches the epochs in which the stream of task t read a source. last is the stream's last closing, as the
// view for this source, and its incarnation is the one that the epoch read. The other result is the opening of an open
// epoch that belongs to another task. Each is nil if there is none. Several tasks are possible because a stream may
// have read the source by itself and as a partition of a merged epoch.
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
	for _, i := range slices.Backward(of.openings) { // the epochs of one stream do not overlap
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

// NextEpoch returns the number of the task's next epoch. No number is used twice, not even that of a voided epoch.
func (l *Ledger) NextEpoch(t core.Task) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of := l.index.Tasks[t]; of != nil {
		return of.last + 1
	}
	return 1
}

// Undestroyed returns a task's closings for which the ledger does not record that the secret was destroyed.
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

// Tasks returns all tasks that ever opened an epoch, in the order in which each opened its first.
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

// Knows reports whether the ledger has a line with this hash, or whether a repair accepted the hash as that of a lost
// line. For the zero hash, which stands for no line, it returns true.
func (l *Ledger) Knows(head [32]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heads[head]
}

// identity returns the hash of the ledger's first line, which all copies of this ledger share.
func (l *Ledger) identity() (id [32]byte, ok bool) { return l.hashOf(1) }

// hashOf returns the hash of a line; seq counts from 1.
func (l *Ledger) hashOf(seq uint64) (hash [32]byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n := uint64(len(l.Entries)); {
	case seq == 0 || seq > n:
		return hash, false
	case seq == n:
		return l.Head, true
	}
	_, err := hex.Decode(hash[:], []byte(l.Entries[seq].Prev)) // The next line has this hash as its Prev.
	return hash, err == nil
}

// LastIncarnation returns the following about a source:
//
//   - n, its newest incarnation, 1 if there is none;
//   - topicID, the id of its topic, "" if none was recorded;
//   - last, the newest closing with an anchor in that incarnation, nil if there is none;
//   - lastKey, the id of the master key of that anchor;
//   - unproven, which reports that a later closing covers records but has no anchor.
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

// accepted returns the hash of the lost line that a repair entry accepts.
func (e *Entry) accepted() (head [32]byte, ok bool) {
	b, err := hex.DecodeString(e.Accepts)
	return [32]byte(append(b, make([]byte, 32)...)[:32]), err == nil && len(b) == 32 &&
		!bytes.Equal(b, make([]byte, 32))
}
