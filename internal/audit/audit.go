// Package audit looks for privacy faults of a mechanism from outside: rows in,
// releases out, noise that is known or chosen. It takes nothing from the code
// under audit but what is public about it, and has arithmetic of its own for
// the matrices that shape noise.
//
//	A0  sensitivity  the noise that makes two neighbouring streams release the
//	                 same is at most μ away (Sensitivity, Coupling)
//	A1  noise        the releases hold the noise that was drawn, and it is white
//	                 (Noise)
//	A2  shift        releases under fresh keys tell neighbours apart no better
//	                 than a Gaussian mechanism of μ (Shift)
//	A3  sketches     released rows tell neighbours apart no better than claimed
//	                 (Sketch)
//
// A0 and A1 together are the guarantee of a mechanism with additive noise: the
// signal is at most μ where the noise is white of variance 1, and it is. They
// have no level or next to none, and see faults of any size. A2 and A3 trust
// nothing, and see less. What each can find, with proofs, is in
// docs/theory/audit.md.
//
// Audits draw noise that protects nothing, so this package hands out no noise:
// what it makes stays in the runs that it makes.
package audit

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"streamdp/dp"
)

// Mechanism is what is audited. The methods are those of the daemon's
// estimators.
type Mechanism interface {
	Columns() int
	Range(t uint64) (first, end uint64)
	Add(slot uint64, row []float64)
	Close(n dp.Noise) (*dp.Release, error)
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// Subject is a mechanism with what is public about its noise.
type Subject struct {
	Mechanism
	// Mu is what all releases together are said to cost one record.
	Mu float64
	// Array describes an array of noise that the mechanism opens in step t, as
	// it is opened: what it says may follow from earlier releases. false: there
	// should be no such array.
	Array func(name string, t uint64) (Array, bool)
	// Recover returns the noisy integer rows that releases 1, 2, … were made
	// from, by array, as numbers near integers; nil where the releases do not
	// determine them. A row is nil for a step in which the array is not opened.
	Recover func(releases []*dp.Release) (map[string][][]float64, error)

	start    []byte // the state before the first step
	sketches spectrum
}

// Array is what is public about an array of noise.
type Array struct {
	// Deviations are the standard deviations of the independent draws, in
	// lattice units: one for each coordinate, or one for all.
	Deviations []float64
	// C shapes the draws over time: the integer noise W solves CW = σZ, up to
	// its rounding. nil is the identity.
	C Matrix
	// Signal returns the integer that coordinate j hides, where it is another
	// than hidden[j]: the answer to a question about a histogram, say. It is
	// asked when the coordinate is drawn.
	Signal func(j int, hidden []int64) int64
	// Squares, if not nil, says that the array is no additive noise: the square of a
	// sketch is drawn from it.
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

// Stream holds the records of each step, in its first slots; nil is an invalid
// one.
type Stream [][][]float64

// Replace returns the neighbour of s whose record i of step t (from 0) is x.
func (s Stream) Replace(t, i int, x []float64) Stream {
	n := slices.Clone(s)
	n[t] = slices.Clone(n[t])
	n[t][i] = x
	return n
}

// Source gives the noise of each step of a run.
type Source = func(t uint64) dp.Noise

// run feeds the stream to the mechanism from its first step on and returns the
// releases, nil for steps that have none.
func (s *Subject) run(x Stream, noise Source) ([]*dp.Release, error) {
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
	releases := make([]*dp.Release, len(x))
	for i, records := range x {
		t := uint64(i) + 1
		first, _ := s.Range(t)
		for k, row := range records {
			s.Add(first+uint64(k), row)
		}
		r, err := s.Close(noise(t))
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", t, err)
		}
		releases[i] = clone(r)
	}
	return releases, nil
}

// clone copies a release: it may share memory with the mechanism.
func clone(r *dp.Release) *dp.Release {
	if r == nil {
		return nil
	}
	c := *r
	c.Values = slices.Clone(r.Values)
	for i, v := range c.Values {
		c.Values[i].Shape, c.Values[i].Data, c.Values[i].SE = slices.Clone(v.Shape), slices.Clone(v.Data), slices.Clone(v.SE)
	}
	return &c
}

// rows runs the stream and returns what its releases were made from.
func (s *Subject) rows(x Stream, noise Source) (map[string][][]float64, error) {
	if s.Recover == nil {
		return nil, errors.New("the releases do not determine the noisy rows")
	}
	releases, err := s.run(x, noise)
	if err != nil {
		return nil, err
	}
	return s.Recover(releases)
}

// difference says where two sequences of releases differ, nil where they are
// equal to the last bit.
func difference(x, y []*dp.Release) error {
	for t := range x {
		a, b := x[t], y[t]
		if reflect.DeepEqual(a, b) {
			continue
		}
		if a == nil || b == nil || len(a.Values) != len(b.Values) {
			return fmt.Errorf("step %d: the releases are of different form", t+1)
		}
		for i := range a.Values {
			if !reflect.DeepEqual(a.Values[i], b.Values[i]) {
				return fmt.Errorf("step %d: value %s differs", t+1, a.Values[i].Name)
			}
		}
		return fmt.Errorf("step %d: the releases differ", t+1)
	}
	return nil
}

// Restart makes the mechanism's present state the one from which runs begin.
func (s *Subject) Restart() { s.start = nil }

// NoneError names what there is no audit of, which is no pass.
type NoneError string

func (e NoneError) Error() string { return "there is no audit of " + string(e) }
