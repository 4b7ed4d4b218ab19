package stream

import (
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/httpapi"
)

// served is the daemon as seen by its HTTP server and by the membership of its group. It implements [httpapi.Daemon]
// and [cluster.Runner].
type served struct{ *Daemon }

// Waiting returns the reasons why tasks may be missing, in words.
func (d served) Waiting() (missing []string) {
	if d.searching() {
		missing = append(missing, "the partitions of an input topic are not known yet")
	}
	if d.unsought() {
		missing = append(missing, "the topics that match a pattern are not known yet")
	}
	return missing
}

// Streams returns the names of the streams, in the order of the configuration.
func (d served) Streams() []string {
	names := []string{}
	for _, s := range d.process.Config().Streams {
		names = append(names, s.Name)
	}
	return names
}

// Shown returns all tasks.
func (d served) Shown() (all []httpapi.ShownTask) {
	for _, r := range d.tasks() {
		all = append(all, r)
	}
	return all
}

// Group returns the status of the instance's group, or nil if it shares no tasks.
func (d served) Group() *cluster.Status { return d.sharing.Status() }

// Patterns returns the status of the patterns, in their order.
func (d served) Patterns() (all []httpapi.PatternStatus) {
	c := d.process.Config()
	d.patterns.mu.Lock()
	defer d.patterns.mu.Unlock()
	for _, p := range c.Patterns {
		x := httpapi.PatternStatus{Pattern: p.Name, Topics: p.Input.Topics, Most: p.Input.MaxTopics}
		for _, s := range c.Streams {
			if s.Pattern() == p.Name {
				x.Taken++
			}
		}
		for _, r := range d.patterns.refused {
			if r.Pattern != p.Name {
				continue
			}
			if r.Beyond {
				x.Beyond++
			} else {
				x.Refused++
			}
			if len(x.Missing) < shownRefusals {
				x.Missing = append(x.Missing, r)
			}
		}
		all = append(all, x)
	}
	return all
}

// OpenShard makes the tasks of a shard that this instance has acquired.
func (d served) OpenShard(shard int, files *cluster.Shard) (cluster.Tasks, error) {
	c := newShardTasks(&d.process, files, "")
	c.mine = func(topic string, partition int) bool { return d.process.Cfg.Cluster.Shard(topic, partition) == shard }
	if err := c.OpenLedger(); err != nil {
		return nil, err
	}
	return sharedTasks{c, d.Daemon}, c.Prepare(nil)
}
