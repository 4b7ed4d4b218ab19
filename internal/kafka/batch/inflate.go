package batch

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/bits"
)

// Codec returns a reader that decompresses src. number is the codec's number in the attributes of a batch. The result
// is nil if the number is unknown.
type Codec func(number int8, src io.Reader) io.ReadCloser

// These codecs trust the lengths in a body.
const (
	snappy = 2
	zstd   = 4
)

// Exceeds reports whether a compressed body decompresses to more than n bytes. It keeps none of these bytes. If the
// body is damaged within the first n bytes, it returns false. Its only error is ErrDamaged: no codec accepts the body.
func (c Codec) Exceeds(number int8, body []byte, n int64) (bool, error) {
	var z inflater
	if err := z.open(c, number, body); err != nil {
		return false, err
	}
	defer z.close()
	return z.skip(context.Background(), n+1, nil), nil
}

// inflater reads the body of a compressed batch as a stream. It holds 64 kB, and the memory of the codec:
//
//	gzip    44 kB
//	lz4     two blocks, at most 16 MB
//	snappy  a block and 22 times that, the maximum ratio of snappy
//	zstd    the window, at most 128 MB, and no more than the body can contain
//
// The memory does not depend on the decompressed size.
type inflater struct {
	src  bytes.Reader
	z    io.ReadCloser
	buf  []byte // buf[r:w] is decompressed but not read yet
	r, w int
	err  error

	limited int64 // number of bytes of the current record that may still be read
}

const (
	inflateBuffer = 64 << 10
	// maxWindow is zstd's own default limit, which Kafka's clients and brokers use too. Level 22 needs all of it.
	maxWindow = 128 << 20
	unlimited = 1 << 62
)

// open begins a body. It checks the limits of snappy and zstd before their codecs run, because these trust the lengths
// in the body.
func (f *inflater) open(c Codec, number int8, body []byte) error {
	if number == snappy && !snappyFits(body) || number == zstd && !zstdFits(body) {
		return ErrDamaged
	}
	f.src.Reset(body)
	if f.z = c(number, &f.src); f.z == nil {
		f.src.Reset(nil)
		return ErrDamaged
	}
	if f.buf == nil {
		f.buf = make([]byte, inflateBuffer)
	}
	f.r, f.w, f.err, f.limited = 0, 0, nil, unlimited
	return nil
}

func (f *inflater) close() {
	if f.z != nil {
		f.z.Close()
		f.z = nil
		f.src.Reset(nil)
	}
}

// fill decompresses more bytes, and reports whether there were any.
func (f *inflater) fill() bool {
	f.r, f.w = 0, 0
	for tries := 0; f.err == nil && f.w == 0; tries++ {
		f.w, f.err = f.z.Read(f.buf)
		if tries == 100 && f.err == nil {
			f.err = io.ErrNoProgress
		}
	}
	return f.w > 0
}

// limit allows n more bytes, for one record, until unlimit.
func (f *inflater) limit(n int64) { f.limited = n }
func (f *inflater) unlimit()      { f.limited = unlimited }

func (f *inflater) varint() (int64, bool) {
	var x uint64
	for s := 0; s < 70 && f.limited > 0; s += 7 {
		if f.r == f.w && !f.fill() {
			break
		}
		c := f.buf[f.r]
		f.r++
		f.limited--
		x |= uint64(c&0x7f) << s
		if c < 0x80 {
			return int64(x>>1) ^ -int64(x&1), true
		}
	}
	return 0, false
}

// read fills b.
func (f *inflater) read(b []byte) bool {
	for len(b) > 0 {
		if f.r == f.w && !f.fill() {
			return false
		}
		n := copy(b, f.buf[f.r:f.w])
		f.r += n
		b = b[n:]
	}
	return true
}

// skip skips n bytes, and writes them to h unless h is nil. It stops early if the context ends.
func (f *inflater) skip(ctx context.Context, n int64, h io.Writer) bool {
	if n < 0 || n > f.limited {
		return false
	}
	f.limited -= n
	for n > 0 {
		if f.r == f.w && (ctx.Err() != nil || !f.fill()) {
			return false
		}
		part := f.buf[f.r:min(f.w, f.r+int(min(n, inflateBuffer)))]
		if h != nil {
			h.Write(part)
		}
		f.r += len(part)
		n -= int64(len(part))
	}
	return true
}

// failure returns the reason why skip returned false.
func (f *inflater) failure(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return ErrDamaged
}

// xerial begins a body of snappy blocks with lengths, as Java writes it; other clients write a single block.
var xerial = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

// snappyFits reports whether all blocks state possible lengths. Three bytes decompress to at most 64, so a larger
// stated length is impossible.
func snappyFits(body []byte) bool {
	fits := func(block []byte) bool {
		n, k := binary.Uvarint(block)
		return k > 0 && n <= 22*uint64(len(block))
	}
	if len(body) < 16 || !bytes.Equal(body[:8], xerial) {
		return fits(body)
	}
	for body = body[16:]; len(body) > 0; {
		if len(body) < 4 {
			return false
		}
		n := int64(binary.BigEndian.Uint32(body))
		if body = body[4:]; n > int64(len(body)) || !fits(body[:n]) {
			return false
		}
		body = body[n:]
	}
	return true
}

// zstdFits reports whether the body consists of whole zstd frames (RFC 8878) with windows of at most maxWindow. If a
// frame's blocks cannot fill its window, zstdFits reduces the window size that the frame states, in place. It does so
// because the highest compression levels ask for 128 MB no matter how little data there is.
func zstdFits(body []byte) bool {
	for len(body) > 0 {
		n := zstdFrame(body)
		if n < 0 {
			return false
		}
		body = body[n:]
	}
	return true
}

// zstdFrame does the work of zstdFits for the first frame. It returns the frame's length, or −1 if the frame is not
// accepted.
func zstdFrame(b []byte) int {
	if len(b) < 8 {
		return -1
	}
	magic := binary.LittleEndian.Uint32(b)
	if magic&^0xf == 0x184d2a50 { // a skippable frame
		if n := 8 + int64(binary.LittleEndian.Uint32(b[4:])); n <= int64(len(b)) {
			return int(n)
		}
		return -1
	}
	if magic != 0xfd2fb528 {
		return -1
	}
	descriptor := b[4]
	single := descriptor&0x20 != 0
	i, at := 5, 5
	window := uint64(0)
	if !single {
		base := uint64(1) << (10 + b[at]>>3)
		window = base + base/8*uint64(b[at]&7)
		i++
	}
	i += []int{0, 1, 2, 4}[descriptor&3] // length of the dictionary id
	size := []int{0, 2, 4, 8}[descriptor>>6]
	if size == 0 && single {
		size = 1
	}
	if i+size > len(b) {
		return -1
	}
	if single {
		var field [8]byte
		copy(field[:], b[i:i+size])
		if window = binary.LittleEndian.Uint64(field[:]); size == 2 {
			window += 256
		}
	}
	i += size
	content := uint64(0) // upper bound on the decompressed size
	for last := false; !last; {
		if i+3 > len(b) {
			return -1
		}
		block := uint(b[i]) | uint(b[i+1])<<8 | uint(b[i+2])<<16
		i += 3
		last = block&1 != 0
		stored := int(block >> 3)
		switch block >> 1 & 3 {
		case 0: // raw
			content += uint64(stored)
		case 1: // one repeated byte
			content += uint64(stored)
			stored = 1
		case 2: // compressed
			content += 128 << 10
		default:
			return -1
		}
		if stored > len(b)-i {
			return -1
		}
		i += stored
	}
	if descriptor&4 != 0 { // checksum
		i += 4
	}
	switch {
	case i > len(b), single && window > content:
		return -1
	case !single && content < window:
		if log := max(bits.Len64(max(content, 1)-1), 10); uint64(1)<<log < window {
			window = 1 << log
			b[at] = byte(log-10) << 3
		}
	}
	if window > maxWindow {
		return -1
	}
	return i
}
