package schema

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/avro"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/streamdp/streamdp/internal/column"
)

// The benchmarks read sixteen columns out of 22 fields, among them an identifier, a time, a status, a note and an
// optional field.
var benchAvroSchema, benchProtoSchema = func() (string, string) {
	var a, p strings.Builder
	a.WriteString(
		`{"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "status", "type": {"type": "enum", "name": "S", "symbols": ["UP", "DOWN"]}}, {"name": "place", "type": {"type": "record", "name": "P", "fields": [{"name": "zone", "type": "string"}, {"name": "rack", "type": "int"}]}}`)
	p.WriteString(`syntax = "proto3"; message R { string id = 1; int64 at = 2; S status = 3; P place = 4; `)
	for i := range 16 {
		avroType, protoType := `"double"`, "double"
		switch i % 4 {
		case 2:
			avroType, protoType = `["null", "double"]`, "optional double"
		case 3:
			avroType, protoType = `"int"`, "int32"
		}
		fmt.Fprintf(&a, `, {"name": "f%d", "type": %s}`, i, avroType)
		fmt.Fprintf(&p, "%s f%d = %d; ", protoType, i, i+5)
	}
	a.WriteString(`, {"name": "ok", "type": "boolean"}, {"name": "note", "type": ["null", "string"]}]}`)
	p.WriteString(
		`bool ok = 21; string note = 22; } enum S { UP = 0; DOWN = 1; } message P { string zone = 1; int32 rack = 2; }`)
	return a.String(), p.String()
}()

type benchRow struct {
	F0  float64  `avro:"f0"`
	F1  float64  `avro:"f1"`
	F2  *float64 `avro:"f2"`
	F3  int32    `avro:"f3"`
	F4  float64  `avro:"f4"`
	F5  float64  `avro:"f5"`
	F6  *float64 `avro:"f6"`
	F7  int32    `avro:"f7"`
	F8  float64  `avro:"f8"`
	F9  float64  `avro:"f9"`
	F10 *float64 `avro:"f10"`
	F11 int32    `avro:"f11"`
	F12 float64  `avro:"f12"`
	F13 float64  `avro:"f13"`
	F14 *float64 `avro:"f14"`
	F15 int32    `avro:"f15"`
}

func benchPaths() (all [][]column.Element) {
	for i := range 16 {
		all = append(all, path(fmt.Sprintf("f%d", i)))
	}
	return all
}

const (
	benchZone = "eu-west-1"
	benchNote = "sensor 17 replaced in May"
)

// benchAvro returns records of benchAvroSchema.
func benchAvro(n int) [][]byte {
	r := rand.New(rand.NewPCG(9, 10))
	text := func(b []byte, s string) []byte { return append(binary.AppendVarint(b, int64(len(s))), s...) }
	records := make([][]byte, n)
	for k := range records {
		b := text(nil, fmt.Sprintf("%016x", r.Uint64()))
		b = binary.AppendVarint(b, 1700000000000+r.Int64N(1e11))
		b = append(b, byte(2*r.IntN(2)))
		b = binary.AppendVarint(text(b, benchZone), r.Int64N(100))
		for i := range 16 {
			switch i % 4 {
			case 3:
				b = binary.AppendVarint(b, r.Int64N(2000)-1000)
				continue
			case 2:
				b = append(b, 2)
			}
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.NormFloat64()))
		}
		records[k] = text(append(b, 1, 2), benchNote)
	}
	return records
}

// benchProto returns the same records as Protobuf messages.
func benchProto(t testing.TB, s *Schema, n int) [][]byte {
	r := rand.New(rand.NewPCG(9, 10))
	records := make([][]byte, n)
	for k := range records {
		b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprintf("%016x", r.Uint64()))
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType),
			uint64(1700000000000+r.Int64N(1e11)))
		b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(r.IntN(2)))
		place := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), benchZone)
		place = protowire.AppendVarint(protowire.AppendTag(place, 2, protowire.VarintType), r.Uint64N(100))
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), place)
		for i := range 16 {
			if i%4 == 3 {
				b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(i+5), protowire.VarintType),
					r.Uint64N(2000))
				continue
			}
			b = protowire.AppendFixed64(protowire.AppendTag(b, protowire.Number(i+5), protowire.Fixed64Type),
				math.Float64bits(r.NormFloat64()))
		}
		b = protowire.AppendVarint(protowire.AppendTag(b, 21, protowire.VarintType), 1)
		records[k] = protowire.AppendString(protowire.AppendTag(b, 22, protowire.BytesType), benchNote)
	}
	return records
}

// BenchmarkSchema reports the cost of a record with 16 columns as a share of the cost of decoding it with a library.
// Reader and library are measured alternately.
func BenchmarkSchema(b *testing.B) {
	const many = 4096
	a := mustAvro(b, benchAvroSchema)
	library, err := avro.Parse(benchAvroSchema)
	if err != nil {
		b.Fatal(err)
	}
	records := benchAvro(many)
	b.Run("avro/struct", func(b *testing.B) {
		benchmarkReader(b, a, records, func(value []byte) error {
			var row benchRow
			_, err := library.Decode(value, &row, avro.SkipUnknown())
			return err
		})
	})
	b.Run("avro/map", func(b *testing.B) {
		benchmarkReader(b, a, records, func(value []byte) error {
			var row any
			_, err := library.Decode(value, &row)
			return err
		})
	})
	p := mustProto(b, benchProtoSchema)
	b.Run("protobuf/dynamicpb", func(b *testing.B) {
		m := dynamicpb.NewMessage(p.proto.message)
		benchmarkReader(b, p, benchProto(b, p, many), func(value []byte) error {
			return proto.Unmarshal(value, m)
		})
	})
}

func benchmarkReader(b *testing.B, s *Schema, records [][]byte, rival func([]byte) error) {
	plan, _ := s.Plan(benchPaths())
	r := NewReader(plan)
	var own, other time.Duration
	var sum float64
	const turn = 256
	for i := 0; b.Loop(); i += turn {
		values := records[i%len(records):][:turn]
		start := time.Now()
		for _, value := range values {
			if !r.Read(value) {
				b.Fatal("refused")
			}
			for k := range 16 {
				sum += r.Value(k).Num
			}
		}
		own += time.Since(start)
		start = time.Now()
		for _, value := range values {
			if err := rival(value); err != nil {
				b.Fatal(err)
			}
		}
		other += time.Since(start)
	}
	n := float64(b.N * turn)
	b.ReportMetric(float64(own.Nanoseconds())/n, "ns/record")
	b.ReportMetric(float64(other.Nanoseconds())/n, "rival-ns/record")
	b.ReportMetric(float64(own)/float64(other), "ratio")
	b.ReportMetric(n/own.Seconds()/1e6, "Mrecords/s")
	b.ReportMetric(0, "ns/op")
}
