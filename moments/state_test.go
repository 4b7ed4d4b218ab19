package moments

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
)

// contractOf returns the contract of an estimator whose step t gets the records s[t−1].
func contractOf(t testing.TB, c Config, p dp.Params, s audit.Stream) estimatortest.Contract[*Estimator] {
	t.Helper()
	return estimatortest.Contract[*Estimator]{
		New: estimatortest.Adopted(t, mustNew(t, c, p).Plan(),
			func(kept Plan) (*Estimator, error) { return Adopt(c, p, kept) }),
		Steps: uint64(len(s)),
		Rows:  func(step, _, _ uint64) [][]float64 { return s[step-1] },
		Noise: func(t testing.TB) func(uint64) dp.Noise { return keyed(t, 5) },
		Size:  func(e *Estimator) int64 { return e.Sizes().State },
	}
}

// TestRestart interrupts runs of every method, workload and factorization.
func TestRestart(t *testing.T) {
	t.Parallel()
	steps := uint64(20)
	if os.Getenv("STREAMDP_SLOW") != "" {
		steps = 40
	}
	for _, c := range everything(steps) {
		t.Run(c.Method+"/"+c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			c.Clip, c.Columns = 1.4, dptest.Columns(3)
			contract := contractOf(t, c, dp.Params{Mu: 0.8, Adjacency: dp.Replace},
				within(auditStream(int(steps), 3), c.Step))
			e, states := contract.Restart(t)
			if e.plan.Factorization.Kind != "phased" && e.plan.second().Kind != "phased" &&
				int64(len(states[steps-1])) < e.Sizes().State {
				t.Errorf("a state has %d bytes, announced %d", len(states[steps-1]), e.Sizes().State)
			}
		})
	}
}

// TestRestartInABlock interrupts a run in the middle of a step whose squares are rounded every 13 records. After the
// restart the blocks are counted from the step's start again.
func TestRestartInABlock(t *testing.T) {
	t.Parallel()
	s := make(audit.Stream, 3)
	for i, records := range auditStream(300, 8) {
		if s[i%3] = append(s[i%3], records...); len(s[i%3]) > 30 {
			s[i%3] = s[i%3][:30]
		}
	}
	c := contractOf(t, Config{Clip: 1.1, Columns: dptest.Columns(8), Step: 30, Factorization: "phased"},
		dp.Params{Mu: 40, Adjacency: dp.Replace}, s)
	if e, _ := c.Restart(t); e.block != 13 {
		t.Fatalf("a block has %d records", e.block)
	}
}

// TestDamaged damages a state of every method, workload and factorization. Without STREAMDP_SLOW=1 it takes only every
// second of them.
func TestDamaged(t *testing.T) {
	t.Parallel()
	const steps = 6
	for i, c := range everything(10) {
		if i%2 == 1 && os.Getenv("STREAMDP_SLOW") == "" {
			continue
		}
		t.Run(c.Method+"/"+c.Factorization+"/"+c.Workload, func(t *testing.T) {
			t.Parallel()
			c.Clip, c.Columns = 1.4, dptest.Columns(2)
			contract := contractOf(t, c, dp.Params{Mu: 0.8, Adjacency: dp.Replace},
				within(auditStream(steps, 2), c.Step))
			states, _ := contract.Run(t, nil)
			contract.Damaged(t, states[steps-1])
		})
	}
}

// TestStateRefused checks that estimators of other configurations refuse a state, and that the estimator itself refuses
// damaged states.
func TestStateRefused(t *testing.T) {
	t.Parallel()
	p := dp.Params{Mu: 0.8, Adjacency: dp.Replace}
	own := Config{Clip: 1.4, Columns: dptest.Columns(3), Step: 4, Workload: "window", Window: 3, Factorization: "blt",
		Horizon: 30}
	contract := contractOf(t, own, p, auditStream(5, 3))
	states, _ := contract.Run(t, nil)
	state := states[4]
	others := map[string]*Estimator{}
	for name, alter := range map[string]func(*Config, *dp.Params){
		"clip":          func(c *Config, _ *dp.Params) { c.Clip *= 1.01 },
		"columns":       func(c *Config, _ *dp.Params) { c.Columns = dptest.Columns(2) },
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
		others[name] = mustNew(t, c, q)
	}
	estimatortest.Foreign(t, state, others)
	refuse := func(what string, damaged []byte) {
		t.Helper()
		if err := mustNew(t, own, p).UnmarshalBinary(damaged); err == nil {
			t.Errorf("a state with %s was accepted", what)
		}
	}
	const weight, total = 17, 17 + 3*8
	patch := func(at int, v uint64, order binary.ByteOrder) []byte {
		b := slices.Clone(state)
		order.PutUint64(b[at:], v)
		return b
	}
	for i := 9; i < 17; i++ { // the bytes of the step
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
	refuse("a prediction beyond all noise", patch(shaper+33, 1<<62-1, binary.BigEndian))
	before := mustNew(t, own, p)
	fresh := estimatortest.State(t, before)
	b := slices.Clone(fresh)
	b[total] = 1
	refuse("a row of a step that does not exist", b)
	b = slices.Clone(fresh)
	b[weight] = 1
	refuse("records of a step that does not exist", b)

	exponential := mustNew(t,
		Config{Clip: 1, Columns: dptest.Columns(1), Step: 4, Workload: "exponential", Decay: 0.5}, p)
	start := estimatortest.State(t, exponential)
	for _, sum := range []float64{-1, 8.1, math.NaN(), math.Inf(1)} {
		binary.LittleEndian.PutUint64(start[weight:], math.Float64bits(sum))
		if err := exponential.UnmarshalBinary(start); err == nil {
			t.Errorf("a weight of %g was accepted", sum)
		}
	}
	mean := mustNew(t, Config{Clip: 1, Columns: dptest.Columns(1), Step: 4, Factorization: "identity", Horizon: 7}, p)
	start = estimatortest.State(t, mean)
	start[weight] = 1
	if err := mean.UnmarshalBinary(start); err == nil {
		t.Error("a record before the first step was accepted")
	}
	for _, steps := range []byte{7, 8} { // change the number in the state and in the states of all shapers
		start[9], start[weight] = steps, 0
		for i := range 3 {
			start[weight+8+16+8+24+i*(33+16+8)] = steps
		}
		if err := mean.UnmarshalBinary(start); (err == nil) != (steps == 7) {
			t.Errorf("a state after %d steps of 7: %v", steps, err)
		}
	}
}

// TestRowOfShaperState pins the position of the number of steps in every shaper's state.
func TestRowOfShaperState(t *testing.T) {
	t.Parallel()
	for _, c := range everything(5) {
		c.Clip, c.Columns, c.Step = 1, dptest.Columns(2), 1
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

// FuzzState gives arbitrary bytes to UnmarshalBinary.
func FuzzState(f *testing.F) {
	const steps = 6
	var all []estimatortest.Contract[*Estimator] // below 256
	for _, c := range everything(steps) {
		c.Clip, c.Columns = 1.4, dptest.Columns(2)
		all = append(all,
			contractOf(f, c, dp.Params{Mu: 0.8, Adjacency: dp.Replace}, within(auditStream(3, 2), c.Step)))
	}
	estimatortest.Fuzz(f, all, func(c *estimatortest.Contract[*Estimator]) [][]byte {
		states, _ := c.Run(f, nil)
		return append(states, estimatortest.State(f, c.New(f)))
	})
}
