package epoch

import (
	"context"
	"errors"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// ledgerIsNewest refuses a ledger that lacks epochs whose files exist. Such a ledger would forget their charges and use
// their numbers again.
func (k *Keeper) ledgerIsNewest() error {
	n, err := k.Store.NewestEpoch()
	if err != nil {
		return err
	}
	if known := k.D.Ledger.NextEpoch(k.Task) - 1; n > known {
		return failure.Haltf(failure.State,
			"there are files of epoch %d, but the ledger has epochs only up to %d: the ledger is missing or an old "+
				"copy; restore the newest ledger or, if there is none: streamdp ledger repair", n, known)
	}
	return nil
}

// ledgerIsNewest refuses to charge to a ledger that lacks something that the files of any task refer to: an epoch, or
// the line that a checkpoint names. If the ledger lacked one task's charges, all others could overspend. Concurrent
// callers share one check of the files, which begins after all of them have called.
func (s *Shard) ledgerIsNewest() error { return s.Evidence.do(s.ledgerHasAll) }

func (s *Shard) ledgerHasAll() error {
	names, err := s.Disk.ReadDir(s.Dir + "/tasks")
	if err != nil {
		return err
	}
	for _, name := range names {
		t, ok := core.ParseTask(name)
		if !ok {
			continue // not a task's directory
		}
		n, err := state.OpenReader(s.Disk, s.TaskDir(t), nil).NewestEpoch()
		if err != nil {
			return err
		}
		if known := s.Ledger.NextEpoch(t) - 1; n > known {
			return failure.Haltf(failure.State,
				"there are files of epoch %d of task %s, but the ledger has epochs of this task only up to %d: the "+
					"ledger is missing or an old copy; restore the newest ledger or, if there is none: streamdp "+
					"ledger repair", n, t, known)
		}
		cp, err := s.CheckpointOf(t)
		if err != nil && !errors.Is(err, state.ErrCheckpoint) {
			return err
		}
		if err == nil && cp != nil && !s.Ledger.Knows(cp.Ledger) {
			return failure.Haltf(failure.State,
				"the checkpoint of task %s was written with a newer ledger: the ledger is an old copy; restore the "+
					"newest ledger or, if there is none: streamdp ledger repair", t)
		}
	}
	return nil
}

// began reports whether an epoch whose manifest is missing may have drawn noise. The epoch has drawn no noise if the
// mark of an interrupted opening exists, and neither a checkpoint nor a release of the epoch does. Without the mark,
// files of the epoch were lost. It may then have drawn noise even if no release is found, because releases may be lost
// too.
func (k *Keeper) began(ctx context.Context, opened *ledger.Entry) (bool, error) {
	if opening, err := k.Store.Marked(opened.Epoch); err != nil || !opening {
		return true, err
	}
	cp, err := k.Store.Load()
	if errors.Is(err, state.ErrCheckpoint) || cp != nil && cp.Epoch == opened.Epoch {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	end, err := k.Out.ReleasedTo(ctx, opened)
	return end >= 0, err
}

// ErrNoManifest says that the manifest of an epoch is missing.
var ErrNoManifest = errors.New("the epoch has no manifest")

// Recoverable is for an epoch that has lost its checkpoint. It halts if the output has no release with which repeated
// releases could be compared.
func (k *Keeper) Recoverable(ctx context.Context, opened *ledger.Entry) error {
	opening, err := k.Store.Marked(opened.Epoch)
	if err != nil || opening {
		return err
	}
	end, err := k.Out.ReleasedTo(ctx, opened)
	if err != nil || end >= 0 {
		return err
	}
	return failure.Haltf(failure.State,
		"the checkpoint of epoch %d is missing, and %s/%d holds no release of this epoch: restore the checkpoint "+
			"from a backup, or open a new epoch: streamdp epoch open %s",
		opened.Epoch, k.S.Output.Topic, k.S.Output.Partition, failure.EpochArgs(k.Task))
}
