package kafka

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/kafka/batch"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// These are offsets in a record batch, as in package batch.
const (
	atLength     = 8
	atMagic      = 16
	atChecksum   = 17
	atAttributes = 21
	atLastDelta  = 23
	atCount      = 57
	atRecords    = 61
)

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

// decoded is a record as returned by a decoder.
type decoded struct {
	kafkatest.Record
	large bool
	sum   [32]byte
}

// ours decodes a record set as the answer to a reader at offset 0.
func ours(tb testing.TB, set []byte, limit int) (all []decoded, err error) {
	err = direct(tb, set, limit, func(c *Chunk) {
		for i, rec := range copied(c) {
			all = append(all, decoded{rec, c.Records[i].TooLarge, c.Records[i].Hash()})
		}
	})
	return all, err
}

// direct lets a reader decode a record set that no broker sent.
func direct(tb testing.TB, set []byte, limit int, each func(*Chunk)) error {
	r, err := new(Client).NewReader(ReaderOptions{Topic: "in", MaxRecordBytes: limit, Uncommitted: true}, start)
	if err != nil {
		tb.Fatal(err)
	}
	var c Chunk
	// A damaged batch is reported only if it is the first batch of a read. So it is reported in the second read, which
	// begins where the first ended.
	for range 2 {
		buf := newBuffer(len(set))
		buf.b = append(buf.b, set...)
		r.ans = answer{records: buf, end: math.MaxInt64, lastStable: math.MaxInt64}
		r.anchor, r.empties = nil, 0
		r.beginWalk(r.next)
		for r.w.open {
			c.reset(r)
			next := r.next
			if err := r.part(tb.Context(), &c); err != nil {
				r.forget()
				return err
			}
			each(&c)
			if r.next == next && r.w.open {
				tb.Fatal("a part without progress")
			}
		}
	}
	return nil
}

// theirs decodes a record set with kafka-go. comparable is false if kafka-go would fail in another way than by an
// error.
func theirs(set []byte) (all []decoded, err error, comparable bool) {
	for rest := set; ; {
		raw, next, err := batch.Cut(rest)
		if err != nil || raw == nil {
			break
		}
		if batch.Old(raw) {
			return nil, nil, false
		}
		var h batch.Header
		if h.Parse(raw) != nil || h.Count > 1<<14 {
			return nil, nil, false // kafka-go would allocate as many records as the count states
		}
		if codec := int8(raw[atAttributes+1] & 7); codec != 0 {
			body := bytes.Clone(raw[atRecords:])
			if bomb, _ := batch.Codec(decompress).Exceeds(codec, body, 4<<20-1); bomb {
				return nil, nil, false
			}
		}
		rest = next
	}
	defer func() {
		if recover() != nil {
			comparable = false
		}
	}()
	size := binary.BigEndian.AppendUint32(nil, uint32(len(set)))
	var rs protocol.RecordSet
	if _, err := rs.ReadFrom(
		bufio.NewReader(io.MultiReader(bytes.NewReader(size), bytes.NewReader(set)))); err != nil ||
		rs.Records == nil {
		return nil, err, true
	}
	for _, records := range rs.Records.(*protocol.RecordStream).Records {
		if _, ok := records.(*protocol.ControlBatch); ok {
			continue
		}
		for {
			rec, err := records.ReadRecord()
			if err != nil {
				break
			}
			d := decoded{Record: kafkatest.Record{Offset: rec.Offset}}
			if d.Key, err = protocol.ReadAll(rec.Key); err != nil {
				return all, err, false
			}
			if d.Value, err = protocol.ReadAll(rec.Value); err != nil {
				return all, err, false
			}
			for _, h := range rec.Headers {
				d.Headers = append(d.Headers, header(h.Key, h.Value))
			}
			d.sum = batch.HashRecord(d.Offset, d.Key, d.Value)
			all = append(all, d)
		}
	}
	return all, nil, true
}

// size returns the size of a record that is compared with the limit.
func (d *decoded) size() int {
	n := len(d.Key) + len(d.Value)
	for _, h := range d.Headers {
		n += len(h.Key) + len(h.Value) + batch.HeaderBytes
	}
	return n
}

// mend corrects all checksums of a record set, so that damage reaches the decoder.
func mend(set []byte) []byte {
	set = bytes.Clone(set)
	for rest := set; ; {
		raw, next, err := batch.Cut(rest)
		if err != nil || raw == nil {
			return set
		}
		if !batch.Old(raw) {
			binary.BigEndian.PutUint32(raw[atChecksum:],
				crc32.Checksum(raw[atAttributes:], crc32.MakeTable(crc32.Castagnoli)))
		}
		rest = next
	}
}

// compressed reports whether a batch of the set is compressed.
func compressed(set []byte) bool {
	for rest := set; ; {
		raw, next, err := batch.Cut(rest)
		if err != nil || raw == nil {
			return false
		}
		if raw[atAttributes+1]&7 != 0 {
			return true
		}
		rest = next
	}
}

// differ compares the two decoders on a record set.
func differ(t *testing.T, set []byte) {
	t.Helper()
	got, err := ours(t, set, 1<<30)
	if err != nil && !errors.Is(err, batch.ErrDamaged) {
		var e *Error
		if !errors.As(err, &e) || e.Label() != kindProtocol || !e.Retriable() {
			t.Fatalf("error %v", err)
		}
	}
	// A limit changes only records above it.
	for _, limit := range []int{1, 30, 200} {
		few, ferr := ours(t, set, limit)
		if len(few) < len(got) || err == nil && (ferr != nil || len(few) > len(got)) {
			t.Fatalf("limit %d: %d records, %v; without one %d, %v", limit, len(few), ferr, len(got), err)
		}
		for i := range got {
			g, f := &got[i], &few[i]
			switch large := g.size() > limit; {
			case f.Offset != g.Offset || f.sum != g.sum || f.large != large:
				t.Fatalf("limit %d: record %d of %d bytes is %+v", limit, i, g.size(), f)
			case large && (f.Key != nil || f.Value != nil || f.Headers != nil), !large && !equal(f.Record, g.Record):
				t.Fatalf("limit %d: record %d is\n%#v, want\n%#v", limit, i, f.Record, g.Record)
			}
		}
	}
	// kafka-go trusts the lengths in a batch and allocates that much memory, so it gets only sets that the decoder here
	// accepts. TestDecodersAgree shows that the decoder here does not accept too little.
	for rest := set; ; {
		raw, next, err := batch.Cut(rest)
		if err != nil || raw == nil {
			return
		}
		rest = next
		got, err := ours(t, raw, 1<<30)
		if err != nil {
			continue
		}
		want, werr, ok := theirs(raw)
		if !ok {
			continue
		}
		// The reader finishes a batch at its last offset, no matter what follows in it. kafka-go continues, to records
		// with any offset, or to damage.
		var h batch.Header
		if n := len(got); n > 0 && h.Parse(raw) == nil && got[n-1].Offset == h.End-1 {
			want, werr = want[:min(n, len(want))], nil
		}
		for i := range min(len(got), len(want)) {
			if !equal(got[i].Record, want[i].Record) || got[i].sum != want[i].sum {
				t.Fatalf("record %d is\n%#v, kafka-go has\n%#v", i, got[i].Record, want[i].Record)
			}
		}
		// The decoder here reads a compressed batch only to the end of its records.
		if len(got) < len(want) || !compressed(raw) && (werr != nil || len(got) != len(want)) {
			t.Fatalf("%d records without an error, kafka-go has %d, %v", len(got), len(want), werr)
		}
	}
}

// randomSet returns a record set of several batches.
func randomSet(rng *rand.Rand, codec kgo.CompressionCodec) []byte {
	var set []byte
	next := rng.Int64N(1000)
	for range 1 + rng.IntN(4) {
		b := kafkatest.Batch{Base: next, LastDelta: int32(rng.IntN(40)), Epoch: rng.Int32N(5), Producer: -1,
			Codec: codec}
		if rng.IntN(5) == 0 {
			b = kafkatest.Marker(next, 7, rng.IntN(2) == 0)
		} else {
			for o := range int64(b.LastDelta) + 1 {
				if rng.IntN(6) > 0 {
					r := randomRecord(rng, 1+rng.IntN(300))
					r.Offset = next + o
					b.Records = append(b.Records, r)
				}
			}
		}
		set = b.Append(set)
		next += int64(b.LastDelta) + 1 + rng.Int64N(3)
	}
	return set
}

// The decoder agrees with kafka-go's on record sets of every codec: intact, truncated and damaged. There are 30 of each
// codec, with STREAMDP_SLOW=1 60.
func TestDecodersAgree(t *testing.T) {
	sets := 30
	if os.Getenv("STREAMDP_SLOW") != "" {
		sets = 60
	}
	for name, codec := range codecs {
		rng := rand.New(rand.NewPCG(1, 5))
		clean := 0
		for range sets {
			set := randomSet(rng, codec)
			differ(t, set)
			got, err := ours(t, set, 1<<30)
			want, werr, ok := theirs(set)
			if err != nil || werr != nil || !ok || len(got) != len(want) {
				t.Fatalf("%s: %d records, %v; kafka-go has %d, %v", name, len(got), err, len(want), werr)
			}
			clean += min(len(got), 1)
			differ(t, set[:rng.IntN(len(set))])
			for range 10 {
				bad := bytes.Clone(set)
				for range 1 + rng.IntN(3) {
					bad[rng.IntN(len(bad))] ^= 1 << rng.IntN(8)
				}
				differ(t, bad)
				differ(t, mend(bad))
			}
		}
		if clean < sets*5/6 {
			t.Errorf("%s: %d of %d record sets were decoded", name, clean, sets)
		}
	}
}

// FuzzDecoders explores further inputs of differ.
func FuzzDecoders(f *testing.F) {
	for _, codec := range codecs {
		rng := rand.New(rand.NewPCG(2, 5))
		for range 4 {
			f.Add(randomSet(rng, codec), true)
		}
		beyond := kafkatest.Batch{Base: 5, LastDelta: 1, Producer: -1, Codec: codec}
		for o := range int64(3) {
			beyond.Records = append(beyond.Records, kafkatest.Record{Offset: 5 + o})
		}
		f.Add(beyond.Append(nil), true)
		back := kafkatest.Batch{Base: 5, LastDelta: 2, Producer: -1, Codec: codec}
		for _, o := range []int64{0, 2, 1} {
			back.Records = append(back.Records, kafkatest.Record{Offset: 5 + o})
		}
		f.Add(back.Append(nil), true)
	}
	f.Fuzz(func(t *testing.T, set []byte, whole bool) {
		if len(set) > 1<<16 {
			return
		}
		if whole {
			set = mend(set)
		}
		differ(t, set)
	})
}

// A batch with a single fault is an error that reveals nothing else.
func TestDamagedBatches(t *testing.T) {
	body := func(records ...[]byte) []byte {
		var all []byte
		for _, r := range records {
			all = binary.AppendVarint(all, int64(len(r)))
			all = append(all, r...)
		}
		return all
	}
	// attributes, timestamp, offset, key of one byte, value of two, headers
	fine := func(offset byte) []byte { return []byte{0, 0, 2 * offset, 2, 'k', 4, 'v', 'w', 0} }
	long := bytes.Repeat([]byte{0xff}, 11)
	for name, test := range map[string]struct {
		body  []byte
		count int32
		want  int // records before the damage
		ok    bool
	}{
		"fine":                    {body: body(fine(0), fine(1)), count: 2, want: 2, ok: true},
		"bytes after the last":    {body: append(body(fine(0), fine(1)), 7), count: 2, want: 2, ok: true},
		"fewer than said":         {body: body(fine(0)), count: 2, want: 1},
		"the same offset twice":   {body: body(fine(1), fine(1)), count: 2, want: 1},
		"offsets that go back":    {body: body(fine(2), fine(1)), count: 2, want: 1},
		"offset beyond the last":  {body: body(fine(0), fine(9)), count: 2, want: 1},
		"offset before the first": {body: body([]byte{0, 0, 1, 1, 1, 0}), count: 1},
		"length beyond the batch": {body: []byte{100, 0, 0, 0, 1, 1, 0}, count: 1},
		"negative length":         {body: []byte{1, 0, 0, 0, 1, 1, 0}, count: 1},
		"endless length":          {body: long, count: 1},
		"key beyond the record":   {body: body([]byte{0, 0, 0, 40, 'k', 1, 0}), count: 1},
		"value beyond the record": {body: body([]byte{0, 0, 0, 1, 40, 'v', 0}), count: 1},
		"many headers":            {body: body([]byte{0, 0, 0, 1, 1, 40}), count: 1},
		"negative headers":        {body: body([]byte{0, 0, 0, 1, 1, 1}), count: 1},
		"header without a name":   {body: body([]byte{0, 0, 0, 1, 1, 2, 1, 1}), count: 1},
		"header's value too long": {body: body([]byte{0, 0, 0, 1, 1, 2, 0, 8}), count: 1},
		"bytes after the headers": {body: body([]byte{0, 0, 0, 1, 1, 0, 0}), count: 1},
		"an empty record":         {body: body(nil), count: 1},
		"attributes alone":        {body: body([]byte{0}), count: 1},
		"endless timestamp":       {body: body(append([]byte{0}, long...)), count: 1},
	} {
		for _, codec := range []int16{0, 2} {
			b := kafkatest.Batch{Base: 10, LastDelta: 4, Producer: -1, Body: test.body, Count: test.count,
				Attributes: codec}
			if codec != 0 {
				b.Body = snappyBlock(test.body)
			}
			got, err := ours(t, b.Append(nil), 100)
			if len(got) != test.want || (err == nil) != test.ok {
				t.Errorf("%s, codec %d: %d records, %v", name, codec, len(got), err)
			}
		}
	}
	for name, change := range map[string]func([]byte){
		"length":            func(b []byte) { binary.BigEndian.PutUint32(b[atLength:], 20) },
		"negative length":   func(b []byte) { binary.BigEndian.PutUint32(b[atLength:], math.MaxUint32) },
		"magic":             func(b []byte) { b[atMagic] = 3 },
		"count":             func(b []byte) { binary.BigEndian.PutUint32(b[atCount:], math.MaxInt32) },
		"negative count":    func(b []byte) { binary.BigEndian.PutUint32(b[atCount:], math.MaxUint32) },
		"last offset":       func(b []byte) { binary.BigEndian.PutUint32(b[atLastDelta:], math.MaxUint32) },
		"base offset":       func(b []byte) { binary.BigEndian.PutUint64(b, math.MaxUint64) },
		"last base offset":  func(b []byte) { binary.BigEndian.PutUint64(b, math.MaxInt64-1) },
		"an unknown codec":  func(b []byte) { b[atAttributes+1] |= 5 },
		"a codec not used":  func(b []byte) { b[atAttributes+1] |= 1 },
		"another one":       func(b []byte) { b[atAttributes+1] |= 4 },
		"one of two blocks": func(b []byte) { b[atAttributes+1] |= 3 },
	} {
		set := data(3, 4).Append(nil)
		change(set)
		if got, err := ours(t, mend(set), 100); len(got) != 0 || err == nil {
			t.Errorf("%s: %d records, %v", name, len(got), err)
		}
	}
	// Batches that overlap.
	set := data(5, 6).Append(data(3, 5).Append(nil))
	if got, err := ours(t, set, 100); len(got) != 2 || err == nil {
		t.Errorf("overlapping batches: %d records, %v", len(got), err)
	}
}

func snappyBlock(b []byte) []byte {
	c, err := kgo.DefaultCompressor(kgo.SnappyCompression())
	if err != nil {
		panic(err)
	}
	out, _ := c.Compress(new(bytes.Buffer), b)
	return out
}

// A record's size is as documented, independent of its place.
func TestRecordSize(t *testing.T) {
	r := kafkatest.Record{Key: []byte("abc"), Value: make([]byte, 50),
		Headers: []kgo.RecordHeader{header("x", nil), header("", []byte("yz"))}}
	const size = 3 + 50 + 1 + 2 + 2*batch.HeaderBytes
	for name, codec := range codecs {
		for _, before := range []int64{0, 200, 1 << 20} { // the offset needs more bytes
			r.Offset = before
			b := kafkatest.Batch{LastDelta: int32(before), Producer: -1, Codec: codec, Records: []kafkatest.Record{r}}
			for limit, large := range map[int]bool{size - 1: true, size: false} {
				got, err := ours(t, b.Append(nil), limit)
				if err != nil || len(got) != 1 || got[0].large != large ||
					got[0].sum != batch.HashRecord(before, r.Key, r.Value) {
					t.Errorf("%s, at %d, limit %d: %v, %v", name, before, limit, fmt.Sprint(got), err)
				}
			}
		}
	}
}
