package core

import (
	"encoding/json"
	"errors"
	"math"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/stream/codec"
)

// WarmupPlan describes a warm-up, which finds the bounds of the mechanism that follows it. The numbers are public, and
// part of the epoch's plan.
type WarmupPlan struct {
	Records uint64 `json:"records"` // slots before the regression's first step
	Needed  uint64 `json:"needed"`  // valid records that each stage of the warm-up needs
	Parts   uint64 `json:"parts"`   // number of steps of the warm-up
}

// leastWarmup is the default length of a warm-up in records. Large noise makes it longer.
const leastWarmup = 5000

// warmed is a warm-up, followed by an estimator whose bounds the warm-up finds: centre and scale of the columns and,
// for a linear regression, the norms to which features and target are shortened.
//
// For example, slots 0 … 4999 of an epoch are the warm-up, and its release says that the target lies around 40 and that
// features have norm 3.1 at most. From slot 5000 on, records go to the estimator that a configuration with these
// constants would have. Its noise and steps were planned before the first record.
//
// Privacy: the slot of a record decides whether it is in the warm-up or in what follows; it is never in both. The
// warm-up costs its records the μ that the estimator charges, or a little less. The estimator knows the warm-up's
// records only through the warm-up's release. So all releases together cost a record that μ, under either adjacency, by
// composition of adaptive mechanisms on disjoint records. An estimator with sketches charges more than its μ; the
// warm-up's records then cost less than is charged.
// Memory: the estimator's and the warm-up's (bounds.Warmup).
type warmed struct {
	Estimator // the present estimator; during the warm-up, that of [config.Stream.Standing]

	stream *config.Stream
	plan   WarmupPlan
	warm   *bounds.Warmup
	// follow returns the mechanism for the found bounds. ready says that it is in use.
	follow  func(f *bounds.Found) (*Mechanism, error)
	after   *Mechanism // the mechanism of the present estimator
	ready   bool
	row     []float64
	records uint64 // records in the open step of the warm-up
}

// warmedSteps is a warmed estimator whose step lengths depend on its releases.
type warmedSteps struct{ *warmed }

// newWarmed builds the mechanism of a stream with automatic bounds; see [NewMechanism].
func (d *descriptor) newWarmed(s *config.Stream, plan json.RawMessage, initial []float64) (*Mechanism, error) {
	m, err := d.build(s.Standing(), plan, initial)
	if err != nil {
		return nil, err
	}
	cost, b := m.Cost(), s.Bounds()
	if !(cost.Mu > 0) {
		return nil,
			errors.New("cannot find bounds automatically: this mechanism adds no noise; set centre, scale and clip")
	}
	own := WarmupPlan{Records: b.Records, Needed: b.Needed(cost.Mu, cost.Adjacency), Parts: b.Parts()}
	if own.Records == 0 {
		own.Records = max(leastWarmup, 2*min(own.Needed, 1<<58))
	}
	if plan != nil {
		var kept struct{ Warmup *WarmupPlan }
		if err := json.Unmarshal(plan, &kept); err != nil || kept.Warmup == nil || !kept.Warmup.agrees(own) {
			return nil, errors.New("the epoch's plan does not fit its warm-up")
		}
		own = *kept.Warmup
	}
	b.Records = own.Records
	e := &warmed{Estimator: m.Estimator, after: &Mechanism{Refused: m.Refused}, stream: s, plan: own,
		row: make([]float64, len(s.Input.Row()))}
	if e.warm, err = bounds.New(b, cost.Mu, cost.Adjacency, s.Params().Bits()); err != nil {
		return nil, err
	}
	recorded := m.Plan
	e.follow = func(f *bounds.Found) (*Mechanism, error) { return d.follow(s, recorded, initial, f) }
	if m.Plan, err = joined(m.Plan, "warmup", own); err != nil {
		return nil, err
	}
	if m.description, err = joined(m.description, "warmup", own); err == nil && b.Regression.Y {
		m.description, err = joined(m.description, "clip_y", "auto")
	}
	if err != nil {
		return nil, err
	}
	m.ahead = false // the leaves of a window would need the bounds before the warm-up has found them
	m.scales, m.found, m.warmup, m.Warmup = true, b.Regression.X, &own, int64(own.Records)
	if m.Refused != nil {
		m.Refused = func() (codec.Reason, uint64) { return e.after.Refused() }
	}
	if m.sample == nil { // all releases are as large as the first
		spare, err := d.build(s.Standing(), plan, initial)
		if err != nil {
			return nil, err
		}
		if m.sample, err = firstRelease(spare); err != nil {
			return nil, err
		}
	}
	m.sample = e.sample(m.sample)
	if m.Estimator = e; isAdaptive(e.Estimator) {
		m.Estimator = warmedSteps{e}
	}
	return m, nil
}

// agrees reports whether the recorded plan p equals the plan own that the configuration gives now. Numbers that depend
// on rounding may differ by one or two, because another processor may round differently.
func (p WarmupPlan) agrees(own WarmupPlan) bool {
	near := func(a, b uint64) bool { return max(a, b)-min(a, b) <= 2 }
	return p.Parts == own.Parts && near(p.Needed, own.Needed) && near(p.Records, own.Records)
}

// joined returns a JSON object with one more field.
func joined(object json.RawMessage, name string, value any) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return nil, err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	fields[name] = text
	return json.Marshal(fields)
}

// follow builds the estimator that follows a warm-up, from the plan that the epoch recorded. Only the plan's numbers in
// units of a bound are computed again, by arithmetic that gives the same result on every machine.
func (d *descriptor) follow(s *config.Stream, recorded json.RawMessage, initial []float64,
	f *bounds.Found) (*Mechanism, error) {
	centre, scale := slices.Clone(f.Centre), slices.Clone(f.Scale)
	for _, j := range f.FrozenColumns() {
		centre[j], scale[j] = 0, 1 // so that the scaled value is 0; see withFrozen
	}
	t := s.Bounded(centre, scale, f.X.Clip, f.Y.Clip, len(centre)-1-len(f.FrozenColumns()))
	fresh, err := d.build(t, nil, initial)
	if err != nil {
		return nil, err
	}
	var plan, own map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(recorded, &plan), json.Unmarshal(fresh.Plan, &own)); err != nil {
		return nil, err
	}
	for _, name := range d.bounded {
		plan[name] = own[name]
	}
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	return d.build(t, text, initial)
}

func isAdaptive(e Estimator) bool {
	_, ok := e.(adaptive)
	return ok
}

// Range returns the slots of step t: of a step of the warm-up, or of a later step of the estimator.
func (e *warmed) Range(t uint64) (first, end uint64) {
	if t <= e.plan.Parts {
		return e.warm.Range(t)
	}
	first, end = e.Estimator.Range(t - e.plan.Parts)
	return e.plan.Records + first, e.plan.Records + end
}

// Longest returns an upper bound on the slots of the first t steps; see adaptive.
func (e warmedSteps) Longest(t uint64) uint64 {
	if t <= e.plan.Parts {
		return e.plan.Records
	}
	n := e.Estimator.(adaptive).Longest(t - e.plan.Parts)
	if n > math.MaxUint64-e.plan.Records {
		return math.MaxUint64
	}
	return e.plan.Records + n
}

// Ended reports whether the warm-up found no bounds, so that no step can follow.
func (e *warmed) Ended() (why string, ended bool) { return "warmup", e.warm.Failed() }

// Sizes returns the sizes of warm-up and estimator together.
func (e *warmed) Sizes() dp.Sizes {
	a, b := e.Estimator.Sizes(), e.warm.Sizes()
	return dp.Sizes{State: 1 + 8 + a.State + b.State, Release: a.Release + b.Release, Peak: a.Peak + b.Peak}
}

// Add adds a record to the warm-up or, scaled, to the estimator.
func (e *warmed) Add(slot uint64, row []float64) {
	switch {
	case !e.ready:
		e.records++
		e.warm.Add(row)
	case len(row) == len(e.row) && e.warm.Found().Scaled(e.row, row):
		e.Estimator.Add(slot-e.plan.Records, e.row)
	default:
		e.Estimator.Add(slot-e.plan.Records, nil)
	}
}

// Close ends a step of the warm-up, or of the estimator.
func (e *warmed) Close(n dp.Noise) (*dp.Release, error) {
	if e.warm.Failed() {
		return nil, dp.ErrExhausted
	}
	if !e.ready {
		return e.closeWarmup(n)
	}
	r, err := e.Estimator.Close(n)
	if r != nil {
		r.Step += e.plan.Parts
		b := e.bounds()
		e.withFrozen(r.Values)
		r.Notes, r.Verdict = append(r.Notes, dp.Note{Name: "bounds", Value: b}), b.Verdict
	}
	return r, err
}

func (e *warmed) closeWarmup(n dp.Noise) (*dp.Release, error) {
	step := e.warm.Part() + 1
	stages, err := e.warm.Close(n)
	if err != nil {
		return nil, err
	}
	r := &dp.Release{Step: step, Rows: e.records, Notes: []dp.Note{{Name: "warmup", Value: stages}},
		Verdict: stages[len(stages)-1].Verdict}
	e.records = 0
	return r, e.begin()
}

// begin makes the estimator once the warm-up is over.
func (e *warmed) begin() (err error) {
	if e.ready = e.warm.Done() && !e.warm.Failed(); !e.ready {
		return nil
	}
	m, err := e.follow(e.warm.Found())
	if err != nil {
		return err
	}
	e.after, e.Estimator = m, m.Estimator
	return nil
}

// Bounds is the result of a regression's warm-up, which every later release repeats.
type Bounds struct {
	Verdict string    `json:"verdict"` // "partial": a column is frozen; else "ok"
	Centre  []float64 `json:"centre"`
	Scale   []float64 `json:"scale"`
	Frozen  []string  `json:"frozen"` // columns
	// ClipX and ClipY are the norms to which features and target are shortened, in scaled units; 0: none. ClippedX and
	// ClippedY are the shares of the warm-up's rows beyond the found bounds.
	ClipX    float64  `json:"clip_x,omitempty"`
	ClippedX *float64 `json:"clipped_x,omitempty"`
	ClipY    float64  `json:"clip_y,omitempty"`
	ClippedY *float64 `json:"clipped_y,omitempty"`
}

func (e *warmed) bounds() *Bounds {
	f := e.warm.Found()
	b := &Bounds{Verdict: "ok", Centre: f.Centre, Scale: f.Scale, Frozen: []string{}}
	b.ClipX, b.ClipY = e.stream.Limits()
	if math.IsNaN(b.ClipX) {
		b.ClipX, b.ClippedX = f.X.Clip, &f.X.Clipped
	}
	if math.IsNaN(b.ClipY) {
		b.ClipY, b.ClippedY = f.Y.Clip, &f.Y.Clipped
	}
	for _, j := range f.FrozenColumns() {
		b.Frozen, b.Verdict = append(b.Frozen, e.stream.Input.Row()[j]), "partial"
	}
	return b
}

// withFrozen sets the coefficients of frozen columns to 0. The regression returns only noise for them, because their
// scaled values are 0.
func (e *warmed) withFrozen(values []dp.Value) {
	target := e.stream.Bounds().Regression.Target
	for _, j := range e.warm.Found().FrozenColumns() {
		if j > target {
			j--
		}
		for _, v := range values {
			switch v.Name {
			case "theta", "theta_original", "theta_average", "theta_average_original", "interval_low", "interval_high":
				v.Data[j] = 0
				if v.SE != nil {
					v.SE[j] = math.NaN()
				}
			}
		}
	}
}

// sample returns a release that is at least as large as any release of the warm-up or of the estimator.
func (e *warmed) sample(values *dp.Release) *dp.Release {
	const longest = -2.2250738585072014e-308
	number, columns := longest, e.stream.Input.Row()
	fill := slices.Repeat([]float64{longest}, len(columns))
	limit := &bounds.Limit{Clip: longest, Clipped: longest, ClippedSE: longest}
	r := &dp.Release{Values: values.Values}
	var stages []bounds.Stage
	for range 5 {
		s := bounds.Stage{Stage: "A1", Verdict: "fail", Reason: "not enough records", Records: longest, Needed: longest,
			Sigma:  longest,
			Centre: fill, Dead: fill, Scale: fill, Unseen: longest, Features: limit, Target: limit}
		for j := range columns {
			s.Ranges, s.Circles = append(s.Ranges, [2]float64{longest, longest}), append(s.Circles, 6)
			s.Cap, s.Frozen = append(s.Cap, &number), append(s.Frozen, j)
		}
		stages = append(stages, s)
	}
	r.Notes = []dp.Note{{Name: "warmup", Value: stages}, {Name: "bounds", Value: &Bounds{
		Verdict: "partial", Centre: fill, Scale: fill, Frozen: columns, ClipX: longest, ClippedX: &number,
		ClipY: longest, ClippedY: &number,
	}}}
	return r
}

// warmedState is the first byte of the state of warmed:
//
//	version, state of the warm-up, (u64 length, state of the estimator) once bounds are found
//
// The states of the estimators begin with other bytes.
const warmedState = 0xe0

// AppendBinary appends the state after the last Close.
func (e *warmed) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: b}
	w.Byte(warmedState)
	e.warm.AppendTo(w)
	if e.ready {
		if err := w.Blob(e.Estimator.AppendBinary); err != nil {
			return b, err
		}
	}
	return w.B, nil
}

// UnmarshalBinary restores a state written by a mechanism of the same configuration and plan. It drops the open step.
func (e *warmed) UnmarshalBinary(data []byte) error {
	r := &bin.Reader{B: data}
	if r.Byte() != warmedState {
		return errors.New("state of a warm-up: unknown version")
	}
	if err := e.warm.Restore(r); err != nil {
		return err
	}
	if err := e.begin(); err != nil {
		return err
	}
	e.records = 0
	var state []byte
	if e.ready {
		state = r.Bytes()
	}
	if !r.Done() {
		return errors.New("state of a warm-up: damaged")
	}
	if e.ready {
		return e.Estimator.UnmarshalBinary(state)
	}
	return nil
}
