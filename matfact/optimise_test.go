package matfact

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/internal/optimise"
)

func objectives() []bltObjective {
	inf := math.Inf(1)
	list := []bltObjective{}
	for _, n := range []float64{10, 100, 1e4, 1e6, 1e9} {
		list = append(list, bltObjective{sens: n, length: n}, bltObjective{sens: inf, length: n})
	}
	for _, b := range []float64{0.3, 0.9, 0.999, 1 - 1e-6} {
		list = append(list, bltObjective{pole: 1 - b, sens: inf, length: inf})
	}
	for _, w := range []float64{2, 10, 100, 1e4} {
		list = append(list, bltObjective{sens: inf, window: w})
	}
	return list
}

func bandObjectives() []bandObjective {
	sum := Workload{Kind: "sum"}
	list := []bandObjective{}
	for _, n := range []uint64{10, 100, 1e4} {
		list = append(list, bandObjective{kernel: sum, length: n})
	}
	for _, b := range []float64{0.3, 0.9, 0.999} {
		list = append(list, bandObjective{kernel: kernelOf(b)})
	}
	for _, w := range []uint64{2, 10, 100, 1e4} {
		list = append(list, bandObjective{kernel: Workload{Kind: "window", Window: w}})
	}
	return list
}

// checkGradient compares the gradient of f at x with central differences.
func checkGradient(t *testing.T, name string, x []float64, f func(x, grad []float64) float64) {
	t.Helper()
	grad, unused := make([]float64, len(x)), make([]float64, len(x))
	f(x, grad)
	for i := range x {
		const h = 1e-4
		at := func(d float64) float64 {
			y := slices.Clone(x)
			y[i] += d
			return f(y, unused)
		}
		// Use fifth-order differences.
		want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		if math.Abs(grad[i]-want) > 1e-8*(1+math.Abs(want)) {
			t.Errorf("%s: ∂/∂x[%d] = %.12g, differences give %.12g", name, i, grad[i], want)
		}
	}
}

// TestGradient compares the exact gradients of the optimisers with central
// differences at random points.
func TestGradient(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	for _, o := range objectives() {
		for d := 1; d <= 4; d++ {
			x := bltStart(d, max(o.window, min(o.length, 1e6), 10), 0.3)
			for i := range x {
				x[i] += 0.3 * source.NormFloat64()
			}
			checkGradient(t, fmt.Sprintf("%+v, %d buffers", o, d), x, o.log)
		}
	}
	for _, o := range bandObjectives() {
		for _, p := range []int{2, 3, 9} {
			if o.kernel.Window > 0 && o.kernel.Window < uint64(p) {
				continue
			}
			x := make([]float64, p-1)
			for i := range x {
				x[i] = source.NormFloat64()
			}
			checkGradient(t, fmt.Sprintf("%+v, %d bands", o, p), x, o.log)
		}
	}
	for k := 1; k <= 6; k++ {
		x := make([]float64, k)
		for i := range x {
			x[i] = math.Log(0.5*math.Sqrt(phasedGaps[i])) + 0.2*source.NormFloat64()
		}
		p := newPhaseObjective(phasedGaps[:k], 1e5)
		checkGradient(t, fmt.Sprintf("phase of %d buffers", k), x, p.log)
	}
}

// TestOptimum searches for a better BLT from random starts.
func TestOptimum(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 4))
	for _, o := range objectives() {
		for d := 1; d <= 4; d++ {
			_, _, got, err := optimiseBLT(d, o)
			if err != nil {
				t.Fatal(err)
			}
			best := got
			for range 6 {
				x := bltStart(d, max(o.window, min(o.length, 2/max(o.pole, 1e-9))), -3+8*source.Float64())
				for i := range x {
					x[i] += 0.5 * source.NormFloat64()
				}
				best = min(best, math.Exp(optimise.Minimise(x, o.log)))
			}
			if math.Sqrt(got/best) > 1+1e-6 {
				t.Errorf("%+v, %d buffers: error %g, a random start gives %g", o, d, math.Sqrt(got), math.Sqrt(best))
			}
		}
	}
}

// TestInterlacing checks, for random variables of the optimiser, that a < â < a < … makes c positive and decreasing,
// and C⁻¹ negative below its diagonal.
func TestInterlacing(t *testing.T) {
	source := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		x := make([]float64, 2*(1+source.IntN(5)))
		for i := range x {
			x[i] = source.NormFloat64()
		}
		a, ahat := interlaced(x)
		for i, w := range residues(ahat, a) {
			if !(w > 0) || !(residues(a, ahat)[i] < 0) {
				t.Fatalf("a = %v, â = %v: ω[%d] = %g", a, ahat, i, w)
			}
		}
		f, err := newBuffered(storeBLT(a, ahat))
		if err != nil {
			t.Fatalf("a = %v, â = %v: %v", a, ahat, err)
		}
		c := denseMatrix(f, 40)
		inverse := invert(c)
		for j := 1; j < 40; j++ {
			if !(c[j][0] > 0) || j > 1 && !(c[j][0] < c[j-1][0]) || inverse[j][0] > 1e-15 {
				t.Fatalf("a = %v, â = %v: c_%d = %g after %g, ĉ = %g", a, ahat, j, c[j][0], c[j-1][0], inverse[j][0])
			}
		}
		// The factorization that New builds has the optimiser's constants.
		s, _, _ := sensitivity(a, ahat, math.Inf(1), false)
		near(t, "ColNorm²", f.ColNorm()*f.ColNorm(), s, 1e-7)
		e, _, _ := squaredError(a, ahat, 0, 1000, 0, false)
		near(t, "RowVar", f.RowVar(Workload{Kind: "sum"}, 1000), e, 1e-7)
	}
}

// TestAuto checks the borders of Auto's table: the number of buffers for a horizon must be the smallest whose error is
// within 1.5 % of the square root's.
func TestAuto(t *testing.T) {
	excess := func(d int, n float64) float64 {
		_, _, v, err := optimiseBLT(d, bltObjective{sens: math.Inf(1), length: n})
		if err != nil {
			t.Fatal(err)
		}
		// Σ_{j<n} f_j², with an error of 1/(4πn).
		root := (math.Log(n) + 0.57721566490153286 + 4*math.Ln2) / math.Pi
		return math.Sqrt(v)/root - 1
	}
	sum := Workload{Kind: "sum"}
	for _, n := range []uint64{1e2, 1e4, 1e5, 1e7, 1e8, 1e9} {
		d := Auto(sum, n).Buffers
		t.Logf("N = %.0e: %d buffers, %.2f %% above the square root; %d: %.2f %%", float64(n), d,
			100*excess(d, float64(n)), d-1, 100*excess(d-1, float64(n)))
		if e := excess(d, float64(n)); e > 0.015 {
			t.Errorf("horizon %d: %d buffers are %g above the square root", n, d, e)
		}
		if e := excess(d-1, float64(n)); e < 0.015 {
			t.Errorf("horizon %d: %d buffers are enough, %g", n, d-1, e)
		}
		if next := Auto(sum, n+1).Buffers; next != d+1 {
			t.Errorf("horizon %d: %d buffers, want %d", n+1, next, d+1)
		}
	}
	for _, c := range []struct {
		w       Workload
		horizon uint64
		kind    string
		buffers int
	}{
		{sum, 0, "phased", 0},
		{Workload{Kind: "mean"}, 0, "phased", 0},
		{Workload{Kind: "mean"}, 1000, "blt", 3},
		{sum, 1e12, "blt", 8},
		{Workload{Kind: "exponential", Decay: 0.99}, 0, "blt", 2},
		{Workload{Kind: "exponential", Decay: 0.991}, 50, "blt", 3},
		{Workload{Kind: "window", Window: 10}, 0, "blt", 3},
	} {
		got := Auto(c.w, c.horizon)
		if got.Kind != c.kind || got.Buffers != c.buffers || got.Horizon != c.horizon {
			t.Errorf("Auto(%v, %d) = %+v", c.w, c.horizon, got)
		}
		if _, err := New(got, c.w); err != nil {
			t.Errorf("New(Auto(%v, %d)): %v", c.w, c.horizon, err)
		}
	}
}

// TestTune uses short and odd lengths, which need fewer buffers than the configuration has. The factorization must be
// valid.
func TestTune(t *testing.T) {
	for _, tune := range []uint64{1, 2, 3, 4, 5, 7, 10, 33, 1 << 62} {
		for d := range maxBuffers + 1 {
			f := mustNew(t, Config{Kind: "blt", Tune: tune, Buffers: d}, Workload{Kind: "sum"})
			checkSound(t, fmt.Sprintf("tuned for %d with %d buffers", tune, d), f)
		}
	}
	for _, w := range []uint64{1, 2, 3, 5, 1 << 40} {
		for d := range maxBuffers + 1 {
			f := mustNew(t, Config{Kind: "blt", Buffers: d}, Workload{Kind: "window", Window: w})
			checkSound(t, fmt.Sprintf("window %d with %d buffers", w, d), f)
		}
	}
	for _, b := range []float64{1e-300, 1e-9, 0.01, 0.5, 1 - 1e-9, 1 - 0x1p-53} {
		for d := range maxBuffers + 1 {
			f := mustNew(t, Config{Kind: "blt", Buffers: d}, Workload{Kind: "exponential", Decay: b})
			checkSound(t, fmt.Sprintf("decay %g with %d buffers", b, d), f)
		}
	}
}

// TestTuneBands does for bands what TestTune does for buffers.
func TestTuneBands(t *testing.T) {
	sound := func(c Config, w Workload) {
		t.Helper()
		for _, c.Kind = range []string{"bsr", "bisr", "banded"} {
			for _, c.Bands = range []int{1, 2, 16} {
				f, err := New(c, w)
				if err != nil {
					t.Errorf("%+v, %+v: %v", c, w, err)
					continue
				}
				checkSound(t, fmt.Sprintf("%+v, %+v", c, w), f)
			}
		}
	}
	for _, tune := range []uint64{1, 2, 3, 10, 1 << 62} {
		sound(Config{Tune: tune}, Workload{Kind: "sum"})
	}
	for _, w := range []uint64{1, 2, 3, 17, 1 << 40} {
		sound(Config{}, Workload{Kind: "window", Window: w})
	}
	for _, b := range []float64{1e-300, 0.5, 1 - 0x1p-53} {
		sound(Config{}, Workload{Kind: "exponential", Decay: b})
	}
}

// checkSound checks properties that every factorization must have.
func checkSound(t *testing.T, name string, f Factorization) {
	t.Helper()
	finite := func(what string, x float64) {
		t.Helper()
		if !(x > 0) || math.IsInf(x, 0) {
			t.Errorf("%s: %s = %g", name, what, x)
		}
	}
	finite("ColNorm", f.ColNorm())
	for _, step := range []uint64{1, 2, 17, 1e6, 1 << 50} {
		for _, w := range []Workload{{Kind: "sum"}, {Kind: "exponential", Decay: 0.9}, {Kind: "window", Window: 5}} {
			finite(fmt.Sprintf("RowVar(%v, %d)", w, step), f.RowVar(w, step))
		}
		finite(fmt.Sprintf("CinvVar(%d)", step), f.CinvVar(step))
	}
	if l, err := f.Limits(1 << 24); err != nil || !(l.Noise >= 14*(1<<24)) || !(l.Rounding < 1) {
		t.Errorf("%s: Limits = %+v, %v", name, l, err)
	}
}

// TestBandedOptimum checks that no point near the optimum, and no random start, is better than the result of
// optimiseBands. The value must be the error of the matrix that New builds. bsr and bisr must be worse.
func TestBandedOptimum(t *testing.T) {
	source := rand.New(rand.NewPCG(7, 8))
	for _, o := range bandObjectives() {
		for _, p := range []int{1, 2, 4, 12} {
			if o.kernel.Window > 0 && o.kernel.Window < uint64(p) {
				continue
			}
			_, got, err := optimiseBands(p, o)
			if err != nil {
				t.Fatal(err)
			}
			best := got
			for range 3 {
				x := make([]float64, p-1)
				for i := range x {
					x[i] = math.Log(float64(p-i)) + source.NormFloat64()
				}
				if p > 1 {
					best = min(best, math.Exp(optimise.Minimise(x, o.log)))
				}
			}
			name := fmt.Sprintf("%+v, %d bands", o, p)
			if math.Sqrt(got/best) > 1+1e-6 {
				t.Errorf("%s: error %g, a random start gives %g", name, math.Sqrt(got), math.Sqrt(best))
			}
			at := o.length
			if at == 0 {
				at = 1 << 50
			}
			deviation := func(kind string) float64 {
				f := mustNew(t, Config{Kind: kind, Bands: p, Tune: o.length}, o.kernel)
				return f.ColNorm() * math.Sqrt(f.RowVar(o.kernel, at))
			}
			near(t, name, deviation("banded"), math.Sqrt(got), 1e-9)
			if root := deviation("bsr"); root < math.Sqrt(got)*(1-1e-9) {
				t.Errorf("%s: error %g, bsr has %g", name, math.Sqrt(got), root)
			}
		}
	}
}

// TestDenseOptimum checks that the error of C equals that of the optimiser and of the factorization that New builds. It
// must not be below the lower bound, and no other factorization may have a smaller error.
func TestDenseOptimum(t *testing.T) {
	for _, n := range []uint64{1, 2, 7, 40} {
		for _, w := range []Workload{{Kind: "sum"}, {Kind: "mean"}, {Kind: "exponential", Decay: 0.8},
			{Kind: "window", Window: 3}} {
			name := fmt.Sprintf("%d rows of %s", n, w.Kind)
			a := workloadRows(w, int(n))
			best, most := mustDense(t, a, false), &optimise.Optimum{Value: 1, Bound: 1}
			optima := []*optimise.Optimum{best}
			if w.Kind != "mean" {
				most = mustDense(t, a, true)
				optima = append(optima, most)
			}
			if best.Bound > best.Value*(1+1e-12) || most.Bound > most.Value*(1+1e-12) ||
				best.Value > most.Value*(1+1e-9) {
				t.Errorf("%s: rmse %+v, max %+v", name, best, most)
			}
			for i, d := range optima {
				var inverse, b mat.Dense
				if err := inverse.Inverse(d.C); err != nil {
					t.Fatal(err)
				}
				b.Mul(a, &inverse)
				var column, sum, top float64
				for k := range int(n) {
					row, col := mat.Norm(b.RowView(k), 2), mat.Norm(d.C.ColView(k), 2)
					column, sum, top = max(column, col), sum+row*row, max(top, row)
					for j := k + 1; j < int(n); j++ {
						if d.C.At(k, j) != 0 {
							t.Fatalf("%s: C is not lower triangular", name)
						}
					}
				}
				near(t, name+": largest column", column, 1, 1e-9)
				near(t, name+": error", [2]float64{math.Sqrt(sum / float64(n)), top}[i], d.Value, 1e-9)
			}
			for _, kind := range []string{"identity", "sqrt", "bsr", "bisr", "banded", "blt", "phased", "dense"} {
				f := mustNew(t, Config{Kind: kind, Horizon: n}, w)
				cut := 1.0
				if c, ok := f.(toeplitz); ok && kind != "phased" {
					cut = columnNorm(c, n) / f.ColNorm()
				}
				if e := cut * RMSE(f, w, n); e < best.Bound*(1-1e-9) || kind == "dense" && e > best.Value*(1+1e-9) {
					t.Errorf("%s: rmse of %s is %.12g, the optimum %.12g", name, kind, e, best.Value)
				}
				if e := cut * MaxError(f, w, n); e < most.Bound*(1-1e-9) {
					t.Errorf("%s: largest error of %s is %.12g, the optimum %.12g", name, kind, e, most.Value)
				}
			}
		}
	}
}
