package persons

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// slot is a place in the map's table, for one person.
type slot struct {
	tag   Tag
	last  uint32 // step of the last contribution; 0: the slot is empty
	steps uint32 // number of steps with a contribution; upper 8 bits: records in the last one
}

const (
	slotBytes = 24
	stepsMask = MaxCap
	oneRecord = MaxCap + 1
)

// Map decides which records count, in the order of the log. Its answers depend only on the rule, the tags and their
// steps.
//
// It is a hash table with linear probing. The tag itself is the hash: it is pseudorandom, so nobody can choose user
// keys that collide. Without a cap, a person who contributed at least Separation steps ago counts as absent. Another
// person may reuse the table entry of an absent person. Each step also removes some absent persons, by a schedule that
// depends on the rule alone.
//
// A Map is not safe for concurrent use.
type Map struct {
	rule          Rule
	step          uint32
	slots         []slot
	shift         int    // a tag's place is its first 8 bytes shifted right by this
	users         uint64 // with a cap: number of persons in the map
	hand          uint64 // without a cap: slot at which the next removal begins
	quota         uint64 // without a cap: number of slots that a removal examines
	open          bool   // true while a step is open
	fresh         []byte // entries of the open step, one for each person
	taken         uint64 // number of records of the open step
	seen          uint64 // number of records of closed steps since the last snapshot
	overflow      bool
	snapshotAfter uint64 // number of records after which a snapshot is due
	near          uint32 // keeps the compiler from removing Warm's reads
	// kept holds the entries that the journal has not taken yet. Another goroutine may use the fields above: see
	// CloseInto.
	kept Entries
}

// Entries are the entries of closed steps for a [Journal]. They are exact facts about persons.
type Entries struct {
	list     []byte // the entries: one for each person in each step
	step     uint32 // the last closed step
	records  uint64
	overflow bool
	due      bool // true if a snapshot is due
}

// SnapshotDue reports whether the journal should write a snapshot, before the next step begins.
func (e *Entries) SnapshotDue() bool { return e.due }

// Err returns the error that [Map.Err] had in these steps.
func (e *Entries) Err() error {
	if e.overflow {
		return errOverflow
	}
	return nil
}

var errOverflow = errors.New("internal error: within one separation, records of more than max_users persons count")

// NewMap returns the map of an epoch before its first step. It allocates all memory of the map, except that for entries
// that the journal has not taken.
func NewMap(r Rule) (*Map, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	n := r.slots()
	m := &Map{rule: r, slots: make([]slot, n), shift: 64 - bits.TrailingZeros64(n), snapshotAfter: r.snapshotAfter()}
	inLargePages(m.slots)
	// The removal passes over the table four times in Separation steps. So absent persons make up at most a fifth of
	// the entries.
	m.quota = min(n, n/max(1, r.Separation/4)+1)
	return m, nil
}

// Open begins a step, whose number must be larger than the previous one. It closes the previous step.
func (m *Map) Open(step uint64) error {
	if step <= uint64(m.step) || step > MaxStep {
		return fmt.Errorf("internal error: the person map got step %d after step %d", step, m.step)
	}
	if m.open {
		m.Close()
	}
	m.enter(uint32(step))
	m.open = true
	if m.rule.Cap == 0 {
		m.sweep()
	}
	return nil
}

// enter advances to a step. A new period empties the map.
func (m *Map) enter(step uint32) {
	if m.rule.period(step) != m.rule.period(m.step) {
		clear(m.slots)
		m.users = 0
	}
	m.step = step
}

// Close ends the open step: the journal may take its entries.
func (m *Map) Close() { m.CloseInto(&m.kept) }

// CloseInto ends the open step and adds its entries to e, which [Map.Keep] gives to the journal later. This lets one
// goroutine process the log while another one handles the entries of earlier steps. If a snapshot is due, the first
// goroutine must not open a step before the second has called [Journal.Append] or [Journal.Spill], because a snapshot
// holds the whole map.
func (m *Map) CloseInto(e *Entries) {
	e.list, e.step = append(e.list, m.fresh...), m.step
	e.records += m.taken
	e.overflow = e.overflow || m.overflow
	m.seen += m.taken
	m.fresh, m.taken, m.open = m.fresh[:0], 0, false
	e.due = e.due || m.rule.Cap > 0 && m.seen >= m.snapshotAfter
}

// Keep gives the entries of further steps to the journal, and empties e.
func (m *Map) Keep(e *Entries) {
	k := &m.kept
	k.list, k.step = append(k.list, e.list...), e.step
	k.records += e.records
	k.overflow, k.due = k.overflow || e.overflow, k.due || e.due
	*e = Entries{list: e.list[:0]}
}

// Take decides about the next record of the open step. If no step is open, the answer is NoUser.
func (m *Map) Take(tag Tag) Answer {
	m.taken++
	if tag == (Tag{}) || !m.open {
		return NoUser
	}
	if tag == Away() {
		return Foreign
	}
	s, free := m.find(&tag)
	if s != nil {
		return m.again(s)
	}
	if m.rule.Cap > 0 && m.users == m.rule.Users {
		return Full
	}
	if free == nil {
		m.overflow = true
		return Full
	}
	m.users++
	*free = slot{tag: tag}
	m.contribute(free)
	return Counts
}

// Warm reads the table at the places of tags that Take will soon need, and just after them, all at once. It changes no
// answer. It is faster because a large table is in main memory, and a processor can wait for ten such reads at the same
// time.
func (m *Map) Warm(tags []Tag) {
	sum, mask := uint32(0), uint64(len(m.slots)-1)
	for i := range tags {
		at := m.home(&tags[i])
		sum += uint32(m.slots[at].tag[0]) + m.slots[(at+1)&mask].last
	}
	m.near = sum
}

// find returns a person's slot or, if the person has none, a free slot; nil if all slots are taken.
func (m *Map) find(tag *Tag) (s, free *slot) {
	mask := uint64(len(m.slots) - 1)
	at := m.home(tag)
	for range m.slots {
		s := &m.slots[at]
		if s.last == 0 {
			if free == nil {
				free = s
			}
			return nil, free
		}
		if s.tag == *tag {
			return s, nil
		}
		if free == nil && m.gone(s) {
			free = s
		}
		at = (at + 1) & mask
	}
	return nil, free
}

// again decides about a record of a person who is in the map.
func (m *Map) again(s *slot) Answer {
	if s.last == m.step {
		if uint64(s.steps/oneRecord) < m.rule.PerStep {
			s.steps += oneRecord
			return Counts
		}
		return OverCap
	}
	if m.rule.Cap > 0 && uint64(s.steps&stepsMask) >= m.rule.Cap || uint64(m.step-s.last) < m.rule.Separation {
		return OverCap
	}
	m.contribute(s)
	return Counts
}

// contribute records the person's first contribution in the open step.
func (m *Map) contribute(s *slot) {
	steps := s.steps & stepsMask
	if m.rule.Cap > 0 { // without a cap the number is not needed
		steps++
	}
	s.last, s.steps = m.step, steps|oneRecord
	m.fresh = appendEntry(m.fresh, &s.tag, m.step)
}

// Err returns an error if the map was full although the rule guarantees room. Then nothing may be released.
func (m *Map) Err() error {
	if m.overflow {
		return errOverflow
	}
	return nil
}

// Forget removes the entries of closed steps that no journal has taken. It is for a process that reads a log again
// without a journal, where these entries would otherwise accumulate in memory.
func (m *Map) Forget() {
	m.kept.list, m.kept.records = m.kept.list[:0], 0
}

// Waiting returns an upper bound on the bytes of entries that the journal has not taken. It depends only on the number
// of records.
func (m *Map) Waiting() uint64 { return entryBytes * m.kept.records }

// Step returns the number of the step that was opened last, 0 before the first.
func (m *Map) Step() uint64 { return uint64(m.step) }

// Closed returns the number of the last closed step, as far as the journal knows.
func (m *Map) Closed() uint64 { return uint64(m.kept.step) }

// home returns a tag's place, from its first bits, so that the table is nearly in the order of tags.
func (m *Map) home(tag *Tag) uint64 { return binary.BigEndian.Uint64(tag[:8]) >> m.shift }

// gone reports whether a person counts as absent.
func (m *Map) gone(s *slot) bool {
	return m.rule.Cap == 0 && uint64(m.step-s.last) >= m.rule.Separation
}

// sweep removes absent persons from a part of the table.
func (m *Map) sweep() {
	mask := uint64(len(m.slots) - 1)
	for range m.quota {
		for s := &m.slots[m.hand]; s.last != 0 && m.gone(s); {
			m.remove(m.hand) // looks at the same slot again: another entry may have moved here
		}
		m.hand = (m.hand + 1) & mask
	}
}

// remove empties a slot, and moves later entries back that could otherwise not be found.
func (m *Map) remove(at uint64) {
	mask := uint64(len(m.slots) - 1)
	for next := at; ; {
		next = (next + 1) & mask
		s := &m.slots[next]
		if s.last == 0 || next == at {
			break
		}
		// The entry may move back unless its own place (its home) is after the hole.
		if (next-m.home(&s.tag))&mask >= (next-at)&mask {
			m.slots[at] = *s
			at = next
		}
	}
	m.slots[at] = slot{}
}
