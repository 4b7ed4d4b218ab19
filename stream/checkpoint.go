package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"streamdp/dp"
	"streamdp/internal/bin"
	"streamdp/internal/kafka"
)

// pending is a release as it will be published, and published again: its bytes
// are made once.
type pending struct {
	step    uint64
	key     []byte
	value   []byte
	headers []kafka.Header
	time    time.Time // of the commit that made it durable
}

func (p *pending) size() int { return len(p.key) + len(p.value) + 256 }

// checkpoint is the one durable write of a task: where it stands in the log,
// what it has computed, and what it owes to its readers. It holds raw sums and
// past noise, and is as secret as the records.
type checkpoint struct {
	epoch      uint64
	manifest   [32]byte // SHA-256 of the epoch's manifest
	seq        uint64   // of the write
	step       uint64   // last closed
	position   kafka.Position
	transcript dp.Transcript
	// output is the offset in the output partition from which releases that
	// this checkpoint does not know are looked for: that of an acknowledged
	// release, or, before there is one, where the partition ended.
	outputTopic     string
	outputPartition int
	output          int64
	acknowledged    bool     // a release is at output
	ledger          [32]byte // head when written
	build           string
	state           []byte
	outbox          []pending
}

// The file is magic ‖ u64 length ‖ payload ‖ SHA-256 of all before.
var checkpointMagic = []byte("streamdp checkpoint 1\n")

// encode appends the file to b.
func (c *checkpoint) encode(b []byte) []byte {
	w := &bin.Writer{B: append(b, checkpointMagic...)}
	at := len(w.B)
	w.Uint(0)
	w.Uint(c.epoch)
	w.Raw(c.manifest[:])
	w.Uint(c.seq)
	w.Uint(c.step)
	w.Int(c.position.Next)
	w.Int(int64(c.position.LeaderEpoch))
	if a := c.position.Anchor; a != nil {
		w.Byte(1)
		w.Int(a.Offset)
		w.Raw(a.Hash[:])
		w.Int(int64(a.LeaderEpoch))
	} else {
		w.Byte(0)
	}
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
		p := &c.outbox[i]
		w.Uint(p.step)
		w.Bytes(p.key)
		w.Bytes(p.value)
		w.Uint(uint64(len(p.headers)))
		for _, h := range p.headers {
			w.String(h.Key)
			w.Bytes(h.Value)
		}
		w.Int(p.time.UnixMilli())
	}
	binary.LittleEndian.PutUint64(w.B[at:], uint64(len(w.B)-at-8))
	sum := sha256.Sum256(w.B[len(b):])
	return append(w.B, sum[:]...)
}

// errCheckpoint says that a checkpoint can't be believed.
var errCheckpoint = errors.New("checkpoint damaged")

// parseCheckpoint reads a file that encode wrote.
func parseCheckpoint(data []byte) (*checkpoint, error) {
	const hash = sha256.Size
	if !bytes.HasPrefix(data, checkpointMagic) || len(data) < len(checkpointMagic)+8+hash {
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
	c.position = kafka.Position{Next: r.Int(), LeaderEpoch: int32(r.Int())}
	anchored := r.Byte()
	if anchored == 1 {
		a := &kafka.Anchor{Offset: r.Int()}
		copy(a.Hash[:], r.Raw(32))
		a.LeaderEpoch = int32(r.Int())
		c.position.Anchor = a
	}
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
		p := pending{step: r.Uint(), key: r.Bytes(), value: r.Bytes()}
		for range r.Uint() {
			if r.Bad {
				break
			}
			p.headers = append(p.headers, kafka.Header{Key: r.String(), Value: r.Bytes()})
		}
		p.time = time.UnixMilli(r.Int())
		c.outbox = append(c.outbox, p)
	}
	a := c.position.Anchor
	if !r.Done() || c.epoch == 0 || c.position.Next < 0 || anchored > 1 || acknowledged > 1 || a != nil && (a.Offset < 0 || a.Offset >= c.position.Next) ||
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
//	*.tmp                         a write that did not end
//
// A small state goes to a new file that takes the place of the old one. A large
// one, from slotBytes on, is written over the older of two slots, which costs
// less where it is written often; the slots then replace the other files until
// the epoch ends. A slot is believed only with its hash, and the one with the
// larger number is the last commit, so that a torn write leaves the other.
type store struct {
	disk disk
	dir  string
	buf  []byte
	seq  uint64 // of the last commit
	slot int    // that holds it, noSlot where the file does
}

const (
	checkpointName = "checkpoint"
	previousName   = "checkpoint.prev"
	temporaryName  = checkpointName + temporarySuffix
	openingPrefix  = "opening-"
	noSlot         = -1
)

var slotNames = [2]string{"checkpoint.0", "checkpoint.1"}

// slotBytes is the size of a checkpoint from which it goes to slots; tests
// lower it.
var slotBytes = 5 << 20

func manifestName(epoch uint64) string { return fmt.Sprintf("manifest-%d", epoch) }
func secretName(epoch uint64) string   { return fmt.Sprintf("secret-%d", epoch) }
func openingName(epoch uint64) string  { return fmt.Sprint(openingPrefix, epoch) }
func initialName(epoch uint64) string  { return fmt.Sprintf("initial-%d", epoch) }
func finalName(epoch uint64) string    { return fmt.Sprintf("final-%d", epoch) }

// openStore makes the task's directory and removes what an interrupted write
// left.
func openStore(d disk, dir string) (*store, error) {
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
	return &store{disk: d, dir: dir, slot: noSlot}, removeAll(d, dir, left...)
}

func (s *store) path(name string) string { return filepath.Join(s.dir, name) }

// mark notes, durably, that an epoch is being opened. Older marks are of epochs
// that are void.
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

// marked reports whether an opening of the epoch has not ended.
func (s *store) marked(epoch uint64) (bool, error) {
	_, err := s.disk.ReadFile(s.path(openingName(epoch)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// newestEpoch returns the largest epoch that files of the task name, 0 where
// there are none.
func (s *store) newestEpoch() (newest uint64, err error) {
	names, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		for _, kind := range []string{"manifest-", "secret-"} {
			if n, err := strconv.ParseUint(strings.TrimPrefix(name, kind), 10, 64); err == nil {
				newest = max(newest, n)
			}
		}
	}
	return newest, nil
}

// load returns the last commit, nil where there is none.
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
		// A slot that is no checkpoint is one whose write did not end.
		if c, err := parseCheckpoint(slotContent(data)); err == nil && (newest == nil || c.seq > newest.seq) {
			newest, s.slot = c, i
		}
	}
	data, err := s.disk.ReadFile(s.path(checkpointName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// One slot alone is an epoch's first write, which did not end.
		if newest == nil && slots == len(slotNames) {
			return nil, errCheckpoint
		}
	case err != nil:
		return nil, err
	default:
		// Slots follow the file and never the other way, so where a slot
		// holds a commit the file is an older one.
		c, err := parseCheckpoint(data)
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

// slotContent cuts off what a longer commit has left behind the end.
func slotContent(data []byte) []byte {
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

// commit makes c durable in place of the last one, all or nothing, and sets
// c.seq. After an error the last commit is still there, or, where only its
// acknowledgement failed, c is; both may be continued from. A number is used
// once, also by a commit that failed, so that what comes later counts more.
func (s *store) commit(c *checkpoint) error {
	s.seq++
	c.seq = s.seq
	s.buf = c.encode(s.buf[:0])
	defer func() { clear(s.buf) }()
	if s.slot == noSlot && len(s.buf) < slotBytes {
		return s.replace()
	}
	return s.overwrite()
}

// replace writes a new file, syncs it, keeps the old one under its second name,
// renames, and syncs the directory.
func (s *store) replace() (err error) {
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
	if err := write(f, err, s.buf); err != nil {
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
func (s *store) overwrite() error {
	to := 0
	if s.slot == 0 {
		to = 1
	}
	f, err := s.disk.Overwrite(s.path(slotNames[to]))
	if err := write(f, err, s.buf); err != nil {
		return err
	}
	// The slots' names, the first times.
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

// erase removes the checkpoints: they hold exact sums and past noise.
func (s *store) erase() error {
	s.slot = noSlot
	return removeAll(s.disk, s.dir, checkpointName, previousName, temporaryName, slotNames[0], slotNames[1])
}
