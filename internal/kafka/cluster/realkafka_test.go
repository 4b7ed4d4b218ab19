package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"streamdp/internal/kafka"
	"streamdp/internal/kafka/kafkatest"
)

// What holds against the embedded broker holds against Apache Kafka.
func TestRealKafkaGroup(t *testing.T) {
	real := kafkatest.NewReal(t)
	o := TopicOptions{Kafka: kafka.Options{Brokers: real.Addrs}, Group: "g", Shards: 7, AllowUnreplicated: true}
	for range 2 {
		if err := Init(within(t), o); err != nil {
			t.Fatal(err)
		}
	}
	if err := Check(within(t), o); err != nil {
		t.Error(err)
	}
	o.AllowUnreplicated = false
	if got := refused(t, Check(within(t), o)); len(got) < 8 {
		t.Errorf("%q", got)
	}

	// A user who may do nothing is told of each right, one after the other until none lacks.
	o.AllowUnreplicated = true
	o.Kafka.Brokers, o.Kafka.SASL = []string{real.SASL}, kafka.SASL{Mechanism: "plain", Username: "streamdp", Password: "secret"}
	got := refused(t, Check(within(t), o))
	want := Findings{"this user may not Describe topic g.state", "this user may not Describe topic g.ledger", "this user may not Describe topic g.control",
		"this user may not Describe topic g.partials", "this user may not Read group g", "this user may not Write transactional ids g-…"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	real.Grant(kmsg.ACLResourceTypeGroup, "g", kmsg.ACLOperationRead)
	for _, topic := range o.topics() {
		real.Grant(kmsg.ACLResourceTypeTopic, topic.name, kmsg.ACLOperationRead, kmsg.ACLOperationWrite)
	}
	want = nil
	for _, topic := range o.topics() {
		want = append(want, fmt.Sprintf("this user may not DescribeConfigs topic %s", topic.name))
	}
	if got = refused(t, Check(within(t), o)); !slices.Equal(got, append(want, "this user may not Write transactional ids g-…")) {
		t.Errorf("%q", got)
	}

	a := members(t, real.Addrs, 6*time.Second)
	if g, err := Look(within(t), kafka.Options{Brokers: real.Addrs}, "g"); err != nil || fmt.Sprint(g.Members) != fmt.Sprint(a.last.Members) {
		t.Errorf("%+v, %v", g, err)
	}
}
