package batch

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
)

// These are the faults of a record set. Their texts contain nothing of its content.
var (
	// ErrDamaged: the bytes are not a batch, or not a record of their batch.
	ErrDamaged = errors.New("record batches could not be decoded")
	// ErrChecksum: the batch differs from what its producer or broker wrote.
	ErrChecksum = errors.New("a record batch does not match its checksum")
)

// These constants describe the layout of a record batch of format 2, in bytes from its start. Integers are big-endian.
//
//	base offset 8 ‖ length 4 ‖ leader epoch 4 ‖ magic 1 ‖ CRC-32C 4 ‖
//	attributes 2 ‖ last offset delta 4 ‖ first and last timestamp 16 ‖
//	producer id 8 ‖ producer epoch 2 ‖ base sequence 4 ‖ records 4 ‖ records
//
// The length field counts the bytes after it, and the checksum covers the bytes after it. The older formats have their
// magic byte at the same place.
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

// These are the bits of a batch's attributes.
const (
	codecMask     = 0x07
	transactional = 0x10
	control       = 0x20
)

// oldest is the size of the smallest message in the older formats: offset, length, checksum, magic, attributes, and a
// null key and value.
const oldest = 26

// Header has the fields of a batch's header.
type Header struct {
	Base, End  int64 // the batch's offsets: [Base, End)
	Epoch      int32 // epoch of the leader that appended it
	Producer   int64 // producer id; −1: none
	Count      int32 // number of records
	attributes uint16
}

// Control reports whether the batch has a transaction marker instead of records.
func (h *Header) Control() bool { return h.attributes&control != 0 }

// Transactional reports whether the records belong to a transaction.
func (h *Header) Transactional() bool { return h.attributes&transactional != 0 }

// Cut splits the first batch, or message in an older format, off a record set. If the set ends in the middle of one, b
// is nil, without an error. Cut checks only the length of b. Its only error is ErrDamaged.
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

// Old reports whether a result of Cut is a message in a format before Kafka 0.11, which this package does not read.
func Old(b []byte) bool { return b[atMagic] < 2 }

// Parse reads the header of a batch that Cut returned. It does not verify the checksum: see Check. Its only error is
// ErrDamaged.
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

// Reader reads the records of a batch, one after the other. Use it for many batches, so that the memory of codecs is
// allocated once.
type Reader struct {
	// Header is the header of the batch. Call its Parse before Begin.
	Header
	// Codec decompresses batches. Set it before the first Begin.
	Codec Codec

	open bool
	left int32 // records not read yet
	last int64 // offset of the last record read
	max  int   // maximum size of a record in bytes; see Record.Large

	body []byte   // rest of an uncompressed batch
	zip  inflater // stream of a compressed batch
}

// Begin starts to read the records of the batch whose header was parsed. A record of more than max bytes is delivered
// without its content: see Record. The records of an uncompressed batch refer to raw. Call Close afterwards, even after
// an error.
func (b *Reader) Begin(raw []byte, max int) error {
	b.open, b.left, b.last, b.max = true, b.Count, b.Base-1, max
	b.body = raw[atRecords:]
	if codec := int8(b.attributes & codecMask); codec != 0 {
		return b.zip.open(b.Codec, codec, raw[atRecords:])
	}
	return nil
}

// Open reports whether a batch is being read, from Begin to Close.
func (b *Reader) Open() bool { return b.open }

// Close stops reading the batch. Records remain valid, both in an uncompressed batch and in an Arena.
func (b *Reader) Close() {
	b.zip.close()
	b.open, b.body = false, nil
}

// Record is a record of a batch, with its bytes in place.
type Record struct {
	// Offset is the record's offset in the partition.
	Offset int64
	// Key and Value are nil if they are null.
	Key, Value []byte
	// Headers is the number of headers; see Header.
	Headers int
	// Large reports that the record is above the limit: key, value and headers are absent.
	Large bool
	// Taken is the number of bytes that were taken from the Arena for this record.
	Taken int

	headers []byte   // the encoded headers
	sum     [32]byte // hash of a large record
}

// HeaderBytes is the memory that a header needs in addition to its name and value. It counts towards a record's size,
// so that many empty headers count.
const HeaderBytes = 40

// overhead is an upper bound on the bytes that the encoding adds to a record without headers: attributes, and varints
// for the timestamp, the offset, two lengths and a count. A header adds less than HeaderBytes.
const overhead = 1 + 10 + 5 + 5 + 5 + 5

// Next reads a record. It returns false without an error if none is left. Records have ascending offsets in [Base,
// End). The bytes of a record from a compressed batch are in the arena, and r.Taken is their number. A caller that does
// not keep the last record gives these bytes back. The error is ErrDamaged or, if the context ends while a too large
// record is being read, the context's error.
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

// place sets the record's offset, which must be in the batch and after the previous one.
func (b *Reader) place(r *Record, delta int64) error {
	if delta <= b.last-b.Base || delta >= b.End-b.Base {
		return ErrDamaged
	}
	r.Offset = b.Base + delta
	b.last = r.Offset
	return nil
}

// Hide removes everything but the offset and the hash from a record that is too large.
func (r *Record) Hide() { r.hide(HashRecord(r.Offset, r.Key, r.Value)) }

func (r *Record) hide(sum [32]byte) {
	r.Key, r.Value, r.headers, r.Headers = nil, nil, nil, 0
	r.Large, r.sum = true, sum
}

// tooLong reads a record whose encoded length already shows that it is too large. Like pass, it does not check the
// bytes after the value.
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

// pass reads a too large record of n bytes from a compressed batch without keeping it in memory.
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

// varint reads a zigzag varint at b[i] and returns it and the index after it. The index is beyond b if there is no
// complete varint, or if i was already beyond b.
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

// start reads the fields before the key, and returns the record's offset in the batch and the index of the key.
func (r *Record) start(b []byte) (delta int64, i int) {
	_, i = varint(b, 1) // skip the attributes, which have no defined bits
	return varint(b, i)
}

// fields reads key and value, beginning at b[i]. It returns the index after them, or −1 if they are damaged.
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

// parse reads a whole record, and returns its offset in the batch and its size: the bytes of key, value and headers,
// plus HeaderBytes for each header. The size decides how a record is treated, so it must depend on the record alone;
// the length of the encoding depends on the record's place in the batch. The size is −1 if b is not a record.
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

// Hash returns HashRecord of the record, even if it is large.
func (r *Record) Hash() [32]byte {
	if r.Large {
		return r.sum
	}
	return HashRecord(r.Offset, r.Key, r.Value)
}

// Header reads the header at index `at` and returns the index of the next header. The first header has index 0. Names
// and values refer to the record's bytes. Call Header at most r.Headers times.
func (r *Record) Header(at int) (name, value []byte, next int) { return nextHeader(r.headers, at) }

// nextHeader reads a header at b[i] and returns the index after it, or −1 if it is damaged.
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
