package newton

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"streamdp/dp"
	"streamdp/internal/bin"
	"streamdp/internal/dptest"
)

// TestElementary compares with package math, over the whole range.
func TestElementary(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	near := func(what string, x, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 6e-16*math.Abs(want)) {
			t.Fatalf("%s(%g) = %.17g, want %.17g", what, x, got, want)
		}
	}
	for range 100_000 {
		x := source.NormFloat64() * math.Exp(6*source.Float64())
		if math.Abs(x) < 700 {
			near("Exp", x, Exp(x), math.Exp(x))
		}
		y := math.Exp(x / 2)
		if y > 1e-300 && y < 1e300 {
			if want := math.Log(y); math.Abs(Log(y)-want) > 4e-16*max(math.Abs(want), math.Ln2) {
				t.Fatalf("Log(%g) = %.17g, want %.17g", y, Log(y), want)
			}
			if a := source.Float64() - 0.5; math.Abs(Pow(y, a)-math.Pow(y, a)) > 1e-13*math.Pow(y, a) {
				t.Fatalf("Pow(%g, %g) = %g", y, a, Pow(y, a))
			}
		}
	}
	for x, want := range map[float64]float64{0: 1, 800: math.Inf(1), -800: 0, math.Inf(1): math.Inf(1), math.Inf(-1): 0} {
		if got := Exp(x); got != want {
			t.Errorf("Exp(%g) = %g", x, got)
		}
	}
	if !math.IsNaN(Exp(math.NaN())) || Log(1) != 0 {
		t.Error("Exp(NaN) or Log(1)")
	}
}

func TestBin(t *testing.T) {
	for s, want := range map[float64]int{
		1: 0, 0.5000000001: 0, 0.5: 1, 0.3: 1, 0.25: 2, 0.2: 2, 1.7: 0, 1e30: 0, 0x1p-23: 23, 0x1.1p-23: 22, 0x1p-24: 23, 1e-300: 23, 5e-324: 23, 0: 23,
	} {
		if got := Bin(s); got != want {
			t.Errorf("Bin(%g) = %d, want %d", s, got, want)
		}
	}
}

// TestHistogram checks that null rows are in no bin, that what the noise hides are
// the counts in lattice units, and that the noise has the deviation of the guarantee.
func TestHistogram(t *testing.T) {
	var h Histogram
	rows := [][]float64{{1, 0}, {0.5, 0.5}, {0, 0}, {1e-200, 0}, {0.1, -0.2}, {3, 4}}
	want := []bool{true, true, false, true, true, true}
	for i, row := range rows {
		if h.Add(row) != want[i] {
			t.Errorf("row %d: valid is %t", i, !want[i])
		}
	}
	z := make([]float64, Bins)
	for j := range z {
		z[j] = float64(j)/2 - 7.25
	}
	sd := HistogramSD(0.5, dp.Replace)
	if math.Abs(sd-math.Sqrt2/0.5) > 1e-11 {
		t.Errorf("deviation %g", sd)
	}
	noise := dptest.Arrays(map[string][][]float64{"h": {z}})
	norms := h.Release(noise, "h", sd, 24)
	counts := [Bins]int64{0: 2, 1: 1, 4: 1, 23: 1}
	for j, c := range counts {
		if noise.Hidden("h")[j] != c<<20 {
			t.Errorf("bin %d hides %d, want %d", j, noise.Hidden("h")[j], c<<20)
		}
		if got := norms.Counts[j]; math.Abs(got-float64(c)-sd*z[j]) > 0x1p-20 {
			t.Errorf("bin %d is %g, want %g", j, got, float64(c)+sd*z[j])
		}
	}
}

// TestRadius works the rules out on a histogram without noise.
func TestRadius(t *testing.T) {
	n := Norms{SD: 1}
	n.Counts[0], n.Counts[3], n.Counts[6], n.Counts[7] = 1.5, 30, 500, 400
	if got, want := n.Valid(5000), 931.5+2*math.Sqrt(24); math.Abs(got-want) > 1e-9 {
		t.Errorf("%g rows are valid, want %g", got, want)
	}
	if n.Valid(900) != 900 || n.Valid(30) != 30 || n.Empty() {
		t.Error("more rows than positions, or none")
	}
	// The bin with 1.5 rows may be noise; 500 rows in bin 6 are more than 0.4·n̂, so
	// i = 7 is out of question. Up to i = 6 rows of bin 3 are missed.
	missed := []float64{0, 0, 0, 0, 30 * (0.75/8 - 1./16), 30 * (0.75/8 - 1./32), 30 * (0.75/8 - 1./64)}
	for _, noise := range []float64{1e-9, 0.01, 1, 50, 1e9} {
		best, at := math.Inf(1), 0
		for i, m := range missed {
			if cost := noise/math.Exp2(float64(i)) + 0.25*m; cost < best {
				best, at = cost, i
			}
		}
		squared, m := n.Radius(n.Valid(5000), noise, 0.25)
		if squared != math.Exp2(float64(-at)) || math.Abs(m-missed[at]) > 1e-12 {
			t.Errorf("noise %g: R² = %g missing %g, want 2^−%d and %g", noise, squared, m, at, missed[at])
		}
	}
	trace := 0.0
	square := 0.0
	for j, c := range n.Counts {
		b := min(0.75*math.Exp2(float64(-j)), 1./64)
		trace += c * b
		square += b * b
	}
	trace += math.Sqrt(square)
	if got := n.Trace(1./64, 1000, 0.5); math.Abs(got-trace) > 1e-12 {
		t.Errorf("trace %g, want %g", got, trace)
	}
	if got := n.Trace(1./64, 1, 0.5); math.Abs(got-(1./64+0.5)) > 1e-12 {
		t.Errorf("trace of one row %g", got)
	}
	if !(&Norms{SD: 5}).Empty() {
		t.Error("zeros are not empty")
	}
}

// TestGram compares what the noise hides with rows clipped, quantised and multiplied
// out one by one, rounded once a block; rows one by one and at once, on any number of
// processors.
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
			g.AddRows(x)
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

// searchGram looks for records that move the matrix by more than its noise pays for, in
// the norm in which the noise is white, and returns the largest distance over μ. mutate
// plants a fault.
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
		g.AddRows([]float64{r / 2, -r / 3, r / 5, 1, 1}[:d])
		g.Add(x)
		// A draw of 1 everywhere shows the deviations.
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

// TestGramSensitivity: no pair is farther apart than μ, and the worst pair nearly is.
// With flat noise it may be nearer, and a single feature can't move by √2.
func TestGramSensitivity(t *testing.T) {
	for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, flat := range []bool{false, true} {
			for _, d := range []int{1, 2, 5} {
				for _, squared := range []float64{1, 0.5, 0x1p-9} {
					top := searchGram(t, d, squared, a, flat, func(*Gram) {})
					if top > 1 || top < 0.99 && !flat && (d > 1 || a == dp.ZeroOut) {
						t.Errorf("%s, flat %t, d = %d, R² = %g: the worst pair is %.6f of μ apart", a, flat, d, squared, top)
					}
				}
			}
		}
	}
}

// TestGramMutants shows that the search finds rows that are not clipped, noise off the
// diagonal for a vector of its entries, and the other adjacency's sensitivity.
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
			t.Errorf("%s: the worst pair is %.4f of μ apart, the fault is worth %.4f", name, top, m.worth)
		}
	}
}

func TestGramLimits(t *testing.T) {
	for _, mu := range []float64{1e-9, 1e9, 0, math.NaN()} {
		if _, err := NewGram(2, 1, mu, dp.ZeroOut, 24); err == nil {
			t.Errorf("μ = %g has a lattice", mu)
		}
	}
	g, err := NewGram(2, 1, 1, dp.ZeroOut, 24)
	if err != nil {
		t.Fatal(err)
	}
	g.Add([]float64{1, 0})
	g.added = g.limit + 1
	if _, err := g.Release(dptest.Zero(), "g"); err == nil {
		t.Error("more rows than 62 bits hold were released")
	}
	if n := testing.AllocsPerRun(100, func() { g.Add([]float64{0.5, 1}) }); n > 0 {
		t.Errorf("a row allocates %g times", n)
	}
}

// matrices are symmetric matrices of every kind, as upper triangles.
func matrices(d int) map[string][]float64 {
	source := rand.New(rand.NewPCG(9, uint64(d)))
	all := map[string][]float64{}
	each := func(name string, f func(i, j int) float64) {
		for i := range d {
			for j := i; j < d; j++ {
				all[name] = append(all[name], f(i, j))
			}
		}
	}
	each("zero", func(i, j int) float64 { return 0 })
	each("identity", func(i, j int) float64 { return map[bool]float64{true: 1}[i == j] })
	each("ones", func(i, j int) float64 { return 1 })
	each("random", func(i, j int) float64 { return source.NormFloat64() })
	each("graded", func(i, j int) float64 { return math.Ldexp(source.NormFloat64(), -3*(i+j)) })
	each("Hilbert", func(i, j int) float64 { return 1e6 / float64(i+j+1) })
	return all
}

// TestEigen checks A = VΛVᵀ, VVᵀ = I, and the values against gonum's.
func TestEigen(t *testing.T) {
	for _, d := range []int{1, 2, 3, 10, 40} {
		for name, upper := range matrices(d) {
			values, v := Eigen(upper, d)
			a := mat.NewSymDense(d, nil)
			n := 0
			var norm float64
			for i := range d {
				for j := i; j < d; j++ {
					a.SetSym(i, j, upper[n])
					norm = max(norm, math.Abs(upper[n]))
					n++
				}
			}
			tol := 1e-14 * norm * float64(d)
			for i := range d {
				for j := range d {
					var sum, unit float64
					for k, l := range values {
						sum += v[i*d+k] * l * v[j*d+k]
						unit += v[i*d+k] * v[j*d+k]
					}
					if i == j {
						unit--
					}
					if math.Abs(sum-a.At(i, j)) > tol || math.Abs(unit) > 1e-13 {
						t.Fatalf("%s, d = %d: entry (%d, %d) is off by %g, of VVᵀ by %g", name, d, i, j, sum-a.At(i, j), unit)
					}
				}
			}
			var eigen mat.EigenSym
			if !eigen.Factorize(a, false) {
				t.Fatal("gonum did not converge")
			}
			slices.Sort(values)
			for i, want := range eigen.Values(nil) {
				if math.Abs(values[i]-want) > tol {
					t.Errorf("%s, d = %d: value %d is %g, want %g", name, d, i, values[i], want)
				}
			}
		}
	}
}

// TestWhiten checks W(G + ρI)W = I where no cap is in the way, that all of H lies in
// [ρ, tr], shares in [0, 1], and that the rows' map is the vectors'.
func TestWhiten(t *testing.T) {
	for _, d := range []int{1, 3, 10} {
		for name, upper := range matrices(d) {
			values, _ := Eigen(upper, d)
			for _, ridge := range []float64{0.1, 3} {
				for _, trace := range []float64{4, 1e9} {
					w := Whiten(upper, d, ridge, trace)
					var signal float64
					for i, s := range w.Scale {
						if h := s * s; h < ridge*(1-1e-12) || h > trace*(1+1e-12) {
							t.Fatalf("%s: H is %g", name, h)
						}
						if w.Share[i] < 0 || w.Share[i] > 1+1e-12 {
							t.Fatalf("%s: share %g", name, w.Share[i])
						}
						signal += w.Share[i] * s * s
					}
					if signal > trace*(1+1e-12) {
						t.Fatalf("%s: Σℓ is %g, the cap %g", name, signal, trace)
					}
					x := make([]float64, 7*d)
					source := rand.New(rand.NewPCG(1, 1))
					for i := range x {
						x[i] = source.NormFloat64()
					}
					rows := slices.Clone(x)
					w.ApplyRows(rows)
					one := make([]float64, d)
					for r := range 7 {
						w.Apply(one, x[r*d:(r+1)*d])
						if !slices.Equal(one, rows[r*d:(r+1)*d]) {
							t.Fatalf("%s: row %d is %v, alone %v", name, r, rows[r*d:(r+1)*d], one)
						}
					}
					if trace < 1e9 || slices.Min(values) < 0 {
						continue
					}
					// G + ρI applied between.
					for k := range d {
						e, f := make([]float64, d), make([]float64, d)
						copy(e, w.Root[k*d:(k+1)*d])
						n := 0
						for i := range d {
							for j := i; j < d; j++ {
								f[i] += upper[n] * e[j]
								if i != j {
									f[j] += upper[n] * e[i]
								}
								n++
							}
							f[i] += ridge * e[i]
						}
						w.Apply(one, f)
						one[k]--
						for _, v := range one {
							if math.Abs(v) > 1e-9 {
								t.Fatalf("%s, ρ = %g: W(G+ρI)W is off by %g", name, ridge, v)
							}
						}
					}
				}
			}
		}
	}
}

// TestGramState seals, restores and drops between rows: the release is that of what was
// sealed, whatever else was added, and blocks end where they are told to.
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
		// A sum beyond what so many rows have.
		w.B[8+6] = 0x7f
		bad := &bin.Reader{B: w.B}
		if fresh().Restore(bad); bad.Done() {
			t.Fatal("a sum that no rows have is taken")
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

// TestWhitening: uniform maps, inverses, maps that are restored, and four rows at once.
func TestWhitening(t *testing.T) {
	source := rand.New(rand.NewPCG(5, 6))
	for _, d := range []int{1, 2, 5, 8} {
		x, y, z := make([]float64, 4*d), make([]float64, d), make([]float64, d)
		for i := range x {
			x[i] = source.NormFloat64()
		}
		u := Uniform(d, 4)
		u.Apply(y, x[:d])
		for j, v := range y {
			if v != x[j]/4 {
				t.Errorf("d = %d: coordinate %d is %g, want %g", d, j, v, x[j]/4)
			}
		}
		upper := make([]float64, 0, d*(d+1)/2)
		for i := range d {
			for j := i; j < d; j++ {
				upper = append(upper, source.NormFloat64())
			}
		}
		w := Whiten(upper, d, 0.1, 50)
		w.Apply(y, x[:d])
		w.Unapply(z, y)
		for j, v := range z {
			if math.Abs(v-x[j]) > 1e-12 {
				t.Errorf("d = %d: W⁻¹W is off by %g", d, v-x[j])
			}
		}
		if r := Restore(slices.Clone(w.Vectors), slices.Clone(w.Scale)); !slices.Equal(r.Root, w.Root) {
			t.Errorf("d = %d: a map has other bits when it is restored", d)
		}
		four := make([]float64, 4*d)
		w.ApplyFour(four, x)
		for i := range 4 {
			if w.Apply(y, x[i*d:][:d]); !slices.Equal(y, four[i*d:][:d]) {
				t.Errorf("d = %d: row %d has other bits among four", d, i)
			}
		}
	}
}

// TestMissed: for radii between bins too, such as a search has found.
func TestMissed(t *testing.T) {
	n := Norms{SD: 1}
	n.Counts[0], n.Counts[1], n.Counts[4] = 100, 10, 1.9
	for squared, want := range map[float64]float64{1: 0, 0.5: 25, 0.25: 50 + 1.25, 0x1p-32: 75 + 3.75} {
		if got := n.Missed(squared); math.Abs(got-want) > 1e-6 {
			t.Errorf("R² = %g misses %g, want %g", squared, got, want)
		}
	}
}

// TestGoldenNorms: what follows from a histogram has no fused products, whose bits would
// be those of some machines only.
func TestGoldenNorms(t *testing.T) {
	apart := [3]int{}
	for k := range 1000 {
		n := Norms{SD: 10 + float64(k)/100}
		// As many rows as may be shortened, and hardly more.
		const valid = 1000.0
		root := math.Sqrt(2)
		limit := 0.4*valid - float64(1.5*n.SD*root)
		if math.FMA(-1.5*n.SD, root, 0.4*valid) != limit {
			apart[0]++
		}
		for _, c := range []struct{ rows, want float64 }{{limit, 0.25}, {math.Nextafter(limit, 1e3), 0.5}} {
			n.Counts[1] = c.rows
			if squared, _ := n.Radius(valid, 1, 0); squared != c.want {
				t.Fatalf("deviation %g, %v rows: R² = %g, want %g", n.SD, c.rows, squared, c.want)
			}
		}
		n.Counts[1] = 300
		root = math.Sqrt(Bins)
		if math.FMA(2*n.SD, root, 300) != 300+float64(2*n.SD*root) {
			apart[1]++
		}
		if got, want := n.Valid(1e4), 300+float64(2*n.SD*root); got != want {
			t.Fatalf("deviation %g: %v rows, want %v", n.SD, got, want)
		}
		var square float64
		for j := range Bins {
			square += float64(min(middle(j), 0.5) * min(middle(j), 0.5))
		}
		root = math.Sqrt(square)
		if math.FMA(n.SD, root, 300*middle(1)) != 300*middle(1)+float64(n.SD*root) {
			apart[2]++
		}
		if got, want := n.Trace(0.5, 1e4, 0), 300*middle(1)+float64(n.SD*root); got != want {
			t.Fatalf("deviation %g: trace %v, want %v", n.SD, got, want)
		}
	}
	if slices.Min(apart[:]) < 50 {
		t.Errorf("%d cases are told apart", apart)
	}
}

// TestGoldenBits holds the arithmetic to the same bits on every machine.
func TestGoldenBits(t *testing.T) {
	h := sha256.New()
	put := func(x ...float64) {
		for _, v := range x {
			binary.Write(h, binary.LittleEndian, math.Float64bits(v))
		}
	}
	state := uint64(1)
	next := func() float64 { // in (−1, 1)
		state = state*6364136223846793005 + 1442695040888963407
		return float64(int64(state)>>11) * 0x1p-52
	}
	for range 1000 {
		x := 40 * next()
		put(Exp(x), Log(math.Abs(x)), Pow(math.Abs(x), next()))
	}
	const d = 9
	upper := make([]float64, d*(d+1)/2)
	for i := range upper {
		upper[i] = next()
	}
	values, vectors := Eigen(upper, d)
	w := Whiten(upper, d, 0.3, 5)
	x := make([]float64, 6*d)
	for i := range x {
		x[i] = next()
	}
	w.ApplyRows(x)
	put(values...)
	put(vectors...)
	put(w.Share...)
	put(x...)
	var hist Histogram
	for i := range 200 {
		hist.Add([]float64{next(), next() / float64(i+1)})
	}
	norms := hist.Release(dptest.Zero(), "h", 1, 24)
	valid := norms.Valid(200)
	squared, missed := norms.Radius(valid, 3, 0.25)
	put(valid, squared, missed, norms.Trace(squared, valid, missed))
	const want = "1125201bdbf070eb455806ed86e4c97a5443a4f73f6c810463299f2326775ccd"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("the bits hash to %s, want %s", got, want)
	}
}
