package stream_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
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

// TestBrokerGone: without a broker the daemon stays up but is not ready. When the broker is back, nothing is lost.
func TestBrokerGone(t *testing.T) {
	t.Parallel()
	o := embedded.Options{Topics: []string{"orders"}, DataDir: fixtures.ShortDir(t)}
	b, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Port = port(t, b.Addr())
	r := streamtest.NewRigAt(t, b, b.Addr(), fixtures.OrdersStream)
	r.Produce(0, 550)
	x := r.Start()
	x.Published(5)
	if code, body := x.Get("/-/ready"); code != 200 {
		t.Errorf("ready is %d %s", code, body)
	}
	b.Close()
	x.Until("retries", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
	code, body := x.Get("/-/ready")
	if code != 503 || !strings.Contains(body, "task orders-0 is retrying") {
		t.Errorf("ready is %d %s", code, body)
	}
	if code, _ := x.Get("/-/healthy"); code != 200 {
		t.Errorf("healthy is %d", code)
	}
	if b, err = embedded.Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r.Broker = b
	r.Client = fixtures.Dial(t, r.Addr)
	r.Produce(550, 500)
	x.Published(10)
	x.Until("runs", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if code, _ := x.Get("/-/ready"); code != 200 {
		t.Errorf("ready is %d after the broker came back", code)
	}
	x.End()
	r.History("orders.dp").Equals(t, r.Uninterrupted(10))

	// A start without a broker waits too.
	b.Close()
	x = r.Start()
	x.Until("retries", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
	if code, body := x.Get("/-/ready"); code != 503 {
		t.Errorf("ready is %d %s", code, body)
	}
	x.End()
}

// TestTopicsMissing: the task waits for a missing input topic. It creates a missing output topic, or waits for it if it
// may not.
func TestTopicsMissing(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r := streamtest.NewRigAt(t, b, b.Addr(),
		fixtures.With(fixtures.OrdersStream, `topic = "orders.dp"`, `topic = "orders.dp", create = false`))
	x := r.Start()
	missing := func(topic string) func(monitor.TaskStatus) bool {
		return func(s monitor.TaskStatus) bool {
			return s.State == monitor.StateRetrying && strings.Contains(s.Message, topic+" does not exist")
		}
	}
	x.Until("output is missing", missing("orders.dp"))
	kafkatest.CreateTopic(t, b.Addrs(), "orders.dp", nil)
	x.Until("input is missing", missing("input topic orders"))
	if code, body := x.Get("/-/ready"); code != 503 {
		t.Errorf("ready is %d %s", code, body)
	}
	kafkatest.CreateTopic(t, b.Addrs(), "orders", nil)
	r.Client = fixtures.Dial(t, r.Addr)
	r.Produce(0, 300)
	x.Published(3)
	x.End()
	if n := len(r.History("orders.dp").Bytes); n != 3 {
		t.Errorf("%d releases", n)
	}
}

// TestKafkaFaults: transient errors of a cluster change nothing, including produce requests that were applied but
// answered with an error.
func TestKafkaFaults(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 10"))
	r.Produce(0, 400)
	c := r.Broker.Cluster()
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
	x := r.Start()
	x.Published(40)
	if s := x.D.Status()[0]; s.State != monitor.StateRunning && s.State != monitor.StateRetrying {
		t.Errorf("state %s", s.State)
	}
	_, metrics := x.Get("/metrics")
	for _, label := range []string{
		`api="produce",code="7"`, `api="produce",code="6"`, `api="fetch",code="6"`, `api="list_offsets",code="5"`,
	} {
		if !strings.Contains(metrics, "streamdp_kafka_errors_total{"+label+"}") {
			t.Errorf("no metric with %s", label)
		}
	}
	x.End()
	for i, f := range faults {
		if f.Hits() == 0 {
			t.Errorf("fault %d was never met", i)
		}
	}
	v := r.History("orders.dp")
	if v.Duplicates == 0 {
		t.Error("no produce was applied and repeated")
	}
	v.Equals(t, r.Uninterrupted(40))
}

// TestLeaderMoves: the leader of input and output moves to other brokers and back.
func TestLeaderMoves(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}, Brokers: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r := streamtest.NewRigAt(t, b, b.Addr(), fixtures.OrdersStream)
	x := r.Start()
	for i := range 4 {
		r.Produce(i*200, 200)
		x.Published(uint64(2 * (i + 1)))
		for _, topic := range []string{"orders", "orders.dp"} {
			to := (b.Cluster().LeaderFor(topic, 0) + 1) % 3
			if err := b.Cluster().MoveTopicPartition(topic, 0, to); err != nil {
				t.Fatal(err)
			}
		}
		r.Client = fixtures.Dial(t, r.Addr)
	}
	x.End()
	if n := len(r.History("orders.dp").Bytes); n != 8 {
		t.Errorf("%d releases", n)
	}
}

// TestTooLarge: a release that is too large for the topic halts the task, and is published when the topic accepts it.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	kafkatest.CreateTopic(t, r.Broker.Addrs(), "orders.dp",
		map[string]string{"cleanup.policy": "compact", "max.message.bytes": "1000"})
	r.Produce(0, 350)
	x := r.Start()
	x.Halts(failure.ReleaseTooLarge, "max.message.bytes", "orders/0/1/1")
	// Requests during the halt get an answer.
	if err := x.Control(task.RequestClose, epoch.OpenRequest{}); err == nil ||
		!strings.Contains(err.Error(), "--drop-outbox") {
		t.Errorf("close: %v", err)
	}
	x.End()
	streamtest.SetTopicConfig(t, r, "orders.dp", "max.message.bytes", "1000000")
	x = r.Start()
	x.Published(3)
	x.End()
	if n := len(r.History("orders.dp").Bytes); n != 3 {
		t.Errorf("%d releases", n)
	}
}

// TestPublishRefused: if the output fails with an error that waiting cannot cure, the task halts. Its outbox is
// published once the cause is gone.
func TestPublishRefused(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 350)
	fault := r.Broker.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.InvalidRecord, Count: -1})
	x := r.Start()
	x.Halts(failure.Publish)
	x.End()
	fault.Remove()
	x = r.Start()
	x.Published(3)
	x.End()
	r.History("orders.dp").Equals(t, r.Uninterrupted(3))
}

// TestStateLocked: only one process may use a directory.
func TestStateLocked(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	x := r.Start()
	if _, err := stream.New(r.Options()); !errors.Is(err, failure.ErrState) ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("second daemon: %v", err)
	}
	x.End()
	x = r.Start()
	x.End()
}

// TestInsecureSeed: a seed is allowed only with brokers on this machine.
func TestInsecureSeed(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Addr = "kafka.example:9092"
	if _, err := stream.New(r.Options()); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("seed for a broker elsewhere: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.Dir, "state")); err == nil {
		t.Error("a refused daemon made its directory")
	}
}
