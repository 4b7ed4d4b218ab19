package moments_test

import (
	"fmt"

	"streamdp/dp"
	"streamdp/internal/dptest"
	"streamdp/moments"
)

// The plan of an estimator for running means and covariances of two columns,
// before any record: what a record costs, and how large the noise will be.
func ExampleNew() {
	e, err := moments.New(moments.Config{
		Clip:    2, // rows are scaled to norm 2 at most
		Columns: 2,
		Step:    1000, // slots a release
	}, dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := e.Plan()
	fmt.Printf("%s, weight of the second moment %.2g\n", p.Factorization.Kind, p.Nu)
	fmt.Printf("every record pays μ = %.4f, once, whatever the number of releases\n", e.Cost().Mu)
	for _, t := range []uint64{1, 100, 10000} {
		x := e.Expect(t)
		fmt.Printf("step %d: se of a mean %.2g, of a second moment %.2g and %.2g\n", t, x.Mean, x.Diagonal, x.OffDiagonal)
	}
	// Output:
	// phased, weight of the second moment 0.5
	// every record pays μ = 0.1961, once, whatever the number of releases
	// step 1: se of a mean 0.022, of a second moment 0.062 and 0.044
	// step 100: se of a mean 0.00063, of a second moment 0.0018 and 0.0013
	// step 10000: se of a mean 1.1e-05, of a second moment 3.1e-05 and 2.2e-05
}

// A step of a stream, with the keyed noise that protects data: it is a function
// of the keys and of the records. A program takes both keys from dp.NewSecret and
// keeps them; here they are fixed.
func ExampleEstimator_Close() {
	e, err := moments.New(moments.Config{Clip: 2, Columns: 2, Step: 1000},
		dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace})
	if err != nil {
		fmt.Println(err)
		return
	}
	master, secret := [32]byte{1}, [32]byte{2}
	keys, err := dp.NewEpoch(&master, &secret, "orders", 1, [16]byte{}, [32]byte{})
	if err != nil {
		fmt.Println(err)
		return
	}
	transcript := dp.NewTranscript([32]byte{})

	first, end := e.Range(1)
	for slot := first; slot < end; slot++ {
		x := float64(slot%10) / 10
		e.Add(slot, []float64{x, 1 - x})
	}
	transcript.AbsorbRecords(end - first)
	r, err := e.Close(keys.Step(1, &transcript))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range r.Values {
		fmt.Printf("%s %.2f, se %.2f\n", v.Name, v.Data, v.SE)
	}
	// Output:
	// mean [0.44 0.58], se [0.02]
	// second_moment [0.31 0.11 0.37], se [0.06 0.04 0.06]
	// covariance [0.12 -0.14 0.04], se [0.06 0.05 0.07]
}

// Invalid records and empty slots: nil counts as a record and contributes zeros,
// a slot without a record is not added. Noise of zero shows what is averaged.
func ExampleEstimator_Add() {
	e, err := moments.New(moments.Config{Clip: 5, Columns: 2, Step: 4, Factorization: "identity"},
		dp.Params{Mu: 1, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	e.Add(0, []float64{3, 1})
	e.Add(1, nil)
	e.Add(2, []float64{30, 40}) // norm 50: counts as 3, 4
	r, err := e.Close(dptest.Zero())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d records, mean %.3f, second moment %.3f\n", r.Rows, r.Values[0].Data, r.Values[1].Data)
	// Output:
	// 3 records, mean [2.000 1.667], second moment [6.000 5.000 5.667]
}

// A state holds everything up to the last Close. With the plan of the epoch it
// continues elsewhere, byte for byte as if nothing had happened.
func ExampleAdopt() {
	cfg := moments.Config{Clip: 1, Columns: 1, Step: 1, Workload: "sum", Horizon: 10}
	params := dp.Params{Mu: 10, Adjacency: dp.ZeroOut}
	e, err := moments.New(cfg, params)
	if err != nil {
		fmt.Println(err)
		return
	}
	noise := dptest.Seeded(1)
	e.Add(0, []float64{0.5})
	if _, err := e.Close(noise); err != nil {
		fmt.Println(err)
		return
	}
	plan := e.Plan()
	state, err := e.AppendBinary(nil)
	if err != nil {
		fmt.Println(err)
		return
	}

	e, err = moments.Adopt(cfg, params, plan)
	if err == nil {
		err = e.UnmarshalBinary(state)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	e.Add(1, []float64{0.25})
	r, err := e.Close(noise)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("step %d: sum %.2f, se %.2f\n", r.Step, r.Values[0].Data, r.Values[0].SE)
	// Output:
	// step 2: sum [0.58], se [0.21]
}
