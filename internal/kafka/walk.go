package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/streamdp/streamdp/internal/kafka/batch"
)

// walk is the reading of one answer, which may fill several chunks.
type walk struct {
	open bool
	answer
	rest []byte // of the record set: not looked at yet
	b    batch.Reader
	msg  oldRecords // of a message of the formats before batches, in place of b
	r    batch.Record

	from, began int64   // where the request began, and where the reader was
	anchor      *Anchor // the reader's, then
	seeking     bool    // the anchor must be in the answer and has not been met
	anchored    bool    // it has, unchanged
	dropped     bool    // it is gone, and may be: the reader gives it up
	position    int64   // after the last offset that is accounted for
	batches     int
	old         bool // there are messages of the formats before batches

	pending []abortedTxn       // that begin at or after the batch
	active  map[int64]struct{} // producers inside an aborted transaction
	drop    bool               // the batch belongs to one
	stale   bool               // the batch's leader epoch is older than the anchor's
}

func (w *walk) close() {
	if w.open {
		w.closeBatch()
		w.open = false
	}
	w.release()
	w.rest, w.anchor = nil, nil
}

// closeBatch ends reading the batch or message.
func (w *walk) closeBatch() {
	w.b.Close()
	w.msg.close()
}

// beginWalk starts reading the answer, whose records are now the walk's.
func (r *Reader) beginWalk(from int64) {
	w := &r.w
	*w = walk{
		open: true, answer: r.ans,
		from: from, began: r.next, anchor: r.anchor, position: r.next,
		seeking: from < r.next,
		active:  w.active, b: w.b,
	}
	r.ans.records = nil
	if w.records != nil {
		w.rest = w.records.b
	}
	slices.SortFunc(w.aborted, func(x, y abortedTxn) int { return cmp.Compare(x.first, y.first) })
	w.pending = w.aborted
	clear(w.active)
}

// part delivers the answer's next records to c, as many as it takes, and moves the
// reader. At the end of the answer the walk is closed.
func (r *Reader) part(ctx context.Context, c *Chunk) error {
	w := &r.w
	if r.chunks != nil && c.share == nil {
		room, err := r.chunks.wait(ctx, chunkRecords*(recordSize+r.o.RowBytes)+chunkBytes)
		if err != nil {
			return err
		}
		c.share, c.room, c.extra = r.chunks, room, r.o.RowBytes
	}
	full, err := r.walk(ctx, c)
	if c.share != nil {
		c.share.add(c.cost - c.room) // one record may have been too many
		if c.room = c.cost; c.cost == 0 {
			c.share = nil
		}
	}
	switch {
	case err != nil:
		// What came before the damage counts. The next answer begins with it,
		// unless it is whole then.
		if w.position == r.next || !errors.As(err, new(*Error)) {
			return err
		}
		r.dropAhead()
		w.close()
	case !full:
		if err := r.finish(); err != nil {
			return err
		}
		w.close()
	}
	if w.dropped {
		w.dropped = false
		r.anchor = nil
		c.before, c.AnchorDropped = nil, true
	}
	if n := len(c.Records); n > 0 {
		r.anchor = AnchorOf(&c.Records[n-1])
		r.narrow = false
	}
	c.after = r.anchor
	r.next = w.position
	c.Next = w.position
	return nil
}

// walk delivers the committed records at or after the position to c, until it is
// full.
func (r *Reader) walk(ctx context.Context, c *Chunk) (full bool, err error) {
	w := &r.w
	for {
		if !w.b.Open() && !w.msg.reading {
			if more, err := r.nextBatch(); !more || err != nil {
				return false, err
			}
		}
		for {
			if c.full() {
				return true, nil
			}
			var more bool
			if w.msg.reading {
				more, err = w.msg.next(&c.arena, &w.r)
			} else {
				more, err = w.b.Next(ctx, &c.arena, &w.r)
			}
			if err != nil {
				return false, r.undecoded(err)
			}
			if !more {
				break
			}
			kept, err := r.record(c)
			if err != nil {
				return false, err
			}
			if !kept {
				c.arena.GiveBack(w.r.Taken)
			}
		}
		// Its end covers offsets whose records the cleaner removed. Messages of
		// older formats do not say how far they reach.
		w.position = max(w.position, w.b.End)
		w.closeBatch()
	}
}

// nextBatch goes on to the next batch with records that matter.
func (r *Reader) nextBatch() (bool, error) {
	w := &r.w
	for {
		raw, rest, err := batch.Cut(w.rest)
		if raw == nil {
			return false, r.undecoded(err)
		}
		w.rest = rest
		if batch.Old(raw) {
			w.batches, w.old, w.drop, w.stale = w.batches+1, true, false, false
			// What it says of offsets is known when its records are read.
			w.b.Header = batch.Header{Base: -1, Epoch: -1, Producer: -1}
			return true, r.undecoded(w.msg.open(raw, r.o.MaxRecordBytes))
		}
		if err := batch.Check(raw); err != nil {
			return false, r.undecoded(err)
		}
		last := w.b.End
		if err := w.b.Parse(raw); err != nil || w.batches > 0 && !w.old && w.b.Base < last {
			return false, r.undecoded(batch.ErrDamaged)
		}
		w.batches++
		needed, err := r.enter(&w.b.Header)
		if err != nil {
			return false, err
		}
		if needed {
			limit := r.o.MaxRecordBytes
			if w.b.Control() {
				limit = DefaultMaxRecordBytes // brokers write them
			}
			return true, r.undecoded(w.b.Begin(raw, limit))
		}
		w.position = max(w.position, w.b.End)
	}
}

// enter takes note of a batch, and reports whether its records must be read.
func (r *Reader) enter(h *batch.Header) (bool, error) {
	w := &r.w
	// For markers too: the transaction they end may have no record left in
	// this answer, and would else swallow the producer's next one.
	for len(w.pending) > 0 && w.pending[0].first <= h.Base {
		w.active[w.pending[0].producer] = struct{}{}
		w.pending = w.pending[1:]
	}
	_, w.drop = w.active[h.Producer]
	w.drop = w.drop && h.Transactional()
	w.stale = w.anchor != nil && h.Epoch >= 0 && h.Epoch < w.anchor.LeaderEpoch
	if w.seeking && h.Base > w.anchor.Offset {
		if err := r.vanished(); err != nil {
			return false, err
		}
	}
	switch {
	case h.Control(), w.stale, w.seeking && h.End > w.anchor.Offset:
		return true, nil
	}
	return !w.drop && h.End > w.position, nil
}

// record deals with one record, and reports whether the chunk has it now.
func (r *Reader) record(c *Chunk) (bool, error) {
	w, offset := &r.w, r.w.r.Offset
	if w.stale && offset >= w.anchor.Offset {
		return false, r.replaced(EpochWentBack)
	}
	if w.b.Control() {
		// Type 0 aborts, 1 commits. A marker ends its producer's transaction
		// either way; only the former ends an aborted one.
		if len(w.r.Key) != 4 {
			return false, localError("fetch", r.o.Topic, r.o.Partition, kindProtocol,
				"transaction marker could not be decoded")
		}
		if w.r.Key[2] == 0 && w.r.Key[3] == 0 {
			delete(w.active, w.b.Producer)
		}
		w.position = max(w.position, offset+1)
		return false, nil
	}
	if w.seeking {
		switch {
		case offset == w.anchor.Offset:
			if w.r.Hash() != w.anchor.Hash || w.drop {
				return false, r.replaced(AnchorDiffers)
			}
			w.seeking, w.anchored = false, true
		case offset > w.anchor.Offset:
			if err := r.vanished(); err != nil {
				return false, err
			}
		}
	}
	if offset < w.position {
		return false, nil
	}
	w.position = offset + 1
	if w.drop {
		return false, nil
	}
	buf := w.records
	if w.msg.reading {
		buf = nil // its records are copies
	}
	c.add(&w.r, w.b.Epoch, buf)
	return true, nil
}

// vanished deals with an anchor that is not where it was: the answer begins with the
// batch that holds, or held, its offset.
func (r *Reader) vanished() error {
	w := &r.w
	if w.logStart <= w.anchor.Offset && !r.o.Compacted {
		return r.replaced(AnchorVanished)
	}
	w.seeking, w.dropped = false, true
	return nil
}

// finish judges a whole answer.
func (r *Reader) finish() error {
	w := &r.w
	readable := w.lastStable
	if r.o.Uncommitted {
		readable = w.end
	}
	overlap := w.from < w.began
	// Batches of format 2 say how far they reach, so one that covers the position
	// moves it.
	if w.batches == 0 && w.from < readable ||
		!overlap && !w.old && w.position == w.began && w.began < readable {
		return r.nothing(w.throttle)
	}
	r.empties = 0
	if w.seeking && w.batches > 0 {
		if err := r.vanished(); err != nil {
			return err
		}
	}
	if w.position == w.began {
		switch {
		case overlap:
			// Nothing follows, or it did not fit. The log is identified for
			// one fetch from the position itself; until there is another
			// anchor, the first batch is enough for that.
			r.plain, r.narrow = w.anchored, true
		case w.began < readable:
			// A message of an older format that covers the position but holds
			// no record at or after it: the cleaner keeps such, and how far
			// this one reaches is not visible. An answer without any message
			// proves nothing of the kind, so it does not move the position.
			w.position++
		}
	}
	return nil
}

// undecoded is what a caller hears of records that make no sense: nothing of their
// content.
func (r *Reader) undecoded(err error) error {
	switch err {
	case batch.ErrChecksum, batch.ErrDamaged, errOld:
		return localError("fetch", r.o.Topic, r.o.Partition, kindProtocol, err.Error())
	}
	return err
}
