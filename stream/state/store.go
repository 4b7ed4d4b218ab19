package state

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Store has the files of one task:
//
//	manifest-N, secret-N          for epoch N, with N in decimal
//	opening-N                     epoch N is being opened, and no noise was drawn for it yet
//	initial-N                     the parameters with which the epoch begins, if there are any
//	final-N                       the parameters with which it ended; the next epoch begins with them
//	checkpoint                    the last commit
//	checkpoint.prev               the commit before it
//	checkpoint.0, checkpoint.1    the last two commits, if the state is large
//	users-N.K                     for epoch N that protects persons: who contributed; see package persons
//	users-N.pP.K                  the same for partition P, if epoch N is merged
//	*.tmp                         an incomplete write
//
// A state smaller than SlotBytes is written to a new file, which replaces the old one. A larger state is written over
// the older of two slots, which is faster. From then on only slots are used until the epoch ends. A slot is valid only
// if its hash is right, and the valid slot with the larger number is the last commit. So after a torn write, the other
// slot is still valid. If the files are in a log, only the last commit is kept.
type Store struct {
	Disk   Disk
	Dir    string
	buf    []byte
	seq    uint64  // number of the last commit
	slot   int     // slot with the last commit; noSlot if it is in the file
	Seal   *Sealer // nil: encrypted files cannot be read
	sealed []byte  // buffer for the encrypted commit
	logged bool    // the files are in a log, where no write is torn
}

const noSlot = -1

var slotNames = [2]string{"checkpoint.0", "checkpoint.1"}

// SlotBytes is the size from which a checkpoint is written to slots; tests lower it.
var SlotBytes = 5 << 20

// Open creates the task's directory, removes the remains of interrupted writes, and rewrites each private file as
// configured, encrypted or not.
func Open(d Disk, dir string, seal *Sealer) (*Store, error) {
	if err := d.MkdirAll(dir); err != nil {
		return nil, err
	}
	if err := d.SyncDir(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	names, err := d.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	left := slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, TemporarySuffix) })
	s := &Store{Disk: d, Dir: dir, slot: noSlot, Seal: seal, logged: !tears(d)}
	if err := RemoveAll(d, dir, left...); err != nil || seal == nil {
		return s, err
	}
	return s, s.migrate()
}

func (s *Store) Path(name string) string { return filepath.Join(s.Dir, name) }

// Mark durably records that an epoch is being opened. Older marks belong to void epochs.
func (s *Store) Mark(epoch uint64) error {
	names, err := s.Disk.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	old := slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, openingPrefix) })
	if err := RemoveAll(s.Disk, s.Dir, old...); err != nil {
		return err
	}
	f, err := s.Disk.Append(s.Path(OpeningName(epoch)))
	if err := Write(f, err, nil); err != nil {
		return err
	}
	return s.Disk.SyncDir(s.Dir)
}

// Marked reports whether the opening of the epoch was not completed.
func (s *Store) Marked(epoch uint64) (bool, error) {
	_, err := s.Disk.ReadFile(s.Path(OpeningName(epoch)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Load returns the task's last commit, or nil if there is none.
func (s *Store) Load() (*Checkpoint, error) {
	s.seq, s.slot = 0, noSlot
	var newest *Checkpoint
	slots := 0
	for i, name := range slotNames {
		data, err := s.Disk.ReadFile(s.Path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		slots++
		// A slot with a wrong hash is the result of an interrupted write.
		if c, err := s.parse(SlotContent(data)); err == nil && (newest == nil || c.Seq > newest.Seq) {
			newest, s.slot = c, i
		}
	}
	data, err := s.Disk.ReadFile(s.Path(CheckpointName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A single damaged slot is an interrupted first write of an epoch to slots.
		if newest == nil && slots == len(slotNames) {
			return nil, ErrCheckpoint
		}
	case err != nil:
		return nil, err
	default:
		// A task switches from the file to slots, but never back. So if a slot has a commit, the one in the file is
		// older.
		c, err := s.parse(data)
		if err != nil && newest == nil {
			return nil, err
		}
		if err == nil && (newest == nil || c.Seq > newest.Seq) {
			newest, s.slot = c, noSlot
		}
	}
	if newest != nil {
		s.seq = newest.Seq
	}
	return newest, nil
}

// Previous returns the commit before the last one, or nil if there is none or it is damaged. With slots it returns nil:
// if one slot is damaged, the other has the last commit.
func (s *Store) Previous() (*Checkpoint, error) {
	data, err := s.Disk.ReadFile(s.Path(PreviousName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := s.parse(data)
	if err != nil {
		return nil, nil
	}
	s.seq = max(s.seq, c.Seq)
	return c, nil
}

// SlotContent returns the content of a slot without the bytes after its end, which are left from a longer, older
// commit.
func SlotContent(data []byte) []byte {
	if IsSealed(data) {
		return sealedContent(data)
	}
	head := len(checkpointMagic) + 8
	if len(data) < head {
		return data
	}
	size := binary.LittleEndian.Uint64(data[head-8:])
	if rest := uint64(len(data) - head); rest >= sha256.Size && size <= rest-sha256.Size {
		return data[:uint64(head)+size+sha256.Size]
	}
	return data
}

// Commit makes c durable in place of the last commit, and sets c.Seq. After an error, either the last commit is still
// in place or, if only the confirmation of the write failed, c is; the task can continue from both. Commit never uses a
// number twice, not even after an error, so a later commit always has a larger number.
func (s *Store) Commit(c *Checkpoint) error {
	s.seq++
	c.Seq = s.seq
	if s.buf == nil {
		s.buf = *commitBuffers.Get().(*[]byte)
	}
	s.buf = c.Encode(s.buf[:0])
	defer func() {
		clear(s.buf)
		if b := s.buf[:0]; cap(b) <= pooledCommit {
			commitBuffers.Put(&b)
			s.buf = nil
		}
	}()
	data := s.buf
	if s.Seal != nil && s.Seal.On {
		var err error
		if s.sealed, err = s.Seal.seal(s.sealed[:0], kindCheckpoint, c.Seq, s.buf); err != nil {
			return err
		}
		data = s.sealed
	}
	if s.logged {
		return WriteOver(s.Disk, s.Path(CheckpointName), data)
	}
	if s.slot == noSlot && len(data) < SlotBytes {
		return s.replace(data)
	}
	return s.overwrite(data)
}

// CommitOf copies the last commit of another store to this store, which has none. See [Store.Commit].
func (s *Store) CommitOf(c *Checkpoint) error {
	s.seq = c.Seq
	return s.Commit(c)
}

// commitBuffers are buffers for the commits of all tasks. A buffer larger than pooledCommit is not pooled and stays
// with its task.
var commitBuffers = sync.Pool{New: func() any { return new([]byte) }}

const pooledCommit = 1 << 20

// replace writes and syncs a new file, keeps the old one as checkpoint.prev, renames the new one into place, and syncs
// the directory.
func (s *Store) replace(data []byte) (err error) {
	tmp, name, prev := s.Path(TemporaryName), s.Path(CheckpointName), s.Path(PreviousName)
	if err := s.Disk.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			s.Disk.Remove(tmp)
		}
	}()
	f, err := s.Disk.Create(tmp)
	if err := Write(f, err, data); err != nil {
		return err
	}
	if err := s.Disk.Remove(prev); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.Disk.Link(name, prev); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.Disk.Rename(tmp, name); err != nil {
		return err
	}
	return s.Disk.SyncDir(s.Dir)
}

// overwrite writes over the slot that does not have the last commit.
func (s *Store) overwrite(data []byte) error {
	to := 0
	if s.slot == 0 {
		to = 1
	}
	if s.slot == noSlot && s.Seal != nil && s.Seal.On {
		// Slots without a valid commit may still contain unencrypted bytes of an older commit that was longer than this
		// one.
		if err := RemoveAll(s.Disk, s.Dir, slotNames[0], slotNames[1]); err != nil {
			return err
		}
	}
	f, err := s.Disk.Overwrite(s.Path(slotNames[to]))
	if err := Write(f, err, data); err != nil {
		return err
	}
	// When the slots are new, their names must become durable too.
	if err := s.Disk.SyncDir(s.Dir); err != nil {
		return err
	}
	first := s.slot == noSlot
	s.slot = to
	if first {
		return RemoveAll(s.Disk, s.Dir, CheckpointName, PreviousName, TemporaryName)
	}
	return nil
}

// Prune removes from a log the files that the given epoch and later ones do not need: manifests of epochs whose secret
// is destroyed, and the final parameters of all epochs but the last one. On a disk these files are kept.
func (s *Store) Prune(epoch uint64) error {
	if !s.logged {
		return nil
	}
	names, err := s.Disk.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	number := func(name, kind string) uint64 {
		n, ok := epochOf(name, kind)
		if !ok {
			return 0
		}
		return n
	}
	var last uint64
	for _, name := range names {
		last = max(last, number(name, FinalPrefix))
	}
	gone := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		n, f := number(name, ManifestPrefix), number(name, FinalPrefix)
		return !(0 < n && n < epoch && !slices.Contains(names, SecretName(n))) && !(0 < f && f < last)
	})
	return RemoveAll(s.Disk, s.Dir, gone...)
}

// Erase removes the files that must not outlive an epoch: the checkpoints, because they have exact sums and past noise,
// and the files of persons.
func (s *Store) Erase() error {
	names, err := s.Disk.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, PersonsPrefix) })
	return s.eraseCheckpoints(gone...)
}

// EraseCheckpoints removes only the checkpoints; the files of persons remain.
func (s *Store) EraseCheckpoints() error { return s.eraseCheckpoints() }

// eraseCheckpoints removes the checkpoints, and other files.
func (s *Store) eraseCheckpoints(others ...string) error {
	s.slot = noSlot
	return RemoveAll(s.Disk, s.Dir,
		append(others, CheckpointName, PreviousName, TemporaryName, slotNames[0], slotNames[1])...)
}

// Encrypted reports whether a checkpoint of the task is encrypted, with any key.
func (s *Store) Encrypted() bool {
	for _, name := range append([]string{CheckpointName}, slotNames[:]...) {
		if data, err := s.Disk.ReadFile(s.Path(name)); err == nil && IsSealed(data) {
			return true
		}
	}
	return false
}
