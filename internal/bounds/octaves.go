package bounds

import "math"

// octaveBins is the number of bins of a histogram of octaves. There is a bin for each octave 2^e ≤ |x| < 2^(e+1), e
// from −104 to 103, and each sign; the middle bin holds zero.
const (
	octaveBins = 417
	octaveZero = 208
	topOctave  = 104 // values are clamped to ±2^topOctave
)

// clamped returns x, limited to the range of the histograms.
func clamped(x float64) float64 { return max(-0x1p104, min(x, 0x1p104)) }

// octave returns the bin of x.
func octave(x float64) int {
	m, e := math.Frexp(math.Abs(x)) // 2^(e−1) ≤ |x| < 2^e
	k := 0
	if m != 0 && e > -topOctave {
		k = max(-topOctave, min(e-1, topOctave-1)) + topOctave + 1
	}
	if x >= 0 {
		return octaveZero + k
	}
	return octaveZero - k
}

// octaveEdges returns the edges of a bin; both are 0 for the bin of zero.
func octaveEdges(bin int) (lo, hi float64) {
	switch k := bin - octaveZero; {
	case k > 0:
		return math.Ldexp(1, k-topOctave-1), math.Ldexp(1, k-topOctave)
	case k < 0:
		return -math.Ldexp(1, -k-topOctave), -math.Ldexp(1, -k-topOctave-1)
	}
	return 0, 0
}

// quartiles returns the range of octaves from the first to the third quartile of a column's values, and the number of
// circles that the next stage needs for the column's centre:
//
//	0  all of this range is zero
//	6  an offset may dominate: one sign, and the ends differ by a factor of 4 at most
//	1  otherwise
func quartiles(prefix []float64, records float64) (lo, hi float64, circles int) {
	m := rising(prefix)
	reach := func(share float64) int {
		for b, v := range m {
			if v >= share*records {
				return b
			}
		}
		return len(m) - 1
	}
	a, b := reach(0.25), reach(0.75)
	lo, _ = octaveEdges(a)
	_, hi = octaveEdges(b)
	small, large := min(math.Abs(lo), math.Abs(hi)), max(math.Abs(lo), math.Abs(hi))
	switch {
	case a == octaveZero && b == octaveZero:
		return lo, hi, 0
	case lo*hi > 0 && large <= 4*small:
		return lo, hi, mostCircles
	}
	return lo, hi, 1
}
