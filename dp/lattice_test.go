package dp

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestQuantiseStaysInside tests the sensitivity: for every record the integer norm is at most K, and the distance of a
// neighbour is within the factor of the adjacency.
func TestQuantiseStaysInside(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct{ bound, sd float64 }{{1, 1}, {1.7, 3}, {1e-3, 7}, {3e8, 2e8}, {1 - 0x1p-53, 1},
		{0.1, 1e9}, {64, 1}} {
		l, err := NewLattice(c.bound, c.sd, 24)
		if err != nil {
			t.Fatal(err)
		}
		if l.Bound() > c.bound || l.Bound() < c.bound*(1-0x1p-23) {
			t.Errorf("bound %g became %g", c.bound, l.Bound())
		}
		if l.Step() > min(c.bound, c.sd)*0x1p-24 {
			t.Errorf("step %g is coarser than asked", l.Step())
		}
		outside := 0
		for range 20_000 {
			d := 1 + source.IntN(12)
			x, k := make([]float64, d), make([]int64, d)
			size := c.bound * math.Exp(6*source.Float64()-3)
			for j := range x {
				x[j] = source.NormFloat64() * size
			}
			if !l.Quantise(k, x) {
				outside++
			}
			wantInside(t, l, k)
			// Clipping keeps the direction, up to rounding to the lattice.
			norm := 0.0
			for _, v := range x {
				norm = math.Hypot(norm, v)
			}
			for j := range x {
				want := x[j] * min(1, l.Bound()/norm) / l.Step()
				if math.Abs(float64(k[j])-want) > 1+0x1p-40*math.Abs(want) {
					t.Fatalf("coordinate %g of norm %g became %d, want about %g", x[j], norm, k[j], want)
				}
			}
		}
		if outside > 0 {
			t.Errorf("bound %g: %d vectors fell to zero", c.bound, outside)
		}
	}
}

// TestQuantiseWays compares the fast ways, which handle almost every record, with the general way. The integers must be
// the same: on both sides of the bound, where rounding to nearest leaves the ball, and near the limits of the fast
// ways.
func TestQuantiseWays(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 1))
	tries := map[int]int{}
	for _, c := range []struct{ bound, sd float64 }{{1, 1}, {1.7, 3}, {1e-3, 7}, {3e8, 2e8}, {1e-130, 1e-130},
		{1e140, 1e140}, {64, 1}} {
		l, err := NewLattice(c.bound, c.sd, 24)
		if err != nil {
			t.Fatal(err)
		}
		for range 10_000 {
			d := 1 + source.IntN(20)
			x, got, want := make([]float64, d), make([]int64, d), make([]int64, d)
			size := c.bound * math.Exp(40*source.Float64()-30)
			if source.IntN(2) == 0 {
				size = c.bound * (0.5 + source.Float64()) / math.Sqrt(float64(d))
			}
			for j := range x {
				x[j] = source.NormFloat64() * size
			}
			square, inside := l.QuantiseSquare(got, x)
			scale, e, ok := l.scaling(x, sumOfSquares(x))
			i, sum, ok2 := 0, uint64(0), false
			for ; ok && i < len(shrinks); i++ {
				if sum, ok2 = l.round(want, x, scale, e, shrinks[i]); ok2 {
					break
				}
			}
			tries[i]++
			if inside != ok2 || square != sum || !slices.Equal(got, want) {
				t.Fatalf("%v on %+v: %v %d %v, want %v %d %v", x, l, got, square, inside, want, sum, ok2)
			}
		}
	}
	if tries[0] < 1000 || tries[1] < 1000 {
		t.Errorf("the numbers of records per try are %v", tries)
	}
}

func wantInside(t *testing.T, l Lattice, k []int64) {
	t.Helper()
	sum, limit := new(big.Int), new(big.Int).Mul(big.NewInt(l.K), big.NewInt(l.K))
	for _, v := range k {
		sum.Add(sum, new(big.Int).Mul(big.NewInt(v), big.NewInt(v)))
	}
	if sum.Cmp(limit) > 0 {
		t.Fatalf("%v has a norm above %d", k, l.K)
	}
}

func TestQuantiseExtremes(t *testing.T) {
	l, err := NewLattice(1, 1, 24)
	if err != nil {
		t.Fatal(err)
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		x    []float64
		want []int64 // nil: the zero row, false
	}{
		{[]float64{nan, 0}, nil},
		{[]float64{0.1, inf}, nil},
		{[]float64{-inf, inf}, nil},
		{[]float64{0, math.Copysign(0, -1)}, []int64{0, 0}},
		{[]float64{5e-324, 0}, []int64{0, 0}},
		{[]float64{math.MaxFloat64, 0}, []int64{l.K, 0}}, // huge finite numbers are clipped
		{[]float64{-math.MaxFloat64, 0}, []int64{-l.K, 0}},
		{[]float64{1e155, 0}, []int64{l.K, 0}},
		{[]float64{1e-170, 1}, []int64{0, l.K}},
		{[]float64{0.5, 0}, []int64{l.K / 2, 0}},
	} {
		k := []int64{99, 99}
		ok := l.Quantise(k, c.x)
		if ok != (c.want != nil) {
			t.Errorf("%v: %v", c.x, ok)
		}
		if c.want == nil {
			c.want = []int64{0, 0}
		}
		for j := range k {
			if k[j] != c.want[j] && !(math.Abs(float64(k[j]-c.want[j])) <= 1 && c.want[j] != 0) {
				t.Errorf("%v became %v, want %v", c.x, k, c.want)
			}
		}
		wantInside(t, l, k)
	}
	// Both coordinates are the largest float64, so the norm overflows.
	k := make([]int64, 2)
	if !l.Quantise(k, []float64{math.MaxFloat64, -math.MaxFloat64}) {
		t.Error("a finite row became zero")
	}
	if want := float64(l.K) / math.Sqrt2; math.Abs(float64(k[0])-want) > 2 || math.Abs(float64(k[1])+want) > 2 {
		t.Errorf("%v, want ±%g", k, want)
	}
	wantInside(t, l, k)
	// The row must stay on the caller's stack.
	if n := testing.AllocsPerRun(100, func() { l.Quantise(k, []float64{3, 4}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNewLatticeRefuses(t *testing.T) {
	for _, c := range []struct {
		bound, sd float64
		bits      int
	}{
		{0, 1, 24}, {-1, 1, 24}, {math.NaN(), 1, 24}, {math.Inf(1), 1, 24},
		{1, 0, 24}, {1, math.NaN(), 24}, {1, math.Inf(1), 24},
		{1, 1, 23}, {1, 1, 31},
		{1, 1.0 / 128, 24}, // K would be 2³¹
		{1, 1.0 / 128, 30},
		{1e-300, 1e-300, 24},
	} {
		if l, err := NewLattice(c.bound, c.sd, c.bits); err == nil {
			t.Errorf("%+v: accepted as %+v", c, l)
		}
	}
}

// TestNewLatticeTrades checks that NewLattice gives up bits above 24 to keep K ≤ 2³⁰, and returns an error if 24 bits
// are not possible.
func TestNewLatticeTrades(t *testing.T) {
	for _, c := range []struct {
		bound, sd float64
		bits, exp int
	}{
		{1, 1, 24, -24}, {1, 1, 30, -30}, {1.5, 2, 30, -29}, {1.5, 2, 24, -24}, {1, 0.4, 30, -30},
		{1, 1.0 / 64, 30, -30}, {4, 0.3, 28, -28},
	} {
		l, err := NewLattice(c.bound, c.sd, c.bits)
		if err != nil || l.Exp != c.exp || l.K != int64(math.Ldexp(c.bound, -c.exp)) {
			t.Errorf("%+v: %+v, %v", c, l, err)
		}
	}
}

func FuzzQuantise(f *testing.F) {
	f.Add(1.0, 2.0, 3.0)
	f.Add(math.MaxFloat64, 5e-324, math.NaN())
	f.Add(1e200, -1e200, 1e-200)
	l, err := NewLattice(1.25, 3, 26)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b, c float64) {
		x, k := []float64{a, b, c}, make([]int64, 3)
		ok := l.Quantise(k, x)
		wantInside(t, l, k)
		if finite(a) && finite(b) && finite(c) != ok {
			t.Errorf("%v: %v", x, ok)
		}
	})
}

func TestWide(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 9))
	var w Wide
	sum := new(big.Int)
	for i := range 100_000 {
		v := int64(source.Uint64()) >> source.UintN(64)
		if i%3 == 0 {
			v = math.MinInt64 // the sum exceeds 64 bits after few terms
		}
		w.Add(v)
		sum.Add(sum, big.NewInt(v))
		if i%97 == 0 {
			want, _ := new(big.Float).SetInt(sum).Float64()
			if got := w.Float(0); got != want {
				t.Fatalf("after %d terms: %v, want %v", i, got, want)
			}
			if got := w.Float(-30); got != math.Ldexp(want, -30) {
				t.Fatalf("with an exponent: %v, want %v", got, math.Ldexp(want, -30))
			}
		}
	}
	for _, c := range []struct {
		w    Wide
		want float64
	}{
		{Wide{0, 1 << 63}, 1 << 63}, {Wide{-1, 0}, -(1 << 64)}, {Wide{0, 1<<64 - 1}, 1 << 64},
		{Wide{-1, 1 << 63}, -(1 << 63)},
		{Wide{math.MinInt64, 0}, -math.Ldexp(1, 127)}, {Wide{1 << 53, 1}, math.Ldexp(1, 117)}, {Wide{}, 0},
	} {
		if got := c.w.Float(0); got != c.want {
			t.Errorf("%v is %v, want %v", c.w, got, c.want)
		}
	}
}

// TestWideProducts adds products of every sign and size, including the extremes.
func TestWideProducts(t *testing.T) {
	source := rand.New(rand.NewPCG(3, 3))
	values := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, 1 << 32, -1 << 32}
	for range 20 {
		values = append(values, int64(source.Uint64()))
	}
	for _, a := range values {
		for _, b := range values {
			start := Wide{Hi: int64(source.Uint64()) >> 2, Lo: source.Uint64()}
			w := start
			w.AddProduct(a, b)
			big128 := func(w Wide) *big.Int {
				x := new(big.Int).Lsh(big.NewInt(w.Hi), 64)
				return x.Add(x, new(big.Int).SetUint64(w.Lo))
			}
			want := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
			if want.Add(want, big128(start)); want.Cmp(big128(w)) != 0 {
				t.Fatalf("%v + %d·%d is %v, want %v", start, a, b, big128(w), want)
			}
		}
	}
}

// TestAccumulate adds vectors inside and far outside the ball. An added vector is inside by integers, and a refused
// vector leaves the sum unchanged.
func TestAccumulate(t *testing.T) {
	source := rand.New(rand.NewPCG(2, 2))
	for _, c := range []struct{ bound, sd float64 }{{1, 1}, {1, 0.02}, {1.7, 3}, {1 - 0x1p-53, 0x1p-6}} {
		l, err := NewLattice(c.bound, c.sd, 24)
		if err != nil {
			t.Fatal(err)
		}
		added, refused := 0, 0
		for i := range 20_000 {
			d := 1 + source.IntN(40)
			x, sum, before := make([]float64, d), make([]float64, d), make([]float64, d)
			norm := 0.0
			for j := range x {
				x[j] = source.NormFloat64()
				norm = math.Hypot(norm, x[j])
				before[j] = float64(source.Int64N(1<<53) - 1<<52)
			}
			scale := l.Radius(d) / norm
			switch i % 4 {
			case 1:
				scale *= 1 + math.Exp(30*source.Float64()-25)
			case 2:
				scale = math.Ldexp(scale, source.IntN(19))
			case 3:
				x[source.IntN(d)] = 5e-324
			}
			copy(sum, before)
			ok := l.Accumulate(sum, x, scale)
			k := make([]int64, d)
			for j := range k {
				k[j] = int64(sum[j] - before[j])
			}
			wantInside(t, l, k)
			if !ok {
				refused++
				for _, v := range k {
					if v != 0 {
						t.Fatal("a refused vector changed the sum")
					}
				}
				if i%4 == 0 {
					t.Fatalf("a vector on the radius, of %d coordinates, is refused", d)
				}
				continue
			}
			added++
			for j, v := range x {
				if !(math.Abs(float64(k[j])-v*scale) <= 0.5+0x1p-20) {
					t.Fatalf("%g became %d", v*scale, k[j])
				}
			}
		}
		if added < 5000 || refused < 5000 {
			t.Errorf("%d vectors were added, %d refused", added, refused)
		}
	}
}

// TestAccumulateFarOutside checks that Accumulate panics if float64 could not restore the sum.
func TestAccumulateFarOutside(t *testing.T) {
	l := Lattice{Exp: -24, K: 1 << 24}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1.7e308, 0x1p50} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%g was accepted", v)
				}
			}()
			l.Accumulate(make([]float64, 5), []float64{0, 1, 2, 3, v}, 1)
		}()
	}
}

// TestAccumulateRounds uses the finest lattices, on which squares are rounded. Vectors longer than K must still be
// refused.
func TestAccumulateRounds(t *testing.T) {
	l := Lattice{Exp: -30, K: 1 << 30}
	for _, d := range []int{3, 40, 4000, 1 << 20} {
		x := make([]float64, d)
		for i := range 12 {
			x[0] = float64(l.K)
			for j := 2; j < d; j += 2 { // small squares, which are lost when added to K²
				x[j] = float64(i)
			}
			if i > 0 && l.Accumulate(make([]float64, d), x, 1) {
				t.Errorf("%d coordinates: a vector beyond K is added", d)
			}
			x[0] = l.Radius(d) - float64(i)*math.Sqrt(float64(d))
			if !l.Accumulate(make([]float64, d), x, 1) {
				t.Errorf("%d coordinates: a vector within Radius is refused", d)
			}
		}
	}
}

// BenchmarkAccumulate measures quantising a record into a sum in one pass.
func BenchmarkAccumulate(b *testing.B) {
	for _, d := range []int{10, 100} {
		b.Run(fmt.Sprintf("d=%d", d), func(b *testing.B) {
			l := Lattice{Exp: -24, K: 1 << 24}
			x, sum := make([]float64, d), make([]float64, d)
			for j := range x {
				x[j] = float64(j+1) / float64(d)
			}
			scale := l.Radius(d) / float64(d)
			b.ReportAllocs()
			for b.Loop() {
				l.Accumulate(sum, x, scale)
			}
		})
	}
}

// TestWideRounded compares the rounding of 128-bit sums with that of big integers.
func TestWideRounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for range 10_000 {
		shift := uint(rng.IntN(62))
		want := new(big.Int)
		var w Wide
		for range 5 {
			a, b := rng.Int64()>>rng.IntN(60), rng.Int64()>>rng.IntN(60)
			if rng.IntN(2) == 0 {
				a = -a
			}
			var x Wide
			x.AddProduct(a, b)
			w.AddWide(x)
			want.Add(want, new(big.Int).Mul(big.NewInt(a), big.NewInt(b)))
		}
		if shift > 0 {
			want.Add(want, new(big.Int).Lsh(big.NewInt(1), shift-1))
		}
		want.Rsh(want, shift) // rounds toward −∞, as shifting two's complement does
		if want.IsInt64() && w.Rounded(shift) != want.Int64() {
			t.Fatalf("shift %d: %d, want %d", shift, w.Rounded(shift), want)
		}
	}
}
