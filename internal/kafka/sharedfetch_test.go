package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// watched counts what the broker saw of fetches.
type watched struct {
	mu       sync.Mutex
	requests int
	most     int    // the most partitions in a request
	fault    string // the first fault of a request
}

func watch(b *embedded.Broker) *watched {
	w := new(watched)
	b.Cluster().ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		q := r.(*kmsg.FetchRequest)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.requests++
		n, sum := 0, 0
		for _, t := range q.Topics {
			seen := map[int32]bool{}
			for _, p := range t.Partitions {
				if seen[p.Partition] {
					w.fault = fmt.Sprintf("%s/%d twice in a request", t.Topic, p.Partition)
				}
				seen[p.Partition] = true
				n, sum = n+1, sum+int(p.PartitionMaxBytes)
			}
		}
		if n > 1 && sum >= int(q.MaxBytes) {
			w.fault = fmt.Sprintf("%d partitions ask for %d bytes of %d", n, sum, q.MaxBytes)
		}
		w.most = max(w.most, n)
		return nil, nil, false
	})
	return w
}

func (c *Client) connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

// fill appends batches of random records to partitions of the topic "many", and returns the records of each partition.
func fill(t *testing.T, b *embedded.Broker, partitions, batches, size int) [][]kafkatest.Record {
	t.Helper()
	if err := b.CreateTopic(t.Context(), "many", partitions, nil); err != nil {
		t.Fatal(err)
	}
	want := make([][]kafkatest.Record, partitions)
	for i := range want {
		rng := rand.New(rand.NewPCG(uint64(i), 5))
		p := kafkatest.NewProducer(t, b.Addrs(), "many", int32(i), "")
		for range rng.IntN(batches + 1) {
			rs := make([]kafkatest.Record, 1+rng.IntN(5))
			for j := range rs {
				rs[j] = randomRecord(rng, size)
			}
			first := p.Send(rs...)
			for j := range rs {
				rs[j].Offset = first + int64(j)
			}
			want[i] = append(want[i], rs...)
		}
	}
	return want
}

// Readers of many partitions, several of them of the same one, share requests and connections. Each reads its log
// completely, with any limits.
func TestSharedFetches(t *testing.T) {
	b := startBroker(t, embedded.Options{Brokers: 2})
	want := fill(t, b, 40, 12, 300)
	w := watch(b)
	for _, limit := range []int{1, 2000, 1 << 20} {
		c := dialBroker(t, b.Addrs()...)
		var readers sync.WaitGroup
		for i := range 2 * len(want) {
			readers.Go(func() {
				p := i % len(want)
				o := ReaderOptions{Topic: "many", Partition: int32(p), MaxBytes: 3 * max(limit, 2),
					PartitionMaxBytes: limit}
				r := newReader(t, c, o, start)
				end := int64(0)
				if n := len(want[p]); n > 0 {
					end = want[p][n-1].Offset + 1
				}
				compare(t, fmt.Sprintf("partition %d, %d bytes", p, limit), drain(t, r, end, nil), want[p])
			})
		}
		readers.Wait()
		if n := c.connections(); n > 2*(busyRequests+1+shortRequests+1)+1 {
			t.Errorf("%d connections", n)
		}
		c.Close()
	}
	if w.fault != "" || w.most < 4 {
		t.Errorf("%s; at most %d partitions in a request", w.fault, w.most)
	}
	expectQuiet(t)
}

// TestSharedMoved: if a fetch's partition moves to another leader while the fetch waits, the fetch is removed from the
// shared request and sent alone. A fetch that is withdrawn meanwhile is counted once.
func TestSharedMoved(t *testing.T) {
	b := startBroker(t, embedded.Options{Brokers: 2})
	fill(t, b, 4, 12, 300)
	c := dialBroker(t, b.Addrs()...)
	m, err := c.metadata(t.Context(), "many")
	if err != nil {
		t.Fatal(err)
	}
	asks := make([]*ask, 4)
	for i := range asks {
		r := newReader(t, c, ReaderOptions{Topic: "many", Partition: int32(i)}, start)
		asks[i] = &ask{
			o: &r.o, leader: leaderIn(m, "many", int32(i)), limit: 1 << 20, epoch: -1, timeout: 20 * time.Second,
			begun: time.Now(), done: make(chan struct{}),
		}
	}
	r := &request{asks: slices.Clone(asks), left: len(asks)}
	for _, a := range asks {
		a.request = r
	}
	for _, moved := range asks[1:3] {
		moved.leader++
	}
	c.fetches.leave(asks[2])
	c.fetches.settle(r)
	if !slices.Equal(r.asks, []*ask{asks[0], asks[3]}) || r.left != 2 {
		t.Errorf("%d fetches are left in the request, and readers wait for %d", len(r.asks), r.left)
	}
	if a := asks[1]; !a.alone {
		t.Error("the fetch from another leader does not go alone")
	}
	<-asks[1].done
	if a := asks[1]; a.err != nil || a.ans.code != 0 {
		t.Errorf("it is answered with %v, code %d", a.err, a.ans.code)
	}
	asks[1].ans.release()
	if asks[2].request != r {
		t.Error("a fetch is sent although no reader waits for it")
	}
}

// At the ends of their logs, readers wait in few requests. A new record is read at once, and only its reader returns.
func TestSharedWait(t *testing.T) {
	b := startBroker(t, embedded.Options{})
	want := fill(t, b, 60, 3, 20)
	c := dialBroker(t, b.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type event struct {
		partition int
		records   int
		err       error
	}
	events := make(chan event)
	var readers, begun sync.WaitGroup
	begun.Add(len(want))
	for i := range want {
		readers.Go(func() {
			r := newReader(t, c, ReaderOptions{Topic: "many", Partition: int32(i), MaxWait: time.Minute}, start)
			if n := len(want[i]); n > 0 {
				drain(t, r, want[i][n-1].Offset+1, nil)
			}
			begun.Done()
			var chunk Chunk
			for {
				err := fetchOnce(ctx, r, &chunk)
				if err == nil && len(chunk.Records) == 0 {
					continue
				}
				select {
				case events <- event{i, len(chunk.Records), err}:
				case <-ctx.Done():
				}
				if err != nil {
					return
				}
			}
		})
	}
	begun.Wait()
	w := watch(b)
	look := func() (requests, most int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		requests, w.requests = w.requests, 0
		return requests, w.most
	}
	var from time.Time // start of the requests that are counted
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(longPoll / 10) {
		from = time.Now()
		if _, most := look(); most == len(want) {
			break
		}
		if time.Now().After(late) {
			t.Fatal("the readers do not come together in one request")
		}
	}
	time.Sleep(2 * longPoll)
	if n, _ := look(); n > int(time.Since(from)/longPoll+1) {
		t.Errorf("%d requests in %v", n, time.Since(from))
	}
	for _, p := range []int{7, 59, 0, 7} {
		kafkatest.NewProducer(t, b.Addrs(), "many", int32(p), "").Send(kafkatest.Record{Value: []byte("x")})
		begun := time.Now()
		e := <-events
		if e.err != nil || e.partition != p || e.records != 1 {
			t.Errorf("partition %d: %+v", p, e)
		}
		if d := time.Since(begun); d > 10*longPoll {
			t.Errorf("read after %v", d)
		}
	}
	cancel()
	readers.Wait()
	c.Close()
	expectQuiet(t)
}

// If one reader's context ends, or its log cannot be read, the others are not affected.
func TestSharedTroubles(t *testing.T) {
	b := startBroker(t, embedded.Options{Brokers: 2})
	want := fill(t, b, 20, 8, 100)
	c := dialBroker(t, b.Addrs()...)
	b.Cluster().ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		for i, p := range r.(*kmsg.FetchRequest).Topics[0].Partitions {
			if p.Partition == 3 {
				r.(*kmsg.FetchRequest).Topics[0].Partitions[i].FetchOffset = 1 << 40
			}
		}
		return nil, nil, false
	})
	var readers sync.WaitGroup
	for i := range want {
		readers.Go(func() {
			o := ReaderOptions{Topic: "many", Partition: int32(i), PartitionMaxBytes: 100}
			r := newReader(t, c, o, start)
			switch end := int64(len(want[i])); {
			case i == 3:
				var chunk Chunk
				if err := r.Fetch(t.Context(), &chunk); !Retriable(err) {
					t.Errorf("partition 3: %v", err)
				}
			case i%4 == 1:
				for n := range 40 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%7)*time.Millisecond/2)
					var chunk Chunk
					if err := r.Fetch(ctx, &chunk); err != nil && !errors.Is(err, context.DeadlineExceeded) &&
						!Retriable(err) {
						t.Error(err)
					}
					cancel()
				}
			case i%4 == 2:
				if err := b.Cluster().MoveTopicPartition("many", int32(i), int32(i/4%2)); err != nil {
					t.Error(err)
				}
				fallthrough
			default:
				compare(t, fmt.Sprint("partition ", i), drain(t, r, end, nil), want[i])
			}
		})
	}
	readers.Wait()
	c.Close()
	expectQuiet(t)
}

// A batch that is larger than its reader's limit is still delivered, even if others fill the answer.
func TestSharedLarge(t *testing.T) {
	b := startBroker(t, embedded.Options{})
	if err := b.CreateTopic(t.Context(), "many", 6, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		p := kafkatest.NewProducer(t, b.Addrs(), "many", int32(i), "")
		for range 5 {
			p.Send(kafkatest.Record{Value: bytes.Repeat([]byte("v"), 20_000)})
		}
	}
	c := dialBroker(t, b.Addr())
	var readers sync.WaitGroup
	for i := range 6 {
		readers.Go(func() {
			r := newReader(t, c,
				ReaderOptions{Topic: "many", Partition: int32(i), PartitionMaxBytes: 5000, MaxBytes: 21_000}, start)
			if got := drain(t, r, 5, nil); len(got) != 5 {
				t.Errorf("partition %d: %d records", i, len(got))
			}
		})
	}
	readers.Wait()
}
