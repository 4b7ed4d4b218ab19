package refit

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/matfact"
)

// personal reports whether persons are protected in place of single records.
func (c *Config) personal() bool { return c.Person != matfact.Participation{} }

// participation returns in what windows a person can have records. A window has no more of them
// than slots.
func (c *Config) participation() matfact.Participation {
	return calibration.Persons(c.Person, c.Slots())
}

// validatePerson reports what cannot protect persons.
func (c *Config) validatePerson(l *fault.List) {
	if !c.personal() {
		return
	}
	p := c.Person
	l.Check(p.Count >= 1, "cap", "must be at least 1 step", p.Count)
	l.Check(p.Separation >= 1, "separation", "must be at least 1 step", p.Separation)
	l.Check(!p.Fixed, "separation",
		"must be the least distance of two steps: records are not admitted by an exact one", nil)
	l.Check(!c.Sketches(), "solver",
		fmt.Sprintf(
			"must be %s where persons are protected: a sketch of the rows hides one record, and many records of a "+
				"person may be a direction that it shows",
			fault.Quoted(gaussian, "or")), c.Solver)
	l.Check(c.Sketches() ||
		c.accounting() == Exact, "accounting",
		`must be "exact" where persons are protected: their charge is a multiple of a single record's μ`,
		string(c.Accounting))
}

// gaussian are the solvers whose guarantee is a μ.
var gaussian = []string{"newton", "adassp", "dp-gd", "dp-gd-residual"}

// record returns the guarantee that a single record needs under zero-out for p to be a person's,
// and the ratio of the person's μ to its own. Without persons that is p, and 1.
func (c *Config) record(p dp.Params) (own dp.Params, ratio float64, err error) {
	if !c.personal() {
		return p, 1, nil
	}
	mu, err := p.Budget()
	if err != nil {
		return p, 1, err
	}
	allowed := c.participation()
	if ratio, err = PersonRatio(c.Solver, allowed.Count, allowed.PerStep, p.Adjacency); err != nil {
		return p, 1, err
	}
	return dp.Params{Mu: mu / ratio, Delta: p.Delta, Adjacency: dp.ZeroOut, LatticeBits: p.LatticeBits}, ratio, nil
}

// RecordCost returns what all releases cost one record of a person whose user key stays as it
// is: as much as a person with that record alone. Where records are protected it is Cost.
func (r *Refit) RecordCost() dp.Cost {
	c := r.Cost()
	if p := r.plan.Person; p != nil {
		c.Mu *= dp.RoundUp / p.Norm
		c.Mu = min(c.Mu, r.plan.Cost.Mu)
	}
	return c
}

// PersonRatio returns the μ of all records of a person, in at most so many windows and at most
// perWindow in each, over the μ that a single record pays under zero-out:
//
//	zero-out  perWindow·√windows
//	replace   2·perWindow·√windows
//
// Privacy: in a window the person's records become null rows one after the other, so all cost
// perWindow times one; under replace another person's rows then take the place of null ones.
// Windows have independent noise, so their μ² add up; a window by the clock may hold all of a
// person's records of that time. It is group privacy of Gaussian
// mechanisms, and holds for the solvers "newton", "adassp" and "dp-gd" with Gaussian noise alone.
//
// Errors: a solver with sketches, whose guarantee is no Gaussian mechanism's: many records of
// one person may be a direction that the sketch hides for one record only. Counts of 0.
// Source: Dong, Roth, Su, "Gaussian Differential Privacy", on groups and composition.
func PersonRatio(solver string, windows, perWindow uint64, adjacency dp.Adjacency) (float64, error) {
	if !slices.Contains(gaussian, solver) {
		return 0,
			fmt.Errorf(
				"solver %q does not protect persons: it releases a sketch of the rows, whose guarantee for a single "+
					"record is not one for many", solver)
	}
	if windows == 0 || perWindow == 0 {
		return 0, fmt.Errorf("a person has %d records in each of %d windows, must be at least 1 each",
			perWindow, windows)
	}
	return adjacency.Factor() * float64(perWindow) * math.Sqrt(float64(windows)) * dp.RoundUp, nil
}
