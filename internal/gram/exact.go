package gram

// Exact sums the products k_ik_j, i ≤ j, of integer vectors with ‖k‖₂ ≤ K,
// exactly: in float64, whose 53 bits hold them, four vectors at a time.
//
// A vector adds an integer of size at most K² to an entry of the diagonal and at
// most K²/2 to another one. So entries and all their partial sums are exact in
// float64 for ⌊2⁵³/K²⌋ and twice as many vectors, in any order and fused or not;
// then they move to int64. Where four vectors do not fit, K > 2²⁵·⁵, products are
// formed in int64. Both forms give the same integers.
//
// Cost: d²/2 multiplications a vector, d² numbers; nothing is allocated.
type Exact struct {
	dim int
	sum []int64 // in row order of the upper triangle

	part  []float64 // not yet in sum; nil for the integer form
	rows  []float64 // up to four vectors, one after the other
	held  int       // vectors in rows
	added int       // vectors in part, modulo room on its diagonal
	room  int       // vectors that the diagonal of part holds
}

// NewExact returns an empty sum for vectors of length dim and norm at most k.
func NewExact(dim int, k int64) Exact {
	s := Exact{dim: dim, sum: make([]int64, dim*(dim+1)/2)}
	if room := (1 << 53) / (k * k); room >= group {
		s.part = make([]float64, len(s.sum))
		s.rows = make([]float64, group*dim)
		s.room = int(min(room, 1<<30)) / group * group
	}
	return s
}

// Add adds kkᵀ. The caller sees to it that the sums stay below 2⁶³.
func (s *Exact) Add(k []int64) {
	if s.part == nil {
		addProducts(s.sum, k)
		return
	}
	row := s.rows[s.held*s.dim:][:len(k)]
	for i, v := range k {
		row[i] = float64(v)
	}
	if s.held++; s.held == group {
		s.flushRows()
	}
}

// addProducts is the integer form.
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

// flushRows moves the held vectors to part, those that are missing as zeros.
func (s *Exact) flushRows() {
	clear(s.rows[s.held*s.dim:])
	addGroup(s.part, s.rows, s.dim)
	s.held = 0
	switch s.added += group; s.added {
	case s.room:
		s.flushDiagonal()
	case 2 * s.room:
		s.flushPart()
	}
}

// flushDiagonal moves the diagonal of part to sum.
func (s *Exact) flushDiagonal() {
	for i, n := 0, s.dim; n > 0; n-- {
		s.sum[i] += int64(s.part[i])
		s.part[i] = 0
		i += n
	}
}

// flushPart moves part to sum.
func (s *Exact) flushPart() {
	sum := s.sum[:len(s.part)]
	for i, p := range s.part {
		sum[i] += int64(p)
	}
	clear(s.part)
	s.added = 0
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

// Reset empties the sum.
func (s *Exact) Reset() {
	clear(s.sum)
	clear(s.part)
	s.held, s.added = 0, 0
}
