package sgd

import (
	"math/bits"

	"github.com/streamdp/streamdp/internal/bin"
)

// average is an average of the last part of a sequence of unknown length.
type average interface {
	// add appends the next vector.
	add(w []float64)
	// mean writes the average into dst. It returns how many vectors at the beginning it leaves out.
	mean(dst []float64) (after uint64)
	// length returns the number of vectors.
	length() uint64
	// reset forgets everything.
	reset()
	appendTo(w *bin.Writer)
	restore(r *bin.Reader)
}

// tail is the mean of w_{a+1} … w_T, where a is the largest power of two that is at most fT, or 0 if fT < 1. So it
// leaves out the first fT/2 to fT vectors. f is fraction, but ½ while T is below young.
//
// Block 0 holds w_1, and block j holds the sum of w_i over 2^(j−1) < i ≤ 2^j. The blocks above log₂a contain exactly
// the vectors to average. So no sum is ever subtracted.
//
// Cost: O(d) to add, O(d log T) for the mean and in memory.
// Source: Varshney, Thakurta, Jain (2022), who know T and average the last half.
type tail struct {
	fraction float64
	young    uint64
	dim      int
	count    uint64
	blocks   [][]float64
}

func newTail(fraction float64, young uint64, dim int) *tail {
	return &tail{fraction: fraction, young: young, dim: dim}
}

func (a *tail) add(w []float64) {
	a.count++
	if j := bits.Len64(a.count - 1); j == len(a.blocks) {
		a.blocks = append(a.blocks, make([]float64, a.dim))
	}
	block := a.blocks[len(a.blocks)-1]
	for i, v := range w {
		block[i] += v
	}
}

func (a *tail) mean(dst []float64) (after uint64) {
	f := a.fraction
	if a.count < a.young {
		f = 0.5
	}
	first := 0
	if most := uint64(float64(f * float64(a.count))); most > 0 {
		first = bits.Len64(most) // blocks 0 … log₂a hold w_1 … w_a
		after = 1 << (first - 1)
	}
	clear(dst)
	for _, block := range a.blocks[min(first, len(a.blocks)):] {
		for i, v := range block {
			dst[i] += v
		}
	}
	n := float64(max(a.count, 1) - after)
	for i := range dst {
		dst[i] /= n
	}
	return after
}

func (a *tail) length() uint64 { return a.count }

func (a *tail) reset() { a.count, a.blocks = 0, nil }

func (a *tail) appendTo(w *bin.Writer) {
	w.Uint(a.count)
	for _, block := range a.blocks {
		for _, v := range block {
			w.Float(v)
		}
	}
}

func (a *tail) restore(r *bin.Reader) {
	a.reset()
	a.count = r.Uint()
	if a.count == 0 {
		return
	}
	for range bits.Len64(a.count-1) + 1 {
		if r.Bad {
			return
		}
		a.blocks = append(a.blocks, floats(r, a.dim))
	}
}

// smooth is the average w̄_t = (1 − c_t)w̄_{t−1} + c_t·w_t, c_t = 4/(t+3). The weights grow as t³: the last half of the
// vectors has 94 % of the weight. This average needs no blocks and changes smoothly.
//
// Cost: O(d).
type smooth struct {
	count uint64
	value []float64
}

func newSmooth(dim int) *smooth { return &smooth{value: make([]float64, dim)} }

func (a *smooth) add(w []float64) {
	a.count++
	c := 4 / (float64(a.count) + 3)
	for i, v := range w {
		a.value[i] += float64(c * (v - a.value[i]))
	}
}

func (a *smooth) mean(dst []float64) (after uint64) {
	copy(dst, a.value)
	return 0
}

func (a *smooth) length() uint64 { return a.count }

func (a *smooth) reset() {
	a.count = 0
	clear(a.value)
}

func (a *smooth) appendTo(w *bin.Writer) {
	w.Uint(a.count)
	for _, v := range a.value {
		w.Float(v)
	}
}

func (a *smooth) restore(r *bin.Reader) {
	a.count = r.Uint()
	a.value = floats(r, len(a.value))
}
