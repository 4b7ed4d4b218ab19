package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"streamdp/internal/kafka/embedded"
	"streamdp/internal/kafka/kafkatest"
)

func header(k string, v []byte) kgo.RecordHeader { return kgo.RecordHeader{Key: k, Value: v} }

// writeTransactions appends a random interleaving of transactions and plain
// batches, and returns what a reader of committed records must see, and where
// the log ends.
func writeTransactions(tb testing.TB, addrs []string, topic string, seed uint64, batches int) (want []kafkatest.Record, end int64) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	type writer struct {
		*kafkatest.Producer
		open    bool
		pending []kafkatest.Record
	}
	var writers []*writer
	for i := range 3 {
		writers = append(writers, &writer{Producer: kafkatest.NewProducer(tb, addrs, topic, 0, fmt.Sprint(topic, "-tx-", i))})
	}
	plain := kafkatest.NewProducer(tb, addrs, topic, 0, "")
	batch := func() []kafkatest.Record {
		rs := make([]kafkatest.Record, 1+rng.IntN(6))
		for i := range rs {
			rs[i] = randomRecord(rng, 120)
		}
		return rs
	}
	// Brokers write a marker some time after the answer to End, so the end is
	// counted: a slot for each record and marker.
	at := func(first int64, rs []kafkatest.Record) []kafkatest.Record {
		for i := range rs {
			rs[i].Offset = first + int64(i)
		}
		end += int64(len(rs))
		return rs
	}
	finish := func(w *writer) {
		commit := rng.IntN(2) == 0
		w.End(commit)
		end++
		if commit {
			want = append(want, w.pending...)
		}
		w.open, w.pending = false, nil
	}
	for range batches {
		w := writers[rng.IntN(len(writers))]
		switch p := rng.IntN(10); {
		case p < 2:
			rs := batch()
			want = append(want, at(plain.Send(rs...), rs)...)
		case w.open && p < 4:
			finish(w)
		default:
			if !w.open {
				w.Begin()
				w.open = true
			}
			rs := batch()
			w.pending = append(w.pending, at(w.Send(rs...), rs)...)
		}
	}
	for _, w := range writers {
		if w.open {
			finish(w)
		}
	}
	// In log order; markers have taken offsets in between.
	for i := range want {
		for j := i; j > 0 && want[j].Offset < want[j-1].Offset; j-- {
			want[j], want[j-1] = want[j-1], want[j]
		}
	}
	return want, end
}

func TestReadCommitted(t *testing.T) { readCommitted(t, startBroker(t, embedded.Options{}).Addrs()) }

func readCommitted(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	for seed := range uint64(3) {
		topic := kafkatest.Topic(t, addrs, nil)
		want, end := writeTransactions(t, addrs, topic, seed, 160)
		waitStable(t, c, topic, end)
		compare(t, "reference consumer", kafkatest.ReadCommitted(t, addrs, topic, 0, 0, end-1), want)
		rng := rand.New(rand.NewPCG(seed, 2))
		for _, size := range []int{1, 1 << 10, 5000, 64 << 10, 4 << 20} {
			o := ReaderOptions{Topic: topic, PartitionMaxBytes: size}
			var stops []Position
			r := newReader(t, c, o, start)
			got := drain(t, r, end, func(c *Chunk) {
				if rng.IntN(1+int(end)/10) < int(c.Next-c.First) {
					stops = append(stops, c.Position(c.First+rng.Int64N(c.Next-c.First+1)))
				}
				if p, q := c.Position(c.Next), r.Position(); p.Next != q.Next || p.Anchor != q.Anchor || p.LeaderEpoch != q.LeaderEpoch {
					t.Fatalf("chunk's position %+v, reader's %+v", p, q)
				}
			})
			compare(t, fmt.Sprintf("seed %d, %d bytes", seed, size), got, want)
			for _, p := range stops {
				i := 0
				for i < len(want) && want[i].Offset < p.Next {
					i++
				}
				if (p.Anchor != nil) != (i > 0) || p.Anchor != nil && p.Anchor.Offset != want[i-1].Offset {
					t.Fatalf("anchor %+v at %d, the record before it is number %d", p.Anchor, p.Next, i-1)
				}
				rest := drain(t, newReader(t, c, o, p), end, nil)
				compare(t, fmt.Sprintf("seed %d, %d bytes, from %d", seed, size, p.Next), rest, want[i:])
			}
		}
	}
}

// waitStable waits until the client knows the topic, all transactions have
// their markers, and the log ends at end.
func waitStable(t *testing.T, c *Client, topic string, end int64) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, lso, hw, err := c.Offsets(t.Context(), topic, 0)
		if known, e := c.Topic(t.Context(), topic); err == nil && lso == end && hw == end && e == nil && known.Exists {
			return
		}
		if err != nil && !Retriable(err) || time.Now().After(deadline) {
			t.Fatalf("offsets: %d, %d, %v; want %d", lso, hw, err, end)
		}
	}
}

// While a transaction is open nothing after its first record is delivered, and
// everything is once it has ended.
func TestOpenTransaction(t *testing.T) {
	openTransaction(t, startBroker(t, embedded.Options{}).Addrs())
}

func openTransaction(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	plain := kafkatest.NewProducer(t, addrs, topic, 0, "")
	txn := kafkatest.NewProducer(t, addrs, topic, 0, topic)
	plain.Send(numbered("a", 3)...)
	txn.Begin()
	txn.Send(numbered("b", 3)...)
	plain.Send(numbered("c", 3)...)
	r := newReader(t, c, ReaderOptions{Topic: topic}, start)
	var chunk Chunk
	for range 6 {
		if err := r.Fetch(t.Context(), &chunk); err != nil {
			t.Fatal(err)
		}
	}
	if p := r.Position(); p.Next != 3 || p.Anchor.Offset != 2 {
		t.Fatalf("position %+v", p)
	}
	if chunk.LastStable != 3 || chunk.HighWatermark != 9 || chunk.LogStart != 0 {
		t.Fatalf("offsets %d, %d, %d", chunk.LogStart, chunk.LastStable, chunk.HighWatermark)
	}
	txn.End(true)
	if got := values(drain(t, r, 10, nil)); got != "3=b0 4=b1 5=b2 6=c0 7=c1 8=c2 " {
		t.Fatal(got)
	}
}

// A log that ends with transaction markers is read to its end, and then polled
// and not hammered.
func TestTrailingMarkers(t *testing.T) {
	trailingMarkers(t, startBroker(t, embedded.Options{}).Addrs())
}

func trailingMarkers(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	for i, commit := range []bool{true, false, false} {
		p := kafkatest.NewProducer(t, addrs, topic, 0, fmt.Sprint(topic, i))
		p.Begin()
		p.Send(numbered("a", 2)...)
		p.End(commit)
		waitStable(t, c, topic, int64(3*i+3))
	}
	const wait = 100 * time.Millisecond
	r := newReader(t, c, ReaderOptions{Topic: topic, MaxWait: wait}, start)
	requests := 0
	if got := values(drain(t, r, 9, func(*Chunk) { requests++ })); got != "0=a0 1=a1 " {
		t.Fatal(got)
	}
	if requests > 4 {
		t.Errorf("%d requests to read one small log", requests)
	}
	begin := time.Now()
	var chunk Chunk
	for requests = 0; time.Since(begin) < 10*wait; requests++ {
		if err := r.Fetch(t.Context(), &chunk); err != nil {
			t.Fatal(err)
		}
	}
	// One to identify the log and one that waits, in turn.
	if requests > 24 {
		t.Errorf("%d requests in ten waits at the end of the log", requests)
	}
}

// readHundred makes a topic and a reader that has read its hundred records.
func readHundred(t *testing.T, c *Client, addrs []string, o ReaderOptions) (*Reader, ReaderOptions) {
	t.Helper()
	o.Topic = kafkatest.Topic(t, addrs, nil)
	kafkatest.NewProducer(t, addrs, o.Topic, 0, "").Send(numbered("old", 100)...)
	r := newReader(t, c, o, start)
	drain(t, r, 100, nil)
	return r, o
}

// again deletes a topic and makes it again, with other records.
func again(t *testing.T, addrs []string, topic, tag string, n int) {
	t.Helper()
	kafkatest.DeleteTopic(t, addrs, topic)
	kafkatest.CreateTopic(t, addrs, topic, nil)
	if n > 0 {
		kafkatest.NewProducer(t, addrs, topic, 0, "").Send(numbered(tag, n)...)
	}
}

func TestReplacedLog(t *testing.T) { replacedLog(t, startBroker(t, embedded.Options{}).Addrs()) }

func replacedLog(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	var (
		chunk     Chunk
		replaced  *ReplacedError
		truncated *TruncatedError
	)
	for _, n := range []int{100, 101, 300} {
		r, o := readHundred(t, c, addrs, ReaderOptions{})
		again(t, addrs, o.Topic, "new", n)
		if err := fetchOnce(t.Context(), r, &chunk); !errors.As(err, &replaced) || replaced.Evidence != AnchorDiffers {
			t.Errorf("%d other records: %v", n, err)
		}
		if len(chunk.Records) != 0 || chunk.Next != 100 || r.Position().Next != 100 {
			t.Errorf("%d other records: %d were delivered", n, len(chunk.Records))
		}
		// The same after a restart.
		if err := fetchOnce(t.Context(), newReader(t, c, o, r.Position()), &chunk); !errors.As(err, &replaced) {
			t.Errorf("%d other records, restarted: %v", n, err)
		}
	}
	// The end of the new log before, at and after the anchor's offset.
	for _, n := range []int{0, 50, 98, 99} {
		r, o := readHundred(t, c, addrs, ReaderOptions{})
		again(t, addrs, o.Topic, "old", n)
		err := fetchOnce(t.Context(), r, &chunk)
		if !errors.As(err, &truncated) || truncated.LogEnd != int64(n) || truncated.Next != 100 {
			t.Errorf("%d records left: %v", n, err)
		}
	}
	r, o := readHundred(t, c, addrs, ReaderOptions{})
	o.ClusterID = "another"
	if err := fetchOnce(t.Context(), newReader(t, c, o, r.Position()), &chunk); !errors.As(err, &replaced) || replaced.Evidence != ClusterChanged {
		t.Errorf("other cluster: %v", err)
	}
}

// An older leader epoch: at once where records differ, and after a while where
// the new leader refuses to answer at all.
func TestOlderEpoch(t *testing.T) {
	b := startBroker(t, embedded.Options{})
	c := dialBroker(t, b.Addr())
	r, o := readHundred(t, c, b.Addrs(), ReaderOptions{epochGrace: 100 * time.Millisecond})
	for range 3 {
		if err := b.Cluster().MoveTopicPartition(o.Topic, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	kafkatest.NewProducer(t, b.Addrs(), o.Topic, 0, "").Send(numbered("old", 1)...)
	drain(t, r, 101, nil)
	if e := r.Position().LeaderEpoch; e != 3 {
		t.Fatalf("leader epoch %d", e)
	}
	again(t, b.Addrs(), o.Topic, "old", 300)
	var replaced *ReplacedError
	var chunk Chunk
	if err := fetchOnce(t.Context(), newReader(t, c, o, r.Position()), &chunk); !errors.As(err, &replaced) || replaced.Evidence != EpochWentBack {
		t.Errorf("older epoch: %v", err)
	}
}

func TestRetention(t *testing.T) { retention(t, startBroker(t, embedded.Options{}).Addrs()) }

func retention(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	p := kafkatest.NewProducer(t, addrs, topic, 0, "")
	for range 10 {
		p.Send(numbered("a", 10)...)
	}
	o := ReaderOptions{Topic: topic, PartitionMaxBytes: 1}
	r := newReader(t, c, o, start)
	drain(t, r, 40, nil)
	var chunk Chunk

	// Up to the position: the anchor is gone, nothing else.
	kafkatest.DeleteRecords(t, addrs, topic, 0, 40)
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || !chunk.AnchorDropped || chunk.Next != 40 {
		t.Fatalf("%v, %+v", err, chunk)
	}
	if chunk.Position(40).Anchor != nil {
		t.Error("a position with an anchor that is gone")
	}
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || chunk.AnchorDropped || chunk.Next != 50 || chunk.LogStart != 40 {
		t.Fatalf("%v, %+v", err, chunk)
	}

	kafkatest.DeleteRecords(t, addrs, topic, 0, 57)
	var gap *GapError
	for range 2 {
		if err := fetchOnce(t.Context(), r, &chunk); !errors.As(err, &gap) || gap.LogStart != 57 || gap.Next != 50 {
			t.Fatal(err)
		}
	}
	o.SkipGaps = true
	r = newReader(t, c, o, r.Position())
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || chunk.Lost != 7 || chunk.First != 50 || chunk.Next != 57 || len(chunk.Records) != 0 {
		t.Fatalf("%v, %+v", err, chunk)
	}
	if r.Position().Anchor != nil {
		t.Error("the anchor of a record that is gone")
	}
	if p := chunk.Position(53); p.Next != 53 || p.Anchor != nil {
		t.Errorf("position inside the gap: %+v", p)
	}
	if got := drain(t, r, 100, nil); len(got) != 43 || got[0].Offset != 57 {
		t.Errorf("%d records from %d", len(got), got[0].Offset)
	}
}

func TestCompactedTopic(t *testing.T) {
	b := startBroker(t, embedded.Options{})
	c := dialBroker(t, b.Addr())
	kafkatest.CreateTopic(t, b.Addrs(), "in", map[string]string{"cleanup.policy": "compact"})
	rng := rand.New(rand.NewPCG(7, 7))
	p := kafkatest.NewProducer(t, b.Addrs(), "in", 0, "")
	end := int64(0)
	for range 60 {
		rs := make([]kafkatest.Record, 1+rng.IntN(5))
		for i := range rs {
			rs[i] = kafkatest.Record{Key: fmt.Append(nil, rng.IntN(40)), Value: fmt.Append(nil, rng.Uint32())}
		}
		end = p.Send(rs...) + int64(len(rs))
	}
	b.Cluster().Compact()
	first, _, _, err := c.Offsets(t.Context(), "in", 0)
	if err != nil {
		t.Fatal(err)
	}
	want := kafkatest.ReadCommitted(t, b.Addrs(), "in", 0, first, end-1)
	if len(want) >= int(end-first) {
		t.Fatal("nothing was compacted")
	}
	for _, size := range []int{1, 300, 4 << 20} {
		r := newReader(t, c, ReaderOptions{Topic: "in", PartitionMaxBytes: size}, Position{Next: first})
		compare(t, fmt.Sprint(size), drain(t, r, end, nil), want)
	}
}

func TestCompression(t *testing.T) { compression(t, startBroker(t, embedded.Options{}).Addrs()) }

func compression(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		rng := rand.New(rand.NewPCG(3, 3))
		topic := kafkatest.Topic(t, addrs, nil)
		p := kafkatest.NewProducer(t, addrs, topic, 0, "", kgo.ProducerBatchCompression(codec))
		var want []kafkatest.Record
		for range 5 {
			rs := make([]kafkatest.Record, 200)
			for i := range rs {
				rs[i] = randomRecord(rng, 1000)
				rs[i].Value = append(rs[i].Value, bytes.Repeat([]byte("x"), 500)...)
			}
			first := p.Send(rs...)
			for i := range rs {
				rs[i].Offset = first + int64(i)
			}
			want = append(want, rs...)
		}
		compare(t, name, drain(t, newReader(t, c, ReaderOptions{Topic: topic, PartitionMaxBytes: 200 << 10}, start), 1000, nil), want)
	}
}

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
		if err := b.Cluster().MoveTopicPartition("in", 0, int32((int(b.Cluster().LeaderFor("in", 0))+1)%3)); err != nil {
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
	c := dialBroker(t, b.Addr())
	kafkatest.NewProducer(t, b.Addrs(), "in", 0, "").Send(numbered("a", 10)...)
	for _, fault := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.LeaderNotAvailable, kerr.FencedLeaderEpoch,
		kerr.UnknownServerError, kerr.KafkaStorageError, kerr.TopicAuthorizationFailed, kerr.UnknownLeaderEpoch, kerr.OffsetOutOfRange,
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
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	waitStable(t, c, topic, 0)
	r := newReader(t, c, ReaderOptions{Topic: topic, MaxWait: 30 * time.Second}, start)
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan time.Time, 1)
	time.AfterFunc(100*time.Millisecond, func() { began <- time.Now(); cancel() })
	err := r.Fetch(ctx, new(Chunk))
	if took := time.Since(<-began); took > 50*time.Millisecond || !errors.Is(err, context.Canceled) {
		t.Errorf("%v after %v", err, took)
	}
	// The request is still with the broker; closing ends it.
	time.AfterFunc(100*time.Millisecond, func() { began <- time.Now(); c.Close() })
	err = r.Fetch(t.Context(), new(Chunk))
	if took := time.Since(<-began); took > 50*time.Millisecond || !Retriable(err) {
		t.Errorf("%v, %v after closing", err, took)
	}
	if err := r.Fetch(t.Context(), new(Chunk)); err == nil || Retriable(err) {
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

// The emulated versions reach from the first with all that is used to the
// newest.
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
