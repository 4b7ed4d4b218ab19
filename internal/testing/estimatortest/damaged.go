package estimatortest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

// header is what every state begins with: a version, and the fingerprint of the
// configuration.
const header = 1 + 8

// extremes are values that a damaged field of eight bytes may have, as integer or
// as number.
var extremes = []uint64{
	0, 1, 2, 1 << 31, 1 << 53, 1 << 56, 1 << 62, math.MaxInt64, 1 << 63, math.MaxUint64,
	math.Float64bits(1), math.Float64bits(-1), math.Float64bits(0.05), math.Float64bits(1e-300),
	math.Float64bits(1e150), math.Float64bits(-1e150),
	math.Float64bits(math.MaxFloat64), math.Float64bits(math.Inf(1)), math.Float64bits(math.NaN()),
}

// Damaged gives an estimator a state that was taken after so many steps, damaged in
// every way: cut anywhere, longer, with a bit of every byte flipped, with an extreme
// value in every field. Each is refused, or is the state of an estimator that goes on.
func (c *Contract[E]) Damaged(t testing.TB, state []byte) {
	t.Helper()
	// A state that was refused leaves nothing behind that a later one does not replace.
	e := c.New(t)
	for n := range state {
		if err := e.UnmarshalBinary(state[:n]); err == nil {
			t.Errorf("a state cut to %d of %d bytes is taken", n, len(state))
		}
	}
	if err := e.UnmarshalBinary(append(slices.Clone(state), 0)); err == nil {
		t.Error("a longer state is taken")
	}
	damaged := slices.Clone(state)
	try := func(what string, at, n int) {
		t.Helper()
		taken := c.goesOn(t, e, fmt.Sprintf("%s at byte %d of %d", what, at, len(state)), damaged)
		if taken && at < header && !bytes.Equal(damaged, state) {
			t.Errorf("a state with another byte %d is taken", at)
		}
		copy(damaged[at:at+n], state[at:])
	}
	for i := range state {
		damaged[i] ^= 1 << (i % 8)
		try("a flipped bit", i, 1)
	}
	for at := header; at+8 <= len(state); at += 8 {
		for _, v := range extremes {
			binary.LittleEndian.PutUint64(damaged[at:], v)
			try(fmt.Sprintf("%#x", v), at, 8)
		}
	}
}

// goesOn gives e the state, and where that is taken sees it written again as it was,
// and the next steps closed, or refused in order.
func (c *Contract[E]) goesOn(t testing.TB, e E, what string, state []byte) (taken bool) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Fatalf("%s: a panic: %v\nstate %x", what, r, state)
		}
	}()
	if e.UnmarshalBinary(state) != nil {
		return false
	}
	if b := State(t, e); !bytes.Equal(b, state) {
		t.Fatalf("%s: %x is taken and written as %x", what, state, b)
	}
	last := binary.LittleEndian.Uint64(state[header:]) // every state has its step there
	noise := c.Noise(t)
	for step := last + 1; step <= last+3 && c.next(t, e, what, step, noise(step)); step++ {
	}
	return true
}

// next closes a step of few records, and reports whether it did.
func (c *Contract[E]) next(t testing.TB, e E, what string, step uint64, n dp.Noise) bool {
	t.Helper()
	first, end := e.Range(step)
	if end <= first {
		t.Fatalf("%s: step %d has slots %d to %d", what, step, first, end)
	}
	const few = 100
	row := make([]float64, e.Columns())
	for i := range row {
		row[i] = 0.5 - float64(i)
	}
	for slot := first; slot < end && slot-first < few; slot++ {
		e.Add(slot, row)
	}
	r, err := e.Close(n)
	if err != nil {
		if r != nil {
			t.Fatalf("%s: Close returns %v, %v", what, r, err)
		}
		return false
	}
	if r != nil && !finite(r) {
		t.Fatalf("%s: a release is not finite: %v", what, r)
	}
	return true
}

func finite(r *dp.Release) bool {
	for _, v := range r.Values {
		for _, x := range slices.Concat(v.Data, v.SE) {
			if x-x != 0 {
				return false
			}
		}
	}
	return true
}

// Fuzz gives arbitrary bytes to the estimators of several contracts, beginning with
// some states of each. Bytes 1 … 8 are made those of the configuration, which no fuzzer
// guesses.
func Fuzz[E Estimator](f *testing.F, contracts []Contract[E], states func(c *Contract[E]) [][]byte) {
	all, fingerprints := make([]E, len(contracts)), make([][]byte, len(contracts))
	for i := range contracts {
		c := &contracts[i]
		all[i] = c.New(f)
		fingerprints[i] = State(f, all[i])[1:header]
		for _, state := range states(c) {
			f.Add(uint8(i), state)
		}
	}
	f.Add(uint8(0), []byte{})
	f.Fuzz(func(t *testing.T, at uint8, data []byte) {
		i := int(at) % len(contracts)
		if len(data) >= header {
			data = slices.Clone(data)
			copy(data[1:header], fingerprints[i])
		}
		contracts[i].goesOn(t, all[i], "", data)
	})
}
