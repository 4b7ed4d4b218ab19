package boundary_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestClockSteps: steps end by the clock and hold the records that the partition has then, possibly none. A restart
// continues with the recorded boundaries, and verify computes the same bytes.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	want := []int{70, 0, 250, 1}
	first := 0
	for i, n := range want {
		r.SendTo(0, first, n)
		first += n
		h.Tick()
		x.Published(uint64(i + 1))
	}
	x.End()
	r.SendTo(0, first, 30)
	x = r.Start(h.On)
	h.Tick()
	x.Published(5)
	x.End()
	out := r.OutputOf("orders.dp")
	at := int64(0)
	for i, n := range append(want, 30) {
		rel := fixtures.ParseClock(t, out[fmt.Sprintf("orders/0/1/%d", i+1)])
		if rel.Rows != n || rel.Offsets != [2]int64{at, at + int64(n)} || rel.Covers != [2]int64{0, at + int64(n)} ||
			rel.Mechanism.Clock != "1m0s" {
			t.Errorf("step %d is %+v, want %d rows from %d on", i+1, rel, n, at)
		}
		if !slices.ContainsFunc(rel.Privacy.Statements,
			func(s string) bool { return strings.Contains(s, "Steps end by a clock") }) {
			t.Error("the release does not say what steps by the clock reveal")
		}
		at += int64(n)
	}
	for _, e := range r.Entries() {
		if e.Kind == ledger.KindOpen && e.End != -1 {
			t.Errorf("opened with end %d", e.End)
		}
	}
	o := r.Options()
	all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
		fixtures.OrdersTask)
	if err != nil || len(all) != 1 || all[0].Releases != 5 || all[0].Difference != "" || all[0].Unverifiable != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}))
	entries := r.Entries()
	if e := entries[slices.IndexFunc(entries,
		func(e ledger.Entry) bool { return e.Kind == ledger.KindClose })]; e.End != at {
		t.Errorf("closed at %d, want %d", e.End, at)
	}
}

// TestClockIgnoresTimes: record timestamps decades ahead, before 1970 or out of order move no boundary and no record,
// so neighbouring streams have the same steps. The releases equal those of other records with the same values at the
// same offsets.
func TestClockIgnoresTimes(t *testing.T) {
	t.Parallel()
	far, early := time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC), time.UnixMilli(1)
	run := func(times ...time.Time) map[string]string {
		r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
		h := streamtest.NewHand()
		x := r.Start(h.On)
		x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		for step := range 3 {
			list := make([]kafka.Message, 20)
			for i := range list {
				list[i] = kafka.Message{Value: fixtures.OrderRecord(20*step + i), Time: times[(20*step+i)%len(times)]}
			}
			_, err := r.Client.Produce(t.Context(), "orders", 0, list)
			fixtures.Must(t, err)
			h.Tick()
			x.Published(uint64(step + 1))
		}
		x.End()
		return r.OutputOf("orders.dp")
	}
	plain := run(early)
	for name, times := range map[string][]time.Time{"far ahead": {early, far, early}, "one by one": {far, early}} {
		got := run(times...)
		if len(got) != 3 || !maps.Equal(got, plain) {
			t.Errorf("%s: %d releases, which differ from those of the same records with other times", name, len(got))
		}
	}
}

// TestClockTransactions: a step ends before an open transaction, whose records are in the step in which it ends. An
// aborted transaction contributes only offsets.
func TestClockTransactions(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	send := func(p *kafkatest.Producer, first, n int) {
		for i := range n {
			p.Send(kafkatest.Record{Value: fixtures.OrderRecord(first + i)})
		}
	}
	p := kafkatest.NewProducer(t, r.Broker.Addrs(), "orders", 0, "x")
	r.SendTo(0, 0, 5)
	p.Begin()
	send(p, 5, 10)
	h.Tick()
	x.Published(1)
	p.End(true)
	h.Tick()
	x.Published(2)
	p.Begin()
	send(p, 15, 3)
	p.End(false)
	h.Tick()
	x.Published(3)
	h.Tick()
	x.Published(4)
	x.End()
	out := r.OutputOf("orders.dp")
	for i, want := range []string{"5 [0 5]", "10 [5 16]", "0 [16 20]", "0 [20 20]"} {
		if rel := fixtures.ParseClock(t, out[fmt.Sprintf("orders/0/1/%d", i+1)]); fmt.Sprint(rel.Rows, " ",
			rel.Offsets) != want {
			t.Errorf("step %d has %d rows of %v, want %s", i+1, rel.Rows, rel.Offsets, want)
		}
	}
	o := r.Options()
	all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
		fixtures.OrdersTask)
	if err != nil || all[0].Releases != 4 || all[0].Difference != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
}

// TestClockLeaderGone: a partition whose leader does not answer stays at its last end, and does not delay other
// partitions. Its records are in the first step after the leader is back.
func TestClockLeaderGone(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.MergedClockStream, 3)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	r.SendTo(1, 1000, 10)
	h.Tick()
	x.Published(1)
	gone := r.Broker.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "orders", Partitions: []int32{1},
			Err: kerr.LeaderNotAvailable, Count: -1})
	for step := range 2 {
		r.SendTo(0, 10*step, 10)
		r.SendTo(1, 1010+10*step, 10)
		h.Tick()
		x.Published(uint64(step + 2))
	}
	x.Until("says why", func(s monitor.TaskStatus) bool { return strings.Contains(s.Message, "boundaries") })
	gone.Remove()
	h.Tick()
	x.Published(4)
	x.Until("recovered", func(s monitor.TaskStatus) bool { return !strings.Contains(s.Message, "boundaries") })
	x.End()
	out := r.OutputOf("orders.dp")
	for i, want := range []int{10, 10, 10, 20} {
		if rel := fixtures.ParseClock(t, out[fmt.Sprintf("orders/merged/1/%d", i+1)]); rel.Rows != want {
			t.Errorf("step %d has %d rows, want %d", i+1, rel.Rows, want)
		}
	}
}

// TestClockMerged: a merged step takes the records that each partition has, so a quiet partition does not delay the
// others. step_max limits a step; further records are in later steps.
func TestClockMerged(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t,
		fixtures.With(fixtures.MergedClockStream, "merge = true", "merge = true\nstep_max = 2"), 3)
	refused := r.Start()
	refused.Halts(failure.Configuration, "step_max = 2 is less than the 3 partitions")
	refused.EndHalted()
	r.Toml = fixtures.With(fixtures.MergedClockStream, "merge = true", "merge = true\nstep_max = 300")
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning && s.Partition == core.Merged })
	r.SendTo(0, 0, 250)
	r.SendTo(1, 1000, 30)
	for step := range 3 {
		h.Tick()
		x.Published(uint64(step + 1))
	}
	r.SendTo(2, 2000, 5)
	h.Tick()
	x.Published(4)
	x.End()
	out := r.OutputOf("orders.dp")
	for i, want := range []string{
		"[[0 100] [0 30] [0 0]]", "[[100 200] [30 30] [0 0]]", "[[200 250] [30 30] [0 0]]",
		"[[250 250] [30 30] [0 5]]",
	} {
		rel := fixtures.ParseClock(t, out[fmt.Sprintf("orders/merged/1/%d", i+1)])
		var got [][2]int64
		for _, p := range rel.Parts {
			got = append(got, p.Offsets)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("step %d is %v, want %s", i+1, got, want)
		}
	}
	o := r.Options()
	all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
		fixtures.MergedTask)
	if err != nil || all[0].Releases != 4 || all[0].Difference != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
}

// TestClockRecovery: a restored copy, a damaged checkpoint and a lost one continue with the boundaries in the topic,
// merged or not, and give the same bytes.
func TestClockRecovery(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		toml string
		task core.Task
	}{
		"one": {fixtures.ClockStream, fixtures.OrdersTask}, "merged": {fixtures.MergedClockStream, fixtures.MergedTask},
		"refit":        {fixtures.ClockRefit(fixtures.ClockStream, `solver = "linmix"`), fixtures.OrdersTask},
		"merged refit": {fixtures.ClockRefit(fixtures.MergedClockStream, ""), fixtures.MergedTask},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.ClockRig(t, c.toml, 2)
			h := streamtest.NewHand()
			step := uint64(0)
			more := func(x *streamtest.Running, n int) {
				for range n {
					r.SendTo(0, 100*int(step), 40)
					r.SendTo(1, 5000+100*int(step), 7)
					step++
					h.Tick()
					x.Published(step)
				}
			}
			x := r.Start(h.On)
			x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			more(x, 2)
			x.End()
			old := r.Sibling(c.toml)
			r.CopyState(old)
			x = r.Start(h.On)
			more(x, 3)
			x.End()
			want := r.OutputOf("orders.dp")
			// The copy's clock stands still, and the copy repeats the published releases.
			x = old.Start(h.On)
			x.Published(step)
			more(x, 1)
			x.End()
			dir := old.Dir + "/state/tasks/" + c.task.String()
			fixtures.FlipByte(t, dir+"/checkpoint", 100)
			x = old.Start(h.On)
			x.Halts(failure.State, "streamdp recover")
			x.EndHalted()
			fixtures.Must(t,
				old.Offline(func(ctx context.Context, d *stream.Daemon) error {
					return streamtest.Recover(ctx, d, c.task, nil)
				}))
			x = old.Start(h.On)
			more(x, 1)
			x.End()
			for _, name := range []string{"/checkpoint", "/checkpoint.prev"} {
				fixtures.Must(t, os.Remove(dir+name))
			}
			x = old.Start(h.On)
			x.Published(step)
			more(x, 1)
			x.End()
			got := old.OutputOf("orders.dp")
			if len(got) != int(step) {
				t.Errorf("%d releases, want %d", len(got), step)
			}
			for key, value := range want {
				if got[key] != value {
					t.Errorf("release %s differs", key)
				}
			}
		})
	}
}

// TestClockCopies: two copies of a state run at the same time, each with its own clock. They use the same boundaries
// and publish the same bytes. A copy that finds a boundary makes none, so both together make few more than one would.
func TestClockCopies(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.MergedClockStream, 3)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	h.Tick()
	x.Published(1)
	x.End()
	other := r.Sibling(fixtures.MergedClockStream)
	r.CopyState(other)
	one, two := streamtest.NewHand(), streamtest.NewHand()
	x, y := r.Start(one.On), other.Start(two.On)
	for _, d := range []*streamtest.Running{x, y} {
		d.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	}
	const steps = 12
	for i := range steps {
		for p := range 3 {
			r.SendTo(p, 1000*p+10*i, 3+p*i)
		}
		var wg sync.WaitGroup
		wg.Go(one.Tick)
		wg.Go(two.Tick)
		wg.Wait()
		x.Published(uint64(i + 2))
		y.Published(uint64(i + 2))
	}
	x.End()
	y.End()
	if out := r.OutputOf("orders.dp"); len(out) < steps+1 || len(out) > 2*steps+1 {
		t.Errorf("%d releases, want %d, or some more", len(out), steps+1)
	}
	records := 0
	fixtures.Must(t,
		r.Client.ReadBack(t.Context(), "bounds", 0, 0, func(*kafka.Record) error { records++; return nil }))
	if records < steps+1 || records > 2*steps+1 {
		t.Errorf("%d records in the boundary topic", records)
	}
}

// TestClockFirstCounts: if a step has several boundaries in the topic, all copies use the first, no matter which copy
// wrote it. A record without a MAC is ignored.
func TestClockFirstCounts(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	r.SendTo(0, 0, 100)
	m := manifest(r, t, fixtures.OrdersTask, 1)
	b := boundary.New(nil, r.Client, connect.InsecureKey(r.Seed), "bounds", m)
	put := func(step uint64, end int64, mac []byte) {
		value, _ := json.Marshal(boundary.BoundaryValue{Step: step, Ends: []int64{end}})
		if mac == nil {
			mac = b.Mac(value)
		}
		_, err := r.Client.Produce(t.Context(), "bounds", 0,
			[]kafka.Message{{Key: (*b.Name()), Value: value, Time: time.UnixMilli(1),
				Headers: []kafka.Header{{Key: boundary.BoundaryHeader, Value: mac}}}})
		fixtures.Must(t, err)
	}
	put(1, 99, make([]byte, 32))
	put(1, 60, nil)
	put(1, 80, nil)
	h.Tick() // the daemon finds that boundary 1 exists
	x.Published(1)
	h.Tick()
	x.Published(2)
	x.End()
	out := r.OutputOf("orders.dp")
	if one, two := fixtures.ParseClock(t, out["orders/0/1/1"]),
		fixtures.ParseClock(t, out["orders/0/1/2"]); one.Rows != 60 || two.Rows != 40 {
		t.Errorf("steps of %d and %d rows, want 60 and 40", one.Rows, two.Rows)
	}
	// The task halts if a boundary cannot follow the one before, and if the topic has lost boundaries that were read.
	put(3, 40, nil)
	x = r.Start(h.On)
	x.Halts(failure.BoundaryTopic, "holds the boundary of step 3 after that of step 2")
	x.EndHalted()
}

// TestClockTopic: the task halts if the boundary topic is unsuitable, is a different one, or has lost boundaries,
// because a step must not get a second boundary.
//
// These brokers have no topic ids, so only the records can show such a change; see TestClockTopicMadeAgain.
func TestClockTopic(t *testing.T) {
	t.Parallel()
	r := streamtest.NewOldRig(t, fixtures.ClockStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "two", 2, nil))
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "compacted", 1, map[string]string{"cleanup.policy": "compact"}))
	for topic, why := range map[string]string{"two": "has 2 partitions", "compacted": "has cleanup.policy = compact"} {
		r.Boundaries = topic
		x := r.Start()
		x.Halts(failure.BoundaryTopic, why)
		x.EndHalted()
	}
	r.Boundaries = "bounds"
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	r.SendTo(0, 0, 100)
	h.Tick()
	x.Published(1)
	x.End()
	backup := r.Sibling(fixtures.ClockStream)
	r.CopyState(backup)
	x = r.Start(h.On)
	r.SendTo(0, 100, 50)
	h.Tick()
	x.Published(2)
	x.End()
	r.Boundaries = "others"
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "others", 1, nil))
	x = r.Start(h.On)
	x.Halts(failure.Configuration, `are in topic bounds, not in others: set kafka.boundary_topic = "bounds"`)
	x.EndHalted()
	// The topic is created again with only the first boundary, and an old copy starts. The output holds step 2. The
	// copy must not make another boundary for step 2.
	records := recordsOf(r, "bounds")
	kafkatest.DeleteTopic(t, r.Broker.Addrs(), "bounds")
	fixtures.Must(t, fixtures.Dial(t, r.Addr).CreateTopic(t.Context(), "bounds", 1, nil))
	r.Boundaries, backup.Boundaries = "bounds", "bounds"
	x = r.Start(h.On)
	x.Halts(failure.BoundaryTopic, "boundary topic bounds cannot be read")
	x.EndHalted()
	// The same holds if others have filled the new topic since.
	foreign := []kafka.Message{{Key: records[0].Key, Value: records[0].Value, Time: records[0].Time},
		records[0], records[1]}
	_, err := fixtures.Dial(t, r.Addr).Produce(t.Context(), "bounds", 0, foreign)
	fixtures.Must(t, err)
	x = r.Start(h.On)
	x.Halts(failure.BoundaryTopic, "does not hold the boundary of step 2 at offset 1")
	x.EndHalted()
	kafkatest.DeleteTopic(t, r.Broker.Addrs(), "bounds")
	fixtures.Must(t, fixtures.Dial(t, r.Addr).CreateTopic(t.Context(), "bounds", 1, nil))
	_, err = fixtures.Dial(t, r.Addr).Produce(t.Context(), "bounds", 0, records[:1])
	fixtures.Must(t, err)
	h.Tick()
	x = backup.Start(h.On)
	x.Halts(failure.OutputAhead, "holds step 2 of epoch 1, but boundary topic bounds holds boundaries up to step 1")
	x.EndHalted()
	if out := r.OutputOf("orders.dp"); len(out) != 2 {
		t.Errorf("%d releases", len(out))
	}
}

// recordsOf returns the records of a topic as messages that can be sent again.
func recordsOf(r *streamtest.Rig, topic string) (all []kafka.Message) {
	r.T.Helper()
	fixtures.Must(r.T, r.Client.ReadBack(r.T.Context(), topic, 0, 0, func(rec *kafka.Record) error {
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
func manifest(r *streamtest.Rig, t testing.TB, task core.Task, epoch uint64) *core.Manifest {
	t.Helper()
	file, err := os.ReadFile(r.Dir + "/state/tasks/" + task.String() + "/" + state.ManifestName(epoch))
	fixtures.Must(t, err)
	m, err := core.ParseManifest(file)
	fixtures.Must(t, err)
	return m
}

// TestClockBehind: boundaries that come faster than steps can be summed are read again when they are needed, and none
// is lost.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	b := boundary.New(nil, nil, new([32]byte), "bounds", &core.Manifest{Stream: "s", Epoch: 1, Nonce: make([]byte, 16)})
	b.Last = boundary.Boundary{Ends: []int64{0}, At: -1}
	b.Kept, b.Most = b.Last, 10
	const n = boundary.MaxQueued + 500
	for i := range uint64(n) {
		fixtures.Must(t, b.Take(boundary.Boundary{Step: i + 1, Ends: []int64{int64(i)}, At: int64(i)}))
	}
	if len((*b.Queue())) != boundary.MaxQueued || b.Kept.Step != boundary.MaxQueued || b.Last.Step != n {
		t.Fatalf("%d are kept up to step %d, of %d", len((*b.Queue())), b.Kept.Step, b.Last.Step)
	}
	fixtures.Must(t, b.Take(boundary.Boundary{Step: 5, Ends: []int64{9}, At: n})) // a repeated boundary
	if err := b.Take(boundary.Boundary{Step: n + 2, Ends: []int64{n}, At: n}); err == nil {
		t.Error("a boundary after a gap is accepted")
	}
	if err := b.Take(boundary.Boundary{Step: n + 1, Ends: []int64{n + 10}, At: n}); err == nil {
		t.Error("a boundary with a step that is too large is accepted")
	}
	x, known, _, err := b.Known(t.Context(), 7)
	if err != nil || !known || x.Step != 7 {
		t.Errorf("step 7 is %+v, %v", x, err)
	}
	if b.Done(7); len((*b.Queue())) != boundary.MaxQueued-7 {
		t.Errorf("%d are kept after step 7", len((*b.Queue())))
	}
}

// TestBeats: setting the clock moves only later boundaries, and the next boundary is never more than one and a half
// periods away.
func TestBeats(t *testing.T) {
	t.Parallel()
	const period = 2 * time.Millisecond
	at := time.Unix(1_000_000, 0)
	h := &epoch.Process{Clock: func() time.Time { return at }}
	wait := h.Beats(period)
	for _, jump := range []time.Duration{0, time.Hour, -3 * time.Hour, time.Millisecond, 10 * time.Minute} {
		at = at.Add(jump)
		fixtures.Must(t, wait(t.Context()))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Beats(time.Hour)(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
