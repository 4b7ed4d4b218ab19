// Package estimatortest tests that an estimator keeps the contract that the daemon relies on. For tests only.
//
//   - [Contract.Restart]: a run may be interrupted anywhere, between two steps or within one. When it resumes from the
//     last state, it has the states and releases of an uninterrupted run. The slots of the steps follow one another
//     without a gap, and the cost of a record never changes.
//   - [Foreign]: an estimator refuses the state of another configuration.
//   - [Contract.Damaged], [Fuzz]: an estimator either refuses a damaged state, or accepts it as a state that could have
//     been written and continues without a panic.
//   - [Plans]: a plan with any value changed is refused.
//   - [Allocates]: adding a record allocates nothing.
package estimatortest

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/streamdp/streamdp/dp"
)

// Estimator has the methods that the estimators of all packages share.
type Estimator interface {
	Columns() int
	Range(t uint64) (first, end uint64)
	Add(slot uint64, row []float64)
	Close(n dp.Noise) (*dp.Release, error)
	Cost() dp.Cost
	AppendBinary(b []byte) ([]byte, error)
	UnmarshalBinary(data []byte) error
}

// Contract describes an estimator and a log of records for its tests.
type Contract[E Estimator] struct {
	// New returns an estimator before its first step. Each call encodes and decodes the epoch's plan, as a restart
	// does.
	New func(t testing.TB) E
	// Steps is the number of steps that Restart closes.
	Steps uint64
	// Rows returns the records of step t for the slots first … end−1, in order; it may return fewer than there are
	// slots. A nil row is an invalid record. Every call with the same arguments returns the same rows.
	Rows func(t, first, end uint64) [][]float64
	// Noise returns a function that gives the noise of one run. It is called for step 1, 2, … in turn. Every run has
	// the same noise.
	Noise func(t testing.TB) func(step uint64) dp.Noise
	// Size returns the upper bound that an estimator announces for the size of its state. If Size is nil, the estimator
	// announces none.
	Size func(e E) int64
	// After is called after each step of the uninterrupted run, with the new state and the release, which is nil after
	// a step without a release. A nil After does nothing.
	After func(e E, state []byte, r *dp.Release)
}

// Adopted returns a function for the field New of a Contract. Each call passes an encoded and decoded copy of the plan
// to adopt.
func Adopted[P any, E Estimator](t testing.TB, plan P, adopt func(P) (E, error)) func(testing.TB) E {
	t.Helper()
	b, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	return func(t testing.TB) E {
		t.Helper()
		var kept P
		if err := json.Unmarshal(b, &kept); err != nil {
			t.Fatal(err)
		}
		e, err := adopt(kept)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

// State returns the state of an estimator.
func State(t testing.TB, e Estimator) []byte {
	t.Helper()
	b, err := e.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// step adds the records of a step to an estimator and closes the step.
func (c *Contract[E]) step(t testing.TB, e E, step uint64, n dp.Noise) *dp.Release {
	t.Helper()
	c.add(e, step, len(c.rows(e, step)))
	r, err := e.Close(n)
	if err != nil {
		t.Fatalf("step %d: %v", step, err)
	}
	return r
}

func (c *Contract[E]) rows(e E, step uint64) [][]float64 {
	first, end := e.Range(step)
	return c.Rows(step, first, end)
}

// add adds the first n records of the open step.
func (c *Contract[E]) add(e E, step uint64, n int) {
	first, _ := e.Range(step)
	for i, row := range c.rows(e, step)[:n] {
		e.Add(first+uint64(i), row)
	}
}

// Run closes the steps of a new estimator, and returns the encoded state and release after each. If between is not nil,
// Run calls it after each step and continues with the estimator that it returns.
func (c *Contract[E]) Run(t testing.TB, between func(step uint64, e E) E) (states, releases [][]byte) {
	t.Helper()
	e, noise := c.New(t), c.Noise(t)
	for step := uint64(1); step <= c.Steps; step++ {
		r := c.step(t, e, step, noise(step))
		states, releases = append(states, State(t, e)), append(releases, text(t, r))
		if between != nil {
			e = between(step, e)
		}
	}
	return states, releases
}

func text(t testing.TB, r *dp.Release) []byte {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Restart runs the steps twice. The straight run is never interrupted. The other one is interrupted within each step,
// after a random number of its records: a new estimator takes over the last state and gets the step's records from the
// first one. Both must have the same states and releases. Restart returns the straight run's estimator, and the state
// after each step.
func (c *Contract[E]) Restart(t testing.TB) (straight E, states [][]byte) {
	t.Helper()
	source := rand.New(rand.NewPCG(20, 26))
	straight = c.New(t)
	again := c.New(t)
	noise, same := c.Noise(t), c.Noise(t)
	cost, slots := straight.Cost(), uint64(0)
	for step := uint64(1); step <= c.Steps; step++ {
		first, end := straight.Range(step)
		if f, l := again.Range(step); first != slots || end <= first || f != first || l != end {
			t.Fatalf("step %d has slots %d to %d, and %d to %d after restarts; %d were closed", step, first, end,
				f, l, slots)
		}
		slots = end

		before := State(t, again)
		c.add(again, step, source.IntN(len(c.rows(again, step))+1))
		if !bytes.Equal(State(t, again), before) {
			t.Fatalf("step %d: the state depends on records of the open step", step)
		}
		again = c.New(t)
		open := uint64(1)
		if step%5 == 0 { // sometimes the new estimator has closed a step already
			c.step(t, again, open, c.Noise(t)(open))
			open++
		}
		c.add(again, open, len(c.rows(again, open))) // UnmarshalBinary must drop these
		if err := again.UnmarshalBinary(before); err != nil {
			t.Fatalf("before step %d: %v", step, err)
		}
		if !bytes.Equal(State(t, again), before) {
			t.Fatalf("before step %d: a restored state differs when it is written again", step)
		}

		r := c.step(t, straight, step, noise(step))
		if !bytes.Equal(text(t, r), text(t, c.step(t, again, step, same(step)))) {
			t.Fatalf("step %d: the release differs after restarts", step)
		}
		state := State(t, straight)
		if !bytes.Equal(state, State(t, again)) {
			t.Fatalf("step %d: the state differs after restarts", step)
		}
		if c.Size != nil && int64(len(state)) > c.Size(straight) {
			t.Fatalf("step %d: the state has %d bytes, more than the announced %d", step, len(state), c.Size(straight))
		}
		if !reflect.DeepEqual(straight.Cost(), cost) || !reflect.DeepEqual(again.Cost(), cost) {
			t.Fatalf("step %d: the cost of a record has changed", step)
		}
		if c.After != nil {
			c.After(straight, state, r)
		}
		states = append(states, state)
	}
	return straight, states
}

// Foreign restores a state into estimators of other configurations. Each must refuse it.
func Foreign[E Estimator](t testing.TB, state []byte, others map[string]E) {
	t.Helper()
	for name, e := range others {
		if err := e.UnmarshalBinary(state); err == nil {
			t.Errorf("an estimator that differs in %s accepted the state", name)
		}
	}
}

// Allocates fails if adding the rows to the open step, one after the other, allocates. slot is the first slot of the
// step.
func Allocates(t testing.TB, e Estimator, slot uint64, rows ...[]float64) {
	t.Helper()
	// Add all rows in one run, because AllocsPerRun rounds a fraction of an allocation down.
	if n := testing.AllocsPerRun(200, func() {
		for _, row := range rows {
			e.Add(slot, row)
			slot++
		}
	}); n > 0 {
		t.Errorf("%d records allocate %g times", len(rows), n)
	}
}
