package streamtest

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/state"
)

// SendUsers appends n records of nine persons and of no person to a partition of "orders".
func (r *Rig) SendUsers(partition, first, n int) {
	r.T.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Value: fixtures.OrderRecord(first + i), Time: time.UnixMilli(1)}
		list[i].Key = fixtures.UserOf(first + i)
	}
	if n == 0 {
		return
	}
	if _, err := r.Client.Produce(r.T.Context(), "orders", int32(partition), list); err != nil {
		r.T.Fatal(err)
	}
}

// PersonRig returns a rig with a stream that protects persons, in one of the PersonModes, with steps of step records.
func PersonRig(t testing.TB, mode, step int) *Rig {
	t.Helper()
	r := NewRig(t,
		fixtures.With(fixtures.OrdersStream, "step   = 100\n",
			fmt.Sprintf("step = %d\n%s", step, fixtures.PersonModes[mode].Table), `"zero-out"`, `"replace"`))
	r.Record = fixtures.PersonRecord
	return r
}

// HasUsers returns the names of the state files of persons.
func (r *Rig) HasUsers() []string {
	r.T.Helper()
	names, err := filepath.Glob(r.File(state.PersonsPrefix + "*"))
	fixtures.Must(r.T, err)
	return names
}
