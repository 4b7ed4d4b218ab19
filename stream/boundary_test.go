package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestClockSteps: steps end where a clock ends them, with what the partition holds, empty
// ones too; a restart goes on with the boundaries that are recorded, and verify finds the
// same bytes.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	want := []int{70, 0, 250, 1}
	first := 0
	for i, n := range want {
		r.sendTo(0, first, n)
		first += n
		h.tick()
		x.published(uint64(i + 1))
	}
	x.end()
	r.sendTo(0, first, 30)
	x = r.start(h.on)
	h.tick()
	x.published(5)
	x.end()
	out := r.outputOf("orders.dp")
	at := int64(0)
	for i, n := range append(want, 30) {
		rel := parseClock(t, out[fmt.Sprintf("orders/0/1/%d", i+1)])
		if rel.Rows != n || rel.Offsets != [2]int64{at, at + int64(n)} || rel.Covers != [2]int64{0, at + int64(n)} || rel.Mechanism.Clock != "1m0s" {
			t.Errorf("step %d is %+v, want %d rows from %d on", i+1, rel, n, at)
		}
		if !slices.ContainsFunc(rel.Privacy.Statements, func(s string) bool { return strings.Contains(s, "Steps end by a clock") }) {
			t.Error("the release does not say what a clock tells")
		}
		at += int64(n)
	}
	for _, e := range r.entries() {
		if e.Kind == kindOpen && e.End != -1 {
			t.Errorf("opened with end %d", e.End)
		}
	}
	o := r.options()
	all, err := Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, ordersTask)
	if err != nil || len(all) != 1 || all[0].Releases != 5 || all[0].Difference != "" || all[0].Unverifiable != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) }))
	entries := r.entries()
	if e := entries[slices.IndexFunc(entries, func(e Entry) bool { return e.Kind == kindClose })]; e.End != at {
		t.Errorf("closed at %d, want %d", e.End, at)
	}
}

// TestClockIgnoresTimes: the times that records bear, decades ahead, before 1970 or out of order, move no
// boundary and no record, so that neighbouring streams have the same steps. Its records make the same releases as others
// with the same values at the same offsets.
func TestClockIgnoresTimes(t *testing.T) {
	t.Parallel()
	far, early := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC), time.UnixMilli(1)
	run := func(times ...time.Time) map[string]string {
		r := clockRig(t, clockStream, 1)
		h := newHand()
		x := r.start(h.on)
		x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
		for step := range 3 {
			list := make([]kafka.Message, 20)
			for i := range list {
				list[i] = kafka.Message{Value: orderRecord(20*step + i), Time: times[(20*step+i)%len(times)]}
			}
			_, err := r.client.Produce(t.Context(), "orders", 0, list)
			must(t, err)
			h.tick()
			x.published(uint64(step + 1))
		}
		x.end()
		return r.outputOf("orders.dp")
	}
	plain := run(early)
	for name, times := range map[string][]time.Time{"far ahead": {early, far, early}, "one by one": {far, early}} {
		got := run(times...)
		if len(got) != 3 || !maps.Equal(got, plain) {
			t.Errorf("%s: %d releases, and not those of the same records with other times", name, len(got))
		}
	}
}

// TestClockTransactions: a step ends before an open transaction, whose records come in the step in which it
// ends; of an aborted one only offsets come.
func TestClockTransactions(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	send := func(p *kafkatest.Producer, first, n int) {
		for i := range n {
			p.Send(kafkatest.Record{Value: orderRecord(first + i)})
		}
	}
	p := kafkatest.NewProducer(t, r.broker.Addrs(), "orders", 0, "x")
	r.sendTo(0, 0, 5)
	p.Begin()
	send(p, 5, 10)
	h.tick()
	x.published(1)
	p.End(true)
	h.tick()
	x.published(2)
	p.Begin()
	send(p, 15, 3)
	p.End(false)
	h.tick()
	x.published(3)
	h.tick()
	x.published(4)
	x.end()
	out := r.outputOf("orders.dp")
	for i, want := range []string{"5 [0 5]", "10 [5 16]", "0 [16 20]", "0 [20 20]"} {
		if rel := parseClock(t, out[fmt.Sprintf("orders/0/1/%d", i+1)]); fmt.Sprint(rel.Rows, " ", rel.Offsets) != want {
			t.Errorf("step %d has %d rows of %v, want %s", i+1, rel.Rows, rel.Offsets, want)
		}
	}
	o := r.options()
	all, err := Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, ordersTask)
	if err != nil || all[0].Releases != 4 || all[0].Difference != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
}

// TestClockLeaderGone: a partition that does not say how far it reaches stays where it is, and holds up
// no other; what it has comes in the first step after it is back.
func TestClockLeaderGone(t *testing.T) {
	t.Parallel()
	r := clockRig(t, mergedClockStream, 3)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	r.sendTo(1, 1000, 10)
	h.tick()
	x.published(1)
	gone := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "orders", Partitions: []int32{1}, Err: kerr.LeaderNotAvailable, Count: -1})
	for step := range 2 {
		r.sendTo(0, 10*step, 10)
		r.sendTo(1, 1010+10*step, 10)
		h.tick()
		x.published(uint64(step + 2))
	}
	x.until("says why", func(s TaskStatus) bool { return strings.Contains(s.Message, "boundaries") })
	gone.Remove()
	h.tick()
	x.published(4)
	x.until("recovered", func(s TaskStatus) bool { return !strings.Contains(s.Message, "boundaries") })
	x.end()
	out := r.outputOf("orders.dp")
	for i, want := range []int{10, 10, 10, 20} {
		if rel := parseClock(t, out[fmt.Sprintf("orders/merged/1/%d", i+1)]); rel.Rows != want {
			t.Errorf("step %d has %d rows, want %d", i+1, rel.Rows, want)
		}
	}
}

// TestClockMerged: a merged step takes of each partition what is there, so that a quiet one
// holds nobody up; step_max bounds what a step takes, and the rest comes later.
func TestClockMerged(t *testing.T) {
	t.Parallel()
	r := clockRig(t, with(mergedClockStream, "merge = true", "merge = true\nstep_max = 2"), 3)
	refused := r.start()
	refused.halts(haltConfiguration, "step_max = 2 is less than the 3 partitions")
	refused.endHalted()
	r.toml = with(mergedClockStream, "merge = true", "merge = true\nstep_max = 300")
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning && s.Partition == core.Merged })
	r.sendTo(0, 0, 250)
	r.sendTo(1, 1000, 30)
	for step := range 3 {
		h.tick()
		x.published(uint64(step + 1))
	}
	r.sendTo(2, 2000, 5)
	h.tick()
	x.published(4)
	x.end()
	out := r.outputOf("orders.dp")
	for i, want := range []string{"[[0 100] [0 30] [0 0]]", "[[100 200] [30 30] [0 0]]", "[[200 250] [30 30] [0 0]]", "[[250 250] [30 30] [0 5]]"} {
		rel := parseClock(t, out[fmt.Sprintf("orders/merged/1/%d", i+1)])
		var got [][2]int64
		for _, p := range rel.Parts {
			got = append(got, p.Offsets)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("step %d is %v, want %s", i+1, got, want)
		}
	}
	o := r.options()
	all, err := Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, mergedTask)
	if err != nil || all[0].Releases != 4 || all[0].Difference != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
}

// TestClockRecovery: a restored copy, a damaged checkpoint and a lost one go on with the
// boundaries that the topic has, merged and not, and give the same bytes.
func TestClockRecovery(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		toml string
		task core.Task
	}{
		"one": {clockStream, ordersTask}, "merged": {mergedClockStream, mergedTask},
		"refit": {clockRefit(clockStream, `solver = "linmix"`), ordersTask}, "merged refit": {clockRefit(mergedClockStream, ""), mergedTask},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := clockRig(t, c.toml, 2)
			h := newHand()
			step := uint64(0)
			more := func(x *running, n int) {
				for range n {
					r.sendTo(0, 100*int(step), 40)
					r.sendTo(1, 5000+100*int(step), 7)
					step++
					h.tick()
					x.published(step)
				}
			}
			x := r.start(h.on)
			x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
			more(x, 2)
			x.end()
			old := r.sibling(c.toml)
			r.copyState(old)
			x = r.start(h.on)
			more(x, 3)
			x.end()
			want := r.outputOf("orders.dp")
			// The copy's clock stands still, and it repeats what was published.
			x = old.start(h.on)
			x.published(step)
			more(x, 1)
			x.end()
			dir := old.dir + "/state/tasks/" + c.task.String()
			flipByte(t, dir+"/checkpoint", 100)
			x = old.start(h.on)
			x.halts(haltState, "streamdp recover")
			x.endHalted()
			must(t, old.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, c.task, nil) }))
			x = old.start(h.on)
			more(x, 1)
			x.end()
			for _, name := range []string{"/checkpoint", "/checkpoint.prev"} {
				must(t, os.Remove(dir+name))
			}
			x = old.start(h.on)
			x.published(step)
			more(x, 1)
			x.end()
			got := old.outputOf("orders.dp")
			if len(got) != int(step) {
				t.Errorf("%d releases, want %d", len(got), step)
			}
			for key, value := range want {
				if got[key] != value {
					t.Errorf("another release %s", key)
				}
			}
		})
	}
}

// TestClockCopies: two copies of a state that run at once, with clocks of their own, take
// the same boundaries and publish the same bytes. A copy that finds a boundary makes none, so
// both together make hardly more than one.
func TestClockCopies(t *testing.T) {
	t.Parallel()
	r := clockRig(t, mergedClockStream, 3)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	h.tick()
	x.published(1)
	x.end()
	other := r.sibling(mergedClockStream)
	r.copyState(other)
	one, two := newHand(), newHand()
	x, y := r.start(one.on), other.start(two.on)
	for _, d := range []*running{x, y} {
		d.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	}
	const steps = 12
	for i := range steps {
		for p := range 3 {
			r.sendTo(p, 1000*p+10*i, 3+p*i)
		}
		var wg sync.WaitGroup
		wg.Go(one.tick)
		wg.Go(two.tick)
		wg.Wait()
		x.published(uint64(i + 2))
		y.published(uint64(i + 2))
	}
	x.end()
	y.end()
	if out := r.outputOf("orders.dp"); len(out) < steps+1 || len(out) > 2*steps+1 {
		t.Errorf("%d releases, want %d, or some more", len(out), steps+1)
	}
	records := 0
	must(t, r.client.ReadBack(t.Context(), "bounds", 0, 0, func(*kafka.Record) error { records++; return nil }))
	if records < steps+1 || records > 2*steps+1 {
		t.Errorf("%d records in the boundary topic", records)
	}
}

// TestClockFirstCounts: of several boundaries of a step the first counts, whoever wrote it
// and whatever comes later; a record without a MAC counts for nobody.
func TestClockFirstCounts(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	r.sendTo(0, 0, 100)
	m := manifest(r, t, ordersTask, 1)
	b := newBoundaries(nil, r.client, InsecureKey(r.seed), "bounds", m)
	put := func(step uint64, end int64, mac []byte) {
		value, _ := json.Marshal(boundaryValue{step, []int64{end}})
		if mac == nil {
			mac = b.mac(value)
		}
		_, err := r.client.Produce(t.Context(), "bounds", 0, []kafka.Message{{Key: b.name, Value: value, Time: time.UnixMilli(1),
			Headers: []kafka.Header{{Key: boundaryHeader, Value: mac}}}})
		must(t, err)
	}
	put(1, 99, make([]byte, 32))
	put(1, 60, nil)
	put(1, 80, nil)
	h.tick() // which finds that boundary 1 is there
	x.published(1)
	h.tick()
	x.published(2)
	x.end()
	out := r.outputOf("orders.dp")
	if one, two := parseClock(t, out["orders/0/1/1"]), parseClock(t, out["orders/0/1/2"]); one.Rows != 60 || two.Rows != 40 {
		t.Errorf("steps of %d and %d rows, want 60 and 40", one.Rows, two.Rows)
	}
	// What can't follow is a halt, and so is a topic that lost what was read.
	put(3, 40, nil)
	x = r.start(h.on)
	x.halts(haltBoundary, "holds a boundary of step 3 behind that of step 2")
	x.endHalted()
}

// TestClockTopic: a boundary topic that is unfit, another one, or one that lost boundaries
// is a halt. Nobody decides them again.
//
// Its brokers have no topic ids, so that the records alone tell; see TestClockTopicMadeAgain.
func TestClockTopic(t *testing.T) {
	t.Parallel()
	r := newOldRig(t, clockStream)
	must(t, r.client.CreateTopic(t.Context(), "two", 2, nil))
	must(t, r.client.CreateTopic(t.Context(), "compacted", 1, map[string]string{"cleanup.policy": "compact"}))
	for topic, why := range map[string]string{"two": "has 2 partitions", "compacted": "has cleanup.policy = compact"} {
		r.boundaries = topic
		x := r.start()
		x.halts(haltBoundary, why)
		x.endHalted()
	}
	r.boundaries = "bounds"
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	r.sendTo(0, 0, 100)
	h.tick()
	x.published(1)
	x.end()
	backup := r.sibling(clockStream)
	r.copyState(backup)
	x = r.start(h.on)
	r.sendTo(0, 100, 50)
	h.tick()
	x.published(2)
	x.end()
	r.boundaries = "others"
	must(t, r.client.CreateTopic(t.Context(), "others", 1, nil))
	x = r.start(h.on)
	x.halts(haltConfiguration, `are in topic bounds, not in others: configure kafka.boundary_topic = "bounds"`)
	x.endHalted()
	// The topic is made anew with the first boundary alone, and an old copy starts: the
	// output holds step 2, which it may not decide again.
	records := recordsOf(r, "bounds")
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "bounds")
	must(t, dial(t, r.addr).CreateTopic(t.Context(), "bounds", 1, nil))
	r.boundaries, backup.boundaries = "bounds", "bounds"
	x = r.start(h.on)
	x.halts(haltBoundary, "boundary topic bounds does not")
	x.endHalted()
	// So is one that others have filled since.
	foreign := []kafka.Message{{Key: records[0].Key, Value: records[0].Value, Time: records[0].Time}, records[0], records[1]}
	_, err := dial(t, r.addr).Produce(t.Context(), "bounds", 0, foreign)
	must(t, err)
	x = r.start(h.on)
	x.halts(haltBoundary, "does not hold the boundary of step 2 at offset 1")
	x.endHalted()
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "bounds")
	must(t, dial(t, r.addr).CreateTopic(t.Context(), "bounds", 1, nil))
	_, err = dial(t, r.addr).Produce(t.Context(), "bounds", 0, records[:1])
	must(t, err)
	h.tick()
	x = backup.start(h.on)
	x.halts(haltOutput, "holds step 2 of epoch 1, and boundary topic bounds holds boundaries up to step 1")
	x.endHalted()
	if out := r.outputOf("orders.dp"); len(out) != 2 {
		t.Errorf("%d releases", len(out))
	}
}

// recordsOf returns the records of a topic, to be sent again.
func recordsOf(r *rig, topic string) (all []kafka.Message) {
	r.t.Helper()
	must(r.t, r.client.ReadBack(r.t.Context(), topic, 0, 0, func(rec *kafka.Record) error {
		m := kafka.Message{Key: slices.Clone(rec.Key), Value: slices.Clone(rec.Value), Time: time.UnixMilli(1)}
		for _, h := range rec.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: slices.Clone(h.Value)})
		}
		all = append(all, m)
		return nil
	}))
	return all
}

// manifest reads the manifest of an epoch.
func manifest(r *rig, t testing.TB, task core.Task, epoch uint64) *core.Manifest {
	t.Helper()
	file, err := os.ReadFile(r.dir + "/state/tasks/" + task.String() + "/" + manifestName(epoch))
	must(t, err)
	m, err := core.ParseManifest(file)
	must(t, err)
	return m
}

// TestClockBehind: boundaries that come faster than steps can be summed are read again when it is their
// turn, and none is lost.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	b := newBoundaries(nil, nil, new([32]byte), "bounds", &core.Manifest{Stream: "s", Epoch: 1, Nonce: make([]byte, 16)})
	b.last = boundary{ends: []int64{0}, at: -1}
	b.kept, b.most = b.last, 10
	const n = maxQueued + 500
	for i := range uint64(n) {
		must(t, b.take(boundary{i + 1, []int64{int64(i)}, int64(i)}))
	}
	if len(b.queue) != maxQueued || b.kept.step != maxQueued || b.last.step != n {
		t.Fatalf("%d are kept up to step %d, of %d", len(b.queue), b.kept.step, b.last.step)
	}
	must(t, b.take(boundary{5, []int64{9}, n})) // a repeat
	if err := b.take(boundary{n + 2, []int64{n}, n}); err == nil {
		t.Error("a gap is taken")
	}
	if err := b.take(boundary{n + 1, []int64{n + 10}, n}); err == nil {
		t.Error("more than a step holds is taken")
	}
	x, known, _, err := b.known(t.Context(), 7)
	if err != nil || !known || x.step != 7 {
		t.Errorf("step 7 is %+v, %v", x, err)
	}
	if b.done(7); len(b.queue) != maxQueued-7 {
		t.Errorf("%d are kept after step 7", len(b.queue))
	}
}

// TestBeats: a clock that is set moves later boundaries only, and a boundary is never more than a period
// and a half away.
func TestBeats(t *testing.T) {
	t.Parallel()
	const period = 2 * time.Millisecond
	at := time.Unix(1_000_000, 0)
	h := &host{clock: func() time.Time { return at }}
	wait := h.beats(period)
	for _, jump := range []time.Duration{0, time.Hour, -3 * time.Hour, time.Millisecond, 10 * time.Minute} {
		at = at.Add(jump)
		must(t, wait(t.Context()))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.beats(time.Hour)(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
