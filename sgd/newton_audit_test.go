package sgd

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/clipgrad"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// logged is a Newton that takes its records from a log, so that a neighbouring stream can differ in any slot, wherever
// the steps are. An audit adds one record in the first step; it goes to slot `at`.
type logged struct {
	*Newton
	log    [][]float64
	at     uint64
	record []float64
}

func (l *logged) Add(_ uint64, row []float64) { l.record = row }

func (l *logged) fill() {
	first, end := l.Range(l.step + 1)
	for slot := first; slot < end; slot++ {
		row := l.log[slot]
		if slot == l.at {
			row = l.record
		}
		l.Newton.Add(slot, row)
	}
}

func (l *logged) Close(n dp.Noise) (*dp.Release, error) {
	l.fill()
	return l.Newton.Close(n)
}

// newtonSubject describes an estimator to the audits. A mutant, if given, takes the estimator's place.
func newtonSubject(t testing.TB, e *Newton, m audit.Mechanism) *audit.Subject {
	t.Helper()
	c, err := audit.Stored(e.plan.Factorization, matfact.Workload{Kind: "sum"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return audit.Online{
		Mechanism: m, Closed: e.step, Mu: e.plan.Mu, Adjacency: e.params.Adjacency, Bits: e.params.Bits(),
		Features: len(e.w),
		C:        c, Gradient: e.plan.GradientNoise, Count: e.plan.CountNoise, Locate: e.plan.LocateNoise,
		Course: func() (float64, uint64, float64) {
			quantile, slots, squared := e.Opened()
			if m, ok := m.(*mutant); ok && m.old > 0 {
				squared = m.old
			}
			return quantile, slots, squared
		},
		Released: e.AppendReleased,
	}.Subject()
}

// newtonMu is a budget with which steps have few slots.
const newtonMu = 4

// eventful returns a log of records with two features and a target. On this log, a Newton with newtonMu takes
// eventfulSteps steps: three epochs, a fourth that ends with a hard restart, new searches and two more epochs. With an
// intercept all values are far from 0.
const eventfulSteps = 86

func eventful(intercept bool) [][]float64 {
	l := newLinear(3, 2, 0.3)
	log := make([][]float64, 12000)
	for i := range log {
		if i%9 == 4 {
			continue
		}
		x := make([]float64, 3)
		x[2] = l.draw(x[:2])
		if intercept {
			x[0] += 6
			x[1] -= 3
			x[2] += 5
		}
		if i > 2800 {
			x[2] *= 60
		}
		log[i] = x
	}
	return log
}

func eventfulNewton(t testing.TB, adjacency dp.Adjacency, intercept bool) *Newton {
	t.Helper()
	return mustNewton(t, Config{Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 20, Intercept: &intercept},
		dp.Params{Mu: newtonMu, Adjacency: adjacency})
}

// place is a position of the eventful log, with the state of a run there.
type place struct {
	name     string
	slot     uint64
	zeta     float64   // clip norm of the step
	w        []float64 // iterate of the step
	e        newton.Whitening
	centre   []float64
	constant float64
}

// places runs the log with negligible noise and returns its places.
func places(t testing.TB, s *audit.Subject, m *logged) (all []place) {
	t.Helper()
	e := m.Newton
	seen := map[string]bool{}
	note := func(name string, slot uint64) {
		if seen[name] {
			return
		}
		seen[name] = true
		p := place{name: name, slot: slot, zeta: e.zeta, w: slices.Clone(e.w), centre: e.centre, constant: e.constant}
		if e.white != nil {
			p.e = *e.white
		}
		all = append(all, p)
	}
	for range eventfulSteps {
		first, end := e.Range(e.step + 1)
		switch {
		case e.phase == searchNorm && e.restarts == 0:
			note("first search", first+7)
		case e.phase == searchMedian && e.restarts == 0:
			note("search for the median", first+9)
		case e.phase == searchMedian:
			note("search for the median after a restart", end-1)
		case e.phase == searchScale && e.restarts > 0:
			note("second search after a restart", end-1)
		case e.phase != descent:
		case e.restarts == 0 && e.epoch == 0:
			note("first step", first+1)
		case e.restarts == 0 && e.epoch == 1 && e.done == 3:
			note("step of the second epoch", first+11)
		case e.restarts == 0 && e.epoch == 2 && e.done+1 == e.plan.steps(2):
			note("last slot of the third epoch", end-1)
		case e.restarts == 0 && e.epoch == 3 && e.done == 0:
			note("first slot after it", first)
		case e.restarts == 0 && e.epoch == 3 && e.done == 5:
			note("open matrix that a restart drops", first+3)
		case e.restarts == 1 && e.epoch == 0 && e.done == 1:
			note("step after the restart", first+2)
		}
		m.at = 1 << 60
		if _, err := m.Close(dptest.Zero()); err != nil {
			t.Fatal(err)
		}
	}
	want := 8
	if *e.cfg.Intercept {
		want = 10
	}
	if e.restarts != 1 || e.epoch < 2 || len(all) != want {
		t.Fatalf("the log leads to %d restarts, epoch %d, %d places", e.restarts, e.epoch, len(all))
	}
	return all
}

// records returns the records by which neighbours differ at a place. The first records are invalid. Features are at the
// bound, far below it and between; with an intercept there are also features of zeros. There are gradients of both
// signs at three sizes: just small enough to be counted, just too large for that, and just not clipped. The last two
// records of each kind have clipped gradients.
func (p *place) records(clip float64) [][]float64 {
	all, features := [][]float64{nil}, [][]float64{{clip, 0}, {-clip * 1e-3, 0}, {-clip * 0.7, clip * 0.7}}
	if len(p.w) > 2 {
		features = append(features, []float64{0, 0})
	}
	for _, x := range features {
		if p.e.Root == nil {
			for _, size := range []float64{1e-3, 1, 1e3, 1e6} {
				all = append(all, []float64{x[0], x[1], size}, []float64{x[0], x[1], -size})
			}
			continue
		}
		scaled, z := []float64{x[0] / clip, x[1] / clip}, make([]float64, len(p.w))
		if len(p.w) > 2 {
			scaled = []float64{scaled[0] - p.centre[0], scaled[1] - p.centre[1], p.constant}
		}
		p.e.Apply(z, scaled)
		at := vector.Dot4(p.w, scaled)
		for _, part := range []float64{countedPart * (1 - 1e-6), countedPart * (1 + 1e-6), 1 - 1e-9, 7} {
			size := part * p.zeta / math.Sqrt(vector.Dot4(z, z))
			all = append(all, []float64{x[0], x[1], at + size}, []float64{x[0], x[1], at - size})
		}
	}
	return all
}

// couple searches for the worst pair of records at a place. Under zero-out one of the two is missing; under replace
// both are present, and it also tries pairs with clipped gradients.
func couple(s *audit.Subject, m *logged, p place) (worst float64, err error) {
	m.at = p.slot
	all := p.records(m.cfg.ClipX)
	keys := audit.NewKeys([32]byte{7})
	for i, x := range all {
		for k, y := range all {
			if i == k || m.params.Adjacency == dp.ZeroOut && k > 0 || m.params.Adjacency == dp.Replace && k%8 != 0 {
				continue
			}
			base := make(audit.Stream, eventfulSteps)
			base[0] = [][]float64{x}
			distance, err := s.Coupling(base, base.Replace(0, 0, y), keys)
			if err != nil {
				return worst, err
			}
			worst = max(worst, distance/s.Mu)
		}
	}
	return worst, nil
}

// TestNewtonCoupling is the sensitivity audit of the whole trajectory, including ends of epochs and a hard restart. The
// audit includes all effects of a record on later releases. It audits every second place under one adjacency, or with
// STREAMDP_SLOW=1 all places under both.
func TestNewtonCoupling(t *testing.T) {
	t.Parallel()
	for _, intercept := range withIntercept() {
		for turn, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			e := eventfulNewton(t, adjacency, intercept)
			m := &logged{Newton: e, log: eventful(intercept)}
			s := newtonSubject(t, e, m)
			start, err := e.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			all := places(t, s, m)
			if intercept && (zeros(e.centre) || e.epoch == 0) {
				t.Fatal("the centre did not move")
			}
			if err := e.UnmarshalBinary(start); err != nil {
				t.Fatal(err)
			}
			for i, p := range all {
				if i%4 != 2*turn && os.Getenv("STREAMDP_SLOW") == "" {
					continue
				}
				w, err := couple(s, m, p)
				if err != nil {
					t.Fatalf("intercept %t, %s, %s: %v", intercept, adjacency, p.name, err)
				}
				t.Logf("intercept %t, %s, %s: %.6f of μ", intercept, adjacency, p.name, w)
				if least := leastAt(adjacency, intercept, p.name); w > 1+1e-9 || w < least {
					t.Errorf("intercept %t, %s, %s: the worst pair is %.9f of μ apart, want %.4f to 1", intercept,
						adjacency, p.name, w, least)
				}
			}
		}
	}
}

// TestNewtonCouplingNulls is the same audit for logs in which many slots have no record, at the start or later, or all
// of them. On such logs some steps change nothing, searches are repeated, or steps become shorter; earlier releases
// determine which. With an intercept, the search for the gradients' norm has another quantile if most targets are
// equal.
func TestNewtonCouplingNulls(t *testing.T) {
	t.Parallel()
	for _, intercept := range withIntercept() {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			logs := newtonLogs(intercept)
			names := []string{"records later", "few records", "none", "one target for most"}
			if os.Getenv("STREAMDP_SLOW") == "" {
				names = names[:1]
			}
			for _, name := range names {
				e := eventfulNewton(t, adjacency, intercept)
				// Repeated searches are long.
				m := &logged{Newton: e, log: append(logs[name], make([][]float64, 90_000)...)}
				s := newtonSubject(t, e, m)
				worst := 0.0
				slots := []uint64{7, 230, 5100}
				if os.Getenv("STREAMDP_SLOW") != "" {
					slots = append(slots, 140, 1510)
				}
				for _, slot := range slots {
					w, err := couple(s, m, place{slot: slot})
					if err != nil {
						t.Fatalf("intercept %t, %s, %s, slot %d: %v", intercept, adjacency, name, slot, err)
					}
					worst = max(worst, w)
				}
				t.Logf("intercept %t, %s, %s: %.6f of μ", intercept, adjacency, name, worst)
				if worst > 1+1e-9 || worst < 0.9 {
					t.Errorf("intercept %t, %s, %s: the worst pair is %.9f of μ apart", intercept, adjacency,
						name, worst)
				}
			}
		}
	}
}

// withIntercept returns the models to audit, true for the model with an intercept. That model is the default and has
// all releases of the other. With STREAMDP_SLOW=1 both are audited.
func withIntercept() []bool {
	if os.Getenv("STREAMDP_SLOW") != "" {
		return []bool{false, true}
	}
	return []bool{true}
}

func zeros(x []float64) bool { return !slices.ContainsFunc(x, func(v float64) bool { return v != 0 }) }

// leastAt returns the smallest acceptable cost of the worst pair at a place, as a share of μ. Under replace no pair
// costs all of μ: two valid records do not move the count of null records, and the pair whose gradients are farthest
// apart is not the pair whose rows are.
func leastAt(adjacency dp.Adjacency, intercept bool, name string) float64 {
	switch name {
	case "search for the median", "search for the median after a restart":
		// A null record counts as one half. If all counts move by one, they cost all of μ.
		return map[dp.Adjacency]float64{dp.ZeroOut: 0.499, dp.Replace: 0.999}[adjacency]
	case "first search", "second search after a restart":
		return 0.5 // a binary search may end early, and a count may move by less
	case "first slot after it", "open matrix that a restart drops":
		return map[dp.Adjacency]float64{dp.ZeroOut: math.Sqrt(0.85) - 1e-3, dp.Replace: 0.9 - 1e-3}[adjacency]
	}
	if intercept && adjacency == dp.Replace { // the matrix entry of the constant is equal for both records
		return 0.91
	}
	return map[dp.Adjacency]float64{dp.ZeroOut: 0.999, dp.Replace: math.Sqrt(0.81+0.03+0.12/2) - 1e-2}[adjacency]
}

// mutant is a logged Newton with a fault. The function `alter` plants the fault into the estimator, or `close` plants
// it into the end of a step.
type mutant struct {
	logged
	close func(m *mutant, n dp.Noise) (*dp.Release, error)

	// kept is a stored matrix that the fault releases again; squared is the R² of that matrix.
	kept    *newton.Gram
	squares float64
	old     float64
}

func (m *mutant) UnmarshalBinary(b []byte) error {
	m.kept, m.old = nil, 0
	return m.Newton.UnmarshalBinary(b)
}

// again releases the stored matrix a second time.
func (m *mutant) again(n dp.Noise) error {
	m.old = m.squares
	_, err := m.kept.Release(n, "newton/gram")
	m.old = 0
	return err
}

func (m *mutant) Close(n dp.Noise) (*dp.Release, error) {
	if m.close == nil {
		return m.logged.Close(n)
	}
	return m.close(m, n)
}

// TestNewtonMutants plants faults of the kind that published algorithms had. An audit that passes one of them proves
// nothing about the estimator.
func TestNewtonMutants(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name, at  string
		alter     func(m *mutant)
		close     func(m *mutant, n dp.Noise) (*dp.Release, error)
		intercept bool
		replace   bool
	}{
		{name: "none", at: "first step"},
		{name: "none", at: "last slot of the third epoch", intercept: true},
		{name: "counts of the median uncharged beyond those of another search", at: "search for the median",
			intercept: true, replace: true, alter: func(m *mutant) {
				m.plan.LocateNoise *= math.Sqrt(6. / 10)
			}},
		{name: "a mode by the exact count of records", at: "search for the median", intercept: true,
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				phase := m.phase
				m.fill()
				nulls := m.nulls
				r, err := m.Newton.Close(n)
				if m.mode = phase == searchMedian && nulls <= 7; m.mode != (phase == searchMedian && nulls == 7) {
					return nil, errors.New("the log has other null records")
				}
				return r, err
			}},
		{name: "mean read exactly", at: "last slot of the third epoch", intercept: true,
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				epoch, constant := m.epoch, m.constant
				var sums []int64
				r, err := m.logged.Close(noiseFunc(func(array string, h []int64) dp.Row {
					if array == "newton/gram" {
						sums = slices.Clone(h)
					}
					return n.Row(array, h)
				}))
				if m.epoch > epoch { // the last column is ΣC(x − m, C)
					for j, k := range []int{2, 4} {
						m.centre[j] = constant * float64(sums[k]) / float64(sums[5])
					}
				}
				return r, err
			}},
		{name: "records counted exactly at an epoch's end", at: "last slot of the third epoch",
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				return m.logged.Close(noiseFunc(func(array string, h []int64) dp.Row {
					row := n.Row(array, h)
					if array != "newton/hist" {
						return row
					}
					z, last := make(givenRow, len(h)), len(h)-1
					for j := range last {
						z[j] = row.At(j)
						z[last] -= z[j]
					}
					return z
				}))
			}},
		{name: "null records centred", at: "last slot of the third epoch", intercept: true,
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				m.fill()
				if m.phase == descent {
					m.flush()
					for range m.nulls {
						m.gram.Add([]float64{-m.centre[0], -m.centre[1], m.constant})
					}
				}
				return m.Newton.Close(n)
			}},
		{name: "constant inside of the bound", at: "last slot of the third epoch", intercept: true,
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				if m.phase == descent && m.done == 0 {
					// The rows of the matrix have a constant, but the noise suffices only for rows without one.
					m.gram, _ = newton.NewGram(len(m.w), m.plan.norms()*m.squared, m.plan.norms()*m.plan.GramMu,
						m.params.Adjacency, m.params.Bits())
				}
				return m.logged.Close(n)
			}},
		{name: "noise of past steps scaled by the clip norm", at: "first step", alter: func(m *mutant) {
			m.shaper = &scaledRing{bands: m.plan.Factorization.Bands, used: &m.used}
		}},
		{
			name: "noise restarted with each epoch, column norm still 1", at: "first step",
			alter: func(m *mutant) { m.plan.GradientNoise /= m.factor.ColNorm() },
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				epoch := m.epoch
				r, err := m.logged.Close(n)
				if m.epoch != epoch {
					m.shaper = m.factor.NewShaper(len(m.w))
				}
				return r, err
			},
		},
		{name: "weight of the count left out", at: "first step", alter: func(m *mutant) {
			m.plan.CountNoise *= math.Sqrt(1 - countedPart*countedPart)
		}},
		{name: "null record counted", at: "first step", close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
			m.fill()
			if m.phase == descent {
				m.flush()
				m.gradients.inside += m.nulls
			}
			return m.Newton.Close(n)
		}},
		{name: "rows not shortened in the matrix", at: "last slot of the third epoch",
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				if m.phase == descent && m.done == 0 && m.squared < 1 {
					// A sum for rows of norm 1, with the noise for shorter ones.
					sd := m.gram.SD
					m.gram, _ = newton.NewGram(len(m.w), 1, m.plan.GramMu/m.squared, m.params.Adjacency,
						m.params.Bits())
					m.gram.SD = sd
				}
				return m.logged.Close(n)
			}},
		{
			name: "open matrix released at a restart, its records used again", at: "open matrix that a restart drops",
			close: func(m *mutant, n dp.Noise) (*dp.Release, error) {
				gram, squared, restarts, epoch := m.gram, m.squared, m.restarts, m.epoch
				r, err := m.logged.Close(n)
				switch {
				case err != nil:
				case m.restarts > restarts:
					m.kept, m.squares = gram, squared
					err = m.again(n)
				case m.kept != nil && m.epoch > epoch:
					err = m.again(n)
					m.kept = nil
				}
				return r, err
			},
		},
	} {
		adjacency := dp.ZeroOut
		if fault.replace {
			adjacency = dp.Replace
		}
		e := eventfulNewton(t, adjacency, fault.intercept)
		m := &mutant{logged: logged{Newton: e, log: eventful(fault.intercept)}}
		start, err := e.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		all := places(t, newtonSubject(t, e, &m.logged), &m.logged)
		if err := e.UnmarshalBinary(start); err != nil {
			t.Fatal(err)
		}
		if fault.alter != nil {
			fault.alter(m)
		}
		m.close = fault.close
		s := newtonSubject(t, e, m)
		i := slices.IndexFunc(all, func(p place) bool { return p.name == fault.at })
		w, err := couple(s, &m.logged, all[i])
		t.Logf("%s: %.4f of μ, %v", fault.name, w, err)
		if found := err != nil || w > 1+1e-9; found != (fault.name != "none") {
			t.Errorf("%s: %.6f of μ, %v", fault.name, w, err)
		}
	}
}

// told is a Newton whose releases are the noisy integers of a step.
type told struct{ *Newton }

func (m told) Close(n dp.Noise) (*dp.Release, error) {
	hidden := map[string][]int64{}
	var counts []float64
	_, err := m.Newton.Close(noiseFunc(func(array string, h []int64) dp.Row {
		hidden[array] = slices.Clone(h)
		row := n.Row(array, h)
		if array == "newton/count" {
			for j, sd := range []float64{m.plan.CountNoise, m.plan.NullNoise} {
				counts = append(counts, float64(h[j]+dp.RoundAt(row, j, sd)))
			}
		}
		return row
	}))
	var sums []float64
	for j, k := range hidden["newton/grad"] {
		sums = append(sums, float64(k+m.noise[j]))
	}
	return &dp.Release{Values: []dp.Value{{Name: "newton/grad", Data: sums}, {Name: "newton/count", Data: counts}}}, err
}

// givenRow is a noise row that consists of given numbers.
type givenRow []float64

func (g givenRow) At(j int) float64   { return g[j] }
func (g givenRow) Fill(dst []float64) { copy(dst, g) }
func (g givenRow) Word(int) uint64    { panic("a word is drawn") }
func (g givenRow) Above(j int, b *big.Rat) bool {
	return new(big.Rat).SetFloat64(g[j]).Cmp(b) > 0
}

type noiseFunc func(array string, hidden []int64) dp.Row

func (f noiseFunc) Row(array string, hidden []int64) dp.Row { return f(array, hidden) }

// TestNewtonShift runs neighbours under fresh keys and tells them apart by the best test on gradient, count and count
// of null records. The neighbours must be as far apart as the shares of μ² for these releases allow, and no farther.
func TestNewtonShift(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		e := eventfulNewton(t, adjacency, false)
		m := &logged{Newton: e, log: eventful(false), at: 1 << 60}
		for e.phase != descent {
			if _, err := m.Close(dptest.Zero()); err != nil {
				t.Fatal(err)
			}
		}
		s := newtonSubject(t, e, told{e})
		s.Mu *= math.Sqrt(nullShare + gradientShare)
		s.Recover = func(releases []*dp.Release) (map[string][][]float64, error) {
			all := map[string][][]float64{}
			for _, r := range releases {
				for _, v := range r.Values {
					all[v.Name] = append(all[v.Name], v.Data)
				}
			}
			return all, nil
		}
		p := place{zeta: e.zeta, w: e.w, e: *e.white}
		pairs := p.records(e.cfg.ClipX)
		x, y := pairs[1], pairs[8] // x is counted; y is clipped and points the other way
		if adjacency == dp.ZeroOut {
			x, y = nil, pairs[1]
		}
		// Later steps hold null records, so their releases do not depend on earlier releases.
		stream := audit.Stream{{x}, nil, nil}
		r, err := s.Shift(stream, stream.Replace(0, 0, y), audit.NewKeys([32]byte{3}), 400, stattest.Alpha)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.4g standard errors apart, allowed %.4g to %.4g; finds %.3g times μ", adjacency, r.T, r.Low,
			r.High, r.Finds)
		if err := r.Err(); err != nil {
			t.Errorf("%s: %v", adjacency, err)
		}
	}
}

// TestNewtonJoint searches, in random spaces and at random clip norms, for a pair of records that moves gradient and
// count together by more than their noise covers. It compares the integers that the noise hides.
func TestNewtonJoint(t *testing.T) {
	t.Parallel()
	source := rand.New(rand.NewPCG(4, 5))
	pairs := 60000
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for _, bits := range []int{24, 30} {
			for _, d := range []int{1, 2, 7} {
				e := mustNewton(t, Config{Columns: append(names(d), "y"), Target: "y", ClipX: 1, Intercept: new(bool)},
					dp.Params{Mu: 1, Adjacency: adjacency, LatticeBits: bits})
				e.phase, e.squared = descent, 1
				hidden := func(row []float64) (g []float64, count float64) {
					e.open()
					e.Add(0, row)
					e.flush()
					for _, k := range e.gradients.integers() {
						g = append(g, float64(k)/float64(e.plan.Lattice.K))
					}
					return g, float64(e.gradients.inside)
				}
				weight := clipgrad.CountWeight(adjacency, countedPart)
				worst := 0.0
				for n := range pairs / 12 {
					if n%50 == 0 {
						vectors := make([]float64, d*d)
						for i := range d {
							vectors[i*d+i] = 1
						}
						scale := make([]float64, d)
						for i := range scale {
							scale[i] = math.Exp2(8*source.Float64() - 6)
						}
						e.white = newton.Restore(vectors, scale)
						e.zeta = math.Exp2(20*source.Float64() - 10)
						e.begin()
						for j := range e.w {
							e.w[j] = source.NormFloat64()
						}
					}
					record := func() []float64 {
						x, z := make([]float64, d+1), make([]float64, d)
						for j := range d {
							x[j] = source.NormFloat64()
						}
						if n%3 == 0 { // both on one line
							copy(x, []float64{0.5, 0.5})
						}
						norm := math.Sqrt(vector.Dot4(x[:d], x[:d]))
						for j := range d {
							x[j] /= norm * (1 + 1e-12)
						}
						e.white.Apply(z, x[:d])
						part := []float64{countedPart, countedPart * (1 + 1e-5*source.NormFloat64()), 1, 3,
							source.Float64()}[source.IntN(5)]
						x[d] = vector.Dot4(e.w, x[:d]) +
							math.Copysign(part*e.zeta/math.Sqrt(vector.Dot4(z, z)), source.NormFloat64())
						return x
					}
					x := record()
					var y []float64
					if adjacency == dp.Replace {
						y = record()
					}
					g, c := hidden(x)
					f, k := hidden(y)
					square := weight * (c - k) * weight * (c - k)
					for j, v := range f {
						square += (g[j] - v) * (g[j] - v)
					}
					worst = max(worst, math.Sqrt(square)/adjacency.Factor())
				}
				t.Logf("%s, %d bits, d = %d: %.6f", adjacency, bits, d, worst)
				if worst > 1 || worst < 0.99 {
					t.Errorf("%s, %d bits, d = %d: the worst pair moves gradient and count by %.9f of the charge",
						adjacency, bits, d, worst)
				}
			}
		}
	}
}
