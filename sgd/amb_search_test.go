package sgd

import (
	"errors"
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/internal/vector"
)

// TestQuietSource feeds records without residuals, which drive the clip norm to its floor. The clip norm must go no
// further, and must recover from there.
func TestQuietSource(t *testing.T) {
	t.Parallel()
	l := newLinear(4, 3, 0)
	l.w = make([]float64, 3)
	sim := simulate(t, 3, Config{ClipX: 10, Intercept: new(bool), Radius: 10, Batch: 300, Curvature: 1},
		params(dp.Replace), 4, nil)
	zeta := 0.0
	step := func() { zeta = value(sim.next(t, l.draw), "zeta")[0] }
	for range 1000 {
		step()
	}
	if floor := sim.e.plan.ZetaLow; zeta != floor || floor != 0x1p-32 {
		t.Errorf("the clip norm is %g, want the floor %g", zeta, floor)
	}
	l.sigma = 1
	n := 0
	for ; zeta < 0.5 && n < 100; n++ {
		step()
	}
	t.Logf("back from the floor after %d steps", n)
	if n > 45 {
		t.Errorf("the clip norm needs %d steps from its floor", n)
	}
}

// TestUnitChange multiplies the features by 10 for a while, which makes steps five times too large. The radius keeps
// the iterates so near that they recover.
func TestUnitChange(t *testing.T) {
	t.Parallel()
	l := newLinear(5, 4, 0.5)
	sim := simulate(t, 4, Config{ClipX: 1e3, Intercept: new(bool), Radius: 10, Batch: 400}, params(dp.Replace), 5,
		func(p *AMBPlan) { p.Bound, p.Curvature = 2, 1 })
	largest := 0.0
	run := func(steps int, factor float64) (r *dp.Release) {
		for range steps {
			r = sim.next(t, func(x []float64) float64 {
				y := l.draw(x)
				for j := range x {
					x[j] *= factor
				}
				return y
			})
			largest = max(largest, math.Sqrt(2*l.excess(value(r, "theta"))))
		}
		return r
	}
	run(100, 1)
	run(100, 10)
	r := run(50, 1)
	iterate := l.excess(value(r, "theta"))
	r = run(200, 1)
	average := l.excess(value(r, "theta_average"))
	t.Logf("largest error %.3g; excess risk of the iterate 50 steps later %.3g, of the average 250 steps later %.3g",
		largest, iterate, average)
	if largest > 11.1 || iterate > 0.01 || average > 0.01 {
		t.Errorf("largest error %g, excess risk afterwards %g and %g", largest, iterate, average)
	}
}

// TestDiverged checks that targets that grow without bound stop the estimator with an error, and that its releases show
// the reason.
func TestDiverged(t *testing.T) {
	t.Parallel()
	for _, clip := range []string{"track", "bisect"} {
		e := mustNew(t, variants()[clip], params(dp.Replace))
		var err error
		var last *dp.Release
		steps := 0
		for ; err == nil && steps < 1000; steps++ {
			first, end := e.Range(e.step + 1)
			for slot := first; slot < end; slot++ {
				e.Add(slot, []float64{1, 1e100, 1})
			}
			var r *dp.Release
			if r, err = e.Close(dptest.Seeded(uint64(steps))); r != nil {
				last = r
			}
		}
		if !errors.Is(err, ErrDiverged) {
			t.Errorf("%s: %d steps end with %v", clip, steps, err)
		}
		for _, v := range last.Values {
			if !vector.Finite(v.Data) {
				t.Errorf("%s: %s is %v", clip, v.Name, v.Data)
			}
		}
		// A restored estimator halts in the same way.
		state := estimatortest.State(t, e)
		f := mustNew(t, variants()[clip], params(dp.Replace))
		if err := f.UnmarshalBinary(state); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Close(dptest.Zero()); !errors.Is(err, ErrDiverged) {
			t.Errorf("%s: after a restart Close returns %v", clip, err)
		}
	}
}
