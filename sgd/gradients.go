package sgd

import (
	"math"

	"github.com/streamdp/streamdp/dp"
)

// gradients is the sum of clipped gradients in integers,
//
//	Σ_i round(one·clip(r_ix_i/ζ)),   clip(u) = u·min(1, 1/‖u‖),
//
// for the clip norm ζ of the open step. Gradients are divided by ζ before they are rounded. So one bound holds for all
// steps, ‖·‖ ≤ K for each record, and it is tested in integers.
type gradients struct {
	lattice dp.Lattice
	one     float64 // lattice steps of a gradient of norm ζ, a little less than K
	near    float64 // gradients of norm up to near·ζ are counted; at most 1
	whole   float64 // one/ζ
	square  float64 // ζ²
	count   float64 // (near·ζ)²
	sum     []float64
	inside  int64 // number of records whose gradient is counted
	row     []int64
}

func newGradients(l dp.Lattice, one float64, dim int) gradients {
	return gradients{lattice: l, one: one, near: 1, sum: make([]float64, dim), row: make([]int64, dim)}
}

// open starts a step with clip norm zeta.
func (g *gradients) open(zeta float64) {
	g.whole, g.square = g.one/zeta, float64(zeta*zeta)
	near := float64(g.near * zeta)
	g.count = float64(near * near)
	g.inside = 0
	clear(g.sum)
}

// tiny is the squared norm below which features count as 0. Numbers computed from a smaller square would leave the
// range of float64.
const tiny = 1e-280

// A residual below faint loses digits when it is squared. Without special care, a gradient of any norm could then be
// taken for one shorter than ζ.
const faint = 0x1p-500

// add adds the gradient r·shrink·x of features x, where square is ‖x·shrink‖².
func (g *gradients) add(x []float64, r, square, shrink float64) {
	g.lattice.Accumulate(g.sum, x, g.scale(r, square)*shrink)
}

// scale returns the factor that turns features of squared norm square into the clipped gradient, in lattice steps. It
// also counts the record.
func (g *gradients) scale(r, square float64) float64 {
	if square < tiny {
		g.inside++
		return 0
	}
	if math.Abs(r) < faint {
		return g.scaleFaint(r, square)
	}
	// A processor cannot predict whether a record is clipped or counted. So the code chooses between two integers,
	// which is compiled without a branch.
	size := float64(float64(r*r) * square)
	factor := math.Float64bits(math.Copysign(g.one/math.Sqrt(square), r))
	whole := math.Float64bits(float64(r * g.whole))
	inside := int64(0)
	if size <= g.square {
		factor = whole
	}
	if size <= g.count {
		inside = 1
	}
	g.inside += inside
	return math.Float64frombits(factor)
}

// scaleFaint is scale for a residual whose square has lost digits.
func (g *gradients) scaleFaint(r, square float64) float64 {
	norm := float64(math.Abs(r) * math.Sqrt(square))
	if norm > math.Sqrt(g.square) {
		return math.Copysign(g.one/math.Sqrt(square), r)
	}
	if norm <= math.Sqrt(g.count) {
		g.inside++
	}
	return float64(r * g.whole)
}

// integers returns the sum. It is valid until the next call.
func (g *gradients) integers() []int64 {
	for j, v := range g.sum {
		g.row[j] = int64(v)
	}
	return g.row
}

// room is an upper bound on sums of gradients, in lattice steps. float64 holds integers up to 2⁵³.
const room = 1 << 52
