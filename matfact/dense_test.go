package matfact

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// denseMatrix returns the n×n matrix C that the stored integers describe.
func denseMatrix(f Factorization, n int) [][]float64 {
	c := newMatrix(n)
	if x, ok := f.(*normalised); ok {
		c = denseMatrix(x.inner, n)
		for t := range c {
			for j := range t {
				c[t][j] *= float64(x.factor[j]) * 0x1p-20
			}
			c[t][t] = 1 / x.scale[t]
		}
		return c
	}
	if r, ok := f.(*root); ok {
		for t := range c {
			for j := range t + 1 {
				c[t][j] = float64(r.coef[t-j]) * 0x1p-62
			}
		}
		return c
	}
	if d, ok := f.(*dense); ok {
		for t := range min(n, d.n) {
			before, scale := d.row(t + 1)
			for j, x := range before {
				c[t][j] = float64(x) * 0x1p-62
			}
			c[t][t] = 1 / scale
		}
		return c
	}
	s := f.Stored()
	if _, ok := f.(*banded); ok {
		for t := range c {
			c[t][t] = 1
			for k, m := range s.Bands[:min(t, len(s.Bands))] {
				c[t][t-k-1] = m.float()
				if s.Kind == "bisr" {
					c[t][t-k-1] *= -1
				}
			}
		}
		if s.Kind == "bisr" {
			return invert(c)
		}
		return c
	}
	for j := range c {
		ph := s.Phases[phaseOf(s.Phases, uint64(j+1))]
		c[j][j] = 1 / ph.Scale
		for i, w := range ph.Weight {
			v := w.float()
			for t := j + 1; t < n; t++ {
				c[t][j] += v
				v *= s.Decay[i].float()
			}
		}
	}
	return c
}

func newMatrix(n int) [][]float64 {
	m := make([][]float64, n)
	for i := range m {
		m[i] = make([]float64, n)
	}
	return m
}

// invert returns the inverse of a lower triangular matrix.
func invert(c [][]float64) [][]float64 {
	x := newMatrix(len(c))
	for j := range c {
		x[j][j] = 1 / c[j][j]
		for t := j + 1; t < len(c); t++ {
			var sum float64
			for m := j; m < t; m++ {
				sum += c[t][m] * x[m][j]
			}
			x[t][j] = -sum / c[t][t]
		}
	}
	return x
}

// apply returns the rows of A·x, without the row scaling.
func apply(w Workload, x [][]float64) [][]float64 {
	n := len(x)
	b := newMatrix(n)
	for t := range b {
		for j := range n {
			switch w.Kind {
			case "sum", "mean":
				b[t][j] = x[t][j]
				if t > 0 {
					b[t][j] += b[t-1][j]
				}
			case "exponential":
				b[t][j] = x[t][j]
				if t > 0 {
					b[t][j] += w.Decay * b[t-1][j]
				}
			case "window":
				for k := max(0, t-int(w.Window)+1); k <= t; k++ {
					b[t][j] += x[k][j]
				}
			}
		}
	}
	return b
}

func dot(x, y []float64) float64 {
	var sum float64
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

type named struct {
	name string
	Factorization
}

// factorizations returns one factorization of each kind, and some that no optimiser would find: phases of odd lengths
// with unrelated weights, and buffers whose modes nearly coincide.
func factorizations(t testing.TB, horizon uint64) []named {
	t.Helper()
	sum, mean := Workload{Kind: "sum"}, Workload{Kind: "mean"}
	exp := func(b float64) Workload { return Workload{Kind: "exponential", Decay: b} }
	window := func(n uint64) Workload { return Workload{Kind: "window", Window: n} }
	list := []named{
		{"identity", mustNew(t, Config{Kind: "identity"}, sum)},
		{"sqrt sum", mustNew(t, Config{Kind: "sqrt", Horizon: horizon}, sum)},
		{"sqrt exponential", mustNew(t, Config{Kind: "sqrt", Horizon: horizon}, exp(0.95))},
		{"sqrt window", mustNew(t, Config{Kind: "sqrt", Horizon: horizon}, window(7))},
		{"bsr sum", mustNew(t, Config{Kind: "bsr", Bands: 8}, sum)},
		{"bsr exponential", mustNew(t, Config{Kind: "bsr"}, exp(0.97))},
		{"bsr window", mustNew(t, Config{Kind: "bsr", Bands: 32}, window(5))},
		{"bisr sum", mustNew(t, Config{Kind: "bisr", Bands: 8}, sum)},
		{"bisr mean", mustNew(t, Config{Kind: "bisr", Bands: 2}, mean)},
		{"bisr exponential", mustNew(t, Config{Kind: "bisr"}, exp(0.97))},
		{"bisr window", mustNew(t, Config{Kind: "bisr"}, window(9))},
		{"banded sum", mustNew(t, Config{Kind: "banded", Bands: 5, Tune: 300}, sum)},
		{"banded window", mustNew(t, Config{Kind: "banded"}, window(12))},
		{"dense", denseFor(t, horizon)},
		{"blt sum", mustNew(t, Config{Kind: "blt", Tune: 1000, Buffers: 4}, sum)},
		{"blt mean", mustNew(t, Config{Kind: "blt", Horizon: 50}, mean)},
		{"blt exponential", mustNew(t, Config{Kind: "blt"}, exp(0.999))},
		{"blt window", mustNew(t, Config{Kind: "blt"}, window(10))},
		{"blt persons",
			mustNew(t, Config{Kind: "blt", Horizon: 50, Participation: Participation{Count: 5, Separation: 3}}, sum)},
		{"normalised sqrt", mustNew(t, Config{Kind: "sqrt", Horizon: min(horizon, 300), Normalise: true}, sum)},
		{"normalised window", mustNew(t, Config{Kind: "sqrt", Horizon: min(horizon, 300), Normalise: true}, window(4))},
		{"normalised bsr", mustNew(t, Config{Kind: "bsr", Horizon: min(horizon, 300), Normalise: true}, exp(0.9))},
		{"normalised bisr", mustNew(t, Config{Kind: "bisr", Horizon: min(horizon, 300), Normalise: true}, sum)},
		{"normalised blt", mustNew(t, Config{Kind: "blt", Horizon: min(horizon, 300), Normalise: true}, sum)},
		{"narrow sum", Narrow(mustNew(t, Config{Kind: "blt", Tune: 1000, Buffers: 4}, sum), 1<<36)},
		{"narrow exponential", Narrow(mustNew(t, Config{Kind: "blt"}, exp(0.999)), 1<<36)},
		{"phased sum", mustNew(t, Config{Kind: "phased"}, sum)},
		{"phased mean", mustNew(t, Config{Kind: "phased"}, mean)},
	}
	odd := &Stored{Kind: "phased"}
	for _, a := range []float64{0.9, 0.31, 0.3, 0.02, 1e-5, 1e-12} {
		odd.Decay = append(odd.Decay, floorDecay(a))
	}
	for p, start := range []uint64{1, 2, 7, 30, 31, 100, 250} {
		ph := Phase{Start: start, Scale: 1 + 0.4*float64(p)}
		for i := range min(1+p, 6) {
			ph.Weight = append(ph.Weight, floorFixed(0.05/ph.Scale*math.Abs(math.Sin(float64(1+p*i+p)))))
		}
		odd.Phases = append(odd.Phases, ph)
	}
	f, err := newBuffered(odd)
	if err != nil {
		t.Fatal(err)
	}
	return append(list, named{"odd phases", f})
}

// denseFor returns the dense optimum if that is quick, otherwise a matrix with entries of both signs.
func denseFor(t testing.TB, horizon uint64) Factorization {
	t.Helper()
	if horizon <= 64 {
		return mustNew(t, Config{Kind: "dense", Horizon: horizon}, Workload{Kind: "mean"})
	}
	s := &Stored{Kind: "dense"}
	for i := range min(horizon, maxDenseHorizon) {
		s.Scales = append(s.Scales, 1+float64(i%10)/32)
		for j := range i { // computed from integers only, because TestGolden pins the results
			c := int64((7919*i+104729*j)%1000 - 500)
			s.Entries = append(s.Entries, c*(1<<51)/int64(1+(i-j)*(i-j)))
		}
	}
	f, err := newDense(s, uint64(len(s.Scales)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// workloads returns the workloads for which variances are checked. The hard ones are exponential weights whose pole
// coincides with a mode of f.
func workloads(f Factorization) []Workload {
	list := []Workload{{Kind: "sum"}, {Kind: "mean"}}
	for _, n := range []uint64{1, 3, 10, 100, 1000} {
		list = append(list, Workload{Kind: "window", Window: n})
	}
	decays := []float64{0.3, 0.9, 0.999}
	if b, ok := f.(*buffered); ok {
		for p := range min(3, len(b.stored.Phases)) {
			for _, gap := range b.mode(p).gap {
				decays = append(decays, 1-gap, 1-gap*(1+1e-9), 1-gap*1.2, 1-gap/3)
			}
		}
	}
	for _, d := range decays {
		if w := (Workload{Kind: "exponential", Decay: d}); w.Validate() == nil {
			list = append(list, w)
		}
	}
	return list
}

// TestVariance compares RowVar, CinvVar and Cov with dense matrices, for every
// factorization and workload.
func TestVariance(t *testing.T) {
	n := uint64(130)
	if slow() {
		n = 300
	}
	for _, f := range factorizations(t, n) {
		t.Run(f.name, func(t *testing.T) {
			inverse := invert(denseMatrix(f.Factorization, int(n)))
			// Alternate between the workloads, so that the cache is never that of the same workload.
			list := workloads(f.Factorization)
			rows := make([][][]float64, len(list))
			for i, w := range list {
				rows[i] = apply(w, inverse)
			}
			var worst float64
			check := func(what string, got, want, scale float64) {
				t.Helper()
				e := math.Abs(got-want) / scale
				if !(e <= 1e-11) {
					t.Fatalf("%s = %.17g, want %.17g", what, got, want)
				}
				worst = max(worst, e)
			}
			for step := uint64(1); step <= n; step++ {
				if step > 100 && step%5 > 1 && step < n {
					continue
				}
				check(fmt.Sprintf("CinvVar(%d)", step), f.CinvVar(step), dot(inverse[step-1], inverse[step-1]),
					f.CinvVar(step))
				for i, w := range list {
					row, s := rows[i][step-1], w.scale(step)
					v := f.RowVar(w, step)
					check(fmt.Sprintf("RowVar(%v, %d)", w, step), v, s*s*dot(row, row), v)
					if _, slow := f.Factorization.(*normalised); slow && step%50 != 0 {
						continue
					}
					for _, u := range []uint64{1, step / 2, step - 1, step, 64, n} {
						if u == 0 {
							continue
						}
						want := s * w.scale(u) * dot(row, rows[i][u-1])
						what := fmt.Sprintf("Cov(%v, %d, %d)", w, step, u)
						check(what, f.Cov(w, step, u), want, math.Sqrt(v*f.RowVar(w, u)))
						if f.Cov(w, u, step) != f.Cov(w, step, u) {
							t.Fatalf("%s is not symmetric", what)
						}
					}
				}
			}
			t.Logf("largest relative error %.1e over %d workloads", worst, len(list))
		})
	}
}

// TestVarianceHistory computes variances in two orders; the second order begins with far rows and other workloads. The
// results must be the same, because releases state variances, which must not depend on earlier calls.
func TestVarianceHistory(t *testing.T) {
	for _, make := range []func() Factorization{
		func() Factorization { return mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"}) },
		func() Factorization {
			return mustNew(t, Config{Kind: "blt"}, Workload{Kind: "exponential", Decay: 0.99})
		},
	} {
		a, b := make(), make()
		list := workloads(a)
		for i := len(list) - 1; i >= 0; i-- {
			b.RowVar(list[i], 1<<45)
			b.Cov(list[i], 12345, 1<<33)
		}
		for step := uint64(1); step < 5000; step++ {
			w := list[step%uint64(len(list))]
			if x, y := a.RowVar(w, step), b.RowVar(w, step); x != y {
				t.Fatalf("RowVar(%v, %d) = %.17g and %.17g", w, step, x, y)
			}
		}
	}
}

// TestPhasedExact compares variances with the covariance recursion in 80-digit arithmetic on the stored integers, up to
// 10³ times the length of the table. (The recursion in float64 is wrong by 10⁻⁷ at t = 10¹¹: 133.80953 instead of
// 133.80955.)
func TestPhasedExact(t *testing.T) {
	sum := mustNew(t, Config{Kind: "phased"}, Workload{Kind: "sum"})
	mean := mustNew(t, Config{Kind: "phased"}, Workload{Kind: "mean"})
	exp := func(b float64) Workload { return Workload{Kind: "exponential", Decay: b} }
	window := func(n uint64) Workload { return Workload{Kind: "window", Window: n} }
	for _, c := range []struct {
		f    Factorization
		w    Workload
		t    uint64
		want float64
	}{
		{sum, Workload{Kind: "sum"}, 1e3, 14.7741914502365757},
		{sum, Workload{Kind: "sum"}, 1e9, 90.5315113442920779},
		{sum, Workload{Kind: "sum"}, 1e11, 133.809547099455674},
		{sum, Workload{Kind: "sum"}, 2e12, 165.883566837402334},
		{sum, Workload{Kind: "sum"}, 1e15, 847.889217800907637},
		{sum, exp(0.7), 1e9, 9.09449194703490288},
		{sum, exp(0.999), 1e11, 26.343266230803285},
		{sum, exp(0.999999), 1e3, 14.7661353093313359},
		{sum, exp(0.999999), 1e15, 51.3654212266734612},
		{sum, window(1), 2e12, 13.4047329855316562},
		{sum, window(1e6), 1e3, 14.7741914502365757},
		{sum, window(1e6), 1e11, 99.921412674688738},
		{mean, Workload{Kind: "sum"}, 1e6, 59.371828770326307},
		{mean, Workload{Kind: "sum"}, 1e11, 200.233191179986333},
		{mean, Workload{Kind: "sum"}, 2e12, 251.402724697971318},
	} {
		near(t, fmt.Sprintf("RowVar(%v, %d)", c.w, c.t), c.f.RowVar(c.w, c.t), c.want, 2e-13)
	}
}

// TestColumns computes C from the results of Shaper and Filter for unit vectors, and compares the norm of every column,
// continued to infinite height, with ColNorm.
func TestColumns(t *testing.T) {
	const n = 64
	for _, f := range factorizations(t, 4*n) {
		t.Run(f.name, func(t *testing.T) {
			c := denseMatrix(f.Factorization, n)
			inverse := invert(c)
			unit := int64(1) << 50
			if f.Kind() == "bisr" || strings.HasPrefix(f.name, "normalised") || strings.HasPrefix(f.name, "narrow") {
				unit = 1 << 40 // times 2²⁰ in the state
			}
			for j := range n {
				shaper, filter := f.NewShaper(1), f.NewFilter(1)
				s, z := []float64{0}, []float64{0}
				for i := range n {
					r := shaper.Predict(s)
					got := s[0] / float64(unit)
					w := []int64{0}
					if i == j {
						got, w[0] = 1/r, unit
					}
					shaper.Push(w)
					if math.Abs(got-c[i][j]) > 1e-14 {
						t.Fatalf("the Shaper has C[%d][%d] = %.17g, want %.17g", i, j, got, c[i][j])
					}
					z[0] = 0
					if i == j {
						z[0] = 1
					}
					filter.Next(z, z)
					if math.Abs(z[0]-inverse[i][j]) > 1e-12 {
						t.Fatalf("the Filter has C⁻¹[%d][%d] = %.17g, want %.17g", i, j, z[0], inverse[i][j])
					}
				}
			}
		})
	}
}
