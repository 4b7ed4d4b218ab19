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
func (k *Keeper) EnsureOpen(ctx context.Context, held func() bool) (*OpenEpoch, error) {
	for {
		if err := k.FinishClosings(ctx); err != nil {
			return nil, err
		}
		if err := k.ledgerIsNewest(); err != nil {
			return nil, err
		}
		if err := k.D.Mirror.Sync(ctx); err != nil {
			return nil, err
		}
		last := k.D.Ledger.Newest(k.Task)
		switch {
		case last == nil && held():
			return nil, k.unasked()
		case last == nil:
			unused, err := k.Out.Unused(ctx)
			if err != nil {
				return nil, err
			}
			if !unused {
				return nil, failure.Haltf(failure.OutputAhead,
					"%s/%d holds releases of this stream that the ledger knows no epoch of: "+
						"restore the state directory, or accept a new budget with: streamdp epoch open %s",
					k.S.Output.Topic, k.S.Output.Partition, failure.EpochArgs(k.Task))
			}
			if err := k.ReadSchemas(ctx, true); err != nil {
				return nil, err
			}
			if err := k.Open(ctx, OpenRequest{Reason: "first", automatic: true}); err != nil {
				return nil, err
			}
		case last.Kind == ledger.KindClose:
			if !k.OpensByItself(last) {
				return nil, nil
			}
			if held() {
				return nil, k.unasked()
			}
			if err := k.ReadSchemas(ctx, true); err != nil {
				return nil, err
			}
			if err := k.Open(ctx, OpenRequest{Reason: "rollover", automatic: true}); err != nil {
				return nil, err
			}
		default:
			if err := k.D.Mirror.Ours(last); err != nil {
				return nil, err
			}
			if err := k.ReadSchemas(ctx, false); err != nil {
				return nil, err
			}
			l, err := k.resume(ctx, last)
			if !errors.Is(err, ErrNoManifest) {
				return l, err
			}
			began, err := k.began(ctx, last)
			if err != nil {
				return nil, err
			}
			if began {
				return nil, failure.Haltf(failure.State,
					"the manifest of epoch %d is missing, and the epoch may have run: %s",
					last.Epoch, failure.Restore(k.Task))
			}
			// A crash inside an opening: no row of noise was ever drawn.
			if err := k.void(ctx, last); err != nil {
				return nil, err
			}
		}
	}
}

// OpensByItself reports whether the task's next epoch is one that a start opens: the first, or after a horizon where
// the stream rolls over. last is the task's newest line in the ledger.
func (k *Keeper) OpensByItself(last *ledger.Entry) bool {
	return last == nil ||
		last.Kind == ledger.KindClose && last.Reason == ledger.ReasonHorizon && k.S.OnHorizon == "rollover"
}

// unasked is the halt of a task that would open an epoch only because the configuration was read
// again. Reading it charges nobody.
func (k *Keeper) unasked() error {
	return failure.Haltf(failure.Unopened,
		"the task has no open epoch, and reading the configuration again opens none: it is opened, and charged, by "+
			"streamdp epoch open %s, "+
			"or for all tasks that wait for it by streamdp reload --open", failure.EpochArgs(k.Task))
}
