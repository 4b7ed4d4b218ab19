package sgd_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/sgd"
)

// This example fits a regression with default settings, on a stream of spending = 2·age − income + 1 with noise. Ages
// vary twenty times as much as incomes. Only a bound on the features' norm is known in advance.
func ExampleNew() {
	e, err := sgd.New(sgd.Config{
		Columns: []string{"age", "income", "spending"}, Target: "spending", ClipX: 500,
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	run, source := dp.NewRun(), rand.New(rand.NewPCG(1, 2))
	var last *dp.Release
	for step := uint64(1); ; step++ {
		first, end := e.Range(step)
		if end > 200_000 {
			break
		}
		for slot := first; slot < end; slot++ {
			age, income := 20*source.NormFloat64(), source.NormFloat64()
			e.Add(slot, []float64{age, income, 2*age - income + 1 + source.NormFloat64()/2})
		}
		release, err := e.Close(run.Step(end - first))
		if err != nil {
			fmt.Println(err)
			return
		}
		if release != nil { // a search for the clip norm has no release
			last = release
		}
	}
	average := last.Values[1]
	fmt.Printf("%s %.0f, for age, income, and the constant\n", average.Name, average.Data)
	// Output:
	// theta_average [2 -1 1], for age, income, and the constant
}

// Before any record, NewNewton can say when the estimate of an online regression becomes useful, how accurate it will
// be, and what a record pays.
func ExampleNewNewton() {
	e, err := sgd.NewNewton(sgd.Config{
		Columns: []string{"age", "income", "spending"}, Target: "spending", ClipX: 500,
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := e.Plan()
	useful := p.Course(sgd.UsefulSteps)
	fmt.Printf("three searches of %d slots; from slot %d on the estimate is useful\n", p.Search, useful.Slots)
	fmt.Printf("every record pays μ = %.4f, once, whatever the number of releases\n", e.Cost().Mu)
	for _, slots := range []uint64{10_000, 100_000, 1_000_000} {
		o := e.Expect(slots)
		fmt.Printf("after %d records: %d steps, excess risk %.0e by sampling, %.0e by privacy\n", slots, o.Iteration,
			o.Sampling, o.Privacy)
	}
	// Output:
	// three searches of 156 slots; from slot 3018 on the estimate is useful
	// every record pays μ = 0.2367, once, whatever the number of releases
	// after 10000 records: 112 steps, excess risk 2e-04 by sampling, 9e-05 by privacy
	// after 100000 records: 1170 steps, excess risk 2e-05 by sampling, 2e-06 by privacy
	// after 1000000 records: 11759 steps, excess risk 2e-06 by sampling, 9e-08 by privacy
}

// This computes the same quantities for the published method, which needs the curvature of the features.
func ExampleNewAMB() {
	e, err := sgd.NewAMB(sgd.Config{
		Columns:   []string{"age", "income", "spending"},
		Target:    "spending",
		ClipX:     4,   // features are shortened to norm 4
		Curvature: 1.5, // no eigenvalue of the features' second moment is larger
		Radius:    10,  // the norm of the coefficients is not larger
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

// This example reads a stream of y = 2u − v + 1 with noise, and prints the estimate after 400 releases.
func ExampleAMB() {
	e, err := sgd.NewAMB(sgd.Config{
		Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 4, Curvature: 1.5, Radius: 10,
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	run, source := dp.NewRun(), rand.New(rand.NewPCG(1, 2))
	var last *dp.Release
	for step := uint64(1); step <= 401; step++ {
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			u, v := source.NormFloat64(), source.NormFloat64()
			e.Add(slot, []float64{u, v, 2*u - v + 1 + source.NormFloat64()/2})
		}
		if last, err = e.Close(run.Step(end - first)); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, v := range last.Values[:2] {
		fmt.Printf("%s %.0f\n", v.Name, v.Data)
	}
	// Output:
	// theta [2 -1 1]
	// theta_average [2 -1 1]
}

// A table of 20 000 records is fitted at once; only its bounds are known.
func ExampleRefit() {
	source := rand.New(rand.NewPCG(4, 5))
	rows := make([][]float64, 20_000)
	for i := range rows {
		u, v := source.NormFloat64(), source.NormFloat64()
		rows[i] = []float64{u, v, 2*u - v + source.NormFloat64()/2}
	}
	s, err := sgd.NewSample(rows, 3, 2, sgd.Bounds{X: 5, Y: 15}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	noise := dp.NewRun().Step(uint64(len(rows)))
	theta, path, err := sgd.Refit(s, 10, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}, noise)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d steps, coefficients %.1f\n", len(path.Iterates), theta)
	// Output:
	// 200 steps, coefficients [2.0 -1.0]
}
