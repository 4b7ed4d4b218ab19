package gram

import "math"

// Exact sums the products k_ik_j, i ≤ j, of integer vectors with ‖k‖₂ ≤ K. The sums are exact: it adds four vectors at
// a time in float64, whose 53 bits hold the products.
//
// A vector adds an integer of size at most K² to an entry of the diagonal, and of at most K²/2 to another entry. So the
// diagonal and all its partial sums are exact in float64 for ⌊2⁵³/K²⌋ vectors, the other entries for twice as many, in
// any order and fused or not. Then the sums move to int64. If four vectors do not fit (K > 2²⁵·⁵), products are
// computed in int64. Both forms give the same integers, and so do the kernels in assembly.
//
// Cost: d²/2 multiplications a vector, d² numbers; nothing is allocated.
type Exact struct {
	dim int
	sum []int64 // upper triangle, row by row

	part  tiles     // sums that are not yet in sum; nil for the integer form
	rows  []float64 // up to four vectors, one after the other, each padded by zeros to whole tiles
	width int       // length of a vector in rows
	held  int       // number of vectors in rows
	added int       // number of vectors in part since its diagonal was last moved
	room  int       // number of vectors up to which the diagonal of part is exact
	clean bool      // nothing has been moved to sum
	one   []int64   // scratch: a single vector
}

// NewExact returns an empty sum for vectors of length dim and norm at most k.
func NewExact(dim int, k int64) Exact {
	s := Exact{dim: dim, sum: make([]int64, dim*(dim+1)/2), clean: true}
	if room := (1 << 53) / (k * k); room >= group {
		s.part, s.width = newTiles(dim), wholeTiles(dim)
		s.rows, s.one = make([]float64, group*s.width), make([]int64, dim)
		s.room = int(min(room, 1<<30)) / group * group
	}
	return s
}

// Add adds kkᵀ. The caller must ensure that the sums stay below 2⁶³.
func (s *Exact) Add(k []int64) {
	if s.part == nil {
		addProducts(s.sum, k)
		return
	}
	row := s.rows[s.held*s.width:][:len(k)]
	for i, v := range k {
		row[i] = float64(v)
	}
	if s.held++; s.held == group {
		s.flushRows()
	}
}

// addProducts adds the products of one vector in int64.
func addProducts(sum, k []int64) {
	for i, ki := range k {
		tail := k[i:]
		row := sum[:len(tail)]
		sum = sum[len(tail):]
		for j, kj := range tail {
			row[j] += ki * kj
		}
	}
}

// flushRows adds the held vectors to part; missing ones count as zeros.
func (s *Exact) flushRows() {
	clear(s.rows[s.held*s.width:])
	s.part.add(s.rows, s.dim, fused)
	s.held = 0
	switch s.added += group; s.added {
	case s.room:
		s.clean = false
		s.part.moveDiagonal(s.sum, s.dim)
	case 2 * s.room:
		s.flushPart()
	}
}

// flushPart moves part to sum.
func (s *Exact) flushPart() {
	s.part.move(s.sum, s.dim)
	s.added, s.clean = 0, false
}

// Total returns the sums. They are valid until the next call of a method.
func (s *Exact) Total() []int64 {
	if s.held > 0 {
		s.flushRows()
	}
	if s.added > 0 {
		s.flushPart()
	}
	return s.sum
}

// RoundInto rounds the sums to the nearest multiples of 2^shift, halves up, adds them to dst in units of 2^shift, and
// sets the sums to 0. A single vector is added to dst directly. The caller must ensure that the sums and dst, plus half
// a unit, stay below 2⁶³.
func (s *Exact) RoundInto(dst []int64, shift uint) {
	half := int64(0)
	if shift > 0 {
		half = 1 << (shift - 1)
	}
	if s.clean && s.added == 0 && s.held == 1 {
		one := s.rows[:s.dim]
		if s.held = 0; vector && shift > 0 {
			addNearest(dst, one, shift)
			return
		}
		for i, v := range one {
			s.one[i] = int64(v)
		}
		addRounded(dst, s.one, half, shift)
		return
	}
	for i, p := range s.Total()[:len(dst)] {
		dst[i] += (p + half) >> (shift & 63)
	}
	s.Reset()
}

// addRounded adds the products of one vector, each rounded.
func addRounded(dst, k []int64, half int64, shift uint) {
	for i, ki := range k {
		tail := k[i:]
		row := dst[:len(tail)]
		dst = dst[len(tail):]
		for j, kj := range tail {
			row[j] += (ki*kj + half) >> (shift & 63)
		}
	}
}

// addNearest is addRounded in float64, for products p of at most 2⁵¹ and shift ≥ 1. ⌊p/2^shift + ½⌋ is the integer
// nearest to (2p+1)/2^(shift+1), which is exact and never halfway between two integers.
func addNearest(dst []int64, k []float64, shift uint) {
	unit := math.Ldexp(1, -int(shift))
	odd := unit / 2
	for i, ki := range k {
		tail := k[i:]
		row := dst[:len(tail)]
		dst = dst[len(tail):]
		v := ki * unit
		if whole := len(tail) &^ (group - 1); whole > 0 {
			addNearestRow(&row[0], &tail[0], whole, v, odd)
			tail, row = tail[whole:], row[whole:]
		}
		for j, x := range tail {
			row[j] += int64(math.Float64bits(float64(v*x)+odd+magic)) - magicBits
		}
	}
}

// Adding magic, 1.5·2⁵², to a number below 2⁵¹ leaves the nearest integer in the low bits.
const (
	magic     = 3 << 51
	magicBits = 0x4338 << 48
)

// Reset empties the sum.
func (s *Exact) Reset() {
	clear(s.sum)
	clear(s.part)
	s.held, s.added, s.clean = 0, 0, true
}
