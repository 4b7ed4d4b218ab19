package batch

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/segmentio/kafka-go/compress"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func codec(number int8, src io.Reader) io.ReadCloser {
	if z := compress.Compression(number).Codec(); z != nil {
		return z.NewReader(src)
	}
	return nil
}

// entry is a record without references to its memory.
type entry struct {
	offset int64
	large  bool
	hash   [32]byte
}

// read reads a record set up to the first error.
func read(t *testing.T, set []byte, limit int) (all []entry, err error) {
	b := Reader{Codec: codec}
	var a Arena
	defer a.Release()
	var r Record
	for rest := set; ; {
		var raw []byte
		if raw, rest, err = Cut(rest); raw == nil || Old(raw) {
			return all, err
		}
		if err := b.Parse(raw); err != nil {
			return all, err
		}
		err := b.Begin(raw, limit)
		last := b.Base - 1
		for err == nil {
			var more bool
			if more, err = b.Next(t.Context(), &a, &r); err != nil || !more {
				break
			}
			if r.Offset <= last || r.Offset >= b.End {
				t.Fatalf("offset %d after %d in [%d, %d)", r.Offset, last, b.Base, b.End)
			}
			if r.Taken > limit+overhead || r.Large && (r.Key != nil || r.Value != nil || r.Headers != 0) {
				t.Fatalf("limit %d: %d bytes taken for %+v", limit, r.Taken, r)
			}
			size := len(r.Key) + len(r.Value)
			at := 0
			for range r.Headers {
				var name, value []byte
				name, value, at = r.Header(at)
				size += len(name) + len(value) + HeaderBytes
			}
			if size > limit {
				t.Fatalf("limit %d: a record of %d bytes", limit, size)
			}
			last = r.Offset
			all = append(all, entry{r.Offset, r.Large, r.Hash()})
			a.GiveBack(r.Taken)
		}
		b.Close()
		if err != nil {
			return all, err
		}
	}
}

// FuzzReader reads arbitrary bytes. Records must be in their batch, in order and within the limit. A limit may change
// only large records, and the only error is ErrDamaged.
func FuzzReader(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 5))
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(),
		kgo.ZstdCompression(),
	}
	for _, c := range codecs {
		for range 3 {
			b := kafkatest.Batch{Base: rng.Int64N(100), LastDelta: 9, Producer: -1, Codec: c}
			for o := range int64(10) {
				r := kafkatest.Record{Offset: b.Base + o, Key: []byte("key"), Value: make([]byte, rng.IntN(300))}
				if o%3 == 0 {
					r.Headers = []kgo.RecordHeader{{Key: "name", Value: []byte("value")}}
				}
				b.Records = append(b.Records, r)
			}
			set := b.Append(kafkatest.Marker(0, 7, true).Append(nil))
			f.Add(set, 150)
			set[len(set)-1-rng.IntN(40)] ^= 1 << rng.IntN(8)
			f.Add(set, 1)
		}
	}
	f.Fuzz(func(t *testing.T, set []byte, limit int) {
		if len(set) > 1<<16 || limit < 1 || limit > 1<<20 {
			return
		}
		all, err := read(t, set, 1<<24)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		few, ferr := read(t, set, limit)
		if ferr != nil && !errors.Is(ferr, ErrDamaged) {
			t.Fatal(ferr)
		}
		// The bytes after the value of a too large record are not checked.
		if len(few) < len(all) || err == nil && (ferr != nil || len(few) > len(all)) {
			t.Fatalf("limit %d: %d records, %v; without one %d, %v", limit, len(few), ferr, len(all), err)
		}
		for i := range all {
			if few[i].offset != all[i].offset || few[i].hash != all[i].hash || all[i].large && !few[i].large {
				t.Fatalf("limit %d: record %d is %+v, without a limit %+v", limit, i, few[i], all[i])
			}
		}
	})
}

// The end of the context ends the reading of a record that is too large.
func TestReaderEnds(t *testing.T) {
	raw, _, err := Cut(kafkatest.Bomb([]byte("aa"), []byte("cc"), 64<<20).Append(nil))
	b := Reader{Codec: codec}
	if err != nil || Check(raw) != nil || b.Parse(raw) != nil || b.Begin(raw, 1<<20) != nil {
		t.Fatal("a batch that is whole is not read")
	}
	defer b.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var a Arena
	var r Record
	if more, err := b.Next(ctx, &a, &r); !more || err != nil || string(r.Value) != "aa" {
		t.Fatalf("%v, %v: %q", more, err, r.Value)
	}
	cancel()
	if _, err := b.Next(ctx, &a, &r); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context has ended: %v", err)
	}
	if !b.Open() {
		t.Error("not open before Close")
	}
	raw[len(raw)-1] ^= 1
	if err := Check(raw); err != ErrChecksum {
		t.Errorf("a bit is wrong: %v", err)
	}
}
