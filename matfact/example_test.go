package matfact_test

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/streamdp/streamdp/matfact"
)

// This chooses the factorization for running averages of a stream of unknown length. It prints the noise of three
// released means for noise multiplier 1, if a row changes by at most 1.
func ExampleNew() {
	w := matfact.Workload{Kind: "mean"}
	f, err := matfact.New(matfact.Auto(w, 0), w)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(f.Kind(), "valid for every length:", f.Horizon() == 0)
	for _, t := range []uint64{1, 1000, 1e9} {
		fmt.Printf("step %d: standard deviation %.2g\n", t, f.ColNorm()*math.Sqrt(f.RowVar(w, t)))
	}
	// Output:
	// phased valid for every length: true
	// step 1: standard deviation 1.1
	// step 1000: standard deviation 0.0042
	// step 1000000000: standard deviation 1.1e-08
}

// These are daily sums over a year in which one person has rows in at most 52 steps, 7 days apart. The matrix that is
// best for single rows has much more noise for persons.
func ExampleSensitivity() {
	w, person := matfact.Workload{Kind: "sum"}, matfact.Participation{Count: 52, Separation: 7}
	for _, c := range []matfact.Config{matfact.AutoPersons(w, 364, person), matfact.Auto(w, 364), {Kind: "identity"}} {
		f, err := matfact.New(c, w)
		if err != nil {
			fmt.Println(err)
			return
		}
		s, err := matfact.Sensitivity(f, person, 364)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %.4g for one row, %.4g for a person, error at the end %.3g\n",
			f.Kind(), f.ColNorm(), s, s*math.Sqrt(f.RowVar(w, 364)))
	}
	// Output:
	// blt: 1.781 for one row, 18.5 for a person, error at the end 57.2
	// blt: 1.722 for one row, 42.31 for a person, error at the end 73
	// identity: 1 for one row, 7.211 for a person, error at the end 138
}

// This simulates a stream of exponentially weighted sums. The noise has the standard deviation that RowVar states, 37 %
// less than that of independent noise.
func ExampleFactorization_newFilter() {
	w := matfact.Workload{Kind: "exponential", Decay: 0.9}
	for _, c := range []matfact.Config{{Kind: "identity"}, matfact.Auto(w, 0)} {
		f, err := matfact.New(c, w)
		if err != nil {
			fmt.Println(err)
			return
		}
		const coordinates, steps = 20000, 60
		filter, source := f.NewFilter(coordinates), rand.New(rand.NewPCG(1, 2))
		z, total := make([]float64, coordinates), make([]float64, coordinates)
		for range steps {
			for i := range z {
				z[i] = source.NormFloat64()
			}
			filter.Next(z, z)
			for i := range total {
				total[i] = w.Decay*total[i] + z[i]
			}
		}
		var sum float64
		for _, x := range total {
			sum += x * x
		}
		fmt.Printf("%s: simulated %.1f, stated %.1f\n", f.Kind(),
			f.ColNorm()*math.Sqrt(sum/coordinates), f.ColNorm()*math.Sqrt(f.RowVar(w, steps)))
	}
	// Output:
	// identity: simulated 2.3, stated 2.3
	// blt: simulated 1.4, stated 1.5
}

// This is how one step is released: the caller draws, rounds and pushes. Here the draw is a constant; package dp draws
// noise that protects data.
func ExampleShaper() {
	w := matfact.Workload{Kind: "sum"}
	f, err := matfact.New(matfact.Auto(w, 1000), w)
	if err != nil {
		fmt.Println(err)
		return
	}
	sd := 1000.0 * f.ColNorm() // σΔ‖C‖ in lattice units
	if _, err := f.Limits(sd); err != nil {
		fmt.Println(err)
		return
	}
	shaper := f.NewShaper(1)
	s, noise := make([]float64, 1), make([]int64, 1)
	for range 3 {
		r := shaper.Predict(s)
		noise[0] = int64(math.Floor(r*(sd*0.5-s[0]) + 0.5))
		shaper.Push(noise)
		fmt.Println(noise[0])
	}
	// Output:
	// 906
	// 465
	// 325
}
