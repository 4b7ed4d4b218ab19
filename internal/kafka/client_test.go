package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{},
		{Brokers: []string{"localhost"}},
		{Brokers: []string{"localhost:x"}},
		{Brokers: []string{"localhost:9092", ":9092"}},
		{Brokers: []string{"localhost:9092"}, SASL: SASL{Mechanism: "gssapi"}},
	} {
		if _, err := NewClient(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	c, err := NewClient(Options{Brokers: []string{"localhost:9092"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, bad := range map[string]struct {
		o ReaderOptions
		p Position
	}{
		"no topic":         {},
		"partition":        {o: ReaderOptions{Topic: "t", Partition: -1}},
		"limits":           {o: ReaderOptions{Topic: "t", MaxBytes: 1 << 20}},
		"wait":             {o: ReaderOptions{Topic: "t", MaxWait: time.Hour}},
		"position":         {o: ReaderOptions{Topic: "t"}, p: Position{Next: -1}},
		"anchor after it":  {o: ReaderOptions{Topic: "t"}, p: Position{Next: 5, Anchor: &Anchor{Offset: 5}}},
		"anchor before it": {o: ReaderOptions{Topic: "t"}, p: Position{Next: 5, Anchor: &Anchor{Offset: -1}}},
	} {
		if _, err := c.NewReader(bad.o, bad.p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestProbe(t *testing.T) {
	cert := kafkatest.NewCertificate(t)
	plain := startBroker(t, embedded.Options{Topics: []string{"in"}})
	secure := startBroker(t, embedded.Options{Topics: []string{"in"}, Extra: []kfake.Opt{
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert.TLS}}), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "u", "secret"), kfake.Superuser("SCRAM-SHA-256", "u", "secret"),
		kfake.Superuser("SCRAM-SHA-512", "u", "secret"),
	}})
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := free.Addr().String()
	free.Close()
	trust := func() *tls.Config { return &tls.Config{RootCAs: cert.Pool} }
	untrusting := func() *tls.Config { return &tls.Config{} }

	for name, test := range map[string]struct {
		o     Options
		label string // "": succeeds
		text  string
	}{
		"plain":            {Options{Brokers: plain.Addrs()}, "", ""},
		"one of two works": {Options{Brokers: []string{closed, plain.Addr()}}, "", ""},
		"refused":          {Options{Brokers: []string{closed}}, "network", "connection refused"},
		"PLAIN": {
			Options{Brokers: secure.Addrs(), TLS: trust,
				SASL: SASL{Mechanism: "plain", Username: "u", Password: "secret"}}, "", ""},
		"SCRAM-SHA-256": {
			Options{Brokers: secure.Addrs(), TLS: trust,
				SASL: SASL{Mechanism: "scram-sha-256", Username: "u", Password: "secret"}}, "", ""},
		"SCRAM-SHA-512": {
			Options{Brokers: secure.Addrs(), TLS: trust,
				SASL: SASL{Mechanism: "scram-sha-512", Username: "u", Password: "secret"}}, "", ""},
		"wrong password": {
			Options{Brokers: secure.Addrs(), TLS: trust,
				SASL: SASL{Mechanism: "plain", Username: "u", Password: "wrong"}}, "58", "sasl authentication failed"},
		"wrong proof": {
			Options{Brokers: secure.Addrs(), TLS: trust,
				SASL: SASL{Mechanism: "scram-sha-512", Username: "u", Password: "wrong"}}, "58",
			"sasl authentication failed"},
		"unknown authority": {
			Options{Brokers: secure.Addrs(), TLS: untrusting,
				SASL: SASL{Mechanism: "plain", Username: "u", Password: "secret"}}, "tls", "certificate"},
		"TLS missing": {Options{Brokers: secure.Addrs()}, "network", "TLS"},
	} {
		test.o.metadataTTL = 100 * time.Millisecond
		c, err := NewClient(test.o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = c.Probe(ctx)
		var e *Error
		switch {
		case test.label == "":
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
			// Credentials that Probe accepts also work for other calls.
			if _, err := c.Produce(ctx, "in", 0, messages("a", 1)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case !errors.As(err, &e) || e.Label() != test.label || !strings.Contains(err.Error(), test.text):
			t.Errorf("%s: %v", name, err)
		case strings.Contains(err.Error(), "wrong"):
			t.Errorf("%s: the password is in the error: %v", name, err)
		case Unauthorized(err) != (test.label == "58"):
			t.Errorf("%s: unauthorized = %v", name, Unauthorized(err))
		}
		cancel()
		c.Close()
		if err := c.Probe(t.Context()); err == nil || Retriable(err) {
			t.Errorf("%s: a closed client: %v", name, err)
		}
	}
	expectQuiet(t)
}

// A reader with wrong credentials reports that, and not a missing topic.
func TestReaderWithWrongPassword(t *testing.T) {
	b := startBroker(t, embedded.Options{Topics: []string{"in"}, Extra: []kfake.Opt{
		kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "secret"),
	}})
	c, err := NewClient(Options{Brokers: b.Addrs(), SASL: SASL{Mechanism: "plain", Username: "u", Password: "wrong"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = newReader(t, c, ReaderOptions{Topic: "in"}, start).Fetch(ctx, new(Chunk))
	if !Unauthorized(err) || !Retriable(err) {
		t.Error(err)
	}
}

func TestAdmin(t *testing.T) {
	b := startBroker(t, embedded.Options{Brokers: 2, ClusterID: "the-cluster"})
	c := dialBroker(t, b.Addrs()...)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if id, err := c.ClusterID(ctx); err != nil || id != "the-cluster" {
		t.Errorf("cluster id %q, %v", id, err)
	}
	if topic, err := c.Topic(ctx, "out"); err != nil || topic.Exists {
		t.Errorf("a topic that is not there: %+v, %v", topic, err)
	}
	// A list of all topics leaves out topics that this client may not see.
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.TopicAuthorizationFailed, Count: 2})
	if _, err := c.Topic(ctx, "out"); !Unauthorized(err) {
		t.Errorf("a topic that may not be seen: %v", err)
	}
	if err := newReader(t, c, ReaderOptions{Topic: "out"}, start).Fetch(ctx, new(Chunk)); !Unauthorized(err) {
		t.Errorf("a topic that may not be seen: %v", err)
	}
	config := map[string]string{"cleanup.policy": "compact", "max.message.bytes": "2000000"}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.InvalidReplicationFactor})
	for range 2 { // the second time, the topic exists
		if err := c.CreateTopic(ctx, "out", 3, config); err != nil {
			t.Fatal(err)
		}
	}
	topic, err := c.Topic(ctx, "out")
	if err != nil || !topic.Exists || len(topic.Partitions) != 3 || topic.Partitions[2].ID != 2 ||
		topic.Partitions[0].LeaderEpoch != 0 {
		t.Errorf("%+v, %v", topic, err)
	}
	got, err := c.TopicConfig(ctx, "out", "cleanup.policy", "max.message.bytes", "retention.ms", "no.such.key")
	if err != nil || got["cleanup.policy"] != "compact" || got["max.message.bytes"] != "2000000" ||
		got["retention.ms"] != "604800000" || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	var e *Error
	if _, err := c.TopicConfig(ctx, "missing", "cleanup.policy"); !errors.As(err, &e) || e.Code != 3 {
		t.Errorf("config of a missing topic: %v", err)
	}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.PolicyViolation})
	if err := c.CreateTopic(ctx, "bad", 1, nil); err == nil || Retriable(err) {
		t.Errorf("refused by policy: %v", err)
	}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.TopicAuthorizationFailed})
	if err := c.CreateTopic(ctx, "forbidden", 1, nil); !Unauthorized(err) {
		t.Errorf("forbidden: %v", err)
	}

	p := kafkatest.NewProducer(t, b.Addrs(), "out", 1, "tx")
	p.Begin()
	p.Send(numbered("a", 5)...)
	p.End(true)
	kafkatest.DeleteRecords(t, b.Addrs(), "out", 1, 2)
	p.Begin()
	p.Send(numbered("b", 3)...)
	if got, err := c.Offsets(ctx, "out", 1); err != nil || got != (Offsets{2, 6, 9}) {
		t.Errorf("offsets %+v, %v", got, err)
	}
	p.End(false)
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.OffsetNotAvailable})
	if _, err := c.Offsets(ctx, "out", 1); !Retriable(err) {
		t.Errorf("offsets not known yet: %v", err)
	}
	kafkatest.CreateTopic(t, b.Addrs(), "more", nil)
	if err := c.CommitOffsets(ctx, "lag", []GroupOffset{{"more", 0, 2}, {"out", 0, 3}, {"out", 1, 4}}); err != nil {
		t.Error(err)
	}
	for _, o := range []GroupOffset{{"more", 0, 2}, {"out", 0, 3}, {"out", 1, 4}} {
		if at := kafkatest.CommittedOffset(t, b.Addrs(), "lag", o.Topic, o.Partition); at != o.Next {
			t.Errorf("committed offset of %s/%d: %d", o.Topic, o.Partition, at)
		}
	}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed})
	if err := c.CommitOffsets(ctx, "lag", []GroupOffset{{"out", 1, 5}}); !Unauthorized(err) {
		t.Errorf("a group that is not allowed: %v", err)
	}

	few, err := NewClient(
		Options{Brokers: b.Addrs(), Topics: []string{"out", "later"}, metadataTTL: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer few.Close()
	if err := few.CreateTopic(ctx, "unfollowed", 1, nil); err == nil || Retriable(err) {
		t.Errorf("a topic that is not followed: %v", err)
	}
	if err := few.CreateTopic(ctx, "later", 1, nil); err != nil {
		t.Error(err)
	}
	if _, err := few.Produce(ctx, "later", 0, messages("a", 1)); err != nil {
		t.Error(err)
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	for i, top := range []time.Duration{10, 20, 40, 50, 50} {
		if d := b.Next(); d > top*time.Millisecond || d < top*time.Millisecond/2 {
			t.Errorf("pause %d is %v, want at most %v", i, d, top*time.Millisecond)
		}
	}
	b.Reset()
	if d := b.Next(); d > 10*time.Millisecond {
		t.Errorf("pause after a success is %v", d)
	}
	b = Backoff{}
	for range 100 {
		if d := b.Next(); d > 5*time.Second || d < 25*time.Millisecond {
			t.Errorf("pause %v", d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRetriableCodes(t *testing.T) {
	for code, want := range map[int16]bool{
		-1: true, 1: true, 3: true, 5: true, 6: true, 7: true, 19: true, 20: true, 29: true, 56: true, 58: true,
		74: true, 75: true, 78: true, 89: true, 999: true,
		10: false, 17: false, 18: false, 32: false, 35: false, 38: false, 44: false, 87: false,
	} {
		e := brokerError("fetch", "in", 0, code)
		if e.Retriable() != want {
			t.Errorf("code %d: retriable = %v", code, e.Retriable())
		}
	}
	e := brokerError("fetch", "in", 3, 6)
	if e.Error() != "kafka fetch in/3: not leader for partition (error 6)" || e.Label() != "6" {
		t.Errorf("%v, %s", e, e.Label())
	}
}
