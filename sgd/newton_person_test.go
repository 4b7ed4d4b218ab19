package sgd

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/testing/estimatortest"
	"github.com/streamdp/streamdp/matfact"
)

// visited is a Newton whose steps begin with the records that an audit adds. The other slots hold the records of a log.
type visited struct {
	*Newton
	log  [][]float64
	held [][]float64
}

func (v *visited) Add(_ uint64, row []float64) { v.held = append(v.held, row) }

func (v *visited) Close(n dp.Noise) (*dp.Release, error) {
	first, end := v.Range(v.step + 1)
	for slot := first; slot < end; slot++ {
		row := v.log[slot%uint64(len(v.log))]
		if i := slot - first; i < uint64(len(v.held)) {
			row = v.held[i]
		}
		v.Newton.Add(slot, row)
	}
	v.held = v.held[:0]
	return v.Newton.Close(n)
}

func (v *visited) UnmarshalBinary(b []byte) error {
	v.held = v.held[:0]
	return v.Newton.UnmarshalBinary(b)
}

// personNewton returns eventfulNewton for persons.
func personNewton(t testing.TB, p matfact.Participation, adjacency dp.Adjacency, intercept bool) *Newton {
	t.Helper()
	return mustNewton(t,
		Config{Columns: []string{"u", "v", "y"}, Target: "y", ClipX: 20, Intercept: &intercept, Person: p},
		dp.Params{Mu: newtonMu, Adjacency: adjacency})
}

// personSubject describes a Newton for persons to the audits. For gradient and count it takes the noise's standard
// deviations from the plan. For the other arrays it computes them from the rule for persons.
func personSubject(t testing.TB, v *visited, p matfact.Participation) *audit.Subject {
	t.Helper()
	e := v.Newton
	c, err := audit.Stored(e.plan.Factorization, matfact.Workload{Kind: "sum"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return audit.Online{
		Mechanism: v, Mu: newtonMu * dp.LedgerRoom, Adjacency: e.params.Adjacency, Bits: e.params.Bits(),
		Features: len(e.w),
		C:        c, Gradient: e.plan.GradientNoise, Count: e.plan.CountNoise, Locate: e.plan.LocateNoise,
		Person: p, Epoch: e.EpochSteps, Course: e.Opened, Released: e.AppendReleased,
	}.Subject()
}

// personRules lists participations: one with steps far apart, one with many records in a step, and one with more steps
// than the first epochs have.
var personRules = []matfact.Participation{
	{Count: 3, Separation: 4, PerStep: 1},
	{Count: 2, Separation: 1, PerStep: 3},
	{Count: 9, Separation: 1, PerStep: 1},
}

// personSteps is the number of steps that the audits run.
const personSteps = 60

// worstPerson searches for two neighbouring streams that are far apart and returns their distance divided by μ. One has
// all records of a person. The other has none of them, or under replace those of another person, in the same or other
// steps. It tries the records of rows in fixed patterns from all starts, and in random patterns.
func worstPerson(s *audit.Subject, p matfact.Participation, adjacency dp.Adjacency, starts []int,
	random int) (worst float64, err error) {
	source, keys := rand.New(rand.NewPCG(61, p.Count)), audit.NewKeys([32]byte{8})
	per := int(p.PerStep)
	one := func(row func() []float64, from, apart int) map[int][][]float64 {
		all := map[int][][]float64{}
		for i := range int(p.Count) {
			for range per {
				all[from+i*apart] = append(all[from+i*apart], row())
			}
		}
		return all
	}
	stream := func(who int, rows map[int][][]float64) audit.Stream {
		x := make(audit.Stream, personSteps)
		for t := range x {
			x[t] = make([][]float64, 2*per)
			copy(x[t][who*per:], rows[t])
		}
		return x
	}
	try := func(a, b map[int][][]float64, who int) error {
		d, err := s.Coupling(stream(0, a), stream(who, b), keys)
		worst = max(worst, d/s.Mu)
		return err
	}
	of := func(row ...float64) func() []float64 { return func() []float64 { return row } }
	corners := []func() []float64{of(20, 0, 1e7), of(20, 0, -1e7), of(0, 0, 6), of(-20, 0, 7), of(6, -3, 5.5)}
	other := []int{1, 0, 3, 2, 4} // points the other way
	apart := int(p.Separation)
	for _, from := range starts {
		for i, x := range corners {
			a := one(x, from, apart)
			if err := try(a, nil, 0); err != nil {
				return worst, err
			}
			if adjacency == dp.ZeroOut {
				continue
			}
			for _, b := range []map[int][][]float64{one(corners[other[i]], from, apart), one(x, from+apart/2, apart),
				one(corners[(i+2)%5], from+int(p.Count)*apart, apart)} {
				for who := range 2 {
					if err := try(a, b, who); err != nil {
						return worst, err
					}
				}
			}
		}
	}
	for range random {
		draw := func() []float64 {
			if source.IntN(9) == 0 {
				return nil
			}
			return []float64{40*source.Float64() - 20, 40*source.Float64() - 20,
				math.Ldexp(2*source.Float64()-1, source.IntN(30))}
		}
		a, b := one(draw, source.IntN(30), apart), map[int][][]float64(nil)
		if adjacency == dp.Replace {
			b = one(draw, source.IntN(30), apart+source.IntN(2))
		}
		if err := try(a, b, source.IntN(2)); err != nil {
			return worst, err
		}
	}
	return worst, nil
}

// TestNewtonPersons is the sensitivity audit of the whole trajectory for persons, including searches, ends of epochs
// and a hard restart with its searches.
func TestNewtonPersons(t *testing.T) {
	t.Parallel()
	starts, random := []int{0, 3, 15}, 4
	if os.Getenv("STREAMDP_SLOW") != "" {
		starts, random = nil, 300
		for t := range 40 {
			starts = append(starts, t)
		}
	}
	for _, intercept := range withIntercept() {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			for i, p := range personRules {
				v := &visited{Newton: personNewton(t, p, adjacency, intercept), log: eventful(intercept)}
				s := personSubject(t, v, p)
				worst, err := worstPerson(s, p, adjacency, starts, random)
				if err != nil {
					t.Fatalf("%s, %+v: %v", adjacency, p, err)
				}
				t.Logf("intercept %t, %s, %+v: %.6f of μ, %d restarts", intercept, adjacency, p, worst, v.restarts)
				least := map[dp.Adjacency][]float64{dp.ZeroOut: {0.99, 0.99, 0.9},
					dp.Replace: {0.88, 0.88, 0.88}}[adjacency][i]
				if worst > 1+1e-9 || worst < least {
					t.Errorf("intercept %t, %s, %+v: the worst person is %.9f of μ, want %g to 1", intercept, adjacency,
						p, worst, least)
				}
				if v.restarts == 0 {
					t.Error("the run has no restart")
				}
			}
		}
	}
}

// TestNewtonRecordCost checks that no record of a person with an unchanged user key costs more than RecordCost, in a
// search or in a gradient step. In each of the two, the worst record must cost nearly that much.
func TestNewtonRecordCost(t *testing.T) {
	t.Parallel()
	for _, intercept := range withIntercept() {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			for _, p := range personRules {
				v := &visited{Newton: personNewton(t, p, adjacency, intercept), log: eventful(intercept)}
				s, keys := personSubject(t, v, p), audit.NewKeys([32]byte{9})
				searched, stepped, cost := v.searchedRecord(), v.steppedRecord(), v.RecordCost()
				if cost.Adjacency != adjacency || cost.Mu < max(searched, stepped) ||
					cost.Mu > max(searched, stepped)*(1+1e-9) || cost.Mu > 0.75*s.Mu {
					t.Errorf("a record costs %+v, of %g in a search and %g in a step", cost, searched, stepped)
				}
				pairs := [][2][]float64{{{20, 0, 1e7}, nil}, {{0, 0, 6}, nil}}
				if adjacency == dp.Replace {
					pairs = [][2][]float64{{{20, 0, 1e7}, {20, 0, -1e7}}, {{20, 0, 1e7}, {1e-4, 0, 1}}}
				}
				var worst [2]float64 // worst cost in a search and in a step
				for _, from := range []int{0, 1, 2, 3, 6} {
					for _, pair := range pairs {
						x := make(audit.Stream, personSteps)
						for i := range int(p.Count) {
							for range p.PerStep {
								at := from + i*int(p.Separation)
								x[at] = append(x[at], pair[0])
							}
						}
						d, err := s.Coupling(x, x.Replace(from, 0, pair[1]), keys)
						if err != nil {
							t.Fatal(err)
						}
						in := 1
						if from < int(v.plan.Searches()) {
							in = 0
						}
						worst[in] = max(worst[in], d)
					}
				}
				t.Logf(
					"intercept %t, %s, %+v: a record costs %.4f of μ, the worst one found %.6f of it in a search, "+
						"%.6f in a step", intercept, adjacency, p, cost.Mu/s.Mu, worst[0]/searched, worst[1]/stepped)
				// A search asks five or six questions. Under zero-out the quantile of the search is .75 here, not .8.
				// Under replace, a record in place of a null record moves the gradient by less than 2.
				least := map[dp.Adjacency][]float64{dp.ZeroOut: {0.85, 0.99}, dp.Replace: {0.9, 0.8}}[adjacency]
				for in, most := range []float64{searched, stepped} {
					if worst[in] > most*(1+1e-9) || worst[in] < least[in]*most {
						t.Errorf("intercept %t, %s, %+v: a record is worth %g, want nearly %g", intercept, adjacency, p,
							worst[in], most)
					}
				}
			}
		}
	}
	alone := eventfulNewton(t, dp.Replace, true)
	if got, all := alone.RecordCost(), alone.Cost(); got.Mu != all.Mu || got.Adjacency != all.Adjacency {
		t.Error("without persons RecordCost differs from Cost")
	}
}

// TestNewtonPersonsMutants plants faults and checks that the audit finds each of them.
func TestNewtonPersonsMutants(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		rule  int
		two   bool
		alter func(e *Newton)
	}{
		"column norm for P": {0, false, func(e *Newton) {
			e.plan.GradientNoise *= e.factor.ColNorm() / e.plan.Person.Norm
		}},
		"null records of one step":   {0, false, func(e *Newton) { e.plan.NullNoise /= math.Sqrt(3) }},
		"null records of one person": {0, true, func(e *Newton) { e.plan.NullNoise /= math.Sqrt2 }},
		"a histogram of √k":          {0, false, func(e *Newton) { e.plan.HistogramNoise /= math.Sqrt(3) }},
		"a matrix of √k":             {0, false, func(e *Newton) { e.plan.GramMu *= math.Sqrt(3) }},
		"one record a step":          {1, false, func(e *Newton) { e.plan.GradientNoise /= 3 }},
		"later epochs as short as the first": {2, false, func(e *Newton) {
			e.plan.Fewer = []float64{e.plan.Fewer[0], e.plan.Fewer[0]}
		}},
	} {
		adjacency := dp.ZeroOut
		if x.two {
			adjacency = dp.Replace
		}
		p := personRules[x.rule]
		v := &visited{Newton: personNewton(t, p, adjacency, true), log: eventful(true)}
		x.alter(v.Newton)
		v.gram, _ = v.plan.gram(0.5, 0)
		worst, err := worstPerson(personSubject(t, v, p), p, adjacency, []int{0, 3, 7, 15}, 0)
		t.Logf("%s: %.4f of μ, %v", name, worst, err)
		if err == nil && worst <= 1+1e-9 {
			t.Errorf("%s: not found, %.6f of μ", name, worst)
		}
	}
}

// TestNewtonPersonsPlan checks that a person with one record in one step costs as much as a record, and that states and
// plans can be restored.
func TestNewtonPersonsPlan(t *testing.T) {
	t.Parallel()
	alone := eventfulNewton(t, dp.ZeroOut, true)
	one := personNewton(t, matfact.Participation{Count: 1, Separation: 1, PerStep: 1}, dp.ZeroOut, true)
	for what, x := range map[string][2]float64{
		"nulls": {one.plan.NullNoise, alone.plan.NullNoise}, "search": {one.plan.SearchNoise, alone.plan.SearchNoise},
		"histogram": {one.plan.HistogramNoise, alone.plan.HistogramNoise},
		"matrix":    {alone.plan.GramMu, one.plan.GramMu},
		"median":    {one.plan.LocateNoise, alone.plan.LocateNoise},
	} {
		if !(x[0] >= x[1] && x[0] < x[1]*(1+1e-6)) {
			t.Errorf("%s: %g for persons of one record, %g for records", what, x[0], x[1])
		}
	}
	for i, p := range personRules {
		e := personNewton(t, p, dp.Replace, true)
		// The audits do not see the noise of searches, because a search releases only its result.
		more := float64(p.PerStep) * math.Sqrt(float64(p.Count))
		if got, want := e.plan.SearchNoise/alone.plan.SearchNoise, more*math.Sqrt(2*.64); math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%+v: searches have %g times the noise, want %g", p, got, want)
		}
		if got := e.plan.LocateNoise / alone.plan.LocateNoise; math.Abs(got/more-1) > 1e-9 {
			t.Errorf("%+v: searches for a median have %g times the noise, want %g", p, got, more)
		}
		if i == 2 {
			estimatortest.Plans(t, e.Plan(), 1e-9,
				func(kept NewtonPlan) (*Newton, error) { return AdoptNewton(e.cfg, e.params, kept) })
		}
		v := &visited{Newton: e, log: eventful(true)}
		other := &visited{Newton: personNewton(t, p, dp.Replace, true), log: v.log}
		noise := dptest.Seeded(uint64(i))
		for range personSteps {
			if _, err := v.Close(noise); err != nil {
				t.Fatal(err)
			}
			if err := other.UnmarshalBinary(estimatortest.State(t, e)); err != nil {
				t.Fatalf("%+v, step %d: %v", p, e.step, err)
			}
		}
		if e.restarts == 0 {
			t.Error("no restart")
		}
	}
	for _, c := range []Config{{Person: matfact.Participation{Separation: 1}},
		{Person: matfact.Participation{Count: 1}},
		{Person: matfact.Participation{Count: 2, Separation: 2, Fixed: true}}} {
		c.Columns, c.Target, c.ClipX = []string{"u", "y"}, "y", 1
		c.Defaults()
		if err := c.Validate(); err == nil {
			t.Errorf("%+v is not refused", c.Person)
		}
	}
}
