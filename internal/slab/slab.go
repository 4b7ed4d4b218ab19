// Package slab lends and reuses slices, for memory that is filled and dropped many times a second.
package slab

import (
	"math/bits"
	"sync"
)

// Pool lends slices whose capacities are powers of two, and reuses those that were returned. The zero value is ready to
// use. It is safe for concurrent use.
type Pool[T any] struct{ classes [40]sync.Pool }

// idle is a slice in the pool.
type idle[T any] struct{ s []T }

// Get returns an empty slice with capacity for n elements.
func (p *Pool[T]) Get(n int) []T {
	class := bits.Len(uint(max(n, 1) - 1))
	if x, ok := p.classes[class].Get().(*idle[T]); ok {
		return x.s[:0]
	}
	return make([]T, 0, 1<<class)
}

// Put takes back a slice from Get. It drops slices that are too large to be needed often.
func (p *Pool[T]) Put(s []T) {
	n := cap(s)
	if n == 0 || n&(n-1) != 0 || n > 1<<24 {
		return
	}
	p.classes[bits.Len(uint(n-1))].Put(&idle[T]{s[:0]})
}

// Grow returns s with capacity for n more elements. The old memory of s is returned to the pool.
func (p *Pool[T]) Grow(s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	t := append(p.Get(max(2*cap(s), len(s)+n)), s...)
	p.Put(s)
	return t
}
