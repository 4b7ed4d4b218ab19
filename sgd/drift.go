package sgd

import (
	"math"
	"slices"

	"streamdp/internal/bin"
)

// jump notices that the gradients have become larger at once: a clip threshold
// above factor times the median of the last ones. It reads released numbers only.
type jump struct {
	factor float64
	recent []float64 // ring, most recent last
}

// The thresholds that a jump is compared with: at most so many, and none before
// there are so few.
const (
	recentMost  = 50
	recentLeast = 20
)

// sees reports whether zeta jumps out of its history, and appends it.
func (j *jump) sees(zeta float64) bool {
	jumped := len(j.recent) >= recentLeast && zeta > float64(j.factor*median(j.recent))
	if len(j.recent) == recentMost {
		copy(j.recent, j.recent[1:])
		j.recent = j.recent[:recentMost-1]
	}
	j.recent = append(j.recent, zeta)
	return jumped
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

func (j *jump) appendTo(w *bin.Writer) {
	w.Uint(uint64(len(j.recent)))
	for _, z := range j.recent {
		w.Float(z)
	}
}

func (j *jump) restore(r *bin.Reader) {
	j.recent = append(j.recent[:0], floats(r, r.Index(recentMost+1))...)
}

// drift notices that the iterates wander: means m_1, m_2, … of length successive
// iterates. The newest is out of line if, with k ≥ 4 earlier ones of mean m̄,
//
//	‖m_new − m̄‖² > (1 + 6√(2/d))·(1 + 1/k)·½·mean_{2≤i≤k} ‖m_i − m_{i−1}‖²
//
// where the right side estimates the left one's expectation, and 6 standard
// deviations more, for independent means.
type drift struct {
	length uint64

	count uint64    // iterates in block
	block []float64 // the open sum

	blocks  uint64
	sum     []float64 // Σ m_i
	last    []float64
	squares float64 // Σ ‖m_i − m_{i−1}‖²
}

func newDrift(length uint64, dim int) *drift {
	return &drift{length: length, block: make([]float64, dim), sum: make([]float64, dim), last: make([]float64, dim)}
}

const driftLeast = 4

// sees takes the next iterate and reports whether a block that it ends is out of
// line.
func (d *drift) sees(w []float64) bool {
	for i, v := range w {
		d.block[i] += v
	}
	if d.count++; d.count < d.length {
		return false
	}
	d.count = 0
	dim, k := float64(len(w)), float64(d.blocks)
	var off, step float64
	for i := range d.block {
		m := d.block[i] / float64(d.length)
		d.block[i] = m
		if d.blocks > 0 {
			x, y := m-d.sum[i]/k, m-d.last[i]
			off += float64(x * x)
			step += float64(y * y)
		}
	}
	if d.blocks >= driftLeast {
		allowed := (1 + float64(6*math.Sqrt(2/dim))) * (1 + 1/k) / 2 * (d.squares / (k - 1))
		if off > allowed {
			return true
		}
	}
	if d.blocks > 0 {
		d.squares += step
	}
	d.blocks++
	for i, m := range d.block {
		d.sum[i] += m
	}
	copy(d.last, d.block)
	clear(d.block)
	return false
}

func (d *drift) reset() {
	d.count, d.blocks, d.squares = 0, 0, 0
	clear(d.block)
	clear(d.sum)
	clear(d.last)
}

func (d *drift) appendTo(w *bin.Writer) {
	w.Uint(d.count)
	w.Uint(d.blocks)
	w.Float(d.squares)
	for _, x := range [][]float64{d.block, d.sum, d.last} {
		for _, v := range x {
			w.Float(v)
		}
	}
}

func (d *drift) restore(r *bin.Reader) {
	d.count = r.Uint()
	d.blocks = r.Uint()
	d.squares = r.Float()
	r.Bad = r.Bad || d.count >= d.length || d.squares < 0
	dim := len(d.block)
	d.block, d.sum, d.last = floats(r, dim), floats(r, dim), floats(r, dim)
}
