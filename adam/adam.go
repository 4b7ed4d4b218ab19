// Package adam releases the steps of the Adam optimiser under differential privacy. It computes them from a stream of
// gradients. It offers six variants of DP-Adam and, for comparison, momentum without a second moment.
//
// A record is one gradient, or one example of a model; for an example, the package computes the gradient. Gradients are
// clipped in norm. A record without a valid gradient counts as the zero vector. A step of m slots makes a mean
// gradient: the sum divided by m, even if some slots hold no record. Integer noise on the lattice of package dp is
// added to the mean; package matfact can correlate the noise over steps. Moments and parameters depend only on the
// noisy means.
//
// For example, an [Estimator] with Step 100 takes 100 gradients by [Estimator.Add], and then
// [Estimator.Close] returns the parameters after one step of Adam.
//
// By default the second moment is the square of the noisy mean, minus the part that the noise adds to it
// ("pp_debiased"). The published algorithm also adds noise to the squares. As published, that algorithm is private only
// for steps of one gradient. docs/theory/adam.md explains the changes for larger steps, and compares the methods.
package adam

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/matfact"
)

// Estimator is the optimiser. For gradients g_k ∈ ℝᵈ, ‖g_k‖₂ ≤ ζ, in step i with m slots, it
// computes
//
//	x̂ = (1/m) Σ_k g_k + [C₁⁻¹Z₁]_i,             Z₁ ~ N(0, ρ₁²)
//	m_i = β₁m_{i−1} + (1−β₁)x̂,   m̂ = m_i/(1−β₁^i)
//	v_i = β₂v_{i−1} + (1−β₂)q̂,   v̂ = v_i/(1−β₂^i)
//	u = m̂/(√max(v̂, floor) + eps),   u ← u·min(1, update_clip/‖u‖₂)
//	θ_i = θ_{i−1} − α_i(u + decay·θ_{i−1})
//
// and releases θ_i or θ_i − θ_{i−1}. q̂ depends on the method:
//
//	pp               x̂∘x̂
//	pp_debiased      x̂∘x̂, and v̂ less the mean of its noise, ρ₁² for C₁ = I
//	jme              x∘x + [C₂⁻¹Z₂]_i for steps of one gradient x
//	jme_per_example  (1/m) Σ_k g_k∘g_k + [C₂⁻¹Z₂]_i
//	jme_batch        x∘x + [C₂⁻¹Z₂]_i, x the mean
//	joint_clip       (1/m) Σ_k κ_k g_k∘g_k + [C₂⁻¹Z₂]_i, where each pair
//	                 (g_k, √τ·g_k∘g_k) is clipped to ζ by κ_k, for x̂ as well
//	momentum         no v: u = m̂
//
// with Z₂ ~ N(0, ρ₂²). All values are in the units of the gradients.
//
// Privacy: the noisy means of all steps are one Gaussian mechanism with ratio μ, so they are (ε, δ)-private by the
// exact curve. The unit is one record, zeroed or replaced (Params.Adjacency) in its slot. Gradients may depend on
// released parameters: the guarantee is adaptive. Without a horizon it holds for any number of steps. Everything after
// the means is computed from them and from public numbers. The number of records in each slot, valid or not, is public.
//
// Cost: O(d) time a record; O(d·(1+b)) a step, where b is the number of buffers of C₁ and C₂ together.
// Memory: 56 to 80 bytes a parameter. Correlated noise adds 8 bytes for each array and each buffer, or 16 bytes if
// states are wide. From 2¹⁶ parameters on, Add and Close use all processors. With fewer parameters, Add allocates
// nothing.
// Source: Kalinin, Upadhyay, Lampert, "Continual Release Moment Estimation with
// Differential Privacy", Algorithm 2; Li et al., "Large Language Models Can Be
// Strong Differentially Private Learners" (pp); Tang et al., "DP-AdamBC"
// (pp_debiased). Deviations: corrected sensitivities, means, zero-out adjacency,
// integer noise, floors; docs/theory/adam.md.
//
// An Estimator is not safe for concurrent use.
type Estimator struct {
	cfg     Config
	params  dp.Params
	plan    Plan
	factors factors
	horizon uint64 // the last step
	dim     int

	fingerprint uint64 // hash of everything that a state depends on

	step    uint64    // the last closed step
	m, v    []float64 // moments; v is nil for momentum
	theta   []float64 // parameters
	noise   *squared  // noise in the squares of x̂; nil unless the method squares x̂
	shards  []shard
	reach   [2]float64 // bounds on predictions of each array, in lattice units
	sd      [2][]float64
	model   *learner // nil if rows are gradients
	joint   jointClip
	block   uint64 // number of records whose squares fit the exact sums
	workers []worker
	out     []float64 // the released values of a step

	// The open step, which is not part of the state.
	rows    uint64
	first   []int64 // sums of gradients
	second  []int64 // sums of squares, or nil
	record  []int64 // one gradient on the lattice
	squares []int64 // exact squares of the block, or squares of one record
	inBlock uint64

	refused uint64 // result of Refused

	// tap, if set by a test, is called with the sums of a shard and their noise.
	tap func(e *Estimator, w *worker, s *shard)
}

// shard is a range of coordinates, with its part of the correlated noise.
type shard struct {
	from, to int
	shapers  [2]matfact.Shaper // one for each array; nil for independent noise

	// These fields are results of the open step.
	square float64 // ‖u‖²
	bad    float64 // not 0 if a parameter is not finite
}

// worker is the scratch space of one goroutine of Close.
type worker struct {
	cursors [2]dp.Cursor
	noise   [2][]int64
	predict []float64
}

// New returns the optimiser that cfg describes, with the guarantee p. It reports all faults
// at once.
func New(cfg Config, p dp.Params) (*Estimator, error) {
	cfg.Defaults()
	plan, f, err := resolve(&cfg, p, nil, calibration.NarrowGrowth)
	if err != nil {
		return nil, err
	}
	return build(cfg, p, plan, f)
}

// Adopt returns the optimiser of an epoch that has begun, with the plan that the epoch recorded. A plan computed again
// could differ in its last bits, and then the releases would differ. Adopt refuses a plan that does not belong to the
// configuration.
func Adopt(cfg Config, p dp.Params, plan Plan) (*Estimator, error) {
	cfg.Defaults()
	f, err := adopt(&plan, &cfg, p)
	if err != nil {
		return nil, err
	}
	return build(cfg, p, &plan, f)
}

// build makes an optimiser from the numbers of a plan.
func build(cfg Config, p dp.Params, plan *Plan, f factors) (_ *Estimator, err error) {
	d := plan.Parameters
	e := &Estimator{
		cfg: cfg, params: p, plan: plan.clone(), factors: f,
		horizon: calibration.LastStep(cfg.LastStep(), d, f.first), dim: d,
		m: make([]float64, d), theta: make([]float64, d),
		first: make([]int64, d), record: make([]int64, d), out: make([]float64, d),
		block: uint64(1<<62) / uint64(plan.Lattice.K*plan.Lattice.K),
	}
	copy(e.theta, cfg.initial())
	if cfg.Method != "momentum" {
		e.v = make([]float64, d)
	}
	first, second := plan.units(cfg.Step)
	e.sd[0] = []float64{plan.FirstNoise / first}
	if cfg.joint() {
		e.second = make([]int64, d)
		e.sd[1] = []float64{plan.SecondNoise / second}
	}
	switch cfg.Method {
	case "pp", "pp_debiased":
		e.noise = newSquared(f.first, cfg.Beta2)
	case "jme", "jme_per_example":
		e.squares = make([]int64, d)
	case "joint_clip":
		e.squares = make([]int64, d)
		e.joint = newJointClip(plan, cfg.Tau)
	}
	if cfg.Mode == "model" {
		e.model = newLearner(cfg.Model, len(cfg.Columns), cfg.target())
	}
	for i, c := range []matfact.Factorization{f.first, f.second} {
		if c == nil {
			continue
		}
		limits, err := c.Limits(e.sd[i][0])
		if err != nil {
			return nil, err
		}
		e.reach[i] = calibration.Reach(limits, e.sd[i][0])
	}
	for from := 0; from < d; from += shardSize {
		s := shard{from: from, to: min(from+shardSize, d)}
		for i, c := range []matfact.Factorization{f.first, f.second} {
			if c != nil && c.Kind() != "identity" {
				s.shapers[i] = c.NewShaper(s.to - from)
			}
		}
		e.shards = append(e.shards, s)
	}
	e.fingerprint, err = e.identify()
	return e, err
}

// Plan returns the public numbers that the configuration resolved to.
func (e *Estimator) Plan() Plan { return e.plan.clone() }

// Deviations returns the standard deviations of one step's independent draws for the arrays
// adam/first and adam/second, in lattice units; 0 for an array that does not exist.
func (e *Estimator) Deviations() (first, second float64) {
	if e.sd[1] != nil {
		second = e.sd[1][0]
	}
	return e.sd[0][0], second
}

// Parameters returns a copy of the current parameters, as in the last release.
func (e *Estimator) Parameters() []float64 { return append([]float64(nil), e.theta...) }

// Columns returns the length of a row.
func (e *Estimator) Columns() int {
	if e.model != nil {
		return len(e.cfg.Columns)
	}
	return e.dim
}

// Range returns the slots of step t ≥ 1, [first, end).
func (e *Estimator) Range(t uint64) (first, end uint64) {
	return (t - 1) * e.cfg.Step, t * e.cfg.Step
}

// Cost returns what all releases of an epoch cost a single record, or all records of a person if persons are protected.
func (e *Estimator) Cost() dp.Cost {
	return dp.Cost{Adjacency: e.params.Adjacency, Mu: e.plan.Mu}
}

// Add adds a record to the open step: a gradient, or an example of the model. It neither
// changes nor keeps row. A row whose length is not Columns, in particular nil, is an invalid
// record: it is counted and contributes nothing.
func (e *Estimator) Add(slot uint64, row []float64) {
	e.rows++
	if len(row) == e.Columns() {
		if e.model == nil {
			e.addGradient(row)
		} else if g := e.model.gradient(e.theta, row); g != nil {
			e.addGradient(g)
		} else {
			e.refused++
		}
	}
	// Blocks count all records, valid or not, so that their borders are public.
	if e.inBlock++; e.inBlock == e.block && e.exact() {
		e.endBlock()
	}
}

// Refused returns the number of examples since New or Adopt whose target was not a class. It is computed from records
// without noise: do not release it.
func (e *Estimator) Refused() uint64 { return e.refused }

// Stale reports whether a gradient is too old to be used in the open step. `step` is the step whose parameters were
// used to compute the gradient, 0 for the initial parameters. A gradient is stale if that step is more than
// MaxStaleness steps behind the open step, or in the future. Only the sender knows step, and it is as private as the
// gradient. Instead of a stale gradient, add nil.
func (e *Estimator) Stale(step uint64) bool {
	return step > e.step || e.step-step > e.cfg.MaxStaleness
}

// exact reports whether the squares of a block's records are summed exactly before they are rounded.
func (e *Estimator) exact() bool { return e.cfg.Method == "jme" || e.cfg.Method == "jme_per_example" }

// Close ends the open step and returns its release. The release's data are valid until the
// next call. After the horizon it returns dp.ErrExhausted and changes nothing.
func (e *Estimator) Close(n dp.Noise) (*dp.Release, error) {
	if e.step >= e.horizon {
		return nil, dp.ErrExhausted
	}
	if e.rows > e.cfg.Step {
		return nil, fmt.Errorf("step %d has %d records, but only %d slots: its sums may be out of range",
			e.step+1, e.rows, e.cfg.Step)
	}
	switch {
	case e.exact():
		e.endBlock()
	case e.cfg.Method == "jme_batch":
		if e.plan.SumClip > 0 {
			e.clipSum(e.plan.SumClip)
		}
		e.all((*Estimator).squareSums)
	}
	rows := [2]dp.Row{n.Row("adam/first", e.first)}
	if e.second != nil {
		rows[1] = n.Row("adam/second", e.second)
	}
	e.step++
	u := e.update()
	e.run(rows, &u)
	r := &dp.Release{Step: e.step, Rows: e.rows,
		Values: []dp.Value{{Name: e.cfg.Release, Shape: []int{e.dim}, Data: e.out}}}
	e.rows, e.inBlock = 0, 0
	bad := u.deviation - u.deviation // NaN if it is not finite
	for i := range e.shards {
		bad += e.shards[i].bad
	}
	if bad != 0 {
		return nil,
			errors.New("a parameter is outside the range of float64: lower the rate, or set v_floor or update_clip")
	}
	if e.v != nil {
		r.Values = append(r.Values, dp.Value{Name: "v_noise", Shape: []int{1}, Data: []float64{u.deviation}})
	}
	r.Values = append(r.Values, dp.Value{Name: "model_step", Shape: []int{1}, Data: []float64{float64(e.step)}})
	return r, nil
}

// run draws the step's noise and updates moments and parameters, shard by shard. It uses all processors if the noise
// rows support that.
func (e *Estimator) run(rows [2]dp.Row, u *update) {
	workers := min(runtime.GOMAXPROCS(0), len(e.shards))
	for len(e.workers) < workers {
		n := min(shardSize, e.dim)
		w := worker{noise: [2][]int64{make([]int64, n)}}
		if e.second != nil {
			w.noise[1] = make([]int64, n)
		}
		if e.cfg.Factorization != "identity" {
			w.predict = make([]float64, n)
		}
		e.workers = append(e.workers, w)
	}
	for i := range workers {
		for k, row := range rows {
			if row != nil && !e.workers[i].cursors[k].Open(row) {
				workers = 1 // a test's noise must be drawn in order
			}
		}
		if workers == 1 {
			break
		}
	}
	e.each(workers, func(w *worker, s *shard) {
		e.draw(w, s, rows)
		e.average(w, s, u)
		if e.cfg.UpdateClip > 0 {
			s.square = e.length(s, u)
		} else {
			e.move(s, u)
		}
	})
	if e.cfg.UpdateClip == 0 {
		return
	}
	var square float64
	for i := range e.shards { // add in order, so that the sum does not depend on the workers
		square += e.shards[i].square
	}
	if norm := math.Sqrt(square); norm > e.cfg.UpdateClip {
		u.shrink = e.cfg.UpdateClip / norm
	}
	e.each(workers, func(_ *worker, s *shard) { e.move(s, u) })
}

// each calls f for all shards. Each worker takes a range of shards, in order.
func (e *Estimator) each(workers int, f func(w *worker, s *shard)) {
	part := func(i int) {
		for k := len(e.shards) * i / workers; k < len(e.shards)*(i+1)/workers; k++ {
			f(&e.workers[i], &e.shards[k])
		}
	}
	if workers == 1 {
		part(0)
		return
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { part(i) })
	}
	wg.Wait()
}

// Errors describes the noise of one step, if this is known without data.
type Errors struct {
	// Rate is the learning rate.
	Rate float64 `json:"rate"`
	// First and Second are the standard deviations of the noise of a coordinate of m̂ and v̂. If means are squared,
	// Second holds for a gradient of 0.
	First  float64 `json:"first_moment"`
	Second float64 `json:"second_moment,omitempty"`
	// Bias is the mean of the noise in v̂. It is 0 except for "pp".
	Bias float64 `json:"second_moment_bias,omitempty"`
}

// Expect returns the noise of step t, or of step 100 000 if t is larger: by then the averages have forgotten their
// beginning.
func (e *Estimator) Expect(t uint64) Errors {
	x := Errors{Rate: e.cfg.rate(t)}
	t = min(t, 100_000)
	x.First = e.plan.FirstNoise * linear(e.factors.first, e.cfg.Beta1, t)
	switch {
	case e.noise != nil:
		v, variance := newVNoise(e.factors.first, e.cfg.Beta2, t), e.plan.FirstNoise*e.plan.FirstNoise
		x.Second = variance * v.Squared
		if e.cfg.Method == "pp" {
			x.Bias = variance * v.Bias
		}
	case e.second != nil:
		x.Second = e.plan.SecondNoise * linear(e.factors.second, e.cfg.Beta2, t)
	}
	return x
}

// Sizes returns the sizes of memory and state that the optimiser needs, in bytes.
func (e *Estimator) Sizes() dp.Sizes {
	d := int64(e.dim)
	state, peak := int64(1+8+8+8), int64(0)
	floats := int64(2) // m and θ of a parameter
	if e.v != nil {
		floats++
	}
	state += 8 * floats * d
	if e.noise != nil {
		state += 16
		if e.plan.First.Kind == "blt" {
			state += 16 * int64(len(e.plan.First.Decay)*len(e.plan.First.Decay))
		}
	}
	const header = 8 + 33 // header of a shaper
	for i, f := range []*matfact.Stored{e.plan.First, e.plan.Second} {
		if f == nil || e.shards[0].shapers[i] == nil {
			continue
		}
		state += header*int64(len(e.shards)) + f.StateBytes(e.horizon)*d
		peak += 8 * d // predictions
	}
	// Add the sums, one record, the squares, a row and its gradient.
	for _, x := range [][]int64{e.first, e.second, e.record, e.squares} {
		peak += 8 * int64(len(x))
	}
	release := 8 * d
	return dp.Sizes{State: state, Release: release + 16, Peak: peak + state + release + 16*d}
}
