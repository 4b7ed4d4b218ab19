package codec

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
)

// TestDecodeParallel: rows and reasons do not depend on the number of goroutines that decode.
func TestDecodeParallel(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	random := source{rng}
	texts, packed := make([]kafka.Record, 7000), make([]kafka.Record, 7000)
	for i := range packed {
		texts[i].Value = []byte(random.record([]string{"a", "b", "c"}))
		if rng.IntN(9) == 0 {
			texts[i].Value = random.mutate(texts[i].Value)
		}
		for range 3 {
			packed[i].Value = binary.LittleEndian.AppendUint64(packed[i].Value, math.Float64bits(rng.NormFloat64()))
		}
		if rng.IntN(9) == 0 {
			packed[i].Value = packed[i].Value[:rng.IntN(24)]
		}
	}
	for name, records := range map[string][]kafka.Record{"json": texts, "float64": packed} {
		var want *Batch
		for _, workers := range []int{1, 2, 3, 8} {
			d, err := NewDecoder(Format{Name: name, Columns: []string{"a", "b", "c"}}, workers)
			if err != nil {
				t.Fatal(err)
			}
			b := &Batch{}
			b.Records = records
			for _, rec := range records {
				b.Bytes += len(rec.Value)
			}
			if b.Bytes < 2*parallelBytes {
				t.Fatalf("%d bytes are too few for a second goroutine", b.Bytes)
			}
			b.rows = make([]float64, 3*len(records)) // left from an earlier, larger response
			for i := range b.rows {
				b.rows[i] = math.NaN()
			}
			d.Decode(b)
			if want == nil {
				want = b
				continue
			}
			for i := range records {
				if b.Reasons[i] != want.Reasons[i] {
					t.Fatalf("%s, %d workers: record %d: %v, want %v", name, workers, i, b.Reasons[i], want.Reasons[i])
				}
				for j := range 3 {
					if math.Float64bits(b.rows[3*i+j]) != math.Float64bits(want.rows[3*i+j]) {
						t.Fatalf("%s, %d workers: record %d column %d: %g, want %g", name, workers, i, j, b.rows[3*i+j],
							want.rows[3*i+j])
					}
				}
			}
		}
	}
}

// A record that was too large to be kept has the reason TooLarge and a row of zeros, with every codec and whatever the
// row contained before.
func TestDecodeTooLarge(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{
		{Name: "json", Columns: []string{"a"}}, {Name: "csv", Columns: []string{"1"}},
		{Name: "float64", Gradient: 1, StepHeader: "s"},
	} {
		d, err := NewDecoder(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		b := &Batch{rows: []float64{1, 2, 3, 4}}
		b.Records = []kafka.Record{{TooLarge: true}, {}}
		d.Decode(b)
		if b.Reasons[0] != TooLarge || b.Reasons[1] != Null || b.Row(0) != nil || len(b.rows) > 0 && b.rows[0] != 0 {
			t.Errorf("%s: reasons %v, rows %v", f.Name, b.Reasons, b.rows)
		}
	}
}
