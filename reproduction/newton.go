package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// newtonSets compares the default method for streams with gradient descent that knows the curvature, on published data
// sets.
func newtonSets(p *page) error {
	const title, splits = "### Bounds alone: newton through the daemon", 5
	if dataset.Folder() == "" {
		return p.keep(title)
	}
	p.text(`%s

Four UCI sets through the daemon, as above, in one pass. The loss is the share of the learnable signal that the last release misses on the training rows: (E − E_ols)/(E_0 − E_ols), with the mean squared errors E, E_ols of least squares and E_0 of the mean. 0 is least squares, 1 nothing learned. Medians of %d splits; zero-out, δ = 10⁻⁶.
newton is told only the bound of the features' norm; amb is told all bounds, a radius and, if "given", the largest eigenvalue. With "5×" all bounds are five times too large. Columns are standardised; "target 3" has a mean of 3 deviations in scaled units, as after a wrong guess of its centre.
`, title, splits)
	var cells, ends [][]string
	for _, shift := range []float64{0, 3} {
		some, end, err := newtonCells(splits, shift)
		if err != nil {
			return err
		}
		cells, ends = append(cells, some...), append(ends, end)
	}
	head := []string{"data", "target", "ε", "bounds"}
	for _, c := range contenders {
		head = append(head, c.name)
	}
	if err := p.large("newton", head, append(cells, ends...),
		func(row []string) bool { return row[0] == "geometric mean" }, 0, 1, 4, 5, 6, 7); err != nil {
		return err
	}
	p.text(
		`newton tolerates bounds that are too large and targets far from 0. amb learns little or nothing if left alone. On most sets a refit of all records at once is best.
`)
	return newtonCourse(p)
}

// newtonCells compares the contenders on four sets whose targets have the given mean, in standard deviations. It
// returns the rows of the table and, separately, its last row with geometric means.
func newtonCells(splits int, shift float64) (cells [][]string, end []string, err error) {
	means := make([]float64, len(contenders)) // means of logarithms
	for _, name := range []string{"elevators", "pol", "sml", "bike"} {
		var sets []*regressionSet
		for split := range splits {
			s, err := openSet(name, split)
			if err != nil {
				return nil, nil, err
			}
			sets = append(sets, s)
		}
		for _, epsilon := range []float64{1, 4} {
			for _, loose := range []float64{1, 5} {
				bounds := "tight"
				if loose > 1 {
					bounds = fmt.Sprintf("%g×", loose)
				}
				row := []string{
					fmt.Sprintf("%s, %d rows, %d features", name, len(sets[0].train), len(sets[0].columns)-1),
					num(shift), num(epsilon), bounds}
				for i, c := range contenders {
					var losses []float64
					for split, s := range sets {
						last, err := s.contend(c, uint64(split), epsilon, loose, shift).run(s.train, nil)
						if err != nil {
							return nil, nil, fmt.Errorf("%s, %s: %w", name, c.name, err)
						}
						loss, err := s.loss(original(last))
						if err != nil {
							return nil, nil, err
						}
						losses = append(losses, loss)
					}
					slices.Sort(losses)
					loss := losses[len(losses)/2]
					means[i] += math.Log(loss) / 16
					row = append(row, fmt.Sprintf("%.3g", loss))
				}
				cells = append(cells, row)
			}
		}
	}
	end = []string{"geometric mean", num(shift), "", ""}
	for _, m := range means {
		end = append(end, fmt.Sprintf("%.3g", math.Exp(m)))
	}
	return cells, end, nil
}

// newtonCourse draws how the contenders learn one set.
func newtonCourse(p *page) error {
	s, err := openSet("elevators", 0)
	if err != nil {
		return err
	}
	var lines []line
	for _, c := range contenders {
		l := line{name: c.name}
		last, err := s.contend(c, 1, 1, 1, 0).run(s.train, func(r *release) error {
			loss, err := s.loss(original(r))
			if slots := r.value("slots"); err == nil && slots != nil && slots[0] > 1000 {
				l.x, l.y = append(l.x, slots[0]), append(l.y, min(max(loss, 1e-3), 3))
			}
			return err
		})
		if err != nil {
			return err
		}
		if l.x == nil { // one release, after all records
			loss, err := s.loss(original(last))
			if err != nil {
				return err
			}
			l.x, l.y, l.dashed = []float64{1000, float64(len(s.train))}, []float64{loss, loss}, true
		}
		lines = append(lines, l)
	}
	return p.draw(figure{
		name: "newton-elevators", title: "elevators, ε = 1, tight bounds", x: "records", y: "loss of learnable signal",
		logX: true, logY: true, lines: lines,
		caption: "Loss against the number of records on elevators",
	})
}

// contender is an estimator of the comparison.
type contender struct {
	name  string
	table func(s *regressionSet, x, y float64) string // x and y are bounds
}

var contenders = []contender{
	{"newton", func(_ *regressionSet, x, _ float64) string { return fmt.Sprintf("sgd]\nclip_x = %g", x) }},
	{"amb, given", func(s *regressionSet, x, y float64) string {
		return fmt.Sprintf("sgd]\nmethod = \"amb\"\nclip_x = %g\nclip_y = %g\nradius = 5.0\namb.curvature = %g", x, y,
			s.curvature)
	}},
	{"amb, left alone", func(_ *regressionSet, x, y float64) string {
		return fmt.Sprintf("sgd]\nmethod = \"amb\"\nclip_x = %g\nclip_y = %g\nradius = 5.0", x, y)
	}},
	{"one newton refit", func(s *regressionSet, x, y float64) string {
		return fmt.Sprintf("refit]\nclip_x = %g\nclip_y = %g\nwindow = %d", x, y, len(s.train))
	}},
}

// contend returns a passage with bounds that are too large by the factor loose, and with targets whose mean is shift.
func (s *regressionSet) contend(c contender, seed uint64, epsilon, loose, shift float64) *passage {
	centre, target := slices.Clone(s.centre), len(s.columns)-1
	centre[target] -= shift * s.scale[target]
	return &passage{
		columns: s.columns, centre: centre, scale: s.scale, seed: seed,
		tables: regressionTables(epsilon, c.table(s, loose*s.clipX, loose*(s.clipY+shift))),
	}
}

// regressionTables returns the tables of a regression of y under zero-out and δ = 10⁻⁶.
func regressionTables(epsilon float64, mechanism string) string {
	return fmt.Sprintf(
		"[stream.data.privacy]\nepsilon = %g\ndelta = 1e-6\nadjacency = \"zero-out\"\nlimit_epsilon = %g\n"+
			"[stream.data.%s\ntarget = \"y\"\n",
		epsilon, epsilon, mechanism)
}

// loss returns the share of the learnable signal that the coefficients theta leave unexplained on the training rows.
// theta is in original units, with the constant last.
func (s *regressionSet) loss(theta []float64) (float64, error) {
	best, err := s.ols()
	if err != nil {
		return 0, err
	}
	last := len(s.columns) - 1
	square := func(theta []float64) (sum float64) {
		for _, row := range s.train {
			e := row[last] - theta[last]
			for j := range last {
				e -= theta[j] * row[j]
			}
			sum += e * e
		}
		return sum
	}
	mean := make([]float64, last+1)
	mean[last] = s.centre[last]
	least := square(best)
	return (square(theta) - least) / (square(mean) - least), nil
}

// newtonDrift simulates changes in the middle of a stream: coefficients change sign, and a feature becomes ten times
// larger.
func newtonDrift(p *page) error {
	p.text(`### Changes in mid-stream

10⁵ records through the daemon: ten independent features and residuals of variance 1, coefficients of norm 1. After half of the records all coefficients change sign, or one feature becomes ten times as large. Excess risk of ` + "`theta_average`" + ` under the current distribution; ε = 1, δ = 10⁻⁶, zero-out, clip_x = 20. amb is told a radius of 10 and a curvature of 1, which is right before the change.
`)
	var cells [][]string
	for _, change := range []struct {
		name, about string
		flip, grow  float64
	}{{"flip", "all coefficients change sign", -1, 1}, {"grow", "one feature grows tenfold", 1, 10}} {
		const n, d = 100000, 10
		source := rand.New(rand.NewPCG(17, 3))
		w := make([]float64, d)
		for j := range w {
			w[j] = source.NormFloat64()
		}
		norm := length(w)
		var columns []string
		for j := range w {
			w[j] /= norm
			columns = append(columns, fmt.Sprint("x", j))
		}
		columns = append(columns, "y")
		rows := make([][]float64, n)
		for i := range rows {
			sign, size := 1.0, 1.0
			if i >= n/2 {
				sign, size = change.flip, change.grow
			}
			row := make([]float64, d+1)
			row[d] = source.NormFloat64()
			for j := range w {
				row[j] = source.NormFloat64()
				if j == 3 {
					row[j] *= size
				}
				row[d] += sign * w[j] * row[j]
			}
			rows[i] = row
		}
		var lines []line
		for _, m := range []struct{ name, table string }{
			{"newton", "sgd]\nclip_x = 20.0\nintercept = false"},
			{"amb", "sgd]\nmethod = \"amb\"\nclip_x = 20.0\nradius = 10.0\namb.curvature = 1.0\nintercept = false"},
		} {
			l := line{name: m.name}
			if _, err := (&passage{columns: columns, seed: 5, tables: regressionTables(1, m.table)}).run(rows,
				func(r *release) error {
					slots := r.value("slots")[0]
					sign, size := 1.0, 1.0
					if slots > n/2 {
						sign, size = change.flip, change.grow
					}
					var sum float64
					for j, v := range r.value("theta_average") {
						e := v - sign*w[j]
						if j == 3 {
							e *= size
						}
						sum += e * e / 2
					}
					if slots > 2000 {
						l.x, l.y = append(l.x, slots), append(l.y, sum)
					}
					return nil
				}); err != nil {
				return err
			}
			lines = append(lines, l)
			row := []string{change.about, m.name}
			for _, at := range []float64{0.5, 0.55, 0.6, 0.75, 1} {
				i, _ := slices.BinarySearch(l.x, math.Nextafter(at*n, math.Inf(1)))
				row = append(row, num(l.y[i-1]))
			}
			cells = append(cells, row)
		}
		if err := p.draw(figure{
			name: "newton-" + change.name, title: change.about + " at 50 000", x: "records", y: "excess risk",
			logY: true, lines: lines,
			caption: "Excess risk: " + change.about,
		}); err != nil {
			return err
		}
	}
	if err := p.large("newton-changes",
		[]string{"change after 50 000 records", "method", "50 000", "55 000", "60 000", "75 000", "100 000"}, cells,
		nil); err != nil {
		return err
	}
	p.text(
		`When a feature grows, amb's steps are a hundred times too long in its direction, and amb diverges until its radius stops it. newton sees the clip norm jump, forgets its matrix and searches again.
`)
	return nil
}
