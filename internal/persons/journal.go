package persons

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Disk is the file system in which a [Journal] writes.
type Disk interface {
	// Open opens a file for reading.
	Open(name string) (io.ReadCloser, error)
	// Create creates a file. It fails if the name exists.
	Create(name string) (File, error)
	// Append opens a file for writing at its end.
	Append(name string) (File, error)
	// Truncate cuts a file to a size and syncs it.
	Truncate(name string, size int64) error
	Remove(name string) error
	// ReadDir returns the names in a directory.
	ReadDir(dir string) ([]string, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

// File is a file open for writing.
type File interface {
	io.WriteCloser
	Sync() error
}

// Journal keeps on disk what a [Map] needs after a restart.
//
// At a commit, Append makes the entries of all closed steps durable and returns the position for the checkpoint. Once
// the checkpoint is durable, Committed removes the files that neither it nor the previous checkpoint needs. Bytes after
// a checkpoint's position do not count: the first Append after [OpenJournal] cuts them off. So a process that starts
// from either of the last two checkpoints restores the map of that checkpoint, and continues to read the log from
// there.
//
// With a cap, a snapshot of the map replaces the entries from time to time. When snapshots are written, and when files
// are created and removed, depends only on the rule and the number of records, not on their persons.
//
// Space on disk without a cap: 20 bytes for each contribution in 1¼ separations. With a cap: twice the sum of max(64
// MiB, 48 bytes per user) and a snapshot of 24 bytes per user. In both cases the bytes of one commit are added.
type Journal struct {
	disk   Disk
	dir    string
	prefix string
	m      *Map
	at     Position
	hash   hash.Hash // hash state of the last segment; nil: the next entries begin a new segment
	torn   bool      // the last file may be longer than its segment, or the next file may exist
	oldest uint64    // number of the oldest file
	first  uint64    // number of the first file of the last checkpoint
	last   uint64    // number of the last file that a checkpoint may use
}

// SnapshotLeast is the smallest number of bytes of entries that a snapshot replaces. Tests lower it before they open a
// journal.
var SnapshotLeast uint64 = 64 << 20

// OpenJournal fills m, a new map, with the content of the files up to a position. The position of a new epoch is zero.
// The files are dir/prefix1, dir/prefix2 and so on. It does not change them: bytes after the position stay until
// something is appended.
//
// Cost: it reads and hashes all bytes up to the position, in constant memory.
// Errors: ErrDamaged, if the files do not match the position; errors of the disk.
func OpenJournal(d Disk, dir, prefix string, m *Map, at Position) (*Journal, error) {
	j := &Journal{disk: d, dir: dir, prefix: prefix, m: m, at: at}
	j.at.Segments = slices.Clone(at.Segments)
	numbers, err := j.numbers()
	if err != nil {
		return nil, err
	}
	if n := len(at.Segments); n > 0 {
		j.last, j.first = at.Segments[n-1].Number, at.Segments[0].Number
	}
	j.oldest = j.first
	for _, n := range numbers {
		if n > j.last {
			j.torn = true
		} else {
			j.oldest = min(j.oldest, n)
		}
	}
	for i := range j.at.Segments {
		if err := j.read(&j.at.Segments[i]); err != nil {
			return nil, err
		}
	}
	if n := len(at.Segments); n > 0 && at.Segments[n-1].Snapshot {
		j.hash = nil
	}
	m.enter(uint32(at.Step)) // the step may be in a later period than the last entry
	m.open, m.fresh, m.taken, m.seen = false, m.fresh[:0], 0, at.Seen
	m.kept = Entries{step: uint32(at.Step)}
	return j, nil
}

// read reads one segment.
func (j *Journal) read(s *Segment) error {
	f, err := j.disk.Open(j.name(s.Number))
	if errors.Is(err, fs.ErrNotExist) {
		return ErrDamaged
	}
	if err != nil {
		return err
	}
	h, further, err := j.m.readSegment(f, s, j.at.Step)
	if e := f.Close(); err == nil {
		err = e
	}
	j.torn = j.torn || further
	j.hash = h
	return err
}

// Check compares the files with a position and changes nothing. It detects changed bytes. OpenJournal also reports
// damage that no journal can have written; Check does not look for it.
//
// Cost: it reads and hashes all bytes up to the position, in little memory.
// Errors: ErrDamaged, if the files do not match the position; errors of the disk.
func Check(d Disk, dir, prefix string, at Position) error {
	j := &Journal{disk: d, dir: dir, prefix: prefix}
	for i := range at.Segments {
		s := &at.Segments[i]
		f, err := d.Open(j.name(s.Number))
		if errors.Is(err, fs.ErrNotExist) {
			return ErrDamaged
		}
		if err != nil {
			return err
		}
		h := sha256.New()
		n, err := io.Copy(h, io.LimitReader(f, int64(s.Length)))
		if e := f.Close(); err == nil {
			err = e
		}
		if err == nil && (uint64(n) != s.Length || [32]byte(h.Sum(nil)) != s.Hash) {
			err = ErrDamaged
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (j *Journal) name(number uint64) string {
	return filepath.Join(j.dir, j.prefix+strconv.FormatUint(number, 10))
}

// numbers returns the numbers of the journal's existing files.
func (j *Journal) numbers() (all []uint64, err error) {
	names, err := j.disk.ReadDir(j.dir)
	for _, name := range names {
		rest, ours := strings.CutPrefix(name, j.prefix)
		if n, err := strconv.ParseUint(rest, 10, 64); ours && err == nil && 0 < n && n < 1<<63 &&
			strconv.FormatUint(n, 10) == rest {
			all = append(all, n)
		}
	}
	return all, err
}

// SnapshotDue reports whether a snapshot should be written. Append writes it only while no step is open, because an
// open step has changed the map of the last closed step. So the caller asks after closing a step and, if a snapshot is
// due, commits before it opens the next step.
func (j *Journal) SnapshotDue() bool { return j.m.kept.due }

// Append makes the entries of the map's closed steps durable. It returns the position for the checkpoint, valid until
// the next call. Calling it again for the same step changes nothing. After an error it can be called again, or a
// process can start from the last checkpoint.
func (j *Journal) Append() (*Position, error) {
	if err := j.append(); err != nil {
		return nil, err
	}
	if n := len(j.at.Segments); n > 0 {
		j.last = j.at.Segments[n-1].Number
	}
	return &j.at, nil
}

// Spill writes the entries of the map's closed steps to disk without a checkpoint, so that they do not accumulate in
// memory. A process that starts from the last checkpoint cuts them off. Spill removes files that no checkpoint needs.
// After an error it can be called again.
func (j *Journal) Spill() error {
	if err := j.append(); err != nil {
		return err
	}
	if len(j.at.Segments) == 0 || j.at.Segments[0].Number <= j.last+1 {
		return nil
	}
	return j.remove(j.last+1, j.at.Segments[0].Number)
}

// append makes the entries of closed steps durable and advances the position.
func (j *Journal) append() error {
	m := j.m
	if err := m.kept.Err(); err != nil {
		return err
	}
	if m.Closed() == j.at.Step {
		return nil
	}
	if j.SnapshotDue() && !m.open {
		return j.snapshot()
	}
	if err := j.mend(); err != nil {
		return err
	}
	segments := j.at.Segments
	if n := len(segments); n > 0 && m.rule.Cap == 0 && j.at.Step+1-segments[n-1].First >= (m.rule.Separation+7)/8 {
		j.hash = nil
	}
	entries := m.kept.list
	if j.hash == nil {
		s := j.next(false)
		h := sha256.New()
		if err := j.begin(&s, func(w io.Writer) error {
			w = io.MultiWriter(w, h)
			_, err := w.Write(journalMagic)
			if err == nil {
				_, err = w.Write(entries)
			}
			return err
		}); err != nil {
			return err
		}
		s.Length = uint64(len(journalMagic) + len(entries))
		s.Hash = [32]byte(h.Sum(nil))
		j.hash = h
		j.at.Segments = append(segments, s)
	} else {
		s := &segments[len(segments)-1]
		j.torn = true
		f, err := j.disk.Append(j.name(s.Number))
		if err := write(f, err, func(w io.Writer) error { _, err := w.Write(entries); return err }); err != nil {
			return err
		}
		j.hash.Write(entries)
		s.Length += uint64(len(entries))
		s.Hash = [32]byte(j.hash.Sum(nil))
	}
	j.torn = false
	j.at.Seen += m.kept.records
	j.at.Step = m.Closed()
	m.Forget()
	j.drop()
	return nil
}

// snapshotAfter returns the number of records after which a snapshot replaces their entries.
func (r Rule) snapshotAfter() uint64 {
	return max(SnapshotLeast, 2*snapshotBytes*r.Users) / entryBytes
}

// snapshot writes the whole map, replacing all segments.
func (j *Journal) snapshot() error {
	if err := j.mend(); err != nil {
		return err
	}
	if err := j.take(j.next(true)); err != nil {
		return err
	}
	j.torn = false
	return nil
}

// Rewrite makes the whole map durable in one snapshot, regardless of the files. It is for a map that was filled by
// reading the log again, with [Map.Forget] after each step. No step may be open. It does not change existing files, so
// a process can still start from any checkpoint. The next Committed removes the old files. After an error it can be
// called again.
func (j *Journal) Rewrite() (*Position, error) {
	if err := j.m.Err(); err != nil {
		return nil, err
	}
	if j.m.open {
		return nil, errors.New("internal error: a snapshot of the person map was requested within a step")
	}
	numbers, err := j.numbers()
	if err != nil {
		return nil, err
	}
	s := j.next(true)
	for _, n := range numbers {
		s.Number = max(s.Number, n+1)
	}
	j.oldest = 1
	if err := j.take(s); err != nil {
		j.disk.Remove(j.name(s.Number)) // if this fails, the next call uses another number
		return nil, err
	}
	j.first, j.last, j.torn = s.Number, s.Number, false
	return &j.at, nil
}

// take writes the map as the snapshot s, which replaces all segments.
func (j *Journal) take(s Segment) error {
	h := sha256.New()
	if err := j.begin(&s, func(w io.Writer) error {
		n, err := j.m.writeTo(io.MultiWriter(w, h))
		s.Length = n
		return err
	}); err != nil {
		return err
	}
	s.Hash = [32]byte(h.Sum(nil))
	j.at = Position{Step: j.m.Closed(), Segments: []Segment{s}}
	j.m.Forget()
	j.m.seen, j.m.kept.due = 0, false
	j.hash = nil
	return nil
}

// next returns the segment that follows the last one.
func (j *Journal) next(snapshot bool) Segment {
	s := Segment{Number: 1, Snapshot: snapshot, First: j.at.Step + 1}
	if snapshot {
		s.First = j.m.Closed()
	}
	if n := len(j.at.Segments); n > 0 {
		s.Number = j.at.Segments[n-1].Number + 1
	}
	return s
}

// begin creates a segment's file with this content and makes it durable.
func (j *Journal) begin(s *Segment, content func(io.Writer) error) error {
	j.torn = true
	f, err := j.disk.Create(j.name(s.Number))
	if err := write(f, err, content); err != nil {
		return err
	}
	if j.oldest == 0 {
		j.oldest = s.Number
	}
	return j.disk.SyncDir(j.dir)
}

// mend removes bytes and files after the position. A failed append may have left them, or a process that continued
// beyond this position.
func (j *Journal) mend() error {
	if !j.torn {
		return nil
	}
	if err := j.remove(j.next(false).Number, 1<<63); err != nil {
		return err
	}
	if n := len(j.at.Segments); n > 0 {
		s := &j.at.Segments[n-1]
		if err := j.disk.Truncate(j.name(s.Number), int64(s.Length)); err != nil {
			return err
		}
	}
	j.torn = false
	return nil
}

// drop removes segments from the position if all persons in them count as absent in the next step. The files stay until
// no checkpoint needs them.
func (j *Journal) drop() {
	if j.m.rule.Cap > 0 {
		return
	}
	s := j.at.Segments
	for len(s) > 1 && s[1].First+j.m.rule.Separation <= j.at.Step+2 {
		s = s[1:]
	}
	j.at.Segments = slices.Clone(s)
}

// Committed is called once the checkpoint with the last position is durable. It removes the files that neither this
// checkpoint nor the previous one needs.
func (j *Journal) Committed() error {
	if len(j.at.Segments) == 0 {
		return nil
	}
	needed := j.first
	j.first = j.at.Segments[0].Number
	if needed <= j.oldest {
		return nil
	}
	if err := j.remove(1, needed); err != nil {
		return err
	}
	j.oldest = needed
	return nil
}

// remove removes the files whose numbers are at least `from` and below `to`.
func (j *Journal) remove(from, to uint64) error {
	numbers, err := j.numbers()
	if err != nil {
		return err
	}
	gone := false
	for _, n := range numbers {
		if n < from || n >= to {
			continue
		}
		if err := j.disk.Remove(j.name(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		gone = true
	}
	if !gone {
		return nil
	}
	return j.disk.SyncDir(j.dir)
}

// Erase removes all files of a journal. It is called when the epoch's checkpoints are removed.
func Erase(d Disk, dir, prefix string) error {
	j := &Journal{disk: d, dir: dir, prefix: prefix}
	return j.remove(0, 1<<63)
}

// write writes content to f, a newly opened file, and syncs and closes it.
func write(f File, err error, content func(io.Writer) error) error {
	if err != nil {
		return err
	}
	err = content(f)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
