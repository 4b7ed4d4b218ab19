package sgd

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

// TestExtremes feeds records of every order of magnitude to streams with clip norms and bounds of every order that a
// configuration may have. None causes a panic, and no contribution leaves the ball.
func TestExtremes(t *testing.T) {
	t.Parallel()
	sizes := []float64{0, math.Copysign(0, -1), 5e-324, 1e-310, 1e-200, 1e-170, 1e-155, 1e-140, 1e-100, 1e-60, 1e-20, 1,
		1e20, 1e60, 1e100, 1e154, 1e170, 1e300, math.MaxFloat64}
	for _, zeta := range []float64{0x1p-400, 1e-60, 1, 1e60, 0x1p400} {
		for _, clip := range []float64{1e-60, 1, 1e60} {
			for _, intercept := range []bool{false, true} {
				e := mustNew(t, Config{
					Method: "amb", Columns: []string{"u", "y", "v"}, Target: "y", Clip: "fixed", Zeta: zeta,
					ClipX:  clip,
					Radius: 1e100, Batch: 1 << 20, Intercept: &intercept,
				}, params(dp.Replace))
				for _, w := range []float64{0, 1e-150, 1, 1e90} {
					for j := range e.w {
						e.w[j] = w
					}
					for _, u := range sizes {
						for _, v := range sizes[:4] {
							for _, y := range sizes {
								before := append([]float64(nil), e.gradients.sum...)
								row := []float64{u, y, -v}
								func() {
									defer func() {
										if r := recover(); r != nil {
											t.Fatalf("clip norm %g, bound %g, iterate %g, record %g: %v", zeta,
												clip, w, row, r)
										}
									}()
									e.Add(0, row)
								}()
								var square float64
								for j, s := range e.gradients.sum {
									square += (s - before[j]) * (s - before[j])
								}
								if k := float64(e.plan.Lattice.K); !(square <= k*k) {
									t.Fatalf(
										"clip norm %g, bound %g, iterate %g, record %g moves the sum by %g, "+
											"more than %g", zeta, clip, w, row, math.Sqrt(square), k)
								}
							}
						}
					}
				}
			}
		}
	}
}
