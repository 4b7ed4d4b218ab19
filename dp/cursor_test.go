package dp

import (
	"slices"
	"sync"
	"testing"
)

// TestCursor draws rows in pieces, in any order and by several goroutines. The result must equal that of drawing each
// row at once, including tails and exact decisions.
func TestCursor(t *testing.T) {
	t.Parallel()
	for _, length := range []int{1, 255, 256, 1000, 300_000} {
		e := benchEpoch(t)
		h := NewTranscript([32]byte{1})
		hidden := make([]int64, length)
		row := e.Step(1, &h).Row("a", hidden)
		// With lattice units 2⁻²⁰ as large as usual, a tenth of the draws are decided by roundOne. With predictions s,
		// all of them are.
		for _, sd := range []float64{16, 1 << 24, 1 << 40} {
			s := make([]float64, length)
			for j := range s {
				s[j] = float64(j%7) * sd / 3
			}
			for _, s := range [][]float64{nil, s} {
				want, got := make([]int64, length), make([]int64, length)
				RoundRow(want, row, []float64{sd}, s, 1)
				var one, two Cursor
				shared := one.Open(row)
				two.Open(row)
				if shared != (length >= CursorStep-1) {
					t.Fatalf("length %d: shared is %t", length, shared)
				}
				draw := func(c *Cursor, from, to int) {
					var part []float64
					if s != nil {
						part = s[from:to]
					}
					c.Round(got[from:to], from, []float64{sd}, part, 1)
				}
				const piece = 3 * CursorStep
				if !shared {
					draw(&one, 0, length)
				} else {
					var wg sync.WaitGroup
					for k, c := range []*Cursor{&one, &two} {
						wg.Go(func() { // one goroutine draws the even pieces, the other the odd pieces in reverse order
							for from := (length - 1) / piece * piece; from >= 0; from -= piece {
								if from/piece%2 == k {
									draw(c, from, min(from+piece, length))
								}
							}
						})
					}
					wg.Wait()
				}
				if !slices.Equal(got, want) {
					t.Errorf("length %d, sd %g: pieces differ from the row", length, sd)
				}
			}
		}
	}
}

// TestCursorExtensions draws a block of tail words only, at the far end of a row, where all digits of Z come from
// extension words. A cursor must read the extension words of the coordinates in the row, not in its piece. Reading
// those of the piece is the planted fault.
func TestCursorExtensions(t *testing.T) {
	t.Parallel()
	const block, length = 5, 6 * blockWords
	e := benchEpoch(t)
	h := NewTranscript([32]byte{1})
	row := e.Step(1, &h).Row("a", make([]int64, length)).(*keyedRow)
	var c Cursor
	if !c.Open(row) {
		t.Fatal("the row is not shared")
	}
	tails := func(r *keyedRow) { // makes all words of the block zero except for their last digits
		clear(r.buffer[:])
		for i := range blockWords {
			r.buffer[8*i], r.buffer[8*i+7] = byte(i%4), byte(i<<7)
		}
		r.held = block
	}
	tails(row)
	tails(&c.keyed)
	fault := c.keyed
	fault.base, fault.held = 0, 0
	sd := []float64{1 << 40}
	got, wrong := make([]int64, blockWords), make([]int64, blockWords)
	c.Round(got, block*blockWords, sd, nil, 1)
	RoundRow(wrong, &fault, sd, nil, 1)
	found := 0
	for i, w := range got {
		if want := RoundAt(row, block*blockWords+i, sd[0]); w != want {
			t.Fatalf("coordinate %d is %d in a piece and %d in its row", block*blockWords+i, w, want)
		}
		if w != wrong[i] {
			found++
		}
	}
	if found < blockWords*9/10 {
		t.Errorf("the extension words of the piece change only %d of %d draws", found, blockWords)
	}
}

// TestCursorOfOtherRows draws from a row that is not a keyedRow.
func TestCursorOfOtherRows(t *testing.T) {
	t.Parallel()
	e := benchEpoch(t)
	h := NewTranscript([32]byte{1})
	row := shifted{e.Step(1, &h).Row("a", make([]int64, 1000)), 0}
	want, got := make([]int64, 1000), make([]int64, 1000)
	RoundRow(want, row, []float64{1 << 24}, nil, 1)
	var c Cursor
	if c.Open(row) {
		t.Error("a row that is not a keyedRow is shared")
	}
	c.Round(got[:512], 0, []float64{1 << 24}, nil, 1)
	c.Round(got[512:], 512, []float64{1 << 24}, nil, 1)
	if !slices.Equal(got, want) {
		t.Error("pieces differ from the row")
	}
}

// TestCursorAllocations: continuing a row allocates nothing.
func TestCursorAllocations(t *testing.T) {
	e := benchEpoch(t)
	h := NewTranscript([32]byte{1})
	row := e.Step(1, &h).Row("a", make([]int64, 1<<22))
	var c Cursor
	c.Open(row)
	w, from := make([]int64, 1<<16), 0
	c.Round(w, from, []float64{1 << 10}, nil, 1)
	if n := testing.AllocsPerRun(30, func() {
		from += len(w)
		c.Round(w, from, []float64{1 << 10}, nil, 1)
	}); n > 0 {
		t.Errorf("%g allocations a piece of %d, with two tails each", n, len(w))
	}
}
