package sgd

import (
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/newton"
)

// An AMB is steered by more than its gradients: the clip norm follows a count, and a jump of the clip norm or a drift
// of the iterates restarts the averages. The streams in this file make all these rules act. A stream of null records
// alone, with noise that gives equal releases, must make them act too.

// steered is an AMB that counts the decisions of its rules. It has copies of the rules, and feeds each copy the input
// that the estimator should feed the original.
type steered struct {
	*AMB
	jumps, drifts, restarts int
	jump                    jump
	drift                   *drift

	// fault plants a fault after a gradient step. zeta is the clip norm to which the step would have led without noise.
	fault    func(s *steered, zeta float64)
	ownJump  jump
	ownDrift *drift
	exact    []float64 // an iterate without noise
}

func (s *steered) UnmarshalBinary(b []byte) error {
	s.jumps, s.drifts, s.restarts = 0, 0, 0
	s.jump, s.ownJump = jump{factor: s.plan.Jump}, jump{factor: s.plan.Jump}
	s.drift, s.ownDrift = newDrift(s.plan.DriftBlock, len(s.w)), newDrift(s.plan.DriftBlock, len(s.w))
	s.exact = make([]float64, len(s.w))
	return s.AMB.UnmarshalBinary(b)
}

func (s *steered) Close(n dp.Noise) (*dp.Release, error) {
	search, began, zeta := s.searching, s.began, s.descendExactly()
	r, err := s.AMB.Close(n)
	if err != nil || search {
		return r, err
	}
	jumped, drifted := s.jump.observe(s.used), s.drift.observe(s.w)
	if jumped {
		s.jumps++
	}
	if drifted {
		s.drifts++
	}
	if jumped || drifted {
		s.drift.reset()
		s.ownDrift.reset()
	}
	if s.began != began {
		s.restarts++
	}
	if s.fault != nil {
		s.fault(s, zeta)
		s.open()
	}
	return r, nil
}

// descendExactly moves the exact iterate by the open step, without noise. It returns the clip norm that follows from
// the exact count.
func (s *steered) descendExactly() (zeta float64) {
	if s.searching {
		return 0
	}
	first, end := s.Range(s.step + 1)
	b, g, p := end-first, &s.gradients, &s.plan
	nulls := s.nulls + int64(b-s.rows)
	part := float64(g.inside*p.Unit+nulls*p.Null) / (float64(p.Unit) * float64(b))
	step := p.rate(s.cfg.Eta0, b) * s.zeta / (float64(b) * p.One)
	for j, v := range g.integers() {
		s.exact[j] -= step * float64(v)
	}
	return s.zeta * newton.Exp(-s.cfg.Kappa*(part-s.cfg.ThresholdQuantile))
}

// eventfulAMB returns an AMB with so few records in a step that the noise hides them all.
func eventfulAMB(t *testing.T, adjacency dp.Adjacency) *AMB {
	t.Helper()
	c := variants()["track"]
	c.Radius = 30
	return recalibrated(t, c, dp.Params{Mu: 0.25, Adjacency: adjacency},
		func(p *AMBPlan) { p.DriftBlock, p.BatchMeans = 20, 10 })
}

// eventfulStream is a stream for an AMB: the targets become 40 times larger, then there are no records for a while, and
// in the end the coefficients move.
func eventfulStream(e *AMB) audit.Stream {
	x := make(audit.Stream, 260)
	rows := records(21, 8000)
	for i := range x {
		first, end := e.Range(uint64(i) + 1)
		for slot := first; slot < end; slot++ {
			row := slices.Clone(rows[slot])
			switch {
			case row == nil:
			case i >= 40 && i < 55:
				row[1] *= 40
			case i >= 55 && i < 75:
				row = nil
			case i >= 220:
				row[1] += 8 * row[0]
			}
			x[i] = append(x[i], row)
		}
	}
	return x
}

// nothing returns a stream with the same number of null records.
func nothing(x audit.Stream) audit.Stream {
	n := make(audit.Stream, len(x))
	for i := range x {
		n[i] = make([][]float64, len(x[i]))
	}
	return n
}

// TestSteering runs an eventful stream. Then it runs a stream of null records alone, with noise that gives the same
// releases. Jumps, drifts, slots, averages and clip norms must be equal, to the last bit. So none of them can depend on
// records directly.
func TestSteering(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		e := eventfulAMB(t, adjacency)
		m := &steered{AMB: e}
		x := eventfulStream(e)
		if err := auditSubject(t, e, m).Unlike(x, nothing(x)); err != nil {
			t.Errorf("%s: %v", adjacency, err)
		}
		t.Logf("%s: %d jumps, %d drifts, %d restarts", adjacency, m.jumps, m.drifts, m.restarts)
		if m.jumps == 0 || m.drifts == 0 || m.restarts != m.jumps+m.drifts {
			t.Errorf("%s: %d jumps, %d drifts and %d restarts", adjacency, m.jumps, m.drifts, m.restarts)
		}
	}
}

// TestSteeredCoupling is the sensitivity audit of an eventful stream. Neighbours differ in a record of the search,
// before the jump, at the jump, among null records, or before the drift. The audit includes all effects of the record
// on later releases.
func TestSteeredCoupling(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		e := eventfulAMB(t, adjacency)
		m := &steered{AMB: e}
		s, keys := auditSubject(t, e, m), audit.NewKeys([32]byte{13})
		x := eventfulStream(e)
		worst, jumps, drifts := 0.0, 0, 0
		for _, step := range []int{0, 30, 41, 60, 215} {
			small, large := []float64{3, 1e-9, 0}, []float64{-3, 1e9, 0}
			if adjacency == dp.ZeroOut {
				small = nil
			}
			distance, err := s.Coupling(x.Replace(step, 5, small), x.Replace(step, 5, large), keys)
			if err != nil {
				t.Fatalf("%s, step %d: %v", adjacency, step+1, err)
			}
			worst = max(worst, distance/s.Mu)
			jumps, drifts = jumps+m.jumps, drifts+m.drifts
		}
		t.Logf("%s: %d jumps, %d drifts; the worst pair is %.6f of μ apart", adjacency, jumps, drifts, worst)
		if jumps == 0 || drifts == 0 || worst > 1+1e-9 || worst < 0.5 {
			t.Errorf("%s: %d jumps, %d drifts; the worst pair is %.9f of μ apart", adjacency, jumps, drifts, worst)
		}
	}
}

// TestSteeringMutants feeds the rules exact counts and sums. A fault in the state shows in coupled neighbours; a fault
// in a decision shows in a stream without records.
func TestSteeringMutants(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name       string
		neighbours bool // coupled neighbours find it too
		plant      func(s *steered, zeta float64)
	}{
		{"none", false, nil},
		{"clip norm follows the exact count", true, func(s *steered, zeta float64) {
			s.setZeta(zeta, false)
		}},
		{"jump compares with thresholds of exact counts", true, func(s *steered, zeta float64) {
			s.AMB.jump.recent[len(s.AMB.jump.recent)-1] = zeta
		}},
		{"jump of the threshold of exact counts", false, func(s *steered, zeta float64) {
			if s.ownJump.observe(zeta) {
				s.restart()
			}
		}},
		{"means of a drift are of exact iterates", true, func(s *steered, zeta float64) {
			copy(s.AMB.drift.last, s.exact)
		}},
		{"drift of exact iterates", false, func(s *steered, zeta float64) {
			if s.ownDrift.observe(s.exact) {
				s.restart()
				s.ownDrift.reset()
			}
		}},
	} {
		e := eventfulAMB(t, dp.ZeroOut)
		m := &steered{AMB: e, fault: fault.plant}
		s := auditSubject(t, e, m)
		x := eventfulStream(e)
		unlike := s.Unlike(x, nothing(x))
		distance, alike := s.Coupling(x.Replace(30, 5, []float64{3, 1, 0}), x.Replace(30, 5, nil),
			audit.NewKeys([32]byte{13}))
		t.Logf("%s: no records: %v; neighbours, %.4f of μ: %v", fault.name, unlike, distance/s.Mu, alike)
		if (unlike != nil) != (fault.plant != nil) || (alike != nil) != fault.neighbours {
			t.Errorf("%s: no records: %v; neighbours: %v", fault.name, unlike, alike)
		}
	}
}
