package newton

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

func TestBin(t *testing.T) {
	for s, want := range map[float64]int{
		1: 0, 0.5000000001: 0, 0.5: 1, 0.3: 1, 0.25: 2, 0.2: 2, 1.7: 0, 1e30: 0, 0x1p-23: 23, 0x1.1p-23: 22,
		0x1p-24: 23, 1e-300: 23, 5e-324: 23, 0: 23,
	} {
		if got := Bin(s); got != want {
			t.Errorf("Bin(%g) = %d, want %d", s, got, want)
		}
	}
}

// TestHistogram checks that the noise hides the counts in lattice units, and that its standard deviation is the one
// that the guarantee needs.
func TestHistogram(t *testing.T) {
	var h Histogram
	for _, row := range [][]float64{{1, 0}, {0.5, 0.5}, {0, 0}, {1e-200, 0}, {0.1, -0.2}, {3, 4}} {
		h.Add(row)
	}
	z := make([]float64, Bins)
	for j := range z {
		z[j] = float64(j)/2 - 7.25
	}
	sd := HistogramSD(0.5, dp.Replace)
	if math.Abs(sd-math.Sqrt2/0.5) > 1e-11 {
		t.Errorf("deviation %g", sd)
	}
	noise := dptest.Arrays(map[string][][]float64{"h": {z}})
	norms := h.Release(noise, "h", sd, 24)
	counts := [Bins]int64{0: 2, 1: 1, 4: 1, 23: 2}
	for j, c := range counts {
		if noise.Hidden("h")[j] != c<<20 {
			t.Errorf("bin %d hides %d, want %d", j, noise.Hidden("h")[j], c<<20)
		}
		if got := norms.Counts[j]; math.Abs(got-float64(c)-sd*z[j]) > 0x1p-20 {
			t.Errorf("bin %d is %g, want %g", j, got, float64(c)+sd*z[j])
		}
	}
}

// TestRadius checks the rules by hand, on a histogram without noise.
func TestRadius(t *testing.T) {
	n := Norms{SD: 1}
	n.Counts[0], n.Counts[3], n.Counts[6], n.Counts[7] = 1.5, 30, 500, 400
	if got, want := n.Valid(5000), 931.5+2*math.Sqrt(24); math.Abs(got-want) > 1e-9 {
		t.Errorf("%g rows are valid, want %g", got, want)
	}
	if n.Valid(900) != 900 || n.Valid(30) != 30 || n.Empty() {
		t.Error("n̂ is not within its limits, or the histogram counts as empty")
	}
	// The bin with 1.5 rows may be noise. Bin 6 has 500 rows, more than 0.4·n̂, so i = 7 is excluded. Up to i = 6, rows
	// of bin 3 are clipped.
	missed := []float64{0, 0, 0, 0, 30 * (0.75/8 - 1./16), 30 * (0.75/8 - 1./32), 30 * (0.75/8 - 1./64)}
	for _, noise := range []float64{1e-9, 0.01, 1, 50, 1e9} {
		best, at := math.Inf(1), 0
		for i, m := range missed {
			if cost := noise/math.Exp2(float64(i)) + 0.25*m; cost < best {
				best, at = cost, i
			}
		}
		squared, m := n.Radius(n.Valid(5000), noise, 0.25)
		if squared != math.Exp2(float64(-at)) || math.Abs(m-missed[at]) > 1e-12 {
			t.Errorf("noise %g: R² = %g missing %g, want 2^−%d and %g", noise, squared, m, at, missed[at])
		}
	}
	trace := 0.0
	square := 0.0
	for j, c := range n.Counts {
		b := min(0.75*math.Exp2(float64(-j)), 1./64)
		trace += c * b
		square += b * b
	}
	trace += math.Sqrt(square)
	if got := n.Trace(1./64, 1000, 0.5); math.Abs(got-trace) > 1e-12 {
		t.Errorf("trace %g, want %g", got, trace)
	}
	if got := n.Trace(1./64, 1, 0.5); math.Abs(got-(1./64+0.5)) > 1e-12 {
		t.Errorf("trace of one row %g", got)
	}
	if !(&Norms{SD: 5}).Empty() {
		t.Error("zeros are not empty")
	}
}

// TestMissed checks Missed for an R² between bins, for example from a search.
func TestMissed(t *testing.T) {
	n := Norms{SD: 1}
	n.Counts[0], n.Counts[1], n.Counts[4] = 100, 10, 1.9
	for squared, want := range map[float64]float64{1: 0, 0.5: 25, 0.25: 50 + 1.25, 0x1p-32: 75 + 3.75} {
		if got := n.Missed(squared); math.Abs(got-want) > 1e-6 {
			t.Errorf("R² = %g misses %g, want %g", squared, got, want)
		}
	}
}
