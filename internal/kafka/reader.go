package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// The limits of a fetch.
const (
	DefaultMaxWait           = 500 * time.Millisecond
	DefaultMaxBytes          = 8 << 20
	DefaultPartitionMaxBytes = 4 << 20
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
	// MaxWait is how long the broker may wait for records; default 500 ms.
	MaxWait time.Duration
	// MaxBytes and PartitionMaxBytes bound a response on the wire, where
	// records may be compressed; default 8 MiB and 4 MiB. A batch larger than
	// that is still sent. MaxBytes must be the larger: a response cut by it may
	// lack the list of aborted transactions.
	MaxBytes, PartitionMaxBytes int

	epochGrace time.Duration // tests shorten it
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
// A Reader is not safe for concurrent use. It holds no resources.
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

	// Used again at every fetch.
	ans    answer
	active map[int64]struct{} // producers inside an aborted transaction
}

// NewReader returns a reader that continues at a position.
func (c *Client) NewReader(o ReaderOptions, p Position) (*Reader, error) {
	if o.MaxWait == 0 {
		o.MaxWait = DefaultMaxWait
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.PartitionMaxBytes == 0 {
		o.PartitionMaxBytes = DefaultPartitionMaxBytes
	}
	if o.epochGrace == 0 {
		o.epochGrace = epochGrace
	}
	switch {
	case o.Topic == "":
		return nil, errors.New("kafka reader: no topic is given")
	case o.Partition < 0:
		return nil, fmt.Errorf("kafka reader: partition is %d, must not be negative", o.Partition)
	case o.MaxWait < time.Millisecond || o.MaxWait > time.Minute:
		return nil, fmt.Errorf("kafka reader: max wait is %v, must be in [1ms, 1m]", o.MaxWait)
	case o.PartitionMaxBytes < 1 || o.MaxBytes <= o.PartitionMaxBytes || o.MaxBytes > 1<<30:
		return nil, fmt.Errorf("kafka reader: partition max bytes is %d and max bytes %d, must be positive and in this order", o.PartitionMaxBytes, o.MaxBytes)
	case p.Next < 0:
		return nil, fmt.Errorf("kafka reader: next offset is %d, must not be negative", p.Next)
	case p.Anchor != nil && (p.Anchor.Offset < 0 || p.Anchor.Offset >= p.Next):
		return nil, fmt.Errorf("kafka reader: anchor is at %d, must be in [0, %d)", p.Anchor.Offset, p.Next)
	}
	return &Reader{
		c: c, o: o,
		next: p.Next, epoch: p.LeaderEpoch, anchor: p.Anchor, cluster: o.ClusterID,
		logStart: -1, lastStable: -1, end: -1,
		slack:  fetchSlack,
		active: make(map[int64]struct{}),
	}, nil
}

// Position is where the next fetch continues.
func (r *Reader) Position() Position {
	return Position{Next: r.next, LeaderEpoch: r.epoch, Anchor: r.anchor}
}

// Fetch sends one request and fills the chunk with the answer, which may hold
// no records: at the end of the log it comes after MaxWait. Where the answer
// before it asked for a pause, because of a quota, that comes first. It repeats
// nothing by itself. After an error the chunk is empty and the reader where it was, so
// that a Retriable error is answered by waiting and calling Fetch again. The
// others are terminal: *GapError, *TruncatedError, *ReplacedError, an Error
// that is not retriable, or the context's error.
func (r *Reader) Fetch(ctx context.Context, c *Chunk) error {
	c.reset(r)
	if err := r.patience(ctx); err != nil {
		return err
	}
	plain := r.plain
	r.plain = false // after an error the log must be identified anew
	metaEpoch, err := r.identify(ctx)
	if err != nil {
		return err
	}
	c.LeaderEpoch = r.epoch
	from, limit := r.next, r.o.PartitionMaxBytes
	if r.anchor != nil && !plain {
		from = r.anchor.Offset
		if r.narrow {
			limit = 1 // a whole batch comes in any case
		}
	}
	err = r.c.fetch(ctx, &r.o, from, limit, r.epoch, r.o.MaxWait+r.slack, &r.ans)
	if err != nil {
		var e *Error
		if errors.As(err, &e) && e.kind == kindTimeout {
			r.slack = min(2*r.slack, maxFetchSlack)
		}
		return err
	}
	a := &r.ans
	r.throttled = time.Now().Add(a.throttle)
	if !a.present {
		return r.nothing()
	}
	switch kafkago.Error(a.code) {
	case 0:
		r.behindSince = time.Time{}
	case kafkago.OffsetOutOfRange:
		return r.outOfRange(ctx, c, from)
	case kafkago.UnknownLeaderEpoch:
		return r.behind(metaEpoch)
	default:
		return r.failure(a.code)
	}
	r.logStart, r.lastStable, r.end = a.logStart, a.lastStable, a.end
	c.LogStart, c.LastStable, c.HighWatermark = a.logStart, a.lastStable, a.end
	if a.logStart > r.next {
		return r.gap(c, a.logStart)
	}
	if a.end < r.next {
		// A fetch between the new end and the position gets no error 1. A new
		// leader may also not know yet how far the log is replicated, which
		// ListOffsets says by an error.
		end, err := r.c.listOffset(ctx, r.o.Topic, r.o.Partition, kafkago.LastOffset, false)
		if err != nil {
			return err
		}
		if end < r.next {
			return r.truncated(end)
		}
	}
	w, err := r.walk(c)
	if err != nil {
		c.reset(r)
		return err
	}
	return r.advance(c, from, w)
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
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
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
		for i := range m.Topics[0].Partitions {
			if p := &m.Topics[0].Partitions[i]; p.PartitionIndex == r.o.Partition {
				r.epoch = max(r.epoch, p.LeaderEpoch)
				return p.LeaderEpoch, nil
			}
		}
	}
	return -1, brokerError("metadata", r.o.Topic, r.o.Partition, int16(kafkago.UnknownTopicOrPartition))
}

// walk is what one pass over an answer found.
type walk struct {
	position int64 // after the last offset that is accounted for
	batches  int
	anchored bool // the anchor was met and is unchanged
}

// walk delivers the committed records at or after the position to c.
func (r *Reader) walk(c *Chunk) (walk, error) {
	a := &r.ans
	w := walk{position: r.next, batches: len(a.batches)}
	slices.SortFunc(a.aborted, func(x, y abortedTxn) int { return cmp.Compare(x.first, y.first) })
	aborted := a.aborted
	clear(r.active)
	for i := range a.batches {
		b := &a.batches[i]
		// For markers too: the transaction they end may have no record left in
		// this answer, and would else swallow the producer's next one.
		for len(aborted) > 0 && aborted[0].first <= b.base {
			r.active[aborted[0].producer] = struct{}{}
			aborted = aborted[1:]
		}
		// Batches come in order, so what lies before one has been dealt with.
		w.position = max(w.position, b.base)
		_, drop := r.active[b.producer]
		drop = drop && b.transactional
		for {
			rec, err := b.records.ReadRecord()
			if err == io.EOF {
				break
			}
			if err != nil {
				return w, localError("fetch", r.o.Topic, r.o.Partition, kindProtocol, "record batch could not be decoded")
			}
			offset := rec.Offset
			if r.anchor != nil && offset >= r.anchor.Offset && b.epoch >= 0 && b.epoch < r.anchor.LeaderEpoch {
				return w, r.replaced(EpochWentBack)
			}
			switch {
			case b.control:
				if offset >= r.next {
					w.position = offset + 1
				}
				// Type 0 aborts, 1 commits. A marker ends its producer's
				// transaction either way; only the former ends an aborted one.
				if m, err := protocol.ReadControlRecord(rec); err != nil {
					return w, localError("fetch", r.o.Topic, r.o.Partition, kindProtocol, "transaction marker could not be decoded")
				} else if m.Type == 0 {
					delete(r.active, b.producer)
				}
				continue
			case offset < r.next:
				if r.anchor != nil && offset == r.anchor.Offset {
					same, err := r.matches(c, rec)
					if err != nil {
						return w, err
					}
					if !same || drop {
						return w, r.replaced(AnchorDiffers)
					}
					w.anchored = true
				}
			case !drop:
				if err := c.add(b.epoch, rec); err != nil {
					return w, localError("fetch", r.o.Topic, r.o.Partition, kindProtocol, "record could not be copied")
				}
				w.position = offset + 1
				continue
			default:
				w.position = offset + 1
			}
			closeRecord(rec)
		}
	}
	return w, nil
}

// matches compares the record at the anchor's offset with the anchor.
func (r *Reader) matches(c *Chunk, rec *protocol.Record) (bool, error) {
	key, err := c.copy(rec.Key)
	value, verr := c.copy(rec.Value)
	if err != nil || verr != nil {
		return false, localError("fetch", r.o.Topic, r.o.Partition, kindProtocol, "record could not be copied")
	}
	return HashRecord(rec.Offset, key, value) == r.anchor.Hash, nil
}

func closeRecord(rec *protocol.Record) {
	if rec.Key != nil {
		rec.Key.Close()
	}
	if rec.Value != nil {
		rec.Value.Close()
	}
}

// advance judges what a walk found, and moves the reader.
func (r *Reader) advance(c *Chunk, from int64, w walk) error {
	overlap := from < r.next
	readable := r.ans.lastStable
	if r.o.Uncommitted {
		readable = r.ans.end
	}
	if w.batches == 0 && from < readable {
		return r.nothing()
	}
	r.empties = 0
	if overlap && w.batches > 0 && !w.anchored {
		// The answer begins with the batch that holds, or held, the anchor's
		// offset, so the record is gone.
		if r.ans.logStart <= r.anchor.Offset && !r.o.Compacted {
			c.reset(r)
			return r.replaced(AnchorVanished)
		}
		r.anchor = nil
		c.before, c.after, c.AnchorDropped = nil, nil, true
	}
	if w.position == r.next {
		switch {
		case overlap:
			// Nothing follows, or it did not fit. The log is identified for
			// one fetch from the position itself; until there is another
			// anchor, the first batch is enough for that.
			r.plain, r.narrow = w.anchored, true
		case r.next < readable:
			// A batch that covers the position but holds no record at or
			// after it: the cleaner keeps empty batches, and how far this one
			// reaches is not visible. An answer without any batch proves
			// nothing of the kind, so it does not move the position.
			w.position++
		}
	}
	if n := len(c.Records); n > 0 {
		r.anchor = AnchorOf(&c.Records[n-1])
		c.after = r.anchor
		r.narrow = false
	}
	r.next = w.position
	c.Next = w.position
	return nil
}

// nothing is an answer without data where there is some. From a broker that
// throttles it says only that. One alone is no error either; several in a row
// make the caller wait.
func (r *Reader) nothing() error {
	if r.ans.throttle > 0 {
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
