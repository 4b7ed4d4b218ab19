package core

import (
	"encoding"
	"errors"

	"github.com/streamdp/streamdp/internal/bin"
)

// movable is a part that can be encoded and sent to another process.
type movable interface {
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
	// Reset empties the part.
	Reset()
}

var errNotMovable = errors.New("the mechanism's sums cannot be sent to another process")

// AppendBinary appends the exact sum to b: the partition's index in the manifest, the step, the offsets, the number of
// records, and the integers or rows of the estimator's part. Another process with the same manifest parses it by
// [Sum.UnmarshalBinary].
//
// Privacy: the sum is as private as the records.
// Errors: the sum has entries of persons, whose map only one process may hold.
func (s *Sum) AppendBinary(b []byte) ([]byte, error) {
	part, ok := s.part.(movable)
	if !ok || s.persons {
		return nil, errNotMovable
	}
	w := bin.Writer{B: b}
	w.Uint(uint64(s.index))
	w.Uint(s.step)
	w.Int(s.offsets.first)
	w.Int(s.offsets.end)
	w.Uint(s.records)
	return part.AppendBinary(w.B)
}

// UnmarshalBinary sets the sum to one written by [Sum.AppendBinary]. [Leaf.Take] checks that it belongs to the step.
//
// Errors: data that is not a sum for an estimator with this plan. Then the sum is empty.
func (s *Sum) UnmarshalBinary(data []byte) error {
	part, ok := s.part.(movable)
	if !ok || s.persons {
		return errNotMovable
	}
	r := bin.Reader{B: data}
	index, step, first, end, records := r.Index(1<<31-1), r.Uint(), r.Int(), r.Int(), r.Uint()
	if r.Bad || step == 0 || first < 0 || end < first || records > uint64(end-first) {
		part.Reset()
		return errors.New("the sum of a step is damaged")
	}
	if err := part.UnmarshalBinary(r.B); err != nil {
		return err
	}
	s.index, s.step, s.offsets, s.records = index, step, span{first, end}, records
	return nil
}

// Reset empties the sum, so that it can hold the sum of another step.
func (s *Sum) Reset() error {
	part, ok := s.part.(movable)
	if !ok {
		return errNotMovable
	}
	part.Reset()
	return nil
}

// Take closes the open step with a sum made elsewhere. If steps are by the clock, call [Leaf.Until] first.
//
// Errors: a sum of another partition, step or offsets. Then the step stays open.
func (l *Leaf) Take(s *Sum) error {
	if l.persons != nil || s.index != l.index || s.step != l.step || s.offsets != l.open {
		return errors.New("the sum belongs to another step or partition")
	}
	l.step++
	l.bound()
	return nil
}

// Abandon drops the records of the open step and begins the step again. It returns the sum that held the records, or
// nil if there is none.
func (l *Leaf) Abandon() *Sum {
	s := l.sum
	l.sum = nil
	return s
}

// LeavesFrom returns a leaf for each partition, at the first step after the given one. next holds the first offset of
// that step in each partition. A process that sums some partitions and makes no release uses it. So the Core needs
// neither keys nor the mechanism's state.
//
// Errors: offsets at which that step cannot begin.
func (c *Core) LeavesFrom(step uint64, next []int64) ([]*Leaf, error) {
	bases := basesOf(c.encoder.m)
	sound := len(next) == len(bases) && step < 1<<62 && c.persons == nil
	for i, base := range bases {
		sound = sound && next[i] >= base && (step > 0 || next[i] == base)
	}
	if !sound {
		return nil, errors.New("offsets and step of a leaf disagree")
	}
	leaves := c.leaves(step, next)
	for i, l := range leaves {
		if l.open.first != next[i] {
			return nil, errors.New("offsets and step of a leaf disagree")
		}
	}
	return leaves, nil
}
