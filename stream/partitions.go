package stream

import (
	"context"
	"slices"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/stream/core"
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

// follow makes a task of every partition of a stream's topic that has none, until the
// context ends. run runs a task.
func (c *crew) follow(ctx context.Context, s *config.Stream, run func(func(context.Context) error)) error {
	found, wait := false, kafka.Backoff{Max: c.lookEvery}
	look := newRepeater(c.log.With("stream", s.Name), c.metrics, func() {})
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
			if err := c.takeUp(s, p, found, run); err != nil {
				return err
			}
		}
		if !found && len(t.Partitions) > 0 {
			found = true
			c.searching.Add(-1)
			c.stateChanged()
		}
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// takeUp makes a task of a partition, unless there is one or it is another shard's. added says that the topic had
// fewer partitions before.
func (c *crew) takeUp(s *config.Stream, partition int, added bool, run func(func(context.Context) error)) error {
	t := core.Task{Stream: s.Name, Partition: partition}
	if !c.has(s, partition) || slices.ContainsFunc(c.tasks(), func(r *runner) bool { return r.task == t }) {
		return nil
	}
	r, err := newRunner(&c.home, s, partition)
	if err != nil {
		return err
	}
	if added {
		c.log.Info("a partition was added to the input topic, and becomes a task", "task", t.String(), "topic", s.Input.Topic)
	}
	c.growing.Lock()
	c.runners = append(c.runners, r)
	c.growing.Unlock()
	run(r.run)
	c.stateChanged()
	return nil
}
