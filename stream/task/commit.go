package task

import (
	"errors"
	"slices"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// edge is the core behind the last step that is closed.
type edge struct {
	step       uint64
	first      int64 // offset of the open step
	transcript dp.Transcript
	verdict    string
	state      []byte // where it was asked for
}

// boundary returns the core behind the last closed step, without its state. While a step is
// being closed beside the loop, that is the step before, and nobody else may look at the core.
func (p *processor) boundary() edge {
	if p.closing != nil {
		return p.closing.before
	}
	return edge{step: p.core.Step(), first: p.core.First(), transcript: p.core.Transcript(), verdict: p.core.Verdict()}
}

// withState returns the boundary with the mechanism's state. It is valid until the commit that
// it is for is written.
func (p *processor) withState() (edge, error) {
	at := p.boundary()
	if p.closing != nil {
		p.state = append(p.state[:0], at.state...) // the next closing writes over the other
	} else {
		state, err := p.core.AppendState(p.state[:0])
		if err != nil {
			return at, err
		}
		p.state = state
	}
	at.state = p.state
	return at, nil
}

// commit is a commit while it is written. It holds copies of what it needs, so that records can
// be applied and steps be closed meanwhile: they are of the next commit.
type commit struct {
	cp       *state.Checkpoint
	tick     time.Time
	begun    time.Time
	took     time.Duration
	bytes    int             // of the mechanism's state
	pending  int             // of the pending releases, which the outbox takes over
	size     int             // of these, in bytes
	quiet    int             // steps that are in it
	archived []state.Message // to be written to the archive before it
	span     trace.Span      // of the commit
	steps    trace.Span      // of what it makes durable
	lone     bool            // the outbox has nothing that waits to be sent before these
	left     bool            // the publisher has them
	err      error
	done     chan struct{} // closed when it is written and has left, or err says why it is not
}

// ended is closed when the commit is written; of nil it never is.
func (c *commit) ended() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.done
}

// takes returns how many of the pending releases the commit holds, and their bytes; of nil none.
func (c *commit) takes() (n, bytes int) {
	if c == nil {
		return 0, 0
	}
	return c.pending, c.size
}

// beside reports whether steps may be closed, and commits be written, beside the loop. The
// Journals of persons follow the steps one by one, and without a period each step waits for its
// commit.
func (p *processor) beside() bool { return p.Period > 0 && p.Epoch.Users == nil }

// write begins a commit of everything since the last one, at a tick. It leaves from the goroutine
// that writes it, at a tick of 10 ms. So nothing that the loop does meanwhile delays it. The loop
// takes note of it by p.writing when it comes to that, which nobody sees. Where nothing may go on
// beside a commit, write waits for it.
func (p *processor) write(tick time.Time) error {
	if !p.beside() || p.deferred() {
		_, err := p.commit(tick)
		return err
	}
	c, err := p.prepare(tick)
	if err != nil {
		return err
	}
	p.writing, p.failed = c, false
	go func() {
		defer close(c.done)
		p.store(c)
		p.sleep()
		p.leave(c)
	}()
	return nil
}

// sleep waits for a tick of 10 ms, and settleTime more. Where the system wakes it too late, because others
// compute, it waits for another tick, three in all.
func (p *processor) sleep() {
	for range 3 {
		now := p.R.D.Now()
		at := p.soon(now).Add(settleTime)
		if time.Sleep(at.Sub(now)); p.R.D.Now().Before(at.Add(settleTime)) {
			return
		}
	}
}

// soon returns the next tick of 10 ms.
func (p *processor) soon(now time.Time) time.Time {
	return multiple(p.R.D.Started, now, min(capTick, p.Period))
}

// written takes note of the commit that was begun by write.
func (p *processor) written() error {
	c := p.writing
	p.writing = nil
	_, err := p.finish(c)
	switch now := p.R.D.Now(); {
	case p.failed:
		p.schedule(now)
	case p.Full():
		p.tick = p.soon(now) // which went by while there was no room
	}
	return err
}

// commit makes everything since the last commit durable, at a tick. If the disk is full,
// the last commit stays, and a later tick tries again. While commits are deferred it stays, too.
func (p *processor) commit(tick time.Time) (done bool, err error) {
	if err := p.await(); err != nil {
		return false, err
	}
	if p.deferred() {
		return p.spill()
	}
	c, err := p.prepare(tick)
	if err != nil {
		return false, err
	}
	p.store(c)
	p.leave(c)
	done, err = p.finish(c)
	p.flush()
	return done, err
}

// prepare collects what a commit holds.
func (p *processor) prepare(tick time.Time) (*commit, error) {
	c := &commit{
		tick: tick, begun: p.R.D.Now(), pending: len(p.pending), size: p.PendingBytes, quiet: p.quiet, lone: p.sent == len(p.outbox),
		done: make(chan struct{}),
	}
	c.span = p.traceCommit(c.begun)
	for i := range p.pending {
		p.pending[i].Time = tick.Truncate(time.Millisecond)
	}
	at, err := p.withState()
	if err != nil {
		return nil, err
	}
	position := p.position
	var parts []state.Place
	if p.merge != nil {
		if position = p.merge.At[0].Position; p.Epoch.M.Partition == core.Merged {
			position, parts = kafka.Position{Next: at.first, LeaderEpoch: -1}, p.merge.At
		}
		for i := range parts {
			parts[i].Older = older(p.Epoch.Cp.Parts[i], parts[i].Position.Anchor)
		}
	}
	if p.current != nil && at.first >= p.current.First {
		position = p.current.Position(at.first)
	}
	if position.Next != at.first {
		return nil, errors.New("internal: the boundary's position was not kept")
	}
	c.bytes = len(at.state)
	c.cp = &state.Checkpoint{
		Epoch: p.Epoch.M.Epoch, Manifest: p.Epoch.Cp.Manifest, Step: at.step, Position: position, Transcript: at.transcript,
		OutputTopic: p.Epoch.Cp.OutputTopic, OutputPartition: p.Epoch.Cp.OutputPartition,
		Build: epoch.Build(),
		State: at.state, Outbox: slices.Concat(p.outbox, p.pending), Parts: slices.Clone(parts),
	}
	c.cp.Older = older(p.Epoch.Cp.All()[0], position.Anchor)
	if p.merge != nil && p.merge.Bounds != nil {
		c.cp.BoundaryTopic, c.cp.Boundary = p.Epoch.Cp.BoundaryTopic, p.merge.Bound
	}
	c.cp.Output, c.cp.Acknowledged = p.pub.Position()
	c.archived, p.archived = p.archived, nil
	c.steps, p.steps = p.steps, trace.Span{}
	c.steps.Last = at.step
	return c, nil
}

// store writes a commit. The loop may go on meanwhile, unless persons are protected.
func (p *processor) store(c *commit) {
	c.err = p.R.D.Disk.InTurn(func() error {
		return p.R.Atomically(func() (err error) {
			if err = p.keep(&c.archived); err != nil {
				return err
			}
			if c.cp.Users, err = p.Epoch.Users.Append(); err != nil {
				return err
			}
			c.cp.Ledger = p.R.D.Ledger.HeadHash()
			return p.R.Store.Commit(c.cp)
		})
	})
	c.took = p.R.D.Now().Sub(c.begun)
	p.tracedCommit(c)
}

// leave shows to the outside that a commit is durable, or has failed. Its releases go to the
// Publisher, unless others must go before them or are compared: then the loop sends them at a later
// tick. The loop may go on meanwhile.
func (p *processor) leave(c *commit) {
	if c.err != nil {
		p.complain(c.err)
		return
	}
	if p.R.D.Disk.Lost() {
		return // the instance that has the shard now publishes them; see flush
	}
	p.R.Recovered("commit")
	p.R.D.Lag.Reached(p.R.Task, p.Epoch.M, c.cp)
	p.dead.commit(c.cp.Position.Next)
	p.R.committed(c.tick, c.took, c.bytes)
	if _, behind := p.R.Guard.Behind(); c.lone && !behind {
		p.pub.Enqueue(slices.Clone(c.cp.Outbox[len(c.cp.Outbox)-c.pending:]), c.steps)
		c.left = true
	}
}

// complain shows that a commit failed.
func (p *processor) complain(err error) {
	if p.R.D.Metrics.CommitFailed(p.R.Task); failure.DiskFull(err) {
		p.R.Failing("commit", err)
	}
}

// finish takes note of a commit that is written, or has failed.
func (p *processor) finish(c *commit) (done bool, err error) {
	if c.err != nil {
		p.archived = append(c.archived, p.archived...)
		switch {
		case !p.steps.Begun():
			p.steps = c.steps // they are of the next commit
		case c.steps.Begun():
			c.steps.Failed = monitor.WhyFailed(c.err) // which has others as well
			c.steps.End(c.begun.Add(c.took))
		}
		return p.uncommitted(c.err)
	}
	if err := p.Epoch.Users.Committed(); err != nil && !failure.DiskFull(err) {
		return false, err // what a full disk keeps is tried again
	}
	p.merge.Unpause()
	p.failed = false
	p.pause.Reset()
	c.cp.State = nil
	p.Epoch.Cp = c.cp
	if c.steps.Begun() {
		p.committed = c.steps
	}
	p.OutboxBytes += c.size
	p.PendingBytes -= c.size
	p.outbox = append(slices.Clip(p.outbox), p.pending[:c.pending]...)
	p.pending = slices.Clone(p.pending[c.pending:])
	p.quiet -= c.quiet
	if c.left {
		p.sent = len(p.outbox)
		p.acknowledge() // what was while this was not known
	}
	return true, nil
}

// uncommitted records that a commit failed. It returns the error unless the disk was full.
func (p *processor) uncommitted(err error) (bool, error) {
	p.failed = failure.DiskFull(err)
	if p.failed {
		err = nil
	}
	return false, err
}

// keep writes to the archive the releases that the next commit drops, and empties the list.
func (p *processor) keep(archived *[]state.Message) error {
	if err := p.R.Archive.Append(p.Epoch.M.Epoch, *archived); err != nil {
		return err
	}
	*archived = nil
	return nil
}

// older returns the older anchors of the next checkpoint in a partition, whose newest one
// is given, by those of the last checkpoint.
func older(was state.Place, newest *kafka.Anchor) []kafka.Anchor {
	if newest == nil {
		return nil
	}
	all := slices.Clip(was.Older)
	if a := was.Position.Anchor; a != nil && a.Offset < newest.Offset {
		all = append(all, kafka.Anchor{Offset: a.Offset, Hash: a.Hash, LeaderEpoch: -1})
	}
	return state.Thinned(all, newest.Offset)
}
