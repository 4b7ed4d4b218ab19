package matfact

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/rival"
)

// The benchmarks below have one rival. It draws the same number of Gaussians, without any protection, by NormFloat64 on
// ChaCha8.

// BenchmarkFilter measures a step in float64 without the draw.
func BenchmarkFilter(b *testing.B) {
	eachFactor(b, func(b *testing.B, c benchedFactor, dim int) {
		filter, z, y := c.filter(dim), make([]float64, dim), make([]float64, dim)
		for i := range z {
			z[i] = math.Sin(float64(i))
		}
		rival.Compare(b, dim, func() { filter.Next(y, z) }, "NormFloat64", normals(dim))
	})
}

// BenchmarkShaper measures a step in integers without the draw: Predict, a
// rounding in float64, Push.
func BenchmarkShaper(b *testing.B) {
	eachFactor(b, func(b *testing.B, c benchedFactor, dim int) {
		shaper, z, s, w := c.shaper(dim), make([]float64, dim), make([]float64, dim), make([]int64, dim)
		for i := range z {
			z[i] = (1 << 24) * math.Sin(float64(i))
		}
		rival.Compare(b, dim, func() {
			r := shaper.Predict(s)
			for i, x := range z {
				w[i] = int64(r*(x-s[i]) + 0.5)
			}
			shaper.Push(w)
		}, "NormFloat64", normals(dim))
	})
}

// BenchmarkNoise measures all noise of a step: absorbing the row, keys, draws, exact rounding and correlation.
func BenchmarkNoise(b *testing.B) {
	eachFactor(b, func(b *testing.B, c benchedFactor, dim int) {
		step := noiseStep(b, c, dim, "bench")
		rival.Compare(b, dim, step, "NormFloat64", normals(dim))
	})
}

// BenchmarkCores measures a step of a long row, including draws, by two goroutines with half of the coordinates each.
// The rival does the same with one goroutine.
func BenchmarkCores(b *testing.B) {
	c := benchedFactor{"blt4",
		Narrow(mustNew(b, Config{Kind: "blt", Tune: 1e5, Buffers: 4}, Workload{Kind: "sum"}), benchNoise), 0}
	for _, dim := range []int{100000, 1 << 20} {
		halves := func() [2]func() {
			return [2]func(){noiseStep(b, c, dim/2, "first half"), noiseStep(b, c, dim/2, "second half")}
		}
		both, one := halves(), halves()
		b.Run(fmt.Sprintf("D=%d", dim), func(b *testing.B) {
			rival.Compare(b, dim, func() {
				var group sync.WaitGroup
				for _, step := range both {
					group.Go(step)
				}
				group.Wait()
			}, "one-core", func() {
				for _, step := range one {
					step()
				}
			})
		})
	}
}

// noiseStep returns a step of noise for dim coordinates.
func noiseStep(b *testing.B, c benchedFactor, dim int, stream string) func() {
	epoch, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, stream, 1, [16]byte{}, [32]byte{})
	if err != nil {
		b.Fatal(err)
	}
	h := dp.NewTranscript([32]byte{3})
	shaper, s, w, hidden := c.shaper(dim), make([]float64, dim), make([]int64, dim), make([]int64, dim)
	var t uint64
	return func() {
		t++
		row := epoch.Step(t, &h).Row("bench", hidden)
		r := shaper.Predict(s)
		dp.RoundRow(w, row, []float64{benchNoise}, s, r)
		shaper.Push(w)
	}
}

func eachFactor(b *testing.B, f func(b *testing.B, c benchedFactor, dim int)) {
	for _, c := range benched(b) {
		for _, dim := range []int{10, 1000, 1000000} {
			b.Run(fmt.Sprintf("%s/D=%d", c.name, dim), func(b *testing.B) { f(b, c, dim) })
		}
	}
}

// normals returns the rival.
func normals(dim int) func() {
	source := rand.New(rand.NewChaCha8([32]byte{}))
	return func() {
		for range dim {
			benchSink += source.NormFloat64()
		}
	}
}

// benchNoise is the standard deviation of draws, in lattice units.
const benchNoise = 1 << 24

var benchSink float64

// benchedFactor is a factorization, and the number of steps after which its shaper or filter is measured.
type benchedFactor struct {
	name string
	f    Factorization
	from uint64
}

// filter returns a filter with its full state.
func (c benchedFactor) filter(dim int) Filter {
	filter, z := c.f.NewFilter(dim), make([]float64, dim)
	if f, ok := filter.(*bufferedFilter); ok && c.from > 0 {
		f.step = c.from
		f.enter(f.matrix.phase(c.from + 1))
	}
	for range 40 {
		filter.Next(z, z)
	}
	return filter
}

// shaper returns a shaper with its full state.
func (c benchedFactor) shaper(dim int) Shaper {
	shaper, w := c.f.NewShaper(dim), make([]int64, dim)
	if s, ok := shaper.(*bufferedShaper); ok {
		s.step, s.phase = c.from, s.phaseAfter(c.from)
	}
	for range 40 {
		shaper.Push(w)
	}
	return shaper
}

// benched returns factorizations. Estimators use blt4 for single rows and wide4 for rows of persons.
func benched(t testing.TB) []benchedFactor {
	sum := Workload{Kind: "sum"}
	return []benchedFactor{
		{"identity", mustNew(t, Config{Kind: "identity"}, sum), 0},
		{"bsr8", mustNew(t, Config{Kind: "bsr", Bands: 8}, sum), 0},
		{"bsr32", mustNew(t, Config{Kind: "bsr", Bands: 32}, sum), 0},
		{"bisr8", mustNew(t, Config{Kind: "bisr", Bands: 8}, sum), 0},
		{"bisr32", mustNew(t, Config{Kind: "bisr", Bands: 32}, sum), 0},
		{"blt2", mustNew(t, Config{Kind: "blt", Tune: 1e5, Buffers: 2}, sum), 0},
		{"blt4", Narrow(mustNew(t, Config{Kind: "blt", Tune: 1e5, Buffers: 4}, sum), benchNoise), 0},
		{"wide4", mustNew(t, Config{Kind: "blt", Tune: 1e5, Buffers: 4}, sum), 0},
		{"phased", mustNew(t, Config{Kind: "phased"}, sum), 1e6},
	}
}

// BenchmarkRowVar measures consecutive steps, as releases need them.
func BenchmarkRowVar(b *testing.B) {
	for _, kind := range []string{"blt", "phased"} {
		for _, w := range []Workload{{Kind: "mean"}, {Kind: "exponential", Decay: 0.999},
			{Kind: "window", Window: 1000}} {
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
		{"persons/N=1e6/k=1000", AutoPersons(Workload{Kind: "sum"}, 1e6, Participation{Count: 1000, Separation: 100}),
			Workload{Kind: "sum"}},
		{"persons/N=1e9/k=1e6/d=8", AutoPersons(Workload{Kind: "sum"}, 1e9, Participation{Count: 1e6, Separation: 10}),
			Workload{Kind: "sum"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustNew(b, c.c, c.w)
			}
		})
	}
}
