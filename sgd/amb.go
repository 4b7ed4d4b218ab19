package sgd

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// AMB is online linear regression by mini-batch gradient descent with adaptive clipping (DP-AMBSSGD). Step t has
// records (x_i, y_i), residuals r_i = ⟨x_i, w_t⟩ − y_i and gradients g_i = r_ix_i. Close releases the iterate
//
//	w_{t+1} = w_t − η_t(ζ_t/b_t)(Σ_i clip(g_i/ζ_t) + [C⁻¹Z]_t),   clip(u) = u·min(1, 1/‖u‖)
//
// projected onto the ball of the radius. It also releases the clip norm ζ_t and an average of the last iterates, with
// standard errors and approximate confidence intervals. Z has independent entries N(0, τ²), τ = S‖C‖/μ_g with S = 1
// under zero-out and 2 under replacement. Sums and noise are in units of ζ_t. So one matrix mechanism covers all steps,
// for all values of ζ_t, η_t and b_t. Config.Clip says how the next clip norm is chosen:
//
//	track          ζ_{t+1} = ζ_t·exp(−κ(c̃_t/b_t − q)), where c̃_t is a noisy count of unclipped records
//	bisect, scan   a private search finds ζ_t, in records of its own
//
// A null record, or a slot without a record, adds nothing to the sum, and adds q to a count. Values are in the units of
// the scaled rows. The constant feature has the value Constant of the plan; its coefficient is released for a constant
// of 1.
//
// Privacy: all releases together, however many, are μ-Gaussian private for one record nulled (zero-out) or replaced in
// its slot. A record is in one search, or in one gradient sum and one count whose costs add up to μ². Everything else
// is post-processing. The slots of every step are public.
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
	plan    AMBPlan
	factor  matfact.Factorization
	horizon uint64 // the last step

	target  int     // index of the target's column
	columns int     // of a row
	square  float64 // ClipX²
	ladder  ladder.Ladder
	reach   float64 // upper bound on predictions of the noise, in lattice units

	fingerprint uint64 // hash of everything that a state depends on

	// The state.
	step      uint64 // the last closed step
	iteration uint64 // number of closed gradient steps
	w         []float64
	zeta      float64 // clip norm of the next gradient step
	used      float64 // clip norm of the last gradient step
	ceiling   uint64  // number of steps in a row with zeta near its upper bound
	began     uint64  // number of iterations before the first averaged iterate
	average   average
	jump      jump
	drift     *drift   // nil if there are no restarts
	batches   *batches // nil if there are no intervals
	shaper    matfact.Shaper
	shaped    bool

	// The open step, which is not part of the state.
	rows      uint64
	nulls     int64
	gradients gradients
	histogram ladder.Histogram // records of a search
	searching bool

	// Scratch.
	x              []float64
	noise          []int64
	predict, mean  []float64
	standardErrors []float64
}

// NewAMB returns the estimator that cfg describes, with the guarantee p. It reports all faults
// at once.
func NewAMB(cfg Config, p dp.Params) (*AMB, error) {
	cfg.ofMethod("amb")
	plan, factor, err := resolveAMB(&cfg, p, nil)
	if err != nil {
		return nil, err
	}
	return buildAMB(cfg, p, plan.clone(), factor)
}

// AdoptAMB returns the estimator of an epoch that has begun, with the plan that the epoch recorded. A plan computed
// again could differ in its last bits, and then the releases would differ. AdoptAMB refuses a plan that does not belong
// to the configuration.
func AdoptAMB(cfg Config, p dp.Params, plan AMBPlan) (*AMB, error) {
	cfg.ofMethod("amb")
	if cfg.Start == nil {
		cfg.Start = plan.Start // only the plan holds this iterate of an earlier release
	}
	factor, err := adoptAMB(&plan, &cfg, p)
	if err != nil {
		return nil, err
	}
	return buildAMB(cfg, p, plan.clone(), factor)
}

// While there are fewer than young iterates, most of them are not yet near the solution. So only their second half is
// averaged.
const young = 64

// buildAMB makes an estimator from the plan's numbers.
func buildAMB(cfg Config, p dp.Params, plan AMBPlan, factor matfact.Factorization) (*AMB, error) {
	d := cfg.features()
	limits, err := factor.Limits(plan.GradientNoise)
	if err != nil {
		return nil, err
	}
	e := &AMB{
		cfg: cfg, params: p, plan: plan, factor: factor,
		horizon:   calibration.LastStep(cfg.LastStep(), d, factor),
		target:    slices.Index(cfg.Columns, cfg.Target),
		columns:   len(cfg.Columns),
		square:    cfg.ClipX * cfg.ClipX,
		ladder:    ladder.Ladder{Top: cfg.Top, Rungs: cfg.Rungs},
		reach:     calibration.Reach(limits, plan.GradientNoise),
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
		e.histogram = e.ladder.Histogram()
	}
	e.open()
	e.fingerprint, err = e.identify()
	return e, err
}

// Plan returns the public numbers that the configuration resolved to.
func (e *AMB) Plan() AMBPlan { return e.plan.clone() }

// Columns returns the length of a row.
func (e *AMB) Columns() int { return e.columns }

// Cost returns what one record pays for all releases of an epoch.
func (e *AMB) Cost() dp.Cost { return dp.Cost{Adjacency: e.params.Adjacency, Mu: e.plan.Mu} }

// kind reports whether step t ≥ 1 is a search, and how many gradient steps precede it.
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

// growing is the number of gradient steps after which batches double for the first time.
const growing = 32

// batch returns the number of slots of gradient step n, counted from 0.
func (e *AMB) batch(n uint64) uint64 {
	doublings := max(bits.Len64((n+1)/(growing/2))-1, 0)
	return e.plan.Batch << min(doublings, e.plan.Growth)
}

// slots returns the number of slots of the first n gradient steps, at most 2⁶², which is far beyond the length of any
// log.
func (e *AMB) slots(n uint64) uint64 {
	var total uint64
	first := uint64(0)
	for k := 0; first < n; k++ {
		// Steps n with n+1 < 32·2^k have at most b·2^k slots.
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
	searches := uint64(0) // number of searches before step t
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

// MostSlots returns an upper bound on the number of slots that a run of successive steps has, wherever the run starts.
// steps ≥ 1 is the length of the run, last the last step of the epoch, 0 if it has no end. If the epoch has an end, the
// bound exceeds the true value by less than the slots of two steps. It is at most 2⁶², which is far beyond the length
// of any log.
func (e *AMB) MostSlots(steps, last uint64) uint64 {
	if last == 0 {
		high, low := bits.Mul64(steps, max(e.plan.Search, e.plan.Batch<<e.plan.Growth))
		if high > 0 {
			return 1 << 62
		}
		return min(low, 1<<62)
	}
	steps = min(steps, last)
	// Batches never shrink, so the last steps are the longest. A search may be longer than a batch, so the bound
	// includes one more step at the end. Only runs near the first steps need a bound of their own.
	_, end := e.Range(last)
	before, _ := e.Range(last - min(steps, last-1))
	_, begin := e.Range(steps)
	if end >= 1<<62 {
		return 1 << 62
	}
	return max(begin, end-before)
}

// open starts the step after the last closed one.
func (e *AMB) open() {
	e.rows, e.nulls = 0, 0
	clear(e.histogram)
	e.searching, _ = e.kind(e.step + 1)
	e.gradients.open(e.zeta)
}

// Add adds a record to the open step. row is in scaled units; Add neither changes nor keeps it.
// A row whose length is not Columns, in particular nil, and a row with a number that is not
// finite are null records.
func (e *AMB) Add(slot uint64, row []float64) {
	e.rows++
	if len(row) != e.columns {
		e.nulls++
		return
	}
	n := len(row) - 1
	x := row[:n]
	if e.target != n || e.plan.Constant > 0 { // x gets the features one after the other, then the constant
		x = e.x[:n]
		copy(x, row[:e.target])
		copy(x[e.target:], row[e.target+1:])
	}
	dot, square := vector.DotSquare(e.w, x)
	shrink := 1.0
	if !(square <= e.square) {
		if !(square < 1e300) { // too large to square, or not finite
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
		e.countInSearch(r, square)
	default:
		g := &e.gradients
		g.lattice.Accumulate(g.sum, x, g.scale(r, square)*shrink)
	}
}

// addLarge adds a row whose squared features leave the range of float64: it shortens them. A row that is not finite is
// a null record.
func (e *AMB) addLarge(row []float64) {
	x := slices.Concat(row[:e.target], row[e.target+1:])
	if !vector.Finite(x) {
		e.nulls++
		return
	}
	vector.Shorten(x, e.plan.ClipX)
	e.rows--
	e.Add(0, slices.Insert(x, e.target, row[e.target]))
}

// Close ends the open step and returns its release, nil after a search. After the horizon it
// returns dp.ErrExhausted and changes nothing.
func (e *AMB) Close(n dp.Noise) (*dp.Release, error) {
	if e.step >= e.horizon {
		return nil, dp.ErrExhausted
	}
	if e.ceiling >= ceilingMost {
		return nil, ErrDiverged
	}
	first, end := e.Range(e.step + 1)
	if end-first < e.rows {
		return nil, fmt.Errorf("step %d has %d records, but only %d slots: its sums may be out of range",
			e.step+1, e.rows, end-first)
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

// Sample returns a release of the largest form: it has every value, all zeros.
func (e *AMB) Sample() *dp.Release { return e.cfg.sample() }

// Sizes returns the memory and state that the estimator needs, in bytes, for up to 2⁴⁰ steps.
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
