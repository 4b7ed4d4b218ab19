package stream

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/race"
	"github.com/streamdp/streamdp/stream/codec"
)

// wideStream has d packed columns.
func wideStream(d, step int) string {
	names := make([]string, d)
	for i := range names {
		names[i] = fmt.Sprintf("%q", fmt.Sprint("c", i))
	}
	return with(machineStream,
		`codec = "json", columns = ["a", "b", "c"]`, fmt.Sprintf(`codec = "float64", columns = [%s]`, strings.Join(names, ", ")),
		"centre = [1.0, 0.0, -2.0]\nscale  = [0.5, 4.0, 1.5]\n", "",
		"step   = 7", fmt.Sprintf("step = %d", step))
}

// packedRecords are n records of d columns.
func packedRecords(d, n int) []kafka.Record {
	rng := rand.New(rand.NewPCG(uint64(d), uint64(n)))
	list := make([]kafka.Record, n)
	for i := range list {
		list[i].Offset = int64(i)
		for range d {
			list[i].Value = binary.LittleEndian.AppendUint64(list[i].Value, math.Float64bits(rng.NormFloat64()/math.Sqrt(float64(d))))
		}
	}
	return list
}

// response is one response with records of offsets [first, first+len).
func response(records []kafka.Record, first int64) *codec.Batch {
	b := &codec.Batch{}
	b.First, b.Next = first, first+int64(len(records))
	for i, rec := range records {
		rec.Offset = first + int64(i)
		b.Records = append(b.Records, rec)
		b.Bytes += len(rec.Value)
	}
	return b
}

// TestAllocations: between a response and the end of a step, a packed record
// allocates nothing. What a response allocates does not grow with it.
func TestAllocations(t *testing.T) {
	perResponse := func(n int) float64 {
		m := newMachine(t, wideStream(16, 1<<30), 1)
		records := packedRecords(16, n)
		next := int64(0)
		b := response(records, 0)
		round := func() {
			b.First, b.Next = next, next+int64(n)
			for i := range b.Records {
				b.Records[i].Offset = next + int64(i)
			}
			next = b.Next
			m.decoder.Decode(b)
			m.p.current, m.p.next = b, 0
			if err := m.p.apply(); err != nil {
				t.Fatal(err)
			}
			<-m.p.fetch.free
		}
		round() // buffers grow once
		return testing.AllocsPerRun(20, round)
	}
	small, large := perResponse(1000), perResponse(20_000)
	t.Logf("%g allocations for 1000 records, %g for 20000", small, large)
	if large > small+16 || large > 40 {
		t.Errorf("%g allocations for 1000 records, %g for 20000", small, large)
	}
}

// BenchmarkRecord is the cost of a packed record from response to release.
func BenchmarkRecord(b *testing.B) {
	for _, d := range []int{3, 16, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			const n = 4096
			m := newMachine(b, wideStream(d, 1000), 1)
			records := packedRecords(d, n)
			r := response(records, 0)
			b.SetBytes(int64(8 * d))
			b.ReportAllocs()
			next := int64(0)
			b.ResetTimer()
			for range (b.N + n - 1) / n {
				m.respond(r, &next)
			}
		})
	}
}

// respond applies a response at the next offsets.
func (m *machine) respond(r *codec.Batch, next *int64) {
	r.First, r.Next = *next, *next+int64(len(r.Records))
	for i := range r.Records {
		r.Records[i].Offset = *next + int64(i)
	}
	*next = r.Next
	m.decoder.Decode(r)
	m.p.current, m.p.next = r, 0
	for m.p.current != nil {
		if err := m.p.apply(); err != nil {
			m.t.Fatal(err)
		}
		if len(m.p.pending) > 0 {
			m.p.pending, m.p.pendingBytes = m.p.pending[:0], 0
		}
	}
	<-m.p.fetch.free
}

// BenchmarkFlat: a record costs the same at the beginning of a stream and after
// ten million of them. It fails where the costs differ by more than a half.
func BenchmarkFlat(b *testing.B) {
	for range b.N {
		flat(b)
	}
}

func flat(b testing.TB) {
	const chunk, rounds = 1000, 1000
	r := response(packedRecords(16, chunk), 0)
	type stage struct {
		m    *machine
		next int64
		best float64 // ns a record
	}
	var stages []*stage
	for _, upTo := range []int64{1e3, 1e4, 1e5, 1e6, 1e7} {
		s := &stage{m: newMachine(b, wideStream(16, 1000), 1), best: math.Inf(1)}
		for s.next < upTo {
			s.m.respond(r, &s.next)
		}
		stages = append(stages, s)
	}
	// In turn, and the fastest of each: the machine is shared.
	for range rounds {
		for _, s := range stages {
			begun := time.Now()
			s.m.respond(r, &s.next)
			s.best = min(s.best, float64(time.Since(begun).Nanoseconds())/chunk)
		}
	}
	low, high := math.Inf(1), 0.0
	var cost []float64
	for _, s := range stages {
		low, high = min(low, s.best), max(high, s.best)
		cost = append(cost, s.best)
	}
	b.Logf("ns a record, after 10³, 10⁴, 10⁵, 10⁶, 10⁷: %.0f; largest over smallest %.2f", cost, high/low)
	if high/low > 1.5 {
		b.Errorf("the cost of a record is not flat: %.2f", high/low)
	}
	if bench, ok := b.(*testing.B); ok {
		bench.ReportMetric(high/low, "largest/smallest")
	}
}

// TestMemory: the daemon's resident memory with 100 packed columns and broker in
// another process. The collector is asked to keep to 64 MiB: without that the peak is
// decided by when it gets the processor. Three answers of 4 MiB are held at a time, four chunks
// of a MiB with their rows, and at 200 kB a release 4 MiB of these for each of two commits.
func TestMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes several times the memory")
	}
	t.Parallel()
	const columns, records, step = 100, 60_000, 1000
	b := spawn(t, childSpec{Role: "broker", Topics: []string{"in"}}).up()
	toml := with(wideStream(columns, step), `"in"`, `"in"`)
	r := newRigAt(t, nil, b.addr, toml)
	var list []kafka.Message
	for _, rec := range packedRecords(columns, 5000) {
		list = append(list, kafka.Message{Value: rec.Value, Time: time.UnixMilli(1)})
	}
	for range records / len(list) {
		if _, err := r.client.Produce(t.Context(), "in", 0, list); err != nil {
			t.Fatal(err)
		}
	}
	r.commit = "200ms"
	p := spawn(t, childSpec{Role: "daemon", Config: string(r.text()), Seed: r.seed, Memory: 64 << 20}).up()
	x := &remote{t, p}
	x.until(`streamdp_step{partition="0",stream="m"} 60`)
	x.until(`streamdp_outbox_releases{partition="0",stream="m"} 0`)
	peak := highWater(t, p.cmd.Process.Pid)
	if code := p.terminate(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
	t.Logf("%d records of %d columns, %d MB: the daemon's resident memory was at most %.1f MB", records, columns, records*columns*8>>20, peak)
	if peak > 120 {
		t.Errorf("%.1f MB of resident memory", peak)
	}
}

// remote is a daemon in another process.
type remote struct {
	t testing.TB
	p *process
}

// until waits for a line of its metrics.
func (x *remote) until(line string) {
	x.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		_, page := fetch(x.t, "http://"+x.p.addr+"/metrics")
		if strings.Contains(page, "\n"+line+"\n") {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("not reached: %s\n%s\n%s", line, page, x.p.stderr)
		}
		time.Sleep(20 * time.Millisecond) // between two looks; no notice comes from another process
	}
}

// highWater is the largest resident memory of a process so far, in MB.
func highWater(t testing.TB, pid int) float64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc here to measure memory with")
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) == 3 && fields[0] == "VmHWM:" {
			kb, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return float64(kb) / 1024
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
