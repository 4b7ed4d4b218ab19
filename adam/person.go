package adam

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/matfact"
)

// This file protects persons: neighbours differ in all gradients of one person instead of one gradient. The person has
// gradients in at most k steps, any two at least b steps apart, and at most m' in a step. Under replace, the gradients
// of another person, in any slots, may take their place. See docs/theory/adam.md, §14.

// personal reports whether all records of a person are protected, instead of single records.
func (c *Config) personal() bool { return c.Person != matfact.Participation{} }

// participation returns the steps in which a person can have records, with at most as many records in a step as it has
// slots.
func (c *Config) participation() matfact.Participation {
	return calibration.Persons(c.Person, c.Step)
}

// norms returns the largest joint norms, over all pairs of neighbours, of the columns of C₁ and C₂ in which they
// differ. For single records these are the column norms. For persons both are P of matfact.Sensitivity, because the two
// matrices are equal. beta is 1 if there is no C₂.
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

// personSensitivity returns what sensitivity returns, for persons. P is the joint norm of either matrix:
//
//	pp, pp_debiased, momentum, joint_clip    fζP/m,  f = 1, 2 under replace
//	jme, jme_per_example                     ζP√(1+ν)/m, under replace ζP√r(ν)/m
//	jme_batch                                f·P times one record's sensitivity under zero-out
//
// with r(ν) = 4 for ν ≤ ½, else 2 + 2ν + 1/(2ν), for any number of parameters.
//
// Privacy: each record of a person moves both arrays of its step by at most s₁, the zero-out sensitivity of one record.
// So all records of a person move the arrays by at most s₁P, and the records of two persons by at most 2s₁P. For "jme"
// docs/theory/moments.md, §19, has the sharper bound; the squares of the entries are part of xxᵀ.
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

// RecordCost returns what all releases cost one record of a person, if the user key stays unchanged. The record changes
// one gradient of its step, and costs
//
//	μ₁ = μ·(s − s₀(1−α/P))/s
//
// for the charged sensitivity s, which is s₀ plus roundings, and the column norm α of C. Without persons it equals
// Cost.
func (e *Estimator) RecordCost() dp.Cost {
	c := e.Cost()
	p := e.plan.Person
	if p == nil {
		return c
	}
	_, less := e.cfg.personSensitivity(e.plan.Nu, e.plan.Clip, p.Norm-e.factors.first.ColNorm(), 0, e.params.Adjacency)
	// This margin exceeds the error of the subtraction in the last bits.
	c.Mu = min(c.Mu, c.Mu*(max(0, e.plan.Sensitivity-less)/e.plan.Sensitivity+0x1p-40))
	return c
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
	l.Check(!c.joint() || c.Factorization == "identity", "factorization",
		"must be \"identity\" if persons are protected and both moments have noise: other factorizations use a "+
			"different matrix for each moment, and no joint bound on a person's two sensitivities is known",
		c.Factorization)
}
