// Package core makes the releases of an epoch out of rows.
//
// It keeps the release invariant: what it returns is a function of the keys, the manifest
// and the records that it is given, and of nothing else. So the package has no clock, no
// I/O, no goroutine and no randomness of its own; a test checks its imports for that.
// An epoch begins with [New] or [Core.Resume]. Then [Core.Add] takes the records of a step
// one by one, and [Core.Close] returns the messages of the step's release. The package
// contains the mechanisms, the manifest and the bytes of a release. Other packages below stream fetch
// the records, publish the releases and keep the state.
package core

import (
	"errors"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
)

// Core makes the releases of one epoch. They are a function of the keys, the manifest and
// the records, and of nothing else. If a process stops and another one resumes from a
// checkpoint, the remaining releases have the same bytes as without the stop.
type Core struct {
	mech       *Mechanism
	keys       *dp.Epoch
	encoder    *encoder
	base       int64 // first offset of the epoch
	step       uint64
	transcript dp.Transcript  // after step
	first, end int64          // offsets of the open step; by the clock its end is not known
	at         []int64        // by the clock: where it begins, by partition; nil: not by the clock
	records    uint64         // in it, valid or not
	verdict    string         // of the last release that had one
	persons    []*persons.Map // one for each partition; nil: records are protected

	scaling
}

// scaling is how rows enter an estimator: as (x − centre)/scale, or as they are.
type scaling struct {
	centre, scale []float64 // nil: as they are
	row           []float64 // scratch
}

// scaled returns a row as it enters, nil for one that a record did not give.
func (s *scaling) scaled(row []float64) []float64 {
	if row == nil || s.centre == nil {
		return row
	}
	for j, x := range row {
		s.row[j] = (x - s.centre[j]) / s.scale[j]
	}
	return s.row
}

// clone returns a scaling with scratch of its own.
func (s *scaling) clone() scaling {
	return scaling{s.centre, s.scale, slices.Clone(s.row)}
}

// New returns the core of an epoch before its first step. Without keys (nil) it can make leaves
// only, see [Core.LeavesFrom].
func New(s *config.Stream, m *Manifest, manifestFile []byte, mech *Mechanism, keys *dp.Epoch) (*Core, error) {
	e, err := newEncoder(s, m, mech)
	if err != nil {
		return nil, err
	}
	c := &Core{
		mech: mech, keys: keys, encoder: e, base: m.Base,
		transcript: TranscriptOf(manifestFile), scaling: scaling{centre: s.Centre, scale: s.Scale},
	}
	if s.User != nil {
		for range basesOf(m) {
			p, err := persons.NewMap(s.PersonRule())
			if err != nil {
				return nil, err
			}
			c.persons = append(c.persons, p)
		}
	}
	if mech.scales {
		c.centre, c.scale = nil, nil
	}
	if c.centre != nil {
		c.row = make([]float64, mech.Columns())
	}
	if mech.clocked {
		c.at = basesOf(m)
	}
	c.openStep()
	return c, nil
}

// Resume continues a begun epoch after the closed step. state and h are the mechanism's
// state and the transcript after that step, and next are the next offsets to read, one for
// each partition. Where persons are protected, [Core.Persons] are as after that step.
func (c *Core) Resume(state []byte, step uint64, h dp.Transcript, next []int64) error {
	if err := c.mech.UnmarshalBinary(state); err != nil {
		return err
	}
	for _, p := range c.persons {
		if p.Closed() != step {
			return errors.New("checkpoint: persons and step disagree")
		}
	}
	c.step, c.transcript = step, h
	bases, total := basesOf(c.encoder.m), int64(0)
	same := len(next) == len(bases)
	for i, n := range next {
		total += n
		same = same && n >= bases[i] && (step > 0 || n == bases[i])
	}
	if c.at != nil {
		c.at = slices.Clone(next)
	}
	c.openStep()
	if !same || total != c.first {
		return errors.New("checkpoint: position and step disagree")
	}
	return nil
}

// basesOf returns the first offsets of an epoch, by partition.
func basesOf(m *Manifest) (all []int64) {
	if len(m.Parts) == 0 {
		return []int64{m.Base}
	}
	for _, p := range m.Parts {
		all = append(all, p.Base)
	}
	return all
}

// Ended says why no step can follow the last closed one, if that is so though the
// horizon is not reached.
func (c *Core) Ended() (why string, ended bool) {
	if e, ok := c.mech.Estimator.(ending); ok {
		return e.Ended()
	}
	return "", false
}

// Verdict returns what the last release since New or Resume said of its bounds: "ok",
// "partial", "stale" or "biased", "fail" of a warm-up; "" where none said anything.
func (c *Core) Verdict() string { return c.verdict }

// Step returns the number of the last closed step, 0 before the first.
func (c *Core) Step() uint64 { return c.step }

// First returns the first offset of the open step.
func (c *Core) First() int64 { return c.first }

// End returns the offset behind the open step.
func (c *Core) End() int64 { return c.end }

// Transcript returns the transcript after the last closed step.
func (c *Core) Transcript() dp.Transcript { return c.transcript }

// AppendState appends to b the mechanism's state after the last closed step.
func (c *Core) AppendState(b []byte) ([]byte, error) { return c.mech.AppendBinary(b) }

// Mechanism returns the mechanism.
func (c *Core) Mechanism() *Mechanism { return c.mech }

// Statements says in words what the epoch's releases promise and what they do not, as they
// do themselves.
func (c *Core) Statements() []string { return c.encoder.statements }

// Destroy overwrites the keys. The Core is of no use afterwards.
func (c *Core) Destroy() { c.keys.Destroy() }

// openStep sets the offsets of the step after the last closed one.
func (c *Core) openStep() {
	c.records = 0
	if c.at != nil {
		c.first = 0
		for _, at := range c.at {
			c.first += at
		}
		c.end = c.first
		return
	}
	first, end := c.mech.Range(c.step + 1)
	c.first, c.end = c.base+int64(first), c.base+int64(end)
}

// Persons returns what remembers which persons contributed, one map for each partition that the epoch
// reads; nil where records are protected. After New they are empty, and the caller fills them before
// Resume. Where a [Leaf] takes the records of a partition, it also asks its map, so the caller may only do
// what concerns the journal.
func (c *Core) Persons() []*persons.Map { return c.persons }

// Warm says which tags come next, so that AddOf waits less for memory.
func (c *Core) Warm(tags []persons.Tag) {
	if c.persons != nil {
		c.persons[0].Warm(tags)
	}
}

// UserKey returns the key of the epoch's tags, for [Core.AddOf].
func (c *Core) UserKey() [persons.KeyBytes]byte { return c.keys.UserKey(c.encoder.m.Task().String()) }

// Add takes the next record, at an offset of the open step. row holds its numbers as they
// were decoded; it is nil if the record gave none. Where persons are protected, it is a
// record of nobody, and counts for nothing: see AddOf.
func (c *Core) Add(offset int64, row []float64) { c.AddOf(offset, row, persons.Tag{}) }

// AddOf is Add for a record of a person, whose tag plays no role where records are protected. It
// returns whether the record counts for its person, and if not, why: an exact fact about the
// person's records, as one about a record.
//
// Privacy: where persons are protected, a record that does not count for its person adds what a
// record without a row does. Whether it has a row does not matter to what counts.
func (c *Core) AddOf(offset int64, row []float64, tag persons.Tag) (counts persons.Answer) {
	switch {
	case c.persons == nil:
	case c.between(offset): // in no window, so nobody's turn is used up
		row = nil
	default:
		c.openPersons()
		if counts = c.persons[0].Take(tag); counts != persons.Counts {
			row = nil
		}
	}
	c.records++
	c.mech.Add(uint64(offset-c.base), c.scaled(row))
	return counts
}

// between reports whether an offset of the open step lies before its window: such a record adds
// nothing, and so does not count for its person.
func (c *Core) between(offset int64) bool {
	return c.mech.window > 0 && offset < c.end-c.mech.window
}

// openPersons opens the step for persons, once. It fails only behind the largest step that a
// map has, where nothing counts any more.
func (c *Core) openPersons() {
	if c.persons[0].Step() == c.step {
		c.persons[0].Open(c.step + 1)
	}
}

// Until sets the offset behind the open step by the clock, of an epoch over one partition
// whose records come by [Core.Add].
//
// Errors: an offset before the step's first one, or steps that are not by the clock.
func (c *Core) Until(end int64) error {
	if len(c.at) != 1 || end < c.first {
		return errors.New("internal: a step ends where it can't")
	}
	c.end = end
	return nil
}

// Close ends the open step, after Add has taken all its records. It returns the messages
// of the step's release, none if the step has no release.
func (c *Core) Close() ([]Message, error) {
	if c.at != nil {
		return c.close([]span{{c.first, c.end}}, nil)
	}
	return c.close(nil, nil)
}

// close is Close. Of a merged epoch, and of steps by the clock, parts holds the offsets of each partition.
// Where leaves have taken the step's records, sums are theirs, of which only the entries of persons are
// looked at; else nil.
func (c *Core) close(parts []span, sums []*Sum) ([]Message, error) {
	h := c.transcript
	h.AbsorbRecords(c.records)
	for i, p := range c.persons {
		err := error(nil)
		if sums != nil {
			err = sums[i].entries.Err()
		} else {
			err = p.Err()
		}
		if err != nil {
			return nil, err
		}
	}
	r, err := c.mech.Close(c.keys.Step(c.step+1, &h))
	if err != nil {
		return nil, err
	}
	for i, p := range c.persons {
		if sums != nil {
			p.Keep(&sums[i].entries)
			continue
		}
		c.openPersons() // of a step without records
		p.Close()
	}
	c.step++
	c.transcript = h
	if c.at != nil {
		c.end = 0
		for i, p := range parts {
			c.at[i] = p.end
			c.end += p.end
		}
	}
	if c.encoder.m.Partition != Merged {
		parts = nil
	}
	first, end := c.first, c.end
	c.openStep()
	if r == nil {
		return nil, nil
	}
	if r.Verdict != "" {
		c.verdict = r.Verdict
	}
	if w := c.mech.window; w > 0 && (c.mech.warmup == nil || c.step > c.mech.warmup.Parts) {
		first = end - w
		for i := range parts {
			parts[i].first = parts[i].end - w/int64(len(parts))
		}
	}
	return c.encoder.encode(r, first, end, parts)
}
