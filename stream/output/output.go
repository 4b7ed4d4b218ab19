// Package output puts releases into an output partition. Before each request it compares what the partition holds with
// what this state has released, and halts the task if another writer has published there. It has no access to the
// master key.
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

// Output is the output partition of a task. It reads what was published already; the publisher writes to it.
type Output struct {
	*failure.Retrier
	Client    *kafka.Client
	Ledger    *ledger.Ledger
	Task      core.Task
	At        config.Output
	Partition *Partition // nil: the output is only read
}

// New returns the output of a task at a partition. The task shares the partition with other tasks of its process, until
// Leave.
func New(r *failure.Retrier, client *kafka.Client, l *ledger.Ledger, among *Partitions, t core.Task,
	at config.Output) *Output {
	return &Output{Retrier: r, Client: client, Ledger: l, Task: t, At: at, Partition: among.join(at, t)}
}

// Leave ends the task's use of the partition.
func (o *Output) Leave() {
	if o.Partition != nil {
		o.Partition.leave(o.Task)
	}
}

// Unused reports whether the output partition has no release of the task. A release from before the stream became
// merged or unmerged also counts as the task's if its epoch is unknown, because it covers the same records. If the
// topic is missing, Unused creates it.
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

// End returns the end of the output partition, after everything that this process has sent for the task. If the topic
// is missing, End first creates it, if that is allowed.
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

// waitReady waits until no message of the task is in flight and the output topic exists.
func (o *Output) waitReady(ctx context.Context) error {
	if err := o.Partition.WaitInFlight(ctx, o.Task); err != nil {
		return err
	}
	return o.Do(ctx, "output", func() error { return o.Make(ctx) })
}

// Make creates the output topic if it is missing and output.create allows it. The topic is compacted, because both
// readers and Kafka identify releases by their keys.
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
			Err: fmt.Errorf("output topic %s has %d partitions, but output.partition is %d", o.At.Topic,
				found.Partitions, o.At.Partition)}
	}
	return nil
}

// topicSettings are the settings of a created output topic.
var topicSettings = map[string]string{"cleanup.policy": "compact"}

// send appends messages to the output partition, in requests shared with other tasks. The caller must have compared
// everything below the offset `compared`; see errOvertaken.
func (o *Output) send(ctx context.Context, compared int64, messages []kafka.Message) ([]kafka.Appended, error) {
	return o.Partition.send(ctx, o.Task, compared, messages)
}

// Read reads a partition of releases to its end, from an offset or from its start if that is unknown. If fn returns
// ErrStop, Read ends without an error. Read first waits for the task's messages in flight. Otherwise it might miss them
// now and later take them for another writer's.
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
				return err // Do checks again whether the topic exists
			}
			o.Failing("output", err)
			return nil
		})
	})
	if err == nil && !exists {
		return failure.Haltf(failure.OutputTruncated,
			"%s/%d does not exist any more, so it is unknown whether this state is the newest; %s",
			topic, partition, o.onlyCopy())
	}
	switch {
	case errors.Is(err, failure.ErrStop):
		return nil
	case kafka.Lost(err):
		return failure.Haltf(failure.OutputTruncated,
			"%w, so it is unknown whether this state is the newest; %s", err, o.onlyCopy())
	}
	return err
}

// UnknownEpoch returns the halt for a state that is older than its output.
func (o *Output) UnknownEpoch(epoch uint64) error {
	return failure.Haltf(failure.OutputAhead, "%s/%d holds a release of epoch %d, which is not in this ledger: this "+
		"state directory is an old copy, or another copy is running; %s", o.At.Topic, o.At.Partition, epoch, o.wayOut())
}

// NewestEpoch returns the largest epoch of the task's releases in the output, or 0 if there is none. It reads from the
// offset `from` on. If from is 0 or that offset has been deleted, it reads everything.
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

// CheckEvidence halts if the output no longer holds the evidence that tells whether the checkpoint is the newest. The
// evidence is the acknowledged release that the checkpoint names or, without a checkpoint, the beginning of the output.
func (o *Output) CheckEvidence(ctx context.Context, cp *state.Checkpoint) error {
	if cp.Output != state.UnknownOutput && !cp.Acknowledged {
		return nil // Read checks that the offset exists
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
			"%s/%d starts at offset %d, and without a checkpoint it is unknown what was published before: restore the "+
				"checkpoint, or open a new epoch: streamdp epoch open %s",
			cp.OutputTopic, cp.OutputPartition, start, failure.EpochArgs(o.Task))
	case gone || cp.Acknowledged && (cp.Output < start || cp.Output >= end):
		return failure.Haltf(failure.OutputTruncated,
			"%s/%d lost the release at offset %d, so it is unknown whether this state is the newest; %s",
			cp.OutputTopic, cp.OutputPartition, cp.Output, o.onlyCopy())
	}
	return nil
}

// onlyCopy returns words on what the operator can do if the output has lost that evidence.
func (o *Output) onlyCopy() string {
	return fmt.Sprintf(
		"if no other copy of the state has run, publish the lost releases again: streamdp republish%s --only-copy "+
			"(with --from-log if state.archive was off); "+
			"else open a new epoch: streamdp epoch open %s", failure.TaskFlags(o.Task), failure.EpochArgs(o.Task))
}

// Differs returns the halt for two different releases of one step.
func (o *Output) Differs(key string) error {
	return failure.Haltf(failure.OutputAhead,
		"release %s differs from the published one: another copy of this state published it, and computed different "+
			"integers because the log, the build or the hardware differs; %s",
		key, o.wayOut())
}

// wayOut returns words on what the operator can do if another writer publishes to the task's output.
func (o *Output) wayOut() string {
	return "run only the newest copy of the state, and remove the others; if this is the only one, open a new " +
		"epoch: streamdp epoch open " + failure.EpochArgs(o.Task)
}

// ReleasedTo returns the offset after the last record that published releases of an epoch cover, or −1 if the output
// has none. For a merged epoch it returns the sum of these offsets over the partitions.
func (o *Output) ReleasedTo(ctx context.Context, opened *ledger.Entry) (end int64, err error) {
	end = -1
	err = o.released(ctx, opened, func(value []byte) { end = max(end, opened.First, core.ReleaseEnd(value)) })
	if err != nil {
		return -1, err
	}
	return end, nil
}

// ReleasedEnds returns the same offset for each of the epoch's partitions, or the partition's first offset if no
// release covers records of it. If steps are by the clock and a release does not give its offsets by partition, all
// ends are math.MaxInt64, because the partitions' shares of such a step are unknown.
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

// released calls see with each release of an epoch in the output, or with each piece of one. A missing output has none.
// If reading ends early, released fails, because releases in the rest could cover more.
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
