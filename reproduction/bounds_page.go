package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// boundsFound compares moments whose bounds were found automatically with moments whose constants come from other
// sources.
func boundsFound(p *page) error {
	all, err := kept[[]boundsErrors]("bounds")
	if err != nil {
		return err
	}
	p.text(`### Bounds found in a warm-up

The cost of finding centre, scale and clip norm in a warm-up; ε = %g, δ = 10⁻⁶, zero-out, steps of %d. The daemon's estimator computes running means and covariances and is told only the column names and `+"`tune`"+`, the number of steps. Errors are those of the last release against the unclipped rows after the warm-up: root mean square over all columns that vary, or all pairs of them, in units of their deviations; medians over trials. All methods have the same rows and the whole budget.

* **Oracle**: each column's true mean and deviation, and the clip norm with the least sum of both mean squared errors. No deployment can know these.
* **Automatic**: a warm-up of %d records or more; nothing is known.
* **5, 100 times too wide**: the oracle's constants with a clip norm 5 or 100 times as large.
* **ApproxBounds-like**: for each column a histogram of powers of two from the same warm-up, as in Google's library, with Gaussian noise at the same μ. Rows are scaled into the box found; none is shortened.
* **CoinPress** (Biswas, Dong, Kamath, Ullman, NeurIPS 2020): the same warm-up and μ (ρ = μ²/2), column by column, half of the budget for variances, five steps each. It is told an interval of %d deviations to either side of each mean, and the same number as a bound on each deviation.

Families have %d rows, drawn again in each of %d trials (more for few columns, %d for bounds that are too wide). Data sets have all their rows, with the target as a column; from sets with fewer than %d rows, %[5]d are taken, in random order with replacement or by repeating the file.
`, boundsEpsilon, boundsStep, 5000, boundsPrior, boundsRows, boundsTrials(10), boundsWide, boundsRows/2)

	head := []string{"rows", "order", "d", "n", "oracle: mean", "oracle: covariance"}
	for _, m := range boundsMethods {
		if head = append(head, m.title); m.key == "auto" {
			head = append(head, "worst trial")
		}
	}
	ratio := func(e *boundsErrors, key string) (mean, covariance float64) {
		return e.Mean[key] / e.Mean["oracle"], e.Covariance[key] / e.Covariance["oracle"]
	}
	var cells [][]string
	sums := map[string][3]float64{} // sums of logarithms, and a count
	for i := range all {
		e := &all[i]
		row := []string{e.Set, e.Order, fmt.Sprint(e.Dim), fmt.Sprint(e.Rows), num(e.Mean["oracle"]),
			num(e.Covariance["oracle"])}
		for _, m := range boundsMethods {
			if e.Mean[m.key] == 0 {
				row = append(row, "fails", "–")
				continue
			}
			a, b := ratio(e, m.key)
			if row = append(row, brief(a)+" / "+brief(b)); m.key == "auto" {
				row = append(row,
					brief(e.WorstMean/e.Mean["oracle"])+" / "+brief(e.WorstCovariance/e.Covariance["oracle"]))
			}
			s := sums[m.key]
			sums[m.key] = [3]float64{s[0] + math.Log(a), s[1] + math.Log(b), s[2] + 1}
		}
		cells = append(cells, row)
	}
	row := []string{"**geometric mean**", "", "", "", "", ""}
	for _, m := range boundsMethods {
		s := sums[m.key]
		if row = append(row, brief(math.Exp(s[0]/s[2]))+" / "+brief(math.Exp(s[1]/s[2]))); m.key == "auto" {
			row = append(row, "")
		}
	}
	p.text("#### Errors of mean / covariance, in units of the oracle's\n")
	if err := p.large("bounds-errors", head, append(cells, row),
		func(row []string) bool { return row[0] == "**geometric mean**" }, 0, 6, 8, 10, 11); err != nil {
		return err
	}

	p.text(`%s

#### What the error bars hold

Shares of the entries of automatic releases that are within 1.96 `+"`se`"+`, or 1.96 `+"`se_with_clipping`"+`, of the moments of the unclipped rows. `+"`se`"+` is noise alone, which would give 95 %%; the other adds an estimate of the effect of clipping.
`, summaryOfBounds(all))
	head = []string{"rows", "order", "means: se", "means: with clipping", "covariances: se",
		"covariances: with clipping", "variances: se", "variances: with clipping", "frozen of d", "verdicts"}
	cells = nil
	for _, e := range all {
		row := []string{e.Set, e.Order}
		for kind := range e.Noise {
			for _, x := range [][3]float64{e.Noise, e.Wide} {
				if kind == 1 && e.Dim == 1 || e.Mean["auto"] == 0 {
					row = append(row, "–")
				} else {
					row = append(row, fmt.Sprintf("%.0f %%", 100*x[kind]))
				}
			}
		}
		var verdicts []string
		for _, v := range []string{"ok", "partial", "stale", "biased", "fail"} {
			if n := e.Verdicts[v]; n > 0 {
				verdicts = append(verdicts, fmt.Sprintf("%s %d", v, n))
			}
		}
		cells = append(cells, append(row, fmt.Sprintf("%.3g of %d", e.Frozen, e.Dim), strings.Join(verdicts, ", ")))
	}
	return p.large("bounds-coverage", head, cells, func(row []string) bool {
		return slices.Contains([]string{"Student, 3 degrees", "Gaussian, drifting by 4 deviations"}, row[0])
	}, 0, 6, 7, 9)
}

// brief prints three digits, and numbers from 10⁴ on as powers of ten.
func brief(x float64) string {
	if x >= 1e4 {
		e := math.Floor(math.Log10(x))
		return fmt.Sprintf("%.1f·10^%g", x/math.Pow(10, e), e)
	}
	return fmt.Sprintf("%.3g", x)
}

// summaryOfBounds describes in words the result of the tables.
func summaryOfBounds(all []boundsErrors) string {
	var means, covariances []float64
	near, beyond, trials, wild := 0, 0, 0, 0
	var far []string
	for _, e := range all {
		a, b := e.Mean["auto"]/e.Mean["oracle"], e.Covariance["auto"]/e.Covariance["oracle"]
		if trials += e.Trials; a > 0 {
			means, covariances = append(means, a), append(covariances, b)
		}
		if e.WorstMean > 1000*e.Mean["oracle"] {
			wild++
		}
		switch {
		case a <= 1.3 && b <= 1.3:
			near++
		case a > 2 || b > 2 || a == 0:
			beyond++
			if name := e.Set + " (" + verdictOf(e) + ")"; !slices.Contains(far, name) {
				far = append(far, name)
			}
		}
	}
	return fmt.Sprintf(
		`Automatic bounds are within 1.3 of the oracle in both errors in %d of %d rows; the medians are %.2f for means and %.2f for covariances. In %d rows they cost more than a factor of 2 or fail (in brackets the verdict of most trials): %s. `+
			`In %d of %d warm-ups noise was mistaken for a spread, which gives a column a scale too large by many powers of ten and may happen in 1 of 1000; the column's standard error shows it.`,
		near, len(all), median(means), median(covariances), beyond, strings.Join(far, "; "), wild, trials)
}

// verdictOf returns the verdict of most releases of a comparison.
func verdictOf(e boundsErrors) (most string) {
	for _, v := range []string{"ok", "partial", "stale", "biased", "fail"} {
		if e.Verdicts[v] > e.Verdicts[most] {
			most = v
		}
	}
	return most
}
