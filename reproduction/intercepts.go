package main

import (
	"errors"
	"fmt"
	"log"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dataset"
	"github.com/streamdp/streamdp/refit"
)

// interceptSetting is a setting of the comparison: the mean of features and target, in standard deviations, and the
// factor by which bounds are too large.
type interceptSetting struct {
	Features float64 `json:"features"`
	Target   float64 `json:"target"`
	Loose    float64 `json:"loose"`
}

var interceptSettings = []interceptSetting{{0, 0, 1}, {0, 0, 5}, {1, 3, 1}, {3, 10, 5}}

// interceptSolvers lists the solvers of the comparison with an intercept.
var interceptSolvers = []string{"linmix", "adassp", "dp-gd-residual", "ihm", "fast-ihm", "dp-gd", "newton"}

// interceptLosses holds, for one set, the share of the signal that each solver with an intercept misses. The order is
// that of the settings and the budgets. Least squares has loss 0; predicting the mean has loss 1.
type interceptLosses struct {
	Set    string                   `json:"set"`
	Rows   int                      `json:"n"`
	Dim    int                      `json:"d"`
	Trials int                      `json:"trials"`
	Losses map[string][][]statistic `json:"losses"`
}

// simulateIntercepts fits every set with every solver in every setting.
func simulateIntercepts() (any, error) {
	if dataset.Folder() == "" {
		return nil, errors.New("STREAMDP_DATA is not set to a folder of data sets")
	}
	var all []interceptLosses
	for _, set := range refitSets {
		if set.name == weakSet {
			continue
		}
		l, err := simulateIntercept(set)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", set.name, err)
		}
		log.Print(set.name)
		all = append(all, *l)
	}
	return all, nil
}

func simulateIntercept(set refitSet) (*interceptLosses, error) {
	w, err := set.read()
	if err != nil {
		return nil, err
	}
	n, d := len(w.y), len(w.x[0])
	l := &interceptLosses{Set: set.name, Rows: n, Dim: d, Trials: 20, Losses: map[string][][]statistic{}}
	if n > 2000 {
		l.Trials = 4
	}
	for _, at := range interceptSettings {
		rows, err := set.shifted(at)
		if err != nil {
			return nil, err
		}
		least, zero, err := rows.constantErrors()
		if err != nil {
			return nil, err
		}
		for _, solver := range interceptSolvers {
			var losses []statistic
			for _, epsilon := range refitBudgets {
				p := dp.Params{Epsilon: epsilon, Delta: 1 / float64(n) / float64(n), Adjacency: dp.ZeroOut}
				c := refit.Config{Solver: solver}
				if solver == "fast-ihm" {
					c.Iterations = 3 // as in the comparison without an intercept
				}
				f, err := newFitterWith(c, p, n, d, fmt.Sprint(set.name, solver, epsilon, at), true)
				if err != nil {
					return nil, err
				}
				s, err := f.trials(rows, l.Trials,
					func(theta []float64) float64 { return (rows.error(theta) - least) / (zero - least) })
				if err != nil {
					return nil, err
				}
				losses = append(losses, s.statistic(1))
			}
			l.Losses[solver] = append(l.Losses[solver], losses)
		}
	}
	return l, nil
}

// shifted returns the training rows, standardised, shifted, and scaled into the bounds of a setting.
func (set *refitSet) shifted(at interceptSetting) (*window, error) {
	x, y, err := dataset.Read(dataset.Folder(), set.name, 0)
	if err != nil {
		return nil, err
	}
	w, target := &window{x, y}, &window{y: make([]float64, len(y))}
	w.standardise()
	for _, v := range y {
		target.x = append(target.x, []float64{v})
	}
	target.standardise()
	for i, row := range w.x {
		for j := range row {
			row[j] += at.Features
		}
		w.y[i] = target.x[i][0] + at.Target
	}
	w.normalise()
	w.scale(1/at.Loose, 1/at.Loose)
	return w, nil
}

// constantErrors returns the mean squared errors of least squares with an intercept, and of the mean.
func (w *window) constantErrors() (least, zero float64, err error) {
	half := &window{y: w.y} // features are halved, so that rows with their constant stay in the unit ball
	var mean float64
	for i, x := range w.x {
		row := make([]float64, len(x)+1)
		for j, v := range x {
			row[j] = v / 2
		}
		row[len(x)] = 0.5
		half.x = append(half.x, row)
		mean += w.y[i] / float64(len(w.y))
	}
	best, err := half.best()
	if err != nil {
		return 0, 0, err
	}
	constant := make([]float64, len(w.x[0])+1)
	constant[len(constant)-1] = mean
	return half.error(best), w.error(constant), nil
}

// withIntercepts compares the solvers of refits with an intercept. It uses the settings of the tables without an
// intercept, and data with other means.
func withIntercepts(p *page) error {
	all, err := kept[[]interceptLosses]("intercepts")
	if err != nil {
		return err
	}
	p.text(`### With an intercept

The solvers above fit no intercept, so the target's mean is part of the signal. Here they fit one, as is their default. Columns and target are standardised; "1 / 3" adds 1 deviation to every feature and 3 to the target, "3 / 10" adds 3 and 10. Bounds are tight or 5 times too large. The loss (error − OLS)/(mean − OLS) is 0 for least squares with an intercept and 1 for the mean alone. Geometric means over %d sets, without %s, which has no signal.
`, len(all), weakSet)
	head, rows := []string{"features / target", "bounds", "solver"}, [][]string{}
	for _, epsilon := range refitBudgets {
		head = append(head, fmt.Sprintf("ε = %g", epsilon))
	}
	var cells, ahead int
	var ratio, worst float64
	var where string
	for i, at := range interceptSettings {
		bounds := "tight"
		if at.Loose > 1 {
			bounds = fmt.Sprintf("%g×", at.Loose)
		}
		for _, solver := range interceptSolvers {
			row := []string{fmt.Sprintf("%g / %g", at.Features, at.Target), bounds, solver}
			for k := range refitBudgets {
				var sum float64
				for _, l := range all {
					sum += math.Log(l.Losses[solver][i][k].Mean) / float64(len(all))
				}
				row = append(row, fmt.Sprintf("%.3g", math.Exp(sum)))
			}
			rows = append(rows, row)
		}
		for _, l := range all {
			for k, epsilon := range refitBudgets {
				r := l.Losses["newton"][i][k].Mean / min(l.Losses["ihm"][i][k].Mean, l.Losses["dp-gd"][i][k].Mean)
				cells++
				ratio += math.Log(r)
				if r <= 1.1 {
					ahead++
				}
				if r > worst {
					worst, where = r, fmt.Sprintf("%s at ε = %g", l.Set, epsilon)
				}
			}
		}
	}
	if err := p.large("intercepts", head, rows, nil); err != nil {
		return err
	}
	p.text(
		`newton's loss is %.2f times the smaller one of ihm and dp-gd in the geometric mean, at most 1.1 times in %d of %d settings of data, bounds and ε, and %.2f times in the worst (%s). The losses of the sets at 0 / 0:
`, math.Exp(ratio/float64(cells)), ahead, cells, worst, where)
	// The first two settings are those of the comparison without an intercept.
	head, rows = append([]string{"bounds", "set", "ε"}, interceptSolvers...), nil
	for i, bounds := range []string{"tight", "loose"} {
		for _, l := range all {
			for k, epsilon := range refitBudgets {
				row := []string{bounds, l.Set, fmt.Sprint(epsilon)}
				for _, solver := range interceptSolvers {
					row = append(row, l.Losses[solver][i][k].short())
				}
				rows = append(rows, row)
			}
		}
	}
	return p.large("intercepts-sets", head, rows, nil)
}
