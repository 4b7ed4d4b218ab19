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

// shardTasks holds the tasks of a shard in this process: those that run, and those that are only in the ledger.
type shardTasks struct {
	epoch.Shard
	mine func(topic string, partition int) bool // whether an input partition belongs to the shard; nil: all do

	changing sync.Mutex                        // held while streams begin and end
	run      func(func(context.Context) error) // the function given to start; nil before start and after End

	made *config.Config // the configuration from which streams was made

	growing sync.Mutex      // held while the fields below are read or change
	streams []*streamTasks  // tasks of each stream, in the order of the configuration
	others  []*epoch.Keeper // keepers of tasks in the ledger that this process does not run

	closing chan struct{} // full while an epoch of others is being closed, or others changes
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
		c.Log.Warn("removed an incomplete last line from the ledger")
	}
	return nil
}

// Prepare makes the runners of the shard's tasks. If only is not nil, it makes only those in it. The ledger must be
// open.
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

// findOthers makes keepers for tasks that are only in the ledger and have an open epoch or an unfinished closing.
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

// dropOthers removes the keepers that findOthers made.
func (c *shardTasks) dropOthers() {
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

// has reports whether a stream's partition belongs to the shard.
func (c *shardTasks) has(s *config.Stream, partition int) bool {
	return c.mine == nil || c.mine(s.Input.Topic, partition)
}

// Tasks returns the present runners. If a stream reads every partition of its topic, runners are added as partitions
// are found.
func (c *shardTasks) Tasks() (all []*task.Runner) {
	c.growing.Lock()
	defer c.growing.Unlock()
	for _, q := range c.streams {
		all = append(all, q.runners...)
	}
	return all
}

// othersNow returns the present keepers of tasks that are only in the ledger.
func (c *shardTasks) othersNow() []*epoch.Keeper {
	c.growing.Lock()
	defer c.growing.Unlock()
	return slices.Clone(c.others)
}

// searching reports whether a stream reads every partition of a topic whose partitions are not known yet.
func (c *shardTasks) searching() bool {
	c.growing.Lock()
	defer c.growing.Unlock()
	return slices.ContainsFunc(c.streams, func(q *streamTasks) bool { return q.searching.Load() })
}

// Other returns the keeper of a task that is only in the ledger, or nil if it is not such a task.
func (c *shardTasks) Other(t core.Task) *epoch.Keeper {
	for _, r := range c.othersNow() {
		if r.Task == t {
			return r
		}
	}
	return nil
}

// start starts the tasks of the shard. It passes functions to run, which must run each in a goroutine with a context,
// and end the process if one fails. The caller must call End before it waits for these goroutines.
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

// End prevents the start of further goroutines.
func (c *shardTasks) End() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.run = nil
}

// Alone locks the keepers of tasks that this process does not run: it waits until none is closing an epoch and their
// list is not changing. The caller must call Free.
func (c *shardTasks) Alone(ctx context.Context) error {
	select {
	case c.closing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Free releases the lock of Alone.
func (c *shardTasks) Free() { <-c.closing }

// leave removes the tasks from the process. All goroutines that start began must have ended. The tasks may come back
// later with new runners.
func (c *shardTasks) leave() {
	for _, r := range c.Tasks() {
		r.Leave()
	}
	c.dropOthers()
}

// closeAbandoned closes the open epoch of a task that is not in the configuration any more. If such an epoch has no
// horizon and stays open, new records are charged for it without end. The checkpoint says which output holds the
// epoch's releases or, if the checkpoint is lost, the ledger's line of the opening does. The releases give a lower
// bound of how far the epoch read, even if the log lost its end. If the output is unknown, the charge keeps its end:
// the horizon, or none.
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
		"closed the epoch without a checkpoint, and the ledger does not say where its releases are: records are " +
			"charged up to the epoch's planned end, or without limit if it has no horizon")
	var ends []ledger.EntryPart
	for _, v := range opened.Views() {
		ends = append(ends, ledger.EntryPart{Partition: v.Partition, End: v.End})
	}
	return r.CloseEpoch(ctx, opened, ends, 0, ledger.ReasonRequest)
}

// finishOthers finishes the closings of tasks that this process does not run. A command runs only some tasks, and some
// tasks may be missing in the configuration.
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
		return nil // each closing has destroyed its secret
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
