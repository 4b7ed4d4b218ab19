package ladder

import (
	"math"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestIndex compares Index with its definition, at and around every rung.
func TestIndex(t *testing.T) {
	l := Ladder{Top: 3, Rungs: 20}
	for i := range l.Rungs + 1 {
		at := l.Rung(i)
		if l.Index(at) != i || l.Index(math.Nextafter(at, 0)) != i || l.Index(math.Nextafter(at, 9)) != i+1 {
			t.Errorf("rung %d, %g: %d, %d just below, %d just above", i, at, l.Index(at),
				l.Index(math.Nextafter(at, 0)), l.Index(math.Nextafter(at, 9)))
		}
	}
	if l.Index(0) != 0 || l.Index(-1) != 0 || l.Index(math.Inf(1)) != l.Rungs+1 {
		t.Error("Index is wrong for numbers outside the ladder")
	}
}

// TestSearch: without noise both searches find the first rung with enough records up to it.
func TestSearch(t *testing.T) {
	for _, rungs := range []int{1, 2, 7, 8, 100} {
		l := Ladder{Top: 1, Rungs: rungs}
		h := l.Histogram()
		for i := range rungs + 1 {
			h[i] = int64(i % 3)
		}
		c := Counting{Unit: 4, SD: 1}
		for threshold := 0.0; threshold < float64(rungs)+2; threshold += 0.7 {
			want := rungs
			for i := range rungs {
				if float64(h.UpTo(i)) >= threshold {
					want = i
					break
				}
			}
			row := dptest.Zero().Row("search", h)
			found := l.Locate(h, c, threshold, row)
			if got := l.Scan(h, c, threshold, row); got != want || found.Place != want ||
				l.Bisect(h, c, threshold, row) != want {
				t.Errorf("%d rungs, threshold %g: scan %d, bisect %d, want %d", rungs, threshold, got,
					found.Place, want)
			}
			if n := len(found.Answers); n > l.Searches() {
				t.Errorf("%d rungs: %d questions, want at most %d", rungs, n, l.Searches())
			}
		}
	}
	// A null record counts as half a record. If half of the records are asked for, null records alone are exactly at
	// the threshold.
	l, c := Ladder{Top: 1, Rungs: 4}, Counting{Unit: 4, Null: 2, SD: 1}
	h := l.Histogram()
	*h.Nulls() = 10
	if found := l.Locate(h, c, 5, dptest.Zero().Row("search", h)); found.Far != 0 {
		t.Errorf("null records alone are %g from the threshold", found.Far)
	}
}
