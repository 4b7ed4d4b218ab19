package matfact

import (
	"fmt"
	"math"
	"testing"
)

// BenchmarkShaper measures a step (Predict and Push) with noise of realistic
// size, without the draw.
func BenchmarkShaper(b *testing.B) {
	sum := Workload{Kind: "sum"}
	for _, c := range []struct {
		name string
		f    Factorization
		from uint64
	}{
		{"blt4", mustNew(b, Config{Kind: "blt", Tune: 1e5, Buffers: 4}, sum), 0},
		{"phased", mustNew(b, Config{Kind: "phased"}, sum), 1e6},
	} {
		for _, dim := range []int{10, 1024, 1 << 20} {
			b.Run(fmt.Sprintf("%s/D=%d", c.name, dim), func(b *testing.B) {
				shaper := c.f.NewShaper(dim).(*bufferedShaper)
				shaper.step, shaper.phase = c.from, shaper.phaseAfter(c.from)
				s, w := make([]float64, dim), make([]int64, dim)
				for j := range w {
					w[j] = int64(float64(1<<25) * math.Sin(float64(j)))
				}
				shaper.Push(w)
				b.ReportAllocs()
				for b.Loop() {
					shaper.Predict(s)
					shaper.Push(w)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(dim), "ns/coordinate")
			})
		}
	}
}

// BenchmarkRowVar measures consecutive steps, as releases ask for them.
func BenchmarkRowVar(b *testing.B) {
	for _, kind := range []string{"blt", "phased"} {
		for _, w := range []Workload{{Kind: "mean"}, {Kind: "exponential", Decay: 0.999}, {Kind: "window", Window: 1000}} {
			b.Run(kind+"/"+w.Kind, func(b *testing.B) {
				f := mustNew(b, Config{Kind: kind, Tune: 1e6}, w)
				b.ReportAllocs()
				t := uint64(1e6)
				for b.Loop() {
					f.RowVar(w, t)
					t++
				}
			})
		}
	}
}

// BenchmarkOptimise measures New for a BLT.
func BenchmarkOptimise(b *testing.B) {
	for _, c := range []struct {
		name string
		c    Config
		w    Workload
	}{
		{"sum/N=1e6/d=6", Config{Kind: "blt", Tune: 1e6, Buffers: 6}, Workload{Kind: "sum"}},
		{"sum/N=1e9/d=8", Config{Kind: "blt", Tune: 1e9, Buffers: 8}, Workload{Kind: "sum"}},
		{"exponential/d=3", Config{Kind: "blt"}, Workload{Kind: "exponential", Decay: 0.999}},
		{"window/d=3", Config{Kind: "blt"}, Workload{Kind: "window", Window: 1000}},
		{"phased", Config{Kind: "phased"}, Workload{Kind: "sum"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustNew(b, c.c, c.w)
			}
		})
	}
}
