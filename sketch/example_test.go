package sketch_test

import (
	"fmt"
	"math"

	"streamdp/dp"
	"streamdp/sketch"
)

// noiseOf returns the noise of one run, under keys that nobody keeps.
func noiseOf(step uint64) dp.Noise {
	master, secret := dp.NewSecret(), dp.NewSecret()
	e, err := dp.NewEpoch(&master, &secret, "example", 1, dp.NewNonce(), [32]byte{})
	if err != nil {
		panic(err)
	}
	h := dp.NewTranscript([32]byte{})
	return e.Step(step, &h)
}

// A refit releases a regression at the end of each window of slots.
func ExampleRefit() {
	r, err := sketch.New(sketch.Config{
		Target: "demand", Columns: []string{"price", "demand"},
		ClipX: 2, ClipY: 2, Window: 20_000,
	}, dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 20_000 {
		price := math.Sin(float64(i))
		r.Add(uint64(i), []float64{price, 0.5 - 0.7*price})
	}
	release, err := r.Close(noiseOf(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range release.Values {
		fmt.Printf("%s %.1f\n", v.Name, v.Data[0])
	}
	// Output:
	// theta -0.7
	// intercept 0.5
}

// Solvers can be called on a window, too.
func ExampleSolve() {
	w := sketch.NewData(2, 50_000)
	for i := range 50_000 {
		a, b := math.Sin(float64(i))/2, math.Cos(1.7*float64(i))/2
		w.Add([]float64{a, b}, a-b/2)
	}
	theta, cost, err := sketch.Solve(sketch.Config{Solver: "ihm"}, dp.Params{Epsilon: 2, Delta: 1e-9, Adjacency: dp.Replace}, w, noiseOf(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.1f, %d rows of sketches\n", theta, cost.Rows)
	// Output:
	// [1.0 -0.5], 459 rows of sketches
}
