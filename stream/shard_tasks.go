package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// shardTasks is the tasks of a shard that this process has: those that run, and those that only the
// ledger knows.
type shardTasks struct {
	epoch.Shard
	mine func(topic string, partition int) bool // whether an input partition is the shard's; nil: all are

	changing sync.Mutex                        // held while streams begin and end
	run      func(func(context.Context) error) // see start; nil before it, and once all ends

	made *config.Config // what has the streams

	growing sync.Mutex      // held while what follows is read or changes
	streams []*streamTasks  // of the configuration's streams, in their order
	others  []*epoch.Keeper // of tasks of the ledger that this process does not run

	closing chan struct{} // has an element while something of the others is closed, or they change
}

func newShardTasks(h *epoch.Process, s state.Shard, dir string) *shardTasks {
	return &shardTasks{Shard: epoch.Shard{Process: h, Disk: s, Dir: dir}, closing: make(chan struct{}, 1)}
}

// OpenLedger reads the shard's ledger.
func (c *shardTasks) OpenLedger() (err error) {
	if c.Ledger, err = ledger.Open(c.Disk, c.Dir, ledger.NewKey(c.Key)); err != nil {
		return err
	}
	if m := c.Ledger.Moved(); m != nil {
		return m.Refusal()
	}
	c.Ledger.Now = c.Now
	if c.Ledger.Torn {
		c.Log.Warn("a torn last line of the ledger was cut off")
	}
	return nil
}

// Prepare makes the runners of the shard's tasks, or of some; nil: all. The ledger was read.
func (c *shardTasks) Prepare(only []core.Task) (err error) {
	defer func() {
		if err != nil {
			c.leave()
		}
	}()
	c.made = c.Config()
	for _, s := range c.made.Streams {
		q := newStreamTasks(c, s)
		c.streams = append(c.streams, q)
		if err := q.prepare(only); err != nil {
			return err
		}
	}
	return c.findOthers()
}

// findOthers makes the runners of tasks that only the ledger knows, and of which something is left to
// do.
func (c *shardTasks) findOthers() error {
	var others []*epoch.Keeper
	running := c.Tasks()
	for _, t := range c.Ledger.Tasks() {
		if slices.ContainsFunc(running, func(r *task.Runner) bool { return r.Task == t }) {
			continue
		}
		if last := c.Ledger.Newest(t); len(c.Ledger.Undestroyed(t)) == 0 &&
			(last == nil || last.Kind != ledger.KindOpen) {
			continue
		}
		r, err := epoch.NewKeeper(&c.Shard, t, func() {})
		if err != nil {
			return err
		}
		others = append(others, r)
	}
	c.growing.Lock()
	c.others = others
	c.growing.Unlock()
	return nil
}

// forsakeOthers takes those runners down.
func (c *shardTasks) forsakeOthers() {
	c.growing.Lock()
	before := c.others
	c.others = nil
	c.growing.Unlock()
	for _, r := range before {
		if r.Out != nil {
			r.Out.Leave()
		}
	}
}

// has reports whether a stream's partition is the shard's.
func (c *shardTasks) has(s *config.Stream, partition int) bool {
	return c.mine == nil || c.mine(s.Input.Topic, partition)
}

// Tasks returns the runners as they are now. Those of a stream that reads every partition
// of its topic become more as partitions are found.
func (c *shardTasks) Tasks() (all []*task.Runner) {
	c.growing.Lock()
	defer c.growing.Unlock()
	for _, q := range c.streams {
		all = append(all, q.runners...)
	}
	return all
}

// othersNow returns the runners of tasks that only the ledger knows, as they are now.
func (c *shardTasks) othersNow() []*epoch.Keeper {
	c.growing.Lock()
	defer c.growing.Unlock()
	return slices.Clone(c.others)
}

// searching reports whether a stream reads every partition of a topic whose partitions are not
// known yet.
func (c *shardTasks) searching() bool {
	c.growing.Lock()
	defer c.growing.Unlock()
	return slices.ContainsFunc(c.streams, func(q *streamTasks) bool { return q.searching.Load() })
}

// Other returns the runner of a task that only the ledger knows, nil if it is none.
func (c *shardTasks) Other(t core.Task) *epoch.Keeper {
	for _, r := range c.othersNow() {
		if r.Task == t {
			return r
		}
	}
	return nil
}

// start starts all that is to be done for the shard. run runs a part of it beside the others,
// until its context ends, and sees to an error, which concerns all. Before whoever made the context
// waits for all parts, it calls end.
func (c *shardTasks) start(run func(func(context.Context) error)) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.run = run
	for _, q := range c.streams {
		q.start()
	}
	if c.Cfg.State.EpochSecretRetention > 0 || len(c.othersNow()) > 0 {
		run(c.destroySecrets)
	}
}

// End makes sure that nothing more is started.
func (c *shardTasks) End() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.run = nil
}

// Alone waits until nothing of the others is closed, nor do they change; free ends that.
func (c *shardTasks) Alone(ctx context.Context) error {
	select {
	case c.closing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *shardTasks) Free() { <-c.closing }

// leave takes down what the process has of the tasks, after all that start began has ended.
// They may come back, as other runners.
func (c *shardTasks) leave() {
	for _, r := range c.Tasks() {
		r.Leave()
	}
	c.forsakeOthers()
}

// closeAbandoned closes the open epoch of a task that is no longer in the configuration.
// Otherwise new records would be charged for it, without a horizon for ever. Where its
// releases went, its checkpoint says or, where that is lost, the line that opened it. They
// say how far the epoch read at least, which a log that lost its end does not. So where
// neither says it, the charge keeps its end, the horizon's or none.
func (c *shardTasks) closeAbandoned(ctx context.Context, q task.Request) error {
	t := q.Task()
	if err := c.Alone(ctx); err != nil {
		return err
	}
	defer c.Free()
	r := c.Other(t)
	if r == nil || q.Kind != task.RequestClose {
		return fmt.Errorf("the configuration has no task %s", t)
	}
	c.Ledger.AcceptKey()
	opened := c.Ledger.Newest(t)
	if opened == nil || opened.Kind != ledger.KindOpen {
		return errors.New("the task has no open epoch")
	}
	cp, err := r.Store.Load()
	if err != nil && !errors.Is(err, state.ErrCheckpoint) {
		return err
	}
	to := opened.Output
	if err == nil && cp != nil && cp.Epoch == opened.Epoch {
		to = &ledger.EntryOutput{Topic: cp.OutputTopic, Partition: cp.OutputPartition}
	}
	if to != nil {
		r.Release(config.Output{Topic: to.Topic, Partition: to.Partition})
		return r.CloseStopped(ctx, opened, q.Open.DropOutbox)
	}
	r.Log.Warn(
		"epoch closed without its checkpoint, and the ledger does not say where its releases went: its charge has " +
			"the end that it was opened with, which is none without a horizon")
	var ends []ledger.EntryPart
	for _, v := range opened.Views() {
		ends = append(ends, ledger.EntryPart{Partition: v.Partition, End: v.End})
	}
	return r.CloseEpoch(ctx, opened, ends, 0, ledger.ReasonRequest)
}

// finishOthers finishes the closings of tasks that this process does not run: a command runs
// another task, or the configuration no longer has them.
func (c *shardTasks) finishOthers(ctx context.Context) error {
	if c.Ledger.Waits() {
		return nil
	}
	if err := c.Alone(ctx); err != nil {
		return nil
	}
	defer c.Free()
	for _, r := range c.othersNow() {
		if err := r.FinishClosings(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("task %s: %w", r.Task, err)
		}
	}
	return nil
}

// destroySecrets destroys the secrets of closed epochs when their retention is over.
func (c *shardTasks) destroySecrets(ctx context.Context) error {
	if err := c.finishOthers(ctx); err != nil {
		return err
	}
	if c.Cfg.State.EpochSecretRetention == 0 {
		return nil // each closing has done it
	}
	tick := time.NewTicker(min(c.Cfg.State.EpochSecretRetention, time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if c.Ledger.Waits() {
			continue
		}
		all := c.othersNow()
		for _, r := range c.Tasks() {
			all = append(all, r.Keeper)
		}
		for _, r := range all {
			if err := r.DestroySecrets(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("task %s: %w", r.Task, err)
			}
		}
	}
}
