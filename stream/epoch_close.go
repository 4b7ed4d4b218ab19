package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
)

// void ends an epoch that never began.
func (r *keeper) void(ctx context.Context, opened *Entry) error {
	return r.atomically(func() error { return r.takeBack(ctx, opened) })
}

// takeBack does what void does, within an opening.
func (r *keeper) takeBack(ctx context.Context, opened *Entry) error {
	if err := r.write(ctx, func() error {
		return removeAll(r.d.disk, r.store.dir, secretName(opened.Epoch), initialName(opened.Epoch))
	}); err != nil {
		return err
	}
	r.log.Warn("epoch was charged and never began", "epoch", opened.Epoch)
	var parts []EntryPart
	for _, p := range opened.Parts {
		parts = append(parts, EntryPart{Partition: p.Partition})
	}
	err := r.write(ctx, func() error {
		return r.d.ledger.append(Entry{
			Kind: kindVoid, Stream: opened.Stream, Source: opened.Source, Epoch: opened.Epoch, Parts: parts,
			Reason: "interrupted while opening, before any noise",
		})
	})
	if err != nil {
		return err
	}
	return r.unmark(ctx, opened.Epoch)
}

// closeEpoch closes the open epoch in the ledger. From then on its charge covers the
// offsets below the end of each of its partitions, −1 for all. It had so many steps, or more. Then it destroys what must
// not outlive the epoch. The epoch's releases must have been acknowledged, or given up.
func (r *keeper) closeEpoch(ctx context.Context, opened *Entry, ends []EntryPart, steps uint64, reason string) error {
	e := opened.closing(ends, steps)
	e.Reason = reason
	if err := r.atomically(func() error {
		if err := r.keepFinal(ctx, opened); err != nil {
			return err
		}
		return r.write(ctx, func() error { return r.d.ledger.append(*e) })
	}); err != nil {
		return err
	}
	r.d.lag.left(r.task)
	if reason == "warmup" {
		r.log.Warn("the warm-up found no bounds: too few valid records (is a column mistyped?), or no column varies", "epoch", opened.Epoch,
			"another", "streamdp epoch open "+epochArgs(r.task))
	}
	r.log.Info("epoch closed", "epoch", opened.Epoch, "end", e.End, "reason", reason)
	return r.finishClosings(ctx)
}

// closeHalted closes an epoch that is open and not running: the configuration changed, a
// key is lost, the log is another one, or the daemon is down. Of the epoch it uses the
// checkpoint, if there is one, and nothing else.
func (r *keeper) closeHalted(ctx context.Context, opened *Entry, drop bool) error {
	m, _, unusable := r.manifest(opened)
	if errors.Is(unusable, errNoManifest) {
		began, err := r.began(ctx, opened)
		if err != nil {
			return err
		}
		if !began {
			return r.void(ctx, opened)
		}
	}
	cp, err := r.store.load()
	if err != nil && !errors.Is(err, errCheckpoint) {
		return err
	}
	if id := credentials.KeyID(r.d.key); err != nil && unusable == nil && m.KeyID != id && r.store.encrypted() {
		return halted(haltKey, "the checkpoint of epoch %d is encrypted with key %s, and the key file holds key %s: without it nobody knows how far the epoch read; "+
			"name the former key, close the epoch with: streamdp epoch close %s, then name the new key; "+
			"where the former key is lost, remove the files checkpoint* of the task, and the charge covers everything up to the log's end",
			m.Epoch, m.KeyID, id, epochArgs(r.task))
	}
	if unusable != nil || err != nil || cp == nil || cp.epoch != opened.Epoch {
		r.log.Warn("epoch closed without its checkpoint: its charge covers everything up to the log's end, and has no end where the log can't be shown to be the epoch's")
		released, err := r.out.releasedEnds(ctx, opened)
		if err != nil {
			return err
		}
		ends, err := r.reach(ctx, opened, released, nil)
		if err != nil {
			return err
		}
		return r.closeEpoch(ctx, opened, ends, 0, reasonRequest)
	}
	ends := endsAt(cp, r.anchorMAC)
	var lost *halt
	r.guard.bounds = nil
	if err = r.guard.begin(ctx, opened, 0, nil, cp); err != nil && !errors.As(err, &lost) {
		return err
	}
	left := r.guard.unsent(cp.outbox)
	_, behind := r.guard.behind()
	switch {
	case lost != nil || behind:
		// Another copy of this state has run, or may have. A release that is not published yet
		// could differ from what that copy published, so it is not published.
		if len(left) > 0 && !drop {
			if lost == nil {
				err = errBehind
			}
			return fmt.Errorf("%d releases of the epoch are committed and may not be published: %w (--drop-outbox gives them up)", len(left), err)
		}
		if len(left) > 0 {
			r.log.Warn("releases are given up", "releases", len(left))
		}
		upTo, err := r.reach(ctx, opened, nil, cp)
		if err != nil {
			return err
		}
		for i := range ends {
			ends[i].End = upTo[i].End
		}
	case len(left) > 0 && drop:
		r.log.Warn("releases are given up", "releases", len(left))
	case len(left) > 0:
		if err := r.publishLeft(ctx, left); err != nil {
			return fmt.Errorf("%d releases of the epoch are not published: %w (--drop-outbox gives them up)", len(left), err)
		}
		if r.d.cfg.State.Archive {
			if err := r.write(ctx, func() error { return r.archive.append(opened.Epoch, cp.outbox) }); err != nil {
				return err
			}
		}
	}
	return r.closeEpoch(ctx, opened, ends, cp.step, reasonRequest)
}

// reached returns offsets that an epoch which is not running has reached, from its
// checkpoint if there is one, and its steps. The epoch ends there or later.
func (r *keeper) reached(opened *Entry) (ends []EntryPart, steps uint64) {
	cp, err := r.store.load()
	known := err == nil && cp != nil && cp.epoch == opened.Epoch
	if known {
		steps = cp.step
	}
	for _, v := range opened.views() {
		e := EntryPart{Partition: v.Partition, End: v.First}
		if known {
			e.End = max(e.End, cp.of(v.Partition).position.Next)
		}
		ends = append(ends, e)
	}
	return ends, steps
}

// reach returns upper bounds on the ends of an epoch, if they are not known. Each of its
// partitions was read at least as far as its checkpoint says or, where there is none, as its
// releases cover: released. One whose log lost its end is no bound, however long the others
// are.
func (r *keeper) reach(ctx context.Context, opened *Entry, released []int64, cp *checkpoint) (ends []EntryPart, err error) {
	for i, v := range opened.views() {
		var at kafka.Position
		if cp != nil {
			at = cp.of(v.Partition).position
		} else {
			at.Next = released[i]
		}
		end, err := r.reachOf(ctx, &v, at.Next, at.Anchor)
		if err != nil {
			return nil, err
		}
		ends = append(ends, EntryPart{Partition: v.Partition, End: end})
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
func (r *keeper) reachOf(ctx context.Context, opened *Entry, atLeast int64, anchor *kafka.Anchor) (end int64, err error) {
	var log offsets
	same := false
	err = r.retry(ctx, "input", func() error {
		t, err := r.d.client.Topic(ctx, opened.Topic)
		if err != nil || !t.Exists || opened.Partition >= len(t.Partitions) {
			return err
		}
		if log, err = r.d.offsetsOf(ctx, opened.Topic, opened.Partition); err != nil {
			return err
		}
		// The id is asked for last: had the topic been made anew before the offsets were
		// read, the id would tell.
		id, err := r.d.client.TopicID(ctx, opened.Topic)
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
	if !same && anchor != nil && log.end > 0 {
		w := &witness{r: r, src: opened.Source, log: log}
		found, err := w.look(ctx, anchor.Offset, func(h [32]byte) bool { return h == anchor.Hash })
		if err != nil {
			return 0, err
		}
		same = found == recordThere
	}
	if end = log.end; !same || end < max(atLeast, opened.First) {
		end = -1
	}
	if opened.End >= 0 && (end < 0 || end > opened.End) {
		end = opened.End
	}
	return end, nil
}

// publishLeft publishes the releases in a checkpoint's outbox.
func (r *keeper) publishLeft(ctx context.Context, outbox []pending) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTime)
	defer cancel()
	if err := r.retry(ctx, "output", func() error { return r.out.make(ctx) }); err != nil {
		return err
	}
	p := newPublisher(r.guard, r.feed, &checkpoint{})
	for one := true; len(outbox) > 0; one = false {
		batch := wholeReleases(outbox, one)
		if err := p.send(ctx, batch); err != nil {
			return err
		}
		outbox = outbox[len(batch):]
	}
	return nil
}

// finishClosings destroys checkpoints and secrets of closed epochs, and records that in
// the ledger. It runs at every start and before another epoch opens, until it is done. A
// runner made by newAbandoned is enough for it.
func (r *keeper) finishClosings(ctx context.Context) error {
	if len(r.d.ledger.undestroyed(r.task)) == 0 {
		return nil
	}
	// The checkpoint is of an epoch that is closed, unless another is open
	// already and has its own, which an old copy of the ledger does not know.
	if r.d.ledger.newest(r.task).Kind == kindClose && r.ledgerIsNewest() == nil {
		if err := r.atomically(func() error { return r.write(ctx, r.store.erase) }); err != nil {
			return err
		}
	}
	return r.destroySecrets(ctx)
}

// destroySecrets destroys the secrets of closed epochs whose retention is over. It is safe for
// concurrent use, because it touches nothing of an open epoch.
func (r *keeper) destroySecrets(ctx context.Context) error {
	r.destroying.Lock()
	defer r.destroying.Unlock()
	for _, e := range r.d.ledger.undestroyed(r.task) {
		if r.d.now().Before(e.Time.Add(r.d.cfg.State.EpochSecretRetention)) {
			continue
		}
		// The line only after the secret is gone.
		if err := r.atomically(func() error {
			return r.write(ctx, func() error {
				return removeAll(r.d.disk, r.store.dir, secretName(e.Epoch), initialName(e.Epoch))
			})
		}); err != nil {
			return err
		}
		if err := r.atomically(func() error {
			return r.write(ctx, func() error {
				return r.d.ledger.append(Entry{Kind: kindDestroyed, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch})
			})
		}); err != nil {
			return err
		}
	}
	return nil
}
