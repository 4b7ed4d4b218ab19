// Package clipgrad computes sums of clipped gradients of a linear regression over many
// rows, pass after pass, exactly and fast. The sensitivity of every gradient method over
// a window is enforced here, in integers.
//
// A row is a direction e_i ∈ ℤᵈ, ‖e_i‖₂ ≤ E = 2ᵇ, with a length ν_i ≥ 0 and a target y_i.
// Its residual at u ∈ ℝᵈ and its clipped gradient, in units of the clip norm ζ, are
//
//	r_i = y_i − ν_i⟨e_i, u⟩/E,   τ_i·e_i/E²,   τ_i = round(E·clip(ν_i r_i/ζ, ±1)) ∈ ℤ
//
// so that for e_i/E = z/‖z‖ and ν_i = ‖z‖ it is the gradient r·z clipped to norm ζ, and
// for e_i/E = x with ‖x‖ ≤ 1 and ν_i = 1 it is x times the residual clipped to ζ. The
// direction does not change from pass to pass, so its norm is tested once, and a pass
// costs less than one of plain gradient descent.
//
// Privacy: ‖τ_i e_i/E²‖ ≤ 1 holds exactly, by |τ_i| ≤ E and ‖e_i‖² ≤ E² in integers. A
// row counts if |τ_i| ≤ ⌊cE⌋; then its gradient has norm at most c.
package clipgrad

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"streamdp/dp"
)

// Rows is a window of rows, prepared for passes.
//
// It is not safe for concurrent use; Sum uses several processors by itself.
type Rows struct {
	dim, bits int
	lattice   dp.Lattice // of the directions
	top       float64    // E
	e         []float64  // integers, n×d; whole groups of rows column by column
	norm      []float64  // ν_i; of a null row −0
	y         []float64
	iterate   []float64 // scratch of one pass
	rest      []int64   // nil: every block is rounded
	blocks    []int64   // of one pass: the exact sum of each block; nil where workers round them
	workers   []*worker
}

const (
	// group is the number of rows that are stored together, column by column, if the bits
	// leave float64 room for sums of products. One vector of four numbers holds a column.
	group = 4

	// blockRows is the number of rows that are summed before they are rounded to the
	// caller's lattice. The positions of rows are public, and so are the borders of
	// blocks.
	blockRows = 4096
)

// ByNorm returns rows with direction x/‖x‖ and length ‖x‖, so their gradients are clipped
// by their norm. x has n·dim numbers and becomes the rows' memory; y has n targets. null
// says which rows are null, if any: these have no gradient and are never counted. A row
// whose target is not finite is null too. A row whose x has norm 0 in float64 has
// direction 0. The lattice has 24–30 bits.
//
// Cost: O(n·dim) time on all processors, n numbers beside x and y.
func ByNorm(x, y []float64, null []bool, dim, bits int) *Rows {
	return prepare(x, y, null, dim, bits, (*Rows).setUnit)
}

// ByResidual returns rows with direction x, ‖x‖ ≤ 1, and length 1, so their gradients are
// clipped by their residual. A longer x is shortened; if its square leaves the range of
// float64, to 0. Otherwise it is as [ByNorm].
func ByResidual(x, y []float64, null []bool, dim, bits int) *Rows {
	return prepare(x, y, null, dim, bits, (*Rows).setPlain)
}

// prepare returns rows that set has made of x and y.
func prepare(x, y []float64, null []bool, dim, bits int, set func(*Rows, *scratch, int)) *Rows {
	if dim < 1 || len(x) != len(y)*dim || bits < 24 || bits > 30 || null != nil && len(null) != len(y) {
		panic(fmt.Sprintf("clipgrad: %d numbers, %d targets, rows of %d, %d bits", len(x), len(y), dim, bits))
	}
	n := len(y)
	r := &Rows{
		dim: dim, bits: bits, lattice: dp.Lattice{Exp: -bits, K: 1 << bits}, top: math.Ldexp(1, bits),
		e: x, norm: make([]float64, n), y: y, iterate: make([]float64, dim),
	}
	r.hire(max(1, min(runtime.GOMAXPROCS(0), n/512)))
	var wait sync.WaitGroup
	var taken atomic.Int64 // units
	for range r.workers {
		wait.Go(func() {
			s := newScratch(dim)
			for {
				lo := int(taken.Add(1)-1) * unitRows
				if lo >= n {
					return
				}
				for i := lo; i < min(lo+unitRows, n); i++ {
					if null != nil && null[i] || y[i]-y[i] != 0 {
						clear(r.row(i))
						r.norm[i], y[i] = math.Copysign(0, -1), 0
					} else {
						set(r, s, i)
					}
					if i%group == group-1 && r.grouped() {
						s.transpose(r.e[(i+1-group)*dim:][:group*dim])
					}
				}
			}
		})
	}
	wait.Wait()
	return r
}

// grouped reports whether whole groups of rows lie column by column.
func (r *Rows) grouped() bool { return room(r.bits) >= group }

// room is how many products of directions and weights float64 adds up exactly.
func room(bits int) int { return 1 << max(0, 53-2*bits) }

// hire makes so many workers share the rows of a pass.
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

// row returns the memory of row i before its group is transposed.
func (r *Rows) row(i int) []float64 { return r.e[i*r.dim:][:r.dim] }

// setUnit makes row i's direction and length of its x = z.
func (r *Rows) setUnit(s *scratch, i int) {
	z := r.row(i)
	var sum float64
	for _, v := range z {
		sum += float64(v * v)
	}
	norm := math.Sqrt(sum)
	if !(norm > 1e-140 && norm < 1e140) { // a gradient that cannot be told from 0
		r.norm[i] = 0
		clear(z)
		return
	}
	r.set(s, i, 1/norm, norm)
}

func (r *Rows) setPlain(s *scratch, i int) { r.set(s, i, 1, 1) }

// set makes scale·x the direction of row i, quantised, and norm its length.
func (r *Rows) set(s *scratch, i int, scale, norm float64) {
	dst := r.row(i)
	r.norm[i] = norm
	unit := math.Ldexp(scale, r.bits)
	var square float64
	for j, v := range dst {
		k := (float64(v*unit) + magic) - magic
		dst[j] = k
		square += float64(k * k)
	}
	// Squares of integers below 2²⁶ add up exactly, up to the limit that matters.
	limit := r.top * r.top
	if r.bits <= 26 && (square <= limit || shorten(dst, s.row, r.top/math.Sqrt(square), limit)) {
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

// scratch is what one goroutine needs to prepare rows.
type scratch struct {
	integer []int64
	row     []float64
	group   []float64
}

func newScratch(dim int) *scratch {
	return &scratch{integer: make([]int64, dim), row: make([]float64, dim), group: make([]float64, group*dim)}
}

// transpose makes columns of a group's rows.
func (s *scratch) transpose(e []float64) {
	d := len(s.row)
	copy(s.group, e)
	r0, r1, r2, r3 := s.group[:d], s.group[d:][:d], s.group[2*d:][:d], s.group[3*d:][:d]
	for j, v := range r0 {
		column := e[j*group:][:group]
		column[0], column[1], column[2], column[3] = v, r1[j], r2[j], r3[j]
	}
}

// shorten multiplies the integers k by scale ≤ 1 and rounds them: to nearest and, if the
// result is too long, toward zero. [dp.Lattice.Quantise] does the same with int64. It
// reports whether their squares add up to at most limit; otherwise k is unchanged.
func shorten(k, scratch []float64, scale, limit float64) bool {
	var square float64
	for j, v := range k {
		x := math.Floor(float64(v*scale) + 0.5)
		scratch[j] = x
		square += float64(x * x)
	}
	if !(square <= limit) {
		square = 0
		for j, v := range k {
			x := math.Trunc(float64(v * scale))
			scratch[j] = x
			square += float64(x * x)
		}
	}
	if !(square <= limit) { // also NaN
		return false
	}
	copy(k, scratch)
	return true
}

// magic, added and subtracted, rounds to an integer.
const magic = 3 << 51

// RoundOnce makes every Sum add up all rows exactly and round once, as if they were one
// block. So a sum does not depend on the order of the rows. Its sensitivity is the same: a
// row changes one sum that is rounded.
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
// and returns the number of rows that count at c. b ≤ out ≤ 2b.
//
// Privacy: one row changes one block, so [Sensitivity] bounds how far the sums move. For
// the sums together with the count see [CountWeight].
// Cost: 2d multiplications and no allocation a row. Several processors share the rows;
// the result does not depend on how.
func (r *Rows) Sum(dst []int64, u []float64, zeta, c float64, out int) int64 {
	for j, v := range u {
		if !(math.Abs(v) < 1e150) {
			panic("clipgrad: the iterate left the range of float64")
		}
		r.iterate[j] = math.Ldexp(v, -r.bits)
	}
	if !(zeta > 1e-150 && zeta < 1e150) || out < r.bits || out > 2*r.bits || math.Ldexp(float64(len(r.y)), out) > 1<<62 {
		panic(fmt.Sprintf("clipgrad: clip norm %g, %d bits of %d, %d rows", zeta, out, 2*r.bits, len(r.y)))
	}
	// Blocks of so many rows that their sum fits 62 bits.
	p := &pass{
		rows: r, dst: dst, u: r.iterate, shift: uint(2*r.bits - out), top: r.top,
		quotient: math.Ldexp(1/zeta, r.bits), limit: math.Floor(math.Ldexp(c, r.bits)) + 0.5,
		size: min(blockRows, 1<<(62-2*r.bits)), room: room(r.bits), done: make(chan struct{}),
	}
	if need := (len(r.y) + p.size - 1) / p.size * r.dim; r.blocks == nil && !p.whole() {
		r.blocks = make([]int64, need)
	}
	clear(dst)
	clear(r.rest)
	if units := (len(r.y) + unitRows - 1) / unitRows; units > 0 {
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

// Sensitivity returns S + √d·2^−out, a bound on how far the sums move, in units of ζ,
// when one row becomes null (S = 1) or another row (S = 2). The rounding of the one block
// that changes adds less than a lattice step in each coordinate.
func Sensitivity(a dp.Adjacency, dim, out int) float64 {
	return (a.Factor() + math.Sqrt(float64(dim))*math.Ldexp(1, -out)) * dp.RoundUp
}

// CountWeight returns the w for which the count is free: the sums, in units of ζ,
// together with w times the number of rows that count at c move by no more than the sums
// alone may,
//
//	zero-out: w² = 1 − c²;   replace: w² = 4 − (1+c)²
//
// A row that counts has a gradient of norm at most c, another row one of at most 1. So a
// row that becomes null moves the pair by c² + w² or by 1. Two rows are apart by (1+c)² +
// w² if one of them counts, by 2c if both do, and by 2 if none does. A null row must not
// count.
func CountWeight(a dp.Adjacency, c float64) float64 {
	w := 1 - float64(c*c)
	if a == dp.Replace {
		w = 4 - float64((1+c)*(1+c))
	}
	return math.Sqrt(w) * (1 - 0x1p-40)
}
