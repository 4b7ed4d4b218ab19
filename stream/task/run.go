package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
)

// Run runs the task until the context ends. It returns an error only if the failure concerns the whole process.
func (r *Runner) Run(ctx context.Context) error {
	defer r.stopLetters()
	defer r.stopSampler()
	var pause kafka.Backoff
	for ctx.Err() == nil {
		r.Expect(max(r.Expected, r.readers()))
		l, err := r.ensureOpenOrRequest(ctx)
		if l == nil {
			r.stopSampler()
		}
		if err == nil && l != nil {
			r.Recovered("disk")
			pause.Reset()
			r.Free()
			err = r.process(ctx, l)
			if q := r.waiting; q != nil {
				r.waiting = nil
				if err == nil {
					r.setState(monitor.StateStarting, nil)
					q.Reply <- r.Serve(ctx, *q)
				} else {
					q.Reply <- errors.New("the task stopped before it could serve the request: send it again")
				}
			}
		}
		err = r.classify(err)
		var h *failure.Halt
		if errors.As(err, &h) && !failure.DiskFull(err) {
			if lost := r.D.Disk.Affirm(); lost != nil {
				err = lost
			}
		}
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		switch {
		case failure.DiskFull(err): // possibly wrapped in a halt
			// The state on disk is a valid starting point at any moment.
			r.Failing("disk", err)
			if err := pause.Wait(ctx); err != nil {
				return nil
			}
		case errors.As(err, &h):
			say := r.Log.Error
			if h.Reason == failure.Unopened {
				say = r.Log.Warn // expected: an operator must open the epoch
			}
			say("task halted", "reason", h.Reason, "error", err.Error())
			r.D.Metrics.Halt(r.Task, h.Reason)
			r.Expect(0) // give its share of the memory to other tasks
			r.showHalted(ctx)
			r.setState(monitor.StateHalted, h)
			if r.wait(ctx, r.D.LookEvery); ctx.Err() == nil {
				r.setState(monitor.StateStarting, nil)
			}
		case err != nil:
			return fmt.Errorf("task %s: %w", r.Task, err)
		case l == nil:
			r.Expect(0)
			r.finished()
			r.wait(ctx, 0)
		}
	}
	return nil
}

// classify turns an error of the cluster that retries cannot cure into a halt, because the error concerns this task and
// not the process.
func (r *Runner) classify(err error) error {
	var h *failure.Halt
	var refused *kafka.Error
	switch {
	case err == nil || errors.As(err, &h):
		return err
	case errors.As(err, &refused):
		return failure.Haltf(failure.Kafka, "%w", err)
	}
	return r.LogError(err)
}

// ensureOpenOrRequest calls EnsureOpen, and serves requests meanwhile: a request interrupts a task that waits for the
// cluster.
func (r *Runner) ensureOpenOrRequest(ctx context.Context) (*epoch.OpenEpoch, error) {
	for {
		type result struct {
			l   *epoch.OpenEpoch
			err error
		}
		settling, interrupt := context.WithCancel(ctx)
		done := make(chan result, 1)
		go func() {
			l, err := r.EnsureOpen(settling, r.Held)
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
				res.l.Core.Destroy() // the epoch is on disk as it was
			}
			var h *failure.Halt
			if err := r.classify(res.err); err != nil && !errors.As(err, &h) && !errors.Is(err, context.Canceled) {
				q.Reply <- err
				return nil, err
			}
			r.Forget()
			q.Reply <- r.Serve(ctx, q)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
}

// finished sets the state of a task whose epoch is closed. If an earlier process closed the epoch, it also sets the
// rest of the status.
func (r *Runner) finished() {
	state := monitor.StateClosed
	last := r.D.Ledger.Newest(r.Task)
	if last != nil && last.Reason == ledger.ReasonHorizon {
		state = monitor.StateExhausted
	}
	if last != nil && r.shown.Load().Epoch == 0 {
		r.change(func(s *monitor.TaskStatus) { s.Epoch, s.NextOffset = last.Epoch, last.End })
		r.Log.Info("nothing to run: the epoch is closed", "epoch", last.Epoch, "end", last.End, "reason", last.Reason,
			"another", "streamdp epoch open "+failure.EpochArgs(r.Task))
	}
	r.setState(state, nil)
}

// wait serves requests of a task that has nothing to run. It returns when a request has opened an epoch, or when the
// state should be examined again. If every is not 0, it measures at that interval how far behind the task is.
func (r *Runner) wait(ctx context.Context, every time.Duration) {
	var look <-chan time.Time
	var freed <-chan struct{}
	if r.Held() {
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
			err := r.Serve(ctx, q)
			q.Reply <- err
			if err == nil {
				return
			}
		}
	}
}

// process runs an open epoch until the context ends, the epoch ends, or something stops
// it. It returns nil if the epoch was closed.
func (r *Runner) process(ctx context.Context, l *epoch.OpenEpoch) error {
	p := newProcessor(r, l, r.D.Cfg.State.CommitInterval)
	defer l.Core.Destroy()
	defer p.wipe()
	if l.Bounds != nil {
		l.Bounds.Sampler = r.ensureSampler(ctx)
		defer func() { // runs when all goroutines of the epoch have ended
			if !p.ended {
				r.stopSampler()
				return
			}
			r.sampler.Again(l.Bounds.Left())
		}()
	}
	defer func() {
		for _, reader := range p.applier.readers {
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
	r.Expect(len(l.Cp.All()))
	if err := p.applier.read(fetching, &wg); err != nil {
		return err
	}
	pub := p.committer.pub
	pub.Sent = r.remember
	pub.Start(background)
	defer pub.Stop()

	p.committer.dead = r.letters(ctx, l)
	defer p.committer.dead.end()
	wg.Go(func() { r.lookForPartitions(fetching, l.M) })
	wg.Go(func() { r.LookAtSchemas(fetching) })
	r.setEpoch(l)
	if l.Unproven != nil {
		return l.Unproven
	}
	r.Log.Info("task running", "epoch", l.M.Epoch, "step", l.Core.Step(), "next_offset", l.Cp.Position.Next,
		"outbox_releases", len(l.Cp.Outbox))
	p.begin()
	err := p.loop(ctx)
	r.waiting = p.interrupted
	if err != nil {
		p.show()
	}
	if err == nil && !p.ended && !r.D.Disk.Lost() {
		stopFetching()
		err = p.shutdown()
	}
	if p.ending != nil {
		p.ending.Reply <- errors.New("the task stopped before the epoch could be closed: send the request again")
	}
	return err
}
