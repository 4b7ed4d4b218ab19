// Package sgd fits linear regressions under differential privacy by gradient
// descent: on a stream, with an estimate after every batch and one guarantee for
// ever ([AMB]), or on a table of records ([GradientDescent], [ShuffledSGD]).
//
// A record is a vector of features x, shortened to a public norm, and a target y.
// The gradient of its loss at w is rx with r = ⟨x, w⟩ − y; clipped to a norm ζ it
// has bounded influence whatever the record holds. ζ follows the data privately:
// the iterates are useless where it is ten times too small or too large, and
// nobody knows it beforehand.
//
// All noise is integer noise on the lattice of package dp. Contributions are
// quantised after division by ζ, so that one lattice and one matrix mechanism
// serve all steps whatever ζ does.
//
// What is protected is one record in its slot. A record that cannot be read, and
// a slot without one, is a null record: it takes its place, adds nothing to a
// gradient, and adds to a count what keeps ζ where it is. Derivations, corrected
// formulas and measurements are in docs/theory/sgd.md.
package sgd
