package core

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
)

// mergeable is an estimator whose open step may be summed in parts. Different goroutines may use the estimator and its
// parts concurrently, one goroutine each.
type mergeable interface {
	// NewPart returns an empty part.
	NewPart() (dp.Part, error)
	// Merge adds a part to the open step and empties the part. The order of parts does not matter.
	Merge(dp.Part) error
}

// span is a range of offsets [first, end).
type span struct{ first, end int64 }

// Leaf sums the records of one partition, step after step. Merged epochs, epochs with steps by the clock, and epochs
// with [Core.Ahead] use leaves. A Leaf draws no noise and makes no release; [Core.Merge] does both from the sums of all
// partitions. If a partition begins at base, its step t holds the offsets [base + (t−1)s, base + t·s). If steps are by
// the clock, [Leaf.Until] sets where the step ends.
//
// A Leaf may be used concurrently with its Core and other leaves.
type Leaf struct {
	index int // index of the leaf's partition in the manifest
	base  int64
	ends  func(step uint64) span // offsets of a step, relative to base; nil: steps are by the clock
	scaling
	step    uint64 // the open step
	open    span
	sum     *Sum
	window  int64        // only the last window offsets of a step count; 0: all do
	persons *persons.Map // persons of the leaf's partition; nil: the stream protects records
}

// Sum is the exact sum of one step over one partition. It has no noise, so it must not leave the process in the clear.
type Sum struct {
	part    dp.Part
	index   int
	step    uint64
	offsets span
	records uint64
	entries persons.Entries // entries of persons in the step
	persons bool            // the stream protects persons
}

// SnapshotDue reports whether the journal of persons must write this step to disk before the leaf opens the next step.
func (s *Sum) SnapshotDue() bool { return s.entries.SnapshotDue() }

// Leaves returns a leaf for each partition of the epoch, at the first step after the last closed one.
func (c *Core) Leaves() []*Leaf { return c.leaves(c.step, c.at) }

// leaves returns the leaves after a step. If steps are by the clock, next holds the partitions' next offsets.
func (c *Core) leaves(step uint64, next []int64) []*Leaf {
	bases := basesOf(c.encoder.m)
	parts := uint64(len(bases))
	all := make([]*Leaf, parts)
	for i, base := range bases {
		l := &Leaf{index: i, base: base, step: step + 1, scaling: c.scaling.clone(),
			window: c.mech.window / int64(parts)}
		if c.persons != nil {
			l.persons = c.persons[i]
		}
		if c.at != nil {
			l.open = span{next[i], -1}
		} else {
			l.ends = func(t uint64) span {
				first, end := c.mech.Range(t)
				return span{int64(first / parts), int64(end / parts)}
			}
			l.bound()
		}
		all[i] = l
	}
	return all
}

// NewSum returns an empty sum for a step over a partition.
func (c *Core) NewSum() (*Sum, error) {
	e, ok := c.mech.Estimator.(mergeable)
	if !ok {
		return nil, errors.New("the mechanism cannot merge partitions")
	}
	part, err := e.NewPart()
	return &Sum{part: part, persons: c.persons != nil}, err
}

// bound sets the offsets of the open step.
func (l *Leaf) bound() {
	if l.ends == nil {
		l.open = span{l.open.end, -1}
		return
	}
	at := l.ends(l.step)
	l.open = span{l.base + at.first, l.base + at.end}
}

// Step returns the number of the open step.
func (l *Leaf) Step() uint64 { return l.step }

// First returns the first offset of the open step.
func (l *Leaf) First() int64 { return l.open.first }

// End returns the offset after the open step, or −1 if it is not known yet.
func (l *Leaf) End() int64 { return l.open.end }

// Until sets the end of the open step, if steps are by the clock. Call it before Into. It fails if end is before the
// step's first offset.
func (l *Leaf) Until(end int64) error {
	if end < l.open.first {
		return errors.New("internal: a step would end before it begins")
	}
	l.open.end = end
	return nil
}

// Into sets the empty sum s as the sum of the open step.
func (l *Leaf) Into(s *Sum) {
	s.index, s.step, s.offsets, s.records = l.index, l.step, l.open, 0
	l.sum = s
	if l.persons != nil {
		l.persons.Open(l.step) // fails only after the largest step; then no record counts
	}
}

// Add takes the next record, as [Core.Add] does.
func (l *Leaf) Add(offset int64, row []float64) { l.AddOf(offset, row, persons.Tag{}) }

// Warm announces the next tags, see [Core.Warm].
func (l *Leaf) Warm(tags []persons.Tag) {
	if l.persons != nil {
		l.persons.Warm(tags)
	}
}

// AddOf takes the next record, and returns whether it counts for its person, as [Core.AddOf] does.
func (l *Leaf) AddOf(offset int64, row []float64, tag persons.Tag) (counts persons.Answer) {
	l.sum.records++
	switch {
	case l.persons == nil:
	case l.between(offset):
		row = nil
	default:
		if counts = l.persons.Take(tag); counts != persons.Counts {
			row = nil
		}
	}
	l.sum.part.Add(uint64(offset-l.base), l.scaled(row))
	return counts
}

// between reports whether an offset lies before the step's window, see Core.between. Steps by the clock have no such
// offsets.
func (l *Leaf) between(offset int64) bool { return l.window > 0 && offset < l.open.end-l.window }

// Close ends the open step, and returns its sum. The next step needs another call of Into.
func (l *Leaf) Close() *Sum {
	s := l.sum
	l.sum = nil
	if l.persons != nil {
		l.persons.CloseInto(&s.entries)
	}
	l.step++
	l.bound()
	return s
}

// Merge closes the open step of a merged epoch, or of one with steps by the clock: it adds the sums of all partitions,
// in the order of the manifest, draws the step's noise, and returns the messages of the release. Sums of integers are
// exact, so the release does not depend on when or by which instance a partition was read. Merge empties the sums and
// then calls emptied, unless it is nil: from then on leaves may use the sums again. If the stream protects persons,
// Merge needs the sums' entries and calls emptied after it has ended the step, otherwise before.
//
// Privacy: that of [Core.Close], because each record is in one sum.
// Errors: a sum belongs to another step or partition. Then no noise is drawn.
func (c *Core) Merge(sums []*Sum, emptied func()) ([]Message, error) {
	if len(sums) != len(basesOf(c.encoder.m)) {
		return nil, errors.New("internal: the number of sums differs from that of the partitions")
	}
	for i, s := range sums {
		if s.index != i || s.step != c.step+1 ||
			c.at != nil && (s.offsets.first != c.at[i] || s.offsets.end < c.at[i]) {
			return nil, errors.New("internal: the sum belongs to another step or partition")
		}
	}
	offsets := make([]span, len(sums))
	for i, s := range sums {
		if err := c.mech.Estimator.(mergeable).Merge(s.part); err != nil {
			return nil, err
		}
		c.records += s.records
		offsets[i] = s.offsets
	}
	if emptied == nil {
		emptied = func() {}
	}
	if c.persons == nil {
		emptied() // close does not need the sums
	}
	messages, err := c.close(offsets, sums)
	if err == nil && c.persons != nil {
		emptied()
	}
	return messages, err
}

// Ahead reports whether closing a step takes so long that a leaf should add the next step's records meanwhile. It is
// true only for epochs that read one log. The releases equal those of [Core.Add] and [Core.Close].
func (c *Core) Ahead() bool {
	return c.mech.ahead && c.at == nil && c.persons == nil && c.encoder.m.Partition != Merged
}

// ChargedParts returns, for each partition of a merged epoch, the offset after the last record of h steps, as
// [ChargedTo] does.
func ChargedParts(mech *Mechanism, h uint64, bases []int64) (ends []int64) {
	total := ChargedTo(mech, h, 0)
	for _, base := range bases {
		ends = append(ends, share(total, len(bases), base))
	}
	return ends
}

// share returns the end offset of one partition's share of slots, from base on. It returns −1 if that is beyond the
// largest offset, or if slots is −1.
func share(slots int64, partitions int, base int64) int64 {
	each := slots / int64(partitions)
	if slots < 0 || each > math.MaxInt64-base {
		return -1
	}
	return base + each
}
