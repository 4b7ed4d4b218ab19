package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// pending is a message that has not been acknowledged.
type pending struct {
	core.Message
	time time.Time // of the commit that made it durable
}

func (p *pending) size() int { return len(p.Key) + len(p.Value) + 256 }

func (p *pending) encode(w *bin.Writer) {
	w.Uint(p.Step)
	w.Bytes(p.Key)
	w.Bytes(p.Value)
	w.Uint(uint64(len(p.Headers)))
	for _, h := range p.Headers {
		w.String(h.Key)
		w.Bytes(h.Value)
	}
	w.Int(p.time.UnixMilli())
}

// readPending reads what encode wrote.
func readPending(r *bin.Reader) pending {
	p := pending{Message: core.Message{Step: r.Uint(), Key: r.Bytes(), Value: r.Bytes()}}
	for range r.Uint() {
		if r.Bad {
			break
		}
		p.Headers = append(p.Headers, kafka.Header{Key: r.String(), Value: r.Bytes()})
	}
	p.time = time.UnixMilli(r.Int())
	return p
}

// checkpoint is what a task writes at a commit: its position in the log, its state, and
// the releases that it has not published yet. It holds raw sums and past noise, and is as
// secret as the records.
type checkpoint struct {
	epoch      uint64
	manifest   [32]byte // SHA-256 of the epoch's manifest
	seq        uint64   // of the write
	step       uint64   // last closed
	position   kafka.Position
	transcript dp.Transcript
	// output is where to begin to look in the output partition for releases that this
	// checkpoint does not know: the offset of an acknowledged release or, before there is one,
	// the end of the partition at that time.
	outputTopic     string
	outputPartition int
	output          int64
	acknowledged    bool     // a release is at output
	ledger          [32]byte // head when written
	build           string
	state           []byte
	outbox          []pending
	older           []kafka.Anchor // records read before position.Anchor, the oldest first; see thinned
	// parts are the positions in the partitions of a merged epoch, ascending. Then position
	// has their sum and no anchor.
	parts []partPosition
	// boundaryTopic is where the boundaries of steps by the clock are, "" of other steps, and boundary the
	// offset there of that of step. At step 0 it is −1, or in files of older builds the topic's last record
	// when the epoch opened.
	boundaryTopic string
	boundary      int64
	// users are the positions of the files of persons, by partition; nil where records are protected.
	users [][]byte
}

// partPosition is a position in one partition of an epoch's input.
type partPosition struct {
	partition int
	position  kafka.Position
	older     []kafka.Anchor
}

// all returns the positions in all partitions. That of an epoch that is not merged has no
// number.
func (c *checkpoint) all() []partPosition {
	if len(c.parts) > 0 {
		return c.parts
	}
	return []partPosition{{position: c.position, older: c.older}}
}

// nexts returns the next offsets to read, by partition.
func (c *checkpoint) nexts() (all []int64) {
	for _, p := range c.all() {
		all = append(all, p.position.Next)
	}
	return all
}

// of returns the position in a partition that the epoch reads.
func (c *checkpoint) of(partition int) partPosition {
	for _, p := range c.parts {
		if p.partition == partition {
			return p
		}
	}
	return c.all()[0]
}

// maxOlder bounds the older anchors of a checkpoint.
const maxOlder = 16

// thinned returns older anchors of a log whose newest one is at an offset, so few that
// every second one is four times as far from it as the one behind: the first is kept,
// and one between two others goes where these are close enough. One record that a
// made-up log happens to share with the one that was read, a heartbeat say, proves
// little; these prove that the log before it is the same too.
func thinned(older []kafka.Anchor, newest int64) []kafka.Anchor {
	kept := slices.Clone(older)
	for i := len(kept) - 2; i > 0; i-- {
		if newest-kept[i-1].Offset <= 4*(newest-kept[i+1].Offset) {
			kept = slices.Delete(kept, i, i+1)
		}
	}
	if len(kept) > maxOlder {
		kept = slices.Delete(kept, 1, 1+len(kept)-maxOlder)
	}
	return kept
}

// The file is magic ‖ u64 length ‖ payload ‖ SHA-256 of all before. The payload of a merged
// epoch ends with the positions of its partitions, and that of an epoch with steps by the clock
// with these, none where it is not merged, and where its boundaries are. That of an epoch that
// protects persons ends with the position of their files. Form 5 has both. Form 6 is that of a merged
// epoch that protects persons: the positions of its partitions, where its boundaries are, "" of steps that
// have none, and for each partition the position of its files of persons.
var (
	checkpointMagic = []byte("streamdp checkpoint 1\n")
	mergedMagic     = []byte("streamdp checkpoint 2\n")
	clockMagic      = []byte("streamdp checkpoint 3\n")
	usersMagic      = []byte("streamdp checkpoint 4\n")
	usersClockMagic = []byte("streamdp checkpoint 5\n")
	// of a merged epoch that protects persons
	usersMergedMagic = []byte("streamdp checkpoint 6\n")
)

// encode appends the file to b.
func (c *checkpoint) encode(b []byte) []byte {
	magic := checkpointMagic
	usersMerged := c.users != nil && len(c.parts) > 0
	switch {
	case usersMerged:
		magic = usersMergedMagic
	case c.users != nil && c.boundaryTopic != "":
		magic = usersClockMagic
	case c.users != nil:
		magic = usersMagic
	case c.boundaryTopic != "":
		magic = clockMagic
	case len(c.parts) > 0:
		magic = mergedMagic
	}
	w := &bin.Writer{B: append(b, magic...)}
	at := len(w.B)
	w.Uint(0)
	w.Uint(c.epoch)
	w.Raw(c.manifest[:])
	w.Uint(c.seq)
	w.Uint(c.step)
	writePosition(w, c.position)
	w.Raw(c.transcript[:])
	w.String(c.outputTopic)
	w.Int(int64(c.outputPartition))
	w.Int(c.output)
	if c.acknowledged {
		w.Byte(1)
	} else {
		w.Byte(0)
	}
	w.Raw(c.ledger[:])
	w.String(c.build)
	w.Bytes(c.state)
	w.Uint(uint64(len(c.outbox)))
	for i := range c.outbox {
		c.outbox[i].encode(w)
	}
	if len(c.older) > 0 || c.boundaryTopic != "" || c.users != nil { // a file without is one of earlier versions
		writeOlder(w, c.older)
	}
	if len(c.parts) > 0 || c.boundaryTopic != "" {
		w.Uint(uint64(len(c.parts)))
		for i := range c.parts {
			p := &c.parts[i]
			w.Uint(uint64(p.partition))
			writePosition(w, p.position)
			writeOlder(w, p.older)
		}
	}
	if c.boundaryTopic != "" || usersMerged {
		w.String(c.boundaryTopic)
	}
	if c.boundaryTopic != "" {
		w.Int(c.boundary)
	}
	for _, at := range c.users {
		w.Bytes(at)
	}
	binary.LittleEndian.PutUint64(w.B[at:], uint64(len(w.B)-at-8))
	sum := sha256.Sum256(w.B[len(b):])
	return append(w.B, sum[:]...)
}

func writePosition(w *bin.Writer, p kafka.Position) {
	w.Int(p.Next)
	w.Int(int64(p.LeaderEpoch))
	if a := p.Anchor; a != nil {
		w.Byte(1)
		w.Int(a.Offset)
		w.Raw(a.Hash[:])
		w.Int(int64(a.LeaderEpoch))
	} else {
		w.Byte(0)
	}
}

// readPosition reads what writePosition wrote. It sets r.Bad where that can't be.
func readPosition(r *bin.Reader) kafka.Position {
	p := kafka.Position{Next: r.Int(), LeaderEpoch: int32(r.Int())}
	switch r.Byte() {
	case 0:
	case 1:
		a := &kafka.Anchor{Offset: r.Int()}
		copy(a.Hash[:], r.Raw(32))
		a.LeaderEpoch = int32(r.Int())
		p.Anchor = a
		r.Bad = r.Bad || a.Offset < 0 || a.Offset >= p.Next
	default:
		r.Bad = true
	}
	r.Bad = r.Bad || p.Next < 0
	return p
}

func writeOlder(w *bin.Writer, older []kafka.Anchor) {
	w.Uint(uint64(len(older)))
	for _, a := range older {
		w.Int(a.Offset)
		w.Raw(a.Hash[:])
	}
}

// readOlder reads the anchors behind the newest one, which writeOlder wrote.
func readOlder(r *bin.Reader, newest *kafka.Anchor) (older []kafka.Anchor) {
	before := int64(-1)
	n := r.Uint()
	r.Bad = r.Bad || n > maxOlder || n > 0 && newest == nil
	for ; n > 0 && !r.Bad; n-- {
		a := kafka.Anchor{Offset: r.Int(), LeaderEpoch: -1}
		copy(a.Hash[:], r.Raw(32))
		r.Bad = r.Bad || a.Offset <= before || a.Offset >= newest.Offset
		before = a.Offset
		older = append(older, a)
	}
	return older
}

// readParts reads the positions of a merged epoch, whose sum is total.
func readParts(r *bin.Reader, total int64) (parts []partPosition) {
	before, sum := -1, int64(0)
	for n := r.Uint(); n > 0 && !r.Bad; n-- {
		number := r.Uint()
		p := partPosition{partition: int(number & math.MaxInt32), position: readPosition(r)}
		p.older = readOlder(r, p.position.Anchor)
		r.Bad = r.Bad || number > math.MaxInt32 || p.partition <= before || p.position.Next > total-sum
		before, sum = p.partition, sum+p.position.Next
		parts = append(parts, p)
	}
	r.Bad = r.Bad || parts != nil && sum != total
	return parts
}

// checkpointEpoch returns the epoch of a file that encode wrote.
func checkpointEpoch(data []byte) (epoch uint64, ok bool) {
	at := len(checkpointMagic) + 8
	if len(data) < at+8 || !bytes.HasPrefix(data, []byte("streamdp ")) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(data[at:]), true
}

// errCheckpoint says that a checkpoint is damaged.
var errCheckpoint = errors.New("checkpoint damaged")

// parseCheckpoint reads a file that encode wrote.
func parseCheckpoint(data []byte) (*checkpoint, error) {
	const hash = sha256.Size
	isMerged, isUsersClock := bytes.HasPrefix(data, mergedMagic), bytes.HasPrefix(data, usersClockMagic)
	isClock, isUsers := isUsersClock || bytes.HasPrefix(data, clockMagic), isUsersClock || bytes.HasPrefix(data, usersMagic)
	isUsersMerged := bytes.HasPrefix(data, usersMergedMagic)
	if !isMerged && !isClock && !isUsers && !isUsersMerged && !bytes.HasPrefix(data, checkpointMagic) || len(data) < len(checkpointMagic)+8+hash {
		return nil, errCheckpoint
	}
	body, sum := data[:len(data)-hash], data[len(data)-hash:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) {
		return nil, errCheckpoint
	}
	r := &bin.Reader{B: body[len(checkpointMagic):]}
	if r.Uint() != uint64(len(r.B)) {
		return nil, errCheckpoint
	}
	c := &checkpoint{epoch: r.Uint()}
	copy(c.manifest[:], r.Raw(32))
	c.seq, c.step = r.Uint(), r.Uint()
	c.position = readPosition(r)
	copy(c.transcript[:], r.Raw(32))
	c.outputTopic, c.outputPartition, c.output = r.String(), int(r.Int()), r.Int()
	acknowledged := r.Byte()
	c.acknowledged = acknowledged == 1
	copy(c.ledger[:], r.Raw(32))
	c.build = r.String()
	c.state = r.Bytes()
	for range r.Uint() {
		if r.Bad {
			break
		}
		c.outbox = append(c.outbox, readPending(r))
	}
	switch {
	case r.Bad:
	case isMerged:
		c.parts = readParts(r, c.position.Next)
		r.Bad = r.Bad || c.parts == nil || c.position.Anchor != nil
	case isUsersMerged:
		c.older = readOlder(r, c.position.Anchor)
		c.parts = readParts(r, c.position.Next)
		if c.boundaryTopic = r.String(); c.boundaryTopic != "" {
			c.boundary = r.Int()
		}
		r.Bad = r.Bad || c.parts == nil || c.position.Anchor != nil || c.boundary < -1 || c.boundary < 0 && c.step > 0
	case isClock:
		c.older = readOlder(r, c.position.Anchor)
		c.parts = readParts(r, c.position.Next)
		c.boundaryTopic, c.boundary = r.String(), r.Int()
		r.Bad = r.Bad || c.parts != nil && c.position.Anchor != nil || c.boundaryTopic == "" || c.boundary < -1 || c.boundary < 0 && c.step > 0
	case isUsers:
		c.older = readOlder(r, c.position.Anchor)
	case len(r.B) > 0:
		c.older = readOlder(r, c.position.Anchor)
		r.Bad = r.Bad || len(c.older) == 0
	}
	for n := len(c.parts); (isUsers && len(c.users) == 0 || isUsersMerged && len(c.users) < n) && !r.Bad; {
		at := r.Bytes()
		r.Bad = r.Bad || at == nil
		c.users = append(c.users, at)
	}
	if r.Bad || !r.Done() || c.epoch == 0 || acknowledged > 1 ||
		c.output < unknownOutput || c.outputPartition < 0 {
		return nil, errCheckpoint
	}
	return c, nil
}

// store keeps the files of one task:
//
//	manifest-N, secret-N          of epoch N, N in decimal
//	opening-N                     epoch N is being opened, and has drawn no noise
//	initial-N                     the parameters that it begins with, if there are any
//	final-N                       those that it ended with, for its successor
//	checkpoint                    the last commit
//	checkpoint.prev               the commit before it
//	checkpoint.0, checkpoint.1    the last two commits, of a large state
//	users-N.K                     of epoch N that protects persons: who contributed; see package persons
//	users-N.pP.K                  the same of partition P, where epoch N is merged
//	*.tmp                         a write that did not end
//
// A small state is written to a new file, which replaces the old one. A large state, from
// slotBytes on, is written over the older of two slots, which is faster. From then on
// there are slots only, until the epoch ends. A slot counts only if its hash is right,
// and the one with the larger number is the last commit. So a torn write leaves the other
// slot. In a log there is the last commit alone.
type store struct {
	disk   disk
	dir    string
	buf    []byte
	seq    uint64  // of the last commit
	slot   int     // that holds it, noSlot where the file does
	seal   *sealer // nil: encrypted files can't be read
	sealed []byte  // scratch
	logged bool    // the files are in a log, in which no write is torn
}

const (
	checkpointName = "checkpoint"
	previousName   = "checkpoint.prev"
	temporaryName  = checkpointName + temporarySuffix
	openingPrefix  = "opening-"
	secretPrefix   = "secret-"
	noSlot         = -1
)

var slotNames = [2]string{"checkpoint.0", "checkpoint.1"}

// slotBytes is the size of a checkpoint from which it is written to slots; tests lower it.
var slotBytes = 5 << 20

func manifestName(epoch uint64) string { return fmt.Sprintf("manifest-%d", epoch) }
func secretName(epoch uint64) string   { return fmt.Sprint(secretPrefix, epoch) }
func openingName(epoch uint64) string  { return fmt.Sprint(openingPrefix, epoch) }
func initialName(epoch uint64) string  { return fmt.Sprintf("initial-%d", epoch) }
func finalName(epoch uint64) string    { return fmt.Sprintf("final-%d", epoch) }

// secretEpoch returns the epoch of a secret's name.
func secretEpoch(name string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(name, secretPrefix), 10, 64)
	return n, err == nil && name == secretName(n)
}

// openStore makes the task's directory, removes the remains of interrupted writes, and
// writes each private file in the form that is wanted, encrypted or not.
func openStore(d disk, dir string, seal *sealer) (*store, error) {
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
	left := slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, temporarySuffix) })
	s := &store{disk: d, dir: dir, slot: noSlot, seal: seal, logged: !tears(d)}
	if err := removeAll(d, dir, left...); err != nil || seal == nil {
		return s, err
	}
	return s, s.migrate()
}

func (s *store) path(name string) string { return filepath.Join(s.dir, name) }

// mark records, durably, that an epoch is being opened. Older marks belong to void epochs.
func (s *store) mark(epoch uint64) error {
	names, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return err
	}
	old := slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, openingPrefix) })
	if err := removeAll(s.disk, s.dir, old...); err != nil {
		return err
	}
	f, err := s.disk.Append(s.path(openingName(epoch)))
	if err := write(f, err, nil); err != nil {
		return err
	}
	return s.disk.SyncDir(s.dir)
}

// marked reports whether an opening of the epoch has not been completed.
func (s *store) marked(epoch uint64) (bool, error) {
	_, err := s.disk.ReadFile(s.path(openingName(epoch)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// newestEpoch returns the largest epoch in the names of the task's files, 0 if there is none.
func (s *store) newestEpoch() (newest uint64, err error) {
	names, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		for _, kind := range []string{"manifest-", secretPrefix} {
			if n, err := strconv.ParseUint(strings.TrimPrefix(name, kind), 10, 64); err == nil {
				newest = max(newest, n)
			}
		}
	}
	return newest, nil
}

// load returns the last commit, nil if there is none.
func (s *store) load() (*checkpoint, error) {
	s.seq, s.slot = 0, noSlot
	var newest *checkpoint
	slots := 0
	for i, name := range slotNames {
		data, err := s.disk.ReadFile(s.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		slots++
		// A slot with a wrong hash is one whose write was interrupted.
		if c, err := s.parse(slotContent(data)); err == nil && (newest == nil || c.seq > newest.seq) {
			newest, s.slot = c, i
		}
	}
	data, err := s.disk.ReadFile(s.path(checkpointName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// One slot alone is an epoch's first write to slots, and it was interrupted.
		if newest == nil && slots == len(slotNames) {
			return nil, errCheckpoint
		}
	case err != nil:
		return nil, err
	default:
		// The task goes from the file to slots and never back. So if a slot holds a commit,
		// the file holds an older one.
		c, err := s.parse(data)
		if err != nil && newest == nil {
			return nil, err
		}
		if err == nil && (newest == nil || c.seq > newest.seq) {
			newest, s.slot = c, noSlot
		}
	}
	if newest != nil {
		s.seq = newest.seq
	}
	return newest, nil
}

// previous returns the commit before the last one, nil if there is none or it is damaged. With
// slots there is none: the slot that is not damaged is the last commit.
func (s *store) previous() (*checkpoint, error) {
	data, err := s.disk.ReadFile(s.path(previousName))
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
	s.seq = max(s.seq, c.seq)
	return c, nil
}

// slotContent removes what a longer, older commit left behind the end.
func slotContent(data []byte) []byte {
	if isSealed(data) {
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

// commit makes c durable in place of the last commit, and sets c.seq. After an error
// either the last commit is still there, or c is, if only the acknowledgement of the
// write failed; the task can continue from both. A number is used once, even by a failed
// commit, so that a later commit always has a larger one.
func (s *store) commit(c *checkpoint) error {
	s.seq++
	c.seq = s.seq
	if s.buf == nil {
		s.buf = *commitBuffers.Get().(*[]byte)
	}
	s.buf = c.encode(s.buf[:0])
	defer func() {
		clear(s.buf)
		if b := s.buf[:0]; cap(b) <= pooledCommit {
			commitBuffers.Put(&b)
			s.buf = nil
		}
	}()
	data := s.buf
	if s.seal != nil && s.seal.on {
		var err error
		if s.sealed, err = s.seal.seal(s.sealed[:0], kindCheckpoint, c.seq, s.buf); err != nil {
			return err
		}
		data = s.sealed
	}
	if s.logged {
		return writeOver(s.disk, s.path(checkpointName), data)
	}
	if s.slot == noSlot && len(data) < slotBytes {
		return s.replace(data)
	}
	return s.overwrite(data)
}

// commitBuffers are for the commits of all tasks. One larger than pooledCommit stays with its
// task.
var commitBuffers = sync.Pool{New: func() any { return new([]byte) }}

const pooledCommit = 1 << 20

// replace writes a new file and syncs it, keeps the old one as checkpoint.prev, renames
// the new one, and syncs the directory.
func (s *store) replace(data []byte) (err error) {
	tmp, name, prev := s.path(temporaryName), s.path(checkpointName), s.path(previousName)
	if err := s.disk.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			s.disk.Remove(tmp)
		}
	}()
	f, err := s.disk.Create(tmp)
	if err := write(f, err, data); err != nil {
		return err
	}
	if err := s.disk.Remove(prev); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.disk.Link(name, prev); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.disk.Rename(tmp, name); err != nil {
		return err
	}
	return s.disk.SyncDir(s.dir)
}

// overwrite writes over the slot that does not hold the last commit.
func (s *store) overwrite(data []byte) error {
	to := 0
	if s.slot == 0 {
		to = 1
	}
	if s.slot == noSlot && s.seal != nil && s.seal.on {
		// A slot that holds no commit may hold parts of one in the clear, longer than this one.
		if err := removeAll(s.disk, s.dir, slotNames[0], slotNames[1]); err != nil {
			return err
		}
	}
	f, err := s.disk.Overwrite(s.path(slotNames[to]))
	if err := write(f, err, data); err != nil {
		return err
	}
	// The first two times the names of the slots must become durable too.
	if err := s.disk.SyncDir(s.dir); err != nil {
		return err
	}
	first := s.slot == noSlot
	s.slot = to
	if first {
		return removeAll(s.disk, s.dir, checkpointName, previousName, temporaryName)
	}
	return nil
}

// prune removes, from a log, what no epoch from this one on needs: manifests of epochs whose secret
// is gone, and what epochs ended with before the last one. A disk keeps them.
func (s *store) prune(epoch uint64) error {
	if !s.logged {
		return nil
	}
	names, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return err
	}
	number := func(name, kind string) uint64 {
		n, err := strconv.ParseUint(strings.TrimPrefix(name, kind), 10, 64)
		if err != nil || name != fmt.Sprint(kind, n) {
			return 0
		}
		return n
	}
	var last uint64
	for _, name := range names {
		last = max(last, number(name, "final-"))
	}
	gone := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		n, f := number(name, "manifest-"), number(name, "final-")
		return !(0 < n && n < epoch && !slices.Contains(names, secretName(n))) && !(0 < f && f < last)
	})
	return removeAll(s.disk, s.dir, gone...)
}

// erase removes what must not outlive an epoch: the checkpoints, because they hold exact sums and
// past noise, and the files of persons.
func (s *store) erase() error {
	names, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, usersPrefix) })
	return s.eraseCheckpoints(gone...)
}

// eraseCheckpoints removes the checkpoints, and other files.
func (s *store) eraseCheckpoints(others ...string) error {
	s.slot = noSlot
	return removeAll(s.disk, s.dir, append(others, checkpointName, previousName, temporaryName, slotNames[0], slotNames[1])...)
}

// unknownOutput in a checkpoint says that nobody had looked at the output when it was written.
// So the output is read from its start.
const unknownOutput = -1

// encrypted reports whether a checkpoint of the task is encrypted, with whatever key.
func (s *store) encrypted() bool {
	for _, name := range append([]string{checkpointName}, slotNames[:]...) {
		if data, err := s.disk.ReadFile(s.path(name)); err == nil && isSealed(data) {
			return true
		}
	}
	return false
}
