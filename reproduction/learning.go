package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dataset"
)

// These are the settings of the trained models, and the number of runs.
const (
	learningBatch = 64
	learningSeeds = 4
)

// trainer is a column of the tables.
type trainer struct {
	name, method string
	batch        uint64
	factor       float64 // factor of its learning rates
}

// Learning rates differ by method: the steps of momentum are as long as its gradients, unlike those of Adam, and there
// are more steps if each has one record.
var (
	trainers = []trainer{
		{"momentum", "momentum", learningBatch, 10},
		{"pp", "pp", learningBatch, 1},
		{"pp_debiased", "pp_debiased", learningBatch, 1},
		{"jme_per_example", "jme_per_example", learningBatch, 1},
		{"jme_batch", "jme_batch", learningBatch, 1},
		{"joint_clip", "joint_clip", learningBatch, 1},
		{"momentum, m = 1", "momentum", 1, 1},
		{"jme, m = 1", "jme", 1, 0.1},
	}
	learningRates   = []float64{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}
	learningBudgets = []struct {
		epsilon   float64
		adjacency dp.Adjacency
	}{{1, dp.ZeroOut}, {4, dp.ZeroOut}, {8, dp.ZeroOut}, {8, dp.Replace}}
)

// task is a data set whose target is turned into classes by public thresholds.
type task struct {
	name       string
	thresholds []float64

	model       adam.Model
	train, test [][]float64 // rows, with the class last
}

func tasks() []*task {
	return []*task{
		{name: "elevators", thresholds: []float64{0}}, {name: "pol", thresholds: []float64{0}},
		{name: "bike", thresholds: []float64{0}}, {name: "skillcraft", thresholds: []float64{0}},
		{name: "bike", thresholds: []float64{-0.7, 0.8}}, {name: "pol", thresholds: []float64{-20, 20}},
		{name: "sml", thresholds: []float64{-2.5, 2.5}},
	}
}

const learningHeading = "### What the second moment is worth in training"

// learning trains models with all methods.
func learning(p *page) error {
	if dataset.Folder() == "" {
		return p.keep(learningHeading)
	}
	p.text(`%s

Logistic and softmax regression as the daemon trains them (mode "model"), on UCI data whose target is cut by thresholds into two or three classes. One pass over the training rows in random order; steps of m = %d rows unless a column says otherwise; gradients clipped to 1, cosine decay, independent noise, δ = 10⁻⁶.
The first file has accuracies on the test rows in %%, means of %d runs at the best of %d learning rates. Thresholds, scales of features and rates were chosen from the data, which no deployment may do; it favours all columns alike. "Non-private" is Adam without clipping and noise. The second file has the points of accuracy ahead of momentum, which has no second moment, with the same steps: mean over data sets ± its standard error.
`, learningHeading, learningBatch, learningSeeds, len(learningRates))
	all := tasks()
	begin := make([][]string, len(all))
	plain := make([]float64, len(all))
	for i, t := range all {
		if err := t.read(); err != nil {
			return err
		}
		accuracy, err := best(func(rate float64, seed uint64) (float64, error) {
			return t.plain(rate, seed, learningBatch)
		})
		if err != nil {
			return err
		}
		plain[i] = accuracy
		begin[i] = []string{t.name, fmt.Sprint(len(t.thresholds) + 1), fmt.Sprint(len(t.train)), percent(t.majority()),
			percent(accuracy)}
	}
	head := []string{"budget", "data", "classes", "rows", "largest class", "non-private"}
	ahead := []string{"budget"} // header of the table of leads over momentum
	for _, c := range trainers {
		head = append(head, c.name)
		if c.method != "momentum" {
			ahead = append(ahead, c.name)
		}
	}
	var rows, gains [][]string
	var behind []string                          // how far the default is behind training without privacy
	largest, of, compared := math.Inf(-1), "", 0 // gain over momentum, in standard errors
	for _, b := range learningBudgets {
		budget := fmt.Sprintf("ε = %g, %s", b.epsilon, b.adjacency)
		gain := []string{budget}
		points := make([][]float64, len(trainers)) // lead over momentum, by task
		var loss float64
		for i, t := range all {
			row := append([]string{budget}, begin[i]...)
			var baseline float64
			for k, c := range trainers {
				accuracy, err := best(func(rate float64, seed uint64) (float64, error) {
					return t.private(c, b.epsilon, b.adjacency, rate, seed)
				})
				if err != nil {
					return err
				}
				switch c.method {
				case "momentum":
					baseline = accuracy
				case "pp_debiased":
					loss += 100 * (plain[i] - accuracy) / float64(len(all))
				}
				row = append(row, percent(accuracy))
				points[k] = append(points[k], 100*(accuracy-baseline))
			}
			rows = append(rows, row)
		}
		behind = append(behind, fmt.Sprintf("%.1f (%s)", loss, budget))
		for k, c := range trainers {
			if c.method == "momentum" {
				continue
			}
			mean, sd := stat.MeanStdDev(points[k], nil)
			se := sd / math.Sqrt(float64(len(all)))
			text := fmt.Sprintf("%+.1f ± %.1f", mean, se)
			gain = append(gain, text)
			compared++
			if mean/se > largest {
				largest, of = mean/se, fmt.Sprintf("%s (%s at %s)", text, c.name, budget)
			}
		}
		gains = append(gains, gain)
	}
	if err := p.large("learning", head, rows, nil); err != nil {
		return err
	}
	if err := p.large("learning-gains", ahead, gains, nil); err != nil {
		return err
	}
	p.text(
		`No gain by a second moment can be told from chance: of all %d differences the largest, in its standard errors, is %s. docs/theory/adam.md, §6 says why. The default, pp_debiased, is behind non-private Adam by %s points on average. Steps of one record, the only ones for which the paper's algorithm is private, lose far more. Without a reason to want a second moment, use method = "momentum".
`, compared, of, strings.Join(behind, ", "))
	return nil
}

// best returns the mean accuracy at the best rate.
func best(run func(rate float64, seed uint64) (float64, error)) (most float64, err error) {
	for _, rate := range learningRates {
		var accuracy [learningSeeds]float64
		var failed [learningSeeds]error
		var wg sync.WaitGroup
		for seed := range uint64(learningSeeds) {
			wg.Go(func() { accuracy[seed], failed[seed] = run(rate, seed) })
		}
		wg.Wait()
		if err := errors.Join(failed[:]...); err != nil {
			return 0, err
		}
		if mean := floats.Sum(accuracy[:]) / learningSeeds; mean > most {
			most = mean
		}
	}
	return most, nil
}

func percent(x float64) string { return fmt.Sprintf("%.1f", 100*x) }

// read reads the rows of the task.
func (t *task) read() error {
	for _, part := range []struct {
		to   *[][]float64
		read func(folder, name string, split int) ([][]float64, []float64, error)
	}{{&t.train, dataset.Read}, {&t.test, dataset.Test}} {
		x, y, err := part.read(dataset.Folder(), t.name, 0)
		if err != nil {
			return err
		}
		for i, row := range x {
			class := 0.0
			for _, limit := range t.thresholds {
				if y[i] > limit {
					class++
				}
			}
			*part.to = append(*part.to, append(slices.Clip(row), class))
		}
	}
	for j := range len(t.train[0]) - 1 {
		var squares float64
		for _, r := range t.train {
			squares += r[j] * r[j]
		}
		scale := math.Exp2(math.Round(math.Log2(math.Sqrt(squares/float64(len(t.train))) + 1e-9)))
		for _, r := range slices.Concat(t.train, t.test) {
			r[j] = max(-4, min(4, r[j]/scale))
		}
	}
	t.model = adam.Model{Loss: "logistic", Target: "y"}
	if n := len(t.thresholds) + 1; n > 2 {
		t.model = adam.Model{Loss: "softmax", Target: "y", Classes: n}
	}
	return nil
}

// majority returns the share of the test rows that belong to the largest class.
func (t *task) majority() float64 {
	count := make([]int, len(t.thresholds)+1)
	for _, r := range t.test {
		count[int(r[len(r)-1])]++
	}
	return float64(slices.Max(count)) / float64(len(t.test))
}

// accuracy returns the accuracy of the parameters on the test rows.
func (t *task) accuracy(theta []float64) (float64, error) {
	right := 0
	for _, r := range t.test {
		y := r[len(r)-1]
		p, err := t.model.Predict(theta, r[:len(r)-1])
		if err != nil {
			return 0, err
		}
		class := slices.Index(p, slices.Max(p))
		if len(p) == 1 {
			class = 0
			if p[0] > 0.5 {
				class = 1
			}
		}
		if class == int(y) {
			right++
		}
	}
	return float64(right) / float64(len(t.test)), nil
}

// order returns a random order of the training rows.
func (t *task) order(seed uint64) []int {
	return rand.New(rand.NewPCG(seed, 1)).Perm(len(t.train))
}

// private trains with package adam.
func (t *task) private(by trainer, epsilon float64, adjacency dp.Adjacency, rate float64,
	seed uint64) (float64, error) {
	d := len(t.train[0])
	c := adam.Config{
		Mode: "model", Method: by.method, Model: &t.model, Columns: append(features(d-1), "y"),
		Clip: 1, Step: by.batch, Rate: rate * by.factor, Schedule: "cosine", Factorization: "identity",
	}
	if by.method == "joint_clip" {
		c.Tau = 1
	}
	c.Horizon = uint64(len(t.train)) / c.Step
	e, err := adam.New(c, dp.Params{Epsilon: epsilon, Delta: 1e-6, Adjacency: adjacency})
	if err != nil {
		return 0, err
	}
	keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "offline/reproduction", seed, [16]byte{}, [32]byte{})
	if err != nil {
		return 0, err
	}
	defer keys.Destroy()
	h := dp.NewTranscript([32]byte{})
	order := t.order(seed)
	for s := range c.Horizon {
		for slot := s * c.Step; slot < (s+1)*c.Step; slot++ {
			e.Add(slot, t.train[order[slot]])
		}
		h.AbsorbRecords(c.Step)
		if _, err := e.Close(keys.Step(s+1, &h)); err != nil {
			return 0, err
		}
	}
	return t.accuracy(e.Parameters())
}

// plain trains with Adam, without privacy.
func (t *task) plain(rate float64, seed uint64, batch int) (float64, error) {
	d := len(t.train[0])
	n := t.model.Parameters(d)
	theta, g, m, v := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	order := t.order(seed)
	steps := len(order) / batch
	for s := range steps {
		clear(g)
		for _, k := range order[s*batch : (s+1)*batch] {
			row := t.train[k]
			p, err := t.model.Predict(theta, row[:d-1])
			if err != nil {
				return 0, err
			}
			for class := range p {
				residual := p[class]
				if len(p) == 1 {
					residual -= row[d-1]
				} else if class == int(row[d-1]) {
					residual--
				}
				for j, x := range row[:d-1] {
					g[class*d+j] += residual * x / float64(batch)
				}
				g[class*d+d-1] += residual / float64(batch)
			}
		}
		i := float64(s + 1)
		r := rate * (1 + math.Cos(math.Pi*float64(s)/float64(steps))) / 2
		for j, x := range g {
			m[j] = 0.9*m[j] + 0.1*x
			v[j] = 0.999*v[j] + 0.001*x*x
			theta[j] -= r * m[j] / (1 - math.Pow(0.9, i)) / (math.Sqrt(v[j]/(1-math.Pow(0.999, i))) + 1e-8)
		}
	}
	return t.accuracy(theta)
}
