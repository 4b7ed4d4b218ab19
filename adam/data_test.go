package adam

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestDataSet trains a logistic regression on a published data set, once over its records, with ε = 4 under zero-out.
// It must be right nearly as often as a model that Adam trains without clipping and noise, and more often than a
// constant. The features' scale is computed from the data, which no deployment may do. The test needs STREAMDP_DATA.
func TestDataSet(t *testing.T) {
	t.Parallel()
	const m = 64
	for _, set := range []struct {
		name          string
		threshold     float64
		rate          float64
		behind, ahead float64 // largest gap to the non-private model; smallest lead over the constant
	}{{"elevators", 0, 0.03, 0.02, 0.15}, {"pol", 0, 0.1, 0.03, 0.1}} {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			x, y := cases.DataSet(t, set.name, 0)
			rows := examplesOf(x, y, set.threshold)
			source := rand.New(rand.NewPCG(5, 6))
			source.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
			held := rows[:len(rows)/5]
			rows = rows[len(rows)/5:]
			d := len(rows[0])
			model := &Model{Loss: "logistic", Target: "y"}
			accuracy := func(theta []float64) float64 {
				right := 0.0
				for _, r := range held {
					p, err := model.Predict(theta, r[:d-1])
					if err != nil {
						t.Fatal(err)
					}
					if (p[0] > 0.5) == (r[d-1] > 0) {
						right++
					}
				}
				return right / float64(len(held))
			}

			steps := uint64(len(rows) / m)
			c := Config{Mode: "model", Model: model, Columns: exampleColumns(d, d-1), Clip: 1, Rate: set.rate,
				Schedule: "cosine", Step: m, Horizon: steps}
			e := mustNew(t, c, dp.Params{Epsilon: 4, Delta: 1e-6, Adjacency: dp.ZeroOut})
			if p := e.Plan(); p.Method != "pp_debiased" {
				t.Fatalf("the default is %s", p.Method)
			}
			noise := keyed(t, 31)
			for i := range steps {
				for k := range uint64(m) {
					e.Add(i*m+k, rows[i*m+k])
				}
				if _, err := e.Close(noise(i + 1)); err != nil {
					t.Fatal(err)
				}
			}
			private, plain := accuracy(e.Parameters()), accuracy(withoutPrivacy(model, rows, set.rate, m))
			constant := accuracy(make([]float64, d)) // always predicts the class of p ≤ ½
			constant = max(constant, 1-constant)
			t.Logf("right for %.1f %% of %d, non-private %.1f %%, a constant %.1f %%", 100*private, len(held),
				100*plain, 100*constant)
			if private < plain-set.behind || private < constant+set.ahead {
				t.Errorf("right for %.1f %%, non-private %.1f %%, a constant %.1f %%", 100*private, 100*plain,
					100*constant)
			}
		})
	}
}

// examplesOf returns rows with features of root mean square 1, bounded by 4, and with the class, −1 or 1, at the end.
func examplesOf(x [][]float64, y []float64, threshold float64) [][]float64 {
	rows := make([][]float64, len(x))
	for i := range x {
		class := -1.0
		if y[i] > threshold {
			class = 1
		}
		rows[i] = append(slices.Clip(x[i]), class)
	}
	for j := range x[0] {
		var square float64
		for i := range rows {
			square += rows[i][j] * rows[i][j] / float64(len(rows))
		}
		for i := range rows {
			rows[i][j] = max(-4, min(4, rows[i][j]/(math.Sqrt(square)+1e-9)))
		}
	}
	return rows
}

// withoutPrivacy trains by Adam as published, in steps of m rows.
func withoutPrivacy(model *Model, rows [][]float64, rate float64, m int) []float64 {
	d := len(rows[0])
	n := model.Parameters(d)
	learner := newLearner(model, d, d-1)
	theta, v1, v2 := make([]float64, n), make([]float64, n), make([]float64, n)
	steps := len(rows) / m
	for s := range steps {
		g := make([]float64, n)
		for _, row := range rows[s*m : (s+1)*m] {
			for j, x := range learner.gradient(theta, row) {
				g[j] += x / float64(m)
			}
		}
		i := float64(s + 1)
		now := rate * (1 + math.Cos(math.Pi*float64(s)/float64(steps))) / 2
		for j, x := range g {
			v1[j] = 0.9*v1[j] + 0.1*x
			v2[j] = 0.999*v2[j] + 0.001*x*x
			theta[j] -= now * v1[j] / (1 - math.Pow(0.9, i)) / (math.Sqrt(v2[j]/(1-math.Pow(0.999, i))) + 1e-8)
		}
	}
	return theta
}
