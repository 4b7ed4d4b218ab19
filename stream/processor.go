package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"streamdp/dp"
	"streamdp/internal/kafka"
	"streamdp/internal/persons"
	"streamdp/stream/codec"
	"streamdp/stream/core"
)

// processor owns an open epoch. Records go through its core. The releases that come out
// wait for a commit, which makes them durable. Then they wait for the publisher, which
// sends them to the broker.
//
// A release leaves at a tick of a clock that no record moves: settleTime after applying
// stopped for the tick. If the work on a record or a step lasted longer than that, the
// release leaves at the next tick. How long the work took depends on records and noise;
// it shows only in the choice of the tick. Status and metrics change at ticks too, and
// times in messages and metrics are those of ticks.
type processor struct {
	r     *runner
	epoch *openEpoch
	core  *core.Core
	fetch *fetcher // of an epoch that is not merged
	merge *merger  // of one that is
	pub   *publisher
	// readers are those of all partitions.
	readers []*kafka.Reader

	whole    []leafStep     // sums of all partitions that wait to be merged
	current  *codec.Batch   // being applied
	next     int            // its next record
	position kafka.Position // of the last boundary, where that lies before current
	seen     int64          // offsets below it have been applied
	refused  uint64         // of the mechanism's counts, what metrics have
	clipped  uint64

	archived     []pending // acknowledged, and still in the last commit
	pending      []pending // built since the last commit
	pendingBytes int
	quiet        int          // steps since the last commit
	dead         *deadLetters // nil: none are wanted
	outbox       []pending    // durable, not acknowledged
	outboxBytes  int
	sent         int  // of outbox: given to the publisher
	comparing    bool // repeating what the output holds already
	missing      int  // messages that it did not hold, since then

	period time.Duration
	tick   time.Time     // when a commit is due, if there is something to commit
	worked bool          // records were applied since the loop looked at the clock
	late   bool          // the last tick passed during that: nothing is applied before the next
	asleep bool          // nothing has happened since the last tick: the next is after something does
	pause  kafka.Backoff // between commits that the disk has no room for
	failed bool          // the last commit was one
	state  []byte        // scratch

	shown view // what the outside sees, as of the last tick
	work  work // since then

	exhausted bool
	ending    *request // a close that waits for acknowledgements
	// interrupted is a request that must be met while no epoch runs. Afterwards this epoch
	// continues from its last commit.
	interrupted *request
	ended       bool // the epoch is closed, and nothing of it is written any more
}

// begin publishes what an earlier run left unpublished, unless the output is ahead of that.
func (p *processor) begin() {
	for i := range p.outbox {
		p.outboxBytes += p.outbox[i].size()
	}
	if p.compare(); !p.comparing {
		p.r.d.metrics.republished(p.r.task, len(p.outbox))
		p.flush()
	}
	p.exhausted = p.over()
	p.schedule(p.r.d.now())
	p.show()
}

// over reports whether the last step was the final one: the horizon is reached, or the
// mechanism says so.
func (p *processor) over() bool {
	if _, ended := p.core.Ended(); ended {
		return true
	}
	h := p.r.s.LastStep()
	return h > 0 && p.core.Step() >= h
}

// compare finds out whether the output is ahead of this state, or is so no longer.
func (p *processor) compare() {
	ahead, behind := p.r.guard.behind()
	if behind == p.comparing {
		return
	}
	p.comparing, p.shown.comparing = behind, behind
	p.report()
	if behind {
		p.missing = 0
		p.r.log.Warn("the output is ahead of this state: repeating releases to compare them, and publishing none meanwhile",
			"step", p.core.Step(), "published", ahead)
		return
	}
	p.r.log.Info("the output holds the same releases", "step", p.core.Step())
	signal(p.pub.wake)
}

// flush gives the publisher the durable releases that it does not have yet.
func (p *processor) flush() {
	if p.comparing || p.sent == len(p.outbox) {
		return
	}
	p.pub.enqueue(slices.Clone(p.outbox[p.sent:]))
	p.sent = len(p.outbox)
}

// schedule sets the next tick, a multiple of the period. After a commit that failed
// because the disk is full, a pause comes first.
func (p *processor) schedule(now time.Time) {
	if p.failed {
		now = now.Add(p.pause.Next())
	}
	p.tick = multiple(p.r.d.started, now, p.period)
}

// multiple returns the first start + k·period after now; for period 0 it returns now.
func multiple(start, now time.Time, period time.Duration) time.Time {
	if period == 0 {
		return now
	}
	return start.Add((now.Sub(start)/period + 1) * period)
}

// due reports whether there is something to commit, or to write while commits are deferred.
func (p *processor) due() bool {
	if p.deferred() {
		return p.crowded()
	}
	return len(p.pending) > 0 || p.quiet >= quietSteps || p.failed && p.quiet > 0 || p.crowded()
}

// full reports whether applying must wait for a commit.
func (p *processor) full() bool {
	if p.deferred() {
		return p.crowded()
	}
	if p.period == 0 {
		return len(p.pending) > 0
	}
	return len(p.pending) >= maxPending || p.pendingBytes >= p.r.d.unpublished(maxPendingBytes) || p.crowded()
}

// choked reports whether applying must wait for the broker, which while releases are
// compared gets none.
func (p *processor) choked() bool {
	return !p.comparing && (len(p.outbox) >= maxOutbox || p.outboxBytes >= p.r.d.unpublished(maxOutboxBytes))
}

// loop is the owner's main loop. It returns nil when the context or the epoch has ended.
func (p *processor) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil && p.interrupted == nil {
		if now := p.r.d.now(); !p.asleep && !now.Before(p.tick) {
			if p.worked && p.period > 0 && now.After(p.tick.Add(settleTime)) {
				p.tick, p.late = multiple(p.r.d.started, now, p.period), true
			} else if err := p.onTick(); err != nil {
				return err
			}
		}
		p.worked = false
		p.compare()
		if err := p.refuse(); err != nil {
			p.ending.reply <- err
			p.ending = nil
		}
		stopping := p.exhausted || p.ending != nil
		if stopping && p.settled() {
			if done, err := p.end(ctx); done || err != nil {
				return err
			}
		}
		held := stopping || p.full() || p.choked() || p.late
		if (p.current != nil || p.whole != nil) && !held {
			p.worked = true
			if err := p.workOff(); err != nil {
				return err
			}
			continue
		}
		in, sums, broken := p.sources(held)
		if stopping {
			broken = nil // nothing more is read, so the log's fate is another epoch's
		}
		var moved chan struct{}
		if p.merge != nil && (p.asleep || p.period == 0) { // no tick shows it
			moved = p.merge.moved
		}
		wait := time.Hour
		if !p.asleep && (p.due() || p.period > 0) {
			wait = max(p.tick.Sub(p.r.d.now()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case b := <-in:
			p.current, p.next = b, 0
			p.work.read(b)
		case p.whole = <-sums:
		case <-moved:
		case <-timer.C:
		case <-p.pub.notify:
			p.acknowledge()
		case err := <-p.pub.failed:
			return err
		case err := <-broken:
			return err
		case q := <-p.r.requests:
			p.request(ctx, q)
		}
		if p.asleep {
			p.asleep = false
			p.schedule(p.r.d.now())
		}
	}
	return nil
}

// request accepts a request to close the epoch, unless it cannot be met.
func (p *processor) request(ctx context.Context, q request) {
	err := errors.New("the epoch is being closed already")
	switch {
	case q.kind == requestRecover:
		err = errors.New("the task is running: there is nothing to recover")
	case p.ending != nil:
	case q.kind == requestRepublish && p.comparing:
		err = errors.New("the task compares what was published before this state was restored: nothing is published until that has ended")
	case q.kind == requestRepublish:
		p.interrupted, err = &q, nil
		return
	default:
		ends, logs := p.reached()
		err = p.r.acceptable(ctx, q, p.opened(), ends, p.epoch.cp.step, logs)
	}
	if err != nil {
		q.reply <- err
		return
	}
	p.ending = &q
}

// sources returns where records come from, and where errors of reading do. held says that
// nothing may be applied.
func (p *processor) sources(held bool) (in chan *codec.Batch, sums chan []leafStep, broken chan error) {
	wanted := p.current == nil && p.whole == nil && !held
	if p.merge != nil {
		if wanted {
			sums = p.merge.whole
		}
		return nil, sums, p.merge.failed
	}
	if wanted {
		in = p.fetch.full
	}
	return in, nil, p.fetch.failed
}

// workOff applies what has been read.
func (p *processor) workOff() error {
	if p.merge != nil {
		return p.applySums()
	}
	return p.apply()
}

// reached returns where the open step begins and the offsets of the log, by partition.
func (p *processor) reached() (ends []EntryPart, logs []offsets) {
	if p.merge == nil {
		return []EntryPart{{End: p.core.First()}}, []offsets{{p.r.logStart.Load(), p.r.logEnd.Load(), p.r.logEnd.Load()}}
	}
	for i, at := range p.merge.at {
		start, end := p.merge.leaves[i].logStart.Load(), p.merge.leaves[i].logEnd.Load()
		ends, logs = append(ends, EntryPart{Partition: at.partition, End: at.position.Next}), append(logs, offsets{start, end, end})
	}
	return ends, logs
}

// opened returns the ledger's entry of the epoch.
func (p *processor) opened() *Entry { return p.r.d.ledger.opening(p.r.task, p.epoch.m.Epoch) }

// refuse returns why a request can't be met: while releases are compared, nothing is
// published that it could wait for.
func (p *processor) refuse() error {
	if left := len(p.outbox) + len(p.pending); p.ending != nil && p.comparing && left > 0 && !p.ending.open.DropOutbox {
		return fmt.Errorf("%d releases of the epoch are not published, and are not while others are compared: ask again later (--drop-outbox gives them up)", left)
	}
	return nil
}

// settled reports whether nothing is left to commit or to publish. While releases are
// compared, nothing is published, so a request need not wait for that.
func (p *processor) settled() bool {
	if p.ending != nil && p.comparing {
		return true
	}
	if len(p.pending) > 0 {
		return false
	}
	return len(p.outbox) == 0 || p.ending != nil && p.ending.open.DropOutbox
}

// apply applies records of the current batch, until the batch ends, a tick comes, or a
// commit must come first.
func (p *processor) apply() error {
	b, c := p.current, p.core
	for ; p.next < len(b.Records); p.next++ {
		offset := b.Records[p.next].Offset
		for offset >= c.End() {
			if stop, err := p.close(c.Close); stop || err != nil {
				return err
			}
		}
		if p.next&63 == 63 && p.period > 0 && !p.r.d.now().Before(p.tick) {
			return nil
		}
		if p.next&63 == 0 {
			c.Warm(b.TagsFrom(p.next, 64))
		}
		if why := c.AddOf(offset, b.Row(p.next), b.Tag(p.next)); why != persons.Counts {
			p.work.uncounted(b.Reasons[p.next], why)
		}
	}
	for b.Next >= c.End() {
		if stop, err := p.close(c.Close); stop || err != nil {
			return err
		}
	}
	if c.First() >= b.First {
		p.position = b.Position(c.First())
	}
	p.count()
	p.current, p.seen = nil, b.Next
	p.fetch.done(b)
	return nil
}

// count takes the mechanism's counts of records for the metrics.
func (p *processor) count() {
	if refused := p.core.Mechanism().Refused; refused != nil {
		why, n := refused()
		p.work.rejected[why] += int(n - p.refused)
		p.refused = n
	}
	if clipped := p.core.Mechanism().Clipped; clipped != nil {
		n := clipped()
		p.work.clipped += n - p.clipped
		p.clipped = n
	}
}

// applySums merges the sums of a step, and closes it.
func (p *processor) applySums() error {
	steps := p.whole
	p.whole = nil
	_, err := p.close(func() ([]core.Message, error) {
		return p.core.Merge(sumsOf(steps), func() { p.merge.emptied(steps) })
	})
	if err != nil || p.core.Step() < steps[0].step {
		return err // the epoch has ended before the step
	}
	p.merge.merged(steps)
	p.merge.pause(p.epoch.users)
	p.seen = p.core.First()
	for _, s := range steps {
		p.work.add(&s.work)
	}
	p.count()
	return nil
}

// close ends the open step, with by. stop asks the caller to return to the loop.
func (p *processor) close(by func() ([]core.Message, error)) (stop bool, err error) {
	messages, err := by()
	if errors.Is(err, dp.ErrExhausted) {
		p.exhausted = true
		return true, nil
	}
	if err != nil {
		return true, halted(haltMechanism, "step %d: %w", p.core.Step()+1, err)
	}
	p.quiet++
	p.work.steps++
	p.exhausted = p.over()
	// Compare what is published already. Of a release in pieces some may be missing.
	if messages, err = p.r.guard.closed(p.core.Step(), messages); err != nil {
		return true, err
	}
	p.compare()
	if p.comparing {
		if p.missing += len(messages); p.missing > maxPending || p.pendingBytes > maxOutboxBytes {
			return true, p.r.guard.incomplete()
		}
	}
	if len(messages) > 0 {
		for _, m := range messages {
			p.pending = append(p.pending, pending{Message: m})
			p.pendingBytes += p.pending[len(p.pending)-1].size()
		}
		p.work.releases++
	}
	full := p.full()
	if full && p.period > 0 {
		p.tick = multiple(p.r.d.started, p.r.d.now(), min(capTick, p.period))
	}
	return p.exhausted || full, nil
}

// onTick commits what is due and shows what was done. Between the tick and that nothing
// is applied.
func (p *processor) onTick() error {
	if p.period > 0 && (p.due() || p.view() != p.shown) {
		time.Sleep(p.tick.Add(settleTime).Sub(p.r.d.now()))
	}
	p.late = false
	if p.due() {
		if _, err := p.commit(p.tick); err != nil {
			return err
		}
	}
	p.flush()
	p.schedule(p.r.d.now())
	p.show()
	// What a merger of several logs reads changes the view without waking the owner, and so do
	// the ends of a log while nothing is applied.
	p.asleep = p.period > 0 && (p.merge == nil || p.merge.ahead) && p.whole == nil && p.current == nil && !p.due() && !p.choked()
	return nil
}

// nextTick waits for a tick outside the loop, at the end of a run or of an epoch, and
// returns it. It uses the shorter period that a full outbox has too.
func (p *processor) nextTick() time.Time {
	tick := multiple(p.r.d.started, p.r.d.now(), min(capTick, p.period))
	if p.period > 0 {
		time.Sleep(tick.Add(settleTime).Sub(p.r.d.now()))
	}
	return tick
}

// commit makes everything since the last commit durable, at a tick. If the disk is full,
// the last commit stays, and a later tick tries again. While commits are deferred it stays, too.
func (p *processor) commit(tick time.Time) (done bool, err error) {
	if p.deferred() {
		return p.spill()
	}
	begun := p.r.d.now()
	for i := range p.pending {
		p.pending[i].time = tick.Truncate(time.Millisecond)
	}
	position := p.position
	var parts []partPosition
	if p.merge != nil {
		if position = p.merge.at[0].position; p.epoch.m.Partition == core.Merged {
			position, parts = kafka.Position{Next: p.core.First(), LeaderEpoch: -1}, p.merge.at
		}
		for i := range parts {
			parts[i].older = older(p.epoch.cp.parts[i], parts[i].position.Anchor)
		}
	}
	if p.current != nil && p.core.First() >= p.current.First {
		position = p.current.Position(p.core.First())
	}
	if position.Next != p.core.First() {
		return false, errors.New("internal: the boundary's position was not kept")
	}
	state, err := p.core.AppendState(p.state[:0])
	if err != nil {
		return false, err
	}
	p.state = state
	cp := &checkpoint{
		epoch: p.epoch.m.Epoch, manifest: p.epoch.cp.manifest, step: p.core.Step(), position: position, transcript: p.core.Transcript(),
		outputTopic: p.epoch.cp.outputTopic, outputPartition: p.epoch.cp.outputPartition,
		build: build(),
		state: state, outbox: append(slices.Clip(p.outbox), p.pending...), parts: slices.Clone(parts),
	}
	cp.older = older(p.epoch.cp.all()[0], position.Anchor)
	if p.merge != nil && p.merge.bounds != nil {
		cp.boundaryTopic, cp.boundary = p.epoch.cp.boundaryTopic, p.merge.bound
	}
	cp.output, cp.acknowledged = p.pub.position()
	if err := p.r.d.inTurn(func() error {
		return p.r.atomically(func() (err error) {
			if err = p.keep(); err != nil {
				return err
			}
			if cp.users, err = p.epoch.users.append(); err != nil {
				return err
			}
			cp.ledger = p.r.d.ledger.headHash()
			return p.r.store.commit(cp)
		})
	}); err != nil {
		return p.uncommitted(err)
	}
	if err := p.epoch.users.committed(); err != nil && !full(err) {
		return false, err // what a full disk keeps is tried again
	}
	p.merge.unpause()
	p.failed = false
	p.pause.Reset()
	p.r.untroubled("commit")
	cp.state = nil
	p.epoch.cp = cp
	p.dead.commit(cp.position.Next)
	p.outbox = cp.outbox
	p.outboxBytes += p.pendingBytes
	p.pending, p.pendingBytes, p.quiet = nil, 0, 0
	p.r.committed(tick, p.r.d.now().Sub(begun), len(state))
	p.flush()
	return true, nil
}

// uncommitted records that a commit failed. It returns an error unless the disk was full.
func (p *processor) uncommitted(err error) (bool, error) {
	p.r.d.metrics.commitFailed(p.r.task)
	if !full(err) {
		return false, err
	}
	p.failed = true
	p.r.troubled("commit", err)
	return false, nil
}

// keep writes to the archive the releases that the next commit drops.
func (p *processor) keep() error {
	if err := p.r.archive.append(p.epoch.m.Epoch, p.archived); err != nil {
		return err
	}
	p.archived = nil
	return nil
}

// older returns the older anchors of the next checkpoint in a partition, whose newest one
// is given, by those of the last checkpoint.
func older(was partPosition, newest *kafka.Anchor) []kafka.Anchor {
	if newest == nil {
		return nil
	}
	all := slices.Clip(was.older)
	if a := was.position.Anchor; a != nil && a.Offset < newest.Offset {
		all = append(all, kafka.Anchor{Offset: a.Offset, Hash: a.Hash, LeaderEpoch: -1})
	}
	return thinned(all, newest.Offset)
}

// acknowledge removes acknowledged releases from the outbox. The next commit removes them
// from the checkpoint.
func (p *processor) acknowledge() {
	acked := p.pub.acked.Load()
	n := 0
	for n < p.sent && p.outbox[n].Step <= acked {
		p.outboxBytes -= p.outbox[n].size()
		n++
	}
	if p.r.d.cfg.State.Archive {
		p.archived = append(p.archived, p.outbox[:n]...)
	}
	p.outbox = p.outbox[n:]
	p.sent -= n
	p.report()
}

// end closes the epoch. If the disk is too full for what must be written first, it does
// not, and done is false.
func (p *processor) end(ctx context.Context) (done bool, err error) {
	if p.quiet > 0 && !p.comparing {
		if p.failed {
			return false, nil // a tick tries again
		}
		if done, err := p.commit(p.nextTick()); !done {
			p.schedule(p.r.d.now())
			return false, err
		}
	}
	if err := p.r.write(ctx, p.keep); err != nil {
		return false, err
	}
	p.pub.stop()
	p.ended = true
	p.show()
	if p.comparing {
		// Only on request. The epoch also covers what its other copy published.
		err = p.r.closeHalted(ctx, p.opened(), p.ending.open.DropOutbox)
	} else {
		reason := reasonRequest
		if p.exhausted {
			reason = reasonHorizon
			if why, ended := p.core.Ended(); ended {
				reason = why
			}
		}
		err = p.r.closeEpoch(ctx, p.opened(), p.epoch.cp.ends(p.r.anchorMAC), p.epoch.cp.step, reason)
	}
	if p.ending == nil {
		return true, err
	}
	if err == nil && p.ending.kind == requestOpen {
		if !p.comparing {
			p.ending.open.output, _ = p.pub.position()
		}
		err = p.r.open(ctx, p.ending.open)
	}
	p.ending.reply <- err
	p.ending = nil
	var h *halt
	if errors.As(err, &h) {
		err = nil // the request has the answer; settle finds what is left
	}
	return true, err
}

// shutdown ends the run. It drops the open step, commits everything that is closed and,
// if the broker answers in time, publishes it.
func (p *processor) shutdown() error {
	if p.due() || p.quiet > 0 {
		if _, err := p.commit(p.nextTick()); err != nil {
			return err
		}
	}
	p.show()
	deadline := time.NewTimer(shutdownTime)
	defer deadline.Stop()
	for len(p.outbox) > 0 && !p.comparing {
		select {
		case <-p.pub.notify:
			p.acknowledge()
		case <-p.pub.failed:
			return nil // the next start meets it again
		case <-deadline.C:
			p.r.log.Warn("releases are left to be published at the next start", "releases", len(p.outbox))
			return nil
		}
	}
	if len(p.epoch.cp.outbox) > 0 && !p.comparing {
		_, err := p.commit(p.nextTick()) // so that the next start has nothing to repeat
		return err
	}
	return nil
}

// view returns the owner's state.
func (p *processor) view() view {
	log := logView{start: p.r.logStart.Load(), end: p.r.logEnd.Load()}
	if p.merge != nil {
		log = p.merge.log()
	}
	seen := p.seen
	if p.merge != nil && p.merge.ahead {
		seen = max(seen, p.merge.leaves[0].seen.Load())
	}
	return view{p.core.Step(), seen, len(p.pending), p.comparing, log, p.core.Verdict()}
}

// show publishes the owner's state, and what it has done, to status and metrics.
func (p *processor) show() {
	p.shown = p.view()
	if p.merge != nil && p.merge.ahead {
		done := p.merge.leaves[0].worked()
		p.work.add(&done)
	}
	p.r.d.metrics.worked(p.r.task, &p.work)
	p.work = work{}
	p.report()
}

// report shows the state as of the last tick, with what was acknowledged since.
func (p *processor) report() {
	p.r.progress(p.shown, len(p.outbox))
}
