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

// Publisher sends committed releases in order, one request at a time. It repeats a
// request, with pauses and the same bytes, until the broker has acknowledged it.
type Publisher struct {
	out    *ForkGuard
	now    func() time.Time
	trace  *trace.Tracer
	told   func(t core.Task, took time.Duration, at time.Time) // of each request that was acknowledged
	Mu     sync.Mutex
	Queue  []state.Message
	Wake   chan struct{}
	Acked  atomic.Uint64 // step of the last acknowledged release
	output int64         // as in checkpoint
	held   bool          // checkpoint.acknowledged
	Failed chan error    // receives the error that ended it
	Notify chan struct{} // after each acknowledgement
	Stop   func()        // ends run, which has returned then
	span   trace.Work    // what its spans say
	within trace.Span    // of what was committed last

	// Sent sees what the broker has acknowledged, before anybody else learns of it; nil:
	// nobody wants to. It runs beside the owner, who applies records meanwhile.
	Sent func([]state.Message)
}

// NewPublisher returns what publishes into an output from where a checkpoint's position in it is. It sends nothing
// before Start or Send.
func NewPublisher(out *ForkGuard, f *input.Feed, cp *state.Checkpoint) *Publisher {
	return &Publisher{
		out: out, now: f.Now, trace: f.Trace, told: f.Metrics.Published, Wake: make(chan struct{}, 1), Failed: make(chan error, 1), Notify: make(chan struct{}, 1),
		output: cp.Output, held: cp.Acknowledged, span: monitor.SpanOf(out.Task, cp.Epoch),
	}
}

// Position returns what a checkpoint says of the output.
func (p *Publisher) Position() (output int64, acknowledged bool) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.output, p.held
}

// Enqueue takes releases that a durable checkpoint holds, and the span of what it made durable.
func (p *Publisher) Enqueue(list []state.Message, within trace.Span) {
	if len(list) == 0 {
		return
	}
	p.Mu.Lock()
	p.Queue, p.within = append(p.Queue, list...), within
	p.Mu.Unlock()
	failure.Signal(p.Wake)
}

// Start publishes in the background until the context ends or stop is called.
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

// run publishes until the context ends. It waits while the guard is behind; the owner
// wakes it.
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
		if err := p.Send(ctx, batch); errors.Is(err, ErrBehind) {
			failure.Signal(p.Notify) // the owner learns of it
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

// CompleteReleases returns the beginning of the queue that is sent in one request: all pieces of
// each release in it, so that its last step acknowledges it. one asks for a single release.
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

// traced begins the span of a request.
func (p *Publisher) traced(batch []state.Message, at time.Time) trace.Span {
	if p.trace == nil {
		return trace.Span{}
	}
	p.Mu.Lock()
	within := p.within
	p.Mu.Unlock()
	w := p.span
	w.First, w.Last = batch[0].Step, batch[len(batch)-1].Step
	return p.trace.Within(within, trace.Publish, w, at)
}

func (p *Publisher) Send(ctx context.Context, batch []state.Message) error {
	o := p.out
	messages := make([]kafka.Message, len(batch))
	for i := range batch {
		b := &batch[i]
		messages[i] = kafka.Message{Key: b.Key, Value: b.Value, Headers: b.Headers, Time: b.Time}
	}
	err := o.Do(ctx, "publish", func() error {
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
			begun = p.now()
			span := p.traced(batch, begun)
			at, err = o.send(ctx, o.next, messages)
			if span.Failed = monitor.WhyFailed(err); err == nil || ctx.Err() == nil {
				span.End(p.now())
			}
		}
		if kafka.UnknownTopic(err) {
			// Somebody deleted the topic. Its releases are lost to readers, but later
			// ones must not wait for them.
			if e := o.Make(ctx); e != nil {
				return e
			}
		}
		if err != nil {
			return err
		}
		if err := o.wrote(ctx, at); err != nil {
			return err
		}
		p.Mu.Lock()
		p.output, p.held = at[0].Base, true
		p.Mu.Unlock()
		p.told(o.Task, p.now().Sub(begun), p.now())
		return nil
	})
	var large *kafka.TooLargeError
	var h *failure.Halt
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, ErrBehind) || errors.As(err, &h):
		return err
	case errors.As(err, &large):
		return failure.Haltf(failure.ReleaseTooLarge, "release %s: %w: raise max.message.bytes of %s; or publish fewer output.values in a new epoch: streamdp epoch open %s --drop-outbox",
			batch[large.Index].Key, err, o.At.Topic, failure.EpochArgs(o.Task))
	}
	return failure.Haltf(failure.Publish, "%w", err)
}
