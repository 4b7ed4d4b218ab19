// Package optimise searches for the factorizations with the least error, in float64: by a quasi-Newton method for
// matrices with few numbers, and by a fixed point for dense ones.
//
// Releases and privacy do not depend on its accuracy. matfact rounds the results to integers, and derives every claim
// from these.
package optimise

import "math"

// Minimise finds a local minimum of f, starting from x, by the method of Broyden, Fletcher, Goldfarb and Shanno:
// quasi-Newton steps H·∇f with a dense estimate H of the inverse Hessian. The line search doubles and bisects until
// both weak Wolfe conditions hold. It takes f = +Inf as "too far", so f may have a restricted domain.
//
// The function f returns its value at x and writes the gradient at x into grad. The search ends when the gradient's
// largest entry is below 10⁻⁹, when f no longer decreases in float64, or after 2000 steps. Minimise overwrites x with
// the best point and returns its value.
//
// Cost: one to two evaluations and O(len(x)²) a step. gonum's optimize could do this too,
// but it needs a further module for samplers that this project does not use.
func Minimise(x []float64, f func(x, grad []float64) float64) float64 {
	n := len(x)
	q := quasiNewton{
		x: x, f: f, grad: make([]float64, n), dir: make([]float64, n), hy: make([]float64, n),
		next: make([]float64, n), nextGrad: make([]float64, n), h: make([]float64, n*n),
	}
	q.value = f(x, q.grad)
	q.reset()
	for range 2000 {
		slope, largest := q.direct()
		if largest < 1e-9 {
			break
		}
		step, value, found := q.search(slope, largest)
		if !found {
			// The decrease is below the resolution of float64. If H is already fresh, there is nothing left to try.
			if q.fresh {
				break
			}
			q.reset()
			continue
		}
		q.update(step)
		copy(x, q.next)
		copy(q.grad, q.nextGrad)
		q.value = value
	}
	return q.value
}

// quasiNewton is the state of Minimise.
type quasiNewton struct {
	f              func(x, grad []float64) float64
	x, grad        []float64 // the best point
	value          float64   // value of f at x
	next, nextGrad []float64 // the current point of a line search
	dir            []float64 // direction of the line search
	h              []float64 // estimate of the inverse Hessian
	fresh          bool      // h is the identity and has no scale yet
	hy             []float64 // scratch
}

// reset sets the estimate of the Hessian back to the identity.
func (q *quasiNewton) reset() {
	clear(q.h)
	n := len(q.x)
	for i := range n {
		q.h[i*n+i] = 1
	}
	q.fresh = true
}

// direct sets the direction to −H·∇f, or to −∇f if f does not decrease along −H·∇f. It
// returns the slope of f in that direction and the gradient's largest entry.
func (q *quasiNewton) direct() (slope, largest float64) {
	n := len(q.x)
	for i := range n {
		q.dir[i] = 0
		for j := range n {
			q.dir[i] -= q.h[i*n+j] * q.grad[j]
		}
		slope += q.dir[i] * q.grad[i]
		largest = max(largest, math.Abs(q.grad[i]))
	}
	if largest >= 1e-9 && !(slope < 0) {
		q.reset()
		slope = 0
		for i := range n {
			q.dir[i] = -q.grad[i]
			slope -= q.grad[i] * q.grad[i]
		}
	}
	return slope, largest
}

// search doubles and bisects the step until both weak Wolfe conditions hold at the next
// point.
func (q *quasiNewton) search(slope, largest float64) (step, value float64, found bool) {
	step, lo, hi := 1.0, 0.0, math.Inf(1)
	if q.fresh {
		step = min(1, 1/largest)
	}
	for range 60 {
		for i := range q.x {
			q.next[i] = q.x[i] + step*q.dir[i]
		}
		value = q.f(q.next, q.nextGrad)
		var nextSlope float64
		for i := range q.x {
			nextSlope += q.nextGrad[i] * q.dir[i]
		}
		if !(value <= q.value+1e-4*step*slope) {
			hi = step
		} else if nextSlope < 0.9*slope {
			lo = step
		} else {
			return step, value, true
		}
		if math.IsInf(hi, 1) {
			step = 2 * lo
		} else {
			step = (lo + hi) / 2
		}
	}
	return step, value, false
}

// update improves the estimate of the inverse Hessian by s = next − x = step·dir and
// y = nextGrad − grad.
func (q *quasiNewton) update(step float64) {
	n := len(q.x)
	var sy, yy, yhy float64
	for i := range n {
		y := q.nextGrad[i] - q.grad[i]
		sy += step * q.dir[i] * y
		yy += y * y
	}
	if q.fresh && sy > 0 {
		for i := range n {
			q.h[i*n+i] = sy / yy
		}
	}
	for i := range n {
		q.hy[i] = 0
		for j := range n {
			q.hy[i] += q.h[i*n+j] * (q.nextGrad[j] - q.grad[j])
		}
		yhy += q.hy[i] * (q.nextGrad[i] - q.grad[i])
	}
	if sy > 0 {
		q.fresh = false
		for i := range n {
			for j := range n {
				si, sj := step*q.dir[i], step*q.dir[j]
				q.h[i*n+j] += (1+yhy/sy)*si*sj/sy - (q.hy[i]*sj+si*q.hy[j])/sy
			}
		}
	}
}
