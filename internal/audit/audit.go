// Package audit looks for privacy faults of a mechanism from outside. It feeds rows, reads releases, and knows or
// chooses the noise. It relies on the audited code only for the public description of its noise. It has its own
// arithmetic for the matrices that correlate noise.
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
// μ if the noise is white with variance 1, and A1 tests that the noise is. They have almost no false alarms and find
// faults of any size. A2 and A3 assume nothing about the mechanism, but find only larger faults. docs/theory/audit.md
// proves what each audit can find.
//
// The noise of audits protects nothing, so this package never hands it out: it is used only in the package's own runs.
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

// Subject is a mechanism with the public description of its noise.
type Subject struct {
	Mechanism
	// Mu is the cost of all releases together for one record, as the mechanism states it.
	Mu float64
	// Array describes an array of noise that the mechanism opens in step t. It is called when the mechanism opens the
	// array, so it may depend on earlier releases. It returns false if the mechanism should not have that array.
	Array func(name string, t uint64) (Array, bool)
	// Recover returns the noisy integer rows from which releases 1, 2, … were made, by array, as numbers near integers;
	// nil if the releases do not determine them. A row is nil if its step does not open the array.
	Recover func(releases []*dp.Release) (map[string][][]float64, error)
	// Released appends the part of the mechanism's state that follows from releases and public numbers, and that
	// decides about later steps. Coupling checks this claim. nil: the mechanism does not claim such a part.
	Released func(b []byte) []byte

	start    []byte // the state before the first step
	sketches spectrum
}

// Array is the public description of an array of noise.
type Array struct {
	// Deviations are the standard deviations of the independent draws, in
	// lattice units: one for each coordinate, or one for all.
	Deviations []float64
	// C correlates the draws over time: the integer noise W solves CW = σZ, up to its
	// rounding. nil is the identity.
	C Matrix
	// Signal returns the integer that coordinate j hides if it is not simply hidden[j]; for example, the answer to a
	// question about a histogram. It is called when the coordinate is drawn.
	Signal func(j int, hidden []int64) int64
	// Squares, if not nil, says that the noise is not additive: the array draws the square of a sketch.
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

// Stream holds the records of each step, from its first slot on; nil is an invalid record.
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
	first, end uint64      // the step's slots
	release    *dp.Release // nil: the step releases nothing
	released   [sha256.Size]byte
}

// run feeds the stream to the mechanism, from the stream's first step on.
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

// difference says where two runs' outcomes differ; nil if they are equal in every bit.
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

// differing says how two releases differ.
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

// Restart makes later runs begin from the mechanism's present state.
func (s *Subject) Restart() { s.start = nil }

// NoneError names a mechanism or solver without an audit. Callers must not treat it as a pass.
type NoneError string

func (e NoneError) Error() string { return "there is no audit of " + string(e) }
