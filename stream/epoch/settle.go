package epoch

import (
	"context"
	"errors"

	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// EnsureOpen finds the task's open epoch, or opens one that needs no request: the first
// epoch, or, under rollover, the one after an epoch that reached its horizon. It returns
// nil if there is none to run. It waits for the cluster as long as that takes.
func (r *Keeper) EnsureOpen(ctx context.Context, held func() bool) (*OpenEpoch, error) {
	for {
		if err := r.FinishClosings(ctx); err != nil {
			return nil, err
		}
		if err := r.ledgerIsNewest(); err != nil {
			return nil, err
		}
		if err := r.D.Mirror.Sync(ctx); err != nil {
			return nil, err
		}
		last := r.D.Ledger.Newest(r.Task)
		switch {
		case last == nil && held():
			return nil, r.unasked()
		case last == nil:
			unused, err := r.Out.Unused(ctx)
			if err != nil {
				return nil, err
			}
			if !unused {
				return nil, failure.Haltf(failure.OutputAhead, "%s/%d holds releases of this stream that the ledger knows no epoch of: "+
					"restore the state directory, or accept a new budget with: streamdp epoch open %s", r.S.Output.Topic, r.S.Output.Partition, failure.EpochArgs(r.Task))
			}
			if err := r.ReadSchemas(ctx, true); err != nil {
				return nil, err
			}
			if err := r.Open(ctx, OpenRequest{Reason: "first", Automatic: true}); err != nil {
				return nil, err
			}
		case last.Kind == ledger.KindClose:
			if !r.OpensByItself(last) {
				return nil, nil
			}
			if held() {
				return nil, r.unasked()
			}
			if err := r.ReadSchemas(ctx, true); err != nil {
				return nil, err
			}
			if err := r.Open(ctx, OpenRequest{Reason: "rollover", Automatic: true}); err != nil {
				return nil, err
			}
		default:
			if err := r.D.Mirror.Ours(last); err != nil {
				return nil, err
			}
			if err := r.ReadSchemas(ctx, false); err != nil {
				return nil, err
			}
			l, err := r.resume(ctx, last)
			if !errors.Is(err, ErrNoManifest) {
				return l, err
			}
			began, err := r.began(ctx, last)
			if err != nil {
				return nil, err
			}
			if began {
				return nil, failure.Haltf(failure.State, "the manifest of epoch %d is missing, and the epoch may have run: %s",
					last.Epoch, failure.Restore(r.Task))
			}
			// A crash inside an opening: no row of noise was ever drawn.
			if err := r.void(ctx, last); err != nil {
				return nil, err
			}
		}
	}
}

// OpensByItself reports whether the task's next epoch is one that a start opens: the first, or after a horizon where the
// stream rolls over. last is the task's newest line in the ledger.
func (r *Keeper) OpensByItself(last *ledger.Entry) bool {
	return last == nil || last.Kind == ledger.KindClose && last.Reason == ledger.ReasonHorizon && r.S.OnHorizon == "rollover"
}

// unasked is the halt of a task that would open an epoch only because the configuration was read
// again. Reading it charges nobody.
func (r *Keeper) unasked() error {
	return failure.Haltf(failure.Unopened, "the task has no open epoch, and reading the configuration again opens none: it is opened, and charged, by streamdp epoch open %s, "+
		"or for all tasks that wait for it by streamdp reload --open", failure.EpochArgs(r.Task))
}
