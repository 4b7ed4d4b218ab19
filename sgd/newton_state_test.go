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

func newtonState(t testing.TB, e *Newton) []byte {
	t.Helper()
	b, err := e.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newtonLogs are logs of three columns with what happens to streams: each goes through
// searches, epochs, and what its name says.
func newtonLogs() map[string][][]float64 {
	drifting := eventful()
	for i, row := range drifting {
		if row != nil && i > 2800 {
			drifting[i] = []float64{row[0], row[1], row[2] / 60} // as before the jump
			if i > 6000 {
				drifting[i][2] += 0.4 * row[0] // less than a jump
			}
		}
	}
	late := eventful()
	clear(late[:1500]) // searches that see no records
	clear(late[5000:6500])
	few := eventful()
	for i := range few {
		if i%12 != 0 {
			few[i] = nil
		}
	}
	return map[string][][]float64{
		"hard restart": eventful(), "drift": drifting, "records later": late, "few records": few, "none": make([][]float64, 12000),
	}
}

// feed gives a step its records and closes it.
func (e *Newton) feed(t testing.TB, log [][]float64, n dp.Noise) *dp.Release {
	t.Helper()
	first, end := e.Range(e.step + 1)
	for slot := first; slot < end; slot++ {
		e.Add(slot, log[slot])
	}
	r, err := e.Close(n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestNewtonRestart takes state and plan through their bytes after every step into a
// new estimator, as TestRestart does: inside of a bootstrap, between a hard restart and
// its bootstrap, at an epoch's end. Split is where a step's records come from two
// processes, the first of which ends: nothing of the open step is in a state.
func TestNewtonRestart(t *testing.T) {
	t.Parallel()
	moments := map[string]int{}
	for name, log := range newtonLogs() {
		for _, intercept := range []bool{false, true} {
			c := Config{Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 20, Intercept: &intercept, Centre: []float64{0, 0.5, 1}, Scale: []float64{1, 2, 3}}
			p := dp.Params{Mu: newtonMu, Adjacency: dp.Replace}
			straight := mustNewton(t, c, p)
			rebuild := func() *Newton {
				text, err := json.Marshal(straight.Plan())
				if err != nil {
					t.Fatal(err)
				}
				var kept NewtonPlan
				if err := json.Unmarshal(text, &kept); err != nil {
					t.Fatal(err)
				}
				e, err := AdoptNewton(c, p, kept)
				if err != nil {
					t.Fatal(err)
				}
				return e
			}
			again := rebuild()
			x, y := keyed(t, 5), keyed(t, 5)
			for straight.slots < 11000 {
				step := straight.step + 1
				hard, drifts, repeats, epoch := straight.restarts, straight.drifts, straight.repeats, straight.epoch
				a, b := straight.feed(t, log, x(step)), again.feed(t, log, y(step))
				text, err1 := json.Marshal(a)
				other, err2 := json.Marshal(b)
				if err1 != nil || err2 != nil {
					t.Fatal(err1, err2)
				}
				state := newtonState(t, again)
				if !bytes.Equal(text, other) || !bytes.Equal(newtonState(t, straight), state) {
					t.Fatalf("%s, step %d: the release or the state differs after restarts", name, step)
				}
				if a != nil && len(a.Values) > len(straight.Sample().Values) {
					t.Fatalf("a release of %d values, announced %d", len(a.Values), len(straight.Sample().Values))
				}
				for what, happened := range map[string]bool{
					"in a bootstrap": straight.phase == searchScale, "hard restart": straight.restarts > hard, "drift restart": straight.drifts > drifts,
					"search repeated": straight.repeats > repeats, "end of an epoch": straight.epoch > epoch, "held": straight.phase == descent && !straight.sure,
				} {
					if happened {
						moments[what]++
					}
				}
				first, _ := again.Range(step + 1)
				again.Add(first, []float64{0.3, 0.1, -0.2})
				again.Add(first+1, nil)
				if !bytes.Equal(newtonState(t, again), state) {
					t.Fatal("a state holds something of the open step")
				}
				again = rebuild()
				if step%5 == 0 { // one that is in use
					again.feed(t, log, dptest.Zero())
				}
				again.Add(0, []float64{0.3, 0.1, -0.2}) // dropped
				if err := again.UnmarshalBinary(state); err != nil {
					t.Fatalf("%s, step %d: %v", name, step, err)
				}
				if most := straight.Sizes().State; int64(len(state)) > most {
					t.Fatalf("%s, step %d: a state of %d bytes, announced %d", name, step, len(state), most)
				}
			}
		}
	}
	t.Log(moments)
	for _, what := range []string{"in a bootstrap", "hard restart", "drift restart", "search repeated", "end of an epoch", "held"} {
		if moments[what] == 0 {
			t.Errorf("no state was taken at this moment: %s", what)
		}
	}
}

// TestNewtonManyEpochs restores a state after more epochs than lengths double.
func TestNewtonManyEpochs(t *testing.T) {
	t.Parallel()
	e, again := eventfulNewton(t, dp.ZeroOut), eventfulNewton(t, dp.ZeroOut)
	e.plan.Doublings, again.plan.Doublings = 0, 0
	log := eventful()[:2800] // before the jump
	noise := keyed(t, 1)
	for e.epoch < 70 {
		step := e.step + 1
		first, end := e.Range(step)
		for slot := first; slot < end; slot++ {
			e.Add(slot, log[slot%uint64(len(log))])
		}
		if _, err := e.Close(noise(step)); err != nil || e.restarts > 0 {
			t.Fatal(err, e.restarts)
		}
	}
	state := newtonState(t, e)
	if err := again.UnmarshalBinary(state); err != nil || !bytes.Equal(newtonState(t, again), state) {
		t.Fatalf("epoch %d: %v", e.epoch, err)
	}
}

// TestNewtonOrder adds the records of every step in another order: every bit is the
// same.
func TestNewtonOrder(t *testing.T) {
	t.Parallel()
	a, b := eventfulNewton(t, dp.ZeroOut), eventfulNewton(t, dp.ZeroOut)
	x, y := keyed(t, 1), keyed(t, 1)
	log := eventful()
	reversed := slices.Clone(log)
	for a.slots < 7000 {
		first, end := a.Range(a.step + 1)
		slices.Reverse(reversed[first:end])
		step := a.step + 1
		r, s := a.feed(t, log, x(step)), b.feed(t, reversed, y(step))
		text, _ := json.Marshal(r)
		other, _ := json.Marshal(s)
		if !bytes.Equal(text, other) || !bytes.Equal(newtonState(t, a), newtonState(t, b)) {
			t.Fatalf("step %d depends on the order of its records", step)
		}
	}
}

// TestNewtonStateRefused gives a state to estimators of other configurations, and
// damaged states to its own.
func TestNewtonStateRefused(t *testing.T) {
	t.Parallel()
	own, p := eventfulNewton(t, dp.Replace).cfg, dp.Params{Mu: newtonMu, Adjacency: dp.Replace}
	e := mustNewton(t, own, p)
	log, noise := eventful(), keyed(t, 3)
	for step := range uint64(40) {
		e.feed(t, log, noise(step+1))
	}
	state := newtonState(t, e)
	no, yes := false, true
	for name, alter := range map[string]func(*Config, *dp.Params){
		"clip_x":    func(c *Config, _ *dp.Params) { c.ClipX *= 1.01 },
		"clip_y":    func(c *Config, _ *dp.Params) { c.ClipY = 7 },
		"intercept": func(c *Config, _ *dp.Params) { c.Intercept = &yes },
		"target":    func(c *Config, _ *dp.Params) { c.Target = "u" },
		"columns":   func(c *Config, _ *dp.Params) { c.Columns = []string{"v", "u", "y"} },
		"radius":    func(c *Config, _ *dp.Params) { c.Radius = 6 },
		"intervals": func(c *Config, _ *dp.Params) { c.Intervals = &no },
		"level":     func(c *Config, _ *dp.Params) { c.Level = 0.9 },
		"horizon":   func(c *Config, _ *dp.Params) { c.Horizon = 1000 },
		"centre":    func(c *Config, _ *dp.Params) { c.Centre = []float64{1, 0, 0} },
		"scale":     func(c *Config, _ *dp.Params) { c.Scale = []float64{1, 2, 1} },
		"start":     func(c *Config, _ *dp.Params) { c.Start = []float64{0, 1} },
		"mu":        func(_ *Config, p *dp.Params) { p.Mu = 4.01 },
		"adjacency": func(_ *Config, p *dp.Params) { p.Adjacency = dp.ZeroOut },
		"bits":      func(_ *Config, p *dp.Params) { p.LatticeBits = 25 },
	} {
		c, q := own, p
		alter(&c, &q)
		if err := mustNewton(t, c, q).UnmarshalBinary(state); err == nil {
			t.Errorf("an estimator of another %s takes the state", name)
		}
	}
	refuse := func(what string, damaged []byte) {
		t.Helper()
		if err := mustNewton(t, own, p).UnmarshalBinary(damaged); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for n := range state {
		if n%7 == 0 {
			refuse(fmt.Sprintf("a state cut to %d bytes", n), state[:n])
		}
	}
	refuse("a longer state", append(slices.Clone(state), 0))
	for i := range 49 { // version, fingerprint, step, iteration, slots, phase
		if i < 25 || i >= 33 { // the last step may begin earlier
			b := slices.Clone(state)
			b[i] ^= 0x10
			refuse(fmt.Sprintf("another byte %d", i), b)
		}
	}
	patch := func(at int, v uint64) []byte {
		b := slices.Clone(state)
		binary.LittleEndian.PutUint64(b[at:], v)
		return b
	}
	const iterate = 1 + 8*6
	refuse("an iterate that is no number", patch(iterate, math.Float64bits(math.NaN())))
	refuse("a last clip norm of 0", patch(iterate+16, 0))
	refuse("more restarts than steps", patch(iterate+24, 1000))
	refuse("drift restarts for all steps", patch(iterate+32, 1000))
	refuse("slots of the presence below none", patch(iterate+56, math.Float64bits(-1)))
}

// FuzzNewtonState gives arbitrary bytes to UnmarshalBinary. What it takes it writes
// again as it was, and the next step closes or fails in order.
func FuzzNewtonState(f *testing.F) {
	var all []*Newton
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		e := eventfulNewton(f, adjacency)
		log, noise := eventful(), keyed(f, 3)
		for n := range uint64(80) {
			if n < 4 || n == 29 || n == 79 {
				f.Add(uint8(len(all)), newtonState(f, e))
			}
			e.feed(f, log, noise(n+1))
		}
		all = append(all, e)
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		e := all[int(which)%len(all)]
		if err := e.UnmarshalBinary(data); err != nil {
			return
		}
		if got := newtonState(t, e); !bytes.Equal(got, data) {
			t.Fatalf("a state of %d bytes is written again as %d others", len(data), len(got))
		}
		first, end := e.Range(e.step + 1)
		for slot := first; slot < min(end, first+100); slot++ {
			e.Add(slot, []float64{0.1, -3, 1})
		}
		if r, err := e.Close(dptest.Zero()); err == nil && r != nil && !allFinite(r) {
			t.Fatal("a release that is not finite")
		}
	})
}
