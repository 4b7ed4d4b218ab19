package sgd

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/clipgrad"
	"github.com/streamdp/streamdp/matfact"
)

// This file protects persons: neighbours differ in all records of one person instead of one record. The person has
// records in at most k steps, any two at least b apart, and at most m records in a step. Under replace, the records of
// another person, in other steps, may take their place. The proof is in docs/theory/sgd.md, §14.

// load says how much farther a person moves the releases of [Newton] than a single record does. Each release costs the
// same share of μ² in both cases.
type load struct {
	person *calibration.Person // nil: single records are protected
	// norm replaces the column norm: it is the largest norm by which a person moves the gradients, correlated by C.
	norm float64
	// weight is the weight of a counted record relative to its gradient.
	weight float64
	// search, locate, nulls and epoch are the distances by which a person moves the counts of searches, of the search
	// for the median, of null records, and of an epoch's histogram. matrix is the factor for the epoch's matrix.
	search, locate, nulls, epoch, matrix float64
	// fewer[i] is the factor that reduces epoch and matrix in epoch i, which is too short for all k steps of a person.
	fewer []float64
}

// loadFor returns the factorization of the gradients' noise, and the load for the unit that cfg protects.
func loadFor(cfg *Config, p dp.Params) (matfact.Factorization, *load, error) {
	if !cfg.personal() {
		f, err := factorize(shapedBands, nil)
		if err != nil {
			return nil, nil, err
		}
		return f, &load{
			norm: f.ColNorm(), weight: clipgrad.CountWeight(p.Adjacency, countedPart),
			search: 1, locate: 1, nulls: 1, epoch: 1, matrix: 1,
		}, nil
	}
	f, norm, err := personBands(cfg, p)
	if err != nil {
		return nil, nil, err
	}
	k, m := float64(cfg.Person.Count), float64(max(1, cfg.Person.PerStep))
	l := &load{
		person: calibration.NewPerson(cfg.Person, norm), norm: norm,
		// Under zero-out, the gradient of a counted record is at most countedPart. Under replace, two persons may have
		// records in different steps: then the squared bound doubles. So under replace the bound for counted records is
		// as large as for other records.
		weight: clipgrad.CountWeight(dp.ZeroOut, countedPart),
		search: m * math.Sqrt(k) * dp.RoundUp, locate: m * math.Sqrt(k) * dp.RoundUp,
		nulls: m * math.Sqrt(k) * dp.RoundUp,
		epoch: m * k, matrix: m * k,
	}
	if p.Adjacency == dp.Replace {
		l.weight *= math.Sqrt2 * (1 - 0x1p-50)
		l.nulls *= math.Sqrt2 * dp.RoundUp // two persons can have null records in 2k steps
		// Under replace, the two persons may have records in different searches. Each then has null records in the
		// other's searches.
		far := max(normQuantile, scaleQuantile, modeQuantile)
		l.search *= math.Sqrt(max(1, 2*far*far)) * dp.RoundUp
		// The sums of two persons are rounded in different blocks: each may add a lattice step, at most 2^−bits of the
		// squared norm.
		l.matrix *= 1 + math.Ldexp(float64(cfg.features()), -p.Bits())/2
	}
	for steps := float64(firstSteps); steps < k; steps *= 2 {
		l.fewer = append(l.fewer, math.Sqrt(steps/k)*dp.RoundUp)
	}
	return f, l, nil
}

// RecordCost returns what all releases cost one record of a person, if the user key stays unchanged. A search and a
// gradient step differ in cost; the larger cost counts. A gradient step costs most in the first epoch, whose histogram
// and matrix have the least noise. Without persons RecordCost equals Cost. The proof is in docs/theory/sgd.md, §14.
func (e *Newton) RecordCost() dp.Cost {
	c := e.Cost()
	if e.plan.Person != nil {
		// This margin exceeds the error of the subtraction in the last bits.
		c.Mu = min(c.Mu, max(e.searchedRecord(), e.steppedRecord())+c.Mu*0x1p-40)
	}
	return c
}

// searchedRecord returns what a search costs one record of a person. Replacing a record moves each count by at most 1;
// nulling it moves each count by at most the quantile of the search.
func (e *Newton) searchedRecord() float64 {
	p := &e.plan
	search, locate := float64(p.Unit), float64(p.Unit)
	if e.params.Adjacency == dp.ZeroOut {
		search, locate = math.Ceil(max(normQuantile, scaleQuantile, modeQuantile)*search), float64(p.NullLocate)
	}
	cost := math.Sqrt(float64(normLadder.Searches())) * search / p.SearchNoise
	if p.LocateNoise > 0 {
		cost = max(cost, math.Sqrt(medianQuestions)*locate/p.LocateNoise)
	}
	return cost
}

// steppedRecord returns what a gradient step costs one record of a person, including the releases at the end of the
// step's epoch.
func (e *Newton) steppedRecord() float64 {
	p, two := &e.plan, e.params.Adjacency.Factor()
	gradient := (p.Sensitivity - two*float64(p.Lattice.K)*(p.Person.Norm-e.factor.ColNorm())) / p.GradientNoise
	nulls := float64(p.Unit) / p.NullNoise
	norms := math.Sqrt(two) / (p.HistogramNoise * p.fewer(0))
	matrix := p.GramMu / p.fewer(0)
	return math.Hypot(math.Hypot(gradient, nulls), math.Hypot(norms, matrix))
}

// personBands returns the matrix that gives the estimate the least noise, and the matrix's P of matfact.Sensitivity.
// Matrices are compared at the same number of records: with more noise a step has more slots, so the same records make
// fewer steps.
func personBands(cfg *Config, p dp.Params) (best matfact.Factorization, norm float64, err error) {
	const compared = 400
	mu, err := p.Budget()
	if err != nil {
		return nil, 0, err
	}
	var least, alone float64
	var faults []error
	for bands := 1; bands <= shapedBands; bands *= 2 {
		f, err := factorize(bands, nil)
		if err != nil {
			return nil, 0, err
		}
		own, err := matfact.Sensitivity(f, cfg.Person, 0)
		if err != nil {
			return nil, 0, err
		}
		// Skip a matrix whose rounding would cost too much, because it has many bands and much noise.
		if _, _, _, _, err := gradientNoise(cfg, p, f, own, mu*math.Sqrt(gradientShare)); err != nil {
			faults = append(faults, err)
			continue
		}
		stored := f.Stored().Bands
		single := own * math.Sqrt(windowNoise(stored, 1))
		if best == nil {
			alone = single
		}
		steps := max(1, int(compared*alone/single))
		if noise := own * own * windowNoise(stored, steps); best == nil || noise < least {
			best, norm, least = f, own, noise
		}
	}
	if best == nil {
		return nil, 0, errors.Join(faults...)
	}
	return best, norm, nil
}

// stepNoise returns the standard deviation of a step's noise in clip norms, times 0.652. For a single record this is
// 1.25S/μ, from which the number of slots of a step is computed.
func (p *NewtonPlan) stepNoise(f matfact.Factorization) float64 {
	return 0.652 * p.GradientNoise / p.One * math.Sqrt(windowNoise(f.Stored().Bands, 1))
}
