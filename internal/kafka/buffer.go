package kafka

import (
	"encoding/binary"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// buffer is the memory into which a response was read. The reader holds the buffer until it has decoded the response. A
// chunk whose records are in the buffer holds it until the chunk is filled again. When the last holder releases the
// buffer, it is reused.
type buffer struct {
	b    []byte // the response's record set; its capacity is a power of two
	refs atomic.Int32

	share   *share // share from which the memory was taken
	charged int
}

// Buffers of 2^minClass to 2^maxClass bytes are reused. Larger ones, for batches that no limit of a fetch can split,
// are left to the garbage collector.
const (
	minClass = 12
	maxClass = 25
)

var buffers [maxClass + 1]sync.Pool

// onRelease is called with the memory of every buffer that is given back; only tests set it.
var onRelease func([]byte)

// newBuffer returns an empty buffer with room for n bytes and one holder.
func newBuffer(n int) *buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), minClass)
	if class <= maxClass {
		if b, ok := buffers[class].Get().(*buffer); ok {
			b.b = b.b[:0]
			b.refs.Store(1)
			return b
		}
	}
	b := &buffer{b: make([]byte, 0, 1<<class)}
	b.refs.Store(1)
	return b
}

func (b *buffer) hold() { b.refs.Add(1) }

func (b *buffer) release() {
	if b.refs.Add(-1) > 0 {
		return
	}
	if onRelease != nil {
		onRelease(b.b)
	}
	if b.share != nil {
		b.share.add(-b.charged)
		b.share, b.charged = nil, 0
	}
	if class := bits.Len(uint(cap(b.b) - 1)); class <= maxClass {
		buffers[class].Put(b)
	}
}

// fetchResponse is fetch.Response with the record set as raw bytes. kafka-go would decode a record set byte by byte
// while reading it, and decompress it without a memory limit.
//
// It is registered as the response to every fetch of the process. kafka-go's Reader, ConsumerGroup and Client.Fetch
// expect their own type, and would panic; this package uses none of them, and no other package imports kafka-go.
type fetchResponse struct {
	ThrottleTimeMs int32        `kafka:"min=v1,max=v11"`
	ErrorCode      int16        `kafka:"min=v7,max=v11"`
	SessionID      int32        `kafka:"min=v7,max=v11"`
	Topics         []fetchTopic `kafka:"min=v0,max=v11"`
}

func (*fetchResponse) ApiKey() protocol.ApiKey { return protocol.Fetch }

type fetchTopic struct {
	Topic      string           `kafka:"min=v0,max=v11"`
	Partitions []fetchPartition `kafka:"min=v0,max=v11"`
}

type fetchPartition struct {
	Partition            int32                       `kafka:"min=v0,max=v11"`
	ErrorCode            int16                       `kafka:"min=v0,max=v11"`
	HighWatermark        int64                       `kafka:"min=v0,max=v11"`
	LastStableOffset     int64                       `kafka:"min=v4,max=v11"`
	LogStartOffset       int64                       `kafka:"min=v5,max=v11"`
	AbortedTransactions  []fetch.ResponseTransaction `kafka:"min=v4,max=v11"`
	PreferredReadReplica int32                       `kafka:"min=v11,max=v11"`
	RecordSet            rawRecords                  `kafka:"min=v0,max=v11"`
}

// protocol/fetch registers its own type when it is initialized, which is before this package.
func init() { protocol.Register(&fetch.Request{}, &fetchResponse{}) }

// rawRecords is a record set as transmitted, without its length.
type rawRecords struct{ buf *buffer } // nil: none

// trusted is the largest buffer that is allocated only because a length field says so, before any of the bytes have
// arrived.
const trusted = 8 << 20

// ReadFrom reads the length of a record set and its bytes. kafka-go calls it at the place of the record set in a
// response.
func (s *rawRecords) ReadFrom(r io.Reader) (int64, error) {
	var head [4]byte
	n, err := io.ReadFull(r, head[:])
	size := int(int32(binary.BigEndian.Uint32(head[:])))
	if err != nil || size <= 0 {
		return int64(n), err
	}
	b := newBuffer(min(size, trusted))
	for {
		read := len(b.b)
		b.b = b.b[:min(size, cap(b.b))]
		k, err := io.ReadFull(r, b.b[read:])
		if read += k; err != nil {
			b.release()
			return int64(n + read), err
		}
		if read == size {
			s.buf = b
			return int64(n + read), nil
		}
		larger := newBuffer(min(size, 2*cap(b.b)))
		larger.b = append(larger.b, b.b...)
		b.release()
		b = larger
	}
}
