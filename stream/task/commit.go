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

// commit is a commit that is being written. It holds copies of all that it needs, so meanwhile the loop can apply
// records and close steps. Those steps belong to the next commit.
type commit struct {
	cp       *state.Checkpoint
	tick     time.Time
	begun    time.Time
	took     time.Duration
	bytes    int             // size of the mechanism's state
	pending  int             // number of pending releases in it
	size     int             // bytes of these releases
	quiet    int             // number of steps in it
	archived []state.Message // releases to write to the archive before it
	span     trace.Span      // of the commit
	steps    trace.Span      // span of the steps that it makes durable
	lone     bool            // no earlier release in the outbox waits to be sent
	left     bool            // the publisher has its releases
	err      error
	done     chan struct{} // closed when it is written and visible outside, or has failed with err
}

// ended returns a channel that is closed when the commit has been written or has failed. For a nil c it returns nil,
// which blocks forever.
func (c *commit) ended() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.done
}

// takes returns the number and bytes of the pending releases in the commit. For a nil c both are 0.
func (c *commit) takes() (n, bytes int) {
	if c == nil {
		return 0, 0
	}
	return c.pending, c.size
}

// begin starts a goroutine that writes a commit of everything since the last one. When the commit is durable, the same
// goroutine makes it visible outside, at a tick of 10 ms. So work of the loop cannot delay it. The loop handles the end
// of the commit later, in handleWritten; the time of that has no effect outside.
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

// store writes a commit. The loop may go on meanwhile, unless the stream protects persons.
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

// leave makes visible outside that a commit is durable, or has failed. It gives the commit's releases to the publisher.
// If earlier releases must be sent first, or if releases are being compared, it does not: the loop then sends them at a
// later tick. The loop may go on meanwhile.
func (w *committer) leave(c *commit) {
	if c.err != nil {
		w.complain(c.err)
		return
	}
	if w.r.D.Disk.Lost() {
		return // the shard's new owner publishes them; see flush
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

// complain counts and logs a failed commit.
func (w *committer) complain(err error) {
	if w.r.D.Metrics.CommitFailed(w.r.Task); failure.DiskFull(err) {
		w.r.Failing("commit", err)
	}
}

// finish updates the owner's state after a commit that has been written or has failed.
func (w *committer) finish(c *commit) (done bool, err error) {
	if c.err != nil {
		w.archived = append(c.archived, w.archived...)
		switch {
		case !w.trace.steps.Begun():
			w.trace.steps = c.steps // these steps belong to the next commit
		case c.steps.Begun():
			c.steps.Failed = monitor.WhyFailed(c.err) // the next commit's span covers other steps too
			c.steps.End(c.begun.Add(c.took))
		}
		return w.uncommitted(c.err)
	}
	if err := w.epoch.Users.Committed(); err != nil && !failure.DiskFull(err) {
		return false, err // after a full disk, the next commit tries again
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
		w.acknowledge() // handle acknowledgements that came before w.sent was updated
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

// withState returns the snapshot after the last closed step, with the mechanism's state. It is valid until its commit
// is written.
func (w *committer) withState() (edge, error) {
	at := w.applier.boundary()
	state, err := w.applier.appendState(w.state[:0], at)
	if err != nil {
		return at, err
	}
	w.state, at.state = state, state
	return at, nil
}

// keep writes releases to the archive, because the next commit drops them, and empties the list.
func (w *committer) keep(archived *[]state.Message) error {
	if err := w.r.Archive.Append(w.epoch.M.Epoch, *archived); err != nil {
		return err
	}
	*archived = nil
	return nil
}
