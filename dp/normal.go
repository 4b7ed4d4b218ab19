package dp

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/bits"
)

// This file computes the inverse CDF from a table. It is a fixed function from 64 uniform bits (and 64 more for one
// word in 2¹⁵) to a Gaussian, with the same result on every architecture.
//
// Bit 63 of a word is the sign; m, the low 63 bits, gives p = (m + ½)·2⁻⁶⁴, and |Z| = Q⁻¹(p). Each octave of p ≥ 2⁻¹⁶
// is cut into 32 rows with a polynomial of degree 6. In the tail, the first extension word e gives p = (m·2⁶⁴ + e +
// ½)·2⁻¹²⁸, and each octave has one polynomial of degree 19.
//
// The true Z is the exact Q⁻¹ of the uniform real number that begins with these bits. For |Z| ≤ 10 it is proven that
// the computed value differs from Z by less than 2⁻⁴⁸ (docs/theory/dp.md; TestNormalBudget recomputes the bound).
// Larger values occur once in 2⁷⁶ draws; for these the callers decide exactly.
//
// If one bit of the table changes, that is a new noise format, and every epoch ends.

//go:generate go test -run TestNormalTable -update .

//go:embed normal.table
var normalTable []byte

const (
	mainRows, mainDegree = 15 * 32, 6
	tailRows, tailDegree = 113, 19
)

var (
	// A row of mainTable is c0 … c6 and a zero: one cache line. Rows are in the order of mainIndex. Because of 32 extra
	// rows, a masked index makes the bounds check unnecessary.
	mainTable [mainRows + 32][mainDegree + 2]float64
	// nearTable has the same polynomials in the variable m − centre, where row[7] is the centre. Its coefficients are
	// those of mainTable scaled by powers of two, which is exact.
	nearTable [mainRows + 32][mainDegree + 2]float64
	tailTable [tailRows][tailDegree + 1]float64
)

func init() {
	next := func() float64 {
		x := math.Float64frombits(binary.LittleEndian.Uint64(normalTable))
		normalTable = normalTable[8:]
		return x
	}
	for i := range mainRows {
		zeros := i / 32
		place := mainIndex(uint64(zeros), uint64(i%32))
		row, near := &mainTable[place], &nearTable[place]
		for k := range mainDegree + 1 {
			row[k] = next()
			near[k] = math.Ldexp(row[k], -k*(57-zeros)) // a row covers 2^(57−zeros) values of m
		}
		near[7] = math.Ldexp(32+float64(i%32)+0.5, 57-zeros)
	}
	for i := range tailTable {
		for k := range tailTable[i] {
			tailTable[i][k] = next()
		}
	}
}

// isTail reports whether the word needs an extension word.
func isTail(u uint64) bool { return u<<1 < 1<<49 }

// gaussianMain maps a word that is not in the tail to its Gaussian. Every product is converted explicitly, so that the
// compiler does not fuse it with the addition. fillMain does the same for many words; a test compares the two.
func gaussianMain(u uint64) float64 {
	var z [1]float64
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], u)
	fillMain(z[:], word[:])
	return z[0]
}

// mainIndex returns the index of the row for p. zeros is the number of leading zeros of p after the binary point, less
// one; bits5 are the 5 bits after the leading one. The index consists of the low bits of the exponent and the high bits
// of the mantissa of float64(m).
func mainIndex(zeros, bits5 uint64) uint64 { return ((1085-zeros)&15)<<5 | bits5 }

// fillMain maps len(z) words. tail reports whether one of them is in the tail; then z is meaningless.
func fillMain(z []float64, words []byte) (tail bool) {
	words = words[:8*len(z)]
	least := ^uint64(0)
	for i := range z {
		u := binary.LittleEndian.Uint64(words[8*i : 8*i+8])
		least = min(least, u<<1)
		v := u<<1 | 1
		zeros := uint64(bits.LeadingZeros64(v)) & 63
		y := v << zeros << 1
		row := &mainTable[mainIndex(zeros, y>>59)]
		x := math.Float64frombits((y<<5)>>12|0x3FF<<52) - 1.5
		x2 := float64(x * x)
		a := float64(row[1]*x) + float64(row[2]*x2)
		b := (row[3] + float64(row[4]*x)) + float64((row[5]+float64(row[6]*x))*x2)
		zi := row[0] + (a + float64(float64(x*x2)*b))
		z[i] = math.Float64frombits(math.Float64bits(zi) ^ u&(1<<63))
	}
	return least < 1<<49
}

// fillNear does what fillMain does, but finds the table row and x faster: the conversion of m to float64 finds the
// leading one, and x is the distance of m from the row's centre. Here x has 47 bits, in fillMain it has 52. So the
// result may differ from that of fillMain, but is also within 2⁻⁴⁸ of Z. Only rounding may use fillNear, because
// rounding decides exactly whenever the error matters.
func fillNear(z []float64, words []byte) (tail bool) {
	words = words[:8*len(z)]
	least := ^uint64(0)
	for i := range z {
		u := binary.LittleEndian.Uint64(words[8*i : 8*i+8])
		m := u & (1<<63 - 1)
		least = min(least, m)
		v := nearZ(nearRow(m))
		z[i] = math.Float64frombits(math.Float64bits(v) ^ (u ^ m))
	}
	return least < 1<<48
}

// nearRow returns the row of nearTable for m, and the distance x of m from the row's centre. m is a word without its
// sign. nearZ is a separate function because the compiler would not inline the two as one.
func nearRow(m uint64) (row *[mainDegree + 2]float64, x float64) {
	f := float64(int64(m))
	row = &nearTable[math.Float64bits(f)>>47&511]
	return row, f - row[7]
}

// nearZ returns |Z|, the value of the row's polynomial at x.
func nearZ(row *[mainDegree + 2]float64, x float64) float64 {
	x2 := float64(x * x)
	a := float64(row[1]*x) + float64(row[2]*x2)
	b := (row[3] + float64(row[4]*x)) + float64((row[5]+float64(row[6]*x))*x2)
	return row[0] + (a + float64(float64(x*x2)*b))
}

// gaussianTail maps a word of the tail, with its first extension word, to its Gaussian.
func gaussianTail(u, ext uint64) float64 {
	hi, lo := u&(1<<63-1), ext // M = m·2⁶⁴ + e
	zeros := bits.LeadingZeros64(hi)
	if hi == 0 {
		zeros = 64 + bits.LeadingZeros64(lo)
	}
	// Take the 52 bits of 2M + 1 that follow its leading one: shift the leading one out, and append the final 1, which
	// is then bit `zeros`.
	shift := uint(zeros + 1)
	hi, lo = hi<<shift|lo>>(64-shift)|lo<<(shift-64), lo<<shift
	if zeros < 64 {
		lo |= 1 << uint(zeros)
	} else if zeros < 128 {
		hi |= 1 << uint(zeros-64)
	}
	x := math.Float64frombits(hi>>12|0x3FF<<52) - 1.5
	row := &tailTable[zeros-16]
	z := row[tailDegree]
	for k := tailDegree - 1; k >= 0; k-- {
		z = float64(z*x) + row[k]
	}
	return math.Float64frombits(math.Float64bits(z) ^ u&(1<<63))
}
