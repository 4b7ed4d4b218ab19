package dp

import "math/big"

// Noise gives the noise rows of one step. A mechanism opens its arrays in a fixed order, each at most once a step. It
// opens the first only after the step's data are complete.
//
// A program gets its Noise from [Run.Step], the daemon from [Epoch.Step]. Only these two protect data. Noise is an
// interface so that audits can fix the noise, and tests can use the draws of a reference case.
type Noise interface {
	// Row opens the array with this name and returns its row for this step. hidden is the integer row that the noise
	// will hide. An Epoch absorbs it into the transcript before it derives the row's keys, so the same noise never
	// hides two different rows.
	Row(array string, hidden []int64) Row
}

// Row is one row of independent standard Gaussians Z_0, Z_1, …. Each is a real number that can be computed to any
// number of digits.
type Row interface {
	// At returns coordinate j to float64 precision. Its value does not depend on the order in which coordinates are
	// read.
	At(j int) float64
	// Fill writes coordinates 0 … len(dst)−1.
	Fill(dst []float64)
	// Above reports whether Z_j > b, where Z_j is the exact real number.
	Above(j int, b *big.Rat) bool
	// Word returns the 64 uniform bits of coordinate j, for distributions
	// other than the Gaussian.
	Word(j int) uint64
}

// Part sums some of the records of a step, independently of other parts of the step. The estimator that made the part
// adds it to the step.
type Part interface {
	// Add adds a record to the part, as the estimator's Add adds one to the step.
	Add(slot uint64, row []float64)
}
