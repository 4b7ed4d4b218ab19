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

// AMBPlan holds what a configuration resolves to before the first record: public numbers that
// the releases depend on. An epoch records its plan, because another processor may compute other
// last bits.
type AMBPlan struct {
	Method string `json:"method"`
	// Factorization correlates the noise of the gradients.
	Factorization *matfact.Stored `json:"factorization"`
	// Mu is the guarantee.
	Mu float64 `json:"mu"`
	// ClipX bounds the features' norm. Constant is the value of the constant feature, 0 if
	// there is none. Bound is an upper bound on the norm of both together.
	ClipX    float64 `json:"clip_x"`
	Constant float64 `json:"constant"`
	Bound    float64 `json:"bound"`
	// Batch is the number of slots of a gradient step, before it grows. Search is that of a
	// step that searches the clip norm, 0 if there are none.
	Batch  uint64 `json:"batch"`
	Search uint64 `json:"search"`
	// Growth is the number of times that batches double.
	Growth int `json:"growth"`
	// Unit and Null are the lattice steps that a record and a null record add to a count.
	// SearchNoise and CountNoise are standard deviations, in these lattice steps.
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
	// Lattice is that of gradients divided by the clip norm. One is the number of lattice
	// steps of a gradient of that norm; it is a little less than K.
	Lattice dp.Lattice `json:"lattice"`
	One     float64    `json:"one"`
	// Sensitivity is that of the gradients' sums of all steps, correlated by C.
	// GradientNoise is the standard deviation of a step's independent draws. Both are in
	// lattice steps.
	Sensitivity   float64 `json:"sensitivity"`
	GradientNoise float64 `json:"gradient_noise"`
	// Curvature is h in the step size eta0·b/(Bound² + (b−1)h) of a batch of b.
	Curvature float64 `json:"curvature"`
	// Radius bounds the norm of the iterates; 0: no bound.
	Radius float64 `json:"radius"`
	// Jump is a factor: a clip norm above Jump times its recent median restarts the average.
	// DriftBlock and BatchMeans are lengths, in steps, of the means that show a drift and of
	// those that give the intervals. They are 0 if the plan does not have them.
	Jump       float64 `json:"jump"`
	DriftBlock uint64  `json:"drift_block"`
	BatchMeans uint64  `json:"batch_means"`
	// Student holds the quantiles of Student's t for intervals from so many means, 0 if there
	// are too few.
	Student []float64 `json:"student,omitempty"`
	// Start is the first iterate; nil: 0.
	Start []float64 `json:"start,omitempty"`
	// Person says what is protected where that is not a single record; Norm is that of
	// gradients. RecordMu is what one record pays then, up to roundings, 0 without persons.
	Person   *calibration.Person `json:"person,omitempty"`
	RecordMu float64             `json:"record_mu,omitempty"`
}

// single returns what one record pays, up to roundings.
func (p *AMBPlan) single() float64 {
	if p.Person != nil {
		return p.RecordMu
	}
	return p.Mu
}

// resolveAMB computes the plan and its factorization. It uses the stored factorization if there
// is one, otherwise the one that the configuration asks for.
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
	plan.Null = int64(math.Floor(cfg.Quantile*float64(plan.Unit) + 0.5))

	// The constant feature gets the same curvature as the features. Otherwise steps would be
	// too long in its direction alone.
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
	one := mu // of a single record
	if cfg.personal() {
		one = mu / charge.Ratio
		plan.RecordMu = one
	}
	// A record of a search pays μ there and nothing else. A record of a gradient step pays for
	// the gradient and, with "track", for the count: 1−f and f of μ².
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
		// A search stands for a gradient step, whose noise the roundings have raised.
		searching *= adjacency * float64(plan.Lattice.K) * norm / plan.Sensitivity
	}
	if err := plan.searches(cfg, searching); err != nil {
		return nil, nil, err
	}

	if err := plan.batches(cfg, one, adjacency, alpha); err != nil {
		return nil, nil, err
	}
	if !(float64(plan.Batch)*float64(plan.Lattice.K) < room) {
		return nil, nil, &fault.Fault{Key: "batch", Rule: "must be less, for sums of gradients to fit 52 bits",
			Value: plan.Batch}
	}
	plan.rules(cfg, one)
	return plan, factor, nil
}

// gradientNoise returns four things for a step's sum of gradients over the clip norm: its
// lattice; the number of lattice steps of a gradient of that norm; the sensitivity of the sums
// of all steps, correlated by C; and the standard deviation of a step's independent draws that
// makes all steps together μ-Gaussian-private. The last two are in lattice steps. norm is the
// largest one under C that gradients in which neighbours differ have together, if each has norm 1.
func gradientNoise(cfg *Config, p dp.Params, factor matfact.Factorization, norm, mu float64) (l dp.Lattice, one,
	sensitivity, noise float64, err error) {
	d, adjacency := cfg.features(), p.Adjacency.Factor()
	// The noise depends on the lattice's K, and the lattice roughly on the noise.
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
	// A prediction of correlated noise may err by Rounding, in each of two neighbours.
	coordinates := calibration.Coordinates(factor, cfg.LastStep(), d)
	sensitivity = (sensitivity + float64(2*limits.Rounding*math.Sqrt(coordinates))) * dp.RoundUp
	if noise = sensitivity / mu * dp.RoundUp; !(noise <= most) {
		err = errors.New("rounding of correlated noise would cost more than 0.1 % of the noise: use fewer bands")
	}
	return
}

// questions returns how many a search asks.
func (p *AMBPlan) questions(cfg *Config) int {
	if cfg.Clip == "scan" {
		return cfg.Rungs
	}
	return ladder.Ladder{Top: cfg.Top, Rungs: cfg.Rungs}.Searches()
}

// searches sets the fields for counts, and the bounds of the clip norm.
func (p *AMBPlan) searches(cfg *Config, mu float64) error {
	// Far below every rung a sum of squares has no digits left.
	p.ZetaLow = max(math.Ldexp(cfg.Top, -cfg.Rungs-16), 0x1p-500)
	p.ZetaHigh = math.Ldexp(cfg.Top, 16)
	if cfg.Clip == "fixed" {
		return nil
	}
	spread := math.Sqrt(float64(p.questions(cfg))) / mu // in records
	p.SearchNoise = spread * float64(p.Unit) * dp.RoundUp
	if noise := max(p.SearchNoise, p.CountNoise); !(dp.MaxDraw*noise < 1<<50) {
		return fmt.Errorf("noise of %.3g records is too large for counts: raise epsilon", noise/float64(p.Unit))
	}
	// A count above the threshold, and one below, must be distinguishable from it.
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

// sizes returns two batches. Below the first, the noise of a step, which is in proportion to the
// error, is larger than the correction of the step. The second is the one to choose. It is four
// times the first, and large enough that the noise of an average is at most its sampling error
// and the noise of a count is small.
func (p *AMBPlan) sizes(cfg *Config, mu, adjacency, norm, condition float64) (least, want float64) {
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

// batches sets the batch: the configured one after a check, or one that it chooses.
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
			Rule: fmt.Sprintf("must be at least %.0f slots: with less the noise outweighs every step",
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

// shape says how correlating the noise changes the noise of an iterate and of an average.
type shape struct {
	step    float64 // deviation of one step's noise over that of independent noise
	average float64 // variance of a long average's noise likewise
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

// adoptAMB returns the factorization of a kept plan, after checking that the plan is what the
// configuration resolves to. A plan decides how much noise there is, so one that somebody else
// wrote must not pass. Numbers may differ in their last bits.
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
