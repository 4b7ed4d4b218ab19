package slab

import "testing"

// A slice has the requested capacity, and keeps its content when it grows.
func TestPool(t *testing.T) {
	var p Pool[int]
	for _, n := range []int{0, 1, 2, 3, 31, 32, 33, 1000} {
		s := p.Get(n)
		if len(s) != 0 || cap(s) < n || cap(s)&(cap(s)-1) != 0 {
			t.Fatalf("asked for %d: %d of %d", n, len(s), cap(s))
		}
		for i := range n {
			s = append(s, i)
		}
		if s = p.Grow(s, n+1); len(s) != n || cap(s) < 2*n+1 {
			t.Fatalf("grown by %d: %d of %d", n+1, len(s), cap(s))
		}
		for i := range s {
			if s[i] != i {
				t.Fatalf("place %d has %d", i, s[i])
			}
		}
		p.Put(s)
	}
	p.Put(nil)
	p.Put(make([]int, 3)) // was not lent by the pool
	if s := p.Get(3); cap(s) != 4 {
		t.Errorf("room for %d", cap(s))
	}
}
