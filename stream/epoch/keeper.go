// Package epoch opens, resumes and closes the epochs of a task. Opening an epoch charges the budget, durably, before
// the epoch's first noise. The package applies no record.
//
// All tasks of a process share a [Process]. The tasks of a shard share a [Shard]. Each task has a [Keeper] for its
// files, output and input.
package epoch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// Limits of the releases that wait for a commit of a task, and the time for which a stopping process waits for releases
// in flight.
const (
	MaxPending      = 1000 // releases
	MaxPendingBytes = 4 << 20
	ShutdownTime    = 10 * time.Second
)

// Keeper opens, resumes, closes and recovers the epochs of one task. It applies no record.
type Keeper struct {
	*input.Feed
	D       *Shard
	Store   *state.Store      // store of the task's files
	Archive *state.Archive    // archive of its releases
	Out     *output.Output    // where its releases go; nil if no stream is configured
	Guard   *output.ForkGuard // guard of Out

	warned     atomic.Bool // a warning that producers decide retention was logged
	destroying *sync.Mutex // held while secrets are destroyed; shared by all keepers of the task
}

// NewKeeper returns a keeper that can only finish closings of a task. It can also open and resume epochs once it has a
// stream and an output.
func NewKeeper(d *Shard, t core.Task, changed func()) (*Keeper, error) {
	st, err := state.Open(d.Disk, d.TaskDir(t), d.Sealer(t))
	if err != nil {
		return nil, err
	}
	mutex, _ := d.destroying.LoadOrStore(t, new(sync.Mutex))
	k := &Keeper{Feed: NewFeed(d.Process, t, nil, changed), D: d, Store: st, destroying: mutex.(*sync.Mutex),
		Archive: &state.Archive{Disk: d.Disk, Dir: st.Dir}}
	k.SameLog = k.stillSameTopic
	return k, nil
}

// Release sets where the task's releases go.
func (k *Keeper) Release(to config.Output) {
	k.Out = output.New(k.Retrier, k.Client, k.D.Ledger, &k.D.Tails, k.Task, to)
	k.Guard = output.NewForkGuard(k.Out, func(ctx context.Context, opened *ledger.Entry) (ends []int64, err error) {
		for _, src := range opened.Sources() {
			log, err := k.offsets(ctx, src)
			if err != nil {
				return nil, err
			}
			ends = append(ends, log.End)
		}
		return ends, nil
	})
}

func (k *Keeper) boundaryTopic() *boundary.Topic {
	return &boundary.Topic{Retrier: k.Retrier, Client: k.Client, Topic: k.D.Cfg.Kafka.BoundaryTopic}
}

// NewBoundaries returns the boundaries of an epoch after a checkpoint, or nil if its steps are not by the clock. It
// halts if the boundary topic is not the one in the ledger and the checkpoint.
func (k *Keeper) NewBoundaries(ctx context.Context, opened *ledger.Entry, m *core.Manifest,
	cp *state.Checkpoint) (*boundary.Boundaries, error) {
	period := k.S.Step.Clock()
	if period == 0 {
		return nil, nil
	}
	if topic := k.D.Cfg.Kafka.BoundaryTopic; cp.BoundaryTopic != topic {
		return nil, failure.Haltf(failure.Configuration,
			"the boundaries of epoch %d are in topic %s, not in %s: set kafka.boundary_topic = %q, or open a new "+
				"epoch: streamdp epoch open %s",
			m.Epoch, cp.BoundaryTopic, topic, cp.BoundaryTopic, failure.EpochArgs(k.Task))
	}
	if err := k.boundaryTopic().Same(ctx, opened); err != nil {
		return nil, err
	}
	b := boundary.New(k.Retrier, k.D.Client, k.D.Key, k.D.Cfg.Kafka.BoundaryTopic, m)
	b.Most, b.Horizon = int64(k.S.Slots())/int64(len(b.Sources)), k.S.LastStep()
	b.Last = boundary.Boundary{Step: cp.Step, Ends: cp.Nexts(), At: cp.Boundary}
	b.Kept = b.Last
	b.Stamp = func() time.Time { return boundary.StampOf(k.D.Now(), period) }
	b.Same = func(ctx context.Context) error { return k.boundaryTopic().Same(ctx, opened) }
	return b, b.Begin(ctx, opened.Boundaries)
}

// partLog is one partition of the input: its number and offsets.
type partLog struct {
	partition int
	kafka.Offsets
}

// Reads returns the partitions that a new epoch of the task reads, or nil for all partitions of the topic.
func (k *Keeper) Reads() []int {
	switch {
	case k.Task.Partition != core.Merged:
		return []int{k.Task.Partition}
	case k.S.Input.All():
		return nil
	}
	return k.S.Input.Partitions
}

// source waits until the given partitions of the input exist; nil means all. It returns the task's source, and the
// topic's number of partitions.
func (k *Keeper) source(ctx context.Context, numbers []int) (src core.Source, partitions int, err error) {
	in := k.S.Input
	err = k.Do(ctx, "input", func() error {
		t, err := k.D.Client.Topic(ctx, in.Topic)
		switch {
		case err != nil:
			return err
		case !t.Exists:
			return &failure.Later{Err: fmt.Errorf("input topic %s does not exist", in.Topic)}
		case len(numbers) > 0 && slices.Max(numbers) >= len(t.Partitions):
			return &failure.Later{
				Err: fmt.Errorf("input topic %s has %d partitions, but the configuration names partition %d", in.Topic,
					len(t.Partitions), slices.Max(numbers))}
		}
		partitions = len(t.Partitions)
		cluster, err := k.D.Client.ClusterID(ctx)
		if err != nil {
			return err
		}
		src = core.Source{Cluster: cluster, Topic: in.Topic, Partition: k.Task.Partition}
		settings, err := k.D.Client.TopicConfig(ctx, in.Topic, input.RetentionSettings...)
		if err != nil {
			return err
		}
		if strings.Contains(settings["cleanup.policy"], "compact") && !in.AllowCompacted {
			return failure.Haltf(failure.Compacted,
				"input topic %s is compacted: compaction removes records that were counted, and depends on their "+
					"keys; "+
					"set the topic's cleanup.policy to delete; or accept it with input.allow_compacted = true, which "+
					"changes the guarantee, and open a new epoch: streamdp epoch open %s", in.Topic,
				failure.EpochArgs(k.Task))
		}
		if input.ProducersDecideRetention(settings) && !k.warned.Swap(true) {
			k.Log.Warn(
				"records of the input are deleted by the timestamps that producers set, which the guarantee does "+
					"not cover",
				"topic", in.Topic, "message.timestamp.type", "CreateTime", "remedy",
				"message.timestamp.type = LogAppendTime, or retention.ms = -1")
		}
		return nil
	})
	return src, partitions, err
}

// input is like source, and also returns the offsets of the partitions.
func (k *Keeper) input(ctx context.Context, numbers []int) (src core.Source, partitions int, logs []partLog,
	err error) {
	if src, partitions, err = k.source(ctx, numbers); err != nil {
		return src, partitions, nil, err
	}
	ask := numbers
	if ask == nil {
		for p := range partitions {
			ask = append(ask, p)
		}
	}
	err = k.Do(ctx, "input", func() error {
		logs = logs[:0]
		for _, p := range ask {
			log, err := k.D.Client.Offsets(ctx, k.S.Input.Topic, int32(p))
			if err != nil {
				return err
			}
			logs = append(logs, partLog{p, log})
		}
		return nil
	})
	return src, partitions, logs, err
}

// offsets returns the offsets of a source's log.
func (k *Keeper) offsets(ctx context.Context, src core.Source) (log kafka.Offsets, err error) {
	err = k.Do(ctx, "input", func() error {
		log, err = k.D.Client.Offsets(ctx, src.Topic, int32(src.Partition))
		return err
	})
	return log, err
}

// topicID returns the id of the input topic, or "" if the brokers have no ids.
func (k *Keeper) topicID(ctx context.Context) (id string, err error) {
	err = k.Do(ctx, "input", func() error {
		t, err := k.D.Client.TopicID(ctx, k.S.Input.Topic)
		id = t.String()
		return err
	})
	return id, err
}

// sameTopic halts if id differs from the input topic's id at the opening of the epoch.
func (k *Keeper) sameTopic(opened *ledger.Entry, id string) error {
	if id == "" || opened.TopicID == "" || id == opened.TopicID {
		return nil
	}
	return failure.Haltf(failure.Replaced,
		"topic %s was deleted and created again since epoch %d was opened: its id is %s, not %s; open a new epoch: "+
			"streamdp epoch open %s",
		opened.Topic, opened.Epoch, id, opened.TopicID, failure.EpochArgs(k.Task))
}

// stillSameTopic asks the cluster for the input topic's id, and halts if it differs from the one at the epoch's
// opening.
func (k *Keeper) stillSameTopic(ctx context.Context, epoch uint64) error {
	opened := k.D.Ledger.Opening(k.Task, epoch)
	if opened == nil {
		return nil
	}
	id, err := k.D.Client.TopicID(ctx, opened.Topic)
	if err != nil {
		return err
	}
	return k.sameTopic(opened, id.String())
}
