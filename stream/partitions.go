package stream

import (
	"context"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/task"
)

// partitionsAtStart returns the partitions that have tasks before the cluster is asked: those in the configuration or,
// if the stream reads all partitions, those in the ledger. A merged stream has one task.
func (c *shardTasks) partitionsAtStart(s *config.Stream, only []core.Task) (partitions []int) {
	if s.Merge {
		return []int{core.Merged}
	}
	if !s.Input.All() {
		return s.Input.Partitions
	}
	known := c.Ledger.Tasks()
	for _, t := range slices.Concat(known, only) {
		if t.Stream == s.Name && s.Input.Reads(t.Partition) && !slices.Contains(partitions, t.Partition) {
			partitions = append(partitions, t.Partition)
		}
	}
	slices.Sort(partitions)
	return partitions
}

// follow looks for new partitions of the stream's topic until the context ends, and makes a task for each.
func (q *streamTasks) follow(ctx context.Context) error {
	c, s := q.c, q.s
	found, wait := false, kafka.Backoff{Max: c.LookEvery}
	look := failure.NewRetrier(c.Log.With("stream", s.Name), c.Metrics.KafkaError, func() {})
	for {
		t, err := c.Client.Topic(ctx, s.Input.Topic)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			look.Failing("partitions", err)
		case len(t.Partitions) > 0:
			look.Recovered("partitions")
			wait = kafka.Backoff{Min: c.LookEvery, Max: c.LookEvery}
		}
		for p := range t.Partitions {
			if err := q.takeUp(p, found); err != nil {
				return err
			}
		}
		if !found && len(t.Partitions) > 0 {
			found = true
			q.searching.Store(false)
			c.StateChanged()
		}
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// takeUp makes a task for a partition, unless the partition has a task or belongs to another shard. added says that the
// topic had fewer partitions before.
func (q *streamTasks) takeUp(partition int, added bool) error {
	t := core.Task{Stream: q.s.Name, Partition: partition}
	if !q.c.has(q.s, partition) || slices.ContainsFunc(q.tasks(), func(r *task.Runner) bool { return r.Task == t }) {
		return nil
	}
	if err := q.add(partition, added); err != nil {
		return err
	}
	if added {
		q.c.Log.Info("a partition was added to the input topic: starting a task for it", "task", t.String(), "topic",
			q.s.Input.Topic)
	}
	tasks := q.tasks()
	q.run(tasks[len(tasks)-1].Run)
	q.c.StateChanged()
	return nil
}
