package refit

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/internal/testing/race"
)

// TestMemory checks that a window takes at most the stated memory, plus garbage that the collector has not freed and
// some kilobytes for names of arrays.
func TestMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const n = 40_000
	for name, c := range configs() {
		if c.Transforms > 1 {
			continue // not allocated at the same time as the others
		}
		c.Window = n
		r := mustRefit(t, c, generous)
		for i, row := range records(n, 1) {
			r.Add(uint64(i), row)
		}
		var held uint64
		if r.data != nil {
			held = uint64(8 * (cap(r.data.x) + cap(r.data.y)))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := r.Close(dptest.Seeded(1)); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if took, stated := held+after.TotalAlloc-before.TotalAlloc,
			uint64(r.Sizes().Peak); took > stated+stated/4+256<<10 {
			t.Errorf("%s: a window takes %d bytes, said %d", name, took, stated)
		}
	}
}

// TestPartMemory checks that a part of a window takes at most the stated memory plus a kilobyte.
func TestPartMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const n = 10_000
	r := mustRefit(t, merged(configs()["newton"], 4, 4*n), generous)
	row := []float64{0.1, 0.2, 0.3}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	part, err := r.NewPart()
	if err != nil {
		t.Fatal(err)
	}
	for slot := range uint64(n) {
		part.Add(slot, row)
	}
	runtime.ReadMemStats(&after)
	took, stated := int64(after.TotalAlloc-before.TotalAlloc), r.Sizes().Part
	if took > stated+stated/25+1024 || stated > 3*took/2 {
		t.Errorf("a part takes %d bytes, said %d", took, stated)
	}
}

// contractOf returns the contract of a refit of full windows and of a window with missing records.
func contractOf(t testing.TB, c Config) estimatortest.Contract[*Refit] {
	t.Helper()
	// Calibrating at each restart would take most of the time.
	plan := mustRefit(t, c, generous).Plan()
	c.Defaults()
	windows := [][][]float64{records(120, 1), records(90, 2), records(120, 3), records(120, 4), records(120, 5)}
	return estimatortest.Contract[*Refit]{
		New:   estimatortest.Adopted(t, plan, func(kept Plan) (*Refit, error) { return newRefit(c, generous, kept) }),
		Steps: uint64(len(windows)),
		Rows:  func(step, _, _ uint64) [][]float64 { return windows[step-1] },
		Noise: func(testing.TB) func(uint64) dp.Noise {
			return func(step uint64) dp.Noise { return dptest.Seeded(step) }
		},
		Size: func(r *Refit) int64 { return r.Sizes().State },
	}
}

// TestRestart restores states of every solver, which must continue with the same releases.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			contract := contractOf(t, c)
			if r, states := contract.Restart(t); int64(len(states[0])) != r.Sizes().State {
				t.Errorf("a state of %d bytes, announced %d", len(states[0]), r.Sizes().State)
			}
		})
	}
}

// TestStates checks that a refit refuses states of other configurations, and damaged states.
func TestStates(t *testing.T) {
	t.Parallel()
	c := configs()["newton"]
	r := mustRefit(t, c, generous)
	state, err := r.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	other := func(f func(c *Config, p *dp.Params)) {
		t.Helper()
		c, p := c, generous
		f(&c, &p)
		if err := mustRefit(t, c, p).UnmarshalBinary(state); err == nil ||
			!strings.Contains(err.Error(), "another configuration") {
			t.Errorf("the state of another configuration: %v", err)
		}
	}
	other(func(c *Config, p *dp.Params) { c.ClipX = 2.1 })
	other(func(c *Config, p *dp.Params) { c.Window = 121 })
	other(func(c *Config, p *dp.Params) { c.Stride = 121 })
	other(func(c *Config, p *dp.Params) { c.Target = "a" })
	other(func(c *Config, p *dp.Params) { c.Solver = "adassp" })
	other(func(c *Config, p *dp.Params) { c.Centre = []float64{1, 0, 0} })
	other(func(c *Config, p *dp.Params) { p.Epsilon = 49 })
	other(func(c *Config, p *dp.Params) { p.Adjacency = dp.Replace })
	other(func(c *Config, p *dp.Params) { p.LatticeBits = 25 })
	far := slices.Clone(state)
	for i := range 8 {
		far[len(far)-1-i] = 0xff
	}
	if err := r.UnmarshalBinary(far); err == nil {
		t.Error("no error for a state after the last window")
	}
}

// TestDamaged damages a state of every solver.
func TestDamaged(t *testing.T) {
	t.Parallel()
	for name, c := range configs() {
		t.Run(name, func(t *testing.T) {
			contract := contractOf(t, c)
			contract.Steps = 1
			states, _ := contract.Run(t, nil)
			contract.Damaged(t, states[0])
		})
	}
}

// FuzzState gives arbitrary bytes to UnmarshalBinary.
func FuzzState(f *testing.F) {
	all := []estimatortest.Contract[*Refit]{contractOf(f, configs()["adassp"]), contractOf(f, configs()["newton"])}
	estimatortest.Fuzz(f, all, func(c *estimatortest.Contract[*Refit]) [][]byte {
		states, _ := c.Run(f, nil)
		return append(states, estimatortest.State(f, c.New(f)))
	})
}
