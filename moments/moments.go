// Package moments releases running first and second moments of a stream under
// differential privacy, with the covariance that follows from them.
//
// It is joint moment estimation: rows and their squares are two sums of one
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

// Estimator estimates running moments by joint moment estimation. For rows
// x_k ∈ ℝᵈ, ‖x_k‖₂ ≤ ζ, summed within step t to X_t = Σx_k and S_t = Σx_kx_kᵀ,
// workload weights a_tj and the records m_j of step j, it releases at the end
// of step t
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
// Privacy: all releases together are one Gaussian mechanism with ratio μ, so
// (ε, δ)-private with the exact curve, for one record zeroed or replaced
// (Params.Adjacency) in its slot, adaptively and, without a horizon, for ever.
// s is the joint sensitivity with what quantisation and rounding add. The
// number of records in each slot is public, valid or not.
//
// Cost: O(d²) time a record, O(d²·b) a step with b buffers of C; memory
// O(d²·b), and W·d²/2 numbers for a window of W steps. Add allocates nothing.
// Source: Kalinin, Upadhyay, Lampert, "Continual Release Moment Estimation with
// Differential Privacy", Algorithms 1 and 3. Deviations: symmetric noise,
// corrected constants, zero-out adjacency, integer noise, sums over steps;
// docs/theory/moments.md.
//
// An Estimator is not safe for concurrent use.
type Estimator struct {
	cfg      Config
	params   dp.Params
	plan     Plan
	factor   matfact.Factorization
	workload matfact.Workload // without the row scaling of a mean
	horizon  uint64           // the last step

	fingerprint uint64 // of what a state depends on

	step   uint64 // last closed
	weight weight // of the divisor
	first  series // X
	second series // upper triangle of S

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
	var factor matfact.Factorization
	var err error
	if kept == nil {
		plan, factor, err = resolve(&cfg, p, nil)
	} else {
		plan = kept
		factor, err = adopt(kept, &cfg, p)
	}
	if err != nil {
		return nil, err
	}
	d := cfg.Columns
	pairs := d * (d + 1) / 2
	e := &Estimator{
		cfg:      cfg,
		params:   p,
		plan:     plan.clone(),
		factor:   factor,
		workload: cfg.workload().Kernel(),
		horizon:  cfg.LastStep(),
		integer:  make([]int64, d),
		squares:  gram.NewExact(d, plan.Lattice.K),
		// Blocks of so many squares that their sum fits 62 bits.
		block: uint64(1<<62) / uint64(plan.Lattice.K*plan.Lattice.K),
	}
	if h := factor.Horizon(); h > 0 && (e.horizon == 0 || h < e.horizon) {
		e.horizon = h
	}
	if e.horizon == 0 {
		e.horizon = endless / uint64(pairs)
	}
	g, g2 := plan.Lattice.Step(), math.Ldexp(1, plan.SecondExp)
	if e.first, err = newSeries("jme/first", d, factor, e.workload, plan.Lattice.Exp, []float64{plan.First / g}); err != nil {
		return nil, err
	}
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
	if e.second, err = newSeries("jme/second", pairs, factor, e.workload, plan.SecondExp, sd); err != nil {
		return nil, err
	}
	e.weight = newWeight(e.workload)
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
		e.squares.Add(e.integer)
	}
	// Blocks are counted in records, valid or not: their borders are public.
	if e.inBlock++; e.inBlock == e.block {
		e.endBlock()
	}
}

// endBlock rounds the block's squares to the lattice of the second moment and
// adds them to the step.
func (e *Estimator) endBlock() {
	shift := uint(e.plan.SecondExp - 2*e.plan.Lattice.Exp)
	half := int64(0)
	if shift > 0 {
		half = 1 << (shift - 1)
	}
	total := e.second.integers
	for i, p := range e.squares.Total()[:len(total)] {
		total[i] += (p + half) >> shift
	}
	e.squares.Reset()
	e.inBlock = 0
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
	e.first.close(n)
	e.second.close(n)
	e.weight.close(e.rows)
	e.step++
	r, err := e.release()
	e.rows = 0
	return r, err
}

// release assembles the values of the step just closed.
func (e *Estimator) release() (*dp.Release, error) {
	d := e.cfg.Columns
	divisor := 1.0
	name := "sum"
	if e.cfg.Workload != "sum" {
		divisor, name = max(1, e.weight.total()), "mean"
	}
	v := e.variances(e.step, divisor)

	mean := e.first.value(divisor)
	moment := e.second.value(divisor)
	shape := []int{d, d}
	diagonal, off := math.Sqrt(v.diagonal), math.Sqrt(v.off)
	values := []dp.Value{
		{Name: name, Shape: []int{d}, Data: mean, SE: []float64{math.Sqrt(v.mean)}},
		{Name: "second_moment", Shape: shape, Layout: "upper", Data: moment, SE: upper(d, func(i, j int) float64 {
			if i == j {
				return diagonal
			}
			return off
		})},
	}
	var covariance, covarianceSE []float64
	if *e.cfg.Covariance {
		n := -1
		covariance = upper(d, func(i, j int) float64 {
			n++
			c := moment[n] - float64(mean[i]*mean[j])
			if i == j {
				c += v.mean // ŶŶᵀ is too large by the variance of Ŷ
			}
			return c
		})
		covarianceSE = upper(d, func(i, j int) float64 { return v.covariance(mean[i], mean[j], i == j) })
		values = append(values, dp.Value{Name: "covariance", Shape: shape, Layout: "upper", Data: covariance, SE: covarianceSE})
	}
	if e.cfg.scaled() && e.cfg.Workload != "sum" {
		centre, scale := e.cfg.Centre, e.cfg.Scale
		original, se := make([]float64, d), make([]float64, d)
		for i := range original {
			original[i] = at(centre, i, 0) + float64(at(scale, i, 1)*mean[i])
			se[i] = at(scale, i, 1) * math.Sqrt(v.mean)
		}
		values = append(values, dp.Value{Name: "mean_original", Shape: []int{d}, Data: original, SE: se})
		if *e.cfg.Covariance {
			n := -1
			both := func(x []float64) []float64 {
				n = -1
				return upper(d, func(i, j int) float64 {
					n++
					return float64(at(scale, i, 1)*at(scale, j, 1)) * x[n]
				})
			}
			values = append(values, dp.Value{Name: "covariance_original", Shape: shape, Layout: "upper", Data: both(covariance), SE: both(covarianceSE)})
		}
	}
	for _, v := range values {
		if !finite(v.Data) || !finite(v.SE) {
			return nil, errors.New("a released value left the range of float64: scale the columns to about 1")
		}
	}
	return &dp.Release{Step: e.step, Rows: e.rows, Values: values}, nil
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

// variances are those of the entries of one release.
type variances struct{ mean, diagonal, off float64 }

func (e *Estimator) variances(t uint64, divisor float64) variances {
	u := e.factor.RowVar(e.workload, t)
	square := func(x float64) float64 { return float64(float64(x*x) * u) }
	return variances{square(e.plan.First / divisor), square(e.plan.Diagonal / divisor), square(e.plan.OffDiagonal / divisor)}
}

// covariance returns the standard error of an entry of the covariance where
// the mean has entries a and b there.
func (v variances) covariance(a, b float64, diagonal bool) float64 {
	if diagonal {
		return math.Sqrt(v.diagonal + float64(float64(4*v.mean)*float64(a*a)) + float64(float64(2*v.mean)*v.mean))
	}
	return math.Sqrt(v.off + float64(v.mean*(float64(a*a)+float64(b*b))) + float64(v.mean*v.mean))
}

// Errors are standard errors of one release, in scaled units.
type Errors struct {
	Mean                  float64 `json:"mean"`
	Diagonal              float64 `json:"second_moment_diagonal"`
	OffDiagonal           float64 `json:"second_moment_off_diagonal"`
	CovarianceDiagonal    float64 `json:"covariance_diagonal,omitempty"`
	CovarianceOffDiagonal float64 `json:"covariance_off_diagonal,omitempty"`
}

// Expect returns the standard errors that the release of step t will state if
// every slot holds a record: what can be known before any. Those of the
// covariance depend on the mean; they are given for its largest possible norm.
func (e *Estimator) Expect(t uint64) Errors {
	divisor := 1.0
	b := float64(e.cfg.Step)
	switch e.cfg.Workload {
	case "mean":
		divisor = b * float64(t)
	case "exponential":
		divisor = b * -math.Expm1(float64(t)*math.Log(e.cfg.Decay)) / (1 - e.cfg.Decay)
	case "window":
		divisor = b * float64(min(t, e.cfg.Window))
	}
	v := e.variances(t, divisor)
	x := Errors{Mean: math.Sqrt(v.mean), Diagonal: math.Sqrt(v.diagonal), OffDiagonal: math.Sqrt(v.off)}
	if *e.cfg.Covariance {
		x.CovarianceDiagonal = v.covariance(e.plan.Clip, 0, true)
		x.CovarianceOffDiagonal = v.covariance(e.plan.Clip, 0, false)
	}
	return x
}

// upper makes the upper triangle of a symmetric matrix, row by row.
func upper(d int, entry func(i, j int) float64) []float64 {
	x := make([]float64, 0, d*(d+1)/2)
	for i := range d {
		for j := i; j < d; j++ {
			x = append(x, entry(i, j))
		}
	}
	return x
}

func at(x []float64, i int, missing float64) float64 {
	if len(x) == 0 {
		return missing
	}
	return x[i]
}

// Sizes returns what the estimator takes, at most: the phased factorization
// starts with fewer buffers than it ends with.
func (e *Estimator) Sizes() dp.Sizes {
	d := int64(e.cfg.Columns)
	all := d * (d + 3) / 2 // coordinates of both moments
	var coordinate, weight int64
	switch e.workload.Kind {
	case "exponential":
		coordinate, weight = 8, 8
	case "window":
		coordinate, weight = 8*int64(e.cfg.Window), 8*int64(e.cfg.Window)
	default:
		coordinate, weight = 16, 8
	}
	if stored := e.plan.Factorization; stored.Kind == "sqrt" {
		coordinate += 8 * int64(e.horizon)
	} else {
		coordinate += 16*int64(len(stored.Decay)) + 8*int64(len(stored.Bands))
	}
	const header, shaper = 1 + 8 + 8, 8 + 33
	state := header + weight + 2*shaper + all*coordinate
	release := int64(0)
	for _, name := range e.cfg.Values() {
		switch name {
		case "mean", "sum", "mean_original":
			release += 16 * d
		default:
			release += 8 * d * (d + 1)
		}
	}
	// Besides: open sums, squares in two forms, draws, predictions, deviations,
	// a window's sum.
	return dp.Sizes{State: state, Release: release, Peak: state + release + all*8*10}
}
