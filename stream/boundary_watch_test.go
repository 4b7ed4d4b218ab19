package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
)

// comes waits for a condition.
func comes(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// rowsOf returns the numbers of records of releases, by identity.
func rowsOf(r *rig, keys ...string) (rows []int) {
	r.t.Helper()
	out := r.outputOf("orders.dp")
	for _, key := range keys {
		rows = append(rows, parseClock(r.t, out[key]).Rows)
	}
	return rows
}

// TestClockRollsOver: while an epoch can't end, the clock goes on, and the epochs behind it have a step for
// each multiple of the period that has passed. So it does not matter to any record when the work of the last
// step had ended.
func TestClockRollsOver(t *testing.T) {
	t.Parallel()
	r := clockRig(t, with(clockStream, `step = "1m"`, "step = \"1m\"\nhorizon = 1\non_horizon = \"rollover\""), 1)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	w := x.in.Tasks()[0]
	stuck := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.NotLeaderForPartition, Count: -1})
	r.sendTo(0, 0, 5)
	h.tick()
	x.until("step 1 is closed", func(s TaskStatus) bool { return s.Step == 1 })
	for i, n := range []int{10, 20} {
		r.sendTo(0, 100*i+100, n)
		h.tick()
		comes(t, "a look without an epoch", func() bool {
			return w.looks() == i+1
		})
	}
	r.sendTo(0, 300, 40)
	stuck.Remove()
	x.until("epoch 3 has a step", func(s TaskStatus) bool { return s.Epoch >= 3 && s.Step == 1 && s.Outbox == 0 || s.Epoch > 3 })
	x.end()
	if rows := rowsOf(r, "orders/0/1/1", "orders/0/2/1", "orders/0/3/1"); fmt.Sprint(rows) != "[5 10 20]" {
		t.Errorf("steps of %v records, want 5, 10 and 20", rows)
	}
}

// TestClockOpensAgain: an epoch that is opened by request takes over the boundaries of steps that the last one
// did not close.
func TestClockOpensAgain(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	stuck := r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: -1})
	h := newHand()
	x := r.start(h.on)
	x.until("reads", func(s TaskStatus) bool { return s.State == stateRetrying })
	for i, n := range []int{10, 20} {
		r.sendTo(0, 100*i, n)
		h.tick()
		comes(t, "a boundary", func() bool {
			end, err := r.client.End(t.Context(), "bounds", 0)
			must(t, err)
			return end == int64(i+1)
		})
	}
	r.sendTo(0, 300, 40)
	must(t, x.control(requestOpen, OpenRequest{}))
	stuck.Remove()
	x.until("epoch 2 has both", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
	x.end()
	if rows := rowsOf(r, "orders/0/2/1", "orders/0/2/2"); fmt.Sprint(rows) != "[10 20]" {
		t.Errorf("steps of %v records, want 10 and 20", rows)
	}
}

// TestClockStamps: a record of the boundary topic bears no finer time than the period, and the topic is made so
// that brokers put none there.
func TestClockStamps(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	h := newHand()
	x := r.start(h.on)
	x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
	h.tick()
	x.published(1)
	x.end()
	settings, err := r.client.TopicConfig(t.Context(), "bounds", BoundarySettings...)
	must(t, err)
	if settings["message.timestamp.type"] != "CreateTime" || BrokersStampBoundaries(settings) {
		t.Errorf("the topic has %v", settings)
	}
	if !BrokersStampBoundaries(map[string]string{"message.timestamp.type": "LogAppendTime"}) {
		t.Error("a broker's stamps go unnoticed")
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(r.addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"bounds": {0: kgo.NewOffset().At(0)}}))
	must(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	records := client.PollFetches(ctx).Records()
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	if at := records[0].Timestamp; !at.Equal(at.Truncate(time.Minute)) || time.Since(at) > time.Hour {
		t.Errorf("the record bears %v", at)
	}
	if at := stampOf(time.Unix(1_000_000, 0), 200*365*24*time.Hour); at.UnixMilli() != 1 {
		t.Errorf("in the first period the record would bear %v", at)
	}
}

// TestClockRefill: while a broker is slow to give boundaries again that did not fit into memory, others are
// taken and forgotten.
func TestClockRefill(t *testing.T) {
	t.Parallel()
	r := clockRig(t, clockStream, 1)
	must(t, r.client.CreateTopic(t.Context(), "bounds", 1, boundarySettings))
	b := newBoundaries(nil, r.client, new([32]byte), "bounds", &core.Manifest{Stream: "s", Epoch: 1, Nonce: make([]byte, 16)})
	b.most = 10
	var all []boundary
	for i := range int64(4) {
		value, err := json.Marshal(boundaryValue{uint64(i + 1), []int64{i}})
		must(t, err)
		_, err = r.client.Produce(t.Context(), "bounds", 0, []kafka.Message{{Key: b.name, Value: value, Time: time.UnixMilli(1),
			Headers: []kafka.Header{{Key: boundaryHeader, Value: b.mac(value)}}}})
		must(t, err)
		all = append(all, boundary{uint64(i + 1), []int64{i}, i})
	}
	b.kept, b.last = all[0], all[2]
	asked, answer := make(chan struct{}), make(chan struct{})
	c, once := r.broker.Cluster(), sync.OnceFunc(func() { close(asked) })
	c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		once()
		c.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	known := make(chan boundary)
	go func() {
		x, _, _, _ := b.known(t.Context(), 2)
		known <- x
	}()
	<-asked
	taken := make(chan error, 1)
	go func() {
		taken <- b.take(all[3])
		b.done(1)
	}()
	select {
	case err := <-taken:
		must(t, err)
	case <-time.After(patience):
		t.Error("a slow broker holds up the next boundary")
	}
	close(answer)
	if x := <-known; x.step != 2 {
		t.Errorf("step 2 is %+v", x)
	}
	if x, ok, _, err := b.known(t.Context(), 4); err != nil || !ok || x.step != 4 {
		t.Errorf("step 4 is %+v, %t, %v", x, ok, err)
	}
}
