package kafka

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/batch"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/race"
)

// zeros reads as any number of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// frame encodes the part of a record before its value of n zeros.
func frame(delta, n int64) []byte {
	head := binary.AppendVarint([]byte{0, 0}, delta)
	head = append(head, 1) // no key
	head = binary.AppendVarint(head, n)
	return append(binary.AppendVarint(nil, int64(len(head))+n+1), head...)
}

// bomb is a batch of three records, the middle one with a value of n zeros.
func bomb(tb testing.TB, codec int16, n int64) kafkatest.Batch {
	tb.Helper()
	var body bytes.Buffer
	w := compress.Compression(codec).Codec().NewWriter(&body)
	small := func(delta int64) io.Reader {
		return io.MultiReader(bytes.NewReader(frame(delta, 2)),
			bytes.NewReader([]byte{byte('a' + delta), byte('a' + delta), 0}))
	}
	all := io.MultiReader(small(0), bytes.NewReader(frame(1, n)), io.LimitReader(zeros{}, n),
		bytes.NewReader([]byte{0}), small(2))
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, all, make([]byte, 256<<10)); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return kafkatest.Batch{Base: 0, LastDelta: 2, Producer: -1, Body: body.Bytes(), Count: 3, Attributes: codec}
}

// crowd is a batch of n records without key and value.
func crowd(tb testing.TB, codec int16, n int) kafkatest.Batch {
	tb.Helper()
	var body bytes.Buffer
	w := compress.Compression(codec).Codec().NewWriter(&body)
	var b []byte
	for i := range n {
		delta := binary.AppendVarint(nil, int64(i))
		b = append(b, byte(2*(5+len(delta))), 0, 0)
		b = append(append(b, delta...), 1, 1, 0)
		if len(b) > 128<<10 || i == n-1 {
			if _, err := w.Write(b); err != nil {
				tb.Fatal(err)
			}
			b = b[:0]
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return kafkatest.Batch{LastDelta: int32(n - 1), Producer: -1, Body: body.Bytes(), Count: int32(n),
		Attributes: codec}
}

var codecNumbers = map[string]int16{"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

// allocated returns the total allocation of f, which bounds the memory that it holds.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// working is an upper bound on the allocations of the decoders themselves. It is larger with the race detector, because
// pools then drop elements at random.
func working() int {
	if race.Enabled {
		return 36 << 20
	}
	return 18 << 20
}

// A batch that decompresses to gigabytes needs as little memory as any other: the record that is too large has no
// content, and its neighbours are read unchanged. The record has 64 MB, with STREAMDP_SLOW=1 up to 1.8 GB.
func TestBombs(t *testing.T) {
	s, c := serve(t)
	for name, codec := range codecNumbers {
		n := int64(1800 << 20)
		switch {
		case race.Enabled || testing.Short() || os.Getenv("STREAMDP_SLOW") == "":
			n = 64 << 20
		case codec == codecNumbers["snappy"]:
			n = 100 << 20 // this codec compresses at most to a twentieth
		case codec != codecNumbers["zstd"]:
			n = 200 << 20 // this codec compresses most slowly
		}
		b := bomb(t, codec, n)
		s.set([]kafkatest.Batch{b, data(3, 4)})
		var got []kafkatest.Record
		var middle Record
		r := newReader(t, c, ReaderOptions{Topic: "sim"}, start)
		got = drain(t, r, 5, func(c *Chunk) {
			if len(c.Records) > 2 {
				middle = c.Records[1]
			}
		})
		if v := values(got); v != "0=aa 1= 2=cc 3=v3 4=v4 " || !middle.TooLarge || middle.Value != nil ||
			middle.Offset != 1 {
			t.Errorf("%s: %s, %+v", name, v, middle)
		}
		began := time.Now()
		set := b.Append(nil)
		bytes := allocated(func() {
			if err := direct(t, set, DefaultMaxRecordBytes, func(*Chunk) {}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		// The bound is the answer itself, which is read twice, and the codec's memory.
		bound := 4*len(b.Body) + working()
		t.Logf("%s: %d bytes make %d; %d allocated, at most %d; %v", name, len(b.Body), n, bytes, bound,
			time.Since(began))
		if bytes > uint64(bound) {
			t.Errorf("%s: %d bytes make %d; %d allocated, at most %d", name, len(b.Body), n, bytes, bound)
		}
		// Its hash covers the whole record.
		h := sha256.New()
		binary.Write(h, binary.LittleEndian, int64(1))
		binary.Write(h, binary.LittleEndian, int32(-1))
		binary.Write(h, binary.LittleEndian, uint32(n))
		io.CopyN(h, zeros{}, n)
		if middle.Hash() != [32]byte(h.Sum(nil)) {
			t.Errorf("%s: hash of a record that is too large", name)
		}
	}
}

// The same holds for a batch of a million records, with STREAMDP_SLOW=1 three million.
func TestCrowds(t *testing.T) {
	s, c := serve(t)
	for name, codec := range codecNumbers {
		n := 1_000_000
		if os.Getenv("STREAMDP_SLOW") != "" {
			n = 3_000_000
		}
		if race.Enabled || testing.Short() {
			n = 200_000
		}
		b := crowd(t, codec, n)
		s.set([]kafkatest.Batch{b, data(int64(n))})
		var count, chunks int
		set := b.Append(nil)
		bytes := allocated(func() {
			err := direct(t, set, DefaultMaxRecordBytes, func(c *Chunk) {
				for i := range c.Records {
					if c.Records[i].Offset != int64(count) {
						t.Fatalf("%s: record %d is at offset %d", name, count, c.Records[i].Offset)
					}
					count++
				}
				chunks++
				if len(c.Records) > chunkRecords {
					t.Fatalf("%s: %d records in a chunk", name, len(c.Records))
				}
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		bound := 4*len(b.Body) + working()
		if count != n || chunks < n/chunkRecords || bytes > uint64(bound) {
			t.Errorf("%s: %d records of %d in %d chunks; %d bytes allocated, at most %d", name, count, n, chunks,
				bytes, bound)
		}
		// Reading can begin at a position inside the batch.
		if n > 100_000 {
			half := int64(n / 2)
			rest := newReader(t, c, ReaderOptions{Topic: "sim"},
				Position{Next: half, LeaderEpoch: -1, Anchor: AnchorOf(&Record{Offset: half - 1})})
			var chunk Chunk
			if err := rest.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) == 0 ||
				chunk.Records[0].Offset != half {
				t.Errorf("%s, from the middle: %v", name, err)
			}
		}
	}
}

// The end of the context ends a fetch that is decompressing.
func TestBombEnds(t *testing.T) {
	s, c := serve(t)
	s.set([]kafkatest.Batch{kafkatest.Bomb([]byte("aa"), []byte("cc"), 1800<<20)})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	r := newReader(t, c, ReaderOptions{Topic: "sim"}, start)
	var chunk Chunk
	if err := r.Fetch(ctx, &chunk); !errors.Is(err, context.Canceled) || chunk.Next != 0 {
		t.Errorf("%v, next %d", err, chunk.Next)
	}
}

// A batch that ends too early, or states wrong lengths, returns an error each time, after the records before the
// damage.
func TestDamagedBombs(t *testing.T) {
	s, c := serve(t)
	for name, codec := range codecNumbers {
		whole := bomb(t, codec, 40<<20)
		for what, change := range map[string]func(*kafkatest.Batch){
			"cut":   func(b *kafkatest.Batch) { b.Body = b.Body[:len(b.Body)*2/3] },
			"count": func(b *kafkatest.Batch) { b.Count, b.LastDelta = 5, 9 },
		} {
			b := whole
			b.Body = bytes.Clone(b.Body)
			change(&b)
			s.set([]kafkatest.Batch{b, data(20)})
			r := newReader(t, c, ReaderOptions{Topic: "sim"}, start)
			var got string
			var e *Error
			failures := 0
			bytes := allocated(func() {
				for range 5 {
					var chunk Chunk
					if err := r.Fetch(t.Context(), &chunk); err == nil {
						got += values(copied(&chunk))
					} else if !errors.As(err, &e) || e.Label() != kindProtocol || !e.Retriable() ||
						chunk.Next != r.Position().Next {
						t.Errorf("%s, %s: %v", name, what, err)
					} else {
						failures++
					}
				}
			})
			if last := r.Position().Next; failures < 3 || last > 3 || bytes > uint64(60*len(b.Body)+100<<20) {
				t.Errorf("%s, %s: %d errors, %q, next %d, %d bytes allocated", name, what, failures, got, last, bytes)
			}
		}
	}
}

// The output of all zstd levels is decoded.
func TestZstdLevels(t *testing.T) {
	rng := bytes.Repeat([]byte("a value that repeats, "), 100_000)
	for _, level := range []int{1, 3, 9, 19, 22} {
		rec := kafkatest.Record{Value: rng[:200_000+level]}
		b := kafkatest.Batch{Producer: -1, Codec: kgo.ZstdCompression().WithLevel(level),
			Records: []kafkatest.Record{rec}}
		if got, err := ours(t, b.Append(nil), 1<<20); err != nil || len(got) != 1 || !equal(got[0].Record, rec) {
			t.Errorf("level %d: %d records, %v", level, len(got), err)
		}
	}
}

// A compressed message in the old formats is accepted if it fits into memory, and otherwise refused with an
// explanation.
func TestOldFormatCompressed(t *testing.T) {
	s, c := serve(t)
	message := func(offset int64, attributes int8, value []byte) []byte {
		m := kmsg.MessageV1{Offset: offset, Magic: 1, Attributes: attributes, Value: value}
		m.MessageSize = int32(len(m.AppendTo(nil)) - 12)
		raw := m.AppendTo(nil)
		binary.BigEndian.PutUint32(raw[12:], crc32.ChecksumIEEE(raw[16:]))
		return raw
	}
	pack := func(codec int16, r io.Reader) []byte {
		var b bytes.Buffer
		w := compress.Compression(codec).Codec().NewWriter(&b)
		if _, err := io.Copy(struct{ io.Writer }{w}, r); err != nil {
			t.Fatal(err)
		}
		w.Close()
		return b.Bytes()
	}
	for name, codec := range codecNumbers {
		if name == "zstd" {
			continue // not available in this format
		}
		var inner []byte
		for i := range 3 {
			inner = append(inner, message(int64(i), 0, fmt.Append(nil, "v", i))...)
		}
		wrapper := message(12, int8(codec), pack(codec, bytes.NewReader(inner)))
		s.set([]kafkatest.Batch{data(10, 12)})
		s.change(func() { s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches = wrapper } })
		r := newReader(t, c, ReaderOptions{Topic: "sim", MaxRecordBytes: 2}, Position{Next: 10, LeaderEpoch: -1})
		if got := values(drain(t, r, 13, nil)); got != "10=v0 11=v1 12=v2 " {
			t.Errorf("%s: %s", name, got)
		}
		r = newReader(t, c, ReaderOptions{Topic: "sim", MaxRecordBytes: 1}, Position{Next: 10, LeaderEpoch: -1})
		var sums [][32]byte
		if got := values(drain(t, r, 13, func(c *Chunk) {
			for i := range c.Records {
				sums = append(sums, c.Records[i].Hash())
			}
		})); got != "10= 11= 12= " || sums[2] != batch.HashRecord(12, nil, []byte("v2")) {
			t.Errorf("%s, beyond the limit: %s", name, got)
		}

		huge := message(12, int8(codec), pack(codec, io.LimitReader(zeros{}, maxOld+2)))
		s.change(func() { s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches = huge } })
		r = newReader(t, c, ReaderOptions{Topic: "sim"}, Position{Next: 10, LeaderEpoch: -1})
		var e *Error
		if err := r.Fetch(t.Context(), new(Chunk)); !errors.As(err, &e) || e.Label() != kindProtocol ||
			!errors.Is(e, e.err) || e.err.Error() != errOld.Error() {
			t.Errorf("%s, a bomb: %v", name, err)
		}
		// Inner lengths are invalid.
		bad := message(12, int8(codec),
			pack(codec,
				bytes.NewReader(
					[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})))
		s.change(func() { s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches = bad } })
		r = newReader(t, c, ReaderOptions{Topic: "sim"}, Position{Next: 10, LeaderEpoch: -1})
		if err := r.Fetch(t.Context(), new(Chunk)); !errors.As(err, &e) || e.Label() != kindProtocol {
			t.Errorf("%s, nonsense inside: %v", name, err)
		}
	}
}
