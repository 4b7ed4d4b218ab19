package main

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/mathext"
)

// constants holds the numbers by which rows are scaled and shortened.
type constants struct {
	centre, scale []float64
	clip          float64
}

// approxBounds finds an interval for every column from some rows, in the way of ApproxBounds in Google's differential
// privacy library, but with Gaussian noise instead of Laplace noise. It makes a histogram of sign and power of two for
// each column. A bin counts as occupied if an empty bin reaches its noisy count only with probability 10⁻⁹. The
// interval ends at the outermost occupied bins; if there are none, it is the largest bin. Rows are then in a box, and
// so in the ball around the box.
//
// It is μ-Gaussian private for one record zeroed out: a record is in one bin of each histogram, so the noise has the
// standard deviation √d/μ.
func approxBounds(rows [][]float64, mu float64, source *rand.Rand) *constants {
	const top, bins = 104, 2*208 + 1 // powers of two from −104 to 103 of either sign, and zero
	d := len(rows[0])
	sigma := math.Sqrt(float64(d)) / mu
	least := sigma * -mathext.NormalQuantile(1e-9/bins)
	// edges returns the interval of a bin.
	edges := func(bin int) (lo, hi float64) {
		k := bin - bins/2
		if k == 0 {
			return 0, 0
		}
		lo, hi = math.Ldexp(1, max(k, -k)-1-top), math.Ldexp(1, max(k, -k)-top)
		if k < 0 {
			return -hi, -lo
		}
		return lo, hi
	}
	c := &constants{clip: math.Sqrt(float64(d))}
	for j := range d {
		count := make([]float64, bins)
		for _, row := range rows {
			bin := bins / 2
			if size := math.Abs(row[j]); size >= math.Ldexp(1, -top) {
				_, e := math.Frexp(size)
				bin += int(math.Copysign(float64(max(1, min(e+top, 2*top))), row[j]))
			}
			count[bin]++
		}
		for i := range count {
			count[i] += sigma * source.NormFloat64()
		}
		first := slices.IndexFunc(count, func(n float64) bool { return n >= least })
		last := first
		if first < 0 {
			first = slices.Index(count, slices.Max(count))
			last = first
		}
		for i := first; i < bins; i++ {
			if count[i] >= least {
				last = i
			}
		}
		lo, _ := edges(first)
		_, hi := edges(last)
		c.centre = append(c.centre, (lo+hi)/2)
		c.scale = append(c.scale, orOne((hi-lo)/2))
	}
	return c
}

// orOne returns x, or 1 if x is 0.
func orOne(x float64) float64 {
	if x == 0 {
		return 1
	}
	return x
}

// coinPressSteps holds the shares of ρ that CoinPress's iterations get. Variance and mean use the same shares. All
// iterations except the last together get a quarter.
var coinPressSteps = []float64{1. / 16, 1. / 16, 1. / 16, 1. / 16, 3. / 4}

// coinPress finds mean and deviation of every column by CoinPress (Biswas, Dong, Kamath, Ullman, NeurIPS 2020), in one
// dimension, column by column. Each column gets ρ/d; half of that pays for the variance, computed from differences of
// pairs of rows. The formulas of a step are those of the authors' code, commit 833359d, except for the sensitivity: it
// is for zero-out, so it is half as large. For each column CoinPress needs an interval centre ± wide that contains the
// mean; wide must also bound the deviation. The clip norm is the bound on a Gaussian row that CoinPress itself uses; at
// most one row in a hundred exceeds it.
//
// It is ρ-zCDP by Gaussian noise alone, and with ρ = μ²/2 the composition is μ-Gaussian private: a record is in one
// pair of each column, and in each mean.
func coinPress(rows [][]float64, centre, wide []float64, mu float64, source *rand.Rand) *constants {
	d, n := len(rows[0]), float64(len(rows))
	own := mu / math.Sqrt(2*float64(d)) // μ for the variance, and for the mean, of one column
	c := &constants{clip: gaussianTail(d, 0.01)}
	for j := range d {
		// The variance, in units of 1/a, from pairs (x − x′)/√2.
		pairs, a, scale := math.Floor(n/2), 1/wide[j], 0.0
		gamma := gaussianTail(1, 0.1)
		eta := (2/math.Sqrt(pairs) + 1/pairs) / 2
		for _, share := range coinPressSteps {
			var sum float64
			for i := 0; i+1 < len(rows); i += 2 {
				w := min(math.Abs(rows[i][j]-rows[i+1][j])/math.Sqrt2*a, gamma)
				sum += w * w
			}
			z := (sum + gamma*gamma/(own*math.Sqrt(share))*source.NormFloat64()) / pairs
			scale = math.Sqrt(max(z, 0)+eta) / a
			a = 1 / scale
		}
		// The mean, in units of the deviation.
		m, r := centre[j]/scale, wide[j]/scale
		gamma = gaussianTail(1, 0.01)
		for _, share := range coinPressSteps {
			clip := min(math.Sqrt(r*r+6*r+gamma*gamma), r+gamma)
			var sum float64
			for _, row := range rows {
				sum += max(-clip, min(row[j]/scale-m, clip))
			}
			sd := clip / (own * math.Sqrt(share)) / n
			m += sum/n + sd*source.NormFloat64()
			r = math.Sqrt(1/n+sd*sd) * gamma
		}
		c.centre, c.scale = append(c.centre, m*scale), append(c.scale, scale)
	}
	return c
}

// gaussianTail returns a norm that a standard Gaussian vector of d coordinates exceeds with probability at most beta.
func gaussianTail(d int, beta float64) float64 {
	n, l := float64(d), math.Log(1/beta)
	return math.Sqrt(n + 2*math.Sqrt(n*l) + 2*l)
}
