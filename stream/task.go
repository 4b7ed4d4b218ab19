package stream

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// The largest amounts that wait for a commit, and that wait for the broker.
const (
	maxOutbox      = 4 * maxPending
	maxOutboxBytes = 4 * maxPendingBytes
	quietSteps     = 10_000 // steps without a release after which a commit is due
	settleTime     = time.Millisecond
	capTick        = 10 * time.Millisecond
)

// runner runs one task. One goroutine fetches, one decodes, one owns everything that must
// be consistent, and one publishes.
type runner struct {
	*keeper

	requests chan request
	gone     chan struct{} // closed when the task has left the process
	status   atomic.Pointer[TaskStatus]
	ran      atomic.Bool  // an epoch ran, however shortly
	waiting  *request     // for which the owner ended; nil: none
	dead     *deadLetters // the last ones that were begun; nil: none
	census   *census
	watch    *watch // of steps by the clock, from one epoch to the next; nil: none runs

	hold  chan struct{} // see held; nil: nothing is held
	freed sync.Once

	// stoppedAt is where an epoch that does not run has stopped, by partition, to compute the
	// lag of a merged task.
	stoppedAt map[int]int64

	mu      sync.Mutex
	recent  []json.RawMessage // the last published releases
	charged struct {          // what the ledger says, as of so many lines
		lines   int
		newest  uint64 // the task's newest line
		touched int    // how many of the lines concern its sources
		epsilon float64
		events  []BudgetEvent
	}

	series    series
	recalling sync.Mutex
	recalled  bool // the series have what earlier processes published
}

func newRunner(d *home, s *config.Stream, partition int) (*runner, error) {
	t := core.Task{Stream: s.Name, Partition: partition}
	r := &runner{}
	k, err := newKeeper(d, t, func() { r.change(func(*TaskStatus) {}) })
	if err != nil {
		return nil, err
	}
	r.keeper = k
	k.showSchemas = func(newest []SchemaStatus) { r.change(func(s *TaskStatus) { s.Schemas = newest }) }
	r.status.Store(&TaskStatus{Stream: t.Stream, Partition: t.Partition})
	d.taskCount.Add(1)
	d.running.Add(1)
	r.series.parse = r.released
	r.series.bytes = func() int { return d.kept(seriesBytes) }
	r.s, r.requests, r.gone, r.census = s, make(chan request), make(chan struct{}), newCensus(s)
	r.release(s.Output)
	r.expect(r.readers())
	r.logStart.Store(-1)
	r.logEnd.Store(-1)
	r.status.Store(&TaskStatus{
		Stream: t.Stream, Partition: t.Partition, State: stateStarting, Mechanism: s.Mechanism(), Computes: core.Computes(s),
		Guarantee: []string{core.Promise(core.Unit(s), s.Privacy.Epsilon, s.Privacy.Delta)},
		Topic:     s.Input.Topic, Output: s.Output.Topic,
		Unit: core.Unit(s), Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Adjacency: s.Privacy.Adjacency.String(),
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta, logStart: -1,
	})
	d.metrics.begin(t)
	return r, nil
}

// held reports whether the task opens no epoch that no operator asked for. A task that begins
// because the configuration was read again is held, until an epoch of it runs.
func (r *runner) held() bool {
	if r.hold == nil {
		return false
	}
	select {
	case <-r.hold:
		return false
	default:
		return true
	}
}

// free ends that.
func (r *runner) free() {
	if r.hold != nil {
		r.freed.Do(func() { close(r.hold) })
	}
}

// leave takes down what the process has of a task that does not run any more.
func (r *runner) leave() {
	r.expect(0)
	r.d.taskCount.Add(-1)
	r.d.running.Add(-1)
	r.out.leave()
	r.d.lag.left(r.task)
	r.d.metrics.end(r.task)
	close(r.gone)
}

// readers returns how many partitions the task will read, as far as the configuration says. Of
// all partitions of a topic that are merged, an epoch knows the number.
func (r *runner) readers() int {
	if r.task.Partition == core.Merged {
		return max(len(r.s.Input.Partitions), 1)
	}
	return 1
}

// change replaces the status by a changed copy.
func (r *runner) change(f func(*TaskStatus)) {
	for {
		old := r.status.Load()
		s := *old
		f(&s)
		if r.status.CompareAndSwap(old, &s) {
			break
		}
	}
	if r.d.observe != nil {
		r.d.observe()
	}
}
