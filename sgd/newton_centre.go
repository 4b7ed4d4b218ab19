package sgd

import (
	"math"

	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/vector"
)

// With an intercept, a row is s = (x − m, C): the features relative to a centre m, which is 0 at first, and a constant
// C. The constant is half the norm R to which features are shortened in the Gram matrix. A larger constant would hide
// the features in the matrix; a smaller one would be learned late. Centre and constant are computed from releases. When
// they change, every iterate w is converted, so that it still stands for the same coefficients β = w_{1…d} and the same
// intercept w_D·C − βᵀm.

// constantFor returns the constant C for a given R².
func constantFor(squared float64) float64 { return math.Sqrt(squared) / 2 }

// centred replaces the features x of a row by s and returns ‖x − m‖².
func (e *Newton) centred(x []float64) (square float64) {
	d := len(e.centre)
	for j, v := range e.centre {
		v = x[j] - v
		x[j] = v
		square += float64(v * v)
	}
	x[d] = e.constant
	return square
}

// uncentre replaces the last coordinate of an iterate by the intercept that it stands for.
func (e *Newton) uncentre(w []float64) {
	if e.constant > 0 {
		d := len(e.centre)
		w[d] = float64(w[d]*e.constant) - vector.Dot4(w[:d], e.centre)
	}
}

// recentre moves the centre and sets the constant that belongs to the next R². The last column e of an epoch's noisy
// matrix gives the mean of x − m: k·e/(n̂C) for n̂ valid rows. The James–Stein factor k is 0 if e is mostly noise.
// recentre converts everything learned so far to the new rows s' = Bs.
func (e *Newton) recentre(upper []float64, valid, squared float64) {
	d := len(e.centre)
	moved, norm := make([]float64, d), 0.0
	for j, k := 0, d; j < d; j++ {
		moved[j] = upper[k]
		norm += float64(upper[k] * upper[k])
		k += d - j
	}
	sd := e.gram.SD / math.Sqrt2
	factor := newton.Stein(float64(1.5*float64(d))*float64(sd*sd), norm) / float64(valid*e.constant)
	next := make([]float64, d)
	for j, v := range moved {
		next[j] = e.centre[j] + float64(factor*v)
	}
	vector.Shorten(next, 1)

	constant := constantFor(squared)
	c := change{shift: moved, ratio: constant / e.constant}
	for j, m := range e.centre {
		c.shift[j] = (next[j] - m) / e.constant
	}
	e.centre, e.constant = next, constant
	c.matrix(e.matrix)
	c.iterate(e.w)
	c.iterate(e.wander.mean)
	c.iterate(e.wander.last)
	for _, epoch := range e.blocks.epochs {
		for i := range epoch {
			c.iterate(epoch[i].w)
			c.gradient(epoch[i].u)
		}
	}
}

// change is a change of the coordinates of rows:
//
//	B = [[I, −shift], [0, ratio]],   A ← BABᵀ,  w ← B⁻ᵀw,  g ← Bg
//
// for the matrix A of rows, an iterate w and a sum g of gradients.
type change struct {
	shift []float64
	ratio float64
}

func (c change) iterate(w []float64) {
	d := len(c.shift)
	w[d] = (w[d] + vector.Dot4(c.shift, w[:d])) / c.ratio
}

func (c change) gradient(g []float64) {
	d := len(c.shift)
	for j, v := range c.shift {
		g[j] -= float64(v * g[d])
	}
	g[d] = float64(g[d] * c.ratio)
}

// matrix changes an upper triangle, stored row by row.
func (c change) matrix(upper []float64) {
	d := len(c.shift)
	corner := upper[len(upper)-1]
	last := make([]float64, d) // the last column
	for j, k := 0, d; j < d; j++ {
		last[j] = upper[k]
		k += d - j
	}
	k := 0
	for i, v := range c.shift {
		for j := i; j < d; j++ {
			upper[k] += float64(v*float64(c.shift[j]*corner)) - (float64(v*last[j]) + float64(c.shift[j]*last[i]))
			k++
		}
		upper[k] = float64(c.ratio * (last[i] - float64(v*corner)))
		k++
	}
	upper[k] = float64(c.ratio * float64(c.ratio*corner))
}
