package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/stream/core"
)

// Run runs all tasks until the context ends, or all epochs are closed, or a failure
// concerns the whole process. In the first two cases it returns nil; if no task ever ran,
// it returns ErrNothing or ErrHalted. It also returns ErrNothing if a warm-up failed and
// nothing else is left to run.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer d.begin()
	var wg sync.WaitGroup
	stopHTTP, err := d.server.serve(ctx, &wg)
	if err != nil {
		return err
	}
	endLag, endTrace := d.lag.start(), d.trace.Start()
	wg.Go(func() { d.certs.watch(ctx, d.log, d.metrics.certificate) })
	var failed atomic.Pointer[error] // the first failure of the process
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				d.log.Error("stopping", "error", err.Error())
				failed.CompareAndSwap(nil, &err)
				cancel(err)
			}
		})
	}
	if d.sharing != nil {
		d.begin()
		run(d.sharing.share)
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
		d.log.Info("stopped")
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
			switch s := r.status.Load(); {
			case s.State == stateExhausted || s.State == stateClosed:
				done++
			case s.State == stateHalted && s.Reason != haltUnopened: // which waits for an operator: the next start would open it
				stopped++
			}
			ran = ran || r.ran.Load()
		}
		switch n := len(runners); {
		case searching || len(d.config().Patterns) > 0:
			// More tasks are to come, or may.
		case done == n && ran:
			return d.failedWarmup()
		case done == n:
			return fmt.Errorf("%w: every epoch is closed or at its horizon; streamdp epoch open STREAM opens another", ErrNothing)
		case done+stopped == n && !ran && stopped > 0:
			return d.haltedAtStart()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
		}
	}
}

// failedWarmup returns ErrNothing if a task ended because its warm-up found no bounds, as its
// release says: somebody has to look, and a supervisor sees only how the process ends.
func (d *Daemon) failedWarmup() error {
	for _, r := range d.tasks() {
		if s := r.status.Load(); s.State == stateClosed && s.Verdict == "fail" {
			return fmt.Errorf("%w: the warm-up of epoch %d of %s found no bounds: too few valid records, or no column varies; correct the stream, then: streamdp epoch open %s",
				ErrNothing, s.Epoch, r.task, epochArgs(r.task))
		}
	}
	return nil
}

func (d *Daemon) haltedAtStart() error {
	budget := true
	errs := []error{ErrHalted}
	for _, r := range d.tasks() {
		if s := r.status.Load(); s.State == stateHalted {
			errs = append(errs, fmt.Errorf("task %s: %s", r.task, s.Message))
			budget = budget && s.Reason == haltBudget
		}
	}
	if budget {
		errs[0] = ErrNothing
	}
	return errors.Join(errs...)
}

// ask gives a request to its task's owner and waits for the answer.
func (d *Daemon) ask(ctx, patience context.Context, t core.Task, q request) error {
	for _, r := range d.tasks() {
		if r.task != t {
			continue
		}
		select {
		case r.requests <- q:
		case <-r.gone:
			return errGone
		case <-ctx.Done():
			return errors.New("the daemon is stopping")
		case <-patience.Done():
			return patience.Err()
		}
		select {
		case err := <-q.reply:
			return err
		case <-r.gone:
			return errGone
		case <-ctx.Done():
			return errors.New("the daemon is stopping")
		case <-patience.Done():
			return patience.Err()
		}
	}
	return d.closeAbandoned(patience, t, q)
}

// waiting implements served.
func (d *Daemon) waiting() (missing []string) {
	if d.searching() {
		missing = append(missing, "the partitions of an input topic are not known yet")
	}
	if d.unsought() {
		missing = append(missing, "the topics that match a pattern are not known yet")
	}
	return missing
}

// streams implements served.
func (d *Daemon) streams() []string {
	names := []string{}
	for _, s := range d.config().Streams {
		names = append(names, s.Name)
	}
	return names
}

// shown implements served.
func (d *Daemon) shown() (all []shownTask) {
	for _, r := range d.tasks() {
		all = append(all, r)
	}
	return all
}

// Group returns what the instance knows of its group, nil where it shares no tasks.
func (d *Daemon) Group() *GroupStatus { return d.sharing.status() }
