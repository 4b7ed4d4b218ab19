package column

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// ulps returns the number of float64s between got and want.
func ulps(got, want float64) float64 {
	if got == want || got != got && want != want {
		return 0
	}
	if got-got != 0 || want-want != 0 {
		return math.Inf(1)
	}
	unit := math.Nextafter(math.Abs(want), math.Inf(1)) - math.Abs(want)
	return math.Abs(got-want) / unit
}

// edges are numbers at which functions often have errors.
var edges = []float64{
	0, math.Copysign(0, -1), 1, -1, 2, 0.5, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 0x1p-1022,
	0x1.fffffffffffffp-1023,
	math.MaxFloat64, -math.MaxFloat64, 1 + 0x1p-52, 1 - 0x1p-53, math.Sqrt2, math.Sqrt2 / 2, 1e-17, -1e-17, 1e-9, 1e300,
	1e-300, 0x1p53, 0x1p54, -0.5, -0.9999999999999999,
	math.E, 10, 100, 1e15, 123456.789,
}

func numbers(n int) []float64 {
	r := rand.New(rand.NewPCG(1, 2))
	xs := append([]float64{}, edges...)
	for range n {
		xs = append(xs, math.Float64frombits(r.Uint64()), r.Float64(), 1+r.NormFloat64()*1e-3,
			math.Exp(30*r.NormFloat64()))
	}
	return xs
}

// bits is the precision of the reference values.
const bits = 300

func number(x float64) *big.Float { return new(big.Float).SetPrec(bits).SetFloat64(x) }

// preciseLog returns ln x for a positive x, from the series of 2·atanh.
func preciseLog(x *big.Float) *big.Float {
	m := number(0)
	k := x.MantExp(m) // m is in [½, 1)
	ln2 := number(0).Mul(ln2Precise, number(float64(k)))
	return ln2.Add(ln2, series(m))
}

// ln2Precise is ln 2.
var ln2Precise = series(number(2))

// series returns 2·atanh((m − 1)/(m + 1)), which is ln m, for m between ½ and 2.
func series(m *big.Float) *big.Float {
	s := number(0).Quo(number(0).Sub(m, number(1)), number(0).Add(m, number(1)))
	z, sum, term := number(0).Mul(s, s), number(0), s
	for i := 1; i < 200; i += 2 {
		sum.Add(sum, number(0).Quo(term, number(float64(i))))
		term = number(0).Mul(term, z)
	}
	return sum.Mul(sum, number(2))
}

// preciseExp returns eˣ, from its series at x/2¹⁶.
func preciseExp(x *big.Float) *big.Float {
	r := number(0).SetMantExp(x, -16)
	sum, term := number(1), number(1)
	for i := 1; i < 60; i++ {
		term.Mul(term, r).Quo(term, number(float64(i)))
		sum.Add(sum, term)
	}
	for range 16 {
		sum.Mul(sum, sum)
	}
	return sum
}

func TestLogarithm(t *testing.T) {
	for _, x := range numbers(100) {
		if !(x-x == 0) {
			continue
		}
		if x > 0 {
			want, _ := preciseLog(number(x)).Float64()
			if u := ulps(logarithm(x), want); u > 2 {
				t.Errorf("ln %v = %v, %v units from %v", x, logarithm(x), u, want)
			}
		}
		if x > -1 && x != 0 && math.Abs(x) > 1e-40 { // then 1 + x is exact in this precision
			want, _ := preciseLog(number(0).Add(number(1), number(x))).Float64()
			if u := ulps(logarithm1p(x), want); u > 4 {
				t.Errorf("ln(1 + %v) = %v, %v units from %v", x, logarithm1p(x), u, want)
			}
		}
	}
	for _, x := range numbers(3000) { // many more, against functions that are correct for normal numbers
		if math.Abs(x) > 1e-300 && ulps(logarithm(x), math.Log(x)) > 3 || ulps(logarithm1p(x), math.Log1p(x)) > 5 {
			t.Errorf("logarithms of %v and 1 + it: %v and %v, want %v and %v", x, logarithm(x), logarithm1p(x),
				math.Log(x), math.Log1p(x))
		}
	}
	inf := math.Inf(1)
	if logarithm(1) != 0 || logarithm(0) != -inf || logarithm(inf) != inf || logarithm(-1) == logarithm(-1) ||
		logarithm1p(-1) != -inf || logarithm1p(-2) == logarithm1p(-2) || logarithm1p(5e-324) != 5e-324 {
		t.Error("wrong value at an edge")
	}
}

func TestPower(t *testing.T) {
	exponents := []float64{1, 2, 3, -1, -2, 0.5, -0.5, 1.5, 2.5, 1. / 3, -1. / 3, 0.25, 0.75, 0.1, 16, -16, 15.7,
		-15.99, 1e-9, 0.499999, 0.50001}
	for i, x := range numbers(100) {
		if !(x-x == 0) || x == 0 {
			continue
		}
		for k, y := range exponents {
			if i >= len(edges) && (i+k)%4 > 0 || x < 0 && y != math.Trunc(y) {
				continue
			}
			exact := preciseExp(number(0).Mul(number(y), preciseLog(number(math.Abs(x)))))
			if x < 0 && math.Mod(y, 2) != 0 {
				exact.Neg(exact)
			}
			want, _ := exact.Float64()
			got := power(x, y)
			if math.IsInf(got, 0) || math.IsInf(want, 0) { // at the edge of the range, either result may overflow
				if math.Abs(got) < math.MaxFloat64*(1-1e-14) || math.Abs(want) < math.MaxFloat64*(1-1e-14) {
					t.Errorf("%v^%v = %v, want %v", x, y, got, want)
				}
				continue
			}
			if u := ulps(got, want); u > 16 {
				t.Errorf("%v^%v = %v, %v units from %v", x, y, got, u, want)
			}
		}
	}
	inf := math.Inf(1)
	for _, c := range []struct{ x, y, want float64 }{
		{3, 2, 9}, {-2, 3, -8}, {-2, 2, 4}, {9, 0.5, 3}, {2, -2, 0.25}, {4, -0.5, 0.5}, {-3, 1, -3},
		{0, 2, 0}, {0, 0.3, 0}, {0, -1, inf}, {-1, 0.5, math.NaN()}, {-8, 1. / 3, math.NaN()}, {1e200, 2, inf},
		{1e-200, -2, inf}, {1e-200, 2, 0}, {-1e200, 3, -inf},
	} {
		if got := power(c.x, c.y); got != c.want && (got == got || c.want == c.want) {
			t.Errorf("%v^%v = %v, want %v", c.x, c.y, got, c.want)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		x := r.Float64()*1e6 + 1
		if got := power(x, 2); got != x*x {
			t.Errorf("%v² = %v, want %v", x, got, x*x)
		}
	}
}

// digitsOfPi has 100 digits of π.
const digitsOfPi = "3.14159265358979323846264338327950288419716939937510" +
	"582097494459230781640628620899862803482534211706798"

// precise returns sine and cosine of 2π·part/whole from their series in 300 bits.
func precise(part, whole int64) (float64, float64) {
	pi, _, _ := big.ParseFloat(digitsOfPi, 10, bits, big.ToNearestEven)
	x := number(0).SetInt64(2 * part)
	x.Mul(x, pi).Quo(x, number(0).SetInt64(whole))
	sin, cos, term := number(0), number(0), number(1)
	for k := 0; k < 80; k++ {
		to := cos
		if k%2 == 1 {
			to = sin
		}
		if k%4 < 2 {
			to.Add(to, term)
		} else {
			to.Sub(to, term)
		}
		term.Mul(term, x).Quo(term, number(float64(k+1)))
	}
	s, _ := sin.Float64()
	c, _ := cos.Float64()
	return s, c
}

func TestCircle(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	check := func(part, whole int64) {
		s, c := circle(part, whole)
		ws, wc := precise(part, whole)
		if math.Abs(s-ws) > 2.5e-16 || math.Abs(c-wc) > 2.5e-16 {
			t.Errorf("%d/%d: %v, %v, want %v, %v", part, whole, s, c, ws, wc)
		}
	}
	for _, whole := range []int64{86400, dayNanos, 7 * dayNanos, 366 * dayNanos, 7, 8} {
		for k := range int64(8) {
			for d := int64(-1); d <= 1; d++ {
				if p := whole*k/8 + d; p >= 0 {
					check(p, whole)
				}
			}
		}
		for range 100 {
			check(r.Int64N(whole), whole)
		}
	}
	for k, want := range [][2]float64{{0, 1}, {1, 0}, {0, -1}, {-1, 0}} {
		if s, c := circle(int64(k), 4); s != want[0] || c != want[1] {
			t.Errorf("%d quarters: %v, %v", k, s, c)
		}
	}
}

// TestGoldenBits: the bits of these functions are part of rows, so they must never change, and must be the same on each
// architecture. Like all golden tests, this one also runs on other architectures.
func TestGoldenBits(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	h := fnv.New64a()
	add := func(x float64) {
		if x != x {
			x = math.NaN()
		}
		binary.Write(h, binary.LittleEndian, x)
	}
	for range 2000 {
		x := math.Float64frombits(r.Uint64() &^ (1 << 63))
		u := float64(100 * r.Float64())
		s, c := circle(r.Int64N(dayNanos), dayNanos)
		for _, x := range []float64{logarithm(x), logarithm(u), logarithm1p(u), logarithm1p(-u / 101), power(u, 0.7),
			power(x, -1.3), power(u, 3), s, c} {
			add(x)
		}
	}
	if got, want := h.Sum64(), uint64(0x781435f3535aff11); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
}
