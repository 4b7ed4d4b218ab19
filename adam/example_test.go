package adam_test

import (
	"fmt"
	"math"
	"math/rand/v2"

	"streamdp/adam"
	"streamdp/dp"
)

// A logistic regression learns from a stream of examples, 64 a step. What is
// released are its parameters.
func ExampleNew() {
	model := adam.Model{Loss: "logistic", Target: "y"}
	e, err := adam.New(adam.Config{
		Mode: "model", Model: &model, Columns: 3, Target: 2,
		Clip: 1, Rate: 0.02, Step: 64, Horizon: 500, Schedule: "cosine",
	}, dp.Params{Epsilon: 1, Delta: 1e-6, Adjacency: dp.ZeroOut})
	if err != nil {
		panic(err)
	}
	noise := exampleNoise()
	source := rand.New(rand.NewPCG(1, 2))
	for step := uint64(1); step <= 500; step++ {
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			x, y := source.NormFloat64(), source.NormFloat64()
			e.Add(slot, []float64{x, y, x - y/2})
		}
		if _, err := e.Close(noise(step)); err != nil {
			panic(err)
		}
	}
	theta := e.Parameters()
	fmt.Printf("%d parameters, right for the signs of x and y: %t\n", len(theta), theta[0] > 0 && theta[1] < 0)
	fmt.Printf("each example pays mu = %.4f, once\n", e.Cost().Mu)
	// Output:
	// 3 parameters, right for the signs of x and y: true
	// each example pays mu = 0.2367, once
}

// What the second moment's noise does to a step, before any data: with means
// squared, at C = I, after many steps.
func ExampleNewVNoise() {
	c := adam.Config{Method: "pp_debiased", Clip: 1, Step: 256}
	rho := c.Calibrate(1, 0, 1, 1, dp.Replace).First
	e2 := (1 - 0.999) / (1 + 0.999) // of bias-corrected weights, squared
	fmt.Printf("noise of the mean %.4f, of v %.1e\n", rho, rho*rho*math.Sqrt(2*e2))
	// Output:
	// noise of the mean 0.0078, of v 1.9e-06
}

// exampleNoise returns the noise of an epoch. Outside an example its keys are
// fresh: dp.NewSecret, dp.NewNonce.
func exampleNoise() func(step uint64) dp.Noise {
	e, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "example", 1, [16]byte{}, [32]byte{})
	if err != nil {
		panic(err)
	}
	h := dp.NewTranscript([32]byte{})
	return func(step uint64) dp.Noise {
		h.AbsorbRecords(64)
		return e.Step(step, &h)
	}
}
