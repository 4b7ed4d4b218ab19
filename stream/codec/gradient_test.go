package codec

import (
	"bytes"
	"math"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
)

// TestManySmallRecords decodes a response of many records that are too small for a gradient of a million numbers: they
// get no rows.
func TestManySmallRecords(t *testing.T) {
	t.Parallel()
	const dim, n = 1_000_000, 400
	for _, codec := range []string{"float32", "float64", "json-array"} {
		d, err := NewDecoder(Format{Name: codec, Gradient: dim, StepHeader: "s"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		b := &Batch{}
		for i := range n {
			b.Records = append(b.Records, kafka.Record{Offset: int64(i), Value: []byte("[0]")})
		}
		full := make([]byte, 4*dim)
		switch codec {
		case "float64":
			full = make([]byte, 8*dim)
		case "json-array":
			full = append(append([]byte("["), bytes.Repeat([]byte("0,"), dim-1)...), "0]"...)
		}
		b.Records[17] = kafka.Record{Offset: 17, Value: full, Headers: []kafka.Header{{Key: "s", Value: []byte("3")}}}
		d.Decode(b)
		if len(b.rows) != dim+1 {
			t.Errorf("%s: %d numbers for one gradient", codec, len(b.rows))
		}
		for i := range n {
			row := b.Row(i)
			if (row != nil) != (i == 17) || row == nil && b.Reasons[i] != Arity {
				t.Fatalf("%s: record %d: %v, a row: %t", codec, i, b.Reasons[i], row != nil)
			}
		}
		if row := b.Row(17); row[dim] != 3 {
			t.Errorf("%s: taken at step %g", codec, row[dim])
		}
	}
}

// FuzzGradient decodes records with any value and header: a refused one leaves zeros, an accepted one has finite
// numbers and a step.
func FuzzGradient(f *testing.F) {
	for _, header := range []string{"0", "17", "-1", "", "1e3", "999999999999999", "1000000000000000", " 1", "0x1"} {
		f.Add([]byte("[1,2]"), header, "s", uint8(0))
		f.Add([]byte(packed([]float64{1, 2})), header, "s", uint8(1))
		f.Add(make([]byte, 8), header, "t", uint8(2))
	}
	f.Fuzz(func(t *testing.T, value []byte, header, name string, kind uint8) {
		codec, err := newGradientCodec([]string{"json-array", "float64", "float32"}[kind%3], 2, "s")
		if err != nil {
			t.Fatal(err)
		}
		row := []float64{7, 7, 7}
		r := codec.Decode(&Record{Value: value, Headers: []kafka.Header{{Key: name, Value: []byte(header)}}}, row)
		for _, x := range row {
			if x-x != 0 || r != Decoded && x != 0 {
				t.Fatalf("%v leaves %g", r, row)
			}
		}
		if r == Decoded && (name != "s" || row[2] < 0 || row[2] != math.Floor(row[2]) || row[2] >= 1e15) {
			t.Fatalf("header %q of %q gives step %g", header, name, row[2])
		}
	})
}
