// Package moments releases running first and second moments of a stream under
// differential privacy, with the covariance that follows from them.
//
// By default it is joint moment estimation: rows and their squares are two sums of one
// mechanism with one joint sensitivity, which under replacement makes the
// second moment free. Rows of norm above the clip bound are scaled to it; rows
// that are no numbers count as the zero row, in their slot.
//
// All arithmetic up to the noisy sums is in integers, on the lattice of package
// dp, and the noise is correlated over time by package matfact. Derivations,
// the corrected formulas and what they were checked against are in
// docs/theory/moments.md.
package moments

import (
	"errors"
	"fmt"
	"math"

	"streamdp/dp"
	"streamdp/internal/gram"
	"streamdp/matfact"
)

// Estimator estimates running moments. For rows x_k ∈ ℝᵈ, ‖x_k‖₂ ≤ ζ, summed
// within step t to X_t = Σx_k and S_t = Σx_kx_kᵀ, workload weights a_tj and the
// records m_j of step j, joint estimation releases at the end of step t
//
//	mean          Ŷ_t = Σ_j a_tj (X_j + [C⁻¹Z₁]_j) / M_t            ∈ ℝᵈ
//	second moment Ŝ_t = Σ_j a_tj (S_j + λ^(−½)[C⁻¹Z₂]_j) / M_t      ∈ ℝᵈˣᵈ, symmetric
//	covariance    Ŝ_t − Ŷ_tŶ_tᵀ + τ²u_t·I,  u_t = Var[Ŷ_t]/τ²
//
// with M_t = max(1, Σ_j a_tj m_j), or 1 for the workload "sum"; Z₁ has
// independent entries N(0, τ²), Z₂ is symmetric with independent entries
// N(0, τ²) on and N(0, τ²/2) above the diagonal; τ = s/μ. Units are those of
// the scaled rows.
//
// The other methods differ in s and λ (independent estimation, concatenation), or
// draw no Z₂ and square noisy rows instead: with x̂_j = X_j + [C⁻¹Z₁]_j, one
// record a step,
//
//	post-processing   Ŝ_t = Σ_j a_tj (x̂_jx̂_jᵀ − b_j I) / M_t,  b_j = Var x̂_j or 0
//	combination       w_t of joint estimation and 1 − w_t of that
//
// Privacy: all releases together are one Gaussian mechanism with ratio μ (for
// independent estimation two, of ratios with that sum of squares), so
// (ε, δ)-private with the exact curve, for one record zeroed or replaced
// (Params.Adjacency) in its slot, adaptively and, without a horizon, for ever.
// s is the joint sensitivity with what quantisation and rounding add; squares of
// noisy rows, weights and projections are functions of releases. The number of
// records in each slot is public, valid or not.
//
// Cost: O(d²) time a record, O(d²·b) a step with b buffers of C; memory
// O(d²·b), and W·d²/2 numbers for a window of W steps. Add allocates nothing.
// Projections take O(d³) a release.
// Source: Kalinin, Upadhyay, Lampert, "Continual Release Moment Estimation with
// Differential Privacy", Algorithms 1 and 3 to 6. Deviations: symmetric noise,
// corrected constants, zero-out adjacency, integer noise, sums over steps, the
// combination; docs/theory/moments.md.
//
// An Estimator is not safe for concurrent use.
type Estimator struct {
	cfg     Config
	params  dp.Params
	plan    Plan
	shapes  shapes
	horizon uint64 // the last step

	fingerprint uint64 // of what a state depends on

	step         uint64    // last closed
	weight       weight    // of the divisor
	secondWeight *weight   // of the second moment's divisor, where it has its own
	first        *series   // X
	second       *series   // upper triangle of S; nil for post-processing
	count        *series   // valid records, where they are released
	arrays       []*series // those that are there, in the order in which a step opens them
	products     *products
	overlap      *overlap // with products: what their error depends on

	// The open step; no part of the state.
	rows    uint64
	integer []int64    // one record on the lattice
	squares gram.Exact // of the current block
	inBlock uint64     // records in it
	block   uint64     // records a block takes
}

// New returns the estimator that cfg describes, built for the guarantee p. All
// faults are reported at once.
func New(cfg Config, p dp.Params) (*Estimator, error) {
	cfg.Defaults()
	if err := cfg.ValidateFor(p.Adjacency); err != nil {
		return nil, errors.Join(cfg.Validate(), err)
	}
	return newEstimator(cfg, p, nil)
}

// Adopt is New with the plan of an epoch that has begun: the releases of an
// epoch are a function of its plan's numbers, never of recomputed ones. It
// refuses a plan that the configuration does not lead to.
func Adopt(cfg Config, p dp.Params, plan Plan) (*Estimator, error) {
	return newEstimator(cfg, p, &plan)
}

func newEstimator(cfg Config, p dp.Params, kept *Plan) (*Estimator, error) {
	cfg.Defaults()
	var plan *Plan
	var s shapes
	var err error
	if kept == nil {
		plan, s, err = resolve(&cfg, p, nil)
	} else {
		plan = kept
		s, err = adopt(kept, &cfg, p)
	}
	if err != nil {
		return nil, err
	}
	d := cfg.Columns
	pairs := d * (d + 1) / 2
	e := &Estimator{
		cfg:     cfg,
		params:  p,
		plan:    plan.clone(),
		shapes:  s,
		horizon: cfg.LastStep(),
		integer: make([]int64, d),
	}
	for _, f := range []matfact.Factorization{s.first.factor, s.second.factor} {
		if h := f.Horizon(); h > 0 && (e.horizon == 0 || h < e.horizon) {
			e.horizon = h
		}
	}
	if e.horizon == 0 {
		e.horizon = endless / uint64(pairs)
	}
	g, g2 := plan.Lattice.Step(), math.Ldexp(1, plan.SecondExp)
	if e.first, err = newSeries("jme/first", d, &s.first, plan.Lattice.Exp, []float64{plan.First / g}); err != nil {
		return nil, err
	}
	if plan.joint() {
		e.squares = gram.NewExact(d, plan.Lattice.K)
		// Blocks of so many squares that their sum fits 62 bits.
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
		if e.count, err = newSeries("jme/count", 1, &s.first, plan.CountExp, []float64{math.Ldexp(plan.Count, -plan.CountExp)}); err != nil {
			return nil, err
		}
	}
	for _, s := range []*series{e.first, e.second, e.count} {
		if s != nil {
			e.arrays = append(e.arrays, s)
		}
	}
	e.weight = newWeight(s.first.kernel)
	if s.second.kernel != s.first.kernel {
		w := newWeight(s.second.kernel)
		e.secondWeight = &w
	}
	e.fingerprint, err = e.identify()
	return e, err
}

// Plan returns what the configuration resolved to.
func (e *Estimator) Plan() Plan { return e.plan.clone() }

// Columns returns the length of a row.
func (e *Estimator) Columns() int { return e.cfg.Columns }

// Range returns the slots of step t ≥ 1, [first, end).
func (e *Estimator) Range(t uint64) (first, end uint64) {
	return (t - 1) * e.cfg.Step, t * e.cfg.Step
}

// Cost returns what one record pays for all releases of an epoch.
func (e *Estimator) Cost() dp.Cost {
	return dp.Cost{Adjacency: e.params.Adjacency, Mu: e.plan.Mu}
}

// Attained returns which part of μ two neighbours can be apart, up to what
// arithmetic adds: all of it, but for the methods that charge a bound of what both
// moments together move by.
func (e *Estimator) Attained() float64 {
	t := e.cfg.tradeoff(e.plan.Method, e.plan.Nu, e.params.Adjacency)
	exact := Joint(t.Nu, e.cfg.Columns, e.params.Adjacency)
	if e.cfg.ValidCount {
		exact = exact.withCount(countWeight)
	}
	return math.Sqrt(exact.Square / t.Square)
}

// Add adds a record to the open step. row is in scaled units, of length Columns,
// and is neither changed nor kept; one of another length, nil above all, is an
// invalid record, which counts and contributes the zero row.
func (e *Estimator) Add(slot uint64, row []float64) {
	e.rows++
	if len(row) == len(e.integer) && e.plan.Lattice.Quantise(e.integer, row) {
		total := e.first.integers[:len(e.integer)]
		for i, k := range e.integer {
			total[i] += k
		}
		if e.second != nil {
			e.squares.Add(e.integer)
		}
		if e.count != nil {
			e.count.integers[0] += 1 << -e.plan.CountExp
		}
	}
	// Blocks are counted in records, valid or not: their borders are public.
	if e.inBlock++; e.inBlock == e.block {
		e.endBlock()
	}
}

// endBlock rounds the block's squares to the lattice of the second moment and
// adds them to the step.
func (e *Estimator) endBlock() {
	e.inBlock = 0
	if e.second == nil {
		return
	}
	e.squares.RoundInto(e.second.integers, uint(e.plan.SecondExp-2*e.plan.Lattice.Exp))
}

// Close ends the open step and returns its release. It returns
// dp.ErrExhausted, and changes nothing, after the horizon.
func (e *Estimator) Close(n dp.Noise) (*dp.Release, error) {
	if e.step >= e.horizon {
		return nil, dp.ErrExhausted
	}
	if e.rows > e.cfg.Step {
		return nil, fmt.Errorf("step %d was given %d records for %d slots: its sums may have left their range", e.step+1, e.rows, e.cfg.Step)
	}
	e.endBlock()
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
