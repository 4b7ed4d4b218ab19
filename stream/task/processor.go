package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// processor Owns an open epoch. Records go through its core. The releases that come out
// wait for a commit, which makes them durable. Then they wait for the publisher, which
// sends them to the broker.
//
// A release leaves at a tick of a clock that no record moves: settleTime after applying
// Stopped for the tick. If the work on a record or a step lasted longer than that, the
// release leaves at a later tick. How long the work took depends on records and noise;
// it shows only in the choice of the tick. Status and metrics change at ticks too, and
// times in messages and metrics are those of ticks. A commit may be written while the records
// behind it are applied, see writing.
type processor struct {
	R     *Runner
	Epoch *epoch.OpenEpoch
	core  *core.Core
	fetch *input.Fetcher // of an epoch that is not merged
	merge *input.Merger  // of one that is
	pub   *output.Publisher
	// readers are those of all partitions.
	readers []*kafka.Reader

	whole    []input.StepSum // sums of all partitions that wait to be merged
	current  *codec.Batch    // being applied
	next     int             // its next record
	position kafka.Position  // of the last boundary, where that lies before current
	seen     int64           // offsets below it have been applied
	refused  uint64          // of the mechanism's counts, what metrics have
	clipped  uint64

	archived     []state.Message // acknowledged, and still in the last commit
	pending      []state.Message // built since the last commit
	PendingBytes int
	quiet        int             // steps since the last commit
	dead         *deadLetters    // nil: none are wanted
	outbox       []state.Message // durable, not acknowledged
	OutboxBytes  int
	sent         int  // of outbox: given to the publisher
	comparing    bool // Waiting what the output holds already
	missing      int  // messages that it did not hold, since then

	Period time.Duration
	tick   time.Time     // when a commit is due, if there is something to commit
	worked bool          // records were applied since the loop looked at the clock
	missed int           // ticks in a row that passed during that
	asleep bool          // nothing has happened since the last tick: the next is after something does
	pause  kafka.Backoff // between commits that the disk has no room for
	failed bool          // the last commit was one
	state  []byte        // scratch of commits
	before []byte        // scratch of closings

	writing *commit  // a commit that is being written; nil: none is
	closing *closing // a step that is being closed beside the loop; nil: none is

	span      trace.Work // what spans of the epoch say
	steps     trace.Span // of what was closed since the last commit
	closes    int        // of it: spans
	committed trace.Span // of what the last commit made durable

	shown monitor.Progress // what the outside sees, as of the last tick
	work  monitor.Counts   // since then

	exhausted bool
	ending    *Request // a close that waits for acknowledgements
	// interrupted is a request that must be met while no epoch runs. Afterwards this epoch
	// continues from its last commit.
	interrupted *Request
	ended       bool // the epoch is closed, and nothing of it is written any more
}

// wipe overwrites the states that commits and closings held: sums without noise, and noise.
func (p *processor) wipe() {
	clear(p.state[:cap(p.state)])
	clear(p.before[:cap(p.before)])
}

// begin publishes what an earlier run left unpublished, unless the output is ahead of that.
func (p *processor) begin() {
	for i := range p.outbox {
		p.OutboxBytes += p.outbox[i].Size()
	}
	if p.compare(); !p.comparing {
		p.R.D.Metrics.Republished(p.R.Task, len(p.outbox))
		p.flush()
	}
	p.exhausted = p.over()
	p.schedule(p.R.D.Now())
	p.show()
}

// over reports whether the last step was the final one: the horizon is reached, or the
// Mechanism says so.
func (p *processor) over() bool {
	if _, ended := p.core.Ended(); ended {
		return true
	}
	h := p.R.S.LastStep()
	return h > 0 && p.core.Step() >= h
}

// compare finds out whether the output is ahead of this state, or is so no longer.
func (p *processor) compare() {
	ahead, behind := p.R.Guard.Behind()
	if behind == p.comparing {
		return
	}
	p.comparing = behind
	if p.Period == 0 {
		p.show() // there may be no tick for a while
	}
	if behind {
		p.missing = 0
		p.R.Log.Warn("the output is ahead of this state: repeating releases to compare them, and publishing none meanwhile",
			"step", p.boundary().step, "published", ahead)
		return
	}
	p.R.Log.Info("the output holds the same releases", "step", p.boundary().step)
	failure.Signal(p.pub.Wake)
}

// flush gives the publisher the durable releases that it does not have yet, unless another
// instance may have the shard: then that one publishes them.
func (p *processor) flush() {
	if p.comparing || p.sent == len(p.outbox) || p.R.D.Disk.Lost() {
		return
	}
	p.pub.Enqueue(slices.Clone(p.outbox[p.sent:]), p.committed)
	p.sent = len(p.outbox)
}

// schedule sets the next tick, a multiple of the period. After a commit that failed
// because the disk is full, a pause comes first.
func (p *processor) schedule(now time.Time) {
	if p.failed {
		now = now.Add(p.pause.Next())
	}
	p.tick = multiple(p.R.D.Started, now, p.Period)
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

// Full reports whether applying must wait for a commit, beside the one that is being written.
func (p *processor) Full() bool {
	if p.deferred() {
		return p.crowded()
	}
	if p.Period == 0 {
		return len(p.pending) > 0
	}
	n, bytes := p.writing.takes()
	return len(p.pending)-n >= epoch.MaxPending || p.PendingBytes-bytes >= p.R.D.Unpublished(epoch.MaxPendingBytes) || p.crowded()
}

// Choked reports whether applying must wait for the broker, which while releases are
// compared gets none.
func (p *processor) Choked() bool {
	n, bytes := p.writing.takes()
	return !p.comparing && (len(p.outbox)+n >= maxOutbox || p.OutboxBytes+bytes >= p.R.D.Unpublished(maxOutboxBytes))
}

// loop is the owner's main loop. It returns nil when the context or the epoch has ended.
func (p *processor) loop(ctx context.Context) (err error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer func() { err = graver(err, p.await()) }()
	for ctx.Err() == nil && p.interrupted == nil {
		select {
		case <-p.writing.ended(): // before the next tick asks
			if err := p.written(); err != nil {
				return err
			}
		default:
		}
		if now := p.R.D.Now(); !p.asleep && !now.Before(p.tick) {
			if p.worked && p.Period > 0 && now.After(p.tick.Add(settleTime)) {
				p.miss(now)
			} else if err := p.onTick(); err != nil {
				return err
			}
		}
		p.worked = false
		p.compare()
		if err := p.refuse(); err != nil {
			p.ending.Reply <- err
			p.ending = nil
		}
		stopping := p.exhausted || p.ending != nil
		if stopping && p.settled() {
			if done, err := p.end(ctx); done || err != nil {
				return err
			}
		}
		held := stopping || p.Full() || p.Choked() || p.closing != nil || p.resting()
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
		requests := p.R.Requests
		if p.closing != nil {
			requests = nil // they look at the core
		}
		var moved chan struct{}
		if p.merge != nil && (p.asleep || p.Period == 0) { // no tick shows it
			moved = p.merge.Moved
		}
		wait := time.Hour
		if !p.asleep && (p.due() || p.Period > 0) {
			wait = max(p.tick.Sub(p.R.D.Now()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case b := <-in:
			p.current, p.next = b, 0
			p.work.Read(b)
		case p.whole = <-sums:
		case <-moved:
		case <-timer.C:
		case <-p.closing.ended():
			err = p.closedBeside()
		case <-p.writing.ended():
			err = p.written()
		case <-p.pub.Notify:
			p.acknowledge()
		case err = <-p.pub.Failed:
		case err = <-broken:
		case q := <-requests:
			p.request(ctx, q)
		}
		if err != nil {
			return err
		}
		if p.asleep {
			p.asleep = false
			p.schedule(p.R.D.Now())
		}
	}
	return nil
}

// resting reports whether applying has stopped for the tick.
func (p *processor) resting() bool {
	return p.Period > 0 && !p.asleep && !p.R.D.Now().Before(p.tick.Add(-p.lead()))
}

// miss takes note that the tick has passed while records were applied or a step was closed. The
// next one is for what should have been committed. If work lasts long, nothing is applied before
// that; else little is lost by trying with less.
func (p *processor) miss(now time.Time) {
	if p.missed++; now.After(p.tick.Add(p.Period / 4)) {
		p.missed = mostMissed
	}
	p.tick = multiple(p.R.D.Started, now, p.Period)
}

// mostMissed is the number of ticks that may be missed in a row.
const mostMissed = 3

// lead is how long before the tick applying stops.
func (p *processor) lead() time.Duration {
	switch p.missed {
	case 0:
		return 0
	case 1:
		return p.Period / 16
	case 2:
		return p.Period / 4
	}
	return p.Period
}

// await waits for the step that is being closed and for the commit that is being written, if
// there are any.
func (p *processor) await() error {
	var err error
	if p.closing != nil {
		<-p.closing.ended()
		err = p.closedBeside()
	}
	if p.writing != nil {
		<-p.writing.ended()
		err = graver(err, p.written())
	}
	return err
}

// graver returns an error of the loop, unless there is one of the disk, b: that ends the process, and
// the other may only halt the task.
func graver(a, b error) error {
	if h := (*failure.Halt)(nil); b != nil && !errors.As(b, &h) {
		return b
	}
	return cmp.Or(a, b)
}

// request accepts a request to close the epoch, unless it cannot be met.
func (p *processor) request(ctx context.Context, q Request) {
	err := errors.New("the epoch is being closed already")
	switch {
	case q.Kind == RequestRecover:
		err = errors.New("the task is running: there is nothing to recover")
	case p.ending != nil:
	case q.Kind == RequestRepublish && p.comparing:
		err = errors.New("the task compares what was published before this state was restored: nothing is published until that has ended")
	case q.Kind == RequestRepublish:
		p.interrupted, err = &q, nil
		return
	default:
		ends, logs := p.reached()
		if err = nil; q.Kind == RequestOpen {
			err = p.R.Acceptable(ctx, q.Open, p.opened(), ends, p.Epoch.Cp.Step, logs)
		}
	}
	if err != nil {
		q.Reply <- err
		return
	}
	p.ending = &q
}

// sources returns where records come from, and where errors of reading do. held says that
// nothing may be applied.
func (p *processor) sources(held bool) (in chan *codec.Batch, sums chan []input.StepSum, broken chan error) {
	wanted := p.current == nil && p.whole == nil && !held
	if p.merge != nil {
		if wanted {
			sums = p.merge.MergedSums
		}
		return nil, sums, p.merge.Failed
	}
	if wanted {
		in = p.fetch.Full
	}
	return in, nil, p.fetch.Failed
}

// workOff applies what has been read.
func (p *processor) workOff() error {
	if p.merge != nil {
		return p.applySums()
	}
	return p.apply()
}

// reached returns where the open step begins and the offsets of the log, by partition.
func (p *processor) reached() (ends []ledger.EntryPart, logs []kafka.Offsets) {
	if p.merge == nil {
		return []ledger.EntryPart{{End: p.core.First()}}, []kafka.Offsets{{Start: p.R.LogStart.Load(), Stable: p.R.LogEnd.Load(), End: p.R.LogEnd.Load()}}
	}
	for i, at := range p.merge.At {
		start, end := p.merge.Leaves[i].LogStart.Load(), p.merge.Leaves[i].LogEnd.Load()
		ends, logs = append(ends, ledger.EntryPart{Partition: at.Partition, End: at.Position.Next}), append(logs, kafka.Offsets{Start: start, Stable: end, End: end})
	}
	return ends, logs
}

// opened returns the ledger's entry of the epoch.
func (p *processor) opened() *ledger.Entry { return p.R.D.Ledger.Opening(p.R.Task, p.Epoch.M.Epoch) }

// refuse returns why a request can't be met: while releases are compared, nothing is
// Published that it could wait for.
func (p *processor) refuse() error {
	if left := len(p.outbox) + len(p.pending); p.ending != nil && p.comparing && left > 0 && !p.ending.Open.DropOutbox {
		return fmt.Errorf("%d releases of the epoch are not published, and are not while others are compared: ask again later (--drop-outbox gives them up)", left)
	}
	return nil
}

// settled reports whether nothing is left to commit or to publish. While releases are
// compared, nothing is published, so a request need not wait for that.
func (p *processor) settled() bool {
	if p.closing != nil || p.writing != nil {
		return false
	}
	if p.ending != nil && p.comparing {
		return true
	}
	if len(p.pending) > 0 {
		return false
	}
	return len(p.outbox) == 0 || p.ending != nil && p.ending.Open.DropOutbox
}

// apply applies records of the current batch, until the batch ends, a tick comes, or a
// commit must come first.
func (p *processor) apply() error {
	b, c := p.current, p.core
	for ; p.next < len(b.Records); p.next++ {
		offset := b.Records[p.next].Offset
		for offset >= c.End() {
			if stop, err := p.close(c.Close); stop || err != nil || p.resting() {
				return err
			}
		}
		if p.next&63 == 63 && p.resting() {
			return nil
		}
		if p.next&63 == 0 {
			c.Warm(b.TagsFrom(p.next, 64))
		}
		if why := c.AddOf(offset, b.Row(p.next), b.Tag(p.next)); why != persons.Counts {
			p.work.Uncounted(b.Reasons[p.next], why)
		}
	}
	for b.Next >= c.End() {
		if stop, err := p.close(c.Close); stop || err != nil || p.resting() {
			return err
		}
	}
	if c.First() >= b.First {
		p.position = b.Position(c.First())
	}
	p.count()
	p.current, p.seen = nil, b.Next
	p.fetch.Done(b)
	return nil
}

// count takes the mechanism's counts of records for the metrics.
func (p *processor) count() {
	if refused := p.core.Mechanism().Refused; refused != nil {
		why, n := refused()
		p.work.Rejected[why] += int(n - p.refused)
		p.refused = n
	}
	if clipped := p.core.Mechanism().Clipped; clipped != nil {
		n := clipped()
		p.work.Clipped += n - p.clipped
		p.clipped = n
	}
}

// applySums merges the sums of a step, and closes it.
func (p *processor) applySums() error {
	steps := p.whole
	p.whole = nil
	merge := func() ([]core.Message, error) {
		return p.core.Merge(input.SumsOf(steps), func() { p.merge.Emptied(steps) })
	}
	if p.merge.Ahead && p.beside() {
		return p.closeBeside(steps, merge)
	}
	_, err := p.close(merge)
	return p.applied(steps, err)
}

// applied takes note of sums with which a step was closed, unless err says that it was not.
func (p *processor) applied(steps []input.StepSum, err error) error {
	if err != nil || p.core.Step() < steps[0].Step {
		return err // the epoch has ended before the step
	}
	p.merge.Merged(steps)
	p.merge.Pause(p.Epoch.Users)
	p.seen = p.core.First()
	for _, s := range steps {
		p.work.Add(&s.Work)
	}
	p.count()
	return nil
}

// close ends the open step, with by. stop asks the caller to return to the loop.
func (p *processor) close(by func() ([]core.Message, error)) (stop bool, err error) {
	var span trace.Span
	var now time.Time
	if p.R.D.Trace != nil {
		span = p.traceClose(p.core.Step()+1, p.R.D.Now())
	}
	messages, err := by()
	if p.R.D.Trace != nil {
		now = p.R.D.Now()
	}
	return p.closed(span, now, messages, err)
}

// closed takes note of what came out of closing a step, and when.
func (p *processor) closed(span trace.Span, at time.Time, messages []core.Message, err error) (stop bool, _ error) {
	if errors.Is(err, dp.ErrExhausted) {
		p.exhausted = true
		return true, nil
	}
	span.Failed = monitor.WhyFailed(err)
	span.End(at)
	if err != nil {
		return true, failure.Haltf(failure.Mechanism, "step %d: %w", p.core.Step()+1, err)
	}
	p.quiet++
	p.work.Steps++
	p.exhausted = p.over()
	// Compare what is published already. Of a release in pieces some may be missing.
	if messages, err = p.R.Guard.Closed(p.core.Step(), messages); err != nil {
		return true, err
	}
	p.compare()
	if p.comparing {
		if p.missing += len(messages); p.missing > epoch.MaxPending || p.PendingBytes > maxOutboxBytes {
			return true, p.R.Guard.Incomplete()
		}
	}
	if len(messages) > 0 {
		for _, m := range messages {
			p.pending = append(p.pending, state.Message{Message: m})
			p.PendingBytes += p.pending[len(p.pending)-1].Size()
		}
		p.work.Releases++
	}
	full := p.Full()
	if full && p.Period > 0 {
		p.tick = p.soon(p.R.D.Now())
	}
	return p.exhausted || full, nil
}

// onTick commits what is due and shows what was done. Between the tick and that nothing
// is applied.
func (p *processor) onTick() error {
	if p.Period > 0 && (p.due() || p.view() != p.shown) {
		time.Sleep(p.tick.Add(settleTime).Sub(p.R.D.Now()))
	}
	p.missed = 0
	if p.due() && p.writing == nil {
		if err := p.write(p.tick); err != nil {
			return err
		}
	}
	p.flush()
	p.schedule(p.R.D.Now())
	p.show()
	// What a merger of several logs reads changes the view without waking the owner, and so do
	// the ends of a log while nothing is applied.
	p.asleep = p.Period > 0 && (p.merge == nil || p.merge.Ahead) && p.whole == nil && p.current == nil && p.writing == nil && !p.due() && !p.Choked()
	return nil
}

// nextTick waits for a tick outside the loop, at the end of a run or of an epoch, and
// returns it. It uses the shorter period that a full outbox has too.
func (p *processor) nextTick() time.Time {
	tick := p.soon(p.R.D.Now())
	if p.Period > 0 {
		time.Sleep(tick.Add(settleTime).Sub(p.R.D.Now()))
	}
	return tick
}

// acknowledge removes acknowledged releases from the outbox. The next commit removes them
// from the checkpoint.
func (p *processor) acknowledge() {
	acked := p.pub.Acked.Load()
	n := 0
	for n < p.sent && p.outbox[n].Step <= acked {
		p.OutboxBytes -= p.outbox[n].Size()
		n++
	}
	if p.R.D.Cfg.State.Archive {
		p.archived = append(p.archived, p.outbox[:n]...)
	}
	p.outbox = p.outbox[n:]
	p.sent -= n
}

// end closes the epoch. If the disk is too full for what must be written first, it does
// not, and done is false.
func (p *processor) end(ctx context.Context) (done bool, err error) {
	if p.quiet > 0 && !p.comparing {
		if p.failed {
			return false, nil // a tick tries again
		}
		if done, err := p.commit(p.nextTick()); !done {
			p.schedule(p.R.D.Now())
			return false, err
		}
	}
	if err := p.R.DoDisk(ctx, func() error { return p.keep(&p.archived) }); err != nil {
		return false, err
	}
	p.pub.Stop()
	p.ended = true
	p.show()
	if p.comparing {
		// Only on request. The epoch also covers what its other copy published.
		err = p.R.CloseStopped(ctx, p.opened(), p.ending.Open.DropOutbox)
	} else {
		reason := ledger.ReasonRequest
		if p.exhausted {
			reason = ledger.ReasonHorizon
			if why, ended := p.core.Ended(); ended {
				reason = why
			}
		}
		err = p.R.CloseEpoch(ctx, p.opened(), ledger.EndsAt(p.Epoch.Cp, p.R.AnchorMAC), p.Epoch.Cp.Step, reason)
	}
	if p.ending == nil {
		return true, err
	}
	if err == nil && p.ending.Kind == RequestOpen {
		if !p.comparing {
			p.ending.Open.SearchFrom, _ = p.pub.Position()
		}
		err = p.R.Open(ctx, p.ending.Open)
	}
	p.ending.Reply <- err
	p.ending = nil
	var h *failure.Halt
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
	p.flush()
	p.show()
	deadline := time.NewTimer(epoch.ShutdownTime)
	defer deadline.Stop()
	for len(p.outbox) > 0 && !p.comparing && !p.R.D.Disk.Lost() {
		select {
		case <-p.pub.Notify:
			p.acknowledge()
		case <-p.pub.Failed:
			return nil // the next start meets it again
		case <-deadline.C:
			p.R.Log.Warn("releases are left to be published at the next start", "releases", len(p.outbox))
			return nil
		}
	}
	if len(p.Epoch.Cp.Outbox) > 0 && !p.comparing {
		_, err := p.commit(p.nextTick()) // so that the next start has nothing to repeat
		return err
	}
	return nil
}

// view returns the owner's state.
func (p *processor) view() monitor.Progress {
	log := monitor.LogLag{Start: p.R.LogStart.Load(), End: p.R.LogEnd.Load()}
	if p.merge != nil {
		log = p.merge.Log()
	}
	seen := p.seen
	if p.merge != nil && p.merge.Ahead {
		seen = max(seen, p.merge.Leaves[0].Seen.Load())
	}
	at := p.boundary()
	return monitor.Progress{Step: at.step, Seen: seen, Unsent: len(p.outbox) + len(p.pending), Comparing: p.comparing, Log: log, Verdict: at.verdict}
}

// show publishes the owner's state, and what it has done, to status and metrics.
func (p *processor) show() {
	p.shown = p.view()
	if p.merge != nil && p.merge.Ahead {
		done := p.merge.Leaves[0].Worked()
		p.work.Add(&done)
	}
	p.R.D.Metrics.Worked(p.R.Task, &p.work)
	p.work = monitor.Counts{}
	p.R.progress(p.shown)
}
