package stream

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
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// records reads an output topic with headers.
func (r *rig) records(topic string) (list []kafka.Record) {
	r.t.Helper()
	start, _, _, err := r.client.Offsets(context.Background(), topic, 0)
	must(r.t, err)
	must(r.t, r.client.ReadBack(context.Background(), topic, 0, start, func(rec *kafka.Record) error {
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

// clockRig starts a broker with the topic "orders" of several partitions, for steps by a clock.
func clockRig(t testing.TB, toml string, partitions int) *rig {
	t.Helper()
	r := newMergedRig(t, toml, partitions)
	r.boundaries = "bounds"
	return r
}

// hand is a clock that the test moves.
type hand chan struct{}

func newHand() hand { return make(hand, 1<<16) }

// on makes a daemon follow the clock.
func (h hand) on(o *Options) {
	o.Hooks.Beat = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h:
			return nil
		}
	}
}

func (h hand) tick() { h <- struct{}{} }

// of returns the status of a stream's only task, once it is as wanted.
func (x *running) of(stream, what string, ok func(TaskStatus) bool) TaskStatus {
	x.t.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		for _, s := range x.d.Status() {
			if s.Stream == stream && ok(s) {
				return s
			}
		}
		if time.Now().After(late) {
			x.t.Fatalf("%s: not %s: %+v\n%s", stream, what, x.d.Status(), x.r.log)
		}
	}
}

// reaches waits until a stream has published a step, and everything before it.
func (x *running) reaches(stream string, step uint64) {
	x.t.Helper()
	x.of(stream, fmt.Sprintf("at step %d", step), func(s TaskStatus) bool {
		return s.State == stateRunning && s.Step >= step && s.Outbox == 0
	})
}

// crashUsers stops the machine before every so-and-so-manieth operation on or after one on files of persons,
// with STREAMDP_SLOW=1 before each, or fills its disk there.
func crashUsers(t *testing.T, stride int, begin func(testing.TB) *scenario, verify func(testing.TB, *scenario)) {
	if os.Getenv("STREAMDP_SLOW") != "" {
		stride = 1
	}
	whole := begin(t)
	must(t, whole.run(t))
	verify(t, whole)
	ops := whole.r.disk.(*simDisk).journal
	whole.close()
	points := 0
	for k := 1; k < len(ops); k++ {
		near := ops[k-1] + " " + ops[k]
		if !strings.Contains(near, usersPrefix) {
			continue
		}
		if points++; points%stride > 0 {
			continue
		}
		rng := rand.New(rand.NewPCG(uint64(k), 20))
		mode := rng.IntN(crashModes)
		s := begin(t)
		d := s.r.disk.(*simDisk)
		if points/stride%2 == 0 {
			refused := false
			d.refuse = func(op, name string) error { // full once
				if d.ops == k && op != "remove" && !refused {
					refused = true
					return syscall.ENOSPC
				}
				return nil
			}
		} else if s.crashed(t, k, mode, rng) {
			s.r.disk.(*simDisk).crash = -1
		} else {
			t.Fatalf("operation %d: no crash", k)
		}
		must(t, s.run(t))
		verify(t, s)
		s.close()
		if t.Failed() {
			t.Fatalf("operation %d (%s), mode %d\n%s", k, ops[k], mode, s.r.log)
		}
	}
	t.Logf("%d of %d points", points/stride, points)
	if points < 20 {
		t.Errorf("%d points", points)
	}
}

// ran is a rig whose daemon has published ten steps and ended.
func ran(t testing.TB, toml string) *rig {
	t.Helper()
	return newRig(t, toml).tenSteps()
}

// tenSteps runs a daemon over 1050 records.
func (r *rig) tenSteps() *rig {
	r.t.Helper()
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	x.end()
	return r
}

// recreate makes the input another log, of n records numbered from first.
func (r *rig) recreate(first, n int) {
	r.t.Helper()
	kafkatest.DeleteTopic(r.t, r.broker.Addrs(), "orders")
	kafkatest.CreateTopic(r.t, r.broker.Addrs(), "orders", nil)
	r.client = dial(r.t, r.addr)
	if n > 0 {
		r.produce(first, n)
	}
}

// setTopicConfig changes a topic's setting.
func setTopicConfig(t testing.TB, r *rig, topic, key, value string) {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Value = key, &value
	res.Configs = append(res.Configs, cfg)
	req.Resources = append(req.Resources, res)
	kafkatest.Ask(t, r.broker.Addrs(), req)
}

func goldenCheckpoint() *checkpoint {
	c := &checkpoint{
		epoch: 3, seq: 41, step: 7,
		position:    kafka.Position{Next: 1700, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 1698, LeaderEpoch: 1}},
		outputTopic: "orders.dp", outputPartition: 1, output: 12, acknowledged: true,
		build: "go1.26.0 linux/amd64", state: []byte{1, 2, 3, 0, 255},
		outbox: []pending{
			{Message: core.Message{Step: 6, Key: []byte("orders/0/3/6"), Value: []byte(`{"x":1}`), Headers: []kafka.Header{{Key: "a", Value: []byte("b")}, {Key: "n"}}}, time: time.UnixMilli(1700000000123)},
			{Message: core.Message{Step: 7, Key: []byte("orders/0/3/7"), Value: []byte{}}, time: time.UnixMilli(1700000000124)},
		},
	}
	for i := range 32 {
		c.manifest[i], c.transcript[i], c.ledger[i], c.position.Anchor.Hash[i] = byte(i), byte(i+32), byte(i+64), byte(i+96)
	}
	return c
}

// forge appends records with the given keys to the output.
func (r *rig) forge(value string, keys ...string) {
	r.t.Helper()
	for _, key := range keys {
		m := kafka.Message{Key: []byte(key), Value: []byte(value), Time: time.UnixMilli(1)}
		if _, err := dial(r.t, r.addr).Produce(r.t.Context(), "orders.dp", 0, []kafka.Message{m}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// ofRecords is the account of a source's records.
func ofRecords(s core.Source) account { return account{Source: s} }

// charging is an entry that opens an epoch of testSource for the stream orders.
func charging(epoch uint64, first, end int64, a dp.Adjacency, mu float64) Entry {
	return Entry{
		Kind: kindOpen, Stream: "orders", Source: testSource, Epoch: epoch, Incarnation: 1, First: first, End: end, Mechanism: "moments",
		Cost: dp.Cost{Adjacency: a, Mu: mu}, Epsilon: 1, Delta: 1e-8, LimitEpsilon: 1.5, LimitDelta: 1e-8,
	}
}

// forgedLine is a line that somebody writes who has no key: right sequence, chain and sum.
func forgedLine(t testing.TB, l *ledger, e Entry) []byte {
	t.Helper()
	e.Seq, e.Prev, e.Key = uint64(len(l.entries)+1), hex.EncodeToString(l.head[:]), "deadbeefdeadbeef"
	line, err := json.Marshal(e)
	must(t, err)
	return append(newLedgerKey(InsecureKey(99)).seal(line), '\n')
}

// groupRig is a rig whose topic "orders" has some partitions that instances of group g share.
func groupRig(t *testing.T, partitions int, lines string) *rig {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Extra: []kfake.Opt{kfake.GroupMinSessionTimeout(100 * time.Millisecond)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.CreateTopic(t.Context(), "orders", partitions, nil); err != nil {
		t.Fatal(err)
	}
	r := newRigAt(t, b, b.Addr(), with(ordersStream, `topic = "orders",`, `topic = "orders", partition = "all",`))
	r.group = "[cluster]\ngroup = \"g\"\nshards = 4\nsession_timeout = \"1s\"\nallow_unreplicated = true\n" + lines
	return r
}

// begin makes the topics of the group.
func (r *rig) begin() {
	r.t.Helper()
	o := r.options()
	if err := InitCluster(r.t.Context(), o.Config, o.Key, func(int) {}); err != nil {
		r.t.Fatal(err)
	}
}

// instance returns a rig with a state directory of its own, for another instance of the group.
func (r *rig) instance(name string) *rig {
	s := r.sibling(r.toml)
	s.group += fmt.Sprintf("instance = %q\n", name)
	return s
}

// values returns what an output topic has under each key, and fails where that are two things.
func (r *rig) values(topic string) map[string][32]byte {
	r.t.Helper()
	all := map[string][32]byte{}
	for _, p := range r.output(topic) {
		if was, known := all[p.key]; known && was != p.hash {
			r.t.Errorf("%s has two values", p.key)
		}
		all[p.key] = p.hash
	}
	return all
}

// awaits waits until an output topic has so many releases.
func (r *rig) awaits(topic string, n int, why func() string) {
	r.t.Helper()
	until := time.Now().Add(patience)
	for {
		got := 0
		if t, err := r.client.Topic(r.t.Context(), topic); err == nil && t.Exists {
			got = len(r.values(topic))
		}
		switch {
		case got == n:
			return
		case got > n:
			r.t.Fatalf("%d releases, want %d", got, n)
		case time.Now().After(until):
			r.t.Fatalf("%d releases, want %d\n%s", got, n, why())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// newMergedRig starts a broker with the topic "orders" of several partitions.
func newMergedRig(t testing.TB, toml string, partitions int) *rig {
	t.Helper()
	r := newRigOn(t, toml, embedded.Options{})
	must(t, r.broker.CreateTopic(context.Background(), "orders", partitions, nil))
	return r
}

// sendTo appends n records, numbered from first, to a partition of "orders".
func (r *rig) sendTo(partition, first, n int) {
	r.t.Helper()
	for part := range slices.Chunk(make([]struct{}, n), 500) {
		list := make([]kafka.Message, len(part))
		for i := range list {
			list[i] = kafka.Message{Value: orderRecord(first), Time: time.UnixMilli(1)}
			if r.key != nil {
				list[i].Key = r.key(first)
			}
			first++
		}
		if _, err := r.client.Produce(context.Background(), "orders", int32(partition), list); err != nil {
			r.t.Fatal(err)
		}
	}
}

// outputOf returns the values in a topic of releases, by key. It fails where a key has two.
func (r *rig) outputOf(topic string) map[string]string {
	r.t.Helper()
	all := map[string]string{}
	err := r.client.ReadBack(context.Background(), topic, 0, 0, func(rec *kafka.Record) error {
		if was, known := all[string(rec.Key)]; known && was != string(rec.Value) {
			r.t.Errorf("two releases %s", rec.Key)
		}
		all[string(rec.Key)] = string(rec.Value)
		return nil
	})
	must(r.t, err)
	return all
}

// addPartitions gives a topic so many partitions.
func addPartitions(t testing.TB, r *rig, name string, count int32) {
	t.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = name, count
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 5000
	kafkatest.Ask(t, r.broker.Addrs(), req)
}

// mirrored returns a rig with a control topic, whose daemons draw their secrets.
func mirrored(t testing.TB, toml string) *rig {
	t.Helper()
	r := newRig(t, toml)
	r.real, r.topic = true, "control"
	return r
}

// control reads the control topic.
func (r *rig) control() (list []kafka.Message) {
	r.t.Helper()
	err := dial(r.t, r.addr).ReadBack(r.t.Context(), r.topic, 0, 0, func(rec *kafka.Record) error {
		m := kafka.Message{Value: bytes.Clone(rec.Value), Time: time.UnixMilli(1)}
		for _, h := range rec.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
		}
		list = append(list, m)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// verify audits the published releases of the task orders-0.
func (r *rig) verify(edits ...func(*Audit)) ([]Verification, error) {
	r.t.Helper()
	o := r.options()
	a := Audit{Config: o.Config, Key: o.Key, Log: slog.New(slog.NewTextHandler(r.log, nil)), chunk: r.chunk}
	for _, edit := range edits {
		edit(&a)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return Verify(ctx, a, ordersTask)
}

// verified fails unless epoch 1 alone was worked out again, with so many releases.
func (r *rig) verified(releases int, edits ...func(*Audit)) {
	r.t.Helper()
	all, err := r.verify(edits...)
	must(r.t, err)
	if len(all) != 1 || all[0].Releases != releases || all[0].Difference+all[0].Unverifiable != "" || all[0].Missing != 0 {
		r.t.Errorf("found %+v, want %d releases that are the same", all, releases)
	}
}

// file is the path of a rig's configuration, which reload writes.
func (r *rig) configuration() string { return filepath.Join(r.dir, "streamdp.toml") }

// reloadable makes a daemon read its configuration from that file.
func (r *rig) reloadable(o *Options) {
	o.Load = func() (*config.Config, error) { return config.Load(r.configuration()) }
}

// write writes the file, with these tables of streams.
func (r *rig) write(tables ...string) {
	r.t.Helper()
	now := *r
	now.toml = strings.Join(tables, "")
	must(r.t, os.WriteFile(r.configuration(), now.text(), 0o600))
}

// shared makes the state of a daemon the shard's logs.
func shared(o *Options, h holding) error {
	if err := os.MkdirAll(filepath.Join(o.Config.State.Dir, "tasks"), 0o700); err != nil { // for its sockets
		return err
	}
	s, err := newLogShard(h)
	if err == nil {
		o.Hooks.Shard = s
	}
	return err
}

// closed returns the end that the last close of the ledger states.
func (r *rig) closed(entries []Entry) (end int64) {
	r.t.Helper()
	end = -2
	for _, e := range entries {
		if e.Kind == kindClose {
			end = e.End
		}
	}
	return end
}

// sendUsers appends n records of nine persons, one of whom is nobody, to a partition of "orders".
func (r *rig) sendUsers(partition, first, n int) {
	r.t.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Value: orderRecord(first + i), Time: time.UnixMilli(1)}
		list[i].Key = userOf(first + i)
	}
	if n == 0 {
		return
	}
	if _, err := r.client.Produce(r.t.Context(), "orders", int32(partition), list); err != nil {
		r.t.Fatal(err)
	}
}

// personRig is a rig with a stream that protects persons, in one of the modes, with steps of so many
// records.
func personRig(t testing.TB, mode, step int) *rig {
	t.Helper()
	r := newRig(t, with(ordersStream, "step   = 100\n", fmt.Sprintf("step = %d\n%s", step, personModes[mode].table), `"zero-out"`, `"replace"`))
	r.record = personRecord
	return r
}

// hasUsers returns the names of the files of persons.
func (r *rig) hasUsers() []string {
	r.t.Helper()
	names, err := filepath.Glob(r.file(usersPrefix + "*"))
	must(r.t, err)
	return names
}

// scenario is one life of a state directory: open, three steps with a commit
// each, close, roll over, again, and a step more.
type scenario struct {
	r    *rig
	done int // operations until everything was published
	// also is what must hold too before the life is over; nil: nothing.
	also func() bool
	edit func(*Options) // nil: nothing
}

// newScenario starts a broker of its own, which takes a millisecond.
func newScenario(t testing.TB) *scenario {
	t.Helper()
	return newScenarioOf(t, func(*rig) {})
}

// newScenarioOf is newScenario for a rig that is changed before it has records.
func newScenarioOf(t testing.TB, edit func(r *rig)) *scenario {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigAt(t, b, b.Addr(), rolloverStream)
	r.commit = "0s"
	r.disk = newSimDisk(r.dir)
	edit(r)
	r.produce(0, scenarioRecords)
	return &scenario{r: r}
}

func (s *scenario) close() {
	s.r.client.Close()
	s.r.broker.Close()
}

// run runs a daemon until everything is published, or its disk crashes.
func (s *scenario) run(t testing.TB) error {
	t.Helper()
	d := s.r.disk.(*simDisk)
	var edits []func(*Options)
	if s.edit != nil {
		edits = append(edits, s.edit)
	}
	x, err := s.r.try(edits...)
	if err != nil {
		return err
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case <-x.done:
			return x.result
		case <-x.wake:
		case <-late.C:
			t.Fatalf("not done: %+v\n%s\n%s", x.d.Status()[0], d, s.r.log)
		}
		if st := x.d.Status()[0]; st.Epoch > 0 && st.State == stateRunning && st.NextOffset == scenarioRecords && st.Outbox == 0 && (s.also == nil || s.also()) {
			d.mu.Lock()
			s.done = d.ops
			d.mu.Unlock()
			x.stop()
			return x.ends()
		}
	}
}

// crashed is run with a crash before operation k, then the machine's start.
func (s *scenario) crashed(t testing.TB, k, mode int, rng *rand.Rand) (crashed bool) {
	t.Helper()
	d := s.r.disk.(*simDisk)
	d.crash = k
	err := s.run(t)
	if !d.down {
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		return false
	}
	if !errors.Is(err, errCrashed) {
		t.Fatalf("operation %d failed, and the daemon ended with %v", k, err)
	}
	s.r.disk = d.reboot(mode, rng)
	return true
}

func reference(t *testing.T, shift int) epochReference {
	t.Helper()
	return referenceOf(t, shift, newScenario)
}

func referenceOf(t *testing.T, shift int, newScenario func(testing.TB) *scenario) epochReference {
	t.Helper()
	s := newScenario(t)
	defer s.close()
	var crashes []int
	for range shift {
		// A crash between charge and secret: the epoch is void.
		probe := newScenario(t)
		for _, k := range crashes {
			probe.crashed(t, k, crashLost, nil)
		}
		probe.r.disk.(*simDisk).crash = -1
		if err := probe.run(t); err != nil {
			t.Fatal(err)
		}
		k := probe.r.disk.(*simDisk).at(1, "create", "secret-")
		probe.close()
		if k < 0 || !s.crashed(t, k, crashLost, nil) {
			t.Fatal("no crash")
		}
		crashes = append(crashes, k)
	}
	s.r.disk.(*simDisk).crash = -1
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	ref := epochReference{}
	for _, p := range s.r.output("orders.dp") {
		if want := uint64(p.parse(t).Covers[0]/30+1) + uint64(shift); p.epoch != want {
			t.Fatalf("release %s has epoch %d, want %d", p.key, p.epoch, want)
		}
		ref[[2]int64{p.parse(t).Covers[0], int64(p.step)}] = p
	}
	if len(ref) != scenarioSteps {
		t.Fatalf("%d releases, want %d", len(ref), scenarioSteps)
	}
	return ref
}

// same fails unless the output of a scenario is that of an uninterrupted run.
func (s *scenario) same(t testing.TB, refs []epochReference) {
	t.Helper()
	list := s.r.output("orders.dp")
	v := judge(t, list)
	v.faultless(t)
	if len(v.bytes) != scenarioSteps {
		t.Errorf("%d releases, want %d", len(v.bytes), scenarioSteps)
	}
	for _, p := range v.byKey {
		base := p.parse(t).Covers[0]
		shift := int(p.epoch) - int(base/30+1)
		if shift < 0 || shift >= len(refs) {
			t.Errorf("release %s, from offset %d on", p.key, base)
			continue
		}
		if want := refs[shift][[2]int64{base, int64(p.step)}]; want.hash != p.hash {
			t.Errorf("release %s is not that of the uninterrupted run:\n%s\n%s", p.key, p.value, want.value)
		}
	}
}

// verify holds the end of a scenario against what must be true after any crash.
func (s *scenario) verify(t testing.TB, refs []epochReference) {
	t.Helper()
	s.same(t, refs)
	d := s.r.disk.(*simDisk)
	data, err := d.ReadFile(filepath.Join(s.r.dir, "state", "ledger.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLedger(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries := l.entries
	charges, ended := 0, map[uint64]string{}
	for _, e := range entries {
		switch e.Kind {
		case kindOpen:
			charges++
		case kindVoid:
			charges--
			ended[e.Epoch] = kindVoid
		case kindClose:
			ended[e.Epoch] = kindClose
		case kindDestroyed:
			ended[e.Epoch] = kindDestroyed
		}
	}
	if charges != 3 {
		t.Errorf("%d epochs are charged, want 3: %s", charges, data)
	}
	first := entries[0]
	if got, err := l.charged(ofRecords(first.Source), first.Cost.Adjacency, first.LimitDelta, nil); err != nil || got.Mu != first.Cost.Mu {
		t.Errorf("the worst-off record paid mu %g, an epoch costs %g", got.Mu, first.Cost.Mu)
	}
	// Nothing outlives its epoch.
	open := 0
	for _, e := range entries {
		if e.Kind != kindOpen {
			continue
		}
		secrets := d.holds(secretName(e.Epoch))
		switch ended[e.Epoch] {
		case "":
			open++
			if len(secrets) != 1 {
				t.Errorf("epoch %d is open, secrets %v", e.Epoch, secrets)
			}
		case kindClose:
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
	for _, name := range d.holds("checkpoint") {
		data, err := d.ReadFile(filepath.Join(s.r.dir, "state", "tasks", "orders-0", name))
		if err != nil {
			t.Fatal(err)
		}
		if c, err := parseCheckpoint(slotContent(data)); err == nil && ended[c.epoch] != "" {
			t.Errorf("%s is of epoch %d, which has ended", name, c.epoch)
		}
	}
	for _, name := range []string{"checkpoint.tmp", "opening-"} {
		if left := d.holds(name); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// uninterrupted runs a daemon over the same input with the same seed and a
// state and an output of its own, in one go.
func (r *rig) uninterrupted(steps uint64) *verdict {
	r.t.Helper()
	r.references++
	topic := fmt.Sprintf("reference%d.dp", r.references)
	ref := r.sibling(with(r.toml, `"orders.dp"`, fmt.Sprintf("%q", topic)))
	ref.commit = "10ms"
	x := ref.start()
	x.published(steps)
	x.end()
	return ref.history(topic)
}

// heldShard is a shard's logs in memory, and what the protocol makes of them. It checks what no
// update may do: charge an epoch without making it, or what follows from that; break the ledger's
// chain; seal what ends with an epoch under nothing.
type heldShard struct {
	mu      sync.Mutex
	values  map[string]shardlog.Value // committed
	lines   [][]byte
	updates []string // what was committed, in words
	wrong   []string // what must not have happened

	calls int
	fault int  // the call that fails, from 0; −1: none
	late  bool // it is committed all the same
	hold  chan struct{}

	lost     chan struct{}
	broken   bool
	taken    bool // by another owner, which Affirm finds
	affirmed int  // calls of Affirm
}

func newHeldShard() *heldShard {
	return &heldShard{values: map[string]shardlog.Value{}, fault: -1, lost: make(chan struct{})}
}

// again returns the shard as another acquisition finds it.
func (h *heldShard) again() *heldShard {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := newHeldShard()
	n.lines, n.updates, n.wrong, n.calls = slices.Clone(h.lines), slices.Clone(h.updates), h.wrong, h.calls
	for key, v := range h.values {
		if _, there := h.values[v.Under]; v.Under == "" || there {
			n.values[key] = v
		}
	}
	return n
}

func (h *heldShard) Values() map[string]shardlog.Value {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.values)
}

func (h *heldShard) Lines() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return bytes.Split(bytes.Join(h.lines, []byte("\n")), []byte("\n"))[:len(h.lines)]
}

func (h *heldShard) Lost() <-chan struct{} { return h.lost }

func (h *heldShard) Affirm(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.affirmed++
	if h.taken && !h.broken {
		h.broken = true
		close(h.lost)
	}
	if h.broken {
		return fmt.Errorf("%w: fenced", shardlog.ErrLost)
	}
	return nil
}

func (h *heldShard) Update(_ context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	if h.hold != nil {
		<-h.hold
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.broken {
		h.wrong = append(h.wrong, "an update after the shard was lost")
		return shardlog.ErrLost
	}
	n := h.calls
	h.calls++
	if n == h.fault {
		h.broken = true
		defer close(h.lost)
		if !h.late {
			return fmt.Errorf("%w: refused", shardlog.ErrLost)
		}
	}
	for _, key := range remove {
		if _, both := put[key]; both {
			h.wrong = append(h.wrong, "puts and removes "+key)
		}
		delete(h.values, key)
	}
	maps.Copy(h.values, put)
	for key, v := range h.values {
		_, file, _ := strings.Cut(key, "/")
		ends := strings.HasPrefix(file, "checkpoint") || strings.HasPrefix(file, "initial-") || strings.HasPrefix(file, "users-")
		under, there := h.values[v.Under]
		if ends != (v.Under != "") || v.Under != "" && !there || under.Under != "" || strings.HasSuffix(key, temporarySuffix) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s is under %q", key, v.Under))
		}
	}
	words := []string{}
	for _, line := range lines {
		var e Entry
		head := [32]byte{}
		if k := len(h.lines); k > 0 {
			head = sha256.Sum256(h.lines[k-1])
		}
		if json.Unmarshal(line, &e) != nil || e.Prev != hex.EncodeToString(head[:]) || e.Seq != uint64(len(h.lines)+1) {
			h.wrong = append(h.wrong, fmt.Sprintf("line %d continues another ledger: %s", len(h.lines)+1, line))
		}
		h.lines = append(h.lines, line)
		words = append(words, e.Kind)
		dir := e.Task().String() + "/"
		switch e.Kind {
		case kindOpen:
			cp, has := put[dir+checkpointName]
			epoch, _ := checkpointEpoch(cp.Data)
			if _, secret := put[dir+secretName(e.Epoch)]; !has || epoch != e.Epoch || !secret || put[dir+manifestName(e.Epoch)].Data == nil {
				h.wrong = append(h.wrong, fmt.Sprintf("epoch %d was charged and not made", e.Epoch))
			}
		case kindDestroyed:
			if _, there := h.values[dir+secretName(e.Epoch)]; there {
				h.wrong = append(h.wrong, fmt.Sprintf("the secret of epoch %d is there still", e.Epoch))
			}
		}
	}
	for key, v := range h.values {
		task, name, _ := strings.Cut(key, "/")
		if epoch, ok := secretEpoch(name); ok && len(h.lines) > 0 && !h.charged(task, epoch) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s, and the ledger does not charge it", key))
		}
		if name == checkpointName {
			if cp, err := parseCheckpoint(v.Data); err != nil || cp.ledger != [32]byte{} && !h.knows(cp.ledger) {
				h.wrong = append(h.wrong, fmt.Sprintf("%s names a line that is not committed, or is damaged: %v", key, err))
			}
		}
	}
	h.updates = append(h.updates, strings.Join(words, " "))
	if n == h.fault {
		return fmt.Errorf("%w: no answer", shardlog.ErrLost)
	}
	return nil
}

// knows reports whether a line is committed.
func (h *heldShard) knows(hash [32]byte) bool {
	for _, line := range h.lines {
		if sha256.Sum256(line) == hash {
			return true
		}
	}
	return false
}

// charged reports whether an epoch's opening is committed.
func (h *heldShard) charged(task string, epoch uint64) bool {
	for _, line := range h.lines {
		var e Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == kindOpen && e.Task().String() == task && e.Epoch == epoch {
			return true
		}
	}
	return false
}

// committed returns the last step of an epoch of the task orders-0 that may be published: the
// checkpoint's, or any once the epoch is closed.
func (h *heldShard) committed(epoch uint64) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, line := range h.lines {
		var e Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == kindClose && e.Epoch == epoch {
			return 1 << 62
		}
	}
	if cp, err := parseCheckpoint(h.values["orders-0/"+checkpointName].Data); err == nil && cp.epoch == epoch {
		return cp.step
	}
	return 0
}

func readEpochs(dir string) ([]EpochInfo, error) {
	b, err := ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Epochs(), nil
}

func readSpent(dir, stream string, records []int) ([]Spent, error) {
	b, err := ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Spent(stream, records)
}
