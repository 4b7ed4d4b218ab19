package input

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// Merger reads the partitions of a merged epoch, or of an epoch with steps by the clock. Each partition has three
// goroutines: one fetches, one decodes, one sums. When all partitions have summed a step, the merger gives the sums to
// the processor. An epoch over one log also has a merger if its steps take long to close: its only leaf adds the next
// step's records meanwhile. A merger draws no noise and writes nothing. After a crash it reads again from the last
// commit and gets the same sums, because they depend only on the logs.
type Merger struct {
	Leaves      []*PartitionSummer   // one per partition
	At          []state.Place        // positions after the last merged step
	Bound       int64                // offset of that step's boundary, if steps are by the clock
	Bounds      *boundary.Boundaries // nil: steps are not by the clock
	Ahead       bool                 // see core.Core.Ahead; the only leaf then shows its progress at once
	Moved       chan struct{}        // receives when that leaf has added a batch
	MergedSums  chan []StepSum       // the sums of one step, of all partitions
	Failed      chan error           // receives the error that ended the merger
	coordinator *coordinator         // lets other instances sum partitions; nil: this instance sums all
}

// PartitionSummer sums one partition.
type PartitionSummer struct {
	index    int            // index among the stream's partitions
	until    boundarySource // nil: steps are not by the clock
	position kafka.Position // where the open step begins
	Fetch    *Fetcher
	Leaf     *core.Leaf
	Sums     chan StepSum   // sums of closed steps, at most merge_ahead
	Free     chan *core.Sum // empty sums
	Written  chan struct{}  // receives when the processor has written a due snapshot of persons
	// paused says that the processor has merged the step with the due snapshot, but has not yet written the snapshot.
	// Only the processor uses it.
	paused           bool
	Moved            chan struct{}  // the merger's Moved; nil if the merger is not ahead
	closed           func(*StepSum) // called with each step that it has summed; may be nil
	unsent           *StepSum       // a sum that was closed when the context ended
	LogStart, LogEnd atomic.Int64

	Seen atomic.Int64 // offsets below it have been added
	mu   sync.Mutex
	done monitor.Counts // counts since the last call of Worked
}

// boundarySource waits for the boundary that ends a step by the clock, and returns it.
type boundarySource func(ctx context.Context, step uint64) (boundary.Boundary, error)

// StepSum is a closed step of one partition.
type StepSum struct {
	Step     uint64
	sum      *core.Sum
	position kafka.Position // position after the step
	boundary int64          // offset of the step's boundary, if steps are by the clock
	Work     monitor.Counts // counts since the step before; empty if the merger is ahead
}

// SumsOf returns the sums of a step.
func SumsOf(steps []StepSum) (all []*core.Sum) {
	for _, s := range steps {
		all = append(all, s.sum)
	}
	return all
}

// mergedFetchBytes limits the sum of one response from each partition of a merged stream. A partition holds three or
// four responses at a time, so the responses in memory take about four times as much.
const mergedFetchBytes = 16 << 20

// NewMerger returns a merger that continues at the checkpoint of an epoch.
func NewMerger(r *Feed, of *core.Manifest, c *core.Core, cp *state.Checkpoint, bounds *boundary.Boundaries,
	open func(core.Source, int, kafka.Position) (*kafka.Reader, error), others *SharedSummation) (*Merger, error) {
	n := len(cp.All())
	m := &Merger{At: cp.All(), Bound: cp.Boundary, Bounds: bounds, MergedSums: make(chan []StepSum),
		Failed: make(chan error, 2*n+1)}
	ready := r.S.MergeAhead // number of sums that may wait
	if c.Ahead() {
		m.Ahead, m.Moved, ready = true, make(chan struct{}, 1), 0
	}
	leaves, err := LeavesAt(c, of, cp)
	if err != nil {
		return nil, err
	}
	m.coordinator = newCoordinator(r, of, c, m, others)
	for i, leaf := range leaves {
		x, err := NewPartitionSummer(c, i, leaf, m.At[i].Position, ready)
		if err != nil {
			return nil, err
		}
		if x.Moved = m.Moved; m.Bounds != nil {
			x.until = m.Bounds.Of
		}
		if m.Leaves = append(m.Leaves, x); m.coordinator != nil {
			continue // the team decides later which instance reads the partition
		}
		src := of.Source
		src.Partition = core.Partitions(of)[i]
		reader, err := open(src, MergedBytes(r.FetchBytes, n), x.position)
		if err != nil {
			return nil, err
		}
		if err := x.from(r, of, c, reader, src.Partition, m.Failed); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// MergedBytes returns the size limit of a response for each of n partitions.
func MergedBytes(most, n int) int { return min(most, max(64<<10, mergedFetchBytes/n)) }

// NewPartitionSummer returns a summer of a partition that starts at a position. At most `ready` closed steps wait in
// it. It has no reader yet.
func NewPartitionSummer(c *core.Core, index int, leaf *core.Leaf, at kafka.Position,
	ready int) (*PartitionSummer, error) {
	x := &PartitionSummer{index: index, position: at, Leaf: leaf, Written: make(chan struct{}, 1),
		Sums: make(chan StepSum, ready), Free: make(chan *core.Sum, ready+1)}
	x.LogStart.Store(-1)
	x.LogEnd.Store(-1)
	for range cap(x.Free) {
		sum, err := c.NewSum()
		if err != nil {
			return nil, err
		}
		x.Free <- sum
	}
	return x, nil
}

// from sets the reader whose records the summer reads.
func (x *PartitionSummer) from(r *Feed, m *core.Manifest, c *core.Core, reader *kafka.Reader, partition int,
	failed chan error) error {
	decoder, err := NewDecoder(r.Schemas, r.S, m, partition, c)
	if err != nil {
		return err
	}
	x.Fetch = NewFetcher(r, m.Epoch, partition, reader, decoder)
	x.Fetch.Failed, x.Fetch.logStart, x.Fetch.logEnd = failed, &x.LogStart, &x.LogEnd
	x.Fetch.what = fetchOf(partition) // each partition has a name, so its success does not hide another one's failure
	return nil
}

// fetchOf returns the name of the fetches of one partition among several.
func fetchOf(partition int) string { return fmt.Sprint("fetch of partition ", partition) }

// Start starts goroutines that read until the context ends.
func (m *Merger) Start(ctx context.Context, wg *sync.WaitGroup) {
	if m.coordinator != nil {
		m.coordinator.start(ctx, wg)
	} else {
		for _, x := range m.Leaves {
			wg.Go(func() { x.Fetch.Run(ctx) })
			wg.Go(func() {
				if err := x.Run(ctx); err != nil && ctx.Err() == nil {
					m.Failed <- err
				}
			})
		}
	}
	if m.Bounds != nil {
		wg.Go(func() {
			if err := m.Bounds.Run(ctx); err != nil && ctx.Err() == nil {
				m.Failed <- err
			}
		})
	}
	wg.Go(func() { m.Collect(ctx) })
}

// Collect gives the processor each step that has the sums of all partitions.
func (m *Merger) Collect(ctx context.Context) {
	for {
		steps := make([]StepSum, len(m.Leaves))
		for i, x := range m.Leaves {
			select {
			case <-ctx.Done():
				return
			case steps[i] = <-x.Sums:
			}
		}
		select {
		case <-ctx.Done():
			return
		case m.MergedSums <- steps:
		}
	}
}

// Run closes step after step of the partition.
func (x *PartitionSummer) Run(ctx context.Context) error {
	var b *codec.Batch
	var next int // index of the batch's next record
	defer func() {
		if b != nil {
			b.Release()
		}
	}()
	for {
		var at boundary.Boundary
		if x.until != nil {
			var err error
			if at, err = x.until(ctx, x.Leaf.Step()); err == nil {
				err = x.Leaf.Until(at.Ends[x.index])
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case sum := <-x.Free:
			x.Leaf.Into(sum)
		}
		empty := x.Leaf.First() == x.Leaf.End() // possible only if steps are by the clock
		for !empty {
			if b == nil {
				select {
				case <-ctx.Done():
					return nil
				case b = <-x.Fetch.Full:
				}
				next = 0
				x.read(b)
			}
			if x.add(b, &next) {
				break
			}
			x.show(b.Next)
			x.Fetch.Done(b)
			b = nil
		}
		s := StepSum{Step: x.Leaf.Step(), sum: x.Leaf.Close(), boundary: at.At}
		if x.show(x.Leaf.First()); x.Moved == nil {
			s.Work = x.Worked()
		}
		if !empty { // the batch that closed the step holds its end
			x.position = b.Position(x.Leaf.First())
		}
		s.position = x.position
		due := s.sum.SnapshotDue() // read now, because the processor owns the sum after it is sent
		if x.closed != nil {
			x.closed(&s)
		}
		select {
		case <-ctx.Done():
			x.unsent = &s
			return nil
		case x.Sums <- s:
		}
		if !due {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-x.Written:
		}
	}
}

// add adds those records of a batch, from index next on, that belong to the open step. It reports whether the batch
// reaches the step's end.
func (x *PartitionSummer) add(b *codec.Batch, next *int) (ended bool) {
	var done monitor.Counts // counts records that do not count for their person
	*next, ended = AddRecords(x.Leaf, b, *next, &done, nil)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done.Add(&done)
	return ended
}

// read counts the records of a batch.
func (x *PartitionSummer) read(b *codec.Batch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done.Read(b)
}

// Worked returns the counts since the last call.
func (x *PartitionSummer) Worked() (done monitor.Counts) {
	x.mu.Lock()
	defer x.mu.Unlock()
	done, x.done = x.done, done
	return done
}

// show records that the records below an offset have been added, and signals it.
func (x *PartitionSummer) show(offset int64) {
	x.Seen.Store(offset)
	select {
	case x.Moved <- struct{}{}:
	default:
	}
}

// Emptied gives the sums of a step back to the summers, before the step ends.
func (m *Merger) Emptied(steps []StepSum) {
	for i, s := range steps {
		m.Leaves[i].Free <- s.sum // never blocks: it has room for all sums
	}
}

// Merged moves the merger's position past a step that the processor has closed.
func (m *Merger) Merged(steps []StepSum) {
	at := make([]state.Place, len(m.At))
	for i := range at {
		at[i] = state.Place{Partition: m.At[i].Partition, Position: steps[i].position, Older: m.At[i].Older}
	}
	m.At = at
	if m.Bounds != nil {
		m.Bound = steps[0].boundary
		m.Bounds.Done(steps[0].Step)
	}
	m.coordinator.merged(steps[0].Step, at)
}

// Pause marks the leaves that wait for a snapshot of persons, because their journals ask for one.
func (m *Merger) Pause(users state.Journals) {
	for i, j := range users {
		m.Leaves[i].paused = m.Leaves[i].paused || j.SnapshotDue()
	}
}

// Paused reports whether a leaf waits for a snapshot of persons.
func (m *Merger) Paused() bool {
	return m != nil && slices.ContainsFunc(m.Leaves, func(x *PartitionSummer) bool { return x.paused })
}

// Unpause lets the leaves continue that wait for a snapshot of persons; the snapshot has been written. Unpause must not
// signal other leaves, because they would then not wait for their own next snapshot.
func (m *Merger) Unpause() {
	if m == nil {
		return
	}
	for _, x := range m.Leaves {
		if x.paused {
			x.paused = false
			x.Written <- struct{}{} // never blocks: the leaf takes one signal per step with a due snapshot
		}
	}
}

// Log returns the known ends of the partitions' logs, and the lag.
func (m *Merger) Log() monitor.LogLag {
	at := make([]int64, len(m.Leaves))
	logs := make([]kafka.Offsets, len(m.Leaves))
	for i, x := range m.Leaves {
		end := x.LogEnd.Load()
		at[i], logs[i] = m.At[i].Position.Next, kafka.Offsets{Start: x.LogStart.Load(), Stable: end, End: end}
	}
	return monitor.LogLagOf(at, logs)
}
