package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
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
	seq        uint64 // of the write
	step       uint64 // last closed
	position   kafka.Position
	transcript dp.Transcript
	// output is where acknowledged releases end in the output partition, and
	// which partition that is.
	outputTopic     string
	outputPartition int
	output          int64
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
	c := &checkpoint{epoch: r.Uint(), seq: r.Uint(), step: r.Uint()}
	c.position = kafka.Position{Next: r.Int(), LeaderEpoch: int32(r.Int())}
	if r.Byte() == 1 {
		a := &kafka.Anchor{Offset: r.Int()}
		copy(a.Hash[:], r.Raw(32))
		a.LeaderEpoch = int32(r.Int())
		c.position.Anchor = a
	}
	copy(c.transcript[:], r.Raw(32))
	c.outputTopic, c.outputPartition, c.output = r.String(), int(r.Int()), r.Int()
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
	if !r.Done() || c.epoch == 0 || c.position.Next < 0 {
		return nil, errCheckpoint
	}
	return c, nil
}

// store keeps the files of one task:
//
//	manifest-N, secret-N   of epoch N, N in decimal
//	checkpoint             the last commit
//	checkpoint.prev        the commit before it
//	*.tmp                  a write that did not end
type store struct {
	disk disk
	dir  string
	buf  []byte
	seq  uint64
}

const (
	checkpointName = "checkpoint"
	previousName   = "checkpoint.prev"
	temporaryName  = "checkpoint.tmp"
)

func manifestName(epoch uint64) string { return fmt.Sprintf("manifest-%d", epoch) }
func secretName(epoch uint64) string   { return fmt.Sprintf("secret-%d", epoch) }

// openStore makes the task's directory and removes what an interrupted write
// left.
func openStore(d disk, dir string) (*store, error) {
	if err := d.MkdirAll(dir); err != nil {
		return nil, err
	}
	if err := d.SyncDir(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	return &store{disk: d, dir: dir}, removeAll(d, dir, temporaryName)
}

func (s *store) path(name string) string { return filepath.Join(s.dir, name) }

// load returns the last commit, nil where there is none.
func (s *store) load() (*checkpoint, error) {
	data, err := s.disk.ReadFile(s.path(checkpointName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := parseCheckpoint(data)
	if err != nil {
		return nil, err
	}
	s.seq = c.seq
	return c, nil
}

// commit makes c durable in place of the last one, all or nothing: write,
// sync, keep the old one under its second name, rename, sync the directory. It
// sets c.seq.
func (s *store) commit(c *checkpoint) error {
	s.seq++
	c.seq = s.seq
	s.buf = c.encode(s.buf[:0])
	err := s.write()
	clear(s.buf)
	return err
}

func (s *store) write() error {
	tmp, name, prev := s.path(temporaryName), s.path(checkpointName), s.path(previousName)
	if err := s.disk.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := s.disk.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(s.buf)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		s.disk.Remove(tmp)
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

// erase removes the checkpoints: they hold exact sums and past noise.
func (s *store) erase() error {
	return removeAll(s.disk, s.dir, checkpointName, previousName, temporaryName)
}
