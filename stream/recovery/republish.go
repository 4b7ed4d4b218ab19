package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// RepublishRequest says which releases to publish again.
type RepublishRequest struct {
	// Epoch is the only epoch to publish again; 0: all.
	Epoch uint64 `json:"epoch,omitempty"`
	// FromLog asks to recompute the releases of the open epoch from its log if they are in no archive.
	FromLog bool `json:"from_log,omitempty"`
	// OnlyCopy is the operator's assertion that no other copy of the state directory has run. It is required if the
	// output has lost the releases that would prove this.
	OnlyCopy bool `json:"only_copy,omitempty"`
}

// Republish is for an output that lost releases. It publishes all committed releases again that it can find: those in
// the archive, those that are not acknowledged yet and, on request, those recomputed from the log. This costs no
// privacy, because the bytes do not change.
//
// Republish first compares the releases that are in the output. If one differs, or was not released by this state,
// Republish sends nothing. Releases from the log count as committed only under two conditions. First, they must lead to
// the transcript of the last commit, which is the running hash of all integers that noise has hidden. Second, this
// build must have written that commit, because another build may compute different last digits.
func (r Restorer) Republish(ctx context.Context, q RepublishRequest) error {
	var cp *state.Checkpoint // checkpoint of the open epoch
	opened := r.D.Ledger.Newest(r.Task)
	if opened != nil && opened.Kind == ledger.KindOpen {
		var err error
		if cp, err = r.Store.Load(); errors.Is(err, state.ErrCheckpoint) || err == nil && cp == nil {
			return failure.Haltf(failure.State,
				"the checkpoint of epoch %d is damaged or missing: first run streamdp recover%s", opened.Epoch,
				failure.TaskFlags(r.Task))
		} else if err != nil {
			return err
		}
		if cp.Epoch != opened.Epoch {
			return failure.Haltf(failure.State,
				"the checkpoint is of epoch %d, but the open epoch is %d: restore the state directory as a "+
					"whole", cp.Epoch,
				opened.Epoch)
		}
		if err := r.onlyCopy(ctx, cp, q.OnlyCopy); err != nil {
			return err
		}
	}
	if q.FromLog && (cp == nil || q.Epoch != 0 && q.Epoch != cp.Epoch) {
		return errors.New(
			"only releases of the open epoch can be recomputed: the secrets of other epochs are destroyed")
	}
	end, err := r.Out.End(ctx)
	if err != nil {
		return err
	}
	there, err := held(ctx, r.Out, cp)
	if err != nil {
		return err
	}
	// The releases are read twice, so that nothing is sent before all have been compared.
	found := 0
	err = r.committedReleases(ctx, q, opened, cp, func(list []state.Message) error {
		for i := range list {
			p := &list[i]
			if was, ok := there[string(p.Key)]; ok && was != core.ReleaseHash(p.Key, p.Value, p.Headers) {
				return r.Out.Differs(string(p.Key))
			}
		}
		found += len(list)
		return nil
	})
	if err != nil {
		return err
	}
	if found == 0 {
		return fmt.Errorf(
			"no committed release of %s can be published again: state.archive was off, and the brokers have "+
				"acknowledged all releases; to recompute the releases of the open epoch, use --from-log", r.Task)
	}
	guard := output.AcceptAll(r.Out, end)
	at, acknowledged := end, false
	err = r.committedReleases(ctx, q, opened, cp, func(list []state.Message) error {
		for batch := range slices.Chunk(list, 100) {
			base, err := output.Send(ctx, guard, r.Feed, batch)
			if err != nil {
				return err
			}
			at, acknowledged = base, true
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.D.Metrics.Republished(r.Task, found)
	r.Log.Info("published committed releases again", "messages", found)
	if cp == nil {
		return nil
	}
	cp.OutputTopic, cp.OutputPartition = r.S.Output.Topic, r.S.Output.Partition
	cp.Output, cp.Acknowledged = at, acknowledged
	defer clear(cp.State)
	return r.DoDisk(ctx, func() error { return r.Store.Commit(cp) })
}

// onlyCopy returns a halt if the output has lost the releases that would prove that this state is the newest copy,
// unless the operator asserts that it is the newest.
func (r Restorer) onlyCopy(ctx context.Context, cp *state.Checkpoint, asserted bool) error {
	err := r.Out.CheckEvidence(ctx, cp)
	var h *failure.Halt
	if asserted && errors.As(err, &h) {
		r.Log.Warn("the output lost releases; continuing because the operator asserts that no other copy of this " +
			"state has run")
		return nil
	}
	return err
}

// committedReleases finds committed releases and passes them to send, several at a time, in the order of their steps.
// It may pass a release twice.
func (r Restorer) committedReleases(ctx context.Context, q RepublishRequest, opened *ledger.Entry, cp *state.Checkpoint,
	send func([]state.Message) error) error {
	if q.FromLog {
		if err := r.fromLog(ctx, opened, cp, send); err != nil {
			return err
		}
	}
	for list, err := range r.Archive.All(q.Epoch) {
		if err == nil {
			err = send(list)
		}
		if err != nil {
			return err
		}
	}
	if cp == nil || q.Epoch != 0 && q.Epoch != cp.Epoch || len(cp.Outbox) == 0 {
		return nil
	}
	return send(cp.Outbox)
}

// fromLog recomputes the steps of the open epoch from the log, up to its last commit.
func (r Restorer) fromLog(ctx context.Context, opened *ledger.Entry, cp *state.Checkpoint,
	send func([]state.Message) error) error {
	if cp.Build != epoch.Build() {
		return fmt.Errorf(
			"the last commit was written by %s, but this is %s, which may compute different last digits of the same "+
				"releases",
			cp.Build, epoch.Build())
	}
	m, file, err := r.Manifest(opened)
	if err != nil {
		return err
	}
	if err := r.SameConfiguration(m); err != nil {
		return err
	}
	keys, err := r.Keys(m)
	if err != nil {
		return err
	}
	defer keys.Destroy()
	mech, err := r.Mechanism(m, opened)
	if err != nil {
		return err
	}
	c, err := core.New(r.S.Over(m.Numbers()), m, file, mech, keys)
	if err != nil {
		return err
	}
	begun := state.Beginning(m)
	begun.BoundaryTopic, begun.Boundary = cp.BoundaryTopic, state.UnknownBoundary
	bounds, err := r.NewBoundaries(ctx, opened, m, begun)
	if err != nil {
		return err
	}
	if err := r.ReadSchemas(ctx, false); err != nil {
		return err
	}
	again, err := newRecomputation(r.Retrier, r.D.Client, r.D.Schemas, r.S, m, c, begun, bounds.Written(),
		r.D.FetchBytes)
	if err != nil {
		return err
	}
	at := r.D.Now()
	for c.Step() < cp.Step {
		messages, err := again.close(ctx)
		if ended := (*logEnded)(nil); errors.As(err, &ended) {
			return failure.Haltf(failure.Truncated,
				"%w: the log was replaced or truncated; start again with: streamdp epoch open %s", err,
				failure.EpochArgs(r.Task))
		}
		if err != nil {
			return r.LogError(err)
		}
		var list []state.Message
		for _, rel := range messages {
			list = append(list, state.Message{Message: rel, Time: at})
		}
		if len(list) > 0 {
			if err := send(list); err != nil {
				return err
			}
		}
	}
	if c.Transcript() != cp.Transcript {
		return r.elsewhere()
	}
	return nil
}

// elsewhere returns the halt for a log from which another transcript is computed than the commit has.
func (r Restorer) elsewhere() error {
	return failure.Haltf(failure.Replaced,
		"recomputing the epoch from the log does not give the last commit: the log was replaced; start again with: "+
			"streamdp epoch open %s",
		failure.EpochArgs(r.Task))
}

// held returns the hashes of the task's messages in the output, by key. It returns a halt if the epoch of a message is
// not in the ledger, or if the message's step is after the last step of checkpoint cp. cp may be nil.
func held(ctx context.Context, o *output.Output, cp *state.Checkpoint) (map[string][32]byte, error) {
	there := map[string][32]byte{}
	err := o.Read(ctx, o.At.Topic, o.At.Partition, state.UnknownOutput, func(rec *kafka.Record) error {
		t, epoch, step, ok := core.ParseIdentity(rec.Key)
		switch {
		case !ok || t != o.Task:
			return nil
		case o.Ledger.Opening(o.Task, epoch) == nil:
			return o.UnknownEpoch(epoch)
		case cp != nil && epoch == cp.Epoch && step > cp.Step:
			return failure.Haltf(failure.OutputAhead,
				"%s/%d has step %d of epoch %d, but this state has released only up to step %d: the state is an old "+
					"copy; let streamdp run compare it with the output first",
				o.At.Topic, o.At.Partition, step, epoch, cp.Step)
		}
		there[string(rec.Key)] = core.ReleaseHash(rec.Key, rec.Value, rec.Headers)
		return nil
	})
	return there, err
}
