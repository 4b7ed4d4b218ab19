package matfact

import "math/bits"

// toeplitz is a Factorization with a Toeplitz matrix: every column is the sequence c_0 = 1, c_1, …, shifted, and cut
// off at the last row.
type toeplitz interface {
	Factorization
	// column returns |c_0| … |c_{n−1}| in units of 2⁻⁶². Each is rounded up far enough that no norm computed from them
	// is too small. n is at most the horizon, if there is one.
	column(n int) []uint64
	// inverseSeries returns the first n coefficients of C⁻¹, with the same bits on every architecture.
	inverseSeries(n int) []float64
	// fineShaper returns a Shaper whose s and w are in a unit that the caller chooses. fineLimits returns that Shaper's
	// limits in lattice units; `unit` is the number of the caller's units in one lattice unit.
	fineShaper(dim int, fingerprint uint64) Shaper
	fineLimits(sd, unit float64) (Limits, error)
}

const columnUnit = 0x1p-62

func (r *root) column(n int) []uint64 {
	c := make([]uint64, n)
	for j, x := range r.coef[:n] {
		c[j] = uint64(max(x, -x))
	}
	return c
}

func (b *banded) column(n int) []uint64 {
	c := make([]uint64, n)
	for t := range c {
		switch {
		case t == 0:
			c[t] = 1 << 62
		case b.stored.Kind == "bisr":
			c[t] = weightedSum(b.stored.Bands, c, t)
		case t <= len(b.stored.Bands):
			c[t] = ceilColumn(uint64(b.stored.Bands[t-1]))
		}
	}
	return c
}

// weightedSum returns ⌈Σ_k m_k c_{t−k}⌉. It takes indices modulo the length of c, so that c may be a ring of len(m)
// values.
func weightedSum(m []Fixed, c []uint64, t int) uint64 {
	var hi, lo, carry uint64
	for k := 1; k <= min(t, len(m)); k++ {
		h, l := bits.Mul64(uint64(m[k-1]), c[(t-k)%len(c)])
		lo, carry = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, h, carry)
	}
	if lo > 0 {
		hi++
	}
	return hi
}

// column implements toeplitz. The matrix must have one phase, and ones on its diagonal.
func (b *buffered) column(n int) []uint64 {
	c := make([]uint64, n)
	v := make([]uint64, len(b.stored.Decay)) // ΩΘ^(t−1), in units of 2⁻⁶⁴
	for i, w := range b.stored.Phases[0].Weight {
		v[i] = uint64(w)
	}
	for t := range c {
		if t == 0 {
			c[t] = 1 << 62
			continue
		}
		for i, d := range b.stored.Decay {
			c[t] += ceilColumn(v[i])
			hi, lo := bits.Mul64(v[i], uint64(d))
			if lo > 0 {
				hi++
			}
			v[i] = hi
		}
	}
	return c
}

// ceilColumn converts units of 2⁻⁶⁴ to units of columnUnit, rounded up.
func ceilColumn(x uint64) uint64 { return x>>2 + (x&3+3)>>2 }

// squares is an exact sum of squares, for integers that column returns.
type squares struct{ top, hi, lo uint64 }

func (e *squares) add(c uint64) {
	h, l := bits.Mul64(c, c)
	var carry uint64
	e.lo, carry = bits.Add64(e.lo, l, 0)
	e.hi, carry = bits.Add64(e.hi, h, carry)
	e.top += carry
}

// float returns the sum with a relative error of at most 2⁻⁵¹.
func (e *squares) float() float64 {
	return float64(e.top)*0x1p4 + float64(e.hi)*0x1p-60 + float64(e.lo)*0x1p-124
}
