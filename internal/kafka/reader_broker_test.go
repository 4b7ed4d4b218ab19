package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func TestLeaderMoves(t *testing.T) {
	b := startBroker(t, embedded.Options{Brokers: 3})
	c := dialBroker(t, b.Addrs()...)
	kafkatest.CreateTopic(t, b.Addrs(), "in", nil)
	p := kafkatest.NewProducer(t, b.Addrs(), "in", 0, "")
	r := newReader(t, c, ReaderOptions{Topic: "in"}, start)
	var (
		chunk Chunk
		pause = Backoff{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond}
		got   []kafkatest.Record
		codes = map[string]int{}
	)
	for i := range 3 {
		p.Send(numbered(fmt.Sprint(i, "-"), 10)...)
		for r.Position().Next < int64(10*(i+1)) {
			err := r.Fetch(t.Context(), &chunk)
			var e *Error
			switch {
			case err == nil:
				got = append(got, copied(&chunk)...)
				pause.Reset()
			case errors.As(err, &e) && e.Retriable():
				codes[e.Label()]++
				if err := pause.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			default:
				t.Fatal(err)
			}
		}
		if err := b.Cluster().MoveTopicPartition("in", 0,
			int32((int(b.Cluster().LeaderFor("in", 0))+1)%3)); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 30 || string(got[29].Value) != "2-9" {
		t.Errorf("%d records", len(got))
	}
	if codes["6"] == 0 {
		t.Errorf("errors by label: %v, want some with code 6", codes)
	}
	if e := r.Position().LeaderEpoch; e < 2 {
		t.Errorf("leader epoch %d", e)
	}
}

func TestRetriableFaults(t *testing.T) {
	b := startBroker(t, embedded.Options{Topics: []string{"in"}})
	c := dialSteady(t, b.Addr())
	kafkatest.NewProducer(t, b.Addrs(), "in", 0, "").Send(numbered("a", 10)...)
	for _, fault := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.LeaderNotAvailable, kerr.FencedLeaderEpoch,
		kerr.UnknownServerError, kerr.KafkaStorageError, kerr.TopicAuthorizationFailed, kerr.UnknownLeaderEpoch,
		kerr.OffsetOutOfRange,
	} {
		b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "in", Err: fault})
		r := newReader(t, c, ReaderOptions{Topic: "in"}, start)
		var chunk Chunk
		err := r.Fetch(t.Context(), &chunk)
		var e *Error
		if !errors.As(err, &e) || e.Code != fault.Code || !e.Retriable() || e.API != "fetch" || e.Topic != "in" {
			t.Errorf("%v gives %v", fault, err)
		}
		if Unauthorized(err) != (fault == kerr.TopicAuthorizationFailed) {
			t.Errorf("%v: unauthorized = %v", fault, Unauthorized(err))
		}
		if got := drain(t, r, 10, nil); len(got) != 10 {
			t.Errorf("%v: %d records afterwards", fault, len(got))
		}
	}
	missing := newReader(t, c, ReaderOptions{Topic: "missing"}, start)
	var e *Error
	if err := missing.Fetch(t.Context(), new(Chunk)); !errors.As(err, &e) || e.Code != 3 || !e.Retriable() {
		t.Errorf("missing topic: %v", err)
	}
}

func TestCancelDuringLongPoll(t *testing.T) {
	cancelDuringLongPoll(t, startBroker(t, embedded.Options{}).Addrs())
}

func cancelDuringLongPoll(t *testing.T, addrs []string) {
	const wait = 30 * time.Second // time of the long poll, far longer than any cancellation takes
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	waitStable(t, c, topic, 0)
	r := newReader(t, c, ReaderOptions{Topic: topic, MaxWait: wait}, start)
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan time.Time, 1)
	time.AfterFunc(100*time.Millisecond, func() { began <- time.Now(); cancel() })
	err := r.Fetch(ctx, new(Chunk))
	if took := time.Since(<-began); took > wait/2 || !errors.Is(err, context.Canceled) {
		t.Errorf("%v after %v", err, took)
	}
	// The request is still at the broker; Close ends it.
	time.AfterFunc(100*time.Millisecond, func() { began <- time.Now(); c.Close() })
	closed := func(err error) bool {
		var e *Error
		return errors.As(err, &e) && e.Label() == kindClosed && !e.Retriable()
	}
	err = r.Fetch(t.Context(), new(Chunk))
	if took := time.Since(<-began); took > wait/2 || !closed(err) {
		t.Errorf("%v, %v after closing", err, took)
	}
	if err := r.Fetch(t.Context(), new(Chunk)); !closed(err) {
		t.Errorf("a fetch by a closed client: %v", err)
	}
	expectQuiet(t)
}

func TestBrokerGoneAndBack(t *testing.T) {
	o := embedded.Options{DataDir: t.TempDir(), Topics: []string{"in"}}
	b, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { b.Close() }()
	addr := b.Addr()
	fmt.Sscanf(addr, "127.0.0.1:%d", &o.Port)
	c := dialBroker(t, addr)
	r := newReader(t, c, ReaderOptions{Topic: "in"}, start)
	kafkatest.NewProducer(t, b.Addrs(), "in", 0, "").Send(numbered("a", 10)...)
	drain(t, r, 10, nil)
	b.Close()
	var e *Error
	for range 3 {
		if err := r.Fetch(t.Context(), new(Chunk)); !errors.As(err, &e) || e.Label() != "network" || !e.Retriable() {
			t.Fatalf("without a broker: %v", err)
		}
	}
	if b, err = embedded.Start(o); err != nil {
		t.Fatal(err)
	}
	kafkatest.NewProducer(t, b.Addrs(), "in", 0, "").Send(numbered("b", 10)...)
	if got := drain(t, r, 20, nil); len(got) != 10 || string(got[0].Value) != "b0" {
		t.Errorf("%s", values(got))
	}
}

// One client serves all tasks of a process.
func TestConcurrentUse(t *testing.T) { concurrentUse(t, startBroker(t, embedded.Options{}).Addrs()) }

func concurrentUse(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	var topics []string
	for range 4 {
		topic := kafkatest.Topic(t, addrs, nil)
		waitStable(t, c, topic, 0)
		topics = append(topics, topic)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, topic := range topics {
		wg.Go(func() {
			for i := range 20 {
				if _, err := c.Produce(ctx, topic, 0, messages(fmt.Sprint(topic, i, "-"), 10)); err != nil {
					t.Error(err)
				}
			}
		})
		r := newReader(t, c, ReaderOptions{Topic: topic}, start)
		wg.Go(func() {
			var chunk Chunk
			for r.Position().Next < 200 {
				if err := fetchOnce(ctx, r, &chunk); err != nil {
					t.Error(err)
					return
				}
				for i := range chunk.Records {
					o := chunk.Records[i].Offset
					if want := fmt.Sprint(topic, o/10, "-", o%10); string(chunk.Records[i].Value) != want {
						t.Errorf("offset %d of %s is %s", o, topic, chunk.Records[i].Value)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// The emulated versions range from the first with everything that is used to the newest.
func TestVersions(t *testing.T) {
	for _, v := range versions {
		b := startBroker(t, embedded.Options{Extra: []kfake.Opt{kfake.MaxVersions(v.versions)}})
		c := dialBroker(t, b.Addr())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := c.Probe(ctx); err != nil {
			t.Errorf("%s: %v", v.name, err)
		}
		if err := c.CreateTopic(ctx, "in", 1, map[string]string{"cleanup.policy": "compact"}); err != nil {
			t.Errorf("%s: %v", v.name, err)
		} else {
			if _, err := c.Produce(ctx, "in", 0, messages("v", 5)); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
			r := newReader(t, c, ReaderOptions{Topic: "in"}, start)
			drain(t, r, 5, nil)
			if _, err := c.Produce(ctx, "in", 0, messages("w", 5)); err != nil {
				t.Errorf("%s: %v", v.name, err)
			}
			if got := drain(t, r, 10, nil); string(got[4].Value) != "w4" {
				t.Errorf("%s: %s", v.name, values(got))
			}
		}
		cancel()
		c.Close()
		b.Close()
	}
}
