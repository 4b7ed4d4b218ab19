package dp

import "errors"

// ErrExhausted is the error of an estimator's Close after the horizon: the budget of the epoch covers no further
// release.
var ErrExhausted = errors.New("horizon reached: the epoch's budget covers no further step")

// Value is one released array.
type Value struct {
	// Name says what the value is, for example "mean"; docs/release.md lists all names.
	Name string
	// Shape is the mathematical shape of the array: [d] for a vector, [d d] for a symmetric matrix, also with the
	// layout "upper".
	Shape []int
	// Layout is "" for row-major dense data, or "upper" for the upper triangle of a symmetric matrix, row by row,
	// without scaling of off-diagonal entries.
	Layout string
	// Data are the released numbers, all finite.
	Data []float64
	// SE is the standard deviation of the noise: one number for all entries, or one per entry. SE is nil if it is not
	// known. An entry of SE is NaN if the noise of that entry is not known.
	SE []float64
	// SEWithClipping is, per entry, SE including an estimate of the loss by clipping. It is nil if there is no
	// estimate.
	SEWithClipping []float64
}

// Note is what a mechanism publishes about a step in addition to the values.
type Note struct {
	Name  string
	Value any // must be representable in JSON
}

// Release is the result of a mechanism for one step. The daemon adds stream, epoch, offsets and the guarantee, and
// serialises it once.
type Release struct {
	Step   uint64  // step number within the epoch, from 1
	Rows   uint64  // committed records of the step, valid or not
	Values []Value // in the mechanism's fixed order
	// Failed says why the step has no values, in words that depend on no record. It is empty if the step has values.
	Failed string
	Notes  []Note // in the mechanism's fixed order
	// Verdict is the verdict of the note on bounds, that is, on the constants by which rows are scaled and clipped. It
	// is "" if the bounds are given.
	Verdict string
}

// Sizes says how much memory an estimator needs, in bytes.
type Sizes struct {
	State   int64 // its serialised state, what a checkpoint holds
	Release int64 // one release's numbers
	Peak    int64 // the most memory in use at a time, between and during steps, without parts
	Part    int64 // one [Part] of a step, if steps have parts
}
