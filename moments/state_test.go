package moments

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"streamdp/dp"
	"streamdp/internal/audit"
	"streamdp/internal/dptest"
)

// run closes the steps of s and returns state and release after each, as bytes.
// between is called after each step and returns the estimator to continue with.
func run(t *testing.T, e *Estimator, s audit.Stream, noise func(uint64) dp.Noise, between func(*Estimator) *Estimator) (states, releases [][]byte) {
	t.Helper()
	for step, records := range s {
		for i, x := range records {
			e.Add(uint64(step)*e.cfg.Step+uint64(i), x)
		}
		r, err := e.Close(noise(uint64(step) + 1))
		if err != nil {
			t.Fatal(err)
		}
		release, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		states, releases = append(states, mustState(t, e)), append(releases, release)
		e = between(e)
	}
	return states, releases
}

func mustState(t testing.TB, e *Estimator) []byte {
	t.Helper()
	b, err := e.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRestart takes the state and the plan through their bytes after every step,
// into a new estimator: its states and releases are those of one that was never
// interrupted. The open step is never in a state, and is dropped by a restore.
func TestRestart(t *testing.T) {
	t.Parallel()
	const steps = 40
	for _, c := range everything(steps) {
		t.Run(c.Method+"/"+c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			c.Clip, c.Columns = 1.4, 3
			s := within(auditStream(steps, 3), c.Step)
			p := dp.Params{Mu: 0.8, Adjacency: dp.Replace}
			e := mustNew(t, c, p)
			plan, err := json.Marshal(e.Plan())
			if err != nil {
				t.Fatal(err)
			}
			states, releases := run(t, e, s, keyed(t, 5), func(e *Estimator) *Estimator { return e })
			again, same := run(t, mustNew(t, c, p), s, keyed(t, 5), func(e *Estimator) *Estimator {
				state := mustState(t, e)
				for range c.Step {
					e.Add(0, []float64{0.3, 0.1, -0.2})
				}
				if open := mustState(t, e); !bytes.Equal(open, state) {
					t.Error("a state holds something of the open step")
				}
				var kept Plan
				if err := json.Unmarshal(plan, &kept); err != nil {
					t.Fatal(err)
				}
				next, err := Adopt(c, p, kept)
				if err != nil {
					t.Fatal(err)
				}
				for range c.Step + 1 {
					next.Add(0, []float64{0.3, 0.1, -0.2}) // dropped
				}
				if err := next.UnmarshalBinary(state); err != nil {
					t.Fatal(err)
				}
				return next
			})
			for i := range states {
				if !bytes.Equal(states[i], again[i]) {
					t.Errorf("step %d: the state differs after restarts", i+1)
				}
				if !bytes.Equal(releases[i], same[i]) {
					t.Errorf("step %d: the release differs after restarts", i+1)
				}
			}
			if most := e.Sizes().State; int64(len(states[steps-1])) > most || e.plan.Factorization.Kind != "phased" && e.plan.second().Kind != "phased" && int64(len(states[steps-1])) < most {
				t.Errorf("a state of %d bytes, announced %d", len(states[steps-1]), most)
			}
			// A step back: the same integers and keys, the same bytes.
			if err := e.UnmarshalBinary(states[steps-3]); err != nil {
				t.Fatal(err)
			}
			if b := mustState(t, e); !bytes.Equal(b, states[steps-3]) {
				t.Error("a restored state is written differently")
			}
		})
	}
}

// TestRestartInABlock restores in the middle of a step whose squares are rounded
// every 13 records: the borders are counted from the step's start again.
func TestRestartInABlock(t *testing.T) {
	t.Parallel()
	c, p := Config{Clip: 1.1, Columns: 8, Step: 30, Factorization: "phased"}, dp.Params{Mu: 40, Adjacency: dp.Replace}
	s := make(audit.Stream, 3)
	for i, records := range auditStream(300, 8) {
		if s[i%3] = append(s[i%3], records...); len(s[i%3]) > 30 {
			s[i%3] = s[i%3][:30]
		}
	}
	e := mustNew(t, c, p)
	if e.block != 13 {
		t.Fatalf("a block holds %d records", e.block)
	}
	states, releases := run(t, e, s, keyed(t, 6), func(e *Estimator) *Estimator { return e })
	again, same := run(t, mustNew(t, c, p), s, keyed(t, 6), func(e *Estimator) *Estimator {
		state := mustState(t, e)
		for range 7 {
			e.Add(0, make([]float64, 8))
		}
		if err := e.UnmarshalBinary(state); err != nil {
			t.Fatal(err)
		}
		return e
	})
	for i := range states {
		if !bytes.Equal(states[i], again[i]) || !bytes.Equal(releases[i], same[i]) {
			t.Errorf("step %d differs after a restart", i+1)
		}
	}
}

// TestStateRefused gives a state to estimators of other configurations, and
// damaged states to its own.
func TestStateRefused(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 0.8, Adjacency: dp.Replace}
	own := Config{Clip: 1.4, Columns: 3, Step: 4, Workload: "window", Window: 3, Factorization: "blt", Horizon: 30}
	e := mustNew(t, own, p)
	states, _ := run(t, e, auditStream(5, 3), keyed(t, 5), func(e *Estimator) *Estimator { return e })
	state := states[4]
	for name, alter := range map[string]func(*Config, *dp.Params){
		"clip":          func(c *Config, _ *dp.Params) { c.Clip *= 1.01 },
		"columns":       func(c *Config, _ *dp.Params) { c.Columns = 2 },
		"step":          func(c *Config, _ *dp.Params) { c.Step = 5 },
		"workload":      func(c *Config, _ *dp.Params) { c.Workload, c.Window = "mean", 0 },
		"window":        func(c *Config, _ *dp.Params) { c.Window = 4 },
		"factorization": func(c *Config, _ *dp.Params) { c.Factorization = "phased" },
		"identity":      func(c *Config, _ *dp.Params) { c.Factorization = "identity" },
		"buffers":       func(c *Config, _ *dp.Params) { c.Buffers = 2 },
		"bands":         func(c *Config, _ *dp.Params) { c.Factorization, c.Bands = "bsr", 2 },
		"horizon":       func(c *Config, _ *dp.Params) { c.Horizon = 31 },
		"endless":       func(c *Config, _ *dp.Params) { c.Endless = true },
		"nu":            func(c *Config, _ *dp.Params) { c.Nu = 0.6 },
		"centre":        func(c *Config, _ *dp.Params) { c.Centre = []float64{1, 0, 0} },
		"scale":         func(c *Config, _ *dp.Params) { c.Scale = []float64{1, 2, 1} },
		"mu":            func(_ *Config, p *dp.Params) { p.Mu = 0.81 },
		"adjacency":     func(_ *Config, p *dp.Params) { p.Adjacency = dp.ZeroOut },
		"bits":          func(_ *Config, p *dp.Params) { p.LatticeBits = 25 },
	} {
		c, q := own, p
		alter(&c, &q)
		if err := mustNew(t, c, q).UnmarshalBinary(state); err == nil {
			t.Errorf("an estimator of another %s takes the state", name)
		}
	}
	refuse := func(what string, damaged []byte) {
		t.Helper()
		if err := mustNew(t, own, p).UnmarshalBinary(damaged); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for n := range state {
		refuse(fmt.Sprintf("a state cut to %d bytes", n), state[:n])
	}
	refuse("a longer state", append(slices.Clone(state), 0))
	const weight, total = 17, 17 + 3*8
	patch := func(at int, v uint64, order binary.ByteOrder) []byte {
		b := slices.Clone(state)
		order.PutUint64(b[at:], v)
		return b
	}
	for i := range 17 { // version, fingerprint, step
		b := slices.Clone(state)
		b[i] ^= 0x10
		refuse(fmt.Sprintf("another byte %d", i), b)
	}
	refuse("one step more", patch(9, 6, binary.LittleEndian))
	refuse("more records than slots", patch(weight, 5, binary.LittleEndian))
	shaper := total + 3*3*8 + 8
	if got := binary.BigEndian.Uint64(state[shaper+17:]); got != 5 {
		t.Fatalf("the shaper's state holds %d steps where the test looks for 5", got)
	}
	refuse("a shaper one step behind", patch(shaper+17, 4, binary.BigEndian))
	refuse("a shaper one step ahead", patch(shaper+17, 6, binary.BigEndian))
	refuse("a prediction beyond all noise", patch(shaper+33, 1<<50, binary.BigEndian))
	before := mustNew(t, own, p)
	fresh := mustState(t, before)
	b := slices.Clone(fresh)
	b[total] = 1
	refuse("a row of a step that was not", b)
	b = slices.Clone(fresh)
	b[weight] = 1
	refuse("records of a step that was not", b)

	exponential := mustNew(t, Config{Clip: 1, Columns: 1, Step: 4, Workload: "exponential", Decay: 0.5}, p)
	start := mustState(t, exponential)
	for _, sum := range []float64{-1, 8.1, math.NaN(), math.Inf(1)} {
		binary.LittleEndian.PutUint64(start[weight:], math.Float64bits(sum))
		if err := exponential.UnmarshalBinary(start); err == nil {
			t.Errorf("a weight of %g is taken", sum)
		}
	}
	mean := mustNew(t, Config{Clip: 1, Columns: 1, Step: 4, Factorization: "identity", Horizon: 7}, p)
	start = mustState(t, mean)
	start[weight] = 1
	if err := mean.UnmarshalBinary(start); err == nil {
		t.Error("a record before the first step is taken")
	}
	for _, steps := range []byte{7, 8} { // in the state and both shapers'
		start[9], start[weight] = steps, 0
		start[weight+8+16+8+24], start[weight+8+16+8+33+16+8+24] = steps, steps
		if err := mean.UnmarshalBinary(start); (err == nil) != (steps == 7) {
			t.Errorf("a state after %d steps of 7: %v", steps, err)
		}
	}
}

// TestRowOfShaperState pins where every shaper's state holds its steps.
func TestRowOfShaperState(t *testing.T) {
	t.Parallel()
	for _, c := range everything(5) {
		c.Clip, c.Columns, c.Step = 1, 2, 1
		e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
		for n := range uint64(5) {
			for _, s := range e.arrays {
				blob, err := s.shaper.AppendBinary(nil)
				if err != nil {
					t.Fatal(err)
				}
				if got := binary.BigEndian.Uint64(blob[17:]); got != n {
					t.Errorf("%s: the state says %d steps, want %d", describe(c), got, n)
				}
			}
			if _, err := e.Close(dptest.Zero()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// FuzzState gives arbitrary bytes to UnmarshalBinary. What it takes it writes
// again as it was, and the next step closes or fails in order.
func FuzzState(f *testing.F) {
	const steps = 6
	var estimators []*Estimator
	for _, c := range everything(steps) {
		c.Clip, c.Columns = 1.4, 2
		e := mustNew(f, c, dp.Params{Mu: 0.8, Adjacency: dp.Replace})
		at := len(estimators) // below 256
		estimators = append(estimators, e)
		noise := dptest.Seeded(uint64(at))
		for range 4 {
			f.Add(uint8(at), mustState(f, e))
			e.Add(0, []float64{0.5, 0.1})
			if _, err := e.Close(noise); err != nil {
				f.Fatal(err)
			}
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, data []byte) {
		e := estimators[int(at)%len(estimators)]
		// A fuzzer cannot guess the fingerprint.
		if len(data) >= 9 {
			data = slices.Clone(data)
			binary.LittleEndian.PutUint64(data[1:], e.fingerprint)
		}
		if e.UnmarshalBinary(data) != nil {
			return
		}
		if b := mustState(t, e); !bytes.Equal(b, data) {
			t.Fatalf("%x is taken and written as %x", data, b)
		}
		e.Add(0, []float64{0.5, 0.1})
		r, err := e.Close(dptest.Seeded(1))
		if (r == nil) == (err == nil) {
			t.Fatalf("Close returns %v, %v", r, err)
		}
	})
}
