package moments_test

import (
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/moments"
)

// This plans an estimator for running means and covariances of two columns. Before the first record, the plan says how
// much a record pays, and how large the noise will be.
func ExampleNew() {
	e, err := moments.New(moments.Config{
		Columns: []string{"height", "weight"},
		Clip:    2,    // rows are scaled to norm 2 at most
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
		fmt.Printf("step %d: se of a mean %.2g, of a second moment %.2g and %.2g\n", t, x.Mean, x.Diagonal,
			x.OffDiagonal)
	}
	// Output:
	// phased, weight of the second moment 0.5
	// every record pays μ = 0.1961, once, whatever the number of releases
	// step 1: se of a mean 0.022, of a second moment 0.062 and 0.044
	// step 100: se of a mean 0.00063, of a second moment 0.0018 and 0.0013
	// step 10000: se of a mean 1.1e-05, of a second moment 3.1e-05 and 2.2e-05
}

// This closes two steps of a stream, with the noise of a run.
func ExampleEstimator_Close() {
	e, err := moments.New(moments.Config{Columns: []string{"x", "y"}, Clip: 2, Step: 100_000},
		dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.Replace})
	if err != nil {
		fmt.Println(err)
		return
	}
	run := dp.NewRun()
	for step := uint64(1); step <= 2; step++ {
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			x := float64(slot%9) / 10
			e.Add(slot, []float64{x, 1.5 - x})
		}
		r, err := e.Close(run.Step(end - first))
		if err != nil {
			fmt.Println(err)
			return
		}
		mean, covariance := r.Values[0], r.Values[2]
		fmt.Printf("%s %.1f, se %.1g; %s %.1f\n", mean.Name, mean.Data, mean.SE, covariance.Name, covariance.Data)
	}
	// Output:
	// mean [0.4 1.1], se [0.0002]; covariance [0.1 -0.1 0.1]
	// mean [0.4 1.1], se [0.0001]; covariance [0.1 -0.1 0.1]
}

// This shows invalid records and empty slots. A nil row counts as a record and contributes zeros. For a slot without a
// record, Add is not called. Zero noise, which no program may use, shows the exact average.
func ExampleEstimator_Add() {
	e, err := moments.New(moments.Config{Clip: 5, Columns: dptest.Columns(2), Step: 4, Factorization: "identity"},
		dp.Params{Mu: 1, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	e.Add(0, []float64{3, 1})
	e.Add(1, nil)
	e.Add(2, []float64{30, 40}) // norm 50: shortened to 3, 4
	r, err := e.Close(dptest.Zero())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d records, mean %.3f, second moment %.3f\n", r.Rows, r.Values[0].Data, r.Values[1].Data)
	// Output:
	// 3 records, mean [2.000 1.667], second moment [6.000 5.000 5.667]
}

// This is a restart. With the plan of the epoch and the state of run and estimator, a program continues with the same
// bytes as if it had not been interrupted.
func ExampleAdopt() {
	cfg := moments.Config{Columns: []string{"x"}, Clip: 1, Step: 1000, Workload: "sum", Horizon: 10}
	params := dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut}
	e, err := moments.New(cfg, params)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Save the plan at the beginning, and the state before each release is published.
	plan := e.Plan()
	state, err := dp.NewRun().AppendState(nil, e)
	if err != nil {
		fmt.Println(err)
		return
	}

	var sums [2]float64
	for i := range sums {
		if e, err = moments.Adopt(cfg, params, plan); err != nil {
			fmt.Println(err)
			return
		}
		run, err := dp.ResumeRun(state, e)
		if err != nil {
			fmt.Println(err)
			return
		}
		e.Add(0, []float64{0.25})
		r, err := e.Close(run.Step(1))
		if err != nil {
			fmt.Println(err)
			return
		}
		sums[i] = r.Values[0].Data[0]
	}
	fmt.Println("both continue alike:", sums[0] == sums[1])
	// Output:
	// both continue alike: true
}

// This is private linear regression from moments. If rows consist of features and target, covariances contain
// everything that least squares needs. So coefficients after every step cost nothing in addition to the moments. Before
// the covariance is inverted, its eigenvalues are raised to the size of its noise; otherwise directions that are mostly
// noise would be amplified.
func ExampleProjectPSD_regression() {
	e, err := moments.New(moments.Config{
		Columns: []string{"x1", "x2", "y"}, Clip: 2, Step: 50_000,
		Weights: []float64{1, 10}, // covariances matter more than means
	}, dp.Params{Epsilon: 1, Delta: 1e-8, Adjacency: dp.ZeroOut})
	if err != nil {
		fmt.Println(err)
		return
	}
	// y = 0.8x₁ − 0.5x₂ + 0.15 + noise, a stream of 200 000 records.
	source, run := rand.New(rand.NewPCG(1, 2)), dp.NewRun()
	for step := uint64(1); step <= 4; step++ {
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			x1, x2 := source.Float64()*2-1, source.Float64()*2-1
			e.Add(slot, []float64{x1, x2, 0.8*x1 - 0.5*x2 + 0.15 + 0.2*(source.Float64()-0.5)})
		}
		r, err := e.Close(run.Step(end - first))
		if err != nil {
			fmt.Println(err)
			return
		}
		if step%2 != 0 {
			continue
		}
		mean, covariance := r.Values[0].Data, r.Values[2]
		c, err := moments.ProjectPSD(covariance.Data, 3, covariance.SE[0])
		if err != nil {
			fmt.Println(err)
			return
		}
		// The upper triangle, row by row: xx in 0, 1 and 3, xy in 2 and 4.
		features := mat.NewSymDense(2, []float64{c[0], c[1], c[1], c[3]})
		var theta mat.VecDense
		if err := theta.SolveVec(features, mat.NewVecDense(2, []float64{c[2], c[4]})); err != nil {
			fmt.Println(err)
			return
		}
		intercept := mean[2] - theta.AtVec(0)*mean[0] - theta.AtVec(1)*mean[1]
		fmt.Printf("%d records: y = %.1fx₁ %+.1fx₂ %+.2f, standard error of a covariance %.0e\n",
			end, theta.AtVec(0), theta.AtVec(1), intercept, covariance.SE[1])
	}
	// Output:
	// 100000 records: y = 0.8x₁ -0.5x₂ +0.15, standard error of a covariance 2e-04
	// 200000 records: y = 0.8x₁ -0.5x₂ +0.15, standard error of a covariance 1e-04
}

// This makes a Gaussian density from a private mean and covariance, and computes its divergence from another density.
func ExampleNewDensity() {
	truth, err := moments.NewDensity([]float64{0.2, -0.1}, []float64{0.3, 0.1, 0.2}, 1e-9)
	if err != nil {
		fmt.Println(err)
		return
	}
	// A release might contain these values. The floor is about as large as their standard errors.
	private, err := moments.NewDensity([]float64{0.21, -0.08}, []float64{0.28, 0.12, 0.21}, 0.02)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("density at the mean %.3f, divergence %.4f nats\n", math.Exp(private.Log([]float64{0.21, -0.08})),
		private.Divergence(truth))
	// Output:
	// density at the mean 0.755, divergence 0.0104 nats
}
