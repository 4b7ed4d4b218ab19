// Package audit looks for privacy faults of a mechanism from outside. It feeds rows to the mechanism, reads the
// releases, and knows or chooses the noise. From the audited code it takes only the public description of the noise. It
// has its own arithmetic for the matrices that correlate noise.
//
//	A0  sensitivity  the noise that makes two neighbouring streams release the
//	                 same is at most μ away (Sensitivity, Coupling)
//	A1  noise        the releases contain the noise that was drawn, and it is white
//	                 (Noise)
//	A2  shift        releases under fresh keys tell neighbours apart no better
//	                 than a Gaussian mechanism of μ (Shift)
//	A3  sketches     released rows tell neighbours apart no better than claimed
//	                 (Sketch)
//
// For a mechanism with additive noise, A0 and A1 together establish the guarantee: A0 tests that the signal is at most
// μ if the noise is white with variance 1, and A1 tests that the noise is white with variance 1. Both have almost no
// false alarms and find faults of any size. A2 and A3 assume nothing about the mechanism, but find only larger faults.
// docs/theory/audit.md proves what each audit can find.
//
// The noise of audits protects nothing. Therefore it is used only in this package's own runs and never handed out.
package audit

import (
	"crypto/sha256"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/streamdp/streamdp/dp"
)

// Mechanism is the interface of an audited mechanism, with the methods of the daemon's estimators.
type Mechanism interface {
	Columns() int
	Range(t uint64) (first, end uint64)
	Add(slot uint64, row []float64)
	Close(n dp.Noise) (*dp.Release, error)
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// Subject is a mechanism to audit, with the public description of its noise.
type Subject struct {
	Mechanism
	// Mu is the μ that the mechanism charges one record for all releases together.
	Mu float64
	// Array describes an array of noise that the mechanism opens in step t. It is called when the mechanism opens the
	// array, so the description may depend on earlier releases. The result is false if the mechanism should not have
	// that array.
	Array func(name string, t uint64) (Array, bool)
	// Recover computes from releases 1, 2, … the noisy integer rows of each array. The rows are numbers near integers;
	// the row of a step that does not open the array is nil. Recover is nil if the releases do not determine the rows.
	Recover func(releases []*dp.Release) (map[string][][]float64, error)
	// Released appends a part of the mechanism's state to b: the part that decides about later steps and that, as the
	// mechanism claims, follows from releases and public numbers. Coupling checks this claim. nil: there is no such
	// claim.
	Released func(b []byte) []byte

	start    []byte // the state before the first step
	sketches spectrum
}

// Array is the public description of an array of noise.
type Array struct {
	// Deviations are the standard deviations of the independent draws, in lattice units: one number per coordinate, or
	// one number for all.
	Deviations []float64
	// C correlates the draws over time: the integer noise W solves CW = σZ, up to its rounding. nil stands for the
	// identity matrix.
	C Matrix
	// Signal returns the integer that coordinate j hides, for example the answer to a question about a histogram. It is
	// called when the coordinate is drawn. nil: coordinate j hides hidden[j].
	Signal func(j int, hidden []int64) int64
	// Squares, if not nil, replaces additive noise: the array draws the square of a sketch.
	Squares *Squares
}

func (a *Array) deviation(j int) float64 {
	if len(a.Deviations) == 1 {
		return a.Deviations[0]
	}
	return a.Deviations[j]
}

func (a *Array) signal(j int, hidden []int64) int64 {
	if a.Signal == nil {
		return hidden[j]
	}
	return a.Signal(j, hidden)
}

func (a *Array) whitener() Whitener {
	if a.C == nil {
		return Identity()
	}
	return a.C()
}

// Stream holds the records of each step, in slots from the step's first on. A nil record is invalid.
type Stream [][][]float64

// Replace returns the neighbour of s in which record i of step t (from 0) is x.
func (s Stream) Replace(t, i int, x []float64) Stream {
	n := slices.Clone(s)
	n[t] = slices.Clone(n[t])
	n[t][i] = x
	return n
}

// Source gives the noise of each step of a run.
type Source = func(t uint64) dp.Noise

// outcome is the result of a step, which may depend only on releases.
type outcome struct {
	first, end uint64      // the step's slots: first to end−1
	release    *dp.Release // nil: the step releases nothing
	released   [sha256.Size]byte
}

// run feeds the whole stream to the mechanism and returns the outcome of each step.
func (s *Subject) run(x Stream, noise Source) ([]outcome, error) {
	if s.start == nil {
		start, err := s.AppendBinary([]byte{})
		if err != nil {
			return nil, err
		}
		s.start = start
	}
	if err := s.UnmarshalBinary(s.start); err != nil {
		return nil, err
	}
	all := make([]outcome, len(x))
	for i, records := range x {
		t, o := uint64(i)+1, &all[i]
		o.first, o.end = s.Range(t)
		for k, row := range records {
			s.Add(o.first+uint64(k), row)
		}
		r, err := s.Close(noise(t))
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", t, err)
		}
		o.release = clone(r)
		if s.Released != nil {
			o.released = sha256.Sum256(s.Released(nil))
		}
	}
	return all, nil
}

// clone copies a release, which may share memory with the mechanism.
func clone(r *dp.Release) *dp.Release {
	if r == nil {
		return nil
	}
	c := *r
	c.Values = slices.Clone(r.Values)
	for i, v := range c.Values {
		c.Values[i].Shape, c.Values[i].Data, c.Values[i].SE = slices.Clone(v.Shape), slices.Clone(v.Data),
			slices.Clone(v.SE)
	}
	return &c
}

// rows runs the stream and returns the noisy rows from which its releases were made.
func (s *Subject) rows(x Stream, noise Source) (map[string][][]float64, error) {
	if s.Recover == nil {
		return nil, errors.New("the releases do not determine the noisy rows")
	}
	all, err := s.run(x, noise)
	if err != nil {
		return nil, err
	}
	releases := make([]*dp.Release, len(all))
	for i, o := range all {
		releases[i] = o.release
	}
	return s.Recover(releases)
}

// difference returns an error that describes the first difference of two runs' outcomes. It returns nil if they are
// equal in every bit.
func difference(x, y []outcome) error {
	for t := range x {
		a, b := x[t], y[t]
		switch {
		case a.first != b.first || a.end != b.end:
			return fmt.Errorf("step %d: the two runs took different slots", t+1)
		case !reflect.DeepEqual(a.release, b.release):
			return fmt.Errorf("step %d: %w", t+1, differing(a.release, b.release))
		case a.released != b.released:
			return fmt.Errorf("step %d: the releases are equal, but the states after them differ",
				t+1)
		}
	}
	return nil
}

// differing returns an error that says how two releases differ.
func differing(a, b *dp.Release) error {
	if a == nil || b == nil || len(a.Values) != len(b.Values) {
		return errors.New("the two runs published different numbers of values")
	}
	for i := range a.Values {
		if !reflect.DeepEqual(a.Values[i], b.Values[i]) {
			return fmt.Errorf("value %s differs", a.Values[i].Name)
		}
	}
	return errors.New("the releases differ")
}

// Restart makes the next run save the mechanism's present state; it and all later runs begin there.
func (s *Subject) Restart() { s.start = nil }

// NoneError is the name of a mechanism or solver that has no audit. Callers must not treat this error as a pass.
type NoneError string

func (e NoneError) Error() string { return "there is no audit of " + string(e) }
