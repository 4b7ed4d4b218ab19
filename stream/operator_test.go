package stream_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// TestWaysOut applies each remedy that a halt names, except a new epoch. The task then continues in the same epoch, and
// its releases have the bytes of a run without a halt.
func TestWaysOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason, words string
		cause, cure         func(t *testing.T, r *streamtest.Rig)
	}{
		{
			"compacted", failure.Compacted, "cleanup.policy",
			func(t *testing.T, r *streamtest.Rig) {
				streamtest.SetTopicConfig(t, r, "orders", "cleanup.policy", "compact")
			},
			func(t *testing.T, r *streamtest.Rig) {
				streamtest.SetTopicConfig(t, r, "orders", "cleanup.policy", "delete")
			},
		},
		{
			"another key", failure.Key, "configure that key's file",
			func(t *testing.T, r *streamtest.Rig) { r.Seed++ },
			func(t *testing.T, r *streamtest.Rig) { r.Seed-- },
		},
		{
			"another configuration", failure.Configuration, "undo the change",
			func(t *testing.T, r *streamtest.Rig) { r.Toml = fixtures.With(r.Toml, "step   = 100", "step = 50") },
			func(t *testing.T, r *streamtest.Rig) { r.Toml = fixtures.With(r.Toml, "step = 50", "step   = 100") },
		},
		{
			"another cluster", failure.Replaced, "configure the brokers of that cluster",
			func(t *testing.T, r *streamtest.Rig) {
				b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, ClusterID: "another"})
				fixtures.Must(t, err)
				t.Cleanup(b.Close)
				r.Addr = b.Addr()
				r.Client = fixtures.Dial(t, r.Addr)
				r.Produce(0, 1050)
			},
			func(t *testing.T, r *streamtest.Rig) { r.Addr = r.Broker.Addr(); r.Client = fixtures.Dial(t, r.Addr) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.Ran(t, fixtures.OrdersStream)
			c.cause(t, r)
			kafkatest.CreateTopic(t, []string{r.Addr}, "idle", nil)
			plain := r.Toml
			r.Toml += strings.ReplaceAll(
				fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`),
				"stream.orders", "stream.other")
			x := r.Start()
			s := x.Halts(c.reason, c.words, "streamdp epoch open orders")
			if s.Epoch != 1 || s.Step != 10 || s.NextOffset != 1000 || s.Base != 0 {
				t.Errorf("the halted task is shown at epoch %d, step %d, offset %d", s.Epoch, s.Step, s.NextOffset)
			}
			x.EndHalted()
			r.Toml = plain
			c.cure(t, r)
			r.Produce(1050, 100)
			x = r.Start()
			x.Published(11)
			if s := x.D.Status()[0]; s.Epoch != 1 {
				t.Errorf("epoch %d", s.Epoch)
			}
			x.End()
			r.History("orders.dp").Equals(t, r.Uninterrupted(11))
		})
	}
	t.Run("allow_compacted", func(t *testing.T) {
		t.Parallel()
		r := streamtest.Ran(t, fixtures.OrdersStream)
		streamtest.SetTopicConfig(t, r, "orders", "cleanup.policy", "compact")
		r.Toml = fixtures.With(r.Toml, `codec = "json",`, `codec = "json", allow_compacted = true,`)
		r.Toml += strings.ReplaceAll(
			fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`),
			"stream.orders", "stream.other")
		kafkatest.CreateTopic(t, r.Broker.Addrs(), "idle", nil)
		x := r.Start()
		x.Halts(failure.Configuration, "input.allow_compacted: false → true")
		fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{Reason: "test"}))
		r.Produce(1050, 250)
		x.Until("epoch 2 releases",
			func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
		x.End()
	})
}

// TestHaltedLag: a halted task shows its growing lag.
func TestHaltedLag(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	fixtures.FlipByte(t, r.File(state.CheckpointName), 300)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "idle", 1, nil))
	r.Toml += strings.ReplaceAll(
		fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`),
		"stream.orders", "stream.other")
	x := r.Start(func(o *stream.Options) { o.Hooks.LookEvery = 20 * time.Millisecond })
	s := x.Halts(failure.State)
	if s.Epoch != 1 || s.LogEnd != 1050 || s.Lag != 1050-s.NextOffset {
		t.Errorf("the halted task is shown at %+v", s)
	}
	r.Produce(1050, 100)
	x.Until("the lag has grown",
		func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted && s.LogEnd == 1150 })
	if _, body := x.Get("/-/ready"); !strings.Contains(body,
		"task orders-0 is halted (state): checkpoint damaged: run streamdp recover") {
		t.Errorf("ready says %q", body)
	}
	x.End()
}

// TestAddedPartitions: a warning names added partitions that no stream reads.
func TestAddedPartitions(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	x := r.Start(func(o *stream.Options) { o.Hooks.LookEvery = 20 * time.Millisecond })
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if strings.Contains(r.Log.String(), "more partitions") {
		t.Error("warned of partitions that do not exist")
	}
	streamtest.AddPartitions(t, r, "orders", 3)
	x.Until("two are unread", func(s monitor.TaskStatus) bool { return s.Unread == 2 })
	x.Until("warned", func(monitor.TaskStatus) bool {
		return strings.Contains(r.Log.String(), "more partitions than when the epoch began")
	})
	if _, body := x.Get("/metrics"); !strings.Contains(body,
		`streamdp_unread_partitions{partition="0",stream="orders"} 2`) {
		t.Error("no metric")
	}
	x.End()
	if n := strings.Count(r.Log.String(), "more partitions than"); n != 1 {
		t.Errorf("warned %d times", n)
	}
}

// TestAllPartitions: a stream of all partitions runs a task for each, also for one added while it runs, and for one
// added while no daemon runs.
func TestAllPartitions(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.OrdersStream, `topic = "orders"`, `topic = "orders", partition = "all"`))
	add := func(count int32) { t.Helper(); streamtest.AddPartitions(t, r, "orders", count) }
	running := func(x *streamtest.Running, n int) {
		t.Helper()
		for late := time.After(fixtures.Patience); ; {
			all := x.D.Status()
			if len(all) == n &&
				!slices.ContainsFunc(all,
					func(s monitor.TaskStatus) bool { return s.State != monitor.StateRunning || s.Unread != 0 }) {
				return
			}
			select {
			case <-x.Wake:
			case <-time.After(10 * time.Millisecond):
			case <-late:
				t.Fatalf("not %d tasks run: %+v\n%s", n, all, r.Log)
			}
		}
	}
	short := func(o *stream.Options) { o.Hooks.LookEvery = 20 * time.Millisecond }
	add(2)
	x := r.Start(short)
	running(x, 2)
	if strings.Contains(r.Log.String(), "was added") {
		t.Error("the first partitions are reported as new")
	}
	add(3)
	running(x, 3)
	if !strings.Contains(r.Log.String(), "a partition was added to the input topic: starting a task for it") {
		t.Errorf("the new partition is not reported:\n%s", r.Log)
	}
	x.End()
	add(4)
	x = r.Start(short)
	running(x, 4)
	if code, body := x.Get("/-/ready"); code != http.StatusOK {
		t.Errorf("not ready: %s", body)
	}
	x.End()
	if n := strings.Count(r.Kinds(), ledger.KindOpen); n != 4 {
		t.Errorf("%d epochs were opened, want one for each partition", n)
	}
	var known []int
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		for _, s := range d.Status() {
			known = append(known, s.Partition)
		}
		return streamtest.CloseEpoch(ctx, d, core.Task{Stream: "orders", Partition: 3}, false)
	}))
	if !slices.Equal(known, []int{0, 1, 2, 3}) {
		t.Errorf("without the cluster the tasks %v are known, want those of the ledger", known)
	}
}

// TestAllWaits: a stream of all partitions of a missing topic is not ready, and runs when the topic exists.
func TestAllWaits(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.OrdersStream, `topic = "orders"`, `topic = "later", partition = "all"`))
	x := r.Start()
	for late := time.After(fixtures.Patience); x.D.Addr() == ""; {
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatal("the HTTP server does not answer")
		}
	}
	if code, body := x.Get("/-/ready"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "partitions of an input topic are not known") {
		t.Errorf("ready says %d: %s", code, body)
	}
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "later", 2, nil))
	for late := time.After(fixtures.Patience); len(x.D.Status()) < 2; {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatal("no tasks")
		}
	}
	x.End()
}

// TestMistypedColumn: if almost no record is valid, readiness shows it only if the stream publishes the number of valid
// records.
func TestMistypedColumn(t *testing.T) {
	t.Parallel()
	const mistyped = `"weihgt"`
	for _, c := range []struct {
		name string
		toml string
		few  bool
	}{
		{"mistyped, counted",
			fixtures.With(fixtures.OrdersStream, `"weight"`, mistyped, "clip = 1.0", "clip = 1.0\nvalid_count = true"),
			true},
		{"mistyped, counted in base64",
			fixtures.With(fixtures.OrdersStream, `"weight"`, mistyped, "clip = 1.0", "clip = 1.0\nvalid_count = true",
				`topic = "orders.dp"`, `topic = "orders.dp", encoding = "base64"`), true},
		{"mistyped, counted in a window",
			fixtures.With(fixtures.OrdersStream, `"weight"`, mistyped, "clip = 1.0",
				"clip = 1.0\nvalid_count = true\nworkload = \"window\"\nwindow = 20"), true},
		{"mistyped, count not published",
			fixtures.With(fixtures.OrdersStream, `"weight"`, mistyped, "clip = 1.0", "clip = 1.0\nvalid_count = true",
				`topic = "orders.dp"`, `topic = "orders.dp", values = ["mean"]`), false},
		{"mistyped, by the share of full rows", fixtures.With(fixtures.OrdersStream, `"weight"`, mistyped), true},
		{"right", fixtures.With(fixtures.OrdersStream, "clip = 1.0", "clip = 1.0\nvalid_count = true"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t, c.toml)
			r.Produce(0, 17_300)
			x := r.Start()
			x.Published(173)
			s := x.D.Status()[0]
			if s.FewValid != c.few {
				t.Fatalf("few_valid is %v", s.FewValid)
			}
			code, body := x.Get("/-/ready")
			if c.few != (code == 503) || c.few != strings.Contains(body, "at most a tenth of its records count") {
				t.Errorf("ready is %d %s", code, body)
			}
			if _, body := x.Get("/metrics"); c.few != strings.Contains(body,
				`streamdp_few_valid{partition="0",stream="orders"} 1`) {
				t.Error("the metric few_valid is wrong")
			}
			if c.few != strings.Contains(r.Log.String(), "at most a tenth of the last records") {
				t.Error("the log is wrong about the validity of records")
			}
			x.End()
		})
	}
}
