package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
)

// watched makes sure that the task's watch runs.
func (r *runner) watched(ctx context.Context) *watch {
	if r.watch != nil {
		return r.watch
	}
	period := r.s.Step.Clock()
	ctx, stop := context.WithCancel(ctx)
	w := &watch{
		repeater: r.repeater, client: r.d.client, wait: r.d.beats(period), patience: min(max(period/2, minPatience), maxPatience),
		stop: stop, stopped: make(chan struct{}), changed: make(chan struct{}),
	}
	r.watch = w
	go w.run(ctx)
	return w
}

// unwatch ends the task's watch: no epoch follows by itself. What it saw is forgotten.
func (r *runner) unwatch() {
	if r.watch != nil {
		r.watch.stop()
		<-r.watch.stopped
		r.watch = nil
	}
}

// serve answers a request while no epoch is running.
func (r *runner) serve(ctx context.Context, q request) error {
	if q.changesEpoch() {
		r.d.ledger.acceptKey()
	}
	if q.kind == requestOpen {
		if err := r.d.mirror.adopt(ctx); err != nil {
			return err
		}
	}
	if err := r.finishClosings(ctx); err != nil {
		return err
	}
	switch q.kind {
	case requestRecover:
		return restorer{r.keeper}.recover(ctx, q.from)
	case requestRepublish:
		return restorer{r.keeper}.republish(ctx, q.republish)
	}
	last := r.d.ledger.newest(r.task)
	if last == nil || last.Kind != kindOpen {
		if q.kind == requestClose {
			return errors.New("the task has no open epoch")
		}
		return r.open(ctx, q.open)
	}
	var logs []offsets
	for _, src := range last.sources() {
		log, err := r.d.offsetsOf(ctx, src.Topic, src.Partition)
		if err != nil {
			log = offsets{-1, -1, -1}
		}
		logs = append(logs, log)
	}
	ends, steps := r.reached(last)
	if q.kind == requestOpen {
		if err := r.acceptable(ctx, q.open, last, ends, steps, logs); err != nil {
			return err
		}
	}
	if err := r.closeHalted(ctx, last, q.open.DropOutbox); err != nil {
		return err
	}
	if q.kind == requestClose {
		return nil
	}
	return r.open(ctx, q.open)
}

// ControlRequest is a command's request to a running daemon.
type ControlRequest struct {
	Stream    string           `json:"stream"`
	Partition int              `json:"partition"`
	Open      OpenRequest      `json:"open"`
	Republish RepublishRequest `json:"republish"`
	// From holds the files to restore for recover; nil: none.
	From *Export `json:"from,omitempty"`
}

func (q *ControlRequest) task() core.Task {
	return core.Task{Stream: q.Stream, Partition: q.Partition}
}

// request returns the request for the task's owner.
func (q *ControlRequest) request(kind string) request {
	return request{kind: kind, open: q.Open, republish: q.Republish, from: q.From, reply: make(chan error, 1)}
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
		return &halt{a.Reason, err}
	default:
		return err
	}
}

// recall fills the series, at the first request for them, with what the output holds from
// before this process. If the cluster does not answer, the next request tries again.
func (r *runner) recall(ctx context.Context) {
	r.recalling.Lock()
	defer r.recalling.Unlock()
	if r.recalled {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recallTime)
	defer cancel()
	topic, partition := r.s.Output.Topic, int32(r.s.Output.Partition)
	start, end, err := r.d.client.Bounds(ctx, topic, partition)
	if err != nil {
		r.recalled = kafka.UnknownTopic(err) // so there is nothing
		return
	}
	seen := map[string]bool{}
	var earlier []*core.Released
	size := 0
	err = r.d.client.ReadBack(ctx, topic, partition, max(start, end-recallRecords), func(rec *kafka.Record) error {
		t, epoch, _, ok := core.ParseIdentity(rec.Key)
		if !ok || t != r.task || seen[string(rec.Key)] || r.d.ledger.opening(t, epoch) == nil {
			return nil
		}
		if size += len(rec.Value); size > recallBytes {
			return errStop
		}
		seen[string(rec.Key)] = true
		if x := r.released(rec.Value); x != nil {
			earlier = append(earlier, x)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errStop) {
		return
	}
	slices.SortStableFunc(earlier, func(a, b *core.Released) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Step, b.Step))
	})
	r.series.recall(earlier)
	r.recalled = true
}

// released reads a release, and adds what a demonstration knows. It returns nil for a piece
// of a release.
func (r *runner) released(value []byte) *core.Released {
	x, err := core.ParseReleased(value)
	if err != nil {
		return nil
	}
	if r.d.truth != nil {
		for i := range x.Values {
			x.Values[i].Truth = r.d.truth(x, x.Values[i].Name)
		}
	}
	return x
}

// after returns what was published after release n of this process, 0: everything.
func (r *runner) after(ctx context.Context, n uint64) []point {
	r.recall(ctx)
	return r.series.after(n)
}

// named returns the runner's task.
func (r *runner) named() core.Task { return r.task }

// traceClose begins the span of a step that is being closed, and that of the steps that the
// next commit makes durable.
func (p *processor) traceClose(step uint64, at time.Time) trace.Span {
	t, w := p.r.d.trace, p.span
	if t == nil {
		return trace.Span{}
	}
	w.First = step
	if !p.steps.Begun() {
		p.steps, p.closes = t.Begin(trace.Steps, w, at), 0
	}
	if p.closes++; p.closes > mostCloses {
		return trace.Span{}
	}
	return t.Within(p.steps, trace.Close, w, at)
}

// traceCommit begins the span of a commit.
func (p *processor) traceCommit(at time.Time) trace.Span {
	w := p.span
	w.Last = p.boundary().step
	if w.First = p.epoch.cp.step + 1; w.First > w.Last {
		w.First, w.Last = 0, 0 // it writes what was acknowledged
	}
	return p.r.d.trace.Within(p.steps, trace.Commit, w, at)
}

// tracedCommit ends that span and, unless the commit failed, the trace, to which what is
// published now still belongs.
func (p *processor) tracedCommit(c *commit) {
	at := c.begun.Add(c.took)
	c.span.Failed = whyFailed(c.err)
	c.span.End(at)
	if c.err == nil && c.steps.Begun() {
		c.steps.End(at)
	}
}

// crowded reports whether persons ask for a commit before the next step begins: much waits to
// be written, or a snapshot is due, or was written and another partition's journal failed after it. It depends
// on numbers of records and the disk alone. So what waits takes no more than usersBytes and 20 bytes for each
// record of a step, or for each of max_users where that is less.
func (p *processor) crowded() bool {
	if p.epoch.users == nil || p.quiet == 0 {
		return false
	}
	waiting := uint64(0)
	for _, m := range p.core.Persons() {
		waiting += m.Waiting()
	}
	return waiting >= usersBytes || p.epoch.users.snapshotDue() || p.merge.paused()
}

// deferred reports whether nothing may be committed yet: releases of two outputs are compared, and a commit
// says of one only what must be compared after a restart.
func (p *processor) deferred() bool { return p.comparing && p.epoch.moved }

// spill writes to disk what persons contributed, while commits are deferred. The last commit stays.
func (p *processor) spill() (done bool, err error) {
	if err := p.epoch.users.spill(); err != nil {
		p.complain(err)
		return p.uncommitted(err)
	}
	p.merge.unpause()
	p.failed = false
	p.pause.Reset()
	p.r.untroubled("commit")
	return true, nil
}

// looks returns how many looks at the logs, of steps by the clock, wait for an epoch.
func (r *runner) looks() int { return r.watch.waiting() }
