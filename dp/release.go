package dp

import "errors"

// ErrExhausted is returned by an estimator's Close after its horizon: the
// budget of the epoch covers no further release.
var ErrExhausted = errors.New("horizon reached: the epoch's budget covers no further step")

// Value is one released array.
type Value struct {
	// Name says what it is, for example "mean"; docs/release.md has all names.
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
	// Where nothing is known of an entry it is NaN.
	SE []float64
	// SEWithClipping adds an estimate of what clipping took from each entry; nil where
	// there is none.
	SEWithClipping []float64
}

// Note is what a mechanism says of a step beside its values. Like those it is public.
type Note struct {
	Name  string
	Value any // has a form in JSON
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
	Notes  []Note // in the mechanism's fixed order
	// Verdict is a note's, on the bounds that rows are scaled and clipped by; "" where
	// they are given.
	Verdict string
}

// Sizes is what an estimator takes, in bytes.
type Sizes struct {
	State   int64 // its serialised state, what a checkpoint holds
	Release int64 // one release's numbers
	Peak    int64 // everything in memory, between steps and inside one, without parts
	Part    int64 // a [Part] of a step, where it has parts
}
