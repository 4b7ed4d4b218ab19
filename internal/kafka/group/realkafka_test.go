package group

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// These tests repeat with Apache Kafka what was tested with the embedded broker.
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

	// A user without rights learns of each missing right, one after the other, until none is missing.
	o.AllowUnreplicated = true
	o.Kafka.Brokers, o.Kafka.SASL = []string{real.SASL},
		kafka.SASL{Mechanism: "plain", Username: "streamdp", Password: "secret"}
	got := refused(t, Check(within(t), o))
	want := Findings{"this user may not Describe topic g.state", "this user may not Describe topic g.ledger",
		"this user may not Describe topic g.control",
		"this user may not Describe topic g.partials", "this user may not Read group g",
		"this user may not Write transactional ids g-…"}
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
	if got = refused(t, Check(within(t), o)); !slices.Equal(got,
		append(want, "this user may not Write transactional ids g-…")) {
		t.Errorf("%q", got)
	}

	a := members(t, real.Addrs, 6*time.Second)
	if g, err := Look(within(t), kafka.Options{Brokers: real.Addrs}, "g"); err != nil ||
		fmt.Sprint(g.Members) != fmt.Sprint(a.last.Members) {
		t.Errorf("%+v, %v", g, err)
	}
}

// Sessions with tokens end after 2.5 s at this broker. Requests continue over the same connections, which send a new
// token in time.
func TestRealKafkaSessions(t *testing.T) {
	real := kafkatest.NewReal(t)
	if real.SASL == "" {
		t.Skip("this broker has no listener with SASL: make test-kafka starts one that has")
	}
	var shown atomic.Int64
	opts, err := clientOptions(
		kafka.Options{Brokers: []string{real.SASL},
			SASL: kafka.SASL{Mechanism: "oauthbearer", Token: func(context.Context) (kafka.Token, error) {
				shown.Add(1)
				part := base64.RawURLEncoding.EncodeToString
				return kafka.Token{Text: part([]byte(`{"alg":"none"}`)) + "." +
						part(fmt.Appendf(nil, `{"sub":"streamdp","exp":%d}`, time.Now().Add(time.Minute).Unix())) +
						"."},
					nil
			}}})
	if err != nil {
		t.Fatal(err)
	}
	// Requests are not retried: one that a broker cuts off fails. The client re-authenticates a second before the end,
	// so a request that took that long proves nothing, because the session may have ended during it.
	client, err := kgo.NewClient(append(opts, kgo.RequestRetries(0))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for begun := time.Now(); time.Since(begun) < 6*time.Second; time.Sleep(50 * time.Millisecond) {
		asked := time.Now()
		if _, err := kmsg.NewPtrMetadataRequest().RequestWith(within(t), client); err != nil &&
			time.Since(asked) < 900*time.Millisecond {
			t.Fatalf("after %v: %v", time.Since(begun), err)
		}
	}
	if n := shown.Load(); n < 3 {
		t.Errorf("tokens were shown %d times in 6 s", n)
	}
}
