package kafka

import (
	"reflect"
	"slices"
	"sort"

	"github.com/streamdp/streamdp/internal/kafka/batch"
	"github.com/streamdp/streamdp/internal/slab"
)

// recordSize is the memory of a Record.
var recordSize = int(reflect.TypeFor[Record]().Size())

// recordSlab is what chunks fill, and give back.
var recordSlab slab.Pool[Record]

// minRecords is the room that a chunk begins with.
const minRecords = 32

// What a chunk takes at a time, beside its last record: records, and bytes for
// those out of compressed batches and for headers. The records of others lie in
// the response's buffer.
const (
	chunkRecords = 16 << 10
	chunkBytes   = 1 << 20
)

// Chunk is a response, or a part of it: the committed records at offsets [First, Next), and
// the partition's offsets at that moment. An offset without a record in Records holds none:
// its record was aborted or compacted away, or it is a transaction marker.
//
// Keys, values and headers are valid until Release or the next Fetch into the same chunk;
// fetches into other chunks do not change them. To keep one longer, copy it. A chunk is used
// many times. What it holds comes from memory that all chunks share, and goes back there.
type Chunk struct {
	First, Next int64
	Records     []Record

	// LogStart, LastStable and HighWatermark are the partition's start, the
	// end of what is decided, and the end of what is replicated; −1 before a
	// response told them.
	LogStart, LastStable, HighWatermark int64
	// LeaderEpoch is the newest leader epoch the reader knows.
	LeaderEpoch int32
	// Bytes is the size of all keys and values in Records. It is a function
	// of private data.
	Bytes int
	// Lost counts offsets of this chunk that had been deleted before they were
	// read (ReaderOptions.SkipGaps).
	Lost int64
	// AnchorDropped says that the anchor's record is gone, so that this once the log could
	// not be identified by it. Retention removed it or, with ReaderOptions.Compacted, the
	// cleaner.
	AnchorDropped bool

	before, after *Anchor // the reader's anchor at First and at Next

	bufs  []*buffer   // of responses with records here
	held  *buffer     // the last of them
	arena batch.Arena // memory for records out of compressed batches
	size  int         // what records took of it, and their headers
	cost  int         // of the records in the memory that is shared
	room  int         // the most that it may be; 0: anything
	share *share      // what it is taken from
	extra int         // of it: for each record, elsewhere
	slab  bool        // Records are of it
	hdrs  []Header
	names map[string]string
}

// Position returns the position at an offset of [First, Next]. Store it together with the
// state after the records below it. It panics for another offset, because the anchor would
// be wrong.
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

// Release gives the chunk's memory back: its records are gone. What else it says stays.
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

// full reports whether the chunk has reached its limits. They bound the memory that a small
// batch can need: a compressed batch of a megabyte can hold gigabytes of records, or a
// hundred million of them.
func (c *Chunk) full() bool {
	return len(c.Records) >= chunkRecords || c.size >= chunkBytes || c.Bytes >= chunkBytes ||
		c.room > 0 && c.cost >= c.room
}

// add delivers a record, which lies in memory of the chunk or in the buffer.
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

// headers decodes a record's headers. Their names are strings of their own, used
// again where they repeat; their values lie where the record does.
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

// name returns b as a string, the same one for the same short name.
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
