package sgd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// newtonLogs returns logs of three columns with events in them. Each goes through searches, epochs, and the event that
// its name states.
func newtonLogs(intercept bool) map[string][][]float64 {
	drifting := eventful(intercept)
	for i, row := range drifting {
		if row != nil && i > 2800 {
			drifting[i] = []float64{row[0], row[1], row[2] / 60} // the scale before the jump
			if i > 6000 {
				drifting[i][2] += 0.4 * row[0] // less than a jump
			}
		}
	}
	late := eventful(intercept)
	clear(late[:1500]) // the first searches see no records
	clear(late[5000:6500])
	few := eventful(intercept)
	for i := range few {
		if i%12 != 0 {
			few[i] = nil
		}
	}
	mode := eventful(intercept)
	for i, row := range mode {
		if row != nil && i%3 > 0 {
			row[2] = 40
		}
	}
	return map[string][][]float64{
		"hard restart": eventful(intercept), "drift": drifting, "records later": late, "few records": few,
		"none":                make([][]float64, 12000),
		"one target for most": mode,
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

// newtonContract returns the contract of an estimator over a log. It closes the steps whose last slot is before slot
// `last`.
func newtonContract(t testing.TB, c Config, p dp.Params, log [][]float64, last uint64) estimatortest.Contract[*Newton] {
	t.Helper()
	contract := estimatortest.Contract[*Newton]{
		New: estimatortest.Adopted(t, mustNewton(t, c, p).Plan(),
			func(kept NewtonPlan) (*Newton, error) { return AdoptNewton(c, p, kept) }),
		Rows:  func(_, first, end uint64) [][]float64 { return log[first:end] },
		Noise: func(t testing.TB) func(uint64) dp.Noise { return keyed(t, 5) },
		Size:  func(e *Newton) int64 { return e.Sizes().State },
	}
	e, noise := contract.New(t), contract.Noise(t)
	for ; e.slots < last; contract.Steps++ {
		e.feed(t, log, noise(e.step+1))
	}
	return contract
}

// TestNewtonRestart covers states inside a bootstrap, between a hard restart and its bootstrap, and at the end of an
// epoch.
func TestNewtonRestart(t *testing.T) {
	t.Parallel()
	moments := map[string]int{}
	for _, intercept := range []bool{false, true} {
		for name, log := range newtonLogs(intercept) {
			c := Config{Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 20, Intercept: &intercept,
				Centre: []float64{0, 0.5, 1}, Scale: []float64{1, 2, 3}}
			contract := newtonContract(t, c, dp.Params{Mu: newtonMu, Adjacency: dp.Replace}, log, 11000)
			var hard, drifts, repeats uint64
			epoch := 0
			contract.After = func(e *Newton, _ []byte, r *dp.Release) {
				if r != nil && len(r.Values) > len(e.Sample().Values) {
					t.Fatalf("a release of %d values, announced %d", len(r.Values), len(e.Sample().Values))
				}
				for what, happened := range map[string]bool{
					"in a bootstrap": e.phase == searchScale, "before a median": e.phase == searchMedian,
					"about a centre": e.phase == descent && !zeros(e.centre),
					"hard restart":   e.restarts > hard, "drift restart": e.drifts > drifts,
					"search repeated": e.repeats > repeats, "behind a mode": e.mode, "end of an epoch": e.epoch > epoch,
					"held": e.phase == descent && !e.believed,
				} {
					if happened {
						moments[what]++
					}
				}
				hard, drifts, repeats, epoch = e.restarts, e.drifts, e.repeats, e.epoch
			}
			t.Run(fmt.Sprintf("%s/%v", name, intercept), func(t *testing.T) { contract.Restart(t) })
		}
	}
	t.Log(moments)
	for _, what := range []string{"in a bootstrap", "before a median", "about a centre", "hard restart",
		"drift restart", "search repeated", "behind a mode", "end of an epoch", "held"} {
		if moments[what] == 0 {
			t.Errorf("no state was taken at this moment: %s", what)
		}
	}
}

// TestNewtonDamaged damages states of every phase, including those before a restart and before the end of an epoch.
func TestNewtonDamaged(t *testing.T) {
	t.Parallel()
	for _, intercept := range withIntercept() {
		e := eventfulNewton(t, dp.Replace, intercept)
		c := newtonContract(t, e.cfg, e.params, eventful(intercept), 6000)
		states, _ := c.Run(t, nil)
		taken := map[string]bool{}
		for i, state := range states {
			if err := e.UnmarshalBinary(state); err != nil {
				t.Fatal(err)
			}
			what := fmt.Sprintf("phase %d, epoch %d, its last step %v, tries %v", e.phase, min(e.epoch, 2),
				e.phase == descent && e.done+1 == e.plan.steps(e.epoch), e.tries > 0)
			if taken[what] {
				continue
			}
			taken[what] = true
			t.Run(fmt.Sprintf("intercept %v, step %d", intercept, i+1), func(t *testing.T) { c.Damaged(t, state) })
		}
		t.Logf("%d states: %v", len(taken), taken)
		if len(taken) < 6 {
			t.Errorf("states of only %d kinds", len(taken))
		}
	}
}

// TestNewtonManyEpochs restores a state after more epochs than the number of doublings.
func TestNewtonManyEpochs(t *testing.T) {
	t.Parallel()
	e, again := eventfulNewton(t, dp.ZeroOut, false), eventfulNewton(t, dp.ZeroOut, false)
	e.plan.Doublings, again.plan.Doublings = 0, 0
	log := eventful(false)[:2800] // before the jump
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
	state := estimatortest.State(t, e)
	if err := again.UnmarshalBinary(state); err != nil || !bytes.Equal(estimatortest.State(t, again), state) {
		t.Fatalf("epoch %d: %v", e.epoch, err)
	}
}

// TestNewtonOrder adds the records of every step in another order. Every bit must be equal.
func TestNewtonOrder(t *testing.T) {
	t.Parallel()
	a, b := eventfulNewton(t, dp.ZeroOut, false), eventfulNewton(t, dp.ZeroOut, false)
	x, y := keyed(t, 1), keyed(t, 1)
	log := eventful(false)
	reversed := slices.Clone(log)
	for a.slots < 7000 {
		first, end := a.Range(a.step + 1)
		slices.Reverse(reversed[first:end])
		step := a.step + 1
		r, s := a.feed(t, log, x(step)), b.feed(t, reversed, y(step))
		text, _ := json.Marshal(r)
		other, _ := json.Marshal(s)
		if !bytes.Equal(text, other) || !bytes.Equal(estimatortest.State(t, a), estimatortest.State(t, b)) {
			t.Fatalf("step %d depends on the order of its records", step)
		}
	}
}

// TestNewtonStateRefused checks that estimators with other configurations refuse a state, and the estimator itself
// refuses a damaged one.
func TestNewtonStateRefused(t *testing.T) {
	t.Parallel()
	own, p := eventfulNewton(t, dp.Replace, false).cfg, dp.Params{Mu: newtonMu, Adjacency: dp.Replace}
	e := mustNewton(t, own, p)
	log, noise := eventful(false), keyed(t, 3)
	for step := range uint64(40) {
		e.feed(t, log, noise(step+1))
	}
	state := estimatortest.State(t, e)
	no, yes := false, true
	others := map[string]*Newton{}
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
		others[name] = mustNewton(t, c, q)
	}
	estimatortest.Foreign(t, state, others)
	refuse := func(what string, damaged []byte) {
		t.Helper()
		if err := mustNewton(t, own, p).UnmarshalBinary(damaged); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	for i := 9; i < 49; i++ { // step, iteration, slots, phase
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

// TestNewtonUnseen refuses a state that repeats a search although, according to the state, no record was seen: the
// search would have no slots.
func TestNewtonUnseen(t *testing.T) {
	t.Parallel()
	e := eventfulNewton(t, dp.Replace, false)
	c := newtonContract(t, e.cfg, e.params, newtonLogs(false)["records later"], 8000)
	found := false
	c.After = func(e *Newton, state []byte, _ *dp.Release) {
		if e.phase == descent || e.tries == 0 {
			return
		}
		found = true
		const long = 1 + 8*6 + 2*8 + 4*8 + 3*8
		unseen := slices.Clone(state)
		clear(unseen[long : long+3*8])
		if err := c.New(t).UnmarshalBinary(unseen); err == nil {
			t.Errorf("step %d: no error for a repeated search without records", e.step)
		}
	}
	c.Restart(t)
	if !found {
		t.Error("no search was repeated")
	}
}

// FuzzNewtonState gives arbitrary bytes to UnmarshalBinary.
func FuzzNewtonState(f *testing.F) {
	var all []estimatortest.Contract[*Newton]
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		intercept := adjacency == dp.Replace
		e := eventfulNewton(f, adjacency, intercept)
		all = append(all, newtonContract(f, e.cfg, e.params, eventful(intercept), 8000))
	}
	estimatortest.Fuzz(f, all, func(c *estimatortest.Contract[*Newton]) (some [][]byte) {
		states, _ := c.Run(f, nil)
		for n, state := range states {
			if n < 4 || n == 29 || n == len(states)-1 {
				some = append(some, state)
			}
		}
		// An eigenvector that is far too long. With such a state the next record would cause a panic.
		long := slices.Clone(some[len(some)-1])
		binary.LittleEndian.PutUint64(long[217:], math.Float64bits(math.MaxFloat64))
		return append(some, long, estimatortest.State(f, c.New(f)))
	})
}
