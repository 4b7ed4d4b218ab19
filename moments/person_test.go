package moments

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
)

// TestCasesPersons runs the reference cases for moments of persons. Package matfact runs the cases for matrices.
func TestCasesPersons(t *testing.T) {
	elsewhere := func(*testing.T, cases.Case) {}
	cases.Run(t, "persons", map[string]func(*testing.T, cases.Case){
		"persons_moments": casePersonsMoments,

		"persons_toeplitz": elsewhere,
		"persons_matrix":   elsewhere,
		"persons_total":    elsewhere,
		"persons_blt":      elsewhere,
		"persons_optimum":  elsewhere,
	})
}

// casePersonsMoments compares the bounds, in units of the clip norm, and checks that no search of the case exceeds
// them.
func casePersonsMoments(t *testing.T, c cases.Case) {
	var in struct {
		Coefficients []float64
		N            int
		Separation   int
		Cap          int
		PerStep      float64 `json:"per_step"`
		D            int
		Nu, Kappa    float64
	}
	var want struct {
		ZeroOut      float64 `json:"zero_out"`
		Replace      float64
		FoundZeroOut float64 `json:"found_zero_out"`
		FoundReplace float64 `json:"found_replace"`
		FoundSame    float64 `json:"found_same_pattern"`
	}
	c.Read(t, &in, &want)
	overlap := func(i, j int) (sum float64) { // of columns i and j, down to row n
		for r := max(i, j); r < in.N; r++ {
			if r-min(i, j) < len(in.Coefficients) {
				sum += in.Coefficients[r-i] * in.Coefficients[r-j]
			}
		}
		return sum
	}
	var worst float64
	var extend func(pattern []int, from int, sum float64)
	extend = func(pattern []int, from int, sum float64) {
		worst = max(worst, sum)
		for j := from; j < in.N && len(pattern) < in.Cap; j++ {
			more := overlap(j, j)
			for _, i := range pattern {
				more += 2 * math.Abs(overlap(i, j))
			}
			extend(append(pattern[:len(pattern):len(pattern)], j), j+in.Separation, sum+more)
		}
	}
	extend(nil, 0, 0)
	p := max(1, in.PerStep) * math.Sqrt(worst)
	zero := p * math.Sqrt(PersonJoint(in.Nu, in.Kappa, dp.ZeroOut).Square)
	replace := p * math.Sqrt(PersonJoint(in.Nu, in.Kappa, dp.Replace).Square)
	c.Near(t, "zero_out", zero, want.ZeroOut)
	c.Near(t, "replace", replace, want.Replace)
	if want.FoundZeroOut > zero*(1+1e-9) || max(want.FoundReplace, want.FoundSame) > replace*(1+1e-9) {
		t.Errorf("the bounds are %g and %g, a search found %g and %g", zero, replace, want.FoundZeroOut,
			max(want.FoundReplace, want.FoundSame))
	}
}

const (
	personSteps = 9
	personSlots = 3
	personClip  = 1.7
)

// personConfigs are configurations for persons with rows in at most three steps, four apart.
func personConfigs() (all []Config) {
	for _, c := range []Config{
		{Workload: "sum", Factorization: "auto", Tune: 12, Endless: true},
		{Workload: "mean", Factorization: "phased", Endless: true},
		{Workload: "exponential", Decay: 0.9, Factorization: "identity", Endless: true},
		{Workload: "window", Window: 4, Factorization: "auto", Endless: true},
		{Workload: "sum", Factorization: "bisr", Bands: 3, Endless: true},
		{Workload: "sum", Factorization: "sqrt", Horizon: personSteps},
	} {
		for _, per := range []uint64{0, 2} {
			c.Clip, c.Step = personClip, personSlots
			c.Person = matfact.Participation{Count: 3, Separation: 4, PerStep: per}
			c.ValidCount = new(per == 0)
			all = append(all, c)
		}
	}
	return all
}

// person writes the rows of one person into a stream: into the first slots of the given steps, counted from 0.
func person(s audit.Stream, rows map[int][][]float64) audit.Stream {
	for t, list := range rows {
		for i, x := range list {
			s = s.Replace(t, i, x)
		}
	}
	return s
}

// others returns a stream in which the first two slots of all steps hold invalid records.
func others(d int) audit.Stream {
	source := rand.New(rand.NewPCG(41, uint64(d)))
	s := make(audit.Stream, personSteps)
	for t := range s {
		s[t] = make([][]float64, personSlots)
		if t%4 != 3 {
			s[t][2] = inBall(source, d, personClip)
		}
	}
	return s
}

// same returns per copies of the row x in each of the steps.
func same(x []float64, per uint64, steps ...int) map[int][][]float64 {
	rows := map[int][][]float64{}
	for _, t := range steps {
		for range max(1, per) {
			rows[t] = append(rows[t], x)
		}
	}
	return rows
}

// personPairs returns pairs of the records of a person in two neighbouring streams: pairs that are the worst in some
// case, and random ones.
func personPairs(nu float64, d int, per uint64, adjacency dp.Adjacency) (pairs [][2]map[int][][]float64) {
	x := make([]float64, d)
	x[0] = personClip
	add := func(a, b map[int][][]float64) { pairs = append(pairs, [2]map[int][][]float64{a, b}) }
	if adjacency == dp.ZeroOut {
		add(same(x, per, 0, 4, 8), nil)
		add(same(x, per, 1, 5), nil)
		add(same(x, per, 2, 7), nil)
		add(same(x, per, 8), nil)
	} else {
		w := worstPair(nu, personClip, max(2, d), adjacency)
		if d == 1 {
			w.X, w.Y = []float64{personClip}, []float64{-personClip}
		}
		y := make([]float64, d)
		y[0] = -personClip
		add(same(w.X, per, 0, 4, 8), same(w.Y, per, 0, 4, 8))
		add(same(x, per, 0, 4, 8), same(y, per, 0, 4, 8))
		add(same(x, per, 0, 4, 8), nil)
		add(same(x, per, 0, 4), same(y, per, 3, 7))     // another person, other slots
		add(same(x, per, 0, 4, 8), same(x, per, 2, 6))  // the same rows at other steps
		add(same(w.X, per, 0, 4, 8), same(w.Y, per, 1)) // another person with fewer rows
		add(same(x, per, 0), same(x, per, 8))
	}
	source := rand.New(rand.NewPCG(43, 44))
	random := func() map[int][][]float64 {
		rows := map[int][][]float64{}
		for t := source.IntN(4); t < personSteps && len(rows) < 3; t += 4 + source.IntN(2) {
			for range 1 + source.Uint64N(max(1, per)) {
				rows[t] = append(rows[t], inBall(source, d, personClip*1.2))
			}
		}
		return rows
	}
	for range 6 {
		if adjacency == dp.ZeroOut {
			add(random(), nil)
		} else {
			add(random(), random())
		}
	}
	return pairs
}

// TestPersonSensitivity is the sensitivity audit for whole persons. No two neighbouring streams may be farther apart
// than μ. If the charge is exact, the worst pair must be at least 0.999μ apart.
func TestPersonSensitivity(t *testing.T) {
	t.Parallel()
	for i, c := range personConfigs() {
		for _, method := range []string{"jme", "ime", "cs"} {
			for _, d := range []int{1, 2} {
				for _, nu := range []float64{0.2, 0.5, 2.5} {
					if (method != "jme" || i%3 > 0) && nu != 2.5 {
						continue
					}
					for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
						c := c
						c.Method, c.Columns = method, dptest.Columns(d)
						switch method {
						case "jme":
							c.Nu = nu
						case "cs":
							c.Tau = nu / (personClip * personClip)
						}
						a := mustSubject(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
						name := fmt.Sprintf("%s, %s, %s, %+v", method, describe(a.cfg), adjacency, c.Person)
						top, base := 0.0, others(d)
						for _, p := range personPairs(a.plan.Nu, d, c.Person.PerStep, adjacency) {
							distance, err := a.Sensitivity(person(base, p[0]), person(base, p[1]), keys(11))
							if err != nil {
								t.Fatal(name, err)
							}
							top = max(top, distance/a.plan.Mu)
							if !(distance <= a.plan.Mu*(1+1e-9)) {
								t.Errorf("%s: %v and %v are %.9g of μ apart", name, p[0], p[1], distance/a.plan.Mu)
							}
						}
						exact := adjacency == dp.ZeroOut ||
							method == "jme" && (d > 1 && a.plan.Nu <= 2.5 || a.plan.Nu <= 0.5)
						if a.plan.Factorization.Kind == "phased" || method == "cs" && adjacency == dp.Replace ||
							method == "ime" {
							exact = false // the charge is an upper bound
						}
						if exact && top < 0.999 {
							t.Errorf("%s: the worst pair is only %.6g of μ apart", name, top)
						}
						if top < 0.35 {
							t.Errorf("%s: the charge is far too large: the worst pair is %.6g of μ apart", name, top)
						}
					}
				}
			}
		}
	}
}

// TestMutantPersons: the audit finds faults that a calibration or a map of persons could have.
func TestMutantPersons(t *testing.T) {
	t.Parallel()
	x := []float64{personClip}
	c := Config{
		Workload: "sum", Method: "jme", Nu: 2.5, ValidCount: new(true), Clip: personClip, Columns: dptest.Columns(1),
		Step:          personSlots,
		Factorization: "blt", Buffers: 2, Tune: personSteps, Endless: true,
		Person: matfact.Participation{Count: 2, Separation: 4},
	}
	at := func(c Config, adjacency dp.Adjacency, p, q map[int][][]float64) float64 {
		a := mustSubject(t, c, dp.Params{Mu: 4, Adjacency: adjacency})
		distance, err := a.Sensitivity(person(others(1), p), person(others(1), q), keys(12))
		if err != nil {
			t.Fatal(err)
		}
		return distance / a.plan.Mu
	}
	if right := at(c, dp.ZeroOut, same(x, 1, 0, 4), nil); right > 1+1e-9 || right < 0.999 {
		t.Errorf("the right mechanism: %g of μ", right)
	}
	for name, rows := range map[string]map[int][][]float64{
		"cap + 1":              same(x, 1, 0, 4, 8),
		"separation − 1":       same(x, 1, 0, 3),
		"two records a step":   same(x, 2, 0, 4),
		"no separation at all": same(x, 1, 0, 1),
	} {
		if found := at(c, dp.ZeroOut, rows, nil); found < 1.005 {
			t.Errorf("%s: only %g of μ", name, found)
		}
	}
	// The noise is calibrated to the norm of one column.
	single := c
	single.Person = matfact.Participation{}
	if found := at(single, dp.ZeroOut, same(x, 1, 0, 4), nil); found < 1.3 {
		t.Errorf("one column's norm: %g of μ", found)
	}
	// r(ν) of single records in one dimension, used for a person who moves to another step.
	white := c
	white.Factorization, white.Buffers, white.Tune, white.Person.Count = "identity", 0, 0, 1
	moved := at(white, dp.Replace, same(x, 1, 0), same(x, 1, 1))
	ratio := PersonJoint(2.5, countWeight, dp.Replace).Square / Joint(2.5, 1, dp.Replace).withCount(countWeight).Square
	if found := moved * math.Sqrt(ratio); found < math.Sqrt(1.8)*0.999 || moved > 1+1e-9 {
		t.Errorf("the record's r(ν): %g of μ; the person's: %g", found, moved)
	}
}

// TestPersonFactorization checks that "auto" is tuned for persons, and that it is the identity if a person may have
// rows in all steps. The stated sensitivity must be the one computed from P.
func TestPersonFactorization(t *testing.T) {
	c := Config{Workload: "sum", Clip: 1, Columns: dptest.Columns(2), Step: 10, Horizon: 1000,
		Person: matfact.Participation{Count: 100, Separation: 10, PerStep: 20}}
	p := dp.Params{Mu: 1, Adjacency: dp.Replace}
	e := mustNew(t, c, p)
	plan := e.Plan()
	if plan.Factorization.Kind != "blt" || plan.Person == nil ||
		*plan.Person != (PersonPlan{Cap: 100, Separation: 10, PerStep: 10, Norm: plan.Person.Norm}) {
		t.Fatalf("%s, %+v", plan.Factorization.Kind, plan.Person)
	}
	if s := plan.Clip * plan.Person.Norm * 2; plan.Sensitivity < s || plan.Sensitivity > s*(1+1e-3) {
		t.Errorf("sensitivity %g, want 2ζP = %g", plan.Sensitivity, s)
	}
	single := c
	single.Factorization, single.Buffers = "blt", 3
	single.Person.Count = 1
	one := mustNew(t, single, p).Plan()
	own, err := matfact.New(matfact.Config{Kind: "blt", Horizon: 1000, Stored: one.Factorization},
		matfact.Workload{Kind: "sum"})
	if err != nil {
		t.Fatal(err)
	}
	q := c.Person
	q.PerStep = 10
	norm, err := matfact.Sensitivity(own, q, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if tuned, other := e.Expect(1000).Mean,
		norm*2*math.Sqrt(own.RowVar(matfact.Workload{Kind: "sum"}, 1000)); !(tuned < 0.9*other) {
		t.Errorf("error %g tuned for persons, %g tuned for records", tuned, other)
	}
	c.Person = matfact.Participation{Count: 1000, Separation: 1}
	if kind := mustNew(t, c, p).Plan().Factorization.Kind; kind != "identity" {
		t.Errorf("rows in all steps: %s", kind)
	}
	c.Horizon = 0
	if plan := mustNew(t, c, p).Plan(); plan.Factorization.Kind != "blt" {
		t.Errorf("no horizon: %s", plan.Factorization.Kind)
	}
}

// TestPersonAdopt checks that an epoch continues with its plan only if the same records of a person are protected.
func TestPersonAdopt(t *testing.T) {
	c := Config{Workload: "sum", Clip: 1, Columns: dptest.Columns(2), Step: 4, Horizon: 500,
		Person: matfact.Participation{Count: 20, Separation: 5, PerStep: 2}}
	p := dp.Params{Mu: 1, Adjacency: dp.ZeroOut}
	plan := mustNew(t, c, p).Plan()
	if _, err := Adopt(c, p, plan); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config, *Plan){
		"cap":               func(c *Config, _ *Plan) { c.Person.Count++ },
		"separation":        func(c *Config, _ *Plan) { c.Person.Separation++ },
		"rows a step":       func(c *Config, _ *Plan) { c.Person.PerStep++ },
		"records":           func(c *Config, _ *Plan) { c.Person = matfact.Participation{} },
		"a plan's cap":      func(_ *Config, q *Plan) { q.Person.Cap++ },
		"a plan's norm":     func(_ *Config, q *Plan) { q.Person.Norm *= 0.999 },
		"a plan of records": func(_ *Config, q *Plan) { q.Person = nil },
	} {
		other, changed := c, plan.clone()
		change(&other, &changed)
		if _, err := Adopt(other, p, changed); !errors.Is(err, calibration.ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPersonRefused lists configurations that cannot protect persons. New must refuse each with a fault that gives the
// reason.
func TestPersonRefused(t *testing.T) {
	good := Config{Workload: "sum", Clip: 1, Columns: dptest.Columns(2), Step: 1, Horizon: 50,
		Person: matfact.Participation{Count: 5, Separation: 2}}
	for want, change := range map[string]func(*Config){
		"cap: must be at least 1 step":        func(c *Config) { c.Person.Count = 0 },
		"separation: must be at least 1 step": func(c *Config) { c.Person.Separation = 0 },
		"separation: must be the smallest":    func(c *Config) { c.Person.Fixed = true },
		"normalise: must be false":            func(c *Config) { c.Factorization, c.Normalise = "blt", true },
		"must not be \"dense\"":               func(c *Config) { c.Factorization = "dense" },
		"must not be \"sqrt\" for workload \"window\"": func(c *Config) {
			c.Factorization, c.Workload, c.Window = "sqrt", "window", 5
		},
		"one matrix C for both moments":     func(c *Config) { c.Second = &Second{Workload: "sum"} },
		"a warm-up protects single records": func(c *Config) { c.Clip = math.NaN() },
	} {
		c := good
		change(&c)
		if _, err := New(c, dp.Params{Mu: 1, Adjacency: dp.Replace}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := New(good, dp.Params{Mu: 1, Adjacency: dp.Replace}); err != nil {
		t.Error(err)
	}
}

// TestPersonCharges checks charges. A person with one record must not cost less than that record. A larger value of any
// parameter must never cost less. Under replace the number of valid records must be free up to its weight.
func TestPersonCharges(t *testing.T) {
	for _, nu := range []float64{0, 0.1, 0.5, 0.7, 2.5, 2.8, 10} {
		for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
			kappa := PersonCountWeight(nu, adjacency)
			with, without := PersonJoint(nu, kappa, adjacency).Square, PersonJoint(nu, 0, adjacency).Square
			for d := 1; d <= 3; d++ {
				if record := Joint(nu, d, adjacency).withCount(kappa).Square; with < record*(1-1e-12) {
					t.Errorf("ν = %g, d = %d, %s: a person costs %g, a record %g", nu, d, adjacency, with, record)
				}
			}
			if adjacency == dp.Replace && kappa > countWeight && with > without*(1+1e-12) {
				t.Errorf("ν = %g: the number of valid records costs %g", nu, with-without)
			}
			if cs := PersonCS(nu, kappa, adjacency).Square; cs < with {
				t.Errorf("ν = %g, %s: cs charges %g, jme %g", nu, adjacency, cs, with)
			}
			if split := PersonSplit(0.5, kappa, adjacency); split.Square < PersonJoint(split.Nu, kappa,
				adjacency).Square*(1-1e-12) {
				t.Errorf("%s: ime charges %g, the two mechanisms together cost %g", adjacency, split.Square,
					PersonJoint(split.Nu, kappa, adjacency).Square)
			}
		}
	}
	if k := PersonCountWeight(0.5, dp.Replace); k != 0.5 {
		t.Errorf("κ at ν = ½ is %g, want ½", k)
	}
}

// TestPersonsApart removes a person in one partition and adds a person in another. Together they must cost no more than
// one charge, including everything that arithmetic adds to each. In this case the exact bound of both equals that of a
// replacement, so no margin is left for roundings.
func TestPersonsApart(t *testing.T) {
	c := Config{
		Method: "jme", Nu: 2.5, ValidCount: new(true), Workload: "sum", Factorization: "blt", Tune: 100, Endless: true,
		Clip: 1, Columns: dptest.Columns(2), Step: 10, Person: matfact.Participation{Count: 3, Separation: 4},
	}
	if one, two := PersonJoint(2.5, countWeight, dp.ZeroOut).Square,
		PersonJoint(2.5, countWeight, dp.Replace).Square; math.Abs(2*one-two) > 1e-12 {
		t.Fatalf("twice %g is not %g", one, two)
	}
	// Use the same deviations, and therefore the same roundings.
	goes := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.ZeroOut}).Plan().Sensitivity
	charged := mustNew(t, c, dp.Params{Mu: math.Sqrt2, Adjacency: dp.Replace}).Plan().Sensitivity
	if both := math.Sqrt2 * goes; both > charged {
		t.Errorf("both cost %.12g, but %.12g is charged", both, charged)
	}
}
