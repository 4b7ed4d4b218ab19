package dp

import (
	"encoding/binary"
	"math"
	"math/big"
)

// maxUnits bounds the numbers that are rounded, in lattice units. Below it float64 can represent every multiple of ½,
// and the error bound of a rounding stays below ½.
const maxUnits = 1 << 51

// RoundRow computes w, the integer noise of one step: w_j = ⌊r(sd_j·Z_j − s_j) + ½⌋, exactly, where Z_j are the real
// numbers of the row.
//
// sd is the standard deviation in lattice units, one number per coordinate or one for all; s is the prediction from
// earlier noise, nil for none; r = 1/C_tt. RoundRow computes r(sd_j·Z_j − s_j) in float64 with a proven error bound.
// Once in 10⁶ draws that bound allows two integers. Then RoundRow decides between them exactly. So w_j is the exact
// value, rounded, and not the rounding of an approximation.
//
// Cost: 3 to 4 ns a coordinate, no allocation except in exact decisions (0.05 ms).
// Source: docs/theory/dp.md, "Noise that survives finite precision".
//
// RoundRow panics if |r(sd_j·Z_j − s_j)| can reach 2⁵¹; NewLattice and the factorization's limits prevent that.
func RoundRow(w []int64, row Row, sd, s []float64, r float64) {
	if len(sd) != 1 && len(sd) != len(w) || s != nil && len(s) != len(w) {
		panic("dp: RoundRow: lengths differ")
	}
	keyed, ok := row.(*keyedRow)
	if !ok {
		for j := range w {
			w[j] = roundOne(row.At(j), row, j, at(sd, j), at(s, j), r)
		}
		return
	}
	first, fast := newLook(sd, s, r)
	for j := 0; j < len(w); j += keyed.size {
		n := min(len(w)-j, keyed.size)
		words, block := keyed.words(j/keyed.size), w[j:j+n]
		few, tail, looked := 0, false, fast
		switch {
		case fast && s == nil:
			few, tail = keyed.roundPlain(block, &first)
		case fast:
			few, tail, looked = keyed.roundShaped(block, s[j:j+n], &first)
		}
		if !looked {
			z := keyed.near[:n]
			tail = fillNear(z, words)
			roundBlock(block, z, row, j, sd, s, r)
		}
		for _, i := range keyed.unsure[:few] {
			i := j + int(i)
			w[i] = roundOne(keyed.At(i), row, i, sd[0], at(s, i), r)
		}
		if tail {
			keyed.eachTail(n, j, func(i int, z float64) {
				w[j+i] = roundOne(z, row, j+i, at(sd, j+i), at(s, j+i), r)
			})
		}
	}
}

// at returns s_j. s holds one number per coordinate, or one number for all coordinates, or is nil for 0.
func at(s []float64, j int) float64 {
	switch len(s) {
	case 0:
		return 0
	case 1:
		return s[0]
	}
	return s[j]
}

// RoundAt returns coordinate j of RoundRow for independent noise. It computes no other coordinate. Use it in a search
// that needs one noisy count after another.
func RoundAt(row Row, j int, sd float64) int64 {
	return roundOne(row.At(j), row, j, sd, 0, 1)
}

// These constants bound the float64 error of r(sd·z − s): the error of z (2⁻⁴⁸ for |z| ≤ maxFloatZ), and four
// roundings.
const (
	errZ      = 1.0 / (1 << 48)
	errOp     = 1.0 / (1 << 51)
	maxFloatZ = 10
	magic     = 3 << 51 // adding and subtracting it rounds to an integer
	magicBits = 0x4338 << 48
)

func roundOne(z float64, row Row, j int, sd, s, r float64) int64 {
	x, n, tau := candidate(float64(sd*z), float64(errZ*sd), s, r)
	if math.Abs(x-n) < 0.5-tau && math.Abs(z) <= maxFloatZ && math.Abs(x) < maxUnits {
		return int64(n)
	}
	return roundExactly(x, tau, z, row, j, sd, s, r)
}

// look holds the constants of a fast first attempt at rounding, for coordinates that share one standard deviation. The
// attempt computes r(sd·Z_j − s_j) in units of 2⁻¹². That decides the integer of all but one in 2000 draws, and
// roundOne decides the others. The attempt maps words as fillNear does. Mapping and rounding share one loop without
// calls, so only the integer is stored per coordinate.
//
// Even fixed constants are fields, because the compiler would load a constant again in each iteration.
type look struct {
	signed [2]float64 // r·sd in units, with its sign for a positive and for a negative draw
	back   float64    // r in units
	whole  float64    // magic
	bias   int64      // turns the bits of the sum into units, and adds half an integer
}

const (
	lookBits = 12
	lookUnit = 1 << lookBits
	// farthest is the largest |r(sd·Z_j − s_j)| that a look can round, in units of 2⁻¹².
	farthest = 1 << 49
)

// newLook returns the look for a row. ok is false if sd, s and r do not permit one.
//
// Let x = r(sd·Z − s), and a = r·sd. A word of the main table has |Z| < 4.3. The error of r·sd·z is less than 2⁻⁴⁸·a
// because of z, plus two roundings of less than 2⁻⁵³·4.3a. r·s is less than 4.3a + |x| + 1 and has one rounding error,
// and the difference of the two adds another. Together the error is less than
//
//	2⁻⁴⁸·a + 2⁻⁵³(13a + 2|x| + 1) < 2⁻⁴⁷·a + 2⁻⁵²|x| + 2⁻⁵³,
//
// which is below ½ unit of 2⁻¹² for a ≤ 2³² and |x| ≤ 2³⁷, that is, up to farthest. Without s, x is at most 4.3a, and
// the error is below ½ unit for a ≤ 2³³. Adding magic rounds to units, so the sum's bits have an error of less than one
// unit.
func newLook(sd, s []float64, r float64) (l look, ok bool) {
	if len(sd) != 1 {
		return l, false
	}
	a := float64(r * sd[0])
	fine := a * lookUnit
	l = look{[2]float64{fine, -fine}, r * lookUnit, magic, lookUnit/2 + 1 - magicBits}
	if s == nil {
		return l, a <= 1<<33
	}
	return l, a <= 1<<32
}

// roundPlain rounds the words in the buffer, for noise without predictions. In r.unsure it lists the coordinates that
// it cannot decide; few is their number. tail reports whether a word is in the tail; then w is meaningless.
func (r *keyedRow) roundPlain(w []int64, l *look) (few int, tail bool) {
	signed, whole, bias, least := l.signed, l.whole, l.bias, ^uint64(0)
	_ = r.buffer[0]
	for i := range w {
		k := i & (blockWords - 1)
		u := binary.LittleEndian.Uint64(r.buffer[8*k : 8*k+8])
		m := u & (1<<63 - 1)
		least = min(least, m)
		z := nearZ(nearRow(m))
		q := int64(math.Float64bits(float64(signed[u>>63]*z)+whole)) + bias
		w[i] = q >> lookBits
		if q&(lookUnit-1) < 2 {
			r.unsure[few&(blockWords-1)] = uint8(i)
			few++
		}
	}
	return few, least < 1<<48
}

// roundShaped is roundPlain for noise with predictions. If a prediction is too large or NaN, ok is false and w is not
// set.
func (r *keyedRow) roundShaped(w []int64, s []float64, l *look) (few int, tail, ok bool) {
	s = s[:len(w)]
	signed, back, whole, bias, least := l.signed, l.back, l.whole, l.bias, ^uint64(0)
	squares := 0.0
	_ = r.buffer[0]
	for i := range w {
		k := i & (blockWords - 1)
		u := binary.LittleEndian.Uint64(r.buffer[8*k : 8*k+8])
		m := u & (1<<63 - 1)
		least = min(least, m)
		z := nearZ(nearRow(m))
		x := float64(signed[u>>63]*z) - float64(back*s[i])
		squares += float64(x * x)
		q := int64(math.Float64bits(x+whole)) + bias
		w[i] = q >> lookBits
		if q&(lookUnit-1) < 2 {
			r.unsure[few&(blockWords-1)] = uint8(i)
			few++
		}
	}
	return few, least < 1<<48, squares < farthest*farthest
}

// roundBlock rounds coordinates j … j+len(z)−1 of a row for which newLook returned false.
func roundBlock(w []int64, z []float64, row Row, j int, sd, s []float64, r float64) {
	w = w[:len(z)]
	if len(sd) < 2 || s == nil {
		for i, zi := range z {
			w[i] = roundOne(zi, row, j+i, at(sd, j+i), at(s, j+i), r)
		}
		return
	}
	sd, s = sd[j:j+len(z)], s[j:j+len(z)]
	for i, zi := range z {
		x, n, tau := candidate(float64(sd[i]*zi), float64(errZ*sd[i]), s[i], r)
		if math.Abs(x-n) < 0.5-tau && math.Abs(zi) <= maxFloatZ && math.Abs(x) < maxUnits {
			w[i] = int64(n)
			continue
		}
		w[i] = roundExactly(x, tau, zi, row, j+i, sd[i], s[i], r)
	}
}

// candidate returns x = r(a − s), the integer n nearest to x, and tau, a bound on the error of x. base is the part of
// the bound that comes from the error of z.
func candidate(a, base, s, r float64) (x, n, tau float64) {
	x = float64(r * (a - s))
	n = (x + magic) - magic // rounds halves to even; a half is decided exactly later
	tau = float64(r * (base + float64(errOp*(math.Abs(a)+math.Abs(s)))))
	return x, n, tau
}

// roundExactly returns the largest m with r(sd·Z − s) + ½ ≥ m, that is, with Z ≥ ((m − ½)/r + s)/sd. It searches
// between two integers that enclose m, by exact comparisons.
func roundExactly(x, tau, z float64, row Row, j int, sd, s, r float64) int64 {
	low, high := x-2*tau, x+2*tau
	if math.Abs(z) > maxFloatZ {
		// z may be too large for its error bound. Then Z may be any number from maxFloatZ to the cut, with the sign of
		// z.
		a, b := r*(sd*math.Copysign(maxFloatZ-0.1, z)-s), r*(sd*math.Copysign(maxZ+0.1, z)-s)
		low, high = min(a, b), max(a, b)
	}
	if !(low > -maxUnits && high < maxUnits) {
		panic("dp: noise reaches 2^51 lattice units")
	}
	half, one := big.NewRat(1, 2), new(big.Rat).SetFloat64(r)
	ratS, ratSD := new(big.Rat).SetFloat64(s), new(big.Rat).SetFloat64(sd)
	atLeast := func(m int64) bool {
		b := new(big.Rat).SetInt64(m)
		b.Sub(b, half)
		b.Quo(b, one)
		b.Add(b, ratS)
		b.Quo(b, ratSD)
		return row.Above(j, b)
	}
	// tau is larger than the rounding errors of low and high, so lo ≤ m < hi. Usually one comparison decides.
	lo, hi := int64(math.Floor(low+0.5)), int64(math.Floor(high+0.5))+1
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if atLeast(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}
