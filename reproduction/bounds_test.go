package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// TestRivals checks that with nearly no noise, ApproxBounds finds the powers of two around all rows, and CoinPress
// finds mean and deviation of Gaussian rows from an interval that is a hundred times too wide. The shares of the budget
// add up to the whole.
func TestRivals(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	rows := make([][]float64, 4000)
	for i := range rows {
		rows[i] = []float64{9 + 5*source.Float64(), -3e-5 * (1 + source.Float64()), 0, 100*source.Float64() - 30,
			2000 + 3*source.NormFloat64()}
	}
	near := func(what string, got, want, within float64) {
		t.Helper()
		if math.Abs(got-want) > within {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	a := approxBounds(rows, 1e6, source)
	for j, want := range [][2]float64{{8, 16}, {-math.Ldexp(1, -14), -math.Ldexp(1, -16)}, {0, 0}, {-32, 128},
		{1024, 2048}} {
		near(fmt.Sprint("centre ", j), a.centre[j], (want[0]+want[1])/2, 0)
		near(fmt.Sprint("scale ", j), a.scale[j], orOne((want[1]-want[0])/2), 0)
	}
	near("clip", a.clip, math.Sqrt(5), 1e-12)
	// Noise as large as the counts hides the column's tails. It adds a tail only with probability 10⁻⁹.
	few := approxBounds(rows, 0.05, source)
	if few.scale[0] != 4 || few.centre[0] != 12 || few.scale[3] > 80 {
		t.Errorf("with noise: %+v", few)
	}

	prior := []float64{150, 1e-3, 1, 3000, 300}
	c := coinPress(rows, []float64{100, 5e-4, 0.5, 2000, 1900}, prior, 1e6, source)
	mean, deviation := momentsOf(rows).mean, momentsOf(rows).deviation
	for _, j := range []int{0, 1, 4} { // the clip norms of Gaussian rows shorten some rows of the other columns
		near(fmt.Sprint("mean ", j), c.centre[j], mean[j], 0.05*deviation[j])
		near(fmt.Sprint("deviation ", j), c.scale[j], deviation[j], 0.1*deviation[j])
	}
	var sum float64
	for _, share := range coinPressSteps {
		sum += share
	}
	near("shares", sum, 1, 1e-15)
}

// TestCompareBounds checks that in a few trials with Gaussian rows, errors with automatic bounds are near those of the
// oracle, errors with too wide constants are not, and the noise has the right coverage.
func TestCompareBounds(t *testing.T) {
	t.Parallel()
	f := eachColumn("Gaussian", 4, (*rand.Rand).NormFloat64)
	e, err := compareBounds(f.name, "drawn", 3, f.rows)
	if err != nil {
		t.Fatal(err)
	}
	// The root mean square over 30 entries of the covariance has a deviation of 13 %, so the ratio of two has 19 %.
	if r := e.Covariance["auto"] / e.Covariance["oracle"]; !(r < 2.2) {
		t.Errorf("automatic bounds have %g times the oracle's error", r)
	}
	for key, least := range map[string]float64{"wide 5": 8, "wide 100": 2000} {
		if r := e.Covariance[key] / e.Covariance["oracle"]; !(r > least) {
			t.Errorf("%s: %g times the oracle's error", key, r)
		}
	}
	if e.Warmup != 5000 || e.Rows != 20_000 || e.Dim != 4 || !(e.Noise[1] >= 0.7) || e.Verdicts["fail"] > 0 ||
		!(e.Clip > 2 && e.Clip < 8) {
		t.Errorf("%+v", e)
	}
}

// TestKeptBounds simulates a family and a data set again, and compares with the kept numbers; to simulate all of them
// would take a quarter of an hour.
func TestKeptBounds(t *testing.T) {
	t.Parallel()
	all, err := kept[[]boundsErrors]("bounds")
	if err != nil || len(all) != len(boundsFamilies)+2*len(refitSets) {
		t.Fatalf("%d rows are kept: %v", len(all), err)
	}
	if os.Getenv("STREAMDP_SLOW") == "" || dataset.Folder() == "" {
		t.Skip(
			"takes long and needs data sets: runs with STREAMDP_SLOW=1, which make nightly-reproduction sets, and " +
				"STREAMDP_DATA")
	}
	for _, was := range all {
		var e *boundsErrors
		switch {
		case was.Set == "timestamps":
			f := boundsFamilies[5]
			e, err = compareBounds(f.name, "drawn", boundsTrials(f.dim), f.rows)
		case was.Set == "servo" && was.Order == "random":
			e, err = boundsOfSet(was.Set, was.Order)
		default:
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for key := range e.Mean {
			near(t, was.Set+": mean, "+key, e.Mean[key], was.Mean[key])
			near(t, was.Set+": covariance, "+key, e.Covariance[key], was.Covariance[key])
		}
		for kind := range e.Wide {
			near(t, was.Set+": coverage", e.Wide[kind], was.Wide[kind])
		}
	}
}

// TestBoundsPage checks that the page and its CSV files have the comparison of the kept measurements.
func TestBoundsPage(t *testing.T) {
	t.Parallel()
	p := &page{figures: t.TempDir()}
	if err := boundsFound(p); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(cases.Root(t), "RESULTS.md"))
	if err != nil || !strings.Contains(string(text), p.b.String()) {
		t.Errorf("RESULTS.md is not current: make reproduction (%v)", err)
	}
	if len(p.results) != 2 {
		t.Errorf("%d CSV files", len(p.results))
	}
	for name, want := range p.results {
		if got, err := os.ReadFile(filepath.Join(cases.Root(t), "results", name)); err != nil ||
			!bytes.Equal(got, want) {
			t.Errorf("results/%s is not current: make reproduction (%v)", name, err)
		}
	}
}
