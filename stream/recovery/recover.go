// Package recovery restores and checks a task's data: it recovers a task's state, publishes releases again, verifies
// published releases, repairs a ledger, and exports and inspects an epoch's files.
package recovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Recover restores the state of the task's open epoch if its checkpoint, or a file of persons, is damaged or lost. It
// starts from the commit before the damaged one or, if that commit is damaged too, from the epoch's first offset. It
// recomputes the releases published since then: with the same keys, manifest and log they have the same bytes. It
// writes a checkpoint only after it has recomputed and compared every release in the output. If one differs, the task
// halts, and all files remain unchanged.
//
// The daemon never goes back from a damaged checkpoint by itself: a disk that lost one file may have lost others, so
// the operator should check it first.
//
// Recover needs the manifest and the secret of the epoch. If from is not nil, it restores them from there. If the
// output has no releases to compare with, only the anchor of a commit proves that the epoch read this log; without a
// commit, Recover returns an error. If only files of persons are damaged, Recover also recomputes the steps up to the
// last commit; the result must have that commit's transcript.
func (r Restorer) Recover(ctx context.Context, from *Export) error {
	if from != nil {
		if err := r.bringBack(ctx, from); err != nil {
			return err
		}
	}
	opened := r.D.Ledger.Newest(r.Task)
	if opened == nil || opened.Kind != ledger.KindOpen {
		return failure.Haltf(failure.State,
			"the ledger has no open epoch of %s: if the ledger is lost too, restore it first with: streamdp ledger "+
				"repair", r.Task)
	}
	if _, _, err := r.Manifest(opened); errors.Is(err, epoch.ErrNoManifest) {
		return failure.Haltf(failure.State, "the manifest of epoch %d is missing: %s", opened.Epoch,
			failure.Restore(r.Task))
	}
	back := &rewind{r: r.Keeper}
	l, err := r.ResumeAt(ctx, opened, back.start, nil)
	if err != nil {
		return err
	}
	defer l.Core.Destroy()
	ahead, _ := r.Guard.Behind()
	r.Log.Info("recovering", "epoch", l.M.Epoch, "from_step", l.Core.Step(), "next_offset", l.Cp.Position.Next,
		"published", ahead)
	cp := l.Cp
	missing, err := r.repeat(ctx, l, cp, back.last)
	if err != nil {
		return err
	}
	cp.Step, cp.Transcript = l.Core.Step(), l.Core.Transcript()
	cp.Build = epoch.Build()
	cp.Outbox = append(cp.Outbox, missing...)
	if cp.State, err = l.Core.AppendState(nil); err != nil {
		return err
	}
	defer clear(cp.State)
	if err := r.Atomically(func() error {
		if err := r.DoDisk(ctx, func() (err error) { cp.Users, err = l.Users.Rewrite(); return err }); err != nil {
			return err
		}
		// If a crash happens between these two steps, there is no checkpoint, and the operator can recover again.
		if err := r.DoDisk(ctx, func() error { return r.Store.EraseCheckpoints() }); err != nil {
			return err
		}
		cp.Ledger = r.D.Ledger.HeadHash()
		return r.DoDisk(ctx, func() error { return r.Store.Commit(cp) })
	}); err != nil {
		return err
	}
	if l.Users != nil {
		if err := r.DoDisk(ctx, l.Users.Committed); err != nil {
			return err
		}
	}
	r.Log.Info("recovered", "epoch", l.M.Epoch, "step", cp.Step, "next_offset", cp.Position.Next)
	return nil
}

// Restorer restores the lost state of a task by recomputing it.
type Restorer struct{ *epoch.Keeper }

// bringBack writes those files of an exported epoch that are missing or damaged.
func (r Restorer) bringBack(ctx context.Context, from *Export) error {
	m, err := core.ParseManifest([]byte(from.Manifest))
	if err != nil {
		return failure.Haltf(failure.State, "%w", err)
	}
	if m.Task() != r.Task {
		return fmt.Errorf("the exported epoch is of %s, not of %s", m.Task(), r.Task)
	}
	opened := r.D.Ledger.Opening(r.Task, m.Epoch)
	if opened == nil {
		// The ledger is lost too. The command `ledger repair` will charge the epoch as stated in this manifest.
		cp, err := r.Store.Load()
		if err != nil && !errors.Is(err, state.ErrCheckpoint) {
			return err
		}
		if _, err := provenCharge(m, []byte(from.Manifest), cp); err != nil {
			return err
		}
		if opened, err = from.opening(ledger.NewKey(r.D.Key)); err != nil {
			return failure.Haltf(failure.State, "the ledger in the exported epoch: %w", err)
		}
	}
	if m, err = epoch.ManifestOf(r.Task, opened, []byte(from.Manifest)); err != nil {
		return err
	}
	if !m.Cost.Equal(opened.Cost) {
		return failure.Haltf(failure.State, "manifest of epoch %d: it spends more than the ledger charged", m.Epoch)
	}
	if len(from.Secret) > 0 {
		keys, err := epoch.KeysOf(r.D.Key, m, from.Secret)
		if err != nil {
			return err
		}
		keys.Destroy()
	}
	return r.DoDisk(ctx, func() error {
		return r.Store.Restore(m.Epoch,
			state.EpochFiles{Manifest: []byte(from.Manifest), Secret: from.Secret, Initial: from.Initial})
	})
}

// rewind finds the checkpoint from which Recover starts.
type rewind struct {
	r *epoch.Keeper
	// last is the last commit, if it is undamaged but its files of persons are not.
	last *state.Checkpoint
}

// start returns the newer of the last two commits that is undamaged. If both are damaged, it returns the epoch's first
// checkpoint.
func (w *rewind) start(ctx context.Context, opened *ledger.Entry, m *core.Manifest, file []byte,
	mech *core.Mechanism) (*state.Checkpoint, error) {
	r := w.r
	cp, err := r.Store.Load()
	if err != nil && !errors.Is(err, state.ErrCheckpoint) {
		return nil, err
	}
	if err == nil && cp != nil {
		if err := r.OfEpoch(cp, m, file); err != nil {
			return nil, err
		}
		if whole, err := state.WholePersons(r.Store, r.S.User != nil, cp); whole || err != nil {
			return cp, err
		}
		w.last = cp
	}
	if cp, err = r.Store.Previous(); err != nil {
		return nil, err
	}
	if cp != nil && r.OfEpoch(cp, m, file) == nil {
		if whole, err := state.WholePersons(r.Store, r.S.User != nil, cp); whole || err != nil {
			return cp, err
		}
	}
	if w.last == nil {
		if err := r.Recoverable(ctx, opened); err != nil {
			return nil, err
		}
	}
	return r.First(m, file, mech, state.UnknownOutput, nil)
}

// repeat recomputes the steps that are in the output but not in the checkpoint cp, and compares their releases. If
// there is a later commit, repeat also recomputes the steps up to this commit, and the result must equal it. repeat
// returns the messages of the recomputed steps that are not published, and sets the positions in cp to the end of the
// last step.
func (r Restorer) repeat(ctx context.Context, l *epoch.OpenEpoch, cp, last *state.Checkpoint) (missing []state.Message,
	err error) {
	again, err := newRecomputation(r.Retrier, r.D.Client, r.D.Schemas, r.S, l.M, l.Core, l.Cp, l.Bounds.Written(),
		r.D.FetchBytes)
	if err != nil {
		return nil, err
	}
	at := r.D.Now()
	for {
		if last != nil && l.Core.Step() == last.Step && l.Core.Transcript() != last.Transcript {
			return nil, r.elsewhere()
		}
		behind, err := r.Guard.StillBehind(ctx)
		if err != nil {
			return nil, err
		}
		if !behind && (last == nil || l.Core.Step() >= last.Step) {
			again.at(cp)
			return missing, nil
		}
		messages, err := again.close(ctx)
		if ended := (*logEnded)(nil); errors.As(err, &ended) {
			return nil, failure.Haltf(failure.Truncated,
				"%w, but the step was committed or is published: the log was replaced or truncated; start again "+
					"with: streamdp epoch open %s", err, failure.EpochArgs(r.Task))
		}
		if err != nil {
			return nil, r.LogError(err)
		}
		if messages, err = r.Guard.Closed(l.Core.Step(), messages); err != nil {
			return nil, err
		}
		for _, rel := range messages {
			missing = append(missing, state.Message{Message: rel, Time: at})
		}
		if len(missing) > epoch.MaxPending {
			return nil, r.Guard.Incomplete()
		}
	}
}
