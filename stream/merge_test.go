package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// TestMerge: three partitions are one sequence of releases, in which a step is over when
// all partitions have it; it survives restarts with the same bytes, and verify finds them.
func TestMerge(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, mergedStream, 3)
	r.sendTo(0, 0, 450)
	r.sendTo(1, 1000, 120)
	x := r.start()
	x.until("the merged task runs", func(s TaskStatus) bool { return s.State == stateRunning && s.Partition == core.Merged })
	if n := x.in.Tasks()[0].expected; n != 3 {
		t.Errorf("the task has shares of the memory for %d partitions", n)
	}
	r.sendTo(2, 2000, 250)
	x.published(1)
	r.sendTo(1, 1120, 150)
	x.published(2)
	time.Sleep(20 * time.Millisecond)
	if s := x.d.Status()[0]; s.Step != 2 || s.NextOffset != 600 {
		t.Errorf("step %d at %d, want 2 at 600: the slowest partition has 250 records", s.Step, s.NextOffset)
	}
	x.end()
	r.sendTo(1, 1270, 200)
	r.sendTo(2, 2250, 200)
	x = r.start()
	x.published(4)
	x.end()
	out := r.outputOf("orders.dp")
	if len(out) != 4 {
		t.Fatalf("%d releases", len(out))
	}
	var last struct {
		Partition      int
		Rows           int
		Offsets, Parts json.RawMessage
		Privacy        struct{ Statements []string }
	}
	must(t, json.Unmarshal([]byte(out["orders/merged/1/4"]), &last))
	if last.Partition != -1 || last.Rows != 300 || string(last.Offsets) != "[900,1200]" || string(last.Parts) !=
		`[{"partition":0,"offsets":[300,400],"covers":[0,400]},{"partition":1,"offsets":[300,400],"covers":[0,400]},{"partition":2,"offsets":[300,400],"covers":[0,400]}]` {
		t.Errorf("step 4 is %+v %s %s", last, last.Offsets, last.Parts)
	}
	if s := last.Privacy.Statements[0]; !strings.Contains(s, "partition 0 from offset 0 on, 1 from offset 0 on, 2 from offset 0 on") {
		t.Errorf("the release says: %s", s)
	}
	for _, e := range r.entries() {
		if e.Kind == kindOpen && (len(e.Parts) != 3 || e.End != -1) {
			t.Errorf("opened with %+v", e)
		}
	}
	o := r.options()
	all, err := Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, mergedTask)
	if err != nil || len(all) != 1 || all[0].Releases != 4 || all[0].Difference != "" || all[0].Unverifiable != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
	// Another state directory with the same secrets, another pace: the same bytes.
	s := r.sibling(with(mergedStream, `"orders.dp"`, `"second.dp"`, "merge = true", "merge = true\nmerge_ahead = 1"))
	y := s.start()
	y.published(4)
	y.end()
	if again := s.outputOf("second.dp"); fmt.Sprint(again) != fmt.Sprint(out) {
		t.Error("read at another pace, other bytes")
	}
	spent, err := readSpent(r.dir+"/state", "", nil)
	if err != nil || len(spent) != 3 {
		t.Fatalf("%d sources are charged, %v", len(spent), err)
	}
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, mergedTask, false) }))
	for i := range 3 {
		src := core.Source{Cluster: spent[i].Cluster, Topic: "orders", Partition: i}
		closed := r.entries()
		for _, e := range closed {
			v, ok := e.view(src)
			if e.Kind == kindClose && (!ok || v.End != 400 || v.Anchor == "") {
				t.Errorf("partition %d is closed with %+v", i, v)
			}
		}
	}
	// A successor goes on where each partition ended.
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, mergedTask, OpenRequest{}) }))
	entries := r.entries()
	i := slices.IndexFunc(entries, func(e Entry) bool { return e.Kind == kindOpen && e.Epoch == 2 })
	for _, p := range entries[i].Parts {
		if p.First != 400 || p.Incarnation != 1 {
			t.Errorf("epoch 2 begins with %+v", p)
		}
	}
}

// TestMergeBudget: each partition is charged, all or none, and a limit that one of them
// exceeds leaves the others as they were.
func TestMergeBudget(t *testing.T) {
	t.Parallel()
	one := with(strings.ReplaceAll(ordersStream, "stream.orders", "stream.one"), `topic = "orders"`, `topic = "orders", partition = 1`, "orders.dp", "one.dp", "limit_epsilon = 3.0", "limit_epsilon = 1.1")
	r := newMergedRig(t, one, 3)
	x := r.start()
	x.until("runs", func(s TaskStatus) bool { return s.State == stateRunning })
	x.end()
	lines := len(r.entries())
	r.toml = with(mergedStream, "limit_epsilon = 3.0", "limit_epsilon = 1.1") + one
	x = r.start()
	x.until("halt", func(s TaskStatus) bool { return s.State == stateRunning || s.Reason == haltBudget })
	for _, s := range x.d.Status() {
		if s.Stream == "orders" && s.Reason != haltBudget {
			x.until("the merged one halts", func(TaskStatus) bool {
				all := x.d.Status()
				return slices.ContainsFunc(all, func(s TaskStatus) bool { return s.Stream == "orders" && s.Reason == haltBudget })
			})
		}
	}
	x.endHalted()
	if n := len(r.entries()); n != lines {
		t.Errorf("%d lines more, none may be charged", n-lines)
	}
}

// TestMergeBecomes: a stream that becomes merged goes on where its tasks ended, and one
// that is merged no longer does too; while one of these epochs is open it halts.
func TestMergeBecomes(t *testing.T) {
	t.Parallel()
	apart := with(ordersStream, `topic = "orders"`, `topic = "orders", partition = [0, 1]`)
	r := newMergedRig(t, apart, 2)
	r.sendTo(0, 0, 350)
	r.sendTo(1, 0, 230)
	x := r.start()
	x.until("both", func(TaskStatus) bool {
		s := x.d.Status()
		return s[0].Step == 3 && s[1].Step == 2 && s[0].Outbox+s[1].Outbox == 0
	})
	x.end()
	r.toml = with(mergedStream, `"all"`, "[0, 1]")
	x = r.start()
	x.halts(haltConfiguration, "orders/0 is read by epoch 1 of task orders-0", "streamdp epoch close orders --partition 0")
	x.endHalted()
	for p := range 2 {
		must(t, r.offline(func(ctx context.Context, d *Daemon) error {
			return d.CloseEpoch(ctx, core.Task{Stream: "orders", Partition: p}, false)
		}))
	}
	x = r.start()
	r.sendTo(0, 350, 100)
	r.sendTo(1, 230, 100)
	x.published(1)
	x.end()
	if v := r.outputOf("orders.dp")["orders/merged/1/1"]; !strings.Contains(v, `{"partition":0,"offsets":[300,400],"covers":[300,400]},{"partition":1,"offsets":[200,300],"covers":[200,300]}`) {
		t.Errorf("the merged epoch begins elsewhere: %s", v)
	}
	r.toml = apart
	open := func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }
	if err := r.offline(open); err == nil || !strings.Contains(err.Error(), "task orders-merged, which is open") {
		t.Errorf("while the merged epoch is open: %v", err)
	}
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, mergedTask, false) }))
	must(t, r.offline(open))
	r.sendTo(0, 450, 100)
	x = r.start()
	x.until("step", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 && s.Outbox == 0 })
	if s := x.d.Status()[0]; s.Base != 400 {
		t.Errorf("the epoch of partition 0 begins at %d, want 400", s.Base)
	}
	x.end()
}

// TestMergeForgotten: a state directory that is lost at the same time as merge is changed is
// missed, by what the output holds. Without that the same records would be released again,
// and charged once.
func TestMergeForgotten(t *testing.T) {
	t.Parallel()
	merged := with(mergedStream, `"all"`, "[0]")
	for name, c := range map[string][2]string{"merged": {ordersStream, merged}, "merged no longer": {merged, ordersStream}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMergedRig(t, c[0], 1)
			r.sendTo(0, 0, 150)
			x := r.start()
			x.published(1)
			x.end()
			x = r.sibling(c[1]).start()
			x.halts(haltOutput, "releases of this stream that the ledger knows no epoch of", "streamdp epoch open orders")
			x.endHalted()
		})
	}
}

// TestMergePartitionAdded: an added partition waits for the next epoch, which reads it.
func TestMergePartitionAdded(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, mergedStream, 2)
	x := r.start(func(o *Options) { o.Hooks.LookEvery = 20 * time.Millisecond })
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	addPartitions(t, r, "orders", 3)
	x.until("it waits", func(s TaskStatus) bool { return s.Unread == 1 })
	for p := range 3 {
		r.sendTo(p, 0, 100)
	}
	x.published(1)
	must(t, x.ask("open", ControlRequest{Stream: "orders", Partition: core.Merged}))
	x.until("the next epoch", func(s TaskStatus) bool { return s.Epoch == 2 && s.State == stateRunning && s.Unread == 0 })
	r.sendTo(0, 100, 100)
	r.sendTo(1, 100, 100)
	x.published(1)
	x.end()
	if !strings.Contains(r.log.String(), "the next epoch reads them") {
		t.Error("the log does not say when")
	}
	if v := r.outputOf("orders.dp")["orders/merged/2/1"]; !strings.Contains(v, `{"partition":2,"offsets":[0,100],"covers":[0,100]}`) {
		t.Errorf("the next epoch does not read it: %s", v)
	}
}

// TestMergeRecovery: a damaged checkpoint, a lost one and a restored copy lead to the same
// bytes; a log that was made anew in one partition halts.
func TestMergeRecovery(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, mergedStream, 3)
	send := func(first, n int) {
		for p := range 3 {
			r.sendTo(p, 1000*p+first, n)
		}
	}
	send(0, 250)
	x := r.start()
	x.published(2)
	x.end()
	old := r.sibling(mergedStream)
	r.copyState(old)
	send(250, 300)
	x = r.start()
	x.published(5)
	x.end()
	want := fmt.Sprint(r.outputOf("orders.dp"))
	// The copy repeats, and goes on.
	send(550, 60)
	x = old.start()
	x.published(6)
	x.end()
	if out := r.outputOf("orders.dp"); len(out) != 6 {
		t.Errorf("%d releases", len(out))
	} else if delete(out, "orders/merged/1/6"); fmt.Sprint(out) != want {
		t.Error("the copy made others")
	}
	flipByte(t, old.dir+"/state/tasks/orders-merged/checkpoint", 100)
	x = old.start()
	x.halts(haltState, "streamdp recover --stream orders goes back")
	x.endHalted()
	must(t, old.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, mergedTask, nil) }))
	send(610, 100)
	x = old.start()
	x.published(7)
	x.end()
	o := old.options()
	all, err := Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, mergedTask)
	if err != nil || all[0].Releases != 7 || all[0].Difference != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
	// A ledger that is lost comes back with the charges of all partitions.
	must(t, os.Remove(old.ledgerFile()))
	rep, err := RepairLedger(t.Context(), old.options(), true)
	if err != nil || len(rep.Added) == 0 || len(rep.Added[0].Parts) != 3 {
		t.Fatalf("repaired: %+v, %v", rep, err)
	}
	send(710, 100)
	x = old.start()
	x.published(8)
	x.end()
}

// TestMergeShortened: a partition whose log lost its end is charged no less than the releases
// cover, however long the logs of the others are. By offsets the output says here that each
// partition was read up to 300, and one has 100 records; by the clock, that one was read up to
// 800, which has 600, and the other not at all.
func TestMergeShortened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		clock  bool
		covers string // step 3, which the records that are left do not have
		ends   [2]int64
	}{
		"by offsets": {false, `{"offsets":[400,600],"parts":[{"partition":0,"offsets":[200,300]},{"partition":1,"offsets":[200,300]}]}`, [2]int64{-1, 900}},
		// The first partition has all of the step; an even share of it would be in both logs.
		"by the clock":   {true, `{"offsets":[600,800],"parts":[{"partition":0,"offsets":[0,0]},{"partition":1,"offsets":[600,800]}]}`, [2]int64{400, -1}},
		"nobody's share": {false, `{"offsets":[400,600]}`, [2]int64{-1, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMergedRig(t, mergedStream, 2)
			r.sendTo(0, 0, 100)
			r.sendTo(1, 0, 900)
			if c.clock {
				r = clockRig(t, mergedClockStream, 2)
				r.sendTo(0, 0, 400)
				r.sendTo(1, 0, 600)
			}
			h := newHand()
			h.tick()
			x := r.start(h.on)
			x.published(1)
			x.end()
			r.client = dial(t, r.addr) // which knows the output
			_, err := r.client.Produce(t.Context(), "orders.dp", 0, []kafka.Message{{Key: []byte("orders/merged/1/3"), Value: []byte(c.covers), Time: time.UnixMilli(1)}})
			must(t, err)
			must(t, os.Truncate(r.dir+"/state/tasks/orders-merged/checkpoint", 100))
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, mergedTask, false) }))
			entries := r.entries()
			i := slices.IndexFunc(entries, func(e Entry) bool { return e.Kind == kindClose })
			if p := entries[i].Parts; p[0].End != c.ends[0] || p[1].End != c.ends[1] {
				t.Errorf("closed at %+v, want %d (-1: no end)", p, c.ends)
			}
		})
	}
}

// TestMergeShuffled: whatever the order in which partitions get their records, the
// releases have the same bytes.
func TestMergeShuffled(t *testing.T) {
	t.Parallel()
	var want string
	for round := range 3 {
		r := newMergedRig(t, mergedStream, 4)
		rng := rand.New(rand.NewPCG(1, uint64(round)))
		x := r.start()
		x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
		sent := make([]int, 4)
		for left := 4; left > 0; {
			p := rng.IntN(4)
			n := min(1+rng.IntN(90), 700-sent[p])
			if n == 0 {
				continue
			}
			r.sendTo(p, 1000*p+sent[p], n)
			if sent[p] += n; sent[p] == 700 {
				left--
			}
		}
		x.published(7)
		x.end()
		got := fmt.Sprint(r.outputOf("orders.dp"))
		if want == "" {
			want = got
		} else if got != want {
			t.Error("another order, other bytes")
		}
	}
}

// TestMergedCheckpoint: a merged checkpoint says the same when it is written and read
// again, and one whose positions can't be is refused.
func TestMergedCheckpoint(t *testing.T) {
	sound := func() *checkpoint {
		c := goldenCheckpoint()
		c.older = nil
		c.position = kafka.Position{Next: 300, LeaderEpoch: -1}
		c.parts = []partPosition{
			{partition: 0, position: kafka.Position{Next: 100, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 99, LeaderEpoch: 2}},
				older: []kafka.Anchor{{Offset: 3, LeaderEpoch: -1}, {Offset: 60, LeaderEpoch: -1}}},
			{partition: 5, position: kafka.Position{Next: 200, LeaderEpoch: -1}},
		}
		return c
	}
	c := sound()
	if again, err := parseCheckpoint(c.encode(nil)); err != nil || fmt.Sprintf("%+v", again.parts[1]) != fmt.Sprintf("%+v", c.parts[1]) ||
		*again.parts[0].position.Anchor != *c.parts[0].position.Anchor || !slices.Equal(again.parts[0].older, c.parts[0].older) || again.position.Next != 300 {
		t.Errorf("%v: %+v", err, again)
	}
	for name, change := range map[string]func(*checkpoint){
		"another sum":         func(c *checkpoint) { c.position.Next = 301 },
		"an anchor of all":    func(c *checkpoint) { c.position.Anchor = &kafka.Anchor{Offset: 2} },
		"a partition twice":   func(c *checkpoint) { c.parts[1].partition = 0 },
		"anchor behind":       func(c *checkpoint) { c.parts[0].position.Anchor.Offset = 100 },
		"older behind anchor": func(c *checkpoint) { c.parts[0].older[1].Offset = 99 },
		"older without one":   func(c *checkpoint) { c.parts[1].older = c.parts[0].older },
		"negative":            func(c *checkpoint) { c.parts[0].position.Next, c.parts[1].position.Next = -1, 301 },
	} {
		c := sound()
		change(c)
		if _, err := parseCheckpoint(c.encode(nil)); err == nil {
			t.Errorf("%s is believed", name)
		}
	}
}
