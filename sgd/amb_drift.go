package sgd

import (
	"math"

	"github.com/streamdp/streamdp/internal/bin"
)

// drift detects that the iterates move away. It computes means m_1, m_2, …, each of length successive iterates. Let m̄
// be the average of the k ≥ 4 earlier means. The newest mean is out of line if
//
//	‖m_new − m̄‖² > (1 + 6√(2/d))·(1 + 1/k)·½·mean_{2≤i≤k} ‖m_i − m_{i−1}‖²
//
// For independent means, the right side estimates the expectation of the left side plus 6 of its standard deviations.
type drift struct {
	length uint64

	count uint64    // number of iterates in block
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

// observe takes the next iterate. It reports whether this iterate completes a block that is out of line.
func (d *drift) observe(w []float64) bool {
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
