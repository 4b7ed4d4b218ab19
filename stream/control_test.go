package stream_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestControl sends the requests of commands to a running daemon.
func TestControl(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 550)
	x := r.Start()
	x.Published(5)
	if err := x.Control(task.RequestOpen, epoch.OpenRequest{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	r.Produce(550, 500)
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 5 && s.Outbox == 0 })
	if err := x.Control(task.RequestClose, epoch.OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.Ends(); err != nil { // nothing is left to run
		t.Errorf("the daemon ended with %v", err)
	}
	if got := r.Kinds(); got != "open close key-destroyed open close key-destroyed" {
		t.Errorf("ledger: %s", got)
	}
	closedWell(r, t, "control", 1)
	closedWell(r, t, "control", 2)
	v := r.History("orders.dp")
	if p := v.ByKey["orders/0/2/5"]; !strings.Contains(p.Value, `"covers":[500,1000]`) {
		t.Errorf("release %.200s", p.Value)
	}
	// A closed task stays closed until a command opens it.
	if err := r.Start().Ends(); !errors.Is(err, failure.ErrNothing) {
		t.Errorf("ended with %v", err)
	}
	for _, c := range []struct {
		kind string
		ok   bool
	}{{task.RequestClose, false}, {task.RequestOpen, true}, {task.RequestClose, true}} {
		err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
			if c.kind == task.RequestOpen {
				return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
			}
			return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
		})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.kind, err)
		}
	}
	if err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, core.Task{Stream: "nobody", Partition: 0}, false)
	}); err == nil {
		t.Error("closed a task that does not exist")
	}
}

// TestControlWhileWaiting: a task that waits for a topic still serves requests.
func TestControlWhileWaiting(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	kafkatest.DeleteTopic(t, r.Broker.Addrs(), "orders")
	x := r.Start()
	x.Until("waits", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRetrying && strings.Contains(s.Message, "does not exist")
	})
	if err := x.Control(task.RequestClose, epoch.OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.Ends(); !errors.Is(err, failure.ErrNothing) {
		t.Errorf("ended with %v", err)
	}
	closedWell(r, t, "while waiting", 1)
}

// TestCloseWhileComparing closes the epoch of a restored copy before the copy has caught up with the output. The charge
// covers the releases of the other copy, and the restored copy publishes nothing.
func TestCloseWhileComparing(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 550)
	x := r.Start()
	x.Published(5)
	x.End()
	backup := r.Sibling(fixtures.OrdersStream)
	r.CopyState(backup)
	r.Produce(550, 1000)
	x = r.Start()
	x.Published(15)
	x.End()
	before := len(r.Output("orders.dp"))
	backup.CopyState(r)
	// Hold the copy at offset 500, where its state ends. A response from there may hold all records, and with them the
	// copy would catch up. It may read the records below 500.
	var released atomic.Bool
	r.Broker.Cluster().ControlKey(int16(kmsg.Fetch), func(q kmsg.Request) (kmsg.Response, error, bool) {
		r.Broker.Cluster().KeepControl()
		for _, topic := range q.(*kmsg.FetchRequest).Topics {
			for _, p := range topic.Partitions {
				if topic.Topic != "orders" || p.FetchOffset < 500 || released.Load() {
					continue
				}
				answer := q.ResponseKind().(*kmsg.FetchResponse)
				answer.Topics = []kmsg.FetchResponseTopic{{Topic: topic.Topic, TopicID: topic.TopicID,
					Partitions: []kmsg.FetchResponseTopicPartition{
						{Partition: p.Partition, ErrorCode: kerr.NotLeaderForPartition.Code}}}}
				return answer, nil, true
			}
		}
		return nil, nil, false
	})
	x = r.Start()
	x.Until("compares", func(s monitor.TaskStatus) bool { return s.Comparing })
	if err := x.Control(task.RequestClose, epoch.OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.Ends(); err != nil {
		t.Errorf("ended with %v", err)
	}
	released.Store(true)
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}))
	for _, e := range r.Entries() {
		if e.Kind == ledger.KindClose && e.End < 1500 || e.Kind == ledger.KindOpen && e.Epoch == 2 && e.First < 1500 {
			t.Errorf("%s: end %d, first %d, releases cover 1500", e.Kind, e.End, e.First)
		}
	}
	if after := len(r.Output("orders.dp")); after != before {
		t.Errorf("%d releases were published", after-before)
	}
}
