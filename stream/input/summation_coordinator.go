package input

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/notify"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// coordinator lets other instances sum partitions for a merger. Each run of an epoch has its own coordinator with its
// own nonce, which ignores records written for other runs.
//
// For each step and partition, the coordinator uses the first sum that arrives, no matter which instance made it. If a
// later sum differs, the task halts: all instances read the same log, so one of them computes wrongly. If a partition's
// worker is silent for a while, the coordinator reads the partition itself, as a single process would.
type coordinator struct {
	p     *SharedSummation
	R     *Feed
	of    *core.Manifest
	core  *core.Core
	m     *Merger
	shard int
	seal  *partSeal
	nonce [16]byte
	file  []byte // the epoch's manifest
	Ahead uint64 // number of steps by which a partition may be ahead of the last merged step

	mu     sync.Mutex
	Step   uint64           // the last merged step
	at     []kafka.Position // positions after that step, by partition
	ends   [][]int64        // if steps are by the clock: known ends of the steps after Step
	own    []bool           // partitions that this instance reads although they are assigned to another member
	Inbox  []partitionInbox
	moved  notify.Broadcast // guarded by mu; sent when a step is merged
	report chan struct{}    // receives when there is progress to report
	tell   chan struct{}    // receives when the job must be announced again
}

// partitionInbox holds the sums received for one partition.
type partitionInbox struct {
	Next   uint64 // the next step to merge
	Held   map[uint64]*mergeSum
	Pieces map[uint64]*pieces
	Known  map[uint64][32]byte // hashes of the sums of the last steps
	heard  time.Time           // time at which the worker last sent a sum or a sign of life
	Came   chan struct{}       // receives when a sum has come
}

// pieces holds the pieces of a sum that has not arrived completely.
type pieces struct {
	have [][]byte
	left int
}

// keptSums is the number of steps for which a partition's sums are remembered, to compare later ones with them.
const keptSums = 64

// newCoordinator returns a coordinator for a merger, or nil if no other instance may sum its partitions.
func newCoordinator(r *Feed, of *core.Manifest, c *core.Core, m *Merger, others *SharedSummation) *coordinator {
	if others == nil || of.Partition != core.Merged || !Shareable(r.S) || len(m.At) < 2 {
		return nil
	}
	file, err := of.Encode()
	if err != nil {
		return nil
	}
	shard := others.Shard(r.S)
	g := &coordinator{
		p: others, R: r, of: of, core: c, m: m, shard: shard, seal: newPartSeal(others.Derive, others.Group, shard),
		nonce: keys.NewNonce(), file: file,
		Ahead: partsAhead(r.S, c, len(m.At)), Step: c.Step(), at: make([]kafka.Position, len(m.At)),
		own: make([]bool, len(m.At)), Inbox: make([]partitionInbox, len(m.At)),
		report: make(chan struct{}, 1), tell: make(chan struct{}, 1),
	}
	for i := range g.Inbox {
		g.at[i] = m.At[i].Position
		g.Inbox[i] = partitionInbox{Next: g.Step + 1, Held: map[uint64]*mergeSum{}, Pieces: map[uint64]*pieces{},
			Known: map[uint64][32]byte{}, Came: make(chan struct{}, 1)}
	}
	return g
}

// Limits of the small sums that may wait at a coordinator beyond merge_ahead: their number and bytes per partition, and
// their bytes in all.
const (
	mostPartsAhead = 32
	partAheadBytes = 128 << 10 // per partition
	rootAheadBytes = 64 << 20
)

// partsAhead returns how many steps after the last merged one a worker may write. It may exceed merge_ahead, which
// limits memory: otherwise short steps would wait for the round trip to the coordinator. Refits keep to merge_ahead
// because their windows are large. Steps by the clock keep to it because their progress records grow with the number of
// steps.
func partsAhead(s *config.Stream, c *core.Core, partitions int) uint64 {
	least := uint64(s.MergeAhead)
	if s.Refit != nil || s.Step.Clock() > 0 {
		return least
	}
	sum, err := c.NewSum()
	if err != nil {
		return least
	}
	data, err := sum.AppendBinary(nil)
	if err != nil {
		return least
	}
	return max(least, min(mostPartsAhead, uint64(min(partAheadBytes, rootAheadBytes/partitions)/len(data))))
}

// start starts goroutines that sum this instance's partitions and receive the sums of the others, until the context
// ends.
func (g *coordinator) start(ctx context.Context, wg *sync.WaitGroup) {
	g.p.mu.Lock()
	g.p.coordinators[g.nonce] = g
	g.p.mu.Unlock()
	context.AfterFunc(ctx, func() {
		g.p.mu.Lock()
		delete(g.p.coordinators, g.nonce)
		g.p.mu.Unlock()
	})
	for _, x := range g.m.Leaves {
		wg.Go(func() { g.fail(ctx, g.supply(ctx, x)) })
	}
	wg.Go(func() { g.announce(ctx) })
	if g.m.Bounds != nil {
		wg.Go(func() { g.fail(ctx, g.findEnds(ctx)) })
	}
}

// fail stops the epoch with err, unless the context has ended already.
func (g *coordinator) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		g.stop(err)
	}
}

// stop stops the epoch if err is not nil.
func (g *coordinator) stop(err error) {
	if err == nil {
		return
	}
	select {
	case g.m.Failed <- err:
	default: // another error already stops it
	}
}

// supply gives the merger the sums of one partition. This instance or a worker makes them.
func (g *coordinator) supply(ctx context.Context, x *PartitionSummer) error {
	patience := g.p.times.Retry
	for ctx.Err() == nil {
		team, changed := g.p.currentTeam()
		silent, err := g.supplyOf(ctx, x, team, changed, patience)
		if err == nil && x.unsent != nil {
			select {
			case <-ctx.Done():
			case x.Sums <- *x.unsent:
			}
			x.unsent = nil
		}
		if err != nil {
			return err
		}
		if patience = min(2*patience, maxPartRetry); !silent {
			patience = g.p.times.Retry
		}
	}
	return nil
}

// supplyOf does the work of supply until the team gives the partition to another member. If the partition's worker is
// silent, supplyOf reads the partition for a while and returns silent = true.
func (g *coordinator) supplyOf(ctx context.Context, x *PartitionSummer, team Team, changed <-chan struct{},
	patience time.Duration) (silent bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	by := team.by(x.index)
	go func() {
		for now := team; now.by(x.index) == by; now, changed = g.p.currentTeam() {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			if g.isOwn(x.index) {
				break
			}
			g.setOwn(x.index, false) // the new worker has just begun, so it does not count as silent
		}
		stop()
	}()
	g.setOwn(x.index, false)
	if by != NoMember {
		if err := g.receive(ctx, x); err != nil || ctx.Err() != nil {
			return false, err
		}
		g.R.Log.Warn(
			"no sums received for a partition owned by another instance; reading it locally for a while, or until the "+
				"next rebalance",
			"partition", g.partition(x.index), "step", x.Leaf.Step(), "for", patience)
		g.setOwn(x.index, true)
		defer time.AfterFunc(patience, stop).Stop()
	}
	return by != NoMember, g.read(ctx, x)
}

// partition returns the number of the stream's partition with this index.
func (g *coordinator) partition(index int) int { return core.Partitions(g.of)[index] }

// by returns the member of the team that sums a partition, or NoMember if that is this instance.
func (t Team) by(index int) int {
	if member := t.reads(index); t.shares() && member != t.Self {
		return member
	}
	return NoMember
}

// isOwn reports whether this instance reads a partition although it is assigned to another member.
func (g *coordinator) isOwn(index int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.own[index]
}

// setOwn sets whether this instance reads a partition although it is assigned to another member.
func (g *coordinator) setOwn(index int, own bool) {
	g.mu.Lock()
	changed := g.own[index] != own
	g.own[index], g.Inbox[index].heard = own, g.R.Now()
	g.mu.Unlock()
	if changed {
		failure.Signal(g.tell)
	}
}

// read sums a partition on this instance until the context ends.
func (g *coordinator) read(ctx context.Context, x *PartitionSummer) error {
	src := g.of.Source
	src.Partition = g.partition(x.index)
	team, _ := g.p.currentTeam()
	reader, err := g.R.OpenInput(src, MergedBytes(g.R.FetchBytes, team.share(len(g.Inbox))), x.position)
	if err != nil {
		return err
	}
	defer reader.Close()
	if err := x.from(g.R, g.of, g.core, reader, src.Partition, g.m.Failed); err != nil {
		return err
	}
	x.closed = func(s *StepSum) { g.stop(g.recordOwnSum(x.index, s)) }
	return x.readHere(ctx)
}

// readHere sums the partition until the context ends, and then returns nil. It discards the records of the open step.
func (x *PartitionSummer) readHere(ctx context.Context) error {
	while, stop := context.WithCancel(ctx)
	defer stop()
	var fetching sync.WaitGroup
	fetching.Go(func() { x.Fetch.Run(while) })
	err := x.Run(while)
	if ctx.Err() != nil {
		err = nil // an error after the context ended is not reported: the next reading would meet it again
	}
	stop()
	fetching.Wait()
	x.Fetch.from.Recovered(x.Fetch.what) // the next reader reports its own failures
	for len(x.Fetch.Full) > 0 {
		(<-x.Fetch.Full).Release()
	}
	if sum := x.Leaf.Abandon(); sum != nil {
		if err := sum.Reset(); err != nil {
			return err
		}
		x.Free <- sum // never blocks: it has room for all sums
	}
	x.Worked() // discard the counts of the open step, which is read again
	return err
}

// recordOwnSum records a step's sum that this instance has made. It fails if a worker's sum has arrived too and
// differs.
func (g *coordinator) recordOwnSum(index int, s *StepSum) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &g.Inbox[index]
	b.Next = s.Step + 1
	came, known := b.Held[s.Step]
	if delete(b.Held, s.Step); !known && !g.own[index] {
		return nil // no other instance has summed the partition lately
	}
	data, err := s.sum.AppendBinary(nil)
	if err != nil {
		return err
	}
	b.Know(s.Step, sha256.Sum256(data))
	if known && !slices.Equal(came.Sum, data) {
		return g.differs(index, s.Step)
	}
	return nil
}

func (b *partitionInbox) Know(step uint64, hash [32]byte) {
	b.Known[step] = hash
	delete(b.Known, step-keptSums)
}

// differs returns the halt for two different sums of one step. In two cases it returns nil. With on_gap = "null",
// records may be deleted between the two readings. With a schema registry, the registry may have answered only one of
// the instances; then a single record would decide whether the task halts, which must not be.
func (g *coordinator) differs(index int, step uint64) error {
	if g.R.S.OnGap == "null" || g.R.S.Input.Looked() {
		return nil
	}
	return failure.Haltf(failure.Mechanism,
		"two instances have summed step %d of partition %d with different results: both read the same log, so one of "+
			"them computes wrongly; compare their hardware and versions before you open another epoch",
		step, g.partition(index))
}

// receive gives the merger the sums of a partition that a worker makes, until the context ends. It returns nil earlier
// if the worker is silent.
func (g *coordinator) receive(ctx context.Context, x *PartitionSummer) error {
	b := &g.Inbox[x.index]
	timer := time.NewTimer(g.p.times.Silence)
	defer timer.Stop()
	for {
		step := x.Leaf.Step()
		var at boundary.Boundary
		if x.until != nil {
			var err error
			if at, err = x.until(ctx, step); err == nil {
				err = x.Leaf.Until(at.Ends[x.index])
			}
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
		}
		g.mu.Lock()
		s := b.Held[step]
		b.Next = step
		left := g.p.times.Silence - g.R.Now().Sub(b.heard)
		g.mu.Unlock()
		if s == nil {
			if left <= 0 {
				return nil
			}
			timer.Reset(left)
			select {
			case <-ctx.Done():
				return nil
			case <-b.Came:
			case <-timer.C:
			}
			continue
		}
		var sum *core.Sum
		select {
		case <-ctx.Done():
			return nil
		case sum = <-x.Free:
		}
		err := sum.UnmarshalBinary(s.Sum)
		if err == nil {
			err = x.Leaf.Take(sum)
		}
		g.mu.Lock()
		delete(b.Held, step)
		if err == nil && s.position.Next == x.Leaf.First() {
			b.Know(step, sha256.Sum256(s.Sum))
			b.Next = step + 1
		}
		g.mu.Unlock()
		if err != nil || s.position.Next != x.Leaf.First() {
			// The group's key authenticates the sum, so the fault is in a machine's memory or in a program.
			return failure.Haltf(failure.Mechanism, "sum of step %d of partition %d from another instance is wrong: %w",
				step, g.partition(x.index), errors.Join(err, errors.New("it does not fit this step")))
		}
		x.position = s.position
		x.show(x.Leaf.First())
		x.unsent = &StepSum{Step: step, sum: sum, position: s.position, boundary: at.At, Work: s.Work}
		select {
		case <-ctx.Done():
			return nil
		case x.Sums <- *x.unsent:
			x.unsent = nil
		}
	}
}

// take handles a record for this coordinator.
func (g *coordinator) take(h partHeader, content []byte) {
	if h.Kind == partAlive {
		if a, err := parseMergeAlive(content); err == nil {
			g.alive(a)
		}
		return
	}
	if int(h.Partition) >= len(g.Inbox) {
		return
	}
	g.mu.Lock()
	err := g.TakeSum(h, content)
	g.mu.Unlock()
	if err != nil {
		g.R.Log.Error("sums of two instances differ", "error", err.Error())
		g.stop(err)
	}
}

// TakeSum handles a record that holds a sum or a piece of one.
func (g *coordinator) TakeSum(h partHeader, content []byte) error {
	b := &g.Inbox[h.Partition]
	_, known := b.Known[h.Step]
	if h.Step > g.Step+g.Ahead || h.Step < b.Next && !known {
		return nil // too far ahead, or too old to be compared
	}
	if h.Pieces > 1 {
		w := b.Pieces[h.Step]
		if w == nil || len(w.have) != int(h.Pieces) {
			w = &pieces{have: make([][]byte, h.Pieces), left: int(h.Pieces)}
			b.Pieces[h.Step] = w
		}
		if w.have[h.Piece] == nil {
			w.have[h.Piece] = content
			w.left--
		} else if !slices.Equal(w.have[h.Piece], content) {
			w.have[h.Piece] = content // it may be another worker's; the hash of the whole sum shows a difference
		}
		b.heard = g.R.Now()
		if w.left > 0 {
			return nil
		}
		delete(b.Pieces, h.Step)
		content = slices.Concat(w.have...)
	}
	s, err := parseMergeSum(content)
	if err != nil {
		return nil
	}
	if known {
		if b.Known[h.Step] != sha256.Sum256(s.Sum) {
			return g.differs(int(h.Partition), h.Step)
		}
		return nil
	}
	if was := b.Held[h.Step]; was != nil {
		if !slices.Equal(was.Sum, s.Sum) {
			return g.differs(int(h.Partition), h.Step)
		}
		return nil
	}
	b.Held[h.Step] = s
	b.heard = g.R.Now()
	failure.Signal(b.Came)
	return nil
}

// alive handles a worker's progress report. The report is a sign of life for a partition. The exception: according to
// the report, the worker has written the next sum, but that sum has not arrived.
func (g *coordinator) alive(a *mergeAlive) {
	team, _ := g.p.currentTeam()
	if a.generation != team.Generation {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range a.at {
		if r.partition >= len(g.Inbox) || team.reads(r.partition) != a.member || g.own[r.partition] {
			continue
		}
		x := g.m.Leaves[r.partition]
		x.LogStart.Store(r.logStart)
		x.LogEnd.Store(r.logEnd)
		if b := &g.Inbox[r.partition]; r.written < b.Next || b.Held[b.Next] != nil {
			b.heard = g.R.Now()
		}
	}
}

// merged records that a step has been merged, and the positions after that step.
func (g *coordinator) merged(step uint64, at []state.Place) {
	if g == nil {
		return
	}
	g.mu.Lock()
	if n := min(step-g.Step, uint64(len(g.ends))); n > 0 {
		g.ends = g.ends[n:]
	}
	g.Step = step
	for i := range g.at {
		g.at[i] = at[i].Position
	}
	for i := range g.Inbox {
		for s := range g.Inbox[i].Pieces {
			if s <= step {
				delete(g.Inbox[i].Pieces, s)
			}
		}
	}
	g.moved.Send()
	g.mu.Unlock()
	failure.Signal(g.report)
}

// findEnds reads the ends of the next steps by the clock, for workers that are ahead.
func (g *coordinator) findEnds(ctx context.Context) error {
	for {
		g.mu.Lock()
		next, moved := g.Step+uint64(len(g.ends))+1, g.moved.Next()
		full := uint64(len(g.ends)) > g.Ahead || 8*(len(g.ends)+2)*len(g.Inbox) > partPiece
		g.mu.Unlock()
		var came <-chan struct{}
		if !full {
			x, known, others, err := g.m.Bounds.Known(ctx, next)
			if err != nil {
				return err
			}
			if known {
				g.mu.Lock()
				if next == g.Step+uint64(len(g.ends))+1 {
					g.ends = append(g.ends, x.Ends)
				}
				g.mu.Unlock()
				failure.Signal(g.report)
				continue
			}
			came = others
		}
		select {
		case <-ctx.Done():
			return nil
		case <-moved:
		case <-came:
		}
	}
}

// announce announces the job and its progress to workers until the context ends.
func (g *coordinator) announce(ctx context.Context) {
	tick := time.NewTicker(g.p.times.Announce)
	defer tick.Stop()
	whole := true
	for {
		team, changed := g.p.currentTeam()
		if team.shares() {
			written := make(chan struct{})
			if records := g.records(team, whole); records != nil &&
				g.p.write(ctx, g.shard, records, func() { close(written) }) {
				select {
				case <-ctx.Done():
					return
				case <-written:
				}
			}
		}
		whole = false
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			whole = true
		case <-changed:
			whole = true
		case <-g.tell:
			whole = true
		case <-g.report:
		}
	}
}

// records returns the progress record, after the job record if whole is true.
func (g *coordinator) records(team Team, whole bool) (all [][]byte) {
	g.mu.Lock()
	h := partHeader{Job: g.nonce, Step: g.Step, Pieces: 1}
	job := &mergeJob{Stream: g.R.S.Name, Manifest: g.file, Generation: team.Generation, Members: team.Members,
		Ahead: g.Ahead}
	for i, p := range g.at {
		member := team.reads(i)
		if member == team.Self || g.own[i] {
			member = NoMember
		}
		job.At = append(job.At, mergePlace{member, p})
	}
	progress := mergeProgress{ends: slices.Clone(g.ends)}
	g.mu.Unlock()
	contents := map[byte][]byte{partProgress: progress.encode()}
	if whole {
		if contents[partJob] = job.encode(); len(contents[partJob]) > maxPartJob {
			g.R.Log.Warn("the stream has too many partitions to share them: reading all of them on this instance")
			return nil
		}
	}
	for _, kind := range []byte{partJob, partProgress} {
		if content, wanted := contents[kind]; wanted {
			h.Kind = kind
			record, err := g.seal.Seal(h, content)
			if err != nil {
				return nil
			}
			all = append(all, record)
		}
	}
	return all
}
