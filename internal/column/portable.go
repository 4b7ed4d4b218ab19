package column

import "math"

// The functions of this file have the same bits on every architecture. Functions of package math may differ, because
// some are written in assembly, and because a compiler may fuse a multiplication and an addition into one operation
// that rounds once. An explicit conversion to float64 forbids fusing (Go specification, "Floating-point operators").
// math.Sqrt, math.Frexp, math.Ldexp and math.FMA are exact or correctly rounded, so they are the same everywhere.

const (
	ln2High = 6.93147180369123816490e-01 // its last 32 bits are 0: k·ln2High is exact for |k| < 2¹¹
	ln2Low  = 1.90821492927058770002e-10
)

// horner returns the polynomial c[0] + c[1]·x + … at x.
func horner(x float64, c []float64) float64 {
	y := 0.0
	for i := len(c) - 1; i >= 0; i-- {
		y = float64(y*x) + c[i]
	}
	return y
}

// oddParts are the coefficients 2/(2k+3) of the series of 2·atanh(s), without its first term and divided by s³.
var oddParts = []float64{2. / 3, 2. / 5, 2. / 7, 2. / 9, 2. / 11, 2. / 13, 2. / 15, 2. / 17, 2. / 19, 2. / 21, 2. / 23}

// logarithm returns ln x within 2 units of the last place. It returns NaN for x < 0, and −Inf for 0.
//
// Write x = m·2ᵏ with m between √½ and √2. With f = m − 1, which is exact, and s = f/(2 + f), ln m = 2·atanh(s) and 2s
// = f − s·f, so the leading term is exact.
func logarithm(x float64) float64 {
	switch {
	case x < 0 || x != x:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	case x > math.MaxFloat64:
		return x
	}
	m, k := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m *= 2
		k--
	}
	f, n := m-1, float64(k)
	s := f / (2 + f)
	z := s * s
	rest := float64(s * float64(z*horner(z, oddParts)))
	// n·ln 2 + f − (s·f − rest), adding the small terms first.
	small := float64(s*f) - rest
	return float64(n*ln2High) + (f - (small - float64(n*ln2Low)))
}

// logarithm1p returns ln(1 + x) within 4 units of the last place. It returns NaN below −1, and −Inf at −1. It uses that
// ln u/(u − 1) has nearly the same value at the exact 1 + x and at u, the rounded 1 + x (Kahan).
func logarithm1p(x float64) float64 {
	u := 1 + float64(x)
	if u == 1 {
		return x
	}
	if x > 1<<53 {
		return logarithm(u)
	}
	return float64(logarithm(u)*x) / (u - 1)
}

// factorials are the numbers 1/k!.
var factorials = func() []float64 {
	c := make([]float64, 18)
	f := 1.0
	for k := range c {
		if k > 0 {
			f *= float64(k)
		}
		c[k] = 1 / f
	}
	return c
}()

// exponential returns eˣ for |x| ≤ 1 within 2 units of the last place.
func exponential(x float64) float64 { return 1 + float64(x*horner(x, factorials[1:])) }

// power returns xʸ within 16 units of the last place, for 0 < |y| ≤ maxExponent. It returns NaN for a negative x,
// unless y is a whole number.
//
// Write |x| = m·2ᵏ and y = w + v, where w is whole and |v| ≤ ½. The power is mʷ·mᵛ·2^(k·y). Splitting k·y into a whole
// part and a rest keeps the error from growing with k.
func power(x, y float64) float64 {
	w := math.RoundToEven(y)
	v := y - w
	switch {
	case x != x || x < 0 && v != 0:
		return math.NaN()
	case x == 0 && y < 0:
		return math.Inf(1)
	case x == 0:
		return 0
	case math.IsInf(x, 0):
		return x * x // not finite
	case v == 0.5 || v == -0.5:
		// This case is y = w ± ½: the square root is correctly rounded, and 2y is odd.
		return power(math.Sqrt(x), 2*y)
	}
	m, k := math.Frexp(math.Abs(x))
	p := 1.0
	for range int(math.Abs(w)) {
		p *= m
	}
	if w < 0 {
		p = 1 / p
	}
	shift := k * int(w)
	if v != 0 {
		e := float64(float64(k) * v)
		low := math.FMA(float64(k), v, -e)
		whole := math.RoundToEven(e)
		shift += int(whole)
		// ln m is in [−ln 2, 0], and |v| < ½.
		p = float64(p * exponential(float64(v*logarithm(m))))
		p = float64(p * exponential(float64(((e-whole)+low)*math.Ln2)))
	}
	if x < 0 && int(w)%2 != 0 {
		p = -p
	}
	return math.Ldexp(p, shift)
}

// sines and cosines are the coefficients of the two series in x²: (−1)ᵏ/(2k+1)! and (−1)ᵏ/(2k)!.
var sines, cosines = func() (s, c []float64) {
	for k := range 9 {
		sign := 1 - 2*float64(k%2)
		c, s = append(c, sign*factorials[2*k]), append(s, sign*factorials[2*k+1])
	}
	return
}()

// circle returns sine and cosine of 2π·part/whole, for 0 ≤ part < whole ≤ 2⁵⁹, within 2.5·10⁻¹⁶. It finds the eighth of
// the circle in integer arithmetic, so that a quarter gives exactly 1 and 0.
func circle(part, whole int64) (sin, cos float64) {
	eighth, rest := 8*part/whole, 8*part%whole
	if eighth%2 == 1 {
		rest = whole - rest // distance to the next axis, or from the diagonal
	}
	x := float64(rest) / float64(whole) * (math.Pi / 4)
	z := x * x
	s, c := float64(x*horner(z, sines)), horner(z, cosines)
	if eighth%4 == 1 || eighth%4 == 2 {
		s, c = c, s
	}
	if eighth >= 4 {
		s = -s
	}
	if eighth >= 2 && eighth < 6 {
		c = -c
	}
	return s, c
}
