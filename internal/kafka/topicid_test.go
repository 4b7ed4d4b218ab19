package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func TestTopicID(t *testing.T) { topicID(t, startBroker(t, embedded.Options{}).Addrs()) }

func topicID(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	one, two := kafkatest.Topic(t, addrs, nil), kafkatest.Topic(t, addrs, nil)
	ask := func(topic string) TopicID {
		t.Helper()
		id, err := c.TopicID(t.Context(), topic)
		if err != nil || id.IsZero() || len(id.String()) != 32 {
			t.Fatalf("topic id of %s: %v, %v", topic, id, err)
		}
		if back, err := ParseTopicID(id.String()); err != nil || back != id {
			t.Fatalf("%v is read as %v, %v", id, back, err)
		}
		return id
	}
	first := ask(one)
	if other := ask(two); other == first {
		t.Errorf("two topics have the id %v", first)
	}
	if again := ask(one); again != first {
		t.Errorf("id %v, then %v", first, again)
	}
	// The pool's connection can serve other calls afterwards.
	if id, err := c.ClusterID(t.Context()); err != nil || id == "" {
		t.Errorf("cluster id %q, %v", id, err)
	}
	again(t, addrs, one, "new", 3)
	for deadline := time.Now().Add(10 * time.Second); ask(one) == first; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("id %v after the topic was made again", first)
		}
	}
	if _, err := c.TopicID(t.Context(), "no-such-topic"); !UnknownTopic(err) || !Retriable(err) {
		t.Errorf("missing topic: %v", err)
	}
	if known, err := c.Topic(t.Context(), "no-such-topic"); err != nil || known.Exists {
		t.Errorf("asking for its id made the topic: %+v, %v", known, err)
	}
}

// Brokers before 2.8 have no topic ids.
func TestTopicIDOlderBrokers(t *testing.T) {
	for _, v := range versions {
		b := startBroker(t, embedded.Options{Topics: []string{"in"}, Extra: []kfake.Opt{kfake.MaxVersions(v.versions)}})
		c := dialBroker(t, b.Addr())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		id, err := c.TopicID(ctx, "in")
		if newest, ok := v.versions.LookupMaxKeyVersion(int16(kmsg.Metadata)); err != nil || !ok ||
			id.IsZero() != (newest < idVersion) {
			t.Errorf("%s, with metadata up to version %d: %v, %v", v.name, newest, id, err)
		}
		cancel()
		c.Close()
		b.Close()
	}
}

func TestTopicIDFaults(t *testing.T) {
	b := startBroker(t, embedded.Options{Topics: []string{"in"}})
	c := dialBroker(t, b.Addr())
	for _, fault := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.LeaderNotAvailable} {
		var e *Error
		// Another request of the pool may meet the fault first.
		for try := 0; e == nil; try++ {
			b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "in", Err: fault})
			id, err := c.TopicID(t.Context(), "in")
			if err != nil && (!errors.As(err, &e) || e.Code != fault.Code || !id.IsZero()) || try > 100 {
				t.Fatalf("%v gives %v, %v", fault, id, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.TopicID(ctx, "in"); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	c.Close()
	if _, err := c.TopicID(t.Context(), "in"); err == nil || Retriable(err) {
		t.Errorf("closed client: %v", err)
	}
	for _, s := range []string{"1", strings.Repeat("0", 32), strings.Repeat("g", 32), strings.Repeat("1", 34)} {
		if id, err := ParseTopicID(s); err == nil || !id.IsZero() {
			t.Errorf("%q is read as %v", s, id)
		}
	}
	if id, err := ParseTopicID(""); err != nil || !id.IsZero() {
		t.Errorf("nothing is read as %v, %v", id, err)
	}
}
