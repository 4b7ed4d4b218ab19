package fit

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestFitBudget checks that bounds and fit together cost exactly the whole budget. A column that never varies is
// frozen, and its coefficient is 0.
func TestFitBudget(t *testing.T) {
	t.Parallel()
	const mu = 0.8
	for _, n := range []int{900, 1500, 20000} {
		d := &data{
			names: []string{"a", "c", "y"}, target: 2, intercept: true, standard: true,
			params: dp.Params{Mu: mu, Adjacency: dp.Replace},
			find:   &bounds.Config{Columns: 3, Regression: &bounds.Regression{Target: 2, X: true, Y: true}},
			noise:  func(step uint64) dp.Noise { return dptest.Seeded(step + 9) },
		}
		for i := range n {
			x := float64(i%41) - 20
			d.rows = append(d.rows, []float64{x, 7, 3*x + float64(i%7)})
		}
		own, found, err := d.bounded()
		if err != nil {
			t.Fatal(err)
		}
		if spent := (own.params.Mu*own.params.Mu + found.Share*mu*mu) / (mu * mu); math.Abs(spent-1) > 1e-15 ||
			own.params.Adjacency != dp.Replace {
			t.Errorf("%d rows: %.17g of the budget", n, spent)
		}
		least := float64(d.find.Needed(mu*math.Sqrt(found.Share), dp.Replace))
		if !(found.Share >= leastShare && found.Share <= mostShare && least <= float64(n)) ||
			found.Share < mostShare && found.Share > leastShare && math.Abs(boundsRoom*least/float64(n)-1) > 0.01 {
			t.Errorf("%d rows: share %g, %g are needed", n, found.Share, least)
		}
		if !slices.Equal(found.Frozen, []string{"c"}) || own.rows[5][1] != 0 {
			t.Errorf("found %+v, row %v", found, own.rows[5])
		}
		r := &Result{Theta: []float64{4, 5}, SE: []float64{1, 1, 1}}
		if own.freeze(r); r.Theta[0] != 4 || r.Theta[1] != 0 || !math.IsNaN(r.SE[1]) || r.SE[2] != 1 {
			t.Errorf("%+v", r)
		}
		if text, err := json.Marshal(r.SE); err != nil || string(text) != "[1,null,1]" {
			t.Errorf("%s, %v", text, err)
		}
	}
}
