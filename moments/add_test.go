package moments

import (
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// TestAddTakesNothingElse adds invalid rows together with ordinary ones. Invalid rows must count, contribute zeros, and
// not affect the records after them.
func TestAddTakesNothingElse(t *testing.T) {
	t.Parallel()
	good := []float64{0.25, -0.5, 0.125}
	for name, bad := range map[string][]float64{
		"nil": nil, "empty": {}, "short": {0.5}, "two": {0.5, 0.5}, "long": {0.5, 0.5, 0.5, 0.5},
		"NaN": {0.5, math.NaN(), 0.5}, "Inf": {math.Inf(-1), 0.5, 0.5}, "zero": {0, 0, 0},
		"denormal": {5e-324, -5e-324, 0},
	} {
		e := mustNew(t, Config{Clip: 1, Columns: dptest.Columns(3), Step: 4, Factorization: "identity"},
			dp.Params{Mu: 1, Adjacency: dp.ZeroOut})
		only := mustNew(t, Config{Clip: 1, Columns: dptest.Columns(3), Step: 4, Factorization: "identity"},
			dp.Params{Mu: 1, Adjacency: dp.ZeroOut})
		e.Add(0, good)
		e.Add(1, bad)
		only.Add(0, good)
		noise, reference := dptest.Zero(), dptest.Zero()
		r, err := e.Close(noise)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := only.Close(reference); err != nil {
			t.Fatal(err)
		}
		if r.Rows != 2 {
			t.Errorf("%s: %d rows, want 2", name, r.Rows)
		}
		for _, array := range []string{"jme/first", "jme/second"} {
			if got, want := noise.Hidden(array), reference.Hidden(array); !slices.Equal(got, want) {
				t.Errorf("%s: %s holds %v, want %v", name, array, got, want)
			}
		}
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	for _, mu := range []float64{0.5, 50} { // these use the float64 kernel and the integer form
		e := mustNew(t, Config{Clip: 1.1, Columns: dptest.Columns(16), Step: 1 << 20},
			dp.Params{Mu: mu, Adjacency: dp.Replace})
		row := make([]float64, 16)
		for i := range row {
			row[i] = float64(i)
		}
		estimatortest.Allocates(t, e, 0, row, nil)
	}
}
