package stream

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// errStopping says that the daemon ends.
var errStopping = errors.New("the daemon is stopping")

// errClosing and errOpening say that streams can't change at the moment.
var (
	errClosing = errors.New("an epoch of a task that is no longer configured is being closed: ask again later")
	errOpening = errors.New("an epoch is being opened: ask again later")
)

// closingTime is how long a change waits for each of them.
const closingTime = time.Second

// change makes the streams those of another configuration, which next makes of the present one. The
// tables of the process are to be the same in both. While next runs no epoch is opened, so that what it
// finds in the ledger holds until streams have changed. An error of next changes nothing, nor do
// errClosing and errOpening. Any other error ends the daemon.
//
// A stream whose pointer is in both goes on, untouched. One that is in the present configuration
// alone ends as at the end of the process: its tasks commit and publish what they have, their epochs
// stay open, and are known as those of a stream that was removed between two starts. One that
// is in the other alone begins as at a start. One of the same name with another pointer does both, one
// after the other, over the same files.
//
// Tasks that begin may open an epoch for which nobody has asked only where next says so, by open, or where
// a task of the same name might have; see [task.Runner.Hold].
//
// There is one change at a time, the first one when the tasks have begun. It takes as long as the last commits and what
// is published after them, at most somewhat longer than ShutdownTime where brokers do not answer.
func (d *Daemon) change(next func(now *config.Config) (then *config.Config, open bool, err error)) error {
	<-d.begun
	d.changing.Lock()
	defer d.changing.Unlock()
	if d.ended {
		return errStopping
	}
	opening, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	if d.process.Openings.Shut(opening) != nil {
		return errOpening
	}
	defer d.process.Openings.Reopen()
	now := d.process.Config()
	then, open, err := next(now)
	if err != nil || then == now {
		return err
	}
	closing, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	shards := d.shardsNow()
	for _, c := range shards {
		if c.Alone(closing) != nil {
			return errClosing
		}
		defer c.Free()
	}
	d.process.Current.Store(then)
	errs := make([]error, len(shards))
	var wg sync.WaitGroup
	for i, c := range shards {
		wg.Go(func() { errs[i] = c.adopt(open) })
	}
	wg.Wait()
	d.process.StateChanged()
	return errors.Join(errs...)
}

// end makes sure that nothing more begins.
func (d *Daemon) end() {
	d.changing.Lock()
	d.ended = true
	d.changing.Unlock()
	for _, c := range d.shardsNow() {
		c.End()
	}
}

// adopt makes the streams those of the present configuration, while the shard's tasks run. The caller is
// alone; see [shardTasks.Alone]. An error, of the state, ends all tasks of the shard.
func (c *shardTasks) adopt(open bool) (err error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.run == nil || c.made == c.Config() {
		return nil // it has ended, or is as it is to be
	}
	defer func() {
		if err != nil {
			c.run(func(context.Context) error { return err })
		}
	}()
	c.made = c.Config()
	c.growing.Lock()
	before := c.streams
	c.growing.Unlock()
	var old []*streamTasks
	for _, q := range before {
		if !slices.Contains(c.made.Streams, q.s) {
			old = append(old, q)
			q.stop() // all at once
		}
	}
	for _, q := range old {
		q.end()
	}
	known := len(c.othersNow())
	c.forsakeOthers() // some may run again
	var streams, begun []*streamTasks
	for _, s := range c.made.Streams {
		i := slices.IndexFunc(before, func(q *streamTasks) bool { return q.s == s })
		if i >= 0 {
			streams = append(streams, before[i])
			continue
		}
		q := newStreamTasks(c, s)
		q.holds.Store(!open)
		for _, o := range old {
			if o.s.Name == s.Name && sameOpening(o.s, s) {
				q.exempt = o.mayOpen()
			}
		}
		streams, begun = append(streams, q), append(begun, q)
	}
	c.growing.Lock()
	c.streams = streams
	c.growing.Unlock()
	for _, q := range begun {
		if err := q.prepare(nil); err != nil {
			return err
		}
	}
	if err := c.findOthers(); err != nil {
		return err
	}
	for _, q := range begun {
		q.start()
	}
	if len(c.othersNow()) > known {
		c.run(c.finishOthers) // a closing may have been interrupted
	}
	return nil
}

// sameOpening reports whether no difference of two tables of a stream has to do with the opening of an
// epoch: neither what is charged, for which records, nor whether it is possible. Only then is an
// epoch that the old table's tasks were about to open one that somebody wanted.
func sameOpening(old, s *config.Stream) bool {
	return !slices.ContainsFunc(old.Differences(s), func(x config.Difference) bool {
		return !strings.HasPrefix(x.Key, "dead_letter.") && x.Key != "merge_ahead" &&
			!slices.Contains(formKeys, x.Key) &&
			(x.Key != "input.partition" || old.Merge || s.Merge) // what partitions are added is held
	})
}

// mayOpen returns the tasks of a stream, which has ended, that are not held.
func (q *streamTasks) mayOpen() (all []core.Task) {
	for _, r := range q.tasks() {
		if !r.Held() {
			all = append(all, r.Task)
		}
	}
	return all
}
