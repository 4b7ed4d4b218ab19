package sgd

import (
	"math"

	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// wander detects that a sequence y_1, y_2, … is no longer stationary. It computes means m of wanderLength successive
// vectors of an epoch. Let m̄ be the mean of the n ≥ 5 earlier means that were not far; it covers about the last 16 of
// them. A new mean is far if
//
//	‖W⁻¹(m − m̄)‖² > (1 + 6√(2/d))·(1 + 1/min(n, 16))·½V
//
// where V is the mean of ‖W⁻¹(m_i − m_{i−1})‖² over about the last 16. Two far means in a row show that the sequence
// has moved.
//
// Cost: O(d²) for each mean, 3d numbers.
type wander struct {
	count uint64 // number of vectors in sum
	sum   []float64

	n        uint64 // number of means in mean
	mean     []float64
	variance float64 // V
	last     []float64
	far      bool // the last mean was far
}

const (
	wanderLength = 8
	wanderMemory = 16
	wanderLeast  = 5
)

func newWander(dim int) wander {
	return wander{sum: make([]float64, dim), mean: make([]float64, dim), last: make([]float64, dim)}
}

// begin starts an epoch: a mean never combines vectors of two epochs.
func (m *wander) begin() {
	m.count = 0
	clear(m.sum)
}

// reset forgets everything.
func (m *wander) reset() {
	m.begin()
	m.n, m.variance, m.far = 0, 0, false
	clear(m.mean)
	clear(m.last)
}

// observe adds the next vector. If the vectors have moved, it returns the mean that shows this; otherwise nil.
func (m *wander) observe(y []float64, white *newton.Whitening) []float64 {
	for j, v := range y {
		m.sum[j] += v
	}
	if m.count++; m.count < wanderLength {
		return nil
	}
	mean := make([]float64, len(y))
	for j, v := range m.sum {
		mean[j] = v / wanderLength
	}
	m.begin()

	distance := func(from []float64) float64 {
		diff, whole := make([]float64, len(y)), make([]float64, len(y))
		for j, v := range mean {
			diff[j] = v - from[j]
		}
		white.Unapply(whole, diff)
		return vector.Dot4(whole, whole)
	}
	n := float64(min(m.n, wanderMemory))
	if m.n >= wanderLeast {
		allowed := (1 + float64(6*math.Sqrt(2/float64(len(y))))) * (1 + 1/n) * float64(m.variance/2)
		if distance(m.mean) > allowed {
			if m.far {
				return mean
			}
			m.far = true
			copy(m.last, mean)
			return nil
		}
	}
	m.far = false
	if m.n > 0 {
		m.variance += (distance(m.last) - m.variance) / n
	}
	m.n++
	n = float64(min(m.n, wanderMemory))
	for j, v := range mean {
		m.mean[j] += (v - m.mean[j]) / n
	}
	copy(m.last, mean)
	return nil
}

func (m *wander) appendTo(w *bin.Writer) {
	w.Uint(m.count)
	w.Uint(m.n)
	w.Float(m.variance)
	far := byte(0)
	if m.far {
		far = 1
	}
	w.Byte(far)
	for _, x := range [][]float64{m.sum, m.mean, m.last} {
		for _, v := range x {
			w.Float(v)
		}
	}
}

func (m *wander) restore(r *bin.Reader) {
	m.count, m.n, m.variance = r.Uint(), r.Uint(), r.Float()
	far := r.Byte()
	m.far = far == 1
	r.Bad = r.Bad || m.count >= wanderLength || m.variance < 0 || far > 1
	dim := len(m.sum)
	m.sum, m.mean, m.last = floats(r, dim), floats(r, dim), floats(r, dim)
}
