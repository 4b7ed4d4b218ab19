package dp

import "math/big"

// Noise gives the noise rows of one step. A mechanism opens its arrays in a fixed order, each at
// most once a step, after the step's data are complete.
//
// A program gets it from [Run.Step], the daemon from [Epoch.Step]. Only these two protect data.
// The interface exists so that audits can fix the noise, and tests can use the draws of a
// reference case.
type Noise interface {
	// Row opens the array's row of this step. hidden is the integer row that the noise will
	// hide. The keyed source absorbs it into the transcript before it derives the row's keys,
	// so the same noise never hides two different rows.
	Row(array string, hidden []int64) Row
}

// Row is one row of independent standard Gaussians Z_0, Z_1, …. Each is a real number; it can be
// computed to as many digits as a caller needs.
type Row interface {
	// At returns coordinate j to float64 precision. It is drawn lazily and is
	// the same in whatever order coordinates are read.
	At(j int) float64
	// Fill writes coordinates 0 … len(dst)−1.
	Fill(dst []float64)
	// Above reports whether Z_j > b, for the exact real number Z_j.
	Above(j int, b *big.Rat) bool
	// Word returns the 64 uniform bits of coordinate j, for distributions
	// other than the Gaussian.
	Word(j int) uint64
}

// Part sums some of the records of a step, apart from those of its other parts. The
// estimator that made it adds it to the step.
type Part interface {
	// Add adds a record as the estimator does.
	Add(slot uint64, row []float64)
}
