package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func messages(tag string, n int) []Message {
	ms := make([]Message, n)
	for i := range ms {
		ms[i] = Message{Key: fmt.Append(nil, "k", i), Value: fmt.Append(nil, tag, i),
			Time: time.UnixMilli(1700000000000 + int64(i))}
	}
	return ms
}

// watchProduce records the size of every batch that is sent.
func watchProduce(b *embedded.Broker) func() []int {
	sizes := make(chan int, 1000)
	b.Cluster().ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		sizes <- len(r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records)
		return nil, nil, false
	})
	return func() (got []int) {
		for {
			select {
			case n := <-sizes:
				got = append(got, n)
			default:
				return got
			}
		}
	}
}

func TestProduce(t *testing.T) { produceAndRead(t, startBroker(t, embedded.Options{}).Addrs()) }

func produceAndRead(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	at := time.UnixMilli(1700000000123)
	ms := []Message{
		{Key: []byte("k"), Value: []byte("v"), Time: at,
			Headers: []Header{{"a", []byte("1")}, {"a", nil}, {"b", []byte{}}}},
		{Key: nil, Value: []byte{}, Time: at},
		{Key: []byte{}, Value: nil, Time: at},
	}
	for _, want := range []int64{0, 3} {
		if at, err := c.Produce(t.Context(), topic, 0, ms); err != nil || len(at) != 1 || at[0].Base != want ||
			at[0].Count != len(ms) {
			t.Fatalf("appended at %v, %v; want %d", at, err, want)
		}
	}
	want := kafkatest.ReadCommitted(t, addrs, topic, 0, 0, 5)
	for i, r := range want {
		m := ms[i%3]
		same := bytes.Equal(r.Key, m.Key) && bytes.Equal(r.Value, m.Value) && (r.Key == nil) == (m.Key == nil) &&
			(r.Value == nil) == (m.Value == nil)
		if !same || len(r.Headers) != len(m.Headers) {
			t.Fatalf("record %d is %v, sent %v", i, r, m)
		}
		for j, h := range r.Headers {
			if h.Key != m.Headers[j].Key || !bytes.Equal(h.Value, m.Headers[j].Value) {
				t.Fatalf("header %d of record %d is %v, sent %v", j, i, h, m.Headers[j])
			}
		}
	}
	got := drain(t, newReader(t, c, ReaderOptions{Topic: topic}, start), 6, nil)
	compare(t, "own reader", got, want)

	for _, bad := range [][]Message{nil, {ms[0], {Key: []byte("x")}}, {{Time: time.UnixMilli(0)}}} {
		if _, err := c.Produce(t.Context(), topic, 0, bad); err == nil || Retriable(err) {
			t.Errorf("%d messages without a time: %v", len(bad), err)
		}
	}
	var e *Error
	if _, err := c.Produce(t.Context(), "missing", 0, ms); !errors.As(err, &e) || e.Code != 3 || !e.Retriable() {
		t.Errorf("missing topic: %v", err)
	}
	if _, err := c.Produce(t.Context(), topic, 7, ms); !errors.As(err, &e) || e.Code != 3 || e.Partition != 7 {
		t.Errorf("missing partition: %v", err)
	}
}

func TestProduceSplitsByBytes(t *testing.T) {
	b := startBroker(t, embedded.Options{Topics: []string{"out"}})
	c := dialBroker(t, b.Addr())
	sizes := watchProduce(b)

	ms := messages("a", 5000) // small messages: one batch for any number
	if _, err := c.Produce(t.Context(), "out", 0, ms); err != nil {
		t.Fatal(err)
	}
	if got := sizes(); len(got) != 1 {
		t.Errorf("batches of %d bytes", got)
	}
	ms = messages("b", 40)
	for i := range ms {
		ms[i].Value = bytes.Repeat([]byte{byte(i)}, 100_000)
	}
	parts := 0
	at, err := c.Produce(t.Context(), "out", 0, ms)
	if err != nil {
		t.Fatal(err)
	}
	next := int64(5000)
	for _, part := range at {
		if part.Base != next {
			t.Errorf("part %d is at %d, want %d", parts, part.Base, next)
		}
		next, parts = next+int64(part.Count), parts+1
	}
	if next != 5040 {
		t.Errorf("the parts end at %d: %v", next, at)
	}
	got := sizes()
	if parts != len(got) {
		t.Errorf("%d parts, %d requests", parts, len(got))
	}
	for _, n := range got {
		if n > 1_000_000 {
			t.Errorf("a batch of %d bytes", n)
		}
	}
	if len(got) != 5 {
		t.Errorf("batches of %d bytes", got)
	}
	rs := drain(t, newReader(t, c, ReaderOptions{Topic: "out"}, Position{Next: 5000}), 5040, nil)
	for i, r := range rs {
		if !bytes.Equal(r.Value, ms[i].Value) {
			t.Fatalf("record %d is out of order", i)
		}
	}
}

func TestTooLarge(t *testing.T) { tooLarge(t, startBroker(t, embedded.Options{}).Addrs()) }

func tooLarge(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, map[string]string{"max.message.bytes": "10000"})
	// A topic that accepts only smaller requests gets halves, in order.
	ms := messages("c", 9)
	for i := range ms {
		ms[i].Value = bytes.Repeat([]byte{byte(i)}, 4_000)
	}
	at, err := c.Produce(t.Context(), topic, 0, ms)
	if err != nil {
		t.Fatal(err)
	}
	next := int64(0)
	for _, part := range at {
		if part.Base != next || part.Count > 2 {
			t.Errorf("parts %v", at)
		}
		next += int64(part.Count)
	}
	if next != 9 {
		t.Errorf("the parts end at %d", next)
	}
	for i, r := range drain(t, newReader(t, c, ReaderOptions{Topic: topic}, start), 9, nil) {
		if !bytes.Equal(r.Value, ms[i].Value) {
			t.Fatalf("record %d is out of order", i)
		}
	}
	ms[6].Value = bytes.Repeat([]byte("x"), 20_000)
	var large *TooLargeError
	var e *Error
	at, err = c.Produce(t.Context(), topic, 0, ms)
	if n := 0; at == nil {
		t.Error("nothing is said of the messages before the one that is too large")
	} else {
		for _, part := range at {
			n += part.Count
		}
		if n != 6 || at[0].Base != 9 {
			t.Errorf("%v was appended before the message that is too large", at)
		}
	}
	if !errors.As(err, &large) || large.Index != 6 || large.Bytes != 20_002 || Retriable(err) {
		t.Errorf("too large: %v", err)
	}
	if !errors.As(err, &e) || e.Label() != "10" || e.API != "produce" {
		t.Errorf("too large, as metric: %v", e)
	}
}

// Sending again after a lost acknowledgement makes duplicates with the same bytes.
func TestProduceAgain(t *testing.T) {
	b := startBroker(t, embedded.Options{Topics: []string{"out"}})
	c := dialBroker(t, b.Addr())
	ms := messages("a", 3)
	for _, fault := range []*kerr.Error{
		kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.NotLeaderForPartition, kerr.NotEnoughReplicas,
	} {
		b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "out", Err: fault})
		var e *Error
		if _, err := c.Produce(t.Context(), "out", 0, ms); !errors.As(err, &e) || e.Code != fault.Code ||
			!e.Retriable() {
			t.Fatalf("%v gives %v", fault, err)
		}
	}
	if at, err := c.Produce(t.Context(), "out", 0, ms); err != nil || len(at) != 1 || at[0].Base != 6 {
		t.Fatalf("appended at %v, %v", at, err)
	}
	for i, r := range drain(t, newReader(t, c, ReaderOptions{Topic: "out"}, start), 9, nil) {
		if !bytes.Equal(r.Key, ms[i%3].Key) || !bytes.Equal(r.Value, ms[i%3].Value) {
			t.Errorf("record %d differs", i)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Produce(ctx, "out", 0, ms); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestReadBack(t *testing.T) {
	b := startBroker(t, embedded.Options{})
	readBack(t, b.Addrs(), func() {
		b.Cluster().Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets}, Err: kerr.NotLeaderForPartition, Count: 2})
	})
}

// readBack causes a fault by calling trouble, and then reads the log once.
func readBack(t *testing.T, addrs []string, trouble func()) {
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	if _, err := c.Produce(t.Context(), topic, 0, messages("a", 10)); err != nil {
		t.Fatal(err)
	}
	// A foreign transaction that never ends must not hide later records.
	foreign := kafkatest.NewProducer(t, addrs, topic, 0, topic)
	foreign.Begin()
	foreign.Send(numbered("foreign", 1)...)
	if _, err := c.Produce(t.Context(), topic, 0, messages("b", 10)); err != nil {
		t.Fatal(err)
	}
	read := func(from int64) (got []int64, err error) {
		err = c.ReadBack(t.Context(), topic, 0, from, func(r *Record) error {
			got = append(got, r.Offset)
			return nil
		})
		return got, err
	}
	trouble()
	if got, err := read(5); err != nil || len(got) != 16 || got[0] != 5 || got[15] != 20 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := read(21); err != nil || len(got) != 0 {
		t.Errorf("at the end: %v, %v", got, err)
	}
	stop := errors.New("enough")
	n := 0
	if err := c.ReadBack(t.Context(), topic, 0, 0, func(*Record) error { n++; return stop }); !errors.Is(err, stop) ||
		n != 1 {
		t.Errorf("%v after %d records", err, n)
	}
	var truncated *TruncatedError
	if _, err := read(22); !errors.As(err, &truncated) {
		t.Errorf("past the end: %v", err)
	}
	foreign.End(false)
	kafkatest.DeleteRecords(t, addrs, topic, 0, 15)
	var gap *GapError
	if _, err := read(14); !errors.As(err, &gap) {
		t.Errorf("before the start: %v", err)
	}
	if got, err := read(15); err != nil || len(got) != 6 {
		t.Errorf("from the start: %v, %v", got, err)
	}
}
