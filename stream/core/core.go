// Package core makes the releases of an epoch out of rows.
//
// It keeps the release invariant: its output depends on nothing but the keys, the manifest and the records. So the
// package uses no clock, I/O, goroutine or randomness; a test checks its imports. An epoch begins with [New] or
// [Core.Resume]. Then [Core.Add] takes the records of a step one by one, and [Core.Close] returns the messages of the
// step's release. The package contains the mechanisms, the manifest and the encoding of releases. Other packages below
// stream fetch records, publish releases and keep the state.
package core

import (
	"errors"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
)

// Core makes the releases of one epoch. They depend on nothing but the keys, the manifest and the records. If a process
// stops and another resumes from a checkpoint, the remaining releases have the same bytes as without the stop.
type Core struct {
	mech       *Mechanism
	keys       *dp.Epoch
	encoder    *encoder
	base       int64 // first offset of the epoch
	step       uint64
	transcript dp.Transcript  // transcript after the last closed step
	first, end int64          // offsets of the open step; its end is unknown if steps are by the clock
	at         []int64        // if steps are by the clock: where the open step begins, by partition; else nil
	records    uint64         // records of the open step, valid or not
	verdict    string         // verdict of the last release that had one
	persons    []*persons.Map // one per partition; nil: the stream protects records

	scaling
}

// scaling is how rows enter an estimator: as (x − centre)/scale, or unchanged.
type scaling struct {
	centre, scale []float64 // nil: unchanged
	row           []float64 // buffer
}

// scaled returns the scaled row. It returns nil for a record without a row.
func (s *scaling) scaled(row []float64) []float64 {
	if row == nil || s.centre == nil {
		return row
	}
	for j, x := range row {
		s.row[j] = (x - s.centre[j]) / s.scale[j]
	}
	return s.row
}

// clone returns a scaling with its own buffer.
func (s *scaling) clone() scaling {
	return scaling{s.centre, s.scale, slices.Clone(s.row)}
}

// New returns the core of an epoch before its first step. With nil keys it can only make leaves, see [Core.LeavesFrom].
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

// Resume continues an epoch after a closed step. state and h are the mechanism's state and the transcript after that
// step, and next holds the next offset to read of each partition. If the stream protects persons, [Core.Persons] must
// be in their state after that step.
func (c *Core) Resume(state []byte, step uint64, h dp.Transcript, next []int64) error {
	if err := c.mech.UnmarshalBinary(state); err != nil {
		return err
	}
	for _, p := range c.persons {
		if p.Closed() != step {
			return errors.New("checkpoint: its data about persons do not belong to its step")
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
		return errors.New("checkpoint: its position does not belong to its step")
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

// Ended reports whether the mechanism cannot continue although the horizon is not reached, and why.
func (c *Core) Ended() (why string, ended bool) {
	if e, ok := c.mech.Estimator.(ending); ok {
		return e.Ended()
	}
	return "", false
}

// Verdict returns what the last release since New or Resume said about its bounds: "ok", "partial", "stale" or
// "biased", or "fail" for a warm-up. It is "" if no release said anything.
func (c *Core) Verdict() string { return c.verdict }

// Step returns the number of the last closed step, or 0 before the first.
func (c *Core) Step() uint64 { return c.step }

// First returns the first offset of the open step.
func (c *Core) First() int64 { return c.first }

// End returns the offset after the open step.
func (c *Core) End() int64 { return c.end }

// Transcript returns the transcript after the last closed step.
func (c *Core) Transcript() dp.Transcript { return c.transcript }

// AppendState appends to b the mechanism's state after the last closed step.
func (c *Core) AppendState(b []byte) ([]byte, error) { return c.mech.AppendBinary(b) }

// Mechanism returns the mechanism.
func (c *Core) Mechanism() *Mechanism { return c.mech }

// Statements returns the sentences about the guarantee that the epoch's releases contain.
func (c *Core) Statements() []string { return c.encoder.statements }

// Destroy overwrites the keys. The Core must not be used afterwards.
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

// Persons returns the maps that remember which persons contributed, one per partition that the epoch reads, or nil if
// the stream protects records. After New the maps are empty, and the caller must fill them before Resume. If a [Leaf]
// takes the records of a partition, it uses that partition's map, so the caller may then only use what concerns the
// journal.
func (c *Core) Persons() []*persons.Map { return c.persons }

// Warm announces the next tags, so that AddOf waits less for memory.
func (c *Core) Warm(tags []persons.Tag) {
	if c.persons != nil {
		c.persons[0].Warm(tags)
	}
}

// UserKey returns the key of the epoch's tags, for [Core.AddOf].
func (c *Core) UserKey() [persons.KeyBytes]byte { return c.keys.UserKey(c.encoder.m.Task().String()) }

// Add takes the next record, at an offset of the open step. row holds its decoded numbers, or is nil if the record gave
// none. If the stream protects persons, the record belongs to nobody and does not count; use AddOf.
func (c *Core) Add(offset int64, row []float64) { c.AddOf(offset, row, persons.Tag{}) }

// AddOf takes a record of a person. tag is ignored if the stream protects records. AddOf returns whether the record
// counts for its person, and if not, why. The answer is an exact fact about the person's records, and as private as the
// records.
//
// Privacy: if the stream protects persons, a record that does not count for its person adds the same as a record
// without a row. Whether it counts does not depend on whether it has a row.
func (c *Core) AddOf(offset int64, row []float64, tag persons.Tag) (counts persons.Answer) {
	switch {
	case c.persons == nil:
	case c.between(offset): // in no window; it must not use up the person's contributions
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

// between reports whether an offset of the open step lies before the step's window. A record there adds nothing, so it
// does not count for its person.
func (c *Core) between(offset int64) bool {
	return c.mech.window > 0 && offset < c.end-c.mech.window
}

// openPersons opens the step for persons, once. It fails only after the largest step of a map; then no record counts.
func (c *Core) openPersons() {
	if c.persons[0].Step() == c.step {
		c.persons[0].Open(c.step + 1)
	}
}

// Until sets the end of the open step of an epoch over one partition, with steps by the clock and records added by
// [Core.Add].
//
// Errors: an offset before the step's first one, or steps that are not by the clock.
func (c *Core) Until(end int64) error {
	if len(c.at) != 1 || end < c.first {
		return errors.New("internal: a step would end at an impossible offset")
	}
	c.end = end
	return nil
}

// Close ends the open step, after Add has taken all its records. It returns the messages of the step's release, or none
// if the step has no release.
func (c *Core) Close() ([]Message, error) {
	if c.at != nil {
		return c.close([]span{{c.first, c.end}}, nil)
	}
	return c.close(nil, nil)
}

// close closes the open step. For a merged epoch or steps by the clock, parts holds the offsets of each partition. If
// leaves have taken the step's records, sums are their sums, and close uses only their entries of persons; else sums is
// nil.
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
		c.openPersons() // in case the step has no records
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
