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

// header is the size of every state's header: a version, and the fingerprint of the configuration.
const header = 1 + 8

// extremes are values that Damaged writes into every field of eight bytes: extreme integers and extreme numbers.
var extremes = []uint64{
	0, 1, 2, 1 << 31, 1 << 53, 1 << 56, 1 << 62, math.MaxInt64, 1 << 63, math.MaxUint64,
	math.Float64bits(1), math.Float64bits(-1), math.Float64bits(0.05), math.Float64bits(1e-300),
	math.Float64bits(1e150), math.Float64bits(-1e150),
	math.Float64bits(math.MaxFloat64), math.Float64bits(math.Inf(1)), math.Float64bits(math.NaN()),
}

// Damaged restores damaged copies of a state: cut at every length, one byte longer, with a flipped bit in every byte,
// and with an extreme value in every field. The estimator must either refuse a copy, or accept it, write it again
// unchanged, and close further steps without a panic.
func (c *Contract[E]) Damaged(t testing.TB, state []byte) {
	t.Helper()
	// One estimator gets all copies, because a refused state must leave nothing behind that the next state does not
	// replace.
	e := c.New(t)
	for n := range state {
		if err := e.UnmarshalBinary(state[:n]); err == nil {
			t.Errorf("a state cut to %d of %d bytes was accepted", n, len(state))
		}
	}
	if err := e.UnmarshalBinary(append(slices.Clone(state), 0)); err == nil {
		t.Error("a state with an extra byte was accepted")
	}
	damaged := slices.Clone(state)
	try := func(what string, at, n int) {
		t.Helper()
		taken := c.restore(t, e, fmt.Sprintf("%s at byte %d of %d", what, at, len(state)), damaged)
		if taken && at < header && !bytes.Equal(damaged, state) {
			t.Errorf("a state with a changed byte %d was accepted", at)
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

// restore restores state into e. If e accepts it, e must write the same state again, and each of the next steps must
// either close or return an error. restore reports whether e accepted the state.
func (c *Contract[E]) restore(t testing.TB, e E, what string, state []byte) (taken bool) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Fatalf("%s: panic: %v\nstate %x", what, r, state)
		}
	}()
	if e.UnmarshalBinary(state) != nil {
		return false
	}
	if b := State(t, e); !bytes.Equal(b, state) {
		t.Fatalf("%s: state %x was accepted and written again as %x", what, state, b)
	}
	last := binary.LittleEndian.Uint64(state[header:]) // the header is followed by the number of closed steps
	noise := c.Noise(t)
	for step := last + 1; step <= last+3 && c.next(t, e, what, step, noise(step)); step++ {
	}
	return true
}

// next gives a step its first 100 records and closes it. It reports whether Close succeeded.
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

// Fuzz restores arbitrary bytes into the estimators of several contracts. The corpus begins with some states of each.
// Bytes 1 … 8 are replaced by the fingerprint of the configuration, which a fuzzer would not guess.
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
		contracts[i].restore(t, all[i], "", data)
	})
}
