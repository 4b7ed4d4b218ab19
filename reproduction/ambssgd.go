package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/sgd"
)

// adaptiveClipping reproduces "(Nearly) Optimal Private Linear Regression for Sub-Gaussian Data via Adaptive Clipping",
// a paper without experiments. It runs the algorithm as printed and this library's version.
func adaptiveClipping(p *page) error {
	p.text(
		`## Varshney, Thakurta, Jain: (Nearly) Optimal Private Linear Regression for Sub-Gaussian Data via Adaptive Clipping

The paper has theorems and no experiments. Here its online algorithm, DP-AMBSSGD, is simulated: mean excess risk ½‖w̄ − w*‖², x ~ N(0, I), σ = ‖w*‖ = 1, ε = 1, δ = 10⁻⁶, replacement. ± is the standard error over 20 trials for N ≤ 30 000, then 8, 4 and 2.

* as printed: T = 12 steps of a scan and a batch ten times as long, on residuals, with the paper's ladder down to B/N²⁰⁰ (B = 65 536), threshold, clip norm R·√(ln N) and noise, α = √(8 ln 1/δ)/ε = 10.51. Only the record that its indices use twice is used once.
* bisect: 6 steps of a binary search and a batch, exact noise, α = 4.22, η₀ = 1.
* track, 24 steps: the clip norm follows a quantile, 16 bands, η₀ = ½.
* stream: the defaults, batches of max(400, N/400); also with independent noise.

A cell is empty where the estimator refuses batches that short, or batch descent was not run.
`)
	var head []string
	var cells [][]string
	for _, f := range []struct {
		d     int
		sizes []int
	}{{10, []int{3000, 10_000, 30_000, 100_000, 300_000, 1_000_000}}, {50, []int{10_000, 30_000, 100_000, 300_000}}} {
		names, rows, err := excessRisk(p, f.d, f.sizes)
		if err != nil {
			return err
		}
		head, cells = append([]string{"d", "N"}, names...), append(cells, rows...)
	}
	if err := p.large("amb", head, cells, nil); err != nil {
		return err
	}
	p.text(
		`As printed, the algorithm learns nothing below about 10⁵ records, because its search stops on an empty rung; ½ is the risk of w = 0. With more records it learns in some runs; in others the search overshoots, and the noise with it ([theory/sgd.md](../docs/theory/sgd.md)).
With exact accounting and a search that finds the clip norm, the rate is the theorem's: while privacy dominates, the risk of a fixed number of steps falls like 1/N², then like 1/N at two to three times the risk of least squares. The stream is at 1.3 to 1.5 times for d = 10. The paper's bound 8σ²d/N is 16 times the risk of least squares.
`)
	return nil
}

// riskPrivacy is the guarantee of all methods except the algorithm as printed.
var riskPrivacy = dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}

// riskMethod is a method of online regression.
type riskMethod struct {
	name string
	// configure returns the regression for n records, and its number of gradient steps.
	configure func(n int) (sgd.Config, dp.Params, int)
}

// riskMethods returns the methods that excessRisk compares in d dimensions.
func riskMethods(d int) []riskMethod {
	no := false
	base := sgd.Config{ClipX: math.Sqrt(float64(d)) + 5, Intercept: &no, Intervals: &no, Restart: &no, Radius: 10,
		Curvature: 1}
	return []riskMethod{
		{"as printed", func(n int) (sgd.Config, dp.Params, int) {
			const steps = 12
			c := base
			c.Clip, c.Value, c.Bands, c.Eta0 = "scan", "residual", 1, 1
			c.Rungs, c.Top = int(math.Ceil(200*math.Log2(float64(n)))), 65536
			c.ClipX = math.Sqrt(float64(d) * math.Log(float64(n))) // the result of a search is multiplied by ClipX
			c.Stat = uint64(n / steps / 11)
			c.Batch = 10 * c.Stat
			return c, dp.Params{Mu: 1 / math.Sqrt(8*math.Log(1e6)), Adjacency: dp.Replace}, steps
		}},
		{"bisect, 6 steps", func(n int) (sgd.Config, dp.Params, int) {
			const steps, search = 6, 156
			c := base
			c.Clip, c.Bands, c.Eta0, c.Stat, c.Batch = "bisect", 1, 1, search, uint64(n/steps-search)
			return c, riskPrivacy, steps
		}},
		{"track, 24 steps", func(n int) (sgd.Config, dp.Params, int) {
			const steps, search = 24, 156
			c := base
			c.Eta0, c.Bootstrap, c.Batch = 0.5, search, uint64((n-search)/steps)
			return c, riskPrivacy, steps
		}},
		{"stream", func(n int) (sgd.Config, dp.Params, int) {
			c := base
			c.Bootstrap, c.Batch = 156, uint64(max(400, n/400))
			return c, riskPrivacy, (n - 156) / int(c.Batch)
		}},
		{"stream, independent noise", func(n int) (sgd.Config, dp.Params, int) {
			c := base
			c.Bands, c.Bootstrap, c.Batch = 1, 156, uint64(max(400, n/400))
			return c, riskPrivacy, (n - 156) / int(c.Batch)
		}},
	}
}

// riskTrials returns the number of trials with n records.
func riskTrials(n int) int {
	switch {
	case n > 300_000:
		return 2
	case n > 100_000:
		return 4
	case n > 30_000:
		return 8
	}
	return 20
}

// riskTrial draws n records and adds the excess risks of least squares, of gradient descent on a table, and of the
// methods.
func riskTrial(methods []riskMethod, d, n int, run uint64, risks []sample) error {
	l := newLinear(run, d)
	s := l.sample(n)
	process, err := sgd.NewGDProcess(s, 0.25, 0, nil)
	if err != nil {
		return err
	}
	risks[0].add(l.excess(process.OLS()))
	if n*d <= 5_000_000 {
		noise, err := once(run)
		if err != nil {
			return err
		}
		path, err := sgd.GradientDescent(s, sgd.Descent{Steps: 40, Rate: 0.5, Zeta: 4}, riskPrivacy, noise)
		if err != nil {
			return err
		}
		risks[1].add(l.excess(path.Average()))
	}
	for i, m := range methods {
		cfg, privacy, steps := m.configure(n)
		o, err := newOnline(cfg, d, privacy, run)
		if refused := (*fault.Fault)(nil); errors.As(err, &refused) && refused.Key == "batch" {
			continue
		}
		if err != nil {
			return err
		}
		l := newLinear(run, d)
		var last map[string][]float64
		for range steps {
			for last = nil; last == nil; {
				if last, err = o.next(l); err != nil {
					return err
				}
			}
		}
		risks[2+i].add(l.excess(last["theta_average"]))
	}
	return nil
}

// excessRisk draws the figure for d dimensions and returns the names of the methods and the rows of the table.
func excessRisk(p *page, d int, sizes []int) (names []string, cells [][]string, err error) {
	methods := riskMethods(d)
	names = []string{"least squares", "DP-GD, tracked"}
	for _, m := range methods {
		names = append(names, m.name)
	}
	lines := make([]line, len(names))
	for _, n := range sizes {
		risks := make([]sample, len(names))
		for run := range riskTrials(n) {
			if err := riskTrial(methods, d, n, uint64(run), risks); err != nil {
				return nil, nil, err
			}
		}
		row := []string{fmt.Sprint(d), fmt.Sprint(n)}
		for i := range names {
			if risks[i].n == 0 {
				row = append(row, "–")
				continue
			}
			m := risks[i].mean()
			lines[i].x, lines[i].y = append(lines[i].x, float64(n)), append(lines[i].y, m)
			row = append(row, fmt.Sprintf("%s ± %.0f %%", num(m), 100*risks[i].error()/m))
		}
		cells = append(cells, row)
	}
	for i, name := range names {
		lines[i].name, lines[i].dashed = name, i < 2
	}
	title := fmt.Sprintf("d = %d, ε = 1", d)
	err = p.draw(figure{
		name: fmt.Sprintf("amb-d%d", d), title: title, x: "records", y: "excess risk", logX: true, logY: true, top: 100,
		lines:   lines,
		caption: fmt.Sprintf("Excess risk against N, d = %d", d),
	})
	return names, cells, err
}
