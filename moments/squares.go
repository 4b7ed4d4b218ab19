package moments

// squares sums the products k_ik_j, i ≤ j, of integer vectors with ‖k‖₂ ≤ K,
// exactly: in float64, whose 53 bits hold them, four records at a time.
//
// A record adds an integer of size at most K² to an entry of the diagonal and at
// most K²/2 to another one. So entries and all their partial sums are exact in
// float64 for ⌊2⁵³/K²⌋ and twice as many records, in any order and fused or not;
// then they move to int64. Where four records do not fit, K > 2²⁵·⁵, products are
// formed in int64. Both forms give the same integers.
type squares struct {
	dim int
	sum []int64 // in row order of the upper triangle

	part  []float64 // not yet in sum; nil for the integer form
	rows  []float64 // up to four records, one after the other
	held  int       // records in rows
	added int       // records in part, modulo room on its diagonal
	room  int       // records that the diagonal of part holds
}

// group is the number of records that go through the triangle together: fewer
// loads and stores of it a record.
const group = 4

// newSquares returns an empty sum for vectors of length dim and norm at most k.
func newSquares(dim int, k int64) squares {
	s := squares{dim: dim, sum: make([]int64, dim*(dim+1)/2)}
	if room := (1 << 53) / (k * k); room >= group {
		s.part = make([]float64, len(s.sum))
		s.rows = make([]float64, group*dim)
		s.room = int(min(room, 1<<30)) / group * group
	}
	return s
}

// add adds kkᵀ. The caller sees to it that the sums stay below 2⁶³.
func (s *squares) add(k []int64) {
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

// flushRows moves the held records to part, those that are missing as zeros. It
// goes through the triangle two rows at a time, which halves the loads.
func (s *squares) flushRows() {
	d := s.dim
	clear(s.rows[s.held*d:])
	r0, r1, r2, r3 := s.rows[:d], s.rows[d:2*d], s.rows[2*d:3*d], s.rows[3*d:4*d]
	part := s.part
	for {
		a0, a1, a2, a3 := r0[0], r1[0], r2[0], r3[0]
		part[0] += (a0*a0 + a1*a1) + (a2*a2 + a3*a3)
		n := len(r0) - 1
		if n == 0 {
			break
		}
		r0, r1, r2, r3 = r0[1:][:n], r1[1:][:n], r2[1:][:n], r3[1:][:n]
		upper, lower := part[1:][:n], part[1+n:][:n]
		part = part[1+2*n:]
		b0, b1, b2, b3 := r0[0], r1[0], r2[0], r3[0]
		for j := range upper {
			x0, x1, x2, x3 := r0[j], r1[j], r2[j], r3[j]
			upper[j] += (a0*x0 + a1*x1) + (a2*x2 + a3*x3)
			lower[j] += (b0*x0 + b1*x1) + (b2*x2 + b3*x3)
		}
		if n == 1 {
			break
		}
		r0, r1, r2, r3 = r0[1:], r1[1:], r2[1:], r3[1:]
	}
	s.held = 0
	switch s.added += group; s.added {
	case s.room:
		s.flushDiagonal()
	case 2 * s.room:
		s.flushPart()
	}
}

// flushDiagonal moves the diagonal of part to sum.
func (s *squares) flushDiagonal() {
	for i, n := 0, s.dim; n > 0; n-- {
		s.sum[i] += int64(s.part[i])
		s.part[i] = 0
		i += n
	}
}

// flushPart moves part to sum.
func (s *squares) flushPart() {
	sum := s.sum[:len(s.part)]
	for i, p := range s.part {
		sum[i] += int64(p)
	}
	clear(s.part)
	s.added = 0
}

// total returns the sums. They are valid until the next call of a method.
func (s *squares) total() []int64 {
	if s.held > 0 {
		s.flushRows()
	}
	if s.added > 0 {
		s.flushPart()
	}
	return s.sum
}

// reset empties the sum.
func (s *squares) reset() {
	clear(s.sum)
	clear(s.part)
	s.held, s.added = 0, 0
}
