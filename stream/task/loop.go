package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
)

// processor runs an open epoch. Its loop owns the applier and the committer, and decides which record, step, commit or
// request comes next, and when.
//
// A release is published settleTime after a tick. Before the tick, applying stops. Ticks follow a clock that no record
// influences. If the work on a record or a step lasts past the tick, the release is published at a later tick. The
// duration of that work depends on records and noise. Outside the process, it can change only at which tick the release
// appears. Status and metrics change at ticks too, and times in messages and metrics are the times of ticks. Records
// may be applied while a commit is being written, see committer.writing.
type processor struct {
	r         *Runner
	epoch     *epoch.OpenEpoch
	applier   *applier
	committer *committer

	// The next tick.
	tick   time.Time // time of the next commit, if there is something to commit
	worked bool      // records were applied since the loop last looked at the clock
	missed int       // ticks in a row that passed while records were applied
	asleep bool      // nothing has happened since the last tick; the next event schedules a tick

	shown monitor.Progress // progress as of the last tick; shown outside

	// How the epoch ends.
	exhausted bool
	ending    *Request // a close request that waits for acknowledgements
	// interrupted is a request that can be served only while no epoch runs; nil: none. After it is served, this epoch
	// continues from its last commit.
	interrupted *Request
	ended       bool // the epoch is closed, and none of its state is written after that
}

// newProcessor returns a processor of an open epoch that continues at its last commit. It commits at most once per
// period, or after each release if period is 0. It reads nothing yet.
func newProcessor(r *Runner, l *epoch.OpenEpoch, period time.Duration) *processor {
	a := &applier{r: r, epoch: l, core: l.Core, position: l.Cp.Position, seen: l.Cp.Position.Next}
	w := &committer{
		r: r, epoch: l, applier: a, pub: output.NewPublisher(r.Guard, r.Feed, l.Cp), period: period,
		outbox: l.Cp.Outbox,
		trace:  commitTrace{work: monitor.SpanOf(r.Task, l.M.Epoch)},
	}
	return &processor{r: r, epoch: l, applier: a, committer: w}
}

// wipe overwrites copies of the mechanism's state that commits and closing steps have made. They hold exact sums and
// noise.
func (p *processor) wipe() {
	a, w := p.applier, p.committer
	clear(w.state[:cap(w.state)])
	clear(a.before[:cap(a.before)])
}

// begin publishes the releases that an earlier run left unpublished, unless the output is ahead of this state.
func (p *processor) begin() {
	a, w := p.applier, p.committer
	for i := range w.outbox {
		w.outboxBytes += w.outbox[i].Size()
	}
	if p.updateComparing(); !w.comparing {
		p.r.D.Metrics.Republished(p.r.Task, len(w.outbox))
		w.flush()
	}
	p.exhausted = a.over()
	p.schedule(p.r.D.Now())
	p.show()
}

// loop is the owner's main loop. It returns nil when the context or the epoch has ended.
func (p *processor) loop(ctx context.Context) (err error) {
	a, w := p.applier, p.committer
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer func() { err = graver(err, p.await()) }()
	for ctx.Err() == nil && p.interrupted == nil {
		select {
		case <-w.writing.ended(): // handle the commit before the next tick
			if err := p.handleWritten(); err != nil {
				return err
			}
		default:
		}
		if now := p.r.D.Now(); !p.asleep && !now.Before(p.tick) {
			if p.worked && w.period > 0 && now.After(p.tick.Add(settleTime)) {
				p.miss(now)
			} else if err := p.onTick(); err != nil {
				return err
			}
		}
		p.worked = false
		p.updateComparing()
		if err := p.refusal(); err != nil {
			p.ending.Reply <- err
			p.ending = nil
		}
		stopping := p.exhausted || p.ending != nil
		if stopping && p.drained() {
			if done, err := p.end(ctx); done || err != nil {
				return err
			}
		}
		held := stopping || w.full() || w.choked() || a.closing != nil || p.resting()
		if a.waiting() && !held {
			p.worked = true
			if err := p.workOff(); err != nil {
				return err
			}
			continue
		}
		in, sums, broken := a.sources(held)
		if stopping {
			broken = nil // this epoch reads no more, so a failure of the log concerns only the next one
		}
		requests := p.r.requests
		if a.closing != nil {
			requests = nil // requests read the core, which the closing step owns
		}
		var moved chan struct{}
		if a.merge != nil && (p.asleep || w.period == 0) { // no tick will show the new position
			moved = a.merge.Moved
		}
		wait := time.Hour
		if !p.asleep && (w.due() || w.period > 0) {
			wait = max(p.tick.Sub(p.r.D.Now()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case b := <-in:
			a.take(b)
		case a.whole = <-sums:
		case <-moved:
		case <-timer.C:
		case <-a.closing.ended():
			err = p.handleConcurrentClose()
		case <-w.writing.ended():
			err = p.handleWritten()
		case <-w.pub.Notify:
			w.acknowledge()
		case err = <-w.pub.Failed:
		case err = <-broken:
		case q := <-requests:
			p.request(ctx, q)
		}
		if err != nil {
			return err
		}
		if p.asleep {
			p.asleep = false
			p.schedule(p.r.D.Now())
		}
	}
	return nil
}

// await waits for the step that is being closed and for the commit that is being written, if there are any.
func (p *processor) await() error {
	a, w := p.applier, p.committer
	var err error
	if a.closing != nil {
		<-a.closing.ended()
		err = p.handleConcurrentClose()
	}
	if w.writing != nil {
		<-w.writing.ended()
		err = graver(err, p.handleWritten())
	}
	return err
}

// updateComparing enters or leaves comparing mode, depending on whether the output is ahead of this state.
func (p *processor) updateComparing() {
	a, w := p.applier, p.committer
	ahead, behind := p.r.Guard.Behind()
	if behind == w.comparing {
		return
	}
	w.comparing = behind
	if w.period == 0 {
		p.show() // the next tick may be far away
	}
	if behind {
		w.missing = 0
		p.r.Log.Warn(
			"the output is ahead of this state: repeating releases to compare them, publishing none until they match",
			"step", a.boundary().step, "published", ahead)
		return
	}
	p.r.Log.Info("the repeated releases match the output: publishing again", "step", a.boundary().step)
	failure.Signal(w.pub.Wake)
}

// write makes everything since the last commit durable, at a tick. The commit is written in another goroutine if
// nothing has to wait for it, else at once.
func (p *processor) write(tick time.Time) error {
	if p.committer.concurrent() && !p.committer.deferred() {
		return p.committer.begin(tick)
	}
	_, err := p.commit(tick)
	return err
}

// handleWritten handles the end of a commit that another goroutine wrote.
func (p *processor) handleWritten() error {
	w := p.committer
	c := w.writing
	w.writing = nil
	_, err := w.finish(c)
	switch now := p.r.D.Now(); {
	case w.failed:
		p.schedule(now)
	case w.full():
		p.tick = w.soon(now) // the tick may have passed while there was no room
	}
	return err
}

// commit makes everything since the last commit durable, at a tick. If the disk is full, the last commit stays, and a
// later tick tries again. The last commit also stays while commits are deferred.
func (p *processor) commit(tick time.Time) (done bool, err error) {
	w := p.committer
	if err := p.await(); err != nil {
		return false, err
	}
	if w.deferred() {
		return w.spill()
	}
	c, err := w.prepare(tick)
	if err != nil {
		return false, err
	}
	w.store(c)
	w.leave(c)
	done, err = w.finish(c)
	w.flush()
	return done, err
}

// request accepts a request to close the epoch, or replies with the reason why it cannot be served.
func (p *processor) request(ctx context.Context, q Request) {
	err := errors.New("another request is closing the epoch already")
	switch {
	case q.Kind == RequestRecover:
		err = errors.New("the task is running: there is nothing to recover")
	case p.ending != nil:
	case q.Kind == RequestRepublish && p.committer.comparing:
		err = errors.New(
			"the task is comparing its releases with those in the output, and publishes nothing meanwhile: send the " +
				"request again when status shows that the comparison has ended")
	case q.Kind == RequestRepublish:
		p.interrupted, err = &q, nil
		return
	default:
		ends, logs := p.applier.reached()
		if err = nil; q.Kind == RequestOpen {
			err = p.r.Acceptable(ctx, q.Open, p.opened(), ends, p.epoch.Cp.Step, logs)
		}
	}
	if err != nil {
		q.Reply <- err
		return
	}
	p.ending = &q
}

// opened returns the ledger's entry of the epoch's opening.
func (p *processor) opened() *ledger.Entry { return p.r.D.Ledger.Opening(p.r.Task, p.epoch.M.Epoch) }

// refusal returns an error if the request to close the epoch waits for releases to be published, while releases are
// being compared. It would wait forever, because nothing is published meanwhile.
func (p *processor) refusal() error {
	if left := p.committer.unpublished(); p.ending != nil && p.committer.comparing && left > 0 &&
		!p.ending.Open.DropOutbox {
		return fmt.Errorf(
			"%d releases of the epoch are not published, and cannot be published while the task compares others: try "+
				"again later, or discard them with --drop-outbox", left)
	}
	return nil
}

// drained reports whether nothing is left to commit or to publish. Unpublished releases do not count while releases are
// compared, because nothing is published then.
func (p *processor) drained() bool {
	a, w := p.applier, p.committer
	if a.closing != nil || w.writing != nil {
		return false
	}
	if p.ending != nil && w.comparing {
		return true
	}
	if len(w.pending) > 0 {
		return false
	}
	return len(w.outbox) == 0 || p.ending != nil && p.ending.Open.DropOutbox
}

// end closes the epoch. If the disk is too full for what must be written first, end returns false, and the epoch stays
// open.
func (p *processor) end(ctx context.Context) (done bool, err error) {
	a, w := p.applier, p.committer
	if w.quiet > 0 && !w.comparing {
		if w.failed {
			return false, nil // a later tick tries again
		}
		if done, err := p.commit(p.nextTick()); !done {
			p.schedule(p.r.D.Now())
			return false, err
		}
	}
	if err := p.r.DoDisk(ctx, func() error { return w.keep(&w.archived) }); err != nil {
		return false, err
	}
	w.pub.Stop()
	p.ended = true
	p.show()
	if w.comparing {
		// An epoch ends in comparing mode only on request. Its charge also covers what another copy of the state has
		// published.
		err = p.r.CloseStopped(ctx, p.opened(), p.ending.Open.DropOutbox)
	} else {
		reason := ledger.ReasonRequest
		if p.exhausted {
			reason = ledger.ReasonHorizon
			if why, ended := a.core.Ended(); ended {
				reason = why
			}
		}
		err = p.r.CloseEpoch(ctx, p.opened(), ledger.EndsAt(p.epoch.Cp, p.r.AnchorMAC), p.epoch.Cp.Step, reason)
	}
	if p.ending == nil {
		return true, err
	}
	if err == nil && p.ending.Kind == RequestOpen {
		if !w.comparing {
			p.ending.Open.SearchFrom, _ = w.pub.Position()
		}
		err = p.r.Open(ctx, p.ending.Open)
	}
	p.ending.Reply <- err
	p.ending = nil
	var h *failure.Halt
	if errors.As(err, &h) {
		err = nil // the requester gets the error; ensureOpen finishes the closing
	}
	return true, err
}

// shutdown ends the run. It drops the open step, commits all closed steps and, if the broker answers in time, publishes
// their releases.
func (p *processor) shutdown() error {
	w := p.committer
	if w.due() || w.quiet > 0 {
		if _, err := p.commit(p.nextTick()); err != nil {
			return err
		}
	}
	w.flush()
	p.show()
	deadline := time.NewTimer(epoch.ShutdownTime)
	defer deadline.Stop()
	for len(w.outbox) > 0 && !w.comparing && !p.r.D.Disk.Lost() {
		select {
		case <-w.pub.Notify:
			w.acknowledge()
		case <-w.pub.Failed:
			return nil // the next start meets the same failure
		case <-deadline.C:
			p.r.Log.Warn("cannot publish all releases before the shutdown: the next start publishes the rest",
				"releases", len(w.outbox))
			return nil
		}
	}
	if len(p.epoch.Cp.Outbox) > 0 && !w.comparing {
		_, err := p.commit(p.nextTick()) // so that the next start has nothing to repeat
		return err
	}
	return nil
}

// graver returns b if b is an error of the disk, because that ends the process. Otherwise it returns the first error
// that is not nil; it may only halt the task.
func graver(a, b error) error {
	if h := (*failure.Halt)(nil); b != nil && !errors.As(b, &h) {
		return b
	}
	return cmp.Or(a, b)
}
