package sgd

import (
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/clipgrad"
	"github.com/streamdp/streamdp/matfact"
)

// Persons: a neighbour differs in all records of one person in place of one record. The person
// has records in at most k steps, any two at least b apart, at most m in a step; under replace
// another person's, in other steps, may come in their place. docs/theory/sgd.md, §14, has the
// proof of what follows.

// load says how much more a person moves the releases of [Newton] than a single record does.
// Each release has the same share of μ² for both.
type load struct {
	person *calibration.Person // nil: single records are protected
	// norm takes the place of the column norm: what gradients move by, correlated by C.
	norm float64
	// weight is that of a counted record beside its gradient.
	weight float64
	// What counts move by: searches, the median's, null records; then an epoch's histogram
	// and its matrix.
	search, locate, nulls, epoch, matrix float64
	// fewer, by epoch, are factors of the latter two in epochs too short for all k steps.
	fewer []float64
}

// loadFor returns the factorization of the gradients' noise, and the load of what cfg protects.
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
		// Zero-out: a record that counts has a gradient of c at most. For two persons in other
		// steps the same is twice as much, and records that count as far apart as others.
		weight: clipgrad.CountWeight(dp.ZeroOut, countedPart),
		search: m * math.Sqrt(k) * dp.RoundUp, locate: m * math.Sqrt(k) * dp.RoundUp,
		nulls: m * math.Sqrt(k) * dp.RoundUp,
		epoch: m * k, matrix: m * k,
	}
	if p.Adjacency == dp.Replace {
		l.weight *= math.Sqrt2 * (1 - 0x1p-50)
		l.nulls *= math.Sqrt2 * dp.RoundUp // two persons can have null records in 2k steps
		// In a search each is a null record in the other's steps.
		far := max(normQuantile, scaleQuantile, modeQuantile)
		l.search *= math.Sqrt(max(1, 2*far*far)) * dp.RoundUp
		// Sums of two persons are rounded in blocks of their own: a step of the lattice each, at
		// most 2^−bits of the squared norm.
		l.matrix *= 1 + math.Ldexp(float64(cfg.features()), -p.Bits())/2
	}
	for steps := float64(firstSteps); steps < k; steps *= 2 {
		l.fewer = append(l.fewer, math.Sqrt(steps/k)*dp.RoundUp)
	}
	return f, l, nil
}

// RecordCost returns what all releases cost one record of a person whose user key stays as it
// is: the larger of what it costs in a search and in a step with a gradient. Such a step costs
// most in the first epoch, whose histogram and matrix have the least noise. Where records are
// protected it is Cost. docs/theory/sgd.md, §14, has the proof.
func (e *Newton) RecordCost() dp.Cost {
	c := e.Cost()
	if e.plan.Person != nil {
		// More than a few last bits of a difference.
		c.Mu = min(c.Mu, max(e.searchedRecord(), e.steppedRecord())+c.Mu*0x1p-40)
	}
	return c
}

// searchedRecord returns what a search costs one record of a person: each count moves by at most
// a record, or from a null record by at most the quantile that is sought.
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

// steppedRecord returns what a step with a gradient costs one record of a person, with what
// the step's epoch releases at its end.
func (e *Newton) steppedRecord() float64 {
	p, two := &e.plan, e.params.Adjacency.Factor()
	gradient := (p.Sensitivity - two*float64(p.Lattice.K)*(p.Person.Norm-e.factor.ColNorm())) / p.GradientNoise
	nulls := float64(p.Unit) / p.NullNoise
	norms := math.Sqrt(two) / (p.HistogramNoise * p.fewer(0))
	matrix := p.GramMu / p.fewer(0)
	return math.Hypot(math.Hypot(gradient, nulls), math.Hypot(norms, matrix))
}

// personBands returns the matrix whose noise in the estimate is smallest, and P of
// matfact.Sensitivity. The noise is that of a sum over as many records as so many steps of
// independent noise have: with more noise a step has more slots, so they are fewer steps.
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
		// Rounding costs too much where many bands meet much noise.
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

// stepNoise returns the deviation of a step's noise in clip norms, times 0.652. With the
// noise of a single record that is the 1.25S/μ from which steps get their slots.
func (p *NewtonPlan) stepNoise(f matfact.Factorization) float64 {
	return 0.652 * p.GradientNoise / p.One * math.Sqrt(windowNoise(f.Stored().Bands, 1))
}
