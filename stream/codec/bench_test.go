package codec

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/schema"
)

// benchRecords is the number of different records in benchmarks. With only a few, the processor's branch prediction
// would learn them, and the result would be too fast.
const benchRecords = 16384

var benchColumns = []string{"f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"}

// benchRow has the members of benchColumns, for encoding/json.
type benchRow struct {
	F0 float64 `json:"f0"`
	F1 float64 `json:"f1"`
	F2 float64 `json:"f2"`
	F3 float64 `json:"f3"`
	F4 float64 `json:"f4"`
	F5 float64 `json:"f5"`
	F6 float64 `json:"f6"`
	F7 float64 `json:"f7"`
	F8 float64 `json:"f8"`
	F9 float64 `json:"f9"`
}

// benchJSON returns records of 16 members, ten of them columns. Their numbers are printed with all digits or, if
// decimals ≥ 0, with this many decimals.
func benchJSON(decimals int) [][]byte {
	r := rand.New(rand.NewPCG(9, 10))
	records := make([][]byte, benchRecords)
	for i := range records {
		f := func() string { return strconv.FormatFloat(r.NormFloat64(), 'f', decimals, 64) }
		records[i] = fmt.Appendf(nil,
			`{"id":"%016x-%08x","ts":%d,"f0":%s,"f1":%s,"f2":%s,"f3":%s,"region":"%s","f4":%s,"f5":%s,"ok":%t,"f6":%s,"f7":%s,"n":%d,"f8":%s,"f9":%s,"note":"sensor 17 replaced in May; its drift corrected now"}`,
			r.Uint64(), r.Uint32(), 1700000000000+r.Int64N(1e11), f(), f(), f(), f(),
			[]string{"eu-west-1", "us-east-2", "ap-south-1"}[r.IntN(3)], f(), f(), r.IntN(2) == 0, f(), f(),
			r.IntN(100), f(), f())
	}
	return records
}

func size(records [][]byte) int64 {
	n := 0
	for _, b := range records {
		n += len(b)
	}
	return int64(n / len(records))
}

func benchmarkCodec(b *testing.B, name string, columns []string, records [][]byte) {
	codec, dst, rec := mustCodec(b, name, columns), make([]float64, len(columns)), &Record{}
	b.SetBytes(size(records))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		rec.Value = records[i%len(records)]
		if r := codec.Decode(rec, dst); r != Decoded {
			b.Fatal(r)
		}
	}
}

func BenchmarkCodec(b *testing.B) {
	b.Run("json/digits17", func(b *testing.B) { benchmarkCodec(b, "json", benchColumns, benchJSON(-1)) })
	b.Run("json/decimals3", func(b *testing.B) { benchmarkCodec(b, "json", benchColumns, benchJSON(3)) })
	b.Run("json/shuffled", func(b *testing.B) {
		// The worst case for remembered separators is a different order every time.
		r := rand.New(rand.NewPCG(11, 12))
		records := benchJSON(-1)
		for i, rec := range records {
			members := strings.Split(strings.Trim(string(rec), "{}"), ",")
			r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			records[i] = []byte("{" + strings.Join(members, ",") + "}")
		}
		benchmarkCodec(b, "json", benchColumns, records)
	})
	b.Run("json/nested", func(b *testing.B) {
		columns := make([]string, len(benchColumns))
		for i, c := range benchColumns {
			columns[i] = "payload.after." + c
		}
		records := benchJSON(-1)
		for i, rec := range records {
			records[i] = fmt.Appendf(nil,
				`{"op":"c","payload":{"source":{"db":"x","table":"y","lsn":[1,2]},"after":%s}}`, rec)
		}
		benchmarkCodec(b, "json", columns, records)
	})
	r := rand.New(rand.NewPCG(13, 14))
	rows := make([][]float64, benchRecords)
	for i := range rows {
		rows[i] = make([]float64, 10)
		for j := range rows[i] {
			rows[i][j] = r.NormFloat64()
		}
	}
	of := func(f func(row []float64) string) [][]byte {
		records := make([][]byte, len(rows))
		for i, row := range rows {
			records[i] = []byte(f(row))
		}
		return records
	}
	join := func(row []float64) string {
		cells := make([]string, len(row))
		for i, x := range row {
			cells[i] = strconv.FormatFloat(x, 'f', -1, 64)
		}
		return strings.Join(cells, ",")
	}
	b.Run("json-array", func(b *testing.B) {
		benchmarkCodec(b, "json-array", benchColumns, of(func(row []float64) string { return "[" + join(row) + "]" }))
	})
	b.Run("csv", func(b *testing.B) {
		// Lines have 16 cells, ten of them columns, as in the JSON records.
		benchmarkCodec(b, "csv", strings.Fields("3 4 5 6 8 9 11 12 14 15"), of(func(row []float64) string {
			return fmt.Sprintf("%016x,%d,%s,\"eu-west-1, zone a\",%s,true,%s,17,%s,", r.Uint64(), r.Uint32(),
				join(row[:4]), join(row[4:6]), join(row[6:8]), join(row[8:]))
		}))
	})
	b.Run("float64", func(b *testing.B) {
		benchmarkCodec(b, "float64", benchColumns, of(func(row []float64) string { return packed(row) }))
	})
	b.Run("float32", func(b *testing.B) {
		benchmarkCodec(b, "float32", benchColumns, of(func(row []float64) string {
			single := make([]float32, len(row))
			for i, x := range row {
				single[i] = float32(x)
			}
			return packed(single)
		}))
	})
}

// BenchmarkSchema reports how many framed records of 16 columns one goroutine turns into rows per second.
func BenchmarkSchema(b *testing.B) {
	r := rand.New(rand.NewPCG(15, 16))
	columns := make([]string, 16)
	var fields, numbers, members []string
	for i := range columns {
		columns[i] = fmt.Sprintf("f%d", i)
		fields = append(fields, fmt.Sprintf(`{"name": "f%d", "type": "double"}`, i))
		numbers = append(numbers, fmt.Sprintf("double f%d = %d;", i, i+1))
		members = append(members, fmt.Sprintf(`"f%d": {"type": "number"}`, i))
	}
	for name, text := range map[string]string{
		"avro": `{"type": "record", "name": "R", "fields": [` + strings.Join(fields, ",") +
			`, {"name": "note", "type": "string"}]}`,
		"protobuf":    `syntax = "proto3"; message R { ` + strings.Join(numbers, " ") + ` string note = 17; }`,
		"json-schema": `{"properties": {` + strings.Join(members, ",") + `}}`,
	} {
		records := make([][]byte, benchRecords)
		for k := range records {
			record := framed(7)
			row := make([]float64, 16)
			for i := range row {
				row[i] = math.Round(1e6*r.NormFloat64()) / 1e6
			}
			switch name {
			case "avro":
				record = append(append(record, packed(row)...), "\x18in the cellar"[:13]...)
			case "protobuf":
				record = append(record, 0)
				for i, x := range row {
					record = append(binary.AppendUvarint(record, uint64(i+1)<<3|1), packed([]float64{x})...)
				}
			default:
				record = append(record, '{')
				for i, x := range row {
					record = fmt.Appendf(record, `"f%d":%g,`, i, x)
				}
				record = append(record[:len(record)-1], '}')
			}
			records[k] = record
		}
		b.Run(name, func(b *testing.B) {
			f := Format{Name: name, Columns: columns,
				Schemas: &registry{have: map[int32]*schema.Schema{7: mustSchema(b, name, text)}}}
			codec, err := f.Codec()
			if err != nil {
				b.Fatal(err)
			}
			dst, rec := make([]float64, 16), &Record{}
			b.SetBytes(size(records))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				rec.Value = records[i%len(records)]
				if r := codec.Decode(rec, dst); r != Decoded {
					b.Fatal(r)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrecords/s")
		})
	}
}

// BenchmarkJSONRatio reports the cost of decoding a record as a fraction of what encoding/json takes to read it into a
// struct, both measured in turn. On a shared machine, absolute figures mean little, but the ratio within one run is
// meaningful.
func BenchmarkJSONRatio(b *testing.B) {
	b.Run("digits17", func(b *testing.B) { benchmarkJSONRatio(b, benchJSON(-1)) })
	b.Run("decimals3", func(b *testing.B) { benchmarkJSONRatio(b, benchJSON(3)) })
}

func benchmarkJSONRatio(b *testing.B, records [][]byte) {
	codec, dst, rec := mustCodec(b, "json", benchColumns), make([]float64, len(benchColumns)), &Record{}
	var own, rival time.Duration
	const turn = 256
	for i := 0; b.Loop(); i += turn {
		values := records[i%benchRecords:][:turn]
		start := time.Now()
		for _, rec.Value = range values {
			if r := codec.Decode(rec, dst); r != Decoded {
				b.Fatal(r)
			}
		}
		own += time.Since(start)
		start = time.Now()
		for _, value := range values {
			var row benchRow
			if err := json.Unmarshal(value, &row); err != nil {
				b.Fatal(err)
			}
		}
		rival += time.Since(start)
	}
	n := float64(b.N * turn)
	b.ReportMetric(float64(own.Nanoseconds())/n, "ns/record")
	b.ReportMetric(float64(rival.Nanoseconds())/n, "encoding/json-ns/record")
	b.ReportMetric(float64(own)/float64(rival), "ratio")
	b.ReportMetric(float64(size(records)), "B/record")
	b.ReportMetric(0, "ns/op")
}
