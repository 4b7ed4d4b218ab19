package task

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
)

// The largest amounts that wait for a commit, and that wait for the broker.
const (
	maxOutbox      = 4 * epoch.MaxPending
	maxOutboxBytes = 4 * epoch.MaxPendingBytes
	quietSteps     = 10_000 // steps without a release after which a commit is due
	settleTime     = time.Millisecond
	capTick        = 10 * time.Millisecond
)

// Runner runs one task. One goroutine fetches, one decodes, one owns everything that must
// be consistent, and one publishes.
type Runner struct {
	*epoch.Keeper

	Requests chan Request
	Gone     chan struct{} // closed when the task has left the process
	Shown    atomic.Pointer[monitor.TaskStatus]
	Ran      atomic.Bool  // an epoch ran, however shortly
	waiting  *Request     // for which the owner ended; nil: none
	dead     *deadLetters // the last ones that were begun; nil: none
	census   *monitor.ValidityCheck
	watch    *boundary.Sampler // of steps by the clock, from one epoch to the next; nil: none runs

	Hold  chan struct{} // see held; nil: nothing is held
	freed sync.Once

	// stoppedAt is where an epoch that does not run has stopped, by partition, to compute the
	// Lag of a merged task.
	stoppedAt map[int]int64

	mu      sync.Mutex
	recent  []json.RawMessage // the last published releases
	charged struct {          // what the ledger says, as of so many lines
		lines   int
		newest  uint64 // the task's newest line
		touched int    // how many of the lines concern its sources
		epsilon float64
		events  []ledger.BudgetEvent
	}

	series    monitor.Series
	recalling sync.Mutex
	recalled  bool // the series have what earlier processes published
}

func NewRunner(d *epoch.Shard, s *config.Stream, partition int) (*Runner, error) {
	t := core.Task{Stream: s.Name, Partition: partition}
	r := &Runner{}
	k, err := epoch.NewKeeper(d, t, func() { r.change(func(*monitor.TaskStatus) {}) })
	if err != nil {
		return nil, err
	}
	r.Keeper = k
	k.ShowSchemas = func(newest []connect.SchemaStatus) { r.change(func(s *monitor.TaskStatus) { s.Schemas = newest }) }
	r.Shown.Store(&monitor.TaskStatus{Stream: t.Stream, Partition: t.Partition})
	d.TaskCount.Add(1)
	d.Running.Add(1)
	r.series.Parse = r.released
	r.series.Bytes = func() int { return d.Kept(monitor.SeriesBytes) }
	r.S, r.Requests, r.Gone, r.census = s, make(chan Request), make(chan struct{}), monitor.NewValidityCheck(s)
	r.Release(s.Output)
	r.Expect(r.readers())
	r.LogStart.Store(-1)
	r.LogEnd.Store(-1)
	r.Shown.Store(&monitor.TaskStatus{
		Stream: t.Stream, Partition: t.Partition, State: monitor.StateStarting, Mechanism: s.Mechanism(), Computes: core.Computes(s),
		Guarantee: []string{core.Promise(core.Unit(s), s.Privacy.Epsilon, s.Privacy.Delta)},
		Topic:     s.Input.Topic, Output: s.Output.Topic,
		Unit: core.Unit(s), Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Adjacency: s.Privacy.Adjacency.String(),
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta, LogStart: -1,
	})
	d.Metrics.Begin(t)
	return r, nil
}

// Held reports whether the task opens no epoch that no operator asked for. A task that begins
// because the configuration was read again is held, until an epoch of it runs.
func (r *Runner) Held() bool {
	if r.Hold == nil {
		return false
	}
	select {
	case <-r.Hold:
		return false
	default:
		return true
	}
}

// Free ends that.
func (r *Runner) Free() {
	if r.Hold != nil {
		r.freed.Do(func() { close(r.Hold) })
	}
}

// Leave takes down what the process has of a task that does not run any more.
func (r *Runner) Leave() {
	r.Expect(0)
	r.D.TaskCount.Add(-1)
	r.D.Running.Add(-1)
	r.Out.Leave()
	r.D.Lag.Left(r.Task)
	r.D.Metrics.End(r.Task)
	close(r.Gone)
}

// readers returns how many partitions the task will read, as far as the configuration says. Of
// all partitions of a topic that are merged, an epoch knows the number.
func (r *Runner) readers() int {
	if r.Task.Partition == core.Merged {
		return max(len(r.S.Input.Partitions), 1)
	}
	return 1
}

// change replaces the status by a changed copy.
func (r *Runner) change(f func(*monitor.TaskStatus)) {
	for {
		old := r.Shown.Load()
		s := *old
		f(&s)
		if r.Shown.CompareAndSwap(old, &s) {
			break
		}
	}
	if r.D.Observe != nil {
		r.D.Observe()
	}
}
