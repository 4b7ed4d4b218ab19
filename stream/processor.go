package stream

import (
	"context"
	"errors"
	"slices"
	"time"

	"streamdp/dp"
	"streamdp/internal/kafka"
)

// processor is the owner of an open epoch: records go through its core, what
// comes out waits for a commit, what is committed for the broker.
//
// A release leaves at a tick of a clock that no record moves, a settleTime
// after applying stopped for it: how long its noise took to draw, which in rare
// cases depends on the noise, shows nowhere. What status and metrics say of the
// work changes at ticks too.
type processor struct {
	r     *runner
	live  *live
	core  *core
	fetch *fetcher
	pub   *publisher

	current  *batch         // being applied
	next     int            // its next record
	position kafka.Position // of the last boundary, where that lies before current
	seen     int64          // offsets below it have been applied
	refused  uint64         // of the mechanism's count, what metrics have

	pending      []pending // built since the last commit
	pendingBytes int
	quiet        int       // steps since the last commit
	outbox       []pending // durable, not acknowledged
	outboxBytes  int
	sent         int  // of outbox: given to the publisher
	comparing    bool // repeating what was published before this state was restored

	period time.Duration
	tick   time.Time     // when a commit is due, if there is something to commit
	pause  kafka.Backoff // between commits that the disk has no room for
	failed bool          // the last commit was one
	state  []byte        // scratch

	shown view // what the outside sees, as of the last tick
	work  work // since then

	exhausted bool
	ending    *request // a close that waits for acknowledgements
	ended     bool     // the epoch is closed, and nothing of it is written any more
}

// view is what the outside sees of an owner's progress.
type view struct {
	step             uint64
	seen             int64
	pending          int
	comparing        bool
	logStart, logEnd int64
}

// work is what a task has done and not shown yet.
type work struct {
	records, steps, releases int
	rejected                 [reasons]int
}

// read counts a batch.
func (w *work) read(b *batch) {
	w.records += len(b.Records)
	for _, r := range b.reasons {
		w.rejected[r]++
	}
}

// begin publishes what an earlier run owes, unless the output is ahead of it.
func (p *processor) begin() {
	p.comparing = p.live.ahead > p.core.step
	for i := range p.outbox {
		p.outboxBytes += p.outbox[i].size()
	}
	if p.comparing {
		p.r.log.Warn("the output is ahead of this state: repeating releases to compare them",
			"step", p.core.step, "published", p.live.ahead)
	} else {
		p.r.d.metrics.republished(p.r.task, len(p.outbox))
		p.flush()
	}
	if h := p.r.s.LastStep(); h > 0 && p.core.step >= h {
		p.exhausted = true
	}
	p.schedule(p.r.d.now())
	p.show()
}

// flush gives the publisher what is durable and has not been given yet.
func (p *processor) flush() {
	if p.comparing || p.sent == len(p.outbox) {
		return
	}
	p.pub.enqueue(slices.Clone(p.outbox[p.sent:]))
	p.sent = len(p.outbox)
}

// schedule sets the next tick, a multiple of the period; after a commit that
// the disk had no room for, a pause comes first.
func (p *processor) schedule(now time.Time) {
	if p.failed {
		now = now.Add(p.pause.Next())
	}
	p.tick = multiple(p.r.d.started, now, p.period)
}

// multiple returns the first start + k·period after now; period 0 gives now.
func multiple(start, now time.Time, period time.Duration) time.Time {
	if period == 0 {
		return now
	}
	return start.Add((now.Sub(start)/period + 1) * period)
}

// due reports whether there is something to commit.
func (p *processor) due() bool {
	return len(p.pending) > 0 || p.quiet >= quietSteps || p.failed && p.quiet > 0
}

// full reports whether applying must wait for a commit.
func (p *processor) full() bool {
	if p.period == 0 {
		return len(p.pending) > 0
	}
	return len(p.pending) >= maxPending || p.pendingBytes >= maxPendingBytes
}

// choked reports whether applying must wait for the broker.
func (p *processor) choked() bool {
	return len(p.outbox) >= maxOutbox || p.outboxBytes >= maxOutboxBytes
}

// loop is the owner's life. It returns nil when the context or the epoch has
// ended.
func (p *processor) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if now := p.r.d.now(); !now.Before(p.tick) {
			if err := p.onTick(); err != nil {
				return err
			}
		}
		stopping := p.exhausted || p.ending != nil
		if stopping && p.settled() {
			if done, err := p.end(ctx); done || err != nil {
				return err
			}
		}
		held := stopping || p.full() || p.choked()
		if p.current != nil && !held {
			if err := p.apply(); err != nil {
				return err
			}
			continue
		}
		var in chan *batch
		if p.current == nil && !held {
			in = p.fetch.full
		}
		broken := p.fetch.failed
		if stopping {
			broken = nil // nothing more is read, so the log's fate is another epoch's
		}
		wait := time.Hour
		if p.due() || p.period > 0 {
			wait = max(p.tick.Sub(p.r.d.now()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case b := <-in:
			p.current, p.next = b, 0
			p.work.read(b)
		case <-timer.C:
		case <-p.pub.notify:
			p.acknowledge()
		case err := <-p.pub.failed:
			return err
		case err := <-broken:
			return err
		case q := <-p.r.requests:
			p.request(q)
		}
	}
	return nil
}

// request takes a request to close the epoch, unless it can't be met.
func (p *processor) request(q request) {
	err := errors.New("the epoch is being closed already")
	if p.ending == nil {
		err = p.r.acceptable(q, p.opened(), p.core.first, p.r.logStart.Load(), p.r.logEnd.Load())
	}
	if err != nil {
		q.reply <- err
		return
	}
	p.ending = &q
}

// opened returns the ledger's entry of the epoch.
func (p *processor) opened() *Entry { return p.r.d.ledger.opening(p.r.task, p.live.m.Epoch) }

// settled reports whether nothing is left to commit or to publish. While
// releases are compared, nothing is published that a request could wait for.
func (p *processor) settled() bool {
	if p.ending != nil && p.comparing {
		return true
	}
	if len(p.pending) > 0 {
		return false
	}
	return len(p.outbox) == 0 || p.ending != nil && p.ending.open.DropOutbox
}

// apply takes records of the current batch until it ends, a tick comes, or a
// commit must come first.
func (p *processor) apply() error {
	b, c := p.current, p.core
	columns := c.mech.Columns()
	for ; p.next < len(b.Records); p.next++ {
		offset := b.Records[p.next].Offset
		for offset >= c.end {
			if stop, err := p.close(); stop || err != nil {
				return err
			}
		}
		if p.next&63 == 63 && p.period > 0 && !p.r.d.now().Before(p.tick) {
			return nil
		}
		c.add(offset, b.row(p.next, columns))
	}
	for b.Next >= c.end {
		if stop, err := p.close(); stop || err != nil {
			return err
		}
	}
	if c.first >= b.First {
		p.position = b.Position(c.first)
	}
	if refused := c.mech.refused; refused != nil {
		why, n := refused()
		p.work.rejected[why] += int(n - p.refused)
		p.refused = n
	}
	p.current, p.seen = nil, b.Next
	p.fetch.free <- b
	return nil
}

// close ends the open step. stop asks for a return to the loop.
func (p *processor) close() (stop bool, err error) {
	messages, err := p.core.close()
	if errors.Is(err, dp.ErrExhausted) {
		p.exhausted = true
		return true, nil
	}
	if err != nil {
		return true, halted(haltMechanism, "step %d: %w", p.core.step+1, err)
	}
	p.quiet++
	p.work.steps++
	if h := p.r.s.LastStep(); h > 0 && p.core.step >= h {
		p.exhausted = true
	}
	if len(messages) > 0 {
		if p.comparing {
			// What is out already is compared; of a release in pieces some may be
			// missing.
			missing := messages[:0]
			for _, rel := range messages {
				was, ok := p.live.published[string(rel.key)]
				switch {
				case !ok:
					missing = append(missing, rel)
				case was != releaseHash(rel.key, rel.value, rel.headers):
					return true, p.r.differs(string(rel.key))
				}
			}
			messages = missing
		}
		if p.comparing && p.core.step >= p.live.ahead {
			p.comparing = false
			p.r.log.Info("the output holds the same releases", "step", p.core.step)
		}
	}
	if len(messages) > 0 {
		p.pending = append(p.pending, messages...)
		for i := range messages {
			p.pendingBytes += messages[i].size()
		}
		p.work.releases++
		if p.full() && p.period > 0 {
			p.tick = multiple(p.r.d.started, p.r.d.now(), min(capTick, p.period))
		}
	}
	return p.exhausted || p.full(), nil
}

// onTick commits what is due and shows what was done. Nothing is applied between
// the tick and that.
func (p *processor) onTick() error {
	if p.period > 0 && (p.due() || p.view() != p.shown) {
		time.Sleep(p.tick.Add(settleTime).Sub(p.r.d.now()))
	}
	if p.due() {
		if _, err := p.commit(); err != nil {
			return err
		}
	}
	p.flush()
	p.schedule(p.r.d.now())
	p.show()
	return nil
}

// commit makes everything since the last boundary durable. A full disk leaves
// the last commit as it was; it is tried again at a later tick.
func (p *processor) commit() (done bool, err error) {
	begun := p.r.d.now()
	at := begun.Truncate(time.Millisecond)
	for i := range p.pending {
		p.pending[i].time = at
	}
	position := p.position
	if p.current != nil && p.core.first >= p.current.First {
		position = p.current.Position(p.core.first)
	}
	if position.Next != p.core.first {
		return false, errors.New("internal: the boundary's position was not kept")
	}
	state, err := p.core.mech.AppendBinary(p.state[:0])
	if err != nil {
		return false, err
	}
	p.state = state
	cp := &checkpoint{
		epoch: p.live.m.Epoch, manifest: p.live.cp.manifest, step: p.core.step, position: position, transcript: p.core.transcript,
		outputTopic: p.live.cp.outputTopic, outputPartition: p.live.cp.outputPartition,
		ledger: p.r.d.ledger.headHash(), build: build(),
		state: state, outbox: append(slices.Clip(p.outbox), p.pending...),
	}
	cp.output, cp.acknowledged = p.pub.position()
	if err := p.r.store.commit(cp); err != nil {
		p.r.d.metrics.commitFailed(p.r.task)
		if !full(err) {
			return false, err
		}
		p.failed = true
		p.r.troubled("commit", err)
		return false, nil
	}
	p.failed = false
	p.pause.Reset()
	p.r.untroubled("commit")
	cp.state = nil
	p.live.cp = cp
	p.outbox = cp.outbox
	p.outboxBytes += p.pendingBytes
	p.pending, p.pendingBytes, p.quiet = nil, 0, 0
	p.r.committed(p.r.d.now().Sub(begun), len(state))
	p.flush()
	return true, nil
}

// acknowledge drops what the broker has from the outbox; the next commit drops
// it from the checkpoint.
func (p *processor) acknowledge() {
	acked := p.pub.acked.Load()
	n := 0
	for n < p.sent && p.outbox[n].step <= acked {
		p.outboxBytes -= p.outbox[n].size()
		n++
	}
	p.r.remember(p.outbox[:n])
	p.outbox = p.outbox[n:]
	p.sent -= n
	p.report()
}

// end closes the epoch. It is not done where the disk has no room for what must
// be written first.
func (p *processor) end(ctx context.Context) (done bool, err error) {
	if p.quiet > 0 && !p.comparing {
		if p.failed {
			return false, nil // a tick tries again
		}
		if done, err := p.commit(); !done {
			p.schedule(p.r.d.now())
			return false, err
		}
	}
	p.ended = true
	p.show()
	if p.comparing {
		// Only on request. The epoch covers what its other copy published.
		err = p.r.closeHalted(ctx, p.opened(), true)
	} else {
		reason := reasonRequest
		if p.exhausted {
			reason = reasonHorizon
		}
		at := p.live.cp.position
		err = p.r.closeEpoch(ctx, p.opened(), at.Next, at.Anchor, reason)
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

// shutdown ends the run: the open step is dropped, everything closed is
// committed and, if the broker answers in time, published.
func (p *processor) shutdown() error {
	if p.due() || p.quiet > 0 {
		time.Sleep(settleTime)
		if _, err := p.commit(); err != nil {
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
	if len(p.live.cp.outbox) > 0 && !p.comparing {
		_, err := p.commit() // so that the next start has nothing to repeat
		return err
	}
	return nil
}

// view returns the owner's state.
func (p *processor) view() view {
	return view{p.core.step, p.seen, len(p.pending), p.comparing, p.r.logStart.Load(), p.r.logEnd.Load()}
}

// show shows the owner's state, and what it has done, to the outside.
func (p *processor) show() {
	p.shown = p.view()
	p.r.d.metrics.worked(p.r.task, &p.work)
	p.work = work{}
	p.report()
}

// report shows the state as of the last tick, with what was acknowledged since.
func (p *processor) report() {
	p.r.progress(p.shown, len(p.outbox))
}
