package sgd

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/newton"
	"github.com/streamdp/streamdp/matfact"
)

// NewtonVersion names the algorithm and state of [Newton]. A new version needs a new epoch.
const NewtonVersion = "newton/v3" // v1 did not centre, v2 had no modes and no gains

// NewtonPlan holds the public numbers that follow from a configuration of [Newton] before the first record; see
// [AMBPlan].
type NewtonPlan struct {
	Method string `json:"method"`
	// Factorization correlates the noise of the gradients.
	Factorization *matfact.Stored `json:"factorization"`
	// Mu is the guarantee.
	Mu float64 `json:"mu"`
	// ClipX bounds the norm of the features.
	ClipX float64 `json:"clip_x"`
	// Search is the number of slots of each search at the start. Batch is the number of slots of a step, by epoch; the
	// last entry is for all later epochs.
	Search uint64   `json:"search"`
	Batch  []uint64 `json:"batch"`
	// Doublings is how many times epochs double in length.
	Doublings int `json:"doublings"`
	// Unit is the number of lattice steps that a record adds to a count. NullNorm, NullLocate and NullScale are the
	// numbers that a null record adds in the three searches; where the median is a mode, modeQuantile of Unit replaces
	// NullScale. SearchNoise, LocateNoise, CountNoise and NullNoise are standard deviations in these lattice steps.
	// NullLocate and LocateNoise are 0 without an intercept.
	Unit        int64   `json:"unit"`
	NullNorm    int64   `json:"null_norm"`
	NullLocate  int64   `json:"null_locate,omitempty"`
	NullScale   int64   `json:"null_scale"`
	SearchNoise float64 `json:"search_noise"`
	LocateNoise float64 `json:"locate_noise,omitempty"`
	CountNoise  float64 `json:"count_noise"`
	NullNoise   float64 `json:"null_noise"`
	// Lattice is the lattice of gradients divided by the clip norm. One is the number of lattice steps of a gradient of
	// that norm. Near is the share of the clip norm up to which a gradient counts; such a gradient has at most ⌊0.27K⌋
	// lattice steps, however it is rounded.
	Lattice dp.Lattice `json:"lattice"`
	One     float64    `json:"one"`
	Near    float64    `json:"near"`
	// Sensitivity is the sensitivity of the gradient sums of all steps together, correlated by C. GradientNoise is the
	// standard deviation of a step's independent draws. Both are in lattice steps.
	Sensitivity   float64 `json:"sensitivity"`
	GradientNoise float64 `json:"gradient_noise"`
	// HistogramNoise is the standard deviation of a bin's noise, in records. GramMu is the μ of an epoch's Gram matrix.
	// RadiusNoise is the weight of that matrix's noise in the choice of the norm to which its rows are shortened.
	HistogramNoise float64 `json:"histogram_noise"`
	GramMu         float64 `json:"gram_mu"`
	RadiusNoise    float64 `json:"radius_noise"`
	// Jumps holds factors, by epoch like Batch: a clip norm above the factor times its recent median causes a hard
	// restart.
	Jumps []float64 `json:"jumps"`
	// Radius bounds the norm of the coefficients; 0 means no bound.
	Radius float64 `json:"radius,omitempty"`
	// Student[n] is the quantile of Student's t for intervals from n parts.
	Student []float64 `json:"student,omitempty"`
	// Start holds the first coefficients; nil means 0.
	Start []float64 `json:"start,omitempty"`
	// Person says how all records of a person are protected together; it is nil if single records are protected. Fewer
	// holds factors, by epoch like Batch: a short epoch contains fewer of a person's steps than a long one, so its
	// histogram and matrix get noise smaller by this factor than HistogramNoise and GramMu say.
	Person *calibration.Person `json:"person,omitempty"`
	Fewer  []float64           `json:"fewer,omitempty"`

	adjacency dp.Adjacency
	bits      int
	dim       int
	intercept bool
}

// These are the shares of μ² that a record pays: for its epoch's histogram of norms and Gram matrix; for its step's
// count of null records; and for its gradient together with the count of small gradients.
const (
	histogramShare = 0.03
	gramShare      = 0.12
	nullShare      = 0.04
	gradientShare  = 0.81
)

// shapedBands is the number of bands of the gradients' noise.
const shapedBands = 64

// resolveNewton computes the plan and its factorization.
func resolveNewton(cfg *Config, p dp.Params) (*NewtonPlan, matfact.Factorization, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), cfg.validateScaling(), cfg.is("newton"), err); err != nil {
		return nil, nil, err
	}
	factor, load, err := loadFor(cfg, p)
	if err != nil {
		return nil, nil, err
	}
	d := cfg.features()
	adjacency := p.Adjacency.Factor()
	plan := &NewtonPlan{
		Method:        "newton",
		Factorization: factor.Stored(),
		Mu:            mu * dp.LedgerRoom,
		ClipX:         cfg.ClipX,
		Unit:          1 << (p.Bits() - 4),
		Radius:        cfg.Radius,
		Start:         slices.Clone(cfg.Start),
		Person:        load.person,
		Fewer:         load.fewer,
		adjacency:     p.Adjacency, bits: p.Bits(), dim: d, intercept: *cfg.Intercept,
	}
	unit := float64(plan.Unit)
	plan.NullNorm = int64(math.Floor(normQuantile*unit + 0.5))
	plan.NullScale = int64(math.Floor(scaleQuantile*unit + 0.5))
	spread := math.Sqrt(float64(normLadder.Searches())) / mu * load.search
	plan.SearchNoise = spread * unit * dp.RoundUp
	plan.Search = max(64, uint64(min(math.Ceil(15*spread), 1<<32)))
	if plan.intercept {
		plan.NullLocate = plan.Unit / 2
		plan.LocateNoise = math.Sqrt(medianQuestions) / mu * load.locate * unit * dp.RoundUp
	}

	gradient := mu * math.Sqrt(gradientShare)
	plan.Lattice, plan.One, plan.Sensitivity, plan.GradientNoise, err = gradientNoise(cfg, p, factor,
		load.norm, gradient)
	if err != nil {
		return nil, nil, err
	}
	small := dp.Lattice{Exp: plan.Lattice.Exp, K: int64(math.Floor(countedPart * float64(plan.Lattice.K)))}
	plan.Near = small.Radius(d) / plan.One
	if !(plan.Near > countedPart/2) {
		return nil, nil, fmt.Errorf("%d features are too many for a lattice of %d steps", d, plan.Lattice.K)
	}

	// Noise of the counts, in records. Rounding has raised the noise of the gradients; the noise of the count of small
	// gradients is raised by the same factor, so that this count stays free.
	counted := plan.Sensitivity / (float64(plan.Lattice.K) * factor.ColNorm()) / (load.weight * gradient)
	missing := load.nulls / (mu * math.Sqrt(nullShare))
	plan.CountNoise = counted * unit * dp.RoundUp
	plan.NullNoise = missing * unit * dp.RoundUp
	if noise := max(plan.SearchNoise, plan.LocateNoise, plan.CountNoise, plan.NullNoise); !(dp.MaxDraw*noise < 1<<50) {
		return nil, nil, fmt.Errorf("the noise of a count, %.3g records, is too large: raise epsilon", noise/unit)
	}
	plan.HistogramNoise = newton.HistogramSD(mu/load.epoch*math.Sqrt(histogramShare), p.Adjacency)
	plan.GramMu = mu / load.matrix * math.Sqrt(gramShare) / dp.RoundUp
	plan.RadiusNoise = plan.norms() * 1.35 * math.Sqrt(float64(d)*adjacency) / plan.GramMu

	// Batches and jumps, then the length of epochs.
	growth := 1.0
	for range 5 {
		b := math.Ceil(max(50, 20/mu, 1.25*adjacency*float64(d)/mu*growth))
		if plan.Person != nil {
			b = math.Ceil(max(50, 4*missing, float64(d)*plan.stepNoise(factor)*growth))
		}
		if !(b <= 1<<31 && b*float64(plan.Lattice.K) < room) {
			return nil, nil,
				&fault.Fault{Rule: fmt.Sprintf("a step would need %.3g slots, which is too many: raise epsilon", b)}
		}
		plan.Batch = append(plan.Batch, uint64(b))
		share := countedShare * missing
		sd := gain / b * math.Sqrt(float64(counted*counted)+float64(share*share)+b*countedShare*(1-countedShare))
		plan.Jumps = append(plan.Jumps, math.Exp(max(math.Log(1.4), 5*sd)))
		growth *= math.Sqrt2
	}
	rows := float64(1 << 36)
	for i := range normLadder.Rungs + 1 {
		for _, k := range []int{0, len(plan.Fewer)} { // the epochs with the least and with the most noise
			g, err := plan.gram(normLadder.Rung(i), k)
			if err != nil {
				return nil, nil, err
			}
			rows = min(rows, g.Limit())
		}
	}
	for plan.Doublings < 40 && math.Ldexp(firstSteps*float64(plan.Batch[4]), plan.Doublings+1) <= rows {
		plan.Doublings++
	}

	if *cfg.Intervals {
		plan.Student = make([]float64, partsMost+1)
		for n := partsLeast; n <= partsMost; n++ {
			plan.Student[n] = StudentQuantile((1+cfg.Level)/2, float64(n-1))
		}
	}
	return plan, factor, nil
}

// firstSteps is the number of steps of the first epoch.
const firstSteps = 4

// steps returns the number of steps of epoch k.
func (p *NewtonPlan) steps(k int) uint64 { return firstSteps << min(k, p.Doublings) }

// batch returns the number of slots of a step of epoch k.
func (p *NewtonPlan) batch(k int) uint64 { return p.Batch[min(k, len(p.Batch)-1)] }

// jump returns the factor by which the clip norm must exceed its median in epoch k to count as a jump.
func (p *NewtonPlan) jump(k int) float64 { return p.Jumps[min(k, len(p.Jumps)-1)] }

// rate returns the step size of epoch k.
func (p *NewtonPlan) rate(k int) float64 {
	rate := 0.7
	for range k {
		if rate = float64(rate * 0.85); rate < 0.3 {
			return 0.3
		}
	}
	return rate
}

// stretch returns the number of steps of a stretch of epoch k.
func (p *NewtonPlan) stretch(k int) uint64 { return max(1, p.steps(k)/stretchesMost) }

// Searches returns the number of searches at the start of a stream: for the norm of the features, with an intercept for
// the median of the residuals, and for the norm of the gradients.
func (p *NewtonPlan) Searches() uint64 {
	if p.intercept {
		return 3
	}
	return 2
}

// norms returns the largest squared norm of a row in units of R². Features are shortened to R, and with an intercept a
// constant of ½R makes it 5/4.
func (p *NewtonPlan) norms() float64 {
	if p.intercept {
		return 1.25
	}
	return 1
}

// gram returns an empty Gram matrix for epoch k, for rows whose features are shortened to the norm √squared.
func (p *NewtonPlan) gram(squared float64, k int) (*newton.Gram, error) {
	return newton.NewGram(p.dim, p.norms()*squared, p.GramMu/p.fewer(k), p.adjacency, p.bits)
}

// fewer returns the factor on the noise of the histogram and matrix of epoch k.
func (p *NewtonPlan) fewer(k int) float64 {
	if k < len(p.Fewer) {
		return p.Fewer[k]
	}
	return 1
}

// clone returns a copy that shares no memory with p.
func (p *NewtonPlan) clone() NewtonPlan {
	c := *p
	c.Factorization = p.Factorization.Clone()
	c.Batch, c.Jumps = slices.Clone(p.Batch), slices.Clone(p.Jumps)
	c.Student, c.Start = slices.Clone(p.Student), slices.Clone(p.Start)
	c.Person, c.Fewer = p.Person.Clone(), slices.Clone(p.Fewer)
	return c
}
