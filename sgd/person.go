package sgd

import (
	"errors"
	"fmt"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/matfact"
)

// personal reports whether all records of a person are protected, instead of single records.
func (c *Config) personal() bool { return c.Person != matfact.Participation{} }

// validatePerson reports settings with which persons cannot be protected.
func (c *Config) validatePerson(l *fault.List) {
	if !c.personal() {
		return
	}
	p := c.Person
	l.Check(p.Count >= 1, "cap", "must be at least 1 step", p.Count)
	l.Check(p.Separation >= 1, "separation", "must be at least 1 step", p.Separation)
	l.Check(!p.Fixed, "separation",
		"must be the smallest distance of two steps, not an exact distance", nil)
}

// gradientSteps returns the gradient steps in which a person can have records. Where every other step is a search,
// distances in gradient steps are half as large.
func (c *Config) gradientSteps() matfact.Participation {
	p := c.Person
	if c.Clip == "bisect" || c.Clip == "scan" {
		p.Separation = p.Separation/2 + p.Separation%2
	}
	return p
}

// chargePerson sets the plan's Person. It returns the charge for a person, in units of a single record's cost, and the
// joint norm of a person's gradients under C. Without persons, both are those of a single record.
func (p *AMBPlan) chargePerson(cfg *Config, f matfact.Factorization, adjacency dp.Adjacency) (charge PersonCharge,
	norm float64, err error) {
	if !cfg.personal() {
		return PersonCharge{1, 1}, f.ColNorm(), nil
	}
	share := 0.0
	if cfg.Clip == "track" {
		share = cfg.Fraction
	}
	steps := cfg.gradientSteps()
	if charge, err = ChargePerson(share, float64(p.Null)/float64(p.Unit), f, steps, adjacency); err != nil {
		return
	}
	if norm, err = matfact.Sensitivity(f, steps, 0); err != nil {
		return
	}
	p.Person = calibration.NewPerson(cfg.Person, norm)
	return
}

// RecordCost returns what all releases cost one record of a person, if the user key stays unchanged. The record pays
// for its step: a search, or a gradient and a count. Without persons RecordCost equals Cost.
func (e *AMB) RecordCost() dp.Cost {
	c, p := e.Cost(), &e.plan
	if p.Person == nil {
		return c
	}
	step := (p.Sensitivity - e.params.Adjacency.Factor()*float64(p.Lattice.K)*(p.Person.Norm-e.factor.ColNorm())) /
		p.GradientNoise
	if p.CountNoise > 0 {
		step = math.Hypot(step, float64(p.Unit)/p.CountNoise)
	}
	if p.SearchNoise > 0 {
		step = max(step, math.Sqrt(float64(p.questions(&e.cfg)))*float64(p.Unit)/p.SearchNoise)
	}
	// This margin exceeds the error of the subtraction in the last bits.
	c.Mu = min(c.Mu, step+c.Mu*0x1p-40)
	return c
}

// PersonCharge is the charge of method "amb" for all records of one person.
type PersonCharge struct {
	// Ratio is a person's μ divided by that of a single record.
	Ratio float64
	// Search is the factor by which the noise of searches of the clip norm has to grow.
	Search float64
}

// ChargePerson returns what method "amb" charges for persons with records in the steps that p allows. It assumes that a
// single record pays μ² in its step: 1−share of it for the gradient, correlated by f, and share of it for the count of
// the quantile q; share is 0 without "track". With m = p.PerStep, k = p.Count, the column norm α, and the P of
// matfact.Sensitivity without an end,
//
//	Ratio² = (1−share)·(P/α)² + share·k·m²·max(1, 2·max(q, 1−q)²),   the 2 under replace only.
//
// p.Separation is in gradient steps: if s of the steps between two of a person's steps can be searches, it is the
// separation in steps of the stream minus s.
//
// Privacy: the gradients follow the general rule: each record adds a vector of norm ζ under a matrix of joint norm P.
// Counts have independent noise in each step: m records move a count by at most m. Under replace, two persons move 2k
// counts by m·max(q, 1−q), because a record takes the place of a null record. A search in place of a gradient step
// costs no more; under replace its noise grows by √2. See docs/theory/sgd.md, §2.
//
// Errors: share or quantile are out of range; matfact.Sensitivity refuses p; f has an end, or inner products of its
// columns may be negative, so that a search may cost more than a gradient step.
func ChargePerson(share, q float64, f matfact.Factorization, p matfact.Participation,
	adjacency dp.Adjacency) (PersonCharge, error) {
	var errs []error
	if !(share >= 0 && share < 1) {
		errs = append(errs, fmt.Errorf("share is %g, must be in [0, 1)", share))
	}
	if !(q > 0 && q < 1) {
		errs = append(errs, fmt.Errorf("quantile is %g, must be in (0, 1)", q))
	}
	if !matfact.NonNegativeGram(f) || f.Horizon() > 0 {
		errs = append(errs,
			fmt.Errorf("factorization %q cannot protect persons: it ends, or columns may have negative inner products",
				f.Kind()))
	}
	norm, err := matfact.Sensitivity(f, p, 0)
	if err = errors.Join(append(errs, err)...); err != nil {
		return PersonCharge{}, err
	}
	m, k := float64(max(1, p.PerStep)), float64(p.Count)
	ratio := norm / f.ColNorm() * dp.RoundUp
	c := PersonCharge{Search: 1}
	count := 1.0
	if adjacency == dp.Replace {
		far := max(q, 1-q)
		count, c.Search = max(1, 2*far*far), math.Sqrt2
	}
	c.Ratio = math.Sqrt((1-share)*ratio*ratio+share*k*m*m*count) * dp.RoundUp
	return c, nil
}
