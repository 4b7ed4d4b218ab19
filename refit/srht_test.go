package refit

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/vector"
)

// explicit returns the k₂×n matrix S of a transform, entry by entry.
func explicit(s *srht) [][]float64 {
	m := make([][]float64, len(s.rows))
	for r, row := range s.rows {
		m[r] = make([]float64, s.n)
		for i := range m[r] {
			sign := 1.0
			for b := row & i; b > 0; b &= b - 1 {
				sign = -sign
			}
			m[r][i] = sign * s.signs[i] / math.Sqrt(float64(len(s.rows)))
		}
	}
	return m
}

// TestSRHT compares Z, m̂ and Δ̂ with their definitions by an explicit S, for random rows and for all rows, also if
// their number is not a power of two.
func TestSRHT(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 1))
	for trial := range 400 {
		n, d := 1+source.IntN(64), 1+source.IntN(5)
		k2 := 1 + source.IntN(padded(n))
		if trial%20 == 0 {
			k2 = padded(n)
		}
		s := drawSRHT(n, k2, newQuick(uint64(trial)))
		if used := slices.Compact(slices.Sorted(slices.Values(s.rows))); len(used) != k2 || used[0] < 0 ||
			used[k2-1] >= s.padded {
			t.Fatalf("rows %v", s.rows)
		}
		x := make([]float64, n*d)
		for i := range x {
			x[i] = source.NormFloat64()
		}
		m := explicit(s)
		want := make([]float64, k2*d)
		for r := range m {
			for i, v := range m[r] {
				vector.Axpy(want[r*d:][:d], v, x[i*d:][:d])
			}
		}
		z, distortion := s.apply(x, d)
		for i, v := range z {
			if math.Abs(v-want[i]) > 1e-13 {
				t.Fatalf("%d rows to %d: Z is off by %g", n, k2, v-want[i])
			}
		}
		var largest, coherence float64
		for i := range n {
			row := make([]float64, d)
			vector.Axpy(row, -1, x[i*d:][:d])
			for r := range m {
				vector.Axpy(row, m[r][i], want[r*d:][:d])
			}
			largest = max(largest, math.Sqrt(vector.Dot2(row, row)))
			for j := range i {
				var sum float64
				for r := range m {
					sum += m[r][i] * m[r][j]
				}
				coherence = max(coherence, math.Abs(sum))
			}
			var unit float64
			for r := range m {
				unit += m[r][i] * m[r][i]
			}
			if math.Abs(unit-1) > 1e-14 {
				t.Fatalf("column %d has norm² %g", i, unit)
			}
		}
		if math.Abs(distortion-largest) > 1e-12 {
			t.Fatalf("%d rows to %d: m̂ = %g, want %g", n, k2, distortion, largest)
		}
		if n > 1 && math.Abs(s.coherence()-coherence) > 1e-14 {
			t.Fatalf("%d rows to %d: Δ̂ = %g, want %g", n, k2, s.coherence(), coherence)
		}
	}
}

// TestFastSensitivities searches for rows whose removal moves m̂ by more than Δ̂, or λ̂ by more than 1 + 2m̂, for the
// m̂ of either window.
func TestFastSensitivities(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(2, 2))
	topM, topL := 0.0, 0.0
	for trial := range 3000 {
		n, d := 2+source.IntN(30), 1+source.IntN(3)
		s := drawSRHT(n, 1+source.IntN(padded(n)), newQuick(uint64(trial)))
		x := make([]float64, n*d)
		for i := range n {
			row := x[i*d:][:d]
			scale := 1.0
			if trial%2 == 0 && i > 0 {
				scale = 0.02 // one row dominates
			}
			for j := range row {
				row[j] = source.NormFloat64()
			}
			norm := math.Sqrt(vector.Dot2(row, row))
			for j := range row {
				row[j] *= scale / norm
			}
		}
		look := func() (m, lambda float64) {
			z, m := s.apply(x, d)
			return m, leastEigenvalue(gramOf(z, d), d)
		}
		m1, l1 := look()
		clear(x[:d])
		m2, l2 := look()
		if c := s.coherence(); c > 0 {
			topM = max(topM, math.Abs(m1-m2)/c)
		}
		topL = max(topL, math.Abs(l1-l2)/(1+2*min(m1, m2)))
	}
	if topM > 1+1e-12 || topL > 1+1e-12 || topM < 0.9 || topL < 0.9 {
		t.Errorf("m̂ moves by %.6f of Δ̂, λ̂ by %.6f of 1+2m̂", topM, topL)
	}
}

// TestSpread transforms rows that are aligned with one of the sampled rows of H̃. They become much longer, but must
// stay within the bound that is assumed for the errors of their squares.
func TestSpread(t *testing.T) {
	t.Parallel()
	const n, k2 = 1000, 20
	s := drawSRHT(n, k2, newQuick(1))
	x := make([]float64, n)
	for i, sign := range s.signs {
		x[i] = sign * float64(1-2*(bits.OnesCount(uint(i&s.rows[3]))&1))
	}
	z, _ := s.apply(x, 1)
	if sum := vector.Dot2(z, z); sum < 40*n || sum > float64(s.padded/k2+1)*n {
		t.Errorf("squares of %d rows add up to %g after the transform", n, sum)
	}
}

// TestShortColumns is a counterexample: a sketch of a fixed sketch whose columns are shorter than 1 is not private. S =
// (1, …, 1)/√n has m̂ = 0, so C² = 1, but removing a record moves ZᵀZ by nearly 2. A fast transform has columns of norm
// 1.
func TestShortColumns(t *testing.T) {
	const n, variance, alpha = 10.0, 40.0, 2.0
	// Σ is 40 with all records, and 40 − (2 − 1/n) without one.
	v := 1 - (2-1/n)/variance
	divergence := (alpha*math.Log(v) - math.Log(1-alpha*(1-v))) / (2 * (alpha - 1))
	row := func(kind dp.Kind, gamma, c2 float64) float64 {
		r, err := (dp.Curve{{Kind: kind, Count: 1, Gamma: gamma, C2: c2}}).At(alpha)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if math.Abs(divergence-0.001245) > 1e-6 {
		t.Errorf("divergence %g", divergence)
	}
	if claimed := row(dp.KindFastMixRow, variance, 1); divergence < 2*claimed {
		t.Errorf("claimed with C² = 1 is %g, true %g", claimed, divergence)
	}
	// C² = Λ̂ + 2m̂ with Λ̂ = 2 − 1/n covers this.
	c2 := 2 - 1/n
	if claimed := row(dp.KindFastMixRow, variance/c2, c2); divergence > claimed {
		t.Errorf("claimed with C² = Λ̂ + 2m̂ is %g, true %g", claimed, divergence)
	}
}
