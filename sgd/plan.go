package sgd

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"

	"streamdp/dp"
	"streamdp/internal/fault"
	"streamdp/matfact"
)

// Version names the mechanism's algorithm and state; another version is another
// epoch.
const Version = "amb/v1"

// endless is the number of noisy coordinates for which the rounding of
// correlated noise is charged where there is no horizon: ten million a second
// for two centuries. The mechanism ends there.
const endless = 1 << 56

// Plan is everything that a configuration resolves to before the first record:
// public numbers that the releases are a function of. An epoch keeps its plan,
// because another processor may compute other last bits.
type Plan struct {
	Method string `json:"method"`
	// Factorization correlates the noise of the gradients.
	Factorization *matfact.Stored `json:"factorization"`
	// Mu is the guarantee.
	Mu float64 `json:"mu"`
	// ClipX bounds the features' norm; Constant is the value of the constant
	// feature, 0 without one; Bound is the norm of both together, at most.
	ClipX    float64 `json:"clip_x"`
	Constant float64 `json:"constant"`
	Bound    float64 `json:"bound"`
	// Batch and Search are the slots of a gradient step, before growth, and of a
	// step that searches the clip norm: 0 where there is none.
	Batch  uint64 `json:"batch"`
	Search uint64 `json:"search"`
	// Growth is the number of times that batches double.
	Growth int `json:"growth"`
	// Unit and Null are the lattice steps that a record and a null record add to
	// a count; SearchNoise and CountNoise are standard deviations in these steps.
	Unit        int64   `json:"unit"`
	Null        int64   `json:"null"`
	SearchNoise float64 `json:"search_noise"`
	CountNoise  float64 `json:"count_noise"`
	// Threshold is the count that ends a search, in records, and Multiplier what
	// its result is multiplied by.
	Threshold  float64 `json:"threshold"`
	Multiplier float64 `json:"multiplier"`
	// Zeta is the clip norm before the first step, ZetaLow and ZetaHigh its
	// bounds.
	Zeta     float64 `json:"zeta"`
	ZetaLow  float64 `json:"zeta_low"`
	ZetaHigh float64 `json:"zeta_high"`
	// Lattice is that of gradients divided by the clip norm; One is the number
	// of its steps that a gradient of that norm has, a little less than K.
	Lattice dp.Lattice `json:"lattice"`
	One     float64    `json:"one"`
	// Sensitivity is that of a step's sum of gradients, through all steps, and
	// GradientNoise the standard deviation of a step's independent draws; both
	// in lattice steps.
	Sensitivity   float64 `json:"sensitivity"`
	GradientNoise float64 `json:"gradient_noise"`
	// Curvature is h: step sizes are eta0·b/(Bound² + (b−1)h) for batches of b.
	Curvature float64 `json:"curvature"`
	// Radius bounds the iterates; 0: nothing does.
	Radius float64 `json:"radius"`
	// Jump is the factor over its recent median by which a clip norm restarts
	// the average, DriftBlock and BatchMeans lengths in steps of the means that
	// show a drift and that intervals rest on. 0 where there is none.
	Jump       float64 `json:"jump"`
	DriftBlock uint64  `json:"drift_block"`
	BatchMeans uint64  `json:"batch_means"`
	// Student are the quantiles of Student's t for intervals that rest on so
	// many means, 0 where they are too few.
	Student []float64 `json:"student,omitempty"`
	// Start is the first iterate; nil: 0.
	Start []float64 `json:"start,omitempty"`
}

// rooms for float64 rounding: what is charged may be larger by far more than the
// sums, products and roots of this file err.
const roundUp = 1 + 0x1p-40

// resolve computes the plan, and the factorization it names: a stored one where
// that is given, else the one that the configuration asks for.
func resolve(cfg *Config, p dp.Params, stored *matfact.Stored) (*Plan, matfact.Factorization, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), cfg.validateScaling(), cfg.is("amb"), err); err != nil {
		return nil, nil, err
	}
	factor, err := factorize(cfg.Bands, stored)
	if err != nil {
		return nil, nil, err
	}
	adjacency := p.Adjacency.Factor()
	plan := &Plan{
		Method:        "amb",
		Factorization: factor.Stored(),
		ClipX:         cfg.ClipX,
		Radius:        cfg.Radius,
		Zeta:          cfg.Zeta,
		Multiplier:    1,
		// A lattice step is 2^−bits of a gradient; counts need less.
		Unit:  1 << (p.Bits() - 4),
		Start: slices.Clone(cfg.Start),
	}
	plan.Null = int64(math.Floor(cfg.Quantile*float64(plan.Unit) + 0.5))

	// The constant feature shares the features' curvature, so that it is not the
	// one direction in which steps are too long.
	if *cfg.Intercept {
		plan.Constant = cfg.ClipX
		if cfg.Curvature > 0 {
			plan.Constant = math.Sqrt(cfg.Curvature)
		}
	}
	plan.Bound = math.Sqrt(float64(cfg.ClipX*cfg.ClipX) + float64(plan.Constant*plan.Constant))
	plan.Curvature = cfg.Curvature
	if plan.Curvature == 0 {
		plan.Curvature = plan.Bound * plan.Bound
	}
	if cfg.Value == "residual" {
		plan.Multiplier = plan.Bound
	}
	// A record of a search pays μ there and nothing else; one of a gradient
	// step pays for the gradient and, with "track", for the count: f and 1−f of
	// μ².
	gradient := mu
	if cfg.Clip == "track" {
		gradient = mu * math.Sqrt(1-cfg.Fraction)
		plan.CountNoise = float64(plan.Unit) / (mu * math.Sqrt(cfg.Fraction)) * roundUp
	}
	if err := plan.searches(cfg, mu); err != nil {
		return nil, nil, err
	}

	norm := factor.ColNorm()
	plan.Lattice, plan.One, plan.Sensitivity, plan.GradientNoise, err = gradientNoise(cfg, p, factor, gradient)
	if err != nil {
		return nil, nil, err
	}
	plan.Mu = mu * (1 - 0x1p-49) // leaves room for the roundings of a ledger

	if err := plan.batches(cfg, mu, adjacency, norm); err != nil {
		return nil, nil, err
	}
	if !(float64(plan.Batch)*float64(plan.Lattice.K) < room) {
		return nil, nil, &fault.Fault{Key: "batch", Rule: "must be less, for sums of gradients to fit 52 bits", Value: plan.Batch}
	}
	plan.rules(cfg, mu)
	return plan, factor, nil
}

// gradientNoise returns the lattice of a step's sum of gradients over the clip norm, the
// steps of it that a gradient of that norm has, the sum's sensitivity through all steps
// and the deviation of a step's independent draws, both in lattice steps, that make it
// μ-Gaussian-private for all of them together.
func gradientNoise(cfg *Config, p dp.Params, factor matfact.Factorization, mu float64) (l dp.Lattice, one, sensitivity, noise float64, err error) {
	d, norm, adjacency := cfg.features(), factor.ColNorm(), p.Adjacency.Factor()
	// The noise needs the lattice's K, the lattice an idea of the noise.
	if l, err = dp.NewLattice(1, adjacency*norm/mu, p.Bits()); err != nil {
		return
	}
	if one = l.Radius(d); !(one >= float64(l.K)/2) {
		err = fmt.Errorf("%d features are too many for a lattice of %d steps", d, l.K)
		return
	}
	sensitivity = adjacency * float64(l.K) * norm
	const guess = 1 + 0x1p-10 // of how much the noise grows by what follows
	most := guess * sensitivity / mu
	limits, err := factor.Limits(most)
	if err != nil {
		return
	}
	// Each prediction of correlated noise may err by Rounding on either side.
	coordinates := float64(endless)
	if h := cfg.LastStep(); h > 0 {
		coordinates = float64(h) * float64(d)
	}
	sensitivity = (sensitivity + float64(2*limits.Rounding*math.Sqrt(coordinates))) * roundUp
	if noise = sensitivity / mu * roundUp; !(noise <= most) {
		err = errors.New("rounding of correlated noise would cost more than 0.1 % of the noise: use fewer bands")
	}
	return
}

// searches fills in what concerns counts and the bounds of the clip norm.
func (p *Plan) searches(cfg *Config, mu float64) error {
	ladder := ladder{cfg.Top, cfg.Rungs}
	// Far below any rung a sum of squares has no digits left.
	p.ZetaLow = max(math.Ldexp(cfg.Top, -cfg.Rungs-16), 0x1p-500)
	p.ZetaHigh = math.Ldexp(cfg.Top, 16)
	if cfg.Clip == "fixed" {
		return nil
	}
	questions := ladder.searches()
	if cfg.Clip == "scan" {
		questions = ladder.rungs
	}
	spread := math.Sqrt(float64(questions)) / mu // in records
	p.SearchNoise = spread * float64(p.Unit) * roundUp
	if noise := max(p.SearchNoise, p.CountNoise); !(14*noise < 1<<50) {
		return fmt.Errorf("noise of %.3g records is too large for counts: raise epsilon", noise/float64(p.Unit))
	}
	// A count must be told from its threshold on both sides.
	least := math.Ceil(max(15, 3/min(cfg.Quantile, 1-cfg.Quantile)) * spread)
	if !(least <= 1<<31) {
		return errors.New("a search would need more than 2^31 slots: raise epsilon")
	}
	p.Search = max(cfg.Stat, cfg.Bootstrap)
	if p.Search == 0 {
		p.Search = max(64, uint64(least))
	}
	p.Threshold = cfg.Quantile * float64(p.Search)
	if cfg.Clip == "scan" {
		p.Threshold = float64(p.Search) // as in the paper
	}
	return nil
}

// sizes returns the batch below which the noise of a step, which is in proportion to
// the error, is larger than what the step corrects, and the batch to choose: four
// times that, and so much that the noise of an average is no larger than its
// sampling error, and that of a count small.
func (p *Plan) sizes(cfg *Config, mu, adjacency, norm, condition float64) (least, want float64) {
	d, alpha := float64(cfg.features()), 1/mu
	v := noiseShape(p.Factorization, norm)
	half := math.Sqrt2 * math.Erfinv(cfg.Quantile) // half the width of the quantile's interval of N(0, 1)
	strength := adjacency * alpha * half
	least = strength * d * v.step * math.Sqrt(cfg.Eta0/(2-cfg.Eta0)) * math.Sqrt(condition)
	want = max(4*least, 2*strength*strength*d*v.average, 20)
	if cfg.Clip == "track" {
		want = max(want, 12*cfg.Kappa*alpha/math.Sqrt(cfg.Fraction))
	}
	return least, want
}

// batches chooses the batch, or checks the configured one.
func (p *Plan) batches(cfg *Config, mu, adjacency, norm float64) error {
	least, want := p.sizes(cfg, mu, adjacency, norm, 1)
	const slots = 1 << 31
	p.Batch = cfg.Batch
	if p.Batch == 0 {
		if !(want <= slots) {
			return &fault.Fault{Key: "batch", Rule: "would have to be more than 2^31 slots: raise epsilon", Value: nil}
		}
		p.Batch = uint64(math.Ceil(want))
	}
	if float64(p.Batch) < least {
		return &fault.Fault{Key: "batch", Rule: fmt.Sprintf("must be at least %.0f slots: with less the noise outweighs every step", math.Ceil(least)), Value: p.Batch}
	}
	if cfg.Growth == "double" {
		for math.Ldexp(float64(p.Batch), p.Growth+1)*float64(p.Lattice.K) < room {
			p.Growth++
		}
	}
	return nil
}

// rules fills in what decides about averages and intervals.
func (p *Plan) rules(cfg *Config, mu float64) {
	if *cfg.Restart {
		switch cfg.Clip {
		case "track":
			// The public deviation of one step of ln ζ, by noise and sampling.
			b, q := float64(p.Batch), cfg.Quantile
			sd := cfg.Kappa * math.Sqrt(1/(mu*mu*cfg.Fraction)+b*q*(1-q)) / b
			p.Jump = math.Exp(max(math.Log(1.5), 5*sd))
		case "bisect", "scan":
			p.Jump = 3.9 // two rungs
		}
		p.DriftBlock = max(64, uint64(math.Ceil(20/cfg.Eta0)))
	}
	if *cfg.Intervals {
		p.BatchMeans = uint64(math.Ceil(9 / cfg.Eta0))
		p.Student = slices.Clone(students(cfg.Level))
	}
}

// students returns the quantiles of Plan.Student. Every restart of a daemon asks for
// those of the same few levels again, and they are most of what a plan costs.
func students(level float64) []float64 {
	if q, ok := quantiles.Load(level); ok {
		return q.([]float64)
	}
	q := make([]float64, batchesMost)
	for n := intervalsLeast; n < batchesMost; n++ {
		q[n] = StudentQuantile((1+level)/2, float64(n-1))
	}
	quantiles.Store(level, q)
	return q
}

var quantiles sync.Map // of a level; never changed

// intervalsLeast is the number of means from which intervals are published.
const intervalsLeast = 5

// factorize builds the factorization of p bands.
func factorize(bands int, stored *matfact.Stored) (matfact.Factorization, error) {
	c := matfact.Config{Kind: "bisr", Bands: bands, Stored: stored}
	if bands == 1 {
		c = matfact.Config{Kind: "identity", Stored: stored}
	}
	return matfact.New(c, matfact.Workload{Kind: "sum"})
}

// shape says what correlated noise does to an iterate and to an average.
type shape struct {
	step    float64 // deviation of one step's noise over that of independent noise
	average float64 // variance of a long average's noise likewise
}

// noiseShape computes it from the bands of C⁻¹.
func noiseShape(f *matfact.Stored, norm float64) shape {
	sum, square := 1.0, 1.0
	for _, m := range f.Bands {
		r := float64(m) * 0x1p-64
		sum -= r
		square += r * r
	}
	return shape{norm * math.Sqrt(square), norm * sum * norm * sum}
}

// adopt returns the factorization of a kept plan, after checking that the plan
// is what the configuration resolves to: a plan decides how much noise there is,
// so nothing else may have written it. Numbers may differ in their last bits.
func adopt(kept *Plan, cfg *Config, p dp.Params) (matfact.Factorization, error) {
	own, factor, err := resolve(cfg, p, nil)
	if err != nil {
		return nil, err
	}
	if kept.Factorization == nil || !alike(reflect.ValueOf(*kept), reflect.ValueOf(*own)) {
		return nil, errPlan
	}
	return factor, nil
}

var errPlan = errors.New("the epoch's plan does not belong to this configuration")

// alike reports whether two plans are equal up to the last bits of their
// float64 numbers, fewer than what resolve adds to the noise.
func alike(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Float64:
		x, y := a.Float(), b.Float()
		return x == y || math.Abs(x-y) <= 0x1p-42*math.Abs(y)
	case reflect.Struct:
		for i := range a.NumField() {
			if !alike(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !alike(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || alike(a.Elem(), b.Elem()))
	}
	return a.Equal(b)
}

// clone returns a copy that shares nothing with p.
func (p *Plan) clone() Plan {
	c, f := *p, *p.Factorization
	f.Bands = slices.Clone(f.Bands)
	f.Phases = slices.Clone(f.Phases)
	c.Factorization = &f
	c.Student, c.Start = slices.Clone(p.Student), slices.Clone(p.Start)
	return c
}

// rate returns the step size of a batch of b.
func (p *Plan) rate(eta0 float64, b uint64) float64 {
	n := float64(b)
	return float64(eta0*n) / (float64(p.Bound*p.Bound) + float64((n-1)*p.Curvature))
}
