package dp

import "errors"

// ErrExhausted is returned by an estimator's Close after its horizon: the
// budget of the epoch covers no further release.
var ErrExhausted = errors.New("horizon reached: the epoch's budget covers no further step")

// Value is one released array.
type Value struct {
	// Name is one of the names of the release format, for example "mean".
	Name string
	// Shape is the array's shape as its readers think of it: [d] for a vector,
	// [d d] for a symmetric matrix of layout "upper".
	Shape []int
	// Layout is "" for row-major dense data, or "upper" for the upper triangle
	// of a symmetric matrix, row by row, true entries.
	Layout string
	// Data are the released numbers, all finite.
	Data []float64
	// SE is the standard deviation of the noise: one number common to all
	// entries, or one per entry; nil where it is not known.
	SE []float64
}

// Release is what a mechanism publishes for one step. The daemon adds stream,
// epoch, offsets and the guarantee, and serialises once.
type Release struct {
	Step   uint64  // step number within the epoch, from 1
	Rows   uint64  // committed records of the step, valid or not
	Values []Value // in the mechanism's fixed order
	// Failed says that the step has no values, in words that depend on no record.
	// Empty: it has.
	Failed string
}

// Sizes is what an estimator takes, in bytes.
type Sizes struct {
	State   int64 // its serialised state, what a checkpoint holds
	Release int64 // one release's numbers
	Peak    int64 // everything in memory, between steps and inside one
}
