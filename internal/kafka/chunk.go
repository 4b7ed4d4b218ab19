package kafka

import (
	"reflect"
	"slices"
	"sort"

	"github.com/streamdp/streamdp/internal/kafka/batch"
	"github.com/streamdp/streamdp/internal/slab"
)

// recordSize is the size of a Record in memory.
var recordSize = int(reflect.TypeFor[Record]().Size())

// recordSlab lends the slices of records that chunks fill.
var recordSlab slab.Pool[Record]

// minRecords is the initial capacity of a chunk.
const minRecords = 32

// chunkRecords and chunkBytes are the limits of a chunk: the number of records, and the number of bytes of headers and
// of records from compressed batches. Other records remain in the response's buffer. Only the last record of a chunk
// may exceed the limits.
const (
	chunkRecords = 16 << 10
	chunkBytes   = 1 << 20
)

// Chunk is a response, or a part of it: the committed records at offsets [First, Next), and the partition's offsets at
// the time of the response. If an offset has no record in Records, its record was aborted or compacted away, or it is a
// transaction marker.
//
// Keys, values and headers are valid until Release or the next Fetch into the same chunk. Fetches into other chunks do
// not change them. Copy what you keep longer. A chunk can be filled many times. Its memory comes from, and returns to,
// pools that all chunks share.
type Chunk struct {
	First, Next int64
	Records     []Record

	// LogStart, LastStable and HighWatermark are the partition's start, the end of complete transactions, and the end
	// of replicated records; −1 before the first response.
	LogStart, LastStable, HighWatermark int64
	// LeaderEpoch is the newest leader epoch that the reader knows.
	LeaderEpoch int32
	// Bytes is the size of all keys and values in Records. It depends on private data.
	Bytes int
	// Lost is the number of offsets in this chunk that were deleted before they were read (ReaderOptions.SkipGaps).
	Lost int64
	// AnchorDropped reports that the anchor's record is gone, so this time the reader could not use it to identify the
	// log. Retention removed the record or, with ReaderOptions.Compacted, the cleaner did.
	AnchorDropped bool

	before, after *Anchor // the reader's anchor at First and at Next

	bufs  []*buffer   // buffers of the responses that contain the records
	held  *buffer     // the last of bufs
	arena batch.Arena // memory for records from compressed batches
	size  int         // number of bytes of arena taken by records, plus the bytes of their headers
	cost  int         // number of bytes of the records that count towards the shared memory
	room  int         // maximum of cost; 0: none
	share *share      // share from which cost is taken
	extra int         // part of cost for each record: the caller's own memory (RowBytes)
	slab  bool        // Records come from recordSlab
	hdrs  []Header
	names map[string]string
}

// Position returns the position at an offset in [First, Next]. Store it together with the state after the records below
// that offset. It panics for other offsets, because the anchor would be wrong.
func (c *Chunk) Position(next int64) Position {
	if next < c.First || next > c.Next {
		panic("kafka: position outside the chunk")
	}
	p := Position{Next: next, LeaderEpoch: c.LeaderEpoch, Anchor: c.before}
	if next == c.Next {
		p.Anchor = c.after
		return p
	}
	if i := sort.Search(len(c.Records), func(i int) bool { return c.Records[i].Offset >= next }); i > 0 {
		p.Anchor = AnchorOf(&c.Records[i-1])
	}
	return p
}

// Release gives the chunk's memory back. Its records must not be used afterwards; the other fields remain.
func (c *Chunk) Release() {
	for i, b := range c.bufs {
		b.release()
		c.bufs[i] = nil
	}
	c.bufs, c.held = c.bufs[:0], nil
	c.arena.Release()
	if c.slab {
		recordSlab.Put(c.Records)
		c.Records, c.slab = nil, false
	}
	c.hdrs = nil
	if c.share != nil {
		c.share.add(-c.room)
		c.share, c.room = nil, 0
	}
	c.cost = 0
}

func (c *Chunk) reset(r *Reader) {
	c.Release()
	*c = Chunk{
		First: r.next, Next: r.next,
		LogStart: r.logStart, LastStable: r.lastStable, HighWatermark: r.end,
		LeaderEpoch: r.epoch,
		before:      r.anchor, after: r.anchor,
		bufs: c.bufs, names: c.names,
	}
}

// full reports whether the chunk has reached its limits. They bound the memory that a small batch can need: a
// compressed batch of a megabyte can contain gigabytes of records, or a hundred million records.
func (c *Chunk) full() bool {
	return len(c.Records) >= chunkRecords || c.size >= chunkBytes || c.Bytes >= chunkBytes ||
		c.room > 0 && c.cost >= c.room
}

// add adds a record, whose bytes are in the chunk's memory or in buf.
func (c *Chunk) add(r *batch.Record, epoch int32, buf *buffer) {
	n := len(c.Records)
	if n == cap(c.Records) {
		c.Records, c.slab = recordSlab.Grow(c.Records, max(n, minRecords)), true
	}
	c.Records = c.Records[:n+1]
	d := &c.Records[n]
	d.Offset, d.LeaderEpoch, d.TooLarge = r.Offset, epoch, r.Large
	d.Key, d.Value, d.Headers, d.sum = r.Key, r.Value, nil, nil
	c.Bytes += len(r.Key) + len(r.Value)
	c.size += r.Taken + batch.HeaderBytes*r.Headers
	c.cost += r.Taken + batch.HeaderBytes*r.Headers + recordSize + c.extra
	if r.Headers > 0 {
		d.Headers = c.headers(r)
	}
	if r.Large {
		sum := r.Hash()
		d.sum = &sum
	} else if buf != nil && buf != c.held {
		c.keep(buf)
	}
}

// keep holds the buffer of a response until the chunk is filled again.
func (c *Chunk) keep(b *buffer) {
	b.hold()
	c.held = b
	c.bufs = append(c.bufs, b)
}

// headers decodes a record's headers. Their names are separate strings, reused when they repeat; their values remain
// where the record is.
func (c *Chunk) headers(r *batch.Record) []Header {
	if cap(c.hdrs)-len(c.hdrs) < r.Headers {
		c.hdrs = slices.Grow([]Header(nil), max(2*cap(c.hdrs), r.Headers))
	}
	first := len(c.hdrs)
	at := 0
	for range r.Headers {
		var name, value []byte
		name, value, at = r.Header(at)
		c.hdrs = append(c.hdrs, Header{c.name(name), value})
	}
	return c.hdrs[first:len(c.hdrs):len(c.hdrs)]
}

// name returns b as a string, and the same string each time for a short name.
func (c *Chunk) name(b []byte) string {
	if s, ok := c.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(b) <= 64 && len(c.names) < 256 {
		if c.names == nil {
			c.names = make(map[string]string)
		}
		c.names[s] = s
	}
	return s
}
