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

// void ends an epoch that never began.
func (r *Keeper) void(ctx context.Context, opened *ledger.Entry) error {
	return r.Atomically(func() error { return r.takeBack(ctx, opened) })
}

// takeBack does what void does, within an opening.
func (r *Keeper) takeBack(ctx context.Context, opened *ledger.Entry) error {
	if err := r.DoDisk(ctx, func() error {
		return state.RemoveAll(r.D.Disk, r.Store.Dir, state.SecretName(opened.Epoch), state.InitialName(opened.Epoch))
	}); err != nil {
		return err
	}
	r.Log.Warn("epoch was charged and never began", "epoch", opened.Epoch)
	var parts []ledger.EntryPart
	for _, p := range opened.Parts {
		parts = append(parts, ledger.EntryPart{Partition: p.Partition})
	}
	err := r.DoDisk(ctx, func() error {
		return r.D.Ledger.Append(ledger.Entry{
			Kind: ledger.KindVoid, Stream: opened.Stream, Source: opened.Source, Epoch: opened.Epoch, Parts: parts,
			Reason: "interrupted while opening, before any noise",
		})
	})
	if err != nil {
		return err
	}
	return r.unmark(ctx, opened.Epoch)
}

// CloseEpoch closes the open epoch in the ledger. From then on its charge covers the
// offsets below the end of each of its partitions, −1 for all. It had so many steps, or more. Then it destroys what must
// not outlive the epoch. The epoch's releases must have been acknowledged, or given up.
func (r *Keeper) CloseEpoch(ctx context.Context, opened *ledger.Entry, ends []ledger.EntryPart, steps uint64, reason string) error {
	e := opened.Closing(ends, steps)
	e.Reason = reason
	if err := r.Atomically(func() error {
		if err := r.keepFinal(ctx, opened); err != nil {
			return err
		}
		return r.DoDisk(ctx, func() error { return r.D.Ledger.Append(*e) })
	}); err != nil {
		return err
	}
	r.D.Lag.Left(r.Task)
	if reason == "warmup" {
		r.Log.Warn("the warm-up found no bounds: too few valid records (is a column mistyped?), or no column varies", "epoch", opened.Epoch,
			"another", "streamdp epoch open "+failure.EpochArgs(r.Task))
	}
	r.Log.Info("epoch closed", "epoch", opened.Epoch, "end", e.End, "reason", reason)
	return r.FinishClosings(ctx)
}

// CloseStopped closes an epoch that is open and not running: the configuration changed, a
// key is lost, the log is another one, or the daemon is down. Of the epoch it uses the
// checkpoint, if there is one, and nothing else.
func (r *Keeper) CloseStopped(ctx context.Context, opened *ledger.Entry, drop bool) error {
	m, _, unusable := r.Manifest(opened)
	if errors.Is(unusable, ErrNoManifest) {
		began, err := r.began(ctx, opened)
		if err != nil {
			return err
		}
		if !began {
			return r.void(ctx, opened)
		}
	}
	cp, err := r.Store.Load()
	if err != nil && !errors.Is(err, state.ErrCheckpoint) {
		return err
	}
	if id := credentials.KeyID(r.D.Key); err != nil && unusable == nil && m.KeyID != id && r.Store.Encrypted() {
		return failure.Haltf(failure.Key, "the checkpoint of epoch %d is encrypted with key %s, and the key file holds key %s: without it nobody knows how far the epoch read; "+
			"name the former key, close the epoch with: streamdp epoch close %s, then name the new key; "+
			"where the former key is lost, remove the files checkpoint* of the task, and the charge covers everything up to the log's end",
			m.Epoch, m.KeyID, id, failure.EpochArgs(r.Task))
	}
	if unusable != nil || err != nil || cp == nil || cp.Epoch != opened.Epoch {
		r.Log.Warn("epoch closed without its checkpoint: its charge covers everything up to the log's end, and has no end where the log can't be shown to be the epoch's")
		released, err := r.Out.ReleasedEnds(ctx, opened)
		if err != nil {
			return err
		}
		ends, err := r.reach(ctx, opened, released, nil)
		if err != nil {
			return err
		}
		return r.CloseEpoch(ctx, opened, ends, 0, ledger.ReasonRequest)
	}
	ends := ledger.EndsAt(cp, r.AnchorMAC)
	var lost *failure.Halt
	r.Guard.Bounds = nil
	if _, err = r.Guard.Begin(ctx, opened, 0, nil, cp); err != nil && !errors.As(err, &lost) {
		return err
	}
	left := r.Guard.Unsent(cp.Outbox)
	_, behind := r.Guard.Behind()
	switch {
	case lost != nil || behind:
		// Another copy of this state has run, or may have. A release that is not published yet
		// could differ from what that copy published, so it is not published.
		if len(left) > 0 && !drop {
			if lost == nil {
				err = output.ErrBehind
			}
			return fmt.Errorf("%d releases of the epoch are committed and may not be published: %w (--drop-outbox gives them up)", len(left), err)
		}
		if len(left) > 0 {
			r.Log.Warn("releases are given up", "releases", len(left))
		}
		upTo, err := r.reach(ctx, opened, nil, cp)
		if err != nil {
			return err
		}
		for i := range ends {
			ends[i].End = upTo[i].End
		}
	case len(left) > 0 && drop:
		r.Log.Warn("releases are given up", "releases", len(left))
	case len(left) > 0:
		if err := r.publishLeft(ctx, left); err != nil {
			return fmt.Errorf("%d releases of the epoch are not published: %w (--drop-outbox gives them up)", len(left), err)
		}
		if r.D.Cfg.State.Archive {
			if err := r.DoDisk(ctx, func() error { return r.Archive.Append(opened.Epoch, cp.Outbox) }); err != nil {
				return err
			}
		}
	}
	return r.CloseEpoch(ctx, opened, ends, cp.Step, ledger.ReasonRequest)
}

// Reached returns offsets that an epoch which is not running has reached, from its
// checkpoint if there is one, and its steps. The epoch ends there or later.
func (r *Keeper) Reached(opened *ledger.Entry) (ends []ledger.EntryPart, steps uint64) {
	cp, err := r.Store.Load()
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

// reach returns upper bounds on the ends of an epoch, if they are not known. Each of its
// partitions was read at least as far as its checkpoint says or, where there is none, as its
// releases cover: released. One whose log lost its end is no bound, however long the others
// are.
func (r *Keeper) reach(ctx context.Context, opened *ledger.Entry, released []int64, cp *state.Checkpoint) (ends []ledger.EntryPart, err error) {
	for i, v := range opened.Views() {
		var at kafka.Position
		if cp != nil {
			at = cp.Of(v.Partition).Position
		} else {
			at.Next = released[i]
		}
		end, err := r.reachOf(ctx, &v, at.Next, at.Anchor)
		if err != nil {
			return nil, err
		}
		ends = append(ends, ledger.EntryPart{Partition: v.Partition, End: end})
	}
	return ends, nil
}

// reachOf returns an upper bound on the end of an epoch in one partition: the end of
// the log, or −1 (no bound) if the topic may be another log than the one that the epoch
// read, or ends before atLeast. The log is the epoch's if the topic has the id that the
// ledger recorded or, where there are no ids, holds a record that the epoch read, anchor.
// An epoch with a horizon ends there at the latest.
//
// For example, an epoch has read 1000 records, and its topic is then deleted and made
// again with 10. The new log's end, 10, is no bound.
func (r *Keeper) reachOf(ctx context.Context, opened *ledger.Entry, atLeast int64, anchor *kafka.Anchor) (end int64, err error) {
	var log kafka.Offsets
	same := false
	err = r.Do(ctx, "input", func() error {
		t, err := r.D.Client.Topic(ctx, opened.Topic)
		if err != nil || !t.Exists || opened.Partition >= len(t.Partitions) {
			return err
		}
		if log, err = r.D.Client.Offsets(ctx, opened.Topic, int32(opened.Partition)); err != nil {
			return err
		}
		// The id is asked for last: had the topic been made anew before the offsets were
		// read, the id would tell.
		id, err := r.D.Client.TopicID(ctx, opened.Topic)
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
		w := &witness{r: r, src: opened.Source, log: log}
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
func (r *Keeper) publishLeft(ctx context.Context, outbox []state.Message) error {
	ctx, cancel := context.WithTimeout(ctx, ShutdownTime)
	defer cancel()
	if err := r.Do(ctx, "output", func() error { return r.Out.Make(ctx) }); err != nil {
		return err
	}
	p := output.NewPublisher(r.Guard, r.Feed, &state.Checkpoint{})
	for one := true; len(outbox) > 0; one = false {
		batch := output.CompleteReleases(outbox, one)
		if err := p.Send(ctx, batch); err != nil {
			return err
		}
		outbox = outbox[len(batch):]
	}
	return nil
}

// FinishClosings destroys checkpoints and secrets of closed epochs, and records that in
// the ledger. It runs at every start and before another epoch opens, until it is done. A
// Runner made by newAbandoned is enough for it.
func (r *Keeper) FinishClosings(ctx context.Context) error {
	if len(r.D.Ledger.Undestroyed(r.Task)) == 0 {
		return nil
	}
	// The checkpoint is of an epoch that is closed, unless another is open
	// already and has its own, which an old copy of the ledger does not know.
	if r.D.Ledger.Newest(r.Task).Kind == ledger.KindClose && r.ledgerIsNewest() == nil {
		if err := r.Atomically(func() error { return r.DoDisk(ctx, r.Store.Erase) }); err != nil {
			return err
		}
	}
	return r.DestroySecrets(ctx)
}

// DestroySecrets destroys the secrets of closed epochs whose retention is over. It is safe for
// concurrent use, because it touches nothing of an open epoch.
func (r *Keeper) DestroySecrets(ctx context.Context) error {
	r.destroying.Lock()
	defer r.destroying.Unlock()
	for _, e := range r.D.Ledger.Undestroyed(r.Task) {
		if r.D.Now().Before(e.Time.Add(r.D.Cfg.State.EpochSecretRetention)) {
			continue
		}
		// The line only after the secret is gone.
		if err := r.Atomically(func() error {
			return r.DoDisk(ctx, func() error {
				return state.RemoveAll(r.D.Disk, r.Store.Dir, state.SecretName(e.Epoch), state.InitialName(e.Epoch))
			})
		}); err != nil {
			return err
		}
		if err := r.Atomically(func() error {
			return r.DoDisk(ctx, func() error {
				return r.D.Ledger.Append(ledger.Entry{Kind: ledger.KindDestroyed, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch})
			})
		}); err != nil {
			return err
		}
	}
	return nil
}
