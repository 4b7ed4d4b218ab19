package adam

import "math"

// rate returns the learning rate of step i ≥ 1:
//
//	constant      α
//	inverse-sqrt  α/√i
//
//	cosine        α(1 + cos(π(i−1)/n))/2, where n is the horizon
//
// The rate is public, and has the same bits on every architecture.
func (c *Config) rate(i uint64) float64 {
	switch c.Schedule {
	case "inverse-sqrt":
		return c.Rate / math.Sqrt(float64(i))
	case "cosine":
		x := float64(i-1) / float64(c.Horizon)
		return float64(c.Rate*(1-sinHalfTurns(x-0.5))) / 2 // cos πx = −sin π(x−½)
	}
	return c.Rate
}

// sinHalfTurns returns sin πx for |x| ≤ ½ by its Taylor series, whose first omitted term is below 10⁻¹⁶. math.Sin gives
// different last bits on different architectures.
func sinHalfTurns(x float64) float64 {
	y := float64(math.Pi * x)
	square := float64(y * y)
	term, sum := y, y
	for k := 3.0; k < 23; k += 2 {
		term = float64(term*square) / -(k * (k - 1))
		sum += term
	}
	return sum
}

// complement returns 1 − βⁿ for p = 1 − β, without cancellation and with the same bits on
// every architecture.
func complement(p float64, n uint64) float64 {
	var g float64 // 1 − (1−p)^m, where m are the bits of n read so far
	for square := p; n > 0; n >>= 1 {
		if n&1 == 1 {
			g += float64(square * (1 - g))
		}
		square *= 2 - square
	}
	return g
}
