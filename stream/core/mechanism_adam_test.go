package core

import (
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/codec"
)

// TestStaleGradients: gradients are accepted up to the allowed staleness, and refused beyond it.
func TestStaleGradients(t *testing.T) {
	t.Parallel()
	s := parsed(t, `
[stream.orders]
input  = { topic = "orders", codec = "float64" }
output = { topic = "orders.dp" }
step   = 4
[stream.orders.privacy]
epsilon = 4.0
delta = 1e-6
adjacency = "zero-out"
limit_epsilon = 40.0
[stream.orders.adam]
clip = 1.0
rate = 0.1
dim  = 3
max_staleness = 2
`)
	m, err := NewMechanism(s, nil, nil)
	must(t, err)
	keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "x", 1, [16]byte{}, [32]byte{})
	must(t, err)
	var h dp.Transcript
	_, refused := m.Refused()
	for step := range uint64(6) {
		for at := range uint64(8) {
			m.Add(0, []float64{0.1, 0.2, 0.3, float64(at)})
			_, n := m.Refused()
			if stale := n > refused; stale != (at > step || at+2 < step) {
				t.Errorf("open step %d: a gradient at step %d is stale: %t", step+1, at, stale)
			}
			refused = n
			if at%4 == 3 {
				m.Estimator.(*gradients).UnmarshalBinary(mustAppend(t, m))
			}
		}
		for range 4 {
			m.Add(0, nil)
		}
		if _, err := m.Close(keys.Step(step+1, &h)); err != nil {
			t.Fatal(err)
		}
	}
	if why, _ := m.Refused(); why != codec.Stale {
		t.Errorf("refused for %v", why)
	}
}

func mustAppend(t testing.TB, m *Mechanism) []byte {
	t.Helper()
	b, err := m.AppendBinary(nil)
	must(t, err)
	return b
}
