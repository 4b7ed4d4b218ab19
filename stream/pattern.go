package stream

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// shownRefusals limits how many refused topics of a pattern the status names.
const shownRefusals = 20

// patterns holds what the process knows about topics that match patterns.
type patterns struct {
	changed chan struct{} // receives when the patterns have changed
	mu      sync.Mutex
	sought  bool // the cluster's topics have been compared with the patterns
	refused []config.Refusal
	warned  map[config.Refusal]bool
	beyond  map[string]int // pattern → number of topics beyond its limit, at the last warning

	// read counts the reloads that changed patterns. looked is the value of read just before the last list of topics
	// was requested. Until looked has reached read, streams of newly found topics open no epoch by themselves.
	read, looked int
}

// expandKnown adds the streams of topics that are known before the cluster is asked: topics with an open epoch. A
// command names tasks; for a command, expandKnown adds the streams of these tasks and of all topics in the ledger.
func (d *Daemon) expandKnown(only []core.Task) {
	c := d.process.Config()
	if len(c.Patterns) == 0 {
		return
	}
	var t config.Topics
	for _, o := range only {
		if s := c.Named(o.Stream); s != nil && s.Pattern() != "" {
			t.Kept = append(t.Kept, config.Taken{Stream: s.Name, Topic: s.Input.Topic})
		}
	}
	t.Kept = append(t.Kept, d.own.Ledger.TakenTopics(only != nil)...)
	t.Written = d.own.Ledger.WrittenTopics()
	x, _ := c.Expand(t)
	d.process.Current.Store(x)
}

// seek looks for topics that match patterns until the context ends, and makes a stream for each. If a topic is deleted,
// its stream waits for it until the process ends. If the stream has an open epoch, it also waits after a restart.
func (d *Daemon) seek(ctx context.Context) error {
	look, wait := failure.NewRetrier(d.process.Log, d.process.Metrics.KafkaError, d.process.StateChanged),
		kafka.Backoff{Max: d.process.LookEvery}
	for {
		pause := make(<-chan time.Time) // without patterns, wait for a reload
		if len(d.process.Config().Patterns) > 0 {
			read := d.patterns.count()
			names, err := d.process.Client.Topics(ctx)
			if err != nil {
				if ctx.Err() == nil {
					look.Failing("topics", err)
				}
			} else if err = d.match(names, read); err == nil {
				look.Recovered("topics")
				wait = kafka.Backoff{Min: d.process.LookEvery, Max: d.process.LookEvery}
			} else if errors.Is(err, errStopping) {
				return nil
			} else if !errors.Is(err, errClosing) && !errors.Is(err, errOpening) {
				return err
			}
			pause = time.After(wait.Next())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.patterns.changed:
		case <-pause:
		}
	}
}

// count returns how often reloads changed patterns.
func (p *patterns) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read
}

// holds reports whether topics have not been listed since a reload changed patterns. Streams that the next list adds
// open no epoch by themselves.
func (p *patterns) holds() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read != p.looked
}

// open lets streams of changed patterns open epochs by themselves.
func (p *patterns) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked = p.read
}

// again records that a reload changed patterns, and returns a function that undoes this. open says that the streams of
// these patterns may open epochs by themselves.
func (p *patterns) again(open bool) (undo func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	read, looked, sought := p.read, p.looked, p.sought
	if p.read++; open {
		p.looked = p.read
	}
	p.sought = false
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.read, p.looked, p.sought = read, looked, sought
	}
}

// match makes streams for those topics in names that match a pattern. read is the value of count before the topics were
// listed.
func (d *Daemon) match(names []string, read int) error {
	var added []*config.Stream
	var refused []config.Refusal
	err := d.change(func(now *config.Config) (*config.Config, bool, error) {
		t := d.kept(now)
		for _, k := range d.own.Ledger.TakenTopics(true) {
			if slices.Contains(names, k.Topic) {
				t.Kept = append(t.Kept, k)
			}
		}
		t.Found = names
		d.patterns.mu.Lock()
		open := d.patterns.read == d.patterns.looked
		d.patterns.mu.Unlock()
		var next *config.Config
		next, refused = now.Expand(t)
		for _, s := range next.Streams {
			if !slices.Contains(now.Streams, s) {
				added = append(added, s)
			}
		}
		if len(added) == 0 && len(next.Streams) == len(now.Streams) {
			return now, open, nil
		}
		return next, open, nil
	})
	if err != nil {
		return err
	}
	d.patterns.mu.Lock()
	d.patterns.looked = max(d.patterns.looked, read)
	d.patterns.mu.Unlock()
	for _, s := range added {
		d.process.Log.Info("a topic matches a pattern: starting a stream for it", "pattern", s.Pattern(), "topic",
			s.Input.Topic, "stream", s.Name)
	}
	d.refusals(refused)
	return nil
}

// kept returns the topics that streams of patterns read now. The topics in the ledger come first, in the ledger's
// order.
func (d *Daemon) kept(now *config.Config) (t config.Topics) {
	all := map[config.Taken]bool{}
	for _, s := range now.Streams {
		if s.Pattern() != "" {
			all[config.Taken{Stream: s.Name, Topic: s.Input.Topic}] = true
		}
	}
	for _, k := range d.own.Ledger.TakenTopics(true) {
		if all[k] {
			t.Kept = append(t.Kept, k)
		}
	}
	for _, s := range now.Streams {
		if s.Pattern() != "" {
			t.Kept = append(t.Kept, config.Taken{Stream: s.Name, Topic: s.Input.Topic})
		}
	}
	t.Written = d.own.Ledger.WrittenTopics()
	return t
}

// refusals records the topics that match a pattern but are refused. It warns once of each, as long as the topic exists.
func (d *Daemon) refusals(refused []config.Refusal) {
	p := &d.patterns
	p.mu.Lock()
	p.refused = refused
	warned, beyond, first := map[config.Refusal]bool{}, map[string]int{}, map[string]string{}
	for _, r := range refused {
		switch {
		case r.Beyond:
			if beyond[r.Pattern]++; beyond[r.Pattern] == 1 {
				first[r.Pattern] = r.Topic
			}
		default:
			if warned[r] = true; p.warned[r] {
				continue
			}
			d.process.Log.Warn("a topic matches a pattern but gets no stream", "pattern", r.Pattern, "topic", r.Topic,
				"reason", r.Reason)
		}
	}
	for name, n := range beyond {
		if n > p.beyond[name] {
			d.process.Log.Warn("more topics match a pattern than allowed", "pattern", name, "not_taken", n, "first",
				first[name], "remedy", "input.max_topics")
		}
	}
	p.warned, p.beyond = warned, beyond
	was := p.sought
	p.sought = true
	p.mu.Unlock()
	for _, s := range (served{d}).Patterns() {
		for state, n := range map[string]int{"taken": s.Taken, "beyond": s.Beyond, "refused": s.Refused} {
			d.process.Metrics.PatternTopics(s.Pattern, state, n)
		}
	}
	if !was {
		d.process.StateChanged()
	}
}

// unsought reports whether the topics of some pattern are not known yet.
func (d *Daemon) unsought() bool {
	d.patterns.mu.Lock()
	defer d.patterns.mu.Unlock()
	return !d.patterns.sought && len(d.process.Config().Patterns) > 0
}
