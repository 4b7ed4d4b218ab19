package task

import (
	"context"

	"github.com/streamdp/streamdp/stream/boundary"
)

// ensureSampler returns the task's sampler of log ends, and starts it if it is not running.
func (r *Runner) ensureSampler(ctx context.Context) *boundary.Sampler {
	if r.sampler != nil {
		return r.sampler
	}
	period := r.S.Step.Clock()
	r.sampler = boundary.StartSampler(ctx, r.Retrier, r.D.Client, r.D.Beats(period), period)
	return r.sampler
}

// stopSampler stops the task's sampler and discards its samples. The task calls it when no epoch follows by itself.
func (r *Runner) stopSampler() {
	if r.sampler != nil {
		r.sampler.Stop()
		r.sampler = nil
	}
}

// Looks returns how many samples of log ends, for steps by the clock, wait for an epoch.
func (r *Runner) Looks() int { return r.sampler.Waiting() }
