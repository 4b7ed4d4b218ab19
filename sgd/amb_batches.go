package sgd

import (
	"math"

	"github.com/streamdp/streamdp/internal/bin"
)

// batches holds the means of successive batches of equal length over a sequence of unknown length. When there are
// batchesMost batches, it merges neighbours and doubles the length.
//
// The scatter of the means estimates the variance of averages of the sequence, which may be correlated: the longer the
// batches are, the less they depend on each other.
//
// Cost: O(d) a vector, 2·batchesMost·d numbers.
type batches struct {
	first uint64 // the initial length

	length uint64
	sums   [][]float64 // complete batches
	count  uint64      // number of vectors in open
	open   []float64
}

const batchesMost = 20

func newBatches(first uint64, dim int) *batches {
	return &batches{first: first, length: first, open: make([]float64, dim)}
}

func (b *batches) add(w []float64) {
	for i, v := range w {
		b.open[i] += v
	}
	if b.count++; b.count < b.length {
		return
	}
	b.count = 0
	b.sums = append(b.sums, b.open)
	b.open = make([]float64, len(w))
	if len(b.sums) < batchesMost {
		return
	}
	for i := range batchesMost / 2 {
		left, right := b.sums[2*i], b.sums[2*i+1]
		for j, v := range right {
			left[j] += v
		}
		b.sums[i] = left
	}
	b.sums = b.sums[:batchesMost/2]
	b.length *= 2
}

// total returns the number of vectors.
func (b *batches) total() uint64 { return uint64(len(b.sums))*b.length + b.count }

// error writes into se the standard error of an average over the last ¾ of the sequence. It returns the number of
// batches that it used: all complete ones in that part. If there are fewer than 2, it leaves se unchanged.
func (b *batches) error(se []float64) (used int) {
	skip := b.total() / 4
	first := int((skip + b.length - 1) / b.length)
	if first > len(b.sums) {
		first = len(b.sums)
	}
	sums := b.sums[first:]
	used = len(sums)
	if used < 2 {
		return used
	}
	n, length := float64(used), float64(b.length)
	for j := range se {
		var mean, square float64
		for _, s := range sums {
			mean += s[j] / length
		}
		mean /= n
		for _, s := range sums {
			x := s[j]/length - mean
			square += float64(x * x)
		}
		se[j] = math.Sqrt(square / (n - 1) / n)
	}
	return used
}

func (b *batches) reset() {
	b.length, b.sums, b.count = b.first, nil, 0
	clear(b.open)
}

func (b *batches) appendTo(w *bin.Writer) {
	w.Uint(b.length)
	w.Uint(b.count)
	w.Uint(uint64(len(b.sums)))
	for _, s := range append(b.sums[:len(b.sums):len(b.sums)], b.open) {
		for _, v := range s {
			w.Float(v)
		}
	}
}

func (b *batches) restore(r *bin.Reader) {
	b.length = r.Uint()
	b.count = r.Uint()
	n := r.Index(batchesMost)
	quotient := b.length / b.first
	if b.length%b.first != 0 || quotient == 0 || quotient&(quotient-1) != 0 || b.count >= b.length ||
		quotient > 1 && n < batchesMost/2 {
		r.Bad = true
		return
	}
	b.sums = nil
	for range n {
		b.sums = append(b.sums, floats(r, len(b.open)))
	}
	b.open = floats(r, len(b.open))
}
