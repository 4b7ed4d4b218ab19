package main

import (
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dataset"
	"github.com/streamdp/streamdp/sgd"
)

// onlineRegression shows results that no paper shows: regression on a stream, by the daemon on data sets, after a
// change, and with intervals.
func onlineRegression(p *page) error {
	p.text(`## Regression on a stream

What the methods of package sgd do where the papers have no figure.
`)
	for _, f := range []func(*page) error{dataSets, recovery, intervals, newtonSets, newtonDrift} {
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// dataSets streams published data sets through the daemon. They are not part of the project: without them the page
// keeps its text.
func dataSets(p *page) error {
	const title, splits = "### Data sets through the daemon", 5
	if dataset.Folder() == "" {
		return p.keep(title)
	}
	p.text(`%s

elevators and pol of the UCI repository, one pass: each training row of a split is one record, in random order, sent to a broker and read by the daemon as it is run, which publishes after every batch. Of the last release, R² on the rows held out: the median of %d splits, and from the least to the largest. Zero-out, δ = 10⁻⁶.
Public constants are tight here, for they were computed from the training rows, which no deployment may do: columns are centred by their means and divided by their deviations, 99 in 100 rows are within clip_x and 999 in 1000 targets within clip_y. "left alone" and "given" is about `+"`curvature`, given as the largest eigenvalue of the clipped features' second moment. All else is as it is by default; the refit has the whole training set for its window, and `radius`"+` is 5.
`, title, splits)
	var cells [][]string
	for _, name := range []string{"elevators", "pol"} {
		var sets []*regressionSet
		var best scores
		for split := range splits {
			s, err := openSet(name, split)
			if err != nil {
				return err
			}
			theta, err := s.ols()
			if err != nil {
				return err
			}
			sets = append(sets, s)
			best = append(best, s.score(theta))
		}
		for _, epsilon := range []float64{1, 4} {
			row := []string{fmt.Sprintf("%s, %d rows", name, len(sets[0].train)), num(epsilon), best.String()}
			releases := 0
			for _, mechanism := range []func(*regressionSet) string{
				func(s *regressionSet) string {
					return fmt.Sprintf("refit]\nsolver = \"dp-gd\"\nwindow = %d", len(s.train))
				},
				func(s *regressionSet) string {
					return fmt.Sprintf("sgd]\nmethod = \"amb\"\namb.curvature = %g", s.curvature)
				},
				func(s *regressionSet) string { return "sgd]\nmethod = \"amb\"" },
				func(s *regressionSet) string {
					return fmt.Sprintf("sgd]\nmethod = \"amb\"\namb.threshold_quantile = 0.9\namb.curvature = %g",
						s.curvature)
				},
				func(s *regressionSet) string { return "sgd]\nmethod = \"amb\"\namb.threshold_quantile = 0.9" },
			} {
				var got scores
				for split, s := range sets {
					n := 0
					last,
						err := s.passage(uint64(split), epsilon, mechanism(s)).run(s.train,
						func(*release) error { n++; return nil })
					if err != nil {
						return err
					}
					releases = max(releases, n) // the number with the default quantile
					got = append(got, s.score(original(last)))
				}
				row = append(row, got.String())
			}
			cells = append(cells, append(row, fmt.Sprint(releases)))
		}
	}
	p.table(
		[]string{"data", "ε", "least squares", "one DP-GD refit", "stream, given", "stream, left alone",
			"given, quantile 0.9", "left alone, quantile 0.9", "releases, default quantile"}, cells)
	p.text("%s",
		`* *Curvature decides.* Left alone, steps are too short 27 times on elevators and 115 times on pol, which is the bound of the norm, squared, over the largest eigenvalue, and the stream learns little. On pol it is worse than a constant: the constant feature, whose value is then clip_x, is all that moves, and clipping at the default quantile takes it towards the targets' median, 0.7 deviations below their mean. `+"`streamdp plan`"+` warns of a curvature left alone.
* *Given the curvature*, pol is within 0.015 of least squares. elevators is not: its eigenvalues go from 6.1 to 0.0025, two more are below 10⁻⁵, and 65 or 228 steps do not go far in the lower directions. More budget helps only by more steps.
* *The refit* loses 0.10 on elevators and 0.05 on pol, all of it bias: at ε = 50 it has 0.678 and 0.412 on the first split. Its 200 steps are too few for elevators, and on pol it sits at the minimum of the clipped losses, which the stream is on its way to: 0.459 at ε = 1, 0.449 after three times as many steps.
* *The quantile 0.9* takes that bias away, for batches twice as long: better where steps are many.
* One held-out row of elevators, in one split, is 268 deviations long. Least squares has coefficients of 10⁴ in the empty directions, never saw its like, and extrapolates; the private ones do not.
`)
	return nil
}

// scores holds the scores of several splits.
type scores []float64

func (s scores) String() string {
	sorted := slices.Sorted(slices.Values(s))
	return fmt.Sprintf("%.3f (%.3f to %.3f)", sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1])
}

// A stream whose coefficients change.
const changeDim, changeBatch, changeSteps, changeAt, changeRuns = 10, 400, 400, 200, 20

// changeRisks returns the excess risks by curve, step and run. It also returns, by run, the number of steps from the
// change to the first restart of an average, and how often an average restarted before the change.
func changeRisks(curves int) (risks [][][]float64, restarts []float64, early int, err error) {
	risks = make([][][]float64, curves) // by curve, step and run
	for i := range risks {
		risks[i] = make([][]float64, changeSteps)
	}
	for run := range changeRuns {
		for i, restart := range []bool{true, false} {
			o, err := newOnline(
				sgd.Config{ClipX: 8, Intercept: new(bool), Radius: 10, Curvature: 1, Batch: changeBatch,
					Restart: &restart}, changeDim,
				dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}, uint64(run))
			if err != nil {
				return nil, nil, 0, err
			}
			l := newLinear(uint64(run), changeDim)
			if _, err := o.next(l); err != nil { // the first step is a search
				return nil, nil, 0, err
			}
			for t := range changeSteps {
				if t == changeAt {
					for j := range l.w {
						l.w[j] = -l.w[j]
					}
				}
				r, err := o.next(l)
				if err != nil {
					return nil, nil, 0, err
				}
				risks[i][t] = append(risks[i][t], l.excess(r["theta_average"]))
				if restart {
					risks[2][t] = append(risks[2][t], l.excess(r["theta"]))
					anew := t > 4 && r["average_start"][0] >= float64(t)
					switch {
					case anew && t < changeAt:
						early++
					case anew && len(restarts) == run:
						restarts = append(restarts, float64(t+1-changeAt))
					}
				}
			}
		}
	}
	return risks, restarts, early, nil
}

// recovery changes the sign of the coefficients in the middle of a stream.
func recovery(p *page) error {
	const d, batch, steps, change, runs = changeDim, changeBatch, changeSteps, changeAt, changeRuns
	names := []string{"average, begun anew", "average", "last iterate"}
	risks, restarts, early, err := changeRisks(len(names))
	if err != nil {
		return err
	}
	median := func(x []float64) float64 {
		s := slices.Sorted(slices.Values(x))
		return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	}
	p.text(`### Recovery from a change

w* turns into −w* after %d of %d steps. d = %d, H = I, σ = ‖w*‖ = 1, ε = 1, δ = 10⁻⁶, replace, batches of %d, 16 bands; median excess risk of %d runs.
`, change, steps, d, batch, runs)
	var lines []line
	for i, name := range names {
		l := line{name: name, dashed: i == 2}
		for t := 4; t < steps; t++ {
			l.x, l.y = append(l.x, float64(t+1)), append(l.y, median(risks[i][t]))
		}
		lines = append(lines, l)
	}
	if err := p.draw(figure{
		name: "sgd-recovery", title: "w* → −w* after step 200", x: "steps", y: "excess risk", logY: true, top: 30,
		lines: lines,
		caption: "Excess risk against the number of steps: the average that begins anew falls like the last iterate " +
			"and further, the other one stays up.",
	}); err != nil {
		return err
	}
	head := []string{"steps after the change"}
	at := []int{0, 10, 25, 50, 100, 200}
	for _, n := range at {
		head = append(head, fmt.Sprint(n))
	}
	var cells [][]string
	for i, name := range names {
		row := []string{name}
		for _, n := range at {
			row = append(row, num(median(risks[i][change+n-1])))
		}
		cells = append(cells, row)
	}
	p.table(head, cells)
	p.text(
		"The average began anew %.0f to %.0f steps after the change, and %s before it. It costs no budget: the rule "+
			"reads released numbers.\n",
		slices.Min(restarts), slices.Max(restarts),
		map[bool]string{true: "never", false: fmt.Sprintf("%d times", early)}[early == 0])
	return nil
}

// intervals counts how often the intervals of streams contain w*.
func intervals(p *page) error {
	const d, runs = 10, 200
	at := []int{200, 250, 400, 800}
	p.text(`### Coverage of intervals

Approximate intervals of level 95 %% for w* from batched means of the iterates, d = %d, H = I, σ = ‖w*‖ = 1, ε = 1, δ = 10⁻⁶, replace, no constant, all else by default: the part that holds a coordinate of w*, over %d runs and all coordinates, ± its standard error.
`, d, runs)
	head := []string{"steps"}
	for _, n := range at {
		head = append(head, fmt.Sprint(n))
	}
	var cells [][]string
	void := 0
	for _, s := range []struct {
		name  string
		bands int
		eta0  float64
	}{{"16 bands, η₀ = 0.3 (default)", 16, 0.3}, {"16 bands, η₀ = 0.1", 16, 0.1},
		{"independent noise, η₀ = 0.3, batches of 400", 1, 0.3}} {
		covered := make([]sample, len(at))
		var width sample
		for run := range runs {
			cfg := sgd.Config{ClipX: 8, Intercept: new(bool), Radius: 10, Curvature: 1, Bands: s.bands, Eta0: s.eta0}
			if s.bands == 1 {
				cfg.Batch = 400
			}
			o, err := newOnline(cfg, d, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}, uint64(run))
			if err != nil {
				return err
			}
			l := newLinear(uint64(run), d)
			if _, err := o.next(l); err != nil {
				return err
			}
			for t := range at[len(at)-1] {
				r, err := o.next(l)
				if err != nil {
					return err
				}
				low, high := r["interval_low"], r["interval_high"]
				if i := slices.Index(at, t+1); i >= 0 && low != nil {
					inside := 0.
					for j, w := range l.w {
						if low[j] <= w && w <= high[j] {
							inside += 1. / d
						}
						if t+1 == 400 {
							width.add(high[j] - low[j])
						}
					}
					covered[i].add(inside)
				}
			}
		}
		row := []string{s.name}
		for i := range covered {
			cell := "none yet"
			if n := covered[i].n; n > 0 {
				cell = covered[i].String()
				void += runs - n
			}
			row = append(row, cell)
		}
		widths := "–"
		if width.n > 0 {
			widths = fmt.Sprintf("%.4f", width.mean())
		}
		cells = append(cells, append(row, widths))
	}
	p.table(append(head, "width at 400"), cells)
	p.text(
		`Intervals begin with the fifth batch of the last three quarters: batches have 9/η₀ iterates at least. They know sampling error and privacy noise, not the bias of clipping, and end where the average begins anew: %d intervals of all these were void so.
At the defaults they are a little too wide: 1500 more runs of 400 steps cover 0.965 ± 0.002. Shorter streams, smaller steps and other data may have less: nothing proves a level, so they are called approximate wherever they are shown.
`, void)
	return nil
}
