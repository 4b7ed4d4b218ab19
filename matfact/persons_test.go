package matfact

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"crypto/sha256"

	"github.com/streamdp/streamdp/internal/optimise"
)

// personObjectives are sums over n steps, exponential weights and windows, for persons with few and with many rows.
func personObjectives() []bltObjective {
	inf := math.Inf(1)
	var list []bltObjective
	for _, p := range [][2]float64{{2, 1}, {10, 1}, {10, 100}, {300, 1}, {300, 30}, {1e5, 10}} {
		k, b := p[0], p[1]
		for _, n := range []float64{100, 1e4, 1e6, 1e9} {
			if (k-1)*b < n {
				list = append(list, bltObjective{sens: inf, length: n, count: k, separation: b})
			}
		}
		list = append(list,
			bltObjective{pole: 0.1, sens: inf, length: inf, count: k, separation: b},
			bltObjective{pole: 1e-3, sens: inf, length: inf, count: k, separation: b},
			bltObjective{sens: inf, window: 100, count: k, separation: b})
	}
	return list
}

// TestPersonGradient compares the exact gradient for persons with central differences at
// random points, and the value for one row with that for single rows.
func TestPersonGradient(t *testing.T) {
	source := rand.New(rand.NewPCG(31, 32))
	for _, o := range personObjectives() {
		for d := 1; d <= 4; d++ {
			x := bltStart(d, max(o.window, min(o.length, 1e6), 10), 0.3)
			for i := range x {
				x[i] += 0.3 * source.NormFloat64()
			}
			checkGradient(t, fmt.Sprintf("%+v, %d buffers", o, d), x, o.log)
			a, ahat := interlaced(x)
			one, _, _ := personSensitivity(a, ahat, 1, o.separation, false)
			s, _, _ := sensitivity(a, ahat, math.Inf(1), false)
			near(t, "P² of one row", one, s, 1e-15)
		}
	}
}

// TestPersonOptimum searches for a better BLT from random starts.
func TestPersonOptimum(t *testing.T) {
	source := rand.New(rand.NewPCG(33, 34))
	for _, o := range personObjectives() {
		for _, d := range []int{1, 3, 4} {
			_, _, got, err := optimiseBLT(d, o)
			if err != nil {
				t.Fatal(err)
			}
			best := got
			for range 3 {
				x := bltStart(d, max(o.window, min(o.length, 2/max(o.pole, 1e-9))), -3+8*source.Float64())
				for i := range x {
					x[i] += 0.5 * source.NormFloat64()
				}
				best = min(best, math.Exp(optimise.Minimise(x, o.log)))
			}
			if math.Sqrt(got/best) > 1.001 {
				t.Errorf("%+v, %d buffers: error %g, a random start gives %g", o, d, math.Sqrt(got), math.Sqrt(best))
			}
		}
	}
}

// TestPersonTable compares errors of sums at step n, for persons with rows in k steps, b apart, with
// docs/theory/matfact.md. Its figures were computed independently, to three digits.
func TestPersonTable(t *testing.T) {
	sum := Workload{Kind: "sum"}
	for _, c := range []struct {
		n, b, k uint64
		want    float64
	}{
		{1e4, 1, 10, 33.1}, {1e4, 10, 10, 28.3}, {1e4, 100, 100, 116}, {1e4, 10, 1000, 1027}, {1e4, 1000, 10, 17.3},
		{1e6, 10, 1000, 2602}, {1e6, 100, 1000, 1886}, {1e6, 1000, 10, 32.9}, {1e6, 1000, 100, 207},
		{1e6, 1000, 1000, 1073},
		// These are the hourly steps of a year.
		{8760, 8760, 1, 3.98}, {8760, 720, 12, 19.7}, {8760, 1, 12, 38.5}, {8760, 168, 52, 64.7}, {8760, 1, 52, 143},
		{8760, 24, 365, 387}, {8760, 1, 365, 774}, {8760, 1, 8760, 8760},
	} {
		p := Participation{Count: c.k, Separation: c.b}
		got := personError(t, Config{Kind: "blt", Horizon: c.n, Buffers: 5, Participation: p}, sum, p, c.n)
		if math.Abs(got/c.want-1) > 0.005 {
			t.Errorf("n = %d, b = %d, k = %d: error %.4g, want %g", c.n, c.b, c.k, got, c.want)
		}
		// One person can change the sum by k.
		if got < float64(c.k) {
			t.Errorf("n = %d, b = %d, k = %d: error %.4g is below that of every matrix", c.n, c.b, c.k, got)
		}
		// For more than one row, a matrix tuned for single rows is worse.
		if single := personError(t, Config{Kind: "blt", Horizon: c.n, Buffers: 5}, sum, p, c.n); single < got*(1-1e-6) {
			t.Errorf("n = %d, b = %d, k = %d: error %.4g, tuned for single rows %.4g", c.n, c.b, c.k, got, single)
		}
	}
	p := Participation{Count: 100, Separation: 100}
	for c, want := range map[Config]float64{
		{Kind: "blt", Participation: p}: 37.9, {Kind: "blt"}: 54.2, {Kind: "identity"}: 224,
	} {
		w := Workload{Kind: "exponential", Decay: 0.999}
		if got := personError(t, c, w, p, 1<<40); math.Abs(got/want-1) > 0.005 {
			t.Errorf("exponential weights, %s for %d rows: error %.4g, want %g", c.Kind,
				c.Participation.Count, got, want)
		}
	}
}

// TestPersonBuffers checks that the number of buffers for single rows is enough for persons.
func TestPersonBuffers(t *testing.T) {
	for _, n := range []uint64{100, 1e4, 1e6} {
		for _, p := range []Participation{{Count: 2, Separation: 10}, {Count: 10, Separation: 1},
			{Count: 6, Separation: n / 10}, {Count: n / 20, Separation: 20}} {
			o := bltObjective{sens: math.Inf(1), length: float64(n), count: float64(p.Count),
				separation: float64(p.Separation)}
			few, many := AutoPersons(Workload{Kind: "sum"}, n, p).Buffers, 8
			_, _, got, err := optimiseBLT(few, o)
			if err != nil {
				t.Fatal(err)
			}
			_, _, best, err := optimiseBLT(many, o)
			if err != nil {
				t.Fatal(err)
			}
			if e := math.Sqrt(got/best) - 1; e > 0.01 {
				t.Errorf("n = %d, %+v: the error of %d buffers is %.3g above that of %d", n, p, few, e, many)
			}
		}
	}
}

// TestAutoPersons tests the choice of AutoPersons. If a person may have rows in every step, the optimiser must also
// find the identity.
func TestAutoPersons(t *testing.T) {
	sum, exp := Workload{Kind: "sum"}, Workload{Kind: "exponential", Decay: 0.999}
	ten := Participation{Count: 10, Separation: 5}
	for _, c := range []struct {
		w       Workload
		horizon uint64
		p       Participation
		want    Config
	}{
		{sum, 0, Participation{Count: 1, Separation: 1}, Config{Kind: "phased"}},
		{sum, 8, Participation{Count: 10, Separation: 9}, Config{Kind: "blt", Horizon: 8, Buffers: 2}},
		{Workload{Kind: "mean"}, 100, Participation{Count: 1 << 40, Separation: 1},
			Config{Kind: "identity", Horizon: 100}},
		{sum, 100, Participation{Count: 99, Separation: 1},
			Config{Kind: "blt", Horizon: 100, Buffers: 2, Participation: Participation{Count: 99, Separation: 1}}},
		{sum, 0, ten, Config{Kind: "blt", Tune: 1e4, Buffers: 3, Participation: ten}},
		{sum, 1e6, ten, Config{Kind: "blt", Horizon: 1e6, Buffers: 5, Participation: ten}},
		{sum, 21, ten,
			Config{Kind: "blt", Horizon: 21, Buffers: 2, Participation: Participation{Count: 5, Separation: 5}}},
		{exp, 0, ten, Config{Kind: "blt", Buffers: 3, Participation: ten}},
		{Workload{Kind: "window", Window: 9}, 50, ten,
			Config{Kind: "blt", Horizon: 50, Buffers: 3, Participation: ten}},
	} {
		got := AutoPersons(c.w, c.horizon, c.p)
		if got != c.want {
			t.Errorf("%s, horizon %d, %+v: %+v, want %+v", c.w.Kind, c.horizon, c.p, got, c.want)
		}
		mustNew(t, got, c.w)
	}
	for _, n := range []uint64{10, 1000, 1e6} {
		p := Participation{Count: n, Separation: 1}
		for _, d := range []int{1, 3, 5} {
			got := personError(t, Config{Kind: "blt", Horizon: n, Buffers: d, Participation: p}, sum, p, n)
			if math.Abs(got/float64(n)-1) > 1e-5 {
				t.Errorf("rows in every of %d steps, %d buffers: error %.9g, the identity has %d", n, d, got, n)
			}
		}
	}
	for _, c := range []Config{
		{Kind: "blt", Horizon: 10, Participation: Participation{Count: 3}},
		{Kind: "blt", Horizon: 10, Participation: Participation{Separation: 3}},
		{Kind: "blt", Horizon: 10, Normalise: true, Participation: ten},
	} {
		if f, err := New(c, sum); err == nil {
			t.Errorf("%+v: %v", c, f)
		}
	}
}

// TestPersonSensitivityExact compares Sensitivity of an endless stream with 600-bit arithmetic on the stored integers.
// It must never be too small, and too large by at most its margin.
func TestPersonSensitivityExact(t *testing.T) {
	const prec = 400
	num := func(x float64) *big.Float { return new(big.Float).SetPrec(prec).SetFloat64(x) }
	fixed := func(f Fixed) *big.Float {
		x := new(big.Float).SetPrec(prec).SetUint64(uint64(f))
		return x.SetMantExp(x, -64)
	}
	power := func(x *big.Float, n uint64) *big.Float {
		y, s := num(1), num(0).Set(x)
		for ; n > 0; n >>= 1 {
			if n&1 == 1 {
				y.Mul(y, s)
			}
			s.Mul(s, s)
		}
		return y
	}
	source := rand.New(rand.NewPCG(35, 36))
	worst := 0.0
	for range 100 {
		x := make([]float64, 2*(1+source.IntN(5)))
		for i := range x {
			x[i] = source.NormFloat64()
		}
		x[0] -= 30 * source.Float64()
		f, err := newBuffered(storeBLT(interlaced(x)))
		if err != nil {
			t.Fatal(err)
		}
		p := Participation{
			Count:      1 + uint64(math.Exp(16*source.Float64())),
			Separation: uint64(math.Exp(14 * source.Float64())),
			PerStep:    source.Uint64N(4),
		}
		got, err := Sensitivity(f, p, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := f.Stored()
		norm, sum, n := num(1), num(0), float64(p.Count-1)
		for i, w := range s.Phases[0].Weight {
			theta, inner := fixed(s.Decay[i]), num(1)
			for k, v := range s.Phases[0].Weight {
				d := num(1)
				d.Sub(d, num(0).Mul(theta, fixed(s.Decay[k])))
				q := num(0).Quo(fixed(v), d)
				norm.Add(norm, num(0).Mul(q, fixed(w)))
				inner.Add(inner, q.Mul(q, theta))
			}
			// Σ_{m≤n} (n+1−m)ρ^(m−1) = (n − (n+1)ρ + ρ^(n+1))/(1−ρ)²
			rho := power(theta, p.Separation)
			rest := num(n)
			rest.Sub(rest, num(0).Mul(num(n+1), rho)).Add(rest, power(rho, p.Count))
			d := num(1)
			d.Sub(d, rho)
			rest.Quo(rest, d.Mul(d, d))
			inner.Mul(inner, fixed(w)).Mul(inner, rest).Mul(inner, power(theta, p.Separation-1))
			sum.Add(sum, inner)
		}
		norm.Mul(norm, num(float64(p.Count))).Add(norm, sum.Mul(sum, num(2)))
		norm.Sqrt(norm).Mul(norm, num(float64(max(1, p.PerStep))))
		excess, _ := norm.Quo(num(got), norm).Sub(norm, num(1)).Float64()
		if excess < 0 || excess > 0x1p-33 {
			t.Fatalf("%+v, %+v: Sensitivity is off by %g", s, p, excess)
		}
		worst = max(worst, math.Abs(excess-0x1p-34))
	}
	t.Logf("roundings of at most %.2g of a margin of %.2g", worst, 0x1p-34)
}

// TestPersonSensitivityEnds compares Sensitivity of streams that end with sums of columns.
func TestPersonSensitivityEnds(t *testing.T) {
	const n = 3000
	f := mustNew(t, Config{Kind: "blt", Horizon: n, Participation: Participation{Count: 30, Separation: 100}},
		Workload{Kind: "sum"})
	column := make([]float64, n)
	for j, c := range f.(toeplitz).column(n) {
		column[j] = float64(c) * columnUnit
	}
	for _, p := range []Participation{
		{Count: 1, Separation: 1}, {Count: 2, Separation: 2999}, {Count: 7, Separation: 3}, {Count: 999, Separation: 1},
		{Count: 1000, Separation: 3}, {Count: 30, Separation: 100, PerStep: 9},
	} {
		got, err := Sensitivity(f, p, n)
		if err != nil {
			t.Fatal(err)
		}
		want := math.Sqrt(spacedColumns(column, p.Within(n))) * float64(max(1, p.PerStep))
		if excess := got/want - 1; excess < 0 || excess > 0x1p-33 {
			t.Errorf("%+v: Sensitivity %.15g, columns have %.15g", p, got, want)
		}
	}
}

// TestPersonSensitivityMonotone checks that sensitivity never falls with more steps, steps closer together, more rows a
// step, or a longer stream.
func TestPersonSensitivityMonotone(t *testing.T) {
	of := func(f Factorization, p Participation, n uint64) float64 {
		s, err := Sensitivity(f, p, n)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, f := range factorizations(t, 40) {
		n := f.Horizon()
		if n == 0 {
			n = 40
		}
		lengths := []uint64{n / 2, n}
		if f.Horizon() == 0 {
			lengths = append(lengths, 1e6, 0)
		}
		for _, p := range []Participation{{1, 1, false, 0}, {3, 2, false, 1}, {5, 4, false, 2}, {1000, 1, false, 1},
			{1 << 20, 7, false, 3}} {
			for i, length := range lengths {
				more, nearer, fuller := p, p, p
				more.Count++
				nearer.Separation = max(1, p.Separation-1)
				fuller.PerStep = max(1, p.PerStep) + 1
				s := of(f.Factorization, p, length) * (1 - 1e-12)
				for _, q := range []Participation{more, nearer, fuller} {
					if x := of(f.Factorization, q, length); x < s {
						t.Errorf("%s, %d steps: %g for %+v, %g for %+v", f.name, length, s, p, x, q)
					}
				}
				if i+1 < len(lengths) {
					if x := of(f.Factorization, p, lengths[i+1]); x < s {
						t.Errorf("%s, %+v: %g for %d steps, %g for %d", f.name, p, s, length, x, lengths[i+1])
					}
				}
			}
		}
	}
}

// TestNonNegativeGram checks that no inner product of columns is negative if NonNegativeGram is true.
func TestNonNegativeGram(t *testing.T) {
	for _, f := range factorizations(t, 40) {
		n := 40
		if h := f.Horizon(); h > 0 {
			n = int(h)
		}
		c := denseMatrix(f.Factorization, n)
		least := 0.0
		for i := range n {
			for j := range n {
				var sum float64
				for t := range n {
					sum += c[t][i] * c[t][j]
				}
				least = min(least, sum)
			}
		}
		if NonNegativeGram(f.Factorization) && least < -1e-13 {
			t.Errorf("%s: an inner product of columns is %g", f.name, least)
		}
		if NonNegativeGram(f.Factorization) && least < 0 {
			t.Logf("%s: %g", f.name, least)
		}
	}
	for _, width := range []uint64{2, 7} {
		if NonNegativeGram(mustNew(t, Config{Kind: "sqrt", Horizon: 40}, Workload{Kind: "window", Window: width})) {
			t.Errorf("the root of a window of %d steps has negative coefficients", width)
		}
	}
	if !NonNegativeGram(mustNew(t, Config{Kind: "blt", Horizon: 40}, Workload{Kind: "sum"})) {
		t.Error("NonNegativeGram is false for a BLT")
	}
}

// TestPersonGolden pins the bits of Sensitivity, on which noise depends.
func TestPersonGolden(t *testing.T) {
	blt, err := newBuffered(
		storeBLT([]float64{7.779122572953612e-05, 0.0005073772989440104, 0.11600722906326266},
			[]float64{7.8e-05, 0.020295813647932967, 0.5087160651309685}))
	if err != nil {
		t.Fatal(err)
	}
	sum := Workload{Kind: "sum"}
	for _, c := range []struct {
		name string
		f    Factorization
		want string
	}{
		{"blt", blt, "bb3e11e74d49652ed9c19f16b6cc9ca9"},
		{"identity", mustNew(t, Config{Kind: "identity"}, sum), "28e097330ca903eb4317232ab616e4a5"},
		{"phased", mustNew(t, Config{Kind: "phased"}, sum), "f27404c95ec5f26ec29347e3c1ef7edb"},
		{"bisr", mustNew(t, Config{Kind: "bisr"}, sum), "52d49df76ea8456b5e8ef40716013c54"},
	} {
		h := sha256.New()
		for _, p := range []Participation{{Count: 1, Separation: 1}, {Count: 10, Separation: 1},
			{Count: 12, Separation: 720, PerStep: 4}, {Count: 365, Separation: 24}, {Count: 100000, Separation: 10}} {
			for _, n := range []uint64{0, 1000, 1e6} {
				s, err := Sensitivity(c.f, p, n)
				if err != nil {
					t.Fatal(err)
				}
				binary.Write(h, binary.BigEndian, s)
			}
		}
		if got := hex.EncodeToString(h.Sum(nil)[:16]); got != c.want {
			t.Errorf("%s: hash %s, want %s", c.name, got, c.want)
		}
	}
}
