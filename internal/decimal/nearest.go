package decimal

import (
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"unsafe"
)

// An integer below 2⁶⁴ times a power of ten outside this range is 0 or ±Inf: 2⁶⁴·10⁻³⁴³ is less than half the smallest
// float64, and 10³⁰⁹ is more than the largest.
const (
	minPower = -342
	maxPower = 308
)

const infinity = 0x7FF << 52

// power is the 128-bit mantissa T of a power of ten, rounded down: T ≤ 10^q/2^(e−127) < T+1 with e = ⌊log₂ 10^q⌋.
type power struct{ hi, lo uint64 }

// powers[q−minPower] is the mantissa of 10^q. The program computes the table at start, in 0.1 ms; a file with 1302
// constants would not be easier to verify.
var powers = computePowers()

func computePowers() *[maxPower - minPower + 1]power {
	var t [maxPower - minPower + 1]power
	set := func(q int, x *big.Int) {
		var w [16]byte
		x.FillBytes(w[:])
		t[q-minPower] = power{be64(w[:8]), be64(w[8:])}
	}
	// The mantissa of 10^q equals the mantissa of 5^q.
	five, x := big.NewInt(5), new(big.Int)
	p := big.NewInt(1)
	for q := 0; q <= -minPower; q++ {
		n := p.BitLen()
		if q <= maxPower {
			if n <= 128 {
				x.Lsh(p, uint(128-n))
			} else {
				x.Rsh(p, uint(n-128))
			}
			set(q, x)
		}
		if q > 0 {
			// 5^q is not a power of two, so the quotient has 128 bits.
			set(-q, x.Quo(x.Lsh(big.NewInt(1), uint(127+n)), p))
		}
		p.Mul(p, five)
	}
	return &t
}

func be64(b []byte) (u uint64) {
	for _, c := range b {
		u = u<<8 | uint64(c)
	}
	return u
}

// maxExactPower is the largest q for which T is exact.
const maxExactPower = 55

// nearest returns the bits of the float64 nearest to mant·10^exp, ties to even. It returns false if 128 bits of the
// power are not enough to decide.
//
// Let mant = w·2⁻ˡ, 2⁶³ ≤ w < 2⁶⁴, and let hi:mid:lo be the words of the product w·T. If T is exact, so is the product.
// Otherwise the true product is larger by less than w < 2⁶⁴, which is one unit of mid. So the part below the last kept
// bit of hi decides the rounding, unless that part is one half minus at most one unit of mid. Then the true value may
// be a tie or above it, and slow computes the answer.
//
// Cost: one wide multiplication, three for one in 500 numbers.
// Source: after Lemire, "Number Parsing at a Gigabyte per Second" (2021), with its error analysis replaced by the
// interval above.
func nearest(mant uint64, exp int64) (u uint64, ok bool) {
	if mant == 0 || exp < minPower {
		return 0, true
	}
	if exp > maxPower {
		return infinity, true
	}
	l := bits.LeadingZeros64(mant)
	w := mant << uint(l)
	t := &powers[exp-minPower]
	hi, mid := bits.Mul64(w, t.hi)

	// hi has 63 or 64 bits; 53 of them are kept, or fewer if the result is subnormal. 217706/2¹⁶ approximates log₂ 10
	// well enough for ⌊q·log₂ 10⌋ on the whole range.
	drop := uint(10 + hi>>63)
	e := int(exp)*217706>>16 + 1 - l + int(drop) + 52 + 1023
	if e < 1 {
		drop += uint(1 - e)
		e = 1
	}
	if drop > 64 {
		return 0, true // below half of the smallest number
	}
	half := uint64(1) << (drop - 1)
	rest := hi & (half<<1 - 1)
	kept := hi >> drop

	// The first product lacks w·t.lo, less than one unit of hi. That matters only if the rest is close to one half.
	if rest == half || rest == half-1 {
		c, lo := bits.Mul64(w, t.lo)
		var carry uint64
		mid, carry = bits.Add64(mid, c, 0)
		hi += carry
		rest = hi & (half<<1 - 1)
		kept = hi >> drop
		if 0 <= exp && exp <= maxExactPower {
			if rest == half && mid|lo == 0 && kept&1 == 0 {
				kept-- // a tie: the increment below then gives the even number
			}
		} else if rest == half-1 && mid == math.MaxUint64 {
			return 0, false
		}
	}
	if rest >= half {
		kept++
	}
	// If kept = 2⁵³, it carries into the exponent, as it should. So does kept = 2⁵² for a subnormal number, whose
	// exponent field is one less than e says.
	u = uint64(e-1)<<52 + kept
	if u > infinity {
		u = infinity
	}
	return u, true
}

// long reads a number of more than 19 digits. Let D be the integer with these digits, without the decimal point; the
// number is D·10^exp.
func long(digits []byte, exp int64) uint64 {
	var mant uint64
	n, dropped, more := 0, int64(0), false
	for _, c := range digits {
		switch {
		case c == '.':
		case n < maxDigits:
			mant = mant*10 + uint64(c-'0')
			if mant > 0 {
				n++
			}
		default:
			dropped++
			more = more || c != '0'
		}
	}
	u, ok := nearest(mant, exp+dropped)
	if more {
		// The number is between two numbers that nearest can read. Usually both round to the same float64.
		v, vok := nearest(mant+1, exp+dropped)
		ok = ok && vok && u == v
	}
	if ok {
		return u
	}
	return slow(digits, exp)
}

// maxSignificant must be more than 767, the largest number of digits of the midpoint of two float64s. It must be less
// than 800, because strconv misplaces the point of an integer with more digits.
const maxSignificant = 780

// slow is exact for every number that is neither clearly 0 nor clearly infinite. It passes the digits to strconv in a
// canonical form, because strconv reads only a part of a long exponent.
func slow(digits []byte, exp int64) uint64 {
	var buf [maxSignificant + 32]byte
	n, more := 0, false
	for _, c := range digits {
		switch {
		case c == '.' || c == '0' && n == 0:
		case n < maxSignificant:
			buf[n] = c
			n++
		default:
			exp++
			more = more || c != '0'
		}
	}
	if more {
		// It only matters whether all remaining digits are zero.
		buf[n] = '1'
		n++
		exp--
	}
	// strconv would allocate an error to report overflow.
	if int64(n)+exp == int64(len(overflow)) && string(buf[:n]) >= overflow {
		return infinity
	}
	s := strconv.AppendInt(append(buf[:n], 'e'), exp, 10)
	f, _ := strconv.ParseFloat(unsafe.String(&s[0], len(s)), 64)
	return math.Float64bits(f)
}

// overflow is the smallest number that rounds to infinity, 2¹⁰²⁴ − 2⁹⁷⁰.
var overflow = func() string {
	one := big.NewInt(1)
	x := new(big.Int).Lsh(one, 1024)
	return x.Sub(x, new(big.Int).Lsh(one, 970)).String()
}()
