package input

import (
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/seal"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// The kinds of records by which instances share the reading of a merged stream.
const (
	partJob      = 1 + iota // from the coordinator: what to sum, and the positions to start from
	partProgress            // from the coordinator: the last merged step, and the ends of steps by the clock
	partSum                 // from a worker: the sum of a step over a partition, or a piece of it
	partAlive               // from a worker: its progress
)

// The limits of these records.
const (
	partPiece     = 900_000 // bytes of content in a record; brokers accept a megabyte
	maxPartPieces = 512     // of one sum
	maxPartJob    = partPiece
	maxMergeParts = 1 << 20 // partitions of a stream
	partFormat    = 1
	partHead      = 2 + 16 + 4 + 8 + 4 + 4
)

// errPartial says that a record was not written by this group, for this shard and with the present key.
var errPartial = errors.New("the record does not hold a sum of merged streams, or belongs to another key, group or " +
	"shard")

// partHeader is the unencrypted beginning of a record. It holds the record's kind, job and position.
type partHeader struct {
	Kind      byte
	Job       [16]byte // the nonce of the coordinator's run
	Partition uint32   // of a sum: the partition's index among the stream's; else 0
	Step      uint64   // of a sum: its step; else the last merged step
	Piece     uint32   // index among Pieces
	Pieces    uint32
}

// String names the sum for messages.
func (h *partHeader) String() string {
	return fmt.Sprintf("step %d of partition number %d", h.Step, h.Partition)
}

func (h *partHeader) append(b []byte) []byte {
	b = append(b, partFormat, h.Kind)
	b = append(b, h.Job[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.Partition)
	b = binary.LittleEndian.AppendUint64(b, h.Step)
	b = binary.LittleEndian.AppendUint32(b, h.Piece)
	return binary.LittleEndian.AppendUint32(b, h.Pieces)
}

// parsePartHeader parses the beginning of a record. Salt and ciphertext follow it.
func parsePartHeader(data []byte) (h partHeader, ok bool) {
	if len(data) < partHead+seal.Salt+seal.Tag || len(data) > partHead+seal.Salt+seal.Tag+partPiece ||
		data[0] != partFormat {
		return h, false
	}
	h.Kind = data[1]
	copy(h.Job[:], data[2:])
	h.Partition = binary.LittleEndian.Uint32(data[18:])
	h.Step = binary.LittleEndian.Uint64(data[22:])
	h.Piece = binary.LittleEndian.Uint32(data[30:])
	h.Pieces = binary.LittleEndian.Uint32(data[34:])
	sound := h.Kind >= partJob && h.Kind <= partAlive && h.Pieces >= 1 && h.Pieces <= maxPartPieces &&
		h.Piece < h.Pieces && h.Partition < maxMergeParts
	if h.Kind != partSum {
		sound = sound && h.Pieces == 1 && h.Partition == 0
	}
	return h, sound && h.Step < math.MaxInt64
}

// partSeal encrypts the records of one shard. The sums in them have no noise, so they are as private as the stream's
// records.
//
// A record is header ‖ salt[32] ‖ AES-256-GCM of the content, with the key
//
//	HKDF-SHA256(master key, salt, "streamdp/partials/v1\0")
//
// and the nonce 0. The salt is random and new for each record, so no key encrypts twice. Group, shard, header and salt
// are authenticated, so a record is valid only where it was written. A replayed record is a copy of one that was
// handled before, and has no further effect.
//
// All instances have the master key, but only the owner has an epoch's secret. partSeal holds a function that derives
// the keys of records, not the master key.
type partSeal struct {
	derive func(salt []byte) [32]byte
	with   []byte // group and shard
}

func newPartSeal(derive func(salt []byte) [32]byte, group string, shard int) *partSeal {
	with := append([]byte(keys.ForPartials), binary.LittleEndian.AppendUint64(nil, uint64(len(group)))...)
	with = append(with, group...)
	return &partSeal{derive, binary.LittleEndian.AppendUint64(with, uint64(shard))}
}

func (s *partSeal) cipher(salt []byte) (cipher.AEAD, error) {
	key := s.derive(salt)
	return seal.New(key[:])
}

// Seal returns a record.
func (s *partSeal) Seal(h partHeader, content []byte) ([]byte, error) {
	return s.sealIn(h, append(partRoom(len(content)), content...))
}

// partRoom returns a buffer that holds the space for header and salt, which sealIn fills in. The buffer's capacity has
// room for the given number of bytes of content, and for the tag.
func partRoom(content int) []byte {
	return make([]byte, partHead+seal.Salt, partHead+seal.Salt+content+seal.Tag)
}

// sealIn turns b into a record in place. b is a buffer from partRoom, to which the content has been appended.
func (s *partSeal) sealIn(h partHeader, b []byte) ([]byte, error) {
	salt := dp.NewSecret() // 32 random bytes
	aead, err := s.cipher(salt[:])
	if err != nil {
		return nil, err
	}
	head := append(h.append(b[:0]), salt[:]...)
	return aead.Seal(head, seal.NoNonce, b[len(head):], slices.Concat(s.with, head)), nil
}

// Open returns the content of a record whose header was parsed successfully.
func (s *partSeal) Open(data []byte) ([]byte, error) {
	head := data[:partHead+seal.Salt]
	aead, err := s.cipher(head[partHead:])
	if err != nil {
		return nil, err
	}
	content, err := aead.Open(nil, seal.NoNonce, data[len(head):], slices.Concat(s.with, head))
	if err != nil {
		return nil, errPartial
	}
	return content, nil
}

// mergeJob is what a coordinator announces. Each member reads the partitions assigned to it from the given positions,
// and writes their sums.
type mergeJob struct {
	Stream     string
	Manifest   []byte // the epoch's manifest file
	Generation int64  // generation of the group whose members divide the partitions
	Members    int
	Ahead      uint64 // number of steps after the last merged one that may be written
	At         []mergePlace

	step uint64 // the last merged step; from the record's header
}

// mergePlace is one partition of a job: the member that sums it, and the position at which the step after the last
// merged one begins.
type mergePlace struct {
	Member   int
	position kafka.Position
}

// NoMember stands for the member if the coordinator reads a partition itself.
const NoMember = -1

func (j *mergeJob) encode() []byte {
	w := &bin.Writer{}
	w.String(j.Stream)
	w.Bytes(j.Manifest)
	w.Int(j.Generation)
	w.Uint(uint64(j.Members))
	w.Uint(j.Ahead)
	w.Uint(uint64(len(j.At)))
	for _, p := range j.At {
		w.Int(int64(p.Member))
		state.WritePosition(w, p.position)
	}
	return w.B
}

func parseMergeJob(data []byte) (*mergeJob, error) {
	r := &bin.Reader{B: data}
	j := &mergeJob{Stream: r.String(), Manifest: r.Bytes(), Generation: r.Int(), Members: r.Index(math.MaxInt32),
		Ahead: r.Uint()}
	n := r.Uint()
	r.Bad = r.Bad || j.Manifest == nil || n == 0 || n > maxMergeParts || j.Members == 0 || j.Ahead == 0 ||
		j.Ahead > math.MaxInt32
	for i := uint64(0); i < n && !r.Bad; i++ {
		p := mergePlace{Member: int(r.Int()), position: state.ReadPosition(r)}
		r.Bad = r.Bad || p.Member < NoMember || p.Member >= j.Members
		j.At = append(j.At, p)
	}
	if !r.Done() {
		return nil, errPartial
	}
	return j, nil
}

// mergeProgress holds the known ends of steps by the clock after the last merged one. It is empty if steps are not by
// the clock.
type mergeProgress struct {
	ends [][]int64 // by step and partition
}

func (p *mergeProgress) encode() []byte {
	w := &bin.Writer{}
	w.Uint(uint64(len(p.ends)))
	if len(p.ends) > 0 {
		w.Uint(uint64(len(p.ends[0])))
	}
	for _, ends := range p.ends {
		for _, end := range ends {
			w.Int(end)
		}
	}
	return w.B
}

func parseMergeProgress(data []byte) (*mergeProgress, error) {
	r := &bin.Reader{B: data}
	p := &mergeProgress{}
	n, parts := r.Uint(), uint64(0)
	if n > 0 {
		parts = r.Uint()
	}
	r.Bad = r.Bad || n > 0 && parts == 0 || parts > maxMergeParts || n > partPiece || parts*n*8 != uint64(len(r.B))
	for i := uint64(0); i < n && !r.Bad; i++ {
		ends := make([]int64, parts)
		for k := range ends {
			ends[k] = r.Int()
			r.Bad = r.Bad || ends[k] < 0
		}
		p.ends = append(p.ends, ends)
	}
	if !r.Done() {
		return nil, errPartial
	}
	return p, nil
}

// mergeAlive reports a member's progress in those of its partitions that it can read.
type mergeAlive struct {
	generation int64
	member     int
	at         []mergeReached
}

// mergeReached is a member's progress in one partition.
type mergeReached struct {
	partition        int    // index among the stream's partitions
	written          uint64 // the last step whose sum was written
	logStart, logEnd int64  // ends of the log, as of the broker's last response; −1: none yet
}

func (a *mergeAlive) Encode() []byte {
	w := &bin.Writer{}
	w.Int(a.generation)
	w.Uint(uint64(a.member))
	w.Uint(uint64(len(a.at)))
	for _, p := range a.at {
		w.Uint(uint64(p.partition))
		w.Uint(p.written)
		w.Int(p.logStart)
		w.Int(p.logEnd)
	}
	return w.B
}

func parseMergeAlive(data []byte) (*mergeAlive, error) {
	r := &bin.Reader{B: data}
	a := &mergeAlive{generation: r.Int(), member: r.Index(math.MaxInt32)}
	n := r.Uint()
	r.Bad = r.Bad || n > maxMergeParts
	for i := uint64(0); i < n && !r.Bad; i++ {
		p := mergeReached{r.Index(maxMergeParts), r.Uint(), r.Int(), r.Int()}
		r.Bad = r.Bad || p.logStart < -1 || p.logEnd < -1
		a.at = append(a.at, p)
	}
	if !r.Done() {
		return nil, errPartial
	}
	return a, nil
}

// mergeSum is the sum of a step over a partition, as a worker writes it.
type mergeSum struct {
	position kafka.Position // position after the step
	Work     monitor.Counts // counts since the step before
	Sum      []byte         // as written by core.Sum.AppendBinary
}

// Begin appends the fields that precede the sum.
func (s *mergeSum) Begin(b []byte) []byte {
	w := &bin.Writer{B: b}
	state.WritePosition(w, s.position)
	w.Uint(uint64(s.Work.Records))
	w.Uint(uint64(len(s.Work.Rejected)))
	for _, n := range s.Work.Rejected {
		w.Uint(uint64(n))
	}
	return w.B
}

func parseMergeSum(data []byte) (*mergeSum, error) {
	r := &bin.Reader{B: data}
	s := &mergeSum{position: state.ReadPosition(r)}
	s.Work.Records = r.Index(math.MaxInt32)
	if r.Uint() != uint64(codec.Reasons) {
		r.Bad = true // a worker of another version wrote it; the coordinator reads the partition itself
	}
	for i := range s.Work.Rejected {
		s.Work.Rejected[i] = r.Index(math.MaxInt32)
	}
	if s.Sum = r.B; r.Bad {
		return nil, errPartial
	}
	return s, nil
}

// pieces seals a sum into one record or, if it is large, into several. b is a buffer from partRoom, to which the
// content has been appended.
func (s *partSeal) pieces(h partHeader, b []byte) (all [][]byte, err error) {
	content := b[partHead+seal.Salt:]
	h.Pieces = uint32(max(1, (len(content)+partPiece-1)/partPiece))
	if h.Pieces > maxPartPieces {
		return nil,
			fmt.Errorf("the sum of a step has %d bytes, but instances can exchange at most %d: make the window smaller",
				len(content), maxPartPieces*partPiece)
	}
	if h.Pieces == 1 {
		record, err := s.sealIn(h, b)
		return [][]byte{record}, err
	}
	for h.Piece = range h.Pieces {
		n := min(len(content), partPiece)
		record, err := s.Seal(h, content[:n])
		if err != nil {
			return nil, err
		}
		all, content = append(all, record), content[n:]
	}
	return all, nil
}
