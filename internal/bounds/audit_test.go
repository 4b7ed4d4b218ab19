package bounds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// audited runs a warm-up over base. In each stage it counts base with record x, and base with record y in the same
// slot; the releases are those with x. It returns the distance of the two, in units of μ:
//
//	√Σ ‖C(h − h′)/σ‖² / μ,
//
// This is how far the noise of one would have to move to give the same releases. alter gets each stage's histograms
// before they are used, and may plant a fault.
func audited(t testing.TB, cfg Config, mu float64, adjacency dp.Adjacency, base [][]float64, at int, x, y []float64,
	seed uint64, alter func(w *Warmup, s int, h *histograms)) (float64, *Warmup) {
	t.Helper()
	cfg.Records = uint64(len(base))
	w := newWarmup(cfg, mu, adjacency, 24)
	w.begin()
	noise := dptest.Seeded(seed)
	var square float64
	for part := uint64(1); !w.Done(); part++ {
		first, end := w.Range(part)
		stages := len(w.taken)
		if cfg.Split {
			stages = w.next + 1
		}
		for w.next < stages && !w.Done() {
			counts := func(other []float64) []int64 {
				w.openStage()
				if w.open == nil {
					return nil
				}
				for i := first; i < end; i++ {
					row := base[i]
					if int(i) == at {
						row = other
					}
					if row != nil {
						w.count(row)
					}
				}
				return w.open.counts
			}
			b := counts(y)
			a := counts(x)
			s := w.taken[w.next]
			if h := w.open; h != nil {
				if alter != nil {
					alter(w, s, h)
				}
				square += distance(h, a, b)
			}
			w.closeStage(noise)
		}
	}
	return math.Sqrt(square) / mu, w
}

// distance returns ‖C(a − b)/σ‖², with C by its definition.
func distance(h *histograms, a, b []int64) (square float64) {
	f := make([]float64, h.shape.bins)
	f[0] = 1
	for k := 1; k < len(f); k++ {
		f[k] = f[k-1] * (2*float64(k) - 1) / (2 * float64(k))
	}
	for n := range h.width {
		move := make([]float64, len(f))
		for bin := range f {
			if d := a[bin*h.width+n] - b[bin*h.width+n]; d != 0 {
				for i := bin; i < len(f); i++ {
					move[i] += f[i-bin] * float64(d) / float64(h.one)
				}
			}
		}
		for _, m := range move {
			square += m * m / (h.sigma * h.sigma)
		}
	}
	return square
}

// auditRows returns n rows of d columns of different kinds. The audits change the first row.
func auditRows(n, d int, seed uint64) [][]float64 {
	source := rand.New(rand.NewPCG(seed, 41))
	rows := make([][]float64, n)
	for i := range rows {
		rows[i] = make([]float64, d)
		for j := range rows[i] {
			switch z := source.NormFloat64(); j % 4 {
			case 0:
				rows[i][j] = 1e9 + 1000*z
			case 1:
				rows[i][j] = z
			case 2:
				rows[i][j] = math.Exp(2 * z)
			case 3:
				rows[i][j] = math.Floor(source.Float64() * 1.06) // rarely 1
			}
		}
	}
	return rows
}

// extreme returns a record with values of arbitrary size.
func extreme(source *rand.Rand, d int) []float64 {
	if source.IntN(6) == 0 {
		return nil
	}
	x := make([]float64, d)
	for j := range x {
		switch source.IntN(5) {
		case 0:
			x[j] = -math.MaxFloat64
		case 1:
			x[j] = math.MaxFloat64
		case 2:
			x[j] = 0
		case 3:
			x[j] = 1e9 + 1000*source.NormFloat64()
		default:
			x[j] = math.Exp(40*source.NormFloat64()) * (source.Float64() - 0.5)
		}
	}
	return x
}

// TestWarmupSensitivity zeroes out or replaces a record. The releases of all stages together must be at most μ apart.
// The worst records must reach 0.97μ: under zero-out a record whose values are in the first bins, under replace a
// record of one column that moves from the first to a far bin.
func TestWarmupSensitivity(t *testing.T) {
	t.Parallel()
	for _, mode := range []bool{false, true} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			t.Run(fmt.Sprintf("%s/split=%v", adjacency, mode), func(t *testing.T) {
				t.Parallel()
				runs := 0
				for _, d := range []int{1, 2, 5} {
					source := rand.New(rand.NewPCG(uint64(d), 42))
					const mu = 3
					base := auditRows(3000, d, uint64(d))
					for k := range uint64(12) {
						x, y := extreme(source, d), extreme(source, d)
						if adjacency == dp.ZeroOut {
							y = nil
						}
						at := 0
						if mode {
							at = source.IntN(len(base))
						}
						got, w := audited(t, Config{Columns: d, Clip: true, Split: mode, Gains: Gains{0.01, 0.01, 1e4}},
							mu, adjacency, base, at, x, y, k, nil)
						if w.Failed() {
							t.Fatal("the warm-up failed")
						}
						if !(got <= 1) {
							t.Errorf("d %d: the streams with %v and with %v are %.9g of μ apart", d, x, y, got)
						}
						runs++
					}
				}
				t.Logf("%d pairs", runs)
			})
		}
	}
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		if got := worstOfOne(t, adjacency, nil); !(got >= 0.97 && got <= 1) {
			t.Errorf("%s: the worst records are %.6g of μ apart", adjacency, got)
		}
	}
}

// worstOfOne returns the distance of the worst of some records of one column. A record in the first bins of all stages
// but A2, whose circle has no first bin, is compared with a null record, or with a record in the last bins or near the
// centre.
func worstOfOne(t testing.TB, adjacency dp.Adjacency, alter func(w *Warmup, s int, h *histograms)) (worst float64) {
	t.Helper()
	source := rand.New(rand.NewPCG(3, 43))
	base := make([][]float64, 2000)
	for i := range base {
		base[i] = []float64{0.6 + 0.3*source.NormFloat64()}
	}
	for k := range 24 {
		x := []float64{-0x1p104}
		var y []float64
		if adjacency == dp.Replace {
			y = []float64{0.6 + 0.02*float64(k)}
			if k%2 == 0 {
				y = []float64{0x1p104}
			}
		}
		got, w := audited(t, Config{Columns: 1, Clip: true, Gains: Gains{0.01, 0.01, 1e4}}, 3, adjacency, base, 0, x,
			y, 5, alter)
		if w.Failed() {
			t.Fatal("the warm-up failed")
		}
		worst = max(worst, got)
	}
	return worst
}

// TestMutantWarmups plants faults and finds each one with the audit above.
func TestMutantWarmups(t *testing.T) {
	t.Parallel()
	// one returns a fault: σ computed with another W, ρ or α than the stage has.
	one := func(factor func(w *Warmup, s int, h *histograms) float64) func(w *Warmup, s int, h *histograms) {
		return func(w *Warmup, s int, h *histograms) { h.sigma *= factor(w, s, h) }
	}
	for _, m := range []struct {
		name      string
		adjacency dp.Adjacency
		d         int
		alter     func(w *Warmup, s int, h *histograms)
	}{
		{"zero-out's ρ under replace", dp.Replace, 1,
			one(func(_ *Warmup, _ int, h *histograms) float64 { return 1 / math.Sqrt(h.shape.square) })},
		{"σ without α", dp.ZeroOut, 1, one(func(_ *Warmup, _ int, h *histograms) float64 { return 1 / h.shape.alpha })},
		// A column has six circles, but the faulty noise is for one.
		{"W = d in A2", dp.ZeroOut, 4, one(func(_ *Warmup, s int, h *histograms) float64 {
			if s == circles {
				return math.Sqrt(4 / float64(h.width))
			}
			return 1
		})},
		// A4 counts all columns again, but the faulty noise is for one.
		{"W of A4", dp.ZeroOut, 5, one(func(_ *Warmup, s int, h *histograms) float64 {
			if s == again {
				return 1 / math.Sqrt(float64(h.width))
			}
			return 1
		})},
		{"the whole budget for each stage", dp.ZeroOut, 1,
			one(func(_ *Warmup, s int, h *histograms) float64 { return math.Sqrt(float64(percent[s]) / 100) })},
	} {
		t.Run(m.name, func(t *testing.T) {
			var worst float64
			if m.d == 1 {
				worst = worstOfOne(t, m.adjacency, m.alter)
			} else {
				source := rand.New(rand.NewPCG(4, 44))
				base := make([][]float64, 3000)
				for i := range base {
					base[i] = make([]float64, m.d)
					for j := range base[i] {
						base[i][j] = 1e6 + source.NormFloat64()
					}
				}
				for k := range 4 {
					x := make([]float64, m.d)
					for j := range x {
						x[j] = -0x1p104 + float64(k)
					}
					got, w := audited(t, Config{Columns: m.d, Clip: true, Gains: Gains{0.01, 0.01, 1e4}}, 6,
						m.adjacency,
						base, 0, x, nil, 5, m.alter)
					if w.Failed() {
						t.Fatal("the warm-up failed")
					}
					worst = max(worst, got)
				}
			}
			if !(worst > 1.02) {
				t.Errorf("the audit did not find the fault: the worst records are %.6g of μ apart", worst)
			}
			t.Logf("%.4f of μ", worst)
		})
	}
}

// TestShapes compares α² and ρ with independently computed numbers, and deviations of linear forms with simulated
// noise.
func TestShapes(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		s            *shape
		bins         int
		square, rise float64
	}{
		{normShape(), 128, 2.6101038647750, 1.5700608173412}, {octaveShape(), 417, 2.9864760563146, 1.6242396888728},
		{circleShape(), 512, 3.0518408615105, 1.6322880052857},
		{deviationShape(), 833, 3.2068250272100, 1.6500590738130},
	} {
		if x.s.bins != x.bins || math.Abs(x.s.alpha*x.s.alpha-x.square) > 1e-11 || math.Abs(x.s.square-x.rise) > 1e-12 {
			t.Errorf("%d bins: α² = %.13f, ρ = %.13f, want %.13f and %.13f", x.s.bins, x.s.alpha*x.s.alpha, x.s.square,
				x.square, x.rise)
		}
	}
	// Differences of released prefix sums without data: their mean square over 4000 histograms has a relative deviation
	// of √(2/4000) = 2.2 %; allow 6 of these.
	s := normShape()
	h, err := newHistograms(s, 4000, 2, dp.ZeroOut, 24, 10)
	if err != nil {
		t.Fatal(err)
	}
	p := h.release(dptest.Seeded(8), "warmup/B")
	for _, terms := range [][]term{{{0, 1}}, {{127, 1}}, {{100, 1}, {30, -1}}, {{64, 1}, {63, -1}},
		{{90, 0.5}, {20, 2}, {-1, 7}}} {
		var square float64
		for _, prefix := range p.prefix {
			v := value(prefix, terms)
			square += v * v / float64(len(p.prefix))
		}
		want := p.sigma * s.deviation(terms...)
		if math.Abs(square/(want*want)-1) > 6*math.Sqrt(2.0/4000) {
			t.Errorf("%v: deviation %g, want %g", terms, math.Sqrt(square), want)
		}
	}
}

// TestNeeded checks that the number of needed records is (need·α²·√(Wρ))/(μ√share), and that a stage with fewer records
// fails.
func TestNeeded(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{false, true} {
		c := Config{Columns: 4, Clip: true, Split: split}
		power := 0.5
		if split {
			power = 1
		}
		want := 0.0
		for _, x := range []struct{ need, square, rise, width, share float64 }{
			{14, 2.9864760563146, 1.6242396888728, 4, 0.12}, {10, 3.0518408615105, 1.6322880052857, 4, 0.18},
			{14, 3.2068250272100, 1.6500590738130, 4, 0.32}, {14, 3.2068250272100, 1.6500590738130, 4, 0.23},
			{14, 2.6101038647750, 1.5700608173412, 1, 0.15},
		} {
			want = max(want, x.need*x.square*math.Sqrt(x.width*x.rise)/(0.7*math.Pow(x.share, power)))
		}
		if got := c.Needed(0.7, dp.Replace); got != uint64(math.Ceil(want)) {
			t.Errorf("split %v: %d records are needed, want %g", split, got, want)
		}
		c.Records = uint64(want)
		if _, err := New(c, 0.7, dp.Replace, 24); err == nil {
			t.Error("a stage with too few records succeeded")
		}
		c.Records++
		if _, err := New(c, 0.7, dp.Replace, 24); err != nil {
			t.Error(err)
		}
	}
}

// TestTooMuchNoise checks that New returns an error if the noise for the budget exceeds the range of integers.
func TestTooMuchNoise(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{false, true} {
		for _, mu := range []float64{1e-6, 1e-9, 1e-300} {
			c := Config{Columns: 3, Clip: true, Split: split, Records: 1 << 61}
			if _, err := New(c, mu, dp.Replace, 30); err == nil {
				t.Errorf("split %v: a budget of %g was accepted", split, mu)
			}
		}
	}
}

// TestParts checks that the parts of a split warm-up have the sizes given by the shares, in order, without gaps.
func TestParts(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for _, x := range []struct {
		c    Config
		want []uint64 // the borders for 1001 records
	}{
		{Config{Clip: true}, []uint64{120, 300, 621, 851, 1001}},
		{Config{}, []uint64{120, 300, 771, 1001}},
		{Config{Centre: []float64{0, 1}, Scale: []float64{2, 3}, Clip: true}, []uint64{1001}},
		{Config{Centre: []float64{0, 1}, Scale: []float64{nan, 3}}, []uint64{672, 1001}},
		{Config{Centre: []float64{0, nan}, Scale: []float64{1, 3}}, []uint64{400, 1001}},
	} {
		x.c.Columns, x.c.Split, x.c.Records = 2, true, 1001
		w := newWarmup(x.c, 1, dp.ZeroOut, 24)
		if w.Parts() != uint64(len(x.want)) {
			t.Errorf("%+v: %d parts, want %v", x.c, w.Parts(), x.want)
			continue
		}
		last := uint64(0)
		for i, want := range x.want {
			first, end := w.Range(uint64(i + 1))
			if first != last || end != want {
				t.Errorf("%+v: part %d is [%d, %d), want [%d, %d)", x.c, i+1, first, end, last, want)
			}
			last = end
		}
	}
}
