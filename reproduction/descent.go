package main

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/refit"
	"github.com/streamdp/streamdp/sgd"
)

// gradientDescent reproduces "Private Gradient Descent for Linear Regression": Figures 1, 2, 3, 5, 6 and 8 to 11.
func gradientDescent(p *page) error {
	p.text(`## Brown, Dvijotham, Evans, Liu, Smith, Thakurta: Private Gradient Descent for Linear Regression

Simulations of ` + "`GradientDescent`" + `, the paper's Algorithm 1 with integer noise. Chosen here, because the paper does not say: η = ¼, replacement, σ = 1, θ* uniform on the unit sphere, new data in every trial, level 95 %%; T = 10 and γ = 5√p are the paper's. AdaSSP is package refit's, under zero-out, with the eigenvalue, exact accounting, and bounds √p + 2 and 5. "law" is the exact law of iterates without clipping (` + "`GDProcess`" + `) on the same samples. ± is the standard error over the trials.
The test cases ` + "`fig1`, `fig2`, `fig3` and `fig56`" + ` compare the simulations with another implementation. Figures 4 and 7, errors against the clip norm, are not reproduced.
`)
	for _, f := range []func(*page) error{descentSizes, descentSamples, descentClipped, descentIntervals} {
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// anisotropic gives the features the second moment UΛUᵀ, where U is a uniform rotation and Λ = diag(2, 1, others
// uniform in [1, 2]).
func (l *linear) anisotropic() {
	d := len(l.w)
	g := mat.NewDense(d, d, nil)
	for i := range d {
		for j := range d {
			g.Set(i, j, l.source.NormFloat64())
		}
	}
	var qr mat.QR
	qr.Factorize(g)
	var q, r mat.Dense
	qr.QTo(&q)
	qr.RTo(&r)
	l.root = make([][]float64, d)
	for i := range d {
		l.root[i] = make([]float64, d)
	}
	for j := range d {
		variance := 1 + l.source.Float64()
		if j < 2 {
			variance = 2 - float64(j)
		}
		for i := range d {
			l.root[i][j] = q.At(i, j) * math.Copysign(math.Sqrt(variance), r.At(j, j))
		}
	}
}

// descent runs the paper's algorithm with the paper's choices.
func descent(s *sgd.Sample, rho float64, steps int, gamma float64, run uint64) (*sgd.Path, error) {
	noise, err := once(run)
	if err != nil {
		return nil, err
	}
	return sgd.GradientDescent(s, sgd.Descent{Steps: steps, Rate: 0.25, Clip: gamma}, replaced(rho), noise)
}

// tracked runs our version. It tracks the clip norm and averages the last half of the iterates.
func tracked(s *sgd.Sample, rho float64, run uint64) ([]float64, error) {
	noise, err := once(run)
	if err != nil {
		return nil, err
	}
	path, err := sgd.GradientDescent(s, sgd.Descent{Steps: 40, Rate: 0.5, Zeta: 4}, replaced(rho), noise)
	if err != nil {
		return nil, err
	}
	return path.Average(), nil
}

// replaced returns the parameters for ρ of concentrated privacy, with Gaussian noise, under replacement.
func replaced(rho float64) dp.Params {
	return dp.Params{Mu: math.Sqrt(2 * rho), Adjacency: dp.Replace}
}

// lawOf returns the distribution of the paper's iterates on a sample.
func lawOf(s *sgd.Sample, rho float64, steps int, gamma float64) (*sgd.GDProcess, error) {
	lambda := 2 * gamma * math.Sqrt(float64(steps)) / (float64(s.Len()) * math.Sqrt(2*rho))
	return sgd.NewGDProcess(s, 0.25, lambda, nil)
}

// adassp runs the paper's rival, with bounds that almost no record exceeds.
func adassp(s *sgd.Sample, rho float64, run uint64) ([]float64, error) {
	boundX, boundY := math.Sqrt(float64(s.D))+2, 5.
	w := refit.NewData(s.D, s.Len())
	x := make([]float64, s.D)
	for i, y := range s.Y {
		for j := range x {
			x[j] = s.X[i*s.D+j] / boundX
		}
		w.Add(x, y/boundY)
	}
	noise, err := once(run)
	if err != nil {
		return nil, err
	}
	const delta = 1e-6
	epsilon, err := dp.Epsilon(delta, math.Sqrt(2*rho))
	if err != nil {
		return nil, err
	}
	theta, _, err := refit.Solve(refit.Config{Solver: "adassp", EigenTest: true},
		dp.Params{Epsilon: epsilon, Delta: delta, Adjacency: dp.ZeroOut}, w, noise)
	for j := range theta {
		theta[j] *= boundY / boundX
	}
	return theta, err
}

// descentSizes reproduces Figures 1 and 9: n is proportional to p.
func descentSizes(p *page) error {
	const rho, steps = 0.05, 10
	p.text(`### Figures 1 and 9: n = 100p

Distance to θ*, or where a column says so to least squares θ̂; ρ = 0.05; 20 trials up to p = 50, 10 above. In Figure 9 features have variances of 2, 1 and between, in random directions.
`)
	var cells [][]string
	for _, f := range []struct {
		number string
		aniso  bool
		sizes  []int
	}{{"1", false, []int{10, 20, 50, 100, 200}}, {"9", true, []int{10, 20, 50, 100}}} {
		names := []string{"DP-GD", "least squares", "AdaSSP", "tracked, averaged"}
		lines := make([]line, len(names))
		for _, d := range f.sizes {
			trials := 20
			if d > 50 {
				trials = 10
			}
			errors := make([]sample, len(names))
			var square, law sample // squared distances to least squares
			for trial := range trials {
				run := uint64(1000*d + trial)
				l := newLinear(run, d)
				if f.aniso {
					l.anisotropic()
				}
				s := l.sample(100 * d)
				gamma := 5 * math.Sqrt(float64(d))
				path, err1 := descent(s, rho, steps, gamma, run)
				ada, err2 := adassp(s, rho, run)
				own, err3 := tracked(s, rho, run)
				process, err4 := lawOf(s, rho, steps, gamma)
				for _, err := range []error{err1, err2, err3, err4} {
					if err != nil {
						return err
					}
				}
				last, best := path.Iterates[steps-1], process.OLS()
				for i, theta := range [][]float64{last, best, ada, own} {
					errors[i].add(distance(theta, l.w))
				}
				square.add(math.Pow(distance(last, best), 2))
				law.add(process.MSE(steps))
			}
			row := []string{f.number, fmt.Sprint(d), fmt.Sprint(trials)}
			for i := range errors {
				lines[i].x, lines[i].y = append(lines[i].x, float64(d)), append(lines[i].y, errors[i].mean())
				row = append(row, errors[i].String())
			}
			cells = append(cells, append(row, num(math.Sqrt(square.mean())), num(math.Sqrt(law.mean()))))
		}
		for i, name := range names {
			lines[i].name, lines[i].dashed = name, i == 3
		}
		title := "Figure " + f.number + ": n = 100p, ρ = 0.05"
		if err := p.draw(
			figure{name: "descent-fig" + f.number, title: title, x: "p", y: "distance to θ*", lines: lines, top: 1,
				caption: title}); err != nil {
			return err
		}
	}
	if err := p.large("descent-sizes",
		[]string{"figure", "p", "trials", "DP-GD", "least squares", "AdaSSP", "ours: tracked, averaged",
			"DP-GD to θ̂, rms", "law"}, cells, nil); err != nil {
		return err
	}
	p.text(
		`As in the paper, DP-GD and least squares stay level and AdaSSP grows. It does not grow like √p, as claimed, but approaches 1, the error of θ = 0. The paper's text speaks of distances to least squares, but the figure must show distances to θ*, because it has a curve of least squares.
`)
	return nil
}

// descentSamples reproduces Figures 2 and 8a: n grows.
func descentSamples(p *page) error {
	const d, steps = 10, 10
	p.text(`### Figures 2 and 8a: the cost of privacy

p = 10; 100 trials up to n = 10 000, 30 above. ρ is 0.015 in Figure 8a; for Figure 2, which has "a larger" ρ, we chose 0.1. Distances to θ̂, and of θ̂ to θ*.
`)
	var cells [][]string
	sizes := []int{500, 1000, 2000, 5000, 10000, 20000, 50000}
	for _, f := range []struct {
		number string
		rho    float64
	}{{"2", 0.1}, {"8a", 0.015}} {
		names := []string{"DP-GD, T = 10", "law", "ours: tracked, averaged", "sampling"}
		lines := make([]line, len(names))
		for _, n := range sizes {
			trials := 100
			if n > 10000 {
				trials = 30
			}
			errors := make([]sample, len(names))
			for trial := range trials {
				run := uint64(trial)
				l := newLinear(run, d)
				s := l.sample(n)
				gamma := 5 * math.Sqrt(d)
				path, err1 := descent(s, f.rho, steps, gamma, run)
				own, err2 := tracked(s, f.rho, run)
				process, err3 := lawOf(s, f.rho, steps, gamma)
				for _, err := range []error{err1, err2, err3} {
					if err != nil {
						return err
					}
				}
				best := process.OLS()
				errors[0].add(distance(path.Iterates[steps-1], best))
				errors[1].add(math.Sqrt(process.MSE(steps)))
				errors[2].add(distance(own, best))
				errors[3].add(distance(best, l.w))
			}
			row := []string{f.number, num(f.rho), fmt.Sprint(n)}
			for i := range errors {
				lines[i].x, lines[i].y = append(lines[i].x, float64(n)), append(lines[i].y, errors[i].mean())
				row = append(row, errors[i].String())
			}
			cells = append(cells, row)
		}
		for i, name := range names {
			lines[i].name, lines[i].dashed = name, i == 1
		}
		if err := p.draw(figure{
			name: "descent-fig" + f.number, title: fmt.Sprintf("Figure %s: p = 10, ρ = %g", f.number, f.rho), x: "n",
			y: "distance", logX: true, logY: true, lines: lines,
			caption: fmt.Sprintf("Figure %s, ρ = %g", f.number, f.rho),
		}); err != nil {
			return err
		}
	}
	if err := p.large("descent-samples",
		[]string{"figure", "ρ", "n", "DP-GD to θ̂", "law, rms", "ours to θ̂", "θ̂ to θ*"}, cells, nil); err != nil {
		return err
	}
	p.text(
		`As in the paper, the private part falls like 1/n and the sampling error like 1/√n, up to n ≈ 5000. Beyond, T = 10 and η = ¼ leave (1 − ησ)¹⁰ ≈ 0.056 of the way to θ̂ at any n, which is more than the sampling error. Only with the theorem's T = c·log(nρ/p) does the cost of privacy vanish against sampling. The tracked descent has no such floor.
`)
	return nil
}

// descentClipped reproduces Figure 3: the number of clipped gradients.
func descentClipped(p *page) error {
	const rho, steps, trials = 0.015, 10, 10
	p.text(`### Figure 3: clipped gradients

Share of all gradients that are clipped; n = 100p, ρ = 0.015, %d trials.
`, trials)
	factors := []float64{0.5, 1, 2, 3, 4, 5}
	head := []string{"p"}
	for _, c := range factors {
		head = append(head, fmt.Sprintf("γ = %g√p", c))
	}
	var cells [][]string
	for _, d := range []int{10, 20, 50, 100} {
		part := make([]sample, len(factors))
		for trial := range trials {
			run := uint64(1000*d + trial)
			s := newLinear(run, d).sample(100 * d)
			for i, c := range factors {
				path, err := descent(s, rho, steps, c*math.Sqrt(float64(d)), run)
				if err != nil {
					return err
				}
				part[i].add(path.Clipped)
			}
		}
		row := []string{fmt.Sprint(d)}
		for i := range part {
			row = append(row, fmt.Sprintf("%.4f ± %.4f", part[i].mean(), part[i].error()))
		}
		cells = append(cells, row)
	}
	if err := p.large("descent-clipped", head, cells,
		func(row []string) bool { return row[0] == "10" || row[0] == "100" }, 0, 2, 4, 6); err != nil {
		return err
	}
	p.text("As in the paper, almost none are clipped from about 3√p on.\n")
	return nil
}

// intervalTrial is a sample and the intervals from a descent on it.
type intervalTrial struct {
	d, m, burnIn, n int
	aniso           bool
	rho, level      float64
}

// run adds the share of the coordinates that each construction covers, and its widths, for a descent of total
// iterations. It also adds the widths of least squares.
func (t intervalTrial) run(run uint64, total int, covered, width []sample, ols *sample) error {
	l := newLinear(run, t.d)
	if t.aniso {
		l.anisotropic()
	}
	s := l.sample(t.n)
	process, err := lawOf(s, t.rho, total, 5*math.Sqrt(float64(t.d)))
	if err != nil {
		return err
	}
	best := process.OLS()
	estimates, err := constructions(s, t.rho, total, t.m, t.burnIn, run)
	if err != nil {
		return err
	}
	for i, e := range estimates {
		if e == nil {
			continue
		}
		centre, half, err := sgd.Intervals(e, t.level)
		if err != nil {
			return err
		}
		inside := 0.
		for j := range centre {
			if math.Abs(centre[j]-best[j]) <= half[j] {
				inside += 1. / float64(t.d)
			}
			width[i].add(2 * half[j])
		}
		covered[i].add(inside)
	}
	for _, w := range leastSquaresWidths(s, best, t.level) {
		ols.add(w)
	}
	return nil
}

// descentIntervals reproduces Figures 5, 6, 10 and 11: three constructions of intervals.
func descentIntervals(p *page) error {
	const d, m, burnIn, rho, level = 10, 10, 20, 0.015, 0.95
	p.text(`### Figures 5, 6, 10 and 11: confidence intervals

p = %d, ρ = %g, m = %d estimates, burn-in %d; 100 runs as in the paper, 50 at n = 5000. Coverage of θ̂ is a mean over coordinates ± its standard error over runs; widths are means. All G iterations share the budget. The paper does not say n; here it is 1000 and 5000. Figures 10 and 11 have features as Figure 9.
`, d, rho, m, burnIn)
	totals := []int{100, 300, 600, 1000}
	names := []string{"runs", "checkpoints", "batched means"}
	var cells [][]string
	for _, f := range []struct {
		numbers string
		n       int
		aniso   bool
		runs    uint64
	}{{"5 and 6", 5000, false, 50}, {"5 and 6", 1000, false, 100}, {"10 and 11", 1000, true, 100}} {
		covers, widths := make([]line, len(names)), make([]line, len(names))
		t := intervalTrial{d, m, burnIn, f.n, f.aniso, rho, level}
		for _, total := range totals {
			covered, width := make([]sample, len(names)), make([]sample, len(names))
			var ols sample
			for run := range f.runs {
				if err := t.run(run, total, covered, width, &ols); err != nil {
					return err
				}
			}
			row := []string{f.numbers, fmt.Sprint(f.n), fmt.Sprint(total)}
			for i := range names {
				if covered[i].n == 0 {
					row = append(row, "–", "–")
					continue
				}
				row = append(row, fmt.Sprintf("%.3f ± %.3f", covered[i].mean(), covered[i].error()),
					num(width[i].mean()))
				covers[i].x, covers[i].y = append(covers[i].x, float64(total)), append(covers[i].y, covered[i].mean())
				widths[i].x, widths[i].y = append(widths[i].x, float64(total)), append(widths[i].y, width[i].mean())
			}
			cells = append(cells, append(row, num(ols.mean())))
		}
		what := fmt.Sprintf("Figures %s, n = %d", f.numbers, f.n)
		for i, name := range names {
			covers[i].name, widths[i].name = name, name
		}
		if f.n == 5000 || f.aniso {
			tag := map[bool]string{false: "5", true: "10"}[f.aniso]
			if err := p.draw(
				figure{name: "descent-fig" + tag, title: what, x: "iterations in all", y: "coverage", lines: covers,
					caption: what + ": coverage"}); err != nil {
				return err
			}
			tag = map[bool]string{false: "6", true: "11"}[f.aniso]
			if err := p.draw(
				figure{name: "descent-fig" + tag, title: what, x: "iterations in all", y: "width", logY: true,
					lines: widths, caption: what + ": widths"}); err != nil {
				return err
			}
		}
	}
	head := []string{"figures", "n", "G", "runs: coverage", "runs: width", "checkpoints: coverage",
		"checkpoints: width", "batched means: coverage", "batched means: width", "least squares' width for θ*"}
	if err := p.large("descent-intervals", head, cells, nil); err != nil {
		return err
	}
	p.text(
		`Batched means of 8 iterates (G = 100) are too short for the coefficient 1 − ησ = ¾ between iterates and cover less than their level; the exact law gives 0.885. The other constructions are valid, as in the paper. Widths "roughly comparable" with those of least squares need far larger samples: at n = 5000 batched means are three times as wide. At n = 1000 the noise of many iterations causes clipping, and all widths grow.
`)
	return nil
}

// constructions returns the estimates of one run by each construction of intervals. An entry is nil if the run is not
// longer than the construction's burn-in. All constructions have the noise of a run of total iterations.
func constructions(s *sgd.Sample, rho float64, total, m, burnIn int, run uint64) ([][][]float64, error) {
	gamma := 5 * math.Sqrt(float64(s.D))
	one, err := descent(s, rho, total, gamma, run)
	if err != nil {
		return nil, err
	}
	points, err1 := sgd.Checkpoints(one.Iterates, m, burnIn)
	batched, err2 := sgd.BatchedMeans(one.Iterates, m, burnIn)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%d iterations: %w, %w", total, err1, err2)
	}
	if total/m <= burnIn {
		return [][][]float64{nil, points, batched}, nil
	}
	var paths [][][]float64
	for i := range m {
		path, err := descent(s, rho/float64(m), total/m, gamma, run*uint64(m)+uint64(i)+1<<32)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path.Iterates)
	}
	means, err := sgd.RunMeans(paths, burnIn)
	return [][][]float64{means, points, batched}, err
}

// leastSquaresWidths returns the widths of the usual confidence intervals for θ*.
func leastSquaresWidths(s *sgd.Sample, best []float64, level float64) []float64 {
	n, d := s.Len(), s.D
	var inverse, gram mat.Dense
	x := mat.NewDense(n, d, s.X)
	gram.Mul(x.T(), x)
	if inverse.Inverse(&gram) != nil {
		return nil
	}
	var squares float64
	for i, y := range s.Y {
		e := y - dot(best, s.X[i*d:(i+1)*d])
		squares += e * e
	}
	t := sgd.StudentQuantile((1+level)/2, float64(n-d))
	widths := make([]float64, d)
	for j := range widths {
		widths[j] = 2 * t * math.Sqrt(squares/float64(n-d)*inverse.At(j, j))
	}
	return widths
}
