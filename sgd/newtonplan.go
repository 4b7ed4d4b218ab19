package sgd

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"streamdp/dp"
	"streamdp/internal/clipgrad"
	"streamdp/internal/fault"
	"streamdp/internal/newton"
	"streamdp/matfact"
)

// NewtonVersion names the algorithm and state of [Newton]; another version is another
// epoch.
const NewtonVersion = "newton/v1"

// NewtonPlan is everything that a configuration of [Newton] resolves to before the
// first record, as [Plan].
type NewtonPlan struct {
	Method string `json:"method"`
	// Factorization correlates the noise of the gradients.
	Factorization *matfact.Stored `json:"factorization"`
	// Mu is the guarantee.
	Mu float64 `json:"mu"`
	// ClipX bounds the features' norm.
	ClipX float64 `json:"clip_x"`
	// Search is the number of slots of each of the two searches, and Batch those of a
	// step in the first epochs; the last number is that of all later ones.
	Search uint64   `json:"search"`
	Batch  []uint64 `json:"batch"`
	// Doublings is how often epochs double in length.
	Doublings int `json:"doublings"`
	// Unit, NullNorm and NullScale are the lattice steps that a record, and a null
	// record in each of the two searches, add to a count; SearchNoise, CountNoise and
	// NullNoise are standard deviations in these steps.
	Unit        int64   `json:"unit"`
	NullNorm    int64   `json:"null_norm"`
	NullScale   int64   `json:"null_scale"`
	SearchNoise float64 `json:"search_noise"`
	CountNoise  float64 `json:"count_noise"`
	NullNoise   float64 `json:"null_noise"`
	// Lattice is that of gradients divided by the clip norm, One the number of its
	// steps that a gradient of that norm has, and Near the part of the clip norm up to
	// which a gradient counts: it has at most ⌊0.27K⌋ steps, however it is rounded.
	Lattice dp.Lattice `json:"lattice"`
	One     float64    `json:"one"`
	Near    float64    `json:"near"`
	// Sensitivity is that of a step's sum of gradients, through all steps, and
	// GradientNoise the standard deviation of a step's independent draws; both in
	// lattice steps.
	Sensitivity   float64 `json:"sensitivity"`
	GradientNoise float64 `json:"gradient_noise"`
	// HistogramNoise is the standard deviation of a bin's noise, in records; GramMu
	// the guarantee of an epoch's Gram matrix; RadiusNoise what its noise weighs in
	// the choice of the norm to which its rows are shortened.
	HistogramNoise float64 `json:"histogram_noise"`
	GramMu         float64 `json:"gram_mu"`
	RadiusNoise    float64 `json:"radius_noise"`
	// Jumps are the factors over its recent median by which the clip norm makes a
	// hard restart, by epoch as Batch.
	Jumps []float64 `json:"jumps"`
	// Radius bounds the coefficients' norm; 0: nothing does.
	Radius float64 `json:"radius,omitempty"`
	// Student are the quantiles of Student's t for intervals of so many parts.
	Student []float64 `json:"student,omitempty"`
	// Start are the first coefficients; nil: 0.
	Start []float64 `json:"start,omitempty"`

	adjacency dp.Adjacency
	bits      int
	dim       int
}

// The parts of μ² that a record pays: for the histogram of norms and the Gram matrix of
// its epoch, and in its step for the count of nulls and for the gradient with the count
// of small ones.
const (
	histogramShare = 0.03
	gramShare      = 0.12
	nullShare      = 0.04
	gradientShare  = 0.81
)

// shapedBands are the bands of the gradients' noise.
const shapedBands = 64

// resolveNewton computes the plan, and the factorization it names.
func resolveNewton(cfg *Config, p dp.Params) (*NewtonPlan, matfact.Factorization, error) {
	mu, err := p.Budget()
	if err = errors.Join(cfg.Validate(), cfg.validateScaling(), cfg.is("newton"), err); err != nil {
		return nil, nil, err
	}
	factor, err := factorize(shapedBands, nil)
	if err != nil {
		return nil, nil, err
	}
	d := cfg.features()
	adjacency := p.Adjacency.Factor()
	plan := &NewtonPlan{
		Method:        "newton",
		Factorization: factor.Stored(),
		Mu:            mu * (1 - 0x1p-49), // leaves room for the roundings of a ledger
		ClipX:         cfg.ClipX,
		Unit:          1 << (p.Bits() - 4),
		Radius:        cfg.Radius,
		Start:         slices.Clone(cfg.Start),
		adjacency:     p.Adjacency, bits: p.Bits(), dim: d,
	}
	unit := float64(plan.Unit)
	plan.NullNorm = int64(math.Floor(normQuantile*unit + 0.5))
	plan.NullScale = int64(math.Floor(scaleQuantile*unit + 0.5))
	spread := math.Sqrt(float64(normLadder.searches())) / mu
	plan.SearchNoise = spread * unit * roundUp
	plan.Search = max(64, uint64(min(math.Ceil(15*spread), 1<<32)))

	gradient := mu * math.Sqrt(gradientShare)
	plan.Lattice, plan.One, plan.Sensitivity, plan.GradientNoise, err = gradientNoise(cfg, p, factor, gradient)
	if err != nil {
		return nil, nil, err
	}
	small := dp.Lattice{Exp: plan.Lattice.Exp, K: int64(math.Floor(countedPart * float64(plan.Lattice.K)))}
	plan.Near = small.Radius(d) / plan.One
	if !(plan.Near > countedPart/2) {
		return nil, nil, fmt.Errorf("%d features are too many for a lattice of %d steps", d, plan.Lattice.K)
	}

	// In records; with what rounding adds to the sensitivity, as the gradients' noise: the
	// count is free of that part too.
	counted := plan.Sensitivity / (float64(plan.Lattice.K) * factor.ColNorm()) / (clipgrad.CountWeight(p.Adjacency, countedPart) * gradient)
	missing := 1 / (mu * math.Sqrt(nullShare))
	plan.CountNoise = counted * unit * roundUp
	plan.NullNoise = missing * unit * roundUp
	if noise := max(plan.SearchNoise, plan.CountNoise, plan.NullNoise); !(14*noise < 1<<50) {
		return nil, nil, fmt.Errorf("noise of %.3g records is too large for counts: raise epsilon", noise/unit)
	}
	plan.HistogramNoise = newton.HistogramSD(mu*math.Sqrt(histogramShare), p.Adjacency)
	plan.GramMu = mu * math.Sqrt(gramShare) / roundUp
	plan.RadiusNoise = 1.35 * math.Sqrt(float64(d)*adjacency) / plan.GramMu

	// Batches and jumps, and how long epochs may be.
	growth := 1.0
	for range 5 {
		b := math.Ceil(max(50, 20/mu, 1.25*adjacency*float64(d)/mu*growth))
		if !(b <= 1<<31 && b*float64(plan.Lattice.K) < room) {
			return nil, nil, &fault.Fault{Rule: fmt.Sprintf("steps would have to be of %.3g slots: raise epsilon", b)}
		}
		plan.Batch = append(plan.Batch, uint64(b))
		share := countedShare * missing
		sd := gain / b * math.Sqrt(float64(counted*counted)+float64(share*share)+b*countedShare*(1-countedShare))
		plan.Jumps = append(plan.Jumps, math.Exp(max(math.Log(1.4), 5*sd)))
		growth *= math.Sqrt2
	}
	rows := float64(1 << 36)
	for i := range normLadder.rungs + 1 {
		g, err := plan.gram(normLadder.rung(i))
		if err != nil {
			return nil, nil, err
		}
		rows = min(rows, g.Limit())
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

// steps returns the steps of epoch k.
func (p *NewtonPlan) steps(k int) uint64 { return firstSteps << min(k, p.Doublings) }

// batch returns the slots of a step of epoch k.
func (p *NewtonPlan) batch(k int) uint64 { return p.Batch[min(k, len(p.Batch)-1)] }

// jump returns the factor by which the clip norm jumps in epoch k.
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

// stretch returns the steps of a stretch of epoch k.
func (p *NewtonPlan) stretch(k int) uint64 { return max(1, p.steps(k)/stretchesMost) }

// gram returns an empty Gram matrix of rows shortened to norm √squared.
func (p *NewtonPlan) gram(squared float64) (*newton.Gram, error) {
	return newton.NewGram(p.dim, squared, p.GramMu, p.adjacency, p.bits)
}

// clone returns a copy that shares nothing with p.
func (p *NewtonPlan) clone() NewtonPlan {
	c, f := *p, *p.Factorization
	f.Bands, f.Phases = slices.Clone(f.Bands), slices.Clone(f.Phases)
	c.Factorization = &f
	c.Batch, c.Jumps = slices.Clone(p.Batch), slices.Clone(p.Jumps)
	c.Student, c.Start = slices.Clone(p.Student), slices.Clone(p.Start)
	return c
}
