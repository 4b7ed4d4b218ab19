package kafka

import (
	"io"
	"slices"
	"sort"

	"github.com/segmentio/kafka-go/protocol"
)

// minBuffer is the first buffer of a chunk; it then follows what responses
// need.
const minBuffer = 64 << 10

// Chunk is what one response brought: the committed records at offsets
// [First, Next), and the partition's offsets at that moment. Offsets without a
// record in Records hold none: aborted, a transaction marker, or compacted
// away.
//
// A chunk owns all memory that its records refer to, and is used again and
// again: what it holds is valid until the next Fetch into it.
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
	// AnchorDropped says that retention, or with ReaderOptions.Compacted the
	// cleaner, removed the anchor's record, so that this once the log could
	// not be identified by it.
	AnchorDropped bool

	before, after *Anchor // the reader's anchor at First and at Next

	buf  []byte
	need int // bytes taken since the last reset, in all buffers
	hdrs []Header
}

// Position returns the position at an offset of [First, Next], to be stored
// with the state that the records below it led to. It panics outside, where it
// would pair an offset with a wrong anchor.
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

func (c *Chunk) reset(r *Reader) {
	if c.need > cap(c.buf) {
		c.buf = make([]byte, 0, c.need+c.need/4)
	} else if c.buf == nil {
		c.buf = make([]byte, 0, minBuffer)
	}
	*c = Chunk{
		First: r.next, Next: r.next,
		Records:  c.Records[:0],
		LogStart: r.logStart, LastStable: r.lastStable, HighWatermark: r.end,
		LeaderEpoch: r.epoch,
		before:      r.anchor, after: r.anchor,
		buf:  c.buf[:0],
		hdrs: c.hdrs[:0],
	}
}

// take returns n bytes of the chunk's memory. A buffer that is full is left to
// the records in it, never moved.
func (c *Chunk) take(n int) []byte {
	c.need += n
	if cap(c.buf)-len(c.buf) < n {
		c.buf = make([]byte, 0, max(2*cap(c.buf), n))
	}
	i := len(c.buf)
	c.buf = c.buf[:i+n]
	return c.buf[i : i+n : i+n]
}

// copy takes a key or value over into the chunk and gives kafka-go its page
// back.
func (c *Chunk) copy(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	p := c.take(b.Len())
	_, err := io.ReadFull(b, p)
	b.Close()
	return p, err
}

// headers takes the headers over. kafka-go allocates their bytes for each
// record, so that they may be kept as they are.
func (c *Chunk) headers(h []protocol.Header) []Header {
	if len(h) == 0 {
		return nil
	}
	if cap(c.hdrs)-len(c.hdrs) < len(h) {
		c.hdrs = slices.Grow([]Header(nil), max(2*cap(c.hdrs), len(h)))
	}
	i := len(c.hdrs)
	for _, x := range h {
		c.hdrs = append(c.hdrs, Header(x))
	}
	return c.hdrs[i:len(c.hdrs):len(c.hdrs)]
}

// add copies a record into the chunk.
func (c *Chunk) add(epoch int32, rec *protocol.Record) error {
	key, err := c.copy(rec.Key)
	if err != nil {
		return err
	}
	value, err := c.copy(rec.Value)
	if err != nil {
		return err
	}
	c.Bytes += len(key) + len(value)
	c.Records = append(c.Records, Record{
		Offset: rec.Offset, LeaderEpoch: epoch,
		Key: key, Value: value, Headers: c.headers(rec.Headers),
	})
	return nil
}
