package sgd

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/internal/vector"
)

// statLaw returns the distribution of a private search for the scale of values: the probabilities of the rungs 0 …
// rungs of the ladder top·2^(i−rungs). Thresholds and the standard deviation sd of the noise are in records. method is
// "scan" or "bisect". A value of NaN is a null record, which adds null to a count of bisect.
func statLaw(method string, values []float64, rungs int, top, threshold, null, sd float64) ([]float64, error) {
	if method != "scan" && method != "bisect" {
		return nil, errors.New("method must be \"scan\" or \"bisect\"")
	}
	if !(rungs >= 1 && rungs <= ladder.MaxRungs && vector.Positive(top) && vector.Positive(sd)) {
		return nil, errors.New("rungs, top and sd must be positive")
	}
	l := ladder.Ladder{Top: top, Rungs: rungs}
	counts := make([]float64, rungs+1)
	for _, u := range values {
		if math.IsNaN(u) {
			if method == "bisect" {
				for i := range counts {
					counts[i] += null
				}
			}
			continue
		}
		for i := l.Index(u); i <= rungs; i++ {
			counts[i]++
		}
	}
	reach := func(i int) float64 { return math.Erfc((threshold-counts[i])/sd/math.Sqrt2) / 2 }
	law := make([]float64, rungs+1)
	if method == "scan" {
		rest := 1.0
		for i := range rungs {
			law[i] = rest * reach(i)
			rest *= 1 - reach(i)
		}
		law[rungs] = rest
		return law, nil
	}
	var walk func(low, high int, p float64)
	walk = func(low, high int, p float64) {
		if low == high {
			law[low] += p
			return
		}
		middle := (low + high) / 2
		walk(low, middle, p*reach(middle))
		walk(middle+1, high, p*math.Erfc((counts[middle]-threshold)/sd/math.Sqrt2)/2)
	}
	walk(0, rungs, 1)
	return law, nil
}
