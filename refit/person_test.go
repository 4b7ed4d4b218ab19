package refit

import (
	"math"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

func TestPersonRatio(t *testing.T) {
	for _, solver := range []string{"newton", "adassp", "dp-gd", "dp-gd-residual"} {
		for _, c := range []struct {
			windows, rows uint64
			adjacency     dp.Adjacency
			want          float64
		}{{1, 1, dp.ZeroOut, 1}, {9, 5, dp.ZeroOut, 15}, {1, 1, dp.Replace, 2}, {9, 5, dp.Replace, 30}} {
			got, err := PersonRatio(solver, c.windows, c.rows, c.adjacency)
			if err != nil || got < c.want || got > c.want*(1+1e-11) {
				t.Errorf("%s, %+v: %g, %v", solver, c, got, err)
			}
		}
	}
	// Compute the same cost in another way: by group privacy from the record's cost, and by composition over windows.
	record := dp.Cost{Adjacency: dp.ZeroOut, Mu: 0.1}
	window := dp.Cost{Adjacency: dp.ZeroOut, Mu: 5 * record.Mu}
	if one, err := record.GroupEpsilon(5, 1e-6); err != nil {
		t.Fatal(err)
	} else if two, err := window.Epsilon(1e-6); err != nil || math.Abs(one/two-1) > 1e-9 {
		t.Errorf("a group of 5 has ε = %g, five times μ %g, %v", one, two, err)
	}
	for _, solver := range []string{"ihm", "linmix", "fast-ihm", ""} {
		if r, err := PersonRatio(solver, 1, 1, dp.ZeroOut); err == nil || !strings.Contains(err.Error(), "sketch") {
			t.Errorf("%q: %g, %v", solver, r, err)
		}
	}
	for _, x := range [][2]uint64{{0, 1}, {1, 0}} {
		if r, err := PersonRatio("newton", x[0], x[1], dp.ZeroOut); err == nil {
			t.Errorf("%v: %g", x, r)
		}
	}
}
