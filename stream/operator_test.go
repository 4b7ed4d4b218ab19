package stream

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// TestWaysOut: what a halt names besides a new epoch brings the task back, in the epoch
// in which it halted, and to the bytes of a run without a halt.
func TestWaysOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason, words string
		cause, cure         func(t *testing.T, r *rig)
	}{
		{
			"compacted", haltCompacted, "cleanup.policy",
			func(t *testing.T, r *rig) { setTopicConfig(t, r, "orders", "cleanup.policy", "compact") },
			func(t *testing.T, r *rig) { setTopicConfig(t, r, "orders", "cleanup.policy", "delete") },
		},
		{
			"another key", haltKey, "configure the file of that key",
			func(t *testing.T, r *rig) { r.seed++ },
			func(t *testing.T, r *rig) { r.seed-- },
		},
		{
			"another configuration", haltConfiguration, "undo the change",
			func(t *testing.T, r *rig) { r.toml = with(r.toml, "step   = 100", "step = 50") },
			func(t *testing.T, r *rig) { r.toml = with(r.toml, "step = 50", "step   = 100") },
		},
		{
			"another cluster", haltReplaced, "configure the brokers of that cluster",
			func(t *testing.T, r *rig) {
				b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, ClusterID: "another"})
				must(t, err)
				t.Cleanup(b.Close)
				r.addr = b.Addr()
				r.client = dial(t, r.addr)
				r.produce(0, 1050)
			},
			func(t *testing.T, r *rig) { r.addr = r.broker.Addr(); r.client = dial(t, r.addr) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := ran(t, ordersStream)
			c.cause(t, r)
			kafkatest.CreateTopic(t, []string{r.addr}, "idle", nil)
			plain := r.toml
			r.toml += strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`), "stream.orders", "stream.other")
			x := r.start()
			s := x.halts(c.reason, c.words, "streamdp epoch open orders")
			if s.Epoch != 1 || s.Step != 10 || s.NextOffset != 1000 || s.Base != 0 {
				t.Errorf("the halted task is shown at epoch %d, step %d, offset %d", s.Epoch, s.Step, s.NextOffset)
			}
			x.endHalted()
			r.toml = plain
			c.cure(t, r)
			r.produce(1050, 100)
			x = r.start()
			x.published(11)
			if s := x.d.Status()[0]; s.Epoch != 1 {
				t.Errorf("epoch %d", s.Epoch)
			}
			x.end()
			r.history("orders.dp").equals(t, r.uninterrupted(11))
		})
	}
	t.Run("allow_compacted", func(t *testing.T) {
		t.Parallel()
		r := ran(t, ordersStream)
		setTopicConfig(t, r, "orders", "cleanup.policy", "compact")
		r.toml = with(r.toml, `codec = "json",`, `codec = "json", allow_compacted = true,`)
		r.toml += strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`), "stream.orders", "stream.other")
		kafkatest.CreateTopic(t, r.broker.Addrs(), "idle", nil)
		x := r.start()
		x.halts(haltConfiguration, "input.allow_compacted: false → true")
		must(t, x.control(requestOpen, OpenRequest{Reason: "test"}))
		r.produce(1050, 250)
		x.until("epoch 2 releases", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
		x.end()
	})
}

// TestHaltedLag: a halted task shows how far behind it falls.
func TestHaltedLag(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	flipByte(t, r.file(checkpointName), 300)
	must(t, r.client.CreateTopic(t.Context(), "idle", 1, nil))
	r.toml += strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"other.dp"`, `topic = "orders"`, `topic = "idle"`), "stream.orders", "stream.other")
	x := r.start(func(o *Options) { o.Hooks.LookEvery = 20 * time.Millisecond })
	s := x.halts(haltState)
	if s.Epoch != 1 || s.LogEnd != 1050 || s.Lag != 1050-s.NextOffset {
		t.Errorf("the halted task is shown at %+v", s)
	}
	r.produce(1050, 100)
	x.until("the lag has grown", func(s TaskStatus) bool { return s.State == stateHalted && s.LogEnd == 1150 })
	if _, body := x.get("/-/ready"); !strings.Contains(body, "task orders-0 is halted (state): checkpoint damaged: streamdp recover") {
		t.Errorf("ready says %q", body)
	}
	x.end()
}

// TestAddedPartitions: partitions that are added and that nobody reads are said to be.
func TestAddedPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	x := r.start(func(o *Options) { o.Hooks.LookEvery = 20 * time.Millisecond })
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	if strings.Contains(r.log.String(), "more partitions") {
		t.Error("warned of partitions that are not there")
	}
	addPartitions(t, r, "orders", 3)
	x.until("two are unread", func(s TaskStatus) bool { return s.Unread == 2 })
	x.until("warned", func(TaskStatus) bool {
		return strings.Contains(r.log.String(), "more partitions than when the epoch began")
	})
	if _, body := x.get("/metrics"); !strings.Contains(body, `streamdp_unread_partitions{partition="0",stream="orders"} 2`) {
		t.Error("no metric")
	}
	x.end()
	if n := strings.Count(r.log.String(), "more partitions than"); n != 1 {
		t.Errorf("warned %d times", n)
	}
}

// TestAllPartitions: a stream of all partitions runs a task for each, also for one that
// is added while it runs, and for one that is added while no daemon does.
func TestAllPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(ordersStream, `topic = "orders"`, `topic = "orders", partition = "all"`))
	add := func(count int32) { t.Helper(); addPartitions(t, r, "orders", count) }
	running := func(x *running, n int) {
		t.Helper()
		for late := time.After(patience); ; {
			all := x.d.Status()
			if len(all) == n && !slices.ContainsFunc(all, func(s TaskStatus) bool { return s.State != stateRunning || s.Unread != 0 }) {
				return
			}
			select {
			case <-x.wake:
			case <-time.After(10 * time.Millisecond):
			case <-late:
				t.Fatalf("not %d tasks run: %+v\n%s", n, all, r.log)
			}
		}
	}
	short := func(o *Options) { o.Hooks.LookEvery = 20 * time.Millisecond }
	add(2)
	x := r.start(short)
	running(x, 2)
	if strings.Contains(r.log.String(), "was added") {
		t.Error("the first partitions are said to be new")
	}
	add(3)
	running(x, 3)
	if !strings.Contains(r.log.String(), "a partition was added to the input topic, and becomes a task") {
		t.Errorf("nothing is said of the new one:\n%s", r.log)
	}
	x.end()
	add(4)
	x = r.start(short)
	running(x, 4)
	if code, body := x.get("/-/ready"); code != http.StatusOK {
		t.Errorf("not ready: %s", body)
	}
	x.end()
	if n := strings.Count(r.kinds(), kindOpen); n != 4 {
		t.Errorf("%d epochs were opened, want one for each partition", n)
	}
	var known []int
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		for _, s := range d.Status() {
			known = append(known, s.Partition)
		}
		return d.CloseEpoch(ctx, core.Task{Stream: "orders", Partition: 3}, false)
	}))
	if !slices.Equal(known, []int{0, 1, 2, 3}) {
		t.Errorf("without the cluster the tasks %v are known, want those of the ledger", known)
	}
}

// TestAllWaits: a stream of all partitions whose topic is not there is not ready, and runs
// when it is.
func TestAllWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(ordersStream, `topic = "orders"`, `topic = "later", partition = "all"`))
	x := r.start()
	for late := time.After(patience); x.d.Addr() == ""; {
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatal("nothing is served")
		}
	}
	if code, body := x.get("/-/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, "partitions of an input topic are not known") {
		t.Errorf("ready says %d: %s", code, body)
	}
	must(t, r.broker.CreateTopic(t.Context(), "later", 2, nil))
	for late := time.After(patience); len(x.d.Status()) < 2; {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatal("no tasks")
		}
	}
	x.end()
}

// TestMistypedColumn: that hardly a record counts shows in readiness where the stream
// publishes how many do, and only there.
func TestMistypedColumn(t *testing.T) {
	t.Parallel()
	const mistyped = `"weihgt"`
	for _, c := range []struct {
		name string
		toml string
		few  bool
	}{
		{"mistyped, counted", with(ordersStream, `"weight"`, mistyped, "clip = 1.0", "clip = 1.0\nvalid_count = true"), true},
		{"mistyped, counted in base64", with(ordersStream, `"weight"`, mistyped, "clip = 1.0", "clip = 1.0\nvalid_count = true", `topic = "orders.dp"`, `topic = "orders.dp", encoding = "base64"`), true},
		{"mistyped, counted in a window", with(ordersStream, `"weight"`, mistyped, "clip = 1.0", "clip = 1.0\nvalid_count = true\nworkload = \"window\"\nwindow = 20"), true},
		{"mistyped, count not published", with(ordersStream, `"weight"`, mistyped, "clip = 1.0", "clip = 1.0\nvalid_count = true", `topic = "orders.dp"`, `topic = "orders.dp", values = ["mean"]`), false},
		{"mistyped, by the share of full rows", with(ordersStream, `"weight"`, mistyped), true},
		{"right", with(ordersStream, "clip = 1.0", "clip = 1.0\nvalid_count = true"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.toml)
			r.produce(0, 17_300)
			x := r.start()
			x.published(173)
			s := x.d.Status()[0]
			if s.FewValid != c.few {
				t.Fatalf("few_valid is %v", s.FewValid)
			}
			code, body := x.get("/-/ready")
			if c.few != (code == 503) || c.few != strings.Contains(body, "at most a tenth of its records count") {
				t.Errorf("ready is %d %s", code, body)
			}
			if _, body := x.get("/metrics"); c.few != strings.Contains(body, `streamdp_few_valid{partition="0",stream="orders"} 1`) {
				t.Error("the metric says otherwise")
			}
			if c.few != strings.Contains(r.log.String(), "hardly a record counts") {
				t.Error("the log says otherwise")
			}
			x.end()
		})
	}
}
