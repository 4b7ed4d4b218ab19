package task

import (
	"context"

	"github.com/streamdp/streamdp/stream/boundary"
)

// watched returns the task's sampler of log ends, and starts it if it is not running.
func (r *Runner) watched(ctx context.Context) *boundary.Sampler {
	if r.watch != nil {
		return r.watch
	}
	period := r.S.Step.Clock()
	r.watch = boundary.StartSampler(ctx, r.Retrier, r.D.Client, r.D.Beats(period), period)
	return r.watch
}

// unwatch stops the task's sampler, because no epoch follows by itself. Its samples are discarded.
func (r *Runner) unwatch() {
	if r.watch != nil {
		r.watch.Stop()
		r.watch = nil
	}
}

// Looks returns how many samples of log ends, for steps by the clock, wait for an epoch.
func (r *Runner) Looks() int { return r.watch.Waiting() }
