// Package estimatortest holds every estimator to the contract that a daemon rests on.
// Tests only.
//
//   - [Contract.Restart]: a run that ends anywhere, between two steps or within one,
//     and goes on from the last state, has the states and releases of one that was
//     never interrupted. The steps of a log follow one another without a gap, and the
//     cost of a record never changes.
//   - [Foreign]: the state of another configuration is refused.
//   - [Contract.Damaged], [Contract.Fuzz]: a state that was damaged is refused, or is
//     one that could have been written; the estimator then goes on without a panic.
//   - [Plans]: a plan with anything changed is refused.
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

// Estimator is what all estimators are.
type Estimator interface {
	Columns() int
	Range(t uint64) (first, end uint64)
	Add(slot uint64, row []float64)
	Close(n dp.Noise) (*dp.Release, error)
	Cost() dp.Cost
	AppendBinary(b []byte) ([]byte, error)
	UnmarshalBinary(data []byte) error
}

// Contract is an estimator, and a log for it.
type Contract[E Estimator] struct {
	// New returns an estimator before its first step. Each call takes the epoch's
	// plan through its bytes, as a restart does.
	New func(t testing.TB) E
	// Steps is the number of steps that Restart closes.
	Steps uint64
	// Rows returns the records of step t, whose slots are first … end−1, in order and
	// no more than these; nil is an invalid record. It returns the same at each call.
	Rows func(t, first, end uint64) [][]float64
	// Noise returns the noise of one run, which gives that of its steps one after the
	// other. Two runs of the same integers have the same.
	Noise func(t testing.TB) func(step uint64) dp.Noise
	// Size returns what an estimator announces as the size of its state, at most; nil
	// where it announces none.
	Size func(e E) int64
	// After is called where a step was closed without interruption, with the state and
	// the release after it; nil for nothing to do. The release is nil after a step that
	// has none.
	After func(e E, state []byte, r *dp.Release)
}

// Adopted returns a Contract's New: what adopt makes of a plan that went through its
// bytes.
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

// step gives an estimator the records of a step and closes it.
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

// Run closes the steps of a new estimator, and returns state and release after each, as
// bytes. between, where there is one, is called after each step and returns the
// estimator to go on with.
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

// Restart runs the steps twice: straight on, and with an end within each, at which a new
// estimator takes over the last state. What the ended one had been given of the open
// step, from no record to all of them, is given again. It returns the straight run's
// estimator, and the state after each step.
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
			t.Fatalf("step %d: a state holds something of the open step", step)
		}
		again = c.New(t)
		open := uint64(1)
		if step%5 == 0 { // one that is in use
			c.step(t, again, open, c.Noise(t)(open))
			open++
		}
		c.add(again, open, len(c.rows(again, open))) // dropped by what follows
		if err := again.UnmarshalBinary(before); err != nil {
			t.Fatalf("before step %d: %v", step, err)
		}
		if !bytes.Equal(State(t, again), before) {
			t.Fatalf("before step %d: a restored state is written differently", step)
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
			t.Fatalf("step %d: a state of %d bytes, announced %d", step, len(state), c.Size(straight))
		}
		if !reflect.DeepEqual(straight.Cost(), cost) || !reflect.DeepEqual(again.Cost(), cost) {
			t.Fatalf("step %d: a record costs something else than before", step)
		}
		if c.After != nil {
			c.After(straight, state, r)
		}
		states = append(states, state)
	}
	return straight, states
}

// Foreign gives a state to estimators of other configurations, each of which must
// refuse it.
func Foreign[E Estimator](t testing.TB, state []byte, others map[string]E) {
	t.Helper()
	for name, e := range others {
		if err := e.UnmarshalBinary(state); err == nil {
			t.Errorf("an estimator of another %s takes the state", name)
		}
	}
}

// Allocates reports what adding the records in turn to the open step allocates: nothing
// may. slot is the step's first.
func Allocates(t testing.TB, e Estimator, slot uint64, rows ...[]float64) {
	t.Helper()
	// All of them in a run: fractions of an allocation are rounded down.
	if n := testing.AllocsPerRun(200, func() {
		for _, row := range rows {
			e.Add(slot, row)
			slot++
		}
	}); n > 0 {
		t.Errorf("%d records allocate %g times", len(rows), n)
	}
}
