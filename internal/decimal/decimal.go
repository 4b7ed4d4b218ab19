// Package decimal reads decimal numbers in records, either with the grammar of JSON or with the wider grammar of a CSV
// cell.
//
// It returns the same numbers as strconv.ParseFloat, but is faster: it reads grammar and digits in one pass, and never
// allocates. It accepts plain decimals only, so "nan", "inf", "0x1p-2" and "1_000" are not numbers.
package decimal

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// JSON reads the number at the beginning of b, by the grammar of RFC 8259. It returns the nearest float64 (ties to
// even) and the number's length in bytes, 0 if there is no number. A number that is too large for a float64 becomes
// ±Inf, and one that is too small ±0.
//
// JSON ignores what follows the number: of "1]" it reads "1".
func JSON(b []byte) (f float64, n int) { return read(b, true) }

// Plain does what JSON does, but with the grammar of spreadsheets and of programs that print numbers: it also accepts a
// sign '+', leading zeros, "5." and ".5".
func Plain(b []byte) (f float64, n int) { return read(b, false) }

// maxDigits is the number of decimal digits that always fit a uint64.
const maxDigits = 19

// maxExponent is the largest exponent that is stored; a larger one is replaced by it. No text has enough digits to
// bring a number with such an exponent back into the range of float64.
const maxExponent = 1 << 48

func read(b []byte, strict bool) (f float64, n int) {
	if len(b) == 0 {
		return 0, 0
	}
	i := 0
	if b[0] == '-' {
		i = 1
	}
	sign := uint64(i) << 63
	if !strict && b[0] == '+' {
		i = 1
	}

	// Collect all digits, on both sides of the point, in one integer. With too many digits the integer wraps around;
	// such numbers are read again below.
	first := i
	mant, i := append10(0, b, i)
	whole := i - first
	if strict && (whole == 0 || whole > 1 && b[first] == '0') {
		return 0, 0
	}
	fraction := 0
	if i < len(b) && b[i] == '.' {
		i++
		from := i
		mant, i = appendFraction(mant, b, i)
		fraction = i - from
		if fraction == 0 && (strict || whole == 0) {
			return 0, 0
		}
	} else if whole == 0 {
		return 0, 0
	}
	last := i

	exp := -int64(fraction)
	if i < len(b) && b[i]|0x20 == 'e' {
		e, next := readExponent(b, i+1)
		if next == 0 {
			return 0, 0
		}
		exp += e
		i = next
	}

	if whole+fraction > maxDigits {
		return math.Float64frombits(sign | long(b[first:last], exp)), i
	}
	// With up to 15 digits the integer and the power of ten are exact, so one operation rounds once. A comparison with
	// 2⁵³ would let more numbers take this fast path, but the processor could not predict the branch: numbers printed
	// with all digits are on both sides of 2⁵³.
	if whole+fraction <= 15 && -22 <= exp && exp <= 22 {
		f = float64(mant)
		if exp < 0 {
			f /= exact[-exp]
		} else {
			f *= exact[exp]
		}
		return math.Float64frombits(math.Float64bits(f) | sign), i
	}
	u, ok := nearest(mant, exp)
	if !ok {
		u = slow(b[first:last], exp)
	}
	return math.Float64frombits(sign | u), i
}

// readExponent reads the exponent whose sign or first digit is at b[i]. end is the index after the exponent, or 0 if it
// has no digit.
func readExponent(b []byte, i int) (e int64, end int) {
	negative := false
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		negative = b[i] == '-'
		i++
	}
	from := i
	for ; i < len(b); i++ {
		d := int64(b[i]) - '0'
		if uint64(d) > 9 {
			break
		}
		if e < maxExponent {
			e = e*10 + d
		}
	}
	if i == from {
		return 0, 0
	}
	if negative {
		e = -e
	}
	return e, i
}

// append10 appends the digits from b[i] on to mant, and returns the index after them.
func append10(mant uint64, b []byte, i int) (uint64, int) {
	for ; i < len(b); i++ {
		d := uint64(b[i]) - '0'
		if d > 9 {
			break
		}
		mant = mant*10 + d
	}
	return mant, i
}

// appendFraction is append10 for numbers with many digits, eight bytes a step. It counts the digits among the eight
// bytes without a branch. Lengths differ from number to number, so the processor would often predict such a branch
// wrongly. For the same reason no branch distinguishes 16 from 17 digits.
func appendFraction(mant uint64, b []byte, i int) (uint64, int) {
	for i+16 <= len(b) {
		x, n := digits(binary.LittleEndian.Uint64(b[i:]))
		mant = mant*pow10[n&15] + eight(x)
		if i += n; n < 8 {
			return mant, i
		}
		x, n = digits(binary.LittleEndian.Uint64(b[i:]))
		mant = mant*pow10[n&15] + eight(x)
		if i += n; n == 0 {
			return mant, i
		}
	}
	return append10(mant, b, i)
}

// digits returns the values of the leading digits among the eight bytes of a word, and their number. The values are
// right-aligned and preceded by zeros.
func digits(x uint64) (values uint64, n int) {
	x ^= 0x3030303030303030
	n = bits.TrailingZeros64((x|(x+0x0606060606060606))&0xF0F0F0F0F0F0F0F0) >> 3
	return x << (64 - 8*uint(n)), n
}

// eight returns the number with the given eight digits. Byte 0 of x is the value, not the character, of the first
// digit.
func eight(x uint64) uint64 {
	x = x*10 + x>>8 // bytes 0, 2, 4, 6: pairs
	const mask = 0x000000FF000000FF
	return ((x&mask)*(100+1000000<<32) + (x>>16&mask)*(1+10000<<32)) >> 32
}

// pow10 has 16 entries, so that an index cut to four bits needs no bounds check.
var pow10 = [16]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// exact are the powers of ten that a float64 represents exactly.
var exact = [23]float64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}
