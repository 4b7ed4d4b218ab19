package stream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// TestRealKafkaPattern: on a real broker topics that match a pattern are found at the start and while
// the daemon runs, each with an epoch and an output of its own. A topic that is deleted ends nothing but its own
// stream, and nothing is opened for the one that comes in its place.
func TestRealKafkaPattern(t *testing.T) {
	b := kafkatest.NewReal(t)
	s := newSite(t, b.Addrs, fmt.Sprint("sales-", time.Now().UnixNano(), "-"))
	s.look = 200 * time.Millisecond
	s.edit = strings.NewReplacer(fmt.Sprintf("topic = %q, codec", s.in), fmt.Sprintf("topics = %q, codec", s.in+"[a-z]+"), fmt.Sprintf("output = { topic = %q }\n", s.out), "")
	fill := func(topic string, n int) {
		t.Helper()
		fillTopic(t, s.client, topic, n)
	}
	create := func(topic string, n int) {
		t.Helper()
		kafkatest.CreateTopic(t, b.Addrs, topic, map[string]string{"message.timestamp.type": "LogAppendTime"}) // the records are of 1970
		fill(topic, n)
	}
	var d *siteRun
	// are waits until the streams that run have published so many steps.
	are := func(want ...string) {
		t.Helper()
		var got []string
		for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(5 * time.Millisecond) {
			got = got[:0]
			for _, x := range d.d.Status() {
				if x.State == stateRunning && x.Outbox == 0 {
					got = append(got, fmt.Sprintf("%s %d", strings.TrimPrefix(x.Topic, s.in), x.Step))
				}
			}
			if slices.Sort(got); slices.Equal(got, want) {
				return
			}
		}
		t.Fatalf("streams %q, want %q", got, want)
	}
	create(s.in+"a", 250)
	create(s.in+"b", 100)
	create(s.in+"7", 100) // matches not
	d = s.run()
	are("a 2", "b 1")
	create(s.in+"c", 120)
	are("a 2", "b 1", "c 1")
	fill(s.in+"a", 100)
	are("a 3", "b 1", "c 1")
	kafkatest.DeleteTopic(t, b.Addrs, s.in+"b")
	are("a 3", "c 1")
	kafkatest.CreateTopic(t, b.Addrs, s.in+"b", nil)
	kafkatest.NewProducer(t, b.Addrs, s.in+"b", 0, "").Send(slices.Repeat([]kafkatest.Record{{Value: orderRecord(1)}}, 300)...) // other records
	fill(s.in+"c", 100)
	are("a 3", "c 2")
	halted := func() bool {
		return slices.ContainsFunc(d.d.Status(), func(x TaskStatus) bool {
			return x.Topic == s.in+"b" && x.State == stateHalted && x.Reason == haltReplaced
		})
	}
	for late := time.Now().Add(time.Minute); !halted(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%+v", d.d.Status())
		}
	}
	are("a 3", "c 2")
	d.end()
	s.out = s.in + "b.dp"
	if out := s.output(); len(out) != 1 {
		t.Errorf("%d releases of the topic that was deleted", len(out))
	}
	s.out = s.in + "a.dp"
	if out := s.output(); len(out) != 3 {
		t.Errorf("%d releases", len(out))
	}
}
