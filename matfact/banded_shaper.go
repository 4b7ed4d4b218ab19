package matfact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// fineUnit is the unit, in lattice units, in which the Shaper inside a fineShaper counts.
const fineUnit = 0x1p-20

// maxFine is the largest number that a state may contain, in units of fineUnit.
const maxFine = 1 << 61

// bandedShaper keeps the last p−1 rows of integers. With u_t the row that Push gets at step t, it predicts
//
//	bsr, banded   s_t = Σ_k m_k u_{t−k}              keeps u
//	bisr          s_t = ⌊Σ_k m_k q_{t−k} + ½⌋        keeps q_t = u_t + s_t
//
// The sum is exact: products of 64-bit integers in 128 bits. For bisr, C⁻¹q = u would hold exactly without rounding.
// All roundings together change s by less than ½·Σ_t c_t units.
type bandedShaper struct {
	bands       []Fixed
	inverse     bool // keeps q, not u
	fingerprint uint64
	dim         int
	step        uint64    // number of rows pushed
	ring        []int64   // the row of step t at ((t−1) mod (p−1))·dim
	next        []float64 // s of the next step
	whole       []int64   // s of the next step as integers; for bisr only
	sum         []int128  // scratch
}

// NewShaper implements Factorization. The state is (p−1)·D integers for p bands.
func (b *banded) NewShaper(dim int) Shaper {
	checkDim(dim)
	s := b.fineShaper(dim, b.stored.fingerprint())
	if b.stored.Kind == "bisr" {
		return &fineShaper{inner: s, fine: make([]int64, dim)}
	}
	return s
}

func (b *banded) fineShaper(dim int, fingerprint uint64) Shaper {
	s := &bandedShaper{
		bands:       b.stored.Bands,
		inverse:     b.stored.Kind == "bisr",
		fingerprint: fingerprint,
		dim:         dim,
		ring:        make([]int64, len(b.stored.Bands)*dim),
		next:        make([]float64, dim),
		sum:         make([]int128, min(block, dim)),
	}
	if s.inverse {
		s.whole = make([]int64, dim)
	}
	return s
}

// Predict implements Shaper.
func (s *bandedShaper) Predict(dst []float64) (r float64) {
	copy(dst[:s.dim], s.next)
	return 1
}

// Push implements Shaper.
func (s *bandedShaper) Push(u []int64) {
	u = u[:s.dim]
	if row := s.row(s.step); len(row) > 0 {
		copy(row, u)
		for j, x := range s.whole {
			row[j] += x
		}
	}
	s.step++
	s.predict()
}

// row returns the memory for the row of step t+1. The result is empty if there are no bands.
func (s *bandedShaper) row(t uint64) []int64 {
	depth := uint64(len(s.bands))
	if depth == 0 {
		return nil
	}
	return s.ring[int(t%depth)*s.dim:][:s.dim]
}

// predict computes next from the rows in the ring.
func (s *bandedShaper) predict() {
	for first := 0; first < s.dim; first += block {
		last := min(first+block, s.dim)
		sum := s.sum[:last-first]
		clear(sum)
		for k := uint64(1); k <= uint64(len(s.bands)) && k <= s.step; k++ {
			accumulate(sum, s.row(s.step - k)[first:last], uint64(s.bands[k-1]))
		}
		if !s.inverse {
			convert(s.next[first:last], sum)
			continue
		}
		for j, x := range sum {
			whole := x.hi + int64(x.lo>>63)
			s.whole[first+j] = whole
			s.next[first+j] = float64(whole)
		}
	}
}

// accumulate adds m·x to sum, in units of 2⁻⁶⁴. The product treats x as unsigned, so a negative x is 2⁶⁴ too large;
// subtracting m from the high word corrects that.
func accumulate(sum []int128, x []int64, m uint64) {
	sum = sum[:len(x)]
	for j, v := range x {
		hi, lo := bits.Mul64(m, uint64(v))
		hi -= m & uint64(v>>63)
		lo, c := bits.Add64(sum[j].lo, lo, 0)
		hi, _ = bits.Add64(uint64(sum[j].hi), hi, c)
		sum[j] = int128{int64(hi), lo}
	}
}

// AppendBinary implements Shaper. The state has the form of a bufferedShaper's state, but contains the rows, oldest
// first, instead of buffers.
func (s *bandedShaper) AppendBinary(b []byte) ([]byte, error) {
	rows := min(s.step, uint64(len(s.bands)))
	b = slices.Grow(b, shaperHeader+8*int(rows)*s.dim)
	b = appendHeader(b, shaperVersion, s.fingerprint, s.dim, s.step, int(rows))
	for k := rows; k > 0; k-- {
		for _, x := range s.row(s.step - k) {
			b = binary.BigEndian.AppendUint64(b, uint64(x))
		}
	}
	return b, nil
}

// UnmarshalBinary implements Shaper.
func (s *bandedShaper) UnmarshalBinary(data []byte) error {
	step, rows, data, err := cutHeader(data, shaperVersion, s.fingerprint, s.dim)
	if err != nil {
		return err
	}
	want := min(step, uint64(len(s.bands)))
	if rows != want {
		return fmt.Errorf("shaper state has %d rows, must have %d after %d steps", rows, want, step)
	}
	if uint64(len(data)) != 8*want*uint64(s.dim) {
		return fmt.Errorf("shaper state has %d bytes of rows, must have %d", len(data), 8*want*uint64(s.dim))
	}
	for rest := data; len(rest) > 0; rest = rest[8:] {
		if x := int64(binary.BigEndian.Uint64(rest)); x >= maxFine || x <= -maxFine {
			return errors.New("shaper state holds a number beyond what Limits allows")
		}
	}
	clear(s.ring)
	s.step = step
	for k := want; k > 0; k-- {
		row := s.row(step - k)
		for j := range row {
			row[j] = int64(binary.BigEndian.Uint64(data))
			data = data[8:]
		}
	}
	s.predict()
	return nil
}
