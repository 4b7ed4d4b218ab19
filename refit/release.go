package refit

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// releaseVector returns x with Gaussian noise on a lattice. The standard deviation in each coordinate is sd or slightly
// more; see [deviation]. x is rounded to integers, and the noise is a rounded Gaussian. An x beyond 61 bits of the
// lattice is moved to the end of that range. This does not increase the distance of two values, and the result does not
// show whether it happened.
//
// Privacy: if x moves by at most sensitivity in norm, and computing x is off by at most err in norm, then it is
// sensitivity/sd-Gaussian private.
// Errors: the noise is beyond 51 bits of the lattice; this does not depend on x.
func releaseVector(n dp.Noise, array string, x []float64, sensitivity, err, sd float64, bits int) ([]float64, error) {
	raised, exp := deviation(len(x), sensitivity, err, sd, bits)
	units := math.Ldexp(raised, -exp)
	if !(dp.MaxDraw*units < 1<<51) {
		return nil, errFailed
	}
	hidden := make([]int64, len(x))
	for j, v := range x {
		hidden[j] = nearest(v, exp)
	}
	noise := make([]int64, len(x))
	dp.RoundRow(noise, n.Row(array, hidden), []float64{units}, nil, 1)
	noisy := make([]float64, len(x))
	for j, k := range hidden {
		noisy[j] = math.Ldexp(float64(k+noise[j]), exp)
	}
	return noisy, nil
}

// nearest returns x in units of 2^exp, rounded and limited to ±2⁶¹.
func nearest(x float64, exp int) int64 {
	const most = 1 << 61
	switch k := math.Floor(math.Ldexp(x, -exp) + 0.5); {
	case k > most:
		return most
	case k > -most:
		return int64(k)
	}
	return -most
}

// deviation returns the standard deviation of the noise of releaseVector in each of d coordinates, and the exponent of
// its lattice step. The standard deviation is sd, raised by the sensitivity that arithmetic and lattice add.
func deviation(d int, sensitivity, err, sd float64, bits int) (raised float64, exp int) {
	_, e := math.Frexp(min(sensitivity, sd))
	exp = e - 1 - bits
	moves := sensitivity + 2*err + math.Sqrt(float64(d))*math.Ldexp(1, exp)
	return sd * (moves / sensitivity) * dp.RoundUp, exp
}

// bitsOf returns the float64 bits of the numbers that are multiplied by a sketch's noise. The noise row takes them as
// the integers that the noise hides.
func bitsOf(parts ...[]float64) []int64 {
	var all []int64
	for _, part := range parts {
		for _, v := range part {
			all = append(all, int64(math.Float64bits(v)))
		}
	}
	return all
}

// lower returns a lower bound of λ_min:
//
//	λ̃ = max(0, λ − sd·(τ − Z)),  Z ~ N(0, 1)
//
// on a lattice. The bound fails with the probability that belongs to tau. λ moves by at most `bound`; sd and the result
// are in units of `bound`. Z and τ count standard deviations of the actual noise, which exceeds sd because computing λ
// is inexact. If τ counted multiples of sd, the lower bound would fail more often.
//
// Privacy: bound/sd-Gaussian private, under either adjacency: λ_min(XᵀX) moves by at most ‖x‖², by Weyl's inequality.
func lower(n dp.Noise, array string, lambda, err, bound, sd, tau float64, bits int) (float64, error) {
	noisy, e := releaseVector(n, array, []float64{lambda}, bound, err, sd, bits)
	if e != nil {
		return 0, e
	}
	raised, _ := deviation(1, bound, err, sd, bits)
	rounding := 2 * math.Ldexp(min(bound, sd), -bits)
	return max(0, noisy[0]-float64(raised*tau*(1+0x1p-50))-rounding-err), nil
}

// roundPublic rounds the coefficients of a sketch's solution to multiples of 2⁻²⁰, in the units of the clipped window.
// A multiple is far smaller than the noise, and far larger than the last bits by which floating point could reveal
// data.
func roundPublic(theta []float64) {
	for j, v := range theta {
		theta[j] = math.Floor(v*(1<<20)+0.5) / (1 << 20)
	}
}
