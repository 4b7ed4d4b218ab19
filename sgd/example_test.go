package sgd_test

import (
	"fmt"
	"math/rand/v2"

	"streamdp/dp"
	"streamdp/internal/dptest"
	"streamdp/sgd"
)

// What is known of an online regression before any record: how many slots a
// release takes, what a record pays, and how accurate it will be.
func ExampleNew() {
	e, err := sgd.New(sgd.Config{
		Method:    "amb",
		Columns:   []string{"age", "income", "spending"},
		Target:    "spending",
		ClipX:     4,   // features are shortened to norm 4
		Curvature: 1.5, // no eigenvalue of their second moment is larger
		Radius:    10,  // nor the norm of the coefficients
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := e.Plan()
	fmt.Printf("a bootstrap of %d slots, then a release every %d\n", p.Search, p.Batch)
	fmt.Printf("every record pays μ = %.4f, once, whatever the number of releases\n", e.Cost().Mu)
	for _, n := range []uint64{10, 100, 1000} {
		o := e.Expect(n)
		fmt.Printf("after %d records: excess risk %.1g by sampling, %.1g by privacy\n", o.Slots, o.Sampling, o.Privacy)
	}
	// Output:
	// a bootstrap of 156 slots, then a release every 227
	// every record pays μ = 0.2367, once, whatever the number of releases
	// after 2426 records: excess risk 0.001 by sampling, 3e-05 by privacy
	// after 22856 records: excess risk 0.0001 by sampling, 2e-06 by privacy
	// after 227156 records: excess risk 1e-05 by sampling, 2e-07 by privacy
}

// A stream of y = 2u − v + 1 with noise, and the estimate after 400 releases.
func ExampleAMB() {
	e, err := sgd.New(sgd.Config{
		Method: "amb", Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 4, Curvature: 1.5, Radius: 10,
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	source, noise := rand.New(rand.NewPCG(1, 2)), dptest.Seeded(3)
	var last *dp.Release
	for step := uint64(1); step <= 401; step++ {
		for slot, end := e.Range(step); slot < end; slot++ {
			u, v := source.NormFloat64(), source.NormFloat64()
			e.Add(slot, []float64{u, v, 2*u - v + 1 + source.NormFloat64()/2})
		}
		if last, err = e.Close(noise); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, v := range last.Values[:4] {
		fmt.Printf("%s %.2f\n", v.Name, v.Data)
	}
	// Output:
	// theta [2.00 -1.01 1.00]
	// theta_average [2.00 -0.99 1.00]
	// interval_low [2.00 -1.00 0.99]
	// interval_high [2.01 -0.99 1.00]
}

// A stream of y = 2u − v + 1 with noise, u twenty times as large as v, of which
// nothing is known but a bound of the features' norm.
func ExampleNewton() {
	e, err := sgd.NewNewton(sgd.Config{
		Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 500,
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	const records = 200_000
	p, o := e.Plan(), e.Expect(records)
	useful := p.Course(sgd.UsefulSteps)
	fmt.Printf("two searches of %d slots; from slot %d on the estimate is useful\n", p.Search, useful.Slots)
	fmt.Printf("after %d records: %d steps, expected excess risk %.0e\n", records, o.Iteration, o.Sampling+o.Privacy)

	source, noise := rand.New(rand.NewPCG(1, 2)), dptest.Seeded(3)
	var last *dp.Release
	for step := uint64(1); ; step++ {
		slot, end := e.Range(step)
		if end > records {
			break
		}
		for ; slot < end; slot++ {
			u, v := 20*source.NormFloat64(), source.NormFloat64()
			e.Add(slot, []float64{u, v, 2*u - v + 1 + source.NormFloat64()/2})
		}
		r, err := e.Close(noise)
		if err != nil {
			fmt.Println(err)
			return
		}
		if r != nil {
			last = r
		}
	}
	for _, v := range last.Values[:2] {
		fmt.Printf("%s %.3f\n", v.Name, v.Data)
	}
	// Output:
	// two searches of 156 slots; from slot 2862 on the estimate is useful
	// after 200000 records: 2349 steps, expected excess risk 1e-05
	// theta [1.993 -0.984 1.016]
	// theta_average [2.000 -1.000 0.998]
}

// A table of 2000 records, fitted at once from nothing but their bounds.
func ExampleRefit() {
	source := rand.New(rand.NewPCG(4, 5))
	rows := make([][]float64, 2000)
	for i := range rows {
		u, v := source.NormFloat64(), source.NormFloat64()
		rows[i] = []float64{u, v, 2*u - v + source.NormFloat64()/2}
	}
	s, err := sgd.NewSample(rows, 3, 2, sgd.Bounds{X: 5, Y: 15}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	theta, path, err := sgd.Refit(s, 10, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}, dptest.Seeded(6))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d steps, coefficients %.2f\n", len(path.Iterates), theta)
	// Output:
	// 200 steps, coefficients [2.02 -1.02]
}
