package moments

import (
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
)

// WarmupPlan describes the warm-up of an epoch that finds bounds. Its numbers are public.
type WarmupPlan struct {
	Records uint64 `json:"records"` // number of slots before the first step of moments
	Needed  uint64 `json:"needed"`  // number of valid records that every stage needs
	Parts   uint64 `json:"parts"`   // number of steps before the first step of moments
	// Gains are the standard deviations of the moments if the clip norm is 1. The choice of the clip norm uses them.
	Gains bounds.Gains `json:"gains"`
}

// leastWarmup is the default of Config.Warmup, unless the noise needs more.
const leastWarmup = 5000

// Automatic reports whether a warm-up finds bounds: the clip norm, or a column's centre or scale.
func (c *Config) Automatic() bool {
	return c.autoClip() || slices.ContainsFunc(c.Centre, math.IsNaN) || slices.ContainsFunc(c.Scale, math.IsNaN)
}

// autoClip reports whether the warm-up finds the clip norm.
func (c *Config) autoClip() bool { return math.IsNaN(c.Clip) }

// Version returns the version of the mechanism. If the warm-up finds the clip norm, the result includes a second
// version, because v1 had other values of se_with_clipping on diagonals.
func (c *Config) Version() string {
	if c.autoClip() {
		return Version + " clip/v2"
	}
	return Version
}

// bounds returns the configuration of the warm-up for a mechanism with these gains.
func (c *Config) bounds(gains bounds.Gains) bounds.Config {
	given := func(x []float64, missing float64) []float64 {
		if len(x) > 0 {
			return x
		}
		return slices.Repeat([]float64{missing}, len(c.Columns))
	}
	return bounds.Config{
		Columns: len(c.Columns), Centre: given(c.Centre, 0), Scale: given(c.Scale, 1), Clip: c.autoClip(),
		Records: c.Warmup, Split: c.WarmupMode == "split", Gains: gains,
	}
}

// WarmupSteps returns the number of steps that the warm-up takes, 0 for none.
func (c *Config) WarmupSteps() uint64 {
	if !c.Automatic() {
		return 0
	}
	return c.bounds(bounds.Gains{}).Parts()
}

// validateWarmup checks the fields that concern a warm-up.
func (c *Config) validateWarmup(l *fault.List) {
	auto := c.Automatic()
	l.Check(c.WarmupMode == "buffer" ||
		c.WarmupMode == "split", "warmup_mode", "must be \"buffer\" or \"split\"", c.WarmupMode)
	l.Check(auto ||
		c.WarmupMode != "split", "warmup_mode", "belongs to a centre, scale or clip that is \"auto\"", c.WarmupMode)
	l.Check(auto || c.Warmup == 0, "warmup", "belongs to a centre, scale or clip that is \"auto\"", c.Warmup)
	l.Check(c.Step == 0 || c.Warmup%c.Step == 0, "warmup", "must be a multiple of step", c.Warmup)
	l.Check(c.Warmup <= maxSlots/4, "warmup", "must be less than the number of offsets of a log", c.Warmup)
	if c.autoClip() {
		l.Check(c.Tau == 0, "tau", "needs a clip that is not \"auto\", because it is in units of the rows", c.Tau)
		l.Check(len(c.Weights) == 0, "weights",
			"needs a clip that is not \"auto\", because weights are in units of the rows", c.Weights)
	}
	l.Check(!auto || c.Second == nil, "warmup", "cannot be combined with a second factorization", nil)
}

// planWarmup plans the warm-up of e: its length, and the gains by which it chooses the clip norm.
func (e *Estimator) planWarmup(mu float64) *WarmupPlan {
	c, t := &e.cfg, e.cfg.reference()
	rows := float64(c.Step) * weights(e.shapes.first.kernel, t)
	var g *overlap
	if e.plan.squares() {
		g = newOverlap(e.shapes.first.factor, e.shapes.first.kernel)
	}
	// Use the gains of means even if sums are released.
	v := e.variances(g, t, rows, rows, rows)
	gains := bounds.Gains{Mean: math.Sqrt(v.mean), Second: math.Sqrt(v.off), Reference: rows}
	b := c.bounds(gains)
	p := &WarmupPlan{Records: c.Warmup, Needed: b.Needed(mu, e.params.Adjacency), Parts: b.Parts(), Gains: gains}
	if p.Records == 0 {
		p.Records = max(leastWarmup, 2*min(p.Needed, maxSlots/8))
		p.Records += (c.Step - p.Records%c.Step) % c.Step
	}
	return p
}

// agrees reports whether p, the warm-up of a kept plan, equals `own`, the one computed from the configuration.
func (p *WarmupPlan) agrees(own *WarmupPlan) bool {
	near := func(a, b float64) bool { return calibration.Near(a, b, calibration.Optimum) }
	return p.Records == own.Records && p.Parts == own.Parts && near(float64(p.Needed), float64(own.Needed)) &&
		near(p.Gains.Mean, own.Gains.Mean) && near(p.Gains.Second, own.Gains.Second) &&
		near(p.Gains.Reference, own.Gains.Reference)
}

// makeWarmup creates the warm-up of a plan. fresh says that the plan was just computed, not read from a record.
func (e *Estimator) makeWarmup(fresh bool) error {
	e.unit = 1
	if !e.cfg.Automatic() {
		if e.plan.Warmup != nil {
			return calibration.ErrForeign
		}
		return nil
	}
	mu, err := e.params.Budget()
	if err != nil {
		return err
	}
	own := e.planWarmup(mu)
	if fresh {
		e.plan.Warmup = own
	}
	p := e.plan.Warmup
	if p == nil || !p.agrees(own) {
		return calibration.ErrForeign
	}
	b := e.cfg.bounds(p.Gains)
	b.Records = p.Records
	if e.cfg.autoClip() {
		b.Full = e.unshortened.norm
	}
	e.warmup, err = bounds.New(b, mu, e.params.Adjacency, e.params.Bits())
	e.row = make([]float64, len(e.cfg.Columns))
	return err
}

// warming reports whether the open step belongs to the warm-up.
func (e *Estimator) warming() bool { return e.warmup != nil && !e.warmup.Done() }

// adoptBounds starts to use the bounds that the warm-up found, if the warm-up is complete.
func (e *Estimator) adoptBounds() {
	e.unit, e.found = 1, nil
	if e.warmup == nil || !e.warmup.Done() || e.warmup.Failed() {
		return
	}
	if e.found = e.warmup.Found(); e.cfg.autoClip() {
		e.unit = e.found.Clip
	}
}

// parts returns the number of steps before the first step of moments.
func (e *Estimator) parts() uint64 {
	if e.plan.Warmup == nil {
		return 0
	}
	return e.plan.Warmup.Parts
}

// Ended reports whether the estimator has ended because the warm-up found no bounds, and returns the reason. The
// release says which stage failed, and how many records it needed.
func (e *Estimator) Ended() (why string, ended bool) {
	if e.warmup != nil && e.warmup.Failed() {
		return "warmup", true
	}
	return "", false
}

// scaled returns the row in the unit of the lattice, or nil if the row is invalid.
func (e *Estimator) scaled(row []float64) []float64 {
	if e.found == nil || len(row) != len(e.row) || !e.found.Scaled(e.row, row) {
		return nil
	}
	for j := range e.row {
		e.row[j] /= e.unit
	}
	return e.row
}

// closeWarmup ends the open part of the warm-up and returns its release.
func (e *Estimator) closeWarmup(n dp.Noise) (*dp.Release, error) {
	stages, err := e.warmup.Close(n)
	if err != nil {
		return nil, err
	}
	r := &dp.Release{Step: e.warmup.Part(), Rows: e.rows, Notes: []dp.Note{{Name: "warmup", Value: stages}},
		Verdict: stages[len(stages)-1].Verdict}
	if e.warmup.Failed() && e.cfg.WarmupMode == "split" {
		r.Step++ // the failed part is not counted among the closed ones
	} else if e.warmup.Failed() {
		r.Step = 1
	}
	e.adoptBounds()
	e.rows = 0
	return r, nil
}

// Bounds is the note on bounds. Every release repeats it.
type Bounds struct {
	// Verdict is "ok", or the first that applies of
	//
	//	biased   clipping takes away more than twice the noise of the reference release
	//	stale    fewer rows are not shortened than in the warm-up: the bounds no longer fit
	//	partial  a column is frozen
	Verdict string    `json:"verdict"`
	Centre  []float64 `json:"centre"`
	Scale   []float64 `json:"scale"`
	Frozen  []string  `json:"frozen"` // names of columns
	// Clip is the clip norm, in scaled units. The fields below are set if the warm-up found it.
	Clip float64 `json:"clip"`
	*bounds.Clipping
	FullShareWarmup   *float64 `json:"full_share_warmup,omitempty"`
	FullShareWarmupSE *float64 `json:"full_share_warmup_se,omitempty"`
}

// bounds returns the note on bounds of a release. share is the share of rows that are not shortened.
func (e *Estimator) bounds(share, se float64) *Bounds {
	f := e.found
	b := &Bounds{Verdict: "ok", Centre: f.Centre, Scale: f.Scale, Frozen: []string{}, Clip: e.plan.Clip * e.unit}
	for _, j := range f.FrozenColumns() {
		b.Frozen = append(b.Frozen, e.cfg.Columns[j])
	}
	if len(b.Frozen) > 0 {
		b.Verdict = "partial"
	}
	if !e.cfg.autoClip() {
		return b
	}
	b.Clipping, b.FullShareWarmup, b.FullShareWarmupSE = &f.Clipping, &f.Full, &f.FullSE
	switch {
	case f.BiasedMean || f.BiasedSecond:
		b.Verdict = "biased"
	case share < f.Full-0.05-3*math.Hypot(se, f.FullSE):
		b.Verdict = "stale"
	}
	return b
}

// withClipping sets the deviations that include the loss by clipping. A frozen column is released as its centre, with
// an unknown deviation. The deviations are
//
//	mean                        √(se² + scale_j²·b₁²/d′)
//	second moment, covariance   √(se² + (scale_i·scale_j·b₂/d′)²), on the diagonal with b₂/d′^¾
//
// for d′ columns that are not frozen. b₂ is a Frobenius norm. If it is spread over all entries, each entry has b₂/d′ of
// it. If it is on the diagonal, as for independent columns with heavy tails, each diagonal entry has b₂/√d′. b₂/d′^¾ is
// between the two.
func (e *Estimator) withClipping(values []dp.Value) {
	f, d := e.found, len(e.cfg.Columns)
	frozen := f.FrozenColumns()
	active := float64(d - len(frozen))
	diagonal := 1 / math.Sqrt(active*math.Sqrt(active))
	is := make([]bool, d)
	for _, j := range frozen {
		is[j] = true
	}
	for i := range values {
		v := &values[i]
		vector := len(v.Shape) == 1 && v.Shape[0] == d && v.Name != "valid_count" && v.Name != "full_share"
		matrix := len(v.Shape) == 2
		if !vector && !matrix {
			continue
		}
		original := v.Name == "mean_original" || v.Name == "covariance_original"
		scale := func(j int) float64 {
			if original {
				return f.Scale[j]
			}
			return 1
		}
		if len(frozen) > 0 && len(v.SE) == 1 {
			v.SE = slices.Repeat(v.SE, len(v.Data))
		}
		if e.cfg.autoClip() && v.SE != nil {
			v.SEWithClipping = make([]float64, len(v.Data))
		}
		entry := func(n int, bias float64, none bool, at float64) {
			switch {
			case none:
				v.Data[n] = at
				if v.SE != nil {
					v.SE[n] = math.NaN()
				}
				bias = math.NaN()
			}
			if v.SEWithClipping != nil {
				v.SEWithClipping[n] = math.Hypot(v.SE[min(n, len(v.SE)-1)], bias)
			}
		}
		if vector {
			for j := range d {
				at := 0.0
				if original {
					at = f.Centre[j]
				}
				entry(j, scale(j)*f.BiasMean/math.Sqrt(active), is[j], at)
			}
			continue
		}
		n := 0
		for j := range d {
			for k := j; k < d; k++ {
				at := 0.0
				if v.Name == "covariance_psd" && j == k {
					at = *e.cfg.PSDFloor
				}
				share := 1 / active
				if j == k {
					share = diagonal
				}
				entry(n, scale(j)*scale(k)*f.BiasSecond*share, is[j] || is[k], at)
				n++
			}
		}
	}
}

// Sample returns a release of the largest possible size. If there is a warm-up, it has the notes of the warm-up and the
// values of moments. No optional value is left out.
func (e *Estimator) Sample() *dp.Release {
	const longest = -2.2250738585072014e-308
	d := len(e.cfg.Columns)
	fill := func(n int) []float64 { return slices.Repeat([]float64{longest}, n) }
	r := &dp.Release{}
	for _, name := range e.cfg.Values() {
		v := dp.Value{Name: name, Shape: []int{d}, Data: fill(d), SE: fill(d), SEWithClipping: fill(d)}
		switch name {
		case "valid_count", "counted_share", "full_share":
			v = dp.Value{Name: name, Shape: []int{1}, Data: fill(1), SE: fill(1)}
		case "mean", "sum", "mean_original", "mean_counted", "mean_counted_original":
		default:
			v.Shape, v.Layout = []int{d, d}, "upper"
			v.Data, v.SE, v.SEWithClipping = fill(d*(d+1)/2), fill(d*(d+1)/2), fill(d*(d+1)/2)
		}
		r.Values = append(r.Values, v)
	}
	if e.warmup == nil {
		for i := range r.Values {
			r.Values[i].SEWithClipping = nil
		}
		return r
	}
	number, clipping := longest,
		bounds.Clipping{Clipped: longest, ClippedSE: longest, BiasMean: longest, BiasSecond: longest}
	b := &Bounds{Verdict: "partial", Centre: fill(d), Scale: fill(d), Frozen: e.cfg.Columns, Clip: longest,
		Clipping:        &clipping,
		FullShareWarmup: &number, FullShareWarmupSE: &number}
	var stages []bounds.Stage
	for range 5 {
		s := bounds.Stage{Stage: "A1", Verdict: "fail", Reason: "not enough records", Records: longest, Needed: longest,
			Sigma:  longest,
			Centre: fill(d), Dead: fill(d), Scale: fill(d), Unseen: longest, Clip: longest, Clipping: &clipping}
		for j := range d {
			s.Ranges, s.Circles = append(s.Ranges, [2]float64{longest, longest}), append(s.Circles, 6)
			s.Cap, s.Frozen = append(s.Cap, &number), append(s.Frozen, j)
		}
		stages = append(stages, s)
	}
	r.Notes = []dp.Note{{Name: "warmup", Value: stages}, {Name: "bounds", Value: b}}
	return r
}
