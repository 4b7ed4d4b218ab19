package kafka

import (
	"context"

	"github.com/streamdp/streamdp/internal/kafka/batch"
)

// ahead is a request for the next answer that is sent before the last answer is decoded.
type ahead struct {
	base, from int64 // the request begins at offset `from`, in a batch that begins at offset `base`
	next       int64 // position at which the reader must be, otherwise the answer cannot be used
	metaEpoch  int32
	ctx        context.Context
	cancel     context.CancelFunc
	done       chan struct{} // closed when ans and err are set
	ans        answer
	err        error
}

// lookAhead sends the request for the next answer if the log continues after this one. The request begins in the last
// batch that has records, where the anchor will be unless the batch belongs to an aborted transaction.
func (r *Reader) lookAhead(ctx context.Context) {
	w := &r.w
	readable := w.lastStable
	if r.o.Uncommitted {
		readable = w.end
	}
	// There may be gigabytes of consecutive aborted records, and none of them can be an anchor.
	if w.throttle > 0 || len(w.aborted) > 0 || len(w.rest) < r.o.aheadBytes {
		return
	}
	var h, last batch.Header
	again := 0 // number of bytes that the broker will send again
	for rest := w.rest; ; {
		raw, next, err := batch.Cut(rest)
		if err != nil || raw != nil && (batch.Old(raw) || h.Parse(raw) != nil) {
			return
		}
		if raw == nil {
			break
		}
		again += len(raw)
		if h.Count > 0 && !h.Control() {
			last, again = h, len(raw)
		}
		rest = next
	}
	if last.Count == 0 || h.End <= r.next || h.End >= readable {
		return
	}
	metaEpoch, err := r.identify(ctx)
	if err != nil {
		return // the next Fetch will get the same error and return it
	}
	a := &ahead{base: last.Base, from: last.End - 1, next: h.End, metaEpoch: metaEpoch, done: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(ctx)
	limit := min(r.o.PartitionMaxBytes+again, r.o.MaxBytes-1)
	taken := 0
	if r.answers != nil {
		if taken = r.answers.take(limit); taken <= again {
			r.answers.add(-taken)
			a.cancel()
			return
		}
		limit = taken
	}
	r.ahead = a
	epoch, timeout := r.epoch, r.o.MaxWait+r.slack
	go func() {
		defer close(a.done)
		a.err = r.fetch(a.ctx, a.from, limit, taken, epoch, timeout, &a.ans)
	}()
}

// awaitAhead waits for the answer to the request that was sent ahead. ok is false if there is no usable answer; the
// caller must then send a request.
func (r *Reader) awaitAhead(ctx context.Context) (from int64, metaEpoch int32, ok bool, err error) {
	a := r.ahead
	if a == nil {
		return 0, 0, false, nil
	}
	if r.next != a.next || r.anchor == nil || r.anchor.Offset < a.base || r.anchor.Offset > a.from {
		r.dropAhead()
		return 0, 0, false, nil
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		r.dropAhead()
		return 0, 0, true, ctx.Err()
	}
	r.ahead = nil
	defer a.cancel()
	if a.err != nil {
		if a.ctx.Err() != nil && ctx.Err() == nil {
			return 0, 0, false, nil // the Fetch that sent it was cancelled, not this one
		}
		return a.from, a.metaEpoch, true, r.patient(a.err)
	}
	r.ans = a.ans
	return a.from, a.metaEpoch, true, nil
}

// dropAhead cancels the request that was sent ahead, and drops its answer.
func (r *Reader) dropAhead() {
	if a := r.ahead; a != nil {
		a.cancel()
		r.ahead = nil
		go func() {
			<-a.done
			a.ans.release()
		}()
	}
}
