package adam

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"streamdp/dp"
	"streamdp/internal/dptest"
)

// gradientsOf returns steps of up to m gradients each, some of them invalid.
func gradientsOf(steps, d int, m uint64) [][][]float64 {
	source := rand.New(rand.NewPCG(8, 9))
	all := make([][][]float64, steps)
	for i := range all {
		for k := range min(uint64(source.IntN(6)), m) {
			if k == 3 {
				all[i] = append(all[i], nil)
				continue
			}
			all[i] = append(all[i], inBall(source, d, 3))
		}
	}
	return all
}

// run closes the steps and returns state and release after each, as bytes.
// between is called after each step and returns the estimator to continue with.
func run(t testing.TB, e *Estimator, steps [][][]float64, noise func(uint64) dp.Noise, between func(*Estimator) *Estimator) (states, releases [][]byte) {
	t.Helper()
	for i, gradients := range steps {
		for k, g := range gradients {
			e.Add(uint64(i)*e.cfg.Step+uint64(k), g)
		}
		r, err := e.Close(noise(uint64(i) + 1))
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

// stateful are configurations whose states differ in form.
func stateful(m uint64) (all []Config) {
	for _, c := range methods(m) {
		for _, kind := range []string{"identity", "blt", "sqrt"} {
			c.Factorization, c.Horizon, c.UpdateClip = kind, 30, 2
			all = append(all, c)
		}
	}
	return all
}

// TestRestart takes the state and the plan through their bytes after every step,
// into a new estimator: its states and releases are those of one that was never
// interrupted. The open step is never in a state, and is dropped by a restore.
func TestRestart(t *testing.T) {
	t.Parallel()
	const steps, d = 12, 3
	for _, m := range []uint64{1, 4} {
		s := gradientsOf(steps, d, m)
		for _, c := range stateful(m) {
			c.Dim, c.Initial = d, []float64{1, 2, 3}
			what := fmt.Sprintf("%s/%s/m=%d", c.Method, c.Factorization, m)
			p := dp.Params{Mu: 0.8, Adjacency: dp.ZeroOut}
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
					t.Errorf("%s: a state holds something of the open step", what)
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
				if !bytes.Equal(states[i], again[i]) || !bytes.Equal(releases[i], same[i]) {
					t.Fatalf("%s: step %d differs after restarts", what, i+1)
				}
			}
			if most := e.Sizes().State; int64(len(states[steps-1])) > most || c.Factorization != "sqrt" && int64(len(states[steps-1])) < most {
				t.Errorf("%s: a state of %d bytes, announced %d", what, len(states[steps-1]), most)
			}
			theta, err := ParametersOf(states[steps-1])
			if err != nil || !slices.Equal(theta, e.Parameters()) {
				t.Errorf("%s: the state's parameters are %g (%v), want %g", what, theta, err, e.Parameters())
			}
			// A step back: the same integers and keys, the same bytes.
			if err := e.UnmarshalBinary(states[steps-3]); err != nil {
				t.Fatal(err)
			}
			if b := mustState(t, e); !bytes.Equal(b, states[steps-3]) {
				t.Errorf("%s: a restored state is written differently", what)
			}
		}
	}
}

// TestShards gives many parameters to 1 and to 5 processors, to an estimator that
// restarts in between, and to noise that is read in one go: the same bytes. It is
// not parallel: it sets the number of processors.
func TestShards(t *testing.T) {
	const steps, d = 3, 5*shardSize + 77
	s := gradientsOf(steps, d, 2)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []Config{
		{Method: "pp_debiased", UpdateClip: 3}, {Method: "jme_per_example", Factorization: "blt", Release: "update"},
		{Method: "joint_clip", Tau: 2}, {Method: "jme_batch"}, {Method: "momentum", Factorization: "blt", WeightDecay: 0.1, UpdateClip: 0.01},
	} {
		c.Dim, c.Clip, c.Rate, c.Step = d, 1, 0.1, 2
		p := dp.Params{Mu: 0.8, Adjacency: dp.Replace}
		var want [][]byte
		for i, processors := range []int{1, 5, 2, 3} {
			runtime.GOMAXPROCS(processors)
			noise := keyed(t, 5)
			if i == 3 { // rows that cursors do not know
				keys := keyed(t, 5)
				noise = func(step uint64) dp.Noise { return foreign{keys(step)} }
			}
			states, releases := run(t, mustNew(t, c, p), s, noise, func(e *Estimator) *Estimator {
				if i != 2 {
					return e
				}
				next := mustNew(t, c, p)
				if err := next.UnmarshalBinary(mustState(t, e)); err != nil {
					t.Fatal(err)
				}
				return next
			})
			if want == nil {
				want = append(states, releases...)
			}
			if !slices.EqualFunc(want, append(states, releases...), bytes.Equal) {
				t.Errorf("%s: the bytes depend on the number of processors (%d, case %d)", c.Method, processors, i)
			}
		}
		// All coordinates moved, the last as well.
		e := mustNew(t, c, p)
		runtime.GOMAXPROCS(5)
		run(t, e, s, keyed(t, 5), func(e *Estimator) *Estimator { return e })
		for j, x := range e.theta {
			if x == 0 {
				t.Fatalf("%s: parameter %d did not move", c.Method, j)
			}
		}
	}
}

// foreign hides what kind of rows a noise gives.
type foreign struct{ dp.Noise }

func (f foreign) Row(array string, hidden []int64) dp.Row {
	return hiddenRow{f.Noise.Row(array, hidden)}
}

type hiddenRow struct{ dp.Row }

// TestAllocations counts what a step allocates: the same for one shard and for
// many, but for the draws that need an exact decision, one in two million.
func TestAllocations(t *testing.T) {
	count := func(d int) float64 {
		e := mustNew(t, Config{Clip: 1, Rate: 1, Dim: d, Step: 4}, dp.Params{Mu: 1, Adjacency: dp.Replace})
		noise, step := keyed(t, 3), uint64(0)
		g := make([]float64, d)
		return testing.AllocsPerRun(8, func() {
			e.Add(0, g)
			step++
			if _, err := e.Close(noise(step)); err != nil {
				t.Fatal(err)
			}
		})
	}
	few, many := count(100), count(20*shardSize)
	// A sixth of a decision a step, of some 700 allocations, six-fold by chance.
	if few > 20 || many > few+60+700 {
		t.Errorf("%g allocations a step for 100 parameters, %g for %d", few, many, 20*shardSize)
	}
	t.Logf("%g allocations a step for 100 parameters, %g for %d", few, many, 20*shardSize)
	e := mustNew(t, Config{Clip: 1, Rate: 1, Dim: 100, Step: 4}, dp.Params{Mu: 1, Adjacency: dp.Replace})
	g := make([]float64, 100)
	if n := testing.AllocsPerRun(100, func() { e.Add(0, g) }); n > 0 {
		t.Errorf("%g allocations a record", n)
	}
}

// TestStateRefused gives a state to estimators of other configurations, and
// damaged states to its own.
func TestStateRefused(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 0.8, Adjacency: dp.Replace}
	own := Config{Method: "jme_per_example", Clip: 1.4, Rate: 0.1, Dim: 3, Step: 4, Factorization: "blt", Horizon: 30}
	e := mustNew(t, own, p)
	states, _ := run(t, e, gradientsOf(5, 3, 4), keyed(t, 5), func(e *Estimator) *Estimator { return e })
	state := states[4]
	for name, alter := range map[string]func(*Config, *dp.Params){
		"method":        func(c *Config, _ *dp.Params) { c.Method = "jme_batch" },
		"clip":          func(c *Config, _ *dp.Params) { c.Clip *= 1.01 },
		"dim":           func(c *Config, _ *dp.Params) { c.Dim = 2 },
		"step":          func(c *Config, _ *dp.Params) { c.Step = 5 },
		"rate":          func(c *Config, _ *dp.Params) { c.Rate = 0.2 },
		"schedule":      func(c *Config, _ *dp.Params) { c.Schedule = "cosine" },
		"beta1":         func(c *Config, _ *dp.Params) { c.Beta1 = 0.8 },
		"beta2":         func(c *Config, _ *dp.Params) { c.Beta2 = 0.99 },
		"eps":           func(c *Config, _ *dp.Params) { c.Eps = 1e-6 },
		"v_floor":       func(c *Config, _ *dp.Params) { c.VFloor = 1 },
		"negative":      func(c *Config, _ *dp.Params) { c.Negative = "abs" },
		"update_clip":   func(c *Config, _ *dp.Params) { c.UpdateClip = 1 },
		"weight_decay":  func(c *Config, _ *dp.Params) { c.WeightDecay = 1 },
		"release":       func(c *Config, _ *dp.Params) { c.Release = "update" },
		"factorization": func(c *Config, _ *dp.Params) { c.Factorization = "identity" },
		"horizon":       func(c *Config, _ *dp.Params) { c.Horizon = 31 },
		"endless":       func(c *Config, _ *dp.Params) { c.Endless = true },
		"nu":            func(c *Config, _ *dp.Params) { c.Nu = 0.6 },
		"initial":       func(c *Config, _ *dp.Params) { c.Initial = []float64{0, 0, 1} },
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
	for n := range 25 + 8*3 {
		if theta, err := ParametersOf(state[:n]); err == nil {
			t.Errorf("a state cut to %d bytes has parameters %g", n, theta)
		}
	}
	refuse("a longer state", append(slices.Clone(state), 0))
	for i := range 25 { // version, fingerprint, step, parameters
		b := slices.Clone(state)
		b[i] ^= 0x10
		refuse(fmt.Sprintf("another byte %d", i), b)
	}
	patch := func(at int, v uint64, order binary.ByteOrder) []byte {
		b := slices.Clone(state)
		order.PutUint64(b[at:], v)
		return b
	}
	for at := 25; at < 25+8*9; at += 8 {
		refuse("a moment that is no number", patch(at, math.Float64bits(math.NaN()), binary.LittleEndian))
	}
	shaper := 25 + 8*9 + 8
	if got := binary.BigEndian.Uint64(state[shaper+17:]); got != 5 {
		t.Fatalf("the shaper's state holds %d steps where the test looks for 5", got)
	}
	refuse("one step more", patch(9, 6, binary.LittleEndian))
	refuse("a shaper one step behind", patch(shaper+17, 4, binary.BigEndian))
	refuse("a prediction beyond all noise", patch(shaper+33, 1<<50, binary.BigEndian))
}

// FuzzState gives arbitrary bytes to UnmarshalBinary. What it takes it writes
// again as it was, and the next step closes or fails in order.
func FuzzState(f *testing.F) {
	var estimators []*Estimator
	for _, c := range append(stateful(4), stateful(1)...) {
		c.Dim = 2
		e := mustNew(f, c, dp.Params{Mu: 0.8, Adjacency: dp.Replace})
		at := len(estimators)
		estimators = append(estimators, e)
		noise := dptest.Seeded(uint64(at))
		for range 3 {
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
		theta, err := ParametersOf(data)
		if (theta == nil) == (err == nil) && len(theta) > 0 {
			t.Fatalf("ParametersOf returns %g, %v", theta, err)
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
		if r != nil {
			for _, v := range r.Values {
				for _, x := range v.Data {
					if x-x != 0 {
						t.Fatalf("%s of %g is released", v.Name, x)
					}
				}
			}
		}
	})
}
