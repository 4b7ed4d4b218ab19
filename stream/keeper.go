package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// keeper opens, resumes, closes and brings back the epochs of one task. It applies no record.
type keeper struct {
	*feed
	d       *home
	store   *store
	out     *output // nil where no stream is configured
	guard   *guard  // of out
	archive *archive
	warned  atomic.Bool // that producers decide retention

	destroying *sync.Mutex // held while secrets are destroyed; of all keepers of the task
}

// newKeeper returns what can finish closings of a task, and more once it has a stream and an output.
func newKeeper(d *home, t core.Task, changed func()) (*keeper, error) {
	st, err := openStore(d.disk, d.taskDir(t), d.sealer(t))
	if err != nil {
		return nil, err
	}
	mutex, _ := d.destroying.LoadOrStore(t, new(sync.Mutex))
	k := &keeper{feed: newFeed(d.host, t, nil, changed), d: d, store: st, destroying: mutex.(*sync.Mutex), archive: &archive{disk: d.disk, dir: st.dir}}
	k.sameLog = k.stillSameTopic
	return k, nil
}

// release sets where the task's releases go.
func (k *keeper) release(to config.Output) {
	k.out = newOutput(k.repeater, k.client, k.d.ledger, &k.d.tails, k.task, to)
	k.guard = newGuard(k.out, func(ctx context.Context, opened *Entry) (ends []int64, err error) {
		for _, src := range opened.sources() {
			log, err := k.offsets(ctx, src)
			if err != nil {
				return nil, err
			}
			ends = append(ends, log.end)
		}
		return ends, nil
	})
}

func (k *keeper) boundaryTopic() *boundaryTopic {
	return &boundaryTopic{k.repeater, k.client, k.d.cfg.Kafka.BoundaryTopic}
}

// newBoundaries returns the boundaries of an epoch after a checkpoint, nil where its steps are not by the
// clock. It halts where the topic is not the one that the ledger and the checkpoint know.
func (r *keeper) newBoundaries(ctx context.Context, opened *Entry, m *core.Manifest, cp *checkpoint) (*boundaries, error) {
	period := r.s.Step.Clock()
	if period == 0 {
		return nil, nil
	}
	if topic := r.d.cfg.Kafka.BoundaryTopic; cp.boundaryTopic != topic {
		return nil, halted(haltConfiguration, "the boundaries of epoch %d are in topic %s, not in %s: configure kafka.boundary_topic = %q, or start anew with: streamdp epoch open %s",
			m.Epoch, cp.boundaryTopic, topic, cp.boundaryTopic, epochArgs(r.task))
	}
	if err := r.boundaryTopic().same(ctx, opened); err != nil {
		return nil, err
	}
	b := newBoundaries(r.repeater, r.d.client, r.d.key, r.d.cfg.Kafka.BoundaryTopic, m)
	b.most, b.horizon = int64(r.s.Slots())/int64(len(b.sources)), r.s.LastStep()
	b.last = boundary{step: cp.step, ends: cp.nexts(), at: cp.boundary}
	b.kept = b.last
	b.stamp = func() time.Time { return stampOf(r.d.now(), period) }
	b.same = func(ctx context.Context) error { return r.boundaryTopic().same(ctx, opened) }
	return b, b.begin(ctx, opened.Boundaries)
}

// beats returns a function that waits for the next multiple of a period, by the wall clock. It waits for no
// more than a period and a half, however somebody sets the clock, and makes up for nothing.
func (h *host) beats(period time.Duration) func(context.Context) error {
	if h.beat != nil {
		return h.beat
	}
	var last time.Time
	return func(ctx context.Context) error {
		now := h.now().Round(0)
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

func newFeed(h *host, t core.Task, s *config.Stream, changed func()) *feed {
	f := &feed{
		s: s, task: t, log: h.log.With("task", t.String()), client: h.client, memory: h.memory, schemas: h.schemas, metrics: h.metrics, trace: h.trace,
		now: h.now, fetchBytes: h.fetchBytes, lookEvery: h.lookEvery, logStart: new(atomic.Int64), logEnd: new(atomic.Int64),
	}
	f.repeater = newRepeater(f.log, h.metrics.kafkaError, changed)
	return f
}

// partLog is one partition of the input: its number and offsets.
type partLog struct {
	partition int
	offsets
}

// reads returns the partitions that a new epoch of the task reads, nil for all that the
// topic has.
func (r *keeper) reads() []int {
	switch {
	case r.task.Partition != core.Merged:
		return []int{r.task.Partition}
	case r.s.Input.All():
		return nil
	}
	return r.s.Input.Partitions
}

// source waits for partitions of the input, nil for all. It returns the task's source and how
// many partitions the topic has.
func (r *keeper) source(ctx context.Context, numbers []int) (src core.Source, partitions int, err error) {
	in := r.s.Input
	err = r.retry(ctx, "input", func() error {
		t, err := r.d.client.Topic(ctx, in.Topic)
		switch {
		case err != nil:
			return err
		case !t.Exists:
			return &notYet{fmt.Errorf("input topic %s does not exist", in.Topic)}
		case len(numbers) > 0 && slices.Max(numbers) >= len(t.Partitions):
			return &notYet{fmt.Errorf("input topic %s has %d partitions, partition %d is configured", in.Topic, len(t.Partitions), slices.Max(numbers))}
		}
		partitions = len(t.Partitions)
		cluster, err := r.d.client.ClusterID(ctx)
		if err != nil {
			return err
		}
		src = core.Source{Cluster: cluster, Topic: in.Topic, Partition: r.task.Partition}
		settings, err := r.d.client.TopicConfig(ctx, in.Topic, RetentionSettings...)
		if err != nil {
			return err
		}
		if strings.Contains(settings["cleanup.policy"], "compact") && !in.AllowCompacted {
			return halted(haltCompacted, "input topic %s is compacted: the cleaner removes records that were counted, and their keys decide which; "+
				"set the topic's cleanup.policy to delete; or accept it with input.allow_compacted = true, which is another guarantee, and open an epoch for that: streamdp epoch open %s", in.Topic, epochArgs(r.task))
		}
		if ProducersDecideRetention(settings) && !r.warned.Swap(true) {
			r.log.Warn("producers' timestamps decide when records of the input are deleted, which the guarantee does not cover",
				"topic", in.Topic, "message.timestamp.type", "CreateTime", "remedy", "message.timestamp.type = LogAppendTime, or retention.ms = -1")
		}
		return nil
	})
	return src, partitions, err
}

// input is source, and returns the offsets of the partitions, too.
func (r *keeper) input(ctx context.Context, numbers []int) (src core.Source, partitions int, logs []partLog, err error) {
	if src, partitions, err = r.source(ctx, numbers); err != nil {
		return src, partitions, nil, err
	}
	ask := numbers
	if ask == nil {
		for p := range partitions {
			ask = append(ask, p)
		}
	}
	err = r.retry(ctx, "input", func() error {
		logs = logs[:0]
		for _, p := range ask {
			log, err := r.d.offsetsOf(ctx, r.s.Input.Topic, p)
			if err != nil {
				return err
			}
			logs = append(logs, partLog{p, log})
		}
		return nil
	})
	return src, partitions, logs, err
}

// offsetsOf asks the cluster once for the offsets of a partition.
func (h *host) offsetsOf(ctx context.Context, topic string, partition int) (log offsets, err error) {
	log.start, log.stable, log.end, err = h.client.Offsets(ctx, topic, int32(partition))
	return log, err
}

// offsets returns the offsets of a source's log.
func (r *keeper) offsets(ctx context.Context, src core.Source) (log offsets, err error) {
	err = r.retry(ctx, "input", func() error {
		log, err = r.d.offsetsOf(ctx, src.Topic, src.Partition)
		return err
	})
	return log, err
}

// topicID returns the id of the input topic, "" where the brokers have none.
func (r *keeper) topicID(ctx context.Context) (id string, err error) {
	err = r.retry(ctx, "input", func() error {
		t, err := r.d.client.TopicID(ctx, r.s.Input.Topic)
		id = t.String()
		return err
	})
	return id, err
}

// sameTopic halts where the input topic has another id than when the epoch was opened.
func (r *keeper) sameTopic(opened *Entry, id string) error {
	if id == "" || opened.TopicID == "" || id == opened.TopicID {
		return nil
	}
	return halted(haltReplaced, "topic %s was deleted and made again since epoch %d was opened: its id is %s, not %s; a new epoch is needed: streamdp epoch open %s",
		opened.Topic, opened.Epoch, id, opened.TopicID, epochArgs(r.task))
}

// stillSameTopic halts if the topic is not that of an epoch.
func (r *keeper) stillSameTopic(ctx context.Context, epoch uint64) error {
	opened := r.d.ledger.opening(r.task, epoch)
	if opened == nil {
		return nil
	}
	id, err := r.d.client.TopicID(ctx, opened.Topic)
	if err != nil {
		return err
	}
	return r.sameTopic(opened, id.String())
}

// measureTime is the longest time that the cluster may take to say where a log ends.
const measureTime = 2 * time.Second

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

	unasked bool  // no operator asked for it
	output  int64 // releases that the ledger does not know are looked for from here, 0: everywhere
}

const maxPending = 1000

const maxPendingBytes = 4 << 20

const shutdownTime = 10 * time.Second
