package matfact

import (
	"encoding/binary"
	"fmt"
	"math"
)

// maxNormalised is the longest horizon for which columns can be normalised. Variances cost O(t) a step, and for longer
// streams the gain is below 4 %.
const maxNormalised = 1 << 16

// normalised is a Toeplitz C for a stream that certainly ends at step n. Every column is divided by its own norm down
// to row n:
//
//	C' = C·diag(1/r),   r_t² = Σ_{j≤n−t} c_j²,   C'⁻¹ = diag(r)·C⁻¹.
//
// Columns near the end are short, so their norms are smaller. Without the division, the last rows would cost less than
// the first, and would get more noise than they need. r_t is 2²⁰/M_t with an integer M_t, rounded so that no norm
// exceeds 1. The shaper solves with C'_tj = c_{t−j}M_j2⁻²⁰: it pushes M_t·w_t to the shaper of C, which counts in units
// of 2⁻²⁰.
type normalised struct {
	inner   toeplitz
	stored  *Stored
	n       int
	colNorm float64
	factor  []int64   // M
	scale   []float64 // r
	inverse []float64 // ĉ
	tables  []*normalisedTable
}

func newNormalised(c toeplitz, stored *Stored, n int) Factorization {
	f := &normalised{
		inner: c, stored: stored.Clone(), n: n,
		factor: make([]int64, n), scale: make([]float64, n),
		inverse: c.inverseSeries(n),
	}
	f.stored.Height = uint64(n)
	var sum squares
	for j, x := range c.column(n) {
		sum.add(x)
		t := n - 1 - j // the column that has j+1 rows
		norm := math.Sqrt(sum.float())
		m := math.Floor(1 / (fineUnit * norm))
		f.factor[t], f.scale[t] = int64(m), 1/(fineUnit*m)
		f.colNorm = max(f.colNorm, norm*(m*fineUnit))
	}
	f.colNorm *= roundUp
	return f
}

// Kind implements Factorization.
func (f *normalised) Kind() string { return f.inner.Kind() }

// Horizon implements Factorization.
func (f *normalised) Horizon() uint64 { return uint64(f.n) }

// ColNorm implements Factorization.
func (f *normalised) ColNorm() float64 { return f.colNorm }

// Stored implements Factorization.
func (f *normalised) Stored() *Stored { return f.stored.Clone() }

// Limits implements Factorization. |w| ≤ r|u|, where u are the rows pushed to the inner Shaper, in units of 2⁻²⁰.
func (f *normalised) Limits(sd float64) (Limits, error) {
	inner, err := f.inner.fineLimits(sd, fineUnit)
	inner.Noise *= f.scale[0] * margin
	if err == nil && inner.Noise >= maxNoise {
		err = fmt.Errorf("noise of %g lattice units can reach %g, must stay below 2^51: take a coarser lattice", sd,
			inner.Noise)
	}
	return inner, err
}

// NewShaper implements Factorization.
func (f *normalised) NewShaper(dim int) Shaper {
	checkDim(dim)
	return &fineShaper{
		inner: f.inner.fineShaper(dim, f.stored.fingerprint()),
		fine:  make([]int64, dim), factor: f.factor, scale: f.scale,
	}
}

// fineShaper makes another Shaper count in units of 2⁻²⁰ lattice units. That makes its rounding error 2²⁰ times
// smaller, and allows columns to be scaled.
type fineShaper struct {
	inner  Shaper
	fine   []int64   // scratch
	factor []int64   // M for each step; nil: 2²⁰ in all steps
	scale  []float64 // r for each step; nil: 1 in all steps
	step   int
}

// Predict implements Shaper. After the last step the result has no meaning.
func (s *fineShaper) Predict(dst []float64) (r float64) {
	r = s.inner.Predict(dst)
	for j := range s.fine {
		dst[j] *= fineUnit
	}
	if s.step < len(s.scale) {
		return s.scale[s.step]
	}
	return r
}

// Push implements Shaper.
func (s *fineShaper) Push(w []int64) {
	m := int64(1 / fineUnit)
	if s.factor != nil {
		if s.step == len(s.factor) {
			panic(beyondHorizon)
		}
		m = s.factor[s.step]
	}
	for j, x := range w[:len(s.fine)] {
		s.fine[j] = x * m
	}
	s.inner.Push(s.fine)
	s.step++
}

// AppendBinary implements Shaper.
func (s *fineShaper) AppendBinary(b []byte) ([]byte, error) { return s.inner.AppendBinary(b) }

// UnmarshalBinary implements Shaper.
func (s *fineShaper) UnmarshalBinary(data []byte) error {
	var step uint64
	if len(data) >= shaperHeader {
		step = binary.BigEndian.Uint64(data[1+8+8:])
	}
	if s.factor != nil && step > uint64(len(s.factor)) {
		return fmt.Errorf("shaper state has %d steps, must be at most %d", step, len(s.factor))
	}
	if err := s.inner.UnmarshalBinary(data); err != nil {
		return err
	}
	s.step = int(step)
	return nil
}

// normalisedFilter computes C'⁻¹Z by scaling the rows of C⁻¹Z.
type normalisedFilter struct {
	Filter
	scale []float64
}

// NewFilter implements Factorization. Next panics beyond the horizon.
func (f *normalised) NewFilter(dim int) Filter {
	return &normalisedFilter{f.inner.NewFilter(dim), f.scale}
}

// Next implements Filter.
func (f *normalisedFilter) Next(dst, z []float64) {
	if len(f.scale) == 0 {
		panic(beyondHorizon)
	}
	f.Filter.Next(dst, z)
	for i := range dst[:len(z)] {
		dst[i] *= f.scale[0]
	}
	f.scale = f.scale[1:]
}

// normalisedTable holds the squared norms of the first rows of AC'⁻¹ for one kernel, and the entries of the last of
// these rows.
type normalisedTable struct {
	kernel Workload
	row    []float64
	energy []float64
}

// advance computes the next row of AC'⁻¹. It multiplies the row before by the kernel's decay, adds the row of C'⁻¹, and
// subtracts the row that leaves a window.
func (f *normalised) advance(t *normalisedTable) {
	at := len(t.row)
	t.row = append(t.row, 0)
	if t.kernel.Kind == "exponential" {
		for j := range t.row {
			t.row[j] = float64(t.kernel.Decay * t.row[j])
		}
	}
	r := f.scale[at]
	for j := range t.row {
		t.row[j] += float64(r * f.inverse[at-j])
	}
	if t.kernel.Kind == "window" && uint64(at) >= t.kernel.Window {
		old := at - int(t.kernel.Window)
		r := f.scale[old]
		for j := range old + 1 {
			t.row[j] -= float64(r * f.inverse[old-j])
		}
	}
	var sum float64
	for _, x := range t.row {
		sum += float64(x * x)
	}
	t.energy = append(t.energy, sum)
}

// RowVar implements Factorization. It costs O(t) if t follows the last step that was computed, otherwise up to O(t²).
func (f *normalised) RowVar(w Workload, t uint64) float64 {
	w.must()
	f.within(t)
	if t == 0 {
		return 0
	}
	const kept = 4
	var table *normalisedTable
	for _, x := range f.tables {
		if x.kernel == w.Kernel() {
			table = x
		}
	}
	if table == nil {
		table = &normalisedTable{kernel: w.Kernel()}
		if f.tables = append(f.tables, table); len(f.tables) > kept {
			f.tables = f.tables[1:]
		}
	}
	for uint64(len(table.row)) < t {
		f.advance(table)
	}
	return table.energy[t-1] * (w.scale(t) * w.scale(t))
}

// CinvVar implements Factorization.
func (f *normalised) CinvVar(t uint64) float64 {
	f.within(t)
	var sum float64
	for _, c := range f.inverse[:t] {
		sum += float64(c * c)
	}
	if t == 0 {
		return 0
	}
	return sum * (f.scale[t-1] * f.scale[t-1])
}

// Cov implements Factorization.
// Cost: O(u²).
func (f *normalised) Cov(w Workload, t, u uint64) float64 {
	w.must()
	t, u = min(t, u), max(t, u)
	f.within(u)
	table, early := &normalisedTable{kernel: w.Kernel()}, []float64(nil)
	for uint64(len(table.row)) < u {
		f.advance(table)
		if uint64(len(table.row)) == t {
			early = append(early, table.row...)
		}
	}
	var sum float64
	for j, x := range early {
		sum += float64(x * table.row[j])
	}
	return sum * (w.scale(t) * w.scale(u))
}

func (f *normalised) within(t uint64) {
	if t > uint64(f.n) {
		panic(beyondHorizon)
	}
}
