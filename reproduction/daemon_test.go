package main

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

const passageTables = `[stream.data.privacy]
epsilon = 8
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = 8
[stream.data.sgd]
method = "amb"
target = "y"
clip_x = 3.0
amb.curvature = 1.5
radius = 5.0
`

// TestPassage sends a stream through the daemon. The same seed must give the same releases, every release must arrive
// in order, and the coefficients must be those of the rows.
func TestPassage(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(1, 2))
	rows := make([][]float64, 20_000)
	for i := range rows {
		a, b := 10+source.NormFloat64(), source.NormFloat64()
		rows[i] = []float64{a, b, 2*(a-10) - b + 0.1*source.NormFloat64()}
	}
	g := &passage{columns: []string{"a", "b", "y"}, centre: []float64{10, 0, 0}, tables: passageTables, seed: 3}
	var steps []uint64
	first, err := g.run(rows, func(r *release) error { steps = append(steps, r.Step); return nil })
	if err != nil {
		t.Fatal(err)
	}
	w := first.value("theta_average")
	if len(w) != 3 || w[0] < 1.95 || w[0] > 2.05 || w[1] < -1.05 || w[1] > -0.95 || w[2] < -0.05 || w[2] > 0.05 {
		t.Errorf("coefficients are %v, want about 2, -1, 0", w)
	}
	for i, s := range steps {
		if s != uint64(i)+2 { // the first step is a search
			t.Fatalf("release %d is of step %d", i, s)
		}
	}
	if len(steps) < 50 || first.Step != steps[len(steps)-1] {
		t.Errorf("%d releases, the last one of step %d", len(steps), first.Step)
	}
	again, err := g.run(rows, nil)
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("the same stream again gives %v, %v, not %v", again, err, first)
	}

	if _, err := g.run(rows[:10], nil); err == nil {
		t.Error("ten rows lead to a release")
	}
	g.tables = strings.Replace(passageTables, "epsilon = ", "epsilom = ", 1)
	if _, err := g.run(rows, nil); err == nil || !strings.Contains(err.Error(), "epsilom: unknown key") {
		t.Errorf("a configuration with a fault: %v", err)
	}
}
