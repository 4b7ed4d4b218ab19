package dp_test

import (
	"fmt"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/moments"
)

// How much Gaussian noise a count needs for (ε, δ) = (1, 10⁻⁶), if one record changes it by at most 1; and the
// guarantee of a given noise.
func Example_calibration() {
	sd, err := dp.Sigma(1, 1e-6, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	eps, err := dp.Epsilon(1e-6, 1/sd) // μ is the sensitivity over the standard deviation
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("standard deviation %.4f for ε = %.4f\n", sd, eps)
	for _, sd := range []float64{1, 10, 100} {
		eps, err := dp.Epsilon(1e-6, 1/sd)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("standard deviation %.0f: ε = %.4f\n", sd, eps)
	}
	// Output:
	// standard deviation 4.2247 for ε = 1.0000
	// standard deviation 1: ε = 4.8866
	// standard deviation 10: ε = 0.3969
	// standard deviation 100: ε = 0.0337
}

// Two estimators read the same records. Their costs add up as μ², and ε is computed once, at the end: it is less than
// the sum of the two ε.
func ExampleCompose() {
	cost := func(eps float64) dp.Cost {
		mu, err := dp.Mu(eps, 1e-6)
		if err != nil {
			panic(err)
		}
		return dp.Cost{Adjacency: dp.Replace, Mu: mu}
	}
	total := dp.Compose(cost(1), cost(1))
	eps, err := total.Epsilon(1e-6)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("μ = %.4f, ε = %.4f at δ = 1e-6\n", total.Mu, eps)
	// Output:
	// μ = 0.3348, ε = 1.4547 at δ = 1e-6
}

// The ledger of one log: an estimator for each of three disjoint days, and one over all days. A record is in one day
// and in the estimator of all days, so it pays for two of the four charges.
func ExampleCharged() {
	cost := func(mu float64) dp.Cost { return dp.Cost{Adjacency: dp.Replace, Mu: mu} }
	ledger := []dp.Charge{
		{Log: 1, First: 0, End: 1000, Cost: cost(0.3)},
		{Log: 1, First: 1000, End: 2000, Cost: cost(0.3)},
		{Log: 1, First: 2000, End: 3000, Cost: cost(0.4)},
		{Log: 1, First: 0, End: -1, Cost: cost(0.3)}, // without end
	}
	most, err := dp.Charged(ledger, dp.Replace, 1e-6)
	if err != nil {
		fmt.Println(err)
		return
	}
	eps, err := most.Epsilon(1e-6)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("the record that pays most pays μ = %.2f, ε = %.2f\n", most.Mu, eps)
	within, err := most.Within(3, 1e-6)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("within a limit of ε = 3:", within)
	// Output:
	// the record that pays most pays μ = 0.50, ε = 2.25
	// within a limit of ε = 3: true
}

// The noise of a run: each step of an estimator is closed with the next step of the run.
func ExampleRun() {
	e, err := moments.New(moments.Config{Clip: 100, Columns: []string{"age"}, Step: 50_000},
		dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
	if err != nil {
		fmt.Println(err)
		return
	}
	run := dp.NewRun()
	for step := uint64(1); step <= 3; step++ {
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			e.Add(slot, []float64{float64(slot % 61)}) // on average 30
		}
		release, err := e.Close(run.Step(end - first))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("step %d: mean %.0f\n", release.Step, release.Values[0].Data[0])
	}
	// Output:
	// step 1: mean 30
	// step 2: mean 30
	// step 3: mean 30
}

// A restart. Make the state durable before the release leaves the program.
func ExampleResumeRun() {
	cfg := moments.Config{Clip: 100, Columns: []string{"age"}, Step: 50_000}
	params := dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace}
	e, err := moments.New(cfg, params)
	if err != nil {
		fmt.Println(err)
		return
	}
	run, plan := dp.NewRun(), e.Plan()
	add := func(e *moments.Estimator, step uint64) {
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			e.Add(slot, []float64{float64(slot % 61)})
		}
	}
	add(e, 1)
	if _, err := e.Close(run.Step(50_000)); err != nil {
		fmt.Println(err)
		return
	}
	state, err := run.AppendState(nil, e) // write it to a file, with the plan, before the release is published
	if err != nil {
		fmt.Println(err)
		return
	}

	// The next release of the program, if it had continued.
	add(e, 2)
	next, err := e.Close(run.Step(50_000))
	if err != nil {
		fmt.Println(err)
		return
	}

	// After a crash: the same step over the same records.
	e, err = moments.Adopt(cfg, params, plan)
	if err != nil {
		fmt.Println(err)
		return
	}
	if run, err = dp.ResumeRun(state, e); err != nil {
		fmt.Println(err)
		return
	}
	add(e, 2)
	again, err := e.Close(run.Step(50_000))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("step", again.Step, "to the last bit:", again.Values[0].Data[0] == next.Values[0].Data[0])
	// Output:
	// step 2 to the last bit: true
}

// A mechanism without an estimator: the sum of ten thousand vectors of norm at most 5, as integers on a lattice, with a
// Gaussian that is rounded to the lattice.
func ExampleRoundRow() {
	const bound, records, eps, delta = 5, 10_000, 1, 1e-6
	factor := dp.Replace.Factor() // one record changes the sum by at most factor·bound
	sd, err := dp.Sigma(eps, delta, factor*bound)
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := dp.NewLattice(bound, sd, 24)
	if err != nil {
		fmt.Println(err)
		return
	}
	// In lattice steps a record has norm at most K, for which the noise is calibrated.
	if sd, err = dp.Sigma(eps, delta, factor*float64(l.K)); err != nil {
		fmt.Println(err)
		return
	}
	sum, k := make([]int64, 2), make([]int64, 2)
	for range records {
		l.Quantise(k, []float64{3, -1}) // writes zeros for a record that is not finite
		for j := range sum {
			sum[j] += k[j]
		}
	}
	row := dp.NewRun().Step(records).Row("sum", sum) // after the last record
	noise := make([]int64, 2)
	dp.RoundRow(noise, row, []float64{sd}, nil, 1)
	for j := range sum {
		fmt.Printf("%.0f ", float64(sum[j]+noise[j])*l.Step()/records)
	}
	// Output:
	// 3 -1
}
