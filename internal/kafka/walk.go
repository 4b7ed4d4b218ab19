package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/streamdp/streamdp/internal/kafka/batch"
)

// walk is the state of reading one answer, which may fill several chunks.
type walk struct {
	open bool
	answer
	rest []byte // rest of the record set, not read yet
	b    batch.Reader
	msg  oldRecords // a message in a format before batches, used instead of b
	r    batch.Record

	from, began int64   // offset at which the request began, and the reader's position at that time
	anchor      *Anchor // the reader's anchor when the request began
	seeking     bool    // the anchor must be in the answer and has not been found yet
	anchored    bool    // the anchor was found unchanged
	dropped     bool    // the anchor is legitimately gone, so the reader drops it
	position    int64   // offset after the last one that was processed
	batches     int
	old         bool // the answer has messages in formats before batches

	pending []abortedTxn       // aborted transactions that begin at or after the batch
	active  map[int64]struct{} // producers inside an aborted transaction
	drop    bool               // the batch belongs to an aborted transaction
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

// closeBatch stops reading the current batch or message.
func (w *walk) closeBatch() {
	w.b.Close()
	w.msg.close()
}

// beginWalk starts reading the answer and takes over its records.
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

// part delivers the answer's next records to c, as many as fit, and advances the reader. At the end of the answer it
// closes the walk.
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
		c.share.add(c.cost - c.room) // the last record may exceed c.room
		if c.room = c.cost; c.cost == 0 {
			c.share = nil
		}
	}
	switch {
	case err != nil:
		// Records before the damage are delivered. The next fetch then begins at the damaged batch, and returns the
		// error again unless the batch is intact by then.
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

// walk delivers the committed records from the position on to c, until c is full.
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
		// A batch's end covers offsets of records that the cleaner removed. Messages of older formats do not state
		// their end.
		w.position = max(w.position, w.b.End)
		w.closeBatch()
	}
}

// nextBatch advances to the next batch with relevant records.
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
			// The offsets of an old message are known only when its records are read.
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
				limit = DefaultMaxRecordBytes // markers are written by brokers
			}
			return true, r.undecoded(w.b.Begin(raw, limit))
		}
		w.position = max(w.position, w.b.End)
	}
}

// enter processes a batch's header, and reports whether its records must be read.
func (r *Reader) enter(h *batch.Header) (bool, error) {
	w := &r.w
	// This is done for markers too: the transaction that a marker ends may have no record in this answer, and would
	// otherwise still be active when the producer's next transaction begins.
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

// record processes one record, and reports whether it was added to the chunk.
func (r *Reader) record(c *Chunk) (bool, error) {
	w, offset := &r.w, r.w.r.Offset
	if w.stale && offset >= w.anchor.Offset {
		return false, r.replaced(EpochWentBack)
	}
	if w.b.Control() {
		// A marker of type 0 aborts, one of type 1 commits. Either marker ends its producer's transaction, but only an
		// abort marker ends an aborted transaction.
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
		buf = nil // the arena has copies of its records
	}
	c.add(&w.r, w.b.Epoch, buf)
	return true, nil
}

// vanished handles an anchor that is not at its offset although the answer begins with the batch that holds, or held,
// that offset.
func (r *Reader) vanished() error {
	w := &r.w
	if w.logStart <= w.anchor.Offset && !r.o.Compacted {
		return r.replaced(AnchorVanished)
	}
	w.seeking, w.dropped = false, true
	return nil
}

// finish checks a whole answer after its last record.
func (r *Reader) finish() error {
	w := &r.w
	readable := w.lastStable
	if r.o.Uncommitted {
		readable = w.end
	}
	overlap := w.from < w.began
	// Batches of format 2 state where they end, so a batch that covers the position advances it.
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
			// Nothing new follows, or it did not fit. The log is identified, so one fetch may begin at the position
			// itself. Until there is another anchor, later fetches at this anchor request only one batch.
			r.plain, r.narrow = w.anchored, true
		case w.began < readable:
			// A message of an older format covers the position but has no record at or after it. The cleaner leaves
			// such messages, and their end is unknown. Only an answer with a message moves the position; one without
			// any message proves nothing.
			w.position++
		}
	}
	return nil
}

// undecoded converts the error of undecodable records into one that contains nothing of their content.
func (r *Reader) undecoded(err error) error {
	switch err {
	case batch.ErrChecksum, batch.ErrDamaged, errOld:
		return localError("fetch", r.o.Topic, r.o.Partition, kindProtocol, err.Error())
	}
	return err
}
