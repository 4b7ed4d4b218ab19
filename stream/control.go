package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"streamdp/config"
)

// request asks a task's owner to change its epoch.
type request struct {
	kind  string
	open  OpenRequest
	reply chan error
}

const (
	requestClose = "close"
	requestOpen  = "open"
)

// acceptable refuses a request that would fail after it had closed the task's
// open epoch, whose end is at end or later. The log holds offsets from start on,
// and latest is its end; −1 where that is not known.
func (r *runner) acceptable(q request, opened *Entry, end, start, latest int64) error {
	if q.kind != requestOpen {
		return nil
	}
	var at config.Start
	continues := q.open.From == "" || q.open.From == "continue"
	if !continues {
		if err := at.UnmarshalText([]byte(q.open.From)); err != nil {
			return err
		}
	}
	mech, err := newMechanism(r.s, nil, nil)
	if err != nil {
		return halted(haltConfiguration, "%w", err)
	}
	if opened.Source.Topic != r.s.Input.Topic {
		return nil // where it begins is known only when it opens
	}
	base := int64(at)
	switch {
	case continues:
		base = end
	case at == config.Earliest:
		base = start
	case at == config.Latest:
		base = latest
	case latest >= 0 && (base < start || base > latest):
		return notInLog(base, opened.Source, start, latest)
	}
	if base < 0 {
		return nil
	}
	e, err := r.charge(mech, opened.Source, base)
	if err != nil {
		return err
	}
	e.Incarnation = opened.Incarnation
	if err := r.d.ledger.affords(e, opened, end); err != nil {
		if budget := (*errBudget)(nil); errors.As(err, &budget) {
			return halted(haltBudget, "%w", err)
		}
		return err
	}
	return nil
}

// serve answers a request while no epoch is running.
func (r *runner) serve(ctx context.Context, q request) error {
	if err := r.finishClosings(ctx); err != nil {
		return err
	}
	last := r.d.ledger.newest(r.task)
	if last == nil || last.Kind != kindOpen {
		if q.kind == requestClose {
			return errors.New("the task has no open epoch")
		}
		return r.open(ctx, q.open)
	}
	start, latest := int64(-1), int64(-1)
	if s, l, _, err := r.d.client.Offsets(ctx, last.Topic, int32(r.task.Partition)); err == nil {
		start, latest = s, l
	}
	if err := r.acceptable(q, last, r.reached(last), start, latest); err != nil {
		return err
	}
	if err := r.closeHalted(ctx, last, q.open.DropOutbox); err != nil {
		return err
	}
	if q.kind == requestClose {
		return nil
	}
	return r.open(ctx, q.open)
}

// reached returns an offset that an epoch which is not running has reached, by
// its checkpoint if there is one: its end is there or later.
func (r *runner) reached(opened *Entry) int64 {
	if cp, err := r.store.load(); err == nil && cp != nil && cp.epoch == opened.Epoch {
		return max(cp.position.Next, opened.First)
	}
	return opened.First
}

// closeHalted closes an epoch that is open and not running: because the
// configuration changed, a key is lost, the log is another one, or the daemon
// is down. It needs nothing of the epoch but its checkpoint, and not even that.
func (r *runner) closeHalted(ctx context.Context, opened *Entry, drop bool) error {
	_, _, unusable := r.manifest(opened)
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
	if unusable != nil || err != nil || cp == nil || cp.epoch != opened.Epoch {
		r.log.Warn("epoch closed without its checkpoint: its charge covers everything up to the log's end")
		released, err := r.releasedTo(ctx, opened)
		if err != nil {
			return err
		}
		end, err := r.reach(ctx, opened, released)
		if err != nil {
			return err
		}
		return r.closeEpoch(ctx, opened, end, nil, reasonRequest)
	}
	end := cp.position.Next
	var lost *halt
	_, ahead, err := r.findPublished(ctx, opened.Epoch, cp)
	if err != nil && !errors.As(err, &lost) {
		return err
	}
	switch {
	case lost != nil || ahead > cp.step:
		// Another copy of this state went on, or may have. What is owed here
		// could contradict what that one published, so it stays here.
		if lost != nil && len(cp.outbox) > 0 && !drop {
			return fmt.Errorf("%d releases of the epoch may be published or not: %w (--drop-outbox gives them up)", len(cp.outbox), err)
		}
		if len(cp.outbox) > 0 {
			r.log.Warn("releases are given up", "releases", len(cp.outbox))
		}
		if end, err = r.reach(ctx, opened, end); err != nil {
			return err
		}
	case len(cp.outbox) > 0 && !drop:
		if err := r.publishLeft(ctx, cp.outbox); err != nil {
			return fmt.Errorf("%d releases of the epoch are not published: %w (--drop-outbox gives them up)", len(cp.outbox), err)
		}
	}
	return r.closeEpoch(ctx, opened, end, cp.position.Anchor, reasonRequest)
}

// reach bounds what an epoch may have covered, where that is not known: at
// least atLeast, and everything to the log's end; without a log, or with one that
// ends before what it has covered, everything, as far as its horizon.
func (r *runner) reach(ctx context.Context, opened *Entry, atLeast int64) (end int64, err error) {
	end = -1
	err = r.retry(ctx, "input", func() error {
		t, err := r.d.client.Topic(ctx, opened.Topic)
		if err != nil || !t.Exists || r.task.Partition >= len(t.Partitions) {
			return err
		}
		_, _, end, err = r.d.client.Offsets(ctx, opened.Topic, int32(r.task.Partition))
		return err
	})
	if err != nil {
		return 0, err
	}
	if end < max(atLeast, opened.First) {
		end = -1
	}
	if opened.End >= 0 && (end < 0 || end > opened.End) {
		end = opened.End
	}
	return end, nil
}

// publishLeft publishes what a checkpoint owes.
func (r *runner) publishLeft(ctx context.Context, outbox []pending) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTime)
	defer cancel()
	if err := r.retry(ctx, "output", func() error { return r.makeOutput(ctx) }); err != nil {
		return err
	}
	p := newPublisher(r, &checkpoint{})
	for batch := range slices.Chunk(outbox, 100) {
		if err := p.send(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}
