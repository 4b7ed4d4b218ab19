package kafka

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func header(k string, v []byte) kgo.RecordHeader { return kgo.RecordHeader{Key: k, Value: v} }

// writeTransactions appends a random interleaving of transactions and plain batches. It returns the records that a
// reader of committed records must see, and the end of the log.
func writeTransactions(tb testing.TB, addrs []string, topic string, seed uint64, batches int) (want []kafkatest.Record,
	end int64) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	type writer struct {
		*kafkatest.Producer
		open    bool
		pending []kafkatest.Record
	}
	var writers []*writer
	for i := range 3 {
		writers = append(writers,
			&writer{Producer: kafkatest.NewProducer(tb, addrs, topic, 0, fmt.Sprint(topic, "-tx-", i))})
	}
	plain := kafkatest.NewProducer(tb, addrs, topic, 0, "")
	batch := func() []kafkatest.Record {
		rs := make([]kafkatest.Record, 1+rng.IntN(6))
		for i := range rs {
			rs[i] = randomRecord(rng, 120)
		}
		return rs
	}
	// Brokers write a marker some time after the answer to End, so the end is computed: one offset for each record and
	// marker.
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
	// Records are in log order; markers have taken offsets between them.
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
				if p, q := c.Position(c.Next), r.Position(); p.Next != q.Next || p.Anchor != q.Anchor ||
					p.LeaderEpoch != q.LeaderEpoch {
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

// waitStable waits until the client knows the topic, all transactions have their markers, and the log ends at end.
func waitStable(t *testing.T, c *Client, topic string, end int64) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		at, err := c.Offsets(t.Context(), topic, 0)
		if known, e := c.Topic(t.Context(), topic); err == nil && at.Stable == end && at.End == end && e == nil &&
			known.Exists {
			return
		}
		if err != nil && !Retriable(err) || time.Now().After(deadline) {
			t.Fatalf("offsets: %d, %d, %v; want %d", at.Stable, at.End, err, end)
		}
	}
}

// While a transaction is open, nothing after its first record is delivered; when it has ended, everything is.
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

// A log that ends with transaction markers is read to its end, and is then polled at a low rate.
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
	// Requests alternate: one identifies the log, one waits.
	if requests > 24 {
		t.Errorf("%d requests in ten waits at the end of the log", requests)
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
	first, err := c.Start(t.Context(), "in", 0)
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
		compare(t, name,
			drain(t, newReader(t, c, ReaderOptions{Topic: topic, PartitionMaxBytes: 200 << 10}, start), 1000, nil),
			want)
	}
}
