// Package sketch solves linear regressions over windows of a stream under differential
// privacy, each from one window of records.
//
// The default, newton, takes noisy gradient steps in the space that one noisy Gram
// matrix whitens: Gaussian releases only, all on lattices. The others are methods of
// the literature: Gaussian sketches and what iterates with them (ihm, linmix), sketches
// of fast transforms (fast-ihm), noisy sufficient statistics (adassp) and gradient
// descent. Where a sketch is Gaussian it is never formed: the square of it that the
// method needs is drawn directly, in the same law.
//
// Features and target are clipped to public bounds, so that rows x of the window have
// ‖x‖ ≤ 1 and |y| ≤ 1; a record that is no row of numbers is a null row, all zeros.
//
// Derivations, the corrected formulas and what they were checked against are in
// docs/theory/sketch.md.
package sketch

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"

	"streamdp/dp"
	"streamdp/internal/bin"
)

// Refit solves a regression at the end of each window of slots,
//
//	y ≈ θᵀx + b,  x the columns but the target, both in scaled units
//
// and releases θ, b and what a sketch's noise was. A window for which there is no
// solution has a release that says so.
//
// Privacy: every window costs its records the plan's Cost, and windows are disjoint, so
// a record pays once: (ε, δ) as [dp.Params] states, for one record zeroed or replaced in
// its slot. The number of records in each slot is public, valid or not.
// Cost: as the solver's; memory for a window of rows, but O(d²) for solvers that ask
// for sums alone: linmix, and ihm with a radius. Add allocates nothing.
//
// A Refit is not safe for concurrent use.
type Refit struct {
	cfg    Config
	params dp.Params
	plan   Plan
	solver solver
	target int

	fingerprint uint64
	step        uint64 // last closed

	// The open window; no part of the state.
	rows uint64
	data *Data // nil where sums are enough
	sums *Sums
	row  []float64 // one record's features, scaled and with the constant
}

// New returns the refit that cfg describes, built for the guarantee p. All faults are
// reported at once.
func New(cfg Config, p dp.Params) (*Refit, error) {
	cfg.Defaults()
	plan, err := resolve(&cfg, p)
	if err != nil {
		return nil, err
	}
	return newRefit(cfg, p, *plan)
}

// Adopt is New with the plan of an epoch that has begun: the releases of an epoch are a
// function of its plan's numbers, never of recomputed ones. It refuses a plan that the
// configuration does not lead to.
func Adopt(cfg Config, p dp.Params, plan Plan) (*Refit, error) {
	cfg.Defaults()
	if err := adopt(&plan, &cfg, p); err != nil {
		return nil, err
	}
	return newRefit(cfg, p, plan)
}

func newRefit(cfg Config, p dp.Params, plan Plan) (*Refit, error) {
	s, err := plan.solver(&cfg, p)
	if err != nil {
		return nil, err
	}
	r := &Refit{cfg: cfg, params: p, plan: plan, solver: s, target: cfg.target(), row: make([]float64, plan.Features)}
	if plan.summed() {
		r.sums = NewSums(plan.Features)
	} else {
		r.data = NewData(plan.Features, int(cfg.Window))
	}
	h := fnv.New64a()
	if err := json.NewEncoder(h).Encode([]any{
		Version, plan, cfg.Window, cfg.stride(), cfg.LastStep(), cfg.Target, cfg.Columns, cfg.ClipX, cfg.ClipY, cfg.Debias, cfg.Pool, cfg.EigenTest, cfg.Dense,
		cfg.Centre, cfg.Scale, p.Adjacency, p.Bits(),
	}); err != nil {
		return nil, err
	}
	r.fingerprint = h.Sum64()
	return r, nil
}

// summed reports whether the solver asks for sums alone.
func (p *Plan) summed() bool { return p.Solver == "linmix" || p.Solver == "ihm" && p.Radius > 0 }

// Plan returns what the configuration resolved to.
func (r *Refit) Plan() Plan {
	p := r.plan
	p.Cost.Terms = append([]dp.Term(nil), p.Cost.Terms...)
	return p
}

// Course returns what newton's releases of the open window, or else the last one, have
// led to: the number T of its steps, t₀, the share c of the clip norm below which rows
// count, and R². All are functions of releases. Other solvers have none.
func (r *Refit) Course() (steps, start int, counted, squared float64) {
	if s, ok := r.solver.(*newtonSolver); ok {
		return s.trace.steps, s.trace.start, s.trace.counted, s.trace.squared
	}
	return 0, 0, 0, 0
}

// Columns returns the length of a row.
func (r *Refit) Columns() int { return len(r.cfg.Columns) }

// Range returns the slots of step t ≥ 1, [first, end): those between the last window
// and this one, which belong to none, and this one's.
func (r *Refit) Range(t uint64) (first, end uint64) {
	end = (t-1)*r.cfg.stride() + r.cfg.Window
	if t > 1 {
		first = end - r.cfg.stride()
	}
	return first, end
}

// Cost returns what one record pays: one window, for windows are disjoint.
func (r *Refit) Cost() dp.Cost { return r.Plan().Cost }

// Add adds a record to the open step; one before the window is left out. row is in scaled
// units, of length Columns, and is neither changed nor kept; one of another length, nil
// above all, or that is not finite is an invalid record, which counts as a null row.
func (r *Refit) Add(slot uint64, row []float64) {
	if slot < r.step*r.cfg.stride() {
		return
	}
	if r.rows++; r.rows > r.cfg.Window {
		return // Close refuses
	}
	y, ok := r.features(row)
	if !ok {
		clear(r.row)
		y = 0
	}
	if r.sums != nil {
		r.sums.Add(r.row, y)
		return
	}
	r.data.x, r.data.y = append(r.data.x, r.row...), append(r.data.y, y)
}

// features sets r.row to a record's features, in the units of the window, and returns
// its target.
func (r *Refit) features(row []float64) (y float64, ok bool) {
	if len(row) != len(r.cfg.Columns) {
		return 0, false
	}
	n := copy(r.row, row[:r.target])
	n += copy(r.row[n:], row[r.target+1:])
	x := r.row[:n]
	y = row[r.target]
	if !clip(x, x, r.cfg.ClipX) || y-y != 0 {
		return 0, false
	}
	scale := 1 / r.plan.NormBound * (1 - 0x1p-50)
	for j := range x {
		x[j] *= scale
	}
	if *r.cfg.Intercept {
		r.row[n] = r.cfg.ClipX * scale
	}
	return min(max(y/r.cfg.ClipY, -1), 1), true
}

// Close ends the open window and returns its release. It returns dp.ErrExhausted, and
// changes nothing, after the horizon.
func (r *Refit) Close(n dp.Noise) (*dp.Release, error) {
	if last := r.cfg.LastStep(); last > 0 && r.step >= last {
		return nil, dp.ErrExhausted
	}
	if r.rows > r.cfg.Window {
		return nil, fmt.Errorf("window %d was given %d records for %d slots", r.step+1, r.rows, r.cfg.Window)
	}
	theta, eta, err := r.solve(n)
	if err != nil && !errors.Is(err, errFailed) {
		return nil, err
	}
	r.step++
	release := &dp.Release{Step: r.step, Rows: r.rows}
	if err != nil {
		release.Failed = err.Error()
	} else {
		release.Values = r.values(theta, eta)
	}
	r.reset()
	return release, nil
}

func (r *Refit) solve(n dp.Noise) (theta []float64, eta float64, err error) {
	if r.rows == 0 { // public
		return nil, 0, errFailed
	}
	if r.sums == nil {
		return r.solver.solve(r.data, n)
	}
	solve, err := r.solver.(summing).prepareSums(r.sums)
	if err != nil {
		return nil, 0, err
	}
	return solve(n)
}

// Solve solves one window: what a refit does at its end, without a constant. cfg's
// solver and the keys that belong to it count, p is the guarantee; the rest follows from
// the window, whose memory it takes over. θ is in its units.
//
// Privacy, cost: as the solver's; what a record pays is returned besides.
// Errors: all faults of cfg and p, joined; a window without a solution.
func Solve(cfg Config, p dp.Params, w *Data, noise dp.Noise) (theta []float64, cost dp.Cost, err error) {
	no := false
	cfg.Intercept, cfg.Window, cfg.Stride, cfg.ClipX = &no, max(1, uint64(w.Len())), 0, 1
	if cfg.ClipY == 0 {
		cfg.ClipY = 1
	}
	cfg.Target, cfg.Columns = "y", make([]string, w.dim, w.dim+1)
	cfg.Columns = append(cfg.Columns, cfg.Target)
	cfg.Defaults()
	plan, err := resolve(&cfg, p)
	if err != nil {
		return nil, dp.Cost{}, err
	}
	s, err := plan.solver(&cfg, p)
	if err != nil {
		return nil, dp.Cost{}, err
	}
	if w.Len() == 0 {
		return nil, plan.Cost, errFailed
	}
	theta, _, err = s.solve(w, noise)
	return theta, plan.Cost, err
}

// values puts a solution in the units of the stream.
func (r *Refit) values(theta []float64, eta float64) []dp.Value {
	unit := r.cfg.ClipY / r.plan.NormBound
	for j := range theta {
		theta[j] *= unit
	}
	d := len(r.cfg.Columns) - 1
	constant := 0.0
	if *r.cfg.Intercept {
		constant = theta[d] * r.cfg.ClipX
	}
	theta = theta[:d]
	number := func(name string, v float64) dp.Value {
		return dp.Value{Name: name, Shape: []int{1}, Data: []float64{v}}
	}
	values := []dp.Value{{Name: "theta", Shape: []int{d}, Data: theta}}
	if *r.cfg.Intercept {
		values = append(values, number("intercept", constant))
	}
	if r.cfg.scaled() {
		// y = c_y + s_y(b + Σθ_j(x_j − c_j)/s_j)
		centre, scale := at(r.cfg.Centre, r.target, 0), at(r.cfg.Scale, r.target, 1)
		original := make([]float64, d)
		b := centre + float64(scale*constant)
		for j := range original {
			column := j
			if j >= r.target {
				column++
			}
			original[j] = float64(scale*theta[j]) / at(r.cfg.Scale, column, 1)
			b -= float64(original[j] * at(r.cfg.Centre, column, 0))
		}
		values = append(values, dp.Value{Name: "theta_original", Shape: []int{d}, Data: original})
		if *r.cfg.Intercept {
			values = append(values, number("intercept_original", b))
		}
	}
	if r.cfg.Sketches() {
		values = append(values, number("eta", float64(eta*r.plan.NormBound)))
	}
	return values
}

func at(x []float64, i int, missing float64) float64 {
	if len(x) == 0 {
		return missing
	}
	return x[i]
}

// Sample returns a release of the form that all have that do not fail.
func (r *Refit) Sample() *dp.Release {
	return &dp.Release{Step: 1, Values: r.values(make([]float64, r.plan.Features), 0)}
}

// Warnings says what is allowed and probably not meant: too few records for their noise.
func (r *Refit) Warnings() []string {
	if r.plan.Solver != "newton" {
		return nil
	}
	if nu := float64(r.cfg.Window) * r.plan.Mu / (float64(r.plan.Features) * r.params.Adjacency.Factor()); nu < fewRecords {
		return []string{fmt.Sprintf("windows of %d records hold %.2g for each standard deviation of noise in a coefficient, "+
			"fewer than %d: the result may be worse than no coefficients at all", r.cfg.Window, nu, fewRecords)}
	}
	return nil
}

// fewRecords is the ν below which newton warns.
const fewRecords = 3

// reset drops the open window.
func (r *Refit) reset() {
	r.rows = 0
	if r.sums != nil {
		r.sums.Reset()
	} else {
		r.data.Reset()
	}
}

// Sizes returns what the refit takes.
func (r *Refit) Sizes() dp.Sizes {
	d, n := int64(r.plan.Features), int64(r.cfg.Window)
	release := int64(0)
	for _, name := range r.cfg.Values() {
		if name == "theta" || name == "theta_original" {
			release += 8 * (d + 1)
		} else {
			release += 8
		}
	}
	// Matrices of the solver and its draws.
	peak := 8 * 16 * (d + 1) * (d + 1)
	k := int64(r.plan.Rows)
	peak += 8 * k * (d + 1)
	switch {
	case r.plan.summed():
	case r.cfg.Dense:
		peak += 8 * 2 * n * (d + 2)
	case r.plan.Solver == "fast-ihm":
		padded := int64(padded(int(n)))
		peak += 8 * (n*(d+3) + padded*(d+3) + int64(r.plan.Sampled)*d)
	case r.plan.Solver == "dp-gd": // another copy, whose constant has another value
		peak += 8 * n * (2*d + 3)
	default: // rows, targets, norms, and which are null
		peak += 8*n*(d+2) + n
	}
	return dp.Sizes{State: stateBytes, Release: release, Peak: stateBytes + release + peak}
}

// A serialised state is a version, the fingerprint of what gives it its meaning, and the
// number of the last window, little-endian: a refit remembers nothing of its windows.
const (
	stateVersion = 1
	stateBytes   = 1 + 8 + 8
)

// AppendBinary appends the state after the last Close. Nothing of the open window is in
// it.
func (r *Refit) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: b}
	w.Byte(stateVersion)
	w.Uint(r.fingerprint)
	w.Uint(r.step)
	return w.B, nil
}

// UnmarshalBinary restores a state that AppendBinary of a refit with the same plan and
// configuration wrote, and drops the open window.
func (r *Refit) UnmarshalBinary(data []byte) error {
	b := &bin.Reader{B: data}
	if b.Byte() != stateVersion {
		return errors.New("state of refit: unknown version")
	}
	if b.Uint() != r.fingerprint {
		return errors.New("state of refit: of another configuration")
	}
	step, last := b.Uint(), r.cfg.LastStep()
	if !b.Done() || step > math.MaxUint64/r.cfg.stride()-2 || last > 0 && step > last {
		return errors.New("state of refit: damaged")
	}
	r.step = step
	r.reset()
	return nil
}
