// Package gram sums outer products of rows, Σ xxᵀ: exactly for integer rows, in float64 for others. A sum is stored as
// the upper triangle of a symmetric matrix, row by row.
package gram

// group is the number of rows that are added to the triangle together, so that the triangle is loaded and stored less
// often.
const group = 4

// addGroup adds Σ xxᵀ of the first group rows of x to upper. It handles two rows of the triangle at a time, which
// halves the loads, and with kernels four of its columns. No operation is fused, and the order of operations is fixed,
// so a sum has the same bits on every machine.
func addGroup(upper, x []float64, d int, kernels bool) {
	r0, r1, r2, r3 := x[:d], x[d:2*d], x[2*d:3*d], x[3*d:4*d]
	for {
		a0, a1, a2, a3 := r0[0], r1[0], r2[0], r3[0]
		upper[0] += (float64(a0*a0) + float64(a1*a1)) + (float64(a2*a2) + float64(a3*a3))
		n := len(r0) - 1
		if n == 0 {
			return
		}
		r0, r1, r2, r3 = r0[1:][:n], r1[1:][:n], r2[1:][:n], r3[1:][:n]
		b0, b1, b2, b3 := r0[0], r1[0], r2[0], r3[0]
		first, second := upper[1:][:n], upper[1+n:][:n]
		upper = upper[1+2*n:]
		y0, y1, y2, y3 := r0, r1, r2, r3
		if kernels && n >= group {
			from := n &^ (group - 1)
			addPairs(&first[0], &second[0], &r0[0], &r1[0], &r2[0], &r3[0], from,
				&[2 * group]float64{a0, a1, a2, a3, b0, b1, b2, b3})
			first, second = first[from:], second[from:]
			y0, y1, y2, y3 = r0[from:], r1[from:], r2[from:], r3[from:]
		}
		second = second[:len(first)]
		y0, y1, y2, y3 = y0[:len(first)], y1[:len(first)], y2[:len(first)], y3[:len(first)]
		for j := range first {
			x0, x1, x2, x3 := y0[j], y1[j], y2[j], y3[j]
			first[j] += (float64(a0*x0) + float64(a1*x1)) + (float64(a2*x2) + float64(a3*x3))
			second[j] += (float64(b0*x0) + float64(b1*x1)) + (float64(b2*x2) + float64(b3*x3))
		}
		if n == 1 {
			return
		}
		r0, r1, r2, r3 = r0[1:], r1[1:], r2[1:], r3[1:]
	}
}

// blockRows is the number of rows that are summed before they are added to the total. So rounding errors grow with the
// number of blocks, not with the number of rows.
const blockRows = 4096

// Sum is Σ xxᵀ of rows, in float64.
//
// Cost: d²/2 multiplications a row, four at a time with AVX2, d² numbers; Add allocates
// nothing.
// Accuracy: see Error.
type Sum struct {
	dim    int
	total  []float64
	block  []float64
	groups int       // number of groups in block
	rows   []float64 // up to group−1 rows, one after the other
}

// NewSum returns an empty sum for rows of length dim.
func NewSum(dim int) *Sum {
	size := dim * (dim + 1) / 2
	return &Sum{dim: dim, total: make([]float64, size), block: make([]float64, size),
		rows: make([]float64, 0, group*dim)}
}

// Error returns an upper bound on the error of a sum, in the Frobenius norm. The sum is over n rows of norm at most 1,
// and over up to parts merged sums. A term is rounded at most 3 times, and then once in each addition of its block, of
// the blocks, and of the parts.
func Error(n, parts int) float64 {
	return float64(
		float64(n) * (3 + blockRows/group + float64(n)/blockRows + float64(parts) + 2) * 0x1p-53 * (1 + 0x1p-20))
}

// Add adds xxᵀ of the row x, or of several rows that are stored one after the other.
func (s *Sum) Add(x []float64) {
	for len(x) > 0 {
		if full := group * s.dim; len(s.rows) == 0 && len(x) >= full {
			s.addGroup(x)
			x = x[full:]
			continue
		}
		s.rows = append(s.rows, x[:s.dim]...)
		x = x[s.dim:]
		if len(s.rows) == cap(s.rows) {
			s.addGroup(s.rows)
			s.rows = s.rows[:0]
		}
	}
}

func (s *Sum) addGroup(x []float64) {
	addGroup(s.block, x, s.dim, vector)
	if s.groups++; s.groups == blockRows/group {
		s.endBlock()
	}
}

func (s *Sum) endBlock() {
	for i, v := range s.block {
		s.total[i] += v
		s.block[i] = 0
	}
	s.groups = 0
}

// Upper ends the block and returns the sum. It is valid until the next call of a method.
func (s *Sum) Upper() []float64 {
	if held := len(s.rows); held > 0 { // missing rows count as zeros
		s.rows = s.rows[:cap(s.rows)]
		clear(s.rows[held:])
		addGroup(s.block, s.rows, s.dim, vector)
		s.rows = s.rows[:0]
		s.groups++
	}
	if s.groups > 0 {
		s.endBlock()
	}
	return s.total
}

// Merge adds another sum of rows of the same length, and leaves that one unchanged. The sum over a window is the merged
// sum of its blocks. Nothing is ever subtracted, so it stays positive semidefinite up to the accuracy of a sum.
func (s *Sum) Merge(o *Sum) {
	s.Upper()
	for i, v := range o.Upper() {
		s.total[i] += v
	}
}

// Reset empties the sum.
func (s *Sum) Reset() {
	clear(s.total)
	clear(s.block)
	s.rows, s.groups = s.rows[:0], 0
}
