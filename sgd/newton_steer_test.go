package sgd

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// A Newton is steered by more than its gradients: by n̂, by the share of slots with records, by jumps of the clip norm,
// and by drifts. Jumps and drifts repeat searches or restart averages. The logs in this file make all these rules act.
// A log of null records alone, with noise that gives equal releases, must make them act too.

// loud returns factors on the noise of arrays. They are so large that the noise hides all records of a step or of an
// epoch. Decisions are still those for the planned batches, because the first run has no noise.
func loud(a dp.Adjacency) map[string][]float64 {
	return map[string][]float64{
		"newton/boot": {10}, "newton/locate": {10}, "newton/count": {20, 5}, "newton/grad": {100},
		"newton/hist": {64 / math.Sqrt(a.Factor())}, "newton/gram": {300},
	}
}

// loudNewton returns an eventfulNewton with this noise.
func loudNewton(t *testing.T, adjacency dp.Adjacency, intercept bool) *Newton {
	t.Helper()
	c := eventfulNewton(t, adjacency, intercept).cfg
	p := dp.Params{Mu: newtonMu, Adjacency: adjacency}
	plan, factor, err := resolveNewton(&c, p)
	if err != nil {
		t.Fatal(err)
	}
	for array, noise := range map[string][]*float64{
		"newton/boot": {&plan.SearchNoise}, "newton/locate": {&plan.LocateNoise},
		"newton/count": {&plan.CountNoise, &plan.NullNoise},
		"newton/grad":  {&plan.GradientNoise}, "newton/hist": {&plan.HistogramNoise},
	} {
		for i, sd := range noise {
			*sd *= loud(adjacency)[array][i]
		}
	}
	plan.GramMu /= loud(adjacency)["newton/gram"][0]
	e, err := buildNewton(c, p, *plan, factor)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// loudSubject is newtonSubject for this noise.
func loudSubject(t *testing.T, m *steeredNewton) *audit.Subject {
	t.Helper()
	s := newtonSubject(t, m.Newton, m)
	quiet, factors := s.Array, loud(m.params.Adjacency)
	s.Array = func(name string, step uint64) (audit.Array, bool) {
		a, ok := quiet(name, step)
		switch name {
		case "newton/boot", "newton/hist":
			a.Deviations = []float64{a.Deviations[0] * factors[name][0]}
		case "newton/count": // the first factor belongs to the plan
			a.Deviations = []float64{a.Deviations[0], a.Deviations[1] * factors[name][1]}
		case "newton/gram": // the matrix has its own lattice
			squared, d := m.plan.norms()*m.squared, len(m.w)
			lattice := math.Exp2(math.Floor(math.Log2(squared)) - float64(m.params.Bits()))
			sd := math.Sqrt(m.params.Adjacency.Factor()/gramShare) / newtonMu * factors[name][0] * (squared +
				float64(d)*lattice) / lattice
			a.Deviations = nil
			for i := range d {
				a.Deviations = append(a.Deviations, sd)
				for range d - i - 1 {
					a.Deviations = append(a.Deviations, sd/math.Sqrt2)
				}
			}
		}
		return a, ok
	}
	return s
}

// steeredNewton is a Newton whose runs alternate: odd runs take records from its log, even runs take null records. It
// counts the decisions of its rules.
type steeredNewton struct {
	*Newton
	log   [][]float64
	runs  int
	alone bool   // even runs get all records except one
	at    uint64 // slot of the record that differs

	held, slow, repeats, restarts, drifts, abandoned, epochs, modes int

	// fault plants a fault after a gradient step. x is the step without noise.
	fault func(m *steeredNewton, before *Newton, x *exactNewton)
	// Copies of the rules, which the fault feeds.
	ownPresence presence
	ownJump     jump
	ownWander   wander
	ownW        []float64 // iterate without noise since the last restart or drift
	jumps       []float64 // the plan's Jumps
}

// exactNewton is a step without noise.
type exactNewton struct {
	nulls, zeta float64
	y           []float64 // w + Wu/b
}

func (m *steeredNewton) UnmarshalBinary(b []byte) error {
	m.runs++
	m.held, m.slow, m.repeats, m.restarts, m.drifts, m.abandoned, m.epochs, m.modes = 0, 0, 0, 0, 0, 0, 0, 0
	m.ownPresence, m.ownJump, m.ownWander, m.ownW = full(float64(m.plan.batch(0))), jump{}, newWander(len(m.w)), nil
	return m.Newton.UnmarshalBinary(b)
}

func (m *steeredNewton) Close(n dp.Noise) (*dp.Release, error) {
	first, end := m.Range(m.step + 1)
	for slot := first; slot < end; slot++ {
		row := m.log[slot]
		// In a long search only a few records may differ.
		if m.runs%2 == 0 && (slot == m.at || !m.alone && (m.phase == descent || slot < first+64)) {
			row = nil
		}
		m.Newton.Add(slot, row)
	}
	before, x := *m.Newton, m.exact()
	before.w = slices.Clone(m.w)
	r, err := m.Newton.Close(n)
	if m.mode {
		m.modes++
	}
	if err != nil || before.phase != descent {
		return r, err
	}
	switch {
	case m.repeats < int(m.Newton.repeats):
		m.repeats = int(m.Newton.repeats)
	case m.restarts < int(m.Newton.restarts):
		m.restarts = int(m.Newton.restarts)
		if zeros(m.w) {
			m.abandoned++
		}
	case m.epoch == before.epoch && m.done == before.done:
		m.held++
	case m.seen.share() < few:
		m.slow++
	}
	if m.epoch > before.epoch && m.white != before.white {
		m.epochs++
	}
	m.drifts = int(m.Newton.drifts)
	if m.phase != descent || before.drifts != m.Newton.drifts || m.ownW == nil {
		m.ownWander.reset()
		m.ownW = slices.Clone(m.w)
	}
	if m.phase == descent && m.fault != nil {
		if m.epoch != before.epoch {
			m.ownWander.begin()
		}
		if m.done <= 1 {
			m.ownJump = jump{}
		}
		m.fault(m, &before, x)
		m.open()
	}
	return r, nil
}

// exact returns the open step without noise.
func (m *steeredNewton) exact() *exactNewton {
	x := &exactNewton{}
	if m.phase != descent {
		return x
	}
	m.flush()
	b := float64(m.size())
	x.nulls = float64(m.nulls) + b - float64(m.added)
	part := (float64(m.gradients.inside) + countedShare*x.nulls) / b
	x.zeta = newton.Clip(m.zeta*newton.Exp(-gain*(part-countedShare)), zetaLeast, zetaMost)
	u := make([]float64, len(m.w))
	for j, k := range m.gradients.integers() {
		u[j] = float64(k) * (m.zeta / m.plan.One)
	}
	x.y = make([]float64, len(m.w))
	m.white.Apply(x.y, u)
	for j := range x.y {
		x.y[j] = m.w[j] + x.y[j]/b
	}
	return x
}

// steeredLogs returns logs that together make all rules act.
func steeredLogs(intercept bool) map[string][][]float64 {
	logs := newtonLogs(intercept)
	twice := eventful(intercept)
	for i, row := range twice {
		if row != nil && i > 5600 {
			row[2] *= 60
		}
	}
	logs["two jumps"] = twice
	for name, log := range logs {
		logs[name] = append(log, make([][]float64, 90_000)...) // repeated searches are long
	}
	return logs
}

// unlike runs the log, and then null records with noise that gives the same releases. It returns an error if the runs
// differ.
func (m *steeredNewton) unlike(t *testing.T) error {
	t.Helper()
	stream := make(audit.Stream, 170)
	return loudSubject(t, m).Unlike(stream, stream)
}

// TestNewtonSteering runs an eventful log. Then it runs null records alone, with noise that gives the same releases.
// Slots, whitenings, jumps, drifts, repeated searches and the steps that change nothing must be equal, to the last bit.
// So none of these can depend on records directly.
func TestNewtonSteering(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, intercept := range []bool{false, true} {
			all := map[string]int{}
			for name, log := range steeredLogs(intercept) {
				m := &steeredNewton{Newton: loudNewton(t, adjacency, intercept), log: log}
				if err := m.unlike(t); err != nil {
					t.Errorf("%s, intercept %t, %s: %v", adjacency, intercept, name, err)
				}
				t.Logf(
					"%s, intercept %t, %s: %d epochs, %d held, %d slow, %d repeats, %d restarts, %d abandoned, %d "+
						"drifts, %d modes", adjacency, intercept, name,
					m.epochs, m.held, m.slow, m.repeats, m.restarts, m.abandoned, m.drifts, m.modes)
				if intercept {
					all["a mode"] += m.modes
				}
				for rule, n := range map[string]int{
					"a whitening": m.epochs, "a step without records": m.held, "a slow step": m.slow,
					"a repeated search": m.repeats,
					"a jump":            m.restarts - m.abandoned, "a jump after a jump": m.abandoned,
					"a drift": m.drifts,
				} {
					all[rule] += n
				}
			}
			for rule, n := range all {
				if n == 0 {
					t.Errorf("%s, intercept %t: no log leads to %s", adjacency, intercept, rule)
				}
			}
		}
	}
}

// TestNewtonSteeringMutants feeds the rules exact counts and sums. A fault in the state shows in a neighbour with one
// record less; a fault in a decision shows in a stream without records.
func TestNewtonSteeringMutants(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name, log string
		neighbour bool // the neighbour finds it too
		plant     func(m *steeredNewton, before *Newton, x *exactNewton)
	}{
		{"none", "hard restart", false, nil},
		{"records are followed by the exact count", "records later", true,
			func(m *steeredNewton, before *Newton, x *exactNewton) {
				b := float64(before.size())
				m.ownPresence.observe(b, b-x.nulls, m.plan.NullNoise/float64(m.plan.Unit))
				m.seen = m.ownPresence
			}},
		{"a step holds where the exact count shows no records", "records later", false,
			func(m *steeredNewton, before *Newton, x *exactNewton) {
				b := float64(before.size())
				if !m.ownPresence.observe(b, b-x.nulls, m.plan.NullNoise/float64(m.plan.Unit)) {
					copy(m.w, before.w)
					m.zeta = before.zeta
				}
			}},
		{"clip norm follows the exact count", "drift", true, func(m *steeredNewton, before *Newton, x *exactNewton) {
			if m.epoch == before.epoch && m.done > before.done {
				m.zeta = x.zeta
			}
		}},
		{"jump compares with clip norms of exact counts", "hard restart", true,
			func(m *steeredNewton, _ *Newton, x *exactNewton) {
				if n := len(m.Newton.jump.recent); n > 0 {
					m.Newton.jump.recent[n-1] = x.zeta
				}
			}},
		{"jump of the clip norm of exact counts", "hard restart", false,
			func(m *steeredNewton, _ *Newton, x *exactNewton) {
				m.ownJump.factor = m.jumps[min(m.epoch, len(m.jumps)-1)]
				if m.ownJump.observe(x.zeta) {
					m.restart()
				}
			}},
		{"means that wander are of exact sums", "drift", true, func(m *steeredNewton, _ *Newton, x *exactNewton) {
			copy(m.Newton.wander.last, x.y)
		}},
		{"drift of iterates of exact sums", "drift", false, func(m *steeredNewton, before *Newton, x *exactNewton) {
			y := slices.Clone(x.y)
			for j := range y {
				y[j] += m.ownW[j] - before.w[j]
				m.ownW[j] += m.plan.rate(before.epoch) * (x.y[j] - before.w[j])
			}
			if m.ownWander.observe(y, before.white) != nil {
				m.blocks.reset()
				m.Newton.drifts++
				m.ownWander.reset()
			}
		}},
	} {
		log := steeredLogs(true)[fault.log]
		m := &steeredNewton{Newton: loudNewton(t, dp.ZeroOut, true), log: log, at: 4001, fault: fault.plant}
		m.jumps = slices.Clone(m.plan.Jumps)
		// The fault uses exact counts instead of released ones
		if fault.name == "jump of the clip norm of exact counts" {
			for k := range m.plan.Jumps {
				m.plan.Jumps[k] = 1e300
			}
		}
		start, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		unlike := m.unlike(t)
		if err := m.Newton.UnmarshalBinary(start); err != nil {
			t.Fatal(err)
		}
		m.alone = true
		alike := m.unlike(t)
		t.Logf("%s: no records: %v; a record less: %v", fault.name, unlike, alike)
		if (unlike != nil) != (fault.plant != nil) || (alike != nil) != fault.neighbour {
			t.Errorf("%s: no records: %v; a record less: %v", fault.name, unlike, alike)
		}
	}
}

// TestGramBlocks checks that the blocks in which products are rounded end at public positions. So a record whose
// products all round to 0 changes nothing, whether it is present or not. The planted fault counts only records that are
// present.
func TestGramBlocks(t *testing.T) {
	t.Parallel()
	for _, intercept := range []bool{false, true} {
		for _, fault := range []bool{false, true} {
			products := func(tiny []float64) []byte {
				e := mustNewton(t,
					Config{Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 20, Intercept: &intercept},
					dp.Params{Mu: newtonMu, Adjacency: dp.ZeroOut, LatticeBits: 30})
				for log := eventful(intercept); e.phase != descent; {
					e.feed(t, log, dptest.Zero())
				}
				if e.gram.Block() > 16 {
					t.Fatalf("blocks are of %d rows", e.gram.Block())
				}
				log := eventful(intercept)
				first, end := e.Range(e.step + 1)
				for slot := first; slot < end; slot++ {
					row := log[slot]
					if slot == first+1 {
						row = tiny
					}
					if fault {
						e.edge = math.MaxUint64
					}
					e.Add(slot, row)
				}
				if _, err := e.Close(dptest.Zero()); err != nil {
					t.Fatal(err)
				}
				w := &bin.Writer{}
				e.gram.AppendTo(w)
				return w.B[8:] // skip the number of rows
			}
			same := bytes.Equal(products([]float64{1e-12, 0, 1}), products(nil))
			if intercept { // the constant is not small, so its own entry may move
				same = bytes.Equal(products([]float64{1e-12, 0, 1})[:16], products(nil)[:16])
			}
			if same == fault {
				t.Errorf("intercept %t, fault %t: equal products: %t", intercept, fault, same)
			}
		}
	}
}
