package newton

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestGram compares the integers that the noise hides with rows that are clipped, quantised and multiplied one by one
// and rounded once per block. Rows are added one by one and all at once, on any number of processors.
func TestGram(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 4))
	for _, bits := range []int{24, 30} {
		for _, n := range []int{0, 1, 100, 2*blockRows + 17} {
			if bits == 30 && n > 100 {
				n = 300
			}
			const d = 3
			g, err := NewGram(d, 0.5, 1, dp.ZeroOut, bits)
			if err != nil {
				t.Fatal(err)
			}
			x := make([]float64, n*d)
			for i := range x {
				if i/d%5 != 2 {
					x[i] = source.NormFloat64()
				}
			}
			want, block, k := make([]int64, 6), make([]int64, 6), make([]int64, d)
			shift := uint(g.exp - 2*g.rows.Exp)
			for r := range n {
				g.rows.Quantise(k, x[r*d:(r+1)*d])
				at := 0
				for i := range k {
					for j := i; j < d; j++ {
						block[at] += k[i] * k[j]
						at++
					}
				}
				if (r+1)%g.Block() == 0 || r == n-1 {
					for i, v := range block {
						want[i] += (v + 1<<(shift-1)) >> shift
						block[i] = 0
					}
				}
			}
			single, err := NewGram(d, 0.5, 1, dp.ZeroOut, bits)
			if err != nil {
				t.Fatal(err)
			}
			for r := range n {
				single.Add(x[r*d : (r+1)*d])
			}
			g.AddRows(x, d)
			for _, sum := range []*Gram{g, single} {
				noise := dptest.Zero()
				upper, err := sum.Release(noise, "g")
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(noise.Hidden("g"), want) {
					t.Fatalf("%d bits, %d rows: %v, want %v", bits, n, noise.Hidden("g"), want)
				}
				for i, v := range upper {
					if v != math.Ldexp(float64(want[i]), g.exp) {
						t.Fatalf("entry %d is %g", i, v)
					}
				}
			}
		}
	}
}

// searchGram looks for records that move the matrix by more than its noise covers, in the norm in which the noise is
// white. It returns the largest distance divided by μ. mutate plants a fault.
func searchGram(t *testing.T, d int, squared float64, a dp.Adjacency, flat bool, mutate func(g *Gram)) float64 {
	t.Helper()
	const mu = 0.7
	source := rand.New(rand.NewPCG(5, 6))
	r := math.Sqrt(squared)
	hidden := func(x []float64) []float64 {
		g, err := NewGram(d, squared, mu, a, 24)
		if err != nil {
			t.Fatal(err)
		}
		g.Flat = flat
		mutate(g)
		g.AddRows([]float64{r / 2, -r / 3, r / 5, 1, 1}[:d], d)
		g.Add(x)
		// If every draw is 1, the noise equals its standard deviations.
		noise := dptest.Arrays(map[string][][]float64{"g": {slices.Repeat([]float64{1}, d*(d+1)/2)}})
		upper, err := g.Release(noise, "g")
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range noise.Hidden("g") {
			v := math.Ldexp(float64(k), g.exp)
			upper[i] = v / (upper[i] - v)
		}
		return upper
	}
	random := func() []float64 {
		x := make([]float64, d)
		for j := range x {
			x[j] = r * source.NormFloat64() * 2
		}
		return x
	}
	top := 0.0
	for trial := range 300 {
		x, y := random(), make([]float64, d)
		if a == dp.Replace {
			if y = random(); trial%3 == 0 && d > 1 { // orthogonal
				clear(x)
				clear(y)
				x[0], y[1] = 5, 5
			}
		}
		p, q := hidden(x), hidden(y)
		var sum float64
		for i := range p {
			sum += (p[i] - q[i]) * (p[i] - q[i])
		}
		top = max(top, math.Sqrt(sum)/mu)
	}
	return top
}

// TestGramSensitivity checks that no pair is farther apart than μ, and that the worst pair nearly reaches μ. There are
// two exceptions, in which the worst pair may be nearer: flat noise, and a single feature under replace, because √S·R²
// needs two orthogonal rows.
func TestGramSensitivity(t *testing.T) {
	for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, flat := range []bool{false, true} {
			for _, d := range []int{1, 2, 5} {
				for _, squared := range []float64{1, 0.5, 0x1p-9} {
					top := searchGram(t, d, squared, a, flat, func(*Gram) {})
					if top > 1 || top < 0.99 && !flat && (d > 1 || a == dp.ZeroOut) {
						t.Errorf("%s, flat %t, d = %d, R² = %g: the worst pair is %.6f of μ apart", a, flat, d,
							squared, top)
					}
				}
			}
		}
	}
}

// TestGramMutants checks that the search finds three faults: rows that are not clipped, rows clipped to R² instead of
// R, and the sensitivity of the other adjacency.
func TestGramMutants(t *testing.T) {
	for name, m := range map[string]struct {
		mutate func(g *Gram)
		worth  float64
	}{
		"rows not clipped": {func(g *Gram) {
			rows, err := dp.NewLattice(1, 1, 24)
			if err != nil {
				t.Fatal(err)
			}
			g.rows = rows
		}, 4},
		"clipped to R² for R": {func(g *Gram) {
			rows, err := dp.NewLattice(0.5, 0.25, 24)
			if err != nil {
				t.Fatal(err)
			}
			g.rows, g.SD = rows, g.SD*0.25
		}, 4},
		"the sensitivity of zeroed rows": {func(g *Gram) { g.SD /= math.Sqrt2 }, math.Sqrt2},
	} {
		if top := searchGram(t, 3, 0.25, dp.Replace, false, m.mutate); math.Abs(top-m.worth) > 0.01*m.worth {
			t.Errorf("%s: the worst pair is %.4f of μ apart, want %.4f", name, top, m.worth)
		}
	}
}

func TestGramLimits(t *testing.T) {
	for _, mu := range []float64{1e-9, 1e9, 0, math.NaN()} {
		if _, err := NewGram(2, 1, mu, dp.ZeroOut, 24); err == nil {
			t.Errorf("no error for μ = %g", mu)
		}
	}
	g, err := NewGram(2, 1, 1, dp.ZeroOut, 24)
	if err != nil {
		t.Fatal(err)
	}
	g.Add([]float64{1, 0})
	g.added = g.limit + 1
	if _, err := g.Release(dptest.Zero(), "g"); err == nil {
		t.Error("no error for more rows than 62 bits hold")
	}
	if n := testing.AllocsPerRun(100, func() { g.Add([]float64{0.5, 1}) }); n > 0 {
		t.Errorf("a row allocates %g times", n)
	}
}

// TestGramState seals, restores and drops between rows. The release contains only the sealed rows, and blocks end
// where EndBlock is called.
func TestGramState(t *testing.T) {
	const d = 3
	source := rand.New(rand.NewPCG(7, 8))
	fresh := func() *Gram {
		g, err := NewGram(d, 0.25, 1, dp.Replace, 24)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	row := func() []float64 {
		x := make([]float64, d)
		for j := range x {
			x[j] = source.NormFloat64() / 3
		}
		return x
	}
	straight, again := fresh(), fresh()
	rows := 0.0
	for step := range 50 {
		for i := range 30 {
			x := row()
			straight.Add(x)
			again.Add(x)
			if rows++; i == 20 { // a public position
				straight.EndBlock()
				again.EndBlock()
			}
		}
		straight.Seal()
		again.Seal()
		if again.Rows() != rows {
			t.Fatalf("%g rows after %g", again.Rows(), rows)
		}
		again.Add(row())
		if step%2 == 0 {
			again.Drop()
			continue
		}
		w := &bin.Writer{}
		again.AppendTo(w)
		again = fresh()
		again.Add(row()) // dropped
		r := &bin.Reader{B: w.B}
		if again.Restore(r); !r.Done() {
			t.Fatal("a state is refused")
		}
		// A sum that is too large for the number of rows.
		w.B[8+6] = 0x7f
		bad := &bin.Reader{B: w.B}
		if fresh().Restore(bad); bad.Done() {
			t.Fatal("no error for a sum that no rows can have")
		}
	}
	x, y := dptest.Zero(), dptest.Zero()
	if _, err := straight.Release(x, "g"); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Release(y, "g"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(x.Hidden("g"), y.Hidden("g")) {
		t.Errorf("%v after restarts, %v without", y.Hidden("g"), x.Hidden("g"))
	}
	if !(straight.Limit() > 1e6) {
		t.Errorf("at most %g rows", straight.Limit())
	}
}
