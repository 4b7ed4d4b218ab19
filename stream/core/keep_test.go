package core

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// TestKeep: mechanisms whose plan was checked once for all equal mechanisms whose plan was checked for each, also if
// they run concurrently. A plan that does not belong to the configuration is refused.
func TestKeep(t *testing.T) {
	t.Parallel()
	table := `
[stream.m]
input  = { topic = "in", codec = "json", columns = ["a", "b", "c"] }
output = { topic = "out" }
centre = [1.0, 0.0, -2.0]
scale  = [0.5, 4.0, 1.5]
step   = 7
[stream.m.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "replace"
limit_epsilon = 3.0
[stream.m.moments]
clip = 1.0
`
	s := parsed(t, table)
	begun, err := NewMechanism(s, nil, nil)
	must(t, err)
	run := func(m *Mechanism) (all []byte) {
		rng := rand.New(rand.NewPCG(1, 2))
		for step := uint64(1); step <= 20; step++ {
			for first, end := m.Range(step); first < end; first++ {
				m.Add(first, []float64{rng.NormFloat64(), rng.NormFloat64(), rng.NormFloat64()})
			}
			if _, err := m.Close(dptest.Seeded(step)); err != nil {
				t.Error(err)
			}
		}
		all, err := m.AppendBinary(nil)
		if err != nil {
			t.Error(err)
		}
		return append(append(all, m.Plan...), m.description...)
	}
	alone, err := NewMechanism(s, begun.Plan, nil)
	must(t, err)
	want := run(alone)
	build, err := Keep(s, begun.Plan)
	must(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			m, err := build()
			if err != nil {
				t.Error(err)
			} else if m.Name != "moments" || !bytes.Equal(run(m), want) {
				t.Error("a mechanism of a shared plan differs")
			}
		})
	}
	wg.Wait()
	foreign := bytes.Replace(begun.Plan, []byte(`"sensitivity":`), []byte(`"sensitivity":1`), 1)
	if bytes.Equal(foreign, begun.Plan) {
		t.Fatalf("no sensitivity in %s", begun.Plan)
	}
	if _, err := Keep(s, foreign); err == nil {
		t.Error("a plan with another sensitivity was accepted")
	}
}
