package schema

import (
	"math/bits"
	"strconv"
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/decimal"
)

// maxDecimal is the largest length, in bytes, of an unscaled number that is read. Such a number is below about 10¹⁵³.
const maxDecimal = 64

// digitsBuffer is the size of a buffer for the digits of the largest unscaled number, a sign and an exponent.
const digitsBuffer = 192

var powersOfTen = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
	1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// setDecimal sets the float64 nearest to unscaled·10^-scale, where unscaled is a big-endian number in two's complement.
// A number with no bytes, or with too many, becomes Other.
func (r *Reader) setDecimal(v *column.Value, unscaled []byte, scale int) {
	for len(unscaled) > 1 && (unscaled[0] == 0 && unscaled[1] < 0x80 || unscaled[0] == 0xff && unscaled[1] >= 0x80) {
		unscaled = unscaled[1:] // drops a byte that only repeats the sign bit of the next one
	}
	if len(unscaled) == 0 || len(unscaled) > maxDecimal {
		setOther(v)
		return
	}
	negative := unscaled[0] >= 0x80
	if len(unscaled) <= 8 {
		x := int64(0)
		if negative {
			x = -1
		}
		for _, c := range unscaled {
			x = x<<8 | int64(c)
		}
		// Both numbers are exact as float64, so their quotient is rounded only once.
		if -1<<53 <= x && x <= 1<<53 && scale < len(powersOfTen) {
			setNumber(v, float64(x)/powersOfTen[scale])
			return
		}
	}
	// limbs holds the magnitude in units of 32 bits, the highest first.
	var limbs [maxDecimal / 4]uint32
	fill := byte(0)
	if negative {
		fill = 0xff
	}
	for i := range maxDecimal {
		c := fill
		if k := i - (maxDecimal - len(unscaled)); k >= 0 {
			c = unscaled[k]
		}
		limbs[i/4] = limbs[i/4]<<8 | uint32(c^fill)
	}
	if negative { // two's complement: invert all bits and add 1
		for i, carry := len(limbs)-1, uint32(1); i >= 0; i-- {
			limbs[i], carry = bits.Add32(limbs[i], 0, carry)
		}
	}
	// Each division yields nine digits, from the right.
	exponent := strconv.AppendInt(append(r.digits[:0], 'e'), -int64(scale), 10)
	end := len(r.digits) - len(exponent)
	copy(r.digits[end:], exponent)
	from := end
	for first := 0; first < len(limbs); {
		rest := uint32(0)
		for i := first; i < len(limbs); i++ {
			limbs[i], rest = bits.Div32(rest, limbs[i], 1e9)
		}
		for range 9 {
			from--
			r.digits[from] = '0' + byte(rest%10)
			rest /= 10
		}
		for first < len(limbs) && limbs[first] == 0 {
			first++
		}
	}
	from--
	r.digits[from] = '+'
	if negative {
		r.digits[from] = '-'
	}
	x, _ := decimal.Plain(r.digits[from:])
	setNumber(v, x)
}

// setText sets v to a text, or to Other if the text is not valid UTF-8.
func setText(v *column.Value, text []byte) {
	if !utf8.Valid(text) {
		setOther(v)
		return
	}
	v.Kind, v.Text = column.Text, text
}

func appendInt(dst []byte, x int64) []byte { return strconv.AppendInt(dst, x, 10) }

func appendUint(dst []byte, x uint64) []byte { return strconv.AppendUint(dst, x, 10) }

func appendUUID(dst, b []byte) []byte {
	const hex = "0123456789abcdef"
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hex[c>>4], hex[c&15])
	}
	return dst
}
