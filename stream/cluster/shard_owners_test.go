package cluster_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
)

// fencedLogs are a shard's two logs. Only the owner that fenced last may write, unless they are loose: then they accept
// all writes, like those of producers without transactions.
type fencedLogs struct {
	loose         bool
	mu            sync.Mutex
	fence         int
	state, ledger []shardlog.Record
}

// fencedLog is one owner's access to the logs.
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

// TestOwners: a shard moves to other instances, but its former owners keep running and do not know it. Each of them
// reads the new records, closes an epoch and opens the next one with its own secret. Only the last owner's releases are
// published, each once.
func TestOwners(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	fixtures.Must(t, err)
	t.Cleanup(b.Close)
	r := streamtest.NewRigAt(t, b, b.Addr(), fixtures.RolloverStream)
	r.Commit, r.Real = "0s", true
	logs := &fencedLogs{}
	key := connect.InsecureKey(r.Seed)
	options := shardlog.Options{
		Genesis: shardlog.Genesis{Group: "g", Shards: 1, Assign: "partition", Cluster: "c",
			Key: credentials.KeyID(key)}, Master: key, Instance: "one"}
	_, err = shardlog.Create(t.Context(), &fencedLog{fencedLogs: logs}, options)
	fixtures.Must(t, err)
	var before []*streamtest.Running
	offset := 0
	for _, owner := range []struct {
		records int
		steps   int // of all epochs, in total
	}{{25, 2}, {20, 4}, {15, 6}, {15, 7}} {
		held, err := shardlog.Acquire(t.Context(), &fencedLog{fencedLogs: logs}, options)
		fixtures.Must(t, err)
		t.Cleanup(held.Close)
		one := r.Sibling(r.Toml)
		one.Shared = held
		x := one.Start()
		x.Until("the shard is taken up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		r.Produce(offset, owner.records)
		offset += owner.records
		x.Until("the records are released", func(s monitor.TaskStatus) bool {
			return int(s.Epoch-1)*3+int(s.Step) == owner.steps && s.Outbox == 0 && s.NextOffset == int64(offset)
		})
		for _, old := range before {
			select {
			case <-old.Done:
			case <-time.After(fixtures.Patience):
				t.Fatalf("an owner that was fenced keeps running: %+v", old.D.Status()[0])
			}
			if !errors.Is(old.Result, cluster.ErrLost) {
				t.Errorf("an owner that was fenced ended with %v", old.Result)
			}
		}
		before = []*streamtest.Running{x}
	}
	before[0].Stop()
	fixtures.Must(t, before[0].Ends())
	v := streamtest.Judge(t, r.Output("orders.dp"))
	v.Faultless(t)
	if len(v.Bytes) != fixtures.ScenarioSteps {
		t.Errorf("%d releases, want %d", len(v.Bytes), fixtures.ScenarioSteps)
	}
	seen, err := shardlog.Read(t.Context(), &fencedLog{fencedLogs: logs}, options)
	fixtures.Must(t, err)
	var file []byte
	for _, line := range seen.Lines {
		file = append(append(file, line...), '\n')
	}
	l, err := ledger.Parse(file, ledger.NewKey(key))
	fixtures.Must(t, err)
	kinds := map[string]int{}
	for _, e := range l.Entries {
		kinds[e.Kind]++
	}
	if kinds[ledger.KindOpen] != 3 || kinds[ledger.KindVoid] != 0 || kinds[ledger.KindClose] != 2 {
		t.Errorf("the ledger has %v", kinds)
	}
	for key, v := range seen.Values {
		if v.Under != "" && v.Under != "orders-0/secret-3" {
			t.Errorf("%s is left, under %s", key, v.Under)
		}
	}
}

// TestOwnersNoFence checks that TestOwners can fail. A shard whose logs accept all writes has two owners. Each has its
// own output, so that the other's releases do not stop it. Both open the first epoch, and publish releases with
// different noise. If the check of TestOwners did not find this, TestOwners would prove nothing.
func TestOwnersNoFence(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.RolloverStream)
	r.Commit, r.Real = "0s", true
	logs, key := &fencedLogs{loose: true}, connect.InsecureKey(r.Seed)
	options := shardlog.Options{
		Genesis: shardlog.Genesis{Group: "g", Shards: 1, Assign: "partition", Cluster: "c",
			Key: credentials.KeyID(key)}, Master: key, Instance: "one"}
	_, err := shardlog.Create(t.Context(), &fencedLog{fencedLogs: logs}, options)
	fixtures.Must(t, err)
	var owners []*streamtest.Rig
	// Neither has opened anything when the other acquires the shard.
	for _, out := range []string{"orders.dp", "other.dp"} {
		held, err := shardlog.Acquire(t.Context(), &fencedLog{fencedLogs: logs}, options)
		fixtures.Must(t, err)
		t.Cleanup(held.Close)
		one := r.Sibling(fixtures.With(r.Toml, `"orders.dp"`, strconv.Quote(out)))
		one.Shared = held
		owners = append(owners, one)
	}
	running := func(s monitor.TaskStatus) bool { return s.Epoch == 1 && s.State == monitor.StateRunning }
	x, y := owners[0].Start(), owners[1].Start()
	x.Until("epoch 1", running)
	y.Until("epoch 1", running)
	r.Produce(0, 25)
	x.Published(2)
	y.Published(2)
	v := streamtest.Judge(t, slices.Concat(r.Output("orders.dp"), r.Output("other.dp")))
	if len(v.Forks) != 2 {
		t.Errorf("of two steps that two owners released, %d have two values", len(v.Forks))
	}
}
