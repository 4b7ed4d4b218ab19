package stream

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// TestControl: what commands ask of a running daemon.
func TestControl(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	if err := x.control(requestOpen, OpenRequest{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	r.produce(550, 500)
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 5 && s.Outbox == 0 })
	if err := x.control(requestClose, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.ends(); err != nil { // nothing is left to run
		t.Errorf("the daemon ended with %v", err)
	}
	if got := r.kinds(); got != "open close key-destroyed open close key-destroyed" {
		t.Errorf("ledger: %s", got)
	}
	closedWell(r, t, "control", 1)
	closedWell(r, t, "control", 2)
	v := r.history("orders.dp")
	if p := v.byKey["orders/0/2/5"]; !strings.Contains(p.value, `"covers":[500,1000]`) {
		t.Errorf("release %.200s", p.value)
	}
	// A closed task stays closed, until a command opens it.
	if err := r.start().ends(); !errors.Is(err, ErrNothing) {
		t.Errorf("ended with %v", err)
	}
	for _, c := range []struct {
		kind string
		ok   bool
	}{{requestClose, false}, {requestOpen, true}, {requestClose, true}} {
		err := r.offline(func(ctx context.Context, d *Daemon) error {
			if c.kind == requestOpen {
				return d.OpenEpoch(ctx, ordersTask, OpenRequest{})
			}
			return d.CloseEpoch(ctx, ordersTask, false)
		})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.kind, err)
		}
	}
	if err := r.offline(func(ctx context.Context, d *Daemon) error {
		return d.CloseEpoch(ctx, core.Task{Stream: "nobody", Partition: 0}, false)
	}); err == nil {
		t.Error("closed a task that does not exist")
	}
}

// TestControlWhileWaiting: a task that waits for a topic still takes requests.
func TestControlWhileWaiting(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "orders")
	x := r.start()
	x.until("waits", func(s TaskStatus) bool {
		return s.State == stateRetrying && strings.Contains(s.Message, "does not exist")
	})
	if err := x.control(requestClose, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.ends(); !errors.Is(err, ErrNothing) {
		t.Errorf("ended with %v", err)
	}
	closedWell(r, t, "while waiting", 1)
}

// TestCloseWhileComparing: a restored copy that is told to close before it has
// caught up covers what the other copy has published, and publishes nothing.
func TestCloseWhileComparing(t *testing.T) {
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
	before := len(r.output("orders.dp"))
	backup.copyState(r)
	// It can't read on, so that it stays where it is. It can read what it has read.
	var released atomic.Bool
	r.broker.Cluster().ControlKey(int16(kmsg.Fetch), func(q kmsg.Request) (kmsg.Response, error, bool) {
		r.broker.Cluster().KeepControl()
		for _, topic := range q.(*kmsg.FetchRequest).Topics {
			for _, p := range topic.Partitions {
				if topic.Topic != "orders" || p.FetchOffset < 550 || released.Load() {
					continue
				}
				answer := q.ResponseKind().(*kmsg.FetchResponse)
				answer.Topics = []kmsg.FetchResponseTopic{{Topic: topic.Topic, TopicID: topic.TopicID,
					Partitions: []kmsg.FetchResponseTopicPartition{{Partition: p.Partition, ErrorCode: kerr.NotLeaderForPartition.Code}}}}
				return answer, nil, true
			}
		}
		return nil, nil, false
	})
	x = r.start()
	x.until("compares", func(s TaskStatus) bool { return s.Comparing })
	if err := x.control(requestClose, OpenRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := x.ends(); err != nil {
		t.Errorf("ended with %v", err)
	}
	released.Store(true)
	must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
	for _, e := range r.entries() {
		if e.Kind == kindClose && e.End < 1500 || e.Kind == kindOpen && e.Epoch == 2 && e.First < 1500 {
			t.Errorf("%s: end %d, first %d, releases cover 1500", e.Kind, e.End, e.First)
		}
	}
	if after := len(r.output("orders.dp")); after != before {
		t.Errorf("%d releases came out", after-before)
	}
}
