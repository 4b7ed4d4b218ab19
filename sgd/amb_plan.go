package sgd

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/matfact"
)

// AMBVersion names the mechanism's algorithm and state. A new version needs a new epoch.
const AMBVersion = "amb/v1"

// AMBPlan holds the public numbers that follow from a configuration before the first record, and on which the releases
// depend. An epoch records its plan, because another processor may compute different last bits.
type AMBPlan struct {
	Method string `json:"method"`
	// Factorization correlates the noise of the gradients.
	Factorization *matfact.Stored `json:"factorization"`
	// Mu is the guarantee.
	Mu float64 `json:"mu"`
	// ClipX bounds the norm of the features. Constant is the value of the constant feature, 0 if there is none. Bound
	// is an upper bound on the norm of both together.
	ClipX    float64 `json:"clip_x"`
	Constant float64 `json:"constant"`
	Bound    float64 `json:"bound"`
	// Batch is the number of slots of a gradient step before batches grow. Search is the number of slots of a step that
	// searches for the clip norm, 0 if there are no searches.
	Batch  uint64 `json:"batch"`
	Search uint64 `json:"search"`
	// Growth is how many times batches double.
	Growth int `json:"growth"`
	// Unit and Null are the numbers of lattice steps that a record and a null record add to a count. SearchNoise and
	// CountNoise are standard deviations of counts, in the same lattice steps.
	Unit        int64   `json:"unit"`
	Null        int64   `json:"null"`
	SearchNoise float64 `json:"search_noise"`
	CountNoise  float64 `json:"count_noise"`
	// Threshold is the count that ends a search, in records. The result of a search is
	// multiplied by Multiplier.
	Threshold  float64 `json:"threshold"`
	Multiplier float64 `json:"multiplier"`
	// Zeta is the clip norm before the first step. ZetaLow and ZetaHigh bound it later.
	Zeta     float64 `json:"zeta"`
	ZetaLow  float64 `json:"zeta_low"`
	ZetaHigh float64 `json:"zeta_high"`
	// Lattice is the lattice of gradients divided by the clip norm. One is the number of lattice steps of a gradient of
	// that norm; it is a little less than K.
	Lattice dp.Lattice `json:"lattice"`
	One     float64    `json:"one"`
	// Sensitivity is the sensitivity of the gradient sums of all steps together, correlated by C. GradientNoise is the
	// standard deviation of a step's independent draws. Both are in lattice steps.
	Sensitivity   float64 `json:"sensitivity"`
	GradientNoise float64 `json:"gradient_noise"`
	// Curvature is h in the step size eta0·b/(Bound² + (b−1)h) of a batch of b slots.
	Curvature float64 `json:"curvature"`
	// Radius bounds the norm of the iterates; 0 means no bound.
	Radius float64 `json:"radius"`
	// Jump is a factor: a clip norm above Jump times its recent median restarts the average. DriftBlock is the number
	// of steps in a mean that detects drift. BatchMeans is the number of steps in a mean for the intervals. A field is
	// 0 if the plan does not use it.
	Jump       float64 `json:"jump"`
	DriftBlock uint64  `json:"drift_block"`
	BatchMeans uint64  `json:"batch_means"`
	// Student[n] is the quantile of Student's t for intervals from n means, 0 if n is too small.
	Student []float64 `json:"student,omitempty"`
	// Start is the first iterate; nil means 0.
	Start []float64 `json:"start,omitempty"`
	// Person says how all records of a person are protected together; it is nil if single records are protected. Its
	// Norm is the joint norm of a person's gradients. RecordMu is the μ that one record of a person pays, up to
	// rounding; it is 0 without persons.
	Person   *calibration.Person `json:"person,omitempty"`
	RecordMu float64             `json:"record_mu,omitempty"`
}

// single returns the μ that one record pays, up to rounding.
func (p *AMBPlan) single() float64 {
	if p.Person != nil {
		return p.RecordMu
	}
	return p.Mu
}

// resolveAMB computes the plan and its factorization. If stored is nil, it builds the factorization that the
// configuration asks for.
func resolveAMB(cfg *Config, p dp.Params, stored *matfact.Stored) (*AMBPlan, matfact.Factorization, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), cfg.validateScaling(), cfg.is("amb"), err); err != nil {
		return nil, nil, err
	}
	factor, err := factorize(cfg.Bands, stored)
	if err != nil {
		return nil, nil, err
	}
	adjacency := p.Adjacency.Factor()
	plan := &AMBPlan{
		Method:        "amb",
		Factorization: factor.Stored(),
		ClipX:         cfg.ClipX,
		Radius:        cfg.Radius,
		Zeta:          cfg.Zeta,
		Multiplier:    1,
		// A lattice step is 2^−bits of a gradient. Counts need fewer bits.
		Unit:  1 << (p.Bits() - 4),
		Start: slices.Clone(cfg.Start),
	}
	plan.Null = int64(math.Floor(cfg.ThresholdQuantile*float64(plan.Unit) + 0.5))

	// The constant feature gets the same curvature as the features: otherwise steps would be too long in its direction.
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
	charge, norm, err := plan.chargePerson(cfg, factor, p.Adjacency)
	if err != nil {
		return nil, nil, err
	}
	one := mu // μ of a single record
	if cfg.personal() {
		one = mu / charge.Ratio
		plan.RecordMu = one
	}
	// A record of a search pays μ there and nothing else. A record of a gradient step pays (1−f)μ² for the gradient
	// and, with "track", fμ² for the count.
	gradient := one
	if cfg.Clip == "track" {
		gradient = one * math.Sqrt(1-cfg.Fraction)
		plan.CountNoise = float64(plan.Unit) / (one * math.Sqrt(cfg.Fraction)) * dp.RoundUp
	}

	alpha := factor.ColNorm()
	if cfg.personal() {
		gradient *= norm / alpha
	}
	plan.Lattice, plan.One, plan.Sensitivity, plan.GradientNoise, err = gradientNoise(cfg, p, factor, norm, gradient)
	if err != nil {
		return nil, nil, err
	}
	plan.Mu = mu * dp.LedgerRoom
	searching := one / charge.Search
	if cfg.personal() {
		// A search takes the place of a gradient step. Rounding has raised the noise of gradient steps, so the noise of
		// searches is raised too.
		searching *= adjacency * float64(plan.Lattice.K) * norm / plan.Sensitivity
	}
	if err := plan.searches(cfg, searching); err != nil {
		return nil, nil, err
	}

	if err := plan.batches(cfg, one, adjacency, alpha); err != nil {
		return nil, nil, err
	}
	if !(float64(plan.Batch)*float64(plan.Lattice.K) < room) {
		return nil, nil, &fault.Fault{Key: "batch", Rule: "must be smaller, so that sums of gradients fit 52 bits",
			Value: plan.Batch}
	}
	plan.rules(cfg, one)
	return plan, factor, nil
}

// gradientNoise returns four values for the sum of a step's gradients divided by the clip norm:
//
//   - l is the lattice,
//   - one is the number of lattice steps of a gradient of norm 1,
//   - sensitivity is the sensitivity of the sums of all steps together, correlated by C, in lattice steps,
//   - noise is the standard deviation of a step's independent draws with which all steps together are μ-Gaussian
//     private, in lattice steps.
//
// Neighbours differ in gradients of norm 1 each. norm is the largest joint norm of these gradients under C.
func gradientNoise(cfg *Config, p dp.Params, factor matfact.Factorization, norm, mu float64) (l dp.Lattice, one,
	sensitivity, noise float64, err error) {
	d, adjacency := cfg.features(), p.Adjacency.Factor()
	// The noise depends on the lattice's K. The lattice is chosen by a rough value of the noise.
	if l, err = dp.NewLattice(1, adjacency*norm/mu, p.Bits()); err != nil {
		return
	}
	if one = l.Radius(d); !(one >= float64(l.K)/2) {
		err = fmt.Errorf("%d features are too many for a lattice of %d steps", d, l.K)
		return
	}
	sensitivity = adjacency * float64(l.K) * norm
	most := calibration.Growth * sensitivity / mu
	limits, err := factor.Limits(most)
	if err != nil {
		return
	}
	// A prediction of correlated noise may be off by Rounding, in each of two neighbours.
	coordinates := calibration.Coordinates(factor, cfg.LastStep(), d)
	sensitivity = (sensitivity + float64(2*limits.Rounding*math.Sqrt(coordinates))) * dp.RoundUp
	if noise = sensitivity / mu * dp.RoundUp; !(noise <= most) {
		err = errors.New("rounding of correlated noise would cost more than 0.1 % of the noise: use fewer bands")
	}
	return
}

// questions returns the number of questions that a search asks.
func (p *AMBPlan) questions(cfg *Config) int {
	if cfg.Clip == "scan" {
		return cfg.Rungs
	}
	return ladder.Ladder{Top: cfg.Top, Rungs: cfg.Rungs}.Searches()
}

// searches sets the fields for counts, and the bounds of the clip norm.
func (p *AMBPlan) searches(cfg *Config, mu float64) error {
	// Squares of residuals far below the smallest rung have no digits left.
	p.ZetaLow = max(math.Ldexp(cfg.Top, -cfg.Rungs-16), 0x1p-500)
	p.ZetaHigh = math.Ldexp(cfg.Top, 16)
	if cfg.Clip == "fixed" {
		return nil
	}
	spread := math.Sqrt(float64(p.questions(cfg))) / mu // deviation of a count, in records
	p.SearchNoise = spread * float64(p.Unit) * dp.RoundUp
	if noise := max(p.SearchNoise, p.CountNoise); !(dp.MaxDraw*noise < 1<<50) {
		return fmt.Errorf("the noise of a count, %.3g records, is too large: raise epsilon", noise/float64(p.Unit))
	}
	// The noise must be small enough to tell a count above or below the threshold from the threshold.
	least := math.Ceil(max(15, 3/min(cfg.ThresholdQuantile, 1-cfg.ThresholdQuantile)) * spread)
	if !(least <= 1<<31) {
		return errors.New("a search would need more than 2^31 slots: raise epsilon")
	}
	p.Search = max(cfg.Stat, cfg.Bootstrap)
	if p.Search == 0 {
		p.Search = max(64, uint64(least))
	}
	p.Threshold = cfg.ThresholdQuantile * float64(p.Search)
	if cfg.Clip == "scan" {
		p.Threshold = float64(p.Search) // as in the paper
	}
	return nil
}

// sizes returns two batch sizes. If a step has fewer than least slots, its noise exceeds its correction: the noise is
// proportional to the error. want is the recommended size. It is at least 4·least. It is also large enough that the
// noise of an average is at most its sampling error, and that the noise of a count is small.
func (p *AMBPlan) sizes(cfg *Config, mu, adjacency, norm, condition float64) (least, want float64) {
	d, alpha := float64(cfg.features()), 1/mu
	v := noiseShape(p.Factorization, norm)
	// half the width of the interval that holds a share q of N(0, 1)
	half := math.Sqrt2 * math.Erfinv(cfg.ThresholdQuantile)
	strength := adjacency * alpha * half
	least = strength * d * v.step * math.Sqrt(cfg.Eta0/(2-cfg.Eta0)) * math.Sqrt(condition)
	want = max(4*least, 2*strength*strength*d*v.average, 20)
	if cfg.Clip == "track" {
		want = max(want, 12*cfg.Kappa*alpha/math.Sqrt(cfg.Fraction))
	}
	return least, want
}

// batches sets Batch to the configured size, after a check, or to the recommended one.
func (p *AMBPlan) batches(cfg *Config, mu, adjacency, norm float64) error {
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
		return &fault.Fault{Key: "batch",
			Rule: fmt.Sprintf("must be at least %.0f slots: "+
				"in smaller batches the noise exceeds the correction of every step",
				math.Ceil(least)), Value: p.Batch}
	}
	if cfg.Growth == "double" {
		for math.Ldexp(float64(p.Batch), p.Growth+1)*float64(p.Lattice.K) < room {
			p.Growth++
		}
	}
	return nil
}

// rules sets the fields for averages and intervals.
func (p *AMBPlan) rules(cfg *Config, mu float64) {
	if *cfg.Restart {
		switch cfg.Clip {
		case "track":
			// The deviation of one step of ln ζ, due to noise and sampling; it depends on public numbers only.
			b, q := float64(p.Batch), cfg.ThresholdQuantile
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

// shape says how correlation changes the noise of an iterate and of an average.
type shape struct {
	step    float64 // standard deviation of one step's noise, divided by that of independent noise
	average float64 // variance of the noise of a long average, divided by that of independent noise
}

// noiseShape computes a shape from the bands of C⁻¹.
func noiseShape(f *matfact.Stored, norm float64) shape {
	sum, square := 1.0, 1.0
	for _, m := range f.Bands {
		r := float64(m) * 0x1p-64
		sum -= r
		square += r * r
	}
	return shape{norm * math.Sqrt(square), norm * sum * norm * sum}
}

// clone returns a copy that shares no memory with p.
func (p *AMBPlan) clone() AMBPlan {
	c := *p
	c.Factorization = p.Factorization.Clone()
	c.Student, c.Start = slices.Clone(p.Student), slices.Clone(p.Start)
	c.Person = p.Person.Clone()
	return c
}

// rate returns the step size of a batch of b.
func (p *AMBPlan) rate(eta0 float64, b uint64) float64 {
	n := float64(b)
	return float64(eta0*n) / (float64(p.Bound*p.Bound) + float64((n-1)*p.Curvature))
}

// adoptAMB returns the factorization of a kept plan. It checks that the plan is the one that the configuration resolves
// to, except for last bits: a plan decides how much noise there is, so a forged plan must be refused.
func adoptAMB(kept *AMBPlan, cfg *Config, p dp.Params) (matfact.Factorization, error) {
	own, factor, err := resolveAMB(cfg, p, nil)
	if err != nil {
		return nil, err
	}
	if kept.Factorization == nil || !alike(reflect.ValueOf(*kept), reflect.ValueOf(*own)) {
		return nil, calibration.ErrForeign
	}
	return factor, nil
}
