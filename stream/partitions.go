package stream

import (
	"context"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// partitionsAtStart returns the partitions whose tasks exist before the cluster was asked:
// those in the configuration or, for a stream that reads all, those in the ledger. A
// merged stream has one task.
func (c *crew) partitionsAtStart(s *config.Stream, only []core.Task) (partitions []int) {
	if s.Merge {
		return []int{core.Merged}
	}
	if !s.Input.All() {
		return s.Input.Partitions
	}
	known := c.ledger.tasks()
	for _, t := range slices.Concat(known, only) {
		if t.Stream == s.Name && s.Input.Reads(t.Partition) && !slices.Contains(partitions, t.Partition) {
			partitions = append(partitions, t.Partition)
		}
	}
	slices.Sort(partitions)
	return partitions
}

// follow makes a task of every partition of the stream's topic that has none, until the
// context ends.
func (q *squad) follow(ctx context.Context) error {
	c, s := q.c, q.s
	found, wait := false, kafka.Backoff{Max: c.lookEvery}
	look := newRepeater(c.log.With("stream", s.Name), c.metrics.kafkaError, func() {})
	for {
		t, err := c.client.Topic(ctx, s.Input.Topic)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			look.troubled("partitions", err)
		case len(t.Partitions) > 0:
			look.untroubled("partitions")
			wait = kafka.Backoff{Min: c.lookEvery, Max: c.lookEvery}
		}
		for p := range t.Partitions {
			if err := q.takeUp(p, found); err != nil {
				return err
			}
		}
		if !found && len(t.Partitions) > 0 {
			found = true
			q.searching.Store(false)
			c.stateChanged()
		}
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// takeUp makes a task of a partition, unless there is one or it is another shard's. added says that the topic had
// fewer partitions before.
func (q *squad) takeUp(partition int, added bool) error {
	t := core.Task{Stream: q.s.Name, Partition: partition}
	if !q.c.has(q.s, partition) || slices.ContainsFunc(q.tasks(), func(r *runner) bool { return r.task == t }) {
		return nil
	}
	if err := q.add(partition, added); err != nil {
		return err
	}
	if added {
		q.c.log.Info("a partition was added to the input topic, and becomes a task", "task", t.String(), "topic", q.s.Input.Topic)
	}
	tasks := q.tasks()
	q.run(tasks[len(tasks)-1].run)
	q.c.stateChanged()
	return nil
}
