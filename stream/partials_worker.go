package stream

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/stream/core"
)

// mergeWorker sums partitions for the root of a merged stream on another instance. It has no
// keys of the epoch and keeps nothing: what it has read is read again by whoever comes after it.
type mergeWorker struct {
	p     *partials
	r     *feed
	shard int
	seal  *partSeal
	nonce [16]byte
	job   *mergeJob
	self  int // this instance's place in the team
	ctx   context.Context
	stop  context.CancelFunc
	last  time.Time // when the root was heard last; under partials.mu

	mu     sync.Mutex
	step   uint64             // the last one that the root has merged
	ends   map[uint64][]int64 // by the clock: of steps that are not merged
	moved  chan struct{}      // closed when one of them changes
	leaves []*workedLeaf
}

// workedLeaf is a partition that a worker sums.
type workedLeaf struct {
	*leafReader
	what    string // its fetches, in words
	room    int    // bytes of the last sum that was written
	written atomic.Uint64
	ended   atomic.Bool
}

// newMergeWorker returns a worker for a job that was announced, nil where this instance has none of
// its partitions, or another configuration.
func newMergeWorker(p *partials, shard int, seal *partSeal, nonce [16]byte, job *mergeJob, self int) *mergeWorker {
	s := p.config().Stream(job.stream)
	if s == nil || !slices.ContainsFunc(job.at, func(at mergePlace) bool { return at.member == self }) {
		return nil
	}
	if !shareable(s) || p.shard(s) != shard {
		return nil
	}
	w := &mergeWorker{p: p, shard: shard, seal: seal, nonce: nonce, job: job, self: self, last: p.now(), step: job.step, ends: map[uint64][]int64{}, moved: make(chan struct{})}
	w.ctx, w.stop = context.WithCancel(p.ctx)
	w.r = p.feed(s)
	return w
}

// same reports whether a job asks of this instance what the worker does.
func (w *mergeWorker) same(job *mergeJob) bool {
	return slices.EqualFunc(job.at, w.job.at, func(a, b mergePlace) bool { return (a.member == w.self) == (b.member == w.self) })
}

// heard takes note of the last step that the root has merged. partials.mu is held.
func (w *mergeWorker) heard(step uint64) {
	w.last = w.p.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advance(step)
}

func (w *mergeWorker) advance(step uint64) {
	w.step = max(w.step, step)
	for t := range w.ends {
		if t <= w.step {
			delete(w.ends, t)
		}
	}
	close(w.moved)
	w.moved = make(chan struct{})
}

// progress takes the root's word of how far it is.
func (w *mergeWorker) progress(step uint64, x *mergeProgress) {
	w.p.mu.Lock()
	w.last = w.p.now()
	w.p.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, ends := range x.ends {
		if len(ends) == len(w.job.at) && uint64(len(w.ends)) <= 2*w.job.ahead+2 {
			w.ends[step+1+uint64(i)] = ends
		}
	}
	w.advance(step)
}

// wait waits until something is so.
func (w *mergeWorker) wait(ctx context.Context, so func() bool) error {
	for {
		w.mu.Lock()
		done, moved := so(), w.moved
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

// until is the ender of steps whose boundaries the root has told.
func (w *mergeWorker) until(ctx context.Context, step uint64) (x boundary, err error) {
	err = w.wait(ctx, func() bool {
		x.step, x.ends = step, w.ends[step]
		return x.ends != nil
	})
	return x, err
}

// run sums the partitions until the job ends.
func (w *mergeWorker) run() {
	defer w.stop()
	if err := w.work(); err != nil && w.ctx.Err() == nil {
		w.r.log.Warn("this instance can't sum partitions of a merged stream for another one, which reads them itself", "error", err.Error())
		<-w.ctx.Done() // the root announces it again, and nothing has changed
	}
}

func (w *mergeWorker) work() error {
	m, err := core.ParseManifest(w.job.manifest)
	if err != nil {
		return err
	}
	c, err := w.core(m)
	if err != nil {
		return err
	}
	// As where the task runs: the root reads the partitions itself while the registry is away.
	if err := w.r.readSchemas(w.ctx, false); err != nil {
		return err
	}
	next := make([]int64, len(w.job.at))
	for i, at := range w.job.at {
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
	wg.Go(func() { w.r.lookAtSchemas(ctx) })
	n := 0
	for i, at := range w.job.at {
		if at.member != w.self {
			continue
		}
		x, err := newLeafReader(c, i, leaves[i], at.position, w.r.s.MergeAhead) // so many more may wait to be written
		if err != nil {
			return err
		}
		if w.r.s.Step.Clock() > 0 {
			x.until = w.until
		}
		leaf := &workedLeaf{leafReader: x, what: fetchOf(m.Numbers()[i])}
		leaf.written.Store(w.job.step)
		w.mu.Lock()
		w.leaves = append(w.leaves, leaf)
		w.mu.Unlock()
		n++
	}
	w.r.expect(n)
	defer w.r.expect(0)
	w.r.log.Info("summing partitions of a merged stream for another instance", "epoch", m.Epoch, "partitions", n, "step", w.job.step)
	for _, leaf := range w.leaves {
		failed := make(chan error, 2)
		src := m.Source
		src.Partition = m.Numbers()[leaf.index]
		reader, err := w.r.openInput(src, mergedBytes(w.r.fetchBytes, n), leaf.position)
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

// core returns what makes the leaves of an epoch. It has none of the epoch's keys.
func (w *mergeWorker) core(m *core.Manifest) (*core.Core, error) {
	if id := credentials.KeyID(w.p.master); m.KeyID != id || m.Stream != w.r.s.Name || len(m.Parts) != len(w.job.at) {
		return nil, errPartial
	}
	if changes := changed(w.r.s, m); changes != nil {
		return nil, halted(haltConfiguration, "its configuration is another one: %s", changes[0])
	}
	over := w.r.s.Over(m.Numbers())
	mech, err := core.NewMechanism(over, m.Plan, nil)
	if err != nil {
		return nil, err
	}
	return core.New(over, m, w.job.manifest, mech, nil)
}

// sum writes the sums of a partition until the context ends, or the partition can't be read.
func (w *mergeWorker) sum(ctx context.Context, leaf *workedLeaf, failed chan error) {
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
			w.r.log.Warn("a partition of a merged stream can't be read for another instance, which reads it itself", "partition", leaf.what, "error", err.Error())
			return
		case s := <-leaf.sums:
			if err := w.put(ctx, leaf, s); err != nil {
				if leaf.ended.Store(true); ctx.Err() == nil {
					w.r.log.Warn("the sum of a partition can't be written for another instance, which reads it itself", "partition", leaf.what, "error", err.Error())
				}
				return
			}
		}
	}
}

// put writes the sum of a step, once the root is near enough.
func (w *mergeWorker) put(ctx context.Context, leaf *workedLeaf, s leafStep) error {
	if err := w.wait(ctx, func() bool { return s.step <= w.step+w.job.ahead }); err != nil {
		return err
	}
	x := mergeSum{position: s.position, work: s.work}
	content, err := s.sum.AppendBinary(x.begin(partRoom(leaf.room)))
	if err != nil {
		return err
	}
	leaf.room = len(content)
	if err := s.sum.Reset(); err != nil {
		return err
	}
	leaf.free <- s.sum // has room for all there are
	records, err := w.seal.pieces(partHeader{kind: partSum, job: w.nonce, partition: uint32(leaf.index), step: s.step}, content)
	if err != nil {
		return err
	}
	w.p.write(ctx, w.shard, records, func() { leaf.written.Store(s.step) })
	return nil
}

// beat says how far the worker has come, until the context ends.
func (w *mergeWorker) beat(ctx context.Context) {
	tick := time.NewTicker(w.p.times.beat)
	defer tick.Stop()
	for {
		a := mergeAlive{generation: w.job.generation, member: w.self}
		for _, leaf := range w.leaves {
			if !leaf.ended.Load() && !w.r.repeats(leaf.what) {
				a.at = append(a.at, mergeReached{leaf.index, leaf.written.Load(), leaf.logStart.Load(), leaf.logEnd.Load()})
			}
		}
		if record, err := w.seal.seal(partHeader{kind: partAlive, job: w.nonce, pieces: 1}, a.encode()); err == nil && len(a.at) > 0 {
			w.p.write(ctx, w.shard, [][]byte{record}, func() {})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
