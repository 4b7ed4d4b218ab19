package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// Run runs all tasks until the context ends, or all epochs are closed, or a failure
// Concerns the whole process. In the first two cases it returns nil; if no task ever ran,
// it returns ErrNothing or ErrHalted. It also returns ErrNothing if a warm-up failed and
// nothing else is left to run.
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
	var failed atomic.Pointer[error] // the first failure of the process
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				d.process.Log.Error("stopping", "error", err.Error())
				failed.CompareAndSwap(nil, &err)
				cancel(err)
			}
		})
	}
	if d.sharing != nil {
		d.begin()
		run(d.sharing.Share)
		<-ctx.Done() // it does not end by itself
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
	ran := false // a task did, perhaps one that is gone
	for {
		done, stopped := 0, 0
		d.changing.Lock() // a task that begins anew is gone for a moment
		runners, searching := d.tasks(), d.searching()
		d.changing.Unlock()
		for _, r := range runners {
			// A task sets ran before any state that comes after running.
			switch s := r.Shown(); {
			case s.State == monitor.StateExhausted || s.State == monitor.StateClosed:
				done++
			case s.State == monitor.StateHalted && s.Reason != failure.Unopened: // which waits for an operator: the next start would open it
				stopped++
			}
			ran = ran || r.Ran()
		}
		switch n := len(runners); {
		case searching || len(d.process.Config().Patterns) > 0:
			// More tasks are to come, or may.
		case done == n && ran:
			return d.failedWarmup()
		case done == n:
			return fmt.Errorf("%w: every epoch is closed or at its horizon; streamdp epoch open STREAM opens another", failure.ErrNothing)
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

// failedWarmup returns ErrNothing if a task ended because its warm-up found no bounds, as its
// release says: somebody has to look, and a supervisor sees only how the process ends.
func (d *Daemon) failedWarmup() error {
	for _, r := range d.tasks() {
		if s := r.Shown(); s.State == monitor.StateClosed && s.Verdict == "fail" {
			return fmt.Errorf("%w: the warm-up of epoch %d of %s found no bounds: too few valid records, or no column varies; correct the stream, then: streamdp epoch open %s",
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

// Ask gives a request to its task's owner and waits for the answer.
func (d *Daemon) Ask(ctx, patience context.Context, t core.Task, q task.Request) error {
	for _, r := range d.tasks() {
		if r.Task == t {
			return r.Ask(ctx, patience, q)
		}
	}
	return d.closeAbandoned(patience, t, q)
}

// Waiting implements served.
func (d *Daemon) Waiting() (missing []string) {
	if d.searching() {
		missing = append(missing, "the partitions of an input topic are not known yet")
	}
	if d.unsought() {
		missing = append(missing, "the topics that match a pattern are not known yet")
	}
	return missing
}

// Streams implements served.
func (d *Daemon) Streams() []string {
	names := []string{}
	for _, s := range d.process.Config().Streams {
		names = append(names, s.Name)
	}
	return names
}

// Shown implements served.
func (d *Daemon) Shown() (all []httpapi.ShownTask) {
	for _, r := range d.tasks() {
		all = append(all, r)
	}
	return all
}

// Group returns what the instance knows of its group, nil where it shares no tasks.
func (d *Daemon) Group() *cluster.GroupStatus { return d.sharing.Status() }
