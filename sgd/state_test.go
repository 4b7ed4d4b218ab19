package sgd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"streamdp/dp"
	"streamdp/internal/dptest"
)

func mustState(t testing.TB, e *AMB) []byte {
	t.Helper()
	b, err := e.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRestart takes state and plan through their bytes after every step, into a
// new estimator: its states and releases are those of one that was never
// interrupted, through restarts of the average as well. Nothing of the open step
// is in a state.
func TestRestart(t *testing.T) {
	t.Parallel()
	const steps = 500
	for name, c := range variants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := params(dp.Replace)
			rows := records(9, 30000)
			for i := len(rows) / 3; i < len(rows); i++ { // coefficients that change
				if rows[i] != nil {
					rows[i][1] *= -3
				}
			}
			e := mustNew(t, c, p)
			// Short blocks, so that everything is in the state that can be.
			alter := func(plan Plan) Plan {
				plan.DriftBlock, plan.BatchMeans = min(plan.DriftBlock, 10), min(plan.BatchMeans, 5)
				return plan
			}
			rebuild := func() *AMB {
				plan, err := json.Marshal(e.Plan())
				if err != nil {
					t.Fatal(err)
				}
				var kept Plan
				if err := json.Unmarshal(plan, &kept); err != nil {
					t.Fatal(err)
				}
				f, err := Adopt(c, p, kept)
				if err != nil {
					t.Fatal(err)
				}
				if f, err = build(f.cfg, p, alter(kept), f.factor); err != nil {
					t.Fatal(err)
				}
				return f
			}
			straight, again := rebuild(), rebuild()
			x, y := keyed(t, 5), keyed(t, 5)
			restarts := 0
			for step := uint64(1); step <= steps; step++ {
				began := straight.began
				r, s := closeStep(t, straight, rows, x(step)), closeStep(t, again, rows, y(step))
				a, err1 := json.Marshal(r)
				b, err2 := json.Marshal(s)
				if err1 != nil || err2 != nil {
					t.Fatal(err1, err2)
				}
				if !bytes.Equal(a, b) {
					t.Fatalf("step %d: the release differs after restarts", step)
				}
				state := mustState(t, again)
				if !bytes.Equal(mustState(t, straight), state) {
					t.Fatalf("step %d: the state differs after restarts", step)
				}
				if straight.began != began {
					restarts++
				}
				again.Add(0, []float64{0.3, 0.1, -0.2})
				if !bytes.Equal(mustState(t, again), state) {
					t.Fatal("a state holds something of the open step")
				}
				again = rebuild()
				again.Add(0, []float64{0.3, 0.1, -0.2}) // dropped
				if err := again.UnmarshalBinary(state); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if most := straight.Sizes().State; int64(len(state)) > most {
					t.Fatalf("step %d: a state of %d bytes, announced %d", step, len(state), most)
				}
			}
			if *straight.cfg.Restart && c.Clip != "fixed" && restarts == 0 {
				t.Error("the average never began anew")
			}
		})
	}
}

// TestStateRefused gives a state to estimators of other configurations, and
// damaged states to its own.
func TestStateRefused(t *testing.T) {
	t.Parallel()
	own, p := variants()["track"], params(dp.Replace)
	e := mustNew(t, own, p)
	rows, noise := records(1, 30000), keyed(t, 3)
	for step := range uint64(400) {
		closeStep(t, e, rows, noise(step+1))
	}
	state := mustState(t, e)
	no := false
	for name, alter := range map[string]func(*Config, *dp.Params){
		"clip_x":    func(c *Config, _ *dp.Params) { c.ClipX *= 1.01 },
		"clip_y":    func(c *Config, _ *dp.Params) { c.ClipY = 7 },
		"intercept": func(c *Config, _ *dp.Params) { c.Intercept = &no },
		"target":    func(c *Config, _ *dp.Params) { c.Target = "u" },
		"columns":   func(c *Config, _ *dp.Params) { c.Columns = []string{"v", "y", "u"} },
		"clip":      func(c *Config, _ *dp.Params) { c.Clip, c.Bootstrap, c.Stat = "bisect", 0, 16 },
		"value":     func(c *Config, _ *dp.Params) { c.Value = "residual" },
		"batch":     func(c *Config, _ *dp.Params) { c.Batch = 25 },
		"bootstrap": func(c *Config, _ *dp.Params) { c.Bootstrap = 17 },
		"quantile":  func(c *Config, _ *dp.Params) { c.Quantile = 0.7 },
		"kappa":     func(c *Config, _ *dp.Params) { c.Kappa = 0.9 },
		"fraction":  func(c *Config, _ *dp.Params) { c.Fraction = 0.06 },
		"rungs":     func(c *Config, _ *dp.Params) { c.Rungs = 31 },
		"top":       func(c *Config, _ *dp.Params) { c.Top = 32768 },
		"bands":     func(c *Config, _ *dp.Params) { c.Bands = 5 },
		"eta0":      func(c *Config, _ *dp.Params) { c.Eta0 = 0.31 },
		"curvature": func(c *Config, _ *dp.Params) { c.Curvature = 2 },
		"growth":    func(c *Config, _ *dp.Params) { c.Growth = "double" },
		"average":   func(c *Config, _ *dp.Params) { c.Average = "smooth" },
		"tail":      func(c *Config, _ *dp.Params) { c.Tail = 0.3 },
		"restart":   func(c *Config, _ *dp.Params) { c.Restart = &no },
		"radius":    func(c *Config, _ *dp.Params) { c.Radius = 6 },
		"intervals": func(c *Config, _ *dp.Params) { c.Intervals = &no },
		"level":     func(c *Config, _ *dp.Params) { c.Level = 0.9 },
		"horizon":   func(c *Config, _ *dp.Params) { c.Horizon = 1000 },
		"centre":    func(c *Config, _ *dp.Params) { c.Centre = []float64{1, 0, 0} },
		"scale":     func(c *Config, _ *dp.Params) { c.Scale = []float64{1, 2, 1} },
		"start":     func(c *Config, _ *dp.Params) { c.Start = []float64{0, 0, 1} },
		"mu":        func(_ *Config, p *dp.Params) { p.Mu = 4.01 },
		"adjacency": func(_ *Config, p *dp.Params) { p.Adjacency = dp.ZeroOut },
		"bits":      func(_ *Config, p *dp.Params) { p.LatticeBits = 25 },
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
	for i := range 25 { // version, fingerprint, step, iteration
		b := slices.Clone(state)
		b[i] ^= 0x10
		refuse(fmt.Sprintf("another byte %d", i), b)
	}
	patch := func(at int, v uint64) []byte {
		b := slices.Clone(state)
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	const iterate = 25
	const norm = iterate + 3*8
	refuse("an iterate that is no number", patch(iterate, math.Float64bits(math.NaN())))
	refuse("an iterate outside of the radius", patch(iterate, math.Float64bits(5.1)))
	refuse("a clip norm of 0", patch(norm+8, 0))
	refuse("a clip norm above its bound", patch(norm+8, math.Float64bits(0x1p33)))
	refuse("a last clip norm below its bound", patch(norm, math.Float64bits(0x1p-33)))
	refuse("more steps at the bound than steps", patch(norm+16, 1000))
	refuse("an average that begins later", patch(norm+24, 1000))
	refuse("an average of another length", patch(norm+32, 398))
}

// FuzzState gives arbitrary bytes to UnmarshalBinary. What it takes it writes
// again as it was, and the next step closes or fails in order.
func FuzzState(f *testing.F) {
	var all []*AMB
	for _, name := range []string{"track", "track/independent", "track/growth", "bisect", "bisect/residual", "scan", "fixed", "original units"} {
		c := variants()[name]
		e := mustNew(f, c, params(dp.ZeroOut))
		rows := records(3, 4000)
		for n := range uint64(130) {
			if n < 3 || n == 129 {
				f.Add(uint8(len(all)), mustState(f, e))
			}
			closeStep(f, e, rows, dptest.Seeded(n))
		}
		all = append(all, e)
	}
	f.Fuzz(func(t *testing.T, at uint8, data []byte) {
		e := all[int(at)%len(all)]
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
		searching := e.searching
		e.Add(0, []float64{0.5, 0.1, 2})
		r, err := e.Close(dptest.Seeded(1))
		if err == nil && (r == nil) != searching || err != nil && r != nil {
			t.Fatalf("Close returns %v, %v", r, err)
		}
	})
}

// TestMemory: what is kept grows with the logarithm of the number of steps.
func TestMemory(t *testing.T) {
	t.Parallel()
	const d, bands, steps = 10, 16, 1 << 14
	sim := simulate(t, d, Config{ClipX: 5, Intercept: new(bool), Radius: 10, Curvature: 1, Bands: bands, Batch: 40},
		dp.Params{Epsilon: 20, Delta: 1e-6, Adjacency: dp.ZeroOut}, 1, nil)
	l := newLinear(1, d, 1)
	for n := 1; n <= steps; n++ {
		sim.next(t, l.draw)
		if n&(n-1) != 0 || n < 64 {
			continue
		}
		state, err := sim.e.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		// The average's blocks, the ring, the means of intervals and drift, and what
		// does not depend on d.
		most := 8*d*(int(math.Log2(float64(n)))+2+bands+batchesMost+8) + 8*(recentMost+20)
		if len(state) > most {
			t.Errorf("after %d steps the state has %d bytes, more than %d", n, len(state), most)
		}
	}
}
