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

// errStopping says that the daemon is stopping.
var errStopping = errors.New("the daemon is stopping")

// errClosing and errOpening say that streams cannot change at the moment.
var (
	errClosing = errors.New("an epoch of a task outside the configuration is being closed: try again later")
	errOpening = errors.New("an epoch is being opened: try again later")
)

// closingTime is how long a change waits, first until no epoch is being opened, and then until none is being closed.
const closingTime = time.Second

// change replaces the configuration by one with other streams. The function next makes the new configuration from the
// present one; the tables of the process must be the same in both. No epoch is opened while next runs, so the state of
// the ledger that next reads holds until the streams have changed. If next fails, or change fails with errClosing or
// errOpening, nothing changes. Any other error ends the daemon.
//
// A stream whose pointer is in both configurations is not touched. A stream that is only in the present configuration
// ends as at the end of the process: its tasks commit and publish all closed steps, and its epochs stay open, as if the
// stream had been removed between two starts. A stream that is only in the new configuration begins as at a start. If
// the name is the same but the pointer differs, the old stream ends before the new one begins over the same files.
//
// A new task may open an epoch by itself only if next returns open = true, or if the old task of the same name was
// allowed to; see [task.Runner.Hold].
//
// Changes run one at a time, and only after the tasks have begun. A change waits until the ending tasks have committed
// and published. If brokers do not answer, that takes a little longer than ShutdownTime.
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

// end prevents the start of further tasks.
func (d *Daemon) end() {
	d.changing.Lock()
	d.ended = true
	d.changing.Unlock()
	for _, c := range d.shardsNow() {
		c.End()
	}
}

// adopt replaces the shard's streams by those of the present configuration while its tasks run. The caller must have
// called [shardTasks.Alone]. If adopt fails, with an error of the state, all tasks of the shard end.
func (c *shardTasks) adopt(open bool) (err error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.run == nil || c.made == c.Config() {
		return nil // the shard has ended, or has the streams already
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
			q.stop() // stop all, then wait for each
		}
	}
	for _, q := range old {
		q.end()
	}
	known := len(c.othersNow())
	c.dropOthers() // some of these tasks may run again
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
		c.run(c.finishOthers) // in case a closing was interrupted
	}
	return nil
}

// sameOpening reports whether two tables of a stream would open the same epoch: with equal charge, records and
// conditions. If so, the new tasks may open an epoch that the old ones were about to open.
func sameOpening(old, s *config.Stream) bool {
	return !slices.ContainsFunc(old.Differences(s), func(x config.Difference) bool {
		return !strings.HasPrefix(x.Key, "dead_letter.") && x.Key != "merge_ahead" &&
			!slices.Contains(formKeys, x.Key) &&
			(x.Key != "input.partition" || old.Merge || s.Merge) // tasks of added partitions are held
	})
}

// mayOpen returns the tasks of an ended stream that are not held.
func (q *streamTasks) mayOpen() (all []core.Task) {
	for _, r := range q.tasks() {
		if !r.Held() {
			all = append(all, r.Task)
		}
	}
	return all
}
