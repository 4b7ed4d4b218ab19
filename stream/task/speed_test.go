package task

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/codec"
)

// TestAllocations: between a response and the end of a step, a packed record allocates nothing. The allocations of a
// response do not grow with its size.
func TestAllocations(t *testing.T) {
	perResponse := func(n int) float64 {
		m := newMachine(t, fixtures.WideStream(16, 1<<30), 1)
		records := fixtures.PackedRecords(16, n)
		next := int64(0)
		b := fixtures.Response(records, 0)
		round := func() {
			b.First, b.Next = next, next+int64(n)
			for i := range b.Records {
				b.Records[i].Offset = next + int64(i)
			}
			next = b.Next
			m.decoder.Decode(b)
			m.p.applier.current, m.p.applier.next = b, 0
			if err := m.p.apply(); err != nil {
				t.Fatal(err)
			}
			<-m.p.applier.fetch.Free
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

// BenchmarkRecord measures the cost of a packed record from response to release.
func BenchmarkRecord(b *testing.B) {
	for _, d := range []int{3, 16, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			const n = 4096
			m := newMachine(b, fixtures.WideStream(d, 1000), 1)
			records := fixtures.PackedRecords(d, n)
			r := fixtures.Response(records, 0)
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
	m.p.applier.current, m.p.applier.next = r, 0
	for m.p.applier.current != nil {
		if err := m.p.apply(); err != nil {
			m.t.Fatal(err)
		}
		if len(m.p.committer.pending) > 0 {
			m.p.committer.pending, m.p.committer.pendingBytes = m.p.committer.pending[:0], 0
		}
	}
	<-m.p.applier.fetch.Free
}

// BenchmarkFlat: a record costs the same at the beginning of a stream as after ten million records. It fails if the
// costs differ by more than half.
func BenchmarkFlat(b *testing.B) {
	for range b.N {
		flat(b)
	}
}

func flat(b testing.TB) {
	const chunk, rounds = 1000, 1000
	r := fixtures.Response(fixtures.PackedRecords(16, chunk), 0)
	type stage struct {
		m    *machine
		next int64
		best float64 // ns per record
	}
	var stages []*stage
	for _, upTo := range []int64{1e3, 1e4, 1e5, 1e6, 1e7} {
		s := &stage{m: newMachine(b, fixtures.WideStream(16, 1000), 1), best: math.Inf(1)}
		for s.next < upTo {
			s.m.respond(r, &s.next)
		}
		stages = append(stages, s)
	}
	// Run the stages in turn and take the fastest run of each, because the machine is shared.
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
