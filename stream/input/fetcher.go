package input

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
)

// RetentionSettings are the topic settings that decide which records are deleted.
var RetentionSettings = []string{"cleanup.policy", "message.timestamp.type", "retention.ms"}

// ProducersDecideRetention reports whether, under these settings of a topic, the timestamps that producers set decide
// which records are deleted. Kafka deletes whole segments, each when its newest timestamp is old enough. A timestamp is
// content, so one record's timestamp could decide which other records are deleted before they are read.
func ProducersDecideRetention(settings map[string]string) bool {
	return settings["message.timestamp.type"] == "CreateTime" &&
		strings.Contains(settings["cleanup.policy"], "delete") && settings["retention.ms"] != "-1"
}

// Fetcher reads batches ahead of the owner of the task's state. One goroutine decodes a batch while another fetches the
// next response. An idle task holds no memory for batches.
type Fetcher struct {
	from    *Feed
	reader  *kafka.Reader
	decoder *codec.Decoder
	Free    chan *codec.Batch   // empty batches; Done puts batches back here
	fetched chan *codec.Batch   // batches to decode
	Full    chan *codec.Batch   // decoded batches, in the order of the log
	Failed  chan error          // receives the halt that ended Run
	what    string              // name of the fetches in logs and status
	known   func(id int32) bool // whether the registry has a schema; nil: the records have no schemas
	span    trace.Work
	epoch   uint64
	missing bool // the last fetch found no topic

	// The ends of the log, as of the last response.
	logStart, logEnd *atomic.Int64
}

// NewFetcher returns a fetcher of a partition that an epoch reads.
func NewFetcher(r *Feed, epoch uint64, partition int, reader *kafka.Reader, d *codec.Decoder) *Fetcher {
	f := &Fetcher{
		from: r, reader: reader, decoder: d, span: monitor.SpanOf(r.Task, epoch), logStart: r.LogStart,
		logEnd: r.LogEnd,
		Free:   make(chan *codec.Batch, batches), fetched: make(chan *codec.Batch, batches),
		Full:   make(chan *codec.Batch, batches),
		Failed: make(chan error, 1), what: "fetch", epoch: epoch,
	}
	f.span.Input = partition
	if s := r.Schemas.Subjects(r.S); s != nil {
		f.known = s.Has
	}
	for range batches {
		f.Free <- new(codec.Batch)
	}
	return f
}

// Run fetches until the context ends, or until the log turns out to be a different one. Batches fetched before that are
// still decoded.
func (f *Fetcher) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(f.fetched)
	wg.Go(f.decode)
	for {
		var b *codec.Batch
		select {
		case <-ctx.Done():
			return
		case b = <-f.Free:
		}
		if err := f.fetch(ctx, b); err != nil {
			var truncated *kafka.TruncatedError
			if errors.As(err, &truncated) { // a topic that was created again may be shorter too; report that instead
				if other := f.from.Do(ctx, f.what, func() error { return f.found(ctx) }); other != nil {
					err = other
				}
			}
			if ctx.Err() == nil {
				f.Failed <- f.from.LogError(err)
			}
			return
		}
		f.fetched <- b // never blocks: it has room for all batches
	}
}

// decode decodes the fetched batches and gives them to the owner, in order.
func (f *Fetcher) decode() {
	for b := range f.fetched {
		f.decoder.Decode(b)
		f.from.Metrics.BySchema(f.from.Task, b, f.known)
		f.Full <- b // never blocks: it has room for all batches
	}
}

// Done takes back a batch that was applied.
func (f *Fetcher) Done(b *codec.Batch) {
	b.Release()
	f.Free <- b
}

// fetch fills a batch with records.
func (f *Fetcher) fetch(ctx context.Context, b *codec.Batch) error {
	err := f.from.Do(ctx, f.what, func() error {
		if f.missing {
			if err := f.found(ctx); err != nil {
				return err
			}
		}
		begun := f.from.Now()
		span := f.from.Trace.Begin(trace.Fetch, f.span, begun)
		err := f.reader.Fetch(ctx, &b.Chunk)
		if err != nil && ctx.Err() != nil {
			return err
		}
		f.missing = kafka.UnknownTopic(err)
		now := f.from.Now()
		span.Failed = monitor.WhyFailed(err)
		span.End(now)
		if err != nil {
			return err
		}
		f.from.Metrics.Fetched(f.from.Task, now.Sub(begun), b.Bytes)
		return nil
	})
	if err != nil {
		return err
	}
	if b.Lost > 0 {
		f.from.Log.Warn("records were deleted before this task read them: counting their offsets as empty", "first",
			b.First, "offsets", b.Lost)
	} else if b.AnchorDropped {
		f.from.Log.Warn("the record that identifies the log was deleted: assuming, this one time, that the log is "+
			"the same",
			"next_offset", b.Next)
	}
	f.logStart.Store(b.LogStart)
	f.logEnd.Store(b.LastStable)
	return nil
}

// found is called when a topic reappears or has become shorter. It halts if the topic is not the epoch's. The reader's
// own check is not enough: it only looks for the last record it read, and another topic may hold an equal one. On an
// instance without the ledger, found does nothing, because the owner checks.
func (f *Fetcher) found(ctx context.Context) error {
	if f.from.SameLog == nil {
		return nil
	}
	return f.from.SameLog(ctx, f.epoch)
}

// LogError turns the error that ended a reader into a halt. It returns other errors unchanged.
func (r *Feed) LogError(err error) error {
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	var replaced *kafka.ReplacedError
	switch {
	case errors.As(err, &gap):
		return failure.Haltf(failure.Gap,
			"%w; count these offsets as empty with on_gap = \"null\", or skip them in a new epoch: streamdp epoch "+
				"open %s", err,
			failure.EpochArgs(r.Task))
	case errors.As(err, &truncated):
		return failure.Haltf(failure.Truncated, "%w; a new epoch is needed: streamdp epoch open %s", err,
			failure.EpochArgs(r.Task))
	case errors.As(err, &replaced):
		return failure.Haltf(failure.Replaced, "%w; a new epoch is needed: streamdp epoch open %s", err,
			failure.EpochArgs(r.Task))
	}
	return err
}
