package streamtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Records reads an output topic with headers.
func (r *Rig) Records(topic string) (list []kafka.Record) {
	r.T.Helper()
	start, err := r.Client.Start(context.Background(), topic, 0)
	fixtures.Must(r.T, err)
	fixtures.Must(r.T, r.Client.ReadBack(context.Background(), topic, 0, start, func(rec *kafka.Record) error {
		c := *rec
		c.Key, c.Value, c.Headers = slices.Clone(rec.Key), slices.Clone(rec.Value), slices.Clone(rec.Headers)
		for i, h := range c.Headers {
			c.Headers[i].Value = slices.Clone(h.Value)
		}
		list = append(list, c)
		return nil
	}))
	return list
}

// ClockRig starts a broker with the topic "orders" of several partitions, for steps by a clock.
func ClockRig(t testing.TB, toml string, partitions int) *Rig {
	t.Helper()
	r := NewMergedRig(t, toml, partitions)
	r.Boundaries = "bounds"
	return r
}

// hand is a clock that the test moves.
type hand chan struct{}

func NewHand() hand { return make(hand, 1<<16) }

// On makes a daemon follow the clock.
func (h hand) On(o *stream.Options) {
	o.Hooks.Beat = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h:
			return nil
		}
	}
}

func (h hand) Tick() { h <- struct{}{} }

// Of returns the status of a stream's only task, once it is as wanted.
func (x *Running) Of(stream, what string, ok func(monitor.TaskStatus) bool) monitor.TaskStatus {
	x.T.Helper()
	for late := time.Now().Add(fixtures.Patience); ; time.Sleep(time.Millisecond) {
		for _, s := range x.D.Status() {
			if s.Stream == stream && ok(s) {
				return s
			}
		}
		if time.Now().After(late) {
			x.T.Fatalf("%s: not %s: %+v\n%s", stream, what, x.D.Status(), x.R.Log)
		}
	}
}

// Reaches waits until a stream has published a step, and everything before it.
func (x *Running) Reaches(stream string, step uint64) {
	x.T.Helper()
	x.Of(stream, fmt.Sprintf("at step %d", step), func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRunning && s.Step >= step && s.Outbox == 0
	})
}

// CrashUsers stops the machine before every so-and-so-manieth operation on or after one on files of persons,
// with STREAMDP_SLOW=1 before each, or fills its disk there.
func CrashUsers(t *testing.T, stride int, begin func(testing.TB) *Scenario, verify func(testing.TB, *Scenario)) {
	if os.Getenv("STREAMDP_SLOW") != "" {
		stride = 1
	}
	whole := begin(t)
	fixtures.Must(t, whole.Run(t))
	verify(t, whole)
	ops := whole.R.Disk.(*simdisk.SimDisk).Journal
	whole.Close()
	points := 0
	for k := 1; k < len(ops); k++ {
		near := ops[k-1] + " " + ops[k]
		if !strings.Contains(near, state.PersonsPrefix) {
			continue
		}
		if points++; points%stride > 0 {
			continue
		}
		rng := rand.New(rand.NewPCG(uint64(k), 20))
		mode := rng.IntN(simdisk.CrashModes)
		s := begin(t)
		d := s.R.Disk.(*simdisk.SimDisk)
		if points/stride%2 == 0 {
			refused := false
			d.Refuse = func(op, name string) error { // full once
				if d.Ops == k && op != "remove" && !refused {
					refused = true
					return syscall.ENOSPC
				}
				return nil
			}
		} else if s.Crashed(t, k, mode, rng) {
			s.R.Disk.(*simdisk.SimDisk).Crash = -1
		} else {
			t.Fatalf("operation %d: no crash", k)
		}
		fixtures.Must(t, s.Run(t))
		verify(t, s)
		s.Close()
		if t.Failed() {
			t.Fatalf("operation %d (%s), mode %d\n%s", k, ops[k], mode, s.R.Log)
		}
	}
	t.Logf("%d of %d points", points/stride, points)
	if points < 20 {
		t.Errorf("%d points", points)
	}
}

// Ran is a rig whose daemon has published ten steps and ended.
func Ran(t testing.TB, toml string) *Rig {
	t.Helper()
	return NewRig(t, toml).TenSteps()
}

// TenSteps runs a daemon over 1050 records.
func (r *Rig) TenSteps() *Rig {
	r.T.Helper()
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	x.End()
	return r
}

// Recreate makes the input another log, of n records numbered from first.
func (r *Rig) Recreate(first, n int) {
	r.T.Helper()
	kafkatest.DeleteTopic(r.T, r.Broker.Addrs(), "orders")
	kafkatest.CreateTopic(r.T, r.Broker.Addrs(), "orders", nil)
	r.Client = fixtures.Dial(r.T, r.Addr)
	if n > 0 {
		r.Produce(first, n)
	}
}

// SetTopicConfig changes a topic's setting.
func SetTopicConfig(t testing.TB, r *Rig, topic, key, value string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Value = key, &value
	res.Configs = append(res.Configs, cfg)
	req.Resources = append(req.Resources, res)
	kafkatest.Ask(t, r.Broker.Addrs(), req)
}

func GoldenCheckpoint() *state.Checkpoint {
	c := &state.Checkpoint{
		Epoch: 3, Seq: 41, Step: 7,
		Position:    kafka.Position{Next: 1700, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 1698, LeaderEpoch: 1}},
		OutputTopic: "orders.dp", OutputPartition: 1, Output: 12, Acknowledged: true,
		Build: "go1.26.0 linux/amd64", State: []byte{1, 2, 3, 0, 255},
		Outbox: []state.Message{
			{Message: core.Message{Step: 6, Key: []byte("orders/0/3/6"), Value: []byte(`{"x":1}`), Headers: []kafka.Header{{Key: "a", Value: []byte("b")}, {Key: "n"}}}, Time: time.UnixMilli(1700000000123)},
			{Message: core.Message{Step: 7, Key: []byte("orders/0/3/7"), Value: []byte{}}, Time: time.UnixMilli(1700000000124)},
		},
	}
	for i := range 32 {
		c.Manifest[i], c.Transcript[i], c.Ledger[i], c.Position.Anchor.Hash[i] = byte(i), byte(i+32), byte(i+64), byte(i+96)
	}
	return c
}

// Forge appends records with the given keys to the output.
func (r *Rig) Forge(value string, keys ...string) {
	r.T.Helper()
	for _, key := range keys {
		m := kafka.Message{Key: []byte(key), Value: []byte(value), Time: time.UnixMilli(1)}
		if _, err := fixtures.Dial(r.T, r.Addr).Produce(r.T.Context(), "orders.dp", 0, []kafka.Message{m}); err != nil {
			r.T.Fatal(err)
		}
	}
}

// OfRecords is the account of a source's records.
func OfRecords(s core.Source) ledger.Account { return ledger.Account{Source: s} }

// Charging is an entry that opens an epoch of TestSource for the stream orders.
func Charging(epoch uint64, first, end int64, a dp.Adjacency, mu float64) ledger.Entry {
	return ledger.Entry{
		Kind: ledger.KindOpen, Stream: "orders", Source: fixtures.TestSource, Epoch: epoch, Incarnation: 1, First: first, End: end, Mechanism: "moments",
		Cost: dp.Cost{Adjacency: a, Mu: mu}, Epsilon: 1, Delta: 1e-8, LimitEpsilon: 1.5, LimitDelta: 1e-8,
	}
}

// ForgedLine is a line that somebody writes who has no key: right sequence, chain and sum.
func ForgedLine(t testing.TB, l *ledger.Ledger, e ledger.Entry) []byte {
	t.Helper()
	e.Seq, e.Prev, e.Key = uint64(len(l.Entries)+1), hex.EncodeToString(l.Head[:]), "deadbeefdeadbeef"
	line, err := json.Marshal(e)
	fixtures.Must(t, err)
	return append(ledger.NewKey(connect.InsecureKey(99)).Seal(line), '\n')
}

// GroupRig is a rig whose topic "orders" has some partitions that instances of group g share.
func GroupRig(t *testing.T, partitions int, lines string) *Rig {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Extra: []kfake.Opt{kfake.GroupMinSessionTimeout(100 * time.Millisecond)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.CreateTopic(t.Context(), "orders", partitions, nil); err != nil {
		t.Fatal(err)
	}
	r := NewRigAt(t, b, b.Addr(), fixtures.With(fixtures.OrdersStream, `topic = "orders",`, `topic = "orders", partition = "all",`))
	r.Group = "[cluster]\ngroup = \"g\"\nshards = 4\nsession_timeout = \"1s\"\nallow_unreplicated = true\n" + lines
	return r
}

// Begin makes the topics of the group.
func (r *Rig) Begin() {
	r.T.Helper()
	o := r.Options()
	if err := cluster.Init(r.T.Context(), o.Config, o.Key, func(int) {}); err != nil {
		r.T.Fatal(err)
	}
}

// Instance returns a rig with a state directory of its own, for another instance of the group.
func (r *Rig) Instance(name string) *Rig {
	s := r.Sibling(r.Toml)
	s.Group += fmt.Sprintf("instance = %q\n", name)
	return s
}

// Values returns what an output topic has under each key, and fails where that are two things.
func (r *Rig) Values(topic string) map[string][32]byte {
	r.T.Helper()
	all := map[string][32]byte{}
	for _, p := range r.Output(topic) {
		if was, known := all[p.Key]; known && was != p.Hash {
			r.T.Errorf("%s has two values", p.Key)
		}
		all[p.Key] = p.Hash
	}
	return all
}

// Awaits waits until an output topic has so many releases.
func (r *Rig) Awaits(topic string, n int, why func() string) {
	r.T.Helper()
	until := time.Now().Add(fixtures.Patience)
	for {
		got := 0
		if t, err := r.Client.Topic(r.T.Context(), topic); err == nil && t.Exists {
			got = len(r.Values(topic))
		}
		switch {
		case got == n:
			return
		case got > n:
			r.T.Fatalf("%d releases, want %d", got, n)
		case time.Now().After(until):
			r.T.Fatalf("%d releases, want %d\n%s", got, n, why())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// NewMergedRig starts a broker with the topic "orders" of several partitions.
func NewMergedRig(t testing.TB, toml string, partitions int) *Rig {
	t.Helper()
	r := NewRigOn(t, toml, embedded.Options{})
	fixtures.Must(t, r.Broker.CreateTopic(context.Background(), "orders", partitions, nil))
	return r
}

// SendTo appends n records, numbered from first, to a partition of "orders".
func (r *Rig) SendTo(partition, first, n int) {
	r.T.Helper()
	for part := range slices.Chunk(make([]struct{}, n), 500) {
		list := make([]kafka.Message, len(part))
		for i := range list {
			list[i] = kafka.Message{Value: fixtures.OrderRecord(first), Time: time.UnixMilli(1)}
			if r.Key != nil {
				list[i].Key = r.Key(first)
			}
			first++
		}
		if _, err := r.Client.Produce(context.Background(), "orders", int32(partition), list); err != nil {
			r.T.Fatal(err)
		}
	}
}

// OutputOf returns the values in a topic of releases, by key. It fails where a key has two.
func (r *Rig) OutputOf(topic string) map[string]string {
	r.T.Helper()
	all := map[string]string{}
	err := r.Client.ReadBack(context.Background(), topic, 0, 0, func(rec *kafka.Record) error {
		if was, known := all[string(rec.Key)]; known && was != string(rec.Value) {
			r.T.Errorf("two releases %s", rec.Key)
		}
		all[string(rec.Key)] = string(rec.Value)
		return nil
	})
	fixtures.Must(r.T, err)
	return all
}

// AddPartitions gives a topic so many partitions.
func AddPartitions(t testing.TB, r *Rig, name string, count int32) {
	t.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = name, count
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 5000
	kafkatest.Ask(t, r.Broker.Addrs(), req)
}

// Mirrored returns a rig with a control topic, whose daemons draw their secrets.
func Mirrored(t testing.TB, toml string) *Rig {
	t.Helper()
	r := NewRig(t, toml)
	r.Real, r.Topic = true, "control"
	return r
}

// Control reads the control topic.
func (r *Rig) Control() (list []kafka.Message) {
	r.T.Helper()
	err := fixtures.Dial(r.T, r.Addr).ReadBack(r.T.Context(), r.Topic, 0, 0, func(rec *kafka.Record) error {
		m := kafka.Message{Value: bytes.Clone(rec.Value), Time: time.UnixMilli(1)}
		for _, h := range rec.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
		}
		list = append(list, m)
		return nil
	})
	if err != nil {
		r.T.Fatal(err)
	}
	return list
}

// Verify audits the published releases of the task orders-0.
func (r *Rig) Verify(edits ...func(*recovery.Audit)) ([]recovery.Verification, error) {
	r.T.Helper()
	o := r.Options()
	a := recovery.Audit{Config: o.Config, Key: o.Key, Log: slog.New(slog.NewTextHandler(r.Log, nil)), Chunk: r.Chunk}
	for _, edit := range edits {
		edit(&a)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	return recovery.Verify(ctx, a, fixtures.OrdersTask)
}

// Verified fails unless epoch 1 alone was worked out again, with so many releases.
func (r *Rig) Verified(releases int, edits ...func(*recovery.Audit)) {
	r.T.Helper()
	all, err := r.Verify(edits...)
	fixtures.Must(r.T, err)
	if len(all) != 1 || all[0].Releases != releases || all[0].Difference+all[0].Unverifiable != "" || all[0].Missing != 0 {
		r.T.Errorf("found %+v, want %d releases that are the same", all, releases)
	}
}

// file is the path of a rig's configuration, which reload writes.
func (r *Rig) Configuration() string { return filepath.Join(r.Dir, "streamdp.toml") }

// Reloadable makes a daemon read its configuration from that file.
func (r *Rig) Reloadable(o *stream.Options) {
	o.Load = func() (*config.Config, error) { return config.Load(r.Configuration()) }
}

// Write writes the file, with these tables of streams.
func (r *Rig) Write(tables ...string) {
	r.T.Helper()
	now := *r
	now.Toml = strings.Join(tables, "")
	fixtures.Must(r.T, os.WriteFile(r.Configuration(), now.Text(), 0o600))
}

// shared makes the state of a daemon the shard's logs.
func shared(o *stream.Options, h cluster.Holding) error {
	if err := os.MkdirAll(filepath.Join(o.Config.State.Dir, "tasks"), 0o700); err != nil { // for its sockets
		return err
	}
	s, err := cluster.NewShard(h)
	if err == nil {
		o.Hooks.Shard = s
	}
	return err
}

// Closed returns the end that the last close of the ledger states.
func (r *Rig) Closed(entries []ledger.Entry) (end int64) {
	r.T.Helper()
	end = -2
	for _, e := range entries {
		if e.Kind == ledger.KindClose {
			end = e.End
		}
	}
	return end
}

// SendUsers appends n records of nine persons, one of whom is nobody, to a partition of "orders".
func (r *Rig) SendUsers(partition, first, n int) {
	r.T.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Value: fixtures.OrderRecord(first + i), Time: time.UnixMilli(1)}
		list[i].Key = fixtures.UserOf(first + i)
	}
	if n == 0 {
		return
	}
	if _, err := r.Client.Produce(r.T.Context(), "orders", int32(partition), list); err != nil {
		r.T.Fatal(err)
	}
}

// PersonRig is a rig with a stream that protects persons, in one of the modes, with steps of so many
// records.
func PersonRig(t testing.TB, mode, step int) *Rig {
	t.Helper()
	r := NewRig(t, fixtures.With(fixtures.OrdersStream, "step   = 100\n", fmt.Sprintf("step = %d\n%s", step, fixtures.PersonModes[mode].Table), `"zero-out"`, `"replace"`))
	r.Record = fixtures.PersonRecord
	return r
}

// HasUsers returns the names of the files of persons.
func (r *Rig) HasUsers() []string {
	r.T.Helper()
	names, err := filepath.Glob(r.File(state.PersonsPrefix + "*"))
	fixtures.Must(r.T, err)
	return names
}

// Scenario is one life of a state directory: open, three steps with a commit
// each, close, roll over, again, and a step more.
type Scenario struct {
	R    *Rig
	Done int // operations until everything was published
	// Also is what must hold too before the life is over; nil: nothing.
	Also func() bool
	Edit func(*stream.Options) // nil: nothing
}

// NewScenario starts a broker of its own, which takes a millisecond.
func NewScenario(t testing.TB) *Scenario {
	t.Helper()
	return NewScenarioOf(t, func(*Rig) {})
}

// NewScenarioOf is NewScenario for a rig that is changed before it has records.
func NewScenarioOf(t testing.TB, edit func(r *Rig)) *Scenario {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRigAt(t, b, b.Addr(), fixtures.RolloverStream)
	r.Commit = "0s"
	r.Disk = simdisk.NewSimDisk(r.Dir)
	edit(r)
	r.Produce(0, fixtures.ScenarioRecords)
	return &Scenario{R: r}
}

func (s *Scenario) Close() {
	s.R.Client.Close()
	s.R.Broker.Close()
}

// Run runs a daemon until everything is published, or its disk crashes.
func (s *Scenario) Run(t testing.TB) error {
	t.Helper()
	d := s.R.Disk.(*simdisk.SimDisk)
	var edits []func(*stream.Options)
	if s.Edit != nil {
		edits = append(edits, s.Edit)
	}
	x, err := s.R.Try(edits...)
	if err != nil {
		return err
	}
	late := time.NewTimer(fixtures.Patience)
	defer late.Stop()
	for {
		select {
		case <-x.Done:
			return x.Result
		case <-x.Wake:
		case <-late.C:
			t.Fatalf("not done: %+v\n%s\n%s", x.D.Status()[0], d, s.R.Log)
		}
		if st := x.D.Status()[0]; st.Epoch > 0 && st.State == monitor.StateRunning && st.NextOffset == fixtures.ScenarioRecords && st.Outbox == 0 && (s.Also == nil || s.Also()) {
			d.Mu.Lock()
			s.Done = d.Ops
			d.Mu.Unlock()
			x.Stop()
			return x.Ends()
		}
	}
}

// Crashed is run with a crash before operation k, then the machine's start.
func (s *Scenario) Crashed(t testing.TB, k, mode int, rng *rand.Rand) (crashed bool) {
	t.Helper()
	d := s.R.Disk.(*simdisk.SimDisk)
	d.Crash = k
	err := s.Run(t)
	if !d.Down {
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		return false
	}
	if !errors.Is(err, simdisk.ErrCrashed) {
		t.Fatalf("operation %d failed, and the daemon ended with %v", k, err)
	}
	s.R.Disk = d.Reboot(mode, rng)
	return true
}

func Reference(t *testing.T, shift int) fixtures.EpochReference {
	t.Helper()
	return ReferenceOf(t, shift, NewScenario)
}

func ReferenceOf(t *testing.T, shift int, newScenario func(testing.TB) *Scenario) fixtures.EpochReference {
	t.Helper()
	s := newScenario(t)
	defer s.Close()
	var crashes []int
	for range shift {
		// A crash between charge and secret: the epoch is void.
		probe := newScenario(t)
		for _, k := range crashes {
			probe.Crashed(t, k, simdisk.CrashLost, nil)
		}
		probe.R.Disk.(*simdisk.SimDisk).Crash = -1
		if err := probe.Run(t); err != nil {
			t.Fatal(err)
		}
		k := probe.R.Disk.(*simdisk.SimDisk).At(1, "create", "secret-")
		probe.Close()
		if k < 0 || !s.Crashed(t, k, simdisk.CrashLost, nil) {
			t.Fatal("no crash")
		}
		crashes = append(crashes, k)
	}
	s.R.Disk.(*simdisk.SimDisk).Crash = -1
	if err := s.Run(t); err != nil {
		t.Fatal(err)
	}
	ref := fixtures.EpochReference{}
	for _, p := range s.R.Output("orders.dp") {
		if want := uint64(p.Parse(t).Covers[0]/30+1) + uint64(shift); p.Epoch != want {
			t.Fatalf("release %s has epoch %d, want %d", p.Key, p.Epoch, want)
		}
		ref[[2]int64{p.Parse(t).Covers[0], int64(p.Step)}] = p
	}
	if len(ref) != fixtures.ScenarioSteps {
		t.Fatalf("%d releases, want %d", len(ref), fixtures.ScenarioSteps)
	}
	return ref
}

// Same fails unless the output of a scenario is that of an uninterrupted run.
func (s *Scenario) Same(t testing.TB, refs []fixtures.EpochReference) {
	t.Helper()
	list := s.R.Output("orders.dp")
	v := Judge(t, list)
	v.Faultless(t)
	if len(v.Bytes) != fixtures.ScenarioSteps {
		t.Errorf("%d releases, want %d", len(v.Bytes), fixtures.ScenarioSteps)
	}
	for _, p := range v.ByKey {
		base := p.Parse(t).Covers[0]
		shift := int(p.Epoch) - int(base/30+1)
		if shift < 0 || shift >= len(refs) {
			t.Errorf("release %s, from offset %d on", p.Key, base)
			continue
		}
		if want := refs[shift][[2]int64{base, int64(p.Step)}]; want.Hash != p.Hash {
			t.Errorf("release %s is not that of the uninterrupted run:\n%s\n%s", p.Key, p.Value, want.Value)
		}
	}
}

// Verify holds the end of a scenario against what must be true after any crash.
func (s *Scenario) Verify(t testing.TB, refs []fixtures.EpochReference) {
	t.Helper()
	s.Same(t, refs)
	d := s.R.Disk.(*simdisk.SimDisk)
	data, err := d.ReadFile(filepath.Join(s.R.Dir, "state", "ledger.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Parse(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries := l.Entries
	charges, ended := 0, map[uint64]string{}
	for _, e := range entries {
		switch e.Kind {
		case ledger.KindOpen:
			charges++
		case ledger.KindVoid:
			charges--
			ended[e.Epoch] = ledger.KindVoid
		case ledger.KindClose:
			ended[e.Epoch] = ledger.KindClose
		case ledger.KindDestroyed:
			ended[e.Epoch] = ledger.KindDestroyed
		}
	}
	if charges != 3 {
		t.Errorf("%d epochs are charged, want 3: %s", charges, data)
	}
	first := entries[0]
	if got, err := l.Charged(OfRecords(first.Source), first.Cost.Adjacency, first.LimitDelta, nil); err != nil || got.Mu != first.Cost.Mu {
		t.Errorf("the worst-off record paid mu %g, an epoch costs %g", got.Mu, first.Cost.Mu)
	}
	// Nothing outlives its epoch.
	open := 0
	for _, e := range entries {
		if e.Kind != ledger.KindOpen {
			continue
		}
		secrets := d.Holds(state.SecretName(e.Epoch))
		switch ended[e.Epoch] {
		case "":
			open++
			if len(secrets) != 1 {
				t.Errorf("epoch %d is open, secrets %v", e.Epoch, secrets)
			}
		case ledger.KindClose:
			t.Errorf("epoch %d is closed and not destroyed", e.Epoch)
		default:
			if len(secrets) != 0 {
				t.Errorf("the secret of epoch %d is still there", e.Epoch)
			}
		}
	}
	if open != 1 {
		t.Errorf("%d epochs are open", open)
	}
	for _, name := range d.Holds("checkpoint") {
		data, err := d.ReadFile(filepath.Join(s.R.Dir, "state", "tasks", "orders-0", name))
		if err != nil {
			t.Fatal(err)
		}
		if c, err := state.ParseCheckpoint(state.SlotContent(data)); err == nil && ended[c.Epoch] != "" {
			t.Errorf("%s is of epoch %d, which has ended", name, c.Epoch)
		}
	}
	for _, name := range []string{"checkpoint.tmp", "opening-"} {
		if left := d.Holds(name); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// Uninterrupted runs a daemon over the same input with the same seed and a
// state and an output of its own, in one go.
func (r *Rig) Uninterrupted(steps uint64) *Verdict {
	r.T.Helper()
	r.references++
	topic := fmt.Sprintf("reference%d.dp", r.references)
	ref := r.Sibling(fixtures.With(r.Toml, `"orders.dp"`, fmt.Sprintf("%q", topic)))
	ref.Commit = "10ms"
	x := ref.Start()
	x.Published(steps)
	x.End()
	return ref.History(topic)
}

// HeldShard is a shard's logs in memory, and what the protocol makes of them. It checks what no
// update may do: charge an epoch without making it, or what follows from that; break the ledger's
// chain; seal what ends with an epoch under nothing.
type HeldShard struct {
	Mu      sync.Mutex
	Stored  map[string]shardlog.Value // committed
	Ledger  [][]byte
	Updates []string // what was committed, in words
	Wrong   []string // what must not have happened

	Calls int
	Fault int  // the call that fails, from 0; −1: none
	Late  bool // it is committed all the same
	Hold  chan struct{}

	Done     chan struct{}
	Broken   bool
	Taken    bool // by another owner, which Affirm finds
	Affirmed int  // Calls of Affirm
}

func NewHeldShard() *HeldShard {
	return &HeldShard{Stored: map[string]shardlog.Value{}, Fault: -1, Done: make(chan struct{})}
}

// Again returns the shard as another acquisition finds it.
func (h *HeldShard) Again() *HeldShard {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	n := NewHeldShard()
	n.Ledger, n.Updates, n.Wrong, n.Calls = slices.Clone(h.Ledger), slices.Clone(h.Updates), h.Wrong, h.Calls
	for key, v := range h.Stored {
		if _, there := h.Stored[v.Under]; v.Under == "" || there {
			n.Stored[key] = v
		}
	}
	return n
}

func (h *HeldShard) Values() map[string]shardlog.Value {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return maps.Clone(h.Stored)
}

func (h *HeldShard) Lines() [][]byte {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return bytes.Split(bytes.Join(h.Ledger, []byte("\n")), []byte("\n"))[:len(h.Ledger)]
}

func (h *HeldShard) Lost() <-chan struct{} { return h.Done }

func (h *HeldShard) Affirm(context.Context) error {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Affirmed++
	if h.Taken && !h.Broken {
		h.Broken = true
		close(h.Done)
	}
	if h.Broken {
		return fmt.Errorf("%w: fenced", shardlog.ErrLost)
	}
	return nil
}

func (h *HeldShard) Update(_ context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	if h.Hold != nil {
		<-h.Hold
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Broken {
		h.Wrong = append(h.Wrong, "an update after the shard was lost")
		return shardlog.ErrLost
	}
	n := h.Calls
	h.Calls++
	if n == h.Fault {
		h.Broken = true
		defer close(h.Done)
		if !h.Late {
			return fmt.Errorf("%w: refused", shardlog.ErrLost)
		}
	}
	for _, key := range remove {
		if _, both := put[key]; both {
			h.Wrong = append(h.Wrong, "puts and removes "+key)
		}
		delete(h.Stored, key)
	}
	maps.Copy(h.Stored, put)
	for key, v := range h.Stored {
		_, file, _ := strings.Cut(key, "/")
		ends := strings.HasPrefix(file, "checkpoint") || strings.HasPrefix(file, "initial-") || strings.HasPrefix(file, "users-")
		under, there := h.Stored[v.Under]
		if ends != (v.Under != "") || v.Under != "" && !there || under.Under != "" || strings.HasSuffix(key, state.TemporarySuffix) {
			h.Wrong = append(h.Wrong, fmt.Sprintf("%s is under %q", key, v.Under))
		}
	}
	words := []string{}
	for _, line := range lines {
		var e ledger.Entry
		head := [32]byte{}
		if k := len(h.Ledger); k > 0 {
			head = sha256.Sum256(h.Ledger[k-1])
		}
		if json.Unmarshal(line, &e) != nil || e.Prev != hex.EncodeToString(head[:]) || e.Seq != uint64(len(h.Ledger)+1) {
			h.Wrong = append(h.Wrong, fmt.Sprintf("line %d continues another ledger: %s", len(h.Ledger)+1, line))
		}
		h.Ledger = append(h.Ledger, line)
		words = append(words, e.Kind)
		dir := e.Task().String() + "/"
		switch e.Kind {
		case ledger.KindOpen:
			cp, has := put[dir+state.CheckpointName]
			epoch, _ := state.CheckpointEpoch(cp.Data)
			if _, secret := put[dir+state.SecretName(e.Epoch)]; !has || epoch != e.Epoch || !secret || put[dir+state.ManifestName(e.Epoch)].Data == nil {
				h.Wrong = append(h.Wrong, fmt.Sprintf("epoch %d was charged and not made", e.Epoch))
			}
		case ledger.KindDestroyed:
			if _, there := h.Stored[dir+state.SecretName(e.Epoch)]; there {
				h.Wrong = append(h.Wrong, fmt.Sprintf("the secret of epoch %d is there still", e.Epoch))
			}
		}
	}
	for key, v := range h.Stored {
		task, name, _ := strings.Cut(key, "/")
		if epoch, ok := state.SecretEpoch(name); ok && len(h.Ledger) > 0 && !h.Charged(task, epoch) {
			h.Wrong = append(h.Wrong, fmt.Sprintf("%s, and the ledger does not charge it", key))
		}
		if name == state.CheckpointName {
			if cp, err := state.ParseCheckpoint(v.Data); err != nil || cp.Ledger != [32]byte{} && !h.knows(cp.Ledger) {
				h.Wrong = append(h.Wrong, fmt.Sprintf("%s names a line that is not committed, or is damaged: %v", key, err))
			}
		}
	}
	h.Updates = append(h.Updates, strings.Join(words, " "))
	if n == h.Fault {
		return fmt.Errorf("%w: no answer", shardlog.ErrLost)
	}
	return nil
}

// knows reports whether a line is committed.
func (h *HeldShard) knows(hash [32]byte) bool {
	for _, line := range h.Ledger {
		if sha256.Sum256(line) == hash {
			return true
		}
	}
	return false
}

// Charged reports whether an epoch's opening is committed.
func (h *HeldShard) Charged(task string, epoch uint64) bool {
	for _, line := range h.Ledger {
		var e ledger.Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == ledger.KindOpen && e.Task().String() == task && e.Epoch == epoch {
			return true
		}
	}
	return false
}

// Committed returns the last step of an epoch of the task orders-0 that may be published: the
// checkpoint's, or any once the epoch is closed.
func (h *HeldShard) Committed(epoch uint64) uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, line := range h.Ledger {
		var e ledger.Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == ledger.KindClose && e.Epoch == epoch {
			return 1 << 62
		}
	}
	if cp, err := state.ParseCheckpoint(h.Stored["orders-0/"+state.CheckpointName].Data); err == nil && cp.Epoch == epoch {
		return cp.Step
	}
	return 0
}

func ReadEpochs(dir string) ([]ledger.EpochInfo, error) {
	b, err := ledger.ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Epochs(), nil
}

func ReadSpent(dir, stream string, records []int) ([]ledger.Spent, error) {
	b, err := ledger.ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Spent(stream, records)
}
