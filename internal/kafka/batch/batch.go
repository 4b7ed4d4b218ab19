package batch

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
)

// What can be wrong with a record set, in words that say nothing of its content.
var (
	// ErrDamaged says that bytes are no batch, or no record of their batch.
	ErrDamaged = errors.New("record batches could not be decoded")
	// ErrChecksum says that a batch is not what its producer or broker wrote.
	ErrChecksum = errors.New("a record batch does not match its checksum")
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

// The attributes of a batch: bits.
const (
	codecMask     = 0x07
	transactional = 0x10
	control       = 0x20
)

// oldest is the size of the smallest message of the older formats: offset, length,
// checksum, magic, attributes, and a key and a value that are null.
const oldest = 26

// Header is what the header of a batch says.
type Header struct {
	Base, End  int64 // the offsets it takes: [Base, End)
	Epoch      int32 // of the leader that appended it
	Producer   int64 // its id; −1: none
	Count      int32 // records in it
	attributes uint16
}

// Control reports whether the batch has a transaction marker instead of records.
func (h *Header) Control() bool { return h.attributes&control != 0 }

// Transactional reports whether the records belong to a transaction.
func (h *Header) Transactional() bool { return h.attributes&transactional != 0 }

// Cut splits the first batch, or message of an older format, off a record set. b is nil,
// without an error, where the set ends in the middle of one. Of b, only the length has been
// looked at. Its only error is ErrDamaged.
func Cut(set []byte) (b, rest []byte, err error) {
	if len(set) <= atMagic {
		return nil, nil, nil
	}
	n := int(int32(binary.BigEndian.Uint32(set[atLength:])))
	switch magic := set[atMagic]; {
	case magic > 2, n < oldest-atEpoch, magic == 2 && n < atRecords-atEpoch:
		return nil, nil, ErrDamaged
	}
	if n > len(set)-atEpoch {
		return nil, nil, nil
	}
	n += atEpoch
	return set[:n:n], set[n:], nil
}

// Old reports whether what Cut returned is a message of a format before Kafka 0.11. This
// package does not read it.
func Old(b []byte) bool { return b[atMagic] < 2 }

// Parse reads the header of a batch that Cut returned. It does not look at the checksum:
// see Check. Its only error is ErrDamaged.
func (h *Header) Parse(b []byte) error {
	*h = Header{
		Base:       int64(binary.BigEndian.Uint64(b)),
		Epoch:      int32(binary.BigEndian.Uint32(b[atEpoch:])),
		Producer:   int64(binary.BigEndian.Uint64(b[atProducer:])),
		Count:      int32(binary.BigEndian.Uint32(b[atCount:])),
		attributes: binary.BigEndian.Uint16(b[atAttributes:]),
	}
	last := int32(binary.BigEndian.Uint32(b[atLastDelta:]))
	if h.Base < 0 || last < 0 || h.Count < 0 || h.Count-1 > last || h.Base > math.MaxInt64-math.MaxInt32-1 {
		return ErrDamaged
	}
	h.End = h.Base + int64(last) + 1
	return nil
}

// Check compares a batch that Cut returned with its checksum. Its only error is ErrChecksum.
func Check(b []byte) error {
	if crc32.Checksum(b[atAttributes:], castagnoli) != binary.BigEndian.Uint32(b[atChecksum:]) {
		return ErrChecksum
	}
	return nil
}

// Reader reads the records of a batch, one after the other. It is used for one batch after
// another, so that what codecs need is allocated once.
type Reader struct {
	// Header is that of the batch. Parse it before Begin.
	Header
	// Codec decompresses. It must be set before the first Begin.
	Codec Codec

	open bool
	left int32 // records not read yet
	last int64 // the offset of the last one read
	max  int   // the size from which a record is too large

	body []byte   // of an uncompressed batch: what is left
	zip  inflater // of a compressed one
}

// Begin starts reading the records of the batch whose header has been parsed. A record of
// more than max bytes is delivered without its content: see Record. The records of an
// uncompressed batch lie in raw. Close must follow, after an error too.
func (b *Reader) Begin(raw []byte, max int) error {
	b.open, b.left, b.last, b.max = true, b.Count, b.Base-1, max
	b.body = raw[atRecords:]
	if codec := int8(b.attributes & codecMask); codec != 0 {
		return b.zip.open(b.Codec, codec, raw[atRecords:])
	}
	return nil
}

// Open reports whether a batch is being read: Close has not been called since Begin.
func (b *Reader) Open() bool { return b.open }

// Close ends reading the batch. Records that lie in it, or in an Arena, stay.
func (b *Reader) Close() {
	b.zip.close()
	b.open, b.body = false, nil
}

// Record is a record as it lies in a batch.
type Record struct {
	// Offset is its place in the partition.
	Offset int64
	// Key and Value are nil where they are null.
	Key, Value []byte
	// Headers is how many there are; see Header.
	Headers int
	// Large says that the record is beyond the limit: key, value and headers are absent.
	Large bool
	// Taken is how many bytes the Arena gave for it.
	Taken int

	headers []byte   // encoded
	sum     [32]byte // its hash, where it is large
}

// HeaderBytes is what a header takes in memory beside its name and value. It
// counts towards a record's size, so that many empty ones count.
const HeaderBytes = 40

// overhead bounds what the encoding adds to the size of a record without headers:
// attributes, and varints of the timestamp, the offset, two lengths and a count. A
// header adds less than HeaderBytes.
const overhead = 1 + 10 + 5 + 5 + 5 + 5

// Next reads a record. false without an error: there is none left. Records have ascending
// offsets in [Base, End). The bytes of a compressed one come from the arena, and r.Taken says
// how many; a caller that does not keep the last record gives them back. The error is
// ErrDamaged, or the context's, which ends the reading of a record that is too large.
func (b *Reader) Next(ctx context.Context, a *Arena, r *Record) (bool, error) {
	if b.left == 0 {
		return false, nil
	}
	b.left--
	r.Large, r.Taken = false, 0
	var raw []byte
	if b.zip.z == nil {
		n, i := varint(b.body, 0)
		if i > len(b.body) || n < 0 || n > int64(len(b.body)-i) {
			return false, ErrDamaged
		}
		raw, b.body = b.body[i:i+int(n)], b.body[i+int(n):]
		if n > int64(b.max+overhead) {
			return true, b.tooLong(raw, r)
		}
	} else {
		n, ok := b.zip.varint()
		if !ok || n < 0 || n > math.MaxInt32 {
			return false, ErrDamaged
		}
		if n > int64(b.max+overhead) {
			return true, b.pass(ctx, n, r)
		}
		r.Taken = int(n)
		raw = a.Take(int(n))
		if !b.zip.read(raw) {
			return false, ErrDamaged
		}
	}
	delta, size := r.parse(raw)
	if size < 0 {
		return false, ErrDamaged
	}
	if err := b.place(r, delta); err != nil {
		return false, err
	}
	if size > b.max {
		r.Hide()
	}
	return true, nil
}

// place gives the record its offset, which must lie in the batch and after the one
// before it.
func (b *Reader) place(r *Record, delta int64) error {
	if delta <= b.last-b.Base || delta >= b.End-b.Base {
		return ErrDamaged
	}
	r.Offset = b.Base + delta
	b.last = r.Offset
	return nil
}

// Hide leaves of a record that is too large its offset and its hash.
func (r *Record) Hide() { r.hide(HashRecord(r.Offset, r.Key, r.Value)) }

func (r *Record) hide(sum [32]byte) {
	r.Key, r.Value, r.headers, r.Headers = nil, nil, nil, 0
	r.Large, r.sum = true, sum
}

// tooLong reads a record that is too large by its length alone. What follows the
// value is not looked at, as in pass.
func (b *Reader) tooLong(raw []byte, r *Record) error {
	delta, i := r.start(raw)
	i = r.fields(raw, i)
	if i < 0 {
		return ErrDamaged
	}
	if err := b.place(r, delta); err != nil {
		return err
	}
	r.Hide()
	return nil
}

// pass reads such a record of n bytes out of a compressed batch and holds none of
// it.
func (b *Reader) pass(ctx context.Context, n int64, r *Record) error {
	z := &b.zip
	z.limit(n)
	if !z.skip(ctx, 1, nil) { // attributes
		return z.failure(ctx)
	}
	_, ok := z.varint() // timestamp
	delta, ok2 := z.varint()
	if !ok || !ok2 {
		return ErrDamaged
	}
	if err := b.place(r, delta); err != nil {
		return err
	}
	h := newRecordHash(r.Offset)
	for range 2 {
		n, ok := z.varint()
		if !ok || n > math.MaxInt32 {
			return ErrDamaged
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
func (r *Record) start(b []byte) (delta int64, i int) {
	_, i = varint(b, 1) // after the attributes, of which none are defined
	return varint(b, i)
}

// fields reads key and value from b[i] on, and returns the place after them, or −1.
func (r *Record) fields(b []byte, i int) int {
	n, i := varint(b, i)
	if n > int64(len(b)-i) {
		return -1
	}
	r.Key = nil
	if n >= 0 {
		r.Key = b[i : i+int(n) : i+int(n)]
		i += int(n)
	}
	n, i = varint(b, i)
	if n > int64(len(b)-i) {
		return -1
	}
	r.Value = nil
	if n >= 0 {
		r.Value = b[i : i+int(n) : i+int(n)]
		i += int(n)
	}
	if i > len(b) {
		return -1
	}
	return i
}

// parse reads a whole record, and returns its offset in the batch and its size: the
// bytes of key, value and headers, and HeaderBytes for each header. That is a
// function of the record alone, as what becomes of it must be: the length of its
// encoding depends on its place in the batch. The size is −1 where b is no record.
func (r *Record) parse(b []byte) (delta int64, size int) {
	delta, i := r.start(b)
	if i = r.fields(b, i); i < 0 {
		return 0, -1
	}
	n, i := varint(b, i)
	size = len(r.Key) + len(r.Value)
	if n == 0 && i == len(b) {
		r.headers, r.Headers = nil, 0
		return delta, size
	}
	if i > len(b) || n < 0 || n > int64(len(b)-i)/2 {
		return 0, -1
	}
	r.headers, r.Headers = b[i:], int(n)
	for range r.Headers {
		var name, value []byte
		if name, value, i = nextHeader(b, i); i < 0 {
			return 0, -1
		}
		size += len(name) + len(value) + HeaderBytes
	}
	if i != len(b) {
		return 0, -1
	}
	return delta, size
}

// Hash is HashRecord of the record, however large.
func (r *Record) Hash() [32]byte {
	if r.Large {
		return r.sum
	}
	return HashRecord(r.Offset, r.Key, r.Value)
}

// Header reads one header and returns where the next one is. The first is at 0. They lie
// where the record does. It may be called as often as Headers says.
func (r *Record) Header(at int) (name, value []byte, next int) { return nextHeader(r.headers, at) }

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
