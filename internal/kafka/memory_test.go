package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// Readers whose chunks nobody consumes keep their memory, and wait. Meanwhile the others read everything, and all
// readers together hold no more than the limit.
func TestMemoryStalled(t *testing.T) {
	const partitions, stalled, total = 8, 3, 2 << 20
	b := startBroker(t, embedded.Options{})
	if err := b.CreateTopic(t.Context(), "many", partitions, nil); err != nil {
		t.Fatal(err)
	}
	want := make([][]kafkatest.Record, partitions)
	for i := range want {
		rng := rand.New(rand.NewPCG(uint64(i), 6))
		codec := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.Lz4Compression()}[i%3]
		p := kafkatest.NewProducer(t, b.Addrs(), "many", int32(i), "", kgo.ProducerBatchCompression(codec))
		for range 60 {
			rs := make([]kafkatest.Record, 40)
			for j := range rs {
				rs[j] = randomRecord(rng, 400)
			}
			first := p.Send(rs...)
			for j := range rs {
				rs[j].Offset = first + int64(j)
			}
			want[i] = append(want[i], rs...)
		}
	}
	c := dialBroker(t, b.Addr())
	m := NewMemory(total)
	most := 0
	var mu sync.Mutex
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		most = max(most, m.Held())
	}
	ctx, cancel := context.WithCancel(t.Context())
	var blocked, began, readers sync.WaitGroup
	var held [stalled][]*Chunk
	all := make([]*Reader, partitions)
	for i := range all {
		all[i] = newReader(t, c, ReaderOptions{Topic: "many", Partition: int32(i), Memory: m, RowBytes: 100}, start)
	}
	began.Add(stalled)
	for i := range stalled {
		blocked.Go(func() {
			first := sync.OnceFunc(began.Done)
			defer first()
			for {
				chunk := new(Chunk)
				if err := fetchOnce(ctx, all[i], chunk); err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("stalled reader %d: %v", i, err)
					}
					return
				}
				held[i] = append(held[i], chunk)
				look()
				first()
			}
		})
	}
	began.Wait()
	time.Sleep(300 * time.Millisecond) // leaves time to take what they get
	for i := stalled; i < partitions; i++ {
		readers.Go(func() {
			var got []kafkatest.Record
			chunk := new(Chunk)
			for int(all[i].Position().Next) < len(want[i]) {
				if err := fetchOnce(t.Context(), all[i], chunk); err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				look()
				got = append(got, copied(chunk)...)
				chunk.Release()
			}
			compare(t, fmt.Sprint("partition ", i), got, want[i])
		})
	}
	readers.Wait()
	cancel()
	blocked.Wait()
	for i := range stalled {
		if n := all[i].Position().Next; n == 0 || int(n) >= len(want[i]) {
			t.Errorf("stalled reader %d read %d of %d offsets", i, n, len(want[i]))
		}
		for _, chunk := range held[i] {
			chunk.Release()
		}
	}
	// The excess is at most one record per chunk and one batch per answer.
	if slack := partitions * (40 << 10); most > total+slack {
		t.Errorf("%d bytes held of %d", most, total)
	}
	c.Close()
	expectQuiet(t) // everything in progress has ended
	if n := m.Held(); n > total/100 {
		t.Errorf("%d bytes are still held", n)
	}
	for _, r := range all {
		r.Close()
	}
	if n := m.Held(); n != 0 {
		t.Errorf("%d bytes are held although all readers are closed", n)
	}
}

// TestMemoryExpected: the limit is kept while expected readers are added one after the other and each takes as much as
// it can get.
func TestMemoryExpected(t *testing.T) {
	const total, readers = 32 << 20, 50
	m := NewMemory(total)
	m.Expect(readers)
	for i := range readers {
		answers, chunks := m.share()
		for _, s := range []*share{answers, chunks} {
			for s.take(100_000) > 0 {
			}
		}
		if held := m.Held(); held > total {
			t.Fatalf("%d readers hold %d bytes of %d", i+1, held, total)
		}
	}
	if held := m.Held(); held < total/2 {
		t.Errorf("the readers got only %d bytes of %d", held, total)
	}
}

// TestMemoryAdded: unexpected readers are added one after the other, while earlier readers hold all that they got. Each
// new reader gets one part. Once the limit is exceeded, it gets nothing more until the others give memory back.
func TestMemoryAdded(t *testing.T) {
	const total, readers = 32 << 20, 50
	m := NewMemory(total)
	var all [readers][2]*share
	sure := 0 // what the added readers were sure to get
	for i := range readers {
		all[i][0], all[i][1] = m.share()
		for _, s := range all[i] {
			part := s.part()
			if got := s.take(part); got < part {
				t.Errorf("reader %d got %d of a part of %d", i+1, got, part)
			}
			for s.take(100_000) > 0 {
			}
			if i > 0 {
				sure += part
			}
		}
		if held := m.Held(); held > total+sure {
			t.Fatalf("%d readers hold %d bytes of %d, and were sure of %d", i+1, held, total, sure)
		}
	}
	for i := range readers {
		for _, s := range all[i] {
			s.add(-s.held)
			for s.take(100_000) > 0 {
			}
		}
	}
	if held := m.Held(); held > total || held < total/2 {
		t.Errorf("%d bytes of %d are held after all have given back once", held, total)
	}
}

// TestMemoryEnded: the shares of readers that are no longer expected go to the others.
func TestMemoryEnded(t *testing.T) {
	m := NewMemory(32 << 20)
	m.Expect(4)
	_, chunks := m.share()
	_, other := m.share()
	quarter := chunks.part()
	m.Expect(-2)
	if half := chunks.part(); half != 2*quarter {
		t.Errorf("a part of %d bytes of one among four readers, %d among two", quarter, half)
	}
	other.close()
	m.Expect(-1)
	if whole := chunks.part(); whole != 4*quarter {
		t.Errorf("a part of %d bytes of one among four readers, %d alone", quarter, whole)
	}
}

// In any order of taking and giving back, the sums are right, and a share that holds nothing gets its part.
func TestMemoryShares(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	m := NewMemory(4 << 20)
	type holder struct {
		s    *share
		took []int
	}
	var all []*holder
	held := 0
	for range 20_000 {
		switch k := rng.IntN(100); {
		case k == 0 && len(all) < 30 || len(all) == 0:
			s, _ := m.share()
			all = append(all, &holder{s: s})
		case k == 1:
			i := rng.IntN(len(all))
			all[i].s.close()
			for _, n := range all[i].took {
				held -= n
				all[i].s.add(-n) // has no effect any more
			}
			all = append(all[:i], all[i+1:]...)
		default:
			h := all[rng.IntN(len(all))]
			if n := len(h.took); n > 0 && rng.IntN(2) == 0 {
				h.s.add(-h.took[n-1])
				held -= h.took[n-1]
				h.took = h.took[:n-1]
				continue
			}
			want := 1 + rng.IntN(1<<20)
			part := h.s.part()
			got := h.s.take(want)
			if got > want || got > 0 && got < min(want, part) || got == 0 && len(h.took) == 0 {
				t.Fatalf("asked for %d, got %d of a part of %d, with %d taken", want, got, part, len(h.took))
			}
			if got > 0 {
				h.took = append(h.took, got)
				held += got
			}
		}
		if n := m.Held(); n != held {
			t.Fatalf("%d bytes held, %d taken", n, held)
		}
		if most := 2*m.answers.half + len(all)*m.answers.least; m.answers.sum() > most {
			t.Fatalf("%d bytes held of %d", m.answers.sum(), most)
		}
	}
}
