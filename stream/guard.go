package stream

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// How much a guard remembers, about 150 bytes each: hashes of releases that this state made,
// more than the outbox holds; and of releases in the output that it has not made yet. Beyond
// the second limit, reading pauses until they have been made.
const (
	maxMade  = 16_000 // four times maxOutbox
	maxFound = 16_000
)

// guard compares all releases of a task in its output with those that this state makes. Two
// states may publish into one output, for example a directory and a copy of it. With a guard
// in each, one of them stops before its second release that the other one did not make. The
// same bytes of a key may come twice: from copies that run alike, or after a lost
// acknowledgement.
//
// next is the output offset below which everything was compared. Before each request, the
// publisher reads on from there to the end. It does so too after a request whose messages did
// not go to next.
type guard struct {
	*output
	input   func(context.Context, *Entry) (ends []int64, err error) // of an epoch's input, by partition
	opened  *Entry                                                  // of the epoch
	epoch   uint64                                                  // 0: none was begun
	horizon uint64                                                  // last step, 0: none
	mech    *core.Mechanism
	next    int64       // unknownOutput: not looked at
	trusts  bool        // compare trusts always
	bounds  *boundaries // of the epoch's steps by the clock; nil: they are not

	mu    sync.Mutex
	step  uint64              // last step that the state closed
	made  *hashes             // of this state's releases, of all epochs of this process
	found map[string]found    // releases after step that the output holds
	steps map[uint64]int      // how many of them a step has
	ahead uint64              // the largest step of them
	owes  map[uint64]bool     // steps of the outbox that began the epoch
	owed  map[string]struct{} // keys of the outbox that began the epoch, until they are found
}

// found is a release in the output that this state has not made yet.
type found struct {
	hash [32]byte
	step uint64
}

// hashes are the hashes of the newest maxMade messages, by key.
type hashes struct {
	of    map[string][32]byte
	order []string // a ring once it is full
	at    int
}

func newHashes() *hashes { return &hashes{of: map[string][32]byte{}} }

func (h *hashes) put(key string, hash [32]byte) {
	if _, known := h.of[key]; known {
		return
	}
	h.of[key] = hash
	if len(h.order) < maxMade {
		h.order = append(h.order, key)
		return
	}
	delete(h.of, h.order[h.at])
	h.order[h.at], h.at = key, (h.at+1)%maxMade
}

func newGuard(o *output, input func(context.Context, *Entry) ([]int64, error)) *guard {
	return &guard{output: o, input: input, next: unknownOutput, made: newHashes()}
}

// lenient returns a guard for publishing releases of any epoch again, after all of the output
// up to next has been compared. It accepts the releases that it reads.
func lenient(o *output, next int64) *guard {
	g := newGuard(o, nil)
	g.reset(0)
	g.epoch, g.next, g.trusts = math.MaxUint64, next, true
	return g
}

// forget makes the guard ignore what is in the output before the next epoch begins. An
// operator who saw it asked for that epoch.
func (g *guard) forget() {
	g.epoch, g.next, g.made = 0, unknownOutput, newHashes()
	g.reset(0)
}

func (g *guard) reset(step uint64) {
	g.step, g.ahead = step, 0
	g.found, g.steps, g.owed = map[string]found{}, map[uint64]int{}, map[string]struct{}{}
}

// begin compares what the output holds since a checkpoint of an epoch. Releases after
// the checkpoint's step mean that the state is older than the world, a restored backup:
// then behind is true until it has made them all, byte for byte. What it published
// before, as far as the checkpoint knows, is taken from the output where this process did
// not make it. mech is nil where the steps can't be known.
func (g *guard) begin(ctx context.Context, opened *Entry, horizon uint64, mech *core.Mechanism, cp *checkpoint) error {
	g.mu.Lock()
	successor := g.epoch > 0 && g.epoch < opened.Epoch && cp.step == 0 && g.next != unknownOutput
	g.opened, g.epoch, g.horizon, g.mech = opened, opened.Epoch, horizon, mech
	g.reset(cp.step)
	if !successor {
		g.made, g.next = newHashes(), cp.output
	}
	g.owes = map[uint64]bool{}
	for i := range cp.outbox {
		p := &cp.outbox[i]
		g.owes[p.Step] = true
		g.made.put(string(p.Key), core.ReleaseHash(p.Key, p.Value, p.Headers))
		g.owed[string(p.Key)] = struct{}{}
	}
	g.mu.Unlock()
	if err := g.there(ctx); err != nil {
		return err
	}
	if err := g.whole(ctx, cp); err != nil {
		return err
	}
	if cp.outputTopic != g.at.Topic || cp.outputPartition != g.at.Partition {
		end, err := g.end(ctx)
		if err != nil {
			return err
		}
		// The old output is read at once, whatever it holds.
		if err := g.compare(ctx, cp.outputTopic, cp.outputPartition, cp.output, comparison{trust: !successor}); err != nil {
			return err
		}
		g.next, successor = unknownOutput, false
		cp.outputTopic, cp.outputPartition, cp.output, cp.acknowledged = g.at.Topic, g.at.Partition, end, false
	}
	c := comparison{trust: !successor, pause: true, acknowledged: !successor && cp.acknowledged}
	if err := g.compare(ctx, g.at.Topic, g.at.Partition, g.next, c); err != nil {
		return err
	}
	if cp.output == unknownOutput {
		cp.output = 0 // where it starts: whole has seen that nothing of it is gone
	}
	return nil
}

// catchUp compares what the output has gained since the last look. If it gained nothing, that
// costs one request, which tasks with the same output share.
func (g *guard) catchUp(ctx context.Context) error {
	if list, end, ok := g.tail.since(ctx, g.task, g.next); ok {
		return g.gained(ctx, list, end)
	}
	end, err := g.end(ctx)
	if err != nil || end == g.next {
		return err
	}
	if end < g.next {
		// It was deleted and made again, or lost its end: read all of it.
		g.next = unknownOutput
	}
	if err := g.compare(ctx, g.at.Topic, g.at.Partition, g.next, comparison{pause: true}); err != nil {
		return err
	}
	if !g.paused() {
		g.next = max(g.next, end)
	}
	return g.plausible(ctx)
}

// gained compares what the output has gained of the task's releases up to an offset.
func (g *guard) gained(ctx context.Context, list []released, end int64) error {
	if end == g.next {
		return nil
	}
	c := comparison{g: g, topic: g.at.Topic, partition: g.at.Partition, trust: g.trusts, pause: true}
	end, err := c.addAll(list, end)
	if err != nil {
		return err
	}
	if err := c.end(ctx, g.next); err != nil {
		return err
	}
	g.next = end
	return g.plausible(ctx)
}

// wrote records where messages of this state went. It compares the messages that others wrote
// before them or between them. What other tasks of this process wrote there the tail knows.
func (g *guard) wrote(ctx context.Context, parts []kafka.Appended) error {
	next, apart := g.next, false
	for _, p := range parts {
		if p.Base < next {
			// The output was deleted and made again, or lost its end: read all of it.
			g.next = unknownOutput
			return g.catchUp(ctx)
		}
		apart = apart || p.Base != next
		next = p.Base + int64(p.Count)
	}
	if !apart {
		g.next = next
		return nil
	}
	if list, end, ok := g.tail.known(g.task, g.next, next); ok {
		return g.gained(ctx, list, end)
	}
	return g.catchUp(ctx)
}

// closedWhole compares once more after an epoch has ended, before another begins.
func (g *guard) closedWhole(ctx context.Context) error {
	if err := g.catchUp(ctx); err != nil {
		return err
	}
	if ahead, behind := g.behind(); behind {
		return g.goesOn(g.epoch, ahead)
	}
	return nil
}

// past is a release in the output whose hash this state has dropped.
type past struct {
	key  string
	hash [32]byte
}

// compare compares a partition's releases from an offset on, as c says.
func (g *guard) compare(ctx context.Context, topic string, partition int, from int64, c comparison) error {
	c.g, c.topic, c.partition, c.trust = g, topic, partition, c.trust || g.trusts
	c.from = from
	next, whole, err := from, false, error(nil)
	if topic == g.at.Topic && partition == g.at.Partition {
		next, whole, err = g.tail.history(ctx, g.task, from, c.add, func(err error) { g.troubled("output", err) })
	}
	if whole || err != nil {
		g.untroubled("output")
	} else {
		err = g.read(ctx, topic, partition, next, func(rec *kafka.Record) error {
			next = rec.Offset + 1
			if _, r, ok := releasedIn(rec, func(t core.Task) bool { return t == g.task }); ok {
				return c.add(r)
			}
			return nil
		})
	}
	if err == nil {
		err = c.end(ctx, from)
	}
	if err == nil && c.pause {
		g.next = next
	}
	return err
}

// paused reports whether reading ended because maxFound releases are still to come.
func (g *guard) paused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.found) >= maxFound
}

// comparison is one run of compare.
//
// If trust is set, it accepts past releases that this process did not make; otherwise these
// must be the same as their first occurrence in the output. If acknowledged is set, reading
// begins with the last request that a checkpoint knows to be acknowledged: then steps of the
// epoch before that request's are not new there either, and are not accepted unseen. If pause
// is set, reading ends when maxFound releases are still to come, and g.next says where.
type comparison struct {
	g                          *guard
	topic                      string
	partition                  int
	trust, acknowledged, pause bool
	from                       int64  // where it begins
	first                      uint64 // step that the acknowledged request begins with, 0: unknown
	old                        []past
}

// addAll compares the next releases, which are all up to an offset. It returns how far it came.
func (c *comparison) addAll(list []released, end int64) (next int64, err error) {
	for i := range list {
		if err := c.add(list[i]); errors.Is(err, errStop) {
			return list[i].offset + 1, nil
		} else if err != nil {
			return 0, err
		}
	}
	return end, nil
}

// add compares the next release in the output.
func (c *comparison) add(r released) error {
	g := c.g
	if c.acknowledged && r.offset == c.from && r.epoch == g.epoch {
		c.first = r.step
	}
	key, hash, epoch, step := r.key, r.hash, r.epoch, r.step
	if epoch > g.epoch || epoch < g.epoch && g.ledger.opening(g.task, epoch) == nil {
		return g.unknownEpoch(epoch)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if was, known := g.made.of[key]; known {
		if was != hash {
			return g.differs(key)
		}
		delete(g.owed, key)
		return nil
	}
	if was, known := g.found[key]; known {
		if was.hash != hash {
			return g.differs(key)
		}
		return nil
	}
	switch {
	case epoch == g.epoch && step > g.step:
		if g.horizon > 0 && step > g.horizon {
			return halted(haltOutput, "%s/%d holds step %d of epoch %d, which ends with step %d: another writer made it; %s",
				c.topic, c.partition, step, epoch, g.horizon, g.wayOut())
		}
		g.found[key] = found{hash, step}
		g.steps[step]++
		g.ahead = max(g.ahead, step)
		if c.pause && len(g.found) >= maxFound {
			return errStop
		}
	case c.trust && (epoch < g.epoch || step >= c.first && !g.owes[step]):
		// The checkpoint's state has made it and does not owe it: it was acknowledged,
		// or another copy had published the same bytes before.
		g.made.put(key, hash)
	default:
		c.old = append(c.old, past{key, hash})
		if len(c.old) >= maxFound {
			return g.unknown(key)
		}
	}
	return nil
}

// end compares what add could not, in an output that was read from an offset on.
func (c *comparison) end(ctx context.Context, from int64) error {
	if len(c.old) == 0 {
		return nil
	}
	return c.g.compareOld(ctx, from, c.old)
}

// compareOld compares releases that this state made so long ago that it has dropped their
// hashes. It compares them with their first occurrences before that.
func (g *guard) compareOld(ctx context.Context, before int64, old []past) error {
	if before == unknownOutput {
		return g.unknown(old[0].key)
	}
	first := map[string][32]byte{}
	for _, p := range old {
		if _, known := first[p.key]; !known {
			first[p.key] = [32]byte{}
		}
	}
	missing := len(first)
	err := g.read(ctx, g.at.Topic, g.at.Partition, unknownOutput, func(rec *kafka.Record) error {
		if rec.Offset >= before {
			return errStop
		}
		t, _, _, ok := core.ParseIdentity(rec.Key)
		if !ok || t != g.task {
			return nil
		}
		hash := core.ReleaseHash(rec.Key, rec.Value, rec.Headers)
		g.mu.Lock()
		g.made.put(string(rec.Key), hash) // a copy that is behind has others, too
		g.mu.Unlock()
		if was, asked := first[string(rec.Key)]; asked && was == [32]byte{} {
			first[string(rec.Key)] = hash
			missing--
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range old {
		switch first[p.key] {
		case p.hash:
		case [32]byte{}:
			return g.unknown(p.key)
		default:
			return g.differs(p.key)
		}
	}
	return nil
}

// plausible halts if the output has a step whose records are not in the log yet, or that
// nobody has set a boundary.
func (g *guard) plausible(ctx context.Context) error {
	ahead, behind := g.behind()
	if !behind || g.mech == nil {
		return nil
	}
	if g.bounds != nil {
		newest, err := g.bounds.newest(ctx)
		if err != nil {
			return err
		}
		if newest < ahead {
			return halted(haltOutput, "%s/%d holds step %d of epoch %d, and boundary topic %s holds boundaries up to step %d: another writer made that release, or the topic lost records; %s",
				g.at.Topic, g.at.Partition, ahead, g.epoch, g.bounds.topic, newest, g.wayOut())
		}
	}
	ends, err := g.input(ctx, g.opened)
	if err != nil {
		return err
	}
	for i, v := range g.opened.views() {
		if at := core.EndsAtLeast(g.mech, ahead, len(ends), v.First); at < 0 || at > ends[i] {
			return halted(haltOutput, "%s/%d holds step %d of epoch %d, whose records the input does not have: %s/%d ends at offset %d; another writer made that release, or the input was replaced; %s",
				g.at.Topic, g.at.Partition, ahead, g.epoch, v.Topic, v.Partition, ends[i], g.wayOut())
		}
	}
	return nil
}

// behind reports whether the output has releases that this state has yet to make, and the
// largest step of them. Then nothing is published.
func (g *guard) behind() (ahead uint64, behind bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ahead, len(g.found) > 0
}

// stillBehind is behind for the rest of the output, after the releases found so far have been
// made.
func (g *guard) stillBehind(ctx context.Context) (bool, error) {
	_, behind := g.behind()
	if !behind {
		if err := g.catchUp(ctx); err != nil {
			return false, err
		}
		_, behind = g.behind()
	}
	return behind, nil
}

// unsent returns the messages of an outbox that the output did not have when the epoch was
// begun.
func (g *guard) unsent(outbox []pending) (left []pending) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range outbox {
		if _, owed := g.owed[string(p.Key)]; owed {
			left = append(left, p)
		}
	}
	return left
}

// closed records a step that the state has closed, and its messages. It returns the messages
// that the output does not have.
func (g *guard) closed(step uint64, messages []core.Message) (missing []core.Message, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.step = step
	missing = messages[:0]
	for _, m := range messages {
		key, hash := string(m.Key), core.ReleaseHash(m.Key, m.Value, m.Headers)
		was, out := g.found[key]
		if before, again := g.made.of[key]; out && was.hash != hash || again && before != hash {
			return nil, g.differs(key)
		}
		g.made.put(key, hash)
		if !out {
			missing = append(missing, m)
			continue
		}
		delete(g.found, key)
		if g.steps[step]--; g.steps[step] == 0 {
			delete(g.steps, step)
		}
	}
	if g.steps[step] > 0 {
		for key, f := range g.found {
			if f.step == step {
				return nil, g.unknown(key)
			}
		}
	}
	return missing, nil
}

// unknown is the halt of a release that this state did not make.
func (g *guard) unknown(key string) error {
	return halted(haltOutput, "%s/%d holds release %s, which this state did not make: another copy of it goes on, or another writer made it; %s",
		g.at.Topic, g.at.Partition, key, g.wayOut())
}

// incomplete is the halt of a state whose output has a later step and lacks many releases
// before it.
func (g *guard) incomplete() error {
	ahead, _ := g.behind()
	return halted(haltOutput, "%s/%d holds step %d of epoch %d, and lacks many releases before it: another writer made that one, or the output lost them; %s",
		g.at.Topic, g.at.Partition, ahead, g.epoch, g.wayOut())
}

// goesOn is the halt of a state whose epoch has ended, and continues elsewhere.
func (g *guard) goesOn(epoch, step uint64) error {
	return halted(haltOutput, "%s/%d holds step %d of epoch %d, which ended before: another copy of this state goes on with it; %s",
		g.at.Topic, g.at.Partition, step, epoch, g.wayOut())
}

// errBehind says that nothing may be published before the output has been compared.
var errBehind = errors.New("the output is ahead of this state")
