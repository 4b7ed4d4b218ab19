package refit

import (
	"fmt"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/gram"
	"github.com/streamdp/streamdp/internal/vector"
)

// IHS is iterative Hessian sketching. The private methods are derived from it:
//
//	θ_{t+1} = θ_t + ((S_tX)ᵀS_tX)⁻¹Xᵀ(Y − Xθ_t)
//
// The sketches S_t are fresh and have k rows. They are Gaussian, divided by √k, or with fast they are subsampled
// Hadamard transforms. noise is the source of randomness for the sketches; the result is not private.
//
// Cost: O(Tknd), fast O(T(nd log n + kd²)).
// Errors: a sketch does not have full rank.
// Source: Pilanci and Wainwright (2016).
//
// For reproduction only: no estimator uses it.
func IHS(w *Data, k, iterations int, fast bool, noise dp.Noise) (NonPrivate, error) {
	d := w.dim
	if k < d || iterations < 1 {
		return NonPrivate{}, fmt.Errorf("there are %d iterations with sketches of %d rows for %d features: at least "+
			"1 iteration and as many rows as features are needed", iterations, k, d)
	}
	i := iteration{steps: iterations}
	i.gradient = func(_ int, theta []float64) ([]float64, error) {
		g := make([]float64, d)
		for r, y := range w.y {
			x := w.row(r)
			vector.Axpy(g, y-vector.Dot2(x, theta), x)
		}
		return g, nil
	}
	i.sketch = func(t int) (hessian, error) {
		row, scale := noise.Row(numbered("ihs/sketch", t), nil), 1.0
		sum := gram.NewSum(d)
		if fast {
			z, _ := drawSRHT(w.Len(), min(k, padded(w.Len())), row).apply(w.x, d)
			sum.Add(z)
		} else {
			sum.Add(gaussianMix(w, k, 0, row))
			scale = float64(k)
		}
		return form(full(sum.Upper(), d, 1e-5), d, scale)
	}
	theta, err := i.run(d)
	return NonPrivate{theta}, err
}
