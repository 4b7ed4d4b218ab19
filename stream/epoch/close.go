package epoch

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// void takes back the opening of an epoch that never began.
func (k *Keeper) void(ctx context.Context, opened *ledger.Entry) error {
	return k.Atomically(func() error { return k.takeBack(ctx, opened) })
}

// takeBack does the work of void. The caller must be inside Atomically.
func (k *Keeper) takeBack(ctx context.Context, opened *ledger.Entry) error {
	if err := k.DoDisk(ctx, func() error { return k.Store.DestroySecret(opened.Epoch) }); err != nil {
		return err
	}
	k.Log.Warn("the epoch was charged but never began: cancelling its charge", "epoch", opened.Epoch)
	if err := k.DoDisk(ctx, func() error { return k.D.Ledger.Void(opened) }); err != nil {
		return err
	}
	return k.unmark(ctx, opened.Epoch)
}

// CloseEpoch closes the open epoch in the ledger. From then on, its charge covers the offsets below the end of each
// partition; an end of −1 means no limit. steps is a lower bound of the epoch's steps. CloseEpoch then destroys the
// checkpoint and the secret. Before the call, the broker must have acknowledged the epoch's releases, or they must have
// been given up.
func (k *Keeper) CloseEpoch(ctx context.Context, opened *ledger.Entry, ends []ledger.EntryPart, steps uint64,
	reason string) error {
	var end int64
	if err := k.Atomically(func() error {
		if err := k.keepFinal(ctx, opened); err != nil {
			return err
		}
		return k.DoDisk(ctx, func() (err error) {
			end, err = k.D.Ledger.Close(opened, ends, steps, reason)
			return err
		})
	}); err != nil {
		return err
	}
	k.D.Lag.Left(k.Task)
	if reason == "warmup" {
		k.Log.Warn("the warm-up found no bounds: too few records are valid, or no column varies; check the columns",
			"epoch", opened.Epoch,
			"another", "streamdp epoch open "+failure.EpochArgs(k.Task))
	}
	k.Log.Info("epoch closed", "epoch", opened.Epoch, "end", end, "reason", reason)
	return k.FinishClosings(ctx)
}

// CloseStopped closes an epoch that is open but not running, for example because the configuration changed, a key is
// lost, the log is a different one, or the daemon is down. It needs only the checkpoint of the epoch's state, if there
// is one.
func (k *Keeper) CloseStopped(ctx context.Context, opened *ledger.Entry, drop bool) error {
	m, _, unusable := k.Manifest(opened)
	if errors.Is(unusable, ErrNoManifest) {
		began, err := k.began(ctx, opened)
		if err != nil {
			return err
		}
		if !began {
			return k.void(ctx, opened)
		}
	}
	cp, err := k.Store.Load()
	if err != nil && !errors.Is(err, state.ErrCheckpoint) {
		return err
	}
	if id := credentials.KeyID(k.D.Key); err != nil && unusable == nil && m.KeyID != id && k.Store.Encrypted() {
		return failure.Haltf(failure.Key,
			"the checkpoint of epoch %d is encrypted with key %s, but the key file holds key %s, so it is unknown how "+
				"far the epoch read; "+
				"configure the former key, close the epoch with: streamdp epoch close %s, then configure the new key; "+
				"if the former key is lost, remove the files checkpoint* of the task: the charge then covers "+
				"everything up to the log's end",
			m.Epoch, m.KeyID, id, failure.EpochArgs(k.Task))
	}
	if unusable != nil || err != nil || cp == nil || cp.Epoch != opened.Epoch {
		k.Log.Warn(
			"closed the epoch without a checkpoint: its charge covers everything up to the log's end, or has no end " +
				"if it is unknown whether this is the epoch's log")
		released, err := k.Out.ReleasedEnds(ctx, opened)
		if err != nil {
			return err
		}
		ends, err := k.reach(ctx, opened, released, nil)
		if err != nil {
			return err
		}
		return k.CloseEpoch(ctx, opened, ends, 0, ledger.ReasonRequest)
	}
	ends := ledger.EndsAt(cp, k.AnchorMAC)
	var lost *failure.Halt
	k.Guard.Bounds = nil
	if _, err = k.Guard.Begin(ctx, opened, 0, nil, cp); err != nil && !errors.As(err, &lost) {
		return err
	}
	left := k.Guard.Unsent(cp.Outbox)
	_, behind := k.Guard.Behind()
	switch {
	case lost != nil || behind:
		// Another copy of this state has run, or may have. It may have published a different release for the same step,
		// so the unpublished releases are not sent.
		if len(left) > 0 && !drop {
			if lost == nil {
				err = output.ErrBehind
			}
			return fmt.Errorf(
				"%d committed releases of the epoch are perhaps not published: %w; discard them with --drop-outbox",
				len(left), err)
		}
		if len(left) > 0 {
			k.Log.Warn("discarding unpublished releases of the epoch", "releases", len(left))
		}
		upTo, err := k.reach(ctx, opened, nil, cp)
		if err != nil {
			return err
		}
		for i := range ends {
			ends[i].End = upTo[i].End
		}
	case len(left) > 0 && drop:
		k.Log.Warn("discarding unpublished releases of the epoch", "releases", len(left))
	case len(left) > 0:
		if err := k.publishLeft(ctx, left); err != nil {
			return fmt.Errorf("%d releases of the epoch are not published: %w; discard them with --drop-outbox",
				len(left), err)
		}
		if k.D.Cfg.State.Archive {
			if err := k.DoDisk(ctx, func() error { return k.Archive.Append(opened.Epoch, cp.Outbox) }); err != nil {
				return err
			}
		}
	}
	return k.CloseEpoch(ctx, opened, ends, cp.Step, ledger.ReasonRequest)
}

// Reached returns lower bounds of the ends and steps of an epoch that is not running. It reads them from the checkpoint
// if there is one.
func (k *Keeper) Reached(opened *ledger.Entry) (ends []ledger.EntryPart, steps uint64) {
	cp, err := k.Store.Load()
	known := err == nil && cp != nil && cp.Epoch == opened.Epoch
	if known {
		steps = cp.Step
	}
	for _, v := range opened.Views() {
		e := ledger.EntryPart{Partition: v.Partition, End: v.First}
		if known {
			e.End = max(e.End, cp.Of(v.Partition).Position.Next)
		}
		ends = append(ends, e)
	}
	return ends, steps
}

// reach returns upper bounds of the ends of an epoch whose ends are not known. Each partition was read at least up to
// its position in cp or, without cp, up to the end of its releases, in released. A partition whose log has lost its end
// gets no bound.
func (k *Keeper) reach(ctx context.Context, opened *ledger.Entry, released []int64,
	cp *state.Checkpoint) (ends []ledger.EntryPart, err error) {
	for i, v := range opened.Views() {
		var at kafka.Position
		if cp != nil {
			at = cp.Of(v.Partition).Position
		} else {
			at.Next = released[i]
		}
		end, err := k.reachOf(ctx, &v, at.Next, at.Anchor)
		if err != nil {
			return nil, err
		}
		ends = append(ends, ledger.EntryPart{Partition: v.Partition, End: end})
	}
	return ends, nil
}

// reachOf returns an upper bound of the end of an epoch in one partition: the end of the log, or −1 (no bound) if the
// topic may be a different log from the one that the epoch read, or ends before atLeast. It is the same log if the
// topic has the id that the ledger recorded. If brokers have no ids, it is the same log if it holds the record anchor,
// which the epoch read. The bound of an epoch with a horizon is at most the horizon's end.
//
// For example, an epoch has read 1000 records, and its topic is then deleted and created again with 10. The new log's
// end, 10, is no bound.
func (k *Keeper) reachOf(ctx context.Context, opened *ledger.Entry, atLeast int64, anchor *kafka.Anchor) (end int64,
	err error) {
	var log kafka.Offsets
	same := false
	err = k.Do(ctx, "input", func() error {
		t, err := k.D.Client.Topic(ctx, opened.Topic)
		if err != nil || !t.Exists || opened.Partition >= len(t.Partitions) {
			return err
		}
		if log, err = k.D.Client.Offsets(ctx, opened.Topic, int32(opened.Partition)); err != nil {
			return err
		}
		// The id is queried last: if the topic was created again before the offsets were read, its id shows that.
		id, err := k.D.Client.TopicID(ctx, opened.Topic)
		if kafka.UnknownTopic(err) {
			return nil
		}
		same = err == nil && !id.IsZero() && id.String() == opened.TopicID
		if err == nil && !id.IsZero() && opened.TopicID != "" {
			anchor = nil // the ids alone decide
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if !same && anchor != nil && log.End > 0 {
		w := &logProbe{r: k, src: opened.Source, log: log}
		found, err := w.look(ctx, anchor.Offset, func(h [32]byte) bool { return h == anchor.Hash })
		if err != nil {
			return 0, err
		}
		same = found == recordThere
	}
	if end = log.End; !same || end < max(atLeast, opened.First) {
		end = -1
	}
	if opened.End >= 0 && (end < 0 || end > opened.End) {
		end = opened.End
	}
	return end, nil
}

// publishLeft publishes the releases in a checkpoint's outbox.
func (k *Keeper) publishLeft(ctx context.Context, outbox []state.Message) error {
	ctx, cancel := context.WithTimeout(ctx, ShutdownTime)
	defer cancel()
	if err := k.Do(ctx, "output", func() error { return k.Out.Make(ctx) }); err != nil {
		return err
	}
	for one := true; len(outbox) > 0; one = false {
		batch := output.CompleteReleases(outbox, one)
		if _, err := output.Send(ctx, k.Guard, k.Feed, batch); err != nil {
			return err
		}
		outbox = outbox[len(batch):]
	}
	return nil
}

// FinishClosings destroys checkpoints and secrets of closed epochs, and records that in the ledger. It runs at every
// start and before each opening of an epoch, and continues work that was left undone. It needs only a keeper made by
// NewKeeper.
func (k *Keeper) FinishClosings(ctx context.Context) error {
	if len(k.D.Ledger.Undestroyed(k.Task)) == 0 {
		return nil
	}
	// The checkpoint belongs to a closed epoch, unless the ledger is an old copy that lacks a newer, open epoch.
	if k.D.Ledger.Newest(k.Task).Kind == ledger.KindClose && k.ledgerIsNewest() == nil {
		if err := k.Atomically(func() error { return k.DoDisk(ctx, k.Store.Erase) }); err != nil {
			return err
		}
	}
	return k.DestroySecrets(ctx)
}

// DestroySecrets destroys the secrets of closed epochs whose retention is over. It is safe for concurrent use, because
// it does not touch an open epoch.
func (k *Keeper) DestroySecrets(ctx context.Context) error {
	k.destroying.Lock()
	defer k.destroying.Unlock()
	for _, e := range k.D.Ledger.Undestroyed(k.Task) {
		if k.D.Now().Before(e.Time.Add(k.D.Cfg.State.EpochSecretRetention)) {
			continue
		}
		// Write the line only after the secret is gone.
		if err := k.Atomically(func() error {
			return k.DoDisk(ctx, func() error { return k.Store.DestroySecret(e.Epoch) })
		}); err != nil {
			return err
		}
		if err := k.Atomically(func() error {
			return k.DoDisk(ctx, func() error { return k.D.Ledger.Destroyed(&e) })
		}); err != nil {
			return err
		}
	}
	return nil
}
