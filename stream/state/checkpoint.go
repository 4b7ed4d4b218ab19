package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// Message is a message that is not acknowledged yet.
type Message struct {
	core.Message
	Time time.Time // time of the commit that made it durable
}

// Size returns the approximate memory size of the message in bytes.
func (p *Message) Size() int { return len(p.Key) + len(p.Value) + 256 }

func (p *Message) encode(w *bin.Writer) {
	w.Uint(p.Step)
	w.Bytes(p.Key)
	w.Bytes(p.Value)
	w.Uint(uint64(len(p.Headers)))
	for _, h := range p.Headers {
		w.String(h.Key)
		w.Bytes(h.Value)
	}
	w.Int(p.Time.UnixMilli())
}

// readPending reads what encode wrote.
func readPending(r *bin.Reader) Message {
	p := Message{Message: core.Message{Step: r.Uint(), Key: r.Bytes(), Value: r.Bytes()}}
	for range r.Uint() {
		if r.Bad {
			break
		}
		p.Headers = append(p.Headers, kafka.Header{Key: r.String(), Value: r.Bytes()})
	}
	p.Time = time.UnixMilli(r.Int())
	return p
}

// Checkpoint is the content of a task's commit: its position in the log, its state, and the releases that it has not
// published yet. It contains exact sums and past noise, so it is as secret as the records.
type Checkpoint struct {
	Epoch      uint64
	Manifest   [32]byte // SHA-256 of the epoch's manifest
	Seq        uint64   // number of the commit
	Step       uint64   // last closed step
	Position   kafka.Position
	Transcript dp.Transcript
	// Output is an offset in the output partition. Releases that are missing in this checkpoint can only be at or after
	// it. It is the offset of an acknowledged release or, if there was none yet, the end of the partition at that time.
	OutputTopic     string
	OutputPartition int
	Output          int64
	Acknowledged    bool     // Output is the offset of an acknowledged release
	Ledger          [32]byte // the ledger's head when the checkpoint was written
	Build           string
	State           []byte
	Outbox          []Message
	Older           []kafka.Anchor // anchors of records before Position.Anchor, the oldest first; see Thinned
	// Parts are the positions in the partitions of a merged epoch, in ascending order of partitions. Position then has
	// the sum of their offsets and no anchor.
	Parts []Place
	// BoundaryTopic is the topic with the boundaries of steps by the clock; "" for other steps. Boundary is the offset,
	// in this topic, of the boundary that ends Step. At step 0 Boundary is −1. In files of older builds it is then the
	// offset of the topic's last record when the epoch opened.
	BoundaryTopic string
	Boundary      int64
	// Users are the positions of the files of persons, by partition; nil if the epoch protects records.
	Users [][]byte
}

// Place is a position in one partition of an epoch's input.
type Place struct {
	Partition int
	Position  kafka.Position
	Older     []kafka.Anchor
}

// All returns the positions in all partitions. For an epoch that is not merged, it is one position without a partition
// number.
func (c *Checkpoint) All() []Place {
	if len(c.Parts) > 0 {
		return c.Parts
	}
	return []Place{{Position: c.Position, Older: c.Older}}
}

// Nexts returns the next offsets to read, by partition.
func (c *Checkpoint) Nexts() (all []int64) {
	for _, p := range c.All() {
		all = append(all, p.Position.Next)
	}
	return all
}

// Of returns the position in a partition. The epoch must read this partition.
func (c *Checkpoint) Of(partition int) Place {
	for _, p := range c.Parts {
		if p.Partition == partition {
			return p
		}
	}
	return c.All()[0]
}

// MaxOlder is the maximum number of older anchors in a checkpoint.
const MaxOlder = 16

// Thinned drops some of the older anchors, so that few remain. It keeps the first. It drops any other anchor if the
// distance of the previous anchor from the newest offset is at most four times the distance of the next anchor. One
// anchor proves little, because a record of another log may equal a record that was read, for example a heartbeat.
// Older anchors prove that the earlier part of the log is the same too.
func Thinned(older []kafka.Anchor, newest int64) []kafka.Anchor {
	kept := slices.Clone(older)
	for i := len(kept) - 2; i > 0; i-- {
		if newest-kept[i-1].Offset <= 4*(newest-kept[i+1].Offset) {
			kept = slices.Delete(kept, i, i+1)
		}
	}
	if len(kept) > MaxOlder {
		kept = slices.Delete(kept, 1, 1+len(kept)-MaxOlder)
	}
	return kept
}

// A file consists of magic ‖ u64 length ‖ payload ‖ SHA-256 of everything before. The form number in the magic says
// what is at the end of the payload. Form 2, for merged epochs, has the positions of the partitions. Form 3, for steps
// by the clock, has these positions (none if the epoch is not merged) and the place of the boundaries. Form 4, for
// epochs that protect persons, has the position of their files. Form 5 has the endings of forms 3 and 4. Form 6, for
// merged epochs that protect persons, has the positions of the partitions, the place of the boundaries ("" if there are
// none), and for each partition the position of its files of persons.
var (
	checkpointMagic   = []byte("streamdp checkpoint 1\n")
	mergedMagic       = []byte("streamdp checkpoint 2\n")
	clockMagic        = []byte("streamdp checkpoint 3\n")
	personsMagic      = []byte("streamdp checkpoint 4\n")
	personsClockMagic = []byte("streamdp checkpoint 5\n")
	// for merged epochs that protect persons
	personsMergedMagic = []byte("streamdp checkpoint 6\n")
)

// Encode appends the file to b.
func (c *Checkpoint) Encode(b []byte) []byte {
	magic := checkpointMagic
	usersMerged := c.Users != nil && len(c.Parts) > 0
	switch {
	case usersMerged:
		magic = personsMergedMagic
	case c.Users != nil && c.BoundaryTopic != "":
		magic = personsClockMagic
	case c.Users != nil:
		magic = personsMagic
	case c.BoundaryTopic != "":
		magic = clockMagic
	case len(c.Parts) > 0:
		magic = mergedMagic
	}
	w := &bin.Writer{B: append(b, magic...)}
	at := len(w.B)
	w.Uint(0)
	w.Uint(c.Epoch)
	w.Raw(c.Manifest[:])
	w.Uint(c.Seq)
	w.Uint(c.Step)
	WritePosition(w, c.Position)
	w.Raw(c.Transcript[:])
	w.String(c.OutputTopic)
	w.Int(int64(c.OutputPartition))
	w.Int(c.Output)
	if c.Acknowledged {
		w.Byte(1)
	} else {
		w.Byte(0)
	}
	w.Raw(c.Ledger[:])
	w.String(c.Build)
	w.Bytes(c.State)
	w.Uint(uint64(len(c.Outbox)))
	for i := range c.Outbox {
		c.Outbox[i].encode(w)
	}
	// a file without these fields keeps the form of earlier versions
	if len(c.Older) > 0 || c.BoundaryTopic != "" || c.Users != nil {
		writeOlder(w, c.Older)
	}
	if len(c.Parts) > 0 || c.BoundaryTopic != "" {
		w.Uint(uint64(len(c.Parts)))
		for i := range c.Parts {
			p := &c.Parts[i]
			w.Uint(uint64(p.Partition))
			WritePosition(w, p.Position)
			writeOlder(w, p.Older)
		}
	}
	if c.BoundaryTopic != "" || usersMerged {
		w.String(c.BoundaryTopic)
	}
	if c.BoundaryTopic != "" {
		w.Int(c.Boundary)
	}
	for _, at := range c.Users {
		w.Bytes(at)
	}
	binary.LittleEndian.PutUint64(w.B[at:], uint64(len(w.B)-at-8))
	sum := sha256.Sum256(w.B[len(b):])
	return append(w.B, sum[:]...)
}

// WritePosition writes a position in the form of checkpoints.
func WritePosition(w *bin.Writer, p kafka.Position) {
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

// ReadPosition reads what WritePosition wrote. It sets r.Bad if the position is invalid.
func ReadPosition(r *bin.Reader) kafka.Position {
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

// readOlder reads the older anchors, which writeOlder wrote. newest is the newest anchor.
func readOlder(r *bin.Reader, newest *kafka.Anchor) (older []kafka.Anchor) {
	before := int64(-1)
	n := r.Uint()
	r.Bad = r.Bad || n > MaxOlder || n > 0 && newest == nil
	for ; n > 0 && !r.Bad; n-- {
		a := kafka.Anchor{Offset: r.Int(), LeaderEpoch: -1}
		copy(a.Hash[:], r.Raw(32))
		r.Bad = r.Bad || a.Offset <= before || a.Offset >= newest.Offset
		before = a.Offset
		older = append(older, a)
	}
	return older
}

// readParts reads the positions of a merged epoch. The sum of their offsets must be total.
func readParts(r *bin.Reader, total int64) (parts []Place) {
	before, sum := -1, int64(0)
	for n := r.Uint(); n > 0 && !r.Bad; n-- {
		number := r.Uint()
		p := Place{Partition: int(number & math.MaxInt32), Position: ReadPosition(r)}
		p.Older = readOlder(r, p.Position.Anchor)
		r.Bad = r.Bad || number > math.MaxInt32 || p.Partition <= before || p.Position.Next > total-sum
		before, sum = p.Partition, sum+p.Position.Next
		parts = append(parts, p)
	}
	r.Bad = r.Bad || parts != nil && sum != total
	return parts
}

// IsCheckpoint reports whether a file begins like an unencrypted checkpoint.
func IsCheckpoint(data []byte) bool {
	for _, magic := range [][]byte{
		checkpointMagic, mergedMagic, clockMagic, personsMagic, personsClockMagic, personsMergedMagic,
	} {
		if bytes.HasPrefix(data, magic) {
			return true
		}
	}
	return false
}

// CheckpointEpoch returns the epoch in a file that Encode wrote.
func CheckpointEpoch(data []byte) (epoch uint64, ok bool) {
	at := len(checkpointMagic) + 8
	if len(data) < at+8 || !bytes.HasPrefix(data, []byte("streamdp ")) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(data[at:]), true
}

// ErrCheckpoint is the error of a damaged checkpoint.
var ErrCheckpoint = errors.New("checkpoint damaged")

// ParseCheckpoint parses a file that Encode wrote.
func ParseCheckpoint(data []byte) (*Checkpoint, error) {
	const hash = sha256.Size
	isMerged, isUsersClock := bytes.HasPrefix(data, mergedMagic), bytes.HasPrefix(data, personsClockMagic)
	isClock, isUsers := isUsersClock || bytes.HasPrefix(data, clockMagic), isUsersClock ||
		bytes.HasPrefix(data, personsMagic)
	isUsersMerged := bytes.HasPrefix(data, personsMergedMagic)
	if !isMerged && !isClock && !isUsers && !isUsersMerged && !bytes.HasPrefix(data, checkpointMagic) ||
		len(data) < len(checkpointMagic)+8+hash {
		return nil, ErrCheckpoint
	}
	body, sum := data[:len(data)-hash], data[len(data)-hash:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) {
		return nil, ErrCheckpoint
	}
	r := &bin.Reader{B: body[len(checkpointMagic):]}
	if r.Uint() != uint64(len(r.B)) {
		return nil, ErrCheckpoint
	}
	c := &Checkpoint{Epoch: r.Uint()}
	copy(c.Manifest[:], r.Raw(32))
	c.Seq, c.Step = r.Uint(), r.Uint()
	c.Position = ReadPosition(r)
	copy(c.Transcript[:], r.Raw(32))
	c.OutputTopic, c.OutputPartition, c.Output = r.String(), int(r.Int()), r.Int()
	acknowledged := r.Byte()
	c.Acknowledged = acknowledged == 1
	copy(c.Ledger[:], r.Raw(32))
	c.Build = r.String()
	c.State = r.Bytes()
	for range r.Uint() {
		if r.Bad {
			break
		}
		c.Outbox = append(c.Outbox, readPending(r))
	}
	switch {
	case r.Bad:
	case isMerged:
		c.Parts = readParts(r, c.Position.Next)
		r.Bad = r.Bad || c.Parts == nil || c.Position.Anchor != nil
	case isUsersMerged:
		c.Older = readOlder(r, c.Position.Anchor)
		c.Parts = readParts(r, c.Position.Next)
		if c.BoundaryTopic = r.String(); c.BoundaryTopic != "" {
			c.Boundary = r.Int()
		}
		r.Bad = r.Bad || c.Parts == nil || c.Position.Anchor != nil || c.Boundary < -1 || c.Boundary < 0 && c.Step > 0
	case isClock:
		c.Older = readOlder(r, c.Position.Anchor)
		c.Parts = readParts(r, c.Position.Next)
		c.BoundaryTopic, c.Boundary = r.String(), r.Int()
		r.Bad = r.Bad || c.Parts != nil && c.Position.Anchor != nil || c.BoundaryTopic == "" || c.Boundary < -1 ||
			c.Boundary < 0 && c.Step > 0
	case isUsers:
		c.Older = readOlder(r, c.Position.Anchor)
	case len(r.B) > 0:
		c.Older = readOlder(r, c.Position.Anchor)
		r.Bad = r.Bad || len(c.Older) == 0
	}
	for n := len(c.Parts); (isUsers && len(c.Users) == 0 || isUsersMerged && len(c.Users) < n) && !r.Bad; {
		at := r.Bytes()
		r.Bad = r.Bad || at == nil
		c.Users = append(c.Users, at)
	}
	if r.Bad || !r.Done() || c.Epoch == 0 || acknowledged > 1 ||
		c.Output < UnknownOutput || c.OutputPartition < 0 {
		return nil, ErrCheckpoint
	}
	return c, nil
}

// UnknownOutput in a checkpoint means that the output had not been read when the checkpoint was written, so the output
// must be read from its start.
const UnknownOutput = -1
