package stream

import (
	"context"
	"slices"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/stream/core"
)

// tasks returns the runners as they are now. Those of a stream that reads every partition
// of its topic become more as partitions are found.
func (d *Daemon) tasks() []*runner {
	d.growing.Lock()
	defer d.growing.Unlock()
	return slices.Clone(d.runners)
}

// partitionsAtStart returns the partitions whose tasks exist before the cluster was asked:
// those in the configuration or, for a stream that reads all, those in the ledger. A
// merged stream has one task.
func (d *Daemon) partitionsAtStart(s *config.Stream, only []core.Task) (partitions []int) {
	if s.Merge {
		return []int{core.Merged}
	}
	if !s.Input.All() {
		return s.Input.Partitions
	}
	known := d.ledger.tasks()
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
func (d *Daemon) follow(ctx context.Context, s *config.Stream, run func(func(context.Context) error)) error {
	found, wait := false, kafka.Backoff{Max: d.lookEvery}
	look := newRepeater(d.log.With("stream", s.Name), d.metrics, func() {})
	for {
		t, err := d.client.Topic(ctx, s.Input.Topic)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			look.troubled("partitions", err)
		case len(t.Partitions) > 0:
			look.untroubled("partitions")
			wait = kafka.Backoff{Min: d.lookEvery, Max: d.lookEvery}
		}
		for p := range t.Partitions {
			if err := d.takeUp(s, p, found, run); err != nil {
				return err
			}
		}
		if !found && len(t.Partitions) > 0 {
			found = true
			d.searching.Add(-1)
			d.stateChanged()
		}
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// takeUp makes a task of a partition, unless there is one. added says that the topic had
// fewer partitions before.
func (d *Daemon) takeUp(s *config.Stream, partition int, added bool, run func(func(context.Context) error)) error {
	t := core.Task{Stream: s.Name, Partition: partition}
	if slices.ContainsFunc(d.tasks(), func(r *runner) bool { return r.task == t }) {
		return nil
	}
	r, err := newRunner(&d.host, s, partition)
	if err != nil {
		return err
	}
	if added {
		d.log.Info("a partition was added to the input topic, and becomes a task", "task", t.String(), "topic", s.Input.Topic)
	}
	d.growing.Lock()
	d.runners = append(d.runners, r)
	d.growing.Unlock()
	run(r.run)
	d.stateChanged()
	return nil
}
