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
)

// crew is the tasks of a shard that this process has: those that run, and those that only the
// ledger knows.
type crew struct {
	home
	mine func(topic string, partition int) bool // whether an input partition is the shard's; nil: all are

	changing sync.Mutex                        // held while streams begin and end
	run      func(func(context.Context) error) // see start; nil before it, and once the crew ends

	made *config.Config // what the squads are of

	growing sync.Mutex // held while what follows is read or changes
	squads  []*squad   // of the configuration's streams, in their order
	others  []*keeper  // of tasks of the ledger that this process does not run

	closing chan struct{} // has an element while something of the others is closed, or they change
}

func newCrew(h *host, s shard, dir string) *crew {
	return &crew{home: home{host: h, disk: s, dir: dir}, closing: make(chan struct{}, 1)}
}

// openLedger reads the shard's ledger.
func (c *crew) openLedger() (err error) {
	if c.ledger, err = openLedger(c.disk, c.dir, newLedgerKey(c.key)); err != nil {
		return err
	}
	if m := c.ledger.moved(); m != nil {
		return m.refusal()
	}
	c.ledger.now = c.now
	if c.ledger.torn {
		c.log.Warn("a torn last line of the ledger was cut off")
	}
	return nil
}

// prepare makes the runners of the shard's tasks, or of some; nil: all. The ledger was read.
func (c *crew) prepare(only []core.Task) (err error) {
	defer func() {
		if err != nil {
			c.leave()
		}
	}()
	c.made = c.config()
	for _, s := range c.made.Streams {
		q := newSquad(c, s)
		c.squads = append(c.squads, q)
		if err := q.prepare(only); err != nil {
			return err
		}
	}
	return c.findOthers()
}

// findOthers makes the runners of tasks that only the ledger knows, and of which something is left to
// do.
func (c *crew) findOthers() error {
	var others []*keeper
	running := c.tasks()
	for _, t := range c.ledger.tasks() {
		if slices.ContainsFunc(running, func(r *runner) bool { return r.task == t }) {
			continue
		}
		if last := c.ledger.newest(t); len(c.ledger.undestroyed(t)) == 0 && (last == nil || last.Kind != kindOpen) {
			continue
		}
		r, err := newKeeper(&c.home, t, func() {})
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
func (c *crew) forsakeOthers() {
	c.growing.Lock()
	before := c.others
	c.others = nil
	c.growing.Unlock()
	for _, r := range before {
		if r.out != nil {
			r.out.leave()
		}
	}
}

// has reports whether a stream's partition is the shard's.
func (c *crew) has(s *config.Stream, partition int) bool {
	return c.mine == nil || c.mine(s.Input.Topic, partition)
}

// tasks returns the runners as they are now. Those of a stream that reads every partition
// of its topic become more as partitions are found.
func (c *crew) tasks() (all []*runner) {
	c.growing.Lock()
	defer c.growing.Unlock()
	for _, q := range c.squads {
		all = append(all, q.runners...)
	}
	return all
}

// othersNow returns the runners of tasks that only the ledger knows, as they are now.
func (c *crew) othersNow() []*keeper {
	c.growing.Lock()
	defer c.growing.Unlock()
	return slices.Clone(c.others)
}

// searching reports whether a stream reads every partition of a topic whose partitions are not
// known yet.
func (c *crew) searching() bool {
	c.growing.Lock()
	defer c.growing.Unlock()
	return slices.ContainsFunc(c.squads, func(q *squad) bool { return q.searching.Load() })
}

// other returns the runner of a task that only the ledger knows, nil if it is none.
func (c *crew) other(t core.Task) *keeper {
	for _, r := range c.othersNow() {
		if r.task == t {
			return r
		}
	}
	return nil
}

// start starts all that is to be done for the shard. run runs a part of it beside the others,
// until its context ends, and sees to an error, which concerns all. Before whoever made the context
// waits for all parts, it calls end.
func (c *crew) start(run func(func(context.Context) error)) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.run = run
	for _, q := range c.squads {
		q.start()
	}
	if c.cfg.State.EpochSecretRetention > 0 || len(c.othersNow()) > 0 {
		run(c.destroySecrets)
	}
}

// end makes sure that nothing more is started.
func (c *crew) end() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.run = nil
}

// alone waits until nothing of the others is closed, nor do they change; free ends that.
func (c *crew) alone(ctx context.Context) error {
	select {
	case c.closing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *crew) free() { <-c.closing }

// leave takes down what the process has of the tasks, after all that start began has ended.
// They may come back, as other runners.
func (c *crew) leave() {
	for _, r := range c.tasks() {
		r.leave()
	}
	c.forsakeOthers()
}

// closeAbandoned closes the open epoch of a task that is no longer in the configuration.
// Otherwise new records would be charged for it, without a horizon for ever. Where its
// releases went, its checkpoint says or, where that is lost, the line that opened it. They
// say how far the epoch read at least, which a log that lost its end does not. So where
// neither says it, the charge keeps its end, the horizon's or none.
func (c *crew) closeAbandoned(ctx context.Context, t core.Task, q request) error {
	if err := c.alone(ctx); err != nil {
		return err
	}
	defer c.free()
	r := c.other(t)
	if r == nil || q.kind != requestClose {
		return fmt.Errorf("the configuration has no task %s", t)
	}
	c.ledger.acceptKey()
	opened := c.ledger.newest(t)
	if opened == nil || opened.Kind != kindOpen {
		return errors.New("the task has no open epoch")
	}
	cp, err := r.store.load()
	if err != nil && !errors.Is(err, errCheckpoint) {
		return err
	}
	to := opened.Output
	if err == nil && cp != nil && cp.epoch == opened.Epoch {
		to = &EntryOutput{cp.outputTopic, cp.outputPartition}
	}
	if to != nil {
		r.release(config.Output{Topic: to.Topic, Partition: to.Partition})
		return r.closeHalted(ctx, opened, q.open.DropOutbox)
	}
	r.log.Warn("epoch closed without its checkpoint, and the ledger does not say where its releases went: its charge has the end that it was opened with, which is none without a horizon")
	var ends []EntryPart
	for _, v := range opened.views() {
		ends = append(ends, EntryPart{Partition: v.Partition, End: v.End})
	}
	return r.closeEpoch(ctx, opened, ends, 0, reasonRequest)
}

// finishOthers finishes the closings of tasks that this process does not run: a command runs
// another task, or the configuration no longer has them.
func (c *crew) finishOthers(ctx context.Context) error {
	if c.ledger.waits() {
		return nil
	}
	if err := c.alone(ctx); err != nil {
		return nil
	}
	defer c.free()
	for _, r := range c.othersNow() {
		if err := r.finishClosings(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("task %s: %w", r.task, err)
		}
	}
	return nil
}

// destroySecrets destroys the secrets of closed epochs when their retention is over.
func (c *crew) destroySecrets(ctx context.Context) error {
	if err := c.finishOthers(ctx); err != nil {
		return err
	}
	if c.cfg.State.EpochSecretRetention == 0 {
		return nil // each closing has done it
	}
	tick := time.NewTicker(min(c.cfg.State.EpochSecretRetention, time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if c.ledger.waits() {
			continue
		}
		all := c.othersNow()
		for _, r := range c.tasks() {
			all = append(all, r.keeper)
		}
		for _, r := range all {
			if err := r.destroySecrets(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("task %s: %w", r.task, err)
			}
		}
	}
}
