package adam_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/dp"
)

// A logistic regression learns from a stream of examples, 64 per step. Each release holds its parameters.
func ExampleNew() {
	e, err := adam.New(adam.Config{
		Mode: "model", Model: &adam.Model{Loss: "logistic", Target: "clicked"},
		Columns: []string{"age", "price", "clicked"},
		Clip:    1, Rate: 0.02, Step: 64, Horizon: 500, Schedule: "cosine",
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	run, source := dp.NewRun(), rand.New(rand.NewPCG(1, 2))
	for step := uint64(1); step <= 500; step++ {
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			age, price := source.NormFloat64(), source.NormFloat64()
			clicked := 0.0
			if age-price/2+source.NormFloat64() > 0 {
				clicked = 1
			}
			e.Add(slot, []float64{age, price, clicked})
		}
		if _, err := e.Close(run.Step(end - first)); err != nil {
			fmt.Println(err)
			return
		}
	}
	theta := e.Parameters() // for age, for price, and the constant
	fmt.Printf("%d parameters, right for the signs of age and price: %t\n", len(theta), theta[0] > 0 && theta[1] < 0)
	fmt.Printf("each example pays μ = %.4f, once\n", e.Cost().Mu)
	// Output:
	// 3 parameters, right for the signs of age and price: true
	// each example pays μ = 0.2367, once
}

// This example takes a step with gradients of three parameters that were computed elsewhere.
func ExampleEstimator_Close() {
	e, err := adam.New(adam.Config{Dim: 3, Clip: 1, Rate: 0.1, Step: 10_000},
		dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.Replace})
	if err != nil {
		fmt.Println(err)
		return
	}
	first, end := e.Range(1)
	for slot := first; slot < end; slot++ {
		e.Add(slot, []float64{0.6, -0.6, 0.3})
	}
	release, err := e.Close(dp.NewRun().Step(end - first))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s %.2f\n", release.Values[0].Name, release.Values[0].Data)
	// Output:
	// parameters [-0.10 0.10 -0.10]
}
