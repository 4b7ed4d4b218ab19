package stream

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/task"
)

// streamTasks are the tasks of one stream in a shard. They begin and end together. A stream that changes while the
// daemon runs gets new streamTasks, over the same files.
type streamTasks struct {
	c *shardTasks
	s *config.Stream
	// searching says that the stream reads every partition of its topic, and that these partitions are not known yet.
	searching atomic.Bool
	runners   []*task.Runner // guarded by shardTasks.growing
	// holds says that new tasks are held; see [task.Runner.Hold]. Tasks in exempt, and tasks of partitions added to the
	// topic later, are not held.
	holds  atomic.Bool
	exempt []core.Task

	begin func(func(context.Context) error) // the function given to [shardTasks.start]
	over  context.Context                   // ends when the tasks should end
	stop  context.CancelFunc
	parts sync.WaitGroup // running goroutines
}

func newStreamTasks(c *shardTasks, s *config.Stream) *streamTasks {
	q := &streamTasks{c: c, s: s}
	q.over, q.stop = context.WithCancel(context.Background())
	return q
}

// prepare makes the runners of the tasks that are known. If only is not nil, it makes only those in it.
func (q *streamTasks) prepare(only []core.Task) error {
	q.searching.Store(only == nil && q.s.Input.All() && !q.s.Merge)
	for _, p := range q.c.partitionsAtStart(q.s, only) {
		if only != nil && !slices.Contains(only, core.Task{Stream: q.s.Name, Partition: p}) {
			continue
		}
		if err := q.add(p, false); err != nil {
			return err
		}
	}
	return nil
}

// add makes the runner of a partition, unless the partition belongs to another shard. added says that the topic had
// fewer partitions before.
func (q *streamTasks) add(partition int, added bool) error {
	if !q.c.has(q.s, partition) {
		return nil
	}
	r, err := task.NewRunner(&q.c.Shard, q.s, partition)
	if err != nil {
		return err
	}
	if q.holds.Load() && !added && !slices.Contains(q.exempt, r.Task) {
		r.Hold()
	}
	q.c.growing.Lock()
	q.runners = append(q.runners, r)
	q.c.growing.Unlock()
	return nil
}

// tasks returns the present runners.
func (q *streamTasks) tasks() []*task.Runner {
	q.c.growing.Lock()
	defer q.c.growing.Unlock()
	return slices.Clone(q.runners)
}

// start starts the tasks and, if the stream reads every partition, the search for more of them.
func (q *streamTasks) start() {
	q.begin = q.c.run
	for _, r := range q.tasks() {
		q.run(r.Run)
	}
	if q.searching.Load() {
		q.run(q.follow)
	}
}

// run runs a function in a goroutine, until the tasks of the stream or of its shard end.
func (q *streamTasks) run(f func(context.Context) error) {
	q.parts.Add(1)
	q.begin(func(ctx context.Context) error {
		defer q.parts.Done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(q.over, cancel)()
		return f(ctx)
	})
}

// end ends the tasks: they commit and publish all closed steps, as at the end of the process. It returns when no task
// runs and, if brokers answer, no message of theirs is in flight.
func (q *streamTasks) end() {
	q.stop()
	q.parts.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), epoch.ShutdownTime)
	defer cancel()
	for _, r := range q.tasks() {
		_ = r.Out.Partition.WaitInFlight(ctx, r.Task) // its error is the context's
		r.Leave()
	}
}
