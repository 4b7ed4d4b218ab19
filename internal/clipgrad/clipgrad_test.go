package clipgrad

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/rival"
)

// problem returns random rows: some null, some tiny, some with direction 0.
func problem(seed uint64, n, d, bits int, unit bool) (r *Rows, z [][]float64) {
	source := rand.New(rand.NewPCG(seed, 1))
	x, y, null := make([]float64, 0, n*d), make([]float64, n), make([]bool, n)
	z = make([][]float64, n)
	for i := range z {
		y[i] = source.NormFloat64()
		row := make([]float64, d)
		if null[i] = i%7 == 3; !null[i] {
			z[i] = row
		}
		if i%11 != 5 {
			scale := math.Ldexp(1, source.IntN(20)-18)
			for j := range row {
				row[j] = scale * source.NormFloat64()
			}
		}
		if !unit {
			norm := 0.0
			for _, v := range row {
				norm = math.Hypot(norm, v)
			}
			for j := range row {
				row[j] /= max(norm, 1)
			}
		}
		x = append(x, row...)
	}
	if unit {
		return ByNorm(x, y, null, d, bits), z
	}
	return ByResidual(x, y, null, d, bits), z
}

// direction returns the direction of row i, in integers.
func (r *Rows) direction(i int) []float64 {
	r.Prepare(0, len(r.y))
	if i >= r.grouped() {
		return slices.Clone(r.row(i))
	}
	k, e := i%group, make([]float64, r.dim)
	for j := range e {
		e[j] = float64(int32(math.Float64bits(r.packed(i - k)[words*j+k/2]) >> (32 * (k % 2))))
	}
	return e
}

// TestSum compares with sums in math/big, rounded once per block or once in all, and with the clipped gradients in
// float64. It does so for every kernel, and for numbers of rows around the borders of groups and blocks.
func TestSum(t *testing.T) {
	t.Parallel()
	const zeta, c = 0.3, 0.4
	for _, bits := range []int{24, 25, 26, 30} {
		for _, d := range []int{1, 2, 3, 8, 17} {
			for _, n := range []int{0, 1, 3, 7, 8, 9, 31, 33, 1000, blockRows - 1, blockRows + 5} {
				if n > 100 && d > 3 && bits != 24 {
					continue
				}
				for _, how := range [][2]bool{{false, false}, {true, false}, {false, true}} {
					unit, once := how[0], how[1]
					r, z := problem(uint64(bits*d), n, d, bits, unit)
					if once {
						r.RoundOnce()
					}
					out := bits + n%3
					u := make([]float64, d)
					for j := range u {
						u[j] = float64(j) - 0.7
					}
					got := make([]int64, d)
					counted := r.Sum(got, u, zeta, c, out)

					size := min(blockRows, 1<<(62-2*bits))
					if once {
						size = n + 1
					}
					want, block, plain := make([]int64, d), make([]*big.Int, d), make([]float64, d)
					var wantCounted int64
					for j := range block {
						block[j] = new(big.Int)
					}
					one := new(big.Int).Lsh(big.NewInt(1), uint(2*bits-out))
					half := new(big.Int).Rsh(one, 1)
					for i := range n {
						e := r.direction(i)
						// Compute τ in another way, from the norm and the exact direction.
						var s, square float64
						for j, v := range e {
							s += v * u[j]
							square += v * v
						}
						if square > math.Ldexp(1, 2*bits)*(1+1e-15*float64(d)) {
							t.Fatalf("direction %d is too long", i)
						}
						res := r.y[i] - r.norm[i]*s/math.Ldexp(1, bits)
						tau := math.RoundToEven(math.Ldexp(math.Max(-1, math.Min(1, res*r.norm[i]/zeta)), bits))
						if z[i] != nil {
							if math.Abs(tau) <= math.Floor(math.Ldexp(c, bits)) {
								wantCounted++
							}
							a := math.Abs(res) * r.norm[i]
							for j := range z[i] {
								plain[j] += z[i][j] * res * math.Min(1, zeta/math.Max(a, 1e-300)) / zeta
							}
						}
						for j, v := range e {
							p := new(big.Int).Mul(big.NewInt(int64(v)), big.NewInt(int64(tau)))
							block[j].Add(block[j], p)
						}
						if (i+1)%size == 0 || i == n-1 {
							for j, b := range block {
								b.Add(b, half)
								want[j] += new(big.Int).Rsh(b, uint(2*bits-out)).Int64()
								b.SetInt64(0)
							}
						}
					}
					// In one of 2⁵³⁻ᵇ rows, τ may round in the other direction.
					for j := range want {
						if diff := math.Ldexp(float64(got[j]-want[j]), -out); math.Abs(diff) > float64(n)*0x1p-48 {
							t.Fatalf("%d bits, %d×%d: coordinate %d is %d, want %d", bits, n, d, j, got[j], want[j])
						}
						if diff := math.Ldexp(float64(got[j]), -out) - plain[j]; math.Abs(diff) > 1e-12+
							float64(n)*math.Ldexp(1, 1-bits) {
							t.Fatalf("%d bits, %d×%d: coordinate %d is %g in float64, off by %g", bits, n, d, j,
								plain[j], diff)
						}
					}
					if counted != wantCounted {
						t.Fatalf("%d bits, %d×%d: %d rows counted, want %d", bits, n, d, counted, wantCounted)
					}
				}
			}
		}
	}
}

// TestWorkers checks that the sums are the same in all passes, however the rows are divided among workers. It tests
// numbers of rows at and around the borders of blocks, and more workers than rows.
func TestWorkers(t *testing.T) {
	t.Parallel()
	const d = 3
	for _, bits := range []int{24, 28} {
		for _, n := range []int{1, 7, 63, 64, 65, 4095, 4096, 4097, 8192, 12_291, 20_000} {
			var want [][]int64
			for _, workers := range []int{1, 2, 3, 4, 5, 16, 64} {
				r, _ := problem(5, n, d, bits, true)
				r.hire(workers)
				for pass, u := range [][]float64{{0.1, -0.4, 2}, {0, 0, 0}, {1, 1, -1}} {
					got := make([]int64, d)
					got = append(got, r.Sum(got, u, 0.2, 0.5, bits+pass))
					if workers == 1 {
						want = append(want, got)
					} else if !slices.Equal(got, want[pass]) {
						t.Fatalf("%d bits, %d rows, %d workers, pass %d: %v, want %v", bits, n, workers, pass,
							got, want[pass])
					}
				}
			}
		}
	}
}

// method says how a pass is computed and how much its count weighs. A mutant has a fault in one of the two.
type method struct {
	limit  func(c float64) float64                 // largest |τ| that is counted
	weight func(a dp.Adjacency, c float64) float64 // weight of the count
	null   bool                                    // null rows are recognised
}

var sound = method{
	limit:  func(c float64) float64 { return c },
	weight: CountWeight,
	null:   true,
}

// search looks for a pair of rows that moves the sums, or the sums with the weighted count, by more than the bound. It
// tries rows of every length and residual, and varies the clip norm and c. It returns the largest distance of the sums,
// and of the sums with the count, each divided by the bound.
func search(a dp.Adjacency, m method, trials int) (sums, both float64) {
	const bits, d = 24, 3
	source := rand.New(rand.NewPCG(7, 8))
	for trial := range trials {
		c := []float64{0.2, 0.27, 0.4, 0.65}[trial%4]
		zeta := math.Exp(source.NormFloat64())
		u := []float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64()}
		// A few fixed rows, so that blocks round different sums.
		var fixed []float64
		for range 4 {
			fixed = append(fixed, source.NormFloat64(), source.NormFloat64(), 0.1)
		}
		draw := func() (z []float64, target float64) {
			z = []float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64()}
			var norm, fit float64
			for j, v := range z {
				norm = math.Hypot(norm, v)
				fit += v * u[j]
			}
			// Residuals at, near and beyond the limits.
			value := []float64{c * (1 + 1e-9), c * (1 - 1e-6), c * (1 + 1e-6), 1, 2, source.Float64()}[source.IntN(6)]
			if source.IntN(2) == 0 {
				value = -value
			}
			return z, fit + value*zeta/norm
		}
		release := func(z []float64, target float64) ([]int64, int64) {
			null := make([]bool, 5)
			if z == nil {
				null[4], z = m.null, make([]float64, d)
			}
			r := ByNorm(append(slices.Clone(fixed), z...), []float64{0.3, -0.2, 0, 0.9, target}, null, d, bits)
			dst := make([]int64, d)
			return dst, r.Sum(dst, u, zeta, m.limit(c), bits)
		}
		z1, y1 := draw()
		s1, n1 := release(z1, y1)
		var s2 []int64
		var n2 int64
		switch {
		case a == dp.ZeroOut:
			s2, n2 = release(nil, 0)
		case trial%3 == 0:
			z2, y2 := draw()
			s2, n2 = release(z2, y2)
		default: // the opposite direction, for which the pair is farthest apart
			_, y2 := draw()
			s2, n2 = release([]float64{-z1[0], -z1[1], -z1[2]}, y2)
		}
		var sum float64
		for j := range s1 {
			sum += math.Pow(math.Ldexp(float64(s1[j]-s2[j]), -bits), 2)
		}
		charged := Sensitivity(a, d, bits)
		sums = max(sums, math.Sqrt(sum)/charged)
		both = max(both, math.Sqrt(sum+math.Pow(m.weight(a, c)*float64(n1-n2), 2))/charged)
	}
	return sums, both
}

// TestSensitivity searches 60 000 pairs: none moves the sums, or the sums with their count, by more than the bound, and
// the worst pair nearly reaches it.
func TestSensitivity(t *testing.T) {
	t.Parallel()
	for _, a := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		if sums, both := search(a, sound, 30_000); sums > 1 || both > 1 || sums < 0.999 || both < 0.999 {
			t.Errorf("%s: sums move by %.9g of the bound, with their count by %.9g", a, sums, both)
		}
	}
}

// TestMutants plants faults with which the count is not free, and checks that the search finds each of them.
func TestMutants(t *testing.T) {
	t.Parallel()
	mutant := func(change func(m *method)) method {
		m := sound
		change(&m)
		return m
	}
	for name, m := range map[string]method{
		"the weight left out": mutant(func(m *method) {
			m.weight = func(dp.Adjacency, float64) float64 { return 1 }
		}),
		"null rows counted":          mutant(func(m *method) { m.null = false }),
		"counted up to ζ and not cζ": mutant(func(m *method) { m.limit = func(float64) float64 { return 1 } }),
		"the weight of zeroed rows": mutant(func(m *method) {
			m.weight = func(a dp.Adjacency, c float64) float64 { return math.Sqrt(4 - 4*c*c) }
		}),
	} {
		_, zeroed := search(dp.ZeroOut, m, 2000)
		_, replaced := search(dp.Replace, m, 2000)
		if zeroed < 1.05 && replaced < 1.05 {
			t.Errorf("%s: moves by %.4f and %.4f of the bound", name, zeroed, replaced)
		}
		t.Logf("%s: %.4f of the bound under zero-out, %.4f under replace", name, zeroed, replaced)
	}
}

func TestAllocations(t *testing.T) {
	r, _ := problem(9, 3000, 4, 24, true)
	dst, u := make([]int64, 4), make([]float64, 4)
	if n := testing.AllocsPerRun(20, func() { r.Sum(dst, u, 1, 0.3, 24) }); n > 8 {
		t.Errorf("a pass over 3000 rows allocates %g times", n)
	}
}

func FuzzSet(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, 0.5)
	f.Add(math.Inf(1), 0.0, math.NaN(), 1e300)
	f.Add(1e-300, -1e-310, 5e-324, -1e18)
	f.Fuzz(func(t *testing.T, a, b, c, y float64) {
		if math.IsNaN(y) || math.Abs(y) > 1e100 {
			return
		}
		for _, unit := range []bool{false, true} {
			prepared := ByResidual
			if unit {
				prepared = ByNorm
			}
			r := prepared([]float64{a, b, c}, []float64{y}, nil, 3, 24)
			dst := make([]int64, 3)
			r.Sum(dst, []float64{1, -1, 0.5}, 0.1, 0.3, 24)
			if !(dp.Lattice{Exp: -24, K: 1<<24 + 2}).Inside(dst) {
				t.Errorf("one row sums up to %v", dst)
			}
		}
	})
}

// descent is a pass of plain gradient descent without privacy: a gradient of ½‖y − Xu‖².
func descent(dst, x, y, u []float64) {
	d := len(u)
	clear(dst)
	for i, r := range y {
		row := x[i*d : (i+1)*d]
		for j, v := range row {
			r -= v * u[j]
		}
		for j, v := range row {
			dst[j] += r * v
		}
	}
}

// BenchmarkSum measures a pass on one processor against a pass of plain gradient descent over the same rows.
func BenchmarkSum(b *testing.B) {
	for _, shape := range [][2]int{{36_000, 8}, {13_500, 26}, {1 << 17, 90}} {
		n, d := shape[0], shape[1]
		b.Run(fmt.Sprintf("%dx%d", n, d), func(b *testing.B) {
			r, z := problem(1, n, d, 24, true)
			r.hire(1)
			x := make([]float64, 0, n*d)
			for _, row := range z {
				if row == nil {
					row = make([]float64, d)
				}
				x = append(x, row...)
			}
			sum, plain, u := make([]int64, d), make([]float64, d), make([]float64, d)
			rival.Compare(b, n, func() { r.Sum(sum, u, 0.1, 0.3, 24) }, "descent", func() { descent(plain, x, r.y, u) })
		})
	}
}

// BenchmarkTwo measures a pass on two processors against a pass on one.
func BenchmarkTwo(b *testing.B) {
	const n, d = 1 << 16, 26
	two, _ := problem(1, n, d, 24, true)
	one, _ := problem(1, n, d, 24, true)
	if runtime.GOMAXPROCS(0) < 2 {
		b.Skip("one processor")
	}
	two.hire(2)
	one.hire(1)
	sum, u := make([]int64, d), make([]float64, d)
	rival.Compare(b, n, func() { two.Sum(sum, u, 0.1, 0.3, 24) }, "one", func() { one.Sum(sum, u, 0.1, 0.3, 24) })
}

// TestDirections quantises rows whose rounded direction would be outside the ball. The direction must then be the one
// that dp.Lattice computes, to the last unit, and must not be longer than E.
func TestDirections(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(11, 12))
	for _, bits := range []int{24, 26} {
		lattice, outside := dp.Lattice{Exp: -bits, K: 1 << bits}, 0
		for _, d := range []int{1, 2, 3, 8, 90} {
			const n = 2000
			rows, wants := make([]float64, n*d), make([]int64, n*d)
			for i := range n {
				x, want := rows[i*d:][:d], wants[i*d:][:d]
				norm := 0.0
				for j := range x {
					x[j] = source.NormFloat64()
					norm = math.Hypot(norm, x[j])
				}
				if i%2 == 1 { // equal entries round in the same way
					for j := range x {
						x[j] = 1
					}
					norm = math.Sqrt(float64(d))
				}
				for j := range x {
					x[j] /= norm * (1 - 0x1p-30*float64(i%3)) // too long by up to 2⁻²⁹
				}
				rounded := make([]float64, d)
				for j, v := range x {
					rounded[j] = math.Ldexp(math.RoundToEven(math.Ldexp(v, bits)), -bits)
					want[j] = int64(math.Ldexp(rounded[j], bits))
				}
				if !lattice.Inside(want) {
					outside++
					lattice.Quantise(want, rounded)
				}
			}
			r := ByResidual(slices.Clone(rows), make([]float64, n), nil, d, bits)
			for i := range n {
				want, got := wants[i*d:][:d], r.direction(i)
				for j, k := range want {
					if got[j] != float64(k) {
						t.Fatalf("%d bits: row %v has direction %v, want %v", bits, rows[i*d:][:d], got, want)
					}
				}
				if !lattice.Inside(want) {
					t.Fatalf("%d bits: direction %v is longer than 2^%d", bits, want, bits)
				}
			}
		}
		if outside < 1000 {
			t.Errorf("%d bits: %d rows were outside", bits, outside)
		}
	}
}

// TestNoNumbers checks that a row that is not finite, or has numbers beyond the range of float64, moves the sums and
// the count by no more than any other row.
func TestNoNumbers(t *testing.T) {
	t.Parallel()
	const n, c = 17, 0.4 // a whole pair of groups, and one more row
	bad := []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 1e200}
	for _, bits := range []int{24, 26, 28} {
		for name, rows := range map[string]func(x, y []float64, null []bool, dim, bits int) *Rows{"norm": ByNorm,
			"residual": ByResidual} {
			for _, place := range []int{2, n - 1} {
				sum := func(feature, target float64, null bool) (total, counted int64) {
					x, y, nulls, dst := make([]float64, n), make([]float64, n), make([]bool, n), make([]int64, 1)
					for i := range x {
						x[i], y[i] = 0.5, 0.1*float64(i)
					}
					x[place], y[place], nulls[place] = feature, target, null
					counted = rows(x, y, nulls, 1, bits).Sum(dst, []float64{0.3}, 0.2, c, bits)
					return dst[0], counted
				}
				without, counted := sum(0, 0, true)
				check := func(feature, target float64) {
					if total, count := sum(feature, target,
						false); math.Abs(float64(total-without)) > math.Ldexp(1, bits) ||
						count-counted < 0 || count-counted > 1 {
						t.Errorf("%s, %d bits, row %d is %g with target %g: sum %d and count %d, without it %d and %d",
							name, bits, place, feature, target, total, count, without, counted)
					}
				}
				for _, v := range bad {
					check(v, 0.5)
					if v-v != 0 {
						check(0.5, v)
						check(0, v)
					}
				}
			}
		}
	}
}
