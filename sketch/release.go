package sketch

import (
	"math"

	"streamdp/dp"
)

// releaseVector returns x with Gaussian noise of standard deviation sd in each
// coordinate, and a little more, see [deviation], on a lattice: x is rounded to
// integers, the noise is a rounded Gaussian. An x beyond 61 bits of the lattice is moved
// to their end, which moves no two of them apart: whether it was is no event that could
// be seen.
//
// Privacy: for an x that moves by at most sensitivity in norm, and whose own
// arithmetic errs by at most err in norm, it is (sensitivity/sd)-Gaussian-private.
// Errors: noise beyond 51 bits of the lattice, whatever x.
func releaseVector(n dp.Noise, array string, x []float64, sensitivity, err, sd float64, bits int) ([]float64, error) {
	raised, exp := deviation(len(x), sensitivity, err, sd, bits)
	units := math.Ldexp(raised, -exp)
	if !(14*units < 1<<51) {
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

// nearest returns x in units of 2^exp, rounded, and moved into ±2⁶¹.
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

// deviation returns the standard deviation of the noise of releaseVector in each of d
// coordinates, and the exponent of its lattice's step: sd, raised by what arithmetic and
// the lattice add to the sensitivity.
func deviation(d int, sensitivity, err, sd float64, bits int) (raised float64, exp int) {
	_, e := math.Frexp(min(sensitivity, sd))
	exp = e - 1 - bits
	moves := sensitivity + 2*err + math.Sqrt(float64(d))*math.Ldexp(1, exp)
	return sd * (moves / sensitivity) * (1 + 0x1p-40), exp
}

// bitsOf returns the float64 bits of the numbers that a sketch's noise multiplies:
// what its noise row hides.
func bitsOf(parts ...[]float64) []int64 {
	var all []int64
	for _, part := range parts {
		for _, v := range part {
			all = append(all, int64(math.Float64bits(v)))
		}
	}
	return all
}

// lower returns a lower bound of λ_min, but for the probability that tau stands for:
//
//	λ̃ = max(0, λ − sd·(τ − Z)),  Z ~ N(0, 1)
//
// on a lattice. bound is by how much λ moves, sd and the result are in its units. Z and
// τ both count the deviation that the noise has, which is more than sd where arithmetic
// errs: a τ of the smaller one would stand for another probability.
//
// Privacy: (bound/sd)-Gaussian-private, under either adjacency: λ_min(XᵀX) moves by at
// most ‖x‖², by Weyl's inequality.
func lower(n dp.Noise, array string, lambda, err, bound, sd, tau float64, bits int) (float64, error) {
	noisy, e := releaseVector(n, array, []float64{lambda}, bound, err, sd, bits)
	if e != nil {
		return 0, e
	}
	raised, _ := deviation(1, bound, err, sd, bits)
	rounding := 2 * math.Ldexp(min(bound, sd), -bits)
	return max(0, noisy[0]-float64(raised*tau*(1+0x1p-50))-rounding-err), nil
}

// roundPublic rounds coefficients of a sketch's solution to multiples of 2⁻²⁰ in the
// units of the clipped window: far below its noise, and coarse beside what floating
// point could betray.
func roundPublic(theta []float64) {
	for j, v := range theta {
		theta[j] = math.Floor(v*(1<<20)+0.5) / (1 << 20)
	}
}
