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
	// fetchSlack is added to MaxWait for the answer to arrive. It doubles
	// after a timeout, up to maxFetchSlack, for a slow link must not look like
	// a dead broker for ever.
	fetchSlack    = 10 * time.Second
	maxFetchSlack = 80 * time.Second
	// epochGrace is how long the leader and the metadata must agree on an
	// older leader epoch until it is not a broker that lags behind.
	epochGrace = 30 * time.Second
	// aheadBytes is the size of an answer from which decoding it takes long enough
	// to ask for the next one before.
	aheadBytes = 16 << 10
)

// ReaderOptions say what is read and how.
type ReaderOptions struct {
	// Topic and Partition are what is read. Topic is required.
	Topic     string
	Partition int32
	// ClusterID is the cluster the log was read from before. Empty: whatever
	// cluster the first fetch meets.
	ClusterID string
	// SkipGaps continues at the start of the log where records were deleted
	// before they were read, instead of a GapError.
	SkipGaps bool
	// Compacted tolerates that the cleaner removes the anchor's record.
	Compacted bool
	// Uncommitted delivers the records of open and aborted transactions too.
	Uncommitted bool
	// MaxWait is how long a fetch may wait for records; default 500 ms. It may return
	// without any after 500 ms.
	MaxWait time.Duration
	// MaxBytes and PartitionMaxBytes bound a response on the wire, where
	// records may be compressed; default 8 MiB and 4 MiB. A batch larger than
	// that is still sent. MaxBytes must be the larger: a response cut by it may
	// lack the list of aborted transactions.
	MaxBytes, PartitionMaxBytes int
	// MaxRecordBytes is the size beyond which a record is delivered without its
	// content (Record.TooLarge); default 1 MiB. The size is the sum of key,
	// value and, for each header, name, value and 40 bytes. It is a function of
	// the record alone: neither its batch nor how that is compressed decides.
	MaxRecordBytes int
	// Memory bounds what this reader and others hold. Nil: each holds what the other
	// limits allow. A reader with Memory must be closed.
	Memory *Memory
	// RowBytes is what the caller needs for each record while it has the chunk. It counts
	// towards Memory.
	RowBytes int

	epochGrace time.Duration // tests shorten it
	aheadBytes int           // tests lower it
}

// Reader reads the committed records of one partition in order, and proves at
// each response that the log is the one it has read before.
//
// A fetch begins at the last record that was delivered, the anchor, and not
// after it: the broker must return that record, unchanged. A log that was
// truncated and refilled, re-created, or rewritten shows another record there,
// or none. To this come the cluster id, leader epochs, and both ends of the
// log. Where the answer to a fetch of this kind brought nothing new, the next one
// begins at the position itself ("plain"): there the broker can wait for records,
// and a batch as large as the limit is not returned for ever.
//
// The request for the next answer is on its way while one is decoded: where that
// answer ends is in the headers of its batches. It begins in the last batch with
// records, so that the anchor, once it is known, is among what comes back. Where
// it is not (the batch turns out to be aborted) that answer is not used.
//
// What it holds: two answers; what a codec needs (see package batch); and in each chunk a
// megabyte, one record of MaxRecordBytes, 16 384 Records, and the answer that their
// bytes lie in. No batch asks for more, whatever it decompresses to. ReaderOptions.Memory
// may allow less.
//
// A Reader is not safe for concurrent use. What is under way ends with the context of the
// Fetch that began it. Only a reader with Memory needs to be closed.
type Reader struct {
	c *Client
	o ReaderOptions

	next    int64
	epoch   int32
	anchor  *Anchor
	cluster string
	plain   bool // the next fetch begins at the position
	narrow  bool // the last fetch that began at this anchor found nothing new

	logStart, lastStable, end int64 // of the last answer

	slack       time.Duration
	throttled   time.Time // no request before it
	empties     int       // answers in a row without the data that must exist
	behindSince time.Time // of the first answer in a row with an older epoch

	answers, chunks *share // of Memory; nil: there is no bound

	ahead *ahead // the request for the next answer
	w     walk   // the reading of the last one

	// Used again at every fetch.
	ans answer
}

// NewReader returns a reader that continues at a position.
func (c *Client) NewReader(o ReaderOptions, p Position) (*Reader, error) {
	o.MaxWait = cmp.Or(o.MaxWait, DefaultMaxWait)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	o.PartitionMaxBytes = cmp.Or(o.PartitionMaxBytes, DefaultPartitionMaxBytes)
	o.MaxRecordBytes = cmp.Or(o.MaxRecordBytes, DefaultMaxRecordBytes)
	o.aheadBytes = cmp.Or(o.aheadBytes, aheadBytes)
	o.epochGrace = cmp.Or(o.epochGrace, epochGrace)
	switch {
	case o.Topic == "":
		return nil, errors.New("kafka reader: no topic is given")
	case o.Partition < 0:
		return nil, fmt.Errorf("kafka reader: partition is %d, must not be negative", o.Partition)
	case o.MaxWait < time.Millisecond || o.MaxWait > time.Minute:
		return nil, fmt.Errorf("kafka reader: max wait is %v, must be in [1ms, 1m]", o.MaxWait)
	case o.PartitionMaxBytes < 1 || o.MaxBytes <= o.PartitionMaxBytes || o.MaxBytes > 1<<30:
		return nil,
			fmt.Errorf("kafka reader: partition max bytes is %d and max bytes %d, must be positive and in this order",
				o.PartitionMaxBytes, o.MaxBytes)
	case o.MaxRecordBytes < 1 || o.MaxRecordBytes > 1<<30:
		return nil, fmt.Errorf("kafka reader: max record bytes is %d, must be in [1, 1073741824]", o.MaxRecordBytes)
	case p.Next < 0:
		return nil, fmt.Errorf("kafka reader: next offset is %d, must not be negative", p.Next)
	case p.Anchor != nil && (p.Anchor.Offset < 0 || p.Anchor.Offset >= p.Next):
		return nil, fmt.Errorf("kafka reader: anchor is at %d, must be in [0, %d)", p.Anchor.Offset, p.Next)
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

// Close gives back what the reader holds of its Memory. No Fetch must be under way. Chunks
// that it filled stay as they are until they are released.
func (r *Reader) Close() {
	r.forget()
	r.answers.close()
	r.chunks.close()
}

// Position is where the next fetch continues.
func (r *Reader) Position() Position {
	return Position{Next: r.next, LeaderEpoch: r.epoch, Anchor: r.anchor}
}

// Fetch fills the chunk with the next part of the last answer or, where nothing is
// left of that, with the beginning of a new one, which may hold no records: at the end
// of the log it comes after MaxWait at most. Where the answer before it asked for a pause,
// because of a quota, that comes first. It repeats nothing by itself. After an error
// the chunk is empty and the reader where it was, so that a Retriable error is answered
// by waiting and calling Fetch again. The others are terminal: *GapError,
// *TruncatedError, *ReplacedError, an Error that is not retriable, or the context's
// error.
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

// forget gives up what is under way. After an error the log must be identified
// anew.
func (r *Reader) forget() {
	r.plain = false
	r.w.close()
	r.ans.release()
	r.dropAhead()
}

// ask gets the next answer: the one that was asked for ahead, or by a request now. It
// returns where the request began, and the leader epoch in the metadata at that time.
func (r *Reader) ask(ctx context.Context) (from int64, metaEpoch int32, err error) {
	if from, metaEpoch, ok, err := r.asked(ctx); ok {
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
			limit = 1 // a whole batch comes in any case
		}
	}
	taken := 0
	if r.answers != nil && limit > 1 {
		if r.next >= r.readable() {
			limit = min(limit, r.answers.part()) // it may wait long
		}
		if taken, err = r.answers.wait(ctx, limit); err != nil {
			return 0, 0, err
		}
		limit = taken
	}
	err = r.fetch(ctx, from, limit, taken, r.epoch, r.o.MaxWait+r.slack, &r.ans)
	return from, metaEpoch, r.patient(err)
}

// readable is where the log ended for this reader by the last answer; −1: there was none.
func (r *Reader) readable() int64 {
	if r.o.Uncommitted {
		return r.end
	}
	return r.lastStable
}

// fetch is the client's, for which so many bytes were taken of the reader's share. It
// settles what the answer took in fact.
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

// patient gives the broker more time after it was too slow.
func (r *Reader) patient(err error) error {
	var e *Error
	if errors.As(err, &e) && e.kind == kindTimeout {
		r.slack = min(2*r.slack, maxFetchSlack)
	}
	return err
}

// judge looks at what an answer says beside its records, and reports whether these
// are to be read.
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
		// A fetch between the new end and the position gets no error 1. A new
		// leader may also not know yet how far the log is replicated, which
		// ListOffsets says by an error.
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

// patience waits as long as the last answer asked for. A broker whose quota this
// client exceeds answers at once, without data, and reads no further request
// from the connection until then: a fetch that is sent all the same looks like
// one that gets no answer.
func (r *Reader) patience(ctx context.Context) error {
	wait := time.Until(r.throttled)
	if wait <= 0 {
		return nil
	}
	return sleep(ctx, wait)
}

// identify compares the cluster's id and follows the partition's leader epoch,
// both as the transport last learned them. It returns that epoch.
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

// nothing is an answer without data where there is some. From a broker that
// throttles it says only that. One alone is no error either; several in a row
// make the caller wait.
func (r *Reader) nothing(throttle time.Duration) error {
	if throttle > 0 {
		return nil
	}
	if r.empties++; r.empties < 2 {
		return nil
	}
	return localError("fetch", r.o.Topic, r.o.Partition, kindEmpty, "the broker sent no data, though there is some")
}

// outOfRange finds out which end of the log the fetch missed.
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
		// Retention passed the anchor, but nothing unread.
		r.anchor = nil
		c.before, c.after, c.AnchorDropped = nil, nil, true
		return nil
	}
	return r.failure(int16(kafkago.OffsetOutOfRange)) // the log moved meanwhile
}

// gap ends the stream where records were deleted unread, or skips them.
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

// behind answers a leader that does not know an epoch as new as ours. It may
// lag behind; but if the metadata stays as old, the epoch went back.
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
