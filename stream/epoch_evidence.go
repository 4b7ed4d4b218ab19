package stream

import (
	"context"
	"errors"

	"github.com/streamdp/streamdp/stream/core"
)

// ledgerIsNewest refuses a ledger that lacks epochs of which there are files. With such a
// ledger their charges would be forgotten, and their numbers used again.
func (r *keeper) ledgerIsNewest() error {
	n, err := r.store.newestEpoch()
	if err != nil {
		return err
	}
	if known := r.d.ledger.nextEpoch(r.task) - 1; n > known {
		return halted(haltState, "there are files of epoch %d, and the ledger knows epochs up to %d: it is missing or an old copy; restore the newest one, or where there is none: streamdp ledger repair", n, known)
	}
	return nil
}

// ledgerIsNewest refuses to charge to a ledger that lacks something that the files of any
// task refer to: an epoch, or the line that a checkpoint names. If the ledger lacks one
// task's charges, all others could overspend. Tasks that ask at the same time share a look at
// the files, which begins after all of them have asked.
func (h *home) ledgerIsNewest() error { return h.evidence.do(h.ledgerHasAll) }

func (h *home) ledgerHasAll() error {
	names, err := h.disk.ReadDir(h.dir + "/tasks")
	if err != nil {
		return err
	}
	for _, name := range names {
		t, ok := core.ParseTask(name)
		if !ok {
			continue // no directory of a task
		}
		n, err := (&store{disk: h.disk, dir: h.taskDir(t)}).newestEpoch()
		if err != nil {
			return err
		}
		if known := h.ledger.nextEpoch(t) - 1; n > known {
			return halted(haltState, "there are files of epoch %d of task %s, and the ledger knows its epochs up to %d: it is missing or an old copy; restore the newest one, or where there is none: streamdp ledger repair", n, t, known)
		}
		cp, err := h.checkpointOf(t)
		if err != nil && !errors.Is(err, errCheckpoint) {
			return err
		}
		if err == nil && cp != nil && !h.ledger.knows(cp.ledger) {
			return halted(haltState, "the checkpoint of task %s was written with a newer ledger: the ledger is an old copy; restore the newest one, or where there is none: streamdp ledger repair", t)
		}
	}
	return nil
}

// began reports whether an epoch whose manifest is missing may have drawn noise. It has
// drawn none if the mark of an interrupted opening is there, and there is no checkpoint
// and no release of it. Without the mark its files were lost. Then it may have drawn
// noise even if no release is found, because the evidence may be lost too.
func (r *keeper) began(ctx context.Context, opened *Entry) (bool, error) {
	if opening, err := r.store.marked(opened.Epoch); err != nil || !opening {
		return true, err
	}
	cp, err := r.store.load()
	if errors.Is(err, errCheckpoint) || cp != nil && cp.epoch == opened.Epoch {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	end, err := r.out.releasedTo(ctx, opened)
	return end >= 0, err
}

var errNoManifest = errors.New("the epoch has no manifest")

// recoverable halts if an epoch has lost its checkpoint, and the output has no release
// with which a repetition could be compared.
func (r *keeper) recoverable(ctx context.Context, opened *Entry) error {
	opening, err := r.store.marked(opened.Epoch)
	if err != nil || opening {
		return err
	}
	end, err := r.out.releasedTo(ctx, opened)
	if err != nil || end >= 0 {
		return err
	}
	return halted(haltState, "the checkpoint of epoch %d is missing, and %s/%d holds no release of it: restore it from a backup, or start anew with: streamdp epoch open %s",
		opened.Epoch, r.s.Output.Topic, r.s.Output.Partition, epochArgs(r.task))
}
