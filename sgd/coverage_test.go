package sgd

import (
	"math"
	"os"
	"testing"

	"streamdp/dp"
)

// TestCoverage counts how often the intervals of streams at the defaults hold the
// true coefficients. The count of a run's coordinates has correlated entries, so
// its deviation is taken from the runs; the bounds allow 4.5 of them beside the
// 92 to 97 % that are aimed at.
func TestCoverage(t *testing.T) {
	t.Parallel()
	runs := 40
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = 200
	}
	const d, steps = 10, 400
	var covered, squares, width float64
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
			t.Fatalf("run %d has no intervals", run)
		}
		here := 0.0
		for j := range d {
			if l.w[j] >= low[j] && l.w[j] <= high[j] {
				here += 1. / d
			}
			width += (high[j] - low[j]) / d / float64(runs)
		}
		covered += here / float64(runs)
		squares += here * here / float64(runs)
	}
	deviation := (squares - covered*covered) / float64(runs)
	t.Logf("%d runs: intervals of level 0.95 cover %.3f, width %.4f", runs, covered, width)
	if reach := 4.5 * math.Sqrt(deviation); covered < 0.92-reach || covered > 0.97+reach {
		t.Errorf("intervals of level 0.95 cover %.3f", covered)
	}
}
