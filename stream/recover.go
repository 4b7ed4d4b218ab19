package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/streamdp/streamdp/stream/core"
)

// recover restores the state of the task's open epoch, of which the checkpoint, or a file of
// persons, is damaged or lost. It continues from the commit before the damaged one or, if that is
// damaged too, from the epoch's first offset. It computes the releases published since then again:
// with the same keys, manifest and log they have the same bytes. It writes a checkpoint
// only after it has got everything that the output has. The first difference is a halt,
// and leaves everything on disk as it was.
//
// The daemon never goes back from a damaged checkpoint without being asked: a disk that
// lost one file may have lost others, and the operator should look at it first.
//
// recover needs the manifest and the secret of the epoch. If from is not nil, it restores
// them from there. If the output has no releases to compare with, only a commit with its
// anchor shows that the log is the epoch's; without one recover refuses. Where only files of
// persons are damaged, the steps up to the last commit are computed again too, and must lead to its
// transcript.
func (r restorer) recover(ctx context.Context, from *Export) error {
	if from != nil {
		if err := r.bringBack(ctx, from); err != nil {
			return err
		}
	}
	opened := r.d.ledger.newest(r.task)
	if opened == nil || opened.Kind != kindOpen {
		return halted(haltState, "the ledger knows no open epoch of %s: where it is lost too, bring it back first, with: streamdp ledger repair", r.task)
	}
	if _, _, err := r.manifest(opened); errors.Is(err, errNoManifest) {
		return halted(haltState, "the manifest of epoch %d is missing: %s", opened.Epoch, restoreEpoch(r.task))
	}
	back := &rewind{r: r.keeper}
	l, err := r.resumeAt(ctx, opened, back.start, nil)
	if err != nil {
		return err
	}
	defer l.core.Destroy()
	ahead, _ := r.guard.behind()
	r.log.Info("recovering", "epoch", l.m.Epoch, "from_step", l.core.Step(), "next_offset", l.cp.position.Next, "published", ahead)
	cp := l.cp
	missing, err := r.repeat(ctx, l, cp, back.last)
	if err != nil {
		return err
	}
	cp.step, cp.transcript = l.core.Step(), l.core.Transcript()
	cp.build = build()
	cp.outbox = append(cp.outbox, missing...)
	if cp.state, err = l.core.AppendState(nil); err != nil {
		return err
	}
	defer clear(cp.state)
	if err := r.atomically(func() error {
		if err := r.write(ctx, func() (err error) { cp.users, err = l.users.rewrite(); return err }); err != nil {
			return err
		}
		// A crash between the two leaves no checkpoint: then a start does the same again.
		if err := r.write(ctx, func() error { return r.store.eraseCheckpoints() }); err != nil {
			return err
		}
		cp.ledger = r.d.ledger.headHash()
		return r.write(ctx, func() error { return r.store.commit(cp) })
	}); err != nil {
		return err
	}
	if l.users != nil {
		if err := r.write(ctx, l.users.committed); err != nil {
			return err
		}
	}
	r.log.Info("recovered", "epoch", l.m.Epoch, "step", cp.step, "next_offset", cp.position.Next)
	return nil
}

// restorer brings back what a task has lost, by computing it again.
type restorer struct{ *keeper }

// bringBack writes those files of an exported epoch that are missing or damaged.
func (r restorer) bringBack(ctx context.Context, from *Export) error {
	m, err := core.ParseManifest([]byte(from.Manifest))
	if err != nil {
		return halted(haltState, "%w", err)
	}
	if m.Task() != r.task {
		return fmt.Errorf("the file is of %s, not of %s", m.Task(), r.task)
	}
	opened := r.d.ledger.opening(r.task, m.Epoch)
	if opened == nil {
		// The ledger is lost too. ledger repair will charge what this manifest says.
		cp, err := r.store.load()
		if err != nil && !errors.Is(err, errCheckpoint) {
			return err
		}
		if _, err := vouched(m, []byte(from.Manifest), cp); err != nil {
			return err
		}
		if opened, err = from.opening(newLedgerKey(r.d.key)); err != nil {
			return halted(haltState, "the ledger in the file: %w", err)
		}
	}
	if m, err = manifestOf(r.task, opened, []byte(from.Manifest)); err != nil {
		return err
	}
	if !m.Cost.Equal(opened.Cost) {
		return halted(haltState, "manifest of epoch %d: it spends what the ledger did not charge", m.Epoch)
	}
	put := func(name string, data []byte) error {
		if len(data) == 0 {
			return nil
		}
		was, err := r.d.disk.ReadFile(r.store.path(name))
		if err == nil && bytes.Equal(was, data) {
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return r.write(ctx, func() error {
			if err := removeAll(r.d.disk, r.store.dir, name); err != nil {
				return err
			}
			return writeNew(r.d.disk, r.store.path(name), data)
		})
	}
	if len(from.Secret) > 0 {
		keys, err := keysOf(r.d.key, m, from.Secret)
		if err != nil {
			return err
		}
		keys.Destroy()
		if was, err := r.store.secret(m.Epoch); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		} else if !bytes.Equal(was, from.Secret) {
			err := r.write(ctx, func() error {
				if err := removeAll(r.d.disk, r.store.dir, secretName(m.Epoch)); err != nil {
					return err
				}
				return r.store.keepSecret(m.Epoch, from.Secret)
			})
			if err != nil {
				return err
			}
		}
	}
	if err := put(initialName(m.Epoch), from.Initial); err != nil {
		return err
	}
	return put(manifestName(m.Epoch), []byte(from.Manifest))
}

// rewind finds the checkpoint from which recover continues.
type rewind struct {
	r *keeper
	// last is the last commit where it is whole and its files of persons are not.
	last *checkpoint
}

// start returns the last commit that is whole, of the last two, or the epoch's first checkpoint.
func (w *rewind) start(ctx context.Context, opened *Entry, m *core.Manifest, file []byte, mech *core.Mechanism) (*checkpoint, error) {
	r := w.r
	cp, err := r.store.load()
	if err != nil && !errors.Is(err, errCheckpoint) {
		return nil, err
	}
	if err == nil && cp != nil {
		if err := r.ofEpoch(cp, m, file); err != nil {
			return nil, err
		}
		if whole, err := usersWhole(r.store, r.s.User != nil, cp); whole || err != nil {
			return cp, err
		}
		w.last = cp
	}
	if cp, err = r.store.previous(); err != nil {
		return nil, err
	}
	if cp != nil && r.ofEpoch(cp, m, file) == nil {
		if whole, err := usersWhole(r.store, r.s.User != nil, cp); whole || err != nil {
			return cp, err
		}
	}
	if w.last == nil {
		if err := r.recoverable(ctx, opened); err != nil {
			return nil, err
		}
	}
	return r.first(m, file, mech, unknownOutput, nil)
}

// repeat computes the steps by which the output is ahead of a state, and compares them; and those up
// to a later commit, if there is one, which they must lead to.
// It returns the messages of these steps that are not published, and sets the checkpoint's
// positions to those after the last step.
func (r restorer) repeat(ctx context.Context, l *openEpoch, cp, last *checkpoint) (missing []pending, err error) {
	again, err := newRepetition(r.repeater, r.d.client, r.d.schemas, r.s, l.m, l.core, l.cp, l.bounds.written(), r.d.fetchBytes)
	if err != nil {
		return nil, err
	}
	at := r.d.now()
	for {
		if last != nil && l.core.Step() == last.step && l.core.Transcript() != last.transcript {
			return nil, r.elsewhere()
		}
		behind, err := r.guard.stillBehind(ctx)
		if err != nil {
			return nil, err
		}
		if !behind && (last == nil || l.core.Step() >= last.step) {
			again.at(cp)
			return missing, nil
		}
		messages, err := again.close(ctx)
		if ended := (*logEnded)(nil); errors.As(err, &ended) {
			return nil, halted(haltTruncated, "%w, which was committed or is published: the log is another one, or was truncated; start anew with: streamdp epoch open %s", err, epochArgs(r.task))
		}
		if err != nil {
			return nil, r.logError(err)
		}
		if messages, err = r.guard.closed(l.core.Step(), messages); err != nil {
			return nil, err
		}
		for _, rel := range messages {
			missing = append(missing, pending{Message: rel, time: at})
		}
		if len(missing) > maxPending {
			return nil, r.guard.incomplete()
		}
	}
}
