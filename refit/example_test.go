package refit_test

import (
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/refit"
)

// A refit releases a regression at the end of each window of slots.
func ExampleNew() {
	r, err := refit.New(refit.Config{
		Target: "demand", Columns: []string{"price", "demand"},
		ClipX: 2, ClipY: 2, Window: 20_000,
	}, dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	run := dp.NewRun()
	for window := uint64(1); window <= 2; window++ {
		first, end := r.Range(window)
		for slot := first; slot < end; slot++ {
			price := math.Sin(float64(slot))
			r.Add(slot, []float64{price, 0.5 - 0.7*price})
		}
		release, err := r.Close(run.Step(end - first))
		if err != nil {
			fmt.Println(err)
			return
		}
		if release.Failed != "" { // the noise was too large for a solution
			fmt.Println(release.Failed)
			continue
		}
		theta, intercept := release.Values[0], release.Values[1]
		fmt.Printf("window %d: %s %.1f, %s %.1f\n", release.Step, theta.Name, theta.Data, intercept.Name,
			intercept.Data)
	}
	// Output:
	// window 1: theta [-0.7], intercept [0.5]
	// window 2: theta [-0.7], intercept [0.5]
}

// Solvers can also be called on a table of rows.
func ExampleSolve() {
	w := refit.NewData(2, 50_000)
	for i := range 50_000 {
		a, b := math.Sin(float64(i))/2, math.Cos(1.7*float64(i))/2
		w.Add([]float64{a, b}, a-b/2)
	}
	noise := dp.NewRun().Step(50_000)
	theta, cost, err := refit.Solve(refit.Config{Solver: "ihm"},
		dp.Params{Epsilon: 2, Delta: 1e-9, Adjacency: dp.Replace}, w, noise)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.1f, %d rows of sketches\n", theta, cost.Rows)
	// Output:
	// [1.0 -0.5], 459 rows of sketches
}
