package moments

import (
	"math"
	"math/bits"

	"gonum.org/v1/gonum/mat"
)

// Elliptope returns bounds on sup tr(MXXᵀ) = sup Σ_kl M_kl⟨x_k, x_l⟩ over rows x_k ∈ ℝᵈ of norm at most 1, for a
// positive semidefinite M. The error of post-processing depends on this supremum for M = (A₂ᵀA₂)∘Q. The search found
// rows that attain `lower`; no rows exceed `upper`.
//
// `lower` comes from block-coordinate ascent, x_k ← Σ_{l≠k} M_kl x_l normalised, for vectors of up to 16 coordinates.
// More coordinates have not helped in any case tried; if they did, the gap between `lower` and `upper` would show it.
// For d ≤ 3 there are local maxima, so the ascent starts from several projections of longer vectors. `upper` is the
// dual of the semidefinite program over all d: Σ_k y_k with diag(y) − M positive semidefinite.
//
// Cost: O(n²·min(d, 16)) a sweep, some hundred sweeps, and a few Cholesky factorizations: seconds for n = 1000. It is
// for figures and checks, not for releases.
func Elliptope(m *mat.SymDense, d int) (lower, upper float64) {
	const most, few, starts = 16, 3, 2
	n := m.SymmetricDim()
	full := make([]float64, n*n) // m, row by row, without gaps
	for k := range n {
		for l := range n {
			full[k*n+l] = m.At(k, l)
		}
	}
	rank := min(d, most)
	if d <= few {
		rank = most
	}
	v := newRows(full, n, rank)
	v.ascend()
	y := v.multipliers()
	if upper = dual(m, y); d > few {
		return total(y), upper
	}
	for seed := range uint64(starts) {
		w := newRows(full, n, d)
		for k := range n {
			for j := range d {
				var sum float64
				for i, x := range v.row(k) {
					sum += x * uniform(seed+1, uint64(i*d+j))
				}
				w.row(k)[j] = sum
			}
			normalise(w.row(k))
		}
		w.ascend()
		lower = max(lower, total(w.multipliers()))
	}
	return lower, upper
}

// rows are n unit vectors x_k of length rank.
type rows struct {
	m       []float64 // n×n
	n, rank int
	x       []float64
}

func newRows(m []float64, n, rank int) *rows {
	v := &rows{m, n, rank, make([]float64, n*rank)}
	for i := range v.x {
		v.x[i] = uniform(0, uint64(i))
	}
	for k := range n {
		normalise(v.row(k))
	}
	return v
}

func (v *rows) row(k int) []float64 { return v.x[k*v.rank : (k+1)*v.rank] }

// field writes Σ_l M_kl x_l to dst.
func (v *rows) field(dst []float64, k int) {
	clear(dst)
	x := v.x
	for _, weight := range v.m[k*v.n : (k+1)*v.n] {
		row := x[:len(dst)]
		x = x[len(dst):]
		for j, y := range row {
			dst[j] += weight * y
		}
	}
}

// ascend moves each row in turn to its best point, and stops when a sweep over all rows gains less than 10⁻⁵.
func (v *rows) ascend() {
	g := make([]float64, v.rank)
	for range 2000 {
		var gain, total float64
		for k := range v.n {
			x := v.row(k)
			v.field(g, k)
			own := v.m[k*v.n+k]
			var before, norm float64
			for j := range g {
				g[j] -= own * x[j]
				before += g[j] * x[j]
				norm += g[j] * g[j]
			}
			norm = math.Sqrt(norm)
			total += own + norm
			if norm > before {
				gain += 2 * (norm - before)
				for j := range g {
					x[j] = g[j] / norm
				}
			}
		}
		if gain <= 1e-5*total {
			return
		}
	}
}

// multipliers returns y_k = Σ_l M_kl⟨x_k, x_l⟩, whose sum is the objective.
func (v *rows) multipliers() []float64 {
	y := make([]float64, v.n)
	g := make([]float64, v.rank)
	for k := range y {
		v.field(g, k)
		for j, x := range v.row(k) {
			y[k] += g[j] * x
		}
	}
	return y
}

// dual returns Σ_k (y_k + s) for the first s of a sequence for which
// diag(y) + sI − M has a Cholesky factorization.
func dual(m *mat.SymDense, y []float64) float64 {
	n := len(y)
	gap := mat.NewSymDense(n, nil)
	var c mat.Cholesky
	for s := 1e-5 * total(y) / float64(n); ; s *= 2 {
		for k := range n {
			for l := k; l < n; l++ {
				gap.SetSym(k, l, -m.At(k, l))
			}
			gap.SetSym(k, k, y[k]+s-m.At(k, k))
		}
		if c.Factorize(gap) {
			return total(y) + float64(n)*s
		}
	}
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

func normalise(x []float64) {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	if sum == 0 {
		x[0], sum = 1, 1
	}
	for j := range x {
		x[j] /= math.Sqrt(sum)
	}
}

// uniform returns a hash of its arguments, as a number in [−1, 1). Searches start from such numbers.
func uniform(seed, i uint64) float64 {
	hi, lo := bits.Mul64(i+1, 0x9e3779b97f4a7c15^seed<<32)
	x := (hi ^ lo) * 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return float64(int64(x)) * 0x1p-63
}
