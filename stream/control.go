package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"streamdp/internal/kafka"
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

// serve answers a request while no epoch is running.
func (r *runner) serve(ctx context.Context, q request) error {
	last := r.d.ledger.newest(r.task)
	if last == nil || last.Kind != kindOpen {
		if q.kind == requestClose {
			return errors.New("the task has no open epoch")
		}
		return r.open(ctx, q.open)
	}
	if err := r.closeHalted(ctx, last, q.open.DropOutbox); err != nil {
		return err
	}
	if q.kind == requestClose {
		return nil
	}
	return r.open(ctx, q.open)
}

// closeHalted closes an epoch that is open and not running: because the
// configuration changed, a key is lost, the log is another one, or the daemon
// is down. It needs nothing of the epoch but its checkpoint, and not even that.
func (r *runner) closeHalted(ctx context.Context, opened *Entry, drop bool) error {
	m, _, err := r.manifest(opened)
	if errors.Is(err, errNoManifest) {
		return r.void(opened)
	}
	cp, e := r.store.load()
	readable := err == nil && e == nil && cp != nil && cp.epoch == opened.Epoch && m != nil
	if !readable {
		// What was released is not known. It can't reach beyond the log.
		r.log.Warn("epoch closed without its checkpoint: its charge covers everything up to the log's end")
		end, err := r.logEndOf(ctx, opened)
		if err != nil {
			return err
		}
		return r.closeEpoch(opened, end, nil, reasonRequest)
	}
	if len(cp.outbox) > 0 && !drop {
		if err := r.publishLeft(ctx, cp.outbox); err != nil {
			return fmt.Errorf("%d releases of the epoch are not published: %w (--drop-outbox gives them up)", len(cp.outbox), err)
		}
	}
	end := cp.position.Next
	ahead := false
	err = r.readOutput(ctx, cp.outputTopic, cp.outputPartition, cp.output, func(rec *kafka.Record) error {
		if t, epoch, step, ok := parseIdentity(rec.Key); ok && t == r.task && epoch >= opened.Epoch && (epoch > opened.Epoch || step > cp.step) {
			ahead = true
			return errStop
		}
		return nil
	})
	var h *halt
	if err != nil && !errors.As(err, &h) {
		return err
	}
	if ahead || err != nil {
		// Another copy of this state went on, or may have.
		stable, err := r.logEndOf(ctx, opened)
		if err != nil {
			return err
		}
		end = max(end, stable)
	}
	return r.closeEpoch(opened, end, cp.position.Anchor, reasonRequest)
}

// logEndOf returns the end of the log that an epoch read.
func (r *runner) logEndOf(ctx context.Context, opened *Entry) (int64, error) {
	_, _, end, err := r.offsets(ctx, opened.Topic)
	return max(end, opened.First), err
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
