package refit

import (
	"encoding/json"
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/sgd"
)

// Version names the algorithm and state of the configured solver. A new version needs a new
// epoch. Call Defaults first.
func (c *Config) Version() string {
	if c.Solver == "newton" {
		return "refit/v3" // v1 had the constant among the features, v2 had no standard errors
	}
	return "refit/v1"
}

// Plan holds the public numbers that follow from a configuration before the first record, and on which the releases
// depend. An epoch records its plan, because another processor may compute different last bits. Each solver uses some
// of the fields; the others are zero. Lengths are in units of the window, where ‖x‖ ≤ 1 and |y| ≤ 1.
type Plan struct {
	Solver     string     `json:"solver"`
	Accounting Accounting `json:"accounting"`
	// Features is d, including the constant.
	Features int `json:"features"`
	// NormBound is the bound on the norm of a row of features, in scaled units. It includes the constant, except for
	// newton.
	NormBound float64 `json:"norm_bound"`
	// Mu is the budget of newton and dp-gd.
	Mu float64 `json:"mu,omitempty"`
	// Rows and Iterations are k and T. Sampled is k₂, and Transforms is the number of fast transforms.
	Rows       int `json:"rows,omitempty"`
	Iterations int `json:"iterations,omitempty"`
	Sampled    int `json:"sampled,omitempty"`
	Transforms int `json:"transforms,omitempty"`
	// Gamma, Sigma, Test, Tau and Omega have the meaning of the same fields in sketchNoise and fastNoise. For
	// dp-gd-residual, Sigma is the noise of a gradient.
	Gamma float64 `json:"gamma,omitempty"`
	Sigma float64 `json:"sigma,omitempty"`
	Test  float64 `json:"test,omitempty"`
	Tau   float64 `json:"tau,omitempty"`
	Omega float64 `json:"omega,omitempty"`
	// Multiplier is the noise of each release of adassp, divided by its sensitivity.
	Multiplier float64 `json:"multiplier,omitempty"`
	// ResidualClip is the bound on residuals.
	ResidualClip float64 `json:"residual_clip,omitempty"`
	// Radius is the bound on the norm of the coefficients.
	Radius float64 `json:"radius,omitempty"`
	// Person says how all records of a person are protected together; it is nil if single records are protected. Its
	// Norm is a person's μ divided by that of one record. With persons, Mu, Sigma and Multiplier hold for a single
	// record under zero-out.
	Person *calibration.Person `json:"person,omitempty"`
	// Cost is the cost for a record, or for a person if persons are protected.
	Cost dp.Cost `json:"cost"`
}

// FinitePrecision reports whether the guarantee holds for the computed numbers, because all noise is on lattices.
// Otherwise the guarantee holds for real numbers only.
func (p *Plan) FinitePrecision() bool {
	switch p.Solver {
	case "newton", "adassp", "dp-gd", "dp-gd-residual":
		return true
	}
	return false
}

// numbers returns pointers to the plan's real numbers, to compare two plans.
func (p *Plan) numbers() []*float64 {
	return []*float64{&p.NormBound, &p.Mu, &p.Gamma, &p.Sigma, &p.Test, &p.Tau, &p.Omega, &p.Multiplier,
		&p.ResidualClip, &p.Radius,
		&p.Cost.Mu, &p.Cost.Gamma, &p.Cost.BadDelta}
}

// rate is the step size of dp-gd-residual. It suits rows of norm at most 1.
const rate = 0.25

// resolve computes the plan of a configuration.
func resolve(c *Config, p dp.Params) (*Plan, error) {
	_, err := p.Budget()
	if err = errors.Join(c.Validate(), err); err != nil {
		return nil, err
	}
	adjacency := p.Adjacency
	p, ratio, err := c.record(p)
	if err != nil {
		return nil, err
	}
	d := c.features()
	plan := &Plan{Solver: c.Solver, Accounting: c.accounting(), Features: d, NormBound: c.ClipX}
	if *c.Intercept && c.Solver != "newton" { // newton's norm does not include the constant
		plan.NormBound *= math.Sqrt2
	}
	chosen := func(rows int) int {
		if c.Rows > 0 {
			return c.Rows
		}
		return max(rows, d+2)
	}
	switch c.Solver {
	case "newton", "dp-gd":
		mu, err := p.Budget()
		if err != nil {
			return nil, err
		}
		plan.Radius = c.Radius
		plan.Mu = mu * dp.LedgerRoom
		plan.Cost = dp.Cost{Adjacency: p.Adjacency, Mu: plan.Mu}
	case "ihm":
		plan.Rows, plan.Iterations = chosen(sketchRows(d, c.iterations(), p.Delta)), c.iterations()
		n, err := calibrateIHM(plan.Accounting, p, plan.Rows, plan.Iterations, c.Share, c.EigenTest)
		if err != nil {
			return nil, err
		}
		plan.Gamma, plan.Sigma, plan.Test, plan.Tau, plan.Cost = n.Gamma, n.Sigma, n.Test, n.Tau, n.Cost
		plan.ResidualClip, plan.Radius = c.residualClip(), c.Radius
	case "linmix":
		plan.Rows = max(chosen(mixingRows(d, p.Delta)), d+3)
		n, err := calibrateMixing(plan.Accounting, p, plan.Rows)
		if err != nil {
			return nil, err
		}
		plan.Gamma, plan.Test, plan.Tau, plan.Cost = n.Gamma, n.Test, n.Tau, n.Cost
	case "fast-ihm":
		plan.Rows, plan.Iterations, plan.Transforms = chosen(sketchRows(d, c.iterations(), p.Delta)), c.iterations(),
			c.Transforms
		plan.Sampled = max(1, int(c.Ratio*max(float64(d), math.Log(4*float64(plan.Iterations)/utility(p)))))
		n, err := calibrateFast(plan.Accounting, p, plan.Rows, plan.Iterations, plan.Transforms, c.Share)
		if err != nil {
			return nil, err
		}
		plan.Gamma, plan.Sigma, plan.Omega, plan.Tau, plan.Cost = n.Gamma, n.Sigma, n.Omega, n.Tau, n.Cost
		plan.ResidualClip = c.residualClip()
	case "adassp":
		s, err := calibrateAdaSSP(plan.Accounting, p, c.EigenTest)
		if err != nil {
			return nil, err
		}
		plan.Multiplier, plan.Tau, plan.Cost = s.s, s.shift, s.cost()
	case "dp-gd-residual":
		plan.Iterations, plan.ResidualClip = c.iterations(), c.residualClip()
		s, err := calibrateDescent(plan.Accounting, p, plan.Iterations, plan.ResidualClip, rate)
		if err != nil {
			return nil, err
		}
		plan.Sigma, plan.Cost = s.sigma, s.cost()
	}
	if c.personal() {
		plan.Cost = dp.Cost{Adjacency: adjacency, Mu: plan.Cost.Mu * ratio}
		plan.Person = calibration.NewPerson(c.participation(), ratio/adjacency.Factor())
	}
	_, err = plan.solver(c, p)
	return plan, err
}

// solver is a private solver of a window. It takes over the window's memory.
type solver interface {
	solve(w *Data, noise dp.Noise) (theta []float64, eta float64, err error)
}

// summing is a solver that needs only the sums over a window.
type summing interface {
	solver
	prepareSums(w *rowSums) (solution, error)
}

// solver returns the plan's solver for the configured windows. params is the guarantee of a single record.
//
// Errors: there is no lattice for the plan's numbers.
func (p *Plan) solver(c *Config, params dp.Params) (solver, error) {
	rows, bits := int(c.Slots()), params.Bits()
	step := func(sd float64) error {
		_, err := stepLattice(sd, rows, bits)
		return err
	}
	switch p.Solver {
	case "newton":
		return newNewton(p.Mu, params.Adjacency, bits, rows, p.Features, *c.Intercept)
	case "ihm":
		return &ihmSolver{
			noise: sketchNoise{Gamma: p.Gamma, Sigma: p.Sigma, Test: p.Test, Tau: p.Tau}, params: params,
			rows: p.Rows, iterations: p.Iterations, clip: p.ResidualClip, debias: c.Debias, pool: c.Pool,
			radius: p.Radius, dense: c.Dense,
		}, step(p.Sigma)
	case "linmix":
		return &mixingSolver{noise: sketchNoise{Gamma: p.Gamma, Test: p.Test, Tau: p.Tau}, params: params,
			rows: p.Rows}, nil
	case "fast-ihm":
		return &fastSolver{
			ihmSolver: ihmSolver{
				noise: sketchNoise{Gamma: p.Gamma, Sigma: p.Sigma}, params: params, rows: p.Rows,
				iterations: p.Iterations, clip: p.ResidualClip,
			},
			fast:       fastNoise{Gamma: p.Gamma, Sigma: p.Sigma, Omega: p.Omega, Tau: p.Tau},
			transforms: p.Transforms, sampled: p.Sampled,
		}, step(p.Sigma)
	case "adassp":
		s := &adasspSolver{params: params, s: p.Multiplier, shift: p.Tau, test: c.EigenTest}
		return s, errors.Join(s.fits(p.Features), step(p.Multiplier))
	case "dp-gd":
		s := &trackedSolver{
			params:    dp.Params{Mu: p.Mu, Adjacency: params.Adjacency, LatticeBits: params.LatticeBits},
			intercept: *c.Intercept, radius: p.Radius,
		}
		if c.Most == 0 { // with Most, Close returns an error if the window has too many rows
			return s, nil
		}
		return s, sgd.RefitFits(p.Features, s.intercept, rows, s.params)
	case "dp-gd-residual":
		return &descentSolver{params: params, iterations: p.Iterations, clip: p.ResidualClip, rate: rate,
			sigma: p.Sigma}, step(p.Sigma)
	}
	return nil, errors.New("the plan has an unknown solver")
}

// adopt checks that a kept plan is the one that the configuration resolves to. A plan decides how much noise there is,
// so a forged plan must be refused. Calibrations on different processors agree within 10⁻¹² (amd64 and
// arm64 within 10⁻¹³), and so do the costs in the ledger.
func adopt(kept *Plan, c *Config, p dp.Params) error {
	own, err := resolve(c, p)
	if err != nil {
		return err
	}
	const elsewhere = 1e-11 // allowed difference between the numbers of two processors
	same := *kept
	for i, x := range same.numbers() {
		want := *own.numbers()[i]
		if !(math.Abs(*x-want) <= elsewhere*math.Abs(want)) {
			return calibration.ErrForeign
		}
		*x = want
	}
	// The terms of a cost also contain numbers.
	if len(same.Cost.Terms) != len(own.Cost.Terms) {
		return calibration.ErrForeign
	}
	if !same.Person.Agrees(own.Person) {
		return calibration.ErrForeign
	}
	same.Person = own.Person
	terms := append([]dp.Term(nil), same.Cost.Terms...)
	for i := range terms {
		t, want := &terms[i], own.Cost.Terms[i]
		if !(math.Abs(t.Gamma-want.Gamma) <= elsewhere*want.Gamma &&
			math.Abs(t.Scale-want.Scale) <= elsewhere*want.Scale) {
			return calibration.ErrForeign
		}
		t.Gamma, t.Scale = want.Gamma, want.Scale
	}
	same.Cost.Terms = terms
	a, err := json.Marshal(same)
	b, err2 := json.Marshal(own)
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	if string(a) != string(b) {
		return calibration.ErrForeign
	}
	return nil
}
