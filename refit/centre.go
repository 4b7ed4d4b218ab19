package refit

import (
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/newton"
)

// The shares of μ² that the private centres cost: a first histogram of norms, the sum of the features, and the sum
// of the targets.
const (
	coarseShare = 0.02
	meanShare   = 0.05
	targetShare = 0.03
)

// centring moves the rows and targets of a window so that their means are near 0. It estimates the means from noisy
// releases.
//
// For valid rows x_i, ‖x_i‖ ≤ 1, and targets |y_i| ≤ 1 it releases
//
//	hist0  #{i: 2^−(j+1) < ‖x_i‖² ≤ 2^−j}, j = 0…23, which gives n̂₀ and R₀
//	mean   a = Σ x_i·min(1, R₀/‖x_i‖) + s_x·N(0, I_d),  s_x = S·R₀/(μ√.05)
//	meany  b = Σ y_i + s_y·N(0, 1),  s_y = S/(μ√.03)
//
// and computes the centres
//
//	m = k_x·a/n̂₀, shortened to norm R₀,   k_x = max(0, 1 − 1.5·d·s_x²/‖a‖²)
//	y₀ = clip(k_y·b/n̂₀, ±1),              k_y = max(0, 1 − 2.5·s_y²/b²)
//
// A centre that is mostly noise becomes 0. Every centre gives the same linear model, because the model's constant
// absorbs the centre.
//
// Privacy: given earlier releases, a row moves hist0 by 1, or by √2 under replace. It moves the sum of the targets by
// at most S, and the sum of shortened rows by at most S·R₀. The latter is exact, because rows are integers on a
// lattice. The three releases together cost 0.1 of μ², under both adjacencies. Null rows are skipped.
// Cost: O(nd) time, O(d) memory in addition to the window, which it overwrites.
// Source: ours; docs/theory/refit.md.
type centring struct {
	mu        float64
	adjacency dp.Adjacency
	bits      int
	rows      dp.Lattice // lattice of rows in units of R₀
}

// newCentring returns the centring of a mechanism whose total budget is μ.
//
// Errors: no lattice fits the budget, which is too large or too small.
func newCentring(mu float64, a dp.Adjacency, bits, rows int) (*centring, error) {
	c := &centring{mu: mu, adjacency: a, bits: bits}
	var err error
	if c.rows, err = dp.NewLattice(1, c.deviation(meanShare), bits); err != nil {
		return nil, err
	}
	most := max(
		math.Ldexp(newton.HistogramSD(mu*math.Sqrt(coarseShare), a), bits-4),
		math.Ldexp(c.deviation(meanShare), -c.rows.Exp), math.Ldexp(c.deviation(targetShare), bits),
	)
	if !(dp.MaxDraw*most < 1<<51) || float64(rows)*max(float64(c.rows.K), math.Ldexp(1, bits)) >= 1<<62 {
		return nil, fmt.Errorf("mu is %g, out of range for sums of %d rows", mu, rows)
	}
	return c, nil
}

// deviation returns the standard deviation of the noise of a sum whose terms have norm at most 1.
func (c *centring) deviation(share float64) float64 {
	return c.adjacency.Factor() / (c.mu * math.Sqrt(share)) * dp.RoundUp
}

// centres holds the results of a centring.
type centres struct {
	valid, squared float64   // n̂₀, R₀²
	mean           []float64 // m
	target         float64   // y₀
}

// centre subtracts the centres from the valid rows of w and from their targets. It leaves the constant, the last
// feature, unchanged.
func (c *centring) centre(w *Data, null []bool, noise dp.Noise) centres {
	d := w.dim - 1
	norms := countNorms(w, d, null).Release(noise, "newton/hist0",
		newton.HistogramSD(c.mu*math.Sqrt(coarseShare), c.adjacency), c.bits)
	out := centres{mean: make([]float64, d)}
	out.valid = norms.Valid(float64(w.Len()))
	out.squared = norms.Common(out.valid)
	radius := math.Sqrt(out.squared)

	// The sums are sums of integers, so their order does not matter.
	unit, one := 1/radius, math.Ldexp(1, c.bits)
	var rows [segments][]int64
	var targets [segments]int64
	eachSegment(w.Len(), func(part, lo, hi int) {
		x, k, sum := make([]float64, d), make([]int64, d), make([]int64, d)
		for i := lo; i < hi; i++ {
			if null[i] {
				continue
			}
			for j, v := range w.row(i)[:d] {
				x[j] = v * unit
			}
			c.rows.Quantise(k, x)
			for j, v := range k {
				sum[j] += v
			}
			targets[part] += int64(math.Floor(newton.Clip(w.y[i], -1, 1)*one + 0.5))
		}
		rows[part] = sum
	})
	sum, target := rows[0], targets[:1]
	for part := 1; part < segments; part++ {
		target[0] += targets[part]
		for j, v := range rows[part] {
			sum[j] += v
		}
	}

	sd := c.deviation(meanShare)
	hidden := make([]int64, d)
	dp.RoundRow(hidden, noise.Row("newton/mean", sum), []float64{math.Ldexp(sd, -c.rows.Exp)}, nil, 1)
	var square float64 // ‖a/R₀‖²
	for j, k := range hidden {
		out.mean[j] = math.Ldexp(float64(sum[j]+k), c.rows.Exp)
		square += float64(out.mean[j] * out.mean[j])
	}
	factor := newton.Stein(float64(1.5*float64(d))*float64(sd*sd), square) / out.valid
	factor = radius * min(factor, 1/math.Sqrt(square))
	for j, v := range out.mean {
		out.mean[j] = float64(v * factor)
	}

	sd = c.deviation(targetShare)
	dp.RoundRow(hidden[:1], noise.Row("newton/meany", target), []float64{sd * one}, nil, 1)
	b := math.Ldexp(float64(target[0]+hidden[0]), -c.bits)
	out.target = newton.Clip(float64(newton.Stein(2.5*float64(sd*sd), float64(b*b))*b)/out.valid, -1, 1)

	eachSegment(w.Len(), func(_, lo, hi int) {
		for i := lo; i < hi; i++ {
			if null[i] {
				continue
			}
			x := w.row(i)
			for j, v := range out.mean {
				x[j] -= v
			}
			w.y[i] -= out.target
		}
	})
	return out
}
