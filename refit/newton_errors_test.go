package refit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/vector"
)

// errorsOver closes windows of a linear model. It returns the share of coefficients within 1.96 standard errors of the
// model's, the root mean square of their distances in standard errors, and the number of windows that had errors.
func errorsOver(t *testing.T, c Config, p dp.Params, windows int) (covered, size float64, stated int) {
	t.Helper()
	source := rand.New(rand.NewPCG(21, c.Window))
	model := map[string][]float64{"theta": {0.4, -0.3, 0.1}, "intercept": {0.25}}
	r := mustRefit(t, c, p)
	var inside, all int
	var square float64
	for w := range windows {
		first, end := r.Range(uint64(w + 1))
		for slot := first; slot < end; slot++ {
			a, b := source.NormFloat64(), source.NormFloat64()
			row := []float64{a, 0.6*a + 0.8*b, source.NormFloat64() + 0.5, 0}
			for j, v := range model["theta"] {
				row[3] += v * row[j]
			}
			if *r.cfg.Intercept {
				row[3] += model["intercept"][0]
			}
			row[3] += 0.2 * source.NormFloat64()
			r.Add(slot, row)
		}
		release, err := r.Close(dptest.Seeded(uint64(w) + 100))
		if err != nil {
			t.Fatal(err)
		}
		if release.Failed != "" || release.Values[0].SE == nil {
			continue
		}
		stated++
		for _, v := range release.Values {
			if len(v.SE) != len(v.Data) {
				t.Fatalf("%s has %d errors", v.Name, len(v.SE))
			}
			for j, x := range v.Data {
				z := (x - model[v.Name][j]) / v.SE[j]
				square += z * z
				if all++; math.Abs(z) <= 1.96 {
					inside++
				}
			}
		}
	}
	return float64(inside) / float64(all), math.Sqrt(square / float64(all)), stated
}

// TestErrors checks that newton's standard errors have about the right coverage of known coefficients: with and without
// an intercept, and whether noise or sampling dominates. There must be no standard errors with few records, if nothing
// is learned, and for other solvers.
func TestErrors(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, intercept := range []*bool{&yes, &no} {
		for _, at := range []struct {
			rows uint64
			mu   float64
		}{{1500, 0.3}, {600, 5}} {
			c := Config{Target: "y", Columns: []string{"a", "b", "c", "y"}, ClipX: 6, ClipY: 4, Window: at.rows,
				Intercept: intercept}
			covered, size, stated := errorsOver(t, c, dp.Params{Mu: at.mu, Adjacency: dp.ZeroOut}, 40)
			// Errors of unbiased coefficients have size 1 and cover 0.95. There are 40 windows of at least 3
			// coefficients. Suppose that a window's coefficients are covered together or not at all, with probability
			// 0.95. Then a coverage below 0.8 has probability 7·10⁻⁴. The errors include biases, so sizes are below 1.
			if stated != 40 || covered < 0.8 || size < 0.4 || size > 1.15 {
				t.Errorf("%d rows, μ = %g, intercept %t: %.3f are covered, size %.2f, in %d windows", at.rows, at.mu,
					*intercept, covered, size, stated)
			}
			t.Logf("%d rows, μ = %g, intercept %t: %.3f are covered, size %.2f", at.rows, at.mu, *intercept,
				covered, size)
		}
	}
	base := Config{Target: "y", Columns: []string{"a", "b", "c", "y"}, ClipX: 6, ClipY: 4, Window: 300}
	if _, _, stated := errorsOver(t, base, dp.Params{Mu: 0.05, Adjacency: dp.ZeroOut}, 10); stated > 0 {
		t.Errorf("%d windows of too few records have errors", stated)
	}
	other := base
	other.Solver = "adassp"
	if _, _, stated := errorsOver(t, other, dp.Params{Mu: 5, Adjacency: dp.ZeroOut}, 2); stated > 0 {
		t.Error("adassp has errors")
	}
	// Without a signal, the coefficients of some windows are shortened to 0.
	r := mustRefit(t, base, dp.Params{Mu: 0.5, Adjacency: dp.ZeroOut})
	source, none := rand.New(rand.NewPCG(22, 1)), 0
	for w := range uint64(20) {
		var rows [][]float64
		for range base.Window {
			rows = append(rows,
				[]float64{source.NormFloat64(), source.NormFloat64(), source.NormFloat64(), source.NormFloat64()})
		}
		release := closeWindow(t, r, rows, dptest.Seeded(w))
		if shrink := r.solver.(*newtonSolver).trace.shrink; (shrink == 0) != (release.Values[0].SE == nil) {
			t.Errorf("window %d: shortened by %g, errors %v", w, shrink, release.Values[0].SE)
		} else if shrink == 0 {
			none++
		}
	}
	if none == 0 {
		t.Error("every window has learned something")
	}
}

// TestErrorsInUnits checks standard errors in other units: they must follow from the covariance of coefficients and
// intercept.
func TestErrorsInUnits(t *testing.T) {
	t.Parallel()
	c := configs()["newton in original units"]
	r := mustRefit(t, c, generous)
	release := closeWindow(t, r, records(120, 1), dptest.Seeded(1))
	e := r.solver.(*newtonSolver).trace.errors
	if e == nil || zero(e.centre) {
		t.Fatal("there are no errors, or no centre to move")
	}
	// Columns are a, y, b. cov is the covariance of (β_a, β_b, ι), where ι = constant − ⟨m, β⟩.
	cov := make([][]float64, 3)
	for i := range cov {
		cov[i] = make([]float64, 3)
	}
	for i := range 2 {
		for j := range 2 {
			cov[i][j] = e.square[i*2+j]
			cov[i][2] -= e.square[i*2+j] * e.centre[j]
			cov[2][2] += e.centre[i] * e.square[i*2+j] * e.centre[j]
		}
		cov[2][i] = cov[i][2]
	}
	cov[2][2] += e.constant
	sy, cx, cy := c.Scale[1], c.ClipX, c.ClipY
	for name, rows := range map[string][][]float64{
		"theta":          {{cy / cx, 0, 0}, {0, cy / cx, 0}},
		"intercept":      {{0, 0, cy}},
		"theta_original": {{sy * cy / cx / c.Scale[0], 0, 0}, {0, sy * cy / cx / c.Scale[2], 0}},
		"intercept_original": {
			{-sy * cy / cx * c.Centre[0] / c.Scale[0], -sy * cy / cx * c.Centre[2] / c.Scale[2], sy * cy}},
	} {
		found := false
		for _, v := range release.Values {
			if v.Name != name {
				continue
			}
			found = true
			for j, a := range rows {
				var want float64
				for i := range 3 {
					for k := range 3 {
						want += a[i] * cov[i][k] * a[k]
					}
				}
				if want = math.Sqrt(want); !(math.Abs(v.SE[j]-want) <= 1e-9*want) {
					t.Errorf("%s %d has the error %g, want %g", name, j, v.SE[j], want)
				}
			}
		}
		if !found {
			t.Errorf("no value %s", name)
		}
	}
}

// TestErrorsOverflow checks that a standard error beyond the range of float64 is omitted, and nothing else.
func TestErrorsOverflow(t *testing.T) {
	t.Parallel()
	c := configs()["newton in original units"]
	c.Centre = []float64{1e200, 10, -2}
	for _, v := range closeWindow(t, mustRefit(t, c, generous), records(120, 1), dptest.Seeded(1)).Values {
		if !vector.Finite(v.Data) || !vector.Finite(v.SE) || (v.SE == nil) != (v.Name == "intercept_original") {
			t.Errorf("%s: %v, errors %v", v.Name, v.Data, v.SE)
		}
	}
}
