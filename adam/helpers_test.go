package adam

import (
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// keyed returns the noise of an epoch with fixed keys. Its transcript absorbs the same data as the daemon's.
func keyed(t testing.TB, key byte) func(step uint64) dp.Noise {
	e, err := dp.NewEpoch(&[32]byte{1, key}, &[32]byte{2, key}, "audit", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	h := dp.NewTranscript([32]byte{3})
	return func(step uint64) dp.Noise {
		h.AbsorbRecords(4)
		return e.Step(step, &h)
	}
}

// exampleColumns returns n names of columns, with "y" at the given position.
func exampleColumns(n, target int) []string {
	names := dptest.Columns(n)
	names[target] = "y"
	return names
}

func mustNew(t testing.TB, c Config, p dp.Params) *Estimator {
	t.Helper()
	e, err := New(c, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
