package matfact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// int128 is a signed number of lattice units with 64 fractional bits, in two's
// complement.
type int128 struct {
	hi int64
	lo uint64
}

// bufferedShaper solves CW = Z in fixed point. The state after step t is
//
//	s_i ← ⌊Θ_i s_i⌋ + Ω_i w_t      in units of 2⁻⁶⁴,
//
// which differs from Σ_{j≤t} Ω_iΘ_i^(t−j)w_j by less than Σ_m Θ_i^m ≤ 1/(1−Θ_i) of those units, however long the stream
// is. A float64 state would have no such bound. Predict returns s_t = Σ_i s_i, converted once.
//
// The order of the state is [buffer][coordinate]. A phase with a new buffer allocates it in its first Push, at most 14
// times in the life of a stream; nothing else allocates.
type bufferedShaper struct {
	stored      *Stored
	fingerprint uint64
	dim         int
	step        uint64 // number of rows pushed
	phase       int    // the phase of step+1
	state       [][]int128
	next        []float64 // s of step+1
	sum         []int128  // scratch
}

// block is the number of coordinates that Push processes at a time. It updates all buffers for one block before it
// begins the next, so that the sums stay in the first-level cache.
const block = 256

// NewShaper implements Factorization.
func (b *buffered) NewShaper(dim int) Shaper {
	checkDim(dim)
	return b.fineShaper(dim, b.stored.fingerprint())
}

func (b *buffered) fineShaper(dim int, fingerprint uint64) Shaper {
	if b.stored.Fraction != 0 {
		return newNarrowShaper(b.stored, dim, fingerprint)
	}
	return &bufferedShaper{
		stored:      b.stored,
		fingerprint: fingerprint,
		dim:         dim,
		next:        make([]float64, dim),
		sum:         make([]int128, min(block, dim)),
	}
}

// Predict implements Shaper.
func (s *bufferedShaper) Predict(dst []float64) (r float64) {
	copy(dst[:s.dim], s.next)
	return s.stored.Phases[s.phase].Scale
}

// Push implements Shaper.
func (s *bufferedShaper) Push(w []int64) {
	w = w[:s.dim]
	weights := s.stored.Phases[s.phase].Weight
	for len(s.state) < len(weights) {
		s.state = append(s.state, make([]int128, s.dim))
	}
	for first := 0; first < len(w); first += block {
		last := min(first+block, len(w))
		sum := s.sum[:last-first]
		clear(sum)
		for i, state := range s.state {
			push(state[first:last], w[first:last], sum, uint64(s.stored.Decay[i]), uint64(weights[i]))
		}
		convert(s.next[first:last], sum)
	}
	s.step++
	if next := s.phase + 1; next < len(s.stored.Phases) && s.stored.Phases[next].Start == s.step+1 {
		s.phase = next
	}
}

// phaseAfter returns the phase of the step that follows t steps.
func (s *bufferedShaper) phaseAfter(t uint64) int {
	return phaseOf(s.stored.Phases, t+1)
}

// push advances one buffer by one step and adds it to sum.
func push(state []int128, w []int64, sum []int128, decay, weight uint64) {
	w, sum = w[:len(state)], sum[:len(state)]
	for j, s := range state {
		// Compute ⌊decay·s/2⁶⁴⌋ + weight·w for s = hi·2⁶⁴ + lo. The product treats a negative factor as unsigned, 2⁶⁴
		// too large. A subtraction from the high word corrects that.
		hi, lo := bits.Mul64(decay, uint64(s.hi))
		hi -= decay & uint64(s.hi>>63)
		low, _ := bits.Mul64(decay, s.lo)
		h, l := bits.Mul64(weight, uint64(w[j]))
		h -= weight & uint64(w[j]>>63)
		lo, c := bits.Add64(lo, low, 0)
		hi, _ = bits.Add64(hi, h, c)
		lo, c = bits.Add64(lo, l, 0)
		hi, _ = bits.Add64(hi, 0, c)
		state[j] = int128{int64(hi), lo}

		lo, c = bits.Add64(sum[j].lo, lo, 0)
		hi, _ = bits.Add64(uint64(sum[j].hi), hi, c)
		sum[j] = int128{int64(hi), lo}
	}
}

// convert converts s to lattice units. It cuts the fraction to 53 bits. So both parts are exact while |s| < 2⁵³, and
// only their sum is rounded: the error is below 2⁻⁵³ + 2⁻⁵³|s|.
func convert(dst []float64, s []int128) {
	dst = dst[:len(s)]
	for j, x := range s {
		dst[j] = float64(x.hi) + float64(float64(int64(x.lo>>11))*0x1p-53)
	}
}

// The serialised state is big-endian: version, fingerprint of the matrix, dimension, steps, number of buffers, then hi
// and lo of every coordinate of every buffer.
const (
	shaperVersion = 1
	shaperHeader  = 1 + 8 + 8 + 8 + 8
)

// AppendBinary implements Shaper.
func (s *bufferedShaper) AppendBinary(b []byte) ([]byte, error) {
	b = slices.Grow(b, shaperHeader+16*len(s.state)*s.dim)
	b = appendHeader(b, shaperVersion, s.fingerprint, s.dim, s.step, len(s.state))
	for _, state := range s.state {
		for _, x := range state {
			b = binary.BigEndian.AppendUint64(b, uint64(x.hi))
			b = binary.BigEndian.AppendUint64(b, x.lo)
		}
	}
	return b, nil
}

// UnmarshalBinary implements Shaper.
func (s *bufferedShaper) UnmarshalBinary(data []byte) error {
	step, rows, data, err := cutHeader(data, shaperVersion, s.fingerprint, s.dim)
	if err != nil {
		return err
	}
	want := 0
	if step > 0 {
		want = len(s.stored.Phases[s.phaseAfter(step-1)].Weight)
	}
	if rows != uint64(want) {
		return fmt.Errorf("shaper state has %d buffers, must have %d after %d steps", rows, want, step)
	}
	if len(data) != 16*want*s.dim {
		return fmt.Errorf("shaper state has %d bytes of buffers, must have %d", len(data), 16*want*s.dim)
	}
	state := make([][]int128, want)
	sum, next := make([]int128, s.dim), make([]float64, s.dim)
	for i := range state {
		state[i] = make([]int128, s.dim)
		for j := range state[i] {
			x := int128{int64(binary.BigEndian.Uint64(data)), binary.BigEndian.Uint64(data[8:])}
			if x.hi >= maxState || x.hi < -maxState {
				return errors.New("shaper state holds a number beyond what Limits allows")
			}
			data = data[16:]
			state[i][j] = x
			lo, c := bits.Add64(sum[j].lo, x.lo, 0)
			hi, _ := bits.Add64(uint64(sum[j].hi), uint64(x.hi), c)
			sum[j] = int128{int64(hi), lo}
		}
	}
	convert(next, sum)
	s.step, s.phase, s.state, s.next = step, s.phaseAfter(step), state, next
	return nil
}

func appendHeader(b []byte, version byte, fingerprint uint64, dim int, step uint64, rows int) []byte {
	b = append(b, version)
	for _, v := range [...]uint64{fingerprint, uint64(dim), step, uint64(rows)} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

func cutHeader(data []byte, version byte, fingerprint uint64, dim int) (step, rows uint64, rest []byte, err error) {
	if len(data) < shaperHeader {
		return 0, 0, nil, fmt.Errorf("shaper state has %d bytes, must have at least %d", len(data), shaperHeader)
	}
	if data[0] != version {
		return 0, 0, nil, fmt.Errorf("shaper state has version %d, must be %d", data[0], version)
	}
	u := func(i int) uint64 { return binary.BigEndian.Uint64(data[1+8*i:]) }
	if u(0) != fingerprint {
		return 0, 0, nil, errors.New("shaper state belongs to another factorization")
	}
	if u(1) != uint64(dim) {
		return 0, 0, nil, fmt.Errorf("shaper state has dimension %d, must be %d", u(1), dim)
	}
	if u(2) >= 1<<62 {
		return 0, 0, nil, fmt.Errorf("shaper state has %d steps, must be below 2^62", u(2))
	}
	return u(2), u(3), data[shaperHeader:], nil
}
