package refit

import (
	"math"
	"math/bits"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// srht is a subsampled randomised Hadamard transform, S = H̃[rows]·B/√k₂ ∈ ℝ^(k₂×N). B holds random signs, H̃ is a
// Walsh–Hadamard transform of length N, the smallest power of two ≥ n, and rows selects k₂ of its rows. It is applied
// to n rows, padded by N − n rows of zeros. The columns of S have norm 1.
//
// Signs and the selected rows of H̃ are public: they do not depend on records, and no guarantee relies on them.
type srht struct {
	n, padded int
	signs     []float64 // random signs of the first n rows
	rows      []int
}

// drawSRHT draws a transform of n rows to k₂ ≤ N.
func drawSRHT(n, k2 int, row dp.Row) *srht {
	s := &srht{n: n, padded: padded(n), signs: make([]float64, n)}
	for i := range s.signs {
		s.signs[i] = 1 - 2*float64(row.Word(i)>>63)
	}
	all := make([]int, s.padded)
	for i := range all {
		all[i] = i
	}
	for i := range k2 { // the shuffle of Fisher and Yates
		hi, _ := bits.Mul64(row.Word(n+i), uint64(s.padded-i))
		j := i + int(hi)
		all[i], all[j] = all[j], all[i]
	}
	s.rows = all[:k2]
	return s
}

// padded returns the least power of two that is at least n.
func padded(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// apply returns Z = SX, a k₂×d matrix, and the largest distortion of a row by the transform,
//
//	m̂ = max_{i≤n} ‖ZᵀSe_i − x_i‖
//
// computed by (SᵀS − I)X = B·H̃W, where U = H̃BX and W = −U/N, plus U/k₂ in the sampled rows. The maximum leaves out
// the rows of the padding, because they are the same in all neighbours.
//
// Cost: two transforms of N×d.
func (s *srht) apply(x []float64, d int) (z []float64, distortion float64) {
	u := make([]float64, s.padded*d)
	for i, sign := range s.signs {
		for j, v := range x[i*d:][:d] {
			u[i*d+j] = sign * v
		}
	}
	walshHadamard(u, d)
	k2 := float64(len(s.rows))
	z = make([]float64, len(s.rows)*d)
	for r, i := range s.rows {
		for j, v := range u[i*d:][:d] {
			z[r*d+j] = v / math.Sqrt(k2)
		}
	}
	for i := range u {
		u[i] /= -float64(s.padded)
	}
	for r, i := range s.rows {
		for j := range u[i*d:][:d] {
			u[i*d+j] += z[r*d+j] / math.Sqrt(k2)
		}
	}
	walshHadamard(u, d)
	for i := range s.n {
		row := u[i*d:][:d]
		distortion = max(distortion, vector.Dot2(row, row))
	}
	return z, math.Sqrt(distortion)
}

// coherence returns Δ̂ = max_{i≠j} |⟨Se_i, Se_j⟩|. Except for signs it depends only on i XOR j, so one transform of the
// indicator of the sampled rows gives all values.
func (s *srht) coherence() float64 {
	z := make([]float64, s.padded)
	for _, i := range s.rows {
		z[i] = 1
	}
	walshHadamard(z, 1)
	var largest float64
	for _, v := range z[1:] {
		largest = max(largest, math.Abs(v))
	}
	return largest / float64(len(s.rows))
}
