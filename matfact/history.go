package matfact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// rows is a lower triangular C in integers. It has a known number of steps.
type rows interface {
	// row returns C_t1 … C_t,t−1 of step t ≥ 1 in units of 2⁻⁶², and 1/C_tt.
	row(t int) (before []int64, scale float64)
}

// historyShaper keeps all rows. At every step it computes the sums over all of them, exactly: products of 63-bit
// integers in 128 bits. The only error of Predict is the conversion to float64.
type historyShaper struct {
	rows        rows
	horizon     int
	most        int64 // the largest absolute value in a valid state
	fingerprint uint64
	dim         int
	past        []int64 // [step][coordinate]
	scale       float64 // r of the next step
	next        []float64
	sum         []int128
}

func newHistoryShaper(c rows, horizon int, most int64, fingerprint uint64, dim int) *historyShaper {
	s := &historyShaper{
		rows:        c,
		horizon:     horizon,
		most:        most,
		fingerprint: fingerprint,
		dim:         dim,
		next:        make([]float64, dim),
		sum:         make([]int128, dim),
	}
	s.predict()
	return s
}

// Predict implements Shaper.
func (s *historyShaper) Predict(dst []float64) (r float64) {
	copy(dst[:s.dim], s.next)
	return s.scale
}

// Push implements Shaper.
func (s *historyShaper) Push(w []int64) {
	if len(s.past)/s.dim >= s.horizon {
		panic(beyondHorizon)
	}
	s.past = append(s.past, w[:s.dim]...)
	s.predict()
}

// predict sets next to Σ_{j<t} C_tj w_j for the next step t, and sets scale. After the last step predict does nothing.
func (s *historyShaper) predict() {
	steps := len(s.past) / s.dim
	if steps == s.horizon {
		return
	}
	var coef []int64
	coef, s.scale = s.rows.row(steps + 1)
	clear(s.sum)
	for j := steps - 1; j >= 0; j-- {
		c := coef[j]
		row := s.past[j*s.dim:][:len(s.sum)]
		for i, x := range row {
			hi, lo := bits.Mul64(uint64(c), uint64(x))
			hi -= uint64(c)&uint64(x>>63) + uint64(x)&uint64(c>>63)
			lo, carry := bits.Add64(s.sum[i].lo, lo, 0)
			hi, _ = bits.Add64(uint64(s.sum[i].hi), hi, carry)
			s.sum[i] = int128{int64(hi), lo}
		}
	}
	for i, x := range s.sum { // from units of 2⁻⁶² to 2⁻⁶⁴
		s.sum[i] = int128{x.hi<<2 | int64(x.lo>>62), x.lo << 2}
	}
	convert(s.next, s.sum)
}

// AppendBinary implements Shaper. The state has the form of a bufferedShaper's state, but contains all rows instead of
// buffers.
func (s *historyShaper) AppendBinary(b []byte) ([]byte, error) {
	steps := len(s.past) / s.dim
	b = slices.Grow(b, shaperHeader+8*len(s.past))
	b = appendHeader(b, shaperVersion, s.fingerprint, s.dim, uint64(steps), steps)
	for _, x := range s.past {
		b = binary.BigEndian.AppendUint64(b, uint64(x))
	}
	return b, nil
}

// UnmarshalBinary implements Shaper.
func (s *historyShaper) UnmarshalBinary(data []byte) error {
	steps, rows, data, err := cutHeader(data, shaperVersion, s.fingerprint, s.dim)
	if err != nil {
		return err
	}
	if steps > uint64(s.horizon) || rows != steps {
		return fmt.Errorf("shaper state has %d rows and %d steps, must be equal and at most %d", rows, steps, s.horizon)
	}
	if uint64(len(data)) != 8*steps*uint64(s.dim) {
		return fmt.Errorf("shaper state has %d bytes of rows, must have %d", len(data), 8*steps*uint64(s.dim))
	}
	past := make([]int64, 0, len(data)/8)
	for ; len(data) > 0; data = data[8:] {
		x := int64(binary.BigEndian.Uint64(data))
		if x >= s.most || x <= -s.most {
			return errors.New("shaper state holds a number beyond what Limits allows")
		}
		past = append(past, x)
	}
	s.past = past
	s.predict()
	return nil
}

// historyFilter solves CY = Z row by row in float64.
type historyFilter struct {
	rows    rows
	horizon int
	dim     int
	past    []float64
}

// Next implements Filter.
func (f *historyFilter) Next(dst, z []float64) {
	steps := len(f.past) / f.dim
	if steps >= f.horizon {
		panic(beyondHorizon)
	}
	coef, scale := f.rows.row(steps + 1)
	f.past = append(f.past, z[:f.dim]...)
	row := f.past[steps*f.dim:]
	for j := steps - 1; j >= 0; j-- {
		c := float64(coef[j]) * 0x1p-62
		for i, y := range f.past[j*f.dim:][:f.dim] {
			row[i] -= c * y
		}
	}
	for i := range row {
		row[i] *= scale
	}
	copy(dst, row)
}
