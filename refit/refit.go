// Package refit solves linear regressions over windows of a stream under differential privacy.
// Each regression uses the records of one window only.
//
// For example, a [Refit] with Window 10000 takes 10000 records by [Refit.Add]; then [Refit.Close] returns the
// coefficients of a regression on them. [Solve] fits a single table.
//
// The default solver, newton, takes noisy gradient steps in a space that a noisy Gram matrix whitens. All its releases
// are Gaussian, on lattices. The other solvers are methods of the literature: iterations with Gaussian sketches (ihm),
// a single Gaussian sketch (linmix), sketches of fast transforms (fast-ihm), noisy sufficient statistics (adassp) and
// gradient descent (dp-gd, dp-gd-residual). By default a Gaussian sketch is never computed: the methods need only its
// square, which is drawn directly from its distribution.
//
// Features and target are clipped to public bounds and scaled, so that rows of the window have ‖x‖ ≤ 1 and |y| ≤ 1. A
// record that is not a row of finite numbers becomes a null row, all zeros.
//
// Derivations, the corrected formulas and their checks are in docs/theory/refit.md.
package refit

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/vector"
)

// Refit solves a regression at the end of each window of slots,
//
//	y ≈ θᵀx + b,  where x are all columns except the target; x and y are in scaled units.
//
// It releases θ, b and the level of a sketch's noise. newton also releases approximate standard errors, if a window has
// enough records for the noise. If a window has no solution, its release says so.
//
// Privacy: every window costs its records the plan's Cost. Windows are disjoint, so a record pays once: (ε, δ) as
// [dp.Params] states, for one record zeroed or replaced in its slot. The number of records in each slot, valid or not,
// is public, and so are the ends of windows. With Most, a window has any number n of slots. The noise may depend on n.
// For every n, all releases together cost at most the plan's Cost.
// Cost: as the solver's. Memory for a window of rows; solvers that need only sums (linmix, and ihm with a radius) use
// O(d²). Add allocates nothing, unless Most is set and rows are stored: then the memory for rows grows.
//
// A Refit is not safe for concurrent use.
type Refit struct {
	cfg    Config
	params dp.Params
	plan   Plan
	solver solver
	target int

	fingerprint uint64
	step        uint64 // the last closed window

	// The open window, which is not part of the state.
	rows uint64
	data *Data // nil if sums are enough
	sums *rowSums
	row  []float64 // one record's features, scaled and with the constant
}

// New returns the refit that cfg describes, with the guarantee p. It reports all faults at
// once.
func New(cfg Config, p dp.Params) (*Refit, error) {
	cfg.Defaults()
	plan, err := resolve(&cfg, p)
	if err != nil {
		return nil, err
	}
	return newRefit(cfg, p, *plan)
}

// Adopt returns the refit of an epoch that has begun, with the plan that the epoch recorded. A plan computed again
// could differ in its last bits, and then the releases would differ. Adopt refuses a plan that does not belong to the
// configuration.
func Adopt(cfg Config, p dp.Params, plan Plan) (*Refit, error) {
	cfg.Defaults()
	if err := adopt(&plan, &cfg, p); err != nil {
		return nil, err
	}
	return newRefit(cfg, p, plan)
}

func newRefit(cfg Config, p dp.Params, plan Plan) (*Refit, error) {
	p, _, err := cfg.record(p)
	if err != nil {
		return nil, err
	}
	s, err := plan.solver(&cfg, p)
	if err != nil {
		return nil, err
	}
	r := &Refit{cfg: cfg, params: p, plan: plan, solver: s, target: cfg.target(), row: make([]float64, plan.Features)}
	if plan.needsOnlySums() {
		r.sums = newRowSums(plan.Features)
	} else {
		rows := int(cfg.Slots())
		if cfg.Most > 0 {
			rows = 0 // memory grows on demand, because windows may be far shorter
		}
		r.data = NewData(plan.Features, rows)
		r.data.exact = cfg.Partitions > 0
	}
	h := fnv.New64a()
	identity := []any{
		cfg.Version(), plan, cfg.Slots(), cfg.stride(), cfg.LastStep(), cfg.Target, cfg.Columns, cfg.ClipX, cfg.ClipY,
		cfg.Debias, cfg.Pool, cfg.EigenTest, cfg.Dense,
		cfg.Centre, cfg.Scale, p.Adjacency, p.Bits(),
	}
	if cfg.Partitions > 0 {
		identity = append(identity, cfg.Partitions)
	}
	if cfg.Most > 0 {
		identity = append(identity, "windows that something else ends")
	}
	if err := json.NewEncoder(h).Encode(identity); err != nil {
		return nil, err
	}
	r.fingerprint = h.Sum64()
	return r, nil
}

// needsOnlySums reports whether the solver needs only sums.
func (p *Plan) needsOnlySums() bool { return p.Solver == "linmix" || p.Solver == "ihm" && p.Radius > 0 }

// Plan returns the public numbers that the configuration resolved to.
func (r *Refit) Plan() Plan {
	p := r.plan
	p.Cost.Terms = append([]dp.Term(nil), p.Cost.Terms...)
	p.Person = p.Person.Clone()
	return p
}

// Course returns public numbers of newton's open window, or of the last window if none is open: the number T of its
// steps, t₀, the share c of the clip norm below which rows count, and R². All are functions of releases. For other
// solvers it returns zeros.
func (r *Refit) Course() (steps, start int, counted, squared float64) {
	if s, ok := r.solver.(*newtonSolver); ok {
		return s.trace.steps, s.trace.start, s.trace.counted, s.trace.squared
	}
	return 0, 0, 0, 0
}

// Columns returns the length of a row.
func (r *Refit) Columns() int { return len(r.cfg.Columns) }

// Range returns the slots of step t ≥ 1, [first, end): the slots of window t. With a stride, Range also includes the
// slots between window t−1 and window t, which belong to no window. If windows have no fixed number of slots, it
// assumes the longest windows.
func (r *Refit) Range(t uint64) (first, end uint64) {
	end = (t-1)*r.cfg.stride() + r.cfg.Slots()
	if t > 1 {
		first = end - r.cfg.stride()
	}
	return first, end
}

// Cost returns what a single record pays, or a person if persons are protected. A record pays for one window only,
// because windows are disjoint.
func (r *Refit) Cost() dp.Cost { return r.Plan().Cost }

// Add adds a record to the open step. It ignores a record before the window. row is in scaled units; Add neither
// changes nor keeps it. A row that is not finite or whose length is not Columns, in particular nil, is an invalid
// record and counts as a null row.
func (r *Refit) Add(slot uint64, row []float64) {
	if r.cfg.Most == 0 && slot < r.step*r.cfg.stride() {
		return
	}
	r.take(row)
}

// take adds a record that belongs to the window.
func (r *Refit) take(row []float64) {
	if r.rows++; r.rows > r.cfg.Slots() {
		return // Close returns an error
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

// Close ends the open window and returns its release. After the horizon it returns
// dp.ErrExhausted and changes nothing.
func (r *Refit) Close(n dp.Noise) (*dp.Release, error) {
	if last := r.cfg.LastStep(); last > 0 && r.step >= last {
		return nil, dp.ErrExhausted
	}
	if r.rows > r.cfg.Slots() {
		return nil, fmt.Errorf("window %d has %d records, but only %d slots", r.step+1, r.rows, r.cfg.Slots())
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
		release.Values = r.values(theta, eta, r.errors())
	}
	r.reset()
	return release, nil
}

func (r *Refit) solve(n dp.Noise) (theta []float64, eta float64, err error) {
	if r.rows == 0 { // the number of rows is public
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

// Solve fits a single window or table, as a refit does at the end of a window, without a constant. It uses the solver
// in cfg and the keys that belong to it; p is the guarantee. theta is in the units of w. w must not be used afterwards.
//
// Privacy and cost: as the solver's. cost is the cost for a record.
// Errors: all faults of cfg and p, joined; the window has no solution.
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

// errors returns the errors of the last solution, nil if the solver states none.
func (r *Refit) errors() *solutionErrors {
	if s, ok := r.solver.(*newtonSolver); ok {
		return s.trace.errors
	}
	return nil
}

// values converts a solution to the units of the stream. e holds its errors, nil if there are none.
func (r *Refit) values(theta []float64, eta float64, e *solutionErrors) []dp.Value {
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
	own := dp.Value{Name: "theta", Shape: []int{d}, Data: theta}
	free := number("intercept", constant)
	if e != nil {
		for j := range theta {
			own.SE = append(own.SE, unit*e.coefficient(j))
		}
		free.SE = []float64{r.cfg.ClipY * e.intercept(nil)}
	}
	values := []dp.Value{own}
	if *r.cfg.Intercept {
		values = append(values, free)
	}
	if r.cfg.scaled() {
		// y = c_y + s_y(b + Σθ_j(x_j − c_j)/s_j)
		centre, scale := at(r.cfg.Centre, r.target, 0), at(r.cfg.Scale, r.target, 1)
		original := dp.Value{Name: "theta_original", Shape: []int{d}, Data: make([]float64, d)}
		b, to := centre+float64(scale*constant), make([]float64, d)
		for j := range theta {
			column := j
			if j >= r.target {
				column++
			}
			original.Data[j] = float64(scale*theta[j]) / at(r.cfg.Scale, column, 1)
			b -= float64(original.Data[j] * at(r.cfg.Centre, column, 0))
			if e != nil {
				original.SE = append(original.SE, float64(scale*own.SE[j])/at(r.cfg.Scale, column, 1))
				to[j] = -at(r.cfg.Centre, column, 0) / float64(at(r.cfg.Scale, column, 1)*r.plan.NormBound)
			}
		}
		values = append(values, original)
		if *r.cfg.Intercept {
			v := number("intercept_original", b)
			if e != nil {
				v.SE = []float64{float64(scale*r.cfg.ClipY) * e.intercept(to)}
			}
			values = append(values, v)
		}
	}
	for i := range values {
		if !vector.Finite(values[i].SE) { // too large, for example because of a very large centre
			values[i].SE = nil
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

// Sample returns a release of zeros with the form of every release that has a solution.
func (r *Refit) Sample() *dp.Release {
	d := len(r.cfg.Columns) - 1
	var e *solutionErrors
	if r.plan.Solver == "newton" {
		e = &solutionErrors{dim: d, square: make([]float64, d*d), centre: make([]float64, d)}
	}
	return &dp.Release{Step: 1, Values: r.values(make([]float64, r.plan.Features), 0, e)}
}

// Warnings describes settings that are valid but probably a mistake: too few records for the noise.
func (r *Refit) Warnings() []string {
	if r.plan.Solver != "newton" {
		return nil
	}
	most := ""
	if r.cfg.Most > 0 {
		most = "at most "
	}
	if nu := float64(r.cfg.Slots()) * r.plan.Mu /
		(float64(r.plan.Features) * r.params.Adjacency.Factor()); nu < fewRecords {
		return []string{
			fmt.Sprintf("windows of %s%d records are too small for the budget: they have %s%.2g records per standard "+
				"deviation of a coefficient's noise, but should have at least %d. Coefficients of 0 may have smaller "+
				"errors than these results",
				most, r.cfg.Slots(), most, nu, fewRecords)}
	}
	return nil
}

// fewRecords is the ν below which Warnings warns about newton.
const fewRecords = 3

// reset discards the open window.
func (r *Refit) reset() {
	r.rows = 0
	if r.sums != nil {
		r.sums.Reset()
	} else {
		r.data.Reset()
	}
}

// Sizes returns the memory and state that the refit needs, in bytes.
func (r *Refit) Sizes() dp.Sizes {
	d, n := int64(r.plan.Features), int64(r.cfg.Slots())
	release := int64(0)
	for _, name := range r.cfg.Values() {
		if name == "theta" || name == "theta_original" {
			release += 8 * (d + 1)
		} else {
			release += 8
		}
	}
	if r.plan.Solver == "newton" { // standard errors
		release *= 2
	}
	// Start with the matrices and draws of the solver.
	peak := 8 * 16 * (d + 1) * (d + 1)
	k := int64(r.plan.Rows)
	peak += 8 * k * (d + 1)
	switch {
	case r.plan.needsOnlySums():
	case r.cfg.Dense:
		peak += 8 * 2 * n * (d + 2)
	case r.plan.Solver == "fast-ihm":
		padded := int64(padded(int(n)))
		peak += 8 * (n*(d+3) + padded*(d+3) + int64(r.plan.Sampled)*d)
	case r.plan.Solver == "dp-gd": // a second copy with another value of the constant
		peak += 8 * n * (2*d + 3)
	default: // rows, targets, norms, and flags for null rows
		peak += 8*n*(d+2) + n
	}
	sizes := dp.Sizes{State: stateBytes, Release: release, Peak: stateBytes + release + peak}
	switch {
	case r.cfg.Most > 0 && r.sums != nil:
		sizes.Part = 8 * 10 * (d + 1) * (d + 1)
	case r.cfg.Most > 0: // memory grows by a quarter, and during growth it holds the rows twice
		rows := 8 * n * (d + 1)
		sizes.Peak += rows + rows/4
		// Short slices double; long ones grow up to a full page, at most 16 KiB more.
		sizes.Part = (2*rows+rows/4)/int64(max(1, r.cfg.Partitions)) + 8*d + 1<<14
	case r.sums != nil: // only for one log: partitions need rows
		sizes.Part = 8 * 10 * (d + 1) * (d + 1)
	default:
		sizes.Part = 8 * (int64(r.cfg.Window)*(d+1) + d) // rows, targets, a row
	}
	return sizes
}

// A serialised state consists of a version, the fingerprint of configuration and plan, and the number of the last
// window, little-endian. It contains nothing of past windows.
const (
	stateVersion = 1
	stateBytes   = 1 + 8 + 8
)

// AppendBinary appends the state after the last Close, without the open window.
func (r *Refit) AppendBinary(b []byte) ([]byte, error) {
	w := &bin.Writer{B: b}
	w.Byte(stateVersion)
	w.Uint(r.fingerprint)
	w.Uint(r.step)
	return w.B, nil
}

// UnmarshalBinary restores a state that a refit with the same plan and configuration wrote, and discards the open
// window.
func (r *Refit) UnmarshalBinary(data []byte) error {
	b := &bin.Reader{B: data}
	if b.Byte() != stateVersion {
		return errors.New("refit: the state has an unknown version")
	}
	if b.Uint() != r.fingerprint {
		return errors.New("refit: the state belongs to another configuration")
	}
	step, last := b.Uint(), r.cfg.LastStep()
	if !b.Done() || step > math.MaxUint64/r.cfg.stride()-2 || last > 0 && step > last {
		return errors.New("refit: the state is damaged")
	}
	r.step = step
	r.reset()
	return nil
}
