package boundary_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// comes waits until a condition holds.
func comes(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(fixtures.Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// rowsOf returns the number of records of each release with one of the given keys.
func rowsOf(r *streamtest.Rig, keys ...string) (rows []int) {
	r.T.Helper()
	out := r.OutputOf("orders.dp")
	for _, key := range keys {
		rows = append(rows, fixtures.ParseClock(r.T, out[key]).Rows)
	}
	return rows
}

// TestClockRollsOver: while an epoch cannot end, the clock continues, and the following epochs have a step for each
// multiple of the period that has passed. So the time at which the last step's work ends does not affect which step a
// record is in.
func TestClockRollsOver(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t,
		fixtures.With(fixtures.ClockStream, `step = "1m"`, "step = \"1m\"\nhorizon = 1\non_horizon = \"rollover\""), 1)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	w := x.In.Tasks()[0]
	stuck := r.Broker.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dp", Err: kerr.NotLeaderForPartition, Count: -1})
	r.SendTo(0, 0, 5)
	h.Tick()
	x.Until("step 1 is closed", func(s monitor.TaskStatus) bool { return s.Step == 1 })
	for i, n := range []int{10, 20} {
		r.SendTo(0, 100*i+100, n)
		h.Tick()
		comes(t, "a look without an epoch", func() bool {
			return w.Looks() == i+1
		})
	}
	r.SendTo(0, 300, 40)
	stuck.Remove()
	x.Until("epoch 3 has a step",
		func(s monitor.TaskStatus) bool { return s.Epoch >= 3 && s.Step == 1 && s.Outbox == 0 || s.Epoch > 3 })
	x.End()
	if rows := rowsOf(r, "orders/0/1/1", "orders/0/2/1", "orders/0/3/1"); fmt.Sprint(rows) != "[5 10 20]" {
		t.Errorf("steps of %v records, want 5, 10 and 20", rows)
	}
}

// TestClockOpensAgain: an epoch that is opened by request takes over the boundaries of steps that the last epoch did
// not close.
func TestClockOpensAgain(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	stuck := r.Broker.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "orders", Err: kerr.NotLeaderForPartition, Count: -1})
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("reads", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
	for i, n := range []int{10, 20} {
		r.SendTo(0, 100*i, n)
		h.Tick()
		comes(t, "a boundary", func() bool {
			end, err := r.Client.End(t.Context(), "bounds", 0)
			fixtures.Must(t, err)
			return end == int64(i+1)
		})
	}
	r.SendTo(0, 300, 40)
	fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{}))
	stuck.Remove()
	x.Until("epoch 2 has both", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 2 && s.Outbox == 0 })
	x.End()
	if rows := rowsOf(r, "orders/0/2/1", "orders/0/2/2"); fmt.Sprint(rows) != "[10 20]" {
		t.Errorf("steps of %v records, want 10 and 20", rows)
	}
}

// TestClockStamps: the timestamp of a boundary record is no finer than the period, and the topic is created so that
// brokers do not set timestamps.
func TestClockStamps(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	h := streamtest.NewHand()
	x := r.Start(h.On)
	x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	h.Tick()
	x.Published(1)
	x.End()
	settings, err := r.Client.TopicConfig(t.Context(), "bounds", boundary.SettingNames...)
	fixtures.Must(t, err)
	if settings["message.timestamp.type"] != "CreateTime" || boundary.BrokersStamp(settings) {
		t.Errorf("the topic has %v", settings)
	}
	if !boundary.BrokersStamp(map[string]string{"message.timestamp.type": "LogAppendTime"}) {
		t.Error("timestamps that brokers set are not noticed")
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(r.Addr),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"bounds": {0: kgo.NewOffset().At(0)}}))
	fixtures.Must(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), fixtures.Patience)
	defer cancel()
	records := client.PollFetches(ctx).Records()
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	if at := records[0].Timestamp; !at.Equal(at.Truncate(time.Minute)) || time.Since(at) > time.Hour {
		t.Errorf("the record's timestamp is %v", at)
	}
	if at := boundary.StampOf(time.Unix(1_000_000, 0), 200*365*24*time.Hour); at.UnixMilli() != 1 {
		t.Errorf("in the first period the record's timestamp would be %v", at)
	}
}

// TestClockRefill: while a slow broker returns boundaries that did not fit into memory, other boundaries are still
// taken and dropped.
func TestClockRefill(t *testing.T) {
	t.Parallel()
	r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "bounds", 1, boundary.TopicSpec.Settings))
	b := boundary.New(nil, r.Client, new([32]byte), "bounds",
		&core.Manifest{Stream: "s", Epoch: 1, Nonce: make([]byte, 16)})
	b.Most = 10
	var all []boundary.Boundary
	for i := range int64(4) {
		value, err := json.Marshal(boundary.BoundaryValue{Step: uint64(i + 1), Ends: []int64{i}})
		fixtures.Must(t, err)
		_, err = r.Client.Produce(t.Context(), "bounds", 0,
			[]kafka.Message{{Key: (*b.Name()), Value: value, Time: time.UnixMilli(1),
				Headers: []kafka.Header{{Key: boundary.BoundaryHeader, Value: b.Mac(value)}}}})
		fixtures.Must(t, err)
		all = append(all, boundary.Boundary{Step: uint64(i + 1), Ends: []int64{i}, At: i})
	}
	b.Kept, b.Last = all[0], all[2]
	asked, answer := make(chan struct{}), make(chan struct{})
	c, once := r.Broker.Cluster(), sync.OnceFunc(func() { close(asked) })
	c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		once()
		c.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	known := make(chan boundary.Boundary)
	go func() {
		x, _, _, _ := b.Known(t.Context(), 2)
		known <- x
	}()
	<-asked
	taken := make(chan error, 1)
	go func() {
		taken <- b.Take(all[3])
		b.Done(1)
	}()
	select {
	case err := <-taken:
		fixtures.Must(t, err)
	case <-time.After(fixtures.Patience):
		t.Error("a slow broker delays the next boundary")
	}
	close(answer)
	if x := <-known; x.Step != 2 {
		t.Errorf("step 2 is %+v", x)
	}
	if x, ok, _, err := b.Known(t.Context(), 4); err != nil || !ok || x.Step != 4 {
		t.Errorf("step 4 is %+v, %t, %v", x, ok, err)
	}
}
