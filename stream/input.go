package stream

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/codec"
)

// RetentionSettings are the settings of a topic that decide which of its records are deleted.
var RetentionSettings = []string{"cleanup.policy", "message.timestamp.type", "retention.ms"}

// ProducersDecideRetention reports whether, with these settings of a topic, the
// timestamps that producers give to records decide which records are deleted. A timestamp
// is content. The log is deleted by segments, and a segment goes when its newest
// timestamp is old enough. So one record's timestamp decides which others are gone before
// they are read.
func ProducersDecideRetention(settings map[string]string) bool {
	return settings["message.timestamp.type"] == "CreateTime" && strings.Contains(settings["cleanup.policy"], "delete") && settings["retention.ms"] != "-1"
}

// fetcher reads batches ahead of the owner. One goroutine fetches and one decodes, while
// the next response arrives. An idle task holds no memory of batches.
type fetcher struct {
	from    *feed
	reader  *kafka.Reader
	decoder *codec.Decoder
	free    chan *codec.Batch
	fetched chan *codec.Batch // to be decoded
	full    chan *codec.Batch
	failed  chan error
	what    string              // in words, for logs and status
	known   func(id int32) bool // whether the registry has a schema; nil: the records have none
	span    trace.Work
	epoch   uint64
	missing bool // the last fetch found no topic

	// The ends of the log that were seen last.
	logStart, logEnd *atomic.Int64
}

// newFetcher returns a fetcher of a partition that an epoch reads.
func newFetcher(r *feed, epoch uint64, partition int, reader *kafka.Reader, d *codec.Decoder) *fetcher {
	f := &fetcher{
		from: r, reader: reader, decoder: d, span: spanOf(r.task, epoch), logStart: r.logStart, logEnd: r.logEnd,
		free: make(chan *codec.Batch, batches), fetched: make(chan *codec.Batch, batches), full: make(chan *codec.Batch, batches),
		failed: make(chan error, 1), what: "fetch", epoch: epoch,
	}
	f.span.Input = partition
	if s := r.schemas.subjects(r.s); s != nil {
		f.known = s.Has
	}
	for range batches {
		f.free <- new(codec.Batch)
	}
	return f
}

// run fetches until the context ends, or until the log turns out to be another one. The
// batches fetched before that are still decoded.
func (f *fetcher) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(f.fetched)
	wg.Go(f.decode)
	for {
		var b *codec.Batch
		select {
		case <-ctx.Done():
			return
		case b = <-f.free:
		}
		if err := f.fetch(ctx, b); err != nil {
			var truncated *kafka.TruncatedError
			if errors.As(err, &truncated) { // a topic made anew is shorter, too, and then that is the reason
				if other := f.from.retry(ctx, f.what, func() error { return f.found(ctx) }); other != nil {
					err = other
				}
			}
			if ctx.Err() == nil {
				f.failed <- f.from.logError(err)
			}
			return
		}
		f.fetched <- b // has room for all there are
	}
}

// decode decodes what was fetched and gives it to the owner, in order.
func (f *fetcher) decode() {
	for b := range f.fetched {
		f.decoder.Decode(b)
		f.from.metrics.bySchema(f.from.task, b, f.known)
		f.full <- b // has room for all there are
	}
}

// done takes back a batch that was applied.
func (f *fetcher) done(b *codec.Batch) {
	b.Release()
	f.free <- b
}

// fetch fills a batch with records.
func (f *fetcher) fetch(ctx context.Context, b *codec.Batch) error {
	err := f.from.retry(ctx, f.what, func() error {
		if f.missing {
			if err := f.found(ctx); err != nil {
				return err
			}
		}
		begun := f.from.now()
		span := f.from.trace.Begin(trace.Fetch, f.span, begun)
		err := f.reader.Fetch(ctx, &b.Chunk)
		if err != nil && ctx.Err() != nil {
			return err
		}
		f.missing = kafka.UnknownTopic(err)
		now := f.from.now()
		span.Failed = whyFailed(err)
		span.End(now)
		if err != nil {
			return err
		}
		f.from.metrics.fetched(f.from.task, now.Sub(begun), b.Bytes)
		return nil
	})
	if err != nil {
		return err
	}
	if b.Lost > 0 {
		f.from.log.Warn("records were deleted before they were read: their offsets count as empty", "first", b.First, "offsets", b.Lost)
	} else if b.AnchorDropped {
		f.from.log.Warn("the record that identified the log was deleted: the log is trusted this once", "next_offset", b.Next)
	}
	f.logStart.Store(b.LogStart)
	f.logEnd.Store(b.LastStable)
	return nil
}

// found halts if a topic that was missing, or is shorter than it was, is not the epoch's. A reader looks for its last record,
// and another topic may have an equal one. An instance that has no ledger leaves this to the one that has.
func (f *fetcher) found(ctx context.Context) error {
	if f.from.sameLog == nil {
		return nil
	}
	return f.from.sameLog(ctx, f.epoch)
}

// logError turns the error with which a reader ended into a halt. It returns other errors
// as they are.
func (r *feed) logError(err error) error {
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	var replaced *kafka.ReplacedError
	switch {
	case errors.As(err, &gap):
		return halted(haltGap, "%w; on_gap = \"null\" counts them as empty, and a new epoch leaves them out: streamdp epoch open %s", err, epochArgs(r.task))
	case errors.As(err, &truncated):
		return halted(haltTruncated, "%w; a new epoch is needed: streamdp epoch open %s", err, epochArgs(r.task))
	case errors.As(err, &replaced):
		return halted(haltReplaced, "%w; a new epoch is needed: streamdp epoch open %s", err, epochArgs(r.task))
	}
	return err
}
