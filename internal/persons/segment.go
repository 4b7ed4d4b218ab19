package persons

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/streamdp/streamdp/internal/bin"
)

// A segment is a file with a header and entries. An entry of a journal is a tag and a step, 20 bytes. It stands for a
// person's first contribution in that step; entries are in the order of the log. An entry of a snapshot is a tag, the
// last step and the number of steps, 24 bytes. It is everything that the map knows about the person; entries are in the
// order of the table.
var (
	journalMagic  = []byte("streamdp users 1 j\n")
	snapshotMagic = []byte("streamdp users 1 s\n")
)

const (
	entryBytes    = 20
	snapshotBytes = 24
)

// ErrDamaged is the error if the files differ from those that were written.
var ErrDamaged = errors.New("the files of persons are missing or damaged")

// Segment is one file of a [Position].
type Segment struct {
	Number   uint64
	Snapshot bool
	First    uint64 // step of its first entries; for a snapshot, the last step it covers
	Length   uint64 // number of bytes that count, including the header
	Hash     [32]byte
}

// Position says which bytes of the files count. It is stored in the checkpoint for which it was made.
type Position struct {
	Step     uint64 // the last step that the position covers
	Seen     uint64 // number of records since the last snapshot
	Segments []Segment
}

// AppendBinary appends a position to b.
func (p *Position) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: b}
	w.Uint(p.Step)
	w.Uint(p.Seen)
	w.Uint(uint64(len(p.Segments)))
	for i := range p.Segments {
		s := &p.Segments[i]
		w.Uint(s.Number)
		kind := uint64(0)
		if s.Snapshot {
			kind = 1
		}
		w.Uint(kind)
		w.Uint(s.First)
		w.Uint(s.Length)
		w.Raw(s.Hash[:])
	}
	return w.B, nil
}

// UnmarshalBinary reads what AppendBinary wrote.
func (p *Position) UnmarshalBinary(b []byte) error {
	r := &bin.Reader{B: b}
	*p = Position{Step: r.Uint(), Seen: r.Uint()}
	for n := r.Uint(); n > 0 && !r.Bad; n-- {
		s := Segment{Number: r.Uint(), Snapshot: r.Index(2) == 1, First: r.Uint(), Length: r.Uint()}
		copy(s.Hash[:], r.Raw(32))
		// Numbers are consecutive, steps do not decrease, and only the first segment may be a snapshot.
		if k := len(p.Segments); k > 0 {
			before := &p.Segments[k-1]
			r.Bad = r.Bad || s.Snapshot || s.Number != before.Number+1 || s.First < before.First
		}
		r.Bad = r.Bad || s.Number == 0 || s.First > p.Step || s.Length < uint64(len(journalMagic))
		p.Segments = append(p.Segments, s)
	}
	if p.Step > MaxStep || !r.Done() {
		return ErrDamaged
	}
	return nil
}

func appendEntry(b []byte, tag *Tag, step uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(b, tag[:]...), step)
}

// readSegment reads the bytes of a segment that count into the map. It returns the state of their hash, and whether the
// file continues after them (further). No entry may be of a step after `until`.
func (m *Map) readSegment(in io.Reader, s *Segment, until uint64) (h hash.Hash, further bool, err error) {
	h = sha256.New()
	r := bufio.NewReaderSize(in, 1<<16)
	content := io.TeeReader(io.LimitReader(r, int64(s.Length)), h)
	magic, size := journalMagic, uint64(entryBytes)
	if s.Snapshot {
		magic, size = snapshotMagic, snapshotBytes
		m.step, m.open = uint32(s.First), false // the first segment, possibly a snapshot, sets the step
	}
	rest := s.Length - uint64(len(magic)) // Length was checked
	if rest%size != 0 {
		return nil, false, ErrDamaged
	}
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(content, head); err != nil || string(head) != string(magic) {
		return nil, false, damaged(err)
	}
	// The file is read in chunks of whole entries, because hashing entry by entry costs more than reading.
	chunk := make([]byte, 1000*size)
	for rest > 0 {
		c := chunk[:min(rest, uint64(len(chunk)))]
		if _, err := io.ReadFull(content, c); err != nil {
			return nil, false, damaged(err)
		}
		rest -= uint64(len(c))
		for i := uint64(0); len(c) > 0; c, i = c[size:], i+1 {
			if i%64 == 0 {
				m.warmFrom(c, int(size))
			}
			if err := m.restore(c[:size], s, until); err != nil {
				return nil, false, err
			}
		}
	}
	if [32]byte(h.Sum(nil)) != s.Hash {
		return nil, false, ErrDamaged
	}
	_, err = r.ReadByte()
	if errors.Is(err, io.EOF) {
		return h, false, nil
	}
	return h, true, err
}

// warmFrom calls Warm for the next entries of a segment.
func (m *Map) warmFrom(entries []byte, size int) {
	for i := 0; i < min(len(entries), 64*size); i += size {
		m.near += m.slots[m.home((*Tag)(entries[i:]))].last
	}
}

// restore puts one entry into the map. An entry that no map can have written is damage.
func (m *Map) restore(entry []byte, s *Segment, until uint64) error {
	tag, step := Tag(entry), binary.LittleEndian.Uint32(entry[16:])
	if tag == (Tag{}) || uint64(step) > until {
		return ErrDamaged
	}
	if s.Snapshot {
		steps := binary.LittleEndian.Uint32(entry[20:])
		if step == 0 || uint64(step) > s.First || m.rule.period(step) != m.rule.period(uint32(s.First)) ||
			uint64(steps) > m.rule.Cap || (steps == 0) != (m.rule.Cap == 0) {
			return ErrDamaged
		}
		known, free := m.find(&tag)
		if known != nil || free == nil || m.rule.Cap > 0 && m.users == m.rule.Users {
			return ErrDamaged
		}
		m.users++
		*free = slot{tag, step, steps}
		return nil
	}
	if uint64(step) < s.First || step < m.step {
		return ErrDamaged
	}
	if step > m.step {
		if err := m.Open(uint64(step)); err != nil {
			return ErrDamaged
		}
	}
	if m.Take(tag) != Counts || len(m.fresh) == 0 {
		return ErrDamaged
	}
	m.fresh = m.fresh[:0] // the journal already has the entry
	return nil
}

// writeTo writes a snapshot of the map after the last closed step, and returns its length. It omits persons who count
// as absent in the next step. With a cap the bytes depend only on the content of the map, not on the order in which it
// was filled: with linear probing the set of taken slots does not depend on that order, and within a run of taken slots
// the entries are sorted by tag.
func (m *Map) writeTo(out io.Writer) (n uint64, err error) {
	w := bufio.NewWriterSize(out, 1<<16)
	w.Write(snapshotMagic) // Flush returns an earlier error
	n = uint64(len(snapshotMagic))
	var entry [snapshotBytes]byte
	var run []slot
	flush := func() {
		slices.SortFunc(run, func(a, b slot) int { return bytes.Compare(a.tag[:], b.tag[:]) })
		for j := range run {
			copy(entry[:], run[j].tag[:])
			binary.LittleEndian.PutUint32(entry[16:], run[j].last)
			binary.LittleEndian.PutUint32(entry[20:], run[j].steps&stepsMask)
			w.Write(entry[:])
			n += snapshotBytes
		}
		run = run[:0]
	}
	mask := len(m.slots) - 1
	first := slices.IndexFunc(m.slots, func(s slot) bool { return s.last == 0 })
	for i := range m.slots {
		switch s := &m.slots[(first+1+i)&mask]; {
		case s.last == 0:
			flush()
		case m.rule.Cap > 0 || uint64(m.step-s.last)+1 < m.rule.Separation:
			run = append(run, *s)
		}
	}
	flush() // writes the last run if the table has no empty slot
	return n, w.Flush()
}

// damaged converts the error of a read: if the file is too short, the result is ErrDamaged.
func damaged(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrDamaged
	}
	return fmt.Errorf("files of persons: %w", err)
}
