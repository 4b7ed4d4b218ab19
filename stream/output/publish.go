package output

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// Publisher sends committed releases in order, one request at a time. It repeats a request, with pauses and the same
// bytes, until the broker has acknowledged it.
type Publisher struct {
	sender
	Mu     sync.Mutex
	Queue  []state.Message
	Wake   chan struct{}
	Acked  atomic.Uint64 // step of the last acknowledged release
	output int64         // the field Output of the next checkpoint
	held   bool          // the field Acknowledged of the next checkpoint
	Failed chan error    // receives the error that ended the publisher
	Notify chan struct{} // receives after each acknowledgement
	Stop   func()        // ends run, and waits for its end
	within trace.Span    // span of the last commit's steps

	// Sent is called with acknowledged releases, before Acked and Notify change. It may be nil. It runs concurrently
	// with the owner, which applies records meanwhile.
	Sent func([]state.Message)
}

// NewPublisher returns a publisher for the epoch of a checkpoint. Before each request, the guard compares what the
// output holds.
func NewPublisher(out *ForkGuard, f *input.Feed, cp *state.Checkpoint) *Publisher {
	return &Publisher{
		sender: newSender(out, f, cp.Epoch), Wake: make(chan struct{}, 1), Failed: make(chan error, 1),
		Notify: make(chan struct{}, 1), output: cp.Output, held: cp.Acknowledged,
	}
}

// Position returns the fields Output and Acknowledged for a checkpoint.
func (p *Publisher) Position() (output int64, acknowledged bool) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.output, p.held
}

// Enqueue adds releases to send; a durable checkpoint must hold them. It sets the trace span that they belong to.
func (p *Publisher) Enqueue(list []state.Message, within trace.Span) {
	if len(list) == 0 {
		return
	}
	p.Mu.Lock()
	p.Queue, p.within = append(p.Queue, list...), within
	p.Mu.Unlock()
	failure.Signal(p.Wake)
}

// Start publishes in the background until the context ends or Stop is called.
func (p *Publisher) Start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	p.Stop = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		p.run(ctx)
	}()
}

// run publishes until the context ends. While the guard is behind, it waits for the owner to wake it.
func (p *Publisher) run(ctx context.Context) {
	for {
		p.Mu.Lock()
		batch := CompleteReleases(p.Queue, p.Acked.Load() == 0)
		p.Mu.Unlock()
		if _, behind := p.out.Behind(); behind || len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-p.Wake:
			}
			continue
		}
		if err := p.publish(ctx, batch); errors.Is(err, ErrBehind) {
			failure.Signal(p.Notify) // wakes the owner, which checks the guard
			continue
		} else if err != nil {
			if ctx.Err() == nil {
				p.Failed <- err
			}
			return
		}
		p.Mu.Lock()
		p.Queue = p.Queue[len(batch):]
		if len(p.Queue) == 0 {
			p.Queue = nil
		}
		p.Mu.Unlock()
		if p.Sent != nil {
			p.Sent(batch)
		}
		p.Acked.Store(batch[len(batch)-1].Step)
		failure.Signal(p.Notify)
	}
}

// CompleteReleases returns the part of the queue to send in one request. It contains all pieces of each of its
// releases, so that acknowledging a step means that the whole release is there. If `one` is true, the part is a single
// release.
func CompleteReleases(queue []state.Message, one bool) []state.Message {
	n := min(len(queue), 500)
	if one {
		n = min(n, 1)
	}
	for 0 < n && n < len(queue) && queue[n].Step == queue[n-1].Step {
		n++
	}
	return queue[:n]
}

// publish sends releases, within the trace span of the last Enqueue.
func (p *Publisher) publish(ctx context.Context, batch []state.Message) error {
	base, err := p.send(ctx, batch, func() trace.Span {
		p.Mu.Lock()
		defer p.Mu.Unlock()
		return p.within
	})
	if err != nil {
		return err
	}
	p.Mu.Lock()
	p.output, p.held = base, true
	p.Mu.Unlock()
	return nil
}

// Send sends releases in one request, without a publisher. It serves releases left by a closed epoch and releases that
// are published again. It repeats the request, with the same bytes, until the broker has acknowledged it, and returns
// the offset of the first message in the output. The guard compares the output before each request.
//
// Errors: ErrBehind while the guard is behind, the context's error, *failure.Halt.
func Send(ctx context.Context, out *ForkGuard, f *input.Feed, batch []state.Message) (base int64, err error) {
	s := newSender(out, f, 0)
	return s.send(ctx, batch, func() trace.Span { return trace.Span{} })
}

// sender sends releases of a task, one request at a time.
type sender struct {
	out   *ForkGuard
	now   func() time.Time
	trace *trace.Tracer
	told  func(t core.Task, took time.Duration, at time.Time) // called after each acknowledged request
	span  trace.Work                                          // attributes of the requests' spans
}

// newSender returns a sender whose spans name an epoch; with epoch 0 they name none.
func newSender(out *ForkGuard, f *input.Feed, epoch uint64) sender {
	return sender{out: out, now: f.Now, trace: f.Trace, told: f.Metrics.Published,
		span: monitor.SpanOf(out.Task, epoch)}
}

// traced begins the span of a request.
func (s *sender) traced(batch []state.Message, at time.Time, within func() trace.Span) trace.Span {
	if s.trace == nil {
		return trace.Span{}
	}
	w := s.span
	w.First, w.Last = batch[0].Step, batch[len(batch)-1].Step
	return s.trace.Within(within(), trace.Publish, w, at)
}

// send is [Send] with a trace span. within is called when a request begins, and returns the parent span.
func (s *sender) send(ctx context.Context, batch []state.Message, within func() trace.Span) (base int64, err error) {
	o := s.out
	messages := make([]kafka.Message, len(batch))
	for i := range batch {
		b := &batch[i]
		messages[i] = kafka.Message{Key: b.Key, Value: b.Value, Headers: b.Headers, Time: b.Time}
	}
	err = o.Do(ctx, "publish", func() error {
		var begun time.Time
		var at []kafka.Appended
		err := errOvertaken
		for errors.Is(err, errOvertaken) {
			if err := o.catchUp(ctx); err != nil {
				return err
			}
			if _, behind := o.Behind(); behind {
				return ErrBehind
			}
			begun = s.now()
			span := s.traced(batch, begun, within)
			at, err = o.send(ctx, o.next, messages)
			if span.Failed = monitor.WhyFailed(err); err == nil || ctx.Err() == nil {
				span.End(s.now())
			}
		}
		if kafka.UnknownTopic(err) {
			// The topic was deleted. Readers have lost its releases, but later ones must not wait for that reason.
			if e := o.Make(ctx); e != nil {
				return e
			}
		}
		if err != nil {
			return err
		}
		if err := o.recordSent(ctx, at); err != nil {
			return err
		}
		base = at[0].Base
		s.told(o.Task, s.now().Sub(begun), s.now())
		return nil
	})
	var large *kafka.TooLargeError
	var h *failure.Halt
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, ErrBehind) || errors.As(err, &h):
		return base, err
	case errors.As(err, &large):
		return 0, failure.Haltf(failure.ReleaseTooLarge,
			"release %s: %w: raise max.message.bytes of %s; or publish fewer output.values in a new epoch: streamdp "+
				"epoch open %s --drop-outbox",
			batch[large.Index].Key, err, o.At.Topic, failure.EpochArgs(o.Task))
	}
	return 0, failure.Haltf(failure.Publish, "%w", err)
}
