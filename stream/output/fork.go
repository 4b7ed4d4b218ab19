package output

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Limits of the entries that a guard remembers, of about 150 bytes each. maxMade limits the hashes of releases that
// this state made; there are more of them than the outbox holds. maxFound limits the releases in the output that this
// state has not made yet. At that limit, reading pauses until the state has made some of them.
const (
	maxMade  = 16_000 // four times maxOutbox
	maxFound = 16_000
)

// ForkGuard compares all releases of a task in its output with those that this state makes. Two states may publish into
// one output, for example a directory and a copy of it. If each has a guard, one of them stops before it publishes a
// second release that the other did not make. The same bytes may appear twice under a key, if copies run alike or after
// a lost acknowledgement.
//
// Everything in the output below the offset next has been compared. The publisher compares everything from next to the
// end before each produce request, and after a request that was not appended at next.
type ForkGuard struct {
	*Output
	// input returns the ends of an epoch's input, by partition.
	input   func(context.Context, *ledger.Entry) (ends []int64, err error)
	opened  *ledger.Entry // the epoch's opening
	Epoch   uint64        // 0: none has begun
	horizon uint64        // last step; 0: none
	mech    *core.Mechanism
	next    int64                // everything below was compared; UnknownOutput: nothing was
	trusts  bool                 // every comparison accepts past releases that are unknown
	Bounds  *boundary.Boundaries // the epoch's boundaries, if steps are by the clock; else nil

	Mu            sync.Mutex
	step          uint64              // last step that the state closed
	made          *hashes             // hashes of this state's releases, of all epochs of this process
	Found         map[string]Found    // releases after step that the output holds
	steps         map[uint64]int      // number of these releases per step
	ahead         uint64              // largest step of these releases
	outboxSteps   map[uint64]bool     // steps of the outbox when the epoch began
	unfoundOutbox map[string]struct{} // keys of that outbox not found in the output yet
}

// Found is a release in the output that this state has not made yet.
type Found struct {
	hash [32]byte
	Step uint64
}

// hashes holds the hashes of the newest maxMade messages, by key.
type hashes struct {
	Of    map[string][32]byte
	Order []string // ring buffer once it is full
	at    int
}

func newHashes() *hashes { return &hashes{Of: map[string][32]byte{}} }

// Put adds the hash of a message, unless its key is known.
func (h *hashes) Put(key string, hash [32]byte) {
	if _, known := h.Of[key]; known {
		return
	}
	h.Of[key] = hash
	if len(h.Order) < maxMade {
		h.Order = append(h.Order, key)
		return
	}
	delete(h.Of, h.Order[h.at])
	h.Order[h.at], h.at = key, (h.at+1)%maxMade
}

// NewForkGuard returns the guard of a task's output, without an epoch. input returns the ends of an epoch's input
// partitions. A release whose records lie beyond them comes from another writer.
func NewForkGuard(o *Output, input func(context.Context, *ledger.Entry) ([]int64, error)) *ForkGuard {
	return &ForkGuard{Output: o, input: input, next: state.UnknownOutput, made: newHashes()}
}

// AcceptAll returns a guard for publishing releases of any epoch again. The caller has compared all of the output up to
// next. The guard accepts all releases that it reads.
func AcceptAll(o *Output, next int64) *ForkGuard {
	g := NewForkGuard(o, nil)
	g.reset(0)
	g.Epoch, g.next, g.trusts = math.MaxUint64, next, true
	return g
}

// Forget makes the guard ignore everything in the output from before the next epoch, because an operator asked for that
// epoch.
func (g *ForkGuard) Forget() {
	g.Epoch, g.next, g.made = 0, state.UnknownOutput, newHashes()
	g.reset(0)
}

func (g *ForkGuard) reset(step uint64) {
	g.step, g.ahead = step, 0
	g.Found, g.steps, g.unfoundOutbox = map[string]Found{}, map[uint64]int{}, map[string]struct{}{}
}

// Where marks a position in an output. Every release of the task below Offset was either sent by this process or
// compared with the one that this state computes.
type Where struct {
	Topic        string
	Partition    int
	Offset       int64
	Acknowledged bool // everything that the task sent is known to be in the output
}

// Begin compares the releases in the output since a checkpoint of an epoch. Releases after the checkpoint's step mean
// that the state is older than the output, for example a restored backup. Behind then returns true until the state has
// made them all, byte for byte. Releases up to that step are accepted without comparison if the checkpoint knows of
// them and this process did not make them. mech is nil if the ends of steps cannot be known. Begin returns, even with
// an error, the output position for the next checkpoint of the epoch.
func (g *ForkGuard) Begin(ctx context.Context, opened *ledger.Entry, horizon uint64, mech *core.Mechanism,
	cp *state.Checkpoint) (Where, error) {
	at := Where{cp.OutputTopic, cp.OutputPartition, cp.Output, cp.Acknowledged}
	g.Mu.Lock()
	successor := g.Epoch > 0 && g.Epoch < opened.Epoch && cp.Step == 0 && g.next != state.UnknownOutput
	g.opened, g.Epoch, g.horizon, g.mech = opened, opened.Epoch, horizon, mech
	g.reset(cp.Step)
	if !successor {
		g.made, g.next = newHashes(), cp.Output
	}
	g.outboxSteps = map[uint64]bool{}
	for i := range cp.Outbox {
		p := &cp.Outbox[i]
		g.outboxSteps[p.Step] = true
		g.made.Put(string(p.Key), core.ReleaseHash(p.Key, p.Value, p.Headers))
		g.unfoundOutbox[string(p.Key)] = struct{}{}
	}
	g.Mu.Unlock()
	if err := g.waitReady(ctx); err != nil {
		return at, err
	}
	if err := g.CheckEvidence(ctx, cp); err != nil {
		return at, err
	}
	if at.Topic != g.At.Topic || at.Partition != g.At.Partition {
		end, err := g.End(ctx)
		if err != nil {
			return at, err
		}
		// The old output is read completely, however much it holds.
		if err := g.compare(ctx, at.Topic, at.Partition, at.Offset, comparison{trust: !successor}); err != nil {
			return at, err
		}
		g.next, successor = state.UnknownOutput, false
		at = Where{g.At.Topic, g.At.Partition, end, false}
	}
	c := comparison{trust: !successor, Pause: true, acknowledged: !successor && at.Acknowledged}
	if err := g.compare(ctx, g.At.Topic, g.At.Partition, g.next, c); err != nil {
		return at, err
	}
	if at.Offset == state.UnknownOutput {
		at.Offset = 0 // the start: CheckEvidence has made sure that nothing was deleted there
	}
	return at, nil
}

// catchUp compares what was added to the output since the last comparison. If nothing was added, this costs one
// request, which tasks with the same output share.
func (g *ForkGuard) catchUp(ctx context.Context) error {
	if list, end, ok := g.Partition.since(ctx, g.Task, g.next); ok {
		return g.compareAdded(ctx, list, end)
	}
	end, err := g.End(ctx)
	if err != nil || end == g.next {
		return err
	}
	if end < g.next {
		// The topic was deleted and created again, or lost its end: read all of it.
		g.next = state.UnknownOutput
	}
	if err := g.compare(ctx, g.At.Topic, g.At.Partition, g.next, comparison{Pause: true}); err != nil {
		return err
	}
	if !g.paused() {
		g.next = max(g.next, end)
	}
	return g.Plausible(ctx)
}

// compareAdded compares the task's releases that were added to the output, up to the offset end.
func (g *ForkGuard) compareAdded(ctx context.Context, list []released, end int64) error {
	if end == g.next {
		return nil
	}
	c := comparison{g: g, topic: g.At.Topic, partition: g.At.Partition, trust: g.trusts, Pause: true}
	end, err := c.addAll(list, end)
	if err != nil {
		return err
	}
	if err := c.end(ctx, g.next); err != nil {
		return err
	}
	g.next = end
	return g.Plausible(ctx)
}

// recordSent records where messages of this state were appended. It compares messages that another writer appended
// before or between them. Messages of other tasks of this process are known to the Partition and are not compared.
func (g *ForkGuard) recordSent(ctx context.Context, parts []kafka.Appended) error {
	next, apart := g.next, false
	for _, p := range parts {
		if p.Base < next {
			// The topic was deleted and created again, or lost its end: read all of it.
			g.next = state.UnknownOutput
			return g.catchUp(ctx)
		}
		apart = apart || p.Base != next
		next = p.Base + int64(p.Count)
	}
	if !apart {
		g.next = next
		return nil
	}
	if list, end, ok := g.Partition.known(g.Task, g.next, next); ok {
		return g.compareAdded(ctx, list, end)
	}
	return g.catchUp(ctx)
}

// CheckClosed compares the output once more after an epoch has ended and before the next one begins.
func (g *ForkGuard) CheckClosed(ctx context.Context) error {
	if err := g.catchUp(ctx); err != nil {
		return err
	}
	if ahead, behind := g.Behind(); behind {
		return g.continuedElsewhere(g.Epoch, ahead)
	}
	return nil
}

// past is a release in the output whose hash this state has dropped.
type past struct {
	key  string
	hash [32]byte
}

// compare compares the task's releases in a partition from an offset on, with the options in c.
func (g *ForkGuard) compare(ctx context.Context, topic string, partition int, from int64, c comparison) error {
	c.g, c.topic, c.partition, c.trust = g, topic, partition, c.trust || g.trusts
	c.from = from
	next, whole, err := from, false, error(nil)
	if topic == g.At.Topic && partition == g.At.Partition {
		next, whole, err = g.Partition.readBacklog(ctx, g.Task, from, c.add,
			func(err error) { g.Failing("output", err) })
	}
	if whole || err != nil {
		g.Recovered("output")
	} else {
		err = g.Read(ctx, topic, partition, next, func(rec *kafka.Record) error {
			next = rec.Offset + 1
			if _, r, ok := releasedIn(rec, func(t core.Task) bool { return t == g.Task }); ok {
				return c.add(r)
			}
			return nil
		})
	}
	if err == nil {
		err = c.end(ctx, from)
	}
	if err == nil && c.Pause {
		g.next = next
	}
	return err
}

// paused reports whether reading stopped because maxFound releases are waiting to be made.
func (g *ForkGuard) paused() bool {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return len(g.Found) >= maxFound
}

// comparison is one run of compare.
//
// If trust is set, past releases that this process did not make are accepted; otherwise they must equal their first
// occurrence in the output. If acknowledged is set, reading begins at the last request that the checkpoint knows to be
// acknowledged. Steps before that request's first one are then old, and their releases are compared even with trust. If
// Pause is set, reading stops when maxFound releases wait to be made, and g.next is the offset where it stopped.
type comparison struct {
	g                          *ForkGuard
	topic                      string
	partition                  int
	trust, acknowledged, Pause bool
	from                       int64  // the offset where reading begins
	first                      uint64 // first step of the acknowledged request; 0: unknown
	old                        []past
}

// addAll compares the task's next releases. list must hold all of them up to the offset end. It returns the offset that
// it reached.
func (c *comparison) addAll(list []released, end int64) (next int64, err error) {
	for i := range list {
		if err := c.add(list[i]); errors.Is(err, failure.ErrStop) {
			return list[i].Offset + 1, nil
		} else if err != nil {
			return 0, err
		}
	}
	return end, nil
}

// add compares the next release in the output.
func (c *comparison) add(r released) error {
	g := c.g
	if c.acknowledged && r.Offset == c.from && r.epoch == g.Epoch {
		c.first = r.Step
	}
	key, hash, epoch, step := r.key, r.hash, r.epoch, r.Step
	if epoch > g.Epoch || epoch < g.Epoch && g.Ledger.Opening(g.Task, epoch) == nil {
		return g.UnknownEpoch(epoch)
	}
	g.Mu.Lock()
	defer g.Mu.Unlock()
	if was, known := g.made.Of[key]; known {
		if was != hash {
			return g.Differs(key)
		}
		delete(g.unfoundOutbox, key)
		return nil
	}
	if was, known := g.Found[key]; known {
		if was.hash != hash {
			return g.Differs(key)
		}
		return nil
	}
	switch {
	case epoch == g.Epoch && step > g.step:
		if g.horizon > 0 && step > g.horizon {
			return failure.Haltf(failure.OutputAhead,
				"%s/%d holds step %d of epoch %d, but the epoch ends with step %d: another writer published that "+
					"step; %s",
				c.topic, c.partition, step, epoch, g.horizon, g.wayOut())
		}
		g.Found[key] = Found{hash, step}
		g.steps[step]++
		g.ahead = max(g.ahead, step)
		if c.Pause && len(g.Found) >= maxFound {
			return failure.ErrStop
		}
	case c.trust && (epoch < g.Epoch || step >= c.first && !g.outboxSteps[step]):
		// The checkpoint's state made this release, but the outbox does not hold it. So the broker acknowledged it, or
		// another copy had published the same bytes before.
		g.made.Put(key, hash)
	default:
		c.old = append(c.old, past{key, hash})
		if len(c.old) >= maxFound {
			return g.unknown(key)
		}
	}
	return nil
}

// end compares the releases that add could not compare. from is the offset at which reading began.
func (c *comparison) end(ctx context.Context, from int64) error {
	if len(c.old) == 0 {
		return nil
	}
	return c.g.compareOld(ctx, from, c.old)
}

// compareOld handles releases that this state made so long ago that it has dropped their hashes. It compares them with
// their first occurrences in the output below the offset `before`.
func (g *ForkGuard) compareOld(ctx context.Context, before int64, old []past) error {
	if before == state.UnknownOutput {
		return g.unknown(old[0].key)
	}
	first := map[string][32]byte{}
	for _, p := range old {
		if _, known := first[p.key]; !known {
			first[p.key] = [32]byte{}
		}
	}
	missing := len(first)
	err := g.Read(ctx, g.At.Topic, g.At.Partition, state.UnknownOutput, func(rec *kafka.Record) error {
		if rec.Offset >= before {
			return failure.ErrStop
		}
		t, _, _, ok := core.ParseIdentity(rec.Key)
		if !ok || t != g.Task {
			return nil
		}
		hash := core.ReleaseHash(rec.Key, rec.Value, rec.Headers)
		g.Mu.Lock()
		g.made.Put(string(rec.Key), hash) // remember it: a copy that is behind may publish further old releases
		g.Mu.Unlock()
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
			return g.Differs(p.key)
		}
	}
	return nil
}

// Plausible halts if the output has a step whose records are not in the log yet, or whose boundary is not in the
// boundary topic.
func (g *ForkGuard) Plausible(ctx context.Context) error {
	ahead, behind := g.Behind()
	if !behind || g.mech == nil {
		return nil
	}
	if g.Bounds != nil {
		newest, err := g.Bounds.Newest(ctx)
		if err != nil {
			return err
		}
		if newest < ahead {
			return failure.Haltf(failure.OutputAhead,
				"%s/%d holds step %d of epoch %d, but boundary topic %s holds boundaries up to step %d: another "+
					"writer published that release, or the topic lost records; %s",
				g.At.Topic, g.At.Partition, ahead, g.Epoch, g.Bounds.Topic(), newest, g.wayOut())
		}
	}
	ends, err := g.input(ctx, g.opened)
	if err != nil {
		return err
	}
	for i, v := range g.opened.Views() {
		if at := core.EndsAtLeast(g.mech, ahead, len(ends), v.First); at < 0 || at > ends[i] {
			return failure.Haltf(failure.OutputAhead,
				"%s/%d holds step %d of epoch %d, but records of that step are not in the input: %s/%d ends at "+
					"offset %d; another writer published that release, or the input was replaced; %s",
				g.At.Topic, g.At.Partition, ahead, g.Epoch, v.Topic, v.Partition, ends[i], g.wayOut())
		}
	}
	return nil
}

// Behind reports whether the output has releases that this state has not made yet, and their largest step. While it has
// some, nothing may be published.
func (g *ForkGuard) Behind() (ahead uint64, behind bool) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.ahead, len(g.Found) > 0
}

// StillBehind is Behind for the whole output: once the state has made the releases found so far, StillBehind compares
// the rest.
func (g *ForkGuard) StillBehind(ctx context.Context) (bool, error) {
	_, behind := g.Behind()
	if !behind {
		if err := g.catchUp(ctx); err != nil {
			return false, err
		}
		_, behind = g.Behind()
	}
	return behind, nil
}

// Unsent returns the messages of an outbox that were not in the output when the epoch began.
func (g *ForkGuard) Unsent(outbox []state.Message) (left []state.Message) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	for _, p := range outbox {
		if _, unfound := g.unfoundOutbox[string(p.Key)]; unfound {
			left = append(left, p)
		}
	}
	return left
}

// Closed records a step that the state has closed, and the step's messages. It returns those messages that the output
// does not have.
func (g *ForkGuard) Closed(step uint64, messages []core.Message) (missing []core.Message, err error) {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	g.step = step
	missing = messages[:0]
	for _, m := range messages {
		key, hash := string(m.Key), core.ReleaseHash(m.Key, m.Value, m.Headers)
		was, out := g.Found[key]
		if before, again := g.made.Of[key]; out && was.hash != hash || again && before != hash {
			return nil, g.Differs(key)
		}
		g.made.Put(key, hash)
		if !out {
			missing = append(missing, m)
			continue
		}
		delete(g.Found, key)
		if g.steps[step]--; g.steps[step] == 0 {
			delete(g.steps, step)
		}
	}
	if g.steps[step] > 0 {
		for key, f := range g.Found {
			if f.Step == step {
				return nil, g.unknown(key)
			}
		}
	}
	return missing, nil
}

// unknown returns the halt for a release that this state did not make.
func (g *ForkGuard) unknown(key string) error {
	return failure.Haltf(failure.OutputAhead,
		"%s/%d holds release %s, which this state did not make: another copy of the state is running, or another "+
			"writer published the release; %s",
		g.At.Topic, g.At.Partition, key, g.wayOut())
}

// Incomplete returns the halt for an output that has a later step but lacks many releases before it.
func (g *ForkGuard) Incomplete() error {
	ahead, _ := g.Behind()
	return failure.Haltf(failure.OutputAhead,
		"%s/%d holds step %d of epoch %d but lacks many releases before it: another writer published that step, or "+
			"the output lost releases; %s",
		g.At.Topic, g.At.Partition, ahead, g.Epoch, g.wayOut())
}

// continuedElsewhere returns the halt for an epoch that has ended here but continues elsewhere.
func (g *ForkGuard) continuedElsewhere(epoch, step uint64) error {
	return failure.Haltf(failure.OutputAhead,
		"%s/%d holds step %d of epoch %d, but this state has ended that epoch: another copy of the state continues "+
			"it; %s",
		g.At.Topic, g.At.Partition, step, epoch, g.wayOut())
}

// ErrBehind says that nothing may be published until the output has been compared.
var ErrBehind = errors.New("the output is ahead of this state")
