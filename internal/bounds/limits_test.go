package bounds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// regressionRows returns rows of three features and a target. One row in fifty is ten times as far from the middle.
func regressionRows(n int, seed uint64) [][]float64 {
	source := rand.New(rand.NewPCG(seed, 51))
	rows := make([][]float64, n)
	for i := range rows {
		far := 1.0
		if source.IntN(50) == 0 {
			far = 10
		}
		a, b, c := far*source.NormFloat64(), far*source.NormFloat64(), far*source.NormFloat64()
		rows[i] = []float64{1e6 + 300*a, 2e5 + 4000*(a-b) + 900*source.NormFloat64(), 0.01 * b, -7 + c}
	}
	return rows
}

// TestRegressionSensitivity: with bounds of a regression, changing one record changes all releases together by at most
// μ. The audit finds a stage B that has noise for one histogram but releases two.
func TestRegressionSensitivity(t *testing.T) {
	t.Parallel()
	base := regressionRows(3000, 1)
	source := rand.New(rand.NewPCG(2, 52))
	cfg := Config{Columns: 4, Regression: &Regression{Target: 1, X: true, Y: true}}
	worst := func(adjacency dp.Adjacency, split bool, alter func(w *Warmup, s int, h *histograms)) (worst float64) {
		c := cfg
		c.Split = split
		for k := range uint64(3) {
			x, y := extreme(source, 4), extreme(source, 4)
			if k < 2 { // in the first bins of the first stages and of stage B
				x, y = []float64{-0x1p104, -0x1p104, -0x1p104, -0x1p104}, nil
			}
			if adjacency == dp.ZeroOut {
				y = nil
			}
			at := 0
			if split {
				at = source.IntN(len(base))
			}
			got, w := audited(t, c, 6, adjacency, base, at, x, y, k, alter)
			if w.Failed() {
				t.Fatal("the warm-up failed")
			}
			worst = max(worst, got)
		}
		return worst
	}
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, split := range []bool{false, true} {
			if got := worst(adjacency, split, nil); !(got <= 1) {
				t.Errorf("%s, split %v: the worst records are %.9g of μ apart", adjacency, split, got)
			}
		}
	}
	one := func(_ *Warmup, s int, h *histograms) {
		if s == norms {
			h.sigma /= math.Sqrt(float64(h.width))
		}
	}
	if got := worst(dp.ZeroOut, false, one); !(got > 1.02) {
		t.Errorf("the audit did not find the fault: the worst records are %.6g of μ apart", got)
	}
}

// TestLimits: the bounds of a regression are levels that about one row in a thousand exceeds, separately for features
// and target. A restored state finds the same bounds. If a bound is given, stage B has one histogram less.
func TestLimits(t *testing.T) {
	t.Parallel()
	rows := regressionRows(25000, 3)
	for _, r := range []Regression{{1, true, true}, {1, true, false}, {1, false, true}} {
		t.Run(fmt.Sprint(r), func(t *testing.T) {
			cfg := Config{Columns: 4, Regression: &r, Records: uint64(len(rows))}
			w, err := New(cfg, 2, dp.ZeroOut, 24)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				w.Add(row)
			}
			stages, err := w.Close(dptest.Seeded(4))
			if err != nil || w.Failed() {
				t.Fatalf("%v, %+v", err, stages)
			}
			f, b := w.Found(), stages[len(stages)-1]
			if (b.Features != nil) != r.X || (b.Target != nil) != r.Y || b.Clipping != nil || b.Clip != 0 {
				t.Errorf("stage B %+v", b)
			}
			scaled, beyondX, beyondY := make([]float64, 4), 0, 0
			for _, row := range rows {
				f.Scaled(scaled, row)
				if math.Hypot(math.Hypot(scaled[0], scaled[2]), scaled[3]) > f.X.Clip {
					beyondX++
				}
				if math.Abs(scaled[1]) > f.Y.Clip {
					beyondY++
				}
			}
			// The noise of stage B is 6 of 25 000 records a level: the level found has 0.03 % to 0.3 % of the rows
			// beyond it.
			for _, x := range []struct {
				found  bool
				limit  Limit
				beyond int
			}{{r.X, f.X, beyondX}, {r.Y, f.Y, beyondY}} {
				if !x.found {
					if x.limit != (Limit{}) {
						t.Errorf("the warm-up found a bound that was given: %+v", x.limit)
					}
				} else if x.beyond < 7 || x.beyond > 75 || x.limit.Clipped > limitShare {
					t.Errorf("%d of %d rows are beyond %+v", x.beyond, len(rows), x.limit)
				}
			}
			var state bin.Writer
			w.AppendTo(&state)
			other, err := New(cfg, 2, dp.ZeroOut, 24)
			if err != nil {
				t.Fatal(err)
			}
			read := bin.Reader{B: state.B}
			if err := other.Restore(&read); err != nil || !read.Done() || !other.Done() {
				t.Fatal(err)
			}
			if g := other.Found(); g.X != f.X || g.Y != f.Y {
				t.Errorf("restored %+v, %+v, want %+v, %+v", g.X, g.Y, f.X, f.Y)
			}
		})
	}
}

// TestRegressionFails checks that the warm-up fails if the target has no spread, or if no feature has a spread.
func TestRegressionFails(t *testing.T) {
	t.Parallel()
	for name, constant := range map[string][]int{"the target has no spread": {1},
		"no feature has a spread": {0, 2, 3}} {
		rows := regressionRows(6000, 5)
		w, err := New(Config{Columns: 4, Regression: &Regression{Target: 1, X: true}, Records: 6000}, 2, dp.ZeroOut, 24)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			for _, j := range constant {
				row[j] = 3
			}
			w.Add(row)
		}
		stages, err := w.Close(dptest.Seeded(6))
		if err != nil {
			t.Fatal(err)
		}
		if last := stages[len(stages)-1]; !w.Failed() || last.Verdict != "fail" || last.Reason != name {
			t.Errorf("%+v, want %s", last, name)
		}
	}
}
