package sgd

import (
	"math"

	"streamdp/dp"
)

// gradients is the sum of clipped gradients in integers,
//
//	Σ_i round(one·clip(r_ix_i/ζ)),   clip(u) = u·min(1, 1/‖u‖),
//
// for the clip norm ζ of the open step. Divided by ζ before they are rounded, the
// gradients of all steps have the same bound: ‖·‖ ≤ K for each record, tested
// in integers.
type gradients struct {
	lattice dp.Lattice
	one     float64 // lattice steps of a gradient of norm ζ, a little less than K
	whole   float64 // one/ζ
	square  float64 // ζ²
	sum     []float64
	inside  int64 // records that were not clipped
	row     []int64
}

func newGradients(l dp.Lattice, one float64, dim int) gradients {
	return gradients{lattice: l, one: one, sum: make([]float64, dim), row: make([]int64, dim)}
}

// open starts a step with clip norm zeta.
func (g *gradients) open(zeta float64) {
	g.whole, g.square = g.one/zeta, float64(zeta*zeta)
	g.inside = 0
	clear(g.sum)
}

// tiny is the square below which features count as 0: what is computed from it
// would leave the range of float64.
const tiny = 1e-280

// faint is the residual below which its square has lost digits, or all of them, so
// that a gradient of any norm could pass for one below ζ.
const faint = 0x1p-500

// add adds the gradient rx·shrink of features x, where square is ‖x·shrink‖².
func (g *gradients) add(x []float64, r, square, shrink float64) {
	g.lattice.Accumulate(g.sum, x, g.scale(r, square)*shrink)
}

// scale returns the factor that makes features of squared norm square the clipped
// gradient in lattice steps, and counts the record.
func (g *gradients) scale(r, square float64) float64 {
	if square < tiny {
		g.inside++
		return 0
	}
	if math.Abs(r) < faint && float64(math.Abs(r)*math.Sqrt(square)) > math.Sqrt(g.square) {
		return math.Copysign(g.one/math.Sqrt(square), r)
	}
	// Whether a record is clipped is what no processor predicts: a choice between
	// integers is compiled without a branch.
	factor := math.Float64bits(math.Copysign(g.one/math.Sqrt(square), r))
	whole := math.Float64bits(float64(r * g.whole))
	inside := int64(0)
	if float64(float64(r*r)*square) <= g.square {
		factor = whole
		inside = 1
	}
	g.inside += inside
	return math.Float64frombits(factor)
}

// integers returns the sum. It is valid until the next call.
func (g *gradients) integers() []int64 {
	for j, v := range g.sum {
		g.row[j] = int64(v)
	}
	return g.row
}

// room is what sums of gradients must stay below, in lattice steps: float64
// holds integers up to 2⁵³.
const room = 1 << 52

// dotSquare returns ⟨w, x⟩ and ‖x‖², each as a sum over even and one over odd
// coordinates.
func dotSquare(w, x []float64) (dot, square float64) {
	n := len(x)
	w = w[:n]
	var d0, d1, s0, s1 float64
	i := 0
	for ; i+1 < n; i += 2 {
		x0, x1 := x[i], x[i+1]
		d0 += float64(w[i] * x0)
		s0 += float64(x0 * x0)
		d1 += float64(w[i+1] * x1)
		s1 += float64(x1 * x1)
	}
	if i < n {
		d0 += float64(w[i] * x[i])
		s0 += float64(x[i] * x[i])
	}
	return d0 + d1, s0 + s1
}

// dot returns ⟨w, x⟩ in four interleaved sums.
func dot(w, x []float64) float64 {
	n := len(x)
	w = w[:n]
	var d0, d1, d2, d3 float64
	i := 0
	for ; i+3 < n; i += 4 {
		d0 += float64(w[i] * x[i])
		d1 += float64(w[i+1] * x[i+1])
		d2 += float64(w[i+2] * x[i+2])
		d3 += float64(w[i+3] * x[i+3])
	}
	for ; i < n; i++ {
		d0 += float64(w[i] * x[i])
	}
	return (d0 + d1) + (d2 + d3)
}

// shorten scales a vector of finite numbers to a norm of at most bound.
func shorten(x []float64, bound float64) {
	largest := 0.0
	for _, v := range x {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return
	}
	// By the largest first, so that no square overflows.
	var square float64
	for _, v := range x {
		v /= largest
		square += float64(v * v)
	}
	if norm := math.Sqrt(square); norm > bound/largest {
		for j, v := range x {
			x[j] = float64(v / largest * (bound / norm))
		}
	}
}
