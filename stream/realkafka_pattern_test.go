package stream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestRealKafkaPattern: on a real broker, topics that match a pattern are found at the start and while the daemon runs,
// each with its own epoch and output. Deleting a topic ends only its own stream, and no epoch is opened for a new topic
// in its place.
func TestRealKafkaPattern(t *testing.T) {
	b := kafkatest.NewReal(t)
	s := streamtest.NewSite(t, b.Addrs, fmt.Sprint("sales-", time.Now().UnixNano(), "-"))
	s.Look = 200 * time.Millisecond
	s.Edit = strings.NewReplacer(fmt.Sprintf("topic = %q, codec", s.In),
		fmt.Sprintf("topics = %q, codec", s.In+"[a-z]+"), fmt.Sprintf("output = { topic = %q }\n", s.Out), "")
	fill := func(topic string, n int) {
		t.Helper()
		fillTopic(t, s.Client, topic, n)
	}
	create := func(topic string, n int) {
		t.Helper()
		// The records' timestamps are from 1970.
		kafkatest.CreateTopic(t, b.Addrs, topic, map[string]string{"message.timestamp.type": "LogAppendTime"})
		fill(topic, n)
	}
	var d *streamtest.SiteRun
	// are waits until the running streams have published the given steps.
	are := func(want ...string) {
		t.Helper()
		var got []string
		for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(5 * time.Millisecond) {
			got = got[:0]
			for _, x := range d.D.Status() {
				if x.State == monitor.StateRunning && x.Outbox == 0 {
					got = append(got, fmt.Sprintf("%s %d", strings.TrimPrefix(x.Topic, s.In), x.Step))
				}
			}
			if slices.Sort(got); slices.Equal(got, want) {
				return
			}
		}
		t.Fatalf("streams %q, want %q", got, want)
	}
	create(s.In+"a", 250)
	create(s.In+"b", 100)
	create(s.In+"7", 100) // does not match
	d = s.Run()
	are("a 2", "b 1")
	create(s.In+"c", 120)
	are("a 2", "b 1", "c 1")
	fill(s.In+"a", 100)
	are("a 3", "b 1", "c 1")
	kafkatest.DeleteTopic(t, b.Addrs, s.In+"b")
	are("a 3", "c 1")
	kafkatest.CreateTopic(t, b.Addrs, s.In+"b", nil)
	// Other records.
	kafkatest.NewProducer(t, b.Addrs, s.In+"b", 0,
		"").Send(slices.Repeat([]kafkatest.Record{{Value: fixtures.OrderRecord(1)}}, 300)...)
	fill(s.In+"c", 100)
	are("a 3", "c 2")
	halted := func() bool {
		return slices.ContainsFunc(d.D.Status(), func(x monitor.TaskStatus) bool {
			return x.Topic == s.In+"b" && x.State == monitor.StateHalted && x.Reason == failure.Replaced
		})
	}
	for late := time.Now().Add(time.Minute); !halted(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%+v", d.D.Status())
		}
	}
	are("a 3", "c 2")
	d.End()
	s.Out = s.In + "b.dp"
	if out := s.Output(); len(out) != 1 {
		t.Errorf("%d releases of the topic that was deleted", len(out))
	}
	s.Out = s.In + "a.dp"
	if out := s.Output(); len(out) != 3 {
		t.Errorf("%d releases", len(out))
	}
}
