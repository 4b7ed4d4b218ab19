package stream

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/shardlog"
)

// fencedLogs are a shard's two logs. Only who fenced last may write, unless they are loose: then
// they take what anybody writes, as from producers without transactions.
type fencedLogs struct {
	loose         bool
	mu            sync.Mutex
	fence         int
	state, ledger []shardlog.Record
}

// fencedLog is one owner's way to them.
type fencedLog struct {
	*fencedLogs
	mine int
}

var errFenced = errors.New("fenced")

func (l *fencedLog) Confirm(context.Context) error { return nil }

func (l *fencedLog) Fence(context.Context, time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence++
	l.mine = l.fence
	return nil
}

func (l *fencedLog) Commit(_ context.Context, state, ledger []shardlog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mine != l.fence && !l.loose {
		return errFenced
	}
	l.state, l.ledger = append(l.state, state...), append(l.ledger, ledger...)
	return nil
}

func (l *fencedLog) ReadState(_ context.Context, each func(shardlog.Record) error) error {
	return l.read(&l.state, each)
}

func (l *fencedLog) ReadLedger(_ context.Context, each func(shardlog.Record) error) error {
	return l.read(&l.ledger, each)
}

func (l *fencedLog) read(list *[]shardlog.Record, each func(shardlog.Record) error) error {
	l.mu.Lock()
	records := slices.Clone(*list)
	l.mu.Unlock()
	for _, r := range records {
		if err := each(r); err != nil {
			return err
		}
	}
	return nil
}

func (l *fencedLog) Close() {}

// TestOwners: a shard is taken away from instances that run on and know nothing of it. Each takes
// the records that come then, and closes an epoch and opens the next one, with a secret of its own.
// None but the last owner's is released, and each release once.
func TestOwners(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	must(t, err)
	t.Cleanup(b.Close)
	r := newRigAt(t, b, b.Addr(), rolloverStream)
	r.commit, r.real = "0s", true
	logs := &fencedLogs{}
	key := InsecureKey(r.seed)
	options := shardlog.Options{Genesis: shardlog.Genesis{Group: "g", Shards: 1, Assign: "partition", Cluster: "c", Key: credentials.KeyID(key)}, Master: key, Instance: "one"}
	_, err = shardlog.Create(t.Context(), &fencedLog{fencedLogs: logs}, options)
	must(t, err)
	var before []*running
	offset := 0
	for _, owner := range []struct {
		records int
		steps   int // of all epochs, in the end
	}{{25, 2}, {20, 4}, {15, 6}, {15, 7}} {
		held, err := shardlog.Acquire(t.Context(), &fencedLog{fencedLogs: logs}, options)
		must(t, err)
		t.Cleanup(held.Close)
		one := r.sibling(r.toml)
		one.shared = held
		x := one.start()
		x.until("the shard is taken up", func(s TaskStatus) bool { return s.State == stateRunning })
		r.produce(offset, owner.records)
		offset += owner.records
		x.until("the records are released", func(s TaskStatus) bool {
			return int(s.Epoch-1)*3+int(s.Step) == owner.steps && s.Outbox == 0 && s.NextOffset == int64(offset)
		})
		for _, old := range before {
			select {
			case <-old.done:
			case <-time.After(patience):
				t.Fatalf("an owner that was fenced goes on: %+v", old.d.Status()[0])
			}
			if !errors.Is(old.result, errLost) {
				t.Errorf("an owner that was fenced ended with %v", old.result)
			}
		}
		before = []*running{x}
	}
	before[0].stop()
	must(t, before[0].ends())
	v := judge(t, r.output("orders.dp"))
	v.faultless(t)
	if len(v.bytes) != scenarioSteps {
		t.Errorf("%d releases, want %d", len(v.bytes), scenarioSteps)
	}
	seen, err := shardlog.Read(t.Context(), &fencedLog{fencedLogs: logs}, options)
	must(t, err)
	var file []byte
	for _, line := range seen.Lines {
		file = append(append(file, line...), '\n')
	}
	l, err := parseLedger(file, newLedgerKey(key))
	must(t, err)
	kinds := map[string]int{}
	for _, e := range l.entries {
		kinds[e.Kind]++
	}
	if kinds[kindOpen] != 3 || kinds[kindVoid] != 0 || kinds[kindClose] != 2 {
		t.Errorf("the ledger has %v", kinds)
	}
	for key, v := range seen.Values {
		if v.Under != "" && v.Under != "orders-0/secret-3" {
			t.Errorf("%s is left, under %s", key, v.Under)
		}
	}
}

// TestOwnersNoFence is the control: two owners of a shard whose logs take what anybody writes, with
// an output each, so that neither is stopped by what the other has published. Both open the first
// epoch, and publish releases with two noises. If the judge finds none, TestOwners shows nothing.
func TestOwnersNoFence(t *testing.T) {
	t.Parallel()
	r := newRig(t, rolloverStream)
	r.commit, r.real = "0s", true
	logs, key := &fencedLogs{loose: true}, InsecureKey(r.seed)
	options := shardlog.Options{Genesis: shardlog.Genesis{Group: "g", Shards: 1, Assign: "partition", Cluster: "c", Key: credentials.KeyID(key)}, Master: key, Instance: "one"}
	_, err := shardlog.Create(t.Context(), &fencedLog{fencedLogs: logs}, options)
	must(t, err)
	var owners []*rig
	for _, out := range []string{"orders.dp", "other.dp"} { // neither has opened anything when the other acquires the shard
		held, err := shardlog.Acquire(t.Context(), &fencedLog{fencedLogs: logs}, options)
		must(t, err)
		t.Cleanup(held.Close)
		one := r.sibling(with(r.toml, `"orders.dp"`, strconv.Quote(out)))
		one.shared = held
		owners = append(owners, one)
	}
	running := func(s TaskStatus) bool { return s.Epoch == 1 && s.State == stateRunning }
	x, y := owners[0].start(), owners[1].start()
	x.until("epoch 1", running)
	y.until("epoch 1", running)
	r.produce(0, 25)
	x.published(2)
	y.published(2)
	v := judge(t, slices.Concat(r.output("orders.dp"), r.output("other.dp")))
	if len(v.forks) != 2 {
		t.Errorf("of two steps that two owners released, %d have two values", len(v.forks))
	}
}
