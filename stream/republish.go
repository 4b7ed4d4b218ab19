package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// RepublishRequest says what to publish again.
type RepublishRequest struct {
	// Epoch is the only one to publish again, 0: all.
	Epoch uint64 `json:"epoch,omitempty"`
	// FromLog computes the releases of the open epoch from its log again, if they are in
	// no archive.
	FromLog bool `json:"from_log,omitempty"`
	// OnlyCopy asserts that no other copy of the state directory has run. It is needed if
	// the output has lost the releases that would show it.
	OnlyCopy bool `json:"only_copy,omitempty"`
}

// republish publishes every committed release again that can be found: those of the
// archive, those that are not acknowledged yet and, on request, those computed from the
// log again. It is for an output that lost releases. It costs no privacy, because they
// are the same bytes.
//
// It first compares the releases that the output has. If one differs, or this state has
// not released it, it sends nothing. Releases from the log count as committed only under
// two conditions. They must lead to the transcript of the last commit, which is the
// running hash of all integers that noise has hidden. And this build must have written
// that commit, because another build may write other last digits.
func (r restorer) republish(ctx context.Context, q RepublishRequest) error {
	var cp *checkpoint // of the open epoch
	opened := r.d.ledger.newest(r.task)
	if opened != nil && opened.Kind == kindOpen {
		var err error
		if cp, err = r.store.load(); errors.Is(err, errCheckpoint) || err == nil && cp == nil {
			return halted(haltState, "the checkpoint of epoch %d is damaged or missing: first streamdp recover%s", opened.Epoch, taskFlags(r.task))
		} else if err != nil {
			return err
		}
		if cp.epoch != opened.Epoch {
			return halted(haltState, "the checkpoint is of epoch %d, the open one is %d: restore the state directory as a whole", cp.epoch, opened.Epoch)
		}
		if err := r.onlyCopy(ctx, cp, q.OnlyCopy); err != nil {
			return err
		}
	}
	if q.FromLog && (cp == nil || q.Epoch != 0 && q.Epoch != cp.epoch) {
		return errors.New("only releases of the open epoch can be worked out again: the secrets of others are destroyed")
	}
	end, err := r.out.end(ctx)
	if err != nil {
		return err
	}
	there, err := held(ctx, r.out, cp)
	if err != nil {
		return err
	}
	// Twice: nothing is sent before all has been compared.
	found := 0
	err = r.committedReleases(ctx, q, opened, cp, func(list []pending) error {
		for i := range list {
			p := &list[i]
			if was, ok := there[string(p.Key)]; ok && was != core.ReleaseHash(p.Key, p.Value, p.Headers) {
				return r.out.differs(string(p.Key))
			}
		}
		found += len(list)
		return nil
	})
	if err != nil {
		return err
	}
	if found == 0 {
		return fmt.Errorf("there is no committed release of %s to publish: state.archive was off, and the broker has acknowledged all; --from-log works those of the open epoch out again", r.task)
	}
	pub := newPublisher(lenient(r.out, end), r.feed, &checkpoint{})
	err = r.committedReleases(ctx, q, opened, cp, func(list []pending) error {
		for batch := range slices.Chunk(list, 100) {
			if err := pub.send(ctx, batch); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.d.metrics.republished(r.task, found)
	r.log.Info("published again", "messages", found)
	if cp == nil {
		return nil
	}
	cp.outputTopic, cp.outputPartition = r.s.Output.Topic, r.s.Output.Partition
	if cp.output, cp.acknowledged = pub.position(); !cp.acknowledged {
		cp.output = end
	}
	defer clear(cp.state)
	return r.write(ctx, func() error { return r.store.commit(cp) })
}

// onlyCopy halts if the output has lost what shows that the state is the newest copy,
// unless the operator asserts that it is.
func (r restorer) onlyCopy(ctx context.Context, cp *checkpoint, asserted bool) error {
	err := r.out.whole(ctx, cp)
	var h *halt
	if asserted && errors.As(err, &h) {
		r.log.Warn("the output lost releases, and the operator asserts that no other copy of this state has run")
		return nil
	}
	return err
}

// committedReleases calls send with the committed releases that can be found, in parts,
// in the order of their steps. A release may come twice.
func (r restorer) committedReleases(ctx context.Context, q RepublishRequest, opened *Entry, cp *checkpoint, send func([]pending) error) error {
	if q.FromLog {
		if err := r.fromLog(ctx, opened, cp, send); err != nil {
			return err
		}
	}
	for list, err := range r.archive.all(q.Epoch) {
		if err == nil {
			err = send(list)
		}
		if err != nil {
			return err
		}
	}
	if cp == nil || q.Epoch != 0 && q.Epoch != cp.epoch || len(cp.outbox) == 0 {
		return nil
	}
	return send(cp.outbox)
}

// fromLog computes the steps of the open epoch from the log again, up to its last commit.
func (r restorer) fromLog(ctx context.Context, opened *Entry, cp *checkpoint, send func([]pending) error) error {
	if cp.build != build() {
		return fmt.Errorf("the last commit was written by %s, and this is %s, which may write other last digits of the same releases", cp.build, build())
	}
	m, file, err := r.manifest(opened)
	if err != nil {
		return err
	}
	if err := r.sameConfiguration(m); err != nil {
		return err
	}
	keys, err := r.keys(m)
	if err != nil {
		return err
	}
	defer keys.Destroy()
	mech, err := r.mechanism(m, opened)
	if err != nil {
		return err
	}
	c, err := core.New(r.s.Over(m.Numbers()), m, file, mech, keys)
	if err != nil {
		return err
	}
	begun := beginning(m)
	begun.boundaryTopic, begun.boundary = cp.boundaryTopic, unknownBoundary
	bounds, err := r.newBoundaries(ctx, opened, m, begun)
	if err != nil {
		return err
	}
	if err := r.readSchemas(ctx, false); err != nil {
		return err
	}
	again, err := newRepetition(r.repeater, r.d.client, r.d.schemas, r.s, m, c, begun, bounds.written(), r.d.fetchBytes)
	if err != nil {
		return err
	}
	at := r.d.now()
	for c.Step() < cp.step {
		messages, err := again.close(ctx)
		if ended := (*logEnded)(nil); errors.As(err, &ended) {
			return halted(haltTruncated, "%w: the log is another one, or was truncated; start anew with: streamdp epoch open %s", err, epochArgs(r.task))
		}
		if err != nil {
			return r.logError(err)
		}
		var list []pending
		for _, rel := range messages {
			list = append(list, pending{Message: rel, time: at})
		}
		if len(list) > 0 {
			if err := send(list); err != nil {
				return err
			}
		}
	}
	if c.Transcript() != cp.transcript {
		return r.elsewhere()
	}
	return nil
}

// elsewhere is the halt of a log that leads to another transcript than a commit's.
func (r restorer) elsewhere() error {
	return halted(haltReplaced, "the log does not lead to the last commit: it is another one; start anew with: streamdp epoch open %s", epochArgs(r.task))
}

// held returns the hashes of the task's messages in the output, by key. It halts if one
// is of an epoch that the ledger does not have, or of a step that the checkpoint, if
// there is one, has not released.
func held(ctx context.Context, o *output, cp *checkpoint) (map[string][32]byte, error) {
	there := map[string][32]byte{}
	err := o.read(ctx, o.at.Topic, o.at.Partition, unknownOutput, func(rec *kafka.Record) error {
		t, epoch, step, ok := core.ParseIdentity(rec.Key)
		switch {
		case !ok || t != o.task:
			return nil
		case o.ledger.opening(o.task, epoch) == nil:
			return o.unknownEpoch(epoch)
		case cp != nil && epoch == cp.epoch && step > cp.step:
			return halted(haltOutput, "%s/%d holds step %d of epoch %d, and this state has released up to step %d: it is an old copy, which streamdp run compares first",
				o.at.Topic, o.at.Partition, step, epoch, cp.step)
		}
		there[string(rec.Key)] = core.ReleaseHash(rec.Key, rec.Value, rec.Headers)
		return nil
	})
	return there, err
}
