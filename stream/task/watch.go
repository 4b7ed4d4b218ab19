package task

import (
	"context"

	"github.com/streamdp/streamdp/stream/boundary"
)

// watched makes sure that the task's watch runs.
func (r *Runner) watched(ctx context.Context) *boundary.Watch {
	if r.watch != nil {
		return r.watch
	}
	period := r.S.Step.Clock()
	ctx, stop := context.WithCancel(ctx)
	w := &boundary.Watch{
		Retrier: r.Retrier, Client: r.D.Client, Wait: r.D.Beats(period), Patience: min(max(period/2, boundary.MinPatience), boundary.MaxPatience),
		Stop: stop, Stopped: make(chan struct{}), Changed: make(chan struct{}),
	}
	r.watch = w
	go w.Run(ctx)
	return w
}

// unwatch ends the task's watch: no epoch follows by itself. What it saw is forgotten.
func (r *Runner) unwatch() {
	if r.watch != nil {
		r.watch.Stop()
		<-r.watch.Stopped
		r.watch = nil
	}
}

// Looks returns how many looks at the logs, of steps by the clock, wait for an epoch.
func (r *Runner) Looks() int { return r.watch.Waiting() }
