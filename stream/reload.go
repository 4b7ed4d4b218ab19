package stream

import (
	"errors"
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// unchanged reports whether nothing differs.
func unchanged(r *httpapi.Reload) bool {
	return len(r.Added)+len(r.Removed)+len(r.Changed)+len(r.Process) == 0
}

// Reload reads the configuration again and, unless it is a dry run, makes it that of the running daemon:
// streams are added, removed and changed. All of it is done, or nothing.
//
// It opens, charges and closes no epoch by itself; see [ReloadRequest]. It leaves every open epoch the
// bytes that it would have had: a change on which the guarantee of an open epoch depends is refused, as is
// whatever is not a stream's but the level of messages, a limit below what is paid, and a stream whose
// estimator can't be built. What tasks publish afterwards is what they would publish if the process had
// been stopped and started with the new configuration, where they would not have halted. It waits until Run
// has begun the tasks.
//
// Errors: config.Faults, *RefusedError with the difference, errors of reading files; then nothing is changed. After
// another error the daemon ends.
func (d *Daemon) Reload(q httpapi.ReloadRequest) (*httpapi.Reload, error) {
	found, err := d.reload(q)
	if q.DryRun {
		return found, err
	}
	d.process.Metrics.Reloaded(err == nil, d.process.Now())
	if err != nil {
		d.process.Log.Warn("the configuration was read again, and nothing was changed", "error", err.Error())
		return found, err
	}
	var changed []string
	for _, s := range found.Changed {
		changed = append(changed, s.Stream)
	}
	d.process.Log.Info("the configuration was read again", "added", found.Added, "removed", found.Removed, "changed",
		changed, "opened", found.Opened, "unopened", found.Unopened)
	return found, nil
}

// errNoFile is for a daemon that does not know where its configuration comes from.
var errNoFile = errors.New("this daemon's configuration cannot be read again")

func (d *Daemon) reload(q httpapi.ReloadRequest) (found *httpapi.Reload, err error) {
	if d.load == nil {
		return nil, errNoFile
	}
	d.reloading.Lock()
	defer d.reloading.Unlock()
	file, err := d.load()
	if err != nil {
		return nil, err
	}
	patterns, undo := false, func() {}
	err = d.change(func(now *config.Config) (then *config.Config, open bool, err error) {
		then, found = d.compare(now, file)
		switch {
		case len(found.Refused) > 0:
			return nil, false, &httpapi.RefusedError{Reload: found}
		case q.DryRun || unchanged(found):
			return now, false, nil
		}
		if patterns = !slices.Equal(then.Patterns, now.Patterns); patterns {
			undo = d.patterns.again(q.Open)
		}
		return then, q.Open, nil
	})
	if err != nil || q.DryRun {
		undo()
		return found, err
	}
	if patterns {
		d.process.Metrics.ForgetPatterns() // of those that are gone, too
		failure.Signal(d.patterns.changed)
	}
	if d.setLevel != nil {
		d.setLevel(file.Log.Level)
	}
	if q.Open {
		found.Opened = d.unopened()
		d.patterns.open()
		for _, c := range d.shardsNow() {
			c.release()
		}
	}
	found.Unopened = d.unopened()
	return found, nil
}

// unopened returns what waits for a request to open an epoch; see [Reload].
func (d *Daemon) unopened() []string {
	all := []string{}
	for _, c := range d.shardsNow() {
		c.growing.Lock()
		streams := slices.Clone(c.streams)
		c.growing.Unlock()
		for _, q := range streams {
			tasks := q.tasks()
			if len(tasks) == 0 && q.holds.Load() {
				all = append(all, q.s.Name)
			}
			for _, r := range tasks {
				if r.Held() && r.OpensByItself(r.D.Ledger.Newest(r.Task)) {
					all = append(all, r.Task.String())
				}
			}
		}
	}
	now := d.process.Config()
	for _, p := range now.Patterns {
		if d.patterns.holds() &&
			!slices.ContainsFunc(now.Streams, func(s *config.Stream) bool { return s.Pattern() == p.Name }) {
			all = append(all, p.Name)
		}
	}
	return all
}

// release lets the tasks that are held open their epochs.
func (c *shardTasks) release() {
	c.growing.Lock()
	defer c.growing.Unlock()
	for _, q := range c.streams {
		q.holds.Store(false)
		for _, r := range q.runners {
			r.Free()
		}
	}
}

// compare returns the configuration that a daemon runs after a file was read again, and how it differs from
// that of now, or why that is refused. Streams that are the same keep their pointers.
func (d *Daemon) compare(now, file *config.Config) (then *config.Config, found *httpapi.Reload) {
	found = &httpapi.Reload{Added: []string{}, Removed: []string{}, Changed: []httpapi.StreamChange{},
		Opened: []string{}, Unopened: []string{}, Refused: []string{}}
	refuse := func(format string, args ...any) {
		found.Refused = append(found.Refused, fmt.Sprintf(format, args...))
	}
	if now.Cluster != nil {
		refuse("instances that share tasks must all have one configuration: stop and start them, one after the other")
	}
	found.Process = config.Differences(now, file)
	for _, x := range found.Process {
		if x.Key != "log.level" {
			refuse("%s: it takes effect at a start of the process only", x)
		}
	}
	next := *now
	then = &next
	then.Log.Level = file.Log.Level
	if len(found.Refused) > 0 && now.Cluster != nil {
		return then, found
	}
	then.Patterns = tables(found, now.Patterns, file.Patterns)
	own := func(all []*config.Stream) []*config.Stream { return slices.DeleteFunc(slices.Clone(all), ofPattern) }
	then.Streams = tables(found, own(now.Streams), own(file.Streams))
	for _, s := range now.Streams {
		if ofPattern(s) { // what of them stays, the patterns say
			then.Streams = append(then.Streams, s)
		}
	}
	then, _ = then.Expand(d.kept(now))
	for _, s := range now.Streams {
		if ofPattern(s) && then.Stream(s.Name) == nil {
			found.Removed = append(found.Removed, s.Name)
		}
	}
	for _, s := range then.Streams {
		old := now.Stream(s.Name)
		if old == s {
			continue
		}
		for _, why := range d.unfit(old, s) {
			refuse("stream %s: %s", s.Name, why)
		}
	}
	return then, found
}

// ofPattern reports whether a stream was made by a pattern.
func ofPattern(s *config.Stream) bool { return s.Pattern() != "" }

// tables notes how tables of streams differ, and returns the new ones; the old one where there is no
// difference.
func tables(r *httpapi.Reload, old, new []*config.Stream) (all []*config.Stream) {
	named := func(list []*config.Stream, name string) *config.Stream {
		if i := slices.IndexFunc(list, func(s *config.Stream) bool { return s.Name == name }); i >= 0 {
			return list[i]
		}
		return nil
	}
	for _, s := range new {
		if was := named(old, s.Name); was == nil {
			r.Added = append(r.Added, s.Name)
		} else if keys := was.Differences(s); len(keys) > 0 {
			r.Changed = append(r.Changed, httpapi.StreamChange{Stream: s.Name, Keys: keys})
		} else {
			s = was
		}
		all = append(all, s)
	}
	for _, s := range old {
		if named(new, s.Name) == nil {
			r.Removed = append(r.Removed, s.Name)
		}
	}
	return all
}

// unfit says why a running daemon can't take a stream, which was old before; nil: it was none.
func (d *Daemon) unfit(old, s *config.Stream) (why []string) {
	if old == nil || !sameEstimator(old, s) {
		if _, err := dryrun.Describe(s); err != nil {
			return []string{err.Error()}
		}
	}
	for _, c := range d.shardsNow() {
		for _, t := range c.Ledger.Tasks() {
			opened := c.Ledger.Newest(t)
			// nil: its only opening was voided
			if t.Stream != s.Name || opened == nil || opened.Kind != ledger.KindOpen {
				continue
			}
			if !reading(s, t) {
				if old != nil && reading(old, t) && old.Merge != s.Merge {
					why = append(why,
						fmt.Sprintf("merge: epoch %d of task %s is open: close it first, with: streamdp epoch close %s",
							opened.Epoch, t, failure.EpochArgs(t)))
				}
				continue
			}
			why = append(why, c.unfitFor(old, s, opened)...)
		}
	}
	return why
}

// sameEstimator reports whether the estimators of two tables of a stream are the same.
func sameEstimator(a, b *config.Stream) bool {
	p := a.Input.First()
	return slices.Equal(a.Canonical(p), b.Canonical(p))
}

// reading reports whether a stream has a task.
func reading(s *config.Stream, t core.Task) bool {
	if t.Partition == core.Merged {
		return s.Merge
	}
	return !s.Merge && s.Input.Reads(t.Partition)
}

// formKeys are those that change the form of an epoch's releases, and no number in them. An epoch's bytes
// do not depend on when a configuration was read again.
var formKeys = []string{"output.encoding", "output.privacy_every", "output.values"}

// unfitFor says why an open epoch can't go on with a stream's table, as resuming it would find out. Before,
// the table was old; nil: there was none.
func (c *shardTasks) unfitFor(old, s *config.Stream, opened *ledger.Entry) (why []string) {
	if old != nil {
		for _, x := range old.Differences(s) {
			if slices.Contains(formKeys, x.Key) {
				why = append(why,
					fmt.Sprintf(
						"%s: the bytes of epoch %d of task %s depend on it, which is open: stop and start the "+
							"process, or close the epoch first, with: streamdp epoch close %s",
						x, opened.Epoch, opened.Task(), failure.EpochArgs(opened.Task())))
			}
		}
	}
	t := opened.Task()
	// A task that runs may be writing its files: Open would take away what is half written.
	r := &epoch.Keeper{Feed: &input.Feed{Task: t}, D: &c.Shard,
		Store: state.OpenReader(c.Disk, c.TaskDir(t), c.Sealer(t))}
	m, _, err := r.Manifest(opened)
	if err != nil {
		return nil // the task halts, now as before
	}
	for _, key := range core.Changes(s, m) {
		why = append(why,
			fmt.Sprintf(
				"%s: the guarantee of epoch %d of task %s depends on it, which is open: close it first, with: "+
					"streamdp epoch close %s",
				key, m.Epoch, r.Task, failure.EpochArgs(r.Task)))
	}
	if err := c.Ledger.TakesLimit(s, m); err != nil {
		why = append(why, err.Error())
	}
	return why
}
