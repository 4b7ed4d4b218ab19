package sgd

import (
	"math"
	"os"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
)

// TestCoverage counts how often the intervals of streams with default settings contain the true coefficients. For a
// level of 95 % the aim is 92 to 97 %. The coordinates of a run are correlated, so the error of the share is estimated
// from the runs. If the true coverage is within the aim, the test fails with probability stattest.Alpha.
func TestCoverage(t *testing.T) {
	t.Parallel()
	runs := 80
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = 600
	}
	const d, steps = 10, 400
	var covered, squares, width float64
	n := 0.
	for run := range runs {
		l := newLinear(uint64(run), d, 1)
		sim := simulate(t, d, Config{ClipX: 8, Intercept: new(bool), Radius: 10, Curvature: 1},
			dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}, uint64(run), nil)
		for range steps - 1 {
			sim.next(t, l.draw)
		}
		r := sim.next(t, l.draw)
		low, high := value(r, "interval_low"), value(r, "interval_high")
		if low == nil {
			continue // the average restarted without a reason
		}
		n++
		here := 0.0
		for j := range d {
			if l.w[j] >= low[j] && l.w[j] <= high[j] {
				here += 1. / d
			}
			width += (high[j] - low[j]) / d
		}
		covered += here
		squares += here * here
	}
	if void := float64(runs) - n; void > 0.02*float64(runs) {
		t.Errorf("%g of %d stationary streams have no intervals", void, runs)
	}
	covered /= n
	deviation := math.Sqrt((squares/n - covered*covered) / n)
	t.Logf("%d runs: intervals of level 0.95 cover %.3f ± %.3f, width %.4f", runs, covered, deviation, width/n)
	if reach := stattest.Normal(stattest.Alpha) * deviation; !(covered >= 0.92-reach && covered <= 0.97+reach) {
		t.Errorf("intervals of level 0.95 cover %.3f ± %.3f", covered, deviation)
	}
}
