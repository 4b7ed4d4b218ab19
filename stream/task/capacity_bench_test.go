package task

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// capacityStream returns a typical stream of d columns with a codec and a mechanism.
func capacityStream(mechanism, codec string, d int) string {
	columns := make([]string, d)
	for i := range columns {
		columns[i] = strconv.Quote(capacityColumn(codec, i))
	}
	target := capacityColumn(codec, d-1)
	table := map[string]string{
		"moments": "clip = 1.0\n",
		"sgd":     fmt.Sprintf("target = %q\nclip_x = 3.0\n", target),
		"refit":   fmt.Sprintf("target = %q\nclip_x = 3.0\nclip_y = 4.0\nwindow = 10_000\n", target),
		"adam": fmt.Sprintf(
			"mode = \"model\"\nclip = 1.0\nrate = 0.05\nmodel = { loss = \"linear\", target = %q }\n", target),
	}
	step := "step   = 1000\n"
	if mechanism == "sgd" || mechanism == "refit" {
		step = ""
	}
	output := `output = { topic = "out" }`
	if mechanism == "moments" && d == 1000 { // a release of all values would exceed the largest message
		output = `output = { topic = "out", values = ["mean"] }`
	}
	return fixtures.With(fixtures.MachineStream, `output = { topic = "out" }`, output,
		`codec = "json", columns = ["a", "b", "c"]`,
		fmt.Sprintf(`codec = %q, columns = [%s]`, codec, strings.Join(columns, ", ")),
		"centre = [1.0, 0.0, -2.0]\nscale  = [0.5, 4.0, 1.5]\n", "", "step   = 7\n", step,
		"[stream.m.moments]\nclip = 1.0\n", "[stream.m."+mechanism+"]\n"+table[mechanism])
}

func capacityColumn(codec string, i int) string {
	if codec == "csv" {
		return strconv.Itoa(i + 1)
	}
	return fmt.Sprint("c", i)
}

// capacityRecords returns n records. In text codecs their numbers have six decimals.
func capacityRecords(codec string, d, n int) []kafka.Record {
	rng := rand.New(rand.NewPCG(uint64(d), uint64(n)))
	list := make([]kafka.Record, n)
	for i := range list {
		var b []byte
		if codec == "json" {
			b = append(b, '{')
		}
		for j := range d {
			x := rng.NormFloat64() / math.Sqrt(float64(d))
			if codec == "float64" {
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
				continue
			}
			if j > 0 {
				b = append(b, ',')
			}
			if codec == "json" {
				b = fmt.Appendf(b, "%q:", capacityColumn(codec, j))
			}
			b = strconv.AppendFloat(b, x, 'f', 6, 64)
		}
		if codec == "json" {
			b = append(b, '}')
		}
		list[i] = kafka.Record{Offset: int64(i), Value: b}
	}
	return list
}

// BenchmarkCapacity measures the processor time per record, from a decoded batch to the release, by mechanism, codec
// and number of columns. It does not include fetching, which BenchmarkReader measures.
func BenchmarkCapacity(b *testing.B) {
	for _, mechanism := range []string{"moments", "sgd", "refit", "adam"} {
		for _, codec := range []string{"float64", "json", "csv"} {
			for _, d := range []int{10, 100, 1000} {
				if d == 1000 && (mechanism == "sgd" || mechanism == "refit") {
					continue // would invert matrices with a million entries at each of many steps
				}
				name := mechanism
				if name == "sgd" {
					name = "newton"
				}
				b.Run(fmt.Sprintf("%s/%s/d=%d", name, codec, d), func(b *testing.B) {
					m := newMachine(b, capacityStream(mechanism, codec, d), 1)
					n := max(100, 40_960/d)
					r, next := fixtures.Response(capacityRecords(codec, d, n), 0), int64(0)
					m.respond(r, &next)
					busy := fixtures.ProcessorTime(b)
					rounds := 0
					for b.Loop() {
						m.respond(r, &next)
						rounds++
					}
					b.ReportMetric(float64((fixtures.ProcessorTime(b)-busy).Nanoseconds())/float64(rounds*n),
						"cpu-ns/record")
				})
			}
		}
	}
}

// BenchmarkFootprint measures the memory of a task's estimator after its first step, the bytes of its state in a
// commit, and the bytes of a checkpoint.
func BenchmarkFootprint(b *testing.B) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // two collections empty pools
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	measure := func(name, toml string, d int) {
		b.Run(fmt.Sprintf("%s/d=%d", name, d), func(b *testing.B) {
			m := newMachine(b, toml, 1)
			row := make([]float64, d)
			row[0] = 0.5
			for b.Loop() {
				before := heap()
				mech, err := core.NewMechanism(m.r.S, m.m.Plan, nil)
				fixtures.Must(b, err)
				c, err := core.New(m.r.S, m.m, m.file, mech, m.keys())
				fixtures.Must(b, err)
				for at := c.First(); at < c.End(); at++ {
					c.Add(at, row)
				}
				_, err = c.Close()
				fixtures.Must(b, err)
				st, err := c.AppendState(nil)
				fixtures.Must(b, err)
				b.ReportMetric(float64(heap()-before), "heap-bytes")
				cp := state.Checkpoint{State: st}
				b.ReportMetric(float64(len(cp.Encode(nil))), "checkpoint-bytes")
				runtime.KeepAlive(c)
			}
		})
	}
	for _, d := range []int{10, 100, 1000} {
		measure("moments", capacityStream("moments", "float64", d), d)
	}
	for _, d := range []int{10, 100} {
		measure("newton", capacityStream("sgd", "float64", d), d)
	}
	for _, d := range []int{1_000_000, 10_000_000} {
		measure("adam",
			strings.ReplaceAll(
				fixtures.With(fixtures.GradientStream, "dim  = 3", fmt.Sprint("dim = ", d), "step   = 4", "step = 1"),
				"stream.orders", "stream.m"), d)
	}
}
