package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// Run runs all tasks until the context ends, all epochs are closed, or a failure concerns the whole process. In the
// first two cases it returns nil, with two exceptions. If no task ever ran, it returns ErrNothing or ErrHalted. If a
// warm-up failed and nothing else is left to run, it returns ErrNothing.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer d.begin()
	var wg sync.WaitGroup
	stopHTTP, err := d.server.Serve(ctx, &wg)
	if err != nil {
		return err
	}
	endLag, endTrace := d.process.Lag.Start(), d.process.Trace.Start()
	wg.Go(func() { d.certs.Watch(ctx, d.process.Log, d.process.Metrics.Certificate) })
	var failed atomic.Pointer[error] // the first failure that concerns the process
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				d.process.Log.Error("stopping the daemon: a failure concerns all tasks", "error", err.Error())
				failed.CompareAndSwap(nil, &err)
				cancel(err)
			}
		})
	}
	if d.sharing != nil {
		d.begin()
		run(d.sharing.Share)
		<-ctx.Done() // shared tasks never end by themselves
	} else {
		d.own.start(run)
		d.begin()
		run(d.seek)
		err = d.watch(ctx)
	}
	cancel(err)
	stopHTTP()
	d.end()
	wg.Wait()
	endLag()
	endTrace()
	// A task may also fail after the context has ended, in its last commit.
	if f := failed.Load(); f != nil {
		return *f
	}
	if err == nil {
		d.process.Log.Info("stopped")
	}
	return err
}

// watch returns when nothing is left to run.
func (d *Daemon) watch(ctx context.Context) error {
	ran := false // a task ran, perhaps one that is gone
	for {
		done, stopped := 0, 0
		d.changing.Lock() // a task that is being replaced is missing until the change is complete
		runners, searching := d.tasks(), d.searching()
		d.changing.Unlock()
		for _, r := range runners {
			// A task sets ran before any state that comes after running.
			switch s := r.Shown(); {
			case s.State == monitor.StateExhausted || s.State == monitor.StateClosed:
				done++
			case s.State == monitor.StateHalted && s.Reason != failure.Unopened:
				// The task waits for an operator. The next start of the process would open its epoch.
				stopped++
			}
			ran = ran || r.Ran()
		}
		switch n := len(runners); {
		case searching || len(d.process.Config().Patterns) > 0:
			// More tasks will come, or may come.
		case done == n && ran:
			return d.failedWarmup()
		case done == n:
			return fmt.Errorf("%w: every epoch is closed or at its horizon; open another: streamdp epoch open STREAM",
				failure.ErrNothing)
		case done+stopped == n && !ran && stopped > 0:
			return d.haltedAtStart()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.process.Changed:
		}
	}
}

// failedWarmup returns ErrNothing if a task ended because its warm-up found no bounds. The error matters because an
// operator must act and a supervisor sees only the exit code.
func (d *Daemon) failedWarmup() error {
	for _, r := range d.tasks() {
		if s := r.Shown(); s.State == monitor.StateClosed && s.Verdict == "fail" {
			return fmt.Errorf(
				"%w: the warm-up of epoch %d of %s found no bounds: too few records are valid, or no column varies; "+
					"correct the stream, then open a new epoch: streamdp epoch open %s",
				failure.ErrNothing, s.Epoch, r.Task, failure.EpochArgs(r.Task))
		}
	}
	return nil
}

func (d *Daemon) haltedAtStart() error {
	budget := true
	errs := []error{failure.ErrHalted}
	for _, r := range d.tasks() {
		if s := r.Shown(); s.State == monitor.StateHalted {
			errs = append(errs, fmt.Errorf("task %s: %s", r.Task, s.Message))
			budget = budget && s.Reason == failure.Budget
		}
	}
	if budget {
		errs[0] = failure.ErrNothing
	}
	return errors.Join(errs...)
}

// Ask gives a request to its task's owner and waits for the answer, until ctx ends because the daemon stops, or
// patience ends.
func (d *Daemon) Ask(ctx, patience context.Context, q task.Request) error {
	t := q.Task()
	q.Reply = make(chan error, 1)
	for _, r := range d.tasks() {
		if r.Task == t {
			return r.Ask(ctx, patience, q)
		}
	}
	return d.closeAbandoned(patience, q)
}

// Do carries out a request in a daemon whose Run has not been called. Commands ask a running daemon through its control
// socket instead.
//
// An open request closes the task's open epoch, if there is one, and opens another one. A recover request restores the
// state of an open epoch whose checkpoint is damaged or lost. The task continues from an earlier commit, or from the
// epoch's first offset. It computes the releases published since then again, and writes a checkpoint only if no byte
// differs. A republish request publishes the committed releases of a task again, with the same bytes and without a
// charge. It sends nothing if a release in the output differs.
func (d *Daemon) Do(ctx context.Context, q task.Request) error {
	if q.ChangesEpoch() {
		d.own.Ledger.AcceptKey()
	}
	if err := d.own.finishOthers(ctx); err != nil {
		return err
	}
	t := q.Task()
	for _, r := range d.tasks() {
		if r.Task == t {
			return r.Serve(ctx, q)
		}
	}
	return d.closeAbandoned(ctx, q)
}

// closeAbandoned closes the open epoch of a task that no process runs; see [shardTasks.closeAbandoned].
func (d *Daemon) closeAbandoned(ctx context.Context, q task.Request) error {
	t := q.Task()
	for _, c := range d.shardsNow() {
		if c.Other(t) != nil {
			return c.closeAbandoned(ctx, q)
		}
	}
	return fmt.Errorf("the configuration has no task %s", t)
}
