package input

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/internal/notify"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// worker sums partitions for the coordinator of a merged stream on another instance. It has no keys of the epoch and
// keeps no lasting state. If another worker takes over, that worker reads the records again.
type worker struct {
	p     *SharedSummation
	r     *Feed
	shard int
	seal  *partSeal
	nonce [16]byte
	job   *mergeJob
	self  int // index of this instance in the team
	ctx   context.Context
	stop  context.CancelFunc
	last  time.Time // time of the coordinator's last record; guarded by p.mu

	mu     sync.Mutex
	step   uint64             // the last step that the coordinator has merged
	ends   map[uint64][]int64 // if steps are by the clock: known ends of steps that are not merged
	moved  notify.Broadcast   // sent when step or ends changes
	leaves []*workerPartition
}

// workerPartition is a partition that a worker sums.
type workerPartition struct {
	*PartitionSummer
	what    string // name of its fetches in messages
	room    int    // size in bytes of the last sum written
	written atomic.Uint64
	ended   atomic.Bool
}

// newMergeWorker returns a worker for an announced job. It returns nil if the job gives this instance no partition or
// does not match this instance's configuration.
func newMergeWorker(p *SharedSummation, shard int, seal *partSeal, nonce [16]byte, job *mergeJob, self int) *worker {
	s := p.Config().Stream(job.Stream)
	if s == nil || !slices.ContainsFunc(job.At, func(at mergePlace) bool { return at.Member == self }) {
		return nil
	}
	if !Shareable(s) || p.Shard(s) != shard {
		return nil
	}
	w := &worker{p: p, shard: shard, seal: seal, nonce: nonce, job: job, self: self, last: p.Now(), step: job.step,
		ends: map[uint64][]int64{}}
	w.ctx, w.stop = context.WithCancel(p.ctx)
	w.r = p.Feed(s)
	return w
}

// same reports whether a job gives this instance the same partitions as the worker's job.
func (w *worker) same(job *mergeJob) bool {
	return slices.EqualFunc(job.At, w.job.At,
		func(a, b mergePlace) bool { return (a.Member == w.self) == (b.Member == w.self) })
}

// heard records a message from the coordinator, and the last step that it has merged. The caller holds p.mu.
func (w *worker) heard(step uint64) {
	w.last = w.p.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advance(step)
}

func (w *worker) advance(step uint64) {
	w.step = max(w.step, step)
	for t := range w.ends {
		if t <= w.step {
			delete(w.ends, t)
		}
	}
	w.moved.Send()
}

// progress handles the coordinator's progress record.
func (w *worker) progress(step uint64, x *mergeProgress) {
	w.p.mu.Lock()
	w.last = w.p.Now()
	w.p.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, ends := range x.ends {
		if len(ends) == len(w.job.At) && uint64(len(w.ends)) <= 2*w.job.Ahead+2 {
			w.ends[step+1+uint64(i)] = ends
		}
	}
	w.advance(step)
}

// wait waits until the function `so` returns true.
func (w *worker) wait(ctx context.Context, so func() bool) error {
	return w.moved.Until(ctx, &w.mu, so)
}

// until is a boundarySource. It returns the boundaries that the coordinator has sent.
func (w *worker) until(ctx context.Context, step uint64) (x boundary.Boundary, err error) {
	err = w.wait(ctx, func() bool {
		x.Step, x.Ends = step, w.ends[step]
		return x.Ends != nil
	})
	return x, err
}

// run sums the partitions until the job ends.
func (w *worker) run() {
	defer w.stop()
	if err := w.work(); err != nil && w.ctx.Err() == nil {
		w.r.Log.Warn("cannot sum partitions of a merged stream for another instance, which reads them itself", "error",
			err.Error())
		<-w.ctx.Done() // stay, because the coordinator would announce the same job again
	}
}

func (w *worker) work() error {
	m, err := core.ParseManifest(w.job.Manifest)
	if err != nil {
		return err
	}
	c, err := w.core(m)
	if err != nil {
		return err
	}
	// Wait for the registry, as the owner's task does. Meanwhile the coordinator reads the partitions itself.
	if err := w.r.ReadSchemas(w.ctx, false); err != nil {
		return err
	}
	next := make([]int64, len(w.job.At))
	for i, at := range w.job.At {
		next[i] = at.position.Next
	}
	leaves, err := c.LeavesFrom(w.job.step, next)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(w.ctx)
	defer stop()
	wg.Go(func() { w.r.LookAtSchemas(ctx) })
	n := 0
	for i, at := range w.job.At {
		if at.Member != w.self {
			continue
		}
		// At most merge_ahead further sums wait to be written.
		x, err := NewPartitionSummer(c, i, leaves[i], at.position, w.r.S.MergeAhead)
		if err != nil {
			return err
		}
		if w.r.S.Step.Clock() > 0 {
			x.until = w.until
		}
		leaf := &workerPartition{PartitionSummer: x, what: fetchOf(m.Numbers()[i])}
		leaf.written.Store(w.job.step)
		w.mu.Lock()
		w.leaves = append(w.leaves, leaf)
		w.mu.Unlock()
		n++
	}
	w.r.Expect(n)
	defer w.r.Expect(0)
	w.r.Log.Info("summing partitions of a merged stream for another instance", "epoch", m.Epoch, "partitions", n,
		"step", w.job.step)
	for _, leaf := range w.leaves {
		failed := make(chan error, 2)
		src := m.Source
		src.Partition = m.Numbers()[leaf.index]
		reader, err := w.r.OpenInput(src, MergedBytes(w.r.FetchBytes, n), leaf.position)
		if err != nil {
			return err
		}
		if err := leaf.from(w.r, m, c, reader, src.Partition, failed); err != nil {
			reader.Close()
			return err
		}
		wg.Go(func() {
			defer reader.Close()
			w.sum(ctx, leaf, failed)
		})
	}
	w.beat(ctx)
	return nil
}

// core returns a core that makes the leaves of an epoch. The core has none of the epoch's keys.
func (w *worker) core(m *core.Manifest) (*core.Core, error) {
	if m.KeyID != w.p.KeyID || m.Stream != w.r.S.Name || len(m.Parts) != len(w.job.At) {
		return nil, errPartial
	}
	if changes := core.Changes(w.r.S, m); changes != nil {
		return nil, failure.Haltf(failure.Configuration, "the other instance has a different configuration: %s",
			changes[0])
	}
	over := w.r.S.Over(m.Numbers())
	mech, err := core.NewMechanism(over, m.Plan, nil)
	if err != nil {
		return nil, err
	}
	return core.New(over, m, w.job.Manifest, mech, nil)
}

// sum writes the sums of a partition until the context ends or the partition cannot be read.
func (w *worker) sum(ctx context.Context, leaf *workerPartition, failed chan error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		if err := leaf.readHere(ctx); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-failed:
			leaf.ended.Store(true)
			w.r.Log.Warn("cannot read a partition of a merged stream for another instance, which reads it itself",
				"partition", leaf.what, "error", err.Error())
			return
		case s := <-leaf.Sums:
			if err := w.put(ctx, leaf, s); err != nil {
				if leaf.ended.Store(true); ctx.Err() == nil {
					w.r.Log.Warn("cannot write the sum of a partition for another instance, which reads it itself",
						"partition", leaf.what, "error", err.Error())
				}
				return
			}
		}
	}
}

// put writes the sum of a step as soon as the coordinator's progress allows it.
func (w *worker) put(ctx context.Context, leaf *workerPartition, s StepSum) error {
	if err := w.wait(ctx, func() bool { return s.Step <= w.step+w.job.Ahead }); err != nil {
		return err
	}
	x := mergeSum{position: s.position, Work: s.Work}
	content, err := s.sum.AppendBinary(x.Begin(partRoom(leaf.room)))
	if err != nil {
		return err
	}
	leaf.room = len(content)
	if err := s.sum.Reset(); err != nil {
		return err
	}
	leaf.Free <- s.sum // never blocks: it has room for all sums
	records, err := w.seal.pieces(partHeader{Kind: partSum, Job: w.nonce, Partition: uint32(leaf.index), Step: s.Step},
		content)
	if err != nil {
		return err
	}
	w.p.write(ctx, w.shard, records, func() { leaf.written.Store(s.Step) })
	return nil
}

// beat reports the worker's progress until the context ends.
func (w *worker) beat(ctx context.Context) {
	tick := time.NewTicker(w.p.times.Beat)
	defer tick.Stop()
	for {
		a := mergeAlive{generation: w.job.Generation, member: w.self}
		for _, leaf := range w.leaves {
			if !leaf.ended.Load() && !w.r.IsFailing(leaf.what) {
				a.at = append(a.at,
					mergeReached{leaf.index, leaf.written.Load(), leaf.LogStart.Load(), leaf.LogEnd.Load()})
			}
		}
		if record, err := w.seal.Seal(partHeader{Kind: partAlive, Job: w.nonce, Pieces: 1}, a.Encode()); err == nil &&
			len(a.at) > 0 {
			w.p.write(ctx, w.shard, [][]byte{record}, func() {})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
