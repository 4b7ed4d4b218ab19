package stream

import (
	"context"
	"errors"
)

// settle finds the task's open epoch, or opens one that needs no request: the first
// epoch, or, under rollover, the one after an epoch that reached its horizon. It returns
// nil if there is none to run. It waits for the cluster as long as that takes.
func (r *keeper) settle(ctx context.Context, held func() bool) (*openEpoch, error) {
	for {
		if err := r.finishClosings(ctx); err != nil {
			return nil, err
		}
		if err := r.ledgerIsNewest(); err != nil {
			return nil, err
		}
		if err := r.d.mirror.sync(ctx); err != nil {
			return nil, err
		}
		last := r.d.ledger.newest(r.task)
		switch {
		case last == nil && held():
			return nil, r.unasked()
		case last == nil:
			unused, err := r.out.unused(ctx)
			if err != nil {
				return nil, err
			}
			if !unused {
				return nil, halted(haltOutput, "%s/%d holds releases of this stream that the ledger knows no epoch of: "+
					"restore the state directory, or accept a new budget with: streamdp epoch open %s", r.s.Output.Topic, r.s.Output.Partition, epochArgs(r.task))
			}
			if err := r.readSchemas(ctx, true); err != nil {
				return nil, err
			}
			if err := r.open(ctx, OpenRequest{Reason: "first", unasked: true}); err != nil {
				return nil, err
			}
		case last.Kind == kindClose:
			if !r.opensByItself(last) {
				return nil, nil
			}
			if held() {
				return nil, r.unasked()
			}
			if err := r.readSchemas(ctx, true); err != nil {
				return nil, err
			}
			if err := r.open(ctx, OpenRequest{Reason: "rollover", unasked: true}); err != nil {
				return nil, err
			}
		default:
			if err := r.d.mirror.ours(last); err != nil {
				return nil, err
			}
			if err := r.readSchemas(ctx, false); err != nil {
				return nil, err
			}
			l, err := r.resume(ctx, last)
			if !errors.Is(err, errNoManifest) {
				return l, err
			}
			began, err := r.began(ctx, last)
			if err != nil {
				return nil, err
			}
			if began {
				return nil, halted(haltState, "the manifest of epoch %d is missing, and the epoch may have run: %s",
					last.Epoch, restoreEpoch(r.task))
			}
			// A crash inside an opening: no row of noise was ever drawn.
			if err := r.void(ctx, last); err != nil {
				return nil, err
			}
		}
	}
}

// opensByItself reports whether the task's next epoch is one that a start opens: the first, or after a horizon where the
// stream rolls over. last is the task's newest line in the ledger.
func (r *keeper) opensByItself(last *Entry) bool {
	return last == nil || last.Kind == kindClose && last.Reason == reasonHorizon && r.s.OnHorizon == "rollover"
}

// unasked is the halt of a task that would open an epoch only because the configuration was read
// again. Reading it charges nobody.
func (r *keeper) unasked() error {
	return halted(haltUnopened, "the task has no open epoch, and reading the configuration again opens none: it is opened, and charged, by streamdp epoch open %s, "+
		"or for all tasks that wait for it by streamdp reload --open", epochArgs(r.task))
}
