package stream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
)

// publisher sends committed releases in order, one request at a time. It repeats a
// request, with pauses and the same bytes, until the broker has acknowledged it.
type publisher struct {
	out    *guard
	now    func() time.Time
	trace  *trace.Tracer
	told   func(t core.Task, took time.Duration, at time.Time) // of each request that was acknowledged
	mu     sync.Mutex
	queue  []pending
	wake   chan struct{}
	acked  atomic.Uint64 // step of the last acknowledged release
	output int64         // as in checkpoint
	held   bool          // checkpoint.acknowledged
	failed chan error    // receives the error that ended it
	notify chan struct{} // after each acknowledgement
	stop   func()        // ends run, which has returned then
	span   trace.Work    // what its spans say
	within trace.Span    // of what was committed last

	// sent sees what the broker has acknowledged, before anybody else learns of it; nil:
	// nobody wants to. It runs beside the owner, who applies records meanwhile.
	sent func([]pending)
}

func newPublisher(out *guard, f *feed, cp *checkpoint) *publisher {
	return &publisher{
		out: out, now: f.now, trace: f.trace, told: f.metrics.published, wake: make(chan struct{}, 1), failed: make(chan error, 1), notify: make(chan struct{}, 1),
		output: cp.output, held: cp.acknowledged, span: spanOf(out.task, cp.epoch),
	}
}

// position returns what a checkpoint says of the output.
func (p *publisher) position() (output int64, acknowledged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output, p.held
}

// enqueue takes releases that a durable checkpoint holds, and the span of what it made durable.
func (p *publisher) enqueue(list []pending, within trace.Span) {
	if len(list) == 0 {
		return
	}
	p.mu.Lock()
	p.queue, p.within = append(p.queue, list...), within
	p.mu.Unlock()
	signal(p.wake)
}

// start publishes in the background until the context ends or stop is called.
func (p *publisher) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	p.stop = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		p.run(ctx)
	}()
}

// run publishes until the context ends. It waits while the guard is behind; the owner
// wakes it.
func (p *publisher) run(ctx context.Context) {
	for {
		p.mu.Lock()
		batch := wholeReleases(p.queue, p.acked.Load() == 0)
		p.mu.Unlock()
		if _, behind := p.out.behind(); behind || len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-p.wake:
			}
			continue
		}
		if err := p.send(ctx, batch); errors.Is(err, errBehind) {
			signal(p.notify) // the owner learns of it
			continue
		} else if err != nil {
			if ctx.Err() == nil {
				p.failed <- err
			}
			return
		}
		p.mu.Lock()
		p.queue = p.queue[len(batch):]
		if len(p.queue) == 0 {
			p.queue = nil
		}
		p.mu.Unlock()
		if p.sent != nil {
			p.sent(batch)
		}
		p.acked.Store(batch[len(batch)-1].Step)
		signal(p.notify)
	}
}

// wholeReleases returns the beginning of the queue that is sent in one request: all pieces of
// each release in it, so that its last step acknowledges it. one asks for a single release.
func wholeReleases(queue []pending, one bool) []pending {
	n := min(len(queue), 500)
	if one {
		n = min(n, 1)
	}
	for 0 < n && n < len(queue) && queue[n].Step == queue[n-1].Step {
		n++
	}
	return queue[:n]
}

// traced begins the span of a request.
func (p *publisher) traced(batch []pending, at time.Time) trace.Span {
	if p.trace == nil {
		return trace.Span{}
	}
	p.mu.Lock()
	within := p.within
	p.mu.Unlock()
	w := p.span
	w.First, w.Last = batch[0].Step, batch[len(batch)-1].Step
	return p.trace.Within(within, trace.Publish, w, at)
}

func (p *publisher) send(ctx context.Context, batch []pending) error {
	o := p.out
	messages := make([]kafka.Message, len(batch))
	for i := range batch {
		b := &batch[i]
		messages[i] = kafka.Message{Key: b.Key, Value: b.Value, Headers: b.Headers, Time: b.time}
	}
	err := o.retry(ctx, "publish", func() error {
		var begun time.Time
		var at []kafka.Appended
		err := errOvertaken
		for errors.Is(err, errOvertaken) {
			if err := o.catchUp(ctx); err != nil {
				return err
			}
			if _, behind := o.behind(); behind {
				return errBehind
			}
			begun = p.now()
			span := p.traced(batch, begun)
			at, err = o.send(ctx, o.next, messages)
			if span.Failed = whyFailed(err); err == nil || ctx.Err() == nil {
				span.End(p.now())
			}
		}
		if kafka.UnknownTopic(err) {
			// Somebody deleted the topic. Its releases are lost to readers, but later
			// ones must not wait for them.
			if e := o.make(ctx); e != nil {
				return e
			}
		}
		if err != nil {
			return err
		}
		if err := o.wrote(ctx, at); err != nil {
			return err
		}
		p.mu.Lock()
		p.output, p.held = at[0].Base, true
		p.mu.Unlock()
		p.told(o.task, p.now().Sub(begun), p.now())
		return nil
	})
	var large *kafka.TooLargeError
	var h *halt
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, errBehind) || errors.As(err, &h):
		return err
	case errors.As(err, &large):
		return halted(haltTooLarge, "release %s: %w: raise max.message.bytes of %s; or publish fewer output.values in a new epoch: streamdp epoch open %s --drop-outbox",
			batch[large.Index].Key, err, o.at.Topic, epochArgs(o.task))
	}
	return halted(haltPublish, "%w", err)
}
