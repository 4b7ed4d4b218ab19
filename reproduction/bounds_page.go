package main

import (
	"fmt"
	"math"
	"strings"
)

// boundsFound compares moments with found bounds and moments with constants from elsewhere.
func boundsFound(p *page) error {
	all, err := kept[[]boundsErrors]("bounds")
	if err != nil {
		return err
	}
	p.text(`### Bounds that nobody knew

What centre, scale and clip norm from a warm-up cost: ε = %g, δ = 10⁻⁶, zero-out, steps of %d, running means and covariances by the estimator of the daemon, told nothing but names (and `+"`tune`"+`, the number of steps). The errors are those of the last release, against the rows behind the warm-up as they are, unclipped: root mean square over all columns that vary, frozen ones among them, or over all pairs of these, in units of the columns' deviations; medians over the trials. All methods have the same rows behind the warm-up, and the whole budget for them.

* **Oracle**: mean and deviation of each column of these very rows, and the clip norm that has the least sum of both mean squared errors, computed from noise and clipping. No deployment can have it. Its errors are in the first columns, those of the others as multiples of them.
* **Automatic**: the warm-up of %d records or more; nothing is known.
* **5, 100 times too wide**: the oracle's constants, and a clip norm so much larger: noise grows with it, and that of covariances with its square.
* **ApproxBounds-like**: for each column a histogram of powers of two from the same warm-up, as Google's library has it, with Gaussian noise at the same μ; rows are scaled into the box that was found, of which no row is shortened.
* **CoinPress** (Biswas, Dong, Kamath, Ullman, NeurIPS 2020), from the same warm-up at the same μ (ρ = μ²/2), column by column, half of the budget for variances, five steps each. It is not automatic: it is told an interval of %d deviations to either side for each mean, and that many as a bound of each deviation.

Families have %d rows, drawn anew in each of %d trials (more for few columns, %d for bounds that are too wide). Data sets have all their rows, training and test, target included; of sets with fewer than %d rows %[5]d are taken: in random order with replacement, in file order the file again and again. The simulation needs STREAMDP_DATA; its figures are kept in reproduction/kept and made by `+"`make simulations`"+`.
`, boundsEpsilon, boundsStep, 5000, boundsPrior, boundsRows, boundsTrials(10), boundsWide, boundsRows/2)

	head := []string{"rows", "order", "d", "n", "oracle: mean", "covariance"}
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
	p.table(head, append(cells, row))

	p.text(`%s

#### What the error bars hold

Of the automatic releases: in how many of the entries with an error bar the moments of the rows as they are, unclipped, lie within 1.96 of `+"`se`"+`, the noise alone, and of `+"`se_with_clipping`"+`, which adds an estimate of what clipping takes. 95 %% is what noise alone would have. Verdicts are those of the last releases.
`, summaryOfBounds(all))
	head = []string{"rows", "order", "means: se", "with clipping", "covariances: se", "with clipping", "variances: se",
		"with clipping", "frozen of d", "verdicts"}
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
	p.table(head, cells)
	return nil
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
	near, trials, wild := 0, 0, 0
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
			name := e.Set
			if e.Order != "drawn" {
				name += ", " + e.Order + " order"
			}
			far = append(far, name+" ("+verdictOf(e)+")")
		}
	}
	return fmt.Sprintf(
		`Automatic bounds are within 1.3 of the oracle in both errors in %d of %d rows of the table; over all the median is %.2f for means and %.2f for covariances. They cost more than a factor of 2, or fail, in %d, with the verdict that most trials have in brackets: %s. `+
			`In %d of %d warm-ups noise passed for a spread, and a column got a scale that is too large by many powers of ten: a chance of 1 in 1000 that each look is allowed. Its standard error shows it.`,
		near, len(all), median(means), median(covariances), len(far), strings.Join(far, "; "), wild, trials)
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
