package stream

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// How often offsets that changed are committed to a group, and how often all are, because a
// broker forgets a group that commits nothing for a week, and another instance may have
// committed an older offset after it gave a partition away. At the end the last ones have
// lagLast.
const (
	lagEvery = 5 * time.Second
	lagAgain = time.Minute
	lagLast  = 2 * time.Second
)

// lagReport commits to a consumer group how far the tasks of this process have read, for tools
// that show the lag of groups. What it commits is durable already. Nothing reads it, and no
// task waits for it: a commit that fails is tried again, with offsets of then. A nil lagReport
// does nothing.
type lagReport struct {
	*repeater
	client       *kafka.Client
	group        string
	every, again time.Duration
	soon         chan struct{} // tasks have gone, and their last offsets are to be committed

	mu   sync.Mutex
	at   map[lagKey]map[core.Task]int64 // where each task begins when it starts again
	last map[lagKey]int64               // likewise, of partitions that no task here reads any more
	sent map[lagKey]int64
}

// lagKey is an input partition.
type lagKey struct {
	topic     string
	partition int
}

func newLagReport(client *kafka.Client, group string, every time.Duration, r *repeater) *lagReport {
	return &lagReport{
		repeater: r, client: client, group: group, every: every, again: lagAgain,
		soon: make(chan struct{}, 1), at: map[lagKey]map[core.Task]int64{}, last: map[lagKey]int64{}, sent: map[lagKey]int64{},
	}
}

// reached notes the positions of a task's checkpoint, which is durable.
func (g *lagReport) reached(t core.Task, m *core.Manifest, cp *checkpoint) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, p := range cp.all() {
		key := lagKey{m.Source.Topic, m.Source.Partition}
		if cp.parts != nil {
			key.partition = cp.parts[i].partition
		}
		if g.at[key] == nil {
			g.at[key] = map[core.Task]int64{}
			delete(g.last, key)
		}
		g.at[key][t] = p.position.Next
	}
}

// left notes that a task reads no more: its epoch is closed, or the task has left the process.
// A partition that no other task here reads keeps the task's last offset.
func (g *lagReport) left(t core.Task) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, tasks := range g.at {
		next, reads := tasks[t]
		if !reads {
			continue
		}
		if delete(tasks, t); len(tasks) == 0 {
			delete(g.at, key)
			g.last[key] = next
			signal(g.soon)
		}
	}
}

// start commits in the background until end is called, which commits what is left.
func (g *lagReport) start() (end func()) {
	if g == nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.run(ctx)
	}()
	return func() {
		stop()
		<-done
		last, cancel := context.WithTimeout(context.Background(), lagLast)
		defer cancel()
		g.commit(last, false)
	}
}

func (g *lagReport) run(ctx context.Context) {
	changed, all := time.NewTicker(g.every), time.NewTicker(g.again)
	defer changed.Stop()
	defer all.Stop()
	for {
		again := false
		select {
		case <-ctx.Done():
			return
		case <-changed.C:
		case <-all.C:
			again = true
		case <-g.soon:
		}
		g.commit(ctx, again)
	}
}

// commit commits the offsets that changed, or all.
func (g *lagReport) commit(ctx context.Context, all bool) {
	list := g.take(all)
	if len(list) == 0 {
		return
	}
	err := g.client.CommitOffsets(ctx, g.group, list)
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the last commit is still to come
	}
	if err != nil {
		g.troubled("commit to the consumer group", err)
		return
	}
	g.untroubled("commit to the consumer group")
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range list {
		if key := (lagKey{o.Topic, int(o.Partition)}); g.at[key] != nil {
			g.sent[key] = o.Next
		}
	}
}

// take returns the offsets to commit, in order of topics and partitions. Of several tasks that
// read a partition it is the least. The last offset of a partition that nobody reads any more
// is taken once: another instance may read it by now.
func (g *lagReport) take(all bool) (list []kafka.GroupOffset) {
	g.mu.Lock()
	defer g.mu.Unlock()
	add := func(key lagKey, next int64) {
		list = append(list, kafka.GroupOffset{Topic: key.topic, Partition: int32(key.partition), Next: next})
	}
	for key, tasks := range g.at {
		least := int64(-1)
		for _, next := range tasks {
			if least < 0 || next < least {
				least = next
			}
		}
		if was, known := g.sent[key]; all || !known || was != least {
			add(key, least)
		}
	}
	for key, next := range g.last {
		if was, known := g.sent[key]; !known || was != next {
			add(key, next)
		}
		delete(g.sent, key)
	}
	clear(g.last)
	slices.SortFunc(list, func(a, b kafka.GroupOffset) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return list
}
