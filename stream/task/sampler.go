package task

import (
	"context"

	"github.com/streamdp/streamdp/stream/boundary"
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

// Looks returns how many looks at the logs, of steps by the clock, wait for an epoch.
func (r *Runner) Looks() int { return r.watch.Waiting() }
