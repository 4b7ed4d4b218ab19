package epoch

import (
	"context"
	"errors"

	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// EnsureOpen returns the task's open epoch, or opens one that needs no request: the first epoch or, under rollover, the
// one after an epoch that reached its horizon. It returns nil if there is no epoch to run. It waits for the cluster as
// long as necessary.
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
			return nil, k.haltUnopened()
		case last == nil:
			unused, err := k.Out.Unused(ctx)
			if err != nil {
				return nil, err
			}
			if !unused {
				return nil, failure.Haltf(failure.OutputAhead,
					"%s/%d holds releases of this stream, but the ledger has no epoch of it: "+
						"restore the state directory, or accept a new charge with: streamdp epoch open %s",
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
				return nil, k.haltUnopened()
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
			// A crash interrupted the opening, before any noise was drawn.
			if err := k.void(ctx, last); err != nil {
				return nil, err
			}
		}
	}
}

// OpensByItself reports whether a start opens the task's next epoch: the first one, or the one after a horizon if the
// stream rolls over. last is the task's newest line in the ledger.
func (k *Keeper) OpensByItself(last *ledger.Entry) bool {
	return last == nil ||
		last.Kind == ledger.KindClose && last.Reason == ledger.ReasonHorizon && k.S.OnHorizon == "rollover"
}

// haltUnopened returns the halt of a task that is held after a reload of the configuration. Such a task waits for an
// operator, because a reload must not charge a budget.
func (k *Keeper) haltUnopened() error {
	return failure.Haltf(failure.Unopened,
		"the task has no open epoch, and a reload of the configuration opens none: open and charge it with "+
			"streamdp epoch open %s, "+
			"or for all waiting tasks with streamdp reload --open", failure.EpochArgs(k.Task))
}
