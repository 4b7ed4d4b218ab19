package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// run runs the task until the context ends. It returns an error only if a failure
// concerns the whole process.
func (r *runner) run(ctx context.Context) error {
	defer r.stopLetters()
	defer r.unwatch()
	var pause kafka.Backoff
	for ctx.Err() == nil {
		r.expect(max(r.expected, r.readers()))
		l, err := r.settled(ctx)
		if l == nil {
			r.unwatch()
		}
		if err == nil && l != nil {
			r.untroubled("disk")
			pause.Reset()
			r.free()
			err = r.process(ctx, l)
			if q := r.waiting; q != nil {
				r.waiting = nil
				if err == nil {
					r.setState(stateStarting, nil)
					q.reply <- r.serve(ctx, *q)
				} else {
					q.reply <- errors.New("the task stopped before that: ask again")
				}
			}
		}
		err = r.classify(err)
		var h *halt
		if errors.As(err, &h) && !full(err) {
			if lost := r.d.disk.affirm(); lost != nil {
				err = lost
			}
		}
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		switch {
		case full(err): // also where it is in a halt
			// The state on disk is one to start from, at any moment.
			r.troubled("disk", err)
			if err := pause.Wait(ctx); err != nil {
				return nil
			}
		case errors.As(err, &h):
			say := r.log.Error
			if h.reason == haltUnopened {
				say = r.log.Warn // which somebody has asked for
			}
			say("task halted", "reason", h.reason, "error", err.Error())
			r.d.metrics.halted(r.task, h.reason)
			r.expect(0) // what it had is for others
			r.showHalted(ctx)
			r.setState(stateHalted, h)
			if r.wait(ctx, r.d.lookEvery); ctx.Err() == nil {
				r.setState(stateStarting, nil)
			}
		case err != nil:
			return fmt.Errorf("task %s: %w", r.task, err)
		case l == nil:
			r.expect(0)
			r.finished()
			r.wait(ctx, 0)
		}
	}
	return nil
}

// classify turns an error of the cluster that no repetition cures into a halt: it
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

// settled is settle that a request can interrupt: a task that waits for the cluster may
// get another order.
func (r *runner) settled(ctx context.Context) (*openEpoch, error) {
	for {
		type result struct {
			l   *openEpoch
			err error
		}
		settling, interrupt := context.WithCancel(ctx)
		done := make(chan result, 1)
		go func() {
			l, err := r.settle(settling, r.held)
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
				res.l.core.Destroy() // the epoch is on disk as it was
			}
			var h *halt
			if err := r.classify(res.err); err != nil && !errors.As(err, &h) && !errors.Is(err, context.Canceled) {
				q.reply <- err
				return nil, err
			}
			r.forget()
			q.reply <- r.serve(ctx, q)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
}

// finished sets the state of a task whose epoch is closed. If an earlier process closed
// it, it also sets the rest of the status.
func (r *runner) finished() {
	state := stateClosed
	last := r.d.ledger.newest(r.task)
	if last != nil && last.Reason == reasonHorizon {
		state = stateExhausted
	}
	if last != nil && r.status.Load().Epoch == 0 {
		r.change(func(s *TaskStatus) { s.Epoch, s.NextOffset = last.Epoch, last.End })
		r.log.Info("nothing to run: the epoch is closed", "epoch", last.Epoch, "end", last.End, "reason", last.Reason,
			"another", "streamdp epoch open "+epochArgs(r.task))
	}
	r.setState(state, nil)
}

// wait serves requests of a task that has nothing to run. It ends when a request opens an
// epoch, or when it may help to examine the state again. If every is not 0, it measures
// at that interval how far behind the task is.
func (r *runner) wait(ctx context.Context, every time.Duration) {
	var look <-chan time.Time
	var freed <-chan struct{}
	if r.held() {
		freed = r.hold
	}
	if every > 0 {
		tick := time.NewTicker(every)
		defer tick.Stop()
		look = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-freed:
			return
		case <-look:
			r.measure(ctx)
		case q := <-r.requests:
			err := r.serve(ctx, q)
			q.reply <- err
			if err == nil {
				return
			}
		}
	}
}

// process runs an open epoch until the context ends, the epoch ends, or something stops
// it. It returns nil if the epoch was closed.
func (r *runner) process(ctx context.Context, l *openEpoch) error {
	p := &processor{r: r, epoch: l, core: l.core, position: l.cp.position, seen: l.cp.position.Next, outbox: l.cp.outbox, period: r.d.cfg.State.CommitInterval, span: spanOf(r.task, l.m.Epoch)}
	defer l.core.Destroy()
	defer p.wipe()
	if l.bounds != nil {
		l.bounds.watch = r.watched(ctx)
		defer func() { // when nothing of the epoch runs any more
			if !p.ended {
				r.unwatch()
				return
			}
			r.watch.again(l.bounds.left())
		}()
	}
	defer func() {
		for _, reader := range p.readers {
			reader.Close()
		}
	}()
	// Publishing continues for a while after the context has ended.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()

	fetching, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	r.expect(len(l.cp.all()))
	if err := p.read(fetching, &wg); err != nil {
		return err
	}
	p.pub = newPublisher(r.guard, r.feed, l.cp)
	p.pub.sent = r.remember
	p.pub.start(background)
	defer p.pub.stop()

	p.dead = r.letters(ctx, l)
	defer p.dead.end()
	wg.Go(func() { r.lookForPartitions(fetching, l.m) })
	wg.Go(func() { r.lookAtSchemas(fetching) })
	r.setEpoch(l)
	if l.unproven != nil {
		return l.unproven
	}
	r.log.Info("task running", "epoch", l.m.Epoch, "step", l.core.Step(), "next_offset", l.cp.position.Next, "outbox_releases", len(l.cp.outbox))
	p.begin()
	err := p.loop(ctx)
	r.waiting = p.interrupted
	if err != nil {
		p.show()
	}
	if err == nil && !p.ended && !r.d.disk.lost() {
		stopFetching()
		err = p.shutdown()
	}
	if p.ending != nil {
		p.ending.reply <- errors.New("the task stopped before the epoch could be closed: ask again")
	}
	return err
}

// read begins to read the epoch's input, until the context ends.
func (p *processor) read(ctx context.Context, wg *sync.WaitGroup) error {
	r, l := p.r, p.epoch
	if l.m.Partition == core.Merged || l.bounds != nil || l.core.Ahead() {
		m, err := newMerger(r.feed, l.m, l.core, l.cp, l.bounds, p.open, r.d.partials)
		if err != nil {
			return err
		}
		p.merge = m
		m.start(ctx, wg)
		return nil
	}
	reader, err := p.open(l.m.Source, r.d.fetchBytes, l.cp.position)
	if err != nil {
		return err
	}
	decoder, err := newDecoder(r.d.schemas, r.s, l.m, l.m.Source.Partition, p.core)
	if err != nil {
		return err
	}
	p.fetch = newFetcher(r.feed, l.m.Epoch, l.m.Source.Partition, reader, decoder)
	wg.Go(func() { p.fetch.run(ctx) })
	return nil
}

// open returns a reader of a source, which is closed when the epoch runs no longer.
func (p *processor) open(src core.Source, bytes int, at kafka.Position) (*kafka.Reader, error) {
	reader, err := p.r.openInput(src, bytes, at)
	if err == nil {
		p.readers = append(p.readers, reader)
	}
	return reader, err
}
