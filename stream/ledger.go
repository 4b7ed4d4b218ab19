package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"streamdp/dp"
)

// Source names one partition of one cluster's topic, the unit that a budget
// belongs to.
type Source struct {
	Cluster   string `json:"cluster"`
	Topic     string `json:"topic"`
	Partition int    `json:"partition"`
}

// Task names one stream's work on one partition.
type Task struct {
	Stream    string
	Partition int
}

// String returns NAME-PARTITION, the name of the task's files.
func (t Task) String() string { return fmt.Sprintf("%s-%d", t.Stream, t.Partition) }

// Entry is one line of the ledger. Which fields it has depends on Kind:
//
//	open           an epoch and all that it charges, before anything of it exists
//	void           the epoch of the last open never began: no noise was drawn
//	close          where the epoch ended, and an anchor to know the log again
//	limit          the limit of a source was raised
//	key-destroyed  the epoch's secret is gone: its noise can't be derived again
type Entry struct {
	Seq  uint64    `json:"seq"`
	Prev string    `json:"prev"` // SHA-256 of the line before, in hexadecimal
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`

	Stream string `json:"stream"`
	Source
	Epoch uint64 `json:"epoch"`

	// open
	Nonce       string  `json:"nonce,omitempty"`
	Digest      string  `json:"digest,omitempty"`
	Incarnation uint64  `json:"incarnation,omitempty"`
	First       int64   `json:"first,omitempty"` // base offset
	End         int64   `json:"end,omitempty"`   // open: horizon's end, −1 without one; close: end of the last step
	Mechanism   string  `json:"mechanism,omitempty"`
	Cost        dp.Cost `json:"cost,omitzero"`
	// Reserved is what the limit of the source sets aside for sketches, in the entry
	// that opened the source's first epoch.
	Reserved dp.Cost `json:"reserved,omitzero"`

	// open, limit
	Epsilon      float64 `json:"epsilon,omitempty"`
	Delta        float64 `json:"delta,omitempty"`
	LimitEpsilon float64 `json:"limit_epsilon,omitempty"`
	LimitDelta   float64 `json:"limit_delta,omitempty"`

	// close
	AnchorOffset int64  `json:"anchor_offset,omitempty"`
	Anchor       string `json:"anchor,omitempty"` // HMAC of the last record, in hexadecimal; empty: no record

	Reason string `json:"reason,omitempty"`
}

// Task returns the task that the entry is of.
func (e *Entry) Task() Task { return Task{e.Stream, e.Partition} }

// The kinds of entries.
const (
	kindOpen      = "open"
	kindVoid      = "void"
	kindClose     = "close"
	kindLimit     = "limit"
	kindDestroyed = "key-destroyed"
)

// ledger is the append-only record of everything that was ever charged: JSON
// lines, each with the hash of the one before. It is safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	disk    disk
	dir     string
	path    string
	now     func() time.Time
	entries []Entry
	heads   [][32]byte // hash of each line
	size    int64
	torn    bool  // a torn last line was cut off at opening
	broken  error // an append failed and could not be undone
}

// errLedger says that the ledger on disk can't be believed.
var errLedger = errors.New("ledger damaged")

// openLedger reads the ledger and checks its chain. A torn last line is what a
// crash inside an append leaves; nothing refers to it, and it is cut off.
func openLedger(d disk, dir string) (*ledger, error) {
	l := &ledger{disk: d, dir: dir, path: dir + "/ledger.jsonl", now: time.Now}
	data, err := d.ReadFile(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if i := whole(data); i < len(data) {
		if err := d.Truncate(l.path, int64(i)); err != nil {
			return nil, err
		}
		data, l.torn = data[:i], true
	}
	l.size = int64(len(data))
	if l.entries, l.heads, err = parseLedger(data); err != nil {
		return nil, err
	}
	return l, nil
}

// whole returns the length of data without a torn last line: one without its
// end, or with zero bytes, which no entry has, where sectors of it were never
// written.
func whole(data []byte) int {
	end := bytes.LastIndexByte(data, '\n') + 1
	if end == 0 {
		return 0
	}
	last := bytes.LastIndexByte(data[:end-1], '\n') + 1
	if bytes.IndexByte(data[last:end], 0) >= 0 {
		return last
	}
	return end
}

// parseLedger checks whole lines, and that they tell a possible story. heads
// are the hashes of the lines.
func parseLedger(data []byte) (entries []Entry, heads [][32]byte, err error) {
	type epoch struct {
		task   Task
		number uint64
	}
	openings := map[epoch]*Entry{} // nil: ended
	newest := map[Task]uint64{}
	var head [32]byte
	for n := 1; len(data) > 0; n++ {
		line, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return nil, nil, fmt.Errorf("%w: line %d has no end", errLedger, n)
		}
		data = rest
		var e Entry
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return nil, nil, fmt.Errorf("%w: line %d is no entry", errLedger, n)
		}
		if _, err := dec.Token(); err != io.EOF {
			return nil, nil, fmt.Errorf("%w: line %d is no entry", errLedger, n)
		}
		if e.Seq != uint64(n) || e.Prev != hex.EncodeToString(head[:]) {
			return nil, nil, fmt.Errorf("%w: line %d does not follow the one before", errLedger, n)
		}
		id := epoch{e.Task(), e.Epoch}
		opened, known := openings[id]
		possible := true
		switch e.Kind {
		case kindOpen:
			if e.Cost.Empty() || e.Cost.Validate() != nil {
				return nil, nil, fmt.Errorf("%w: line %d charges nothing", errLedger, n)
			}
			possible = e.Epoch > newest[id.task] && e.chargesOffsets() && e.Reserved.Mu == 0
			openings[id], newest[id.task] = &e, e.Epoch
		case kindClose:
			possible = opened != nil && opened.Source == e.Source && (e.End == -1 || e.End >= opened.First)
			openings[id] = nil
		case kindVoid:
			possible = opened != nil && opened.Source == e.Source
			openings[id] = nil
		case kindDestroyed:
			possible = known && opened == nil
		case kindLimit:
		default:
			possible = false
		}
		if !possible {
			return nil, nil, fmt.Errorf("%w: line %d can't follow what is before it", errLedger, n)
		}
		entries = append(entries, e)
		head = sha256.Sum256(line)
		heads = append(heads, head)
	}
	return entries, heads, nil
}

// chargesOffsets reports whether the offsets of an opening are some.
func (e *Entry) chargesOffsets() bool { return e.First >= 0 && (e.End == -1 || e.End > e.First) }

// append makes the entry durable. Seq, Prev and Time are set here.
func (l *ledger) append(e Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(e)
}

func (l *ledger) appendLocked(e Entry) error {
	if l.broken != nil {
		return l.broken
	}
	e.Seq = uint64(len(l.entries)) + 1
	head := l.headLocked()
	e.Prev = hex.EncodeToString(head[:])
	e.Time = l.now().UTC().Truncate(time.Second)
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := l.write(append(line, '\n')); err != nil {
		err = fmt.Errorf("ledger: %w", err)
		// Part of the line may be there. The next one must not follow it.
		if e := l.disk.Truncate(l.path, l.size); e != nil && !(l.size == 0 && errors.Is(e, fs.ErrNotExist)) {
			l.broken = err
		}
		return err
	}
	l.entries = append(l.entries, e)
	l.heads = append(l.heads, sha256.Sum256(line))
	l.size += int64(len(line)) + 1
	return nil
}

func (l *ledger) write(line []byte) error {
	f, err := l.disk.Append(l.path)
	if err := write(f, err, line); err != nil {
		return err
	}
	return l.disk.SyncDir(l.dir)
}

// errBudget says that an opening would exceed the limit.
type errBudget struct {
	source         Source
	spent, limit   float64 // ε at the limit's δ
	delta          float64
	adjacency      dp.Adjacency
	alreadyCharged float64
	// What the limit sets aside for sketches, if that is what is exceeded.
	reserved *dp.Cost
}

func (e *errBudget) Error() string {
	switch r := e.reserved; {
	case r == nil:
	case r.Empty():
		return fmt.Sprintf("%s/%d has nothing set aside for sketches, which its first epoch would have had to, before the first release: only solvers without them can read it",
			e.source.Topic, e.source.Partition)
	default:
		return fmt.Sprintf("what %s/%d has set aside for sketches is spent: with this epoch more would be charged than %s; a solver without them may fit still",
			e.source.Topic, e.source.Partition, sketches(*r))
	}
	return fmt.Sprintf("budget of %s/%d spent: with %s charged to date, this epoch would bring a record to epsilon %s at delta %g (%s), above limit_epsilon %g",
		e.source.Topic, e.source.Partition, AtMost(e.alreadyCharged), AtMost(e.spent), e.delta, e.adjacency, e.limit)
}

// open charges an epoch: it appends e unless the records of its source would
// pay more than the limit. It returns the ε charged to date, this epoch
// included, at the limit's δ.
func (l *ledger) open(e Entry) (charged float64, err error) {
	if !e.chargesOffsets() {
		return 0, fmt.Errorf("internal: epoch %d would charge offsets %d to %d, which are none", e.Epoch, e.First, e.End)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if charged, err = l.fits(&e, nil); err != nil {
		return 0, err
	}
	if _, first := l.reserved(e.Source); !first {
		e.Reserved = dp.Cost{}
	}
	return charged, l.appendLocked(e)
}

// affords reports, by its error, whether an epoch could be charged if the
// task's open one were closed at end.
func (l *ledger) affords(e Entry, opened *Entry, end int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.fits(&e, &Entry{Source: opened.Source, Stream: opened.Stream, Epoch: opened.Epoch, End: end})
	return err
}

// fits returns the ε that records of e's source have paid with it, or an
// errBudget where that exceeds its limit.
func (l *ledger) fits(e, closing *Entry) (charged float64, err error) {
	adjacency := e.Cost.Adjacency
	reserved, first := l.reserved(e.Source)
	if first {
		reserved = e.Reserved
	}
	worst, over, err := l.within(e.Source, adjacency, reserved, e, closing, e.LimitEpsilon, e.LimitDelta)
	if err != nil {
		return 0, err
	}
	spent, err := worst.Epsilon(e.LimitDelta)
	if err != nil || over == nil {
		return spent, err
	}
	already, err := l.epsilon(e.Source, adjacency, e.LimitDelta, closing)
	if err != nil {
		return 0, err
	}
	over.spent, over.alreadyCharged = spent, already
	return 0, over
}

// within compares what records of a source pay, with extra and if the epoch of closing
// ended there, with the limit (ε, δ) and what it sets aside. It returns the largest
// cost, and over where the limit is exceeded.
func (l *ledger) within(s Source, adjacency dp.Adjacency, reserved dp.Cost, extra, closing *Entry, epsilon, delta float64) (worst dp.Cost, over *errBudget, err error) {
	costs, err := dp.MostCharged(l.charges(s, extra, closing), adjacency)
	if err != nil {
		return worst, nil, err
	}
	if worst, err = dp.Parallel(delta, costs...); err != nil {
		return worst, nil, err
	}
	if reserved.Adjacency == 0 { // nothing
		reserved.Adjacency = adjacency
	}
	if reserved, err = reserved.In(adjacency); err != nil {
		return worst, nil, err
	}
	for _, c := range costs {
		// Not a comparison of ε: an epoch that takes the whole limit fits, whatever
		// rounding ε takes.
		ok, err := c.WithinReserve(reserved, epsilon, delta)
		if err != nil {
			return worst, nil, err
		}
		if ok {
			continue
		}
		over = &errBudget{source: s, limit: epsilon, delta: delta, adjacency: adjacency}
		if c.Mu = 0; !reserved.Covers(c) {
			over.reserved = &reserved
		}
		return worst, over, nil
	}
	return worst, nil, nil
}

// reserved returns what the limit of a source sets aside for sketches: what the
// first opening says, before any release. first is true where there is none.
func (l *ledger) reserved(s Source) (reserved dp.Cost, first bool) {
	for i := range l.entries {
		e := &l.entries[i]
		if e.Kind != kindOpen || e.Source != s {
			continue
		}
		// An epoch that never began released nothing.
		if end := l.end(i); end == nil || end.Kind != kindVoid || !e.Reserved.Empty() {
			return e.Reserved, false
		}
	}
	return dp.Cost{}, true
}

// unopened reports whether no epoch of the source was ever opened.
func (l *ledger) unopened(s Source) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, first := l.reserved(s)
	return first
}

// setLimit appends a limit that is not the last one recorded for the source.
func (l *ledger) setLimit(e Entry, adjacency dp.Adjacency) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.entries) - 1; i >= 0; i-- {
		old := &l.entries[i]
		if old.Source != e.Source || old.Kind != kindOpen && old.Kind != kindLimit {
			continue
		}
		if old.LimitEpsilon == e.LimitEpsilon && old.LimitDelta == e.LimitDelta {
			return nil
		}
		break
	}
	reserved, _ := l.reserved(e.Source)
	worst, over, err := l.within(e.Source, adjacency, reserved, nil, nil, e.LimitEpsilon, e.LimitDelta)
	if err != nil {
		return err
	}
	if over != nil {
		spent, err := worst.Epsilon(e.LimitDelta)
		if err != nil {
			return err
		}
		aside := ""
		if !reserved.Empty() {
			aside = ", beside what is set aside for sketches"
		}
		return halted(haltBudget, "limit_epsilon %g at delta %g is below what records of %s/%d have paid: %s%s",
			e.LimitEpsilon, e.LimitDelta, e.Topic, e.Partition, AtMost(spent), aside)
	}
	return l.appendLocked(e)
}

// charged returns what the worst-off record of a source pays, over all epochs of
// all streams, if the epoch of closing ended there; of several that can't be compared,
// the one with the largest ε at delta.
func (l *ledger) charged(s Source, adjacency dp.Adjacency, delta float64, closing *Entry) (dp.Cost, error) {
	return dp.Charged(l.charges(s, nil, closing), adjacency, delta)
}

// charges returns what is charged of a source, by all epochs of all streams, and
// extra, if the epoch of closing ended there. Ranges of one incarnation of the log
// compose by position; different incarnations may hold the same people, so they add up.
func (l *ledger) charges(s Source, extra, closing *Entry) (charges []dp.Charge) {
	add := func(e *Entry, end int64) {
		charges = append(charges, dp.Charge{Log: e.Incarnation, First: e.First, End: end, Cost: e.Cost})
	}
	for i := range l.entries {
		e := &l.entries[i]
		if e.Kind != kindOpen || e.Source != s {
			continue
		}
		switch last := l.end(i); {
		case last == nil && closing != nil && closing.Stream == e.Stream && closing.Epoch == e.Epoch:
			add(e, closing.End)
		case last == nil:
			add(e, e.End)
		case last.Kind == kindClose:
			add(e, last.End)
		}
	}
	if extra != nil {
		add(extra, extra.End)
	}
	return charges
}

// epsilon returns the ε at delta of what is charged to date, if the epoch of
// closing ended there.
func (l *ledger) epsilon(s Source, adjacency dp.Adjacency, delta float64, closing *Entry) (float64, error) {
	cost, err := l.charged(s, adjacency, delta, closing)
	if err != nil {
		return 0, err
	}
	return cost.Epsilon(delta)
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// end returns the entry that closed or voided the epoch that entry i opened, nil
// while it is open.
func (l *ledger) end(i int) *Entry {
	opened := &l.entries[i]
	for j := i + 1; j < len(l.entries); j++ {
		e := &l.entries[j]
		if (e.Kind == kindClose || e.Kind == kindVoid) && e.Source == opened.Source && e.Stream == opened.Stream && e.Epoch == opened.Epoch {
			return e
		}
	}
	return nil
}

// newest returns the task's last entry that is open or close, void ones and
// what they void left out; nil where there is none.
func (l *ledger) newest(t Task) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last *Entry
	for i := range l.entries {
		e := &l.entries[i]
		if e.Task() != t {
			continue
		}
		switch e.Kind {
		case kindOpen:
			if end := l.end(i); end == nil || end.Kind != kindVoid {
				last = e
			}
		case kindClose:
			last = e
		}
	}
	if last == nil {
		return nil
	}
	found := *last
	return &found
}

// opening returns the open entry of an epoch, nil where the ledger knows none.
func (l *ledger) opening(t Task, epoch uint64) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if e := l.entries[i]; e.Kind == kindOpen && e.Task() == t && e.Epoch == epoch {
			return &e
		}
	}
	return nil
}

// nextEpoch returns the number of the task's next epoch: every number is used
// once, voided ones included.
func (l *ledger) nextEpoch(t Task) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n uint64
	for i := range l.entries {
		if e := &l.entries[i]; e.Task() == t {
			n = max(n, e.Epoch)
		}
	}
	return n + 1
}

// undestroyed returns the closings of a task whose secret the ledger does not
// call destroyed.
func (l *ledger) undestroyed(t Task) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open []Entry
	for i := range l.entries {
		e := &l.entries[i]
		if e.Task() != t {
			continue
		}
		switch e.Kind {
		case kindClose:
			open = append(open, *e)
		case kindDestroyed:
			open = slices.DeleteFunc(open, func(c Entry) bool { return c.Epoch == e.Epoch })
		}
	}
	return open
}

// tasks returns the tasks that ever opened an epoch, in the order of their first.
func (l *ledger) tasks() (all []Task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if t := l.entries[i].Task(); !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// all returns a copy of the entries.
func (l *ledger) all() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// chargedEpsilon returns the ε that the worst-off record of a source has paid,
// at delta.
func (l *ledger) chargedEpsilon(s Source, adjacency dp.Adjacency, delta float64) (float64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epsilon(s, adjacency, delta, nil)
}

// lines returns the number of entries.
func (l *ledger) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

// headHash returns the hash of the last line.
func (l *ledger) headHash() [32]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.headLocked()
}

func (l *ledger) headLocked() (head [32]byte) {
	if n := len(l.heads); n > 0 {
		head = l.heads[n-1]
	}
	return head
}

// knows reports whether the ledger has, or once ended with, the line of a hash.
func (l *ledger) knows(head [32]byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.heads, head)
}
