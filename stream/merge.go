package stream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
)

// merger reads the partitions of a merged epoch, or of one with steps by the clock, each with
// goroutines of its own: one fetches, one decodes, one sums. The sums of a step go to the
// processor when all partitions have them. An epoch over one log whose steps take long to end
// has a merger too, whose only leaf adds the next step's records meanwhile. It draws no noise and writes nothing. After a crash it reads from
// the last commit on again, and gets the same sums: they are functions of the logs.
type merger struct {
	leaves []*leafReader
	at     []partPosition  // of the last merged step
	bound  int64           // offset of its boundary, by the clock
	bounds *boundaries     // nil: steps are not by the clock
	ahead  bool            // see core.Core.Ahead: one leaf, which shows what it has added at once
	moved  chan struct{}   // receives when that leaf has added a batch
	whole  chan []leafStep // the sums of one step, of all partitions
	failed chan error
	root   *mergeRoot // where other instances may sum partitions; else nil
}

// leafReader sums one partition.
type leafReader struct {
	index            int            // among the partitions
	until            ender          // nil: steps are not by the clock
	position         kafka.Position // of the open step
	fetch            *fetcher
	leaf             *core.Leaf
	sums             chan leafStep   // closed, at most merge_ahead
	free             chan *core.Sum  // to be summed into
	written          chan struct{}   // after a step with a snapshot of persons due: go on
	paused           bool            // the processor's: that step is merged, and its snapshot not written
	moved            chan struct{}   // of its merger, nil where that is not ahead
	closed           func(*leafStep) // called with each step that it has summed; nil: nobody is
	unsent           *leafStep       // closed when the context ended
	logStart, logEnd atomic.Int64

	seen atomic.Int64 // offsets below it have been added
	mu   sync.Mutex
	done work // since it was last asked for
}

// ender returns the boundary at which a step by the clock ends, when there is one.
type ender func(ctx context.Context, step uint64) (boundary, error)

// leafStep is a closed step of one partition.
type leafStep struct {
	step     uint64
	sum      *core.Sum
	position kafka.Position // behind it
	boundary int64          // offset of the step's boundary, by the clock
	work     work           // since the step before; nothing where the merger is ahead
}

// sumsOf returns the sums of a step.
func sumsOf(steps []leafStep) (all []*core.Sum) {
	for _, s := range steps {
		all = append(all, s.sum)
	}
	return all
}

// mergedFetchBytes bounds the responses that all partitions of a merged stream hold at a
// time, by a quarter: a partition holds three or four.
const mergedFetchBytes = 16 << 20

// newMerger returns a merger that goes on at the checkpoint of an epoch.
func newMerger(r *feed, of *core.Manifest, c *core.Core, cp *checkpoint, bounds *boundaries, open func(core.Source, int, kafka.Position) (*kafka.Reader, error), others *partials) (*merger, error) {
	n := len(cp.all())
	m := &merger{at: cp.all(), bound: cp.boundary, bounds: bounds, whole: make(chan []leafStep), failed: make(chan error, 2*n+1)}
	ready := r.s.MergeAhead // sums that may wait
	if c.Ahead() {
		m.ahead, m.moved, ready = true, make(chan struct{}, 1), 0
	}
	leaves, err := leavesAt(c, of, cp)
	if err != nil {
		return nil, err
	}
	m.root = newMergeRoot(r, of, c, m, others)
	for i, leaf := range leaves {
		x, err := newLeafReader(c, i, leaf, m.at[i].position, ready)
		if err != nil {
			return nil, err
		}
		if x.moved = m.moved; m.bounds != nil {
			x.until = m.bounds.of
		}
		if m.leaves = append(m.leaves, x); m.root != nil {
			continue // it is not known yet who reads the partition
		}
		src := of.Source
		src.Partition = reads(of)[i]
		reader, err := open(src, mergedBytes(r.fetchBytes, n), x.position)
		if err != nil {
			return nil, err
		}
		if err := x.from(r, of, c, reader, src.Partition, m.failed); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// mergedBytes returns the largest response that each of n partitions may hold.
func mergedBytes(most, n int) int { return min(most, max(64<<10, mergedFetchBytes/n)) }

// newLeafReader returns what sums a partition from a position on, of which so many steps may wait.
// It has nothing to read yet.
func newLeafReader(c *core.Core, index int, leaf *core.Leaf, at kafka.Position, ready int) (*leafReader, error) {
	x := &leafReader{index: index, position: at, leaf: leaf, written: make(chan struct{}, 1), sums: make(chan leafStep, ready), free: make(chan *core.Sum, ready+1)}
	x.logStart.Store(-1)
	x.logEnd.Store(-1)
	for range cap(x.free) {
		sum, err := c.NewSum()
		if err != nil {
			return nil, err
		}
		x.free <- sum
	}
	return x, nil
}

// from makes the leaf read records of a partition.
func (x *leafReader) from(r *feed, m *core.Manifest, c *core.Core, reader *kafka.Reader, partition int, failed chan error) error {
	decoder, err := newDecoder(r.schemas, r.s, m, partition, c)
	if err != nil {
		return err
	}
	x.fetch = newFetcher(r, m.Epoch, partition, reader, decoder)
	x.fetch.failed, x.fetch.logStart, x.fetch.logEnd = failed, &x.logStart, &x.logEnd
	x.fetch.what = fetchOf(partition) // one that works does not hide one that does not
	return nil
}

// fetchOf names the fetches of one partition of several.
func fetchOf(partition int) string { return fmt.Sprint("fetch of partition ", partition) }

// start reads until the context ends.
func (m *merger) start(ctx context.Context, wg *sync.WaitGroup) {
	if m.root != nil {
		m.root.start(ctx, wg)
	} else {
		for _, x := range m.leaves {
			wg.Go(func() { x.fetch.run(ctx) })
			wg.Go(func() {
				if err := x.run(ctx); err != nil && ctx.Err() == nil {
					m.failed <- err
				}
			})
		}
	}
	if m.bounds != nil {
		wg.Go(func() {
			if err := m.bounds.run(ctx); err != nil && ctx.Err() == nil {
				m.failed <- err
			}
		})
	}
	wg.Go(func() { m.collect(ctx) })
}

// collect gives the processor the steps of which it has all sums.
func (m *merger) collect(ctx context.Context) {
	for {
		steps := make([]leafStep, len(m.leaves))
		for i, x := range m.leaves {
			select {
			case <-ctx.Done():
				return
			case steps[i] = <-x.sums:
			}
		}
		select {
		case <-ctx.Done():
			return
		case m.whole <- steps:
		}
	}
}

// run closes step after step of the partition.
func (x *leafReader) run(ctx context.Context) error {
	var b *codec.Batch
	var next int // of its records
	defer func() {
		if b != nil {
			b.Release()
		}
	}()
	for {
		var at boundary
		if x.until != nil {
			var err error
			if at, err = x.until(ctx, x.leaf.Step()); err == nil {
				err = x.leaf.Until(at.ends[x.index])
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case sum := <-x.free:
			x.leaf.Into(sum)
		}
		empty := x.leaf.First() == x.leaf.End() // only by the clock
		for !empty {
			if b == nil {
				select {
				case <-ctx.Done():
					return nil
				case b = <-x.fetch.full:
				}
				next = 0
				x.read(b)
			}
			if x.add(b, &next) {
				break
			}
			x.show(b.Next)
			x.fetch.done(b)
			b = nil
		}
		s := leafStep{step: x.leaf.Step(), sum: x.leaf.Close(), boundary: at.at}
		if x.show(x.leaf.First()); x.moved == nil {
			s.work = x.worked()
		}
		if !empty { // the batch that closed the step holds its end
			x.position = b.Position(x.leaf.First())
		}
		s.position = x.position
		due := s.sum.SnapshotDue() // the sum is another's afterwards
		if x.closed != nil {
			x.closed(&s)
		}
		select {
		case <-ctx.Done():
			x.unsent = &s
			return nil
		case x.sums <- s:
		}
		if !due {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-x.written:
		}
	}
}

// add adds the records of a batch from next on that belong to the open step, and reports
// whether the batch reaches the step's end.
func (x *leafReader) add(b *codec.Batch, next *int) bool {
	end := x.leaf.End()
	var done work // of records that do not count for their person
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.done.add(&done)
	}()
	for ; *next < len(b.Records); *next++ {
		offset := b.Records[*next].Offset
		if offset >= end {
			return true
		}
		if *next&63 == 0 {
			x.leaf.Warm(b.TagsFrom(*next, 64))
		}
		if why := x.leaf.AddOf(offset, b.Row(*next), b.Tag(*next)); why != persons.Counts {
			done.uncounted(b.Reasons[*next], why)
		}
	}
	return b.Next >= end
}

// read counts a batch.
func (x *leafReader) read(b *codec.Batch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done.read(b)
}

// worked returns what was done since it was last called.
func (x *leafReader) worked() (done work) {
	x.mu.Lock()
	defer x.mu.Unlock()
	done, x.done = x.done, done
	return done
}

// show says that the records below an offset have been added.
func (x *leafReader) show(offset int64) {
	x.seen.Store(offset)
	select {
	case x.moved <- struct{}{}:
	default:
	}
}

// emptied gives the memory of a step's sums back, before the step ends.
func (m *merger) emptied(steps []leafStep) {
	for i, s := range steps {
		m.leaves[i].free <- s.sum // has room for all there are
	}
}

// merged takes note of a step that the processor has closed.
func (m *merger) merged(steps []leafStep) {
	at := make([]partPosition, len(m.at))
	for i := range at {
		at[i] = partPosition{partition: m.at[i].partition, position: steps[i].position, older: m.at[i].older}
	}
	m.at = at
	if m.bounds != nil {
		m.bound = steps[0].boundary
		m.bounds.done(steps[0].step)
	}
	m.root.merged(steps[0].step, at)
}

// pause notes which leaves wait for a snapshot of persons: those whose journals ask for one.
func (m *merger) pause(users journals) {
	for i, j := range users {
		m.leaves[i].paused = m.leaves[i].paused || j.SnapshotDue()
	}
}

// paused reports whether a leaf waits for a snapshot of persons.
func (m *merger) paused() bool {
	return m != nil && slices.ContainsFunc(m.leaves, func(x *leafReader) bool { return x.paused })
}

// unpause lets the leaves go on that wait for snapshots of persons, which are written. No other one: it
// would not wait for its own.
func (m *merger) unpause() {
	if m == nil {
		return
	}
	for _, x := range m.leaves {
		if x.paused {
			x.paused = false
			x.written <- struct{}{} // has room: the leaf takes one for each step of this kind
		}
	}
}

// log returns what is known of the partitions' logs.
func (m *merger) log() logView {
	at := make([]int64, len(m.leaves))
	logs := make([]offsets, len(m.leaves))
	for i, x := range m.leaves {
		end := x.logEnd.Load()
		at[i], logs[i] = m.at[i].position.Next, offsets{x.logStart.Load(), end, end}
	}
	return viewOf(at, logs)
}
