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

// unchanged reports whether a reload changes nothing.
func unchanged(r *httpapi.Reload) bool {
	return len(r.Added)+len(r.Removed)+len(r.Changed)+len(r.Process) == 0
}

// Reload reads the configuration again and, unless it is a dry run, applies it to the running daemon: streams are
// added, removed and changed. Either all changes are made or none.
//
// Reload opens, charges and closes no epoch by itself; see [httpapi.ReloadRequest]. It does not change a byte of an
// open epoch's releases. So it refuses a change that affects an open epoch's guarantee, every change outside of streams
// except that of the log level, a limit below what is already charged, and a stream whose estimator cannot be built.
// Afterwards tasks publish the same as if the process had been restarted with the new configuration, unless they would
// have halted. Reload waits until Run has begun the tasks.
//
// Errors: config.Faults, *httpapi.RefusedError with the difference, and errors of reading files. After these errors
// nothing has changed. After any other error the daemon ends.
func (d *Daemon) Reload(q httpapi.ReloadRequest) (*httpapi.Reload, error) {
	found, err := d.reload(q)
	if q.DryRun {
		return found, err
	}
	d.process.Metrics.Reloaded(err == nil, d.process.Now())
	if err != nil {
		d.process.Log.Warn("cannot reload the configuration: nothing was changed", "error", err.Error())
		return found, err
	}
	var changed []string
	for _, s := range found.Changed {
		changed = append(changed, s.Stream)
	}
	d.process.Log.Info("reloaded the configuration", "added", found.Added, "removed", found.Removed, "changed",
		changed, "opened", found.Opened, "unopened", found.Unopened)
	return found, nil
}

// errNoFile is the error of Reload in a daemon without Options.Load.
var errNoFile = errors.New("this daemon cannot reload its configuration")

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
		d.process.Metrics.ForgetPatterns() // remove the metrics of removed patterns
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

// unopened returns the tasks, streams and patterns that wait for a request to open an epoch; see [Daemon.Reload].
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

// release allows held tasks to open their epochs.
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

// compare returns the configuration that the daemon would run after a reload. It also returns how that differs from the
// present one, or why the reload is refused. Streams without a difference keep their pointers.
func (d *Daemon) compare(now, file *config.Config) (then *config.Config, found *httpapi.Reload) {
	found = &httpapi.Reload{Added: []string{}, Removed: []string{}, Changed: []httpapi.StreamChange{},
		Opened: []string{}, Unopened: []string{}, Refused: []string{}}
	refuse := func(format string, args ...any) {
		found.Refused = append(found.Refused, fmt.Sprintf(format, args...))
	}
	if now.Cluster != nil {
		refuse("instances that share tasks must have the same configuration: restart them one after the other")
	}
	found.Process = config.Differences(now, file)
	for _, x := range found.Process {
		if x.Key != "log.level" {
			refuse("%s: it takes effect only at a restart of the process", x)
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
		if ofPattern(s) { // Expand decides which of them stay
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

// tables compares the old and new tables of streams, records the differences in r, and returns the new tables. For a
// stream without a difference, it returns the old table.
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

// unfit returns why a running daemon cannot use the table s of a stream. old is the stream's table before; nil: it is
// new.
func (d *Daemon) unfit(old, s *config.Stream) (why []string) {
	if old == nil || !sameEstimator(old, s) {
		if _, err := dryrun.Describe(s); err != nil {
			return []string{err.Error()}
		}
	}
	for _, c := range d.shardsNow() {
		for _, t := range c.Ledger.Tasks() {
			opened := c.Ledger.Newest(t)
			// opened is nil if the task's only opening was taken back.
			if t.Stream != s.Name || opened == nil || opened.Kind != ledger.KindOpen {
				continue
			}
			if !reading(s, t) {
				if old != nil && reading(old, t) && old.Merge != s.Merge {
					why = append(why,
						fmt.Sprintf("merge: epoch %d of task %s is open: close it first: streamdp epoch close %s",
							opened.Epoch, t, failure.EpochArgs(t)))
				}
				continue
			}
			why = append(why, c.unfitFor(old, s, opened)...)
		}
	}
	return why
}

// sameEstimator reports whether two tables of a stream have the same estimator.
func sameEstimator(a, b *config.Stream) bool {
	p := a.Input.First()
	return slices.Equal(a.Canonical(p), b.Canonical(p))
}

// reading reports whether the task t belongs to the stream.
func reading(s *config.Stream, t core.Task) bool {
	if t.Partition == core.Merged {
		return s.Merge
	}
	return !s.Merge && s.Input.Reads(t.Partition)
}

// formKeys are the keys that change the form of an epoch's releases, but no number in them. A reload must not change
// them for an open epoch, because an epoch's bytes must not depend on the time of a reload.
var formKeys = []string{"output.encoding", "output.privacy_every", "output.values"}

// unfitFor returns why an open epoch cannot continue with the table s of a stream. It makes the checks that resuming
// the epoch would make. old is the stream's table before; nil: there was none.
func (c *shardTasks) unfitFor(old, s *config.Stream, opened *ledger.Entry) (why []string) {
	if old != nil {
		for _, x := range old.Differences(s) {
			if slices.Contains(formKeys, x.Key) {
				why = append(why,
					fmt.Sprintf(
						"%s: the bytes of releases of the open epoch %d of task %s depend on this key: restart the "+
							"process, or close the epoch first: streamdp epoch close %s",
						x, opened.Epoch, opened.Task(), failure.EpochArgs(opened.Task())))
			}
		}
	}
	t := opened.Task()
	// Use OpenReader: the task may be writing its files, and Open would remove half-written ones.
	r := &epoch.Keeper{Feed: &input.Feed{Task: t}, D: &c.Shard,
		Store: state.OpenReader(c.Disk, c.TaskDir(t), c.Sealer(t))}
	m, _, err := r.Manifest(opened)
	if err != nil {
		return nil // the task will halt anyway
	}
	for _, key := range core.Changes(s, m) {
		why = append(why,
			fmt.Sprintf(
				"%s: the guarantee of the open epoch %d of task %s depends on this key: close the epoch first: "+
					"streamdp epoch close %s",
				key, m.Epoch, r.Task, failure.EpochArgs(r.Task)))
	}
	if err := c.Ledger.TakesLimit(s, m); err != nil {
		why = append(why, err.Error())
	}
	return why
}
