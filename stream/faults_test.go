package stream

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

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

// TestPublishRefused: an error of the output that no waiting mends halts the task, and
// what it owes is published when the cause is gone.
func TestPublishRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 350)
	fault := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.InvalidRecord, Count: -1})
	x := r.start()
	x.halts(haltPublish)
	x.end()
	fault.Remove()
	x = r.start()
	x.published(3)
	x.end()
	r.history("orders.dp").equals(t, r.uninterrupted(3))
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
