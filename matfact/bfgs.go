package matfact

import "math"

// minimise finds a local minimum of f from x by the method of Broyden,
// Fletcher, Goldfarb and Shanno: quasi-Newton steps H·∇f with a dense estimate H
// of the inverse Hessian. The line search doubles and bisects until both weak
// Wolfe conditions hold; it takes f = +Inf as "too far", so f may have a domain.
//
// f writes the gradient at x into grad. The search ends when the gradient's
// largest entry is below 10⁻⁹, when f no longer decreases in float64, or after
// 2000 steps. x is overwritten with the best point; its value is returned.
//
// Cost: one to two evaluations and O(len(x)²) a step. gonum's optimize would do
// as well, but pulls in a module of its own for samplers that are not used.
func minimise(x []float64, f func(x, grad []float64) float64) float64 {
	n := len(x)
	var (
		grad, nextGrad = make([]float64, n), make([]float64, n)
		next, dir, hy  = make([]float64, n), make([]float64, n), make([]float64, n)
		h              = make([]float64, n*n)
		value          = f(x, grad)
		fresh          = true // h is the identity, with no scale of its own yet
	)
	reset := func() {
		clear(h)
		for i := range n {
			h[i*n+i] = 1
		}
		fresh = true
	}
	reset()
	for range 2000 {
		var largest, slope float64
		for i := range n {
			dir[i] = 0
			for j := range n {
				dir[i] -= h[i*n+j] * grad[j]
			}
			slope += dir[i] * grad[i]
			largest = max(largest, math.Abs(grad[i]))
		}
		if largest < 1e-9 {
			break
		}
		if !(slope < 0) {
			reset()
			slope = 0
			for i := range n {
				dir[i] = -grad[i]
				slope -= grad[i] * grad[i]
			}
		}
		step, lo, hi := 1.0, 0.0, math.Inf(1)
		if fresh {
			step = min(1, 1/largest)
		}
		nextValue, found := value, false
		for range 60 {
			for i := range n {
				next[i] = x[i] + step*dir[i]
			}
			nextValue = f(next, nextGrad)
			var nextSlope float64
			for i := range n {
				nextSlope += nextGrad[i] * dir[i]
			}
			if !(nextValue <= value+1e-4*step*slope) {
				hi = step
			} else if nextSlope < 0.9*slope {
				lo = step
			} else {
				found = true
				break
			}
			if math.IsInf(hi, 1) {
				step = 2 * lo
			} else {
				step = (lo + hi) / 2
			}
		}
		if !found {
			// Below float64's resolution of f. With a fresh H there is nothing
			// left to try.
			if fresh {
				break
			}
			reset()
			continue
		}
		var sy, yy, yhy float64 // s = next−x = step·dir, y = nextGrad−grad
		for i := range n {
			y := nextGrad[i] - grad[i]
			sy += step * dir[i] * y
			yy += y * y
		}
		if fresh && sy > 0 {
			for i := range n {
				h[i*n+i] = sy / yy
			}
		}
		for i := range n {
			hy[i] = 0
			for j := range n {
				hy[i] += h[i*n+j] * (nextGrad[j] - grad[j])
			}
			yhy += hy[i] * (nextGrad[i] - grad[i])
		}
		if sy > 0 {
			fresh = false
			for i := range n {
				for j := range n {
					si, sj := step*dir[i], step*dir[j]
					h[i*n+j] += (1+yhy/sy)*si*sj/sy - (hy[i]*sj+si*hy[j])/sy
				}
			}
		}
		copy(x, next)
		copy(grad, nextGrad)
		value = nextValue
	}
	return value
}
