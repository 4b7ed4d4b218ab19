package matfact

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/internal/optimise"
)

// bltObjective is the function that the best BLT minimises: S·E, or P²·E for persons. It is the square of the BLT's
// error for sensitivity 1 and noise multiplier 1.
type bltObjective struct {
	pole   float64 // a₀ of the workload 1/(1−(1−a₀)x)
	sens   float64 // length n of S(n); +Inf: valid for every length
	length float64 // length n of E(n); may be +Inf if pole > 0
	window float64 // if > 0, the workload is a sum over this number of steps, n = ∞, and length is unused
	// count and separation are the k and b of a person's rows. If count > 1, P²(k, b) at infinite height replaces S.
	count, separation float64
}

// starts returns the points at which the search begins. For single rows one is enough, except for windows of about ten
// steps. For persons the optimum may be at the time scale of the stream, at that of a person's rows, or between the
// two. With nine starts the error is within 10⁻³ of the best known, up to 10⁷ steps.
func (o bltObjective) starts(buffers int) (list [][]float64) {
	scale := o.length
	switch {
	case o.window > 0:
		scale = o.window
	case math.IsInf(scale, 1):
		scale = 2 / o.pole
	}
	scales, tops := []float64{scale}, []float64{0.3, -1.5, 3}
	if o.count > 1 {
		scales = append(scales, min(scale, o.count*o.separation), min(scale, math.Sqrt(o.count)*o.separation))
		tops = []float64{2, -3, -6}
	}
	for _, s := range scales {
		for _, top := range tops {
			list = append(list, bltStart(buffers, s, top))
		}
	}
	return list
}

// optimiseBLT minimises o over the BLTs with the given number of buffers. It returns the gaps a and â and the value of
// o. The gaps are interlaced: a₁ < â₁ < a₂ < … < â_d ≤ 1.
//
// Interlacing makes all ω_i > 0 and all ω̂_i < 0. The variables x ∈ ℝ^2d guarantee it:
//
//	q₁ = x₁,  q_m = q_{m−1} + exp(x_m),  (a₁, â₁, a₂, …)_m = 1/(1 + exp(−q_m)),
//
// so BFGS runs without constraints, on ln S + ln E with the exact gradient. The cost does not depend on n: it is 0.2 to
// 3 ms, for persons up to 40 ms.
//
// Errors: no finite value found.
func optimiseBLT(buffers int, o bltObjective) (a, ahat []float64, value float64, err error) {
	best := math.Inf(1)
	var x []float64
	for _, trial := range o.starts(buffers) {
		if f := optimise.Minimise(trial, o.log); f < best {
			best, x = f, trial
		}
	}
	if x == nil {
		return nil, nil, 0, errors.New("cannot optimise the BLT: no finite error found")
	}
	a, ahat = interlaced(x)
	return a, ahat, math.Exp(best), nil
}

// bltStart returns the x for which the 2d points q are equally spaced between ln(min(2/N, 0.2)) and top.
func bltStart(buffers int, scale, top float64) []float64 {
	m := 2 * buffers
	x := make([]float64, m)
	x[0] = math.Log(min(2/scale, 0.2))
	step := max((top-x[0])/float64(m-1), 0.1)
	for i := 1; i < m; i++ {
		x[i] = math.Log(step)
	}
	return x
}

// interlaced converts the variables of the optimiser to the gaps.
func interlaced(x []float64) (a, ahat []float64) {
	a, ahat = make([]float64, len(x)/2), make([]float64, len(x)/2)
	var q float64
	for m := range x {
		if m == 0 {
			q = x[0]
		} else {
			q += math.Exp(x[m])
		}
		s := 1 / (1 + math.Exp(-q))
		if m%2 == 0 {
			a[m/2] = s
		} else {
			ahat[m/2] = s
		}
	}
	return a, ahat
}

// sensitivity returns S, or P² for persons, and its derivatives if grad is set.
func (o bltObjective) sensitivity(a, ahat []float64, grad bool) (s float64, da, dahat []float64) {
	if o.count > 1 {
		return personSensitivity(a, ahat, o.count, o.separation, grad)
	}
	return sensitivity(a, ahat, o.sens, grad)
}

// log returns ln S + ln E, or ln P² + ln E, at x. It returns +Inf if that is not finite. It writes the gradient to grad
// unless grad is nil.
func (o bltObjective) log(x, grad []float64) float64 {
	a, ahat := interlaced(x)
	s, sa, sahat := o.sensitivity(a, ahat, grad != nil)
	e, ea, eahat := squaredError(a, ahat, o.pole, o.length, o.window, grad != nil)
	f := math.Log(s) + math.Log(e)
	if math.IsNaN(f) {
		f = math.Inf(1)
	}
	if grad != nil {
		var tail float64 // the sum of ∂f/∂q over the points from m on
		for m := len(x) - 1; m >= 0; m-- {
			var d, gap float64
			if m%2 == 0 {
				d, gap = sa[m/2]/s+ea[m/2]/e, a[m/2]
			} else {
				d, gap = sahat[m/2]/s+eahat[m/2]/e, ahat[m/2]
			}
			if v := gap * (1 - gap) * d; !math.IsNaN(v) {
				tail += v
			}
			grad[m] = tail
			if m > 0 {
				grad[m] *= math.Exp(x[m])
			}
		}
	}
	return f
}
