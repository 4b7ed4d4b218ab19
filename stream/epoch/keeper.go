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

// Keeper Opens, resumes, closes and brings back the epochs of one task. It applies no record.
type Keeper struct {
	*input.Feed
	D       *Shard
	Store   *state.Store
	Out     *output.Output    // nil where no stream is configured
	Guard   *output.ForkGuard // of out
	Archive *state.Archive
	warned  atomic.Bool // that producers decide retention

	destroying *sync.Mutex // held while secrets are destroyed; of all keepers of the task
}

// NewKeeper returns what can finish closings of a task, and more once it has a stream and an output.
func NewKeeper(d *Shard, t core.Task, changed func()) (*Keeper, error) {
	st, err := state.Open(d.Disk, d.TaskDir(t), d.Sealer(t))
	if err != nil {
		return nil, err
	}
	mutex, _ := d.destroying.LoadOrStore(t, new(sync.Mutex))
	k := &Keeper{Feed: NewFeed(d.Process, t, nil, changed), D: d, Store: st, destroying: mutex.(*sync.Mutex), Archive: &state.Archive{Disk: d.Disk, Dir: st.Dir}}
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

// NewBoundaries returns the boundaries of an epoch after a checkpoint, nil where its steps are not by the
// clock. It halts where the topic is not the one that the ledger and the checkpoint know.
func (r *Keeper) NewBoundaries(ctx context.Context, opened *ledger.Entry, m *core.Manifest, cp *state.Checkpoint) (*boundary.Boundaries, error) {
	period := r.S.Step.Clock()
	if period == 0 {
		return nil, nil
	}
	if topic := r.D.Cfg.Kafka.BoundaryTopic; cp.BoundaryTopic != topic {
		return nil, failure.Haltf(failure.Configuration, "the boundaries of epoch %d are in topic %s, not in %s: configure kafka.boundary_topic = %q, or start anew with: streamdp epoch open %s",
			m.Epoch, cp.BoundaryTopic, topic, cp.BoundaryTopic, failure.EpochArgs(r.Task))
	}
	if err := r.boundaryTopic().Same(ctx, opened); err != nil {
		return nil, err
	}
	b := boundary.New(r.Retrier, r.D.Client, r.D.Key, r.D.Cfg.Kafka.BoundaryTopic, m)
	b.Most, b.Horizon = int64(r.S.Slots())/int64(len(b.Sources)), r.S.LastStep()
	b.Last = boundary.Boundary{Step: cp.Step, Ends: cp.Nexts(), At: cp.Boundary}
	b.Kept = b.Last
	b.Stamp = func() time.Time { return boundary.StampOf(r.D.Now(), period) }
	b.Same = func(ctx context.Context) error { return r.boundaryTopic().Same(ctx, opened) }
	return b, b.Begin(ctx, opened.Boundaries)
}

// Beats returns a function that waits for the next multiple of a period, by the wall clock. It waits for no
// more than a period and a half, however somebody sets the clock, and makes up for nothing.
func (h *Process) Beats(period time.Duration) func(context.Context) error {
	if h.Beat != nil {
		return h.Beat
	}
	var last time.Time
	return func(ctx context.Context) error {
		now := h.Now().Round(0)
		next := now.Truncate(period).Add(period)
		if !last.IsZero() && next.Sub(last).Abs() < period/2 {
			next = next.Add(period) // the timer was early
		}
		last = next
		timer := time.NewTimer(next.Sub(now))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		}
	}
}

func NewFeed(h *Process, t core.Task, s *config.Stream, changed func()) *input.Feed {
	f := &input.Feed{
		S: s, Task: t, Log: h.Log.With("task", t.String()), Client: h.Client, Memory: h.Memory, Schemas: h.Schemas, Metrics: h.Metrics, Trace: h.Trace,
		Now: h.Now, FetchBytes: h.FetchBytes, LookEvery: h.LookEvery, LogStart: new(atomic.Int64), LogEnd: new(atomic.Int64),
	}
	f.Retrier = failure.NewRetrier(f.Log, h.Metrics.KafkaError, changed)
	return f
}

// partLog is one partition of the input: its number and offsets.
type partLog struct {
	partition int
	kafka.Offsets
}

// Reads returns the partitions that a new epoch of the task reads, nil for all that the
// topic has.
func (r *Keeper) Reads() []int {
	switch {
	case r.Task.Partition != core.Merged:
		return []int{r.Task.Partition}
	case r.S.Input.All():
		return nil
	}
	return r.S.Input.Partitions
}

// source waits for partitions of the input, nil for all. It returns the task's source and how
// many partitions the topic has.
func (r *Keeper) source(ctx context.Context, numbers []int) (src core.Source, partitions int, err error) {
	in := r.S.Input
	err = r.Do(ctx, "input", func() error {
		t, err := r.D.Client.Topic(ctx, in.Topic)
		switch {
		case err != nil:
			return err
		case !t.Exists:
			return &failure.Later{Err: fmt.Errorf("input topic %s does not exist", in.Topic)}
		case len(numbers) > 0 && slices.Max(numbers) >= len(t.Partitions):
			return &failure.Later{Err: fmt.Errorf("input topic %s has %d partitions, partition %d is configured", in.Topic, len(t.Partitions), slices.Max(numbers))}
		}
		partitions = len(t.Partitions)
		cluster, err := r.D.Client.ClusterID(ctx)
		if err != nil {
			return err
		}
		src = core.Source{Cluster: cluster, Topic: in.Topic, Partition: r.Task.Partition}
		settings, err := r.D.Client.TopicConfig(ctx, in.Topic, input.RetentionSettings...)
		if err != nil {
			return err
		}
		if strings.Contains(settings["cleanup.policy"], "compact") && !in.AllowCompacted {
			return failure.Haltf(failure.Compacted, "input topic %s is compacted: the cleaner removes records that were counted, and their keys decide which; "+
				"set the topic's cleanup.policy to delete; or accept it with input.allow_compacted = true, which is another guarantee, and open an epoch for that: streamdp epoch open %s", in.Topic, failure.EpochArgs(r.Task))
		}
		if input.ProducersDecideRetention(settings) && !r.warned.Swap(true) {
			r.Log.Warn("producers' timestamps decide when records of the input are deleted, which the guarantee does not cover",
				"topic", in.Topic, "message.timestamp.type", "CreateTime", "remedy", "message.timestamp.type = LogAppendTime, or retention.ms = -1")
		}
		return nil
	})
	return src, partitions, err
}

// input is source, and returns the offsets of the partitions, too.
func (r *Keeper) input(ctx context.Context, numbers []int) (src core.Source, partitions int, logs []partLog, err error) {
	if src, partitions, err = r.source(ctx, numbers); err != nil {
		return src, partitions, nil, err
	}
	ask := numbers
	if ask == nil {
		for p := range partitions {
			ask = append(ask, p)
		}
	}
	err = r.Do(ctx, "input", func() error {
		logs = logs[:0]
		for _, p := range ask {
			log, err := r.D.Client.Offsets(ctx, r.S.Input.Topic, int32(p))
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
func (r *Keeper) offsets(ctx context.Context, src core.Source) (log kafka.Offsets, err error) {
	err = r.Do(ctx, "input", func() error {
		log, err = r.D.Client.Offsets(ctx, src.Topic, int32(src.Partition))
		return err
	})
	return log, err
}

// topicID returns the id of the input topic, "" where the brokers have none.
func (r *Keeper) topicID(ctx context.Context) (id string, err error) {
	err = r.Do(ctx, "input", func() error {
		t, err := r.D.Client.TopicID(ctx, r.S.Input.Topic)
		id = t.String()
		return err
	})
	return id, err
}

// sameTopic Halts where the input topic has another id than when the epoch was opened.
func (r *Keeper) sameTopic(opened *ledger.Entry, id string) error {
	if id == "" || opened.TopicID == "" || id == opened.TopicID {
		return nil
	}
	return failure.Haltf(failure.Replaced, "topic %s was deleted and made again since epoch %d was opened: its id is %s, not %s; a new epoch is needed: streamdp epoch open %s",
		opened.Topic, opened.Epoch, id, opened.TopicID, failure.EpochArgs(r.Task))
}

// stillSameTopic Halts if the topic is not that of an epoch.
func (r *Keeper) stillSameTopic(ctx context.Context, epoch uint64) error {
	opened := r.D.Ledger.Opening(r.Task, epoch)
	if opened == nil {
		return nil
	}
	id, err := r.D.Client.TopicID(ctx, opened.Topic)
	if err != nil {
		return err
	}
	return r.sameTopic(opened, id.String())
}

// MeasureTime is the longest time that the cluster may take to say where a log ends.
const MeasureTime = 2 * time.Second

// OpenRequest says how to open an epoch.
type OpenRequest struct {
	// From is "continue" (where the predecessor ended, the default),
	// "earliest", "latest" or an offset.
	From string `json:"from,omitempty"`
	// SameLog asserts that the log is the one that the predecessor read. It is for a log whose
	// retention has removed the record that would prove it.
	SameLog bool `json:"same_log,omitempty"`
	// DropOutbox gives up the predecessor's releases that are not published yet.
	DropOutbox bool `json:"drop_outbox,omitempty"`
	// Reason is recorded in the ledger.
	Reason string `json:"reason,omitempty"`

	Automatic  bool  `json:"-"` // no operator asked for it
	SearchFrom int64 `json:"-"` // releases that the ledger does not know are looked for from here, 0: everywhere
}

const MaxPending = 1000

const MaxPendingBytes = 4 << 20

const ShutdownTime = 10 * time.Second
