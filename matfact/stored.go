package matfact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
)

// Fixed is a number in [0, 1) in units of 2⁻⁶⁴. Its text is the integer in decimal, because a
// JSON number keeps only 53 bits.
type Fixed uint64

// MarshalText writes the integer in decimal.
func (f Fixed) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(f), 10), nil }

// UnmarshalText reads what MarshalText writes.
func (f *Fixed) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("fixed-point number %q is not an integer of 64 bits", text)
	}
	*f = Fixed(v)
	return nil
}

// float returns f·2⁻⁶⁴, rounded to nearest.
func (f Fixed) float() float64 { return float64(f) * 0x1p-64 }

// gap returns 1 − f·2⁻⁶⁴, rounded to nearest. f must not be 0.
func (f Fixed) gap() float64 { return float64(-f) * 0x1p-64 }

// Stored is a factorization, written as the integers that define it. Save it, as JSON, when the stream begins: see
// Config.Stored.
//
// With Θ_i = Decay[i]·2⁻⁶⁴ and, in the phase that contains step j, Ω_i = Weight[i]·2⁻⁶⁴ and r = Scale, the matrix is
//
//	C_jj = 1/r,   C_tj = Σ_i Ω_i Θ_i^(t−j−1)  for t > j.
//
// "identity" is one phase without buffers, "blt" one phase with r = 1. "sqrt" has neither decays nor phases: its
// coefficients are computed from workload and horizon, with the same bits on every architecture. "bsr" and "bisr" are
// Toeplitz, with ones on the diagonal and m_k = Bands[k−1]·2⁻⁶⁴:
//
//	C_t,t−k = m_k of bsr,   C⁻¹_t,t−k = −m_k of bisr,   0 beyond.
type Stored struct {
	Kind   string  `json:"kind"`
	Decay  []Fixed `json:"decay,omitempty"`
	Phases []Phase `json:"phases,omitempty"`
	Bands  []Fixed `json:"bands,omitempty"`
	// Scales and Entries define "dense". Scales holds 1/C_tt. Entries holds C_t1 …
	// C_t,t−1 for each row in turn, in units of 2⁻⁶².
	Scales  []float64 `json:"scales,omitempty"`
	Entries Packed    `json:"entries,omitempty"`
	// Height is the number of rows down to which columns are normalised; 0: columns are not normalised.
	Height uint64 `json:"height,omitempty"`
	// Fraction is the number of fractional bits of a 64-bit state, see Narrow. Then all weights of "blt" are multiples
	// of 2^−Fraction. 0 means that the state has 128 bits.
	Fraction int `json:"fraction,omitempty"`
}

// maxDecays is the largest number of buffers. Error bounds depend on it. The phased scheme
// has 14.
const maxDecays = 16

// Phase is a range of columns of C with common weights, up to the start of the
// next phase.
type Phase struct {
	// Start is the first step of the phase, from 1.
	Start uint64 `json:"start"`
	// Scale is r, the inverse of the diagonal.
	Scale float64 `json:"scale"`
	// Weight holds the Ω of the first len(Weight) decays; those of the others are 0.
	Weight []Fixed `json:"weight,omitempty"`
}

// validate reports all faults in the phases and decays of s: conditions of this package's formulas that do not hold. If
// it returns nil, C has a finite column norm and a stable inverse, even if s does not come from this package.
func (s *Stored) validate() error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("stored factorization: "+format, args...))
	}
	if len(s.Bands) > 0 || len(s.Scales) > 0 || len(s.Entries) > 0 {
		add("%s must have neither bands nor entries", s.Kind)
	}
	if len(s.Decay) > maxDecays {
		add("has %d decays, must be at most %d", len(s.Decay), maxDecays)
	}
	for i, d := range s.Decay {
		if d == 0 || i > 0 && d <= s.Decay[i-1] {
			add("decay %d must be positive and larger than the one before", i)
		}
	}
	switch n := len(s.Phases); {
	case n == 0:
		add("must have a phase")
	case s.Kind != "phased" && n != 1:
		add("%s has %d phases, must have 1", s.Kind, n)
	case s.Kind == "identity" && len(s.Decay) > 0:
		add("identity must not have buffers")
	}
	for p, ph := range s.Phases {
		if p == 0 && ph.Start != 1 {
			add("phase 0 starts at %d, must be 1", ph.Start)
		}
		if p > 0 && (ph.Start <= s.Phases[p-1].Start || len(ph.Weight) < len(s.Phases[p-1].Weight)) {
			add("phase %d must start later, and have no fewer weights, than the one before", p)
		}
		if !(ph.Scale >= 1) || ph.Scale > 1e6 {
			add("phase %d has scale %g, must be 1 to 1e6", p, ph.Scale)
		}
		if len(ph.Weight) > len(s.Decay) {
			add("phase %d has %d weights for %d decays", p, len(ph.Weight), len(s.Decay))
			continue
		}
		var one float64
		for i, w := range ph.Weight {
			if w == 0 {
				add("phase %d has weight 0", p)
			}
			one += float64(ph.Scale*w.float()) / s.Decay[i].float()
		}
		// The largest root of Σ ω_i/(s−a_i) = 1 is at most 1 if and only if Σ ω_i/θ_i ≤ 1. Equality holds for a BLT
		// whose optimum has θ̂ = 0.
		if one > roundUp {
			add("phase %d has an unstable inverse (%g > 1)", p, one)
		}
	}
	if n := len(s.Phases); n > 0 && len(s.Phases[n-1].Weight) != len(s.Decay) {
		add("the last phase must use all decays")
	}
	s.validateNarrow(add)
	return errors.Join(errs...)
}

// fingerprint returns a hash that identifies the matrix. The state of a Shaper contains it, so that a state cannot be
// continued with another C.
func (s *Stored) fingerprint() uint64 {
	h := fnv.New64a()
	var buf []byte
	put := func(v uint64) { buf = binary.BigEndian.AppendUint64(buf, v) }
	buf = append(append(buf, s.Kind...), 0)
	put(uint64(len(s.Decay)))
	for _, d := range s.Decay {
		put(uint64(d))
	}
	for _, ph := range s.Phases {
		put(ph.Start)
		put(math.Float64bits(ph.Scale))
		put(uint64(len(ph.Weight)))
		for _, w := range ph.Weight {
			put(uint64(w))
		}
	}
	for _, m := range s.Bands {
		put(uint64(m))
	}
	for _, r := range s.Scales {
		put(math.Float64bits(r))
	}
	for _, c := range s.Entries {
		put(uint64(c))
	}
	if s.Height > 0 {
		put(s.Height)
	}
	if s.Fraction != 0 {
		put(^uint64(s.Fraction)) // cannot be confused with a height, which is smaller
	}
	h.Write(buf)
	return h.Sum64()
}

// StateBytes returns the size of a Shaper's state for each coordinate after the given number
// of steps, without its header.
func (s *Stored) StateBytes(steps uint64) int64 {
	switch {
	case steps == 0:
		return 0
	case s.Kind == "sqrt" || s.Kind == "dense":
		return 8 * int64(steps)
	case s.Fraction != 0:
		return 8 * int64(len(s.Decay))
	case len(s.Phases) > 0:
		return 16 * int64(len(s.Phases[phaseOf(s.Phases, steps)].Weight))
	}
	return 8 * int64(min(steps, uint64(len(s.Bands))))
}

// Clone returns a copy that shares no memory with s; the clone of nil is nil.
func (s *Stored) Clone() *Stored {
	if s == nil {
		return nil
	}
	c := &Stored{
		Kind: s.Kind, Decay: slices.Clone(s.Decay), Bands: slices.Clone(s.Bands),
		Scales: slices.Clone(s.Scales), Entries: slices.Clone(s.Entries), Height: s.Height, Fraction: s.Fraction,
	}
	for _, ph := range s.Phases {
		ph.Weight = slices.Clone(ph.Weight)
		c.Phases = append(c.Phases, ph)
	}
	return c
}
