package refit

import (
	"runtime"
	"sync"

	"github.com/streamdp/streamdp/internal/clipgrad"
	"github.com/streamdp/streamdp/internal/gram"
)

// rowSums holds everything that least squares needs to know about a window: Σ [x, y][x, y]ᵀ and the number of rows. It
// is computed row by row in O(d²) memory. The sums of a window are the sums of its blocks' sums.
type rowSums struct {
	dim, n int
	sum    *gram.Sum
	row    []float64
	few    []float64 // scratch for a few rows, nil before the first one
}

// newRowSums returns the sums of an empty window with rows of dim features.
func newRowSums(dim int) *rowSums {
	return &rowSums{dim: dim, sum: gram.NewSum(dim + 1), row: make([]float64, dim+1)}
}

// Add adds a row of a window.
func (s *rowSums) Add(x []float64, y float64) {
	copy(s.row, x)
	s.row[s.dim] = y
	s.sum.Add(s.row)
	s.n++
}

// addRows adds rows lo … hi−1 of a window, a few at a time.
func (s *rowSums) addRows(w *Data, lo, hi int) {
	const few = 16
	if s.few == nil {
		s.few = make([]float64, few*(s.dim+1))
	}
	rows := s.few
	for ; lo < hi; lo += few {
		n := min(few, hi-lo)
		for i := range n {
			row := rows[i*(s.dim+1):][:s.dim+1]
			row[copy(row, w.row(lo+i))] = w.y[lo+i]
		}
		s.sum.Add(rows[:n*(s.dim+1)])
		s.n += n
	}
}

// Merge adds the sums of another block of rows.
func (s *rowSums) Merge(o *rowSums) {
	s.sum.Merge(o.sum)
	s.n += o.n
}

// Reset empties the sums.
func (s *rowSums) Reset() {
	s.sum.Reset()
	s.n = 0
}

// Len returns the number of rows.
func (s *rowSums) Len() int { return s.n }

// joint returns the upper triangle of Σ [x, y][x, y]ᵀ, row by row.
func (s *rowSums) joint() []float64 { return s.sum.Upper() }

// gram returns the upper triangle of Σ xxᵀ, row by row.
func (s *rowSums) gram() []float64 {
	upper := make([]float64, 0, s.dim*(s.dim+1)/2)
	joint := s.joint()
	for i := range s.dim {
		upper = append(upper, joint[:s.dim-i]...)
		joint = joint[s.dim-i+1:]
	}
	return upper
}

// xy returns Σ xy.
func (s *rowSums) xy() []float64 {
	xy := make([]float64, s.dim)
	joint := s.joint()
	for i := range xy {
		xy[i] = joint[s.dim-i]
		joint = joint[s.dim-i+1:]
	}
	return xy
}

// segments is the number of parts into which a window is divided. It does not depend on the number of processors, so
// the bits of a sum do not either.
const segments = 8

// sumsOf returns the sums over a window. It adds in the same order on every machine.
func sumsOf(w *Data) *rowSums { return sumsAnd(w, func(lo, hi int) {}) }

// sumsAnd computes the sums like sumsOf. It also calls the function `then` once for each range of rows, after their
// sums are done and while the rows are still in the cache. Several goroutines may call `then` at once; `then` may
// overwrite its rows.
func sumsAnd(w *Data, then func(lo, hi int)) *rowSums {
	var parts [segments]*rowSums
	eachSegment(w.Len(), func(part, lo, hi int) {
		s := newRowSums(w.dim)
		for lo < hi {
			next := min(hi, (lo/clipgrad.UnitRows+1)*clipgrad.UnitRows)
			s.addRows(w, lo, next)
			then(lo, next)
			lo = next
		}
		s.joint()
		parts[part] = s
	})
	for _, s := range parts[1:] {
		parts[0].Merge(s)
	}
	return parts[0]
}

// eigenError returns a bound on the error of a computed eigenvalue of the Gram matrix of n rows of squared norm at most
// bound. It covers the sums and internal/eigen, with a margin.
func eigenError(n, d int, bound float64) float64 {
	return bound * (gram.Error(n, segments) + float64(n)*float64(d)*0x1p-48)
}

// eachSegment calls f with every segment of n rows, lo … hi−1, on all processors.
func eachSegment(n int, f func(part, lo, hi int)) {
	each(segments, func(i int) { f(i, i*n/segments, (i+1)*n/segments) })
}

// each calls f(0) … f(n−1), on all processors.
func each(n int, f func(i int)) {
	workers := min(runtime.GOMAXPROCS(0), n)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	group.Wait()
}
