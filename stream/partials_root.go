package stream

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// mergeRoot is the part of a merger by which other instances sum partitions for it. Each run of
// an epoch has one, with a nonce of its own: what was written for another run is not looked at.
//
// Of the sums of a step over a partition the first counts, whoever made it. One that comes later
// and is not the same is a halt: the log is the same for all, so somebody computes wrongly. A
// partition of which no word comes for a while is read here, as in a single process.
type mergeRoot struct {
	p     *partials
	r     *feed
	of    *core.Manifest
	core  *core.Core
	m     *merger
	shard int
	seal  *partSeal
	nonce [16]byte
	file  []byte // the epoch's manifest
	ahead uint64 // steps that a partition may be ahead of the last merged one

	mu     sync.Mutex
	step   uint64           // the last one that is merged
	at     []kafka.Position // behind it, by partition
	ends   [][]int64        // by the clock: of the steps after it, as far as they are known
	own    []bool           // partitions that this instance reads, whoever is in the team
	inbox  []leafInbox
	moved  chan struct{} // closed when a step is merged
	report chan struct{} // receives when there is progress to be told
	tell   chan struct{} // receives when the job must be announced anew
}

// leafInbox is what has come of one partition.
type leafInbox struct {
	next   uint64 // the step that is waited for
	held   map[uint64]*mergeSum
	pieces map[uint64]*pieces
	known  map[uint64][32]byte // hashes of sums that have counted, of the last steps
	heard  time.Time           // when there was word of the partition last
	came   chan struct{}       // receives when something has come
}

// pieces are those of a sum that is not whole yet.
type pieces struct {
	have [][]byte
	left int
}

// keptSums is the number of steps of a partition whose sums are compared with later ones.
const keptSums = 64

// newMergeRoot returns what lets other instances sum partitions of a merger; nil where none may.
func newMergeRoot(r *feed, of *core.Manifest, c *core.Core, m *merger, others *partials) *mergeRoot {
	if others == nil || of.Partition != core.Merged || !shareable(r.s) || len(m.at) < 2 {
		return nil
	}
	file, err := of.Encode()
	if err != nil {
		return nil
	}
	shard := others.shard(r.s)
	g := &mergeRoot{
		p: others, r: r, of: of, core: c, m: m, shard: shard, seal: newPartSeal(others.master, others.group, shard), nonce: dp.NewNonce(), file: file,
		ahead: partsAhead(r.s, c, len(m.at)), step: c.Step(), at: make([]kafka.Position, len(m.at)), own: make([]bool, len(m.at)), inbox: make([]leafInbox, len(m.at)),
		moved: make(chan struct{}), report: make(chan struct{}, 1), tell: make(chan struct{}, 1),
	}
	for i := range g.inbox {
		g.at[i] = m.at[i].position
		g.inbox[i] = leafInbox{next: g.step + 1, held: map[uint64]*mergeSum{}, pieces: map[uint64]*pieces{}, known: map[uint64][32]byte{}, came: make(chan struct{}, 1)}
	}
	return g
}

// The sums that may wait at a root for each partition, beyond merge_ahead, where they are small; and
// the bytes of all of them.
const (
	mostPartsAhead = 32
	partAheadBytes = 128 << 10 // of one partition
	rootAheadBytes = 64 << 20
)

// partsAhead returns how many steps beyond the last merged one a worker may write. With merge_ahead alone, which is for
// memory, short steps would wait for the way to the root and back. Windows of a refit are large,
// and what is told of steps by the clock grows with their number: these keep to it.
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

// start sums the partitions of this instance, and takes the sums of others, until the context
// ends.
func (g *mergeRoot) start(ctx context.Context, wg *sync.WaitGroup) {
	g.p.mu.Lock()
	g.p.roots[g.nonce] = g
	g.p.mu.Unlock()
	context.AfterFunc(ctx, func() {
		g.p.mu.Lock()
		delete(g.p.roots, g.nonce)
		g.p.mu.Unlock()
	})
	for _, x := range g.m.leaves {
		wg.Go(func() { g.fail(ctx, g.supply(ctx, x)) })
	}
	wg.Go(func() { g.announce(ctx) })
	if g.m.bounds != nil {
		wg.Go(func() { g.fail(ctx, g.foresee(ctx)) })
	}
}

// fail stops the epoch, unless it stops already.
func (g *mergeRoot) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		g.stop(err)
	}
}

// stop stops the epoch if there is an error.
func (g *mergeRoot) stop(err error) {
	if err == nil {
		return
	}
	select {
	case g.m.failed <- err:
	default: // another error stops it
	}
}

// supply gives the merger the sums of one partition: those that this instance makes, or another.
func (g *mergeRoot) supply(ctx context.Context, x *leafReader) error {
	patience := g.p.times.retry
	for ctx.Err() == nil {
		team, changed := g.p.who()
		silent, err := g.supplyOf(ctx, x, team, changed, patience)
		if err == nil && x.unsent != nil {
			select {
			case <-ctx.Done():
			case x.sums <- *x.unsent:
			}
			x.unsent = nil
		}
		if err != nil {
			return err
		}
		if patience = min(2*patience, maxPartRetry); !silent {
			patience = g.p.times.retry
		}
	}
	return nil
}

// supplyOf is supply for as long as a team leaves the partition to the same member. Where that is
// silent it reads the partition for a while.
func (g *mergeRoot) supplyOf(ctx context.Context, x *leafReader, team team, changed chan struct{}, patience time.Duration) (silent bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	by := team.by(x.index)
	go func() {
		for now := team; now.by(x.index) == by; now, changed = g.p.who() {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			if g.alone(x.index) {
				break
			}
			g.reads(x.index, false) // whoever it is has just begun
		}
		stop()
	}()
	g.reads(x.index, false)
	if by != noMember {
		if err := g.receive(ctx, x); err != nil || ctx.Err() != nil {
			return false, err
		}
		g.r.log.Warn("nothing came of a partition that another instance sums: it is read here for a while, or until the group's next generation",
			"partition", g.partition(x.index), "step", x.leaf.Step(), "for", patience)
		g.reads(x.index, true)
		defer time.AfterFunc(patience, stop).Stop()
	}
	return by != noMember, g.read(ctx, x)
}

// partition returns the number of a partition by its place.
func (g *mergeRoot) partition(index int) int { return reads(g.of)[index] }

// by returns which other member of a team sums a partition, noMember where this instance does.
func (t team) by(index int) int {
	if member := t.reads(index); t.shares() && member != t.self {
		return member
	}
	return noMember
}

// alone reports whether this instance reads a partition though it is another's.
func (g *mergeRoot) alone(index int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.own[index]
}

// reads says whether this instance reads a partition though it is another's.
func (g *mergeRoot) reads(index int, own bool) {
	g.mu.Lock()
	changed := g.own[index] != own
	g.own[index], g.inbox[index].heard = own, g.r.now()
	g.mu.Unlock()
	if changed {
		signal(g.tell)
	}
}

// read sums a partition here, until the context ends.
func (g *mergeRoot) read(ctx context.Context, x *leafReader) error {
	src := g.of.Source
	src.Partition = g.partition(x.index)
	team, _ := g.p.who()
	reader, err := g.r.openInput(src, mergedBytes(g.r.fetchBytes, team.share(len(g.inbox))), x.position)
	if err != nil {
		return err
	}
	defer reader.Close()
	if err := x.from(g.r, g.of, g.core, reader, src.Partition, g.m.failed); err != nil {
		return err
	}
	x.closed = func(s *leafStep) { g.stop(g.counts(x.index, s)) }
	return x.readHere(ctx)
}

// readHere sums the partition until the context ends, which is no error, and leaves nothing of an
// open step.
func (x *leafReader) readHere(ctx context.Context) error {
	while, stop := context.WithCancel(ctx)
	defer stop()
	var fetching sync.WaitGroup
	fetching.Go(func() { x.fetch.run(while) })
	err := x.run(while)
	if ctx.Err() != nil {
		err = nil // it waited for the end of a step, say; what else it met it meets again
	}
	stop()
	fetching.Wait()
	x.fetch.from.untroubled(x.fetch.what) // whoever reads on has troubles of his own
	for len(x.fetch.full) > 0 {
		(<-x.fetch.full).Release()
	}
	if sum := x.leaf.Abandon(); sum != nil {
		if err := sum.Reset(); err != nil {
			return err
		}
		x.free <- sum // has room for all there are
	}
	x.worked() // of the open step: it is read again
	return err
}

// counts takes note of the sum of a step that this instance has made. If another one has come
// too it must be the same.
func (g *mergeRoot) counts(index int, s *leafStep) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := &g.inbox[index]
	b.next = s.step + 1
	came, known := b.held[s.step]
	if delete(b.held, s.step); !known && !g.own[index] {
		return nil // nobody else has had it lately
	}
	data, err := s.sum.AppendBinary(nil)
	if err != nil {
		return err
	}
	b.know(s.step, sha256.Sum256(data))
	if known && !slices.Equal(came.sum, data) {
		return g.differs(index, s.step)
	}
	return nil
}

func (b *leafInbox) know(step uint64, hash [32]byte) {
	b.known[step] = hash
	delete(b.known, step-keptSums)
}

// differs is the halt where two instances have other sums of one step. With on_gap = "null" it is
// none, because records may be deleted between two readings, nor with schemas in a registry, which
// may have answered one of them and not the other: a record must not decide that the task halts.
func (g *mergeRoot) differs(index int, step uint64) error {
	if g.r.s.OnGap == "null" || g.r.s.Input.Looked() {
		return nil
	}
	return halted(haltMechanism, "two instances have summed step %d of partition %d, and their sums are not the same: the log is the same for all, so one of them computes wrongly; compare their hardware and versions before anything is opened again",
		step, g.partition(index))
}

// receive gives the merger the sums of a partition that another instance makes, until the context
// ends. It returns nil before that when no word comes of the partition.
func (g *mergeRoot) receive(ctx context.Context, x *leafReader) error {
	b := &g.inbox[x.index]
	timer := time.NewTimer(g.p.times.silence)
	defer timer.Stop()
	for {
		step := x.leaf.Step()
		var at boundary
		if x.until != nil {
			var err error
			if at, err = x.until(ctx, step); err == nil {
				err = x.leaf.Until(at.ends[x.index])
			}
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
		}
		g.mu.Lock()
		s := b.held[step]
		b.next = step
		left := g.p.times.silence - g.r.now().Sub(b.heard)
		g.mu.Unlock()
		if s == nil {
			if left <= 0 {
				return nil
			}
			timer.Reset(left)
			select {
			case <-ctx.Done():
				return nil
			case <-b.came:
			case <-timer.C:
			}
			continue
		}
		var sum *core.Sum
		select {
		case <-ctx.Done():
			return nil
		case sum = <-x.free:
		}
		err := sum.UnmarshalBinary(s.sum)
		if err == nil {
			err = x.leaf.Take(sum)
		}
		g.mu.Lock()
		delete(b.held, step)
		if err == nil && s.position.Next == x.leaf.First() {
			b.know(step, sha256.Sum256(s.sum))
			b.next = step + 1
		}
		g.mu.Unlock()
		if err != nil || s.position.Next != x.leaf.First() {
			// It was written under the group's key, so it is a fault, of memory or of a program.
			return halted(haltMechanism, "another instance has summed step %d of partition %d wrongly: %w", step, g.partition(x.index),
				errors.Join(err, errors.New("its sum is not one of this step")))
		}
		x.position = s.position
		x.show(x.leaf.First())
		x.unsent = &leafStep{step: step, sum: sum, position: s.position, boundary: at.at, work: s.work}
		select {
		case <-ctx.Done():
			return nil
		case x.sums <- *x.unsent:
			x.unsent = nil
		}
	}
}

// take takes a record for this root.
func (g *mergeRoot) take(h partHeader, content []byte) {
	if h.kind == partAlive {
		if a, err := parseMergeAlive(content); err == nil {
			g.alive(a)
		}
		return
	}
	if int(h.partition) >= len(g.inbox) {
		return
	}
	g.mu.Lock()
	err := g.takeSum(h, content)
	g.mu.Unlock()
	if err != nil {
		g.r.log.Error("sums of two instances differ", "error", err.Error())
		g.stop(err)
	}
}

// takeSum takes a piece of a sum.
func (g *mergeRoot) takeSum(h partHeader, content []byte) error {
	b := &g.inbox[h.partition]
	_, known := b.known[h.step]
	if h.step > g.step+g.ahead || h.step < b.next && !known {
		return nil // more than may wait, or too old to be compared
	}
	if h.pieces > 1 {
		w := b.pieces[h.step]
		if w == nil || len(w.have) != int(h.pieces) {
			w = &pieces{have: make([][]byte, h.pieces), left: int(h.pieces)}
			b.pieces[h.step] = w
		}
		if w.have[h.piece] == nil {
			w.have[h.piece] = content
			w.left--
		} else if !slices.Equal(w.have[h.piece], content) {
			w.have[h.piece] = content // of another worker: what is put together shows whether it is the same
		}
		b.heard = g.r.now()
		if w.left > 0 {
			return nil
		}
		delete(b.pieces, h.step)
		content = slices.Concat(w.have...)
	}
	s, err := parseMergeSum(content)
	if err != nil {
		return nil
	}
	if known {
		if b.known[h.step] != sha256.Sum256(s.sum) {
			return g.differs(int(h.partition), h.step)
		}
		return nil
	}
	if was := b.held[h.step]; was != nil {
		if !slices.Equal(was.sum, s.sum) {
			return g.differs(int(h.partition), h.step)
		}
		return nil
	}
	b.held[h.step] = s
	b.heard = g.r.now()
	signal(b.came)
	return nil
}

// alive takes the word of a worker. It counts for a partition unless the sum that is waited for
// was written before it and is not here.
func (g *mergeRoot) alive(a *mergeAlive) {
	team, _ := g.p.who()
	if a.generation != team.generation {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range a.at {
		if r.partition >= len(g.inbox) || team.reads(r.partition) != a.member || g.own[r.partition] {
			continue
		}
		x := g.m.leaves[r.partition]
		x.logStart.Store(r.logStart)
		x.logEnd.Store(r.logEnd)
		if b := &g.inbox[r.partition]; r.written < b.next || b.held[b.next] != nil {
			b.heard = g.r.now()
		}
	}
}

// merged takes note of a step that is merged, and of the positions behind it.
func (g *mergeRoot) merged(step uint64, at []partPosition) {
	if g == nil {
		return
	}
	g.mu.Lock()
	if n := min(step-g.step, uint64(len(g.ends))); n > 0 {
		g.ends = g.ends[n:]
	}
	g.step = step
	for i := range g.at {
		g.at[i] = at[i].position
	}
	for i := range g.inbox {
		for s := range g.inbox[i].pieces {
			if s <= step {
				delete(g.inbox[i].pieces, s)
			}
		}
	}
	close(g.moved)
	g.moved = make(chan struct{})
	g.mu.Unlock()
	signal(g.report)
}

// foresee finds where the next steps by the clock end, for workers that are ahead.
func (g *mergeRoot) foresee(ctx context.Context) error {
	for {
		g.mu.Lock()
		next, moved := g.step+uint64(len(g.ends))+1, g.moved
		full := uint64(len(g.ends)) > g.ahead || 8*(len(g.ends)+2)*len(g.inbox) > partPiece
		g.mu.Unlock()
		var came chan struct{}
		if !full {
			x, known, others, err := g.m.bounds.known(ctx, next)
			if err != nil {
				return err
			}
			if known {
				g.mu.Lock()
				if next == g.step+uint64(len(g.ends))+1 {
					g.ends = append(g.ends, x.ends)
				}
				g.mu.Unlock()
				signal(g.report)
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

// announce tells workers of the job, and how far it is, until the context ends.
func (g *mergeRoot) announce(ctx context.Context) {
	tick := time.NewTicker(g.p.times.announce)
	defer tick.Stop()
	whole := true
	for {
		team, changed := g.p.who()
		if team.shares() {
			written := make(chan struct{})
			if records := g.records(team, whole); records != nil && g.p.write(ctx, g.shard, records, func() { close(written) }) {
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

// records returns how far the job is, behind the job itself where that is wanted.
func (g *mergeRoot) records(team team, whole bool) (all [][]byte) {
	g.mu.Lock()
	h := partHeader{job: g.nonce, step: g.step, pieces: 1}
	job := &mergeJob{stream: g.r.s.Name, manifest: g.file, generation: team.generation, members: team.members, ahead: g.ahead}
	for i, p := range g.at {
		member := team.reads(i)
		if member == team.self || g.own[i] {
			member = noMember
		}
		job.at = append(job.at, mergePlace{member, p})
	}
	progress := mergeProgress{ends: slices.Clone(g.ends)}
	g.mu.Unlock()
	contents := map[byte][]byte{partProgress: progress.encode()}
	if whole {
		if contents[partJob] = job.encode(); len(contents[partJob]) > maxPartJob {
			g.r.log.Warn("the stream has too many partitions to be shared: it is read here")
			return nil
		}
	}
	for _, kind := range []byte{partJob, partProgress} {
		if content, wanted := contents[kind]; wanted {
			h.kind = kind
			record, err := g.seal.seal(h, content)
			if err != nil {
				return nil
			}
			all = append(all, record)
		}
	}
	return all
}
