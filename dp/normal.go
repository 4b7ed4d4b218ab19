package dp

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/bits"
)

// The inverse CDF by table: a fixed function from 64 uniform bits (and 64 more
// for one word in 2¹⁵) to a Gaussian, the same bits on every architecture.
//
// Bit 63 of a word is the sign; m, the low 63 bits, give p = (m + ½)·2⁻⁶⁴, and
// |Z| = Q⁻¹(p). Each octave of p ≥ 2⁻¹⁶ is cut into 32 rows with a polynomial
// of degree 6; the tail, where the first extension word e gives
// p = (m·2⁶⁴ + e + ½)·2⁻¹²⁸, has one polynomial of degree 19 an octave.
//
// The error against the exact Q⁻¹ of the uniform real number whose first bits
// these are is proven below 2⁻⁴⁸ for |Z| ≤ 10 (docs/theory/dp.md;
// TestNormalBudget recomputes it). Beyond, which happens once in 2⁷⁶ draws,
// the callers decide exactly.
//
// A change of one bit of the table is a new noise format and ends every epoch.

//go:generate go test -run TestNormalTable -update .

//go:embed normal.table
var normalTable []byte

const (
	mainRows, mainDegree = 15 * 32, 6
	tailRows, tailDegree = 113, 19
)

var (
	// mainTable rows are c0 … c6 and a zero, one cache line, at the place that
	// mainIndex gives; 32 more rows make the index a mask without a check.
	mainTable [mainRows + 32][mainDegree + 2]float64
	// nearTable is the same for polynomials in m − centre, which is row[7]: the
	// coefficients scaled by powers of two, exactly.
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
			near[k] = math.Ldexp(row[k], -k*(57-zeros)) // a row is 2^(57−zeros) wide in m
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

// gaussianMain maps a word that is not in the tail. Every product is converted
// explicitly, which forbids fusing it with the addition. fillMain is the same
// for many words; a test holds them together.
func gaussianMain(u uint64) float64 {
	var z [1]float64
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], u)
	fillMain(z[:], word[:])
	return z[0]
}

// mainIndex is the place of the row for p with the given number of leading
// zeros behind the point less one, and the 5 bits behind the leading one: the
// low bits of the exponent and mantissa of float64(m).
func mainIndex(zeros, bits5 uint64) uint64 { return ((1085-zeros)&15)<<5 | bits5 }

// fillMain maps len(z) words. It returns whether one of them is in the tail,
// where its value means nothing.
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

// fillNear is fillMain with a cheaper way to row and x: the conversion of m to
// float64 finds the leading one, and x is its distance from the row's centre. It
// keeps 47 bits of x where fillMain keeps 52, and so is another number near the
// same Z, still within 2⁻⁴⁸. Rounding may use it, because what it cannot decide
// is decided exactly; nothing else may.
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

// nearRow returns the row of nearTable for m, a word without its sign, and m's distance from the
// row's centre. nearZ is a function of its own because the compiler would not put both into a
// loop as one.
func nearRow(m uint64) (row *[mainDegree + 2]float64, x float64) {
	f := float64(int64(m))
	row = &nearTable[math.Float64bits(f)>>47&511]
	return row, f - row[7]
}

// nearZ returns the row's polynomial at x: |Z|.
func nearZ(row *[mainDegree + 2]float64, x float64) float64 {
	x2 := float64(x * x)
	a := float64(row[1]*x) + float64(row[2]*x2)
	b := (row[3] + float64(row[4]*x)) + float64((row[5]+float64(row[6]*x))*x2)
	return row[0] + (a + float64(float64(x*x2)*b))
}

// gaussianTail maps a word of the tail with its first extension word.
func gaussianTail(u, ext uint64) float64 {
	hi, lo := u&(1<<63-1), ext // M = m·2⁶⁴ + e
	zeros := bits.LeadingZeros64(hi)
	if hi == 0 {
		zeros = 64 + bits.LeadingZeros64(lo)
	}
	// The 52 bits of 2M + 1 behind its leading one: shift that one out and
	// append the final 1, which falls on bit `zeros`.
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
