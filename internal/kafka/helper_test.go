package kafka

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func startBroker(tb testing.TB, o embedded.Options) *embedded.Broker {
	tb.Helper()
	b, err := embedded.Start(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(b.Close)
	return b
}

func dialBroker(tb testing.TB, addrs ...string) *Client {
	tb.Helper()
	return dialFor(tb, 200*time.Millisecond, addrs...)
}

// dialSteady is for topics that exist and do not move. The client gives the broker as long to say so as it caches
// metadata, and a slow machine needs more time than with dialBroker.
func dialSteady(tb testing.TB, addrs ...string) *Client {
	tb.Helper()
	return dialFor(tb, 10*time.Second, addrs...)
}

func dialFor(tb testing.TB, metadataTTL time.Duration, addrs ...string) *Client {
	tb.Helper()
	c, err := NewClient(Options{Brokers: addrs, metadataTTL: metadataTTL})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

func newReader(tb testing.TB, c *Client, o ReaderOptions, p Position) *Reader {
	tb.Helper()
	if o.MaxWait == 0 {
		o.MaxWait = 50 * time.Millisecond
	}
	r, err := c.NewReader(o, p)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

var start = Position{LeaderEpoch: -1}

// fetchOnce fetches once, and retries retriable errors.
func fetchOnce(ctx context.Context, r *Reader, c *Chunk) error {
	pause := Backoff{Min: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	for {
		err := r.Fetch(ctx, c)
		if !Retriable(err) {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("%w after %w", err, r.Fetch(context.Background(), c))
		}
	}
}

// drain reads until the position is end, with three chunks in turn. It checks that a chunk is unchanged after the next
// two have been filled.
func drain(tb testing.TB, r *Reader, end int64, each func(*Chunk)) []kafkatest.Record {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var (
		all    []kafkatest.Record
		chunks [3]Chunk
		was    [3]uint64
	)
	for i := 0; r.Position().Next < end; i++ {
		c := &chunks[i%3]
		if i >= 3 && was[i%3] != digest(c) {
			tb.Fatal("a chunk changed while others were filled")
		}
		first := r.Position().Next
		if err := fetchOnce(ctx, r, c); err != nil {
			tb.Fatalf("at offset %d of %d: %v", first, end, err)
		}
		was[i%3] = digest(c)
		if c.First != first || c.Next != r.Position().Next || c.Next < first {
			tb.Fatalf("chunk [%d, %d) at %d, reader at %d", c.First, c.Next, first, r.Position().Next)
		}
		for j := range c.Records {
			o := c.Records[j].Offset
			if o < c.First || o >= c.Next || j > 0 && o <= c.Records[j-1].Offset {
				tb.Fatalf("record %d of chunk [%d, %d)", o, c.First, c.Next)
			}
		}
		if each != nil {
			each(c)
		}
		all = append(all, copied(c)...)
	}
	if next := r.Position().Next; next != end {
		tb.Fatalf("read to %d, want %d", next, end)
	}
	return all
}

var seed = maphash.MakeSeed()

// digest returns a checksum of all bytes of a chunk.
func digest(c *Chunk) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, r := range c.Records {
		maphash.WriteComparable(&h, [3]int{int(r.Offset), len(r.Key), len(r.Value)})
		h.Write(r.Key)
		h.Write(r.Value)
		for _, x := range r.Headers {
			h.WriteString(x.Key)
			h.Write(x.Value)
		}
	}
	return h.Sum64()
}

func copied(c *Chunk) []kafkatest.Record {
	var all []kafkatest.Record
	for _, r := range c.Records {
		t := kafkatest.Record{Offset: r.Offset, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value)}
		for _, h := range r.Headers {
			t.Headers = append(t.Headers, header(h.Key, bytes.Clone(h.Value)))
		}
		all = append(all, t)
	}
	return all
}

func equal(a, b kafkatest.Record) bool {
	same := func(x, y []byte) bool { return bytes.Equal(x, y) && (x == nil) == (y == nil) }
	if a.Offset != b.Offset || !same(a.Key, b.Key) || !same(a.Value, b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !same(a.Headers[i].Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}

// compare reports the first difference; null differs from empty.
func compare(tb testing.TB, what string, got, want []kafkatest.Record) {
	tb.Helper()
	for i := range min(len(got), len(want)) {
		if g, w := got[i], want[i]; !equal(g, w) {
			tb.Fatalf("%s: record %d is\n%#v, want\n%#v", what, i, g, w)
		}
	}
	if len(got) != len(want) {
		tb.Fatalf("%s: %d records, want %d", what, len(got), len(want))
	}
}

// randomRecord returns a record with null, empty and long fields, and sometimes headers.
func randomRecord(rng *rand.Rand, size int) kafkatest.Record {
	field := func() []byte {
		switch rng.IntN(8) {
		case 0:
			return nil
		case 1:
			return []byte{}
		}
		b := make([]byte, 1+rng.IntN(size))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	r := kafkatest.Record{Key: field(), Value: field()}
	for range max(0, rng.IntN(6)-3) {
		r.Headers = append(r.Headers, header(fmt.Sprint("h", rng.IntN(3)), field()))
	}
	return r
}

// numbered returns n records with distinct content.
func numbered(tag string, n int) []kafkatest.Record {
	rs := make([]kafkatest.Record, n)
	for i := range rs {
		rs[i] = kafkatest.Record{Key: fmt.Append(nil, "k", i), Value: fmt.Append(nil, tag, i)}
	}
	return rs
}

func values(rs []kafkatest.Record) string {
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, "%d=%s ", r.Offset, r.Value)
	}
	return b.String()
}

// expectQuiet fails unless every goroutine of kafka-go and of this package has
// ended.
func expectQuiet(tb testing.TB) {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		var left []string
		for i, g := range strings.Split(string(buf), "\n\n") {
			if i > 0 && !strings.Contains(g, "testing.(*T).Run") && !strings.Contains(g, "tRunner") &&
				(strings.Contains(g, "segmentio/kafka-go") ||
					strings.Contains(g, "github.com/streamdp/streamdp/internal/kafka.")) {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%d goroutines left:\n%s", len(left), strings.Join(left, "\n\n"))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
