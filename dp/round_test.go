package dp

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/race"
)

// testRow opens a keyed row with fixed keys.
func testRow(seed byte, step uint64, length int) *keyedRow {
	row := new(keyedRow)
	row.open(&[32]byte{seed, 1}, step, length)
	row.ext = newAES(&[32]byte{seed, 2})
	return row
}

// digits returns Z's sign and the first 64·words bits of its p, as the interval [lo, lo + 2^−64·words).
func digits(row *keyedRow, j, words int) (negative bool, lo *big.Float, bits int) {
	u := row.Word(j)
	n := new(big.Int).SetUint64(u << 1 >> 1)
	ext := make([]uint64, words-1)
	row.extension(j, ext)
	for _, e := range ext {
		n.Add(n.Lsh(n, 64), new(big.Int).SetUint64(e))
	}
	p := newFloat(uint(64*words + 64)).SetInt(n)
	return u>>63 == 1, p.SetMantExp(p, -64*words), 64 * words
}

// wantRounded fails unless w = ⌊r(sd·Z − s) + ½⌋, computed from 512 digits of Z and 600-bit tails. It shares upperTail
// with the code under test, but none of its decisions.
func wantRounded(t *testing.T, w int64, row *keyedRow, j int, sd, s, r float64) {
	t.Helper()
	negative, p, _ := digits(row, j, 8)
	// Z ≥ b?
	atLeast := func(m int64) bool {
		b := new(big.Rat).SetInt64(m)
		b.Sub(b, big.NewRat(1, 2))
		b.Quo(b, new(big.Rat).SetFloat64(r))
		b.Add(b, new(big.Rat).SetFloat64(s))
		b.Quo(b, new(big.Rat).SetFloat64(sd))
		if abs := new(big.Rat).Abs(b); abs.Cmp(big.NewRat(14, 1)) < 0 {
			smaller := p.Cmp(upperTail(abs, 600)) < 0 // p < Q(|b|): |Z| > |b|
			if b.Sign() >= 0 {
				return !negative && smaller
			}
			return !negative || !smaller
		}
		return b.Sign() < 0
	}
	if !atLeast(w) || atLeast(w+1) {
		t.Errorf("coordinate %d: %d is not ⌊%g(%g·Z − %g) + ½⌋", j, w, r, sd, s)
	}
}

func TestRoundRowIsExact(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(3, 4))
	apart := 24 // coordinates are checked at random distances up to this
	if os.Getenv("STREAMDP_SLOW") != "" {
		apart = 12
	}
	for _, sd := range []float64{0.3, 1, 1 << 10, 1 << 24, 1.7 * (1 << 30), 1 << 36, 1 << 44} {
		for _, r := range []float64{1, 1.6180339} {
			t.Run(fmt.Sprintf("sd=%g,r=%g", sd, r), func(t *testing.T) {
				const n = 700 // more than two blocks
				row := testRow(7, 5, n)
				w := make([]int64, n)
				check := func(sds, s []float64) {
					t.Helper()
					RoundRow(w, row, sds, s, r)
					for j := 0; j < n; j += 1 + source.IntN(apart) {
						wantRounded(t, w[j], row, j, at(sds, j), at(s, j), r)
					}
				}
				check([]float64{sd}, nil)
				s, sds := make([]float64, n), make([]float64, n)
				for j := range s {
					s[j] = sd * source.NormFloat64()
					sds[j] = sd * (0.5 + source.Float64())
				}
				check([]float64{sd}, s)
				check(sds, s)
				// With these predictions every value is within its float64 error of a half, so only the exact decision
				// can be right.
				z := make([]float64, n)
				row.Fill(z)
				for j := range s {
					half := math.Floor(100*source.NormFloat64()) + 0.5
					s[j] = sd*z[j] - half/r
				}
				check([]float64{sd}, s)
				// Do the same with predictions that are too large for the fast attempt, alone in their block or not,
				// and with predictions around the largest that it can round.
				for _, every := range []int{4, 101} {
					for j := range s {
						far := 64 * sd * r
						if j%every == 0 {
							far = []float64{1 << 36, 1<<37 - 1, 1 << 37, 1<<37 + 1, 1 << 39, 1 << 44}[j/every%6]
						}
						half := math.Copysign(math.Floor(min(far, 1<<49))+0.5, z[j])
						s[j] = sd*z[j] - half/r
					}
					check([]float64{sd}, s)
				}
			})
		}
	}
}

// TestRoundRowLooksCloser uses deviations with which each draw is as close to a half as possible, on either side, so
// that 12 bits do not decide. The planted fault decides by these 12 bits, as RoundRow does if they are enough.
func TestRoundRowLooksCloser(t *testing.T) {
	t.Parallel()
	const n = 300 // more than a block
	row := testRow(4, 8, n)
	z, w := make([]float64, n), make([]int64, n)
	row.Fill(z)
	wrong, tried := 0, 0
	for j := 0; j < n; j += 7 {
		for k, off := range []float64{0, 1e-15, -1e-15, 1e-12, -1e-12, 1e-9, -1e-9} {
			half := math.Copysign(float64(uint64(1)<<(4*k)*(1+uint64(j)))+0.5, z[j])
			sd := half / z[j] * (1 + off)
			if sd >= 1<<35 { // too large for the fast look
				continue
			}
			RoundRow(w, row, []float64{sd}, nil, 1)
			wantRounded(t, w[j], row, j, sd, 0, 1)
			tried++
			if fault := int64(math.Floor(math.RoundToEven(sd*z[j]*(1<<12))/(1<<12) + 0.5)); fault != w[j] {
				wrong++
			}
		}
	}
	if wrong < tried/4 {
		t.Errorf("12 bits alone are wrong for only %d of %d draws", wrong, tried)
	}
}

// TestFirstLook compares rows with their coordinates one by one, as roundOne decides them. It uses deviations on both
// sides of the largest that look can round; no predictions, usual ones, and in some blocks predictions that are too
// large or NaN; and words in the tail. If newLook returns a look, only a few coordinates may be left to roundOne.
func TestFirstLook(t *testing.T) {
	t.Parallel()
	const n = 1 << 16
	row := testRow(5, 6, n)
	source := rand.New(rand.NewPCG(5, 6))
	w, s := make([]int64, n), make([]float64, n)
	for _, r := range []float64{1, 1.25} {
		for _, a := range []float64{1e-9, 0.7, 1 << 12, 1 << 24, 1.3 * (1 << 30), 1 << 32, 1.01 * (1 << 32), 1 << 33,
			1.01 * (1 << 33)} {
			sd := a / r
			for j := range s {
				s[j] = sd * source.NormFloat64()
				if j/blockWords%3 == 0 && j%97 == 0 {
					s[j] = math.Copysign([]float64{1 << 36, 1 << 37, 1 << 39, 1 << 45}[j%4]/r, s[j])
				}
			}
			for _, predictions := range [][]float64{nil, s} {
				RoundRow(w, row, []float64{sd}, predictions, r)
				tails := 0
				for j := 0; j < n; j++ {
					if isTail(row.Word(j)) {
						tails++
					} else if j%5 > 0 {
						continue
					}
					if want := roundOne(row.At(j), row, j, sd, at(predictions, j), r); w[j] != want {
						t.Fatalf("sd %g, r %g, predictions %v: coordinate %d is %d, want %d", sd, r,
							predictions != nil, j, w[j], want)
					}
				}
				if tails == 0 {
					t.Fatal("no word is in the tail")
				}
				look, ok := newLook([]float64{sd}, predictions, r)
				most := 1 << 33
				if predictions != nil {
					most = 1 << 32
				}
				if ok != (float64(r*sd) <= float64(most)) {
					t.Errorf("sd %g, r %g, predictions %v: first look %v", sd, r, predictions != nil, ok)
				}
				if !ok || a < 1 {
					continue
				}
				block := int(blockWords) // a block without large predictions
				row.words(1)
				few := 0
				if predictions == nil {
					few, _ = row.roundPlain(w[:block], &look)
				} else {
					few, _, ok = row.roundShaped(w[:block], predictions[block:2*block], &look)
				}
				if few > 4 || !ok {
					t.Errorf("sd %g, r %g, predictions %v: the first look leaves %d of %d, %v", sd, r,
						predictions != nil, few, block, ok)
				}
			}
		}
	}
}

// TestRoundRowInTheTail tests the code for the tail with rows that are long enough to contain tail words, and for the
// far tail with words that the test sets.
func TestRoundRowInTheTail(t *testing.T) {
	const n = 1 << 18
	row := testRow(1, 2, n)
	w := make([]int64, n)
	RoundRow(w, row, []float64{1 << 24}, nil, 1)
	tails := 0
	for j := range w {
		if isTail(row.Word(j)) {
			tails++
			wantRounded(t, w[j], row, j, 1<<24, 0, 1)
			if got := RoundAt(row, j, 1<<24); got != w[j] {
				t.Errorf("RoundAt(%d) = %d, RoundRow %d", j, got, w[j])
			}
		}
	}
	if tails < 2 {
		t.Fatalf("%d tail words in %d", tails, n)
	}
	// p < 2^−120: Z is near ±13, where float64 and 128 digits are not enough.
	for _, u := range []uint64{0, 1 << 63} {
		row := testRow(9, 1, 2)
		row.words(0)
		for i := range 8 {
			row.buffer[i] = 0
		}
		row.buffer[7] = byte(u >> 56)
		got := RoundAt(row, 0, 1<<20)
		wantRounded(t, got, row, 0, 1<<20, 0, 1)
		if z := math.Abs(float64(got) / (1 << 20)); z < 9 || z > maxZ {
			t.Errorf("a tail word gave %g", z)
		}
	}
}

func TestRowRandomAccess(t *testing.T) {
	const n = 1000
	row := testRow(2, 9, n)
	z := make([]float64, n)
	row.Fill(z)
	source := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		j := source.IntN(n)
		if got := row.At(j); got != z[j] {
			t.Fatalf("At(%d) = %v after Fill gave %v", j, got, z[j])
		}
	}
	// The block size depends on the row's length, but changes no word.
	for length := range 20 {
		short := testRow(2, 9, length)
		for _, j := range []int{0, 1, 2, 3, 4, 5, 511, 512, 999, 0, 11} {
			if got := short.At(j); got != z[j] {
				t.Errorf("coordinate %d differs in a row opened for %d", j, length)
			}
		}
	}
	if long := testRow(2, 9, 10); long.At(1<<33) == long.At(1<<33+1) {
		t.Error("coordinates beyond 2^32 repeat")
	}
}

func TestRowAbove(t *testing.T) {
	row := testRow(3, 1, 100)
	for j := range 100 {
		z := row.At(j)
		for _, d := range []float64{1e-3, 1e-12} {
			if row.Above(j, new(big.Rat).SetFloat64(z+d)) || !row.Above(j, new(big.Rat).SetFloat64(z-d)) {
				t.Errorf("Above(%d) disagrees with At = %v", j, z)
			}
		}
		if row.Above(j, new(big.Rat)) != (z > 0) {
			t.Errorf("Above(%d, 0) with Z = %v", j, z)
		}
		if row.Above(j, big.NewRat(14, 1)) || !row.Above(j, big.NewRat(-14, 1)) {
			t.Errorf("coordinate %d is beyond the cut", j)
		}
	}
}

func TestRoundRowPanicsOnOverflow(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("RoundRow does not panic at 2^60 lattice units")
		}
	}()
	RoundRow(make([]int64, 10), testRow(1, 1, 10), []float64{1 << 60}, nil, 1)
}

// TestNoiseIsBoundToIntegers checks that the same integers get the same noise. If one integer changes, now or earlier,
// every word from there on must change.
func TestNoiseIsBoundToIntegers(t *testing.T) {
	master, secret := [32]byte{1}, [32]byte{2}
	run := func(edit func(step uint64, records *uint64, first, second []int64)) (words [][]uint64) {
		e, err := NewEpoch(&master, &secret, "s", 1, [16]byte{3}, [32]byte{4})
		if err != nil {
			t.Fatal(err)
		}
		h := NewTranscript([32]byte{5})
		for step := uint64(1); step <= 3; step++ {
			records, first, second := uint64(10), []int64{1, 2, 3}, []int64{4, 5}
			if edit != nil {
				edit(step, &records, first, second)
			}
			h.AbsorbRecords(records)
			n := e.Step(step, &h)
			for _, a := range []struct {
				name string
				ints []int64
			}{{"jme/first", first}, {"jme/second", second}} {
				row := n.Row(a.name, a.ints)
				w := make([]uint64, 4)
				for j := range w {
					w[j] = row.Word(j)
				}
				words = append(words, w)
			}
		}
		return words
	}
	base := run(nil)
	same := func(other [][]uint64, equal int) {
		t.Helper()
		for i := range base {
			for j := range base[i] {
				if (base[i][j] == other[i][j]) != (i < equal) {
					t.Errorf("row %d word %d: equal = %v", i, j, base[i][j] == other[i][j])
				}
			}
		}
	}
	same(run(nil), 6)
	same(run(func(s uint64, m *uint64, a, b []int64) {
		if s == 2 {
			a[2]++
		}
	}), 2)
	same(run(func(s uint64, m *uint64, a, b []int64) {
		if s == 2 {
			b[0]--
		}
	}), 3)
	same(run(func(s uint64, m *uint64, a, b []int64) {
		if s == 1 {
			*m++
		}
	}), 0)
	seen := map[uint64]bool{}
	for _, r := range base {
		for _, w := range r {
			if seen[w] {
				t.Error("a word repeats")
			}
			seen[w] = true
		}
	}
}

func TestArrayOpensOnceAStep(t *testing.T) {
	e, err := NewEpoch(&[32]byte{1}, nil, "s", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	var h Transcript
	n := e.Step(1, &h)
	n.Row("a", nil)
	defer func() {
		if recover() == nil {
			t.Error("opening the array a second time does not panic")
		}
	}()
	n.Row("a", nil)
}

// TestRowAllocations checks that a row allocates once, for its AES key. A longer row may also allocate for its counter
// mode.
func TestRowAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector's build allocates what others have on the stack")
	}
	e, err := NewEpoch(&[32]byte{1}, nil, "s", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	var h Transcript
	hidden, w, sd, step := make([]int64, 10), make([]int64, 10), []float64{1 << 24}, uint64(0)
	if n := testing.AllocsPerRun(200, func() {
		step++
		h.AbsorbRecords(1)
		RoundRow(w, e.Step(step, &h).Row("a", hidden), sd, nil, 1)
	}); n > 1 {
		t.Errorf("%v allocations a row, want 1", n)
	}
}
