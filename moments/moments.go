// Package moments releases running first and second moments of a stream under differential privacy, and the covariance
// computed from them.
//
// For example, an [Estimator] with Columns "height", "weight", Step 100 and the default workload takes 100 rows by
// [Estimator.Add]. Then [Estimator.Close] returns the mean of all rows so far, their second moment and covariance, each
// with standard errors.
//
// The default method is joint moment estimation: rows and their squares are two sums of one mechanism with one joint
// sensitivity. Under replacement the second moment then costs nothing. If a row is longer than the clip bound, it is
// shortened to that bound. A row with a number that is not finite counts as the zero row, in its slot.
//
// All arithmetic up to the noisy sums is in integers, on the lattice of package dp. Package matfact correlates the
// noise over time. docs/theory/moments.md has derivations and corrected formulas, and says how they were checked.
package moments

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bounds"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/gram"
)

// Estimator estimates running moments. The rows x_k ∈ ℝᵈ, ‖x_k‖₂ ≤ ζ, of step t are summed to X_t = Σx_k and S_t =
// Σx_kx_kᵀ. With workload weights a_tj and the number m_j of records in step j, joint estimation releases at the end of
// step t
//
//	mean          Ŷ_t = Σ_j a_tj (X_j + [C⁻¹Z₁]_j) / M_t            ∈ ℝᵈ
//	second moment Ŝ_t = Σ_j a_tj (S_j + λ^(−½)[C⁻¹Z₂]_j) / M_t      ∈ ℝᵈˣᵈ, symmetric
//	covariance    Ŝ_t − Ŷ_tŶ_tᵀ + τ²u_t·I,  u_t = Var[Ŷ_t]/τ²
//
// with M_t = max(1, Σ_j a_tj m_j), or 1 for the workload "sum". Z₁ has independent entries N(0, τ²). Z₂ is symmetric
// with independent entries N(0, τ²) on and N(0, τ²/2) above the diagonal. τ = s/μ. All units refer to scaled rows.
//
// Independent estimation, and concatenation and split, differ in s and λ. Post-processing draws no Z₂, but squares
// noisy rows; the combination does both. With one record a step and x̂_j = X_j + [C⁻¹Z₁]_j,
//
//	post-processing   Ŝ_t = Σ_j a_tj (x̂_jx̂_jᵀ − b_j I) / M_t,  b_j = Var x̂_j or 0
//	combination       w_t of joint estimation and 1 − w_t of post-processing
//
// Privacy: all releases together are one Gaussian mechanism with ratio μ. (For independent estimation they are two,
// whose squared ratios add up to μ².) So they are (ε, δ)-private with the exact curve. The unit is one record, zeroed
// or replaced (Params.Adjacency) in its slot. The guarantee also holds if records depend on earlier releases, and it
// has no limit in time if there is no horizon. s is the joint sensitivity, including the effects of quantisation and
// rounding. Squares of noisy rows, weights and projections are functions of releases. The number of records in each
// slot, valid or not, is public.
//
// Cost: O(d²) time a record, O(d²·b) a step with b buffers of C; memory O(d²·b), and W·d²/2 numbers for a window of W
// steps. Add allocates nothing. Projections take O(d³) a release.
// Source: Kalinin, Upadhyay, Lampert, "Continual Release Moment Estimation with Differential Privacy", Algorithms 1 and
// 3 to 6. Deviations: symmetric noise, corrected constants, zero-out adjacency, integer noise, sums over steps, the
// combination; docs/theory/moments.md.
//
// An Estimator is not safe for concurrent use.
type Estimator struct {
	cfg     Config
	params  dp.Params
	plan    Plan
	shapes  shapes
	horizon uint64 // the last step

	fingerprint uint64 // identifies the configuration and plan to which a state belongs

	step         uint64    // the last closed step
	weight       weight    // the divisor
	secondWeight *weight   // the second moment's divisor, if it has a separate one
	first        *series   // X
	second       *series   // upper triangle of S; nil for post-processing
	count        *series   // valid records, if their number is released
	full         *series   // the count of rows that are not shortened
	unshortened  fullCount // how a row adds to full
	arrays       []*series // those of the arrays above that are not nil, in the order in which a step opens them
	products     *products
	overlap      *overlap // the sums on which the error of squares of noisy rows depends; nil if rows are not squared

	warmup *bounds.Warmup // nil: all bounds are given
	found  *bounds.Found  // the bounds that the warm-up found; nil before that, and if there is no warm-up
	unit   float64        // the unit of rows: the clip norm if the warm-up found it, otherwise 1

	// The fields below hold the open step. They are not part of the state.
	rows    uint64
	row     []float64  // one record, scaled by the bounds that were found
	integer []int64    // one record on the lattice
	squares gram.Exact // of the current block
	inBlock uint64     // records in it
	block   uint64     // number of records of a block
	// wide holds the exact squares of blocks if the step is summed in parts. If it is nil, each block is rounded
	// separately.
	wide []dp.Wide

	clipped, refused uint64 // counted since New or Adopt; not part of the state
}

// New returns the estimator that cfg describes, with the guarantee p. It reports all faults at once.
func New(cfg Config, p dp.Params) (*Estimator, error) {
	cfg.Defaults()
	if err := cfg.ValidateFor(p.Adjacency); err != nil {
		return nil, errors.Join(cfg.Validate(), err)
	}
	return newEstimator(cfg, p)
}

// newEstimator does what New does, but accepts a weight that ValidateFor refuses. Such a weight is private too.
func newEstimator(cfg Config, p dp.Params) (*Estimator, error) {
	cfg.Defaults()
	plan, s, err := resolve(&cfg, p, nil, calibration.NarrowGrowth)
	if err != nil {
		return nil, err
	}
	return build(cfg, p, plan, s, true)
}

// Adopt returns the estimator of an epoch that has already begun. plan is the plan that the epoch recorded; a
// recomputed plan could differ in its last bits, and the releases would change.
// Errors: a plan that does not belong to the configuration.
func Adopt(cfg Config, p dp.Params, plan Plan) (*Estimator, error) {
	k, err := Keep(cfg, p, plan)
	if err != nil {
		return nil, err
	}
	return k.Estimator()
}

// Kept is a recorded plan that has been checked against its configuration. Many epochs with the same plan can share it,
// so the check is made only once. A Kept never changes, and is safe for concurrent use.
type Kept struct {
	cfg    Config
	params dp.Params
	plan   Plan
}

// Keep checks a plan that an epoch recorded. It refuses a plan that does not belong to the configuration.
func Keep(cfg Config, p dp.Params, plan Plan) (*Kept, error) {
	cfg.Defaults()
	if err := adopt(&plan, &cfg, p); err != nil {
		return nil, err
	}
	return &Kept{cfg, p, plan.clone()}, nil
}

// Estimator returns a new estimator with the plan. Estimators of one Kept share no mutable memory.
func (k *Kept) Estimator() (*Estimator, error) {
	s, err := shapesOf(&k.cfg, &k.plan)
	if err != nil {
		return nil, err
	}
	return build(k.cfg, k.params, &k.plan, s, false)
}

// build makes an estimator from the numbers of a plan. fresh says that the plan was just computed, not read from a
// record.
func build(cfg Config, p dp.Params, plan *Plan, s shapes, fresh bool) (_ *Estimator, err error) {
	d := len(cfg.Columns)
	pairs := d * (d + 1) / 2
	e := &Estimator{
		cfg:     cfg,
		params:  p,
		plan:    plan.clone(),
		shapes:  s,
		horizon: calibration.LastStep(cfg.last(), pairs, s.first.factor, s.second.factor),
		integer: make([]int64, d),
	}
	g, g2 := plan.Lattice.Step(), math.Ldexp(1, plan.SecondExp)
	if e.first, err = newSeries("jme/first", d, &s.first, plan.Lattice.Exp, []float64{plan.First / g}); err != nil {
		return nil, err
	}
	if plan.joint() {
		e.squares = gram.NewExact(d, plan.Lattice.K)
		// A block has so few records that the sum of their squares fits 62 bits.
		e.block = uint64(1<<62) / uint64(plan.Lattice.K*plan.Lattice.K)
		sd := make([]float64, 0, pairs)
		for i := range d {
			for j := i; j < d; j++ {
				if i == j {
					sd = append(sd, plan.Diagonal/g2)
				} else {
					sd = append(sd, plan.OffDiagonal/g2)
				}
			}
		}
		if e.second, err = newSeries("jme/second", pairs, &s.second, plan.SecondExp, sd); err != nil {
			return nil, err
		}
	}
	if plan.squares() {
		e.products = newProducts(s.first.kernel, d)
		e.overlap = newOverlap(s.first.factor, s.first.kernel)
	}
	if plan.Count > 0 {
		if e.count, err = newSeries("jme/count", 1, &s.first, plan.CountExp,
			[]float64{math.Ldexp(plan.Count, -plan.CountExp)}); err != nil {
			return nil, err
		}
	}
	e.unshortened = cfg.fullCount(plan.Method, plan.Nu, p.Adjacency)
	e.unshortened.on(plan.Lattice, d, plan.FullExp)
	if e.full, err = newSeries("jme/full", 1, &s.first, plan.FullExp,
		[]float64{math.Ldexp(plan.Full, -plan.FullExp)}); err != nil {
		return nil, err
	}
	for _, s := range []*series{e.first, e.second, e.count, e.full} {
		if s != nil {
			e.arrays = append(e.arrays, s)
		}
	}
	e.weight = newWeight(s.first.kernel)
	if s.second.kernel != s.first.kernel {
		w := newWeight(s.second.kernel)
		e.secondWeight = &w
	}
	if err := e.makeWarmup(fresh); err != nil {
		return nil, err
	}
	e.fingerprint, err = e.identify()
	return e, err
}

// Plan returns the plan: the public numbers computed from the configuration.
func (e *Estimator) Plan() Plan { return e.plan.clone() }

// Columns returns the length of a row.
func (e *Estimator) Columns() int { return len(e.cfg.Columns) }

// Range returns the slots of step t ≥ 1, [first, end).
func (e *Estimator) Range(t uint64) (first, end uint64) {
	if parts := e.parts(); parts > 0 {
		if t <= parts {
			return e.warmup.Range(t)
		}
		t -= parts
		first = e.plan.Warmup.Records
	}
	return first + (t-1)*e.cfg.Step, first + t*e.cfg.Step
}

// Cost returns the cost of all releases of an epoch for a single record or, if persons are protected, for all records
// of a person.
func (e *Estimator) Cost() dp.Cost {
	return dp.Cost{Adjacency: e.params.Adjacency, Mu: e.plan.Mu}
}

// Attained returns the largest possible distance of two neighbours, divided by the distance that is charged. It leaves
// the charge for rounding out of account. The result is 1, except for methods that charge an upper bound on the joint
// distance of both moments.
func (e *Estimator) Attained() float64 {
	t := e.cfg.tradeoff(e.plan.Method, e.plan.Nu, e.params.Adjacency)
	if e.cfg.personal() {
		kappa := e.cfg.countWeight(e.plan.Method, e.plan.Nu, e.params.Adjacency)
		return math.Sqrt(PersonJoint(t.Nu, kappa, e.params.Adjacency).Square / t.Square)
	}
	exact := Joint(t.Nu, len(e.cfg.Columns), e.params.Adjacency)
	if e.cfg.countsValid() {
		exact = exact.withCount(countWeight)
	}
	exact = e.unshortened.charge(exact)
	return math.Sqrt(exact.Square / t.Square)
}

// Add adds a record to the open step. row is in scaled units or, if there is a warm-up, unscaled. Add neither changes
// nor retains it. A row whose length is not Columns, for example nil, is an invalid record: it is counted, and
// contributes the zero row.
func (e *Estimator) Add(slot uint64, row []float64) {
	e.rows++
	if e.warmup != nil {
		if e.warming() {
			e.warmup.Add(row)
			return
		}
		row = e.scaled(row)
	}
	valid := len(row) == len(e.integer)
	var square uint64
	if valid {
		if square, valid = e.plan.Lattice.QuantiseSquare(e.integer, row); !valid {
			e.refused++
		}
	}
	if valid {
		total := e.first.integers[:len(e.integer)]
		for i, k := range e.integer {
			total[i] += k
		}
		e.full.integers[0] += e.unshortened.of(square)
		if square >= e.unshortened.border && e.beyond(row) {
			e.clipped++
		}
		if e.second != nil {
			e.squares.Add(e.integer)
		}
		if e.count != nil {
			e.count.integers[0] += 1 << -e.plan.CountExp
		}
	}
	// A block is a number of records, valid or not, so that its borders are public.
	if e.inBlock++; e.inBlock == e.block {
		e.endBlock()
	}
}

// beyond reports whether a scaled row is longer than the clip norm.
func (e *Estimator) beyond(row []float64) bool {
	var square float64
	for _, x := range row {
		square += float64(x * x)
	}
	return square > e.plan.Clip*e.plan.Clip
}

// Clipped returns the number of rows since New or Adopt that were shortened to the clip norm. The result is not
// private, and not part of the state.
func (e *Estimator) Clipped() uint64 { return e.clipped }

// Refused returns the number of rows since New or Adopt with a number that is not finite, for example because scaling
// made it too large. The result is not private, and not part of the state.
func (e *Estimator) Refused() uint64 { return e.refused }

// endBlock rounds the block's squares to the lattice of the second moment, and adds them to the squares of the step.
func (e *Estimator) endBlock() {
	e.inBlock = 0
	if e.second == nil {
		return
	}
	if e.wide != nil {
		for i, p := range e.squares.Total()[:len(e.wide)] {
			e.wide[i].Add(p)
		}
		e.squares.Reset()
		return
	}
	e.squares.RoundInto(e.second.integers, uint(e.plan.SecondExp-2*e.plan.Lattice.Exp))
}

// Close ends the open step and returns its release. After the horizon it returns
// dp.ErrExhausted and changes nothing.
func (e *Estimator) Close(n dp.Noise) (*dp.Release, error) {
	if _, ended := e.Ended(); ended || e.step >= e.horizon {
		return nil, dp.ErrExhausted
	}
	if e.warming() {
		return e.closeWarmup(n)
	}
	if e.rows > e.cfg.Step {
		return nil, fmt.Errorf("step %d got %d records for %d slots: its sums may have overflowed",
			e.step+1, e.rows, e.cfg.Step)
	}
	e.endBlock()
	e.roundWide()
	e.first.draw(n)
	if e.products != nil {
		if w, ok := e.first.total.(*windowed); ok {
			e.products.remove(w.oldest())
		}
		e.products.add(e.first.integers)
	}
	e.first.end()
	for _, s := range e.arrays[1:] {
		s.draw(n)
		s.end()
	}
	e.weight.close(e.rows)
	if e.secondWeight != nil {
		e.secondWeight.close(e.rows)
	}
	e.step++
	r, err := e.release()
	e.rows = 0
	return r, err
}
