// Package sgd fits linear regressions under differential privacy by gradient descent. It has two methods for streams of
// records, and several for tables.
//
// # On a stream
//
// [New] returns an [Estimator], which releases coefficients after every few hundred records, without end, under one
// guarantee that every record pays for once. Config.Method chooses the method:
//
//   - "newton", the default, is a [Newton]. It needs only bounds of the records. It learns the second moment of the
//     features privately from the stream. Its steps have equal length in all directions, for any scales and
//     correlations of the columns.
//   - "amb" is an [AMB], the published method: gradient steps with one step size for all directions. It needs the
//     largest eigenvalue of the features' second moment and a bound on the coefficients. The smaller the smallest
//     eigenvalue, the more slowly it learns. Choose it for many features that are well scaled and nearly uncorrelated.
//
// A record is a vector of features x, shortened to a public norm, and a target y. The gradient of its loss at
// coefficients w is rx, where r = ⟨x, w⟩ − y. The gradient is clipped to a norm ζ, which limits the influence of every
// record. If ζ is ten times too small or too large, the iterates are useless, and nobody knows the right ζ in advance.
// Both methods therefore adapt ζ, by noisy counts of the clipped records.
//
// # On a table
//
// [Refit] fits a [Sample]; it needs only the sample's bounds. [GradientDescent] and [ShuffledSGD] are the published
// algorithms. The other exported names for tables serve only to reproduce the papers' figures: GDProcess, and
// [Checkpoints], [BatchedMeans] and [RunMeans] for intervals.
//
// # Privacy
//
// All noise is integer noise on the lattice of package dp. Contributions are divided by ζ before they are quantised. So
// one lattice and one matrix mechanism serve all steps, for every ζ.
//
// The guarantee protects one record in its slot. An unreadable record and a slot without a record are null records. A
// null record occupies its slot and adds nothing to a gradient. It adds to a count the amount that leaves ζ unchanged.
//
// Derivations, corrected formulas and measurements are in docs/theory/sgd.md.
package sgd

import (
	"encoding"

	"github.com/streamdp/streamdp/dp"
)

// Estimator is an online regression of either method. The documentation of [Newton] and [AMB] says what a release
// holds.
//
// An Estimator is not safe for concurrent use.
type Estimator interface {
	// Columns returns the length of a row.
	Columns() int
	// Range returns the slots of step t, [first, end). t must be the open step or the last closed one. A step that
	// searches for a clip norm has no release.
	Range(t uint64) (first, end uint64)
	// Add adds the record of a slot to the open step. row is in scaled units, with the target
	// in its column; nil is an invalid record. Add neither changes nor keeps row.
	Add(slot uint64, row []float64)
	// Close ends the open step with its noise. It returns nil if the step has no release, and
	// the error dp.ErrExhausted after the horizon.
	Close(n dp.Noise) (*dp.Release, error)
	// Cost returns what all releases cost a single record.
	Cost() dp.Cost
	// Warnings describes settings that are valid but probably a mistake.
	Warnings() []string
	// Sizes returns the sizes of memory and state that the estimator needs, in bytes.
	Sizes() dp.Sizes
	// AppendBinary appends the state after the last Close, which is as secret as the rows. UnmarshalBinary restores it
	// into an estimator with the same plan.
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

var (
	_ Estimator = (*AMB)(nil)
	_ Estimator = (*Newton)(nil)
)

// New returns the online regression that cfg describes, with the guarantee p. It reports all faults at once.
//
// A program that keeps a state across restarts must also keep the plan. The two methods have different plans, so such a
// program calls [NewNewton] and [AdoptNewton], or [NewAMB] and [AdoptAMB].
func New(cfg Config, p dp.Params) (Estimator, error) {
	if cfg.Method == "amb" {
		e, err := NewAMB(cfg, p)
		if err != nil {
			return nil, err
		}
		return e, nil
	}
	e, err := NewNewton(cfg, p)
	if err != nil {
		return nil, err
	}
	return e, nil
}
