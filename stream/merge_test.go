package stream_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// TestMerge: three partitions give one sequence of releases. A step ends when all partitions have its records. Restarts
// give the same bytes, and so does verify.
func TestMerge(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, fixtures.MergedStream, 3)
	r.SendTo(0, 0, 450)
	r.SendTo(1, 1000, 120)
	x := r.Start()
	x.Until("the merged task runs",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning && s.Partition == core.Merged })
	if n := x.In.Tasks()[0].Expected; n != 3 {
		t.Errorf("the task has shares of the memory for %d partitions", n)
	}
	r.SendTo(2, 2000, 250)
	x.Published(1)
	r.SendTo(1, 1120, 150)
	x.Published(2)
	time.Sleep(20 * time.Millisecond)
	if s := x.D.Status()[0]; s.Step != 2 || s.NextOffset != 600 {
		t.Errorf("step %d at %d, want 2 at 600: the slowest partition has 250 records", s.Step, s.NextOffset)
	}
	x.End()
	r.SendTo(1, 1270, 200)
	r.SendTo(2, 2250, 200)
	x = r.Start()
	x.Published(4)
	x.End()
	out := r.OutputOf("orders.dp")
	if len(out) != 4 {
		t.Fatalf("%d releases", len(out))
	}
	var last struct {
		Partition      int
		Rows           int
		Offsets, Parts json.RawMessage
		Privacy        struct{ Statements []string }
	}
	fixtures.Must(t, json.Unmarshal([]byte(out["orders/merged/1/4"]), &last))
	if last.Partition != -1 || last.Rows != 300 || string(last.Offsets) != "[900,1200]" || string(last.Parts) !=
		`[{"partition":0,"offsets":[300,400],"covers":[0,400]},{"partition":1,"offsets":[300,400],"covers":[0,400]},{"partition":2,"offsets":[300,400],"covers":[0,400]}]` {
		t.Errorf("step 4 is %+v %s %s", last, last.Offsets, last.Parts)
	}
	if s := last.Privacy.Statements[0]; !strings.Contains(s,
		"partition 0 from offset 0 on, 1 from offset 0 on, 2 from offset 0 on") {
		t.Errorf("the release says: %s", s)
	}
	for _, e := range r.Entries() {
		if e.Kind == ledger.KindOpen && (len(e.Parts) != 3 || e.End != -1) {
			t.Errorf("opened with %+v", e)
		}
	}
	o := r.Options()
	all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
		fixtures.MergedTask)
	if err != nil || len(all) != 1 || all[0].Releases != 4 || all[0].Difference != "" || all[0].Unverifiable != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
	// Another state directory with the same secrets, at another pace, gives the same bytes.
	s := r.Sibling(
		fixtures.With(fixtures.MergedStream, `"orders.dp"`, `"second.dp"`, "merge = true",
			"merge = true\nmerge_ahead = 1"))
	y := s.Start()
	y.Published(4)
	y.End()
	if again := s.OutputOf("second.dp"); fmt.Sprint(again) != fmt.Sprint(out) {
		t.Error("reading at another pace gives other bytes")
	}
	spent, err := streamtest.ReadSpent(r.Dir+"/state", "", nil)
	if err != nil || len(spent) != 3 {
		t.Fatalf("%d sources are charged, %v", len(spent), err)
	}
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.MergedTask, false)
	}))
	for i := range 3 {
		src := core.Source{Cluster: spent[i].Cluster, Topic: "orders", Partition: i}
		closed := r.Entries()
		for _, e := range closed {
			v, ok := e.View(src)
			if e.Kind == ledger.KindClose && (!ok || v.End != 400 || v.Anchor == "") {
				t.Errorf("partition %d is closed with %+v", i, v)
			}
		}
	}
	// The next epoch continues where each partition ended.
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.MergedTask, epoch.OpenRequest{})
	}))
	entries := r.Entries()
	i := slices.IndexFunc(entries, func(e ledger.Entry) bool { return e.Kind == ledger.KindOpen && e.Epoch == 2 })
	for _, p := range entries[i].Parts {
		if p.First != 400 || p.Incarnation != 1 {
			t.Errorf("epoch 2 begins with %+v", p)
		}
	}
}

// TestMergeBudget: either all partitions are charged or none, and a limit that one of them exceeds leaves the others
// unchanged.
func TestMergeBudget(t *testing.T) {
	t.Parallel()
	one := fixtures.With(strings.ReplaceAll(fixtures.OrdersStream, "stream.orders", "stream.one"), `topic = "orders"`,
		`topic = "orders", partition = 1`, "orders.dp", "one.dp", "limit_epsilon = 3.0", "limit_epsilon = 1.1")
	r := streamtest.NewMergedRig(t, one, 3)
	x := r.Start()
	x.Until("runs", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	x.End()
	lines := len(r.Entries())
	r.Toml = fixtures.With(fixtures.MergedStream, "limit_epsilon = 3.0", "limit_epsilon = 1.1") + one
	x = r.Start()
	x.Until("halt",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning || s.Reason == failure.Budget })
	for _, s := range x.D.Status() {
		if s.Stream == "orders" && s.Reason != failure.Budget {
			x.Until("the merged one halts", func(monitor.TaskStatus) bool {
				all := x.D.Status()
				return slices.ContainsFunc(all,
					func(s monitor.TaskStatus) bool { return s.Stream == "orders" && s.Reason == failure.Budget })
			})
		}
	}
	x.EndHalted()
	if n := len(r.Entries()); n != lines {
		t.Errorf("%d lines more, none may be charged", n-lines)
	}
}

// TestMergeBecomes: a stream that becomes merged or unmerged continues where its tasks ended. While one of these epochs
// is open, it halts.
func TestMergeBecomes(t *testing.T) {
	t.Parallel()
	apart := fixtures.With(fixtures.OrdersStream, `topic = "orders"`, `topic = "orders", partition = [0, 1]`)
	r := streamtest.NewMergedRig(t, apart, 2)
	r.SendTo(0, 0, 350)
	r.SendTo(1, 0, 230)
	x := r.Start()
	x.Until("both", func(monitor.TaskStatus) bool {
		s := x.D.Status()
		return s[0].Step == 3 && s[1].Step == 2 && s[0].Outbox+s[1].Outbox == 0
	})
	x.End()
	r.Toml = fixtures.With(fixtures.MergedStream, `"all"`, "[0, 1]")
	x = r.Start()
	x.Halts(failure.Configuration, "epoch 1 of task orders-0 is open and reads orders/0",
		"streamdp epoch close orders --partition 0")
	x.EndHalted()
	for p := range 2 {
		fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.CloseEpoch(ctx, d, core.Task{Stream: "orders", Partition: p}, false)
		}))
	}
	x = r.Start()
	r.SendTo(0, 350, 100)
	r.SendTo(1, 230, 100)
	x.Published(1)
	x.End()
	if v := r.OutputOf("orders.dp")["orders/merged/1/1"]; !strings.Contains(v,
		`{"partition":0,"offsets":[300,400],"covers":[300,400]},{"partition":1,"offsets":[200,300],"covers":[200,300]}`) {
		t.Errorf("the merged epoch begins elsewhere: %s", v)
	}
	r.Toml = apart
	open := func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}
	if err := r.Offline(open); err == nil || !strings.Contains(err.Error(), "task orders-merged is open") {
		t.Errorf("while the merged epoch is open: %v", err)
	}
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.MergedTask, false)
	}))
	fixtures.Must(t, r.Offline(open))
	r.SendTo(0, 450, 100)
	x = r.Start()
	x.Until("step", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 && s.Outbox == 0 })
	if s := x.D.Status()[0]; s.Base != 400 {
		t.Errorf("the epoch of partition 0 begins at %d, want 400", s.Base)
	}
	x.End()
}

// TestMergeForgotten: if a state directory is lost and merge is changed at the same time, the output reveals the loss.
// Otherwise the same records would be released again but charged once.
func TestMergeForgotten(t *testing.T) {
	t.Parallel()
	merged := fixtures.With(fixtures.MergedStream, `"all"`, "[0]")
	for name, c := range map[string][2]string{
		"merged":           {fixtures.OrdersStream, merged},
		"merged no longer": {merged, fixtures.OrdersStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewMergedRig(t, c[0], 1)
			r.SendTo(0, 0, 150)
			x := r.Start()
			x.Published(1)
			x.End()
			x = r.Sibling(c[1]).Start()
			x.Halts(failure.OutputAhead, "releases of this stream, but the ledger has no epoch of it",
				"streamdp epoch open orders")
			x.EndHalted()
		})
	}
}

// TestMergePartitionAdded: an added partition waits for the next epoch, which reads it.
func TestMergePartitionAdded(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, fixtures.MergedStream, 2)
	x := r.Start(func(o *stream.Options) { o.Hooks.LookEvery = 20 * time.Millisecond })
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	streamtest.AddPartitions(t, r, "orders", 3)
	x.Until("it waits", func(s monitor.TaskStatus) bool { return s.Unread == 1 })
	for p := range 3 {
		r.SendTo(p, 0, 100)
	}
	x.Published(1)
	fixtures.Must(t, x.Ask(task.Request{Kind: task.RequestOpen, Stream: "orders", Partition: core.Merged}))
	x.Until("the next epoch", func(s monitor.TaskStatus) bool {
		return s.Epoch == 2 && s.State == monitor.StateRunning && s.Unread == 0
	})
	r.SendTo(0, 100, 100)
	r.SendTo(1, 100, 100)
	x.Published(1)
	x.End()
	if !strings.Contains(r.Log.String(), "the next epoch reads them") {
		t.Error("the log does not say when it will be read")
	}
	if v := r.OutputOf("orders.dp")["orders/merged/2/1"]; !strings.Contains(v,
		`{"partition":2,"offsets":[0,100],"covers":[0,100]}`) {
		t.Errorf("the next epoch does not read it: %s", v)
	}
}

// TestMergeRecovery: a damaged checkpoint, a lost one and a restored copy lead to the same bytes. A log that was
// created again in one partition halts the task.
func TestMergeRecovery(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, fixtures.MergedStream, 3)
	send := func(first, n int) {
		for p := range 3 {
			r.SendTo(p, 1000*p+first, n)
		}
	}
	send(0, 250)
	x := r.Start()
	x.Published(2)
	x.End()
	old := r.Sibling(fixtures.MergedStream)
	r.CopyState(old)
	send(250, 300)
	x = r.Start()
	x.Published(5)
	x.End()
	want := fmt.Sprint(r.OutputOf("orders.dp"))
	// The copy repeats the published releases, and continues.
	send(550, 60)
	x = old.Start()
	x.Published(6)
	x.End()
	if out := r.OutputOf("orders.dp"); len(out) != 6 {
		t.Errorf("%d releases", len(out))
	} else if delete(out, "orders/merged/1/6"); fmt.Sprint(out) != want {
		t.Error("the copy made other releases")
	}
	fixtures.FlipByte(t, old.Dir+"/state/tasks/orders-merged/checkpoint", 100)
	x = old.Start()
	x.Halts(failure.State, "streamdp recover --stream orders, which goes back")
	x.EndHalted()
	fixtures.Must(t, old.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.Recover(ctx, d, fixtures.MergedTask, nil)
	}))
	send(610, 100)
	x = old.Start()
	x.Published(7)
	x.End()
	o := old.Options()
	all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
		fixtures.MergedTask)
	if err != nil || all[0].Releases != 7 || all[0].Difference != "" {
		t.Errorf("verify: %+v, %v", all, err)
	}
	// A lost ledger is reconstructed with the charges of all partitions.
	fixtures.Must(t, os.Remove(old.LedgerFile()))
	rep, err := stream.RepairLedger(t.Context(), old.Options(), true)
	if err != nil || len(rep.Added) == 0 || len(rep.Added[0].Parts) != 3 {
		t.Fatalf("repaired: %+v, %v", rep, err)
	}
	send(710, 100)
	x = old.Start()
	x.Published(8)
	x.End()
}

// TestMergeShortened: a partition whose log lost its end is charged at least for what the releases cover, however long
// the other logs are. With steps by offsets, the output says that each partition was read up to 300, but one partition
// has only 100 records. With steps by the clock, it says that one partition was read up to 800, which has only 600
// records, and the other not at all.
func TestMergeShortened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		clock  bool
		covers string // step 3, whose records are partly lost
		ends   [2]int64
	}{
		"by offsets": {false,
			`{"offsets":[400,600],"parts":[{"partition":0,"offsets":[200,300]},{"partition":1,"offsets":[200,300]}]}`,
			[2]int64{-1, 900}},
		// The first partition has the whole step; an even share of it would be in both logs.
		"by the clock": {true,
			`{"offsets":[600,800],"parts":[{"partition":0,"offsets":[0,0]},{"partition":1,"offsets":[600,800]}]}`,
			[2]int64{400, -1}},
		"an unknown share": {false, `{"offsets":[400,600]}`, [2]int64{-1, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewMergedRig(t, fixtures.MergedStream, 2)
			r.SendTo(0, 0, 100)
			r.SendTo(1, 0, 900)
			if c.clock {
				r = streamtest.ClockRig(t, fixtures.MergedClockStream, 2)
				r.SendTo(0, 0, 400)
				r.SendTo(1, 0, 600)
			}
			h := streamtest.NewHand()
			h.Tick()
			x := r.Start(h.On)
			x.Published(1)
			x.End()
			r.Client = fixtures.Dial(t, r.Addr) // a client that knows the output
			_, err := r.Client.Produce(t.Context(), "orders.dp", 0,
				[]kafka.Message{{Key: []byte("orders/merged/1/3"), Value: []byte(c.covers), Time: time.UnixMilli(1)}})
			fixtures.Must(t, err)
			fixtures.Must(t, os.Truncate(r.Dir+"/state/tasks/orders-merged/checkpoint", 100))
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.CloseEpoch(ctx, d, fixtures.MergedTask, false)
			}))
			entries := r.Entries()
			i := slices.IndexFunc(entries, func(e ledger.Entry) bool { return e.Kind == ledger.KindClose })
			if p := entries[i].Parts; p[0].End != c.ends[0] || p[1].End != c.ends[1] {
				t.Errorf("closed at %+v, want %d (-1: no end)", p, c.ends)
			}
		})
	}
}

// TestMergeShuffled: the releases do not depend on the order in which the partitions get their records.
func TestMergeShuffled(t *testing.T) {
	t.Parallel()
	var want string
	for round := range 3 {
		r := streamtest.NewMergedRig(t, fixtures.MergedStream, 4)
		rng := rand.New(rand.NewPCG(1, uint64(round)))
		x := r.Start()
		x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		sent := make([]int, 4)
		for left := 4; left > 0; {
			p := rng.IntN(4)
			n := min(1+rng.IntN(90), 700-sent[p])
			if n == 0 {
				continue
			}
			r.SendTo(p, 1000*p+sent[p], n)
			if sent[p] += n; sent[p] == 700 {
				left--
			}
		}
		x.Published(7)
		x.End()
		got := fmt.Sprint(r.OutputOf("orders.dp"))
		if want == "" {
			want = got
		} else if got != want {
			t.Error("another order gives other bytes")
		}
	}
}

// TestMergedCheckpoint: a merged checkpoint is unchanged by writing and reading, and one with impossible positions is
// refused.
func TestMergedCheckpoint(t *testing.T) {
	sound := func() *state.Checkpoint {
		c := streamtest.GoldenCheckpoint()
		c.Older = nil
		c.Position = kafka.Position{Next: 300, LeaderEpoch: -1}
		c.Parts = []state.Place{
			{Partition: 0,
				Position: kafka.Position{Next: 100, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 99, LeaderEpoch: 2}},
				Older:    []kafka.Anchor{{Offset: 3, LeaderEpoch: -1}, {Offset: 60, LeaderEpoch: -1}}},
			{Partition: 5, Position: kafka.Position{Next: 200, LeaderEpoch: -1}},
		}
		return c
	}
	c := sound()
	if again, err := state.ParseCheckpoint(c.Encode(nil)); err != nil ||
		fmt.Sprintf("%+v", again.Parts[1]) != fmt.Sprintf("%+v", c.Parts[1]) ||
		*again.Parts[0].Position.Anchor != *c.Parts[0].Position.Anchor ||
		!slices.Equal(again.Parts[0].Older, c.Parts[0].Older) || again.Position.Next != 300 {
		t.Errorf("%v: %+v", err, again)
	}
	for name, change := range map[string]func(*state.Checkpoint){
		"another sum":         func(c *state.Checkpoint) { c.Position.Next = 301 },
		"an anchor of all":    func(c *state.Checkpoint) { c.Position.Anchor = &kafka.Anchor{Offset: 2} },
		"a partition twice":   func(c *state.Checkpoint) { c.Parts[1].Partition = 0 },
		"anchor behind":       func(c *state.Checkpoint) { c.Parts[0].Position.Anchor.Offset = 100 },
		"older behind anchor": func(c *state.Checkpoint) { c.Parts[0].Older[1].Offset = 99 },
		"older without one":   func(c *state.Checkpoint) { c.Parts[1].Older = c.Parts[0].Older },
		"negative": func(c *state.Checkpoint) {
			c.Parts[0].Position.Next, c.Parts[1].Position.Next = -1, 301
		},
	} {
		c := sound()
		change(c)
		if _, err := state.ParseCheckpoint(c.Encode(nil)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
