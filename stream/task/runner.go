// Package task runs one task. One goroutine owns the task's state: it applies records, closes steps, begins commits and
// answers requests. Other goroutines fetch, write commits and publish. A release is published only after the commit
// that holds it is durable.
package task

import (
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/monitor"
)

// Runner runs one task. It has four goroutines: one fetches records, one decodes them, one owns all state that must be
// consistent, and one publishes.
type Runner struct {
	*epoch.Keeper

	requests chan Request
	gone     chan struct{} // closed when the task has left the process
	shown    atomic.Pointer[monitor.TaskStatus]
	ran      atomic.Bool  // an epoch has run, even for a moment
	waiting  *Request     // the request that ended the epoch; nil: none
	dead     *deadLetters // writer of dead letters for the newest epoch; nil: none
	validity *monitor.ValidityCheck
	sampler  *boundary.Sampler // samples log ends for steps by the clock, across epochs; nil: not running

	hold  chan struct{} // closed when the task may open epochs by itself, see Held; nil: always
	freed sync.Once

	// stoppedAt is the offset at which the last epoch stopped in each partition, while none is running. The lag of a
	// merged task is computed from it.
	stoppedAt map[int]int64

	mu     sync.Mutex
	recent []json.RawMessage // the last published releases

	series    monitor.Series
	recalling sync.Mutex
	recalled  bool // the series include releases of earlier processes
}

// NewRunner returns the runner of a stream's task in a shard. Status and metrics show the task at once. Run runs it,
// and Leave removes it.
// Errors: those of [epoch.NewKeeper].
func NewRunner(d *epoch.Shard, s *config.Stream, partition int) (*Runner, error) {
	t := core.Task{Stream: s.Name, Partition: partition}
	r := &Runner{}
	k, err := epoch.NewKeeper(d, t, func() { r.change(func(*monitor.TaskStatus) {}) })
	if err != nil {
		return nil, err
	}
	r.Keeper = k
	k.ShowSchemas = func(newest []connect.SchemaStatus) { r.change(func(s *monitor.TaskStatus) { s.Schemas = newest }) }
	r.shown.Store(&monitor.TaskStatus{Stream: t.Stream, Partition: t.Partition})
	d.TaskCount.Add(1)
	d.Running.Add(1)
	r.series.Parse = r.released
	r.series.Bytes = func() int { return d.Kept(monitor.SeriesBytes) }
	r.S, r.requests, r.gone, r.validity = s, make(chan Request), make(chan struct{}), monitor.NewValidityCheck(s)
	r.Release(s.Output)
	r.Expect(r.readers())
	r.LogStart.Store(-1)
	r.LogEnd.Store(-1)
	r.shown.Store(&monitor.TaskStatus{
		Stream: t.Stream, Partition: t.Partition, State: monitor.StateStarting, Mechanism: s.Mechanism(),
		Computes:  core.Computes(s),
		Guarantee: []string{core.Promise(core.Unit(s), s.Privacy.Epsilon, s.Privacy.Delta)},
		Topic:     s.Input.Topic, Output: s.Output.Topic,
		Unit: core.Unit(s), Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Adjacency: s.Privacy.Adjacency.String(),
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta, LogStart: -1,
	})
	d.Metrics.Begin(t)
	return r, nil
}

// Held reports whether the task opens an epoch only when an operator asks for one. A task that a reload of the
// configuration starts is held until one of its epochs runs.
func (r *Runner) Held() bool {
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

// Hold holds the task until Free is called; see Held. It must be called before Run.
func (r *Runner) Hold() { r.hold = make(chan struct{}) }

// Free lets a held task open epochs by itself.
func (r *Runner) Free() {
	if r.hold != nil {
		r.freed.Do(func() { close(r.hold) })
	}
}

// Leave removes the task from the process's status, metrics and output partitions. Run must have returned.
func (r *Runner) Leave() {
	r.Expect(0)
	r.D.TaskCount.Add(-1)
	r.D.Running.Add(-1)
	r.Out.Leave()
	r.D.Lag.Left(r.Task)
	r.D.Metrics.End(r.Task)
	close(r.gone)
}

// Gone is closed by Leave. After that, requests to the task are not answered.
func (r *Runner) Gone() <-chan struct{} { return r.gone }

// readers returns how many partitions the task will read according to the configuration. With `partition = "all"` the
// number is unknown before the epoch, and readers returns 1.
func (r *Runner) readers() int {
	if r.Task.Partition == core.Merged {
		return max(len(r.S.Input.Partitions), 1)
	}
	return 1
}

// Named returns the runner's task.
func (r *Runner) Named() core.Task { return r.Task }
