package dp

import (
	"math"
	"math/big"
)

// maxUnits bounds what is rounded: below it float64 counts lattice units, and
// the error bound of a rounding stays below ½.
const maxUnits = 1 << 51

// RoundRow sets w_j = ⌊r(sd_j·Z_j − s_j) + ½⌋, exactly, for the real numbers
// Z_j of the row: the integer noise of one step.
//
// sd is the standard deviation in lattice units, one per coordinate or one for
// all; s is what earlier noise predicts, nil for none; r = 1/C_tt. The value is
// computed in float64 with a proven error bound. Where that bound allows two
// integers, which happens once in 10⁶ draws, the row decides between them
// exactly, so w is the rounded Gaussian itself and not a number near it.
//
// Cost: 4 ns a coordinate, no allocation outside the exact decisions (0.05 ms).
// Source: docs/theory/dp.md, "Noise that survives finite precision".
//
// It panics if |r(sd_j·Z_j − s_j)| can reach 2⁵¹; NewLattice and the
// factorization's limits exclude that by configuration.
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
	for j := 0; j < len(w); j += keyed.size {
		n := min(len(w)-j, keyed.size)
		z := keyed.near[:n]
		tail := fillNear(z, keyed.words(j/keyed.size))
		roundBlock(w[j:j+n], z, row, j, sd, s, r)
		if tail {
			keyed.eachTail(n, j, func(i int, z float64) {
				w[j+i] = roundOne(z, row, j+i, at(sd, j+i), at(s, j+i), r)
			})
		}
	}
}

// at returns s_j, where one number may stand for all and nil for 0.
func at(s []float64, j int) float64 {
	switch len(s) {
	case 0:
		return 0
	case 1:
		return s[0]
	}
	return s[j]
}

// RoundAt returns coordinate j of RoundRow for independent noise. A search
// that asks one count after another reads nothing ahead.
func RoundAt(row Row, j int, sd float64) int64 {
	return roundOne(row.At(j), row, j, sd, 0, 1)
}

// The float64 error of r(sd·z − s): what z errs (2⁻⁴⁸ for |z| ≤ maxFloatZ),
// and four roundings.
const (
	errZ      = 1.0 / (1 << 48)
	errOp     = 1.0 / (1 << 51)
	maxFloatZ = 10
	magic     = 3 << 51 // adding and subtracting it rounds to an integer
	magicBits = 0x4338 << 48
)

func roundOne(z float64, row Row, j int, sd, s, r float64) int64 {
	x, n, tau := shaped(float64(sd*z), float64(errZ*sd), s, r)
	if math.Abs(x-n) < 0.5-tau && math.Abs(z) <= maxFloatZ && math.Abs(x) < maxUnits {
		return int64(n)
	}
	return roundExactly(x, tau, z, row, j, sd, s, r)
}

// roundBlock rounds coordinates j … j+len(z)−1. Without s and with one sd it
// rounds to 2⁻¹² units first, and looks closer only where those bits do not
// settle the integer, once in 10³ draws.
func roundBlock(w []int64, z []float64, row Row, j int, sd, s []float64, r float64) {
	const fraction = 12
	scale := float64(r * at(sd, j))
	// |scale·z|·2¹² must stay below 2⁵¹ for every z of the main table, and the
	// error of scale·z below 2⁻¹².
	if len(s) > 0 {
		if len(sd) > 1 {
			sd = sd[j : j+len(z)]
		}
		roundShaped(w, z, row, j, sd, s[j:], r)
		return
	}
	if len(sd) > 1 || !(scale < 1<<35) {
		for i, zi := range z {
			w[i] = roundOne(zi, row, j+i, at(sd, j+i), 0, r)
		}
		return
	}
	fine := scale * (1 << fraction)
	w = w[:len(z)]
	for i, zi := range z {
		// Adding 3·2⁵¹ leaves round(fine·z) in the low bits; half a unit
		// more, and the shift is the floor of scale·z + ½.
		q := int64(math.Float64bits(float64(fine*zi)+magic)) - (magicBits - 1<<(fraction-1))
		w[i] = q >> fraction
		if (q+2)&(1<<fraction-1) < 4 {
			w[i] = roundOne(zi, row, j+i, at(sd, j), 0, r)
		}
	}
}

// nearS times the standard deviation is the largest |s_j| for which roundShaped has one bound
// on the error of all coordinates. What earlier noise predicts is hardly ever larger.
const nearS = 64

// roundShaped is roundOne where there is an s, without a call where the bound settles the
// integer. s begins with coordinate j, and so does sd, unless one number stands for all. Then
// one bound on the error serves all coordinates, and roundOne has another look where it does not
// settle the integer.
func roundShaped(w []int64, z []float64, row Row, j int, sd, s []float64, r float64) {
	w, s = w[:len(z)], s[:len(z)]
	if len(sd) > 1 {
		sd = sd[:len(z)]
		for i, zi := range z {
			x, n, tau := shaped(float64(sd[i]*zi), float64(errZ*sd[i]), s[i], r)
			if math.Abs(x-n) < 0.5-tau && math.Abs(zi) <= maxFloatZ && math.Abs(x) < maxUnits {
				w[i] = int64(n)
				continue
			}
			w[i] = roundExactly(x, tau, zi, row, j+i, sd[i], s[i], r)
		}
		return
	}
	one, far := sd[0], float64(nearS*sd[0])
	// The float64 rounding of these bounds is far below what errZ and errOp leave.
	most := float64(maxFloatZ*one) + far
	sure := 0.5 - float64(r*(float64(errZ*one)+float64(errOp*most)))
	if !(r*most < maxUnits/2) {
		sure = 0
	}
	for i, zi := range z {
		si := s[i]
		x := float64(r * (float64(one*zi) - si))
		y := x + magic // round(x) is in its low bits
		w[i] = int64(math.Float64bits(y)) - magicBits
		if math.Abs(x-(y-magic)) < sure {
			if math.Abs(si) <= far {
				continue
			}
		}
		w[i] = roundOne(zi, row, j+i, one, si, r)
	}
}

// shaped returns x = r(a − s), the integer next to it and the bound on the error
// of x, where z's share of the bound is base.
func shaped(a, base, s, r float64) (x, n, tau float64) {
	x = float64(r * (a - s))
	n = (x + magic) - magic // half to even; a half is ambiguous and decided exactly
	tau = float64(r * (base + float64(errOp*(math.Abs(a)+math.Abs(s)))))
	return x, n, tau
}

// roundExactly finds the largest m with r(sd·Z − s) + ½ ≥ m, that is
// Z ≥ ((m − ½)/r + s)/sd, by exact comparisons between two integers that
// enclose it.
func roundExactly(x, tau, z float64, row Row, j int, sd, s, r float64) int64 {
	low, high := x-2*tau, x+2*tau
	if math.Abs(z) > maxFloatZ {
		// z itself may err by more than its bound: anything between
		// maxFloatZ and the cut, on its side.
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
	// tau is more than the roundings of these two lines, so lo holds and hi
	// does not; usually one comparison decides.
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
