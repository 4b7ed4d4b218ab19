package stream

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/codec"
)

// The kinds of records by which instances share the reading of a merged stream.
const (
	partJob      = 1 + iota // the root's: what is to be summed, and from where on
	partProgress            // the root's: how far it has merged, and where steps by the clock end
	partSum                 // a worker's: the sum of a step over a partition, or a piece of it
	partAlive               // a worker's: how far it has come
)

// The limits of such records.
const (
	partPiece     = 900_000 // bytes of content in a record: brokers take a megabyte
	maxPartPieces = 512     // of one sum
	maxPartJob    = partPiece
	maxMergeParts = 1 << 20 // partitions of a stream
	partFormat    = 1
	partHead      = 2 + 16 + 4 + 8 + 4 + 4
	partLabel     = "streamdp/partials/v1\x00"
)

// errPartial says that a record is not one that an instance of this group has written with the
// present key, for this shard.
var errPartial = errors.New("not a record of merged sums, or of another key, group or shard")

// partHeader begins a record, in the clear: what it is, of which job, and its place.
type partHeader struct {
	kind      byte
	job       [16]byte // the nonce of the root's run
	partition uint32   // its place among the stream's, of a sum
	step      uint64   // of a sum; of others the last one that is merged
	piece     uint32   // of so many
	pieces    uint32
}

// String names it for messages.
func (h *partHeader) String() string {
	return fmt.Sprintf("step %d of partition number %d", h.step, h.partition)
}

func (h *partHeader) append(b []byte) []byte {
	b = append(b, partFormat, h.kind)
	b = append(b, h.job[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.partition)
	b = binary.LittleEndian.AppendUint64(b, h.step)
	b = binary.LittleEndian.AppendUint32(b, h.piece)
	return binary.LittleEndian.AppendUint32(b, h.pieces)
}

// parsePartHeader reads the beginning of a record. The rest of it is salt and cipher text.
func parsePartHeader(data []byte) (h partHeader, ok bool) {
	if len(data) < partHead+sealSalt+sealTag || len(data) > partHead+sealSalt+sealTag+partPiece || data[0] != partFormat {
		return h, false
	}
	h.kind = data[1]
	copy(h.job[:], data[2:])
	h.partition = binary.LittleEndian.Uint32(data[18:])
	h.step = binary.LittleEndian.Uint64(data[22:])
	h.piece = binary.LittleEndian.Uint32(data[30:])
	h.pieces = binary.LittleEndian.Uint32(data[34:])
	sound := h.kind >= partJob && h.kind <= partAlive && h.pieces >= 1 && h.pieces <= maxPartPieces && h.piece < h.pieces && h.partition < maxMergeParts
	if h.kind != partSum {
		sound = sound && h.pieces == 1 && h.partition == 0
	}
	return h, sound && h.step < math.MaxInt64
}

// partSeal encrypts the records of one shard. Their sums have no noise, and are as private as
// the stream's records.
//
// A record is header ‖ salt[32] ‖ AES-256-GCM of the content, with the key
//
//	HKDF-SHA256(master key, salt, "streamdp/partials/v1\0")
//
// and the nonce 0: the salt is random and new for each record, so no key encrypts twice. Group,
// shard, header and salt are authenticated: a record counts for no other place. A record that
// somebody repeats is one that was seen before, and counts for nothing more.
//
// The master key is what all instances have. An epoch's secret stays with its owner.
type partSeal struct {
	master *[32]byte
	with   []byte // group and shard
}

func newPartSeal(master *[32]byte, group string, shard int) *partSeal {
	with := append([]byte(partLabel), binary.LittleEndian.AppendUint64(nil, uint64(len(group)))...)
	with = append(with, group...)
	return &partSeal{master, binary.LittleEndian.AppendUint64(with, uint64(shard))}
}

func (s *partSeal) cipher(salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, s.master[:], salt, partLabel, 32)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal returns a record.
func (s *partSeal) seal(h partHeader, content []byte) ([]byte, error) {
	return s.sealIn(h, append(partRoom(len(content)), content...))
}

// partRoom returns what goes before a record's content, to be filled in by sealIn. It has capacity for
// so many bytes of content and what goes behind them.
func partRoom(content int) []byte {
	return make([]byte, partHead+sealSalt, partHead+sealSalt+content+sealTag)
}

// sealIn makes a record of partRoom with the content behind it, in the same memory.
func (s *partSeal) sealIn(h partHeader, b []byte) ([]byte, error) {
	salt := dp.NewSecret() // 32 random bytes
	aead, err := s.cipher(salt[:])
	if err != nil {
		return nil, err
	}
	head := append(h.append(b[:0]), salt[:]...)
	return aead.Seal(head, make([]byte, aead.NonceSize()), b[len(head):], slices.Concat(s.with, head)), nil
}

// open returns the content of a record with a sound header.
func (s *partSeal) open(data []byte) ([]byte, error) {
	head := data[:partHead+sealSalt]
	aead, err := s.cipher(head[partHead:])
	if err != nil {
		return nil, err
	}
	content, err := aead.Open(nil, make([]byte, aead.NonceSize()), data[len(head):], slices.Concat(s.with, head))
	if err != nil {
		return nil, errPartial
	}
	return content, nil
}

// mergeJob is what a root announces: an instance that has some of its partitions reads them from
// the positions on and writes their sums.
type mergeJob struct {
	stream     string
	manifest   []byte // the epoch's file
	generation int64  // of the group, by whose members partitions are divided
	members    int
	ahead      uint64 // steps beyond the last merged one that may be written
	at         []mergePlace

	step uint64 // the last merged one; in the record's header
}

// mergePlace is one partition of a job: the member that sums it, and where the step after the
// last merged one begins.
type mergePlace struct {
	member   int
	position kafka.Position
}

// noMember sums a partition that its root reads itself.
const noMember = -1

func (j *mergeJob) encode() []byte {
	w := &bin.Writer{}
	w.String(j.stream)
	w.Bytes(j.manifest)
	w.Int(j.generation)
	w.Uint(uint64(j.members))
	w.Uint(j.ahead)
	w.Uint(uint64(len(j.at)))
	for _, p := range j.at {
		w.Int(int64(p.member))
		writePosition(w, p.position)
	}
	return w.B
}

func parseMergeJob(data []byte) (*mergeJob, error) {
	r := &bin.Reader{B: data}
	j := &mergeJob{stream: r.String(), manifest: r.Bytes(), generation: r.Int(), members: r.Index(math.MaxInt32), ahead: r.Uint()}
	n := r.Uint()
	r.Bad = r.Bad || j.manifest == nil || n == 0 || n > maxMergeParts || j.members == 0 || j.ahead == 0 || j.ahead > math.MaxInt32
	for i := uint64(0); i < n && !r.Bad; i++ {
		p := mergePlace{member: int(r.Int()), position: readPosition(r)}
		r.Bad = r.Bad || p.member < noMember || p.member >= j.members
		j.at = append(j.at, p)
	}
	if !r.Done() {
		return nil, errPartial
	}
	return j, nil
}

// mergeProgress says where steps by the clock end, from the one after the last merged step on;
// nothing of other steps.
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

// mergeAlive says how far a member has come in its partitions that it can read.
type mergeAlive struct {
	generation int64
	member     int
	at         []mergeReached
}

// mergeReached is how far a member has come in one partition.
type mergeReached struct {
	partition        int    // its place among the stream's
	written          uint64 // the last step whose sum it has written
	logStart, logEnd int64  // as of the last answer of the broker; −1: none yet
}

func (a *mergeAlive) encode() []byte {
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
	position kafka.Position // behind it
	work     work           // since the step before
	sum      []byte         // of core.Sum.AppendBinary
}

// begin appends what goes before the sum.
func (s *mergeSum) begin(b []byte) []byte {
	w := &bin.Writer{B: b}
	writePosition(w, s.position)
	w.Uint(uint64(s.work.records))
	w.Uint(uint64(len(s.work.rejected)))
	for _, n := range s.work.rejected {
		w.Uint(uint64(n))
	}
	return w.B
}

func parseMergeSum(data []byte) (*mergeSum, error) {
	r := &bin.Reader{B: data}
	s := &mergeSum{position: readPosition(r)}
	s.work.records = r.Index(math.MaxInt32)
	if r.Uint() != uint64(codec.Reasons) {
		r.Bad = true // of another version: this one reads the partition itself
	}
	for i := range s.work.rejected {
		s.work.rejected[i] = r.Index(math.MaxInt32)
	}
	if s.sum = r.B; r.Bad {
		return nil, errPartial
	}
	return s, nil
}

// pieces seals the record of a sum, which is partRoom with the content behind it, as several where it is
// large.
func (s *partSeal) pieces(h partHeader, b []byte) (all [][]byte, err error) {
	content := b[partHead+sealSalt:]
	h.pieces = uint32(max(1, (len(content)+partPiece-1)/partPiece))
	if h.pieces > maxPartPieces {
		return nil, fmt.Errorf("the sum of a step has %d bytes, and instances exchange at most %d: make the window smaller", len(content), maxPartPieces*partPiece)
	}
	if h.pieces == 1 {
		record, err := s.sealIn(h, b)
		return [][]byte{record}, err
	}
	for h.piece = range h.pieces {
		n := min(len(content), partPiece)
		record, err := s.seal(h, content[:n])
		if err != nil {
			return nil, err
		}
		all, content = append(all, record), content[n:]
	}
	return all, nil
}
