package adam

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/rival"
	"github.com/streamdp/streamdp/matfact"
)

// BenchmarkStep measures the end of a step: keys, transcript, noise, moments, parameters and the release. The rival
// only draws the same noise, correlated in the same way, and moves the same number of parameters by Adam without
// privacy. The rival can use only one processor, so both run on one. BenchmarkScaling measures several.
func BenchmarkStep(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, c := range []Config{
		{Method: "pp_debiased"},
		{Method: "jme_per_example"},
		{Method: "pp_debiased", Factorization: "blt"},
		{Method: "momentum"},
	} {
		for _, d := range []int{1_000, 1_000_000, 10_000_000} {
			c.Dim = d
			b.Run(fmt.Sprintf("%s/%s/d=%d", c.Method, or(c.Factorization, "identity"), d), func(b *testing.B) {
				e := benchmarked(b, c)
				noise, step := keyed(b, 1), uint64(0)
				name, plain := "noise+adam", newPlainAdam(b, d, e.second != nil)
				if e.shards[0].shapers[0] != nil {
					name = "shaped+adam" // the same amount of noise, correlated in the same way
					plain.shape(e)
				}
				rival.Compare(b, d, func() {
					step++
					if _, err := e.Close(noise(step)); err != nil {
						b.Fatal(err)
					}
				}, name, plain.step)
			})
		}
	}
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func benchmarked(b testing.TB, c Config) *Estimator {
	c.Clip, c.Rate, c.Step = 1, 1e-3, 32
	e, err := New(c, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// plainAdam is the published Adam, run on gradients that are only noise.
type plainAdam struct {
	rows        []dp.Row
	w           []int64
	m, v, theta []float64
	i           float64

	cursor  dp.Cursor
	shapers []matfact.Shaper // one shaper for each shard; nil for independent noise
	predict []float64
}

// shape correlates the noise as e does, in shards of the same size.
func (p *plainAdam) shape(e *Estimator) {
	p.predict = make([]float64, shardSize)
	for _, s := range e.shards {
		p.shapers = append(p.shapers, e.factors.first.NewShaper(s.to-s.from))
	}
}

// draw draws the noise of a step.
func (p *plainAdam) draw(row dp.Row) {
	sd := []float64{1 << 24}
	if p.shapers == nil {
		dp.RoundRow(p.w, row, sd, nil, 1)
		return
	}
	p.cursor.Open(row)
	for i, shaper := range p.shapers {
		from := i * shardSize
		w := p.w[from:min(from+shardSize, len(p.w))]
		r := shaper.Predict(p.predict[:len(w)])
		p.cursor.Round(w, from, sd, p.predict[:len(w)], r)
		shaper.Push(w)
	}
}

func newPlainAdam(b testing.TB, d int, two bool) *plainAdam {
	p := &plainAdam{w: make([]int64, d), m: make([]float64, d), v: make([]float64, d), theta: make([]float64, d)}
	e, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "rival", 1, [16]byte{}, [32]byte{})
	if err != nil {
		b.Fatal(err)
	}
	h := dp.NewTranscript([32]byte{})
	noise := e.Step(1, &h)
	p.rows = append(p.rows, noise.Row("first", p.w))
	if two {
		p.rows = append(p.rows, noise.Row("second", p.w))
	}
	return p
}

func (p *plainAdam) step() {
	for _, row := range p.rows {
		p.draw(row)
	}
	const beta1, beta2, eps, rate = 0.9, 0.999, 1e-8, 1e-3
	p.i++
	c1, c2 := 1-math.Pow(beta1, p.i), 1-math.Pow(beta2, p.i)
	m, v, theta := p.m, p.v[:len(p.m)], p.theta[:len(p.m)]
	for j, w := range p.w[:len(m)] {
		g := float64(w) * 0x1p-24
		m[j] = beta1*m[j] + (1-beta1)*g
		v[j] = beta2*v[j] + (1-beta2)*g*g
		theta[j] -= rate * (m[j] / c1) / (math.Sqrt(v[j]/c2) + eps)
	}
}

// BenchmarkAdd measures quantising, testing and adding a gradient against a float64 sum of clipped gradients.
func BenchmarkAdd(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, method := range []string{"pp_debiased", "jme_per_example", "joint_clip"} {
		for _, d := range []int{1_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/d=%d", method, d), func(b *testing.B) {
				c := Config{Method: method, Dim: d}
				if method == "joint_clip" {
					c.Tau = 1
				}
				e := benchmarked(b, c)
				g, sum := make([]float64, d), make([]float64, d)
				for j := range g {
					g[j] = math.Sin(float64(j))
				}
				rival.Compare(b, d, func() { e.Add(0, g) }, "sum", func() {
					var square float64
					for _, x := range g {
						square += x * x
					}
					scale := min(1, 1/math.Sqrt(square))
					for j, x := range g {
						sum[j] += scale * x
					}
				})
			})
		}
	}
}

// BenchmarkScaling runs a whole step, one gradient and its end, with all processors and with one, and reports the
// speedup.
func BenchmarkScaling(b *testing.B) {
	all := runtime.GOMAXPROCS(0)
	for _, kind := range []string{"identity", "blt"} {
		for _, d := range []int{1_000_000, 10_000_000} {
			b.Run(fmt.Sprintf("%s/d=%d", kind, d), func(b *testing.B) {
				e := benchmarked(b, Config{Factorization: kind, Dim: d})
				noise, step := keyed(b, 1), uint64(0)
				g := make([]float64, d)
				for j := range g {
					g[j] = math.Sin(float64(j))
				}
				run := func() time.Duration {
					start := time.Now()
					e.Add(0, g)
					step++
					if _, err := e.Close(noise(step)); err != nil {
						b.Fatal(err)
					}
					return time.Since(start)
				}
				run()
				var one, many time.Duration
				for b.Loop() {
					many += run()
					b.StopTimer()
					runtime.GOMAXPROCS(1)
					one += run()
					runtime.GOMAXPROCS(all)
					b.StartTimer()
				}
				b.ReportMetric(float64(one)/float64(many), "times-faster")
				b.ReportMetric(float64(all), "processors")
			})
		}
	}
}
