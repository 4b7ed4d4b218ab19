package audit

import (
	"fmt"
	"math"
	"strings"

	"github.com/streamdp/streamdp/dp"
)

// Extreme is a pair of neighbouring streams, together with noise, for which the cost is known. It can show that the
// mechanism charges too little. The most expensive of [Pairs] cannot if it costs much less than the mechanism charges.
type Extreme struct {
	X, Y Stream
	// Lean returns the draws of X's run in an array, one per coordinate; nil: all draws are 0.
	Lean func(array string) []float64
	// Part is the pair's distance as a share of μ. Sketch is the share of 1/γ that a sketch shows. 0: the pair has no
	// such distance.
	Part, Sketch float64
}

// Target says which column of a window's rows is the target. It also holds the bounds on features and target, and the
// bound on residuals divided by the bound on the target.
type Target struct {
	Columns, Target        int
	ClipX, ClipY, Residual float64
	Iterations             int
	Tau                    float64 // deviation in the test of the least eigenvalue
	Debias, Pool           bool    // options of the solver ihm
	Slots                  int
}

// row returns a record whose first features are x and the others 0, in units of the bound on features, and whose target
// is y in units of its bound.
func (g Target) row(y float64, x ...float64) []float64 {
	row, next := make([]float64, g.Columns), 0
	for j := range row {
		switch {
		case j == g.Target:
			row[j] = y * g.ClipY
		case next < len(x):
			row[j] = x[next] * g.ClipX
			next++
		}
	}
	return row
}

// axis returns a record in which only feature k is not 0: it is ±its bound.
func (g Target) axis(k int, size, y float64) []float64 {
	x := make([]float64, k+1)
	x[k] = size
	return g.row(y, x...)
}

// extremeCopies is the number of copies of each record, apart from the two records of the pair. The copies make every
// other eigenvalue larger than the one in the pair's direction.
const extremeCopies = 8

// Extremes returns pairs for the solvers "ihm", "linmix" and "dp-gd-residual". It returns none for other solvers, and
// for windows that are too short. In a pair, a record at the bounds of the first feature and of the target is compared
// with no record; under replace there is also a pair with the opposite target. The draws keep the iterates where that
// record's residual is as large as possible: at 0 or, with a radius R, near the boundary of the ball. The draws also
// make the test of the least eigenvalue pass by the smallest margin.
//
//   - linmix: the other records span the space orthogonal to the record and do not
//     contribute in its direction, so λ_min moves by all of its squared norm, 2, and
//     Σ = γC² with it.
//   - ihm, dp-gd-residual: the record has a gradient of the clip norm in every iteration;
//     with a radius, the gradient that descent computes, out of the 1+R that is charged.
//     The test counts only without an intercept: with one, no record is orthogonal to a
//     record at the bound.
//
// The charge for gradients covers the largest move that a pair can make under replace. A record compared with no record
// makes half of that move, and a record compared with one of opposite target makes all of it. With a radius no pair
// reaches the charge.
func (w Windows) Extremes(g Target) (all []Extreme) {
	features := g.Columns - 1
	var others [][]float64
	switch {
	case w.Solver == "linmix" && w.Centred:
		others = append(others, g.axis(0, -1, 0), g.axis(0, 1, -1))
		for k := 1; k < features; k++ {
			others = append(others, g.axis(k, 1, -0.5), g.axis(k, -1, -0.5))
		}
	case w.Solver == "linmix":
		others = append(others, g.axis(0, 1, -1))
		fallthrough
	case w.Solver == "ihm" && w.Test > 0 && !w.Centred:
		for k := 1; k < features; k++ {
			others = append(others, g.axis(k, 1, 0))
		}
	case w.Solver != "ihm" && w.Solver != "dp-gd-residual":
		return nil
	}
	if extremeCopies*len(others)+1 > g.Slots {
		return nil
	}
	rows := [][]float64{nil}
	for range extremeCopies {
		rows = append(rows, others...)
	}
	none := Stream{rows}
	e := Extreme{X: none.Replace(0, 0, g.axis(0, 1, 1)), Y: none}

	// test and moved are shares of the squared distance that is charged: the test's, and that of gradients.
	test, moved := 0.0, 1.0
	if w.Test > 0 {
		test = 1 / (w.Test * w.Test * w.Mu * w.Mu)
	}
	e.Sketch = 1
	switch {
	case w.Solver == "linmix":
		test = 1
	case w.Solver == "dp-gd-residual":
		e.Sketch = 0
	case w.Test == 0 || w.Centred: // η² is γ plus the record's own variance
		e.Sketch = w.Gamma / (1 + w.Gamma)
		moved = 0
	}
	gradient := 1 / max(1, g.Residual)
	if w.Radius > 0 {
		gradient = w.descent(g, w.Gamma+1-moved)
	}
	whole := math.Sqrt(1-test) * gradient
	gradient = whole / w.Adjacency.Factor()
	e.Part = math.Sqrt(moved*test + gradient*gradient)

	// unit is the record in the space of the iterates.
	unit := make([]float64, w.Features)
	unit[0] = 1
	if w.Centred {
		unit[0] = math.Sqrt2 / 2
		unit[w.Features-1] = math.Sqrt2 / 2
	}
	e.Lean = func(array string) []float64 {
		array = strings.TrimPrefix(array, w.Solver+"/")
		switch {
		case array == "lambda":
			return []float64{g.Tau}
		case !strings.HasPrefix(array, "grad"):
			return nil
		}
		// size is the draw that brings the sum to 0, or the iterate to −R.
		size := -1 / w.Noise / max(1, g.Residual)
		if w.Radius > 0 {
			size = -radiusLean
		}
		z := make([]float64, len(unit))
		for j, v := range unit {
			z[j] = size * v
		}
		return z
	}
	all = []Extreme{e}
	if w.Adjacency == dp.Replace && w.Solver != "linmix" && w.Radius == 0 {
		e.Y, e.Part, e.Sketch = none.Replace(0, 0, g.axis(0, 1, -1)), whole, 0
		all = append(all, e)
	}
	return all
}

// radiusLean is the number of standard deviations by which the noise pushes ihm's iterates in each iteration, if there
// is a radius.
const radiusLean = 12

// descent returns the root mean square of (1−s_t)/(1+R), where s_t is the component along the record of the iterates of
// ihm with radius R:
//
//	s_{t+1} = s_t + f_t·(1 − s_t − 12σ(1+R))/h,  within ±R
//
// Here 1−s_t is the record's residual, h the expected square of a sketch along the record, and f_t the correction for
// the mean of that square's inverse.
func (w Windows) descent(g Target, h float64) float64 {
	s, sum, r := 0.0, 0.0, w.Radius
	for t := range g.Iterations {
		residual := 1 - s
		sum += residual * residual
		f := 1.0
		if g.Debias && w.Test == 0 {
			k := float64(w.Rows)
			if g.Pool {
				k *= float64(t + 1)
			}
			f = (k - float64(w.Features) - 1) / k
		}
		s = min(r, max(-r, s+f*(residual-radiusLean*w.Noise*(1+r))/h))
	}
	return math.Sqrt(sum/float64(g.Iterations)) / (1 + r)
}

// extremes runs A0 and A3 on the suite's extreme pairs.
func (s *Suite) extremes() (all []Finding, err error) {
	c, before := s.Configured, s.Configured.sketches
	for _, e := range s.Extremes {
		c.sketches = spectrum{}
		distance, err := c.couple(e.X, e.Y, &coupling{still: true, lean: e.Lean})
		all = append(all,
			known("A0", fmt.Sprintf("sensitivity/mu of a pair with known value "+
				"%.4g", e.Part), distance/c.Mu, e.Part, err))
		if e.Sketch > 0 {
			all = append(all,
				known("A3", fmt.Sprintf("share of a record in sketches, known value %.4g/gamma", e.Sketch),
					c.sketches.far, e.Sketch, nil))
		}
	}
	c.sketches = before
	return all, nil
}

// knownTo is the relative precision to which the cost of an extreme pair is known. It is not exact because draws and
// the noise of the iterates are rounded.
const knownTo = 0.01

func known(audit, what string, statistic, want float64, err error) Finding {
	return Finding{
		Audit: audit, What: what, Statistic: statistic, Low: want * (1 - knownTo), High: min(want*(1+knownTo), 1+1e-9),
		Finds: fmt.Sprintf("%g %% more or less noise", 100*knownTo), Power: 1,
	}.verdict(err)
}
