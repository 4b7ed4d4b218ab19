// Package clipgrad sums the clipped gradients of a linear regression over many
// rows, pass after pass, exactly and fast. It is where the sensitivity of every
// gradient method over a window is decided, in integers.
//
// A row is a direction e_i ∈ ℤᵈ, ‖e_i‖₂ ≤ E = 2ᵇ, with a length ν_i ≥ 0 and a
// target y_i. Its residual at u ∈ ℝᵈ and its clipped gradient, in units of the
// clip norm ζ, are
//
//	r_i = y_i − ν_i⟨e_i, u⟩/E,   τ_i·e_i/E²,   τ_i = round(E·clip(ν_i r_i/ζ, ±1)) ∈ ℤ
//
// so that for e_i/E = z/‖z‖ and ν_i = ‖z‖ it is the gradient r·z clipped to norm ζ,
// and for e_i/E = x with ‖x‖ ≤ 1 and ν_i = 1 it is x times the residual clipped to
// ζ. The direction does not change from pass to pass, so its norm is tested once,
// and a pass costs what a pass of plain gradient descent costs.
//
// Privacy: ‖τ_i e_i/E²‖ ≤ 1 holds exactly, by |τ_i| ≤ E and ‖e_i‖² ≤ E² in
// integers. A row counts if |τ_i| ≤ ⌊cE⌋; then its gradient has norm at most c.
package clipgrad

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"streamdp/dp"
)

// Rows is a window of rows, prepared for passes.
//
// It is not safe for concurrent use; Sum uses several processors by itself.
type Rows struct {
	dim, bits int
	lattice   dp.Lattice // of the directions
	top       float64    // E
	e         []float64  // integers, n×d
	norm      []float64  // ν_i; of a null row −0
	y         []float64
	integer   []int64   // scratch of one row
	scratch   []float64 // scratch of one row
	iterate   []float64 // scratch of one pass
	workers   []worker
}

// blockRows is how many rows are summed before they are rounded to the caller's
// lattice: rows have public positions, so blocks have public borders.
const blockRows = 4096

// New returns n null rows of length dim on a lattice of the given bits, 24–30. x,
// of n·dim numbers, becomes their memory; y, of n, holds their targets.
func New(x, y []float64, dim, bits int) *Rows {
	if dim < 1 || len(x) != len(y)*dim || bits < 24 || bits > 30 {
		panic(fmt.Sprintf("clipgrad: %d numbers, %d targets, rows of %d, %d bits", len(x), len(y), dim, bits))
	}
	r := &Rows{
		dim: dim, bits: bits, lattice: dp.Lattice{Exp: -bits, K: 1 << bits}, top: math.Ldexp(1, bits),
		e: x, norm: make([]float64, len(y)), y: y, integer: make([]int64, dim), scratch: make([]float64, dim), iterate: make([]float64, dim),
		workers: make([]worker, max(1, min(runtime.GOMAXPROCS(0), len(y)/512))),
	}
	for i := range r.norm {
		r.norm[i] = math.Copysign(0, -1)
	}
	for i := range r.workers {
		r.workers[i] = newWorker(dim)
	}
	return r
}

// SetUnit makes z/‖z‖ the direction of row i and ‖z‖ its length: its gradients are
// clipped by their norm. z may be the row's own memory.
func (r *Rows) SetUnit(i int, z []float64) {
	var sum float64
	for _, v := range z {
		sum += float64(v * v)
	}
	norm := math.Sqrt(sum)
	if !(norm > 1e-140 && norm < 1e140) { // a gradient that cannot be told from 0
		r.norm[i] = 0
		clear(r.row(i))
		return
	}
	r.set(i, z, 1/norm, norm)
}

// SetPlain makes x, ‖x‖ ≤ 1, the direction of row i and 1 its length: its gradients
// are clipped by their residual. A longer x is shortened. x may be the row's own
// memory.
func (r *Rows) SetPlain(i int, x []float64) {
	r.set(i, x, 1, 1)
}

// set makes scale·x the direction of row i, quantised, and norm its length.
func (r *Rows) set(i int, x []float64, scale, norm float64) {
	dst := r.row(i)
	r.norm[i] = norm
	unit := math.Ldexp(scale, r.bits)
	var square float64
	for j, v := range x[:len(dst)] {
		k := (float64(v*unit) + magic) - magic
		dst[j] = k
		square += float64(k * k)
	}
	// Squares of integers below 2²⁶ add up exactly, as far as they matter.
	limit := r.top * r.top
	if r.bits <= 26 && (square <= limit || shorten(dst, r.scratch, r.top/math.Sqrt(square), limit)) {
		return
	}
	for j, k := range dst {
		dst[j] = math.Ldexp(k, -r.bits)
	}
	r.lattice.Quantise(r.integer, dst)
	for j, k := range r.integer {
		dst[j] = float64(k)
	}
}

// shorten multiplies the integers k by scale ≤ 1 and rounds them, to nearest and, where
// that is too long, toward zero: what [dp.Lattice.Quantise] does, without int64. It
// reports whether their squares add up to no more than limit; else k is as it was.
func shorten(k, scratch []float64, scale, limit float64) bool {
	var square float64
	for j, v := range k {
		x := math.Floor(float64(v*scale) + 0.5)
		scratch[j] = x
		square += float64(x * x)
	}
	if square > limit {
		square = 0
		for j, v := range k {
			x := math.Trunc(float64(v * scale))
			scratch[j] = x
			square += float64(x * x)
		}
	}
	if square > limit {
		return false
	}
	copy(k, scratch)
	return true
}

// magic, added and subtracted, rounds to an integer.
const magic = 3 << 51

// SetNull makes row i a null row: no gradient, and never counted.
func (r *Rows) SetNull(i int) {
	clear(r.row(i))
	r.norm[i] = math.Copysign(0, -1)
}

// row returns the memory of row i.
func (r *Rows) row(i int) []float64 { return r.e[i*r.dim:][:r.dim] }

// Sum sets dst to the sum of the clipped gradients at u, in units of ζ·2^−out,
//
//	Σ_blocks ⌊2^out/E² · Σ_i τ_i e_i + ½⌋,
//
// and returns the number of rows that count at c. b ≤ out ≤ 2b.
//
// Privacy: one row changes one block, so [Sensitivity] bounds by how much the sums
// move. Together with the count see [CountWeight].
// Cost: 2d multiplications a row; nothing is allocated a row. Rows are shared out among
// the processors; the result does not depend on how.
func (r *Rows) Sum(dst []int64, u []float64, zeta, c float64, out int) (counted int64) {
	origin := true
	for j, v := range u {
		if !(math.Abs(v) < 1e150) {
			panic("clipgrad: the iterate left the range of float64")
		}
		r.iterate[j] = math.Ldexp(v, -r.bits)
		origin = origin && v == 0
	}
	if !(zeta > 1e-150 && zeta < 1e150) || out < r.bits || out > 2*r.bits || math.Ldexp(float64(len(r.y)), out) > 1<<62 {
		panic(fmt.Sprintf("clipgrad: clip norm %g, %d bits of %d, %d rows", zeta, out, 2*r.bits, len(r.y)))
	}
	p := pass{
		rows: r, u: r.iterate, origin: origin, shift: uint(2*r.bits - out), top: r.top,
		quotient: math.Ldexp(1/zeta, r.bits), limit: math.Floor(math.Ldexp(c, r.bits)) + 0.5,
	}
	// Blocks of so many rows that their sum fits 62 bits.
	p.size = min(blockRows, 1<<(62-2*r.bits))
	p.room = 1 << max(0, 53-2*r.bits)
	n, of := len(r.y), len(r.workers)
	var group sync.WaitGroup
	for i := range r.workers {
		lo, hi := i*n/of&^3, (i+1)*n/of&^3
		if i == of-1 {
			r.workers[i].run(&p, lo, n)
			break
		}
		group.Go(func() { r.workers[i].run(&p, lo, hi) })
	}
	group.Wait()
	// Blocks that several workers have parts of are rounded when they are whole.
	clear(dst)
	open := r.workers[0].pieces[0].sum // of the block before
	for i := range r.workers {
		w := &r.workers[i]
		counted += w.counted
		for j, v := range w.sum {
			dst[j] += v
		}
		for k := range w.used {
			piece := &w.pieces[k]
			if i+k == 0 {
				continue
			}
			if piece.starts {
				p.round(dst, open)
				open = piece.sum
				continue
			}
			for j, v := range piece.sum {
				open[j] += v
				piece.sum[j] = 0
			}
		}
	}
	p.round(dst, open)
	return counted
}

// Sensitivity returns S + √d·2^−out: by how much the sums move at most, in units of
// ζ, when one row becomes null (S = 1) or another row (S = 2). The rounding of the
// one block that changes adds less than a lattice step in each coordinate.
func Sensitivity(a dp.Adjacency, dim, out int) float64 {
	return (a.Factor() + math.Sqrt(float64(dim))*math.Ldexp(1, -out)) * (1 + 0x1p-40)
}

// CountWeight returns the w for which the count is free: the sums, in units of ζ,
// together with w times the number of rows that count at c move by no more than the
// sums alone may,
//
//	zero-out: w² = 1 − c²;   replace: w² = 4 − (1+c)²
//
// A row that counts has a gradient of norm at most c, another one of at most 1; so
// one that becomes null moves the pair by c² + w² or by 1, and two rows, of which
// one counts, are (1+c)² + w² apart; two that count 2c, two that do not 2. It needs
// that a null row does not count.
func CountWeight(a dp.Adjacency, c float64) float64 {
	w := 1 - float64(c*c)
	if a == dp.Replace {
		w = 4 - float64((1+c)*(1+c))
	}
	return math.Sqrt(w) * (1 - 0x1p-40)
}

// pass is what is common to the rows of one pass.
type pass struct {
	rows     *Rows
	u        []float64 // divided by E
	origin   bool      // u = 0: no products
	top      float64   // E
	quotient float64   // E/ζ
	limit    float64   // between the integers that count and those that do not
	shift    uint
	size     int // rows of a block
	room     int // rows whose sum is exact in float64, a power of two
}

// round adds a block's sum, rounded, to dst, and empties it.
func (p *pass) round(dst, block []int64) {
	half := int64(0)
	if p.shift > 0 {
		half = 1 << (p.shift - 1)
	}
	for j, v := range block {
		dst[j] += (v + half) >> p.shift
		block[j] = 0
	}
}

// worker sums rows that lie one behind the other.
type worker struct {
	part    []float64 // exact, not yet in block
	block   []int64   // exact
	sum     []int64   // rounded
	counted int64
	// pieces are the exact sums of the first block and of the last one, if that is
	// another, of which there may be rows elsewhere.
	pieces [2]piece
	used   int
}

func newWorker(dim int) worker {
	return worker{
		part: make([]float64, dim), block: make([]int64, dim), sum: make([]int64, dim),
		pieces: [2]piece{{sum: make([]int64, dim)}, {sum: make([]int64, dim)}},
	}
}

type piece struct {
	starts bool // the block's first row is among them
	sum    []int64
}

// run sums rows lo … hi−1.
func (w *worker) run(p *pass, lo, hi int) {
	clear(w.sum)
	w.counted, w.used = 0, 0
	n := len(p.rows.y)
	for lo < hi || w.used == 0 {
		start := lo / p.size * p.size
		end := min(start+p.size, n)
		inner := lo == start && end <= hi && w.used > 0 // no other worker has rows of it
		starts := lo == start
		for end := min(end, hi); lo < end; lo += p.room {
			w.rows(p, lo, min(lo+p.room, end))
		}
		lo = min(end, hi)
		if inner {
			p.round(w.sum, w.block)
			continue
		}
		last := &w.pieces[min(w.used, 1)]
		w.used++
		last.starts = starts
		last.sum, w.block = w.block, last.sum
	}
}

// rows adds rows lo … hi−1, of which there are few enough for part.
func (w *worker) rows(p *pass, lo, hi int) {
	r, d := p.rows, p.rows.dim
	if p.room < 4 {
		for i := lo; i < hi; i++ {
			w.one(p, i)
		}
		return
	}
	part := w.part
	for ; lo+4 <= hi; lo += 4 {
		e0 := r.e[lo*d:][:d]
		e1, e2, e3 := r.e[(lo+1)*d:][:len(e0)], r.e[(lo+2)*d:][:len(e0)], r.e[(lo+3)*d:][:len(e0)]
		u := p.u[:len(e0)]
		if p.origin {
			u = nil
		}
		var s0, s1, s2, s3 float64
		for j, v := range u {
			s0 += float64(e0[j] * v)
			s1 += float64(e1[j] * v)
			s2 += float64(e2[j] * v)
			s3 += float64(e3[j] * v)
		}
		y, norm := r.y[lo:][:4], r.norm[lo:][:4]
		t0, t1 := p.weight(y[0], norm[0], s0), p.weight(y[1], norm[1], s1)
		t2, t3 := p.weight(y[2], norm[2], s2), p.weight(y[3], norm[3], s3)
		w.counted += (p.counts(t0, norm[0]) + p.counts(t1, norm[1])) + (p.counts(t2, norm[2]) + p.counts(t3, norm[3]))
		part = part[:len(e0)]
		for j, v := range e0 {
			part[j] += (v*t0 + e1[j]*t1) + (e2[j]*t2 + e3[j]*t3) // integers below 2⁵³
		}
	}
	for ; lo < hi; lo++ {
		e := r.e[lo*d:][:d]
		var s float64
		for j, v := range e {
			s += float64(v * p.u[j])
		}
		t := p.weight(r.y[lo], r.norm[lo], s)
		w.counted += p.counts(t, r.norm[lo])
		for j, v := range e {
			part[j] += v * t
		}
	}
	for j, v := range part {
		w.block[j] += int64(v)
		part[j] = 0
	}
}

// weight returns τ for the product s = ⟨e, u⟩/E. Neither it nor counts has a branch
// that the data decide.
func (p *pass) weight(y, norm, s float64) float64 {
	t := float64((y-float64(norm*s))*norm) * p.quotient
	rounded := (min(math.Abs(t), p.top) + magic) - magic
	return math.Float64frombits(math.Float64bits(rounded) | math.Float64bits(t)&(1<<63))
}

// counts returns 1 if |τ| ≤ ⌊cE⌋ and the row is not null.
func (p *pass) counts(t, norm float64) int64 {
	return int64(math.Float64bits(math.Abs(t)-p.limit) >> 63 &^ (math.Float64bits(norm) >> 63))
}

// one adds row i with products in int64.
func (w *worker) one(p *pass, i int) {
	e := p.rows.row(i)
	var s float64
	for j, v := range e {
		s += float64(v * p.u[j])
	}
	t := p.weight(p.rows.y[i], p.rows.norm[i], s)
	w.counted += p.counts(t, p.rows.norm[i])
	for j, v := range e {
		w.block[j] += int64(v) * int64(t)
	}
}
