package sgd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/vector"
)

// TestMedianBin checks that the parts are where the rungs say. Each part must contain its upper end but not its lower
// end. Smaller values belong to the first part; larger values get the index after the last part.
func TestMedianBin(t *testing.T) {
	t.Parallel()
	var ends []float64 // upper ends of the parts
	low := -0x1p16
	for rung := range medianRungs {
		high := math.Ldexp(1, rung-48)
		if rung < medianRungs/2 {
			high = -math.Ldexp(1, 15-rung)
		}
		if l, width := medianInterval(rung); l != low || l+width != high {
			t.Fatalf("interval %d is (%g, %g], want (%g, %g]", rung, l, l+width, low, high)
		}
		for k := 1; k <= medianParts; k++ {
			ends = append(ends, low+(high-low)*float64(k)/medianParts)
		}
		low = high
	}
	check := func(r float64) {
		t.Helper()
		want, _ := slices.BinarySearch(ends, r) // the first end that is at least r
		if got := medianBin(r); got != want {
			t.Errorf("%g is in part %d, want %d", r, got, want)
		}
	}
	for _, end := range ends {
		check(end)
		if math.Abs(end) >= 0x1p-16 { // closer to 0, the distance from an end is rounded
			check(math.Nextafter(end, math.Inf(1)))
			check(math.Nextafter(end, math.Inf(-1)))
		}
	}
	source := rand.New(rand.NewPCG(1, 9))
	for range 10_000 {
		check(source.NormFloat64() * math.Exp2(40*source.Float64()-20))
	}
	for _, r := range []float64{-math.MaxFloat64, -0x1p16, 0x1p15, math.MaxFloat64} {
		check(r)
	}
}

// TestFindMedian checks that with almost no noise, and null records on both sides, the result is the middle of the part
// that contains the median. If there are only null records, it is 0.
func TestFindMedian(t *testing.T) {
	t.Parallel()
	yes := true
	e := mustNewton(t, Config{Columns: []string{"u", "y"}, Target: "y", ClipX: 1, Intercept: &yes},
		dp.Params{Mu: 20, Adjacency: dp.ZeroOut})
	source := rand.New(rand.NewPCG(2, 9))
	for _, median := range []float64{-1000, -3, -0.02, 0.3, 17, 2000} {
		e.open()
		e.nulls = 0
		for i := range e.size() {
			if i%5 == 0 {
				e.nulls++
				continue
			}
			e.residuals[medianBin(median*(1+0.001*source.NormFloat64()))]++
		}
		// A part is a sixteenth of the interval between two powers of two; the records are within 0.4 % of the median.
		if got, _ := e.findMedian(dptest.Zero()); math.Abs(got-median) > math.Abs(median)/14 {
			t.Errorf("the median %g is found as %g", median, got)
		}
	}
	e.open()
	e.nulls = int64(e.size())
	for seed := range uint64(50) { // by chance, one search in 40 000 finds a median
		if got, _ := e.findMedian(dptest.Seeded(seed)); got != 0 {
			t.Errorf("of null records the median is %g", got)
		}
	}
}

// TestRecentre checks that a change of coordinates changes no prediction by the iterate, by the estimate, or by the
// means that detect drift. The matrix must become that of the new rows. Noise alone must not move a centre.
func TestRecentre(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 9))
	const d, n = 3, 400
	yes := true
	build := func() *Newton {
		e := mustNewton(t, Config{Columns: append(names(d), "y"), Target: "y", ClipX: 1, Intercept: &yes},
			dp.Params{Mu: 2, Adjacency: dp.ZeroOut})
		e.squared, e.phase = 0.25, descent
		e.constant = constantFor(e.squared)
		e.begin()
		return e
	}
	e := build()
	upper := func(rows [][]float64) (all []float64) {
		for i := range d + 1 {
			for j := i; j <= d; j++ {
				var sum float64
				for _, s := range rows {
					sum += s[i] * s[j]
				}
				all = append(all, sum)
			}
		}
		return all
	}
	rows, again := make([][]float64, n), make([][]float64, n)
	for i := range rows {
		rows[i] = make([]float64, d+1)
		for j := range d {
			rows[i][j] = 0.2*float64(j) + 0.05*source.NormFloat64()
		}
		again[i] = slices.Clone(rows[i])
		e.centred(rows[i])
	}
	random := func() []float64 {
		x := make([]float64, d+1)
		for j := range x {
			x[j] = source.NormFloat64()
		}
		return x
	}
	vectors := []*[]float64{&e.w, &e.wander.mean, &e.wander.last}
	for _, v := range vectors {
		*v = random()
	}
	e.blocks.add(0, 10, random(), random())
	block := &e.blocks.epochs[0][0]
	vectors = append(vectors, &block.w)
	var before [][]float64
	meant := slices.Clone(e.w)
	e.uncentre(meant)
	for _, v := range vectors {
		var all []float64
		for _, s := range rows {
			all = append(all, vector.Dot4(s, *v))
		}
		before = append(before, all)
	}
	gradient := slices.Clone(block.u)
	step := vector.Dot4(gradient, block.w)
	e.matrix = upper(rows)
	e.recentre(upper(rows), n, 0.0625)
	if e.constant != 0.125 || math.Abs(e.centre[1]-0.2) > 0.03 || math.Abs(e.centre[2]-0.4) > 0.03 {
		t.Fatalf("constant %g, centre %v", e.constant, e.centre)
	}
	for i := range again {
		e.centred(again[i])
	}
	for k, v := range vectors {
		for i, s := range again {
			if got := vector.Dot4(s, *v); math.Abs(got-before[k][i]) > 1e-12 {
				t.Fatalf("vector %d: a prediction was %g and is %g", k, before[k][i], got)
			}
		}
	}
	now := slices.Clone(e.w)
	e.uncentre(now)
	for j, v := range now {
		if math.Abs(v-meant[j]) > 1e-12 {
			t.Errorf("coefficients were %v and are %v", meant, now)
		}
	}
	for k, v := range upper(again) {
		if math.Abs(e.matrix[k]-v) > 1e-9 {
			t.Fatalf("the matrix is %v, want %v", e.matrix, upper(again))
		}
	}
	if got := vector.Dot4(block.u, block.w); math.Abs(got-step) > 1e-12 { // gradients are dual to iterates
		t.Errorf("gradient and iterate had the product %g, and have %g", step, got)
	}

	// The squared norm of noise in the last column is d·s² on average. The factor is 0 up to 1.5 times that. A χ²
	// variable with three degrees of freedom is below that with probability 79 %. So of 200 draws, 126 to 188 are
	// below, except with probability 10⁻⁶.
	zero := 0
	for range 200 {
		e := build()
		noise := make([]float64, 10)
		for _, k := range []int{3, 6, 8} {
			noise[k] = e.gram.SD / math.Sqrt2 * source.NormFloat64()
		}
		e.recentre(noise, n, 0.25)
		if zeros(e.centre) {
			zero++
		}
	}
	if zero < 126 || zero > 188 {
		t.Errorf("noise alone moves the centre in %d of 200", 200-zero)
	}
}

// TestFindMode checks that if two of three residuals are equal, the median is a mode, also with null records and with
// the noise of a plan. If the residuals are spread over sixteenths of their size, it is not.
func TestFindMode(t *testing.T) {
	t.Parallel()
	yes := true
	for _, mu := range []float64{0.25, 20} {
		e := mustNewton(t, Config{Columns: []string{"u", "y"}, Target: "y", ClipX: 1, Intercept: &yes},
			dp.Params{Mu: mu, Adjacency: dp.ZeroOut})
		source := rand.New(rand.NewPCG(8, 1))
		for _, at := range []float64{-700, -0.3, 0, 0.013, 5} {
			for _, mode := range []bool{true, false} {
				const runs = 200
				wrong := 0
				for seed := range uint64(runs) {
					e.open()
					e.nulls = 0
					for i := range e.size() {
						r := at
						if !mode || i%3 == 0 {
							r += 2 * max(math.Abs(at), 1) * source.NormFloat64()
						}
						if i%20 == 0 {
							e.nulls++
							continue
						}
						e.residuals[medianBin(r)]++
					}
					if _, got := e.findMedian(dptest.Seeded(seed)); got != mode {
						wrong++
					}
				}
				// The mode holds at least 0.63 of the slots; 0.4 are required. Two counts that differ by this much have
				// noise of deviation 0.122.
				if wrong > runs/20 {
					t.Errorf("μ = %g, around %g, mode %t: %d of %d results are wrong", mu, at, mode, wrong, runs)
				}
			}
		}
	}
}
