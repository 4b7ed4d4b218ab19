package matfact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// A narrow BLT has 64 bits for each number of its state instead of 128. A step then takes a third of the
// multiplications and half of the memory. The rounding error is larger. Limits.Rounding states that error, and the
// calibration of the noise must include it. See docs/theory/matfact.md, §6.

// If these constants or the method room change, plans change. An open epoch may then be refused, because its recorded
// plan is compared with a new plan for the same configuration.
const (
	// maxFraction and minFraction bound the fractional bits of a narrow state.
	maxFraction, minFraction = 40, 16
	// narrowState bounds |s_i|, and the absolute value of the sum of all s_i, including their rounding errors, in units
	// of a narrow state. Only half of the range of 64 bits is used.
	narrowState = 1 << 62
	// leastWeight is the least Ω_i in units of a narrow state. Cutting a weight of this size to whole units changes it
	// by less than a thousandth.
	leastWeight = 1 << 10
)

// Narrow returns the factorization f with weights cut to fewer fractional bits. It keeps as many bits as possible such
// that a 64-bit state cannot overflow with noise of standard deviation sd, in lattice units. It returns nil if f is not
// a BLT, if its columns are normalised, or if too few bits remain.
//
// The result is a different matrix from f. Use its ColNorm, variances and Limits instead of those of f. Its method
// Limits returns an error for an sd that may overflow the state. It protects single rows: New refuses its integers
// together with a Participation.
func Narrow(f Factorization, sd float64) Factorization {
	b, ok := f.(*buffered)
	if !ok || b.stored.Kind != "blt" || b.stored.Fraction != 0 || len(b.stored.Decay) == 0 {
		return nil
	}
	// Cutting the weights changes the bounds by less than one per cent.
	fraction := b.room(1.01 * sd)
	if fraction < minFraction {
		return nil
	}
	s := b.stored.Clone()
	s.Fraction = fraction
	for i, w := range s.Phases[0].Weight {
		cut := w >> (64 - fraction)
		if cut < leastWeight {
			return nil
		}
		s.Phases[0].Weight[i] = cut << (64 - fraction)
	}
	n, err := newBuffered(s)
	if err != nil {
		return nil
	}
	return n
}

// room returns the largest number of fractional bits, up to maxFraction, with which the state and its sum cannot
// overflow with noise of standard deviation sd. It may be negative.
//
// Let `noise` and `state` be the results of reach, and |q_t| ≤ q. Then |s_i| is at most q·state, and |Σs_i| = |q_t −
// w_t| is at most q(1+noise). The state differs from the exact one by less than Limits.Rounding ≤ 1.
func (b *buffered) room(sd float64) int {
	noise, state := b.reach()
	q := float64(maxDraw*sd) + 2
	largest := float64(float64(q*max(state, 1+noise))*margin) + 1
	if !(largest < narrowState) {
		return -1
	}
	_, e := math.Frexp(largest) // largest < 2^e
	return min(62-e, maxFraction)
}

// validateNarrow calls add for each fault of s that concerns its fraction.
func (s *Stored) validateNarrow(add func(format string, args ...any)) {
	if s.Fraction == 0 {
		return
	}
	if s.Kind != "blt" || s.Height != 0 || len(s.Decay) == 0 {
		add("%s cannot have a narrow state", s.Kind)
	}
	if s.Fraction < minFraction || s.Fraction > maxFraction {
		add("has %d fractional bits, must be %d to %d", s.Fraction, minFraction, maxFraction)
		return
	}
	for _, ph := range s.Phases {
		if ph.Scale != 1 {
			add("has scale %g, must be 1 for a narrow state", ph.Scale)
		}
		for i, w := range ph.Weight {
			if w<<s.Fraction != 0 {
				add("weight %d has more than %d fractional bits", i, s.Fraction)
			}
		}
	}
}

// narrowShaper solves CW = Z in 64-bit fixed point, in units of 2^−Fraction. The state is u_i = s_i + 2⁶³, and a step
// is
//
//	u_i ← ⌊Θ_i u_i⌋ + Ω_i w_t + k_i,   k_i = 2⁶³ − ⌊Θ_i 2⁶³⌋,
//
// so that one unsigned multiplication is enough. Without rounding down, the step is s_i ← Θ_i s_i + Ω_i w_t. Both
// roundings together change s_i by less than a unit. So s_i differs from Σ_{j≤t} Ω_iΘ_i^(t−j)w_j by less than 1/(1−Θ_i)
// units, however long the stream is.
//
// Nothing overflows: Limits bounds s_i and Σs_i. Intermediate sums may wrap around, which is exact modulo 2⁶⁴.
type narrowShaper struct {
	stored      *Stored
	fingerprint uint64
	step        uint64 // number of rows pushed
	unit        float64
	buffers     []narrowBuffer
	next        []float64 // s of step+1
	sum         []uint64  // scratch
}

type narrowBuffer struct {
	decay, weight, constant uint64
	state                   []uint64
}

const bias = 1 << 63

func newNarrowShaper(s *Stored, dim int, fingerprint uint64) *narrowShaper {
	n := &narrowShaper{
		stored: s, fingerprint: fingerprint, unit: math.Ldexp(1, -s.Fraction),
		buffers: make([]narrowBuffer, len(s.Decay)), next: make([]float64, dim), sum: make([]uint64, min(block, dim)),
	}
	for i, d := range s.Decay {
		b := &n.buffers[i]
		b.decay, b.weight = uint64(d), uint64(s.Phases[0].Weight[i]>>(64-s.Fraction))
		b.constant = bias - b.decay>>1
		b.state = make([]uint64, dim)
		for j := range b.state {
			b.state[j] = bias
		}
	}
	return n
}

// biases returns the sum of the biases of all buffers, modulo 2⁶⁴. The result is `bias` if the number of buffers is
// odd, otherwise 0.
func (s *narrowShaper) biases() uint64 { return uint64(len(s.buffers)) * bias }

// Predict implements Shaper.
func (s *narrowShaper) Predict(dst []float64) (r float64) {
	copy(dst[:len(s.next)], s.next)
	return 1
}

// Push implements Shaper. The loop over the last buffer also computes s of the next step, and rounds it once to
// float64. That loop waits for the processor's multiplier anyway, so the conversion takes no extra time.
func (s *narrowShaper) Push(w []int64) {
	w = w[:len(s.next)]
	end := len(s.buffers) - 1
	for first := 0; first < len(w); first += block {
		last := min(first+block, len(w))
		sum, w := s.sum[:last-first], w[first:last]
		if clear(sum); s.biases() != 0 { // the number of buffers is odd
			for j := range sum {
				sum[j] = bias
			}
		}
		for i := range end {
			b := &s.buffers[i]
			pushNarrow(b.decay, b.weight, b.constant, b.state[first:last], w, sum)
		}
		b := &s.buffers[end]
		pushLast(b.decay, b.weight, b.constant, b.state[first:last], w, sum, s.next[first:last], s.unit)
	}
	s.step++
}

// pushNarrow advances one buffer by one step and adds it to sum. Its loop uses all registers. A multiplication
// overwrites the registers of decay and of sum, and the compiler restores them once per iteration. So each iteration
// handles four numbers.
//
//go:noinline
func pushNarrow(decay, weight, constant uint64, state []uint64, w []int64, sum []uint64) {
	w, sum = w[:len(state)], sum[:len(state)]
	j := 0
	for ; j < len(state)-3; j += 4 {
		u0, _ := bits.Mul64(decay, state[j])
		u1, _ := bits.Mul64(decay, state[j+1])
		u0 += weight*uint64(w[j]) + constant
		u1 += weight*uint64(w[j+1]) + constant
		state[j], state[j+1] = u0, u1
		sum[j] += u0
		sum[j+1] += u1
		u2, _ := bits.Mul64(decay, state[j+2])
		u3, _ := bits.Mul64(decay, state[j+3])
		u2 += weight*uint64(w[j+2]) + constant
		u3 += weight*uint64(w[j+3]) + constant
		state[j+2], state[j+3] = u2, u3
		sum[j+2] += u2
		sum[j+3] += u3
	}
	for ; j < len(state); j++ {
		u, _ := bits.Mul64(decay, state[j])
		u += weight*uint64(w[j]) + constant
		state[j] = u
		sum[j] += u
	}
}

// pushLast does for the last buffer what pushNarrow does for the others, but writes the total, times unit, to dst
// instead of adding to sum.
//
//go:noinline
func pushLast(decay, weight, constant uint64, state []uint64, w []int64, sum []uint64, next []float64, unit float64) {
	w, sum, next = w[:len(state)], sum[:len(state)], next[:len(state)]
	j := 0
	for ; j < len(state)-3; j += 4 {
		u0, _ := bits.Mul64(decay, state[j])
		u1, _ := bits.Mul64(decay, state[j+1])
		u0 += weight*uint64(w[j]) + constant
		u1 += weight*uint64(w[j+1]) + constant
		state[j], state[j+1] = u0, u1
		next[j] = float64(int64(sum[j]+u0)) * unit
		next[j+1] = float64(int64(sum[j+1]+u1)) * unit
		u2, _ := bits.Mul64(decay, state[j+2])
		u3, _ := bits.Mul64(decay, state[j+3])
		u2 += weight*uint64(w[j+2]) + constant
		u3 += weight*uint64(w[j+3]) + constant
		state[j+2], state[j+3] = u2, u3
		next[j+2] = float64(int64(sum[j+2]+u2)) * unit
		next[j+3] = float64(int64(sum[j+3]+u3)) * unit
	}
	for ; j < len(state); j++ {
		u, _ := bits.Mul64(decay, state[j])
		u += weight*uint64(w[j]) + constant
		state[j] = u
		next[j] = float64(int64(sum[j]+u)) * unit
	}
}

// narrowVersion is the version of a narrow state. The state has the layout of a wide Shaper's state, but 8 bytes for
// each number.
const narrowVersion = 2

// AppendBinary implements Shaper.
func (s *narrowShaper) AppendBinary(b []byte) ([]byte, error) {
	rows := 0
	if s.step > 0 {
		rows = len(s.buffers)
	}
	b = slices.Grow(b, shaperHeader+8*rows*len(s.next))
	b = appendHeader(b, narrowVersion, s.fingerprint, len(s.next), s.step, rows)
	for _, buffer := range s.buffers[:rows] {
		for _, u := range buffer.state {
			b = binary.BigEndian.AppendUint64(b, u-bias)
		}
	}
	return b, nil
}

// UnmarshalBinary implements Shaper.
func (s *narrowShaper) UnmarshalBinary(data []byte) error {
	dim := len(s.next)
	step, rows, data, err := cutHeader(data, narrowVersion, s.fingerprint, dim)
	if err != nil {
		return err
	}
	want := 0
	if step > 0 {
		want = len(s.buffers)
	}
	if rows != uint64(want) || len(data) != 8*want*dim {
		return fmt.Errorf("shaper state has %d buffers in %d bytes, must have %d in %d after %d steps", rows, len(data),
			want, 8*want*dim, step)
	}
	fresh := newNarrowShaper(s.stored, dim, s.fingerprint)
	fresh.step = step
	sum, wide := make([]int64, dim), make([]float64, dim)
	for i := range want {
		for j := range dim {
			x := int64(binary.BigEndian.Uint64(data))
			if data = data[8:]; x > narrowState || x < -narrowState {
				return errors.New("shaper state holds a number beyond what Limits allows")
			}
			fresh.buffers[i].state[j] = uint64(x) + bias
			sum[j] += x
			wide[j] += float64(x) // does not wrap
		}
	}
	for j, x := range wide {
		if math.Abs(x) > narrowState {
			return errors.New("shaper state holds a sum beyond what Limits allows")
		}
		fresh.next[j] = float64(sum[j]) * s.unit
	}
	*s = *fresh
	return nil
}
