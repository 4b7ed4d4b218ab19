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
	Records uint64 `json:"records"` // slots before the first step of moments
	Needed  uint64 `json:"needed"`  // valid records among them, in every stage
	Parts   uint64 `json:"parts"`   // steps that they are
	// Gains are the deviations of moments for the clip norm 1 by which the clip norm is
	// chosen.
	Gains bounds.Gains `json:"gains"`
}

// leastWarmup is the default of Config.Warmup, unless the noise needs more.
const leastWarmup = 5000

// Automatic reports whether a warm-up finds bounds: the clip norm, or a column's centre
// or scale.
func (c *Config) Automatic() bool {
	return c.autoClip() || slices.ContainsFunc(c.Centre, math.IsNaN) || slices.ContainsFunc(c.Scale, math.IsNaN)
}

// autoClip reports whether the clip norm is found.
func (c *Config) autoClip() bool { return math.IsNaN(c.Clip) }

// Version returns the version of the mechanism. A clip norm that is found has one beside it:
// v1 had other values of se_with_clipping on diagonals.
func (c *Config) Version() string {
	if c.autoClip() {
		return Version + " clip/v2"
	}
	return Version
}

// bounds returns what the warm-up must find, for a mechanism of these gains.
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

// validateWarmup checks what belongs to bounds that are found.
func (c *Config) validateWarmup(l *fault.List) {
	auto := c.Automatic()
	l.Check(c.WarmupMode == "buffer" ||
		c.WarmupMode == "split", "warmup_mode", "must be \"buffer\" or \"split\"", c.WarmupMode)
	l.Check(auto ||
		c.WarmupMode != "split", "warmup_mode", "belongs to a centre, scale or clip that is \"auto\"", c.WarmupMode)
	l.Check(auto || c.Warmup == 0, "warmup", "belongs to a centre, scale or clip that is \"auto\"", c.Warmup)
	l.Check(c.Step == 0 || c.Warmup%c.Step == 0, "warmup", "must be a multiple of step", c.Warmup)
	l.Check(c.Warmup <= maxSlots/4, "warmup", "must be fewer offsets than a log has", c.Warmup)
	if c.autoClip() {
		l.Check(c.Tau == 0, "tau", "needs a clip that is given: its unit is that of the rows", c.Tau)
		l.Check(len(c.Weights) == 0, "weights",
			"needs a clip that is given: their units are those of the rows", c.Weights)
	}
	l.Check(!auto || c.Second == nil, "warmup", "does not go with a second factorization", nil)
}

// planWarmup resolves the warm-up that precedes e: its length and the gains by which
// the clip norm is chosen.
func (e *Estimator) planWarmup(mu float64) *WarmupPlan {
	c, t := &e.cfg, e.cfg.reference()
	rows := float64(c.Step) * weights(e.shapes.first.kernel, t)
	var g *overlap
	if e.plan.squares() {
		g = newOverlap(e.shapes.first.factor, e.shapes.first.kernel)
	}
	// Of the moments of a row also where sums are released.
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

// agrees reports whether a kept warm-up is that of the configuration.
func (p *WarmupPlan) agrees(own *WarmupPlan) bool {
	near := func(a, b float64) bool { return calibration.Near(a, b, calibration.Optimum) }
	return p.Records == own.Records && p.Parts == own.Parts && near(float64(p.Needed), float64(own.Needed)) &&
		near(p.Gains.Mean, own.Gains.Mean) && near(p.Gains.Second, own.Gains.Second) &&
		near(p.Gains.Reference, own.Gains.Reference)
}

// warmUp makes the warm-up of a plan. fresh says that the plan is a new one.
func (e *Estimator) warmUp(fresh bool) error {
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

// warmed takes the constants that the warm-up found, when it is complete.
func (e *Estimator) warmed() {
	e.unit, e.found = 1, nil
	if e.warmup == nil || !e.warmup.Done() || e.warmup.Failed() {
		return
	}
	if e.found = e.warmup.Found(); e.cfg.autoClip() {
		e.unit = e.found.Clip
	}
}

// parts returns the number of steps before the first one of moments.
func (e *Estimator) parts() uint64 {
	if e.plan.Warmup == nil {
		return 0
	}
	return e.plan.Warmup.Parts
}

// Ended reports that no step can follow, because the warm-up found no bounds, and returns the
// reason. The release says which stage failed, and how many records it needed.
func (e *Estimator) Ended() (why string, ended bool) {
	if e.warmup != nil && e.warmup.Failed() {
		return "warmup", true
	}
	return "", false
}

// scaled returns the row in the unit of the lattice, nil for an invalid one.
func (e *Estimator) scaled(row []float64) []float64 {
	if e.found == nil || len(row) != len(e.row) || !e.found.Scaled(e.row, row) {
		return nil
	}
	for j := range e.row {
		e.row[j] /= e.unit
	}
	return e.row
}

// closeWarmup ends a part of the warm-up.
func (e *Estimator) closeWarmup(n dp.Noise) (*dp.Release, error) {
	stages, err := e.warmup.Close(n)
	if err != nil {
		return nil, err
	}
	r := &dp.Release{Step: e.warmup.Part(), Rows: e.rows, Notes: []dp.Note{{Name: "warmup", Value: stages}},
		Verdict: stages[len(stages)-1].Verdict}
	if e.warmup.Failed() && e.cfg.WarmupMode == "split" {
		r.Step++ // the part that failed is not among those that are over
	} else if e.warmup.Failed() {
		r.Step = 1
	}
	e.warmed()
	e.rows = 0
	return r, nil
}

// Bounds is what a release repeats of the warm-up.
type Bounds struct {
	// Verdict is "ok", or the first that applies of
	//
	//	biased   what clipping takes is more than twice the noise of the reference release
	//	stale    fewer rows count in full than in the warm-up: bounds no longer fit
	//	partial  a column is frozen
	Verdict string    `json:"verdict"`
	Centre  []float64 `json:"centre"`
	Scale   []float64 `json:"scale"`
	Frozen  []string  `json:"frozen"` // columns
	// Clip is in scaled units. What follows is there where it was found.
	Clip float64 `json:"clip"`
	*bounds.Clipping
	FullShareWarmup   *float64 `json:"full_share_warmup,omitempty"`
	FullShareWarmupSE *float64 `json:"full_share_warmup_se,omitempty"`
}

// bounds returns what the release with this share of rows that count in full says of
// its bounds.
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

// withClipping sets the deviations that count what clipping takes away, and what is
// said of frozen columns: they are at their centre, and no deviation is known.
//
//	mean                        √(se² + scale_j²·b₁²/d′)
//	second moment, covariance   √(se² + (scale_i·scale_j·b₂/d′)²), on the diagonal with b₂/d′^¾
//
// for d′ columns that are not frozen. b₂ is a Frobenius norm. Where it is spread over all
// entries, each has b₂/d′ of it; where it is on the diagonal, as for independent columns with
// heavy tails, each of the diagonal has b₂/√d′. b₂/d′^¾ is half-way.
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

// Sample returns a release that is as large as any, of a warm-up and of moments at once where
// there is a warm-up. No value that may be absent is.
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
