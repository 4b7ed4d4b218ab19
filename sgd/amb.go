package sgd

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"streamdp/dp"
	"streamdp/matfact"
)

// AMB is online linear regression by mini-batch gradient descent with adaptive
// clipping (DP-AMBSSGD). For records (x_i, y_i) of step t, with g_i = r_ix_i,
// r_i = ⟨x_i, w_t⟩ − y_i, it releases the iterate
//
//	w_{t+1} = w_t − η_t(ζ_t/b_t)(Σ_i clip(g_i/ζ_t) + [C⁻¹Z]_t),   clip(u) = u·min(1, 1/‖u‖)
//
// projected onto the ball of the radius, an average of the last iterates with
// standard errors and approximate confidence intervals, and the clip norm ζ_t. Z has
// independent entries N(0, τ²), τ = S‖C‖/μ_g with S = 1 under zero-out and 2 under
// replacement. Noise is shaped in units of ζ_t: whatever ζ_t, η_t and b_t do, the
// sums and C⁻¹Z are those of one matrix mechanism. Then,
//
//	track   ζ_{t+1} = ζ_t·exp(−κ(c̃_t/b_t − q)), c̃_t a noisy count of unclipped records
//	bisect, scan   ζ_t found by a private search in records of its own
//
// A null record, also a slot without record, adds nothing to the sum and q to a
// count. Units are those of the scaled rows; the constant feature has the plan's
// Constant as value, and its coefficient is released for the constant 1.
//
// Privacy: all releases together, however many, are μ-Gaussian private for one
// record nulled (zero-out) or replaced in its slot: a record is in one search, or
// in one gradient sum and one count whose costs add up to μ². What is released
// later only post-processes. The slots of every step are public.
//
// Cost: O(d) time a record without allocation, O(pd) a step for p bands; memory
// O((p + log T)d) after T steps.
// Source: Varshney, Thakurta, Jain (2022), "(Nearly) Optimal Private Linear
// Regression for Sub-Gaussian Data via Adaptive Clipping", Algorithm 2.
// Deviations: batches that do not overlap with searches, exact calibration, the
// searches, tracking, correlated noise, averages that need no horizon, restarts;
// docs/theory/sgd.md.
//
// An AMB is not safe for concurrent use.
type AMB struct {
	cfg     Config
	params  dp.Params
	plan    Plan
	factor  matfact.Factorization
	horizon uint64 // the last step

	target  int     // column
	columns int     // of a row
	square  float64 // ClipX²
	ladder  ladder
	reach   float64 // bounds predictions of noise, in lattice units

	fingerprint uint64 // of what a state depends on

	// The state.
	step      uint64 // last closed
	iteration uint64 // gradient steps closed
	w         []float64
	zeta      float64 // of the next gradient step
	used      float64 // of the last one
	ceiling   uint64  // steps in a row that zeta has been near its upper bound
	began     uint64  // iteration with which the average began
	average   average
	jump      jump
	drift     *drift   // nil: no restarts
	batches   *batches // nil: no intervals
	shaper    matfact.Shaper
	shaped    bool

	// The open step; no part of the state.
	rows      uint64
	nulls     int64
	gradients gradients
	histogram histogram // of a search
	searching bool

	// Scratch.
	x              []float64
	noise          []int64
	predict, mean  []float64
	standardErrors []float64
}

// New returns the estimator that cfg describes, built for the guarantee p. All
// faults are reported at once.
func New(cfg Config, p dp.Params) (*AMB, error) {
	cfg.Defaults()
	plan, factor, err := resolve(&cfg, p, nil)
	if err != nil {
		return nil, err
	}
	return build(cfg, p, plan.clone(), factor)
}

// Adopt is New with the plan of an epoch that has begun: the releases of an
// epoch are a function of its plan's numbers, never of recomputed ones. It
// refuses a plan that the configuration does not lead to.
func Adopt(cfg Config, p dp.Params, plan Plan) (*AMB, error) {
	cfg.Defaults()
	if cfg.Start == nil {
		cfg.Start = plan.Start // an earlier release, which only the plan has
	}
	factor, err := adopt(&plan, &cfg, p)
	if err != nil {
		return nil, err
	}
	return build(cfg, p, plan.clone(), factor)
}

// young is the number of steps below which the last half is averaged: iterates
// are on their way.
const young = 64

// build makes an estimator of the plan's numbers.
func build(cfg Config, p dp.Params, plan Plan, factor matfact.Factorization) (*AMB, error) {
	d := cfg.features()
	limits, err := factor.Limits(plan.GradientNoise)
	if err != nil {
		return nil, err
	}
	e := &AMB{
		cfg: cfg, params: p, plan: plan, factor: factor,
		horizon: cfg.LastStep(),
		target:  slices.Index(cfg.Columns, cfg.Target),
		columns: len(cfg.Columns),
		square:  cfg.ClipX * cfg.ClipX,
		ladder:  ladder{cfg.Top, cfg.Rungs},
		// s_t = q_t − w_t and q_t the draw, rounded.
		reach:     limits.Noise + 14*plan.GradientNoise + 4,
		w:         make([]float64, d),
		zeta:      plan.Zeta,
		shaper:    factor.NewShaper(d),
		shaped:    factor.Kind() != "identity",
		gradients: newGradients(plan.Lattice, plan.One, d),
		x:         make([]float64, d),
		noise:     make([]int64, d),
		mean:      make([]float64, d),
		predict:   make([]float64, d),
		jump:      jump{factor: plan.Jump},
	}
	if e.horizon == 0 {
		e.horizon = endless / uint64(d)
	}
	copy(e.w, plan.Start)
	if cfg.Average == "smooth" {
		e.average = newSmooth(d)
	} else {
		e.average = newTail(cfg.Tail, young, d)
	}
	if plan.DriftBlock > 0 {
		e.drift = newDrift(plan.DriftBlock, d)
	}
	if plan.BatchMeans > 0 {
		e.batches = newBatches(plan.BatchMeans, d)
		e.standardErrors = make([]float64, d)
	}
	if plan.Search > 0 {
		e.histogram = e.ladder.histogram()
	}
	e.open()
	e.fingerprint, err = e.identify()
	return e, err
}

// Plan returns what the configuration resolved to.
func (e *AMB) Plan() Plan { return e.plan.clone() }

// Columns returns the length of a row.
func (e *AMB) Columns() int { return e.columns }

// Cost returns what one record pays for all releases of an epoch.
func (e *AMB) Cost() dp.Cost { return dp.Cost{Adjacency: e.params.Adjacency, Mu: e.plan.Mu} }

// kind says whether step t ≥ 1 is a search, and how many gradient steps are
// before it.
func (e *AMB) kind(t uint64) (search bool, before uint64) {
	switch e.cfg.Clip {
	case "fixed":
		return false, t - 1
	case "track":
		if t == 1 {
			return true, 0
		}
		return false, t - 2
	}
	return t%2 == 1, (t - 1) / 2
}

// growing is the first number of gradient steps at which batches double.
const growing = 32

// batch returns the slots of gradient step n, from 0.
func (e *AMB) batch(n uint64) uint64 {
	doublings := max(bits.Len64((n+1)/(growing/2))-1, 0)
	return e.plan.Batch << min(doublings, e.plan.Growth)
}

// slots returns those of the first n gradient steps. It saturates, far beyond
// what a log can hold.
func (e *AMB) slots(n uint64) uint64 {
	var total uint64
	first := uint64(0)
	for k := 0; first < n; k++ {
		// Steps n with n+1 < 32·2^k have batches of b·2^k at most.
		end := n
		if k < e.plan.Growth {
			end = min(n, growing<<k-1)
		}
		high, low := bits.Mul64(end-first, e.plan.Batch<<k)
		if total += low; high > 0 || low >= 1<<62 || total >= 1<<62 {
			return 1 << 62
		}
		first = end
	}
	return total
}

// Range returns the slots of step t ≥ 1, [first, end).
func (e *AMB) Range(t uint64) (first, end uint64) {
	search, before := e.kind(t)
	searches := uint64(0) // before step t
	switch e.cfg.Clip {
	case "track":
		searches = min(t-1, 1)
	case "bisect", "scan":
		searches = t / 2
	}
	first = e.slots(before) + searches*e.plan.Search
	if search {
		return first, first + e.plan.Search
	}
	return first, first + e.batch(before)
}

// open starts the step after the last closed one.
func (e *AMB) open() {
	e.rows, e.nulls = 0, 0
	clear(e.histogram)
	e.searching, _ = e.kind(e.step + 1)
	e.gradients.open(e.zeta)
}

// Add adds a record to the open step. row is in scaled units, of length Columns,
// and is neither changed nor kept; one of another length, nil above all, and one
// that holds no numbers are null records.
func (e *AMB) Add(slot uint64, row []float64) {
	e.rows++
	if len(row) != e.columns {
		e.nulls++
		return
	}
	n := len(row) - 1
	x := row[:n]
	if e.target != n || e.plan.Constant > 0 { // features in a row, the constant after them
		x = e.x[:n]
		copy(x, row[:e.target])
		copy(x[e.target:], row[e.target+1:])
	}
	dot, square := dotSquare(e.w, x)
	shrink := 1.0
	if !(square <= e.square) {
		if !(square < 1e300) { // too large for squares, or no numbers
			e.addLarge(row)
			return
		}
		shrink = e.plan.ClipX / math.Sqrt(square)
		dot *= shrink
		square = e.square
	}
	y := row[e.target]
	if c := e.cfg.ClipY; c > 0 && !(math.Abs(y) <= c) && y == y {
		y = math.Copysign(c, y)
	}
	r := dot - y
	if c := e.plan.Constant; c > 0 {
		r += float64(e.w[n] * c)
		square += float64(c * c)
		x = e.x
		x[n] = c / shrink
	}
	switch {
	case r-r != 0:
		e.nulls++
	case e.searching:
		e.look(r, square)
	default:
		g := &e.gradients
		g.lattice.Accumulate(g.sum, x, g.scale(r, square)*shrink)
	}
}

// addLarge is Add for features whose squares leave the range of float64, or
// that are no numbers: those are a null record, the others are shortened.
func (e *AMB) addLarge(row []float64) {
	x := slices.Concat(row[:e.target], row[e.target+1:])
	if !finite(x) {
		e.nulls++
		return
	}
	shorten(x, e.plan.ClipX)
	e.rows--
	e.Add(0, slices.Insert(x, e.target, row[e.target]))
}

// look takes a record into a search.
func (e *AMB) look(r, square float64) {
	u := math.Abs(r)
	if e.cfg.Value == "gradnorm" {
		u *= math.Sqrt(square)
	}
	if math.IsInf(u, 0) {
		e.nulls++
		return
	}
	e.histogram[e.ladder.index(u)]++
}

// ErrDiverged is returned by Close when the clip norm has stayed near its upper
// bound for 64 steps: the iterates diverge, or most records exceed that bound.
// It depends on released numbers only.
var ErrDiverged = errors.New("the clip norm has been near its upper bound for 64 steps: " +
	"the curvature given is too small, the batch too short, or the columns are scaled too large")

const ceilingMost = 64

// Close ends the open step and returns its release, nil after a search. It
// returns dp.ErrExhausted, and changes nothing, after the horizon.
func (e *AMB) Close(n dp.Noise) (*dp.Release, error) {
	if e.step >= e.horizon {
		return nil, dp.ErrExhausted
	}
	if e.ceiling >= ceilingMost {
		return nil, ErrDiverged
	}
	first, end := e.Range(e.step + 1)
	if end-first < e.rows {
		return nil, fmt.Errorf("step %d was given %d records for %d slots: its sums may have left their range", e.step+1, e.rows, end-first)
	}
	e.nulls += int64(end - first - e.rows) // slots without a record
	if e.searching {
		e.search(n)
		e.step++
		e.open()
		return nil, nil
	}
	e.descend(n, end-first)
	e.step++
	e.iteration++
	r, err := e.release(end)
	e.open()
	return r, err
}

// search ends a step that looks for the clip norm.
func (e *AMB) search(n dp.Noise) {
	*e.histogram.nulls() = e.nulls
	row := n.Row("ambssgd/stat", e.histogram)
	find := e.ladder.bisect
	if e.cfg.Clip == "scan" {
		find = e.ladder.scan
	}
	rung := find(e.histogram, counting{e.plan.Unit, e.plan.Null, e.plan.SearchNoise}, e.plan.Threshold, row)
	e.setZeta(float64(e.plan.Multiplier*e.ladder.rung(rung)), rung == e.ladder.rungs)
}

// nearCeiling is how near a clip norm is to its upper bound where it counts as
// there: the noise of counts moves it.
const nearCeiling = 0x1p-8

// setZeta sets the clip norm of the next gradient step. top says that nothing
// larger was to be found.
func (e *AMB) setZeta(zeta float64, top bool) {
	e.zeta = min(max(zeta, e.plan.ZetaLow), e.plan.ZetaHigh)
	if top || e.zeta >= e.plan.ZetaHigh*nearCeiling {
		e.ceiling++
	} else {
		e.ceiling = 0
	}
}

// descend ends a gradient step of b slots.
func (e *AMB) descend(n dp.Noise, b uint64) {
	e.used = e.zeta
	if e.cfg.Clip == "track" {
		count := e.gradients.inside*e.plan.Unit + e.nulls*e.plan.Null
		row := n.Row("ambssgd/clip", []int64{count})
		part := float64(count+dp.RoundAt(row, 0, e.plan.CountNoise)) / float64(float64(e.plan.Unit)*float64(b))
		part = min(max(part, 0), 1)
		e.setZeta(float64(e.zeta*exp(float64(-e.cfg.Kappa*(part-e.cfg.Quantile)))), false)
	}

	sum := e.gradients.integers()
	row := n.Row("ambssgd/grad", sum)
	r, predicted := 1.0, []float64(nil)
	if e.shaped {
		r, predicted = e.shaper.Predict(e.predict), e.predict
	}
	dp.RoundRow(e.noise, row, []float64{e.plan.GradientNoise}, predicted, r)
	e.shaper.Push(e.noise)

	step := float64(e.plan.rate(e.cfg.Eta0, b)*e.used) / float64(float64(b)*e.plan.One)
	next := e.mean // scratch
	var square float64
	for j, w := range e.w {
		next[j] = w - float64(step*float64(sum[j]+e.noise[j]))
		square += float64(next[j] * next[j])
	}
	if !(square <= math.MaxFloat64) {
		return // no iterate; the last one stays
	}
	if norm := math.Sqrt(square); e.plan.Radius > 0 && norm > e.plan.Radius {
		for j := range next {
			next[j] = float64(next[j] * (e.plan.Radius / norm))
		}
	}
	copy(e.w, next)
}

// release updates the averages with the new iterate and assembles what is
// published, after slots slots.
func (e *AMB) release(slots uint64) (*dp.Release, error) {
	if e.drift != nil {
		jumped := e.plan.Jump > 0 && e.jump.sees(e.used)
		if e.drift.sees(e.w) || jumped {
			e.restart()
		}
	}
	e.average.add(e.w)
	if e.batches != nil {
		e.batches.add(e.w)
	}

	after := e.average.mean(e.mean)
	average := dp.Value{Name: "theta_average", Shape: []int{len(e.w)}, Data: e.coefficients(e.mean)}
	var low, high []float64
	if e.batches != nil {
		if t := e.plan.Student[e.batches.error(e.standardErrors)]; t > 0 {
			average.SE = e.coefficients(e.standardErrors)
			for j, v := range average.Data {
				half := float64(t * average.SE[j])
				low, high = append(low, v-half), append(high, v+half)
			}
		}
	}
	values := []dp.Value{{Name: "theta", Shape: average.Shape, Data: e.coefficients(e.w)}, average}
	if low != nil {
		values = append(values, dp.Value{Name: "interval_low", Shape: average.Shape, Data: low},
			dp.Value{Name: "interval_high", Shape: average.Shape, Data: high})
	}
	one := func(name string, v float64) {
		values = append(values, dp.Value{Name: name, Shape: []int{1}, Data: []float64{v}})
	}
	one("zeta", e.used)
	one("average_start", float64(e.began+after))
	one("iteration", float64(e.iteration))
	one("slots", float64(slots))
	if e.cfg.scaled() {
		original := e.original(average.Data)
		values = append(values, dp.Value{Name: "theta_average_original", Shape: []int{len(original)}, Data: original})
	}
	for _, v := range values {
		if !finite(v.Data) || !finite(v.SE) {
			return nil, errors.New("a released value left the range of float64: scale the columns to about 1")
		}
	}
	return &dp.Release{Step: e.step, Rows: e.rows, Values: values}, nil
}

// restart begins the averages anew with the next iterate.
func (e *AMB) restart() {
	e.began = e.iteration - 1
	e.average.reset()
	e.drift.reset()
	if e.batches != nil {
		e.batches.reset()
	}
}

// coefficients returns w as coefficients of the features and of the constant 1.
func (e *AMB) coefficients(w []float64) []float64 {
	theta := slices.Clone(w)
	if last := len(theta) - 1; e.plan.Constant > 0 {
		theta[last] = float64(theta[last] * e.plan.Constant)
	}
	return theta
}

// original returns coefficients for rows before centring and scaling. The last
// one is the constant, where there is one or where centring makes one.
func (e *AMB) original(theta []float64) []float64 {
	at := func(x []float64, i int, missing float64) float64 {
		if len(x) == 0 {
			return missing
		}
		return x[i]
	}
	out := make([]float64, 0, e.columns)
	unit := at(e.cfg.Scale, e.target, 1)
	constant := at(e.cfg.Centre, e.target, 0)
	if *e.cfg.Intercept {
		constant += float64(unit * theta[len(theta)-1])
	}
	for i := range e.columns {
		if i == e.target {
			continue
		}
		c := float64(unit*theta[len(out)]) / at(e.cfg.Scale, i, 1)
		constant -= float64(c * at(e.cfg.Centre, i, 0))
		out = append(out, c)
	}
	if *e.cfg.Intercept || slices.ContainsFunc(e.cfg.Centre, func(x float64) bool { return x != 0 }) {
		out = append(out, constant)
	}
	return out
}

// finite reports whether all of x are numbers.
func finite(x []float64) bool {
	for _, v := range x {
		if v-v != 0 { // NaN for NaN and the infinities
			return false
		}
	}
	return true
}

// Sample returns a release of the form that is largest: every value that there
// can be, of zeros.
func (e *AMB) Sample() *dp.Release {
	r := &dp.Release{}
	for _, name := range e.cfg.Values() {
		v := dp.Value{Name: name, Shape: []int{1}, Data: make([]float64, 1)}
		switch name {
		case "theta", "theta_average", "interval_low", "interval_high":
			v.Data = make([]float64, len(e.w))
		case "theta_average_original":
			v.Data = e.original(make([]float64, len(e.w)))
		}
		if v.Shape[0] = len(v.Data); name == "theta_average" && *e.cfg.Intervals {
			v.SE = make([]float64, len(e.w))
		}
		r.Values = append(r.Values, v)
	}
	return r
}

// Sizes returns what the estimator takes, at most, after 2⁴⁰ steps.
func (e *AMB) Sizes() dp.Sizes {
	const steps = 40
	d := int64(len(e.w))
	state := int64(256 + 8*recentMost + 64)                // header, jump, shaper's header
	rows := int64(1 + 3 + len(e.plan.Factorization.Bands)) // iterate, drift, ring
	if e.cfg.Average == "tail" {
		rows += steps + 1
	} else {
		rows++
	}
	if e.batches != nil {
		rows += batchesMost
	}
	state += 8 * d * rows
	release := int64(0)
	for _, v := range e.Sample().Values {
		release += 8 * int64(len(v.Data)+len(v.SE))
	}
	return dp.Sizes{State: state, Release: release, Peak: state + release + 8*(8*d+int64(len(e.histogram)))}
}
