package matfact

import (
	"fmt"
	"math"
)

// maxDraw bounds |Z|: the Gaussians of package dp are below 13.3.
const maxDraw = 14

// maxState bounds |s_i| in lattice units, so that a sum of maxDecays such numbers fits 128 bits.
const maxState = 1 << 58

// maxNoise bounds everything that is converted to float64 and rounded there.
const maxNoise = 1 << 51

// Limits implements Factorization.
//
// W solves CW = Q with |q_t| ≤ 14·sd + 2. The bound on q_t is the sum of the draw, of half a unit of rounding times 1/r
// ≤ 1, and of Limits.Rounding ≤ 1. Let |q| ≤ 1, and let b_j bound mode j at the beginning of a phase. After n steps of
// the phase the bound is b_j ← (1−g)b_j + gκ_j/â_j, g = 1−(1−â_j)ⁿ. In between it is at most max(b_j, κ_j/â_j). R
// converts the bounds to the next phase. Hence |1ᵀs| ≤ Σκ_jb_j, |w| ≤ r(1 + |1ᵀs|), |s_i| ≤ ω_iΣ_j κ_jb_j/|â_j−a_i|.
// For a BLT this gives |w| < 2·|q|.
func (b *buffered) Limits(sd float64) (Limits, error) { return b.fineLimits(sd, 1) }

func (b *buffered) fineLimits(sd, unit float64) (Limits, error) {
	noise, state := b.reach()
	// In each step, rounding down takes less than one unit of 2⁻⁶⁴ from each buffer.
	var floor float64
	for _, d := range b.stored.Decay {
		floor += 0x1p-64 / d.gap()
	}
	if b.stored.Fraction != 0 { // the unit is 2^−Fraction
		floor = math.Ldexp(floor, 64-b.stored.Fraction)
	}
	l, err := limits(sd, noise, state/unit, floor*unit)
	if err == nil && b.stored.Fraction != 0 && b.room(sd) < b.stored.Fraction {
		err = fmt.Errorf("noise of %g lattice units can overflow a 64-bit state with %d fractional bits", sd,
			b.stored.Fraction)
	}
	if len(b.stored.Decay) == 0 {
		l.Rounding = 0 // s_t = 0
	}
	return l, err
}

// margin covers the float64 rounding of the bounds below.
const margin = 1 + 0x1p-20

// roundUp times a column norm is at least the exact norm: float64 sums and roots err by much less than this factor.
const roundUp = 1 + 0x1p-40

// limits returns the Limits for noise of standard deviation sd. `noise` and `state` are the largest |w| and |s_i| for
// |q| ≤ 1, and `floor` is the error of the state, in lattice units. It returns an error if |s_i| may exceed 2⁵⁷.
func limits(sd, noise, state, floor float64) (Limits, error) {
	if !(sd >= 0) || math.IsInf(sd, 0) {
		return Limits{}, fmt.Errorf("noise is %g lattice units, must be finite and at least 0", sd)
	}
	q := float64(maxDraw*sd) + 2
	l := Limits{Noise: float64(q * noise * margin)}
	// s_t = q_t − w_t/r, plus the error of the state.
	reach := float64((l.Noise + q + 1) * margin)
	l.Rounding = (floor + float64(0x1p-53*(reach+1))) * margin
	switch {
	case reach >= maxNoise:
		return Limits{},
			fmt.Errorf("noise of %g lattice units can reach %g, must stay below 2^51: take a coarser lattice", sd,
				reach)
	case q*state >= maxState/2:
		return Limits{},
			fmt.Errorf(
				"noise of %g lattice units can exceed the range of the state by a factor of %g: take a coarser lattice",
				sd, q*state/(maxState/2))
	case l.Rounding > 1:
		return Limits{},
			fmt.Errorf("rounding errors of the noise filter can reach %g lattice units, must stay below 1", l.Rounding)
	}
	return l, nil
}

// inverseSeries implements toeplitz. It computes the coefficients from the modes of the only phase, whose scale is 1.
func (b *buffered) inverseSeries(n int) []float64 {
	c := make([]float64, n)
	m := b.mode(0)
	now := make([]float64, len(m.drive))
	for j := range now {
		now[j] = float64(m.drive[j] * m.drive[j])
	}
	for t := range c {
		if t == 0 {
			c[t] = 1
			continue
		}
		for j, x := range now {
			c[t] -= x
			now[j] = x - float64(m.gap[j]*x)
		}
	}
	return c
}

// reach returns the largest |w| and the largest |s_i| for |q| ≤ 1.
func (b *buffered) reach() (noise, state float64) {
	if b.reached == nil {
		noise, state = b.farthest()
		b.reached = &[2]float64{noise, state}
	}
	return b.reached[0], b.reached[1]
}

func (b *buffered) farthest() (noise, state float64) {
	var bound []float64 // a bound on each mode at the beginning of the phase
	for p, ph := range b.stored.Phases {
		m := b.mode(p)
		k := len(m.gap)
		top := make([]float64, k) // a bound on each mode anywhere in the phase
		if p > 0 {
			shift, before := b.mode(p-1).shift(m), bound
			bound = make([]float64, k)
			for l := range bound {
				for j, x := range before {
					bound[l] += float64(math.Abs(shift[l*len(before)+j]) * x)
				}
			}
		} else {
			bound = make([]float64, k)
		}
		sum := 1.0
		for j := range top {
			top[j] = max(bound[j], m.drive[j]/m.gap[j])
			sum += float64(m.drive[j] * top[j])
		}
		noise = max(noise, ph.Scale*sum)
		for i, omega := range m.omega {
			var s float64
			for j := range top {
				s += float64(m.drive[j]*top[j]) / math.Abs(m.diff[j*k+i])
			}
			state = max(state, omega*s)
		}
		if p+1 < len(b.stored.Phases) {
			steps := b.stored.Phases[p+1].Start - ph.Start
			for j, gap := range m.gap {
				g := gapPower(gap, steps)
				bound[j] = float64((1-g)*bound[j]) + float64(m.drive[j]/gap*g)
			}
		}
	}
	return noise, state
}

// gapPower returns 1 − (1−gap)ⁿ without cancellation.
func gapPower(gap float64, n uint64) float64 {
	var g float64
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			g += float64(gap * (1 - g))
		}
		gap *= 2 - gap
	}
	return g
}
