package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	"github.com/segmentio/kafka-go/protocol"
)

// What can be wrong with a record set, in words that say nothing of its content.
// errChecksum and errDamaged are all that a caller sees.
var (
	errChecksum = errors.New("a record batch does not match its checksum")
	errDamaged  = errors.New("record batches could not be decoded")
)

// The layout of a record batch of format 2, in bytes from its start. Integers are
// big-endian.
//
//	base offset 8 ‖ length 4 ‖ leader epoch 4 ‖ magic 1 ‖ CRC-32C 4 ‖
//	attributes 2 ‖ last offset delta 4 ‖ first and last timestamp 16 ‖
//	producer id 8 ‖ producer epoch 2 ‖ base sequence 4 ‖ records 4 ‖ records
//
// The length counts what follows it; the checksum covers what follows it. The
// older formats have their magic at the same place.
const (
	atLength     = 8
	atEpoch      = 12
	atMagic      = 16
	atChecksum   = 17
	atAttributes = 21
	atLastDelta  = 23
	atProducer   = 43
	atCount      = 57
	atRecords    = 61
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batchHeader is what the header of a batch says.
type batchHeader struct {
	base, end int64 // the offsets it takes: [base, end)
	epoch     int32
	producer  int64
	count     int32 // records in it
	attr      protocol.Attributes
}

func (h *batchHeader) control() bool       { return h.attr.Control() }
func (h *batchHeader) transactional() bool { return h.attr.Transactional() }

// cut splits the first batch, or message of an older format, off a record set.
// What is left of an answer that ends in the middle of one is no batch: b is nil.
func cut(set []byte) (b, rest []byte, err error) {
	if len(set) <= atMagic {
		return nil, nil, nil
	}
	n := int(int32(binary.BigEndian.Uint32(set[atLength:])))
	switch magic := set[atMagic]; {
	case magic > 2, n < oldest-atEpoch, magic == 2 && n < atRecords-atEpoch:
		return nil, nil, errDamaged
	}
	if n > len(set)-atEpoch {
		return nil, nil, nil
	}
	n += atEpoch
	return set[:n:n], set[n:], nil
}

// parse reads the header of a whole batch of format 2, without its checksum.
func (h *batchHeader) parse(b []byte) error {
	*h = batchHeader{
		base:     int64(binary.BigEndian.Uint64(b)),
		epoch:    int32(binary.BigEndian.Uint32(b[atEpoch:])),
		producer: int64(binary.BigEndian.Uint64(b[atProducer:])),
		count:    int32(binary.BigEndian.Uint32(b[atCount:])),
		attr:     protocol.Attributes(binary.BigEndian.Uint16(b[atAttributes:])),
	}
	last := int32(binary.BigEndian.Uint32(b[atLastDelta:]))
	if h.base < 0 || last < 0 || h.count < 0 || h.count-1 > last || h.base > math.MaxInt64-math.MaxInt32-1 {
		return errDamaged
	}
	h.end = h.base + int64(last) + 1
	return nil
}

// sound reports whether the batch matches its checksum.
func sound(b []byte) bool {
	return crc32.Checksum(b[atAttributes:], castagnoli) == binary.BigEndian.Uint32(b[atChecksum:])
}

// batch is a batch whose records are being read.
type batch struct {
	batchHeader
	open bool
	left int32 // records not read yet
	last int64 // the offset of the last one read
	max  int   // the size from which a record is too large

	body []byte     // of an uncompressed batch: what is left
	buf  *buffer    // what body lies in
	zip  inflater   // of a compressed one
	old  oldRecords // of the older formats
}

// begin starts reading the records of a batch whose header has been read.
func (b *batch) begin(raw []byte, buf *buffer, max int) error {
	b.open, b.left, b.last, b.max = true, b.count, b.base-1, max
	b.body, b.buf = raw[atRecords:], buf
	if codec := b.attr.Compression(); codec != 0 {
		return b.zip.open(codec, raw[atRecords:])
	}
	return nil
}

// beginOld starts reading a message of the older formats. What it says of offsets
// is known when its records are read.
func (b *batch) beginOld(raw []byte, max int) error {
	b.batchHeader = batchHeader{base: -1, epoch: -1, producer: -1}
	b.open, b.last, b.max, b.buf = true, -1, max, nil
	return b.old.open(raw)
}

func (b *batch) close() {
	b.zip.close()
	b.old.close()
	b.open, b.body, b.buf = false, nil, nil
}

// record is a record as it lies in a batch.
type record struct {
	offset     int64
	key, value []byte
	headers    []byte // encoded
	count      int    // of the headers
	large      bool   // beyond the limit: key, value and headers are absent
	sum        [32]byte
	taken      int // bytes that the chunk gave for it
}

// headerBytes is what a header takes in memory beside its name and value. It
// counts towards a record's size, so that many empty ones count.
const headerBytes = 40

// overhead bounds what the encoding adds to the size of a record without headers:
// attributes, and varints of the timestamp, the offset, two lengths and a count. A
// header adds less than headerBytes.
const overhead = 1 + 10 + 5 + 5 + 5 + 5

// next reads a record. false without an error: there is none left. The bytes of a
// compressed record are the chunk's; see Chunk.giveBack.
func (b *batch) next(ctx context.Context, c *Chunk, r *record) (bool, error) {
	if b.old.reading {
		return b.old.next(c, b.max, r)
	}
	if b.left == 0 {
		return false, nil
	}
	b.left--
	r.large, r.taken = false, 0
	var raw []byte
	if b.zip.z == nil {
		n, i := varint(b.body, 0)
		if i > len(b.body) || n < 0 || n > int64(len(b.body)-i) {
			return false, errDamaged
		}
		raw, b.body = b.body[i:i+int(n)], b.body[i+int(n):]
		if n > int64(b.max+overhead) {
			return true, b.tooLong(raw, r)
		}
	} else {
		n, ok := b.zip.varint()
		if !ok || n < 0 || n > math.MaxInt32 {
			return false, errDamaged
		}
		if n > int64(b.max+overhead) {
			return true, b.pass(ctx, n, r)
		}
		r.taken = int(n)
		raw = c.take(int(n))
		if !b.zip.read(raw) {
			return false, errDamaged
		}
	}
	delta, size := r.parse(raw)
	if size < 0 {
		return false, errDamaged
	}
	if err := b.place(r, delta); err != nil {
		return false, err
	}
	if size > b.max {
		r.hide(HashRecord(r.offset, r.key, r.value))
	}
	return true, nil
}

// place gives the record its offset, which must lie in the batch and after the one
// before it.
func (b *batch) place(r *record, delta int64) error {
	if delta <= b.last-b.base || delta >= b.end-b.base {
		return errDamaged
	}
	r.offset = b.base + delta
	b.last = r.offset
	return nil
}

// hide leaves of a record that is too large its offset and its hash.
func (r *record) hide(sum [32]byte) {
	r.key, r.value, r.headers, r.count = nil, nil, nil, 0
	r.large, r.sum = true, sum
}

// tooLong reads a record that is too large by its length alone. What follows the
// value is not looked at, as in pass.
func (b *batch) tooLong(raw []byte, r *record) error {
	delta, i := r.start(raw)
	i = r.fields(raw, i)
	if i < 0 {
		return errDamaged
	}
	if err := b.place(r, delta); err != nil {
		return err
	}
	r.hide(HashRecord(r.offset, r.key, r.value))
	return nil
}

// pass reads such a record of n bytes out of a compressed batch and holds none of
// it.
func (b *batch) pass(ctx context.Context, n int64, r *record) error {
	z := &b.zip
	z.limit(n)
	if !z.skip(ctx, 1, nil) { // attributes
		return z.failure(ctx)
	}
	_, ok := z.varint() // timestamp
	delta, ok2 := z.varint()
	if !ok || !ok2 {
		return errDamaged
	}
	if err := b.place(r, delta); err != nil {
		return err
	}
	h := newRecordHash(r.offset)
	for range 2 {
		n, ok := z.varint()
		if !ok || n > math.MaxInt32 {
			return errDamaged
		}
		h.field(n)
		if n > 0 && !z.skip(ctx, n, h) {
			return z.failure(ctx)
		}
	}
	if !z.skip(ctx, z.limited, nil) {
		return z.failure(ctx)
	}
	z.unlimit()
	r.hide(h.sum())
	return nil
}

// varint reads a zigzag varint at b[i] and returns it and the place after it, which
// lies beyond b where there is none. A place beyond b stays there.
func varint(b []byte, i int) (int64, int) {
	if i < len(b) && b[i] < 0x80 {
		return int64(b[i]>>1) ^ -int64(b[i]&1), i + 1
	}
	return longVarint(b, i)
}

func longVarint(b []byte, i int) (int64, int) {
	var x uint64
	for s := 0; i < len(b) && s < 70; s += 7 {
		c := b[i]
		i++
		x |= uint64(c&0x7f) << s
		if c < 0x80 {
			return int64(x>>1) ^ -int64(x&1), i
		}
	}
	return 0, len(b) + 1
}

// start reads what stands before the key, and returns the record's offset in the
// batch and the key's place.
func (r *record) start(b []byte) (delta int64, i int) {
	_, i = varint(b, 1) // after the attributes, of which none are defined
	return varint(b, i)
}

// fields reads key and value from b[i] on, and returns the place after them, or −1.
func (r *record) fields(b []byte, i int) int {
	n, i := varint(b, i)
	if n > int64(len(b)-i) {
		return -1
	}
	r.key = nil
	if n >= 0 {
		r.key = b[i : i+int(n) : i+int(n)]
		i += int(n)
	}
	n, i = varint(b, i)
	if n > int64(len(b)-i) {
		return -1
	}
	r.value = nil
	if n >= 0 {
		r.value = b[i : i+int(n) : i+int(n)]
		i += int(n)
	}
	if i > len(b) {
		return -1
	}
	return i
}

// parse reads a whole record, and returns its offset in the batch and its size: the
// bytes of key, value and headers, and headerBytes for each header. That is a
// function of the record alone, as what becomes of it must be: the length of its
// encoding depends on its place in the batch. The size is −1 where b is no record.
func (r *record) parse(b []byte) (delta int64, size int) {
	delta, i := r.start(b)
	if i = r.fields(b, i); i < 0 {
		return 0, -1
	}
	n, i := varint(b, i)
	size = len(r.key) + len(r.value)
	if n == 0 && i == len(b) {
		r.headers, r.count = nil, 0
		return delta, size
	}
	if i > len(b) || n < 0 || n > int64(len(b)-i)/2 {
		return 0, -1
	}
	r.headers, r.count = b[i:], int(n)
	for range r.count {
		var name, value []byte
		if name, value, i = nextHeader(b, i); i < 0 {
			return 0, -1
		}
		size += len(name) + len(value) + headerBytes
	}
	if i != len(b) {
		return 0, -1
	}
	return delta, size
}

// nextHeader reads a header at b[i] and returns the place after it, or −1.
func nextHeader(b []byte, i int) (name, value []byte, next int) {
	n, i := varint(b, i)
	if n < 0 || n > int64(len(b)-i) {
		return nil, nil, -1
	}
	name = b[i : i+int(n)]
	i += int(n)
	n, i = varint(b, i)
	if n > int64(len(b)-i) {
		return nil, nil, -1
	}
	if n >= 0 {
		value = b[i : i+int(n) : i+int(n)]
		i += int(n)
	}
	if i > len(b) {
		return nil, nil, -1
	}
	return name, value, i
}
