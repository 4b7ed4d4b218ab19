package moments

import (
	"fmt"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/matfact"
)

// This file protects persons: neighbouring streams differ in all records of one person, not in one record.
//
// The person has records in at most k steps, any two of these steps at least b apart, and at most m records in a step.
// Under replace, records of another person, within the same limits, may replace them at other slots. The noise for
// single records is multiplied by s/s₁, with
//
//	P = m·max over patterns of √Σ|CᵀC|_ij        (matfact.Sensitivity)
//	s = ζP·√Square                               (PersonJoint and its like)
//
// and s₁ = ζ‖C‖√Square. docs/theory/moments.md, §19, has the proofs.

// PersonJoint returns the tradeoff of joint estimation that protects all records of a person. The number of valid
// records is a third coordinate, of weight kappa (0 if it is not released). Square is in units of (ζP)², with P of
// matfact.Sensitivity:
//
//	zero-out  1 + ν + κ
//	replace   max(r(ν), 2(1+ν+κ)),  r(ν) = 4 for ν ≤ ½, else 2 + 2ν + 1/(2ν)
//
// in every dimension. For single records of one column r(ν) is smaller. That smaller value would not be private here,
// because a person may move to other steps.
//
// Privacy: Square is an upper bound on the squared ℓ₂ sensitivity of (CX, √λ·CS, √κζ·Cn) to one person, for any C whose
// columns have no negative inner products. The bound is attained as long as 2(1+ν+κ) ≤ r(ν).
func PersonJoint(nu, kappa float64, adjacency dp.Adjacency) Tradeoff {
	square := 1 + nu + kappa
	if adjacency == dp.Replace {
		square = max(calibration.SquaresSensitivity(nu, 2, adjacency), 2*square)
	}
	return Tradeoff{nu, square}
}

// PersonCS returns the tradeoff of concatenation and split that protects all records of a person. It is joint
// estimation with the crude sensitivity of one vector: its norm √(1+ν+κ), or twice √(1+ν). Under replace that is at
// least PersonJoint's sensitivity.
func PersonCS(nu, kappa float64, adjacency dp.Adjacency) Tradeoff {
	t := PersonJoint(nu, kappa, adjacency)
	if adjacency == dp.Replace {
		t.Square = max(t.Square, 4*(1+nu))
	}
	return t
}

// PersonSplit returns the tradeoff of independent estimation that protects all records of a person. The first moment
// and the count get share·μ², the second moment gets the rest. The squared sensitivity of the second moment's mechanism
// is 1 under zero-out, and 2 under replace in every dimension.
func PersonSplit(share, kappa float64, adjacency dp.Adjacency) Tradeoff {
	return PersonJoint(0, kappa, adjacency).split(share, 2, adjacency)
}

// PersonCountWeight returns the weight κ of the number of valid records, if all records of a person are protected and
// the second moment has relative weight ν. The result is 0.1. Under replace it is the largest weight that is free,
// (r(ν) − 2 − 2ν)/2, if that is more than 0.1.
func PersonCountWeight(nu float64, adjacency dp.Adjacency) float64 {
	if adjacency == dp.Replace {
		return max(countWeight, (calibration.SquaresSensitivity(nu, 2, adjacency)-2-2*nu)/2)
	}
	return countWeight
}

// personal reports whether persons are protected, not single records.
func (c *Config) personal() bool { return c.Person != matfact.Participation{} }

// participation returns the steps in which a person can have records. PerStep is at most the number of slots of a step.
func (c *Config) participation() matfact.Participation {
	return calibration.Persons(c.Person, c.Step)
}

// norm returns the largest joint norm of a set of columns of C in which neighbours can differ: ColNorm for single
// records, P for persons.
func (c *Config) norm(f matfact.Factorization) (float64, error) {
	if !c.personal() {
		return f.ColNorm(), nil
	}
	return matfact.Sensitivity(f, c.participation(), c.last())
}

// dimension returns the number of columns to use in the formula for the joint sensitivity of both moments. For persons
// one column costs as much as two.
func (c *Config) dimension() int {
	if c.personal() {
		return max(2, len(c.Columns))
	}
	return len(c.Columns)
}

// countWeight returns the weight κ of the number of valid records, in units of ζ²; 0 if it is
// not released.
func (c *Config) countWeight(method string, nu float64, adjacency dp.Adjacency) float64 {
	switch {
	case !c.countsValid():
		return 0
	case c.personal():
		return PersonCountWeight(c.firstNu(method, nu), adjacency)
	}
	return countWeight
}

// firstNu returns the weight of the second moment in the mechanism of the first moment. It is 0 if the second moment
// has a mechanism of its own.
func (c *Config) firstNu(method string, nu float64) float64 {
	switch method {
	case "ime", "pp", "pp_debiased":
		return 0
	case "cs":
		return c.Tau * c.Clip * c.Clip
	}
	return nu
}

// personTradeoff does for persons what tradeoff does for single records.
func (c *Config) personTradeoff(method string, nu float64, adjacency dp.Adjacency) Tradeoff {
	kappa, first := c.countWeight(method, nu, adjacency), c.firstNu(method, nu)
	switch method {
	case "ime":
		return PersonSplit(c.Split, kappa, adjacency)
	case "cs":
		return PersonCS(first, kappa, adjacency)
	}
	return PersonJoint(first, kappa, adjacency)
}

// validatePerson reports faults of a configuration that protects persons. kind is the kind of factorization in use.
func (c *Config) validatePerson(l *fault.List, kind string) {
	if !c.personal() {
		return
	}
	p := c.Person
	l.Check(p.Count >= 1, "cap", "must be at least 1 step", p.Count)
	l.Check(p.Separation >= 1, "separation", "must be at least 1 step", p.Separation)
	l.Check(!p.Fixed, "separation",
		"must be the smallest distance between two steps, not an exact distance", nil)
	l.Check(!c.Normalise, "normalise",
		"must be false if persons are protected: it gives each single column the norm 1, but a person has several "+
			"columns",
		true)
	l.Check(kind != "dense", "factorization",
		"must not be \"dense\" if persons are protected: the rows of one person may cancel out, and the joint "+
			"sensitivity of both moments is proven only if they do not", nil)
	l.Check(kind != "sqrt" ||
		c.Workload != "window", "factorization",
		"must not be \"sqrt\" for workload \"window\" if persons are protected: its coefficients change sign, and "+
			"the joint sensitivity of both moments is proven only for coefficients that do not", nil)
	l.Check(c.Second == nil, "method",
		"must use one matrix C for both moments if persons are protected: joint sensitivity is convex, so a person's "+
			"two sensitivities cannot be combined like two column norms", nil)
	l.Check(!c.Automatic(), "clip",
		"must be given, with centre and scale, if persons are protected: a warm-up protects single records only", nil)
}

// checkNonNegative refuses a factorization for which PersonJoint is not proven.
func (c *Config) checkNonNegative(f matfact.Factorization) error {
	if c.personal() && !matfact.NonNegativeGram(f) {
		return fmt.Errorf("factorization %q may have negative inner products of columns, and cannot protect persons",
			f.Kind())
	}
	return nil
}
