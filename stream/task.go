package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
)

// The caps of what waits for a commit, and of what waits for the broker.
const (
	maxPending      = 1000
	maxPendingBytes = 4 << 20
	maxOutbox       = 4 * maxPending
	maxOutboxBytes  = 4 * maxPendingBytes
	quietSteps      = 10_000 // steps without a release after which a commit is due
	settleTime      = time.Millisecond
	capTick         = 10 * time.Millisecond
	batches         = 3 // one applied, one waiting, one filled
	shutdownTime    = 10 * time.Second
)

// runner runs one task: a goroutine that fetches and decodes, one that owns
// everything that must be consistent, and one that publishes.
type runner struct {
	d     *Daemon
	s     *config.Stream
	task  Task
	store *store
	log   *slog.Logger

	requests chan request
	status   atomic.Pointer[TaskStatus]
	ran      atomic.Bool // an epoch ran, however shortly

	destroying sync.Mutex // held while secrets are destroyed

	// What the fetching goroutine saw last, for lag.
	logStart, logEnd atomic.Int64

	mu       sync.Mutex
	troubles map[string]string // what is being repeated, and why
	recent   []json.RawMessage // the last published releases
	charged  struct {          // what the ledger says, as of so many lines
		lines   int
		epsilon float64
	}
}

func newRunner(d *Daemon, s *config.Stream, partition int) (*runner, error) {
	t := Task{s.Name, partition}
	r, err := newAbandoned(d, t)
	if err != nil {
		return nil, err
	}
	r.s, r.requests = s, make(chan request)
	r.logStart.Store(-1)
	r.logEnd.Store(-1)
	r.status.Store(&TaskStatus{
		Stream: t.Stream, Partition: t.Partition, State: stateStarting, Mechanism: s.Mechanism(),
		Topic: s.Input.Topic, Output: s.Output.Topic,
		Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Adjacency: s.Privacy.Adjacency.String(),
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta, logStart: -1,
	})
	d.metrics.begin(t)
	return r, nil
}

// newAbandoned returns a runner that can do no more than finish closings: for a
// task that the ledger knows and this process does not run.
func newAbandoned(d *Daemon, t Task) (*runner, error) {
	st, err := openStore(d.disk, d.taskDir(t))
	if err != nil {
		return nil, err
	}
	r := &runner{d: d, task: t, store: st, log: d.log.With("task", t.String()), troubles: map[string]string{}}
	r.status.Store(&TaskStatus{Stream: t.Stream, Partition: t.Partition})
	return r, nil
}

// run runs the task until the context ends, or until a failure that concerns
// the whole process, which it returns.
func (r *runner) run(ctx context.Context) error {
	for ctx.Err() == nil {
		l, err := r.settled(ctx)
		if err == nil && l != nil {
			err = r.process(ctx, l)
		}
		if err = r.classify(err); err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		var h *halt
		switch {
		case errors.As(err, &h):
			r.log.Error("task halted", "reason", h.reason, "error", err.Error())
			r.d.metrics.halted(r.task, h.reason)
			r.setState(stateHalted, h)
			if r.wait(ctx); ctx.Err() == nil {
				r.setState(stateStarting, nil)
			}
		case err != nil:
			return fmt.Errorf("task %s: %w", r.task, err)
		case l == nil:
			r.finished()
			r.wait(ctx)
		}
	}
	return nil
}

// classify makes a halt of an error of the cluster that no repetition cures: it
// concerns this task, not the process.
func (r *runner) classify(err error) error {
	var h *halt
	var refused *kafka.Error
	switch {
	case err == nil || errors.As(err, &h):
		return err
	case errors.As(err, &refused):
		return halted(haltKafka, "%w", err)
	}
	return r.logError(err)
}

// settled is settle, interrupted by requests: a task that waits for the cluster
// may be told to do something else.
func (r *runner) settled(ctx context.Context) (*live, error) {
	for {
		type result struct {
			l   *live
			err error
		}
		settling, interrupt := context.WithCancel(ctx)
		done := make(chan result, 1)
		go func() {
			l, err := r.settle(settling)
			done <- result{l, err}
		}()
		select {
		case res := <-done:
			interrupt()
			return res.l, res.err
		case q := <-r.requests:
			interrupt()
			res := <-done
			if res.l != nil {
				res.l.core.keys.Destroy() // the epoch is on disk as it was
			}
			var h *halt
			if err := r.classify(res.err); err != nil && !errors.As(err, &h) && !errors.Is(err, context.Canceled) {
				q.reply <- err
				return nil, err
			}
			r.calm()
			q.reply <- r.serve(ctx, q)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
}

// calm forgets what was being repeated when it was interrupted.
func (r *runner) calm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.troubles)
}

// finished sets the state of a task whose epoch is closed. Where an earlier
// process closed it, this one has said nothing of it yet.
func (r *runner) finished() {
	state := stateClosed
	last := r.d.ledger.newest(r.task)
	if last != nil && last.Reason == reasonHorizon {
		state = stateExhausted
	}
	if last != nil && r.status.Load().Epoch == 0 {
		r.change(func(s *TaskStatus) { s.Epoch, s.NextOffset = last.Epoch, last.End })
		r.log.Info("nothing to run: the epoch is closed", "epoch", last.Epoch, "end", last.End, "reason", last.Reason,
			"another", "streamdp epoch open "+r.task.Stream)
	}
	r.setState(state, nil)
}

// wait serves requests of a task that has nothing to run, until one opens an
// epoch or examining the state again may help.
func (r *runner) wait(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-r.requests:
			err := r.serve(ctx, q)
			q.reply <- err
			if err == nil {
				return
			}
		}
	}
}

// retry repeats a call for ever while the cluster is the reason that it fails,
// and lets status and readiness know.
func (r *runner) retry(ctx context.Context, what string, call func() error) error {
	var pause kafka.Backoff
	for {
		err := call()
		var later *notYet
		if !kafka.Retriable(err) && !errors.As(err, &later) {
			r.untroubled(what)
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.troubled(what, err)
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// notYet is a condition of the cluster that the operator will change.
type notYet struct{ error }

func (e *notYet) Unwrap() error { return e.error }

// troubled notes that something is being repeated, and logs it once.
func (r *runner) troubled(what string, err error) {
	r.d.metrics.kafkaError(err)
	r.mu.Lock()
	_, known := r.troubles[what]
	r.troubles[what] = err.Error()
	r.mu.Unlock()
	if !known {
		r.log.Warn("retrying", "what", what, "error", err.Error())
		r.change(func(*TaskStatus) {})
	}
}

func (r *runner) untroubled(what string) {
	r.mu.Lock()
	_, known := r.troubles[what]
	delete(r.troubles, what)
	r.mu.Unlock()
	if known {
		r.log.Info("works again", "what", what)
		r.change(func(*TaskStatus) {})
	}
}

// offsets are the ends of a log: where it starts, below which offset every
// transaction is decided, and where it ends.
type offsets struct{ start, stable, end int64 }

// input waits for the input partition and returns what it is: the source, the
// topic's partitions, and the log's offsets.
func (r *runner) input(ctx context.Context) (src Source, partitions int, log offsets, err error) {
	in := r.s.Input
	err = r.retry(ctx, "input", func() error {
		t, err := r.d.client.Topic(ctx, in.Topic)
		switch {
		case err != nil:
			return err
		case !t.Exists:
			return &notYet{fmt.Errorf("input topic %s does not exist", in.Topic)}
		case r.task.Partition >= len(t.Partitions):
			return &notYet{fmt.Errorf("input topic %s has %d partitions, partition %d is configured", in.Topic, len(t.Partitions), r.task.Partition)}
		}
		partitions = len(t.Partitions)
		cluster, err := r.d.client.ClusterID(ctx)
		if err != nil {
			return err
		}
		src = Source{Cluster: cluster, Topic: in.Topic, Partition: r.task.Partition}
		settings, err := r.d.client.TopicConfig(ctx, in.Topic, "cleanup.policy")
		if err != nil {
			return err
		}
		if strings.Contains(settings["cleanup.policy"], "compact") && !in.AllowCompacted {
			return halted(haltCompacted, "input topic %s is compacted: the cleaner removes records that were counted, and their keys decide which; "+
				"input.allow_compacted = true accepts it", in.Topic)
		}
		log.start, log.stable, log.end, err = r.d.client.Offsets(ctx, in.Topic, int32(r.task.Partition))
		return err
	})
	return src, partitions, log, err
}

// offsets returns those of the task's partition of a topic.
func (r *runner) offsets(ctx context.Context, topic string) (log offsets, err error) {
	err = r.retry(ctx, "input", func() error {
		log.start, log.stable, log.end, err = r.d.client.Offsets(ctx, topic, int32(r.task.Partition))
		return err
	})
	return log, err
}

// read reads a log from an offset until fn returns an error.
func (r *runner) read(ctx context.Context, topic string, partition int32, from int64, fn func(*kafka.Record) error) error {
	return r.d.client.ReadBack(ctx, topic, partition, from, fn)
}

// process runs an open epoch until the context ends, the epoch does, or
// something stops it. It returns nil where the epoch was closed.
func (r *runner) process(ctx context.Context, l *live) error {
	p := &processor{r: r, live: l, core: l.core, position: l.cp.position, seen: l.cp.position.Next, outbox: l.cp.outbox, period: r.d.cfg.State.CommitInterval}
	defer l.core.keys.Destroy()
	// Publishing goes on for a while after the context has ended.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()

	reader, err := r.d.client.NewReader(kafka.ReaderOptions{
		Topic: l.m.Topic, Partition: int32(l.m.Partition), ClusterID: l.m.Cluster,
		SkipGaps: r.s.OnGap == "null", Compacted: r.s.Input.AllowCompacted,
		PartitionMaxBytes: r.d.fetchBytes,
	}, l.cp.position)
	if err != nil {
		return err
	}
	decoder, err := newDecoder(r.s)
	if err != nil {
		return halted(haltConfiguration, "%w", err)
	}
	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	p.fetch = newFetcher(r, reader, decoder)
	wg.Go(func() { p.fetch.run(fetching) })
	p.pub = newPublisher(r, l.cp)
	wg.Go(func() { p.pub.run(background) })

	r.setLive(l)
	r.log.Info("task running", "epoch", l.m.Epoch, "step", l.core.step, "next_offset", l.cp.position.Next, "outbox_releases", len(l.cp.outbox))
	p.begin()
	err = p.loop(ctx)
	if err != nil {
		p.show()
	}
	if err == nil && !p.ended {
		stopFetching()
		err = p.shutdown()
	}
	if p.ending != nil {
		p.ending.reply <- errors.New("the task stopped before the epoch could be closed: ask again")
	}
	return err
}

// fetcher reads batches ahead of the owner.
type fetcher struct {
	r       *runner
	reader  *kafka.Reader
	decoder *decoder
	free    chan *batch
	full    chan *batch
	failed  chan error
}

func newFetcher(r *runner, reader *kafka.Reader, d *decoder) *fetcher {
	f := &fetcher{r: r, reader: reader, decoder: d, free: make(chan *batch, batches), full: make(chan *batch, batches), failed: make(chan error, 1)}
	for range batches {
		f.free <- new(batch)
	}
	return f
}

// run fetches until the context ends or the log turns out not to be the one it
// was.
func (f *fetcher) run(ctx context.Context) {
	for {
		var b *batch
		select {
		case <-ctx.Done():
			return
		case b = <-f.free:
		}
		err := f.r.retry(ctx, "fetch", func() error {
			begun := f.r.d.now()
			if err := f.reader.Fetch(ctx, &b.Chunk); err != nil {
				return err
			}
			f.r.d.metrics.fetched(f.r.task, f.r.d.now().Sub(begun), b.Bytes)
			return nil
		})
		if err != nil {
			if ctx.Err() == nil {
				f.failed <- f.r.logError(err)
			}
			return
		}
		if b.Lost > 0 {
			f.r.log.Warn("records were deleted before they were read: their offsets count as empty", "first", b.First, "offsets", b.Lost)
		} else if b.AnchorDropped {
			f.r.log.Warn("the record that identified the log was deleted: the log is trusted this once", "next_offset", b.Next)
		}
		f.r.logStart.Store(b.LogStart)
		f.r.logEnd.Store(b.LastStable)
		f.decoder.decode(b)
		select {
		case <-ctx.Done():
			return
		case f.full <- b:
		}
	}
}

// logError turns what a reader ends with into a halt, and leaves other errors
// as they are.
func (r *runner) logError(err error) error {
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	var replaced *kafka.ReplacedError
	switch {
	case errors.As(err, &gap):
		return halted(haltGap, "%w; on_gap = \"null\" counts them as empty, and a new epoch leaves them out: streamdp epoch open %s", err, r.task.Stream)
	case errors.As(err, &truncated):
		return halted(haltTruncated, "%w; a new epoch is needed: streamdp epoch open %s", err, r.task.Stream)
	case errors.As(err, &replaced):
		return halted(haltReplaced, "%w; a new epoch is needed: streamdp epoch open %s", err, r.task.Stream)
	}
	return err
}
