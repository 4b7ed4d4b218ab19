package monitor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// LagEvery is the interval at which changed offsets are committed to the group. lagAgain is the interval at which all
// offsets are committed: a broker forgets a group that commits nothing for a week, and another instance may have
// committed an older offset after it gave a partition away. lagLast is the maximum time of the last commit, when the
// process ends.
const (
	LagEvery = 5 * time.Second
	lagAgain = time.Minute
	lagLast  = 2 * time.Second
)

// LagReport commits the positions of this process's tasks to a consumer group, for tools that show the lag of groups.
// These positions are already durable in checkpoints. This program never reads the committed offsets, and no task waits
// for a commit: a commit that fails is repeated later with the offsets that are current then. A nil LagReport does
// nothing.
type LagReport struct {
	*failure.Retrier
	client       *kafka.Client
	group        string
	every, again time.Duration
	Soon         chan struct{} // signals that tasks have left, so that their last offsets are committed soon

	mu   sync.Mutex
	At   map[lagKey]map[core.Task]int64 // offset at which each task would resume after a restart
	Last map[lagKey]int64               // the same for partitions that no task of this process reads any more
	Sent map[lagKey]int64
}

// lagKey is an input partition.
type lagKey struct {
	Topic     string
	Partition int
}

// NewLagReport returns a report that commits to a group once [LagReport.Start] is called.
func NewLagReport(client *kafka.Client, group string, every time.Duration, r *failure.Retrier) *LagReport {
	return &LagReport{
		Retrier: r, client: client, group: group, every: every, again: lagAgain,
		Soon: make(chan struct{}, 1), At: map[lagKey]map[core.Task]int64{}, Last: map[lagKey]int64{},
		Sent: map[lagKey]int64{},
	}
}

// Reached records the positions of a task's checkpoint, which must be durable.
func (g *LagReport) Reached(t core.Task, m *core.Manifest, cp *state.Checkpoint) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, p := range cp.All() {
		key := lagKey{m.Source.Topic, m.Source.Partition}
		if cp.Parts != nil {
			key.Partition = cp.Parts[i].Partition
		}
		if g.At[key] == nil {
			g.At[key] = map[core.Task]int64{}
			delete(g.Last, key)
		}
		g.At[key][t] = p.Position.Next
	}
}

// Left records that a task has stopped reading: its epoch is closed, or the task has left the process. If no other task
// here reads a partition, the report keeps the task's last offset for it.
func (g *LagReport) Left(t core.Task) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, tasks := range g.At {
		next, reads := tasks[t]
		if !reads {
			continue
		}
		if delete(tasks, t); len(tasks) == 0 {
			delete(g.At, key)
			g.Last[key] = next
			failure.Signal(g.Soon)
		}
	}
}

// Start begins to commit in the background. The returned function ends these commits and commits the remaining offsets.
func (g *LagReport) Start() (end func()) {
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

func (g *LagReport) run(ctx context.Context) {
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
		case <-g.Soon:
		}
		g.commit(ctx, again)
	}
}

// commit commits the offsets that changed or, if all is true, all offsets.
func (g *LagReport) commit(ctx context.Context, all bool) {
	list := g.take(all)
	if len(list) == 0 {
		return
	}
	err := g.client.CommitOffsets(ctx, g.group, list)
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the last commit follows
	}
	if err != nil {
		g.Failing("commit to the consumer group", err)
		return
	}
	g.Recovered("commit to the consumer group")
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, o := range list {
		if key := (lagKey{o.Topic, int(o.Partition)}); g.At[key] != nil {
			g.Sent[key] = o.Next
		}
	}
}

// take returns the offsets to commit, ordered by topic and partition. If several tasks read a partition, it returns the
// smallest of their offsets. If no task reads a partition any more, take returns its last offset only once, because
// another instance may read the partition by now.
func (g *LagReport) take(all bool) (list []kafka.GroupOffset) {
	g.mu.Lock()
	defer g.mu.Unlock()
	add := func(key lagKey, next int64) {
		list = append(list, kafka.GroupOffset{Topic: key.Topic, Partition: int32(key.Partition), Next: next})
	}
	for key, tasks := range g.At {
		least := int64(-1)
		for _, next := range tasks {
			if least < 0 || next < least {
				least = next
			}
		}
		if was, known := g.Sent[key]; all || !known || was != least {
			add(key, least)
		}
	}
	for key, next := range g.Last {
		if was, known := g.Sent[key]; !known || was != next {
			add(key, next)
		}
		delete(g.Sent, key)
	}
	clear(g.Last)
	slices.SortFunc(list, func(a, b kafka.GroupOffset) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return list
}
