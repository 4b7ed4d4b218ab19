package sgd

import (
	"math"

	"gonum.org/v1/gonum/mathext"
)

// StudentQuantile returns the p-quantile of Student's t distribution with df > 0
// degrees of freedom, for p in (0, 1).
//
// It is exported only for the reproduction of the papers' intervals.
func StudentQuantile(p, df float64) float64 {
	if !(p > 0 && p < 1 && df > 0) {
		return math.NaN()
	}
	if p < 0.5 {
		return -StudentQuantile(1-p, df)
	}
	// P(T > t) = I_{df/(df+t²)}(df/2, ½)/2
	above := func(t float64) bool { return mathext.RegIncBeta(df/2, 0.5, df/(df+t*t)) <= 2*(1-p) }
	low, high := 0.0, 1.0
	for !above(high) && high < 1e300 {
		low, high = high, 2*high
	}
	for range 200 {
		middle := low + (high-low)/2
		if middle <= low || middle >= high {
			break
		}
		if above(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}
