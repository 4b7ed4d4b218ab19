package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// output is the partition of a task's releases, for reading what was published already.
// The publisher writes to it.
type output struct {
	*repeater
	client *kafka.Client
	ledger *ledger
	task   core.Task
	at     config.Output
	tail   *tail // nil: it is only read
}

func newOutput(r *repeater, client *kafka.Client, l *ledger, among *tails, t core.Task, at config.Output) *output {
	return &output{repeater: r, client: client, ledger: l, task: t, at: at, tail: among.join(at, t)}
}

// leave says that the task publishes no more.
func (o *output) leave() {
	if o.tail != nil {
		o.tail.leave(o.task)
	}
}

// unused reports whether the output partition has no release of the task. A release of an
// unknown epoch that the stream made while it was merged, or before it was, counts too: of
// the same records. If the topic is missing it makes it.
func (o *output) unused(ctx context.Context) (bool, error) {
	if _, err := o.end(ctx); err != nil {
		return false, err
	}
	unused := true
	err := o.read(ctx, o.at.Topic, o.at.Partition, unknownOutput, func(rec *kafka.Record) error {
		t, epoch, _, ok := core.ParseIdentity(rec.Key)
		became := t.Stream == o.task.Stream && (t.Partition == core.Merged) != (o.task.Partition == core.Merged)
		if ok && (t == o.task || became && o.ledger.opening(t, epoch) == nil) {
			unused = false
			return errStop
		}
		return nil
	})
	return unused, err
}

// end returns the end of the output partition, behind everything that this process has sent for
// the task. If the topic is missing, and may be made, it makes it first.
func (o *output) end(ctx context.Context) (end int64, err error) {
	if err := o.tail.settled(ctx, o.task); err != nil {
		return 0, err
	}
	err = o.retry(ctx, "output", func() error {
		if err := o.make(ctx); err != nil {
			return err
		}
		end, err = o.client.End(ctx, o.at.Topic, int32(o.at.Partition))
		return err
	})
	return end, err
}

// there waits for what this process is sending for the task, and for the output's topic.
func (o *output) there(ctx context.Context) error {
	if err := o.tail.settled(ctx, o.task); err != nil {
		return err
	}
	return o.retry(ctx, "output", func() error { return o.make(ctx) })
}

// make creates the output topic if it is missing and output.create allows it. The topic
// is compacted: readers and Kafka then both identify releases by their keys.
func (o *output) make(ctx context.Context) error {
	t, err := o.client.Topic(ctx, o.at.Topic)
	if err != nil {
		return err
	}
	if t.Exists {
		if o.at.Partition >= len(t.Partitions) {
			return &notYet{fmt.Errorf("output topic %s has %d partitions, partition %d is configured", t.Name, len(t.Partitions), o.at.Partition)}
		}
		return nil
	}
	if !o.at.Create {
		return &notYet{fmt.Errorf("output topic %s does not exist, and output.create is false", o.at.Topic)}
	}
	return o.client.CreateTopic(ctx, o.at.Topic, o.at.Partition+1, map[string]string{"cleanup.policy": "compact"})
}

// send appends messages to the output partition, with those of other tasks that publish into it
// at the same time. Everything below the offset compared was compared; see errOvertaken.
func (o *output) send(ctx context.Context, compared int64, messages []kafka.Message) ([]kafka.Appended, error) {
	return o.tail.send(ctx, o.task, compared, messages)
}

// read reads a partition of releases to its end, and from its start if from is unknown.
// If fn returns errStop, it ends without an error. It first waits for what this process is
// sending for the task: else it may miss that, and take it for another writer's later.
func (o *output) read(ctx context.Context, topic string, partition int, from int64, fn func(*kafka.Record) error) error {
	if err := o.tail.settled(ctx, o.task); err != nil {
		return err
	}
	exists := true
	err := o.retry(ctx, "output", func() error {
		t, err := o.client.Topic(ctx, topic)
		if err != nil {
			return err
		}
		if exists = partition < len(t.Partitions); !exists {
			return nil
		}
		if from == unknownOutput {
			start, err := o.client.Start(ctx, topic, int32(partition))
			if err != nil {
				return err
			}
			from = start
		}
		return o.client.ReadBackOr(ctx, topic, int32(partition), from, func(rec *kafka.Record) error {
			from = rec.Offset + 1
			return fn(rec)
		}, func(err error) error {
			if kafka.UnknownTopic(err) {
				return err // whether it is there is asked again
			}
			o.troubled("output", err)
			return nil
		})
	})
	if err == nil && !exists {
		return halted(haltOutputGone, "%s/%d does not exist any more: it can't be told whether this state is the newest; %s",
			topic, partition, o.onlyCopy())
	}
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	switch {
	case errors.Is(err, errStop):
		return nil
	case errors.As(err, &gap), errors.As(err, &truncated):
		return halted(haltOutputGone, "%w: it can't be told any more whether this state is the newest; %s", err, o.onlyCopy())
	}
	return err
}

// unknownEpoch is the halt of a state that is older than its output.
func (o *output) unknownEpoch(epoch uint64) error {
	return halted(haltOutput, "%s/%d holds a release of epoch %d, which this ledger does not know: "+
		"this state directory is an old copy, or another copy runs; %s", o.at.Topic, o.at.Partition, epoch, o.wayOut())
}

// newestEpoch returns the largest epoch of which the output has a release of the task,
// from an offset on (0: everywhere), and 0 if there is none. If that offset is gone, it
// looks everywhere.
func (o *output) newestEpoch(ctx context.Context, from int64) (newest uint64, err error) {
	note := func(rec *kafka.Record) error {
		if t, epoch, _, ok := core.ParseIdentity(rec.Key); ok && t == o.task {
			newest = max(newest, epoch)
		}
		return nil
	}
	var gone *halt
	if from > 0 {
		if err = o.read(ctx, o.at.Topic, o.at.Partition, from, note); !errors.As(err, &gone) {
			return newest, err
		}
	}
	return newest, o.read(ctx, o.at.Topic, o.at.Partition, unknownOutput, note)
}

// whole halts if the output has lost what shows whether the checkpoint is the newest: the
// acknowledged release that the checkpoint names or, without a checkpoint, any release.
func (o *output) whole(ctx context.Context, cp *checkpoint) error {
	if cp.output != unknownOutput && !cp.acknowledged {
		return nil // read looks whether the offset is there
	}
	var start, end int64
	gone := false
	err := o.retry(ctx, "output", func() error {
		t, err := o.client.Topic(ctx, cp.outputTopic)
		if gone = err == nil && cp.outputPartition >= len(t.Partitions); gone || err != nil {
			return err
		}
		start, end, err = o.client.Bounds(ctx, cp.outputTopic, int32(cp.outputPartition))
		return err
	})
	switch {
	case err != nil:
		return err
	case cp.output == unknownOutput && start > 0:
		return halted(haltOutputGone, "%s/%d starts at offset %d, and without a checkpoint it can't be told what was before: restore the checkpoint, or start anew with: streamdp epoch open %s",
			cp.outputTopic, cp.outputPartition, start, epochArgs(o.task))
	case gone || cp.acknowledged && (cp.output < start || cp.output >= end):
		return halted(haltOutputGone, "%s/%d lost the release at offset %d: it can't be told any more whether this state is the newest; %s",
			cp.outputTopic, cp.outputPartition, cp.output, o.onlyCopy())
	}
	return nil
}

// onlyCopy says what the operator can do if the output has lost that evidence.
func (o *output) onlyCopy() string {
	return fmt.Sprintf("if no other copy of it has run, publish what was lost with: streamdp republish%s --only-copy (and --from-log where state.archive was off); "+
		"else start anew with: streamdp epoch open %s", taskFlags(o.task), epochArgs(o.task))
}

// differs is the halt for two different releases of one step.
func (o *output) differs(key string) error {
	return halted(haltOutput, "release %s differs from the one that was published: the state is a copy, and the log, the build or the other copy gave other integers; %s",
		key, o.wayOut())
}

// wayOut says how to go on where others write what this state should.
func (o *output) wayOut() string {
	return "run one copy, the newest, and remove the others; if this is the only one, start anew with: streamdp epoch open " + epochArgs(o.task)
}

// releasedTo returns the end of the offsets that published releases of an epoch cover, −1
// if the output has none. It is the sum over the partitions of a merged epoch.
func (o *output) releasedTo(ctx context.Context, opened *Entry) (end int64, err error) {
	end = -1
	err = o.released(ctx, opened, func(value []byte) { end = max(end, opened.First, core.ReleaseEnd(value)) })
	if err != nil {
		return -1, err
	}
	return end, nil
}

// releasedEnds returns that end for each of the epoch's views, its first offset where no
// release is. It is beyond all offsets where a release covers some and does not say how many
// of each partition: steps by the clock do not share them evenly.
func (o *output) releasedEnds(ctx context.Context, opened *Entry) (ends []int64, err error) {
	for _, v := range opened.views() {
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
func (o *output) released(ctx context.Context, opened *Entry, see func(value []byte)) error {
	err := o.read(ctx, o.at.Topic, o.at.Partition, unknownOutput, func(rec *kafka.Record) error {
		if t, epoch, _, ok := core.ParseIdentity(rec.Key); ok && t == o.task && epoch == opened.Epoch {
			see(rec.Value)
		}
		return nil
	})
	var gone *halt
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	if errors.As(err, &gap) || errors.As(err, &truncated) || !errors.As(err, &gone) {
		return err
	}
	return nil
}
