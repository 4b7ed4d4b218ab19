package audit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/matfact"
)

// Suite is a mechanism and the settings for all audits of this package that apply to it.
type Suite struct {
	// Configured is the mechanism as configured. Loud is the same mechanism with μ of about 4, at which the fewest runs
	// suffice to detect a relative error; nil omits A2.
	Configured, Loud *Subject
	// Clip is the norm to which rows are clipped. Adjacency is the neighbour relation.
	Clip      float64
	Adjacency dp.Adjacency
	// Worst are the pairs that are farthest apart. Their distance must be at least 0.999 μ. If the charged sensitivity
	// is only an upper bound, Attained is the share of μ that they must reach; 0 stands for all of it.
	Worst    []Pair
	Attained float64
	// Extremes are pairs whose cost is known.
	Extremes []Extreme
	// Others are other pairs; nil: the pairs that the function Pairs returns.
	Others []Pair
	// Person, if not zero, says in which steps a person has records. The audit then puts a pair into all of these
	// steps, as often as a step allows, and Norm returns the joint norm of the columns of these steps. A measured
	// distance covers releases without end. If the mechanism charges only for an epoch that ends, Beyond is the factor
	// by which a distance may exceed the charge; 0: it may not.
	Person matfact.Participation
	Norm   func(steps uint64) float64
	Beyond float64
	// SketchRows is the number of sketch rows for which a record is charged; 0: there are no sketches.
	SketchRows int
	// Steps are the steps, from 0, in which the other pairs are tested in addition to the first step.
	Steps []int
	// Horizon is the number of the last step, 0 if there is none.
	Horizon uint64
	// Keys generates all noise and all records.
	Keys *Keys
	// Quick reduces the number of draws to a tenth.
	Quick bool

	slots int // number of slots of the first step
}

// Finding is the outcome of one audit. It passes if Low ≤ Statistic ≤ High and Fault is empty.
type Finding struct {
	Audit string `json:"audit"` // A0, A1, A2, A3
	What  string `json:"what"`
	// Draws is the number of Gaussians that the mechanism drew.
	Draws     int     `json:"draws"`
	Statistic float64 `json:"statistic"`
	Low       float64 `json:"low"`
	High      float64 `json:"high"`
	// Level is an upper bound on the probability that a sound mechanism fails this audit; 0: it never fails.
	Level float64 `json:"level"`
	// Finds describes the fault that the audit finds with probability at least Power.
	Finds  string  `json:"finds"`
	Power  float64 `json:"power"`
	Passed bool    `json:"passed"`
	Fault  string  `json:"fault,omitempty"`
}

// verdict decides whether f passes. If err is not nil, it becomes the fault.
func (f Finding) verdict(err error) Finding {
	f.Passed = err == nil && f.Statistic >= f.Low && f.Statistic <= f.High
	switch {
	case err != nil:
		f.Fault = strings.ReplaceAll(err.Error(), "\n", "; ")
	case !f.Passed:
		f.Fault = fmt.Sprintf("%.6g is outside [%.6g, %.6g]", f.Statistic, f.Low, f.High)
	}
	if f.Statistic-f.Statistic != 0 { // JSON has no infinities
		f.Statistic = 0
	}
	return f
}

// Run runs the suite. An error means that an audit could not be made; that is not a pass.
func (s *Suite) Run() ([]Finding, error) {
	var all []Finding
	for _, part := range []func() ([]Finding, error){s.sensitivity, s.extremes, s.noise, s.shift} {
		found, err := part()
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// Report is the result of the audits of one stream's mechanism.
type Report struct {
	Stream    string       `json:"stream"`
	Adjacency dp.Adjacency `json:"adjacency"`
	Mu        float64      `json:"mu"`
	Passed    bool         `json:"passed"` // true if every audit passed
	Findings  []Finding    `json:"findings"`
}

// Report runs the suite and returns its findings under the name of a stream. An error means that an audit could not be
// made, as with [Suite.Run].
func (s *Suite) Report(stream string) (*Report, error) {
	found, err := s.Run()
	if err != nil {
		return nil, err
	}
	r := &Report{Stream: stream, Adjacency: s.Adjacency, Mu: s.Configured.Mu, Passed: true, Findings: found}
	for _, f := range found {
		r.Passed = r.Passed && f.Passed
	}
	return r, nil
}

// budget returns approximately how many coordinates one audit may draw over all steps and runs.
func (s *Suite) budget() int {
	if s.Quick {
		return 3e5
	}
	return 3e7
}

// width returns the number of coordinates that one step draws. Some mechanisms draw none for a step without records.
func (s *Suite) width() (int, error) {
	n := 0
	var asked error
	_, err := s.Configured.run(Stream{{nil}}, func(uint64) dp.Noise {
		return noiseFunc(func(_ string, hidden []int64) dp.Row {
			n += len(hidden)
			return newGiven(&asked, len(hidden), func(int) float64 { return 0 })
		})
	})
	if err == nil && n == 0 {
		err = fmt.Errorf("the first step draws no noise")
	}
	return n, err
}

func (s *Suite) steps(most int) int {
	if s.Horizon > 0 {
		most = int(min(uint64(most), s.Horizon))
	}
	return most
}

// records returns a stream with up to three records per step. Some of them are clipped, some are invalid.
func (s *Suite) records(steps int) Stream {
	d := s.Configured.Columns()
	first, end := s.Configured.Range(1)
	s.slots = int(min(end-first, 1<<31))
	slots := min(3, s.slots)
	x := make(Stream, steps)
	for t := range x {
		z := s.Keys.row("records", uint64(t), slots*d)
		for i := range slots {
			if (t+2*i)%7 == 5 {
				x[t] = append(x[t], nil)
				continue
			}
			row := make([]float64, d)
			for j := range row {
				row[j] = z[i*d+j] * s.Clip / math.Sqrt(float64(d))
			}
			x[t] = append(x[t], row)
		}
	}
	return x
}

// place returns two copies of base, one with x and one with y in a slot of step t. The slot may be far behind the
// step's last record. For persons, a step holds several of these records: in the slots up to that one or, if there are
// too few, from the first slot on. Later steps of the person hold them too.
func (s *Suite) place(base Stream, t, slot int, p Pair) (x, y Stream) {
	visits, apart, per := s.visits(t, len(base)), int(s.Person.Separation), max(1, int(s.Person.PerStep))
	from := max(0, slot-per+1)
	to := min(max(slot+1, from+per), s.slots)
	x, y = slices.Clone(base), slices.Clone(base)
	for i := range visits {
		at := t + i*apart
		n := make([][]float64, max(len(base[at]), to))
		copy(n, base[at])
		x[at], y[at] = n, slices.Clone(n)
		for slot := from; slot < to; slot++ {
			x[at][slot], y[at][slot] = p.X, p.Y
		}
	}
	return x, y
}

// visits returns the number of steps, among the given number of steps from t on, that contain the pair's record or
// records of its person.
func (s *Suite) visits(t, steps int) int {
	if s.Person.Count == 0 {
		return 1
	}
	return int(min(s.Person.Count, 1+uint64(steps-1-t)/s.Person.Separation))
}

// sensitivity runs the audit A0.
func (s *Suite) sensitivity() ([]Finding, error) {
	width, err := s.width()
	if err != nil {
		return nil, err
	}
	steps := s.steps(8)
	for steps > 2 && 4*steps*width > s.budget() {
		steps--
	}
	trials := s.trials(steps)
	// The worst pairs come first, so this cut keeps all of them.
	if most := max(6*len(s.Worst), s.budget()/(4*steps*width)); len(trials) > most {
		trials = trials[:most]
	}
	o := s.observe(s.records(steps), trials)
	return s.judge(o, steps, len(trials), 2*len(trials)*steps*width), nil
}

// trial is a pair of records at a slot of a step.
type trial struct {
	p       Pair
	t, slot int
}

// trials places every pair in the first slot of the first step, the worst pairs also in other slots and steps, and the
// other pairs also in the steps that the suite names.
func (s *Suite) trials(steps int) (all []trial) {
	c := s.Configured
	others := s.Others
	if others == nil {
		others = Pairs(s.Clip, c.Columns(), s.Adjacency)
	}
	first, end := c.Range(1)
	slots := int(min(end-first, 1<<14))
	for i, p := range append(slices.Clone(s.Worst), others...) {
		all = append(all, trial{p, 0, 0})
		for _, t := range s.Steps {
			if t > 0 && t < steps && i >= len(s.Worst) {
				all = append(all, trial{p, t, 0})
			}
		}
		if i < len(s.Worst) {
			for _, at := range [][2]int{{0, slots - 1}, {0, slots / 2}, {min(1, steps-1), 0}, {steps / 2, 0},
				{steps - 1, slots - 1}} {
				all = append(all, trial{p, at[0], at[1]})
			}
		}
	}
	return all
}

// observed is the result of the trials of A0. It holds two distances divided by μ: the largest of all pairs, and the
// smallest of a worst pair in the first step. It also holds the number of pairs for which no noise gives equal
// releases, and the first error of each kind.
type observed struct {
	far, worst, apart float64
	leak, failed      error
}

// observe runs the trials.
func (s *Suite) observe(base Stream, trials []trial) observed {
	c, o := s.Configured, observed{worst: math.Inf(1)}
	for i, k := range trials {
		x, y := s.place(base, k.t, k.slot, k.p)
		distance, err := c.Coupling(x, y, s.Keys)
		if err != nil {
			o.apart++
			fail(&o.leak, err)
		}
		if c.Recover != nil {
			if distance, err = c.Sensitivity(x, y, s.Keys); err != nil {
				fail(&o.failed, err)
			}
		}
		if s.Beyond > 0 {
			distance /= s.Beyond
		}
		o.far = max(o.far, distance/c.Mu)
		if i < 6*len(s.Worst) && k.t == 0 {
			o.worst = min(o.worst, distance/c.Mu)
		}
	}
	return o
}

// judge makes findings from the results o. steps, pairs and draws are the numbers of each that were tried.
func (s *Suite) judge(o observed, steps, pairs, draws int) []Finding {
	found := []Finding{
		Finding{
			Audit: "A0", What: fmt.Sprintf("sensitivity/mu, largest of %d pairs", pairs), Draws: draws,
			Statistic: o.far, Low: 0, High: 1 + 1e-9, Finds: "any excess on these pairs", Power: 1,
		}.verdict(o.failed),
		Finding{
			Audit: "A0", What: "pairs for which no noise gives equal releases", Draws: draws,
			Statistic: o.apart, Low: 0, High: 0, Finds: "releases that depend on more than noisy integers", Power: 1,
		}.verdict(o.leak),
	}
	if s.SketchRows > 0 {
		seen := s.Configured.sketches
		found = append(found,
			Finding{
				Audit: "A3", What: "share of a record in sketches, in units of 1/gamma", Draws: draws,
				Statistic: seen.far, Low: 0x1p-1022, High: 1 + 1e-9, Finds: "any excess on these pairs", Power: 1,
			}.verdict(nil),
			Finding{
				Audit: "A3", What: "rows of sketches, divided by the rows charged", Draws: draws,
				Statistic: float64(seen.rows) / float64(s.SketchRows), Low: 1, High: 1,
				Finds: "an uncharged row", Power: 1,
			}.verdict(nil))
	}
	if len(s.Worst) > 0 {
		attained := 1.0
		if s.Attained > 0 {
			attained = s.Attained
		}
		if s.Norm != nil {
			attained *= s.Norm(uint64(s.visits(0, steps))) / s.Norm(s.Person.Count)
		}
		found = append(found, Finding{
			Audit: "A0", What: "sensitivity/mu, worst pair", Draws: draws,
			Statistic: o.worst, Low: 0.999 * attained, High: 1 + 1e-9, Finds: "0.1 % too much noise", Power: 1,
		}.verdict(o.failed))
	}
	return found
}

// noise runs the audit A1.
func (s *Suite) noise() ([]Finding, error) {
	c := s.Configured
	if c.Recover == nil {
		return nil, nil
	}
	width, err := s.width()
	if err != nil {
		return nil, err
	}
	target, most := 40000, 500000 // with 40 000 draws, noise that is 4 % too small is detected
	if s.Quick {
		target, most = 6000, 50000
	}
	steps := min(s.steps(512), max(16, most/width))
	base := s.records(steps)
	var n *NoiseReport
	var runs [2][]float64 // even and odd runs
	for k := 0; k < 2 || k%2 == 1 || n.Draws < target; k++ {
		r, err := c.NoiseUnder(base, s.Keys)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(r.White)) {
			runs[k%2] = append(runs[k%2], slices.Concat(r.White[name]...)...)
		}
		if n == nil {
			n = r
		} else {
			n.Add(r)
		}
	}
	const alpha = stattest.Alpha / 2 // the other half is for the correlation between runs
	checks := n.Law(alpha)
	between := stattest.CorrelationCheck(runs[0], runs[1], alpha)
	variance, others := checks[0], append(checks[1:], between)
	used := 0.0
	for _, k := range others {
		used = max(used, k.Used())
	}
	share := checks[0].Alpha
	low, _ := stattest.ChiSquared(n.Draws, share/2)
	_, high := stattest.ChiSquared(n.Draws, 1-Power)
	return []Finding{
		Finding{
			Audit: "A1", What: "distance of releases from the drawn noise, in rounding units", Draws: n.Draws,
			Statistic: n.Off, Low: 0, High: 1, Finds: "a wrong size, shape or rounding", Power: 1,
		}.verdict(n.Identity),
		Finding{
			Audit: "A1", What: "variance of whitened releases", Draws: n.Draws,
			Statistic: variance.Value, Low: variance.Low, High: variance.High, Level: share,
			Finds: fmt.Sprintf("a standard deviation %.2g %% too small", 100*(1-math.Sqrt(low/high))), Power: Power,
		}.verdict(nil),
		Finding{
			Audit: "A1", What: fmt.Sprintf("largest of %d moments, divided by its bound", len(others)), Draws: n.Draws,
			Statistic: used, Low: 0, High: 1, Level: stattest.Alpha,
			Finds: fmt.Sprintf("a correlation of %.2g", correlationFound(others)), Power: Power,
		}.verdict(Failed(others)),
		Finding{
			Audit: "A1", What: fmt.Sprintf("random words used twice, of %d", n.Words), Draws: n.Draws,
			Statistic: boolean(n.Repeated != nil), Low: 0, High: 0,
			Level: float64(n.Words) * float64(n.Words) * 0x1p-65,
			Finds: "a row used twice", Power: 1,
		}.verdict(n.Repeated),
	}, nil
}

// correlationFound returns the size of correlation that each of the correlation checks detects with probability Power.
func correlationFound(checks []stattest.Check) (r float64) {
	for _, c := range checks {
		if strings.HasSuffix(c.What, "correlation") {
			r = max(r, c.High+stattest.Normal(2*(1-Power))/math.Sqrt(float64(c.Samples)))
		}
	}
	return min(1, r)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// shift runs the audit A2.
func (s *Suite) shift() ([]Finding, error) {
	if s.Loud == nil || s.Loud.Recover == nil || len(s.Worst) == 0 {
		return nil, nil
	}
	width, err := s.width()
	if err != nil {
		return nil, err
	}
	runs, least := 3300, 72
	if s.Quick {
		runs = least
	}
	steps := s.steps(4)
	for steps > 1 && 2*least*steps*width > s.budget() {
		steps--
	}
	if most := s.budget() / (2 * steps * width); runs > most {
		runs = max(least, most)
	}
	base := s.records(steps)
	x, y := s.place(base, 0, 0, s.Worst[0])
	r, err := s.Loud.Shift(x, y, s.Keys, runs, stattest.Alpha)
	if err != nil {
		return nil, err
	}
	return []Finding{Finding{
		Audit: "A2", What: fmt.Sprintf("%d runs of each stream under fresh keys, mu %.3g", r.Runs, s.Loud.Mu),
		Draws: 2 * r.Runs * steps * width, Statistic: r.T, Low: r.Low, High: r.High, Level: stattest.Alpha,
		Finds: fmt.Sprintf("%.3g times mu", r.Finds), Power: Power,
	}.verdict(nil)}, nil
}
