package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/streamdp/streamdp/internal/kafka/batch"
)

// The limits of a fetch.
const (
	DefaultMaxWait           = 500 * time.Millisecond
	DefaultMaxBytes          = 8 << 20
	DefaultPartitionMaxBytes = 4 << 20
	DefaultMaxRecordBytes    = 1 << 20
)

const (
	// fetchSlack is the time for the answer to arrive, in addition to MaxWait. It doubles after a timeout, up to
	// maxFetchSlack, so that a slow link is not permanently treated as a dead broker.
	fetchSlack    = 10 * time.Second
	maxFetchSlack = 80 * time.Second
	// epochGrace is the time for which the leader and the metadata must agree on an older leader epoch. Before that, a
	// broker may just lag behind; after it, the older epoch counts as proof that the log was replaced.
	epochGrace = 30 * time.Second
	// aheadBytes is the size of an answer from which the next request is sent before the answer is decoded. Decoding a
	// smaller answer takes too little time.
	aheadBytes = 16 << 10
)

// ReaderOptions select the log of a Reader and how it is read.
type ReaderOptions struct {
	// Topic and Partition select the log. Topic is required.
	Topic     string
	Partition int32
	// ClusterID is the id of the cluster from which the log was read before. Empty: the cluster that the first fetch
	// reaches.
	ClusterID string
	// SkipGaps makes the reader continue at the start of the log, instead of returning a GapError, if records were
	// deleted before they were read.
	SkipGaps bool
	// Compacted allows the log cleaner to remove the anchor's record.
	Compacted bool
	// Uncommitted makes the reader deliver the records of open and aborted transactions too.
	Uncommitted bool
	// MaxWait is how long a fetch may wait for records; default 500 ms. A fetch may return without records after 500
	// ms.
	MaxWait time.Duration
	// MaxBytes and PartitionMaxBytes limit the size of a response as it is transmitted, with records possibly
	// compressed; defaults 8 MiB and 4 MiB. A single larger batch is still sent. MaxBytes must be greater than
	// PartitionMaxBytes, because a response that MaxBytes cuts off may not have the list of aborted transactions.
	MaxBytes, PartitionMaxBytes int
	// MaxRecordBytes is the size above which a record is delivered without its content (Record.TooLarge); default 1
	// MiB. The size is the sum of the lengths of key, value and, for each header, name, value and 40 bytes. It depends
	// on the record alone, not on its batch or compression.
	MaxRecordBytes int
	// Memory limits the memory that this reader and others hold together. nil: only the other limits apply. A reader
	// with Memory must be closed.
	Memory *Memory
	// RowBytes is the caller's own memory for each record while it holds the chunk. It counts towards Memory.
	RowBytes int

	epochGrace time.Duration // tests shorten it
	aheadBytes int           // tests lower it
}

// Reader reads the committed records of one partition in order. With each response it checks that the log is the one
// that it read before.
//
// The last record that was delivered is the anchor. A fetch begins at the anchor, not after it, and the broker must
// return that record unchanged. If a log was truncated and refilled, re-created, or rewritten, the broker returns
// another record at that offset, or none. The reader also checks the cluster id, leader epochs, and both ends of the
// log. If a fetch at the anchor returned nothing new, the next one begins after the anchor ("plain"): the broker can
// then wait for records, and does not return a batch as large as the limit again and again.
//
// The request for the next answer is sent before an answer is decoded, because the headers of the batches already show
// where the answer ends. This request begins in the last batch with records, so that its answer includes the next
// anchor. If the anchor turns out to be elsewhere, because the batch was aborted, the answer to this request is not
// used.
//
// A Reader holds at most two answers; the memory that a codec needs (see package batch); and for each chunk one
// megabyte, one record of MaxRecordBytes, 16 384 Records, and the answer that contains their bytes. No batch needs
// more, whatever its decompressed size is. ReaderOptions.Memory may allow less.
//
// A Reader is not safe for concurrent use. A request in progress ends with the context of the Fetch that began it. Only
// a reader with Memory must be closed.
type Reader struct {
	c *Client
	o ReaderOptions

	next    int64
	epoch   int32
	anchor  *Anchor
	cluster string
	plain   bool // the next fetch begins at the position, not at the anchor
	narrow  bool // the last fetch that began at this anchor found nothing new

	logStart, lastStable, end int64 // offsets of the log, as of the last answer

	slack       time.Duration
	throttled   time.Time // no request is sent before this time
	empties     int       // number of consecutive answers without data although there must be some
	behindSince time.Time // time of the first of consecutive answers with an older epoch

	answers, chunks *share // parts of Memory; nil: unbounded

	ahead *ahead // the request for the next answer
	w     walk   // state of reading the last answer

	// These are reused in every fetch.
	ans answer
}

// NewReader returns a reader that continues at position p.
func (c *Client) NewReader(o ReaderOptions, p Position) (*Reader, error) {
	o.MaxWait = cmp.Or(o.MaxWait, DefaultMaxWait)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	o.PartitionMaxBytes = cmp.Or(o.PartitionMaxBytes, DefaultPartitionMaxBytes)
	o.MaxRecordBytes = cmp.Or(o.MaxRecordBytes, DefaultMaxRecordBytes)
	o.aheadBytes = cmp.Or(o.aheadBytes, aheadBytes)
	o.epochGrace = cmp.Or(o.epochGrace, epochGrace)
	switch {
	case o.Topic == "":
		return nil, errors.New("kafka reader: no topic is set")
	case o.Partition < 0:
		return nil, fmt.Errorf("kafka reader: partition is %d, must not be negative", o.Partition)
	case o.MaxWait < time.Millisecond || o.MaxWait > time.Minute:
		return nil, fmt.Errorf("kafka reader: max wait is %v, must be in [1ms, 1m]", o.MaxWait)
	case o.PartitionMaxBytes < 1 || o.MaxBytes <= o.PartitionMaxBytes || o.MaxBytes > 1<<30:
		return nil,
			fmt.Errorf("kafka reader: partition max bytes is %d and max bytes is %d, must be positive, and the first "+
				"at most the second",
				o.PartitionMaxBytes, o.MaxBytes)
	case o.MaxRecordBytes < 1 || o.MaxRecordBytes > 1<<30:
		return nil, fmt.Errorf("kafka reader: max record bytes is %d, must be in [1, 1073741824]", o.MaxRecordBytes)
	case p.Next < 0:
		return nil, fmt.Errorf("kafka reader: next offset is %d, must not be negative", p.Next)
	case p.Anchor != nil && (p.Anchor.Offset < 0 || p.Anchor.Offset >= p.Next):
		return nil, fmt.Errorf("kafka reader: the anchor's offset is %d, must be in [0, %d)", p.Anchor.Offset, p.Next)
	}
	r := &Reader{
		c: c, o: o,
		next: p.Next, epoch: p.LeaderEpoch, anchor: p.Anchor, cluster: o.ClusterID,
		logStart: -1, lastStable: -1, end: -1,
		slack: fetchSlack,
		w:     walk{b: batch.Reader{Codec: decompress}, active: make(map[int64]struct{})},
	}
	r.answers, r.chunks = o.Memory.share()
	return r, nil
}

// Close gives the reader's part of its Memory back. Do not call it during a Fetch. Filled chunks stay valid until they
// are released.
func (r *Reader) Close() {
	r.forget()
	r.answers.close()
	r.chunks.close()
}

// Position returns the position at which the next fetch continues.
func (r *Reader) Position() Position {
	return Position{Next: r.next, LeaderEpoch: r.epoch, Anchor: r.anchor}
}

// Fetch fills the chunk with the next part of the last answer. If nothing of the answer is left, Fetch gets a new
// answer. At the end of the log the new answer comes after at most MaxWait, and may have no records. If the last answer
// asked for a pause because of a quota, Fetch waits first. It does not retry by itself. After an error the chunk is
// empty and the reader unchanged, so if the error is Retriable, wait and call Fetch again. All other errors are final:
// *GapError, *TruncatedError, *ReplacedError, an Error that is not retriable, or the context's error.
func (r *Reader) Fetch(ctx context.Context, c *Chunk) error {
	c.reset(r)
	err := r.fill(ctx, c)
	if err != nil {
		r.forget()
		c.reset(r)
	}
	c.LeaderEpoch = r.epoch
	return err
}

func (r *Reader) fill(ctx context.Context, c *Chunk) error {
	if r.w.open {
		err := r.part(ctx, c)
		if err != nil || r.w.open || c.Next > c.First || c.AnchorDropped {
			return err
		}
	}
	from, metaEpoch, err := r.ask(ctx)
	if err != nil {
		return err
	}
	records, err := r.judge(ctx, c, from, metaEpoch)
	if err != nil || !records {
		r.ans.release()
		return err
	}
	r.beginWalk(from)
	r.lookAhead(ctx)
	return r.part(ctx, c)
}

// forget drops requests and answers in progress. It is called after an error, because the log must then be identified
// again.
func (r *Reader) forget() {
	r.plain = false
	r.w.close()
	r.ans.release()
	r.dropAhead()
}

// ask gets the next answer: from the request that was sent ahead, or by sending a request now. It returns the offset at
// which the request began, and the leader epoch in the metadata at that time.
func (r *Reader) ask(ctx context.Context) (from int64, metaEpoch int32, err error) {
	if from, metaEpoch, ok, err := r.awaitAhead(ctx); ok {
		return from, metaEpoch, err
	}
	if err := r.patience(ctx); err != nil {
		return 0, 0, err
	}
	plain := r.plain
	r.plain = false
	if metaEpoch, err = r.identify(ctx); err != nil {
		return 0, 0, err
	}
	from, limit := r.next, r.o.PartitionMaxBytes
	if r.anchor != nil && !plain {
		from = r.anchor.Offset
		if r.narrow {
			limit = 1 // the broker sends at least one whole batch
		}
	}
	taken := 0
	if r.answers != nil && limit > 1 {
		if r.next >= r.readable() {
			limit = min(limit, r.answers.part()) // the request may wait long
		}
		if taken, err = r.answers.wait(ctx, limit); err != nil {
			return 0, 0, err
		}
		limit = taken
	}
	err = r.fetch(ctx, from, limit, taken, r.epoch, r.o.MaxWait+r.slack, &r.ans)
	return from, metaEpoch, r.patient(err)
}

// readable returns the end of the log for this reader as of the last answer, −1 before the first one.
func (r *Reader) readable() int64 {
	if r.o.Uncommitted {
		return r.end
	}
	return r.lastStable
}

// fetch calls the client's fetch. The caller has taken `taken` bytes from the reader's share for the answer; fetch
// corrects this number to the actual size.
func (r *Reader) fetch(ctx context.Context, from int64, limit, taken int, epoch int32, timeout time.Duration,
	a *answer) error {
	err := r.c.fetch(ctx, &r.o, from, limit, epoch, timeout, a)
	if r.answers == nil {
		return err
	}
	if b := a.records; err == nil && b != nil {
		b.share, b.charged = r.answers, cap(b.b)
		taken -= cap(b.b)
	}
	r.answers.add(-taken)
	return err
}

// patient allows the broker more time after a timeout.
func (r *Reader) patient(err error) error {
	var e *Error
	if errors.As(err, &e) && e.kind == kindTimeout {
		r.slack = min(2*r.slack, maxFetchSlack)
	}
	return err
}

// judge checks everything in an answer except its records, and reports whether the records should be read.
func (r *Reader) judge(ctx context.Context, c *Chunk, from int64, metaEpoch int32) (bool, error) {
	a := &r.ans
	r.throttled = time.Now().Add(a.throttle)
	if !a.present {
		return false, r.nothing(a.throttle)
	}
	switch kafkago.Error(a.code) {
	case 0:
		r.behindSince = time.Time{}
	case kafkago.OffsetOutOfRange:
		return false, r.outOfRange(ctx, c, from)
	case kafkago.UnknownLeaderEpoch:
		return false, r.behind(metaEpoch)
	default:
		return false, r.failure(a.code)
	}
	r.logStart, r.lastStable, r.end = a.logStart, a.lastStable, a.end
	c.LogStart, c.LastStable, c.HighWatermark = a.logStart, a.lastStable, a.end
	if a.logStart > r.next {
		return false, r.gap(c, a.logStart)
	}
	if a.end < r.next {
		// A fetch between the new end and the position does not return error 1 (OffsetOutOfRange). A new leader may
		// also not know yet how far the log is replicated; ListOffsets then returns an error.
		end, err := r.c.listOffset(ctx, r.o.Topic, r.o.Partition, kafkago.LastOffset, false)
		if err != nil {
			return false, err
		}
		if end < r.next {
			return false, r.truncated(end)
		}
	}
	return true, nil
}

// patience waits for the pause that the last answer asked for. If this client exceeds its quota, a broker answers at
// once, without data, and reads no further request from the connection until the pause is over. A fetch sent earlier
// would look like one that gets no answer.
func (r *Reader) patience(ctx context.Context) error {
	wait := time.Until(r.throttled)
	if wait <= 0 {
		return nil
	}
	return sleep(ctx, wait)
}

// identify checks the cluster id and updates the partition's leader epoch, both from the metadata that the transport
// received last. It returns that epoch.
func (r *Reader) identify(ctx context.Context) (int32, error) {
	m, err := r.c.metadata(ctx, r.o.Topic)
	if err != nil {
		return -1, err
	}
	if m.ClusterID != "" {
		if r.cluster == "" {
			r.cluster = m.ClusterID
		}
		if m.ClusterID != r.cluster {
			return -1, r.replaced(ClusterChanged)
		}
	}
	if len(m.Topics) == 1 {
		if code := m.Topics[0].ErrorCode; code != 0 {
			if kafkago.Error(code) == kafkago.UnknownTopicOrPartition {
				if err := r.c.hidden(ctx, r.o.Topic); err != nil {
					return -1, err
				}
			}
			return -1, brokerError("metadata", r.o.Topic, -1, code)
		}
		if p := partitionIn(&m.Topics[0], r.o.Partition); p != nil {
			r.epoch = max(r.epoch, p.LeaderEpoch)
			return p.LeaderEpoch, nil
		}
	}
	return -1, brokerError("metadata", r.o.Topic, r.o.Partition, int16(kafkago.UnknownTopicOrPartition))
}

// nothing handles an answer without data although the log has some. If the broker throttles this client, throttling is
// the reason. Otherwise the first such answer is no error, but after several in a row nothing returns an error, so that
// the caller waits.
func (r *Reader) nothing(throttle time.Duration) error {
	if throttle > 0 {
		return nil
	}
	if r.empties++; r.empties < 2 {
		return nil
	}
	return localError("fetch", r.o.Topic, r.o.Partition, kindEmpty, "the broker sent no data, although the log has "+
		"some")
}

// outOfRange finds out at which end of the log the fetch was out of range.
func (r *Reader) outOfRange(ctx context.Context, c *Chunk, from int64) error {
	start, err := r.c.listOffset(ctx, r.o.Topic, r.o.Partition, kafkago.FirstOffset, false)
	if err != nil {
		return err
	}
	end, err := r.c.listOffset(ctx, r.o.Topic, r.o.Partition, kafkago.LastOffset, false)
	if err != nil {
		return err
	}
	switch {
	case end < r.next:
		return r.truncated(end)
	case start > r.next:
		return r.gap(c, start)
	case start > from:
		// Retention deleted the anchor, but no unread record.
		r.anchor = nil
		c.before, c.after, c.AnchorDropped = nil, nil, true
		return nil
	}
	return r.failure(int16(kafkago.OffsetOutOfRange)) // the log changed meanwhile
}

// gap returns the error for unread records that were deleted, or skips them.
func (r *Reader) gap(c *Chunk, start int64) error {
	if !r.o.SkipGaps {
		return &GapError{Topic: r.o.Topic, Partition: r.o.Partition, LogStart: start, Next: r.next}
	}
	c.Lost = start - r.next
	c.AnchorDropped = r.anchor != nil
	r.anchor = nil
	c.before, c.after = nil, nil
	r.next, r.logStart = start, start
	c.Next, c.LogStart = start, start
	return nil
}

// behind handles a leader whose leader epoch is older than the reader's. The broker may just lag behind. But if the
// metadata also has the older epoch for epochGrace, the epoch went back.
func (r *Reader) behind(metaEpoch int32) error {
	switch now := time.Now(); {
	case metaEpoch >= r.epoch:
		r.behindSince = time.Time{}
	case r.behindSince.IsZero():
		r.behindSince = now
	case now.Sub(r.behindSince) >= r.o.epochGrace:
		return r.replaced(EpochWentBack)
	}
	return r.failure(int16(kafkago.UnknownLeaderEpoch))
}

func (r *Reader) failure(code int16) error {
	return brokerError("fetch", r.o.Topic, r.o.Partition, code)
}

func (r *Reader) truncated(end int64) error {
	return &TruncatedError{Topic: r.o.Topic, Partition: r.o.Partition, LogEnd: end, Next: r.next}
}

func (r *Reader) replaced(e Evidence) error {
	return &ReplacedError{Topic: r.o.Topic, Partition: r.o.Partition, Next: r.next, Evidence: e}
}
