package clipgrad

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// fenced returns n numbers in separate memory that ends with the last of them or, if end is false, begins with the
// first. Access beyond it faults.
func fenced(t *testing.T, n int, end bool) []float64 {
	t.Helper()
	page := os.Getpagesize()
	size := (8*n + page - 1) / page * page
	memory, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(memory) })
	for _, fence := range [][]byte{memory[:page], memory[page+size:]} {
		if err := syscall.Mprotect(fence, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	first := page
	if end {
		first = page + size - 8*n
	}
	return unsafe.Slice((*float64)(unsafe.Pointer(&memory[first])), n)
}

// TestFences checks that a pass and the preparation of its rows touch no memory outside their slices, for all lengths.
// The test is needed because Go does not check the bounds of loops in assembly.
func TestFences(t *testing.T) {
	source := rand.New(rand.NewPCG(17, 1))
	fill := func(x []float64) {
		for i := range x {
			x[i] = source.NormFloat64()
		}
	}
	for _, end := range []bool{false, true} {
		for _, d := range []int{1, 2, 3, 8, 91} {
			for _, n := range []int{1, 7, 8, 12, 16, 17, 127, 128, 136, 1029} {
				x, y, norm := fenced(t, n*d, end), fenced(t, n, end), fenced(t, n, end)
				fill(x)
				fill(y)
				r := ByNorm(x, y, nil, d, 24)
				r.hire(min(2, n))
				s := newScratch(d)
				s.packed = fenced(t, words*d, end)
				for unit := range r.prepared {
					r.prepare(s, unit)
				}
				if n%group == 0 { // packed integers take half of the rows' memory, so let the memory end there
					first := (n - 1) &^ (UnitRows - 1)
					e := fenced(t, (first+(n-first)/2)*d, end)
					copy(e, r.e)
					r.e = e
				}
				copy(norm, r.norm)
				r.norm, r.iterate = norm, fenced(t, d, end)
				for _, w := range r.workers {
					w.lanes = unsafe.Slice((*int64)(unsafe.Pointer(&fenced(t, 4*d, end)[0])), 4*d)
				}
				r.Sum(make([]int64, d), make([]float64, d), 0.3, 0.4, 24)
			}
		}
	}
}
