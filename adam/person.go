package adam

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/matfact"
)

// Persons: a neighbour differs in all gradients of one person in place of one. The person has
// gradients in at most k steps, any two at least b steps apart, at most m' in a step; under
// replace another person's, at any slots, come in their place. docs/theory/adam.md, §14.

// personal reports whether persons are protected in place of single records.
func (c *Config) personal() bool { return c.Person != matfact.Participation{} }

// participation returns in what steps a person can have records. A step has no more of
// them than slots.
func (c *Config) participation() matfact.Participation {
	return calibration.Persons(c.Person, c.Step)
}

// norms returns the largest joint norms of the columns of C₁ and C₂ in which neighbours can
// differ: column norms for single records, P of matfact.Sensitivity for persons, whose matrices
// are the same. beta is 1 if there is no C₂.
func (c *Config) norms(f factors) (alpha, beta float64, err error) {
	beta = 1
	if !c.personal() {
		if f.second != nil {
			beta = f.second.ColNorm()
		}
		return f.first.ColNorm(), beta, nil
	}
	alpha, err = matfact.Sensitivity(f.first, c.participation(), c.LastStep())
	if f.second != nil {
		beta = alpha
	}
	return alpha, beta, err
}

// personSensitivity is sensitivity for persons, with P for the norm of both matrices:
//
//	pp, pp_debiased, momentum, joint_clip    fζP/m,  f = 1, 2 under replace
//	jme, jme_per_example                     ζP√(1+ν)/m, under replace ζP√r(ν)/m
//	jme_batch                                f·P times one record's sensitivity under zero-out
//
// with r(ν) = 4 for ν ≤ ½, else 2 + 2ν + 1/(2ν), for any number of parameters.
//
// Privacy: each of a person's records moves both arrays of its step by a vector of at most one
// record's zero-out sensitivity s₁, so all of them by s₁P, and two persons' by twice that. For
// "jme" docs/theory/moments.md, §19, has the sharper bound; squares of entries are a part of xxᵀ.
func (c *Config) personSensitivity(nu, clip, norm, spare float64, adjacency dp.Adjacency) (lambda, s float64) {
	m, f := float64(c.Step), adjacency.Factor()
	lambda = nu / (clip * clip)
	switch c.Method {
	case "jme", "jme_per_example":
		return lambda, clip * norm * math.Sqrt(calibration.SquaresSensitivity(nu, 2, adjacency)) / m
	case "jme_batch":
		one := batchSensitivity(c.Step, lambda/(m*m), clip, c.Parameters(), dp.ZeroOut) / m
		if c.MeanClip > 0 {
			one = clippedMeanSensitivity(c.MeanClip, clip/m+spare, lambda, c.Parameters())
		}
		return lambda, f * norm * one
	case "joint_clip":
		lambda = c.Tau
	}
	return lambda, f * clip * norm / m
}

// RecordCost returns what all releases cost one record of a person whose user key stays as it
// is. Such a record changes one gradient of its step, and
//
//	μ₁ = μ·(s − s₀(1−α/P))/s
//
// for the charged sensitivity s, which is s₀ without roundings, and the column norm α of C. Where
// records are protected it is Cost.
func (e *Estimator) RecordCost() dp.Cost {
	c := e.Cost()
	p := e.plan.Person
	if p == nil {
		return c
	}
	_, less := e.cfg.personSensitivity(e.plan.Nu, e.plan.Clip, p.Norm-e.factors.first.ColNorm(), 0, e.params.Adjacency)
	// More than a few last bits of the difference.
	c.Mu = min(c.Mu, c.Mu*(max(0, e.plan.Sensitivity-less)/e.plan.Sensitivity+0x1p-40))
	return c
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
	l.Check(!c.joint() || c.Factorization == "identity", "factorization",
		"must be \"identity\" where persons are protected and both moments have noise: beta1 and beta2 give two "+
			"matrices, and the sensitivities of a person to both do not combine as column norms do", c.Factorization)
}
