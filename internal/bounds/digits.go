package bounds

import (
	"math"
	"strconv"
)

// simplest returns the number in [lo, hi] that is easiest to read: 0 if that is inside, otherwise the middle, rounded
// to as few significant digits as possible without leaving the interval. [4.93, 5.11] gives 5, [1.61, 1.64] gives 1.62.
func simplest(lo, hi float64) float64 {
	if lo <= 0 && hi >= 0 {
		return 0
	}
	middle := (lo + hi) / 2
	for digits := 1; digits < 17; digits++ {
		if x := rounded(middle, digits); x >= lo && x <= hi {
			return x
		}
	}
	return rounded(middle, 17)
}

// rounded returns x with the given number of significant decimal digits.
func rounded(x float64, digits int) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', digits-1, 64), 64)
	if err != nil {
		return math.NaN() // beyond the range of float64, which no value of this package is
	}
	return y
}
