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

// personal reports whether all records of a person are protected, instead of single records.
func (c *Config) personal() bool { return c.Person != matfact.Participation{} }

// participation returns the windows in which a person can have records, with at most as many records in a window as it
// has slots.
func (c *Config) participation() matfact.Participation {
	return calibration.Persons(c.Person, c.Slots())
}

// validatePerson reports settings with which persons cannot be protected.
func (c *Config) validatePerson(l *fault.List) {
	if !c.personal() {
		return
	}
	p := c.Person
	l.Check(p.Count >= 1, "cap", "must be at least 1 step", p.Count)
	l.Check(p.Separation >= 1, "separation", "must be at least 1 step", p.Separation)
	l.Check(!p.Fixed, "separation",
		"must be the smallest distance between two steps, not an exact distance", nil)
	l.Check(!c.Sketches(), "solver",
		fmt.Sprintf(
			"must be %s if persons are protected: a sketch hides one record, but not many records of a person in "+
				"one direction",
			fault.Quoted(gaussian, "or")), c.Solver)
	l.Check(c.Sketches() ||
		c.accounting() == Exact, "accounting",
		`must be "exact" if persons are protected: a person is charged a multiple of a single record's μ`,
		string(c.Accounting))
}

// gaussian lists the solvers whose guarantee is a μ.
var gaussian = []string{"newton", "adassp", "dp-gd", "dp-gd-residual"}

// record returns the guarantee that a single record needs under zero-out so that p holds for a person, and the person's
// μ divided by the record's. Without persons it returns p and 1.
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

// RecordCost returns what all releases cost one record of a person, if the user key stays unchanged: the cost for a
// person who has only that record. Without persons it equals Cost.
func (r *Refit) RecordCost() dp.Cost {
	c := r.Cost()
	if p := r.plan.Person; p != nil {
		c.Mu *= dp.RoundUp / p.Norm
		c.Mu = min(c.Mu, r.plan.Cost.Mu)
	}
	return c
}

// PersonRatio returns a person's μ divided by the μ that a single record pays under zero-out. The person has records in
// at most the given number of windows, at most perWindow in each:
//
//	zero-out  perWindow·√windows
//	replace   2·perWindow·√windows
//
// Privacy: replace the person's records in a window by null rows one after the other: this costs perWindow times the
// cost of one record. Under replace, the rows of another person then replace null rows in the same way. Windows have
// independent noise, so their μ² add up. A window that a clock ends may contain all records of a person in its time.
// This is group privacy of Gaussian mechanisms. It holds for the solvers "newton", "adassp", "dp-gd" and
// "dp-gd-residual", whose noise is Gaussian.
//
// Errors: windows or perWindow is 0; the solver has sketches. A sketch is not a Gaussian mechanism: many records of one
// person may all lie in one direction, and the sketch hides that direction for one record only.
// Source: Dong, Roth, Su, "Gaussian Differential Privacy", on groups and composition.
func PersonRatio(solver string, windows, perWindow uint64, adjacency dp.Adjacency) (float64, error) {
	if !slices.Contains(gaussian, solver) {
		return 0,
			fmt.Errorf(
				"solver %q cannot protect persons: a sketch hides one record, but not many records of a person in "+
					"one direction", solver)
	}
	if windows == 0 || perWindow == 0 {
		return 0, fmt.Errorf("a person has %d records in each of %d windows: both numbers must be at least 1",
			perWindow, windows)
	}
	return adjacency.Factor() * float64(perWindow) * math.Sqrt(float64(windows)) * dp.RoundUp, nil
}
