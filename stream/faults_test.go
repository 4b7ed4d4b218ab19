package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"streamdp/internal/kafka"
	"streamdp/internal/kafka/embedded"
	"streamdp/internal/kafka/kafkatest"
)

// ran is a rig whose daemon has published ten steps and ended.
func ran(t testing.TB, toml string) *rig {
	t.Helper()
	r := newRig(t, toml)
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

func port(t testing.TB, addr string) (n int) {
	t.Helper()
	if _, err := fmt.Sscanf(addr[strings.LastIndexByte(addr, ':')+1:], "%d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBrokerGone: without a broker the daemon lives and is not ready; with it
// nothing is lost.
func TestBrokerGone(t *testing.T) {
	t.Parallel()
	o := embedded.Options{Topics: []string{"orders"}, DataDir: shortDir(t)}
	b, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Port = port(t, b.Addr())
	r := newRigAt(t, b, b.Addr(), ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	if code, body := x.get("/-/ready"); code != 200 {
		t.Errorf("ready is %d %s", code, body)
	}
	b.Close()
	x.until("retries", func(s TaskStatus) bool { return s.State == stateRetrying })
	code, body := x.get("/-/ready")
	if code != 503 || !strings.Contains(body, "task orders-0 is retrying") {
		t.Errorf("ready is %d %s", code, body)
	}
	if code, _ := x.get("/-/healthy"); code != 200 {
		t.Errorf("healthy is %d", code)
	}
	if b, err = embedded.Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r.broker = b
	r.client = dial(t, r.addr)
	r.produce(550, 500)
	x.published(10)
	x.until("runs", func(s TaskStatus) bool { return s.State == stateRunning })
	if code, _ := x.get("/-/ready"); code != 200 {
		t.Errorf("ready is %d after the broker came back", code)
	}
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(10))

	// A start without a broker waits too.
	b.Close()
	x = r.start()
	x.until("retries", func(s TaskStatus) bool { return s.State == stateRetrying })
	if code, body := x.get("/-/ready"); code != 503 {
		t.Errorf("ready is %d %s", code, body)
	}
	x.end()
}

// TestTopicsMissing: a missing input topic is waited for, a missing output
// topic is made, or waited for where it may not be made.
func TestTopicsMissing(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r := newRigAt(t, b, b.Addr(), with(ordersStream, `topic = "orders.dp"`, `topic = "orders.dp", create = false`))
	x := r.start()
	missing := func(topic string) func(TaskStatus) bool {
		return func(s TaskStatus) bool {
			return s.State == stateRetrying && strings.Contains(s.Message, topic+" does not exist")
		}
	}
	x.until("output is missing", missing("orders.dp"))
	kafkatest.CreateTopic(t, b.Addrs(), "orders.dp", nil)
	x.until("input is missing", missing("input topic orders"))
	if code, body := x.get("/-/ready"); code != 503 {
		t.Errorf("ready is %d %s", code, body)
	}
	kafkatest.CreateTopic(t, b.Addrs(), "orders", nil)
	r.client = dial(t, r.addr)
	r.produce(0, 300)
	x.published(3)
	x.end()
	if n := len(r.history("orders.dp").bytes); n != 3 {
		t.Errorf("%d releases", n)
	}
}

// TestOutputDeleted: an output topic that is deleted under the daemon is made
// anew, for what is to come; one that is gone at the start would have told
// whether this state is the newest.
func TestOutputDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
	r.produce(550, 500)
	x.published(10)
	x.end()
	list := r.output("orders.dp")
	if len(list) == 0 || list[len(list)-1].step != 10 || list[0].step > 6 {
		t.Errorf("releases %+v", list)
	}
	c := dial(t, r.addr)
	if cfg, err := c.TopicConfig(t.Context(), "orders.dp", "cleanup.policy"); err != nil || cfg["cleanup.policy"] != "compact" {
		t.Errorf("the new topic's policy is %v %v", cfg, err)
	}
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders.dp")
	r.start().halts(haltOutputGone, "epoch open")
}

// TestKafkaFaults: errors that a cluster gives in bad moments, produce requests
// that were applied and answered with an error among them, change nothing.
func TestKafkaFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(ordersStream, "step   = 100", "step = 10"))
	r.produce(0, 400)
	c := r.broker.Cluster()
	var faults []*kfake.FaultHandle
	for _, f := range []kfake.Fault{
		{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.RequestTimedOut, Count: 2},
		{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.NotEnoughReplicasAfterAppend, Count: 1},
		{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.NotLeaderForPartition, Count: 2},
		{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: 2},
		{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.UnknownLeaderEpoch, Count: 1},
		{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.KafkaStorageError, Count: 1},
		{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.LeaderNotAvailable, Count: 3},
		{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Err: kerr.CoordinatorLoadInProgress, Count: 1},
	} {
		faults = append(faults, c.Fault(f))
	}
	x := r.start()
	x.published(40)
	if s := x.d.Status()[0]; s.State != stateRunning && s.State != stateRetrying {
		t.Errorf("state %s", s.State)
	}
	_, metrics := x.get("/metrics")
	for _, label := range []string{`api="produce",code="7"`, `api="produce",code="6"`, `api="fetch",code="6"`, `api="list_offsets",code="5"`} {
		if !strings.Contains(metrics, "streamdp_kafka_errors_total{"+label+"}") {
			t.Errorf("no metric with %s", label)
		}
	}
	x.end()
	for i, f := range faults {
		if f.Hits() == 0 {
			t.Errorf("fault %d was never met", i)
		}
	}
	v := r.history("orders.dp")
	if v.duplicates == 0 {
		t.Error("no produce was applied and repeated")
	}
	v.equals(t, r.uninterrupted(40))
}

// TestLeaderMoves: the leader of input and output goes to other brokers and
// back.
func TestLeaderMoves(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, Brokers: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r := newRigAt(t, b, b.Addr(), ordersStream)
	x := r.start()
	for i := range 4 {
		r.produce(i*200, 200)
		x.published(uint64(2 * (i + 1)))
		for _, topic := range []string{"orders", "orders.dp"} {
			to := (b.Cluster().LeaderFor(topic, 0) + 1) % 3
			if err := b.Cluster().MoveTopicPartition(topic, 0, to); err != nil {
				t.Fatal(err)
			}
		}
		r.client = dial(t, r.addr)
	}
	x.end()
	if n := len(r.history("orders.dp").bytes); n != 8 {
		t.Errorf("%d releases", n)
	}
}

// TestRetention: records that were deleted before they were read halt the task,
// or are empty slots where that is configured; the steps stay where they are.
func TestRetention(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	r.produce(1050, 1000)
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 1530)
	x := r.start()
	x.halts(haltGap, "offsets 1000 to 1529 are no longer in the log", "on_gap")
	x.end()
	r.toml = with(r.toml, "step   = 100", "step = 100\non_gap = \"null\"")
	x = r.start()
	x.published(20)
	x.end()
	v := r.history("orders.dp")
	for step, rows := range map[uint64]uint64{10: 100, 11: 0, 15: 0, 16: 70, 17: 100} {
		p := v.byKey[fmt.Sprintf("orders/0/1/%d", step)]
		if rel := p.parse(t); rel.Rows != rows {
			t.Errorf("step %d has %d rows, want %d", step, rel.Rows, rows)
		}
	}
	if !strings.Contains(r.log.String(), "records were deleted before they were read") {
		t.Error("the gap is not in the log")
	}
}

// TestRetentionLive: retention overtakes a running daemon.
func TestRetentionLive(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 250)
	x := r.start()
	x.published(2)
	// The daemon waits at 250. The answer to its fetch must be late.
	held := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: -1})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := held.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	r.produce(250, 300)
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 400)
	held.Remove()
	x.halts(haltGap, "offsets 250 to 399")
}

// TestAnchorDeleted: retention may take the record that proves the log, and
// nothing unread; then the log is trusted once.
func TestAnchorDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 1000)
	x := r.start()
	x.published(10)
	x.end()
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders", 0, 1000)
	r.produce(1000, 500)
	x = r.start()
	x.published(15)
	x.end()
	if !strings.Contains(r.log.String(), "the log is trusted this once") {
		t.Error("a dropped anchor is not in the log")
	}
	if n := len(r.history("orders.dp").bytes); n != 15 {
		t.Errorf("%d releases", n)
	}
}

// TestLogReplaced: a log that is not the one that was read halts the task,
// whatever it looks like: too short, refilled, re-created while the daemon
// runs, of another cluster.
func TestLogReplaced(t *testing.T) {
	t.Parallel()
	check := func(name, reason string, change func(r *rig)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ran(t, ordersStream)
			change(r)
			before := len(r.output("orders.dp"))
			x := r.start()
			x.halts(reason, "epoch open")
			if code, body := x.get("/-/ready"); code != 503 || !strings.Contains(body, "task orders-0 is halted ("+reason+")") {
				t.Errorf("ready is %d %s", code, body)
			}
			x.end()
			if after := len(r.output("orders.dp")); after != before {
				t.Errorf("%d releases were published by a halted task", after-before)
			}
			// A restart examines the cause again, and finds it.
			r.start().halts(reason)
		})
	}
	check("shorter", haltTruncated, func(r *rig) { r.recreate(0, 500) })
	check("empty", haltTruncated, func(r *rig) { r.recreate(0, 0) })
	check("refilled", haltReplaced, func(r *rig) { r.recreate(7, 2000) })
	check("cut and refilled", haltReplaced, func(r *rig) {
		r.recreate(0, 900)
		r.produce(7, 1100)
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		r := ran(t, ordersStream)
		b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, ClusterID: "other"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		r.broker, r.addr, r.client = b, b.Addr(), dial(t, b.Addr())
		r.produce(0, 1050)
		r.start().halts(haltReplaced, "cluster")
	})
	t.Run("live", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, ordersStream)
		r.produce(0, 1050)
		x := r.start()
		x.published(10)
		r.recreate(7, 2000)
		x.until("halt", func(s TaskStatus) bool { return s.State == stateHalted })
		if s := x.d.Status()[0]; s.Reason != haltReplaced && s.Reason != haltTruncated {
			t.Errorf("reason %s: %s", s.Reason, s.Message)
		}
		if s := x.d.Status()[0]; s.Step != 10 {
			t.Errorf("step %d", s.Step)
		}
	})
}

// TestCompacted: the cleaner decides by keys which records there are, so such a
// topic is refused, or accepted by name, and then the release says so.
func TestCompacted(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	kafkatest.CreateTopic(t, b.Addrs(), "orders", map[string]string{"cleanup.policy": "compact"})
	r := newRigAt(t, b, b.Addr(), ordersStream)
	r.produce(0, 250)
	x := r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "allow_compacted") {
		t.Errorf("ended with %v", err)
	}
	if entries, err := os.ReadFile(r.ledgerFile()); err == nil {
		t.Errorf("a refused topic was charged: %s", entries)
	}
	r.toml = with(r.toml, `codec = "json"`, `codec = "json", allow_compacted = true`)
	x = r.start()
	x.published(2)
	x.end()
	if last := r.history("orders.dp").byKey["orders/0/1/2"]; !strings.Contains(last.value, "The input topic is compacted") {
		t.Errorf("release: %s", last.value)
	}
}

// TestTooLarge: a release that the topic refuses for its size halts the task,
// and is published when the topic takes it.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	kafkatest.CreateTopic(t, r.broker.Addrs(), "orders.dp", map[string]string{"cleanup.policy": "compact", "max.message.bytes": "1000"})
	r.produce(0, 350)
	x := r.start()
	x.halts(haltTooLarge, "max.message.bytes", "orders/0/1/1")
	// What was asked for meanwhile is answered.
	if err := x.control(requestClose, OpenRequest{}); err == nil || !strings.Contains(err.Error(), "--drop-outbox") {
		t.Errorf("close: %v", err)
	}
	x.end()
	setTopicConfig(t, r, "orders.dp", "max.message.bytes", "1000000")
	x = r.start()
	x.published(3)
	x.end()
	if n := len(r.history("orders.dp").bytes); n != 3 {
		t.Errorf("%d releases", n)
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

// TestRestoredCopy: a state directory older than its output repeats what was
// published, compares, publishes nothing meanwhile, and goes on.
func TestRestoredCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	x.end()
	backup := r.sibling(ordersStream)
	r.copyState(backup)
	r.produce(550, 1000)
	x = r.start()
	x.published(15)
	x.end()
	before := r.output("orders.dp")
	backup.copyState(r)
	r.log = &journal{}
	x = r.start()
	x.published(15)
	x.end()
	if after := r.output("orders.dp"); len(after) != len(before) {
		t.Errorf("%d releases were published while comparing", len(after)-len(before))
	}
	if !strings.Contains(r.log.String(), "the output is ahead of this state") {
		t.Error("a restored copy is not in the log")
	}
	r.produce(1550, 500)
	x = r.start()
	x.published(20)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(20))

	// The old commit beside the last one does the same.
	if err := os.Rename(r.file(previousName), r.file(checkpointName)); err != nil {
		t.Fatal(err)
	}
	x = r.start()
	x.published(20)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(20))

	// And a lost checkpoint repeats everything.
	for _, name := range []string{previousName, checkpointName} {
		os.Remove(r.file(name))
	}
	x = r.start()
	x.published(20)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(20))
}

// TestRestoredCopyForks: a restored copy that meets other records before it has
// caught up halts at the first release that differs, and publishes nothing. A
// new epoch covers what the other copy has published.
func TestRestoredCopyForks(t *testing.T) {
	t.Parallel()
	for _, offline := range []bool{false, true} {
		r := newRig(t, ordersStream)
		r.produce(0, 550)
		x := r.start()
		x.published(5)
		x.end()
		backup := r.sibling(ordersStream)
		r.copyState(backup)
		r.produce(550, 1000)
		x = r.start()
		x.published(15)
		x.end()
		backup.copyState(r)
		before := len(r.output("orders.dp"))

		r.recreate(0, 870) // the same records, and one with another digit
		r.send([]byte(`{"amount": 20.26, "items": 1, "weight": 0.1, "note": "x"}`))
		r.produce(871, 1129)
		x = r.start()
		x.halts(haltOutput, "orders/0/1/9 differs")
		if !offline {
			if err := x.control(requestOpen, OpenRequest{From: "latest"}); err != nil {
				t.Fatal(err)
			}
			x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.State == stateRunning })
		}
		x.end()
		if offline {
			if err := r.offline(func(ctx context.Context, d *Daemon) error {
				return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "latest"})
			}); err != nil {
				t.Fatal(err)
			}
		}
		if after := len(r.output("orders.dp")); after != before {
			t.Errorf("%d releases were published by a fork", after-before)
		}
		for _, e := range r.entries() {
			if e.Kind == kindClose && e.End < 1500 {
				t.Errorf("the charge covers offsets below %d, releases those below 1500", e.End)
			}
		}
	}
}

// TestForkInOutbox: what a copy owes may have been published with other bytes.
// It is not published then, and closing its epoch does not publish it either.
func TestForkInOutbox(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	data, err := os.ReadFile(r.file(checkpointName))
	if err != nil {
		t.Fatal(err)
	}
	cp, err := parseCheckpoint(data)
	if err != nil {
		t.Fatal(err)
	}
	cp.outbox = append(cp.outbox, pending{step: 10, key: []byte("orders/0/1/10"), value: []byte(`{"other":1}`), time: time.UnixMilli(1)})
	cp.output = 0
	if err := os.WriteFile(r.file(checkpointName), cp.encode(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	before := len(r.output("orders.dp"))
	x := r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "orders/0/1/10 differs") {
		t.Errorf("ended with %v", err)
	}
	err = r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, false) })
	if err == nil || !strings.Contains(err.Error(), "--drop-outbox") {
		t.Errorf("close: %v", err)
	}
	if err := r.offline(func(ctx context.Context, d *Daemon) error { return d.CloseEpoch(ctx, ordersTask, true) }); err != nil {
		t.Error(err)
	}
	if after := len(r.output("orders.dp")); after != before {
		t.Errorf("%d releases were published", after-before)
	}
}

// TestOutputTruncated: an output that lost what came after the last
// acknowledged release can't tell a restored copy from the original.
func TestOutputTruncated(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	_, _, end, err := dial(t, r.addr).Offsets(t.Context(), "orders.dp", 0)
	if err != nil {
		t.Fatal(err)
	}
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders.dp", 0, end)
	x := r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "restored copy") {
		t.Errorf("ended with %v", err)
	}
	if s := x.d.Status()[0]; s.Reason != haltOutputGone {
		t.Errorf("reason %s", s.Reason)
	}
	// Without a checkpoint nothing may be missing from the start on.
	r = ran(t, ordersStream)
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "orders.dp", 0, 1)
	for _, name := range []string{previousName, checkpointName} {
		os.Remove(r.file(name))
	}
	x = r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || x.d.Status()[0].Reason != haltOutputGone {
		t.Errorf("ended with %v", err)
	}
}

// TestUnknownEpoch: releases of an epoch that the ledger does not know mean that
// a newer state exists somewhere.
func TestUnknownEpoch(t *testing.T) {
	t.Parallel()
	foreign := func(r *rig, key string) {
		t.Helper()
		_, err := dial(t, r.addr).Produce(t.Context(), "orders.dp", 0, []kafka.Message{{Key: []byte(key), Value: []byte("{}"), Time: time.UnixMilli(1)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := ran(t, ordersStream)
	foreign(r, "orders/1/9/1") // another task's
	foreign(r, "other/0/9/1")
	foreign(r, "orders/0/09/1") // nobody's
	x := r.start()
	x.published(10)
	x.end()
	foreign(r, "orders/0/2/1")
	x = r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "epoch 2, which this ledger does not know") {
		t.Errorf("ended with %v", err)
	}

	// A fresh directory finds the releases of the lost one.
	r = r.sibling(ordersStream)
	x = r.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "the ledger knows no epoch of it") {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(r.ledgerFile()); err == nil {
		t.Error("it was charged")
	}
	// The operator may pay again.
	if err := r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }); err != nil {
		t.Error(err)
	}
}

// TestLogReplacedBeforeFirst: an epoch that has read nothing yet knows its log by
// the record that the one before ended with.
func TestLogReplacedBeforeFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(ordersStream, "step   = 100", "step = 100\nhorizon = 4\non_horizon = \"rollover\""))
	r.produce(0, 400)
	x := r.start()
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 })
	x.end()
	x = r.start()
	x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
	r.produce(400, 50)
	x.until("read", func(s TaskStatus) bool { return s.NextOffset == 450 })
	x.end()
	must(t, r.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{From: "latest"})
	}))
	if e := r.entries(); e[len(e)-1].First != 450 || e[len(e)-1].Incarnation != 1 {
		t.Errorf("the last epoch: %+v", e[len(e)-1])
	}
	r.recreate(7, 600)
	x = r.start()
	x.halts(haltReplaced, "epoch open")
	x.end()
}

// TestRestoredClosed: a copy that was made while its epoch was closed opens no
// successor by itself where the output holds one that it does not know, and none
// of a number that was used.
func TestRestoredClosed(t *testing.T) {
	t.Parallel()
	halts := with(ordersStream, "step   = 100", "step = 100\nhorizon = 4")
	rolls := with(halts, "horizon = 4", "horizon = 4\non_horizon = \"rollover\"")
	r := newRig(t, halts)
	r.produce(0, 1050)
	if err := r.start().ends(); err != nil {
		t.Fatal(err)
	}
	s := r.sibling(rolls)
	r.copyState(s)
	r.toml = rolls
	x := r.start()
	x.until("epoch 3", func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
	x.end()

	x = s.start()
	if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "epoch 3, which this ledger does not know") {
		t.Errorf("the copy ended with %v", err)
	}
	if got := s.kinds(); got != "open close key-destroyed" {
		t.Errorf("the copy's ledger: %s", got)
	}
	// The operator may pay again.
	must(t, s.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
	if all := s.entries(); all[len(all)-1].Epoch != 4 {
		t.Errorf("epoch %d is opened", all[len(all)-1].Epoch)
	}
	if !strings.Contains(s.log.String(), "does not know") {
		t.Error("nobody was told")
	}
	x = s.start()
	x.until("epoch 5", func(s TaskStatus) bool { return s.Epoch == 5 && s.Step == 2 && s.Outbox == 0 })
	x.end()
	s.history("orders.dp") // no number has two releases
}

// TestOutputMoves: with another output in the configuration the old one is read
// to its end first.
func TestOutputMoves(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	r.toml = with(r.toml, `"orders.dp"`, `"elsewhere"`)
	r.produce(1050, 500)
	x := r.start()
	x.published(15)
	x.end()
	v := judge(t, append(r.output("orders.dp"), r.output("elsewhere")...))
	v.faultless(t)
	if v.steps != 15 {
		t.Errorf("%d steps", v.steps)
	}
	// An old copy, moved: what the old output holds is compared.
	r = newRig(t, ordersStream)
	r.produce(0, 550)
	x = r.start()
	x.published(5)
	x.end()
	backup := r.sibling(ordersStream)
	r.copyState(backup)
	r.produce(550, 500)
	x = r.start()
	x.published(10)
	x.end()
	backup.copyState(r)
	r.toml = with(r.toml, `"orders.dp"`, `"elsewhere"`)
	x = r.start()
	x.published(10)
	x.end()
	if list := r.outputIfAny("elsewhere"); len(list) > 0 {
		t.Errorf("%d releases came out again", len(list))
	}
}

// TestStateLocked: one process a directory.
func TestStateLocked(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	x := r.start()
	if _, err := New(r.options()); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second daemon: %v", err)
	}
	x.end()
	x = r.start()
	x.end()
}

// TestInsecureSeed: a seed is for this machine only.
func TestInsecureSeed(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.addr = "kafka.example:9092"
	if _, err := New(r.options()); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("seed for a broker elsewhere: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "state")); err == nil {
		t.Error("a refused daemon made its directory")
	}
}
