// Package output puts releases into an output partition. Before each request it compares what the partition holds
// with what this state has released, and halts the task where somebody else has written releases. It has no access
// to the master key.
package output

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Output is the partition of a task's releases, for reading what was published already.
// The publisher writes to it.
type Output struct {
	*failure.Retrier
	Client    *kafka.Client
	Ledger    *ledger.Ledger
	Task      core.Task
	At        config.Output
	Partition *Partition // nil: it is only read
}

// New returns the output of a task at a place. The task joins the partition there among those of its process, until
// Leave.
func New(r *failure.Retrier, client *kafka.Client, l *ledger.Ledger, among *Partitions, t core.Task,
	at config.Output) *Output {
	return &Output{Retrier: r, Client: client, Ledger: l, Task: t, At: at, Partition: among.join(at, t)}
}

// Leave says that the task publishes no more.
func (o *Output) Leave() {
	if o.Partition != nil {
		o.Partition.leave(o.Task)
	}
}

// Unused reports whether the output partition has no release of the task. A release of an
// unknown epoch that the stream made while it was merged, or before it was, counts too: of
// the same records. If the topic is missing it makes it.
func (o *Output) Unused(ctx context.Context) (bool, error) {
	if _, err := o.End(ctx); err != nil {
		return false, err
	}
	unused := true
	err := o.Read(ctx, o.At.Topic, o.At.Partition, state.UnknownOutput, func(rec *kafka.Record) error {
		t, epoch, _, ok := core.ParseIdentity(rec.Key)
		became := t.Stream == o.Task.Stream && (t.Partition == core.Merged) != (o.Task.Partition == core.Merged)
		if ok && (t == o.Task || became && o.Ledger.Opening(t, epoch) == nil) {
			unused = false
			return failure.ErrStop
		}
		return nil
	})
	return unused, err
}

// End returns the end of the output partition, behind everything that this process has sent for
// the task. If the topic is missing, and may be made, it makes it first.
func (o *Output) End(ctx context.Context) (end int64, err error) {
	if err := o.Partition.WaitInFlight(ctx, o.Task); err != nil {
		return 0, err
	}
	err = o.Do(ctx, "output", func() error {
		if err := o.Make(ctx); err != nil {
			return err
		}
		end, err = o.Client.End(ctx, o.At.Topic, int32(o.At.Partition))
		return err
	})
	return end, err
}

// there waits for what this process is sending for the task, and for the output's topic.
func (o *Output) there(ctx context.Context) error {
	if err := o.Partition.WaitInFlight(ctx, o.Task); err != nil {
		return err
	}
	return o.Do(ctx, "output", func() error { return o.Make(ctx) })
}

// Make creates the output topic if it is missing and output.create allows it. The topic
// is compacted: readers and Kafka then both identify releases by their keys.
func (o *Output) Make(ctx context.Context) error {
	look := o.Client.Find
	if o.At.Create {
		look = o.Client.Ensure
	}
	found, err := look(ctx, o.At.Topic, &kafka.TopicSpec{Partitions: o.At.Partition + 1, Settings: topicSettings})
	switch {
	case err != nil:
		return err
	case !found.Exists:
		return &failure.Later{Err: fmt.Errorf("output topic %s does not exist, and output.create is false", o.At.Topic)}
	case o.At.Partition >= found.Partitions:
		return &failure.Later{
			Err: fmt.Errorf("output topic %s has %d partitions, partition %d is configured", o.At.Topic,
				found.Partitions, o.At.Partition)}
	}
	return nil
}

// topicSettings are those of an output topic that is made.
var topicSettings = map[string]string{"cleanup.policy": "compact"}

// send appends messages to the output partition, with those of other tasks that publish into it
// at the same time. Everything below the offset compared was compared; see errOvertaken.
func (o *Output) send(ctx context.Context, compared int64, messages []kafka.Message) ([]kafka.Appended, error) {
	return o.Partition.send(ctx, o.Task, compared, messages)
}

// Read reads a partition of releases to its end, and from its start if from is unknown.
// If fn returns ErrStop, it ends without an error. It first waits for what this process is
// sending for the task: else it may miss that, and take it for another writer's later.
func (o *Output) Read(ctx context.Context, topic string, partition int, from int64,
	fn func(*kafka.Record) error) error {
	if err := o.Partition.WaitInFlight(ctx, o.Task); err != nil {
		return err
	}
	exists := true
	err := o.Do(ctx, "output", func() error {
		t, err := o.Client.Topic(ctx, topic)
		if err != nil {
			return err
		}
		if exists = partition < len(t.Partitions); !exists {
			return nil
		}
		if from == state.UnknownOutput {
			start, err := o.Client.Start(ctx, topic, int32(partition))
			if err != nil {
				return err
			}
			from = start
		}
		return o.Client.ReadBackOr(ctx, topic, int32(partition), from, func(rec *kafka.Record) error {
			from = rec.Offset + 1
			return fn(rec)
		}, func(err error) error {
			if kafka.UnknownTopic(err) {
				return err // whether it is there is asked again
			}
			o.Failing("output", err)
			return nil
		})
	})
	if err == nil && !exists {
		return failure.Haltf(failure.OutputTruncated,
			"%s/%d does not exist any more: it can't be told whether this state is the newest; %s",
			topic, partition, o.onlyCopy())
	}
	switch {
	case errors.Is(err, failure.ErrStop):
		return nil
	case kafka.Lost(err):
		return failure.Haltf(failure.OutputTruncated,
			"%w: it can't be told any more whether this state is the newest; %s", err, o.onlyCopy())
	}
	return err
}

// UnknownEpoch is the halt of a state that is older than its output.
func (o *Output) UnknownEpoch(epoch uint64) error {
	return failure.Haltf(failure.OutputAhead, "%s/%d holds a release of epoch %d, which this ledger does not know: "+
		"this state directory is an old copy, or another copy runs; %s", o.At.Topic, o.At.Partition, epoch, o.wayOut())
}

// NewestEpoch returns the largest epoch of which the output has a release of the task,
// from an offset on (0: everywhere), and 0 if there is none. If that offset is gone, it
// looks everywhere.
func (o *Output) NewestEpoch(ctx context.Context, from int64) (newest uint64, err error) {
	note := func(rec *kafka.Record) error {
		if t, epoch, _, ok := core.ParseIdentity(rec.Key); ok && t == o.Task {
			newest = max(newest, epoch)
		}
		return nil
	}
	var gone *failure.Halt
	if from > 0 {
		if err = o.Read(ctx, o.At.Topic, o.At.Partition, from, note); !errors.As(err, &gone) {
			return newest, err
		}
	}
	return newest, o.Read(ctx, o.At.Topic, o.At.Partition, state.UnknownOutput, note)
}

// CheckEvidence halts if the output has lost what shows whether the checkpoint is the newest: the
// acknowledged release that the checkpoint names or, without a checkpoint, any release.
func (o *Output) CheckEvidence(ctx context.Context, cp *state.Checkpoint) error {
	if cp.Output != state.UnknownOutput && !cp.Acknowledged {
		return nil // read looks whether the offset is there
	}
	var start, end int64
	gone := false
	err := o.Do(ctx, "output", func() error {
		t, err := o.Client.Topic(ctx, cp.OutputTopic)
		if gone = err == nil && cp.OutputPartition >= len(t.Partitions); gone || err != nil {
			return err
		}
		start, end, err = o.Client.Bounds(ctx, cp.OutputTopic, int32(cp.OutputPartition))
		return err
	})
	switch {
	case err != nil:
		return err
	case cp.Output == state.UnknownOutput && start > 0:
		return failure.Haltf(failure.OutputTruncated,
			"%s/%d starts at offset %d, and without a checkpoint it can't be told what was before: restore the "+
				"checkpoint, or start anew with: streamdp epoch open %s",
			cp.OutputTopic, cp.OutputPartition, start, failure.EpochArgs(o.Task))
	case gone || cp.Acknowledged && (cp.Output < start || cp.Output >= end):
		return failure.Haltf(failure.OutputTruncated,
			"%s/%d lost the release at offset %d: it can't be told any more whether this state is the newest; %s",
			cp.OutputTopic, cp.OutputPartition, cp.Output, o.onlyCopy())
	}
	return nil
}

// onlyCopy says what the operator can do if the output has lost that evidence.
func (o *Output) onlyCopy() string {
	return fmt.Sprintf(
		"if no other copy of it has run, publish what was lost with: streamdp republish%s --only-copy (and "+
			"--from-log where state.archive was off); "+
			"else start anew with: streamdp epoch open %s", failure.TaskFlags(o.Task), failure.EpochArgs(o.Task))
}

// Differs is the halt for two different releases of one step.
func (o *Output) Differs(key string) error {
	return failure.Haltf(failure.OutputAhead,
		"release %s differs from the one that was published: the state is a copy, and the log, the build or the "+
			"other copy gave other integers; %s",
		key, o.wayOut())
}

// wayOut says how to go on where others write what this state should.
func (o *Output) wayOut() string {
	return "run one copy, the newest, and remove the others; if this is the only one, start anew with: " +
		"streamdp epoch open " + failure.EpochArgs(o.Task)
}

// ReleasedTo returns the end of the offsets that published releases of an epoch cover, −1
// if the output has none. It is the sum over the partitions of a merged epoch.
func (o *Output) ReleasedTo(ctx context.Context, opened *ledger.Entry) (end int64, err error) {
	end = -1
	err = o.released(ctx, opened, func(value []byte) { end = max(end, opened.First, core.ReleaseEnd(value)) })
	if err != nil {
		return -1, err
	}
	return end, nil
}

// ReleasedEnds returns that end for each of the epoch's views, its first offset where no
// release is. It is beyond all offsets where a release covers some and does not say how many
// of each partition: steps by the clock do not share them evenly.
func (o *Output) ReleasedEnds(ctx context.Context, opened *ledger.Entry) (ends []int64, err error) {
	for _, v := range opened.Views() {
		ends = append(ends, v.First)
	}
	err = o.released(ctx, opened, func(value []byte) {
		at := core.ReleaseEnds(value)
		if len(at) != len(ends) && core.ReleaseEnd(value) > opened.First {
			at = slices.Repeat([]int64{math.MaxInt64}, len(ends))
		}
		for i := range at[:min(len(at), len(ends))] {
			ends[i] = max(ends[i], at[i])
		}
	})
	return ends, err
}

// released calls see with what the output has of an epoch: releases, or pieces of them.
// Without an output there are none. Where the read ends half way it returns an error: what
// lies behind could cover more.
func (o *Output) released(ctx context.Context, opened *ledger.Entry, see func(value []byte)) error {
	err := o.Read(ctx, o.At.Topic, o.At.Partition, state.UnknownOutput, func(rec *kafka.Record) error {
		if t, epoch, _, ok := core.ParseIdentity(rec.Key); ok && t == o.Task && epoch == opened.Epoch {
			see(rec.Value)
		}
		return nil
	})
	var gone *failure.Halt
	if kafka.Lost(err) || !errors.As(err, &gone) {
		return err
	}
	return nil
}
