package task

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
)

// watched makes sure that the task's watch runs.
func (r *Runner) watched(ctx context.Context) *boundary.Sampler {
	if r.watch != nil {
		return r.watch
	}
	period := r.S.Step.Clock()
	r.watch = boundary.StartSampler(ctx, r.Retrier, r.D.Client, r.D.Beats(period), period)
	return r.watch
}

// unwatch ends the task's watch: no epoch follows by itself. What it saw is forgotten.
func (r *Runner) unwatch() {
	if r.watch != nil {
		r.watch.Stop()
		r.watch = nil
	}
}

// Serve answers a request while no epoch is running.
func (r *Runner) Serve(ctx context.Context, q Request) error {
	if q.ChangesEpoch() {
		r.D.Ledger.AcceptKey()
	}
	if q.Kind == RequestOpen {
		if err := r.D.Mirror.Adopt(ctx); err != nil {
			return err
		}
	}
	if err := r.FinishClosings(ctx); err != nil {
		return err
	}
	switch q.Kind {
	case RequestRecover:
		return recovery.Restorer{Keeper: r.Keeper}.Recover(ctx, q.From)
	case RequestRepublish:
		return recovery.Restorer{Keeper: r.Keeper}.Republish(ctx, q.Republish)
	}
	last := r.D.Ledger.Newest(r.Task)
	if last == nil || last.Kind != ledger.KindOpen {
		if q.Kind == RequestClose {
			return errors.New("the task has no open epoch")
		}
		return r.Open(ctx, q.Open)
	}
	var logs []kafka.Offsets
	for _, src := range last.Sources() {
		log, err := r.D.Client.Offsets(ctx, src.Topic, int32(src.Partition))
		if err != nil {
			log = kafka.Offsets{Start: -1, Stable: -1, End: -1}
		}
		logs = append(logs, log)
	}
	ends, steps := r.Reached(last)
	if q.Kind == RequestOpen {
		if err := r.Acceptable(ctx, q.Open, last, ends, steps, logs); err != nil {
			return err
		}
	}
	if err := r.CloseStopped(ctx, last, q.Open.DropOutbox); err != nil {
		return err
	}
	if q.Kind == RequestClose {
		return nil
	}
	return r.Open(ctx, q.Open)
}

// ControlRequest is a command's request to a running daemon.
type ControlRequest struct {
	Stream    string                    `json:"stream"`
	Partition int                       `json:"partition"`
	Open      epoch.OpenRequest         `json:"open"`
	Republish recovery.RepublishRequest `json:"republish"`
	// From holds the files to restore for recover; nil: none.
	From *recovery.Export `json:"from,omitempty"`
}

func (q *ControlRequest) Task() core.Task {
	return core.Task{Stream: q.Stream, Partition: q.Partition}
}

// Request returns the request for the task's owner.
func (q *ControlRequest) Request(kind string) Request {
	return Request{Kind: kind, Open: q.Open, Republish: q.Republish, From: q.From, Reply: make(chan error, 1)}
}

// ControlAnswer is the daemon's answer to it.
type ControlAnswer struct {
	Status string `json:"status"` // success, error
	Error  string `json:"error"`
	Reason string `json:"reason"` // of the halt that the request met
}

// Err returns the error of the request, the same that OpenEpoch and CloseEpoch return.
func (a *ControlAnswer) Err() error {
	switch err := errors.New(a.Error); {
	case a.Status == "success":
		return nil
	case a.Reason != "":
		return &failure.Halt{Reason: a.Reason, Err: err}
	default:
		return err
	}
}

// recall fills the series, at the first request for them, with what the output holds from
// before this process. If the cluster does not answer, the next request tries again.
func (r *Runner) recall(ctx context.Context) {
	r.recalling.Lock()
	defer r.recalling.Unlock()
	if r.recalled {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, monitor.RecallTime)
	defer cancel()
	topic, partition := r.S.Output.Topic, int32(r.S.Output.Partition)
	start, end, err := r.D.Client.Bounds(ctx, topic, partition)
	if err != nil {
		r.recalled = kafka.UnknownTopic(err) // so there is nothing
		return
	}
	seen := map[string]bool{}
	var earlier []*core.Released
	size := 0
	err = r.D.Client.ReadBack(ctx, topic, partition, max(start, end-monitor.RecallRecords), func(rec *kafka.Record) error {
		t, epoch, _, ok := core.ParseIdentity(rec.Key)
		if !ok || t != r.Task || seen[string(rec.Key)] || r.D.Ledger.Opening(t, epoch) == nil {
			return nil
		}
		if size += len(rec.Value); size > monitor.RecallBytes {
			return failure.ErrStop
		}
		seen[string(rec.Key)] = true
		if x := r.released(rec.Value); x != nil {
			earlier = append(earlier, x)
		}
		return nil
	})
	if err != nil && !errors.Is(err, failure.ErrStop) {
		return
	}
	slices.SortStableFunc(earlier, func(a, b *core.Released) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Step, b.Step))
	})
	r.series.Recall(earlier)
	r.recalled = true
}

// released reads a release, and adds what a demonstration knows. It returns nil for a piece
// of a release.
func (r *Runner) released(value []byte) *core.Released {
	x, err := core.ParseReleased(value)
	if err != nil {
		return nil
	}
	if r.D.Truth != nil {
		for i := range x.Values {
			x.Values[i].Truth = r.D.Truth(x, x.Values[i].Name)
		}
	}
	return x
}

// After returns what was published after release n of this process, 0: everything.
func (r *Runner) After(ctx context.Context, n uint64) []monitor.Point {
	r.recall(ctx)
	return r.series.After(n)
}

// Named returns the runner's task.
func (r *Runner) Named() core.Task { return r.Task }

// traceClose begins the span of a step that is being closed, and that of the steps that the
// next commit makes durable.
func (p *processor) traceClose(step uint64, at time.Time) trace.Span {
	t, w := p.R.D.Trace, p.span
	if t == nil {
		return trace.Span{}
	}
	w.First = step
	if !p.steps.Begun() {
		p.steps, p.closes = t.Begin(trace.Steps, w, at), 0
	}
	if p.closes++; p.closes > monitor.MostCloses {
		return trace.Span{}
	}
	return t.Within(p.steps, trace.Close, w, at)
}

// traceCommit begins the span of a commit.
func (p *processor) traceCommit(at time.Time) trace.Span {
	w := p.span
	w.Last = p.boundary().step
	if w.First = p.Epoch.Cp.Step + 1; w.First > w.Last {
		w.First, w.Last = 0, 0 // it writes what was acknowledged
	}
	return p.R.D.Trace.Within(p.steps, trace.Commit, w, at)
}

// tracedCommit ends that span and, unless the commit failed, the trace, to which what is
// Published now still belongs.
func (p *processor) tracedCommit(c *commit) {
	at := c.begun.Add(c.took)
	c.span.Failed = monitor.WhyFailed(c.err)
	c.span.End(at)
	if c.err == nil && c.steps.Begun() {
		c.steps.End(at)
	}
}

// crowded reports whether persons ask for a commit before the next step begins: much waits to
// be written, or a snapshot is due, or was written and another partition's journal failed after it. It depends
// On numbers of records and the disk alone. So what waits takes no more than PersonsBytes and 20 bytes for each
// Record of a step, or for each of max_users where that is less.
func (p *processor) crowded() bool {
	if p.Epoch.Users == nil || p.quiet == 0 {
		return false
	}
	waiting := uint64(0)
	for _, m := range p.core.Persons() {
		waiting += m.Waiting()
	}
	return waiting >= state.PersonsBytes || p.Epoch.Users.SnapshotDue() || p.merge.Paused()
}

// deferred reports whether nothing may be committed yet: releases of two outputs are compared, and a commit
// says of one only what must be compared after a restart.
func (p *processor) deferred() bool { return p.comparing && p.Epoch.Moved }

// spill writes to disk what persons contributed, while commits are deferred. The last commit stays.
func (p *processor) spill() (done bool, err error) {
	if err := p.Epoch.Users.Spill(); err != nil {
		p.complain(err)
		return p.uncommitted(err)
	}
	p.merge.Unpause()
	p.failed = false
	p.pause.Reset()
	p.R.Recovered("commit")
	return true, nil
}

// Looks returns how many looks at the logs, of steps by the clock, wait for an epoch.
func (r *Runner) Looks() int { return r.watch.Waiting() }
