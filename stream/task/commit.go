package task

import (
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

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

// begin begins a commit of everything since the last one, at a tick. It leaves from the goroutine
// that writes it, at a tick of 10 ms. So nothing that the loop does meanwhile delays it. The loop
// takes note of it by writing when it comes to that, which nobody sees.
func (w *committer) begin(tick time.Time) error {
	c, err := w.prepare(tick)
	if err != nil {
		return err
	}
	w.writing, w.failed = c, false
	go func() {
		defer close(c.done)
		w.store(c)
		w.sleep()
		w.leave(c)
	}()
	return nil
}

// prepare collects what a commit holds.
func (w *committer) prepare(tick time.Time) (*commit, error) {
	c := &commit{
		tick: tick, begun: w.r.D.Now(), pending: len(w.pending), size: w.pendingBytes, quiet: w.quiet,
		lone: w.sent == len(w.outbox), done: make(chan struct{}),
	}
	c.span = w.trace.commit(w.r.D.Trace, w.epoch.Cp.Step+1, w.applier.boundary().step, c.begun)
	for i := range w.pending {
		w.pending[i].Time = tick.Truncate(time.Millisecond)
	}
	at, err := w.withState()
	if err != nil {
		return nil, err
	}
	position, parts, err := w.applier.places(at)
	if err != nil {
		return nil, err
	}
	c.bytes = len(at.state)
	c.cp = &state.Checkpoint{
		Epoch: w.epoch.M.Epoch, Manifest: w.epoch.Cp.Manifest, Step: at.step, Position: position,
		Transcript:  at.transcript,
		OutputTopic: w.epoch.Cp.OutputTopic, OutputPartition: w.epoch.Cp.OutputPartition,
		Build: epoch.Build(),
		State: at.state, Outbox: slices.Concat(w.outbox, w.pending), Parts: slices.Clone(parts),
	}
	c.cp.Older = older(w.epoch.Cp.All()[0], position.Anchor)
	if merge := w.applier.merge; merge != nil && merge.Bounds != nil {
		c.cp.BoundaryTopic, c.cp.Boundary = w.epoch.Cp.BoundaryTopic, merge.Bound
	}
	c.cp.Output, c.cp.Acknowledged = w.pub.Position()
	c.archived, w.archived = w.archived, nil
	c.steps = w.trace.take()
	c.steps.Last = at.step
	return c, nil
}

// store writes a commit. The loop may go on meanwhile, unless persons are protected.
func (w *committer) store(c *commit) {
	c.err = w.r.D.Disk.InTurn(func() error {
		return w.r.Atomically(func() (err error) {
			if err = w.keep(&c.archived); err != nil {
				return err
			}
			if c.cp.Users, err = w.epoch.Users.Append(); err != nil {
				return err
			}
			c.cp.Ledger = w.r.D.Ledger.HeadHash()
			return w.r.Store.Commit(c.cp)
		})
	})
	c.took = w.r.D.Now().Sub(c.begun)
	c.endSpans()
}

// leave shows to the outside that a commit is durable, or has failed. Its releases go to the
// publisher, unless others must go before them or are compared: then the loop sends them at a later
// tick. The loop may go on meanwhile.
func (w *committer) leave(c *commit) {
	if c.err != nil {
		w.complain(c.err)
		return
	}
	if w.r.D.Disk.Lost() {
		return // the instance that has the shard now publishes them; see flush
	}
	w.r.Recovered("commit")
	w.r.D.Lag.Reached(w.r.Task, w.epoch.M, c.cp)
	w.dead.commit(c.cp.Position.Next)
	w.r.committed(c.tick, c.took, c.bytes)
	if _, behind := w.r.Guard.Behind(); c.lone && !behind {
		w.pub.Enqueue(slices.Clone(c.cp.Outbox[len(c.cp.Outbox)-c.pending:]), c.steps)
		c.left = true
	}
}

// complain shows that a commit failed.
func (w *committer) complain(err error) {
	if w.r.D.Metrics.CommitFailed(w.r.Task); failure.DiskFull(err) {
		w.r.Failing("commit", err)
	}
}

// finish takes note of a commit that is written, or has failed.
func (w *committer) finish(c *commit) (done bool, err error) {
	if c.err != nil {
		w.archived = append(c.archived, w.archived...)
		switch {
		case !w.trace.steps.Begun():
			w.trace.steps = c.steps // they are of the next commit
		case c.steps.Begun():
			c.steps.Failed = monitor.WhyFailed(c.err) // which has others as well
			c.steps.End(c.begun.Add(c.took))
		}
		return w.uncommitted(c.err)
	}
	if err := w.epoch.Users.Committed(); err != nil && !failure.DiskFull(err) {
		return false, err // what a full disk keeps is tried again
	}
	w.applier.merge.Unpause()
	w.failed = false
	w.pause.Reset()
	c.cp.State = nil
	w.epoch.Cp = c.cp
	if c.steps.Begun() {
		w.trace.committed = c.steps
	}
	w.outboxBytes += c.size
	w.pendingBytes -= c.size
	w.outbox = append(slices.Clip(w.outbox), w.pending[:c.pending]...)
	w.pending = slices.Clone(w.pending[c.pending:])
	w.quiet -= c.quiet
	if c.left {
		w.sent = len(w.outbox)
		w.acknowledge() // what was while this was not known
	}
	return true, nil
}

// uncommitted records that a commit failed. It returns the error unless the disk was full.
func (w *committer) uncommitted(err error) (bool, error) {
	w.failed = failure.DiskFull(err)
	if w.failed {
		err = nil
	}
	return false, err
}

// withState returns the boundary with the mechanism's state. It is valid until the commit that
// it is for is written.
func (w *committer) withState() (edge, error) {
	at := w.applier.boundary()
	state, err := w.applier.appendState(w.state[:0], at)
	if err != nil {
		return at, err
	}
	w.state, at.state = state, state
	return at, nil
}

// keep writes to the archive the releases that the next commit drops, and empties the list.
func (w *committer) keep(archived *[]state.Message) error {
	if err := w.r.Archive.Append(w.epoch.M.Epoch, *archived); err != nil {
		return err
	}
	*archived = nil
	return nil
}
