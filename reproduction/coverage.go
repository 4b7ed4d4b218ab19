package main

import (
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dataset"
	"github.com/streamdp/streamdp/refit"
)

// heldSet is the data set that was not used to choose newton's constants.
const heldSet = "skillcraft"

// coverageSettings lists the settings of the simulation: where the data lie and how windows are fitted.
var coverageSettings = []struct {
	about     string
	at        interceptSetting
	intercept bool
	adjacency dp.Adjacency
}{
	{"as above", interceptSetting{0, 0, 1}, true, dp.ZeroOut},
	{"bounds 3 times too large", interceptSetting{0, 0, 3}, true, dp.ZeroOut},
	{"features at 1, the target at 3 standard deviations", interceptSetting{1, 3, 1}, true, dp.ZeroOut},
	{"replace", interceptSetting{0, 0, 1}, true, dp.Replace},
	{"no intercept", interceptSetting{0, 0, 1}, false, dp.ZeroOut},
}

var coverageBudgets = []float64{0.5, 1, 5}

// coverages holds the coverages of one set, in the order of the settings and the budgets.
type coverages struct {
	Set   string       `json:"set"`
	Rows  int          `json:"n"`
	Dim   int          `json:"d"`
	Cells [][]coverage `json:"cells"`
}

// coverage counts the coefficients of windows, those with a standard error, and those within 1.96 standard errors of
// the target.
type coverage struct {
	Coefficients int `json:"coefficients"`
	Stated       int `json:"stated"`
	Covered      int `json:"covered"`
}

func (c *coverage) add(o coverage) {
	c.Coefficients += o.Coefficients
	c.Stated += o.Stated
	c.Covered += o.Covered
}

// String returns the share of coefficients that is covered. If some have no standard error, it adds the share that has
// one.
func (c coverage) String() string {
	if c.Stated == 0 {
		return "none"
	}
	text := fmt.Sprintf("%.1f %%", 100*float64(c.Covered)/float64(c.Stated))
	if c.Stated < c.Coefficients {
		text += fmt.Sprintf(" (of %.0f %%)", 100*float64(c.Stated)/float64(c.Coefficients))
	}
	return text
}

// simulateCoverage treats every set as a distribution and draws windows from it. It counts how often the distribution's
// coefficients are within 1.96 of newton's standard errors.
func simulateCoverage() (any, error) {
	if dataset.Folder() == "" {
		return nil, errors.New("STREAMDP_DATA is not set to a folder of data sets")
	}
	var all []coverages
	for _, set := range append(refitSets, refitSet{name: heldSet}) {
		c, err := set.coverages()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", set.name, err)
		}
		log.Print(set.name)
		all = append(all, *c)
	}
	return all, nil
}

func (set *refitSet) coverages() (*coverages, error) {
	c := &coverages{Set: set.name}
	for _, at := range coverageSettings {
		w, err := set.shifted(at.at)
		if err != nil {
			return nil, err
		}
		n, trials := min(len(w.y), 5000), 40
		if n > 2000 {
			trials = 20
		}
		c.Rows, c.Dim = n, len(w.x[0])
		target, err := w.shortest(at.intercept)
		if err != nil {
			return nil, err
		}
		var cells []coverage
		for _, epsilon := range coverageBudgets {
			p := dp.Params{Epsilon: epsilon, Delta: 1 / float64(n) / float64(n), Adjacency: at.adjacency}
			f, err := newFitterWith(refit.Config{}, p, n, c.Dim, fmt.Sprint("coverage", set.name, at, epsilon),
				at.intercept)
			if err != nil {
				return nil, err
			}
			source := rand.New(rand.NewPCG(uint64(n), uint64(10*epsilon)))
			var cell coverage
			for range trials {
				drawn := &window{}
				for range n {
					i := source.IntN(len(w.y))
					drawn.x, drawn.y = append(drawn.x, w.x[i]), append(drawn.y, w.y[i])
				}
				f.add(drawn)
				r, err := f.release()
				if err != nil {
					return nil, err
				}
				at := 0
				for _, v := range r.Values {
					for j, x := range v.Data {
						cell.Coefficients++
						if v.SE != nil {
							cell.Stated++
							if math.Abs(x-target[at]) <= 1.96*v.SE[j] {
								cell.Covered++
							}
						}
						at++
					}
				}
			}
			cells = append(cells, cell)
		}
		c.Cells = append(c.Cells, cells)
	}
	return c, nil
}

// shortest returns the shortest least-squares coefficients, with the intercept last if there is one. A direction gets
// no coefficient if the rows vary in it less than 10⁻¹⁰ times as much as in the first direction: there the columns
// depend linearly on each other, up to the rounding of the file.
func (w *window) shortest(intercept bool) ([]float64, error) {
	d, n := len(w.x[0]), float64(len(w.y))
	centre, mean := make([]float64, d), 0.0
	if intercept {
		for i, x := range w.x {
			for j, v := range x {
				centre[j] += v / n
			}
			mean += w.y[i] / n
		}
	}
	gram, product, row := mat.NewSymDense(d, nil), make([]float64, d), make([]float64, d)
	for i, x := range w.x {
		for j, v := range x {
			row[j] = v - centre[j]
			product[j] += row[j] * (w.y[i] - mean)
		}
		gram.SymRankOne(gram, 1, mat.NewVecDense(d, row))
	}
	var eigen mat.EigenSym
	if !eigen.Factorize(gram, true) {
		return nil, errors.New("the eigenvalues did not converge")
	}
	var vectors mat.Dense
	eigen.VectorsTo(&vectors)
	values, theta := eigen.Values(nil), make([]float64, d)
	for k, value := range values {
		if value < 1e-10*values[d-1] {
			continue
		}
		v := mat.Col(nil, k, &vectors)
		for j := range theta {
			theta[j] += v[j] * inner(v, product) / value
		}
	}
	if intercept {
		theta = append(theta, mean-inner(centre, theta))
	}
	return theta, nil
}

// standardErrors writes the table of the coverage of newton's errors.
func standardErrors(p *page) error {
	all, err := kept[[]coverages]("coverage")
	if err != nil {
		return err
	}
	p.text(`### Standard errors of newton

Each set serves as a distribution: a window is n rows drawn from it with replacement, at most 5000, and the truth is least squares on the whole set with an intercept (the shortest coefficients where columns depend on each other). Share of the coefficients within 1.96 standard errors of the truth, nominally 95 %%; δ = 1/n², tight bounds, zero-out. "none": no window has errors, because there are too few records for the noise; "of" is the share of windows that have errors. The constants of the errors were chosen on all sets except %s.
`, heldSet)
	head, rows := []string{"set", "n", "d"}, [][]string{}
	for _, epsilon := range coverageBudgets {
		head = append(head, fmt.Sprintf("ε = %g", epsilon))
	}
	totals := make([][]coverage, len(coverageSettings))
	for i := range totals {
		totals[i] = make([]coverage, len(coverageBudgets))
	}
	for _, c := range all {
		row := []string{c.Set, fmt.Sprint(c.Rows), fmt.Sprint(c.Dim)}
		for i, cells := range c.Cells {
			for k, cell := range cells {
				totals[i][k].add(cell)
				if i == 0 {
					row = append(row, cell.String())
				}
			}
		}
		rows = append(rows, row)
	}
	if err := p.large("coverage", head, rows, nil); err != nil {
		return err
	}
	p.text("All sets together:\n")
	head, rows = append([]string{"setting"}, head[3:]...), nil
	for i, at := range coverageSettings {
		row := []string{at.about}
		for _, c := range totals[i] {
			row = append(row, c.String())
		}
		rows = append(rows, row)
	}
	return p.large("coverage-settings", head, rows, func([]string) bool { return true })
}
