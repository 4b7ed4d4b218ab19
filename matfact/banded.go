package matfact

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// maxBands is the largest number p of bands. A step costs O(pD). If a workload needs many bands, a BLT with a few
// buffers is more accurate at a lower cost.
const maxBands = 256

// banded is a Toeplitz matrix C for which C itself or C⁻¹ has few bands. Its coefficients are integers in units of
// 2⁻⁶⁴, m_k = Bands[k−1]·2⁻⁶⁴ for k = 1 … p−1:
//
//	bsr, banded  c(x)   = 1 + Σ_k m_k x^k      1 > m_1 > m_2 > … > 0
//	bisr         1/c(x) = 1 − Σ_k m_k x^k      Σ_k m_k < 1
//
// For bsr and banded, (1−x)c(x) = 1 − Σ_k d_k x^k with positive d that add up to 1. So each partial sum of 1/c is a
// weighted mean of the p before it, and C⁻¹ is stable. For bisr, c_t = Σ_k m_k c_{t−k} is positive and decays
// geometrically. All are valid for every length.
//
// bsr takes the first p coefficients of the kernel's square root, bisr those of the root's inverse. optimiseBands finds
// the coefficients of banded.
//
// Source: Kalinin, Lampert, "Banded Square Root Matrix Factorization for Differentially Private Model Training", and
// Kalinin, McKenna, Upadhyay, Lampert, "Back to Square Roots: An Optimal Bound on the Matrix Factorization Error for
// Multi-Epoch Differentially Private SGD" (bisr).
type banded struct {
	response
	stored  *Stored
	colNorm float64
	reach   float64 // the largest |w| for |q| ≤ 1
	gain    float64 // Σ_t c_t; for bisr only
}

// rootBands returns the m_k of bsr (α = ½) or bisr (α = −½) for w. For a window it returns at most as many bands as the
// window has steps, because later coefficients of the root change sign.
func rootBands(kind string, w Workload, p int) *Stored {
	alpha, sign := 0.5, 1.0
	if kind == "bisr" {
		alpha, sign = -0.5, -1
	}
	if w.Kind == "window" {
		p = int(min(uint64(p), w.Window))
	}
	s := &Stored{Kind: kind}
	for _, c := range seriesPower(w.Kernel(), alpha, p)[1:] {
		m := floorFixed(sign * c)
		if n := len(s.Bands); m == 0 || kind == "bsr" && n > 0 && m >= s.Bands[n-1] {
			break // the coefficients have decayed: m_k is below 2⁻⁶⁴
		}
		s.Bands = append(s.Bands, m)
	}
	return s
}

func newBanded(s *Stored) (Factorization, error) {
	if err := s.validateBands(); err != nil {
		return nil, err
	}
	b := &banded{stored: s.Clone()}
	if s.Kind == "bisr" {
		b.inverse = []float64{1}
		one := 1.0
		for _, m := range s.Bands {
			b.inverse = append(b.inverse, -m.float())
			one += m.float()
		}
		b.reach = one
		b.gain = 1 / (float64(s.remainder()) * 0x1p-64)
		b.colNorm = inverseNorm(s.Bands, s.remainder())
		return b, nil
	}
	norm := 1.0
	for _, m := range s.Bands {
		norm += float64(m.float() * m.float())
	}
	b.colNorm = math.Sqrt(norm) * roundUp
	var err error
	b.inverse, b.reach, err = invertBands(s.Bands)
	return b, err
}

// validateBands returns an error if the bands of s do not meet the conditions of this file's formulas.
func (s *Stored) validateBands() error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("stored factorization: "+format, args...))
	}
	if len(s.Decay) > 0 || len(s.Phases) > 0 || len(s.Scales) > 0 || len(s.Entries) > 0 {
		add("%s must have neither decays nor phases nor entries", s.Kind)
	}
	if len(s.Bands) > maxBands-1 {
		add("has %d bands, must be at most %d", len(s.Bands)+1, maxBands)
	}
	for i, m := range s.Bands {
		if m == 0 || s.Kind != "bisr" && i > 0 && m >= s.Bands[i-1] {
			add("band %d must be positive and, except for bisr, smaller than the one before", i+1)
		}
	}
	if s.Kind == "bisr" && len(errs) == 0 && s.remainder() < 1<<40 {
		add("the bands of bisr must not add up to 1, or nearly 1")
	}
	return errors.Join(errs...)
}

// remainder returns 1 − Σm_k in units of 2⁻⁶⁴. It returns 0 if that is not positive, and 2⁶⁴−1 if there are no bands.
func (s *Stored) remainder() uint64 {
	var sum, carry uint64
	for _, m := range s.Bands {
		if sum, carry = bits.Add64(sum, uint64(m), 0); carry != 0 {
			return 0
		}
	}
	if sum == 0 {
		return math.MaxUint64
	}
	return -sum
}

// inverseNorm returns an upper bound on √(Σ_t c_t²), c = 1/(1 − Σ_k m_k x^k).
//
// c_t = Σ_k m_k c_{t−k} is summed in units of 2⁻⁶² and rounded up, so that no value is too small; the excess adds up to
// less than 2⁻⁶² Σc. If p−1 consecutive values are at most M, the next p−1 are at most M·Σm_k, and so on. So the rest
// of the sum is at most (p−1)M²/(1−(Σm)²).
func inverseNorm(m []Fixed, remainder uint64) float64 {
	if len(m) == 0 {
		return roundUp
	}
	rest := float64(remainder) * 0x1p-64 // 1 − Σm
	c := make([]uint64, len(m))          // the latest values, a ring
	c[0] = 1 << 62
	sum := 1.0
	largest := uint64(0) // the largest value in the current block of len(m) values
	for t := 1; ; t++ {
		hi := weightedSum(m, c, t)
		c[t%len(m)] = hi
		x := float64(hi) * 0x1p-62
		sum += float64(x * x)
		largest = max(largest, hi)
		if t%len(m) == 0 {
			top := float64(largest) * 0x1p-62
			if tail := float64(float64(top*top)*float64(len(m))) / float64(rest*(2-rest)); tail < 0x1p-60 {
				return math.Sqrt(sum+tail) * roundUp
			}
			largest = 0
		}
	}
}

// invertBands returns the coefficients ĉ_t of 1/c, c = 1 + Σ_k m_k x^k, until they are negligible. It also returns an
// upper bound on Σ|ĉ_t| over all coefficients.
//
// With the d_k of banded, ĉ_t = Σ_k d_k ĉ_{t−k} for t > p is a weighted mean. Because Σ_k c_k ĉ_{t−k} = 0, zero lies
// between the smallest and the largest of p consecutive values. Let d be the smallest d_k. Within p steps each value
// becomes a mean of the p values before, with weights of at least d² each. So the range of the values is multiplied by
// at most 1 − pd², and the rest of the sum is at most range/d².
//
// Errors: coefficients that do not decay within 2²⁶ products.
func invertBands(m []Fixed) (inverse []float64, sum float64, err error) {
	p := len(m) + 1
	least := 1.0
	for k := range p {
		before, after := 1.0, 0.0
		if k > 0 {
			before = m[k-1].float()
		}
		if k < len(m) {
			after = m[k].float()
		}
		least = min(least, before-after)
	}
	inverse, sum = []float64{1}, 1
	var low, high float64 // the range of the last p values
	for t := 1; len(m) > 0; t++ {
		var c float64
		for k := 1; k <= min(t, len(m)); k++ {
			c -= float64(m[k-1].float() * inverse[t-k])
		}
		inverse = append(inverse, c)
		sum += math.Abs(c)
		low, high = min(low, c), max(high, c)
		if t%p != 0 {
			continue
		}
		if high-low < 0x1p-62 && high-low <= float64(least*least)*0x1p-22 {
			break
		}
		if t*p > 1<<26 {
			return nil, 0, errors.New("stored factorization: the inverse of its bands does not decay")
		}
		low, high = 0, 0
	}
	return inverse, sum * (1 + 0x1p-21), nil
}

// Kind implements Factorization.
func (b *banded) Kind() string { return b.stored.Kind }

// ColNorm implements Factorization.
func (b *banded) ColNorm() float64 { return b.colNorm }

// Stored implements Factorization.
func (b *banded) Stored() *Stored { return b.stored.Clone() }

// Limits implements Factorization: |w| ≤ |q|·Σ|ĉ|.
//
// If C has the bands, s_t is an exact sum of integers, and the only error is its conversion to float64. If C⁻¹ has
// them, the state is q in units of 2⁻²⁰, rounded once a step by at most half a unit. C adds these errors up to at most
// 2⁻²¹ Σ_t c_t.
func (b *banded) Limits(sd float64) (Limits, error) {
	if b.stored.Kind == "bisr" {
		return b.fineLimits(sd, fineUnit)
	}
	return b.fineLimits(sd, 1)
}

func (b *banded) fineLimits(sd, unit float64) (Limits, error) {
	state, floor := b.reach, 0.0
	if b.stored.Kind == "bisr" {
		state, floor = 1, unit/2*b.gain
	}
	l, err := limits(sd, b.reach, state*(maxState/2/maxFine)/unit, floor)
	if len(b.stored.Bands) == 0 {
		l.Rounding = 0
	}
	return l, err
}

func (b *banded) inverseSeries(n int) []float64 {
	c := make([]float64, n)
	copy(c, b.inverse)
	return c
}
