// Package clipgrad computes sums of clipped gradients of a linear regression over many rows, pass after pass, exactly
// and fast. It enforces, in integers, the sensitivity of every method that computes gradients over a window.
//
// A row is a direction e_i ∈ ℤᵈ, ‖e_i‖₂ ≤ E = 2ᵇ, with a length ν_i ≥ 0 and a target y_i.
// Its residual at u ∈ ℝᵈ and its clipped gradient, in units of the clip norm ζ, are
//
//	r_i = y_i − ν_i⟨e_i, u⟩/E,   τ_i·e_i/E²,   τ_i = round(E·clip(ν_i r_i/ζ, ±1)) ∈ ℤ
//
// For e_i/E = z/‖z‖ and ν_i = ‖z‖ this is the gradient r·z clipped to norm ζ. For e_i/E = x with ‖x‖ ≤ 1 and ν_i = 1 it
// is x times the residual clipped to ζ. The direction is the same in all passes, so its norm is tested once, and a pass
// costs less than a pass of plain gradient descent.
//
// Privacy: ‖τ_i e_i/E²‖ ≤ 1 holds exactly, because |τ_i| ≤ E and ‖e_i‖² ≤ E² in integers. A row is counted if |τ_i| ≤
// ⌊cE⌋. Then its gradient has norm at most c.
package clipgrad

import (
	"fmt"
	"math"
	"runtime"

	"github.com/streamdp/streamdp/dp"
)

// Rows is a window of rows over which gradients are summed pass after pass. The first pass prepares all rows that
// Prepare has not prepared.
//
// Only Prepare may be called by several goroutines at once. Sum uses several processors by itself.
type Rows struct {
	dim, bits int
	lattice   dp.Lattice // lattice of the directions
	top       float64    // E
	e         []float64  // integers: packed for whole groups of rows, one per number for the last rows
	norm      []float64  // ν_i; −0 for a null row
	y         []float64
	null      []bool
	prepared  []bool    // for each unit: norm and the directions in e are computed
	iterate   []float64 // scratch of one pass
	rest      []int64   // nil if every block is rounded
	blocks    []int64   // exact sum of each block in one pass; nil if workers round the blocks
	workers   []*worker

	// scale returns the length of row i, and the factor that turns its x into its direction.
	scale func(r *Rows, i int) (scale, norm float64)
}

const (
	// group is the number of rows that are stored together, column by column. Two integers share the memory of one
	// float64 number. A pass over many rows is limited by memory speed, and this halves what it reads.
	group = 8

	// words is the number of float64 numbers that hold a column of a group.
	words = group / 2

	// blockRows is the number of rows that are summed before the sum is rounded to the caller's lattice. The positions
	// of rows are public, and so are the borders of blocks.
	blockRows = 4096
)

// ByNorm returns rows with direction x/‖x‖ and length ‖x‖, so their gradients are clipped by norm. x has n·dim numbers;
// y has n targets. The result uses x as its memory and keeps y and null, so the caller must not use them. null says
// which rows are null; nil means none. A null row has no gradient and is never counted. A row whose target is not
// finite is null too. A row whose x has norm 0 in float64 has direction 0. The lattice has 24 to 30 bits.
//
// Cost: n numbers in addition to x and y. The first pass takes O(n·dim) more time than the others.
func ByNorm(x, y []float64, null []bool, dim, bits int) *Rows {
	return newRows(x, y, null, dim, bits, (*Rows).unitLength)
}

// ByResidual returns rows with direction x, ‖x‖ ≤ 1, and length 1, so their gradients are clipped by residual. A longer
// x is shortened; if its square leaves the range of float64, it is shortened to 0. The rest is as for [ByNorm].
func ByResidual(x, y []float64, null []bool, dim, bits int) *Rows {
	return newRows(x, y, null, dim, bits, (*Rows).plain)
}

// newRows returns rows with directions and lengths from scale.
func newRows(x, y []float64, null []bool, dim, bits int, scale func(*Rows, int) (float64, float64)) *Rows {
	if dim < 1 || len(x) != len(y)*dim || bits < 24 || bits > 30 || null != nil && len(null) != len(y) {
		panic(
			fmt.Sprintf("clipgrad: sizes do not fit together: %d numbers, %d targets, rows of %d, %d bits", len(x),
				len(y), dim, bits))
	}
	n := len(y)
	r := &Rows{
		dim: dim, bits: bits, lattice: dp.Lattice{Exp: -bits, K: 1 << bits}, top: math.Ldexp(1, bits),
		e: x, norm: make([]float64, n), y: y, null: null, scale: scale,
		prepared: make([]bool, (n+UnitRows-1)/UnitRows), iterate: make([]float64, dim),
	}
	r.hire(max(1, min(runtime.GOMAXPROCS(0), n/UnitRows)))
	return r
}

// Prepare computes the directions of rows lo … hi−1, as far as they form whole units of UnitRows rows or are the last
// rows of the window. The first pass computes the other directions. Prepare is faster than that pass if the caller has
// just read the rows, because they are in the cache. Several goroutines may prepare different rows.
//
// Cost: O(dim) time a row.
func (r *Rows) Prepare(lo, hi int) {
	s := newScratch(r.dim)
	for unit := (lo + UnitRows - 1) / UnitRows; unit*UnitRows < hi && min((unit+1)*UnitRows, len(r.y)) <= hi; unit++ {
		r.prepare(s, unit)
	}
}

// prepare computes the directions of a unit of rows, unless they are computed already.
func (r *Rows) prepare(s *scratch, unit int) {
	if r.prepared[unit] {
		return
	}
	r.prepared[unit] = true
	lo := unit * UnitRows
	for hi := min(lo+UnitRows, len(r.y)); lo < hi; lo += group {
		rows := min(group, hi-lo)
		for k := range rows {
			i := lo + k
			if r.null != nil && r.null[i] || r.y[i]-r.y[i] != 0 {
				s.unit[k], r.norm[i], r.y[i] = 0, math.Copysign(0, -1), 0
				clear(r.row(i))
				continue
			}
			s.unit[k], r.norm[i] = r.scale(r, i)
			s.unit[k] = math.Ldexp(s.unit[k], r.bits)
		}
		if rows == group {
			r.pack(s, lo)
			continue
		}
		for k := range rows {
			r.quantise(s, lo+k, s.unit[k])
			copy(r.row(lo+k), s.row)
		}
	}
}

// hire makes the given number of new workers for a pass.
func (r *Rows) hire(workers int) {
	r.workers = r.workers[:0]
	for range workers {
		w := newWorker(r.dim)
		if r.rest != nil {
			w.rest = make([]int64, r.dim)
		}
		r.workers = append(r.workers, w)
	}
}

// row returns the memory of row i. It is valid until the row's group is packed.
func (r *Rows) row(i int) []float64 { return r.e[i*r.dim:][:r.dim] }

// packed returns the memory of the group whose first row is i. The groups of a unit are stored one after the other,
// from the start of the unit's rows. So a group never overwrites rows that are not yet packed, nor another unit.
func (r *Rows) packed(i int) []float64 {
	first := i &^ (UnitRows - 1)
	return r.e[(first+(i-first)/2)*r.dim:][:words*r.dim]
}

// unitLength returns the length ‖z‖ of row i's x = z, and the factor 1/‖z‖ that turns z into its direction. It clears a
// row so short that its gradient cannot be distinguished from 0.
func (r *Rows) unitLength(i int) (scale, norm float64) {
	z := r.row(i)
	var sum float64
	for _, v := range z {
		sum += float64(v * v)
	}
	norm = math.Sqrt(sum)
	if !(norm > 1e-140 && norm < 1e140) {
		clear(z)
		return 0, 0
	}
	return 1 / norm, norm
}

func (r *Rows) plain(int) (scale, norm float64) { return 1, 1 }

// pack computes the directions of the group whose first row is i. A direction is the row times a factor (unit), in
// integers.
func (r *Rows) pack(s *scratch, i int) {
	limit := r.top * r.top
	for k := 0; k < group; k += 2 {
		column := s.packed[k/2:]
		var square [2]float64
		square[0], square[1] = roundPair(column, r.row(i+k), r.row(i+k+1), s.unit[k], s.unit[k+1])
		for half, square := range square {
			// Squares of integers below 2²⁶ add up exactly, up to the limit that matters.
			if r.bits > 26 || !(square <= limit) {
				r.quantise(s, i+k+half, s.unit[k+half])
				put(column, s.row, half)
			}
		}
	}
	copy(r.packed(i), s.packed)
}

// roundPair rounds unit0·x0 and unit1·x1 to integers, writes them into every words-th number of dst, and returns the
// two sums of squares. If an integer does not fit, its sum of squares is large or NaN.
func roundPair(dst, x0, x1 []float64, unit0, unit1 float64) (square0, square1 float64) {
	whole := 0
	if vector && len(x0) >= 4 {
		whole = len(x0) &^ 3
		square0, square1 = roundColumns(&dst[0], &x0[0], &x1[0], whole, unit0, unit1)
	}
	x1 = x1[:len(x0)]
	for j := whole; j < len(x0); j++ {
		k0, k1 := (float64(x0[j]*unit0)+magic)-magic, (float64(x1[j]*unit1)+magic)-magic
		square0 += float64(k0 * k0)
		square1 += float64(k1 * k1)
		dst[j*words] = math.Float64frombits(uint64(uint32(int64(k0))) | uint64(int64(k1))<<32)
	}
	return square0, square1
}

// put writes the integers k into the lower or the upper half of every words-th number of dst.
func put(dst, k []float64, half int) {
	shift := uint(32 * half)
	for j, v := range k {
		word := &dst[j*words]
		*word = math.Float64frombits(math.Float64bits(*word)&^(math.MaxUint32<<shift) | uint64(uint32(int64(v)))<<shift)
	}
}

// quantise sets s.row to the features of row i, multiplied by unit and rounded to integers.
func (r *Rows) quantise(s *scratch, i int, unit float64) {
	dst := s.row
	for j, v := range r.row(i) {
		dst[j] = (float64(v*unit) + magic) - magic
	}
	square := squares(dst)
	if square >= 1<<53 { // the last bits depend on the order of additions
		square = 0
		for _, k := range dst {
			square += float64(k * k)
		}
	}
	limit := r.top * r.top
	if r.bits <= 26 && (square <= limit || shorten(dst, s.short, r.top/math.Sqrt(square), limit)) {
		return
	}
	for j, k := range dst {
		dst[j] = math.Ldexp(k, -r.bits)
	}
	r.lattice.Quantise(s.integer, dst)
	for j, k := range s.integer {
		dst[j] = float64(k)
	}
}

// scratch is the working memory with which one goroutine prepares rows.
type scratch struct {
	unit    [group]float64
	packed  []float64
	row     []float64
	short   []float64
	integer []int64
}

func newScratch(dim int) *scratch {
	return &scratch{packed: make([]float64, words*dim), row: make([]float64, dim), short: make([]float64, dim),
		integer: make([]int64, dim)}
}

// shorten multiplies the integers k by scale ≤ 1 and rounds them to nearest, or toward zero if the result would be too
// long. It reports whether the squares of the result add up to at most limit; if not, it leaves k unchanged.
// [dp.Lattice.Quantise] does the same with int64.
func shorten(k, scratch []float64, scale, limit float64) bool {
	scratch = scratch[:len(k)]
	for j, v := range k {
		scratch[j] = math.Floor(float64(v*scale) + 0.5)
	}
	square := squares(scratch)
	if !(square <= limit) {
		for j, v := range k {
			scratch[j] = math.Trunc(float64(v * scale))
		}
		square = squares(scratch)
	}
	if !(square <= limit) { // also if it is NaN
		return false
	}
	copy(k, scratch)
	return true
}

// squares returns Σ k² of integers, exactly if it is below 2⁵³; otherwise it returns a number of at least 2⁵³.
func squares(k []float64) float64 {
	var s0, s1, s2, s3 float64
	for ; len(k) >= 4; k = k[4:] {
		s0 += float64(k[0] * k[0])
		s1 += float64(k[1] * k[1])
		s2 += float64(k[2] * k[2])
		s3 += float64(k[3] * k[3])
	}
	for _, v := range k {
		s0 += float64(v * v)
	}
	return (s0 + s1) + (s2 + s3)
}

// Adding magic to a number and subtracting it rounds the number to an integer.
const magic = 3 << 51

// RoundOnce makes every Sum add up all rows exactly and round once, as if they were one block. So a sum does not depend
// on the order of the rows. The sensitivity does not change: a row changes one rounded sum.
func (r *Rows) RoundOnce() {
	r.rest = make([]int64, r.dim)
	for _, w := range r.workers {
		w.rest = make([]int64, r.dim)
	}
}

// Sum sets dst to the sum of the clipped gradients at u, in units of ζ·2^−out,
//
//	Σ_blocks ⌊2^out/E² · Σ_i τ_i e_i + ½⌋,
//
// and returns the number of rows that are counted at c. b ≤ out ≤ 2b.
//
// Privacy: one row changes one block, so [Sensitivity] bounds the distance by which the sums move. For the sums
// together with the count see [CountWeight].
// Cost: 2d multiplications and no allocation a row. Several processors share the rows; the result does not depend on
// how the rows are shared.
func (r *Rows) Sum(dst []int64, u []float64, zeta, c float64, out int) int64 {
	for j, v := range u {
		if !(math.Abs(v) < 1e150) {
			panic("clipgrad: the iterate is outside the range of float64")
		}
		r.iterate[j] = math.Ldexp(v, -r.bits)
	}
	if !(zeta > 1e-150 && zeta < 1e150) || out < r.bits || out > 2*r.bits ||
		math.Ldexp(float64(len(r.y)), out) > 1<<62 {
		panic(fmt.Sprintf("clipgrad: clip norm %g, %d bits of %d, %d rows", zeta, out, 2*r.bits, len(r.y)))
	}
	// The largest blocks whose sum fits 62 bits.
	p := &pass{
		rows: r, dst: dst, u: r.iterate, shift: uint(2*r.bits - out), top: r.top,
		quotient: math.Ldexp(1/zeta, r.bits), limit: int64(math.Ldexp(min(c, 1), r.bits)),
		size: min(blockRows, 1<<(62-2*r.bits)), done: make(chan struct{}),
	}
	if need := (len(r.y) + p.size - 1) / p.size * r.dim; r.blocks == nil && !p.wholeBlocks() {
		r.blocks = make([]int64, need)
	}
	clear(dst)
	clear(r.rest)
	if units := (len(r.y) + UnitRows - 1) / UnitRows; units > 0 {
		p.left.Store(int64(units))
		last := len(r.workers) - 1
		for _, w := range r.workers[:last] {
			w.begin(p)
		}
		r.workers[last].run(p)
		if !soon(func() bool { return p.left.Load() == 0 }) {
			<-p.done
		}
	}
	for i := 0; i < len(r.blocks); i += r.dim {
		p.round(dst, r.rest, r.blocks[i:][:r.dim])
	}
	p.finish(dst, r.rest)
	return p.counted
}

// Sensitivity returns S + √d·2^−out. This bounds the distance, in units of ζ, by which the sums move when one row
// becomes null (S = 1) or another row (S = 2). Rounding the one block that changes adds less than a lattice step in
// each coordinate.
func Sensitivity(a dp.Adjacency, dim, out int) float64 {
	return (a.Factor() + math.Sqrt(float64(dim))*math.Ldexp(1, -out)) * dp.RoundUp
}

// CountWeight returns the largest weight w at which the release of a count adds nothing to the sensitivity: the sums,
// in units of ζ, together with w times the number of rows counted at c, move by no more than the sums alone may.
//
//	zero-out: w² = 1 − c²;   replace: w² = 4 − (1+c)²
//
// A counted row has a gradient of norm at most c, any other row has a gradient of norm at most 1. So a row that becomes
// null moves sums and count by a squared distance of at most c² + w² if it was counted, otherwise 1. The squared
// distance of two rows is at most (1+c)² + w² if one of them is counted, (2c)² if both are, and 2² if neither is. A
// null row must not be counted.
func CountWeight(a dp.Adjacency, c float64) float64 {
	w := 1 - float64(c*c)
	if a == dp.Replace {
		w = 4 - float64((1+c)*(1+c))
	}
	return math.Sqrt(w) * (1 - 0x1p-40)
}
